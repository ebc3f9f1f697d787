"""What the indexes of one search spent together, in memory and in a file.

Each new index releases every record that stayed once more, and the noise of many indexes averages out. The file is
written before the noise of an index is drawn, so it also counts an index that could not be saved.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scoreshield import _loading
from scoreshield._files import sync_folder
from scoreshield._types import AccountLike, Reservation
from scoreshield.errors import BudgetExceeded, FileError, InvalidInput
from scoreshield.privacy.adjacency import Adjacency
from scoreshield.privacy.draws import DrawCounts, DrawStep
from scoreshield.privacy.filters import PrivacyFilter
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.ledger.entries import Entry
from scoreshield.privacy.profiles import Profile, profile_from_dict
from scoreshield.releases.pipeline import reserve

#: The privacy profile of each index that was counted, by a random name. Two counts that share indexes are merged
#: without losing an index or counting one twice.
Charges = Mapping[str, Profile]

_TOTAL_FORMAT = 1


class IndexTotal:
    """The indexes that were counted, and the most that they may spend together at one delta."""

    def __init__(self, epsilon: float, delta: float, charges: Charges) -> None:
        self.limit, self.delta = epsilon, delta
        self.charges = dict(charges)

    @property
    def spent(self) -> float:
        """The epsilon of all of them together, at the total's delta."""
        return self._make_filter().spent

    def include(self, guarantee: Guarantee) -> dict[str, Profile]:
        """Compute the charges with one more index; the total stays as it is. Research mode is not counted."""
        return self.charges | make_index_charge(guarantee, secrets.token_hex(8))

    def merge(self, charges: Charges) -> None:
        """Add the charges that another process has counted in the same file."""
        self.charges |= charges

    def check(self, guarantee: Guarantee, file: Path | None) -> None:
        """Check that one more index fits; the first one always does.

        Args:
            guarantee: Of the next index.
            file: The file of the total, for the message.

        Raises:
            BudgetExceeded: It does not fit.
        """
        budget = self._make_filter()
        if guarantee.sampler == "research" or not self.charges or budget.would_fit(guarantee):
            return
        price, spent = budget.compute_epsilon(guarantee), budget.spent
        counted = "" if file is None else f", by the indexes that are counted in {file}"
        raise BudgetExceeded(
            f"A new index releases every record that stayed again: it costs epsilon {price:.6g}, and {spent:.6g} of "
            f"{self.limit:.6g} is spent at delta {self.delta:g}{counted}. Give a ledger, which keeps the total, or "
            "allow more with 'max_epsilon'.",
            spent=spent,
            asked=price,
            limit=self.limit,
        )

    def _make_filter(self) -> PrivacyFilter:
        return PrivacyFilter.from_charges(self.limit, self.delta, Counter(self.charges.values()))


class IndexAccount:
    """The account that an index is charged to: the search's own total, and the ledger where there is one.

    It has the two steps of every account. ``reserve`` checks the limit of the total if there is no ledger, which
    has its own limit. ``commit`` writes the total to its file, and then charges the ledger: a total that cannot be
    written costs nothing.

    Attributes:
        dataset: For the check of accounts; it is never charged by itself.
        entries: The ledger's entries, after ``commit``.
    """

    dataset = "the indexes of one search"

    def __init__(self, total: IndexTotal, ledger: AccountLike | None, file: Path | None) -> None:
        self.entries: Sequence[Entry] = ()
        self._total, self._ledger, self._file = total, ledger, file

    @property
    def who(self) -> str | None:
        """Who charges, where the account of the ledger states it."""
        return getattr(self._ledger, "who", None)

    def reserve(
        self, items: Sequence[Guarantee], *, adjacency: Adjacency | None = None, same_people: bool = False
    ) -> Reservation:
        """Check that one index fits the total or the ledger."""
        (guarantee,) = items
        assert adjacency is not None
        if self._ledger is None:
            self._total.check(guarantee, None if self._file is None else locate_total(self._file))
        reservation = reserve(self._ledger, items, adjacency, same_people=same_people)
        return _IndexReservation(self, guarantee, reservation)

    def reserve_draws(self, step: DrawStep) -> Reservation:
        """Check that a drawing of rows fits the ledger. The total counts it if the largest count rises."""
        account: Any = self._ledger
        rises = step.before.add(step.ids).largest > step.before.largest
        return _IndexReservation(self, step.single if rises else None, account.reserve_draws(step))

    def read_draws(self, history: str, counts: DrawCounts) -> DrawCounts:
        """Bring the counts of an index to those of the ledger."""
        account: Any = self._ledger
        found: DrawCounts = account.read_draws(history, counts)
        return found

    def commit(self, guarantee: Guarantee | None, reservation: Reservation) -> Sequence[Entry]:
        """Count the index, and charge the ledger. Draws that raise no largest count are not counted."""
        charges = self._total.charges if guarantee is None else self._total.include(guarantee)
        if self._file is not None and charges != self._total.charges:
            write_total(self._file, charges)
        self.entries = reservation.commit()
        self._total.merge(charges)
        return self.entries


class _IndexReservation:
    """An index that fits, and is not counted or charged yet."""

    def __init__(self, account: IndexAccount, guarantee: Guarantee | None, reservation: Reservation) -> None:
        self._account, self._guarantee, self._reservation = account, guarantee, reservation

    def commit(self) -> Sequence[Entry]:
        return self._account.commit(self._guarantee, self._reservation)


def make_index_charge(guarantee: Guarantee, name: str) -> dict[str, Profile]:
    """Make the charge of one index. Research mode is not private, and has none."""
    return {} if guarantee.sampler == "research" else {name: guarantee.profile}


def write_total(path: Path, charges: Charges) -> None:
    """Write the count of the indexes at ``path`` durably: after an interruption the file is the old or the new one.

    Raises:
        FileError: It could not be written, so that nothing may be drawn.
    """
    target = locate_total(path)
    fresh = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    text = json.dumps({"format": _TOTAL_FORMAT, "charged": encode_charges(charges)}).encode()
    try:
        with fresh.open("xb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(target)
        sync_folder(target.parent)
    except (OSError, ValueError) as error:
        raise make_write_error(target, error) from None
    finally:
        with contextlib.suppress(OSError, ValueError):
            fresh.unlink()


def read_total(path: Path) -> dict[str, Profile]:
    """Read what `write_total` wrote; nothing where no index was counted yet, or by an older version."""
    target = locate_total(path)
    if not path_exists(target):
        return {}
    try:
        facts = _loading.parse_json(_loading.read_bytes(target).decode())
        if facts["format"] == _TOTAL_FORMAT:
            return decode_charges(facts["charged"])
    except (ValueError, KeyError, TypeError, OverflowError):
        pass
    raise InvalidInput(f"{target} does not hold the total of the indexes in {path}: restore it from a backup.")


def locate_total(path: Path) -> Path:
    """Find the name of the file that counts the indexes at ``path``."""
    return path.with_name(path.stem + ".total.json")


def encode_charges(charges: Charges) -> list[tuple[dict[str, Any], list[str]]]:
    """Write each profile once, with the names of its indexes."""
    profiles = dict.fromkeys(charges.values())
    return [(one.to_dict(), sorted(name for name in charges if charges[name] == one)) for one in profiles]


def decode_charges(data: Any) -> dict[str, Profile]:
    """Read what `encode_charges` wrote, or raise a ValueError."""
    pairs = [(name, profile_from_dict(profile)) for profile, names in data for name in names]
    is_whole = all(isinstance(names, list) for _, names in data) and all(isinstance(name, str) for name, _ in pairs)
    if not is_whole or len(dict(pairs)) != len(pairs):
        raise ValueError("no charges")
    return dict(pairs)


def path_exists(path: Path) -> bool:
    """Check whether anything has this name, a broken link included.

    Raises:
        FileError: No file can have this name.
    """
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        raise make_write_error(path, error) from None
    return True


def make_write_error(path: Path, error: Exception) -> FileError:
    """Make the error for a file that cannot be written."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return FileError(f"Cannot write {path}: {reason}; nothing was released.")
