"""Writes to the database of a ledger: those that wait for its lock are committed together.

A commit waits for the disk, and one transaction at a time may write. So the thread that gets the lock runs the work of
all threads that wait, each behind a savepoint of its own, and commits once. Each work is there whole or not at all, and
no thread continues before the commit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from scoreshield._queues import WorkQueue
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
        self._queue: WorkQueue[_Write[Any]] = WorkQueue(_MOST)

    def run(self, work: Callable[[Session], T]) -> T:
        """Run a work under the lock of the ledger, and return its result when it is on the disk.

        A `ScoreShieldError` of the work undoes what it wrote and nothing else. After any other error of a work, all
        works of the same commit are undone, and each runs in a transaction of its own.

        Args:
            work: It may run again, after its transaction was undone, or after it was committed and the thread that
                did so was interrupted. So it counts from what the database holds.

        Raises:
            LedgerError: The database failed. Nothing of this work is there.
        """
        write = _Write(work)
        self._queue.wait_for(write, self._commit)
        if write.error is not None:
            raise write.error
        return write.results[0]

    def _commit(self, group: list[_Write[Any]]) -> None:
        """Run works in one transaction."""
        if len(group) == 1:
            self._commit_alone(group[0])
            return
        try:
            found = self._ledger.write_beside(lambda session: [_attempt(session, one.work) for one in group])
        except LedgerError as error:
            for one in group:
                one.finish([], LedgerError(str(error)))  # a raised error collects the frames of its thread
        except Exception:  # of one work; nothing was committed
            for one in group:
                self._commit_alone(one)
        else:
            for one, (results, problem) in zip(group, found, strict=True):
                one.finish(results, problem)

    def _commit_alone(self, write: _Write[Any]) -> None:
        """Run a work in a transaction of its own."""
        try:
            write.finish([self._ledger.write_beside(write.work)], None)
        except Exception as error:
            write.finish([], error)


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
