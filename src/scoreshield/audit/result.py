"""What an audit found: a frozen record that says so in one sentence, and that JSON keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._validation import validate
from scoreshield.audit.claim import Claim
from scoreshield.audit.power import ASSUMING, MOST_RELEASES, releases_needed
from scoreshield.errors import InvalidInput

Float = NDArray[np.float64]

#: The most points of the trade-off curve and bins of the histogram that a result keeps.
POINTS = 512
BINS = 60
#: The power that `AuditResult.detectable` speaks of.
POWER = 0.9
_ARRAYS = ("fpr", "tpr", "edges", "counts_in", "counts_out")
_TRIPLES = ("auc", "tpr_at_1_percent")


@dataclass(frozen=True)
class Check:
    """One thing that was looked at, whether it held, and what was seen."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, eq=False)
class AuditResult:
    """The outcome of one audit.

    Attributes
    ----------
    name : of what was audited.
    claim : what was claimed of it.
    releases : how many were drawn on each side; 1 for an audit of one release with many canaries.
    confidence : that the bound and all checks hold together; of the two intervals, each by itself.
    epsilon_lower : the bound: the true epsilon is at least this, at that confidence.
    checks : what else was looked at.
    auc, tpr_at_1_percent : (value, low, high) of the test statistic.
    fpr, tpr : its empirical trade-off curve, at most 512 points.
    edges, counts_in, counts_out : its histograms on the two sides, at most 60 bins.
    trajectory : (releases, bound) along the way.
    detectable : from this true epsilon on, a violation would have been found with probability 90 %; may be infinite.
    statistic, neighbours : how outputs were told apart, and which collections, in words.
    seconds : how long it took.
    canaries : how many coins an audit of one release tossed; 0 where releases were compared.
    assuming : what ``detectable`` supposes, in words that follow "if".
    """

    name: str
    claim: Claim
    releases: int
    confidence: float
    epsilon_lower: float
    checks: tuple[Check, ...]
    auc: tuple[float, float, float]
    tpr_at_1_percent: tuple[float, float, float]
    fpr: Float
    tpr: Float
    edges: Float
    counts_in: Float
    counts_out: Float
    trajectory: tuple[tuple[int, float], ...]
    detectable: float
    statistic: str
    neighbours: str
    seconds: float
    canaries: int = 0
    assuming: str = ASSUMING

    @validate()
    def __post_init__(self) -> None:
        for name in ("name", "statistic", "neighbours", "assuming"):
            if not isinstance(getattr(self, name), str):
                _validation.reject(name, "a string", getattr(self, name))
        if not isinstance(self.claim, Claim):
            _validation.reject("claim", "a Claim", self.claim)
        _validation.check_count(self.releases, "releases")
        _validation.check_count(self.canaries, "canaries", least=0)
        _validation.check_probability(self.confidence, "confidence", zero=False)
        for name in ("epsilon_lower", "seconds"):
            _at_least_zero(getattr(self, name), name)
        if not (isinstance(self.detectable, float | int) and self.detectable >= 0):  # infinite is allowed, NaN is not
            _validation.reject("detectable", "a number, at least 0, or infinite", self.detectable)
        for name in _TRIPLES:
            object.__setattr__(self, name, _triple(getattr(self, name), name))
        object.__setattr__(self, "checks", tuple(self.checks))
        object.__setattr__(self, "trajectory", tuple((int(n), float(bound)) for n, bound in self.trajectory))
        for name in _ARRAYS:
            object.__setattr__(self, name, _frozen(getattr(self, name), name))
        self._check_shapes()

    def _check_shapes(self) -> None:
        if len(self.fpr) != len(self.tpr) or not 2 <= len(self.fpr) <= POINTS:
            got = f"{len(self.fpr)} and {len(self.tpr)} points"
            _validation.reject("fpr", f"as long as 'tpr', with 2 to {POINTS} points", got)
        bins = len(self.edges) - 1
        if not 1 <= bins <= BINS or len(self.counts_in) != bins or len(self.counts_out) != bins:
            got = f"{len(self.edges)} edges, {len(self.counts_in)} and {len(self.counts_out)} counts"
            _validation.reject("edges", f"one more than the counts, which are 1 to {BINS}", got)

    @property
    def broken(self) -> bool:
        """Whether the claim does not stand: the bound is above it, or a check failed."""
        return self.epsilon_lower > self.claim.epsilon or any(not check.passed for check in self.checks)

    @property
    def verdict(self) -> str:
        """The outcome in one sentence."""
        if self.broken:
            return f"The claim is broken: {'; '.join(self._reasons())}."
        effort = self._effort()
        if math.isinf(self.detectable):
            return (
                f"No violation found, but {effort} cannot lift the bound above {self.claim.epsilon:g}, whatever leaks"
                f"{self._missing()}; this is evidence, not proof."
            )
        return (
            f"No violation found: with {effort} a true epsilon of {_up(self.detectable)} or more would have been found "
            f"with probability {POWER:.0%}".replace("%", " %")
            + f" if {self.assuming}; this is evidence, not proof."
        )

    def _missing(self) -> str:
        """How many releases would do, where more of them would."""
        if self.canaries:
            return ""
        needed = releases_needed(self.claim.epsilon, self.claim.delta, self.confidence)
        if needed > MOST_RELEASES:
            return ", nor can any number of releases that can be drawn"
        return f" (at least {needed:,.0f} on each side would be needed)" if self.releases < needed else ""

    def _reasons(self) -> list[str]:
        reasons = [f"check '{check.name}' failed ({check.detail})" for check in self.checks if not check.passed]
        if self.epsilon_lower > self.claim.epsilon:
            reasons.insert(
                0,
                f"at {_percent(self.confidence)} confidence the true epsilon is at least {_down(self.epsilon_lower)}, "
                f"where {self.claim.epsilon:g} was claimed (delta {self.claim.delta:g}, {self.claim.adjacency})",
            )
        return reasons

    def _effort(self) -> str:
        if self.canaries:
            return f"one release and {self.canaries:,} canaries"
        return f"{self.releases:,} releases" if self.releases != 1 else "1 release"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; an infinite ``detectable`` is written as None."""
        data: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        data["claim"] = self.claim.to_dict()
        data["checks"] = [{"name": c.name, "passed": c.passed, "detail": c.detail} for c in self.checks]
        data["detectable"] = None if math.isinf(self.detectable) else float(self.detectable)
        data["trajectory"] = [list(step) for step in self.trajectory]
        for name in (*_ARRAYS, *_TRIPLES):
            data[name] = np.asarray(data[name]).tolist()
        return data | {"broken": self.broken, "verdict": self.verdict}

    @classmethod
    def from_dict(cls, data: Any) -> AuditResult:
        """Read back what ``to_dict`` wrote, equal; the verdict is worked out anew."""
        try:
            given = {field.name: data[field.name] for field in fields(cls) if field.name != "assuming"}
            given["assuming"] = data.get("assuming", ASSUMING)  # results of before it was kept
            given["claim"] = Claim.from_dict(given["claim"])
            given["checks"] = tuple(Check(str(c["name"]), bool(c["passed"]), str(c["detail"])) for c in given["checks"])
            given["detectable"] = math.inf if given["detectable"] is None else given["detectable"]
            return cls(**given)
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"The audit result in the file is not complete or not valid: {error!r}.") from None

    def __eq__(self, other: object) -> bool:
        return self.to_dict() == other.to_dict() if isinstance(other, AuditResult) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        certainty = f"{_percent(self.confidence)} confidence, {self._effort()}"
        lines = [
            f"Audit of {self.name}",
            self.verdict,
            "",
            f"  claim            {self.claim}",
            f"  epsilon at least {_down(self.epsilon_lower)} ({certainty})",
            f"  AUC              {_interval(self.auc)}",
            f"  TPR at 1 % FPR   {_interval(self.tpr_at_1_percent)}",
            f"  statistic        {self.statistic}",
            f"  neighbours       {self.neighbours}",
        ]
        lines += [f"  {'passed' if c.passed else 'FAILED'}           {c.name}: {c.detail}" for c in self.checks]
        return "\n".join(lines)


def _interval(triple: tuple[float, float, float]) -> str:
    return f"{triple[0]:.4f} ({triple[1]:.4f} to {triple[2]:.4f})"


def _percent(share: float) -> str:
    return f"{100 * share:.10g} %"


def _down(value: float) -> str:
    """Three decimals, never above the value."""
    return f"{math.floor(value * 1000) / 1000:g}" if value < 1e12 else f"{value:g}"


def _up(value: float) -> str:
    """Three decimals, never below the value."""
    return f"{math.ceil(value * 1000) / 1000:g}" if value < 1e12 else f"{value:g}"


def _at_least_zero(value: Any, name: str) -> None:
    if _validation.check_real(value, name, "a finite number, at least 0") < 0:
        _validation.reject(name, "a finite number, at least 0", value)


def _triple(value: Any, name: str) -> tuple[float, float, float]:
    must = "three numbers low <= value <= high in [0, 1], as (value, low, high)"
    found = _validation.check_array(value, name, must)
    if found.shape != (3,) or found.dtype.kind not in "fiu" or not 0 <= found[1] <= found[0] <= found[2] <= 1:
        _validation.reject(name, must, value)
    return float(found[0]), float(found[1]), float(found[2])


def _frozen(value: Any, name: str) -> Float:
    must = "a one-dimensional array of finite numbers"
    found = _validation.check_array(value, name, must)
    if found.ndim != 1 or found.dtype.kind not in "fiu" or not np.isfinite(found).all():
        _validation.reject(name, must, value)
    found = found.astype(np.float64)
    found.flags.writeable = False
    return found
