"""Tables of levels at their edges: what is accepted, what is refused, and the exact figures of small tables."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest

import scoreshield as ss
from scoreshield.privacy import channel_program as program
from scoreshield.privacy.channel_cuts import check_range, increasing, predicted_recall, retrieval_cuts, tail
from scoreshield.privacy.channel_profile import channel_profile, total_variation
from scoreshield.privacy.channels import LevelChannel, optimal_channel, randomised_response
from scoreshield.privacy.stream import SecureStream

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


def test_the_profile_of_a_pure_table_knows_its_advantage() -> None:
    """The rows differ by 1/2 in total variation, which is less than any table with epsilon 1.2 may."""
    assert total_variation(TWO) == pytest.approx(0.5, rel=1e-15)
    assert total_variation(TWO) > 0.5
    assert table().profile().advantage == pytest.approx(0.5, rel=1e-12)
    assert table().profile().epsilon_at(0.0) == 1.2
    assert table().profile(17.0) == table().profile()


def test_the_profile_of_three_rows_in_fractions() -> None:
    parts = [[8, 4, 2, 2], [2, 8, 4, 2], [1, 3, 4, 8]]
    weights = np.array([[part * (WHOLE // 16) for part in row] for row in parts], dtype=np.uint64)
    profile = channel_profile(weights, 1.0)
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


def test_a_table_whose_rows_are_alike_tells_nothing() -> None:
    weights = np.full((2, 2), WHOLE // 2, dtype=np.uint64)
    profile = channel_profile(weights, 1.0)
    assert set(profile.deltas) == {0.0}
    assert profile.losses[-1] < 1e-13


def test_an_output_that_only_one_row_has_is_never_paid_off() -> None:
    weights = np.array([[WHOLE // 2, WHOLE // 2], [WHOLE, 0]], dtype=np.uint64)
    profile = channel_profile(weights, 1.0)
    assert profile.delta_at(50.0) == pytest.approx(0.5)
    assert profile.epsilon_at(0.4) == math.inf
    assert profile.delta_at(0.0) == pytest.approx(0.5)


@pytest.mark.parametrize("epsilon", [1e-6, 0.7, 5.0, 39.0, 64.0, 100.0])
def test_the_ratio_is_just_below_the_exponential(epsilon: float) -> None:
    ratio = program.ratio_floor(epsilon)
    with mpmath.workdps(120):
        true = mpmath.exp(mpmath.mpf(min(epsilon, 64.0)))
        gap = true - mpmath.mpf(ratio.numerator) / ratio.denominator
        assert 0 <= gap < mpmath.mpf(2) ** -180 * true


def test_what_may_be_spent_of_delta() -> None:
    for delta in (1e-12, 1e-9, 1e-6, 0.1, 0.9):
        spent = Fraction(program.usable(delta), WHOLE)
        assert Fraction(delta) / 2 - Fraction(1, WHOLE) <= spent < Fraction(delta)
    assert program.usable(0.1) > 0.1 * WHOLE * (1 - 1e-9)


def test_the_worst_excess_by_hand() -> None:
    rows = [[8, 4, 4], [2, 6, 8], [4, 4, 8]]
    # At ratio 1: row 0 over row 1 is 6; row 1 over row 0 is 2 + 4 = 6; row 2 over row 0 is 4.
    assert program.worst_excess(rows, Fraction(1)) == 6
    assert program.worst_excess(rows, Fraction(3, 2)) == 5
    assert program.worst_excess(rows, Fraction(4)) == 0


def test_rounding_keeps_rows_whole_and_ratios_exact() -> None:
    rng = np.random.default_rng(4)
    for epsilon in (0.1, 1.0, 6.0):
        ratio = program.ratio_floor(epsilon)
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
            assert program.worst_excess(mixed, ratio) <= Fraction(delta) * WHOLE


def test_a_float_table_is_moved_until_it_is_private() -> None:
    rng = np.random.default_rng(5)
    channel, costs = rng.dirichlet(np.ones(4), 4), rng.random((4, 4))
    ratio = program.ratio_floor(1.0)
    rows = program.round_approximate(channel, costs, ratio, 0.05)
    assert rows is not None
    assert all(sum(row) == WHOLE for row in rows)
    assert 0.04 < program.worst_excess(rows, ratio) / WHOLE <= 0.05
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
def test_contracts_that_no_table_can_meet_are_errors(arguments: dict[str, Any]) -> None:
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


def test_inputs_and_outputs_lie_on_the_public_grid() -> None:
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
def test_randomised_response_tells_the_truth_as_often_as_it_may(epsilon: float, k: int) -> None:
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
        assert increasing(values, "x", "f").tolist() == [1.0, 2.0]
        return
    with pytest.raises(ss.InvalidInput):
        increasing(values, "x", "f")


def test_ranges() -> None:
    assert check_range([0, 0.001], "f") == (0.0, 0.001)
    assert check_range((-1, 1), "f") == (-1.0, 1.0)
    for wrong in ((0.0, 0.0009), (-1.1, 0.0), (0.0, 1.1), (0.5, 0.0), (0.0,), (0.0, 0.5, 1.0), {0.0, 1.0}, None):
        with pytest.raises(ss.InvalidInput):
            check_range(wrong, "f")


def test_tails_of_public_scores() -> None:
    assert tail([0.1, 0.2, 0.2, 0.3], np.array([0.0, 0.1, 0.2, 0.3]), "x", "f").tolist() == [1.0, 0.75, 0.25, 0.0]
    for wrong in ([], [[0.1]], ["a"], [math.nan]):
        with pytest.raises(ss.InvalidInput):
            tail(wrong, np.array([0.0]), "x", "f")


def test_recall_by_hand() -> None:
    """Two bins, one irrelevant record: the relevant one is first if its released bin is above, or by lot if equal."""
    epsilon, far, near = 1.0, np.linspace(-1, 0.2, 7), np.linspace(-0.2, 1, 7)
    keep = 1 / (1 + math.exp(-epsilon))
    up_far, up_near = np.mean(far > 0), np.mean(near > 0)
    above = [keep * up + (1 - keep) * (1 - up) for up in (up_far, up_near)]
    wanted = above[1] * (1 - above[0]) + 0.5 * (above[0] * above[1] + (1 - above[0]) * (1 - above[1]))
    assert predicted_recall(epsilon, 2, 1, far, near, [0.0]) == pytest.approx(wanted, rel=1e-12)
    assert predicted_recall(epsilon, 2, 2, far, near, [0.0]) == 1.0
    assert predicted_recall(epsilon, 1, 1, far, near, [0.0]) == 1.0


def test_the_best_single_cut_is_found() -> None:
    rng = np.random.default_rng(6)
    far, near = rng.normal(0, 0.1, 300), rng.normal(0.4, 0.1, 300)
    found = retrieval_cuts(2.0, 50, 5, far, near, 2)
    places = np.linspace(-1, 1, 513)[1:-1]
    best = max(predicted_recall(2.0, 50, 5, far, near, [place]) for place in places)
    assert found.recall == pytest.approx(best, abs=1e-12)
    assert found.recall == pytest.approx(predicted_recall(2.0, 50, 5, far, near, found.cuts), abs=1e-12)
    assert found.cuts[0] in places
    three = retrieval_cuts(2.0, 50, 5, far, near, 4)
    assert len(three.cuts) == 3
    assert list(three.cuts) == sorted(three.cuts)
    assert three.recall == pytest.approx(predicted_recall(2.0, 50, 5, far, near, three.cuts), abs=1e-12)
    for bins in (1, 65, 2.0):
        with pytest.raises(ss.InvalidInput):
            retrieval_cuts(2.0, 50, 5, far, near, bins)  # type: ignore[arg-type]


def test_costs_that_are_all_alike_are_met_by_any_table() -> None:
    channel = optimal_channel(1.0, levels=3, utility=np.ones((3, 3)))
    assert channel.expected_cost(None, np.ones((3, 3))) == pytest.approx(1.0)


@pytest.mark.parametrize("found", ["nothing", "a bad table"])
def test_of_two_tables_the_one_that_costs_less_is_taken(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the general program finds nothing, or nothing better, the mixture is used."""
    constant = [[WHOLE, 0, 0]] * 3
    monkeypatch.setattr(program, "round_approximate", lambda *_: None if found == "nothing" else constant)
    channel = optimal_channel(1.0, 0.01, levels=3)
    pure = optimal_channel(1.0, levels=3)
    assert channel.expected_cost() < pure.expected_cost() < 5 / 6  # which is what the constant costs
