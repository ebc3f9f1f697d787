"""A privacy claim, in the form that an audit can contradict: a ceiling on every test.

A mechanism is (epsilon, delta)-private for an adjacency if no test between two neighbours has more true positives than

    min(e^ε a + δ, 1 - e^-ε (1 - δ - a), 1)

at false-positive rate a (Wasserman & Zhou 2010; Kairouz, Oh & Viswanath 2015). A claimed profile gives a lower
ceiling (Dong, Roth & Su 2022).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._validation import check_delta, validate
from scoreshield.errors import InvalidInput
from scoreshield.privacy.adjacency import Adjacency, Replacement
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.profiles import Profile, profile_from_dict
from scoreshield.privacy.verdicts import FALSE_ALARMS, VerdictWord, choose_verdict

Float = NDArray[np.float64]
#: The default adjacency.
REPLACE = "replace one record"
#: Other words for it.
_REPLACES = (REPLACE, "replace", "replacement", "replace one", Replacement().describe())


def check_nonnegative(value: Any, name: str) -> float:
    """Check for a finite number that is at least 0."""
    must = "a finite number, at least 0"
    number = _validation.check_real(value, name, must)
    if number < 0:
        _validation.reject(name, must, value)
    return number


def _check_rates(value: Any, name: str) -> NDArray[Any]:
    rates = _validation.check_array(value, name, "in [0, 1]")
    if rates.dtype.kind not in "fiu" or not np.all((rates >= 0) & (rates <= 1)):
        _validation.reject(name, "in [0, 1]", value)
    return rates


class HasGuarantee(Protocol):
    """A release, or another object with a guarantee."""

    @property
    def guarantee(self) -> Guarantee: ...


@dataclass(frozen=True)
class Claim:
    """A privacy claim to be audited.

    Attributes:
        epsilon: The claimed epsilon, at least 0.
        delta: The claimed delta. A delta of 0 is a pure claim.
        adjacency: Which collections are neighbours, in words. The constructor also takes an `Adjacency`.
        profile: The whole claimed profile, where more than one pair is claimed.
    """

    epsilon: float
    delta: float = 0.0
    adjacency: str = REPLACE
    profile: Profile | None = None

    @validate()
    def __post_init__(self) -> None:
        epsilon = check_nonnegative(self.epsilon, "epsilon")
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", check_delta(self.delta))
        object.__setattr__(self, "adjacency", _describe_adjacency(self.adjacency))
        if self.profile is not None and not isinstance(self.profile, Profile):
            _validation.reject("profile", "a privacy profile or None", self.profile)
        if self.profile is not None and self.profile.delta_at(epsilon) > self.delta * (1 + 1e-9):
            must = f"at least as strong as the pair ({epsilon:g}, {self.delta:g})"
            _validation.reject("profile", must, f"delta {self.profile.delta_at(epsilon):g} at that epsilon")

    @classmethod
    @validate()
    def of(cls, source: Guarantee | HasGuarantee) -> Claim:
        """Make the claim that a guarantee states.

        Args:
            source: A guarantee, or a release that has one.

        Returns:
            A claim with the guarantee's pair, adjacency and profile.
        """
        guarantee = getattr(source, "guarantee", source)
        if not isinstance(guarantee, Guarantee):
            _validation.reject("source", "a guarantee, or a release that has one", source)
        return cls(guarantee.epsilon, guarantee.delta, _describe_adjacency(guarantee.adjacency), guarantee.profile)

    @property
    def is_replacement(self) -> bool:
        """Whether neighbours differ by the replacement of one record by any other."""
        return " ".join(self.adjacency.lower().replace("-", " ").replace("_", " ").split()) in _REPLACES

    @validate(fpr=_check_rates)
    def tpr_at(self, fpr: ArrayLike) -> Any:
        """Compute the largest true-positive rate that the claim allows.

        Args:
            fpr: One false-positive rate, or an array of them.

        Returns:
            A number, or an array of the same shape.
        """
        ceiling = compute_tpr_ceiling(self.epsilon, self.delta, fpr)
        if self.profile is not None:
            ceiling = np.asarray(self.profile.tpr_at(fpr), dtype=np.float64)
        return float(ceiling) if ceiling.ndim == 0 else ceiling

    @property
    def advantage(self) -> float:
        """The largest difference of true- and false-positive rate that the claim allows."""
        if self.profile is not None:
            return self.profile.advantage
        # The two lines of the ceiling meet where the false-positive rate is (1 - delta) / (1 + e^epsilon).
        return min(1.0, self.delta + (1 - self.delta) * math.tanh(self.epsilon / 2))

    @property
    def verdict(self) -> VerdictWord:
        """What the claim promises, in words, if it is true."""
        return choose_verdict(self.advantage, float(self.tpr_at(FALSE_ALARMS)))

    def to_dict(self) -> dict[str, Any]:
        """Convert the claim to plain values, for JSON."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "adjacency": self.adjacency,
            "profile": None if self.profile is None else self.profile.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Any) -> Claim:
        """Read what `to_dict` wrote."""
        try:
            profile = None if data["profile"] is None else profile_from_dict(data["profile"])
            return cls(data["epsilon"], data["delta"], data["adjacency"], profile)
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"The claim in the file is not complete or not valid: {error!r}.") from None

    def __str__(self) -> str:
        return f"({self.epsilon:g}, {self.delta:g})-differential privacy, adjacency: {self.adjacency}"


def check_claim(value: Any, name: str) -> Claim:
    """Check for a `Claim`."""
    if not isinstance(value, Claim):
        _validation.reject(name, "a Claim, such as Claim(1.0, 1e-6) or Claim.of(release)", value)
    return value


def compute_tpr_ceiling(epsilon: float, delta: float, fpr: ArrayLike) -> Float:
    """Compute the largest true-positive rate that (epsilon, delta) allows at each false-positive rate."""
    a = np.asarray(fpr, dtype=np.float64)
    steep = math.exp(min(epsilon, 700.0)) * a + delta
    return np.minimum(np.minimum(steep, 1 - math.exp(-epsilon) * np.maximum(1 - delta - a, 0.0)), 1.0)


def _describe_adjacency(adjacency: Any) -> str:
    """Describe an adjacency in words; reject an empty description."""
    if isinstance(adjacency, Replacement):
        return REPLACE
    if isinstance(adjacency, Adjacency):
        return adjacency.describe()
    if not isinstance(adjacency, str) or not adjacency.strip():
        _validation.reject("adjacency", f"named, such as {REPLACE!r}: a claim without it says nothing", adjacency)
    return adjacency.strip()
