"""Tables of levels at their edges: what is accepted, what is refused, and the exact figures of small tables."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.sparse as sparse

import scoreshield as ss
from scoreshield.privacy.levels import cuts as channel_cuts
from scoreshield.privacy.levels import profile, program, tables
from scoreshield.privacy.levels.cuts import check_increasing, check_range, predict_recall, retrieval_cuts, tail
from scoreshield.privacy.levels.profile import compute_channel_profile, compute_total_variation
from scoreshield.privacy.levels.tables import LevelChannel, optimal_channel, randomised_response
from scoreshield.privacy.sampling.stream import SecureStream

WHOLE = 2**62
TWO = np.array([[3 * WHOLE // 4, WHOLE // 4], [WHOLE // 4, 3 * WHOLE // 4]], dtype=np.uint64)  # epsilon ln 3


def table(**changes: Any) -> LevelChannel:
    fields = {
        "inputs": (-0.5, 0.5),
        "cuts": (0.0,),
        "outputs": (-1.0, 1.0),
        "step": 0.25,
        "weights": TWO,
        "epsilon": 1.2,
    }
    return LevelChannel(**{**fields, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": (0.5, -0.5)},
        {"inputs": (0.5, 0.5)},
        {"inputs": (-0.5, math.nan)},
        {"cuts": (0.5,)},
        {"cuts": (-0.6,)},
        {"cuts": (-0.4, 0.4)},
        {"cuts": ()},
        {"outputs": (1.0, -1.0)},
        {"outputs": (-1.0, 0.9)},
        {"outputs": (-1.0, 0.0, 1.0)},
        {"step": 0.3},
        {"step": 0.0},
        {"step": -0.25},
        {"step": 4.0},
        {"epsilon": 1.09},  # below ln 3
        {"epsilon": 0.0},
        {"delta": -0.1},
        {"delta": 1.0},
        {"weights": TWO[:, ::-1][:1]},
        {"weights": TWO - np.uint64(1)},
        {"weights": [[WHOLE + 1, -1], [-1, WHOLE + 1]]},
        {"weights": [[WHOLE / 2, WHOLE / 2], [WHOLE / 2, WHOLE / 2]]},
        {"weights": [[True, WHOLE - 1], [1, WHOLE - 1]]},
        {"weights": "ab"},
    ],
)
def test_what_is_no_private_table_is_an_error(changes: dict[str, Any]) -> None:
    with pytest.raises(ss.InvalidInput):
        table(**changes)


def test_the_ends_of_what_a_table_may_be() -> None:
    assert table(cuts=(-0.5,)).cuts == (-0.5,)  # a cut may lie on the level below it
    assert table(epsilon=1.0987).epsilon == 1.0987  # ln 3 = 1.09861...
    assert table(weights=TWO.tolist()) == table()
    same = np.full((2, 2), WHOLE // 2, dtype=np.uint64)
    assert table(weights=same, epsilon=1e-9).profile().advantage < 1e-9
    zeros = np.array([[WHOLE, 0], [WHOLE, 0]], dtype=np.uint64)
    assert table(weights=zeros, epsilon=1e-9).std > 0
    assert not table().weights.flags.writeable
    assert math.copysign(1, table(inputs=(-0.0, 0.5)).inputs[0]) == 1.0


def test_privacy_with_delta_is_checked_exactly() -> None:
    """Rows (3/4, 1/4): the excess at e^eps = 2 is 3/4 - 2/4 = 1/4, neither more nor less."""
    epsilon = math.log(2)
    with mpmath.workdps(40):
        excess = float(mpmath.mpf(3) / 4 - mpmath.exp(mpmath.mpf(epsilon)) / 4)
    assert table(epsilon=epsilon, delta=excess + 1e-12).delta > 0.25
    with pytest.raises(ss.InvalidInput):
        table(epsilon=epsilon, delta=excess - 1e-12)


def test_tables_that_are_equal_are_one_key() -> None:
    assert hash(table()) == hash(table())
    assert len({table(), table()}) == 1
    for changes in ({"inputs": (-0.5, 0.6)}, {"cuts": (0.1,)}, {"step": 0.5}, {"epsilon": 1.3}, {"delta": 0.1}):
        assert table(**changes) != table()
        assert len({table(**changes), table()}) == 2
    assert table() != "table"
    assert "2 levels" in repr(table())
    assert "delta" not in repr(table())
    assert "delta 0.1" in repr(table(delta=0.1))


@pytest.mark.parametrize(
    "damage",
    [
        {"weights": None},
        {"weights": ["zz 1", "1 zz"]},
        {"weights": [f"{2**64:x} 0", "0 1"]},
        {"weights": [1, 2]},
        {"inputs": None},
        {"epsilon": "a"},
    ],
)
def test_damaged_tables_are_errors(damage: dict[str, Any]) -> None:
    data = table().to_dict()
    assert LevelChannel.from_dict(data) == table()
    with pytest.raises(ss.InvalidInput):
        LevelChannel.from_dict({**data, **damage})
    for field in ("inputs", "cuts", "outputs", "step", "weights", "epsilon", "delta"):
        with pytest.raises(ss.InvalidInput):
            LevelChannel.from_dict({name: value for name, value in data.items() if name != field})


def test_levels_and_tails_of_a_small_table() -> None:
    channel = table()
    scores = np.array([-3.0, -0.5, 0.0, 1e-9, 0.5, 3.0])
    assert channel.level_of(scores).tolist() == [0, 0, 0, 1, 1, 1]
    assert channel.level_of([0, 1]).dtype == np.int64
    assert channel.exceed(0.0, scores).tolist() == [0.25] * 3 + [0.75] * 3
    assert channel.exceed([-1.5, -1.0, 0.9, 1.0], 0.5).tolist() == [1.0, 0.75, 0.75, 0.0]
    assert channel.exceed([-1.5, -1.0, 0.9, 1.0], 0.5, inclusive=True).tolist() == [1.0, 1.0, 0.75, 0.75]
    assert channel.exceed(np.float32(0.1), 0.5) == 0.75
    assert channel.probabilities.tolist() == [[0.75, 0.25], [0.25, 0.75]]


def test_the_errors_of_a_lopsided_table() -> None:
    channel = table(inputs=(-1.0, 0.5))
    # At -1: 0 or 2 with 3/4 and 1/4. At 0.5: 1.5 or 0.5 with 1/4 and 3/4.
    assert channel.errors == pytest.approx([1.0, math.sqrt(1.5**2 / 4 + 0.75 * 0.25)])
    assert channel.std == pytest.approx(1.0)
    assert channel.worst_input == -1.0


def test_costs_and_utilities() -> None:
    channel = table()
    assert channel.expected_cost() == pytest.approx(0.75 * 0.25 + 0.25 * 2.25)
    assert channel.expected_cost([1, 3], "absolute") == pytest.approx(0.75 * 0.5 + 0.25 * 1.5)
    assert channel.expected_cost([1, 3], "threshold", 0.2) == pytest.approx(0.25)
    costs = [[0.0, 1.0], [5.0, 0.0]]
    assert channel.expected_cost([1, 3], costs) == pytest.approx(0.25 * 0.25 + 0.75 * 1.25)
    for arguments in ((), ([1, 3], costs), ([1, 3], "threshold", 0.2), (None, "threshold", -0.2)):
        assert channel.expected_utility(*arguments) == -channel.expected_cost(*arguments)
    with pytest.raises(ss.InvalidInput):
        channel.expected_utility([1, 3], "threshold")


@pytest.mark.parametrize("scores", [["a"], [math.nan], [math.inf], [True], [1j], None])
def test_scores_that_are_none(scores: Any) -> None:
    with pytest.raises(ss.InvalidInput):
        table().release(SecureStream(), scores)


def test_profile_pure_table_knows_advantage() -> None:
    """The rows differ by 1/2 in total variation, which is less than any table with epsilon 1.2 may."""
    assert compute_total_variation(TWO) == pytest.approx(0.5, rel=1e-15)
    assert compute_total_variation(TWO) > 0.5
    assert table().profile().advantage == pytest.approx(0.5, rel=1e-12)
    assert table().profile().epsilon_at(0.0) == 1.2
    assert table().profile(17.0) == table().profile()


def test_the_profile_of_three_rows_in_fractions() -> None:
    parts = [[8, 4, 2, 2], [2, 8, 4, 2], [1, 3, 4, 8]]
    weights = np.array([[part * (WHOLE // 16) for part in row] for row in parts], dtype=np.uint64)
    profile = compute_channel_profile(weights, 1.0)
    for epsilon in (0.0, 0.2, 0.5, math.log(2), 1.0, 1.2, math.log(4), 1.9, math.log(8), 2.5):
        x = math.exp(epsilon)
        exact = max(
            sum(max(0.0, (p - x * q) / 16) for p, q in zip(one, other, strict=True)) for one in parts for other in parts
        )
        assert exact - 1e-15 <= profile.delta_at(epsilon) <= exact + 1e-11
    assert 1.0 in profile.losses
    assert profile.losses[0] == 0.0
    assert profile.losses[-1] == pytest.approx(math.log(8), rel=1e-12)
    assert profile.losses[-1] > math.log(8)
    assert profile.epsilon_at(0.0) == pytest.approx(math.log(8), rel=1e-9)


def test_table_whose_rows_alike_tells_nothing() -> None:
    """A table whose rows are alike tells nothing."""
    weights = np.full((2, 2), WHOLE // 2, dtype=np.uint64)
    profile = compute_channel_profile(weights, 1.0)
    assert set(profile.deltas) == {0.0}
    assert profile.losses[-1] < 1e-13


def test_output_row_never_paid_off() -> None:
    """An output that only one row has is never paid off."""
    weights = np.array([[WHOLE // 2, WHOLE // 2], [WHOLE, 0]], dtype=np.uint64)
    profile = compute_channel_profile(weights, 1.0)
    assert profile.delta_at(50.0) == pytest.approx(0.5)
    assert profile.epsilon_at(0.4) == math.inf
    assert profile.delta_at(0.0) == pytest.approx(0.5)


@pytest.mark.parametrize("epsilon", [1e-6, 0.7, 5.0, 39.0, 64.0, 100.0])
def test_the_ratio_is_just_below_the_exponential(epsilon: float) -> None:
    ratio = program.floor_ratio(epsilon)
    with mpmath.workdps(120):
        true = mpmath.exp(mpmath.mpf(min(epsilon, 64.0)))
        gap = true - mpmath.mpf(ratio.numerator) / ratio.denominator
        assert 0 <= gap < mpmath.mpf(2) ** -180 * true


def test_what_may_be_spent_of_delta() -> None:
    for delta in (1e-12, 1e-9, 1e-6, 0.1, 0.9):
        spent = Fraction(program.compute_usable_delta(delta), WHOLE)
        assert Fraction(delta) / 2 - Fraction(1, WHOLE) <= spent < Fraction(delta)
    assert program.compute_usable_delta(0.1) > 0.1 * WHOLE * (1 - 1e-9)


def test_the_worst_excess_by_hand() -> None:
    rows = [[8, 4, 4], [2, 6, 8], [4, 4, 8]]
    # At ratio 1: row 0 over row 1 is 6; row 1 over row 0 is 2 + 4 = 6; row 2 over row 0 is 4.
    assert program.find_worst_excess(rows, Fraction(1)) == 6
    assert program.find_worst_excess(rows, Fraction(3, 2)) == 5
    assert program.find_worst_excess(rows, Fraction(4)) == 0


def test_rounding_keeps_rows_whole_ratios_exact() -> None:
    """Rounding keeps rows whole and ratios exact."""
    rng = np.random.default_rng(4)
    for epsilon in (0.1, 1.0, 6.0):
        ratio = program.floor_ratio(epsilon)
        for _ in range(20):
            caps, costs = rng.random(5) * (rng.random(5) > 0.3), rng.random((4, 5))
            if not caps.any():
                continue
            caps = caps / caps.sum() * rng.uniform(0.5, 2.0) * math.exp(epsilon / 2)
            rows = program.round_pure(caps, costs, ratio)
            assert all(sum(row) == WHOLE for row in rows)
            assert all(max(column) <= ratio * min(column) for column in zip(*rows, strict=True))
            delta = 0.01
            mixed = program.round_mixture(caps, costs, ratio, delta)
            assert all(sum(row) == WHOLE for row in mixed)
            assert program.find_worst_excess(mixed, ratio) <= Fraction(delta) * WHOLE


def test_float_table_moved_until_private() -> None:
    """A float table is moved until it is private."""
    rng = np.random.default_rng(5)
    channel, costs = rng.dirichlet(np.ones(4), 4), rng.random((4, 4))
    ratio = program.floor_ratio(1.0)
    rows = program.round_approximate(channel, costs, ratio, 0.05)
    assert rows is not None
    assert all(sum(row) == WHOLE for row in rows)
    assert 0.04 < program.find_worst_excess(rows, ratio) / WHOLE <= 0.05
    private = np.full((4, 4), 0.25)
    assert program.round_approximate(private, costs, ratio, 0.05) == [[WHOLE // 4] * 4] * 4


@pytest.mark.parametrize(
    "arguments",
    [
        {"epsilon": 0.9e-6},
        {"delta": 0.9e-12},
        {"levels": 1},
        {"levels": 102},
        {"levels": 22, "delta": 0.01},
        {"score_range": (0.0, 0.0009)},
        {"score_range": (-1.1, 1.0)},
        {"outputs": [-1.1, 0.0]},
        {"outputs": [0.0, 1.1]},
        {"outputs": [0.0, 1e-12]},
        {"utility": "threshold"},
        {"utility": "threshold", "threshold": 1.0},
        {"utility": "threshold", "threshold": -1.01},
        {"utility": [[1.0]]},
        {"utility": np.full((5, 5), 1e101)},
        {"utility": np.full((5, 5), math.nan)},
        {"utility": np.full((5, 5), "a")},
        {"prior": [1, 1, 1, 1]},
        {"prior": [1, 1, 1, 1, 0]},
        {"prior": [1, 1, 1, 1, -1]},
        {"prior": [1, 1, 1, 1, math.inf]},
        {"prior": [1e308] * 5},
        {"prior": ["a"] * 5},
    ],
)
def test_contracts_no_table_meet_errors(arguments: dict[str, Any]) -> None:
    """Contracts that no table can meet are errors."""
    with pytest.raises(ss.InvalidInput):
        optimal_channel(**{"epsilon": 1.0, "levels": 5, **arguments})


def test_the_ends_of_what_may_be_asked_of_a_table() -> None:
    assert len(optimal_channel(1e-6, levels=2).inputs) == 2
    assert optimal_channel(1.0, 1e-12, levels=3).delta == 1e-12
    assert len(optimal_channel(1.0, levels=5, score_range=(0.0, 0.001)).inputs) == 5
    assert optimal_channel(1.0, levels=5, utility="threshold", threshold=-1.0).cuts[0] == -1.0
    assert optimal_channel(1.0, levels=3, outputs=[-1.0, 1.0]).outputs == (-1.0, 1.0)
    assert len(optimal_channel(1.0).inputs) == 41
    assert len(optimal_channel(1.0, 0.01).inputs) == 21
    huge = optimal_channel(1000.0, levels=5)
    assert huge.expected_cost() < 1e-12
    assert huge.epsilon == 1000.0


def test_inputs_outputs_lie_public_grid() -> None:
    """Inputs and outputs lie on the public grid."""
    channel = optimal_channel(1.0, levels=7, score_range=(-0.9, 0.7))
    assert 2.0**-32 * 1.6 < channel.step <= 2.0**-30 * 1.6
    assert channel.inputs[0] >= -0.9
    assert channel.inputs[-1] <= 0.7
    assert np.allclose(channel.inputs, np.linspace(-0.9, 0.7, 7), atol=1e-8)
    middles = (np.array(channel.inputs[1:]) + channel.inputs[:-1]) / 2
    assert channel.cuts == pytest.approx(middles)
    cut = optimal_channel(1.0, levels=7, utility="threshold", threshold=0.1)
    assert cut.cuts[3] == 0.1  # between the levels 0 and 1/3
    level = optimal_channel(1.0, levels=5, utility="threshold", threshold=0.5)
    assert level.cuts[3] == 0.5  # a threshold on a level: what equals it is not accepted
    assert level.level_of([0.5, 0.5000001]).tolist() == [3, 4]


@pytest.mark.parametrize("epsilon", [1e-6, 0.5, 3.0, 60.0])
@pytest.mark.parametrize("k", [2, 3, 10])
def test_randomised_response_tells_truth_often(epsilon: float, k: int) -> None:
    """Randomised response tells the truth as often as it may."""
    cuts = np.linspace(-0.8, 0.8, k - 1)
    channel = randomised_response(epsilon, cuts)
    truth = 1 / (1 + (k - 1) * math.exp(-epsilon))
    assert np.diag(channel.probabilities) == pytest.approx(np.full(k, truth), rel=1e-9)
    assert channel.cuts == tuple(cuts)
    edges = np.array([-1, *cuts, 1])
    assert np.all((edges[:-1] < channel.outputs) & (channel.outputs < edges[1:]))
    assert channel.level_of(cuts).tolist() == list(range(k - 1))  # a score equal to a cut lies below it


def test_bins_may_be_narrow_but_not_too_narrow() -> None:
    assert len(randomised_response(1.0, [0.0, 2.0**-40]).inputs) == 3
    for cuts in ([0.0, 2.0**-41], [-1.0], [1.0], [1.0 - 2.0**-41], [0.5, 0.5], []):
        with pytest.raises(ss.InvalidInput):
            randomised_response(1.0, cuts)


@pytest.mark.parametrize("values", [[], [[1.0]], ["a"], [1.0, 1.0], [2.0, 1.0], [math.nan], [0.0, math.inf], [True, 2]])
def test_what_does_not_grow_is_an_error(values: Any) -> None:
    if values == [True, 2]:
        assert check_increasing(values, "x").tolist() == [1.0, 2.0]
        return
    with pytest.raises(ss.InvalidInput):
        check_increasing(values, "x")


def test_ranges() -> None:
    assert check_range([0, 0.001]) == (0.0, 0.001)
    assert check_range((-1, 1)) == (-1.0, 1.0)
    for wrong in ((0.0, 0.0009), (-1.1, 0.0), (0.0, 1.1), (0.5, 0.0), (0.0,), (0.0, 0.5, 1.0), {0.0, 1.0}, None):
        with pytest.raises(ss.InvalidInput):
            check_range(wrong)


def test_tails_of_public_scores() -> None:
    assert tail([0.1, 0.2, 0.2, 0.3], np.array([0.0, 0.1, 0.2, 0.3]), "x").tolist() == [1.0, 0.75, 0.25, 0.0]
    for wrong in ([], [[0.1]], ["a"], [math.nan]):
        with pytest.raises(ss.InvalidInput):
            tail(wrong, np.array([0.0]), "x")


def test_recall_by_hand() -> None:
    """Two bins, one irrelevant record: the relevant one is first if its released bin is above, or by lot if equal."""
    epsilon, far, near = 1.0, np.linspace(-1, 0.2, 7), np.linspace(-0.2, 1, 7)
    keep = 1 / (1 + math.exp(-epsilon))
    up_far, up_near = np.mean(far > 0), np.mean(near > 0)
    above = [keep * up + (1 - keep) * (1 - up) for up in (up_far, up_near)]
    wanted = above[1] * (1 - above[0]) + 0.5 * (above[0] * above[1] + (1 - above[0]) * (1 - above[1]))
    assert predict_recall(epsilon, 2, 1, far, near, [0.0]) == pytest.approx(wanted, rel=1e-12)
    assert predict_recall(epsilon, 2, 2, far, near, [0.0]) == 1.0
    assert predict_recall(epsilon, 1, 1, far, near, [0.0]) == 1.0


def test_the_best_single_cut_is_found() -> None:
    rng = np.random.default_rng(6)
    far, near = rng.normal(0, 0.1, 300), rng.normal(0.4, 0.1, 300)
    found = retrieval_cuts(2.0, 50, 5, far, near, 2)
    places = np.linspace(-1, 1, 513)[1:-1]
    best = max(predict_recall(2.0, 50, 5, far, near, [place]) for place in places)
    assert found.recall == pytest.approx(best, abs=1e-12)
    assert found.recall == pytest.approx(predict_recall(2.0, 50, 5, far, near, found.cuts), abs=1e-12)
    assert found.cuts[0] in places
    three = retrieval_cuts(2.0, 50, 5, far, near, 4)
    assert len(three.cuts) == 3
    assert list(three.cuts) == sorted(three.cuts)
    assert three.recall == pytest.approx(predict_recall(2.0, 50, 5, far, near, three.cuts), abs=1e-12)
    for bins in (1, 65, 2.0):
        with pytest.raises(ss.InvalidInput):
            retrieval_cuts(2.0, 50, 5, far, near, bins)  # type: ignore[arg-type]


def test_costs_alike_met_any_table() -> None:
    """Costs that are all alike are met by any table."""
    channel = optimal_channel(1.0, levels=3, utility=np.ones((3, 3)))
    assert channel.expected_cost(None, np.ones((3, 3))) == pytest.approx(1.0)


@pytest.mark.parametrize("found", ["nothing", "a bad table"])
def test_two_tables_costs_less_taken(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the general program finds nothing, or nothing better, the mixture is used."""
    constant = [[WHOLE, 0, 0]] * 3
    monkeypatch.setattr(program, "round_approximate", lambda *_: None if found == "nothing" else constant)
    channel = optimal_channel(1.0, 0.01, levels=3)
    pure = optimal_channel(1.0, levels=3)
    assert channel.expected_cost() < pure.expected_cost() < 5 / 6  # which is what the constant costs


class Tail:
    """Public scores that know their tail alone."""

    def clean_rate(self, thresholds: Any, inclusive: bool) -> list[int]:
        assert not inclusive
        return [int(threshold < 0) for threshold in thresholds]


def test_public_scores_that_know_their_tail() -> None:
    found = tail(Tail(), np.array([-0.5, 0.5]), "x")
    assert found.dtype == np.float64
    assert found.tolist() == [1.0, 0.0]
    cuts = np.array([-0.5, 0.5])

    class Even:
        def clean_rate(self, thresholds: Any, inclusive: bool) -> Any:
            assert not inclusive
            return (1 - np.asarray(thresholds)) / 2

    assert program.build_masses(Even(), [-1.0, 0.0, 1.0], cuts) == pytest.approx([0.25, 0.5, 0.25])
    with pytest.raises(ss.InvalidInput):
        program.build_masses(Tail(), [-1.0, 0.0, 1.0], cuts)  # no mass at the ends


def test_the_mass_of_each_level() -> None:
    """From below where little lies below, from above elsewhere; and a density is no distribution."""

    class Far:
        def cdf(self, _: Any) -> Any:
            return np.array([1e-20, 0.4, 0.75, 1.0])

        def sf(self, _: Any) -> Any:
            return np.array([1.0, 0.5, 0.25, 1e-20])

    levels = [-1.0, -0.5, 0.0, 0.5, 1.0]
    found = program.build_masses(Far(), levels, [-0.7, -0.2, 0.2, 0.7])
    raw = np.array([1e-20, 0.4, 0.35, 0.25, 1e-20])
    assert found == pytest.approx(raw / raw.sum(), rel=1e-12, abs=0)

    class Half:
        cdf = None

        def sf(self, _: Any) -> Any:
            raise AssertionError("a tail alone is no distribution")

        def __call__(self, x: float) -> float:
            return 2 + x

    assert program.build_masses(Half(), [-1.0, 0.0, 1.0], [-0.5, 0.5]) == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    assert program.build_masses([1, 1, 2], [-1.0, 0.0, 1.0], [-0.5, 0.5]).tolist() == [0.25, 0.25, 0.5]
    assert program.build_masses(None, [-1.0, 1.0], [0.0]).tolist() == [0.5, 0.5]


def test_costs_by_hand() -> None:
    levels, outputs = [0.0, 1.0, 2.0], [0.0, 1.0, 3.0]
    assert program.build_costs("squared", levels, outputs, None).tolist() == [[0, 1, 9], [1, 0, 4], [4, 1, 1]]
    assert program.build_costs("absolute", levels, outputs, None).tolist() == [[0, 1, 3], [1, 0, 2], [2, 1, 1]]
    # Accepted is what lies above the threshold, not what equals it.
    assert program.build_costs("threshold", levels, outputs, 1.0).tolist() == [[0, 0, 1], [0, 0, 1], [1, 1, 0]]
    assert program.build_costs("threshold", levels, outputs, 0.0).tolist() == [[0, 1, 1], [1, 0, 0], [1, 0, 0]]
    own = np.array([[1e100, -1e100, 0], [1, 2, 3], [4, 5, 6]])
    assert np.array_equal(program.build_costs(own, levels, outputs, None), own)
    assert program.build_costs(own[1:].astype(np.int8), [0.0, 1.0], outputs, None).dtype == np.float64
    for wrong in (own.T[:2], own.astype(str), own * 1.1, own.tolist()[0]):
        with pytest.raises(ss.InvalidInput):
            program.build_costs(wrong, levels, outputs, None)


def test_the_dual_bound_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Duals (1, 1/2) at e^epsilon = 2: the gaps are (-1, 0) and (3/2, -1/2), the columns -1/2 and -1."""
    costs, seen = np.array([[0.0, 1.0], [2.0, 0.0]]), []

    def run(objective: Any, upper: Any, limits: Any, equal: Any, ones: Any) -> Any:
        seen.append((objective, upper.toarray(), limits, equal.toarray(), ones))
        x = np.array([9.0, 9.0, 9.0, 9.0, 0.25, -1e-12])
        return SimpleNamespace(x=x, fun=6.0, eqlin=SimpleNamespace(marginals=[4.0, 2.0]))

    monkeypatch.setattr(program, "_run", run)
    found = program._solve_pure(math.log(2), costs, 4.0)
    assert found.caps.tolist() == [0.25, 0.0]
    assert found.value == 1.5
    assert found.bound == pytest.approx(1.5 - 1.0, rel=1e-12)
    ((objective, upper, limits, equal, ones),) = seen
    assert objective == pytest.approx(np.array([0, 0.5, 1, 0, 1, 0.5]) * 4)  # half of each cost, and of each column
    assert upper.tolist() == [[1, 0, 0, 0, -1, 0], [0, 1, 0, 0, 0, -1], [0, 0, 1, 0, -1, 0], [0, 0, 0, 1, 0, -1]]
    assert limits.tolist() == [0.0] * 4
    assert equal == pytest.approx(np.array([[1, 1, 0, 0, 1, 1], [0, 0, 1, 1, 1, 1]]) / 2)
    assert ones.tolist() == [1.0, 1.0]


def test_the_better_of_two_solutions_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run scales the costs by the first one's value; the greater lower bound wins."""
    scales: list[float] = []
    answers = {0.5: (4.0, 3.0), 2.5: (5.0, 2.0)}

    def solve(_: float, costs: Any, scale: float) -> program.Solution:
        scales.append(scale)
        return program.Solution(costs[0], *answers[scale])

    monkeypatch.setattr(program, "_solve_pure", solve)
    costs = np.array([[0.0, 2.0]])
    assert program.solve_pure(1.0, costs).bound == 3.0
    assert scales == [0.5, 2.5]
    answers[2.5] = (5.0, 3.5)
    assert program.solve_pure(1.0, costs).bound == 3.5
    answers[0.5] = (0.0, 0.0)
    assert program.solve_pure(1.0, costs).value == 0.0
    assert len(scales) == 5  # nothing to scale by
    answers[1.0] = (0.0, 0.0)
    program.solve_pure(1.0, 0 * costs)
    assert scales[-1] == 1.0


def test_a_program_that_is_not_solved_is_an_error() -> None:
    """x1 + x2 = 1, and at most 0."""
    total, none = sparse.csr_array(np.ones((1, 2))), sparse.csr_array((1, 2))
    with pytest.raises(ss.ScoreShieldError, match="was not solved"):
        program._run(np.ones(2), total, np.zeros(1), total, np.ones(1))
    assert program._run(np.array([2.0, 1.0]), none, np.zeros(1), total, np.ones(1)).x.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e9])
def test_small_costs_are_costs_too(unit: float) -> None:
    """A solver's tolerance is absolute, so costs are scaled before they are solved."""
    costs = unit * np.array([[0.0, 1.0, 4.0], [1.0, 0.0, 1.0], [4.0, 1.0, 0.0]]) / 3
    found = program.solve_approximate(1.0, 0.05, costs)
    assert found.shape == (3, 3)
    assert found.sum(axis=1) == pytest.approx(np.ones(3))
    assert (found * costs).sum() / unit == pytest.approx(0.95 * 2 / 3, rel=1e-6)  # 0 but with delta
    excess = np.maximum(found[:, None] - math.e * found[None], 0).sum(axis=2).max()
    assert excess == pytest.approx(0.05, abs=1e-8)
    pure = program.solve_pure(1.0, costs)
    assert pure.value / unit == pytest.approx(program.solve_pure(1.0, costs / unit).value, rel=1e-6)


def test_what_may_be_spent_in_whole_parts() -> None:
    assert program.compute_usable_delta(0.25) == 2**60 - 2**20 - 2**16
    assert program.compute_usable_delta(2.0**-46) == 2**15
    assert program.compute_usable_delta(2.0**-44) == 2**18 - 2**16 - 1  # less a 2^40th of itself, rounded down


def test_a_mixture_of_two_rows_in_fractions() -> None:
    assert program._mix_with_constant([WHOLE // 4, 3 * WHOLE // 4], Fraction(1, 2), 1) == [WHOLE // 8, 7 * WHOLE // 8]
    assert program._mix_with_constant([1, 3], Fraction(1, 3), 0) == [Fraction(1, 3) + Fraction(2 * WHOLE, 3), 1]
    third = WHOLE // 3
    assert program._round_to_whole([Fraction(1), Fraction(1), Fraction(1)], 1) == [third, WHOLE - 2 * third, third]
    assert (
        program.compute_expected_cost([[WHOLE // 2, WHOLE // 2], [WHOLE, 0]], np.array([[1.0, 2.0], [3.0, 4.0]])) == 4.5
    )


def test_rows_are_filled_cheapest_first() -> None:
    assert program._fill([1, 2, 3], [4, 5, 6], np.array([2, 0, 1]), 6) == [1, 2, 3]
    assert program._fill([1, 2, 3], [4, 5, 6], np.array([2, 0, 1]), 15) == [4, 2, 9]
    assert program._fill([1, 2, 3], [4, 5, 6], np.array([2, 0, 1]), 21) == [5, 7, 9]
    rows = program.round_pure(np.array([0.5, 0.5, 0.0]), np.array([[0, 1, 0], [1, 0, 0]]), Fraction(3), 100)
    assert rows == [[51, 49, 0], [49, 51, 0]]  # between 17, the floor, and 51
    # Caps that are too small or too large are scaled until rows of this sum fit between floors and caps.
    for caps in (np.array([0.1, 0.1]), np.array([9.0, 9.0])):
        for row in program.round_pure(caps, np.array([[0.0, 1.0], [1.0, 0.0]]), Fraction(3), 1000):
            assert sum(row) == 1000
            assert max(row) <= 3 * min(row)


def test_the_best_output_is_told_openly() -> None:
    costs = np.array([[0.0, 1.0], [1.0, 0.0]])
    rows = program.round_mixture(np.array([0.6, 0.6]), costs, Fraction(3), 0.25)
    open_share = program.compute_usable_delta(0.25)
    pure = program.round_pure(np.array([0.6, 0.6]), costs, Fraction(3), WHOLE - open_share)
    assert rows == [[pure[0][0] + open_share, pure[0][1]], [pure[1][0], pure[1][1] + open_share]]


@pytest.mark.parametrize(
    ("count", "outputs", "delta", "fits"),
    [
        (101, 101, 0.0, True),
        (101, 102, 0.0, False),
        (31, 10, 0.1, True),  # 31 x 30 x 10 = 9,300
        (31, 11, 0.1, False),
        (31, 11, 0.0, True),
        (21, 21, 0.1, True),
        (22, 22, 0.1, False),
    ],
)
def test_how_large_a_program_may_be(count: int, outputs: int, delta: float, fits: bool) -> None:
    if fits:
        tables._check_size(count, outputs, delta)
        return
    with pytest.raises(ss.InvalidInput, match="The 'levels' parameter must be"):
        tables._check_size(count, outputs, delta)


def test_as_many_levels_as_asked_for() -> None:
    """Up to the limit of the program, which one output reaches with 10,201 levels."""
    assert len(optimal_channel(1.0, levels=10_150, outputs=[0.0]).inputs) == 10_150
    with pytest.raises(ss.InvalidInput, match="'levels'"):
        optimal_channel(1.0, levels=10_202, outputs=[0.0])
    with pytest.raises(ss.InvalidInput, match="'levels'"):
        optimal_channel(1.0, levels=2**52)


def test_the_grid_of_a_table() -> None:
    assert [tables._step(width) for width in (2.0, 1.0, 1.6, 0.001)] == [2.0**-29, 2.0**-30, 2.0**-30, 2.0**-40]
    found = tables._on_grid(np.array([-1.0, -0.9, -0.2, 0.3, 0.7, 9.0]), -0.9, 0.7, 0.5)
    assert found.tolist() == [-0.5, -0.5, 0.0, 0.5, 0.5, 0.5]
    assert not np.signbit(found[2])
    assert tables._check_outputs([-1.0, 0.0, 1.0], -1.0, 1.0, 0.25).tolist() == [-1.0, 0.0, 1.0]
    assert len(tables._check_outputs(np.linspace(-1, 1, 10_000), -1.0, 1.0, 2.0**-29)) == 10_000
    for wrong in (np.linspace(-1, 1, 10_001), [0.0, 0.1], [-1.01, 0.0], [0.0, 1.01]):
        step = 2.0**-29 if len(wrong) > 2 else 0.25
        with pytest.raises(ss.InvalidInput, match="The 'outputs' parameter must be"):
            tables._check_outputs(wrong, -1.0, 1.0, step)


def test_threshold_beside_another_utility_cut() -> None:
    """A threshold beside another utility is a cut."""
    assert optimal_channel(1.0, levels=5, threshold=0.9).cuts == (-0.75, -0.25, 0.25, 0.9)
    assert optimal_channel(1.0, levels=5, threshold=-1.0).cuts[0] == -1.0
    assert optimal_channel(1.0, levels=5).cuts == (-0.75, -0.25, 0.25, 0.75)
    for wrong in (1.0, -1.01, "a"):
        with pytest.raises(ss.InvalidInput, match="The 'threshold' parameter of optimal_channel must be"):
            optimal_channel(1.0, levels=5, threshold=wrong)  # type: ignore[arg-type]


def test_randomised_response_in_whole_numbers() -> None:
    for epsilon, cuts in ((1.0, [-0.5, 0.1, 0.3]), (0.01, [0.0])):
        channel, k = randomised_response(epsilon, cuts), len(cuts) + 1
        other = math.ceil(WHOLE / (program.floor_ratio(epsilon) + k - 1))
        wanted = [[other] * i + [WHOLE - (k - 1) * other] + [other] * (k - 1 - i) for i in range(k)]
        assert channel.weights.tolist() == wanted
        assert channel.step == 2.0**-29
        edges = [-1.0, *cuts, 1.0]
        middles = [round((a + b) / 2 * 2**29) / 2**29 for a, b in pairwise(edges)]
        assert channel.inputs == channel.outputs == pytest.approx(middles, abs=2.0**-29)
        assert (channel.epsilon, channel.delta) == (epsilon, 0.0)
    narrow = randomised_response(1.0, [0.0, 2.0**-40])
    assert narrow.step == 2.0**-42
    assert narrow.inputs[1] == 2.0**-41
    assert randomised_response(1.0, [0.2], score_range=(0.0, 0.5)).inputs == pytest.approx((0.1, 0.35), abs=1e-8)


def test_a_delta_that_is_spent_to_the_last_part() -> None:
    half = np.array([[WHOLE // 2, WHOLE // 2], [WHOLE, 0]], dtype=np.uint64)
    assert table(weights=half, epsilon=5.0, delta=0.5).delta == 0.5
    with pytest.raises(ss.InvalidInput):
        table(weights=half, epsilon=5.0, delta=0.5 - 2.0**-53)


def test_a_table_is_written_whole() -> None:
    assert table(delta=0.1).to_dict() == {
        "name": "levels",
        "inputs": [-0.5, 0.5],
        "cuts": [0.0],
        "outputs": [-1.0, 1.0],
        "step": 0.25,
        "weights": ["3000000000000000 1000000000000000", "1000000000000000 3000000000000000"],
        "epsilon": 1.2,
        "delta": 0.1,
    }


def exact_envelope(weights: Any, loss: float) -> mpmath.mpf:
    """The worst excess over all pairs of rows, in 60 digits."""
    x = mpmath.exp(mpmath.mpf(loss))
    rows = [[mpmath.mpf(weight) for weight in row] for row in weights.tolist()]
    return max(
        sum(max(mpmath.mpf(0), p - x * q) for p, q in zip(one, other, strict=True)) / WHOLE
        for one in rows
        for other in rows
    )


@pytest.mark.parametrize("spread", [1.0, 12.0, 40.0])
def test_no_knot_of_a_profile_is_understated(spread: float) -> None:
    """Weights of all sizes up to e^spread apart: each delta is at least the true one, and the last is 0."""
    rng = np.random.default_rng(7)
    for _ in range(12):
        parts = np.exp(rng.uniform(-spread, 0, (3, 4)))
        rows = [[int(Fraction(float(p)) / Fraction(float(row.sum())) * WHOLE) + 1 for p in row] for row in parts]
        weights = np.array([[WHOLE - sum(row[1:]), *row[1:]] for row in rows], dtype=np.uint64)
        profile = compute_channel_profile(weights, spread / 3)
        assert profile.losses[0] == 0.0
        assert profile.deltas[-1] == 0.0
        assert profile.losses[-1] == pytest.approx(float(np.log((weights.max(0) / weights.min(0)).max())), rel=1e-12)
        with mpmath.workdps(60):
            for loss, delta in zip(profile.losses, profile.deltas, strict=True):
                true = exact_envelope(weights, loss)
                assert true <= mpmath.mpf(delta) <= true + mpmath.mpf("1e-14")


def test_fractions_no_double_holds_rounded_up() -> None:
    """The rows differ by 2^60 + 1 parts: a quarter, and a little more than a double can tell."""
    apart = 2**60 + 1
    weights = np.array([[WHOLE // 2 + apart, WHOLE // 2 - apart], [WHOLE // 2, WHOLE // 2]], dtype=np.uint64)
    true = Fraction(apart, WHOLE)
    for found in (compute_channel_profile(weights, 1.0).deltas[0], compute_total_variation(weights)):
        assert true <= Fraction(found) <= true * (1 + Fraction(1, 2**50))
    assert compute_total_variation(np.full((2, 2), WHOLE // 2, dtype=np.uint64)) == math.ulp(0.0)
    certain = np.array([[WHOLE, 0], [0, WHOLE]], dtype=np.uint64)
    assert set(compute_channel_profile(certain, 1.0).deltas) == {1.0}
    profile = compute_channel_profile(TWO, 0.5)
    assert profile.losses == pytest.approx((0.0, 0.5, math.log(3)), rel=1e-12)
    assert compute_channel_profile(TWO, 9.0).losses[-1] < 1.1  # a knot at epsilon only where there is a curve


BAD: dict[str, Any] = {
    "epsilon of optimal_channel": lambda: optimal_channel(0.9e-6),
    "delta of optimal_channel": lambda: optimal_channel(1.0, 1e-13),
    "score_range of optimal_channel": lambda: optimal_channel(1.0, score_range=(0.0, 2.0)),
    "levels of optimal_channel": lambda: optimal_channel(1.0, levels=1),
    "outputs of optimal_channel": lambda: optimal_channel(1.0, levels=3, outputs=[1.0, 0.0]),
    "utility of optimal_channel": lambda: optimal_channel(1.0, levels=3, utility=[1.0]),
    "prior of optimal_channel": lambda: optimal_channel(1.0, levels=3, prior=[1.0]),
    "threshold of optimal_channel": lambda: optimal_channel(1.0, levels=3, utility="threshold"),
    "epsilon of randomised_response": lambda: randomised_response(0.0, [0.0]),
    "score_range of randomised_response": lambda: randomised_response(1.0, [0.0], score_range=(0.0, 2.0)),
    "cuts of randomised_response": lambda: randomised_response(1.0, [1.0, 0.0]),
    "inputs of LevelChannel": lambda: table(inputs=(1.0, 0.0)),
    "cuts of LevelChannel": lambda: table(cuts=(0.6,)),
    "outputs of LevelChannel": lambda: table(outputs=(1.0, 0.0)),
    "step of LevelChannel": lambda: table(step=0.3),
    "weights of LevelChannel": lambda: table(weights=[[1]]),
    "epsilon of LevelChannel": lambda: table(epsilon=0.0),
    "delta of LevelChannel": lambda: table(delta=1.0),
    "clean_scores of LevelChannel.release": lambda: table().release(SecureStream(), "a"),
    "prior of LevelChannel.expected_cost": lambda: table().expected_cost([1.0]),
    "utility of LevelChannel.expected_cost": lambda: table().expected_cost(None, "cubic"),
    "threshold of LevelChannel.expected_cost": lambda: table().expected_cost(None, "threshold"),
    "epsilon of retrieval_cuts": lambda: retrieval_cuts(0.0, 9, 1, [0.1], [0.2], 2),
    "records of retrieval_cuts": lambda: retrieval_cuts(1.0, 0, 1, [0.1], [0.2], 2),
    "k of retrieval_cuts": lambda: retrieval_cuts(1.0, 9, 0, [0.1], [0.2], 2),
    "bins of retrieval_cuts": lambda: retrieval_cuts(1.0, 9, 1, [0.1], [0.2], 65),
    "irrelevant of retrieval_cuts": lambda: retrieval_cuts(1.0, 9, 1, [], [0.2], 2),
    "relevant of retrieval_cuts": lambda: retrieval_cuts(1.0, 9, 1, [0.1], [], 2),
    "score_range of retrieval_cuts": lambda: retrieval_cuts(1.0, 9, 1, [0.1], [0.2], 2, score_range=(0.0, 2.0)),
    "epsilon of predict_recall": lambda: predict_recall(0.0, 9, 1, [0.1], [0.2], [0.0]),
    "records of predict_recall": lambda: predict_recall(1.0, 0, 1, [0.1], [0.2], [0.0]),
    "k of predict_recall": lambda: predict_recall(1.0, 9, 0, [0.1], [0.2], [0.0]),
    "irrelevant of predict_recall": lambda: predict_recall(1.0, 9, 1, [], [0.2], [0.0]),
    "relevant of predict_recall": lambda: predict_recall(1.0, 9, 1, [0.1], [], [0.0]),
    "cuts of predict_recall": lambda: predict_recall(1.0, 9, 1, [0.1], [0.2], []),
}


@pytest.mark.parametrize("place", BAD)
def test_errors_name_parameter_function(place: str) -> None:
    """Errors name the parameter and the function."""
    name, function = place.split(" of ")
    with pytest.raises(ss.InvalidInput, match=f"^The '{name}' parameter of {function} must be"):
        BAD[place]()


def test_what_is_released_of_a_bin() -> None:
    """Two cuts at epsilon ln 2: the truth with 1/2, each other bin with 1/4."""
    found = channel_cuts._compute_released_tails(math.log(2), np.array([[0.75, 0.25]]))
    assert found == pytest.approx(np.array([[1.0, 0.75 / 4 + 0.5, 0.25 / 4 + 0.25, 0.0]]))


def test_recall_bin_no_other_record_reaches() -> None:
    """Shares of 0 divide nothing: above all others a record is first for certain."""
    far, near = np.array([[1.0, 0.0]]), np.array([[1.0, 1.0]])
    assert channel_cuts._compute_recall(700.0, 50, 5, far, near) == pytest.approx([1.0])
    assert channel_cuts._compute_recall(700.0, 50, 5, np.array([[0.5]]), np.array([[0.0]])) == pytest.approx(
        [0.0], abs=1e-3
    )
    assert channel_cuts._compute_recall(1.0, 5, 5, far, near).tolist() == [1.0]
    assert channel_cuts._compute_recall(1.0, 5, 4, np.array([[0.5]]), np.array([[0.5]])) == pytest.approx([0.8])


def test_cuts_in_a_range_of_their_own() -> None:
    """Scores between 0 and 1/2: the best cut of a fine grid there separates what can be separated."""
    far, near = np.linspace(0.0, 0.2, 30), np.linspace(0.3, 0.5, 30)
    found = retrieval_cuts(4.0, 20, 1, far, near, 2, score_range=(0.0, 0.5))
    assert 0.2 <= found.cuts[0] < 0.3
    assert (found.cuts[0] * 1024) % 1 == 0  # 512 equal parts of the range


def test_climbing_ends_place_no_single_move() -> None:
    """Climbing ends at a place that no single move betters."""
    rng = np.random.default_rng(9)
    far, near = np.sort(rng.random(30))[::-1], np.sort(rng.random(30))[::-1]
    best, cuts = channel_cuts._climb(np.array([3, 4, 5]), 2.0, 40, 3, far, near)
    assert list(cuts) == sorted(set(cuts.tolist()))

    def recall(places: list[int]) -> float:
        return float(channel_cuts._compute_recall(2.0, 40, 3, far[places][None], near[places][None])[0])

    assert best == pytest.approx(recall(cuts.tolist()), abs=1e-12)
    for place in range(3):
        for other in set(range(30)) - set(cuts.tolist()):
            moved = sorted([*cuts[:place].tolist(), other, *cuts[place + 1 :].tolist()])
            if moved.index(other) == place:
                assert recall(moved) <= best + 1e-9
    inserted = channel_cuts._insert(np.array([4, 20]), 2.0, 40, 3, far, near)
    assert {4, 20} < set(inserted.tolist())
    assert recall(inserted.tolist()) == max(recall(sorted([4, 20, free])) for free in set(range(30)) - {4, 20})


def test_tied_pairs_are_computed_once_and_exactly() -> None:
    """All pairs of rows of randomised response tie: one pair in integers, with the value of all pairs in fractions."""
    response = ss.randomised_response(3.0, np.linspace(-0.9, 0.9, 29))
    is_tied = ~np.eye(30, dtype=bool)
    assert len(list(profile._list_different_pairs(response.weights, is_tied))) == 1
    mixed = response.weights.copy()
    mixed[4] = mixed[4][::-1]  # the same probabilities: of some pairs the two largest meet
    assert len(list(profile._list_different_pairs(mixed, is_tied))) == 2
    for weights in (response.weights, mixed):
        for loss in (0.0, 1.0, 2.9):
            x = Fraction(math.exp(loss)) * (1 - Fraction(1, 2**50)) if loss else Fraction(1)
            rows = [[Fraction(weight) for weight in row] for row in weights.tolist()]
            exact = max(
                sum(max(Fraction(0), p - x * q) for p, q in zip(a, b, strict=True)) for a in rows[:6] for b in rows[:6]
            )
            found = profile._value(weights, weights / WHOLE, loss)
            assert exact / WHOLE <= found <= math.nextafter(exact / WHOLE, 2.0)
