"""Histograms and selections at the ends of what they take: whole guarantees, and what is made of each draw."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from release_support import PEOPLE, QUERY, ROWS, Account

import scoreshield as ss
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.noise import StaircaseNoise, choose_grid_step
from scoreshield.privacy.profiles import GaussianProfile, PureProfile, round_down
from scoreshield.privacy.sampling import discrete
from scoreshield.privacy.sampling.stream import Stream, open_stream
from scoreshield.releases import histogram, matches, top_k


def quiet(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float, int]]:
    """Let the noise on counts be 0, -1, 2, -3, ...; returns the list of what it is asked for."""
    asked: list[tuple[str, float, int]] = []

    def numbers(count: int) -> np.ndarray:
        return np.arange(count) * np.resize([1, -1], count)

    def geometric(stream: Stream, rate: float, count: int) -> np.ndarray:
        asked.append((stream.name, rate, count))
        return numbers(count)

    def gaussian(stream: Stream, scale: float, out: np.ndarray) -> None:
        asked.append((stream.name, scale, len(out)))
        out[:] = numbers(len(out))

    monkeypatch.setattr(histogram, "_two_sided_geometric", geometric)
    monkeypatch.setattr(histogram, "fill_rounded_gaussian", gaussian)
    return asked


# Histograms


@pytest.mark.parametrize("query", [QUERY, QUERY[None], None])
@pytest.mark.parametrize("mechanism", ["geometric", "gaussian"])
@pytest.mark.parametrize("adjacency", [ss.Replacement(), PEOPLE])
def test_a_histogram_states(query: Any, mechanism: str, adjacency: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole guarantee, what the account is asked for, and the noise: added to the counts, of the stated scale."""
    asked, account = quiet(monkeypatch), Account()
    n = 4 if adjacency is PEOPLE else 5
    moved, scores = (n - 1, n * (n - 1) // 2) if query is None else (1, n)
    pure = mechanism == "geometric"
    delta, sensitivity = (0.0, 2.0 * moved) if pure else (1e-6, math.sqrt(2) * moved)
    scale = 2.0 * moved / 0.5 * (1 + 2**-48) if pure else ss.calibrate(0.5, 1e-6, sensitivity)
    release = ss.release_histogram(
        ROWS,
        query,
        bins=3,
        epsilon=0.5,
        delta=delta,
        mechanism=mechanism,
        adjacency=adjacency,
        score_range=(-0.9, 0.9),
        rng=3,
        ledger=account,
    )
    assert release.guarantee == Guarantee(
        epsilon=0.5,
        delta=delta,
        mechanism=mechanism,
        calibration="pure" if pure else "analytic",
        adjacency=adjacency.drop_labels(),
        regime="histogram",
        shape=(3,),
        score_range=(-0.9, 0.9),
        sensitivity=sensitivity,
        grid_sensitivity=sensitivity,
        scale=scale,
        grid=1.0,
        noise=None,
        profile=PureProfile(0.5) if pure else GaussianProfile(sensitivity / scale),
        sampler="research",
        details={"scores": scores},
    )
    assert type(release.guarantee.sensitivity) is float
    assert type(release.guarantee.details["scores"]) is int
    assert account.paid
    assert account.guarantees == [release.guarantee]
    assert account.adjacency is adjacency
    assert asked == [("research", 1 / scale if pure else scale, 3)]
    assert release.edges == pytest.approx([-0.9, -0.3, 0.3, 0.9])
    assert release.counts.sum() == scores + (0 - 1 + 2)
    assert release.counts.dtype == np.int64
    if query is not None and adjacency is not PEOPLE:
        assert release.counts.tolist() == [2, 1 - 1, 2 + 2]


def test_defaults_of_a_histogram(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 equal bins over all cosines, pure, and from the secure stream."""
    quiet(monkeypatch)
    g = ss.release_histogram(ROWS, QUERY, epsilon=1).guarantee
    assert (g.shape, g.mechanism, g.delta, g.score_range) == ((64,), "geometric", 0.0, (-1.0, 1.0))
    assert (g.adjacency, g.sampler, g.epsilon) == (ss.Replacement(), "exact", 1.0)


def test_scores_on_an_edge_count_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bins are (left, right]; what lies outside all of them counts at the ends."""
    quiet(monkeypatch)
    noise = np.array([0, -1, 2, -3])
    for edges, clean in (
        ([-1.0, 0.0, 1.0], [3, 2]),
        ([-0.5, 0.0, 0.5], [3, 2]),
        ([-1.0, -0.5, 0.0, 0.5], [2, 1, 2]),
        ([-5, -1, 0, 1, 2], [1, 2, 2, 0]),
        ([-0.5, 0.5, 0.9, 2.0], [3, 1, 1]),
    ):
        release = ss.release_histogram(ROWS, QUERY, bins=edges, epsilon=1)
        assert (release.counts - noise[: len(clean)]).tolist() == clean
        assert release.edges.tolist() == edges
        assert release.edges.dtype == np.float64


def test_a_short_row_may_stay_short(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet(monkeypatch)
    rows = ROWS * 0.5  # cosines stay; in the ball: 1, 0.8, 0, -0.6, -0.5
    ball = ss.release_histogram(rows, QUERY, bins=[-1.0, -0.55, 0.0, 1.0], epsilon=1, norm="ball")
    unit = ss.release_histogram(rows, QUERY, bins=[-1.0, -0.55, 0.0, 1.0], epsilon=1)
    assert ball.counts.tolist() == [1, 2 - 1, 2 + 2]
    assert unit.counts.tolist() == [2, 1 - 1, 2 + 2]
    with pytest.raises(ss.InvalidInput, match="All pairs"):
        ss.release_histogram(rows, None, epsilon=1, norm="ball")


@pytest.mark.parametrize("rows_at_once", [1, 2, 3, 5, 1024])
def test_each_pair_counts_once(rows_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet(monkeypatch)
    monkeypatch.setattr(histogram, "_ROWS", rows_at_once)
    unit = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
    pairs = sorted(float(unit[i] @ unit[j]) for i in range(5) for j in range(i))
    release = ss.release_histogram(ROWS, None, bins=[-1.0, -0.5, 0.5, 1.0], epsilon=1)
    wanted = [sum(low < s <= high for s in pairs) for low, high in ((-2, -0.5), (-0.5, 0.5), (0.5, 2))]
    assert (release.counts - [0, -1, 2]).tolist() == wanted
    assert min(wanted) > 0


@pytest.mark.parametrize(
    "bins",
    [1, 0, -1, 1_000_001, True, 2.0, "2", None, [0.0, 1.0], [[0.0, 0.5, 1.0]], [0.0, 0.5, 0.5], [0.0, 0.5, math.inf],
     [-math.inf, 0.0, 0.5], [0.0, math.nan, 0.5], [False, True, True], ["a", "b", "c"], [0, 1j, 2], [1.0, 0.5, 0.0]],
)  # fmt: skip
def test_bins_that_are_none(bins: Any) -> None:
    with pytest.raises(ss.InvalidInput, match="'bins'"):
        histogram.find_edges(bins, -1.0, 1.0)


def test_bins_at_the_ends() -> None:
    assert histogram.find_edges(2, -1.0, 0.5).tolist() == [-1.0, -0.25, 0.5]
    assert histogram.find_edges(np.int64(2), -1.0, 0.5).tolist() == [-1.0, -0.25, 0.5]
    assert len(histogram.find_edges(1_000_000, -1.0, 1.0)) == 1_000_001
    for edges in ([0, 1, 2], np.array([0, 1, 2], dtype=np.uint8), np.array([0, 1, 2], dtype=np.float16)):
        found = histogram.find_edges(edges, -1.0, 1.0)
        assert found.dtype == np.float64
        assert found.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("rows", "query", "options", "says"),
    [
        (ROWS, np.stack([QUERY, QUERY]), {}, "one query"),
        (ROWS[:1], None, {}, "two records"),
        (ROWS, QUERY, {"adjacency": ss.Identity([0, 0, 1, 2, 3])}, "single records"),
        (ROWS, None, {"adjacency": ss.Identity([0, 0, 1, 2, 3])}, "single records"),
        (ROWS, QUERY, {"norm": "cube"}, "'norm'"),
        (ROWS, QUERY, {"score_range": (0.5, 0.5)}, "'score_range'"),
        (ROWS, QUERY, {"delta": 1e-9}, "'delta'"),
        (ROWS, QUERY, {"mechanism": "gaussian", "delta": 0.0}, "'delta'"),
        (ROWS, QUERY, {"rng": -1}, "'rng'"),
        (ROWS[:3], None, {"epsilon": math.nextafter(2.0**-29, 0)}, "larger than any"),
        (ROWS, QUERY, {"epsilon": 1e-9, "delta": 1e-12, "mechanism": "gaussian"}, "larger than any"),
    ],
)
def test_histograms_that_are_none(rows: Any, query: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ss.InvalidInput, match=says):
        ss.release_histogram(rows, query, **{"epsilon": 1.0, **options})


def test_histograms_at_the_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """One record and a query; noise of a scale of 2^31, exactly."""
    quiet(monkeypatch)
    assert ss.release_histogram(ROWS[:1], QUERY, bins=2, epsilon=1).counts.tolist() == [0, 1 - 1]
    assert ss.release_histogram(ROWS[:2], None, bins=2, epsilon=1).guarantee.details == {"scores": 1}
    large = ss.release_histogram(ROWS[:3], None, epsilon=2.0**-29 * (1 + 2**-48))
    assert large.guarantee.scale == 2.0**31


def test_a_zero_with_a_minus_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = [([3, 0, 0, 2], [True, True, False, False]), ([0], [True]), ([5], [True])]
    asked = []

    def geometric(stream: Stream, rate: float, count: int) -> tuple[np.ndarray, np.ndarray]:
        assert stream.name == "research"
        asked.append((rate, count))
        size, minus = drawn[len(asked) - 1]
        return np.array(size), np.array(minus)

    monkeypatch.setattr(discrete, "draw_geometric", geometric)
    found = histogram._two_sided_geometric(open_stream(1), 0.25, 4)
    assert found.tolist() == [-3, -5, 0, 2]
    assert found.dtype == np.int64
    assert asked == [(0.25, 4), (0.25, 1), (0.25, 1)]


# Screening


@pytest.mark.parametrize("refine", [0.0, 0.25])
@pytest.mark.parametrize("adjacency", [ss.Replacement(), PEOPLE])
def test_a_screening_states(refine: float, adjacency: Any) -> None:
    """The whole guarantee and what the account is asked for."""
    account = Account()
    release = ss.release_matches(
        ROWS, QUERY, 0.1, epsilon=2, refine=refine, adjacency=adjacency, score_range=(-0.5, 0.7), rng=2, ledger=account
    )
    step, scale = 2.0**-20, 1.0
    if refine:
        step = choose_grid_step(StaircaseNoise.calibrate(0.5, 0.7 - 0.1).std)
        width = max(round(0.7 / step) - round(0.1 / step), math.ceil((0.7 - 0.1) / step)) * step
        scale = StaircaseNoise.calibrate(0.5, width, step).std
    assert release.guarantee == Guarantee(
        epsilon=2.0,
        delta=0.0,
        mechanism="screen-and-refine" if refine else "randomised-response",
        calibration="pure",
        adjacency=adjacency.drop_labels(),
        regime="matches",
        shape=(4 if adjacency is PEOPLE else 5,),
        score_range=(-0.5, 0.7),
        sensitivity=1.0,
        grid_sensitivity=1.0,
        scale=scale,
        grid=step,
        noise=None,
        profile=PureProfile(2.0),
        sampler="research",
        details={
            "threshold": 0.1,
            "screening_epsilon": 1.5 if refine else 2.0,
            "refining_epsilon": 0.5 if refine else 0.0,
        },
    )
    assert account.paid
    assert account.guarantees == [release.guarantee]
    assert account.adjacency is adjacency


@pytest.mark.parametrize(
    "release", [ss.release_matches, lambda *a, **k: matches.prepare_matches(*a, **k).release(None)]
)
def test_defaults_of_a_screening(release: Any) -> None:
    g = release(ROWS, QUERY, 0.1, epsilon=2).guarantee
    assert (g.mechanism, g.score_range, g.adjacency) == ("randomised-response", (-1.0, 1.0), ss.Replacement())
    assert (g.sampler, g.shape, g.details["refining_epsilon"]) == ("exact", (5,), 0.0)
    # The norm is that of whole rows: half as long, they have the same scores.
    assert release(ROWS / 2, QUERY, 0.5, epsilon=200).candidates.tolist() == [0, 1]


def test_a_screen_keeps_or_flips(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record passes if its score is above the threshold, and not if it is equal, unless its coin falls."""
    asked = []

    def kept(stream: Stream, epsilon: float, count: int) -> np.ndarray:
        assert stream.name in ("exact", "research")
        asked.append((epsilon, count))
        return np.array(coins)

    monkeypatch.setattr(matches, "_keep_bits", kept)
    coins = [True] * 5
    assert ss.release_matches(ROWS, QUERY, 0.0, epsilon=2).candidates.tolist() == [0, 1]
    coins = [True, False, False, True, False]
    assert ss.release_matches(ROWS, QUERY, 0.0, epsilon=2).candidates.tolist() == [0, 2, 4]
    assert ss.release_matches(ROWS, QUERY, 0.0, epsilon=2, refine=0.25, rng=1).candidates.tolist() == [0, 2, 4]
    assert asked == [(2.0, 5), (2.0, 5), (1.5, 5)]


def test_refined_scores_clamped_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """To [threshold, upper end]: a record that a coin let pass has the threshold for its score."""
    seen: list[Any] = []

    def add_noise(values: np.ndarray, law: Any, step: float, stream: Stream) -> None:
        seen.append((values.copy(), law, step, stream))
        values += 1.0

    monkeypatch.setattr(matches, "_keep_bits", lambda *_: np.array([True, True, False, False, True]))
    monkeypatch.setattr(matches, "add_noise", add_noise)
    monkeypatch.setattr(matches, "draw_tie_break", lambda stream: {"research": 17}[stream.name])
    release = ss.release_matches(ROWS, QUERY, 0.25, epsilon=2, refine=0.5, score_range=(-0.5, 0.9), rng=1)
    ((values, law, step, stream),) = seen
    assert release.candidates.tolist() == [0, 1, 2, 3]
    assert values == pytest.approx([0.9, 0.8, 0.25, 0.25])
    assert release.noisy == pytest.approx([1.9, 1.8, 1.25, 1.25])
    assert law.epsilon == 1.0
    assert (step, law.std) == (release.guarantee.grid, release.guarantee.scale)
    assert stream.name == "research"
    assert release.tie_break == 17
    plain = ss.release_matches(ROWS, QUERY, 0.25, epsilon=2, rng=1)
    assert plain.noisy.tolist() == []
    assert len(seen) == 1


def test_a_short_row_may_stay_short_in_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matches, "_keep_bits", lambda *_: np.full(5, True))
    assert ss.release_matches(ROWS / 4, QUERY, 0.6, epsilon=2).candidates.tolist() == [0, 1]
    assert ss.release_matches(ROWS / 4, QUERY, 0.6, epsilon=2, norm="ball").candidates.tolist() == [1]


@pytest.mark.parametrize(
    ("threshold", "options", "says"),
    [
        (0.5, {"score_range": (-0.5, 0.5)}, "'threshold'"),
        (math.nextafter(-0.5, -1), {"score_range": (-0.5, 0.5)}, "'threshold'"),
        ("0", {}, "'threshold'"),
        (0.0, {"refine": 1.0}, "'refine'"),
        (0.0, {"refine": -1e-9}, "'refine'"),
        (0.0, {"refine": "0"}, "'refine'"),
        (0.0, {"refine": 0.999, "epsilon": 1e-8}, "'epsilon'"),
        (0.0, {"refine": 1e-9, "epsilon": 1e-3}, "'epsilon'"),
        (0.0, {"epsilon": 1e-10}, "'epsilon'"),
        (0.0, {"norm": "cube"}, "'norm'"),
        (0.0, {"rng": -1}, "'rng'"),
        (0.0, {"adjacency": ss.Identity([0, 0, 1, 2, 3])}, "one score"),
    ],
)
def test_screens_that_are_none(threshold: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ss.InvalidInput, match=says):
        ss.release_matches(ROWS, QUERY, threshold, **{"epsilon": 1.0, **options})


def test_screens_at_the_ends() -> None:
    g = ss.release_matches(ROWS, QUERY[None], -0.5, epsilon=1, score_range=(-0.5, 0.5), refine=0).guarantee
    assert g.details["threshold"] == -0.5
    with pytest.raises(ss.InvalidInput, match="one query"):
        ss.release_matches(ROWS, np.stack([QUERY, QUERY]), 0.0, epsilon=1)


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.7, 2.9, 1e-3])
def test_two_budgets_within_epsilon_last_bit(epsilon: float) -> None:
    """Two budgets are within epsilon to the last bit."""
    for share in (0.1, 0.3, 0.7, 1 / 3, 0.9):
        told = matches.prepare_matches(ROWS, QUERY, 0.0, epsilon=epsilon, refine=share).guarantee.details
        spent = Fraction(told["screening_epsilon"]) + Fraction(told["refining_epsilon"])
        assert spent <= Fraction(epsilon)
        # No float between the refining budget and what is left.
        more = Fraction(math.nextafter(told["refining_epsilon"], math.inf))
        assert Fraction(told["screening_epsilon"]) + more > Fraction(epsilon)
        assert told["screening_epsilon"] == epsilon * (1 - share)


def test_the_largest_float_that_is_not_above() -> None:
    third = float(Fraction(1, 3))
    assert third < Fraction(1, 3)
    assert round_down(Fraction(1, 3)) == third
    assert round_down(Fraction(2, 3) - Fraction(1, 2**80)) == float(Fraction(2, 3))
    above = Fraction(1) - Fraction(1, 2**60)  # rounds up to 1
    assert round_down(above) == math.nextafter(1.0, 0)
    assert round_down(Fraction(1, 4)) == 0.25


# The k best


@pytest.mark.parametrize("mechanism", ["permute-and-flip", "gumbel"])
@pytest.mark.parametrize("adjacency", [ss.Replacement(), PEOPLE])
def test_a_selection_states(mechanism: str, adjacency: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole guarantee, and what each of the rounds is given: rounded scores of who is left, and the scale."""
    account, asked = Account(), []

    def choose(stream: Stream, steps: np.ndarray, scale: float) -> int:
        asked.append((stream.name, steps.copy(), scale))
        return 1

    other = "gumbel" if mechanism == "permute-and-flip" else "permute-and-flip"
    monkeypatch.setattr(top_k, "_" + mechanism.replace("-", "_"), choose)
    monkeypatch.setattr(top_k, "_" + other.replace("-", "_"), None)
    release = ss.release_top_k(
        ROWS,
        QUERY,
        3,
        epsilon=1.5,
        mechanism=mechanism,
        adjacency=adjacency,
        score_range=(-0.7, 0.9),
        rng=2,
        ledger=account,
    )
    step = choose_grid_step(1.6 / 0.5)
    width = max(round(0.9 / step) - round(-0.7 / step), math.ceil((0.9 - -0.7) / step))
    n = 4 if adjacency is PEOPLE else 5
    assert release.guarantee == Guarantee(
        epsilon=1.5,
        delta=0.0,
        mechanism=mechanism,
        calibration="pure",
        adjacency=adjacency.drop_labels(),
        regime="top-k",
        shape=(3,),
        score_range=(-0.7, 0.9),
        sensitivity=0.9 - -0.7,
        grid_sensitivity=width * step,
        scale=(0.9 - -0.7) / 0.5,
        grid=step,
        noise=None,
        profile=PureProfile(1.5),
        sampler="research",
        details={
            "selections": 3,
            "epsilon_for_each": 0.5,
            "records": n,
            "reason": top_k._REASONS[mechanism],
        },
    )
    assert account.paid
    assert account.guarantees == [release.guarantee]
    assert account.adjacency is adjacency
    assert release.indices.tolist() == [1, 2, 3]
    assert release.indices.dtype == np.intp
    assert [name for name, _, _ in asked] == ["research"] * 3
    assert {scale for _, _, scale in asked} == {width / 0.5 * (1 + 2**-48)}
    if adjacency is not PEOPLE:
        clean = np.array([0.9, 0.8, 0.0, -0.6, -0.7])
        for (_, steps, _), left in zip(asked, ([0, 1, 2, 3, 4], [0, 2, 3, 4], [0, 3, 4]), strict=True):
            assert np.array_equal(steps, np.rint(steps))
            assert steps * step == pytest.approx(clean[left], abs=step)


def test_defaults_of_a_selection() -> None:
    g = ss.release_top_k(ROWS, QUERY, 2, epsilon=2).guarantee
    assert (g.mechanism, g.score_range, g.adjacency) == ("permute-and-flip", (-1.0, 1.0), ss.Replacement())
    assert (g.sampler, g.shape, g.epsilon) == ("exact", (2,), 2.0)


def test_short_rows_may_stay_short_in_a_selection() -> None:
    assert ss.release_top_k(ROWS / 4, QUERY, 5, epsilon=1e6).indices.tolist() == [0, 1, 2, 3, 4]
    assert ss.release_top_k(ROWS / 4, QUERY, 5, epsilon=1e6, norm="ball").indices.tolist() == [1, 0, 2, 4, 3]


@pytest.mark.parametrize(
    ("k", "options", "says"),
    [
        (6, {}, "'k'"),
        (0, {}, "'k'"),
        (5, {"adjacency": PEOPLE}, "'k'"),
        (1, {"mechanism": "laplace"}, "'mechanism'"),
        (1, {"norm": "cube"}, "'norm'"),
        (1, {"score_range": (0.0, 0.0)}, "'score_range'"),
        (1, {"adjacency": ss.Identity([0, 0, 1, 2, 3])}, "one score"),
        (1, {"rng": -1}, "'rng'"),
        (1, {"epsilon": 1e10}, "'epsilon'"),
    ],
)
def test_selections_that_are_none(k: int, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ss.InvalidInput, match=says):
        ss.release_top_k(ROWS, QUERY, k, **{"epsilon": 1.0, **options})


class Script:
    """The exact samplers with scripted results, and what they were asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, below: list[list[int]], geometric: list[list[int]]) -> None:
        self.asked: list[Any] = []
        numbers, sizes = iter(below), iter(geometric)

        def draw_below(stream: Stream, bounds: np.ndarray) -> np.ndarray:
            assert stream.name == "research"
            self.asked.append(("below", bounds.tolist()))
            return np.array(next(numbers))

        def draw_geometric(stream: Stream, rate: float, count: int) -> tuple[np.ndarray, np.ndarray]:
            assert stream.name == "research"
            self.asked.append(("geometric", rate, count))
            return np.array(next(sizes)), np.zeros(count, dtype=bool)

        monkeypatch.setattr(discrete, "draw_below", draw_below)
        monkeypatch.setattr(discrete, "draw_geometric", draw_geometric)


def test_a_proposal_is_accepted_from_its_gap_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four proposals per record at a time: the first whose draw reaches its gap to the best, in either block."""
    steps = np.array([5.0, 8.0])  # gaps 3 and 0
    script = Script(monkeypatch, [[0] * 8, [0, 0, 0, 1, 0, 0, 1, 1]], [[2] * 8, [2, 2, 3, 9, 9, 9, 9, 9]])
    assert top_k._gumbel(open_stream(1), steps, 4.0) == 0
    assert script.asked == [("below", [2] * 8), ("geometric", 0.25, 8)] * 2
    script = Script(monkeypatch, [[0, 0, 0, 1, 0, 0, 1, 1]], [[2, 2, 2, 0, 9, 9, 9, 9]])
    assert top_k._gumbel(open_stream(1), steps, 4.0) == 1


def test_the_first_heads_in_a_random_order_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = np.array([5.0, 8.0, 7.0])  # gaps 3, 0 and 1; the keys put them in the order 2, 0, 1
    for drawn, winner in (([1, 0, 0], 2), ([0, 3, 0], 0), ([0, 2, 0], 1)):
        script = Script(monkeypatch, [[20, 30, 10]], [drawn])
        assert top_k._permute_and_flip(open_stream(1), steps, 4.0) == winner
        assert script.asked == [("below", [2**62] * 3), ("geometric", 0.25, 3)]


def test_equal_keys_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, [[5, 7, 5], [2, 3, 3], [9, 1, 4]], [])
    assert top_k._random_order(open_stream(1), 3).tolist() == [1, 2, 0]
    assert len(script.asked) == 3


def test_coins_of_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of probability e^epsilon / (1 + e^epsilon): ln 3 gives 3 / 4, up to the rounding of ln 3."""
    seen: list[Any] = []
    monkeypatch.setattr(discrete, "flip_coins", lambda *given: seen.append(given) or np.ones(7, dtype=bool))
    stream = open_stream(1)
    assert matches._keep_bits(stream, math.log(3), 7).all()
    ((given, enclosure, count),) = seen
    assert given is stream
    assert count == 7
    low, high = enclosure(64)
    assert low <= high <= low + 2
    assert low / 2**64 == pytest.approx(0.75, rel=1e-15)
