"""How often each record of an index was drawn, and what that costs the record that was drawn most often.

An index whose changes are public draws only the rows that are new or changed. Neighbours are two histories of one
record: its content may differ in every version, and its id and the times of its changes are the same on both sides. A
record that was drawn v times has spent v draws, and all other rows have the same law on both sides. The count of an id
never falls: an id that was removed and comes back continues its count. docs/proofs/updates.md has the proof.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TypeAlias

import numpy as np

from scoreshield import _validation
from scoreshield.errors import InvalidInput
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.profiles import PureProfile, round_up

#: The public name of a record.
RecordId: TypeAlias = int | str


def state_draws(single: Guarantee, draws: int, shape: tuple[int, ...]) -> Guarantee:
    """State the guarantee of an index whose most drawn record was drawn this often.

    Only the pure total is stated, also in the profile: it holds for every transcript, so it holds for an attacker who
    looks at each version before the next change. A curve below it would hold only for a number of draws that was fixed
    beforehand: the attacker could stop at the first version that tells too much.

    Args:
        single: The guarantee of one draw of each row.
        draws: The largest number of draws of any record.
        shape: The shape of the index.

    Raises:
        InvalidInput: One draw is not private without delta.
    """
    if single.delta > 0:
        raise InvalidInput(
            "An index with public changes must be private without delta: its number of draws may depend on what was "
            "released. Leave delta out and use mechanism='privunit' or a codebook."
        )
    epsilon = round_up(draws * Fraction(single.epsilon))
    details = {**single.details, "changes": "public", "epsilon_per_draw": single.epsilon, "largest_draws": draws}
    return replace(single, epsilon=epsilon, profile=PureProfile(epsilon), shape=shape, details=details)


@dataclass(frozen=True)
class DrawCounts:
    """How often each record was drawn, by its id; ids that were removed stay.

    Attributes:
        counts: At least 1 per id.
    """

    counts: Mapping[RecordId, int]

    @cached_property
    def largest(self) -> int:
        """The draws of the record that was drawn most often."""
        return max(self.counts.values(), default=0)

    def add(self, ids: Iterable[RecordId]) -> DrawCounts:
        """Return the counts after one more draw of each of these records."""
        counts = dict(self.counts)
        for one in ids:
            counts[one] = counts.get(one, 0) + 1
        return DrawCounts(counts)

    def compute_hash(self) -> str:
        """Compute a hash that does not depend on the order of the ids. It is computed once."""
        return self._hash

    @cached_property
    def _hash(self) -> str:
        texts = [item for item in self.counts.items() if isinstance(item[0], str)]
        numbers = [item for item in self.counts.items() if not isinstance(item[0], str)]
        text = json.dumps(sorted(numbers) + sorted(texts), separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(b"scoreshield draws 1\n" + text.encode("ascii")).hexdigest()


@dataclass(frozen=True)
class DrawStep:
    """One drawing of rows of an index, before it is charged.

    Attributes:
        history: The name of the index and of all its later versions.
        single: The guarantee of one draw of each row.
        total: The guarantee of the new version: that of its most drawn record.
        before: The counts before; empty for the first version.
        ids: The records that are drawn, each once.
    """

    history: str
    single: Guarantee
    total: Guarantee
    before: DrawCounts
    ids: tuple[RecordId, ...]


def check_ids(ids: object, name: str, size: int | None = None) -> list[RecordId]:
    """Check public ids: all whole numbers of 64 bits, or all strings of 1 to 1000 characters; each once.

    Errors show no value: a caller may have given a row of numbers where ids belong.
    """
    number = "" if size is None else f"{size:,} "
    must = f"{number}different ids, all whole numbers of 64 bits or all strings of 1 to 1000 printable characters"
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        _validation.reject(name, must, type(ids))
    values = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    if isinstance(ids, np.ndarray) and ids.ndim != 1:
        _validation.reject(name, must, ids)
    plain: list[RecordId] = []
    for value in values:
        if isinstance(value, str) and 1 <= len(value) <= 1000 and value.isprintable():
            plain.append(str(value))
        elif isinstance(value, int | np.integer) and not isinstance(value, bool) and -(2**63) <= value < 2**63:
            plain.append(int(value))
        else:
            _validation.reject(name, must, type(value))
    if len({type(value) for value in plain}) > 1:
        _validation.reject(name, must, ids)
    if len(set(plain)) != len(plain):
        repeated, times = Counter(plain).most_common(1)[0]
        # A number may be an entry of a row that was given where ids belong, so only its place is shown.
        shown = repr(repeated[:80]) if isinstance(repeated, str) else f"in place {plain.index(repeated)}"
        raise InvalidInput(f"The id {shown} is given {times:,} times in {name!r}: each id must differ.")
    if size is not None and len(plain) != size:
        raise InvalidInput(f"There are {len(plain):,} ids in {name!r} for {size:,} records: give one id per record.")
    return plain
