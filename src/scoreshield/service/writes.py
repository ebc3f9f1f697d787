"""Writes to the database of a ledger: those that wait for its lock are committed together.

A commit waits for the disk, and one transaction at a time may write. So the thread that gets the lock runs the work of
all threads that wait, each behind a savepoint of its own, and commits once. Each work is there whole or not at all, and
no thread continues before the commit.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from scoreshield.errors import LedgerError, ScoreShieldError
from scoreshield.privacy.ledger import Ledger
from scoreshield.privacy.ledger.database import Session

T = TypeVar("T")
#: The most works of one commit, so that the lock is not held for long.
_MOST = 64


class _Write(Generic[T]):
    """One work, and what came of it."""

    def __init__(self, work: Callable[[Session], T]) -> None:
        self.work = work
        self.is_done = False
        self.results: list[T] = []
        self.error: BaseException | None = None

    def finish(self, results: list[T], error: BaseException | None) -> None:
        self.results, self.error, self.is_done = results, error, True


class GroupedWriter:
    """Runs works on the tables beside a ledger, for any number of threads."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: deque[_Write[Any]] = deque()
        self._lock = threading.Lock()

    def run(self, work: Callable[[Session], T]) -> T:
        """Run a work under the lock of the ledger, and return its result when it is on the disk.

        The work may run again, and then must not count what it did before. A `ScoreShieldError` of the work undoes what
        it wrote and nothing else. Any other error undoes all works of the same commit.

        Raises:
            LedgerError: The database failed. Nothing of this work is there.
        """
        write = _Write(work)
        self._waiting.append(write)
        with self._lock:
            while not write.is_done:
                self._commit([self._waiting.popleft() for _ in range(min(len(self._waiting), _MOST))])
        if write.error is not None:
            raise write.error
        return write.results[0]

    def _commit(self, group: list[_Write[Any]]) -> None:
        """Run works in one transaction."""
        if len(group) == 1:
            try:
                group[0].finish([self._ledger.write_beside(group[0].work)], None)
            except BaseException as error:
                group[0].finish([], error)
            return
        try:
            found = self._ledger.write_beside(lambda session: [_attempt(session, one.work) for one in group])
        except BaseException as error:
            for one in group:
                one.finish([], _copy_error(error))
            return
        for one, (results, problem) in zip(group, found, strict=True):
            one.finish(results, problem)


def _attempt(session: Session, work: Callable[[Session], T]) -> tuple[list[T], ScoreShieldError | None]:
    """Run a work behind a savepoint; return its result, or its error after everything that it wrote is undone."""
    session.execute("SAVEPOINT scoreshield_work")
    try:
        results, problem = [work(session)], None
    except LedgerError:
        raise  # the ledger itself is wrong, for all
    except ScoreShieldError as error:
        session.execute("ROLLBACK TO SAVEPOINT scoreshield_work")
        results, problem = [], error.with_traceback(None)
    session.execute("RELEASE SAVEPOINT scoreshield_work")
    return results, problem


def _copy_error(error: BaseException) -> BaseException:
    """Make an error of its own for each thread: a raised error collects the frames of the thread that raises it."""
    return LedgerError(str(error)) if isinstance(error, LedgerError) else error
