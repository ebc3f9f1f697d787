"""Pairs of faces from the official files: Labeled Faces in the Wild and its pairs.txt."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from scoreshield import _checks
from scoreshield.data import archives, cache
from scoreshield.data.sets import FacePairs
from scoreshield.errors import FileError, InvalidInput

# The folder inside each archive, which is not always called what the archive is.
_FOLDERS = {"deepfunneled": "lfw-deepfunneled", "funneled": "lfw_funneled"}

Picture = tuple[str, int]  # a person and the number of the picture


def lfw(
    root: str | Path | None = None,
    *,
    alignment: str = "deepfunneled",
    offline: bool = False,
    progress: cache.Progress | None = None,
) -> FacePairs:
    """The 6,000 pairs of the official protocol, in 10 folds, over 7,701 pictures, as paths, not embedded yet.

    The pictures wanted are taken out of the archive once. A folder ``<root>/lfw-<alignment>/<folder of the archive>``
    that holds them already is used as it is, without the archive.

    Parameters
    ----------
    root, offline, progress : see `scoreshield.data.cache.fetch`.
    alignment : how the pictures were aligned: "deepfunneled", whose server is gone, so that the archive must be put in
        place by hand; or "funneled", which can be downloaded.
    """
    name = f"lfw-{_checks.one_of(alignment, 'alignment', 'lfw', _FOLDERS)}"
    pairs = cache.fetch_file(name, "pairs.txt", root, offline, progress)
    folder = cache.set_folder(name, root) / _FOLDERS[alignment]
    made = read_pairs(pairs, folder, name=f"LFW {alignment}")
    paths = [Path(item) for item in made.items or ()]
    absent = {f"{folder.name}/{path.parent.name}/{path.name}": path for path in paths if not path.is_file()}
    if absent:
        archives.unpack(cache.fetch_file(name, f"{name}.tgz", root, offline, progress), absent)
    return made


def read_pairs(path: str | Path, folder: str | Path, *, name: str = "face pairs") -> FacePairs:
    """A list of pairs in the form of LFW's pairs.txt, with pictures at ``folder/Person/Person_0001.jpg``.

    A line of three fields (person, number, number) is a genuine pair, one of four (person, number, person, number) an
    impostor pair. The first line may say "folds pairs": so many folds, each of so many genuine pairs and as many
    impostor pairs; or "pairs" alone, which is one fold; without it all lines are one fold.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror}.") from None
    rows = list(archives.lines(content, str(path)))
    folds, each = 1, None
    header = rows[0][1].split() if rows else []
    if 1 <= len(header) <= 2 and all(part.isdecimal() for part in header):
        folds, each = (1, int(header[0])) if len(header) == 1 else (int(header[0]), int(header[1]))
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
        items=tuple(Path(folder) / person / f"{person}_{number:04d}.jpg" for person, number in pictures),
    )


def _pair(line: str, where: str) -> tuple[Picture, Picture]:
    parts = line.split()
    if len(parts) == 3:
        parts = [parts[0], parts[1], parts[0], parts[2]]
    numbers = parts[1::2]
    sound = len(parts) == 4 and all(part.isdecimal() and len(part) <= 6 for part in numbers)
    if not sound or any(set(person) & set("/\\") or person.startswith(".") for person in parts[::2]):
        raise InvalidInput(
            f"{where}: a line must be 'person number number' or 'person number person number', without slashes."
        )
    return (parts[0], int(parts[1])), (parts[2], int(parts[3]))
