"""What a release promises: a frozen object that can be asked, and that prints as a certificate."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from scoreshield import _checks
from scoreshield.errors import InvalidInput
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.adjacency import (
    REGIMES,
    Adjacency,
    GramRadius,
    Identity,
    Replacement,
    adjacency_from_dict,
    check_score_range,
)
from scoreshield.privacy.noise import GaussianNoise

SAMPLERS = ("exact", "research")


@dataclass(frozen=True)
class Guarantee:
    """The privacy of one release.

    Attributes
    ----------
    epsilon, delta : the contract that holds.
    mechanism : the noise, by name; ``noise`` is its law on each released entry (``cdf``, ``std``).
    adjacency : who counts as a neighbour.
    sensitivity : how far one neighbour can move the clean object, in l2 (Frobenius for a Gram matrix).
    scale : the standard deviation calibrated to that sensitivity. On a Gram matrix each off-diagonal entry, drawn once
        and mirrored, carries scale / sqrt(2).
    sampler : "exact" (cryptographic stream) or "research" (seeded: repeatable, hence not private).
    grid : the step of the public grid; every noisy entry is a whole multiple of it.
    calibration : the rule that set the scale.
    grid_sensitivity : the sensitivity after rounding the clean object to the grid; what the scale was calibrated to.
    regime, shape, score_range : what was released: "scores", "row" or "gram", its shape, the enforced public range.
    claimed : the pair that a refused rule claims, where a release reproduces the paper's tables; None otherwise.
    """

    epsilon: float
    delta: float
    mechanism: str
    calibration: str
    adjacency: Adjacency
    regime: str
    shape: tuple[int, ...]
    score_range: tuple[float, float]
    sensitivity: float
    grid_sensitivity: float
    scale: float
    grid: float
    noise: GaussianNoise
    sampler: str
    claimed: tuple[float, float] | None = None

    @property
    def mu(self) -> float:
        """Sensitivity over scale: the release is mu-Gaussian differentially private."""
        return self.grid_sensitivity / self.scale

    def delta_at(self, epsilon: float) -> float:
        """The exact delta at another ``epsilon`` >= 0, rounded up: one point of the privacy profile."""
        epsilon = _checks.real(epsilon, "epsilon", "delta_at")
        if epsilon < 0:
            _checks.reject("epsilon", "delta_at", "at least 0", epsilon)
        return gaussian.delta_of(epsilon, self.mu)

    def epsilon_at(self, delta: float) -> float:
        """The least epsilon at another ``delta`` in (0, 1), rounded up."""
        return gaussian.epsilon_of(_checks.probability(delta, "delta", "epsilon_at", zero=False), self.mu)

    @property
    def attack_auc(self) -> float:
        """Area under the curve of the best test that tells two neighbours apart; 0.5 is guessing."""
        return gaussian.attack_auc(self.mu)

    @property
    def attack_advantage(self) -> float:
        """Largest true-positive minus false-positive rate of any such test; 0 is guessing."""
        return gaussian.attack_advantage(self.mu)

    def tpr_at(self, fpr: ArrayLike) -> Any:
        """The trade-off curve: the most true positives any test reaches at one false-positive rate or at many."""
        rates = _checks.array(fpr, "fpr", "tpr_at", "in [0, 1]")
        if rates.dtype.kind not in "fiu" or not np.all((rates >= 0) & (rates <= 1)):
            _checks.reject("fpr", "tpr_at", "in [0, 1]", fpr)
        power = ndtr(ndtri(rates) + self.mu)
        return float(power) if power.ndim == 0 else power

    @property
    def covers_record_replacement(self) -> bool:
        """Whether the replacement of one whole record is within the promise."""
        return not isinstance(self.adjacency, GramRadius) or self.sensitivity >= self._replacement()

    def _replacement(self) -> float:
        """How far the replacement of one record can move what was released."""
        return Replacement().sensitivity(self.regime, self.shape[-1], score_range=self.score_range).l2

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; :meth:`from_dict` reads them back, equal."""
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
            "noise": {"name": self.noise.name, "std": self.noise.std},
            "sampler": self.sampler,
            "claimed": None if self.claimed is None else list(self.claimed),
            "attack": {
                "auc": self.attack_auc,
                "advantage": self.attack_advantage,
                "tpr_at_fpr_0.01": self.tpr_at(0.01),
            },
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Guarantee:
        """The guarantee that ``to_dict`` described, checked against itself."""
        function = "a guarantee"
        try:
            guarantee = cls(
                epsilon=_checks.real(data["epsilon"], "epsilon", function),
                delta=_checks.probability(data["delta"], "delta", function, zero=False),
                mechanism=_checks.one_of(data["mechanism"], "mechanism", function, (GaussianNoise.name,)),
                calibration=_checks.one_of(data["calibration"], "calibration", function, gaussian.METHODS),
                adjacency=adjacency_from_dict(data["adjacency"]),
                regime=_checks.one_of(data["regime"], "regime", function, REGIMES),
                shape=tuple(_checks.count(length, "shape", function) for length in data["shape"]),
                score_range=check_score_range(data["score_range"], function),
                sensitivity=_checks.positive(data["sensitivity"], "sensitivity", function),
                grid_sensitivity=_checks.positive(data["grid_sensitivity"], "grid_sensitivity", function),
                scale=_checks.positive(data["scale"], "scale", function),
                grid=_checks.positive(data["grid"], "grid", function),
                noise=GaussianNoise(data["noise"]["std"]),
                sampler=_checks.one_of(data["sampler"], "sampler", function, SAMPLERS),
                claimed=None if data["claimed"] is None else (float(data["claimed"][0]), float(data["claimed"][1])),
            )
        except (KeyError, TypeError, IndexError, ValueError, OverflowError, AttributeError) as error:
            raise InvalidInput(f"The guarantee in the file is not complete or not valid: {error}") from None
        share = math.sqrt(0.5) if guarantee.regime == "gram" else 1.0
        if (
            guarantee.epsilon < 0
            or guarantee.delta_at(guarantee.epsilon) > guarantee.delta
            or guarantee.noise.std < guarantee.scale * share * (1 - 1e-12)
            or guarantee.grid_sensitivity < guarantee.sensitivity
        ):
            raise InvalidInput("The guarantee in the file contradicts itself: its noise does not give its promise.")
        return guarantee

    def __str__(self) -> str:
        return certificate(self)


def certificate(guarantee: Guarantee) -> str:
    """The guarantee as a page that a data-protection officer can read."""
    lines = ["ScoreShield certificate", "=======================", ""]

    def say(label: str, *sentences: str) -> None:
        text = " ".join(sentences)
        lines.extend(textwrap.wrap(text, 79, initial_indent=f"{label:<15}", subsequent_indent=" " * 15))

    for warning in _warnings(guarantee):
        lines.extend([*textwrap.wrap(f"WARNING: {warning}", 79), ""])
    say("Released", _what(guarantee) + ".")
    say(
        "Promise",
        f"({guarantee.epsilon:g}, {guarantee.delta:g})-differential privacy",
        "(no event gets more likely than a factor of e^epsilon, plus delta, by one change).",
    )
    say(
        "Protects",
        f"Nobody who sees the release can tell, beyond the odds below, whether {guarantee.adjacency.describe()}.",
        "That holds even for an attacker who knows everything else.",
    )
    say(
        "In practice",
        f"The best possible test of whether one such change was made has an AUC of {guarantee.attack_auc:.4f}",
        f"(0.5 is a coin toss) and an advantage of {guarantee.attack_advantage:.4f} (0 is a coin toss); at 1 % false",
        f"alarms it detects at most {100 * guarantee.tpr_at(0.01):.2f} % of such changes.",
    )
    say(
        "Does not cover",
        "Other releases from the same records: each spends its own epsilon and delta, and they add up.",
        "The records themselves, if they are shown beside their scores.",
        f"What is taken as public: {_PUBLIC[guarantee.regime]}the number, order and dimension of the records,",
        "and any label.",
        "Facts that hold whether or not one particular record is in the collection.",
    )
    lines.append("")
    say(
        "How",
        f"{guarantee.mechanism.capitalize()} noise of standard deviation {guarantee.noise.std:.6g} on each entry;",
        f"l2 sensitivity {guarantee.sensitivity:.6g} ({guarantee.grid_sensitivity:.9g} with rounding to the grid),",
        f"scale {guarantee.scale:.9g}, {guarantee.calibration} calibration"
        + (", checked numerically and rounded up." if guarantee.claimed is None else " as published."),
        f"Clean scores were first clamped to the public range [{guarantee.score_range[0]:g},",
        f"{guarantee.score_range[1]:g}].",
    )
    say(
        "Sampler",
        "Exact: the real-valued Gaussian rounded to the grid, from an AES-256 stream keyed by the operating system."
        if guarantee.sampler == "exact"
        else "Research: the exact sampler on a seeded generator, which anyone who knows the seed can undo.",
        f"Every noisy entry is a multiple of {guarantee.grid:g} (2^{round(math.log2(guarantee.grid))}).",
    )
    return "\n".join(lines) + "\n"


_PUBLIC = {"scores": "the query, ", "row": "the index of the record, ", "gram": ""}


def _what(guarantee: Guarantee) -> str:
    shape = guarantee.shape
    central = isinstance(guarantee.adjacency, Identity) and guarantee.adjacency.centroids
    one, all_ = ("identity", "identities") if central else ("record", "records")
    match guarantee.regime:
        case "scores" if len(shape) == 2:
            return f"the similarity scores of {shape[0]:,} public queries against {shape[1]:,} {all_}"
        case "scores":
            return f"{shape[0]:,} similarity scores, of one public query against {shape[0]:,} {all_}"
        case "row":
            return f"the {shape[0]:,} similarity scores of one {one}, at a public index, with all {all_}"
        case _:
            return (
                f"the Gram matrix of {shape[0]:,} {all_}: all {shape[0] * (shape[0] - 1) // 2:,} pairwise similarities"
            )


def _warnings(guarantee: Guarantee) -> list[str]:
    found = []
    if guarantee.sampler != "exact":
        found.append("made in research mode with a seeded generator: for experiments on public data only, NOT PRIVATE.")
    if guarantee.claimed is not None:
        found.append(
            f"reproduces a published calibration that claims (epsilon {guarantee.claimed[0]:g}, delta "
            f"{guarantee.claimed[1]:g}) and does not reach it; the pair below is the true one."
        )
    if not guarantee.covers_record_replacement:
        found.append(
            "this radius does NOT cover the replacement of a whole record, which can move the Gram matrix by up to "
            f"{guarantee._replacement():.4g}."
        )
    return found
