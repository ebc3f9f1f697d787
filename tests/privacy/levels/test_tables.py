"""Channels on score levels: the program against second algorithms, privacy in exact arithmetic, draws, profiles."""

from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.stats import chi2, norm
from support import STRICT

from scoreshield import decisions
from scoreshield.decisions.scores import Channel, Distribution, Sample
from scoreshield.errors import InvalidInput
from scoreshield.privacy.levels import program
from scoreshield.privacy.levels.tables import (
    LevelChannel,
    optimal_channel,
    predict_recall,
    randomised_response,
    retrieval_cuts,
)
from scoreshield.privacy.noise import LaplaceNoise, StaircaseNoise
from scoreshield.privacy.profiles import PureProfile, profile_from_dict
from scoreshield.privacy.sampling.stream import ResearchStream, SecureStream

WHOLE = 2**62
EPSILONS = (0.5, 1.0, 2.0, 5.0, 10.0, 15.0)
UTILITIES = (("squared", None), ("absolute", None), ("threshold", 0.3))
PRIORS = (None, norm(0, 0.15))


def e_below(epsilon: float) -> Fraction:
    """e^epsilon to 300 digits, less a unit of the 290th."""
    with mpmath.workdps(300):
        return Fraction(int(mpmath.exp(mpmath.mpf(epsilon)) * 10**290) - 1, 10**290)


def is_private(rows: list[list[int]], epsilon: float, delta: float) -> bool:
    """The definition, pair by pair, in fractions."""
    ratio = e_below(epsilon)
    for one, other in itertools.permutations(rows, 2):
        excess = sum((max(Fraction(0), p - ratio * q) for p, q in zip(one, other, strict=True)), Fraction(0))
        if excess > Fraction(delta) * WHOLE:
            return False
    return all(sum(row) == WHOLE for row in rows)


def build_costs(channel: LevelChannel, utility: str, threshold: float | None) -> np.ndarray:
    x, y = np.array(channel.inputs)[:, None], np.array(channel.outputs)
    if utility == "threshold":
        return ((x > threshold) != (y > threshold)).astype(float)
    return (x - y) ** 2 if utility == "squared" else np.abs(x - y)


def weighted_costs(channel: LevelChannel, prior: Any, utility: str, threshold: float | None) -> np.ndarray:
    edges = np.concatenate([[-np.inf], channel.cuts, [np.inf]])
    masses = np.full(len(channel.inputs), 1 / len(channel.inputs)) if prior is None else np.diff(prior.cdf(edges))
    return masses[:, None] * build_costs(channel, utility, threshold)


def pairwise_program(epsilon: float, costs: np.ndarray) -> float:
    """The same program with one constraint for each ordered pair and output: slow, and nothing to derive."""
    n, m = costs.shape
    rows = []
    for i, k in itertools.permutations(range(n), 2):
        for j in range(m):
            row = np.zeros((n, m))
            row[i, j], row[k, j] = math.exp(-epsilon), -1
            rows.append(row.ravel())
    equal = np.kron(np.eye(n), np.ones((1, m)))
    return float(linprog(costs.ravel(), np.array(rows), np.zeros(len(rows)), equal, np.ones(n)).fun)


def enumerated(epsilon: float, costs: np.ndarray) -> float:
    """The least cost over every choice of n staircase columns (entries 1 or e^epsilon) that can make rows sum to 1."""
    n, m = costs.shape
    patterns = [np.array(p) for p in itertools.product((1.0, math.exp(epsilon)), repeat=n)]
    columns = [(p, float(p @ costs[:, j])) for p in patterns for j in range(m)]
    best = min(float(costs[:, j].sum()) for j in range(m))
    for chosen in itertools.combinations(columns, n):
        matrix = np.array([p for p, _ in chosen]).T
        if abs(np.linalg.det(matrix)) > 1e-9:
            shares = np.linalg.solve(matrix, np.ones(n))
            if (shares >= -1e-12).all():
                best = min(best, float(shares @ [c for _, c in chosen]))
    return best


# The optimum


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 7.0])
def test_two_levels_by_hand(epsilon: float) -> None:
    channel = optimal_channel(epsilon, levels=2)
    keep = math.exp(epsilon) / (1 + math.exp(epsilon))
    assert channel.inputs == channel.outputs == (-1.0, 1.0)
    assert channel.cuts == (0.0,)
    assert channel.probabilities == pytest.approx(np.array([[keep, 1 - keep], [1 - keep, keep]]), rel=1e-12)
    assert channel.expected_cost() == pytest.approx(4 * (1 - keep), rel=1e-12)
    assert channel.expected_utility() == -channel.expected_cost()
    assert channel.std == pytest.approx(2 * math.sqrt(1 - keep), rel=1e-12)


def test_two_levels_lopsided_prior_say_nothing() -> None:
    """At prior (0.9, 0.1) and e^eps < 9 telling the likelier level always is best: the cost is 4 * 0.1."""
    channel = optimal_channel(1.0, levels=2, prior=[0.9, 0.1])
    assert channel.expected_cost([9, 1]) == pytest.approx(0.4, rel=1e-12)
    assert channel.weights.tolist() == [[WHOLE, 0], [WHOLE, 0]]


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("seed", range(4))
def test_three_levels_against_enumeration(epsilon: float, seed: int) -> None:
    """Three levels against enumeration and the pairwise program."""
    rng = np.random.default_rng(seed)
    costs, prior = rng.random((3, 3)), rng.random(3) + 0.1
    channel = optimal_channel(epsilon, levels=3, utility=costs, prior=prior)
    weighted = prior[:, None] / prior.sum() * costs
    assert channel.expected_cost(prior, costs) == pytest.approx(enumerated(epsilon, weighted), rel=1e-9)
    assert channel.expected_cost(prior, costs) == pytest.approx(pairwise_program(epsilon, weighted), rel=1e-6)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize(("utility", "threshold"), UTILITIES)
def test_never_worse_than_the_rivals(epsilon: float, prior: Any, utility: str, threshold: float | None) -> None:
    channel = optimal_channel(epsilon, prior=prior, utility=utility, threshold=threshold)
    levels = np.array(channel.inputs)
    weighted = weighted_costs(channel, prior, utility, threshold)
    cost = channel.expected_cost(prior, utility, threshold)
    assert cost == pytest.approx(float((channel.probabilities * weighted).sum()), rel=1e-9)

    edges = (levels[:-1] + levels[1:]) / 2 - levels[:, None]
    ends = np.zeros((len(levels), 1))
    rivals = [
        np.diff(np.concatenate([ends, law.cdf(edges), ends + 1], axis=1), axis=1)
        for law in (LaplaceNoise(2 / epsilon), StaircaseNoise.calibrate(epsilon, 2.0))
    ]
    rivals.append(randomised_response(epsilon, (levels[:-1] + levels[1:]) / 2).probabilities)
    for rival in rivals:
        assert cost <= (rival * weighted).sum() * (1 + 1e-9)
        assert cost <= (rival.T @ weighted).min(axis=1).sum() * (1 + 1e-9)  # outputs moved where the prior wants them
    for bins in (2, 3, 5):  # randomised response on fewer bins, one level released for each
        bin_of = np.arange(len(levels)) * bins // len(levels)
        table = np.where(bin_of[:, None] == np.arange(bins), math.exp(epsilon), 1) / (math.exp(epsilon) + bins - 1)
        assert cost <= (table.T @ weighted).min(axis=1).sum() * (1 + 1e-9)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 10.0, 15.0, 20.0])
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize(("utility", "threshold"), UTILITIES)
def test_rounding_loses_nothing_dual_proves(epsilon: float, prior: Any, utility: str, threshold: float | None) -> None:
    """Rounding loses nothing and the dual proves it."""
    channel = optimal_channel(epsilon, prior=prior, utility=utility, threshold=threshold)
    solution = program.solve_pure(epsilon, weighted_costs(channel, prior, utility, threshold))
    cost = channel.expected_cost(prior, utility, threshold)
    assert cost <= solution.value * (1 + 1e-9)
    assert cost <= solution.bound * (1 + (1e-9 if epsilon <= 15 else 1e-6))
    assert cost >= solution.bound * (1 - 1e-9)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 5.0, 10.0])
@pytest.mark.parametrize("prior", PRIORS)
def test_extreme_points_are_staircases(epsilon: float, prior: Any) -> None:
    """Ratios within a column are 1 or e^epsilon, but for at most as many entries as there are unused outputs."""
    channel = optimal_channel(epsilon, levels=21, prior=prior)
    used = channel.probabilities[:, channel.probabilities.max(axis=0) > 0]
    ratios = used / used.min(axis=0)
    between = (np.abs(ratios - 1) > 1e-6) & (np.abs(ratios / math.exp(epsilon) - 1) > 1e-6)
    # Cost ties may leave one entry more in a row than a vertex has; there are none under squared error.
    assert between.sum() <= len(used) - used.shape[1]


def test_own_outputs_and_range() -> None:
    channel = optimal_channel(2.0, score_range=(0.0, 0.8), levels=9, outputs=[0.0, 0.3, 0.8])
    assert len(channel.inputs) == 9
    assert channel.outputs[0] == 0.0
    assert channel.outputs[-1] <= 0.8
    assert all((value / channel.step).is_integer() for value in channel.inputs + channel.outputs)
    assert channel.outputs == pytest.approx((0.0, 0.3, 0.8), abs=1e-8)


def test_priors_of_every_kind_agree() -> None:
    law = norm(0.1, 0.3)
    one = optimal_channel(2.0, levels=11, prior=law)
    weights = np.diff(law.cdf(np.concatenate([[-np.inf], one.cuts, [np.inf]])))
    other = optimal_channel(2.0, levels=11, prior=100 * weights)
    assert one.probabilities == pytest.approx(other.probabilities, abs=1e-9)
    cut = optimal_channel(2.0, levels=11, prior=Distribution(law))
    assert cut.expected_cost(law) == pytest.approx(one.expected_cost(law), rel=1e-2)
    dense = optimal_channel(2.0, levels=11, prior=law.pdf)
    assert dense.expected_cost(law) == pytest.approx(one.expected_cost(law), rel=2e-2)


def test_the_threshold_is_a_cut() -> None:
    channel = optimal_channel(3.0, utility="threshold", threshold=0.317)
    assert 0.317 in channel.cuts
    low, high = channel.exceed(0.317, [0.317, 0.3170001])
    assert high / low == pytest.approx(math.exp(3.0), rel=1e-9)
    assert channel.expected_cost(None, "threshold", 0.317) == pytest.approx(1 / (1 + math.exp(3.0)), rel=1e-9)


# Delta


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.05), (1.0, 1e-6), (5.0, 1e-3), (10.0, 1e-6)])
def test_with_delta(epsilon: float, delta: float) -> None:
    channel = optimal_channel(epsilon, delta, levels=7)
    pure = optimal_channel(epsilon, levels=7)
    assert is_private(channel.weights.tolist(), epsilon, delta)
    assert not is_private(channel.weights.tolist(), epsilon, 0.0)
    assert channel.expected_cost() == pytest.approx((1 - delta) * pure.expected_cost(), rel=1e-9)
    assert channel.profile().delta_at(epsilon) <= delta


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.05), (1.0, 0.01), (3.0, 0.02)])
def test_delta_against_cuts_over_all_events(epsilon: float, delta: float) -> None:
    """A second program: x_i(A) - e^eps x_k(A) <= delta for every event A, all of them written out."""
    n = 4
    for seed, costs in enumerate([np.eye(n), *np.random.default_rng(1).random((4, n, n))]):
        rows = []
        for (i, k), event in itertools.product(
            itertools.permutations(range(n), 2), itertools.product((0, 1), repeat=n)
        ):
            row = np.zeros((n, n))
            row[i], row[k] = np.array(event), -math.exp(epsilon) * np.array(event)
            rows.append(row.ravel())
        equal = np.kron(np.eye(n), np.ones((1, n)))
        best = linprog(costs.ravel() / n, np.array(rows), np.full(len(rows), delta), equal, np.ones(n)).fun
        channel = optimal_channel(epsilon, delta, levels=n, utility=costs)
        assert channel.expected_cost(None, costs) == pytest.approx(best, rel=1e-7), seed


def test_delta_can_beat_the_mixture() -> None:
    """Naming any level but the true one: no mixture of a pure channel and the truth is as good."""
    avoid = np.eye(3)
    pure = optimal_channel(0.5, levels=3, utility=avoid).expected_cost(None, avoid)
    assert optimal_channel(0.5, 0.05, levels=3, utility=avoid).expected_cost(None, avoid) < 0.95 * 0.95 * pure


# Privacy, exactly


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_privacy_in_fractions(data: st.DataObject) -> None:
    epsilon = data.draw(st.floats(1e-6, 60) | st.floats(1e-6, 1.0))
    delta = data.draw(st.sampled_from([0.0, 0.0, 1e-9, 1e-3, 0.3]))
    n = data.draw(st.integers(2, 6))
    m = data.draw(st.integers(1, 6))
    costs = np.array(data.draw(st.lists(st.floats(-5, 5), min_size=n * m, max_size=n * m))).reshape(n, m)
    prior = data.draw(st.lists(st.floats(1e-6, 1.0), min_size=n, max_size=n))
    outputs = np.linspace(-0.9, 0.9, m)
    channel = optimal_channel(epsilon, delta, levels=n, prior=prior, utility=costs, outputs=outputs)
    assert is_private(channel.weights.tolist(), epsilon, delta)
    assert LevelChannel.from_dict(json.loads(json.dumps(channel.to_dict()))) == channel


@settings(max_examples=40, deadline=None)
@given(st.floats(1e-9, 100.0), st.lists(st.integers(-999, 999), min_size=1, max_size=12, unique=True))
def test_randomised_response_in_fractions(epsilon: float, cuts: list[int]) -> None:
    channel = randomised_response(epsilon, np.sort(cuts) / 1000)
    rows = channel.weights.tolist()
    assert is_private(rows, epsilon, 0.0)
    k = len(rows)
    keep = 1 / (1 + (k - 1) * math.exp(-epsilon))
    assert channel.probabilities.diagonal() == pytest.approx(np.full(k, keep), rel=1e-12)
    edges = [-1.0, *channel.cuts, 1.0]
    assert all(low < value < high for low, value, high in zip(edges, channel.outputs, edges[1:], strict=False))


@pytest.mark.parametrize("delta", [0.0, 1e-3])
@pytest.mark.parametrize("epsilon", [1.5, 3.0, 10.0])
def test_a_near_miss_is_refused(epsilon: float, delta: float) -> None:
    """One weight moved by a millionth of itself, in the direction that tells more."""
    good = optimal_channel(epsilon, delta, levels=5)
    fields = {**good.to_dict(), "weights": good.weights}
    del fields["name"]
    assert LevelChannel(**fields) == good
    excess = good.weights.astype(float) - math.exp(epsilon) * good.weights.min(axis=0)
    i = int(np.unravel_index(excess.argmax(), excess.shape)[0])
    j = int(good.weights[i].argmax())
    k = int(good.weights[:, j].argmin())
    rows = good.weights.tolist()
    moved = max(1, int(rows[i][j] * 1e-6))
    other = int(good.weights[i].astype(float).argsort()[-2])
    rows[i][j] += moved
    rows[i][other] -= moved
    assert rows[k][j] > 0
    with pytest.raises(InvalidInput, match=r"not \(epsilon, delta\)"):
        LevelChannel(**{**fields, "weights": np.array(rows, dtype=np.uint64)})


@pytest.mark.parametrize("epsilon", [1e-9, 0.1, 1.0, 15.0, 43.7])
def test_the_enclosure_lies_just_below(epsilon: float) -> None:
    with mpmath.workdps(80):
        true = mpmath.exp(mpmath.mpf(epsilon))
        low = program.floor_ratio(epsilon)
        low = mpmath.mpf(low.numerator) / low.denominator
        assert low <= true
        assert true - low < mpmath.mpf(10) ** -50


# Draws


def test_draws_follow_the_table() -> None:
    channel = optimal_channel(2.0, levels=9)
    stream = ResearchStream(np.random.default_rng(5))
    size = 200_000
    critical = chi2.isf(1e-7, len(channel.outputs) - 1)
    for level in (0, 4):
        drawn = channel.release(stream, np.full(size, channel.inputs[level]))
        counts = np.array([(drawn == value).sum() for value in channel.outputs])
        wanted = size * channel.probabilities[level]
        some = wanted > 0
        assert counts.sum() == size
        assert not counts[~some].any()
        assert (((counts - wanted) ** 2)[some] / wanted[some]).sum() < critical
        near_miss = size * optimal_channel(2.15, levels=9).probabilities[level]
        some &= near_miss > 0
        assert (((counts - near_miss) ** 2)[some] / near_miss[some]).sum() > critical


def test_release_keeps_shape_reads_level_alone() -> None:
    """Release keeps shape and reads the level alone."""
    channel = randomised_response(3.0, [-0.5, 0.25])
    clean = np.array([[-0.9, -0.5, -0.4], [0.25, 0.26, 7.0]])
    assert channel.level_of(clean).tolist() == [[0, 0, 1], [1, 2, 2]]
    one = channel.release(ResearchStream(np.random.default_rng(1)), clean)
    same_levels = np.array([[-0.6, -1.0, 0.0], [0.1, 0.9, 0.5]])
    other = channel.release(ResearchStream(np.random.default_rng(1)), same_levels)
    assert one.shape == clean.shape
    assert np.array_equal(one, other)
    assert set(channel.release(SecureStream(), np.zeros(500))) <= set(channel.outputs)
    assert not np.signbit(one[one == 0]).any()


# Profile


def brute_profile(rows: list[list[int]], x: Fraction) -> float:
    pairs = itertools.permutations(rows, 2)
    return float(
        max(sum(max(Fraction(0), p - x * q) for p, q in zip(a, b, strict=True)) for a, b in pairs) / Fraction(WHOLE)
    )


@pytest.mark.parametrize("seed", range(3))
def test_profile_against_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    costs = rng.random((5, 6))
    channel = optimal_channel(1.0, 0.02, levels=5, utility=costs, outputs=np.linspace(-1, 1, 6))
    rows = channel.weights.tolist()
    profile = channel.profile()
    for epsilon in np.concatenate([np.linspace(0, 3, 61), [5.0, 12.0]]):
        true = brute_profile(rows, Fraction(math.exp(epsilon)))
        assert true * (1 - 1e-15) <= profile.delta_at(epsilon) <= true + 1e-12
    assert profile.delta_at(1.0) <= 0.02
    assert profile.epsilon_at(0.02) <= 1.0 + 1e-9
    assert profile_from_dict(profile.to_dict()) == profile


def test_profile_of_many_laws() -> None:
    """A table no program made: random rows, so that many pairs and many ratios matter."""
    rng = np.random.default_rng(4)
    rows = [[int(w) for w in rng.integers(2**50, 2**57, 8)] for _ in range(5)]
    rows = [[*row, WHOLE - sum(row)] for row in rows]
    outputs = np.arange(9) / 16
    levels, cuts = np.arange(5) / 8, np.arange(4) / 8 + 1 / 16
    channel = LevelChannel(levels, cuts, outputs, 1 / 16, rows, 0.5, 0.9)  # type: ignore[arg-type]
    for epsilon in np.linspace(0, 6, 101):
        true = brute_profile(rows, Fraction(math.exp(epsilon)))
        assert true * (1 - 1e-15) <= channel.profile().delta_at(epsilon) <= true + 1e-12


def test_a_pure_profile_is_pure() -> None:
    several = randomised_response(2.0, (-0.2, 0.1, 0.4))
    for channel in (optimal_channel(2.0, levels=5), several, randomised_response(3.0, (0.0,))):
        profile = channel.profile(2.0)
        assert profile.epsilon_at(0.0) == channel.epsilon
        rows = channel.weights.tolist()
        for epsilon in np.linspace(0, channel.epsilon, 9)[:-1]:
            true = brute_profile(rows, Fraction(math.exp(epsilon)))
            assert true * (1 - 1e-15) <= profile.delta_at(epsilon)
        assert profile.advantage == pytest.approx(brute_profile(rows, Fraction(1)), rel=1e-12)
    # k-ary randomised response keeps more back than the bound for all pure mechanisms.
    assert several.profile().advantage < 0.9 * PureProfile(2.0).advantage
    assert randomised_response(3.0, (0.0,)).profile().advantage == pytest.approx(math.tanh(1.5))


# Decisions


def test_decisions_take_a_channel() -> None:
    rng = np.random.default_rng(0)
    impostor, genuine = rng.normal(0, 0.1, 4000), rng.normal(0.55, 0.14, 4000)
    channel = optimal_channel(8.0, utility="threshold", threshold=0.3, prior=norm(0.1, 0.3))
    assert isinstance(channel, Channel)
    flip = decisions.flip_probability([0.2, 0.4], 0.3, channel)
    assert flip == pytest.approx(np.full(2, 1 / (1 + math.exp(8.0))), rel=1e-6)
    levels = channel.level_of(impostor)
    by_hand = channel.probabilities[levels][:, np.array(channel.outputs) > 0.3].sum(axis=1).mean()
    assert decisions.false_match_rate(impostor, 0.3, channel) == pytest.approx(by_hand, rel=1e-9)

    scores = optimal_channel(8.0)
    moved = decisions.recalibrate(Sample(impostor), 0.05, scores)
    assert moved.feasible
    assert moved.rate <= 0.05
    assert decisions.roc(genuine, impostor, scores).auc > 0.95


def test_exceed_is_the_tail_of_the_table() -> None:
    channel = optimal_channel(1.0, levels=5)
    for t, score, inclusive in itertools.product((-1.5, -1.0, 0.0, 0.2, 1.0), (-0.8, 0.1, 2.0), (False, True)):
        passing = [(y >= t) if inclusive else (y > t) for y in channel.outputs]
        wanted = channel.probabilities[channel.level_of(score)][passing].sum()
        assert channel.exceed(t, score, inclusive) == pytest.approx(wanted, abs=1e-15)
    assert channel.exceed(np.zeros((3, 1)), np.zeros(4)).shape == (3, 4)
    gaps = np.array(channel.outputs) - np.array(channel.inputs)[:, None]
    rms = np.sqrt((channel.probabilities * gaps**2).sum(axis=1))
    assert channel.std == pytest.approx(rms.max())
    assert channel.worst_input == channel.inputs[int(rms.argmax())]


# Retrieval


def test_predicted_recall_agrees_with_simulation() -> None:
    far, near = Distribution(norm(0.05, 0.1)), Distribution(norm(0.5, 0.15))
    epsilon, records, k, queries = 7.0, 2000, 5, 3000
    found = retrieval_cuts(epsilon, records, k, far, near, 4)
    assert found.recall == pytest.approx(predict_recall(epsilon, records, k, far, near, found.cuts), abs=1e-12)
    channel = randomised_response(epsilon, found.cuts)
    rng = np.random.default_rng(2)
    stream = ResearchStream(rng)
    hits = np.empty(queries)
    for query in range(queries):
        others = channel.release(stream, rng.normal(0.05, 0.1, records - 1))
        own = channel.release(stream, rng.normal(0.5, 0.15, 1))
        hits[query] = np.clip((k - (others > own).sum()) / (1 + (others == own).sum()), 0, 1)
    error = hits.std() / math.sqrt(queries)
    assert abs(hits.mean() - found.recall) < STRICT * error
    assert abs(hits.mean() - predict_recall(epsilon + 1.2, records, k, far, near, found.cuts)) > STRICT * error


def test_predicted_recall_against_curve_hand() -> None:
    """Predicted recall against the curve and by hand."""
    rng = np.random.default_rng(3)
    far, near = rng.normal(0, 0.1, 2000), rng.normal(0.4, 0.2, 500)
    cuts = [0.1, 0.2, 0.3]
    law = randomised_response(6.0, cuts)
    curve = decisions.recall_at_k(near, far, law, records=800, k=10)
    assert predict_recall(6.0, 800, 10, far, near, cuts) == pytest.approx(curve, abs=2e-3)
    # One rival, one place, one cut: beaten half of the time where the bins tie.
    keep = math.e / (1 + math.e)
    wins = keep * keep + 0.5 * 2 * keep * (1 - keep)
    assert predict_recall(1.0, 2, 1, [-0.5, -0.5], [0.5, 0.5], [0.0]) == pytest.approx(wins, rel=1e-12)
    assert predict_recall(1.0, 5, 5, far, near, [0.0]) == 1.0


def test_cuts_least_good_any_coarse_grid() -> None:
    """Cuts are at least as good as any of a coarse grid."""
    far, near = Distribution(norm(0.05, 0.1)), Distribution(norm(0.5, 0.15))
    best = retrieval_cuts(7.0, 2000, 5, far, near, 3).recall
    grid = np.linspace(-0.5, 0.95, 30)
    others = [predict_recall(7.0, 2000, 5, far, near, pair) for pair in itertools.combinations(grid, 2)]
    assert best >= max(others)


# Refusals


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon": 1e-7}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"delta": -1e-9}, "delta"),
        ({"levels": 1}, "levels"),
        ({"levels": 2.5}, "levels"),
        ({"levels": 500}, "levels"),
        ({"levels": 10**9}, "levels"),
        ({"levels": 41, "delta": 1e-6}, "levels"),
        ({"prior": [0.5, 0.0, 0.5], "levels": 3}, "prior"),
        ({"prior": [0.5, -0.1, 0.6], "levels": 3}, "prior"),
        ({"prior": [0.5, math.nan, 0.6], "levels": 3}, "prior"),
        ({"prior": [0.5, 0.5], "levels": 3}, "prior"),
        ({"prior": "normal"}, "prior"),
        ({"prior": lambda _: -1.0}, "prior"),
        ({"utility": "cubic"}, "utility"),
        ({"utility": np.ones((3, 4)), "levels": 3}, "utility"),
        ({"utility": np.full((3, 3), math.nan), "levels": 3}, "utility"),
        ({"utility": "threshold"}, "threshold"),
        ({"utility": "threshold", "threshold": 1.0}, "threshold"),
        ({"utility": "threshold", "threshold": -1.2}, "threshold"),
        ({"threshold": 0.1, "score_range": (0.1, 0.9)}, "threshold"),
        ({"threshold": True}, "threshold"),
        ({"score_range": (0.5, 0.5)}, "score_range"),
        ({"score_range": (-2.0, 1.0)}, "score_range"),
        ({"score_range": 1.0}, "score_range"),
        ({"outputs": [0.5, 0.1]}, "outputs"),
        ({"outputs": [0.5, 1.1]}, "outputs"),
        ({"outputs": [0.5, 0.5 + 1e-12]}, "outputs"),
    ],
)
def test_bad_input_of_optimal_channel(arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidInput, match=f"^The '{name}' parameter of optimal_channel must be .*Got .* instead.$"):
        optimal_channel(**{"epsilon": 1.0, **arguments})


@pytest.mark.parametrize("cuts", [[0.3, 0.1], [0.1, 0.1], [], [math.nan], [1.0], [-1.5, 0.0], [0.1, 0.1 + 1e-13], "x"])
def test_bad_cuts(cuts: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^The 'cuts' parameter of randomised_response must be"):
        randomised_response(1.0, cuts)


def test_bad_input_elsewhere() -> None:
    with pytest.raises(InvalidInput, match="'epsilon' parameter of randomised_response"):
        randomised_response(0.0, [0.0])
    with pytest.raises(InvalidInput, match="'bins' parameter of retrieval_cuts"):
        retrieval_cuts(1.0, 10, 1, [0.0, 0.1], [0.5, 0.6], 1)
    with pytest.raises(InvalidInput, match="'relevant' parameter of retrieval_cuts"):
        retrieval_cuts(1.0, 10, 1, [0.0, 0.1], [math.nan, 0.6], 2)
    channel = optimal_channel(3.0, levels=3)
    with pytest.raises(InvalidInput, match=r"'clean_scores' parameter of LevelChannel\.release"):
        channel.release(SecureStream(), [0.0, math.nan])
    data = channel.to_dict()
    for broken in (
        {**data, "weights": data["weights"][:2]},
        {**data, "weights": ["zz"] * 3},
        {**data, "weights": ["f" * 30] * 3},
        {**data, "step": 0.3},
        {**data, "cuts": [0.0]},
        {**data, "epsilon": 2.999999},
        {"name": "levels"},
    ):
        with pytest.raises(InvalidInput):
            LevelChannel.from_dict(broken)
