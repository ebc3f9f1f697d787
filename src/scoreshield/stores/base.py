"""What the adapters share: the dimension, the count of changes that the user reports, and the errors of a reading."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield.errors import StoreError
from scoreshield.stores.protocol import Convention, Records, StoreScores


class BaseStore(ABC):
    """A store whose records may change.

    ``state`` joins what the store itself shows of its changes (`read_state`) and the changes that the user
    reports (`mark_changed`). The attributes and methods are those of `Store`.
    """

    name: str
    convention = Convention.COSINE
    zero_copy = False

    _dimension: int
    _changes = 0

    @property
    def dimension(self) -> int:
        return self._dimension

    def mark_changed(self) -> None:
        """Report that records were replaced, so that the next reading is of a new version."""
        self._changes += 1

    def state(self) -> Hashable:
        return self.read_state(), self._changes

    @abstractmethod
    def read_state(self) -> Hashable:
        """Read what shows cheaply that records changed."""

    @abstractmethod
    def scores(self, query: NDArray[np.float32]) -> StoreScores: ...

    @abstractmethod
    def records(self) -> Records: ...

    def _check_count(self, count: int, n: int, what: str) -> None:
        """Raise an error unless the store gave one value per record."""
        if count != n:
            raise StoreError(f"{self.name} gave {count:,} {what} for {n:,} records; nothing was released.")

    def _empty_error(self) -> StoreError:
        return StoreError(f"{self.name} holds no records.")

    def _change_error(self) -> StoreError:
        return StoreError(f"{self.name} changed while it was read; nothing was released: try again.")

    def _missing_vector_error(self) -> StoreError:
        return StoreError(f"{self.name} has records without a vector of {self._dimension} numbers.")

    def _length_error(self) -> StoreError:
        return StoreError(f"{self.name} holds vectors that are zero or not finite numbers; nothing was released.")


def sort_ids(ids: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Sort ids: return them in their own order, and the place of each in the given sequence."""
    order = sorted(range(len(ids)), key=ids.__getitem__)
    return [ids[i] for i in order], order


def read_file_state(path: Path, name: str) -> tuple[int, int, int]:
    """Read what shows that a file changed: its identity, size and time of change."""
    try:
        facts = path.stat()
    except OSError:
        raise StoreError(f"{name} is gone.") from None
    return facts.st_ino, facts.st_size, facts.st_mtime_ns
