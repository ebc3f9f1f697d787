"""Ratings from the official files: MovieLens 100K."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scoreshield._validation import validate
from scoreshield.bench.data import archives, cache
from scoreshield.bench.data.archives import MOST_RATED, parse_digits
from scoreshield.bench.data.sets import Ratings
from scoreshield.errors import InvalidInput

_FOLDS = range(1, 6)


def load_movielens(
    root: str | Path | None = None, *, offline: bool = False, progress: cache.Progress | None = None
) -> Ratings:
    """Load MovieLens 100K: 100,000 ratings of 1,682 films by 943 users, with the official folds 1 to 5.

    User 1 of the files is 0 here, and so for films. ``split(1)`` gives what u1.base and u1.test hold.

    Args:
        root: See `scoreshield.bench.data.cache.fetch`.
        offline: See `scoreshield.bench.data.cache.fetch`.
        progress: See `scoreshield.bench.data.cache.fetch`.
    """
    return read_movielens(cache.fetch_file("movielens-100k", "ml-100k.zip", root, offline, progress))


@validate()
def read_movielens(path: str | Path) -> Ratings:
    """Read the same from an ``ml-100k.zip`` that is already here.

    u.data holds every rating, and u1.test to u5.test say in which fold each is tested; a base file is all of u.data
    but its test file, so that the five base files need not be read.
    """
    names = ["ml-100k/u.data", *(f"ml-100k/u{fold}.test" for fold in _FOLDS)]
    content = archives.read_zip_members(archives.check_path(path), names)
    rows = _read_rows(content[names[0]], f"{path}: {names[0]}")
    place = {(user, item): number for number, (user, item) in enumerate(rows[:, :2].tolist())}
    if len(place) != len(rows):
        raise InvalidInput(f"{path}: {names[0]} rates a film twice by one user.")
    fold = np.zeros(len(rows), dtype=np.int64)
    for number, name in zip(_FOLDS, names[1:], strict=True):
        tested = _read_rows(content[name], f"{path}: {name}")
        at = np.array([place.get((user, item), -1) for user, item in tested[:, :2].tolist()])
        if (at < 0).any() or (rows[at, 2] != tested[:, 2]).any():
            raise InvalidInput(f"{path}: {name} holds a rating that is not in {names[0]}.")
        if (fold[at] > 0).any() or len(np.unique(at)) != len(at):
            raise InvalidInput(f"{path}: {name} holds a rating that is tested already.")
        fold[at] = number
    if (fold == 0).any():
        raise InvalidInput(f"{path}: {int((fold == 0).sum())} ratings of {names[0]} are in no test file.")
    return Ratings(
        name="MovieLens-100K",
        users=rows[:, 0] - 1,
        items=rows[:, 1] - 1,
        ratings=rows[:, 2].astype(np.float64),
        fold=fold,
        user_count=int(rows[:, 0].max()),
        item_count=int(rows[:, 1].max()),
    )


def _read_rows(content: bytes, where: str) -> NDArray[np.int64]:
    """Read lines of user, item, rating and time, separated by tabs."""
    rows = []
    for number, line in archives.split_lines(content, where):
        parts = line.split("\t")
        limits = (MOST_RATED, MOST_RATED, 5, 10**15)
        row = [parse_digits(part, most) for part, most in zip(parts, limits, strict=False)]
        if len(parts) != 4 or not all(row[:3]) or row[3] is None:
            raise InvalidInput(
                f"{where}, line {number}: a line must hold user and item (from 1 to {MOST_RATED}), rating (1 to 5) and "
                "time, separated by tabs."
            )
        rows.append(row[:3])
    if not rows:
        raise InvalidInput(f"{where} holds no ratings.")
    return np.array(rows, dtype=np.int64)
