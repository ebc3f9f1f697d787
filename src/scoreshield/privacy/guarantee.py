"""The promise of a release: a frozen object with methods, which prints as a certificate."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike

from scoreshield import _validation
from scoreshield._formatting import format_bound, format_number
from scoreshield._loading import describe_error
from scoreshield._validation import check_real, check_text, optional, validate
from scoreshield._views import Columns, NotebookObject, ObjectSummary
from scoreshield.errors import InvalidInput
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.adjacency import (
    Adjacency,
    GramRadius,
    NullRecord,
    Replacement,
    adjacency_from_dict,
    check_score_range,
)
from scoreshield.privacy.mechanisms import MECHANISMS, REGIMES, Regime
from scoreshield.privacy.noise.custom import MOST_KNOTS, CustomNoise
from scoreshield.privacy.noise.laws import CalibratedNoise, NoiseLaw, law_from_dict
from scoreshield.privacy.profiles import CurveProfile, GaussianProfile, Profile, PureProfile, profile_from_dict
from scoreshield.privacy.provenance import Provenance
from scoreshield.privacy.verdicts import LAST, VerdictWord, format_right_guesses, judge_profile

if TYPE_CHECKING:
    from scoreshield.privacy.levels.tables import LevelChannel

SAMPLERS = ("exact", "research")
#: The rule that set the noise: a Gaussian one, or "pure", which needs none.
CALIBRATIONS = (*gaussian.METHODS, "pure")
#: The false-positive rates of `Guarantee.to_frame`.
_FRAME_RATES = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True)
class ReleaseFacts:
    """The public facts that every guarantee states about its release.

    Attributes:
        adjacency: What counts as a neighbour. A guarantee keeps it without labels.
        regime: What was released: "scores", "row", "gram", "matches", "top-k", "histogram", "index", "batch" or
            "hits".
        shape: The shape of what was released.
        score_range: The public range that clean scores were clamped to.
        sampler: "exact" or "research".
    """

    adjacency: Adjacency
    regime: Regime
    shape: tuple[int, ...]
    score_range: tuple[float, float]
    sampler: str

    def to_fields(self) -> dict[str, Any]:
        """Return the fields of a `Guarantee` that these facts fill."""
        return {**vars(self), "adjacency": self.adjacency.drop_labels()}


@dataclass(frozen=True)
class Guarantee(NotebookObject):
    """The privacy of one release.

    A release states its guarantee by `for_mechanism`, or by `for_additive_noise` and `for_level_table`, which fill in
    most facts.

    Attributes:
        epsilon: The epsilon that holds.
        delta: The delta that holds; 0 for a pure promise.
        mechanism: The name of the noise. `noise` is its law on each released entry (`cdf`, `std`), None if no noise
            is added to entries.
        profile: The whole privacy: delta at every epsilon, the trade-off curve of the best test.
        adjacency: Which collections are neighbours.
        sensitivity: How far one neighbour can move the clean object, in l2 (Frobenius for a Gram matrix).
        scale: The value calibrated to that sensitivity: the standard deviation of Gaussian or staircase noise, b of
            Laplace noise. On a Gram matrix each off-diagonal entry, drawn once and mirrored, carries scale / sqrt(2).
        sampler: "exact" (cryptographic stream) or "research" (seeded: repeatable, and so not private).
        grid: The step of the public grid; every noisy entry is a whole multiple of it.
        calibration: The rule that set the scale.
        grid_sensitivity: The sensitivity after rounding the clean object to the grid, which the scale was calibrated
            to.
        regime: What was released: "scores", "row", "gram", "matches", "top-k", "histogram", "index", "batch" or
            "hits".
        shape: The shape of the release.
        score_range: The enforced public range.
        details: Further public facts, such as a threshold.
        claimed: The pair that a false rule claims, if a release reproduces the paper's tables; None otherwise.
        provenance: The collection, who, why and the ledger entry, for the certificate; None if nothing is stated. Two
            guarantees with the same promise are equal, whatever their provenance.
    """

    epsilon: float
    delta: float
    mechanism: str
    calibration: str
    adjacency: Adjacency
    regime: Regime
    shape: tuple[int, ...]
    score_range: tuple[float, float]
    sensitivity: float
    grid_sensitivity: float
    scale: float
    grid: float
    noise: NoiseLaw | LevelChannel | None
    profile: Profile
    sampler: str
    claimed: tuple[float, float] | None = None
    details: dict[str, Any] = field(default_factory=dict)
    provenance: Provenance | None = field(default=None, compare=False)

    @classmethod
    def for_mechanism(
        cls,
        facts: ReleaseFacts,
        *,
        epsilon: float,
        delta: float,
        mechanism: str,
        sensitivity: float,
        grid_sensitivity: float,
        scale: float,
        grid: float,
        profile: Profile,
        calibration: str = "analytic",
        noise: NoiseLaw | LevelChannel | None = None,
        details: dict[str, Any] | None = None,
    ) -> Guarantee:
        """State the guarantee of any mechanism. Without delta it is pure, and no calibration rule applies."""
        return cls(
            **facts.to_fields(),
            epsilon=epsilon,
            delta=delta,
            mechanism=mechanism,
            calibration=calibration if delta else "pure",
            sensitivity=sensitivity,
            grid_sensitivity=grid_sensitivity,
            scale=scale,
            grid=grid,
            noise=noise,
            profile=profile,
            details={} if details is None else details,
        )

    @classmethod
    def for_additive_noise(
        cls, facts: ReleaseFacts, noise: CalibratedNoise, *, epsilon: float, delta: float, calibration: str
    ) -> Guarantee:
        """State the guarantee of noise that is added to each entry."""
        return cls.for_mechanism(
            facts,
            epsilon=epsilon,
            delta=delta,
            mechanism=noise.law.name,
            sensitivity=noise.sensitivity,
            grid_sensitivity=noise.grid_sensitivity,
            scale=noise.scale,
            grid=noise.step,
            profile=noise.profile,
            calibration=calibration,
            noise=noise.law,
        )

    @classmethod
    def for_level_table(cls, facts: ReleaseFacts, table: LevelChannel, *, mechanism: str) -> Guarantee:
        """State the guarantee of a level table: what the table was verified to satisfy."""
        width = facts.score_range[1] - facts.score_range[0]
        return cls.for_mechanism(
            facts,
            epsilon=table.epsilon,
            delta=table.delta,
            mechanism=mechanism,
            sensitivity=width,
            grid_sensitivity=width,
            scale=table.std,
            grid=table.step,
            profile=table.profile(),
            noise=table,
            details={"levels": len(table.inputs)} | ({"share": table.share} if table.share < 1 else {}),
        )

    @property
    def noise_std(self) -> float:
        """The standard deviation of the noise on each released entry."""
        if self.noise is None:
            raise InvalidInput(f"A release by {self.mechanism} adds no noise to its entries.")
        return self.noise.std

    @property
    def mu(self) -> float:
        """Sensitivity over scale, for Gaussian noise: the release is mu-Gaussian differentially private."""
        if not isinstance(self.profile, GaussianProfile):
            raise InvalidInput(f"mu belongs to Gaussian noise; this release is by {self.mechanism}.")
        return self.profile.mu

    @validate(epsilon=check_real)
    def delta_at(self, epsilon: float) -> float:
        """The exact delta at another ``epsilon`` >= 0, rounded up: one point of the privacy profile."""
        if epsilon < 0:
            _validation.reject("epsilon", "at least 0", epsilon)
        return self.profile.delta_at(epsilon)

    @validate()
    def epsilon_at(self, delta: float) -> float:
        """The least epsilon at another ``delta`` in [0, 1), rounded up; infinite at 0 where the promise is not pure."""
        return self.profile.epsilon_at(_validation.check_probability(delta, "delta", zero=True))

    @property
    def attack_auc(self) -> float:
        """Area under the curve of the best test that distinguishes two neighbours; 0.5 is guessing."""
        return self.profile.auc

    @property
    def attack_advantage(self) -> float:
        """Largest true-positive minus false-positive rate of any such test; 0 is guessing."""
        return self.profile.advantage

    @validate()
    def tpr_at(self, fpr: ArrayLike) -> Any:
        """The trade-off curve: the most true positives any test reaches at one false-positive rate or at many."""
        rates = _validation.check_array(fpr, "fpr", "in [0, 1]")
        if rates.dtype.kind not in "fiu" or not np.all((rates >= 0) & (rates <= 1)):
            _validation.reject("fpr", "in [0, 1]", fpr)
        power = np.asarray(self.profile.tpr_at(rates))
        return float(power) if power.ndim == 0 else power

    @property
    def covers_record_replacement(self) -> bool:
        """Whether the replacement of one whole record is within the promise."""
        if isinstance(self.adjacency, NullRecord):
            return False
        return not isinstance(self.adjacency, GramRadius) or self.sensitivity >= self._replacement()

    def record_profile(self) -> Profile:
        """Compute the privacy of the same output when one whole record is replaced, for every adjacency of the promise.

        Gaussian noise calibrated to a Gram radius protects a record too, with the noise over the larger movement. A
        hit budget states the epsilon between any two records beside the one against a null record.
        """
        if self.covers_record_replacement:
            return self.profile
        if isinstance(self.adjacency, NullRecord):
            return PureProfile(self.details["replacement_epsilon"])
        return GaussianProfile(self.mu * self._replacement() / self.sensitivity)

    def _replacement(self) -> float:
        """How far the replacement of one record can move what was released."""
        return Replacement().sensitivity(self.regime, self.shape[-1], score_range=self.score_range).l2

    @property
    def verdict(self) -> VerdictWord:
        """The promise in words: "strong", "moderate", "weak" or "hides practically nothing".

        It follows from the advantage of the best attacker against one record, and from what this attacker detects at
        1 % false alarms: the limits are in `scoreshield.privacy.verdicts`. A release in research mode hides
        practically nothing, since anyone who knows its seed can remove the noise.
        """
        return judge_profile(self.record_profile()) if self.sampler == "exact" else LAST

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader of the certificate must know first, one sentence each; empty if there is nothing."""
        from scoreshield.privacy.certificate import list_warnings

        return tuple(list_warnings(self))

    @validate(dataset=optional(check_text), who=optional(check_text), why=optional(check_text))
    def annotate(self, *, dataset: str | None = None, who: str | None = None, why: str | None = None) -> Guarantee:
        """Return the same promise with texts for the certificate; `Release.annotate` describes them."""
        stated = (self.provenance or Provenance()).annotate(dataset=dataset, who=who, why=why)
        return replace(self, provenance=None if stated == Provenance() else stated)

    def drop_provenance(self) -> Guarantee:
        """Return the promise alone, as a ledger keeps it."""
        return self if self.provenance is None else replace(self, provenance=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; `from_dict` reads them back, equal."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "mechanism": self.mechanism,
            "calibration": self.calibration,
            "adjacency": self.adjacency.to_dict(),
            "regime": self.regime,
            "shape": list(self.shape),
            "score_range": list(self.score_range),
            "sensitivity": self.sensitivity,
            "grid_sensitivity": self.grid_sensitivity,
            "scale": self.scale,
            "grid": self.grid,
            "noise": None if self.noise is None else self.noise.to_dict(),
            "profile": self.profile.to_dict(),
            "sampler": self.sampler,
            "claimed": None if self.claimed is None else list(self.claimed),
            "details": self.details,
            "attack": {
                "auc": self.attack_auc,
                "advantage": self.attack_advantage,
                "tpr_at_fpr_0.01": self.tpr_at(0.01),
            },
        } | ({} if self.provenance is None else {"provenance": self.provenance.to_dict()})

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Guarantee:
        """The guarantee that ``to_dict`` described, checked against itself."""
        try:
            guarantee = cls(
                epsilon=_validation.check_real(data["epsilon"], "epsilon"),
                delta=_validation.check_probability(data["delta"], "delta", zero=True),
                mechanism=_validation.check_option(data["mechanism"], "mechanism", MECHANISMS),
                calibration=_validation.check_option(data["calibration"], "calibration", CALIBRATIONS),
                adjacency=adjacency_from_dict(data["adjacency"]),
                regime=cast("Regime", _validation.check_option(data["regime"], "regime", REGIMES)),
                shape=tuple(_validation.check_count(length, "shape") for length in data["shape"]),
                score_range=check_score_range(data["score_range"]),
                sensitivity=_validation.check_positive(data["sensitivity"], "sensitivity"),
                grid_sensitivity=_validation.check_positive(data["grid_sensitivity"], "grid_sensitivity"),
                scale=_validation.check_positive(data["scale"], "scale"),
                grid=_validation.check_positive(data["grid"], "grid"),
                noise=None if data["noise"] is None else law_from_dict(data["noise"]),
                profile=_profile_from_dict(data),
                sampler=_validation.check_option(data["sampler"], "sampler", SAMPLERS),
                claimed=None if data["claimed"] is None else (float(data["claimed"][0]), float(data["claimed"][1])),
                details=dict(data["details"]),
                provenance=Provenance.from_dict(data["provenance"]) if "provenance" in data else None,
            )
        except (KeyError, TypeError, IndexError, ValueError, OverflowError, AttributeError) as error:
            raise InvalidInput(
                f"The guarantee in the file is not complete or not valid: {describe_error(error)}"
            ) from None
        from scoreshield.privacy.consistency import is_consistent

        try:
            consistent = is_consistent(guarantee)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
            consistent = False
        if not consistent:
            raise InvalidInput(
                "The guarantee in the file contradicts itself: its noise, shape and adjacency do not give its promise."
            )
        return guarantee

    def __str__(self) -> str:
        from scoreshield.privacy.certificate import write_certificate

        return write_certificate(self)

    def __repr__(self) -> str:
        shape = " x ".join(f"{length:,}" for length in self.shape)
        return (
            f"<Guarantee of {self.regime} {shape}: ({self.epsilon:g}, {self.delta:g})-DP, {self.verdict}, "
            f"{self.mechanism}, {self.sampler} sampler>"
        )

    @property
    def sentence(self) -> str:
        """The verdict, and how often an attacker is right at most, in two sentences."""
        word, attacker = self.verdict.capitalize(), "An attacker who knows everything else"
        if self.sampler != "exact":
            word, attacker = f"{word}, because it was made in research mode", f"{attacker}, except the seed,"
        unit = "identity" if self.adjacency.kind == "identity" else "record"
        right = format_right_guesses(self.record_profile().advantage)
        return (
            f"{word}. {attacker} and must choose between two candidates for one {unit} is right at most {right} of the "
            "time (50 % is a coin toss)."
        )

    def _summarise(self) -> ObjectSummary:
        shape = " x ".join(f"{length:,}" for length in self.shape)
        return ObjectSummary(
            f"Guarantee of {self.regime} {shape}", self.sentence, self.list_facts(), warnings=self.warnings
        )

    def list_facts(self) -> dict[str, str]:
        """List the facts that a notebook shows, by their names; figures about attackers are rounded up."""
        epsilon, delta = format_bound(self.epsilon), format_bound(self.delta)
        promise = f"({epsilon}, {delta})" if self.delta else f"pure {epsilon}"
        advantage, detected = math.ceil(1e4 * self.attack_advantage) / 1e4, math.ceil(1e4 * self.tpr_at(0.01)) / 100
        facts = {
            "Promise": f"{promise}-differential privacy",
            "Hides": f"whether {self.adjacency.describe()}",
            "Best attack": f"advantage at most {advantage:g}; at 1 % false alarms it detects at most {detected:g} %",
            "Mechanism": self.mechanism,
        }
        if self.noise is not None:
            facts["Noise"] = f"standard deviation {format_number(self.noise_std)}"
        facts["Sampler"] = self.sampler
        if self.provenance is not None:
            stated = {
                "Dataset": self.provenance.dataset,
                "Who": self.provenance.who,
                "Why": self.provenance.why,
                "Ledger entry": self.provenance.entry.partition(":")[0],
            }
            facts |= {name: text for name, text in stated.items() if text}
        return facts

    def _list_columns(self) -> Columns:
        return {"fpr": list(_FRAME_RATES), "tpr": self.tpr_at(_FRAME_RATES).tolist()}


def _profile_from_dict(data: dict[str, Any]) -> Profile:
    """The profile in the file; beside Gaussian noise on a covariance no delta is 0, and earlier versions wrote so."""
    profile = profile_from_dict(data["profile"])
    if not isinstance(profile, CurveProfile):
        return profile
    if data.get("mechanism") == CustomNoise.name and len(profile.losses) > MOST_KNOTS:  # each costs sums over its table
        raise InvalidInput(f"The profile of a custom law has at most {MOST_KNOTS} knots. Got {len(profile.losses):,}.")
    if data["details"].get("reduction") == "pca":
        return CurveProfile(profile.losses, tuple(max(delta, gaussian.LEAST_DELTA) for delta in profile.deltas))
    return profile
