"""Images with known classes from the official files: CIFAR-10, CIFAR-100 and Oxford-IIIT Pet.

CIFAR is read from its *binary* version: fixed-length records of labels and pixels. The Python version of the same data
is a pickle, and reading a pickle runs any code that its author put there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._validation import validate
from scoreshield.bench.data import archives, cache
from scoreshield.bench.data.sets import LabelledSet
from scoreshield.errors import InvalidInput

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE
_CIFAR10 = {
    "train": [f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)],
    "test": ["cifar-10-batches-bin/test_batch.bin"],
}
_CIFAR100 = {"train": ["cifar-100-binary/train.bin"], "test": ["cifar-100-binary/test.bin"]}
_PETS = {"train": "annotations/trainval.txt", "test": "annotations/test.txt"}


@validate()
def load_cifar10(
    root: str | Path | None = None,
    *,
    split: str = "test",
    limit: int | None = None,
    offline: bool = False,
    progress: cache.Progress | None = None,
) -> LabelledSet:
    """Load CIFAR-10: 50,000 or 10,000 images of 32 x 32 pixels in 10 classes, not embedded yet.

    Args:
        root: See `scoreshield.bench.data.cache.fetch`.
        offline: See `scoreshield.bench.data.cache.fetch`.
        progress: See `scoreshield.bench.data.cache.fetch`.
        split: "train" or "test".
        limit: Take only this number of images, spread evenly over the file.
    """
    path = cache.fetch_file("cifar-10", "cifar-10-binary.tar.gz", root, offline, progress)
    return read_cifar10(path, split=split, limit=limit)


@validate()
def read_cifar10(path: str | Path, *, split: str = "test", limit: int | None = None) -> LabelledSet:
    """Read CIFAR-10 from a ``cifar-10-binary.tar.gz`` that is already here; see `load_cifar10`."""
    members = _CIFAR10[_validation.check_option(split, "split", _CIFAR10)]
    names = "cifar-10-batches-bin/batches.meta.txt"
    file = archives.check_path(path)
    return _read_cifar(f"CIFAR-10 {split}", file, members, names, labels=1, column=0, limit=limit)


@validate()
def load_cifar100(
    root: str | Path | None = None,
    *,
    split: str = "test",
    labels: str = "fine",
    limit: int | None = None,
    offline: bool = False,
    progress: cache.Progress | None = None,
) -> LabelledSet:
    """Load CIFAR-100: as `load_cifar10`, with 100 "fine" or 20 "coarse" classes."""
    path = cache.fetch_file("cifar-100", "cifar-100-binary.tar.gz", root, offline, progress)
    return read_cifar100(path, split=split, labels=labels, limit=limit)


@validate()
def read_cifar100(
    path: str | Path, *, split: str = "test", labels: str = "fine", limit: int | None = None
) -> LabelledSet:
    """Read CIFAR-100 from a ``cifar-100-binary.tar.gz`` that is already here; see `load_cifar100`."""
    members = _CIFAR100[_validation.check_option(split, "split", _CIFAR100)]
    column = ("coarse", "fine").index(_validation.check_option(labels, "labels", ("coarse", "fine")))
    names = f"cifar-100-binary/{labels}_label_names.txt"
    file = archives.check_path(path)
    return _read_cifar(f"CIFAR-100 {split}", file, members, names, labels=2, column=column, limit=limit)


def _read_cifar(
    name: str, path: Path, members: Sequence[str], names: str, *, labels: int, column: int, limit: int | None
) -> LabelledSet:
    """Read records of ``labels`` label bytes and three planes of pixels: red, green, blue, each row by row."""
    content = archives.read_tar_members(path, [*members, names])
    class_names = tuple(line.strip() for _, line in archives.split_lines(content[names], f"{path}: {names}"))
    if not class_names:
        raise InvalidInput(f"{path}: the member {names} names no class.")
    length = labels + _PIXELS
    for member in members:
        if not content[member] or len(content[member]) % length:
            size = len(content[member])
            raise InvalidInput(f"{path}: the member {member} must hold records of {length} bytes; it has {size} bytes.")
    records = np.concatenate([np.frombuffer(content[m], dtype=np.uint8).reshape(-1, length) for m in members])
    records = records[choose_evenly(len(records), limit)]
    if records[:, column].max() >= len(class_names):
        raise InvalidInput(
            f"{path}: a label is {records[:, column].max()}, but {names} names {len(class_names)} classes."
        )
    pixels = records[:, labels:].reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)
    return LabelledSet(
        name=name,
        labels=records[:, column].astype(np.int64),
        class_names=class_names,
        items=np.ascontiguousarray(pixels),
    )


@validate()
def load_pets(
    root: str | Path | None = None,
    *,
    split: str = "test",
    limit: int | None = None,
    offline: bool = False,
    progress: cache.Progress | None = None,
) -> LabelledSet:
    """Load Oxford-IIIT Pet: 3,680 ("train") or 3,669 ("test") photographs of 37 breeds, as paths, not embedded.

    The photographs wanted are taken out of images.tar.gz once, into ``<root>/oxford-iiit-pet/images``, and decoded only
    when they are embedded. A folder of that name that holds them already is used as it is, without the archive.
    """
    annotations = cache.fetch_file("oxford-iiit-pet", "annotations.tar.gz", root, offline, progress)
    folder = cache.find_set_folder("oxford-iiit-pet", root)
    made = read_pets(annotations, folder, split=split, limit=limit)
    paths = [Path(item) for item in made.items or ()]
    absent = {f"images/{path.name}": path for path in paths if not path.is_file()}
    if absent:
        archives.unpack_members(cache.fetch_file("oxford-iiit-pet", "images.tar.gz", root, offline, progress), absent)
    return made


@validate()
def read_pets(
    annotations: str | Path, folder: str | Path, *, split: str = "test", limit: int | None = None
) -> LabelledSet:
    """Read the list of an ``annotations.tar.gz``, with pictures at ``folder/images/<name>.jpg``; see `load_pets`."""
    member = _PETS[_validation.check_option(split, "split", _PETS)]
    file = archives.check_path(annotations, "annotations")
    folder = archives.check_path(folder, "folder", "the path of a folder")
    where = f"{file}: {member}"
    rows = []
    for number, line in archives.split_lines(archives.read_tar_members(file, [member])[member], where):
        parts = line.split()
        named = bool(parts) and "_" in parts[0] and not set(parts[0]) & set("/\\\0") and not parts[0].startswith(".")
        label = archives.parse_digits(parts[1], 1000) if len(parts) == 4 else None
        if not named or not label:
            raise InvalidInput(f"{where}, line {number}: a line must be 'name class species breed', class from 1.")
        rows.append((parts[0], label - 1, number))
    breeds: dict[int, str] = {}
    for name, label, number in rows:
        breed = name.rpartition("_")[0].replace("_", " ")
        if breeds.setdefault(label, breed) != breed:
            raise InvalidInput(f"{where}, line {number}: class {label + 1} is both {breeds[label]} and {breed}.")
    if sorted(breeds) != list(range(len(breeds))) or not breeds:
        raise InvalidInput(f"{where}: the classes must run from 1 without a gap; it has {len(breeds)} of them.")
    chosen = [rows[place] for place in choose_evenly(len(rows), limit)]
    return LabelledSet(
        name=f"Oxford-IIIT Pet {split}",
        labels=np.array([label for _, label, _ in chosen], dtype=np.int64),
        class_names=tuple(breeds[label] for label in range(len(breeds))),
        items=tuple(folder / "images" / f"{name}.jpg" for name, _, _ in chosen),
    )


def choose_evenly(records: int, limit: int | None) -> NDArray[np.int64]:
    """Choose all records, or ``limit`` of them at even distances, since lists are often sorted by class."""
    if limit is None:
        return np.arange(records)
    limit = min(_validation.check_count(limit, "limit"), records)
    return np.arange(limit) * records // limit
