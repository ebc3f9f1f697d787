"""Which charged answers are being computed, so that they are not called lost.

When the data change, a charge on the older data that was never answered is lost. A charge on them that is being
computed is not. This process knows its own charges. Those of other replicas are left alone for a while.
"""

from __future__ import annotations

import threading
from collections import Counter
from datetime import UTC, datetime, timedelta

#: How long an answer that another process has charged may take.
_GRACE = timedelta(minutes=10)


class PendingCharges:
    """The charges that threads of this process compute, and those that they gave up after an error."""

    def __init__(self) -> None:
        self._working: Counter[str] = Counter()
        self._failed: set[str] = set()
        self._lock = threading.Lock()

    def begin(self, entry: str) -> None:
        """Note that a thread computes the answer of an entry, or is about to charge it."""
        with self._lock:
            self._working[entry] += 1

    def end(self, entry: str, *, is_left: bool) -> None:
        """Note that a thread computes the answer of an entry no longer.

        Args:
            entry: The hash of the entry.
            is_left: Whether the entry was charged and this thread has not answered it.
        """
        with self._lock:
            self._working[entry] -= 1
            if self._working[entry] <= 0:
                del self._working[entry]
            if is_left:
                self._failed.add(entry)
            else:
                self._failed.discard(entry)

    def is_lost(self, entry: str, time: str) -> bool:
        """Return whether no thread computes the answer of a charge on older data, as far as this process can know.

        Args:
            entry: The hash of the entry.
            time: When it was charged.
        """
        with self._lock:
            if entry in self._working:
                return False
            if entry in self._failed:
                return True
        try:
            return datetime.now(UTC) - datetime.fromisoformat(time) > _GRACE
        except (TypeError, ValueError):  # a damaged row, whose charge is not answered
            return True


#: The charges of this process, for all states of the data and all ledgers.
PENDING = PendingCharges()
