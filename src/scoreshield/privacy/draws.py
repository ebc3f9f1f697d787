"""How often each record of an index was drawn, and what that costs the record that was drawn most often.

An index whose changes are public draws only the rows that are new or changed. Neighbours are two histories of one
record: its content may differ in every version, and its id and the times of its changes are the same on both sides. A
record that was drawn v times has spent v draws, and all other rows have the same law on both sides. The count of an id
never falls: an id that was removed and comes back continues its count. docs/proofs/updates.md has the proof.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from scoreshield import _validation
from scoreshield.errors import InvalidInput
from scoreshield.privacy.composition import compose
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.losses import find_pure_epsilon
from scoreshield.privacy.profiles import CurveProfile, GaussianProfile, Profile, PureProfile, StepProfile, round_up

#: The public name of a record.
RecordId: TypeAlias = int | str

#: A curve has at most this many draws, and no loss beyond what a file holds; above either, only epsilon is stated.
_MOST_DRAWS, _FARTHEST = 1000, 700.0


def repeat_profile(profile: Profile, draws: int) -> Profile:
    """Compute the profile of several draws of one record, each with this profile.

    Gaussian noise is exact. A step profile is the law of a loss that is E, 0 or -E, so the loss of v draws is a whole
    multiple of E and has v + 1 knots, which are exact up to rounding upwards. For others the pure epsilons add up.

    Raises:
        InvalidInput: The profile is a curve without a pure end.
    """
    if draws == 1:
        return profile
    if isinstance(profile, GaussianProfile):
        return compose([profile] * draws)
    pure = find_pure_epsilon(profile)
    if math.isinf(pure):
        raise InvalidInput("A record whose release has no pure epsilon and no mu cannot be drawn more than once.")
    total = round_up(draws * Fraction(pure))
    if isinstance(profile, StepProfile) and draws <= _MOST_DRAWS and total <= _FARTHEST:
        return _repeat_steps(profile, draws)
    return PureProfile(total)


def _repeat_steps(profile: StepProfile, draws: int) -> CurveProfile:
    """Convolve the law of a loss that is E, 0 or -E; every mass is rounded up, so no delta is understated."""
    epsilon, mass = profile.epsilon, profile.mass
    shrink = math.exp(-epsilon) * (1 + 2.0**-50)
    centre = max(0.0, 1 - mass * (1 + shrink)) + 2.0**-52
    one = np.array([mass * shrink, centre, mass])  # losses -E, 0, E
    law = np.ones(1)
    for _ in range(draws):
        law = np.convolve(law, one)
    positive = law[draws:]  # losses 0, E, ..., v E
    losses = [round_up(k * Fraction(epsilon)) for k in range(draws + 1)]
    room = 1 + (16 * draws + 64) * 2.0**-53  # relative errors of sums of products of positive numbers
    deltas = [
        min(1.0, room * float(np.sum(positive[k + 1 :] * -np.expm1(-epsilon * np.arange(1, draws - k + 1)))))
        for k in range(draws + 1)
    ]
    return CurveProfile(tuple(losses), tuple(np.minimum.accumulate(deltas).tolist()))


def state_draws(single: Guarantee, draws: int, shape: tuple[int, ...]) -> Guarantee:
    """State the guarantee of an index whose most drawn record was drawn this often.

    Args:
        single: The guarantee of one draw of each row.
        draws: The largest number of draws of any record.
        shape: The shape of the index.
    """
    details = {**single.details, "changes": "public", "epsilon_per_draw": single.epsilon, "largest_draws": draws}
    profile = repeat_profile(single.profile, draws)
    if single.delta == 0:
        epsilon = round_up(draws * Fraction(single.epsilon))
    else:
        epsilon = single.epsilon if draws == 1 else profile.epsilon_at(single.delta)
        while profile.delta_at(epsilon) > single.delta:
            epsilon = epsilon * (1 + 1e-12) + 1e-300
    # The clean object is all that was drawn of one record: one row per draw.
    longer = math.sqrt(draws)
    return replace(
        single,
        epsilon=epsilon,
        profile=profile,
        shape=shape,
        details=details,
        sensitivity=single.sensitivity * longer,
        grid_sensitivity=single.grid_sensitivity * longer,
    )


@dataclass(frozen=True)
class DrawCounts:
    """How often each record was drawn, by its id; ids that were removed stay.

    Attributes:
        counts: At least 1 per id.
    """

    counts: Mapping[RecordId, int]

    @property
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
        """Compute a hash that does not depend on the order of the ids."""
        items = sorted(self.counts.items(), key=lambda item: (isinstance(item[0], str), item[0]))
        text = json.dumps(items, separators=(",", ":"), ensure_ascii=True)
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
    """Check public ids: all whole numbers of 64 bits, or all strings of 1 to 1000 characters; each once."""
    number = "" if size is None else f"{size:,} "
    must = f"{number}different ids, all whole numbers of 64 bits or all strings of 1 to 1000 printable characters"
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        _validation.reject(name, must, ids)
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
            _validation.reject(name, must, value)
    if len({type(value) for value in plain}) > 1 or len(set(plain)) != len(plain):
        _validation.reject(name, must, ids)
    if size is not None and len(plain) != size:
        _validation.reject(name, must, ids)
    return plain
