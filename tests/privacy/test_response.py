"""Randomised response over sets and windows: what is drawn has the stated law, and a near miss is seen."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy.stats import chi2

from scoreshield.errors import InvalidInput
from scoreshield.privacy.response import SetResponse, Symbols, WindowResponse
from scoreshield.privacy.sampling.stream import ResearchStream, SecureStream

DRAWS = 200_000


def make_stream(seed: int = 1) -> ResearchStream:
    return ResearchStream(np.random.default_rng(seed))


def list_symbols(response: SetResponse) -> list[tuple[tuple[int, int], ...]]:
    """All symbols of an alphabet, as pairs of a name and a level."""
    sets = itertools.combinations(range(response.names), response.size)
    levels = list(itertools.product(range(response.levels), repeat=response.size))
    found = [tuple(zip(names, chosen, strict=True)) for names in sets for chosen in levels]
    return found + ([((-1, -1),) * response.size] if response.has_bottom else [])


def draw_counts(response: SetResponse, symbol: tuple[tuple[int, int], ...], seed: int) -> np.ndarray:
    """How often each symbol is drawn for records that all have the same one."""
    names, levels = (np.tile([pair[part] for pair in symbol], (DRAWS, 1)) for part in (0, 1))
    drawn = response.release(make_stream(seed), Symbols(names, levels))
    rows = np.stack([drawn.names, drawn.levels], axis=2).reshape(DRAWS, -1)
    seen = Counter(map(tuple, rows.tolist()))
    assert sum(seen.values()) == DRAWS
    symbols = list_symbols(response)
    counts = [seen.pop(tuple(itertools.chain.from_iterable(one)), 0) for one in symbols]
    assert not seen  # nothing outside the alphabet
    return np.array(counts)


def compute_statistic(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(((counts - expected * DRAWS) ** 2 / (expected * DRAWS)).sum())


ALPHABETS = [
    SetResponse(1.0, names=4),
    SetResponse(0.7, names=3, levels=2, has_bottom=True),
    SetResponse(1.5, names=5, size=2),
    SetResponse(2.0, names=4, size=2, levels=2),
    SetResponse(2.0, names=4, size=3, levels=1, has_bottom=True),
    SetResponse(1.0, names=2, size=2, levels=3),
]


@pytest.mark.parametrize("response", ALPHABETS, ids=repr)
def test_sets_follow_the_law(response: SetResponse) -> None:
    """A chi-square test over all symbols, at a false-alarm rate of 1e-8; 3 % more epsilon is seen."""
    symbols = list_symbols(response)
    assert len(symbols) == response.symbols
    limit = chi2.isf(1e-8, len(symbols) - 1)
    for seed, true in enumerate((0, len(symbols) - 1)):
        counts = draw_counts(response, symbols[true], seed)
        for epsilon, is_right in ((response.epsilon, True), (response.epsilon + 0.05, False)):
            weights = np.ones(len(symbols))
            weights[true] = math.exp(epsilon)
            statistic = compute_statistic(counts, weights / weights.sum())
            assert (statistic < limit) == is_right


def test_order_of_the_truth_is_not_shown() -> None:
    """A set is released in increasing order of its names, however the caller ordered it, and levels go with it."""
    response = SetResponse(40.0, names=9, size=3, levels=4)
    drawn = response.release(make_stream(), Symbols(np.array([[7, 2, 5]]), np.array([[3, 0, 1]])))
    assert drawn.names.tolist() == [[2, 5, 7]]
    assert drawn.levels.tolist() == [[0, 1, 3]]


def test_same_words_for_every_record() -> None:
    """The stream ends at the same place whatever the true symbols are."""
    response = SetResponse(1.0, names=8, size=2, levels=2, has_bottom=True)
    ends = []
    for names, levels in (([[0, 1]], [[0, 0]]), ([[6, 7]], [[1, 1]]), ([[-1, -1]], [[-1, -1]])):
        stream = make_stream(3)
        response.release(stream, Symbols(np.repeat(names, 50, axis=0), np.repeat(levels, 50, axis=0)))
        ends.append(stream.words(1)[0])
    assert ends[0] == ends[1] == ends[2]


@pytest.mark.parametrize("response", [*ALPHABETS, SetResponse(20.0, names=2600, size=2), SetResponse(60.0, 5000, 6, 5)])
def test_stated_numbers_agree_with_high_precision(response: SetResponse) -> None:
    """Truth, uniform share and false names agree with their formulas in fifty digits."""
    with mpmath.workdps(50):
        power = mpmath.exp(mpmath.mpf(response.epsilon))
        total = power + response.symbols - 1
        assert math.isclose(response.truth, float(power / total), rel_tol=1e-11)
        assert math.isclose(response.uniform, float(response.symbols / total), rel_tol=1e-11)
        named = mpmath.mpf(response.symbols - int(response.has_bottom)) / response.symbols
        false = response.symbols / total * named * response.size / response.names
        assert math.isclose(response.false_names, float(false), rel_tol=1e-11)
        low, high = (int(end) for end in _enclose_keep(response))
        keep = (power - 1) / total * mpmath.mpf(2) ** 100
        assert low <= keep <= high <= low + 3


def _enclose_keep(response: SetResponse) -> tuple[int, int]:
    from scoreshield.privacy.sampling import discrete

    return discrete.enclose(response._keep_probability())(100)


@pytest.mark.parametrize("response", ALPHABETS, ids=repr)
def test_set_profile_is_exact(response: SetResponse) -> None:
    """The profile is that of two rows of the table, summed symbol by symbol."""
    for epsilon in (0.0, 0.3, response.epsilon * 0.9, response.epsilon):
        power, n = math.exp(response.epsilon), response.symbols
        first = [power, 1.0, *[1.0] * (n - 2)]
        second = [1.0, power, *[1.0] * (n - 2)]
        total = power + n - 1
        true = sum(max(0.0, p - math.exp(epsilon) * q) for p, q in zip(first, second, strict=True)) / total
        assert response.profile.delta_at(epsilon) == pytest.approx(true, abs=1e-12)
        assert response.profile.delta_at(epsilon) >= true - 1e-15


@pytest.mark.parametrize("response", [WindowResponse(1.0, 7, 2), WindowResponse(1.3, 5, 4), WindowResponse(0.5, 6, 1)])
def test_windows_follow_the_law(response: WindowResponse) -> None:
    """A chi-square test over all cells, for windows at both ends; a slightly larger epsilon is seen."""
    limit = chi2.isf(1e-8, response.cells - 1)
    for start in (0, response.cells - response.window):
        cells = response.release(make_stream(start), np.full(DRAWS, start))
        counts = np.bincount(cells, minlength=response.cells)
        for epsilon, is_right in ((response.epsilon, True), (response.epsilon + 0.08, False)):
            weights = np.ones(response.cells)
            weights[start : start + response.window] = math.exp(epsilon)
            assert (compute_statistic(counts, weights / weights.sum()) < limit) == is_right
        inside = (cells >= start) & (cells < start + response.window)
        assert inside.mean() == pytest.approx(response.truth, abs=5.5 * math.sqrt(0.25 / DRAWS))


@pytest.mark.parametrize("response", [WindowResponse(1.0, 7, 2), WindowResponse(1.3, 5, 4), WindowResponse(2.0, 4, 2)])
def test_window_profile_is_exact(response: WindowResponse) -> None:
    """The profile is the largest over all pairs of windows, summed cell by cell."""
    tables = []
    for start in range(response.cells - response.window + 1):
        weights = np.ones(response.cells)
        weights[start : start + response.window] = math.exp(response.epsilon)
        tables.append(weights / weights.sum())
    for epsilon in (0.0, 0.4, response.epsilon * 0.95, response.epsilon):
        true = max(np.maximum(p - math.exp(epsilon) * q, 0).sum() for p in tables for q in tables)
        assert response.profile.delta_at(epsilon) == pytest.approx(true, abs=1e-12)


def test_secure_stream_serves() -> None:
    response = SetResponse(3.0, names=100, size=3, levels=5)
    true = Symbols(np.tile([1, 2, 3], (1000, 1)), np.zeros((1000, 3), dtype=np.int64))
    drawn = response.release(SecureStream(), true)
    assert (np.diff(drawn.names, axis=1) > 0).all()
    assert len(np.unique(drawn.names)) > 50


def test_alphabets_beyond_64_bits() -> None:
    """The number of symbols is a whole number of any size, and its probabilities are exact all the same."""
    response = SetResponse(60.0, names=5000, size=6, levels=5)
    assert response.symbols == math.comb(5000, 6) * 5**6 > 2**64
    true = Symbols(np.tile(np.arange(6), (4000, 1)), np.zeros((4000, 6), dtype=np.int64))
    drawn = response.release(make_stream(), true)
    kept = (drawn.names == true.names).all(axis=1).sum()
    mean = float(Fraction(response.truth) * 4000)
    assert abs(kept - mean) < 5.5 * math.sqrt(mean * (1 - response.truth)) + 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"epsilon": 0.0, "names": 3}, "epsilon"),
        ({"epsilon": 1.0, "names": 0}, "names"),
        ({"epsilon": 1.0, "names": 3, "size": 4}, "at most the number of names, 3"),
        ({"epsilon": 1.0, "names": 3, "size": True}, "size"),
        ({"epsilon": 1.0, "names": 1}, "One symbol says nothing"),
        ({"epsilon": 1.0, "names": 10**6, "size": 200, "levels": 50}, "ask for smaller sets"),
        ({"epsilon": 1.0, "names": 10**6, "size": 400_000}, "at most 256, so that drawing a set takes little time"),
    ],
)
def test_bad_alphabets(arguments: dict, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        SetResponse(**arguments)


def test_profile_of_large_alphabets_is_rounded_up() -> None:
    """The mass of the profile is never below the true probability of the truth, for alphabets up to e^590."""
    rng = np.random.default_rng(5)
    for _ in range(300):
        size = int(rng.integers(1, 60))
        response = SetResponse(float(rng.uniform(1, 600)), names=int(rng.integers(size + 1, 10**5)), size=size)
        if response.log_symbols > 590:
            continue
        with mpmath.workdps(400):
            power = mpmath.exp(mpmath.mpf(response.epsilon))
            true = power / (power + response.symbols - 1)
            assert min(mpmath.mpf(response.profile.mass) * (1 + mpmath.mpf(2) ** -45), 1) >= true


def test_symbols_outside_the_alphabet() -> None:
    """A true symbol that is not in the alphabet is an error, which shows no symbol."""
    response = SetResponse(1.0, names=4, size=2, levels=2)
    for names, levels in (([[0, 4]], [[0, 0]]), ([[1, 1]], [[0, 0]]), ([[0, 1]], [[0, 2]]), ([[-1, -1]], [[-1, -1]])):
        with pytest.raises(ValueError, match="not one of this alphabet"):
            response.release(make_stream(), Symbols(np.array(names), np.array(levels)))
    with pytest.raises(ValueError, match="of shape"):
        response.release(make_stream(), Symbols(np.array([0, 1]), np.array([0, 0])))
    with pytest.raises(ValueError, match="does not lie in the cells"):
        WindowResponse(1.0, 5, 2).release(make_stream(), np.array([4]))


def test_bad_windows() -> None:
    with pytest.raises(InvalidInput, match="less than the number of cells, 5"):
        WindowResponse(1.0, 5, 5)
