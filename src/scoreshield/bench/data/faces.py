"""Pairs of faces from the official files: Labeled Faces in the Wild and its pairs.txt."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from scoreshield import _loading, _validation
from scoreshield._validation import validate
from scoreshield.bench.data import archives, cache
from scoreshield.bench.data.archives import parse_digits
from scoreshield.bench.data.sets import FacePairs
from scoreshield.errors import FileError, InvalidInput

# The folder inside each archive, which is not always called what the archive is.
_FOLDERS = {"deepfunneled": "lfw-deepfunneled", "funneled": "lfw_funneled"}

_MOST = 999_999  # the largest number of a picture, of folds or of pairs that is plausible

Picture = tuple[str, int]  # a person and the number of the picture


@validate()
def load_lfw(
    root: str | Path | None = None,
    *,
    alignment: str = "funneled",
    offline: bool = False,
    progress: cache.Progress | None = None,
) -> FacePairs:
    """Load the 6,000 pairs of the official protocol, in 10 folds, over 7,701 pictures, as paths, not embedded yet.

    The pictures wanted are taken out of the archive once. A folder ``<root>/lfw-<alignment>/<folder of the archive>``
    that holds them already is used as it is, without the archive.

    Args:
        root: See `scoreshield.bench.data.cache.fetch`.
        offline: See `scoreshield.bench.data.cache.fetch`.
        progress: See `scoreshield.bench.data.cache.fetch`.
        alignment: How the pictures were aligned: "funneled", which can be downloaded; or "deepfunneled", whose server
            is gone, so that the archive must be put in place by hand.
    """
    name = f"lfw-{_validation.check_option(alignment, 'alignment', _FOLDERS)}"
    pairs = cache.fetch_file(name, "pairs.txt", root, offline, progress)
    folder = cache.find_set_folder(name, root) / _FOLDERS[alignment]
    made = read_pairs(pairs, folder, name=f"LFW {alignment}")
    paths = [Path(item) for item in made.items or ()]
    absent = {f"{folder.name}/{path.parent.name}/{path.name}": path for path in paths if not path.is_file()}
    if absent:
        archive = folder.parent / f"{name}.tgz"
        if alignment == "deepfunneled" and not archive.exists():
            raise FileError(
                f"There is no file {archive}, and the server of the deep-funneled pictures is gone: put the archive "
                "there by hand, or use alignment='funneled', which can be downloaded."
            )
        archives.unpack_members(cache.fetch_file(name, archive.name, root, offline, progress), absent)
    return made


@validate()
def read_pairs(path: str | Path, folder: str | Path, *, name: str = "face pairs") -> FacePairs:
    """Read a list of pairs in the form of LFW's pairs.txt, with pictures at ``folder/Person/Person_0001.jpg``.

    A line of three fields (person, number, number) is a genuine pair of two pictures. A line of four fields (person,
    number, person, number) is an impostor pair of two people. The first line may hold two numbers: the number of folds,
    and the number of genuine pairs per fold, which is also the number of impostor pairs per fold. It may hold the
    second number alone, for one fold. Without such a line, all lines are one fold.
    """
    folder = archives.check_path(folder, "folder", "the path of a folder")
    rows = list(archives.split_lines(_loading.read_bytes(archives.check_path(path)), str(path)))
    folds, each = 1, None
    header = rows[0][1].split() if rows else []
    if 1 <= len(header) <= 2:
        counts = [parse_digits(part, _MOST) or 0 for part in header]
        if not all(counts):
            raise InvalidInput(f"{path}, line 1: the first line must be 'folds pairs', 'pairs' or a pair.")
        folds, each = (1, counts[0]) if len(counts) == 1 else (counts[0], counts[1])
        rows = rows[1:]
    if not rows or (each is not None and len(rows) != 2 * folds * each):
        expected = "at least one pair" if each is None else f"{folds} x {2 * each} pairs, as its first line says"
        raise InvalidInput(f"{path} must hold {expected}; it holds {len(rows)}.")
    pairs = [_pair(line, f"{path}, line {number}") for number, line in rows]
    pictures = {picture: place for place, picture in enumerate(dict.fromkeys(p for pair in pairs for p in pair))}
    people = {person: place for place, person in enumerate(dict.fromkeys(person for person, _ in pictures))}
    first, second = np.array([[pictures[a], pictures[b]] for a, b in pairs]).T
    identity = np.array([people[person] for person, _ in pictures])
    return FacePairs(
        name=name,
        first=first,
        second=second,
        same=identity[first] == identity[second],
        fold=np.arange(len(pairs)) * folds // len(pairs),
        identity=identity,
        items=tuple(folder / person / f"{person}_{number:04d}.jpg" for person, number in pictures),
    )


def _pair(line: str, where: str) -> tuple[Picture, Picture]:
    parts = line.split()
    genuine = len(parts) == 3
    if genuine:
        parts.insert(2, parts[0])
    people, numbers = parts[::2], [parse_digits(part, _MOST) or 0 for part in parts[1::2]]
    if len(parts) != 4 or not all(numbers) or any(set(p) & set("/\\\0") or p.startswith(".") for p in people):
        raise InvalidInput(
            f"{where}: a line must be 'person number number' or 'person number person number', without slashes."
        )
    if not genuine and people[0] == people[1]:
        raise InvalidInput(f"{where}: a line of four fields must name two people; it names one twice.")
    if genuine and numbers[0] == numbers[1]:
        raise InvalidInput(f"{where}: a line of three fields must name two pictures; it names one twice.")
    return (people[0], numbers[0]), (people[1], numbers[1])
