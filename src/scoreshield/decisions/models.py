"""Models of scores: distributions given by name, and the four synthetic families of the paper's experiments.

`parse_score_model` reads a distribution from a text such as "normal:0,0.2", for users who know a data sheet and
have no scores.

`draw_score_set` draws the impostor and genuine scores of the paper's face-recognition experiments. Each side of
each family is a mixture of textbook laws, cut to the open interval (-1, 1) by rejection: a proposal outside is drawn
again, so that the ends hold no atoms. The rejection rate is reported as in the paper, `r = 1 - n / N`,
with N proposals for n scores.

    family      impostor                                    genuine
    gaussian    N(0, 0.20)                                  N(0.65, 0.20)
    beta        2 Beta(5, 5) - 1                            2 Beta(9, 2) - 1
    mixture     0.9 N(0, 0.25) + 0.1 N(0.30, 0.20)          0.9 N(0.65, 0.15) + 0.1 N(0.30, 0.20)
    student     t with 10 degrees of freedom, sd 0.25       the same, shifted by 0.60

The paper gives the impostors, and the genuine Gaussian and Beta. Of the genuine mixture it says only that a dominant
high-mean component has a small low-mean tail, and of the genuine Student-t that it is shifted. The numbers of these two
are ours. The second arguments of N are standard deviations. Those of the Student-t hold before the cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield._validation import one_of, validate, whole_from
from scoreshield.decisions.scores import Distribution
from scoreshield.errors import InvalidInput

Float = NDArray[np.float64]
#: A function that draws the given number of values of one law.
Draw = Callable[[np.random.Generator, int], Float]

DEGREES_OF_FREEDOM = 10


@dataclass(frozen=True)
class Family:
    """One synthetic family: weights and samplers of each side, before the cut to (-1, 1)."""

    title: str
    impostor: tuple[tuple[float, Draw], ...]
    genuine: tuple[tuple[float, Draw], ...]


@dataclass(frozen=True, eq=False)
class ScoreSet:
    """Clean scores of impostor and genuine pairs, and the rejection rates of the cut to (-1, 1).

    Attributes:
        name: The family, or the name of a real set.
        impostor: Scores of pairs that do not match.
        genuine: Scores of pairs that match.
        rejected_impostor: The rejection rate 1 - n / N of the impostors; 0 for scores that were not drawn by rejection.
        rejected_genuine: The rejection rate of the genuine pairs.
    """

    name: str
    impostor: Float
    genuine: Float
    rejected_impostor: float = 0.0
    rejected_genuine: float = 0.0

    def __repr__(self) -> str:
        return f"<ScoreSet {self.name}: {len(self.impostor):,} impostor and {len(self.genuine):,} genuine scores>"


def parse_score_model(text: str) -> Distribution | None:
    """Read a score distribution from a text: "normal:0,0.2", "beta:5,5" or "t:10,0,0.25", cut to [-1, 1].

    Args:
        text: The name of the law, a colon, and its parameters.

    Returns:
        The distribution, or None where the text does not begin with the name of a law.

    Raises:
        InvalidInput: The text begins with such a name, but its parameters give no law.
    """
    name, colon, rest = text.partition(":")
    if not colon or name not in _MODELS:
        return None
    parameters, make = _MODELS[name]
    must = f"'{name}:' must be followed by {parameters}"
    try:
        values = [float(part) for part in rest.split(",")]
        law = make(*values)
        is_proper = law.std() > 0 and all(abs(value) < 1e6 for value in values)
    except (TypeError, ValueError):
        raise InvalidInput(f"The score model {must}. Got {text!r} instead.") from None
    if not is_proper:
        raise InvalidInput(f"The score model {must}, with a positive finite spread. Got {text!r} instead.")
    return Distribution(law)


# scipy.stats takes a third of a second to import, and only these models use it.
def _make_normal_law(mean: float, sd: float) -> Any:
    from scipy import stats

    return stats.norm(mean, sd)


def _make_beta_law(a: float, b: float) -> Any:
    from scipy import stats

    return stats.beta(a, b, loc=-1, scale=2)


def _make_student_law(nu: float, mean: float, sd: float) -> Any:
    from scipy import stats

    return stats.t(nu, loc=mean, scale=sd * ((nu - 2) / nu) ** 0.5)


#: For each name, the parameters in words and the function that makes the law.
_MODELS: dict[str, tuple[str, Callable[..., Any]]] = {
    "normal": ("mean,sd", _make_normal_law),
    "beta": ("a,b (stretched to [-1, 1])", _make_beta_law),
    "t": ("nu,mean,sd", _make_student_law),
}


def _normal(mean: float, std: float) -> Draw:
    return lambda rng, n: rng.normal(mean, std, n)


def _beta(a: float, b: float) -> Draw:
    return lambda rng, n: 2 * rng.beta(a, b, n) - 1


def _student(mean: float, std: float) -> Draw:
    """Make a Student-t sampler with standard deviation ``std`` before the cut; t itself has variance nu / (nu - 2)."""
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
def draw_score_set(name: str, n: int = 200_000, seed: int = 0) -> ScoreSet:
    """Draw the impostor and genuine scores of one family.

    Args:
        name: One of ``FAMILIES``.
        n: The number of scores on each side.
        seed: The same seed gives the same scores. Each family and each side has its own stream.
    """
    family, place = FAMILIES[name], list(FAMILIES).index(name)
    impostor, rejected_impostor = _draw_inside(family.impostor, n, np.random.default_rng([seed, place, 0]))
    genuine, rejected_genuine = _draw_inside(family.genuine, n, np.random.default_rng([seed, place, 1]))
    return ScoreSet(name, impostor, genuine, rejected_impostor, rejected_genuine)


def _draw_inside(law: tuple[tuple[float, Draw], ...], n: int, rng: np.random.Generator) -> tuple[Float, float]:
    """Draw n proposals inside (-1, 1); also return the share of rejected ones among all proposals."""
    batches: list[Float] = []
    accepted = proposals = 0
    while accepted < n:
        batch = _propose(law, n - accepted, rng)
        inside = batch[(batch > -1) & (batch < 1)]
        batches.append(inside)
        accepted += len(inside)
        proposals += len(batch)
    scores = np.concatenate(batches)
    scores.flags.writeable = False
    return scores, 1 - n / proposals


def _propose(law: tuple[tuple[float, Draw], ...], n: int, rng: np.random.Generator) -> Float:
    """Draw n values of a mixture, in random order of its components."""
    component = rng.choice(len(law), size=n, p=[weight for weight, _ in law])
    values = np.empty(n)
    for place, (_, draw) in enumerate(law):
        chosen = component == place
        values[chosen] = draw(rng, int(chosen.sum()))
    return values
