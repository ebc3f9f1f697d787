"""The result of an audit: a frozen record with a verdict in one sentence, which can be saved as JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._validation import check_count, check_inside_unit, validate
from scoreshield._views import Columns, NotebookObject, ObjectSummary
from scoreshield.audit.bounds import ASSUMING
from scoreshield.audit.claims import Claim, check_nonnegative
from scoreshield.audit.power import find_least_releases
from scoreshield.errors import InvalidInput

Float = NDArray[np.float64]
CheckName = Literal[
    "amount of noise",
    "low bits",
    "noise in every direction",
    "fresh noise",
    "form of the output",
    "several calls",
    "noise scale",
    "rows of other lengths",
]

#: The most points of the trade-off curve and bins of the histogram of a result.
POINTS = 512
BINS = 60
#: The check whose failure is a finding of its own.
ROWS_CHECK: CheckName = "rows of other lengths"
#: The power that `AuditResult.detectable` is for.
POWER = 0.9
_ARRAYS = ("fpr", "tpr", "edges", "counts_in", "counts_out")
_TRIPLES = ("auc", "tpr_at_1_percent")


@dataclass(frozen=True)
class AuditCheck:
    """One check of an audit.

    Attributes:
        name: What was checked; a `CheckName` in results of this version.
        passed: Whether the claim passed the check; None where it was not tested.
        detail: What was found, in words.
        epsilon: For the noise scale: the least epsilon of Gaussian noise with the measured scale. It is not saved.
    """

    name: str
    passed: bool | None
    detail: str
    epsilon: float | None = None


@dataclass(frozen=True, eq=False)
class AuditResult(NotebookObject):
    """The result of one audit.

    Attributes:
        name: The name of what was audited.
        claim: The claim.
        releases: Releases on each side; 1 for an audit of one release with many canaries.
        confidence: That the bound and all checks hold together. Each of the two intervals has it by itself.
        epsilon_lower: The bound: the true epsilon is at least this, at that confidence.
        checks: The checks beside the bound.
        auc: (value, low, high) of the area under the trade-off curve of the test statistic.
        tpr_at_1_percent: (value, low, high) of its true-positive rate at 1 % false positives.
        fpr: The false-positive rates of its empirical trade-off curve, at most 512 points.
        tpr: The true-positive rates of that curve.
        edges: The edges of its histograms, at most 60 bins.
        counts_in: Its histogram on the first collection.
        counts_out: Its histogram on the second collection.
        trajectory: (releases, bound) along the way.
        detectable: A violation with this true epsilon, or a larger one, would have been found with probability 90 %. It
            may be infinite.
        statistic: The test statistic, in words.
        neighbours: The two collections, in words.
        seconds: How long the audit took.
        canaries: How many coins an audit of one release tossed; 0 where releases were compared.
        assuming: What `detectable` assumes, in words that follow "if".
        calls: How many outputs were drawn in all, for all pairs; 0 where that is unknown.
        pairs: How many pairs of collections were tried; 0 where that is unknown.
        composed: How many times the claim one output of the pictured pair may spend: 2 for two queries in a row.
    """

    name: str
    claim: Claim
    releases: int
    confidence: float
    epsilon_lower: float
    checks: tuple[AuditCheck, ...]
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
    calls: int = 0
    pairs: int = 0
    composed: int = 1

    @validate()
    def __post_init__(self) -> None:
        for name in ("name", "statistic", "neighbours", "assuming"):
            if not isinstance(getattr(self, name), str):
                _validation.reject(name, "a string", getattr(self, name))
        if not isinstance(self.claim, Claim):
            _validation.reject("claim", "a Claim", self.claim)
        check_count(self.releases, "releases")
        for name in ("canaries", "calls", "pairs"):
            check_count(getattr(self, name), name, least=0)
        check_count(self.composed, "composed")
        check_inside_unit(self.confidence, "confidence")
        for name in ("epsilon_lower", "seconds"):
            check_nonnegative(getattr(self, name), name)
        if not (isinstance(self.detectable, float | int) and self.detectable >= 0):  # infinite is allowed, NaN is not
            _validation.reject("detectable", "a number, at least 0, or infinite", self.detectable)
        for name in _TRIPLES:
            object.__setattr__(self, name, _check_triple(getattr(self, name), name))
        object.__setattr__(self, "checks", tuple(self.checks))
        object.__setattr__(self, "trajectory", tuple((int(n), float(bound)) for n, bound in self.trajectory))
        for name in _ARRAYS:
            object.__setattr__(self, name, _freeze(getattr(self, name), name))
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
        """Whether the claim is broken for unit rows: the bound is above it, or a check failed."""
        return self.epsilon_lower > self.claim.epsilon or any(
            check.passed is False and check.name != ROWS_CHECK for check in self.checks
        )

    @property
    def broken_by_rows(self) -> bool:
        """Whether the claim is broken for rows that are not unit vectors, and for no others."""
        return not self.broken and any(check.passed is False for check in self.checks)

    @property
    def verdict(self) -> str:
        """The result in one sentence, or a few."""
        if self.broken:
            return f"The claim is broken: {'; '.join(self._list_reasons())}."
        effort = self._describe_effort()
        if self.broken_by_rows:
            return (
                f"No violation found for unit rows with {effort}, but the claim is broken for other rows: "
                f"{'; '.join(self._list_details())}. Normalise or clamp rows, or claim it for unit rows alone."
            )
        if self.is_inconclusive:
            return (
                f"No violation found, but {effort} cannot raise the bound above {self.claim.epsilon:g}, even if "
                f"everything leaks{self._describe_missing()}."
            )
        if self.canaries:
            return (
                f"No violation found: with {effort} a true epsilon of {_round_up(self.detectable)} or more would have "
                f"been found with probability {POWER:.0%}".replace("%", " %")
                + f" if {self.assuming}; this is evidence, not proof."
            )
        return (
            f"No violation found with {effort}. The checks say what size of each fault would have been found, and what "
            "was not tested. Smaller faults may be there; this is evidence, not proof."
        )

    def _describe_missing(self) -> str:
        """Describe how many releases would suffice, where a larger number would."""
        if self.canaries:
            return ""
        needed = find_least_releases(self.claim, self.confidence)
        if math.isinf(needed):
            return "; no feasible number of releases can"
        return f" (at least {needed:,.0f} on each side would be needed)" if self.releases < needed else ""

    @property
    def is_inconclusive(self) -> bool:
        """Whether nothing was found, and the outputs were too few to find anything."""
        return not (self.broken or self.broken_by_rows) and math.isinf(self.detectable) and not self._has_power

    @property
    def _has_power(self) -> bool:
        """Whether a check passed that could have failed."""
        return bool(self.calls) and any(check.passed and check.name != ROWS_CHECK for check in self.checks)

    @property
    def pictured_claim(self) -> Claim:
        """The claim about one output of the pictured pair: composed, where an output is several answers."""
        if self.composed == 1:
            return self.claim
        return Claim(self.composed * self.claim.epsilon, min(1 - 1e-12, self.composed * self.claim.delta))

    def _list_details(self) -> list[str]:
        return [check.detail for check in self.checks if check.passed is False]

    def _list_reasons(self) -> list[str]:
        reasons = [f"{check.name}: {check.detail}" for check in self.checks if check.passed is False]
        if self.epsilon_lower > self.claim.epsilon:
            reasons.insert(
                0,
                f"at {_format_percent(self.confidence)} confidence the true epsilon is at least "
                f"{_round_down(self.epsilon_lower)}, where {self.claim.epsilon:g} was claimed "
                f"(delta {self.claim.delta:g}, {self.claim.adjacency})",
            )
        return reasons

    def _describe_effort(self) -> str:
        if self.canaries:
            return f"one release and {self.canaries:,} canaries"
        if self.calls:
            pairs = f"{self.pairs:,} pairs" if self.pairs != 1 else "1 pair"
            return f"{self.calls:,} outputs of {pairs} of neighbouring collections"
        return f"{self.releases:,} releases" if self.releases != 1 else "1 release"

    def to_dict(self) -> dict[str, Any]:
        """Convert the result to plain values, for JSON; an infinite `detectable` is written as None."""
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
        """Read what `to_dict` wrote. The result is equal; the verdict is computed again."""
        try:
            newer = {"assuming": ASSUMING, "calls": 0, "pairs": 0, "composed": 1}  # older results do not have them
            given = {field.name: data[field.name] for field in fields(cls) if field.name not in newer}
            given |= {name: data.get(name, value) for name, value in newer.items()}
            given["claim"] = Claim.from_dict(given["claim"])
            given["checks"] = tuple(
                AuditCheck(str(c["name"]), None if c["passed"] is None else bool(c["passed"]), str(c["detail"]))
                for c in given["checks"]
            )
            given["detectable"] = math.inf if given["detectable"] is None else given["detectable"]
            return cls(**given)
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"The audit result in the file is not complete or not valid: {error!r}.") from None

    def __eq__(self, other: object) -> bool:
        return self.to_dict() == other.to_dict() if isinstance(other, AuditResult) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        certainty = f"{_format_percent(self.confidence)} confidence, {self._describe_effort()}"
        lines = [
            f"Audit of {self.name}",
            self.verdict,
            "",
            f"  claim            {self.claim}",
            f"  epsilon at least {_round_down(self.epsilon_lower)} ({certainty})",
            f"  AUC              {_format_interval(self.auc)}",
            f"  TPR at 1 % FPR   {_format_interval(self.tpr_at_1_percent)}",
            f"  statistic        {self.statistic}",
            f"  neighbours       {self.neighbours}",
        ]
        lines += [f"  {describe_outcome(c.passed):<16} {c.name}: {c.detail}" for c in self.checks]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return (
            f"<AuditResult of {self.name[:80]}: {self._describe_short()}, epsilon at least "
            f"{_round_down(self.epsilon_lower)} where {self.claim.epsilon:g} was claimed, {self._describe_effort()}>"
        )

    def _describe_short(self) -> str:
        if self.broken:
            return "BROKEN"
        return "broken for rows of other lengths" if self.broken_by_rows else "no violation found"

    def _summarise(self) -> ObjectSummary:
        facts = {
            "Claim": str(self.claim),
            "Confidence": _format_percent(self.confidence),
            "AUC": _format_interval(self.auc),
            "TPR at 1 % FPR": _format_interval(self.tpr_at_1_percent),
            "Statistic": self.statistic,
            "Neighbours": self.neighbours,
        }
        columns = self._list_columns()
        shown = {name: columns[name] for name in ("check", "result", "detail")}
        return ObjectSummary(f"Audit of {self.name}", self.verdict, facts, shown, "What was checked")

    def _list_columns(self) -> Columns:
        is_above = self.epsilon_lower > self.claim.epsilon
        names = ["epsilon", *(check.name for check in self.checks)]
        passed = [not is_above, *(check.passed for check in self.checks)]
        bound = f"at least {_round_down(self.epsilon_lower)}, where {self.claim.epsilon:g} was claimed"
        return {
            "check": names,
            "result": [describe_outcome(one) for one in passed],
            "detail": [bound, *(check.detail for check in self.checks)],
            "passed": passed,
        }


def describe_outcome(passed: bool | None) -> str:
    """Describe the outcome of a check."""
    return "not tested" if passed is None else "nothing found" if passed else "FAILED"


def _format_interval(triple: tuple[float, float, float]) -> str:
    return f"{triple[0]:.4f} ({triple[1]:.4f} to {triple[2]:.4f})"


def _format_percent(share: float) -> str:
    return f"{100 * share:.10g} %"


def _round_down(value: float) -> str:
    """Round down to three decimals."""
    return f"{math.floor(value * 1000) / 1000:g}" if value < 1e12 else f"{value:g}"


def _round_up(value: float) -> str:
    """Round up to three decimals."""
    return f"{math.ceil(value * 1000) / 1000:g}" if value < 1e12 else f"{value:g}"


def _check_triple(value: Any, name: str) -> tuple[float, float, float]:
    must = "three numbers low <= value <= high in [0, 1], as (value, low, high)"
    triple = _validation.check_array(value, name, must)
    if triple.shape != (3,) or triple.dtype.kind not in "fiu" or not 0 <= triple[1] <= triple[0] <= triple[2] <= 1:
        _validation.reject(name, must, value)
    return float(triple[0]), float(triple[1]), float(triple[2])


def _freeze(value: Any, name: str) -> Float:
    must = "a one-dimensional array of finite numbers"
    array = _validation.check_array(value, name, must)
    if array.ndim != 1 or array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        _validation.reject(name, must, value)
    frozen = array.astype(np.float64)
    frozen.flags.writeable = False
    return frozen
