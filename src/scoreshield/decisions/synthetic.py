r"""Synthetic impostor and genuine scores: the four score models of the paper's face-recognition experiments.

Each side of each family is a mixture of textbook laws, cut to the open interval (-1, 1) by rejection: a proposal
outside is thrown away and drawn again, so that no mass piles up at the ends. What was thrown away is reported as the
paper does, :math:`r = 1 - n / N`, with N proposals for n scores.

==========  ==========================================  =======================================
family      impostor                                    genuine
==========  ==========================================  =======================================
gaussian    N(0, 0.20)                                  N(0.65, 0.20)
beta        2 Beta(5, 5) - 1                            2 Beta(9, 2) - 1
mixture     0.9 N(0, 0.25) + 0.1 N(0.30, 0.20)          0.9 N(0.65, 0.15) + 0.1 N(0.30, 0.20)
student     t with 10 degrees of freedom, sd 0.25       the same, shifted by 0.60
==========  ==========================================  =======================================

The paper gives the impostors, and the genuine Gaussian and Beta. Of the genuine mixture it says only that a dominant
high-mean component has a small low-mean tail, of the genuine Student-t that it is shifted: the numbers are ours. The
second arguments of N are standard deviations; those of the Student-t are before the cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from scoreshield._validation import one_of, validate, whole_from

Float = NDArray[np.float64]
#: Draws so many values of one law.
Draw = Callable[[np.random.Generator, int], Float]

DEGREES_OF_FREEDOM = 10


@dataclass(frozen=True)
class Family:
    """One model of scores: weights and samplers of each side, before the cut to (-1, 1)."""

    title: str
    impostor: tuple[tuple[float, Draw], ...]
    genuine: tuple[tuple[float, Draw], ...]


@dataclass(frozen=True, eq=False)
class ScoreSet:
    """Clean scores of both kinds of pair, and how many proposals the cut to (-1, 1) threw away.

    Attributes
    ----------
    name : the family, or whatever a real set is called.
    impostor, genuine : scores of pairs that do not match and of pairs that do.
    rejected_impostor, rejected_genuine : the rejection rates 1 - n / N; 0 for scores that were not drawn by rejection.
    """

    name: str
    impostor: Float
    genuine: Float
    rejected_impostor: float = 0.0
    rejected_genuine: float = 0.0

    def __repr__(self) -> str:
        return f"<ScoreSet {self.name}: {len(self.impostor):,} impostor and {len(self.genuine):,} genuine scores>"


def _normal(mean: float, std: float) -> Draw:
    return lambda rng, n: rng.normal(mean, std, n)


def _beta(a: float, b: float) -> Draw:
    return lambda rng, n: 2 * rng.beta(a, b, n) - 1


def _student(mean: float, std: float) -> Draw:
    """Scaled so that the standard deviation, before the cut, is ``std``: t itself has nu / (nu - 2) for variance."""
    nu = DEGREES_OF_FREEDOM
    scale = std * math.sqrt((nu - 2) / nu)
    return lambda rng, n: mean + scale * rng.standard_t(nu, n)


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "gaussian": Family("Gaussian", ((1.0, _normal(0.0, 0.20)),), ((1.0, _normal(0.65, 0.20)),)),
        "beta": Family("Beta", ((1.0, _beta(5, 5)),), ((1.0, _beta(9, 2)),)),
        "mixture": Family(
            "Mixture",
            ((0.9, _normal(0.0, 0.25)), (0.1, _normal(0.30, 0.20))),
            ((0.9, _normal(0.65, 0.15)), (0.1, _normal(0.30, 0.20))),
        ),
        "student": Family("Student-t", ((1.0, _student(0.0, 0.25)),), ((1.0, _student(0.60, 0.25)),)),
    }
)


@validate(name=one_of(FAMILIES), n=whole_from(2), seed=whole_from(0))
def score_set(name: str, n: int = 200_000, seed: int = 0) -> ScoreSet:
    """Draw the impostor and genuine scores of one family.

    Parameters
    ----------
    name : one of ``FAMILIES``.
    n : scores on each side.
    seed : the same seed gives the same scores; families and sides have streams of their own.
    """
    family, place = FAMILIES[name], list(FAMILIES).index(name)
    impostor, rejected_impostor = _draw_inside(family.impostor, n, np.random.default_rng([seed, place, 0]))
    genuine, rejected_genuine = _draw_inside(family.genuine, n, np.random.default_rng([seed, place, 1]))
    return ScoreSet(name, impostor, genuine, rejected_impostor, rejected_genuine)


def _draw_inside(law: tuple[tuple[float, Draw], ...], n: int, rng: np.random.Generator) -> tuple[Float, float]:
    """The first n proposals inside (-1, 1), and the share of all proposals up to the last of them that were not."""
    kept: list[Float] = []
    have = proposed = 0
    while have < n:
        batch = _propose(law, n - have, rng)
        inside = batch[(batch > -1) & (batch < 1)]
        kept.append(inside)
        have += len(inside)
        proposed += len(batch)
    scores = np.concatenate(kept)
    scores.flags.writeable = False
    return scores, 1 - n / proposed


def _propose(law: tuple[tuple[float, Draw], ...], n: int, rng: np.random.Generator) -> Float:
    """n draws of a mixture, in random order of its components."""
    component = rng.choice(len(law), size=n, p=[weight for weight, _ in law])
    values = np.empty(n)
    for place, (_, draw) in enumerate(law):
        chosen = component == place
        values[chosen] = draw(rng, int(chosen.sum()))
    return values
