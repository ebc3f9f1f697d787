r"""What is claimed of a mechanism, in the form an audit can contradict: a ceiling on every test.

A mechanism is (epsilon, delta)-private for an adjacency if no test of one neighbour against the other has more true
positives than

.. math:: \min(e^\epsilon a + \delta,\; 1 - e^{-\epsilon} (1 - \delta - a),\; 1)

at false-positive rate a (Wasserman & Zhou 2010; Kairouz, Oh & Viswanath 2015). A profile, where one is claimed, gives a
lower ceiling (Dong, Roth & Su 2022).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._validation import validate
from scoreshield.errors import InvalidInput
from scoreshield.privacy.adjacency import Adjacency, Replacement
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.profiles import Profile, profile_from_dict

Float = NDArray[np.float64]
#: The adjacency that is meant unless another is named.
REPLACE = "replace one record"
#: Other words for it.
_REPLACES = (REPLACE, "replace", "replacement", "replace one", Replacement().describe())


@dataclass(frozen=True)
class Claim:
    """A privacy claim to be audited.

    Attributes
    ----------
    epsilon, delta : the claimed pair; delta 0 is a pure claim.
    adjacency : who counts as a neighbour, in words (or an `Adjacency`, which is put into words); a claim without one
        claims nothing.
    profile : the whole claimed profile, where more than one pair is claimed.
    """

    epsilon: float
    delta: float = 0.0
    adjacency: str = REPLACE
    profile: Profile | None = None

    @validate()
    def __post_init__(self) -> None:
        epsilon = _validation.check_real(self.epsilon, "epsilon", "a finite number, at least 0")
        if epsilon < 0:
            _validation.reject("epsilon", "a finite number, at least 0", self.epsilon)
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", _validation.check_probability(self.delta, "delta", zero=True))
        object.__setattr__(self, "adjacency", _in_words(self.adjacency))
        if self.profile is not None and not isinstance(self.profile, Profile):
            _validation.reject("profile", "a privacy profile or None", self.profile)
        if self.profile is not None and self.profile.delta_at(epsilon) > self.delta * (1 + 1e-9):
            must = f"at least as strong as the pair ({epsilon:g}, {self.delta:g})"
            _validation.reject("profile", must, f"delta {self.profile.delta_at(epsilon):g} at that epsilon")

    @classmethod
    @validate()
    def of(cls, source: Any) -> Claim:
        """What a guarantee, or a release that carries one, promises: its pair, its adjacency and its profile."""
        guarantee = getattr(source, "guarantee", source)
        if not isinstance(guarantee, Guarantee):
            _validation.reject("source", "a guarantee, or a release that has one", source)
        return cls(guarantee.epsilon, guarantee.delta, _in_words(guarantee.adjacency), guarantee.profile)

    @property
    def replaces_one(self) -> bool:
        """Whether neighbours are collections in which one record is replaced by any other."""
        return " ".join(self.adjacency.lower().replace("-", " ").replace("_", " ").split()) in _REPLACES

    @validate()
    def tpr_at(self, fpr: ArrayLike) -> Any:
        """The most true positives that the claim allows at one false-positive rate or at many."""
        rates = _validation.check_array(fpr, "fpr", "in [0, 1]")
        if rates.dtype.kind not in "fiu" or not np.all((rates >= 0) & (rates <= 1)):
            _validation.reject("fpr", "in [0, 1]", fpr)
        ceiling = curve(self.epsilon, self.delta, rates)
        if self.profile is not None:
            ceiling = np.asarray(self.profile.tpr_at(rates), dtype=np.float64)
        return float(ceiling) if ceiling.ndim == 0 else ceiling

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "adjacency": self.adjacency,
            "profile": None if self.profile is None else self.profile.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Any) -> Claim:
        """Read back what ``to_dict`` wrote."""
        try:
            profile = None if data["profile"] is None else profile_from_dict(data["profile"])
            return cls(data["epsilon"], data["delta"], data["adjacency"], profile)
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"The claim in the file is not complete or not valid: {error!r}.") from None

    def __str__(self) -> str:
        return f"({self.epsilon:g}, {self.delta:g})-differential privacy, adjacency: {self.adjacency}"


def curve(epsilon: float, delta: float, fpr: ArrayLike) -> Float:
    """The most true positives that (epsilon, delta) allows at each false-positive rate."""
    a = np.asarray(fpr, dtype=np.float64)
    steep = math.exp(min(epsilon, 700.0)) * a + delta
    return np.minimum(np.minimum(steep, 1 - math.exp(-epsilon) * np.maximum(1 - delta - a, 0.0)), 1.0)


def _in_words(adjacency: Any) -> str:
    """The name of an adjacency, or a refusal of none."""
    if isinstance(adjacency, Replacement):
        return REPLACE
    if isinstance(adjacency, Adjacency):
        return adjacency.describe()
    if not isinstance(adjacency, str) or not adjacency.strip():
        _validation.reject("adjacency", f"named, such as {REPLACE!r}: a claim without it says nothing", adjacency)
    return adjacency.strip()
