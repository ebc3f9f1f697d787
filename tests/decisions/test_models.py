"""Synthetic scores follow the stated laws, cut to (-1, 1), and not near misses of them; texts name score models.

Laws are checked by the Kolmogorov-Smirnov distance with the bound of Dvoretzky, Kiefer, Wolfowitz and Massart,
P[sqrt(n) D > x] <= 2 exp(-2 x^2), and by mean and variance; rejections by their exact negative binomial law. Each
comparison has a false-alarm rate of at most 1e-7, at a fixed seed.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats
from support import STRICT

import scoreshield as ss
from scoreshield.decisions.models import FAMILIES, ScoreSet, draw_score_set, parse_score_model

N, RARE = 200_000, 1e-7
Law = list[tuple[float, object]]


def student(mean: float, scale: float) -> Law:
    return [(1.0, stats.t(10, loc=mean, scale=scale))]


def beta(a: float, b: float) -> Law:
    return [(1.0, stats.beta(a, b, loc=-1, scale=2))]


def normal(*parts: tuple[float, float, float]) -> Law:
    return [(weight, stats.norm(mean, std)) for weight, mean, std in parts]


SCALED = 0.25 * math.sqrt(0.8)  # a t with 10 degrees of freedom has variance 10/8
#: For each family and side, the law before the cut, and a near miss.
LAWS: dict[tuple[str, str], tuple[Law, Law]] = {
    ("gaussian", "impostor"): (normal((1, 0, 0.20)), normal((1, 0, 0.21))),
    ("gaussian", "genuine"): (normal((1, 0.65, 0.20)), normal((1, 0.66, 0.20))),
    ("beta", "impostor"): (beta(5, 5), beta(5.5, 5.5)),
    ("beta", "genuine"): (beta(9, 2), beta(9, 2.1)),
    ("mixture", "impostor"): (normal((0.9, 0, 0.25), (0.1, 0.3, 0.2)), normal((0.85, 0, 0.25), (0.15, 0.3, 0.2))),
    ("mixture", "genuine"): (normal((0.9, 0.65, 0.15), (0.1, 0.3, 0.2)), normal((0.85, 0.65, 0.15), (0.15, 0.3, 0.2))),
    ("student", "impostor"): (student(0, SCALED), student(0, 0.25)),
    ("student", "genuine"): (student(0.60, SCALED), student(0.60, 0.25)),
}


@pytest.fixture(scope="module")
def sets() -> dict[str, ScoreSet]:
    return {name: draw_score_set(name, N, seed=1) for name in FAMILIES}


def mass(law: Law) -> float:
    return sum(weight * (part.cdf(1) - part.cdf(-1)) for weight, part in law)


def distance(scores: np.ndarray, law: Law) -> float:
    """sqrt(n) times the Kolmogorov-Smirnov distance from the law, cut to (-1, 1)."""
    x = np.sort(scores)
    cdf = sum(weight * (part.cdf(x) - part.cdf(-1)) for weight, part in law) / mass(law)
    steps = np.arange(len(x) + 1) / len(x)
    return math.sqrt(len(x)) * float(max(np.max(steps[1:] - cdf), np.max(cdf - steps[:-1])))


def moment(law: Law, power: int, centre: float = 0.0) -> float:
    def density(x: float) -> float:
        return (x - centre) ** power * sum(weight * part.pdf(x) for weight, part in law) / mass(law)

    return float(integrate.quad(density, -1, 1, epsabs=1e-12)[0])


def moments_off(scores: np.ndarray, law: Law) -> tuple[float, float]:
    """How many standard errors the mean, and the second moment about the true mean, lie from those of the cut law."""
    mean = moment(law, 1)
    second, fourth = moment(law, 2, mean), moment(law, 4, mean)
    root = math.sqrt(len(scores))
    return (
        abs(float(scores.mean()) - mean) / math.sqrt(second) * root,
        abs(float(np.mean((scores - mean) ** 2)) - second) / math.sqrt(fourth - second**2) * root,
    )


def rejection_chance(rate: float, law: Law) -> float:
    """The lesser tail of the number of rejections, which is negative binomial."""
    rejected = round(N / (1 - rate)) - N
    number = stats.nbinom(N, mass(law))
    return float(min(number.cdf(rejected), number.sf(rejected - 1)))


@pytest.mark.parametrize(("family", "side"), list(LAWS))
class TestLaws:
    def test_shape(self, sets: dict[str, ScoreSet], family: str, side: str) -> None:
        """The scores of each side follow the law, and not a near miss of it."""
        law, near_miss = LAWS[family, side]
        scores = getattr(sets[family], side)
        limit = math.sqrt(math.log(2 / RARE) / 2)
        assert scores.shape == (N,)
        assert distance(scores, law) < limit < distance(scores, near_miss)

    def test_moments(self, sets: dict[str, ScoreSet], family: str, side: str) -> None:
        """Mean and deviation agree with the truncated law."""
        law, near_miss = LAWS[family, side]
        scores = getattr(sets[family], side)
        assert max(moments_off(scores, law)) < STRICT < max(moments_off(scores, near_miss))

    def test_rejection_rate(self, sets: dict[str, ScoreSet], family: str, side: str) -> None:
        """The rejection rate agrees with the truncated mass."""
        law, near_miss = LAWS[family, side]
        rate = getattr(sets[family], f"rejected_{side}")
        assert rejection_chance(rate, law) > RARE / 2
        if N * abs(mass(law) - mass(near_miss)) > 100:  # elsewhere next to nothing is rejected by either
            assert rejection_chance(rate, near_miss) < RARE / 2

    def test_open_interval(self, sets: dict[str, ScoreSet], family: str, side: str) -> None:
        """All scores lie strictly inside (-1, 1)."""
        scores = getattr(sets[family], side)
        assert -1 < scores.min() < scores.max() < 1
        assert not scores.flags.writeable


def test_student_deviation_before_the_cut() -> None:
    """The Student-t has the stated deviation before the cut."""
    assert LAWS["student", "impostor"][0][0][1].std() == pytest.approx(0.25)


def test_rejections_that_say_something(sets: dict[str, ScoreSet]) -> None:
    """Families with mass outside have a positive rejection rate."""
    assert sets["gaussian"].rejected_genuine == pytest.approx(0.0401, abs=0.003)
    assert sets["beta"].rejected_genuine == 0.0
    assert sets["student"].rejected_impostor == pytest.approx(0.00126, abs=0.0005)


def test_streams() -> None:
    """Seeds repeat, and families and sides have their own streams."""
    first, again, other = draw_score_set("beta", 500), draw_score_set("beta", 500), draw_score_set("beta", 500, seed=2)
    assert np.array_equal(first.impostor, again.impostor)
    assert np.array_equal(first.genuine, again.genuine)
    assert not np.array_equal(first.impostor, other.impostor)
    independent = [draw_score_set(name, 5000) for name in FAMILIES]
    columns = [side for scores in independent for side in (scores.impostor, scores.genuine)]
    off = np.corrcoef(columns) - np.eye(len(columns))
    assert np.abs(off).max() < STRICT / math.sqrt(5000)


def test_repr() -> None:
    """The repr states the name and the counts."""
    assert repr(draw_score_set("mixture", 1000)) == "<ScoreSet mixture: 1,000 impostor and 1,000 genuine scores>"


@pytest.mark.parametrize(
    "call",
    [
        lambda: draw_score_set("cauchy"),
        lambda: draw_score_set("beta", 1),
        lambda: draw_score_set("beta", 2.5),
        lambda: draw_score_set("beta", 10, seed=-1),
        lambda: draw_score_set("beta", 10, seed=None),
    ],
)
def test_bad_input(call: object) -> None:
    """A bad argument raises an error."""
    with pytest.raises(ss.InvalidInput, match="of draw_score_set must be"):
        call()


@pytest.mark.parametrize("text", ["normal:0,0.2", "beta:5,5", "t:10,0,0.25"])
def test_score_models(text: str) -> None:
    """A text names a score model."""
    model = parse_score_model(text)
    assert model is not None
    assert -1 <= model.lowest < model.highest <= 1
    assert model.rate(0.0, None) == pytest.approx(0.5)


def test_student_model_has_the_stated_spread() -> None:
    """The Student model has the stated spread."""
    assert parse_score_model("t:10,0,0.25").law.std() == pytest.approx(0.25)


@pytest.mark.parametrize("text", ["normal:0", "normal:0,-1", "normal:a,b", "beta:1,2,3", "t:2,0,0.1", "normal:0,inf"])
def test_bad_models_are_one_clear_sentence(text: str) -> None:
    """A bad model raises one clear sentence."""
    with pytest.raises(ss.InvalidInput, match="must be followed by"):
        parse_score_model(text)


def test_files_are_no_models() -> None:
    """The name of a file is no model."""
    assert parse_score_model("impostor.npy") is None
    assert parse_score_model("scores.npz:normal") is None
