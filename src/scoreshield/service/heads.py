"""The newest head of a ledger's chain that a process has seen: a ledger that lacks it is an older copy.

An older copy forgets charges, so what it calls free was spent, and what it has not stored would be answered with other
noise. It is consistent in itself. Only who has seen a newer head notices it.
"""

from __future__ import annotations

import logging
import threading

from scoreshield.privacy.ledger import Ledger
from scoreshield.privacy.ledger.database import Session
from scoreshield.privacy.ledger.entries import Entry
from scoreshield.service.problems import ServiceProblem

LOG = logging.getLogger("scoreshield.service")


class SeenHead:
    """The number and the hash of the newest entry that this process has seen in a ledger, committed."""

    def __init__(self) -> None:
        self._number, self._hash = 0, ""
        self._lock = threading.Lock()

    def note(self, entry: Entry) -> None:
        """Remember an entry whose transaction was committed."""
        self._keep(entry.id, entry.hash)

    def check_next(self, session: Session, entry: Entry) -> None:
        """Check that an entry which was just appended comes after the seen one, in a transaction.

        Raises:
            ServiceProblem: It does not. The transaction must be undone.
        """
        number, hash_ = self._number, self._hash
        if (entry.id - 1, entry.previous) != (number, hash_):  # otherwise it comes right after it
            _check_holds(session, number, hash_, entry.id - 1)

    def check(self, ledger: Ledger) -> None:
        """Check that a ledger holds the seen entry, and remember its head.

        Raises:
            ServiceProblem: It does not hold it.
        """

        def read(session: Session) -> tuple[int, str]:
            last = session.read_last()
            found = (0, "") if last is None else (last.id, last.hash)
            _check_holds(session, number, hash_, found[0])
            return found

        number, hash_ = self._number, self._hash
        self._keep(*ledger.read_beside(read))

    def _keep(self, number: int, hash_: str) -> None:
        with self._lock:
            if number > self._number:
                self._number, self._hash = number, hash_


def _check_holds(session: Session, number: int, hash_: str, last: int) -> None:
    """Check that the chain holds an entry; ``last`` is the number of its last one."""
    if number == 0:
        return
    entry = session.read_entry(number) if number <= last else None
    if entry is None or entry.hash != hash_:
        LOG.error("the ledger is older than what was charged to it", extra={"facts": {"seen": number, "last": last}})
        raise ServiceProblem("ledger_outdated")
