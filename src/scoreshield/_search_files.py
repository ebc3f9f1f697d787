"""A private index on disk: the release, and the public ids of its rows beside it, bound to it by a hash."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from scoreshield import io
from scoreshield.errors import FileError, InvalidInput
from scoreshield.indexing import IndexRelease
from scoreshield.results import load

_FORMAT = 1


def write_index(path: Path, index: IndexRelease, ids: tuple[Any, ...], version: int) -> None:
    """Both files, or none."""
    if any(isinstance(one, bool) or not isinstance(one, int | np.integer | str) for one in ids):
        raise InvalidInput("An index is saved with ids that are whole numbers or strings.")
    named = [one if isinstance(one, str) else int(one) for one in ids]
    text = json.dumps({"format": _FORMAT, "version": version, "index": _digest(index), "ids": named})

    def write(file: BinaryIO) -> None:
        file.write(text.encode())

    io.write_whole({path: index.writer(), _beside(path): write})


def read_index(path: Path) -> tuple[IndexRelease, tuple[Any, ...], int]:
    """What :func:`write_index` wrote: the index, its ids and the version of the collection."""
    index = load(path)
    if not isinstance(index, IndexRelease):
        raise InvalidInput(f"{path} holds a {index.kind} release and no index.")
    beside = _beside(path)
    try:
        facts = json.loads(beside.read_text(encoding="utf-8"))
        ids, version, digest = facts["ids"], facts["version"], facts["index"]
        whole = facts["format"] == _FORMAT and len(ids) == len(index.vectors) and isinstance(version, int)
    except OSError as error:
        raise FileError(f"Cannot read {beside}, the ids of the index {path}: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError):
        whole, digest = False, ""
    if not whole or digest != _digest(index):
        raise InvalidInput(f"{beside} does not hold the ids of the index in {path}.")
    return index, tuple(ids), version


def _beside(path: Path) -> Path:
    return path.with_name(path.stem + ".ids.json")


def _digest(index: IndexRelease) -> str:
    return hashlib.sha256(np.ascontiguousarray(index.vectors).data).hexdigest()
