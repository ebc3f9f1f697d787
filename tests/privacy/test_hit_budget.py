"""The hit budget: exact likelihood ratios over all adaptive transcripts, and near misses that break them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import mpmath
import numpy as np
import pytest

import scoreshield as ss
from scoreshield.privacy.hit_budget import MOST_HITS, HitBudget, name_records
from scoreshield.privacy.levels.program import WHOLE
from scoreshield.privacy.sampling.stream import ResearchStream

#: What a record does in a round: whether it is named, and its counter afterwards.
Move = Callable[[HitBudget, bool, int, bool], int]


class Script:
    """A stream that says whether records are named: a large word names, a small one does not."""

    name = "research"

    def __init__(self, *words: int) -> None:
        self._words = list(words)

    def words(self, count: int) -> np.ndarray:
        taken, self._words = self._words[:count], self._words[count:]
        assert len(taken) == count
        return np.array(taken, dtype=np.uint64).view(np.int64)


def word(uniform: int) -> int:
    """The word whose upper 62 bits are this number."""
    return uniform << 2


NAMED, NOT_NAMED = word(WHOLE - 1), word(0)


def run_round(budget: HitBudget, is_hot: bool, used: int, uniform: int) -> tuple[bool, int]:
    counters = np.array([used], dtype=np.uint8)
    named = budget.draw_round(Script(uniform), np.array([is_hot]), counters)
    return bool(named[0]), int(counters[0])


@functools.cache
def law(budget: HitBudget, is_hot: bool, used: int) -> Fraction:
    """The exact probability that the code names a record, found by asking for the words around each weight."""
    for weight in budget.weights:
        edge = WHOLE - weight
        if run_round(budget, is_hot, used, word(edge))[0] and not run_round(budget, is_hot, used, word(edge - 1))[0]:
            return Fraction(weight, WHOLE)
    raise AssertionError("no weight fits")


def real_move(budget: HitBudget, is_hot: bool, used: int, is_named: bool) -> int:
    return run_round(budget, is_hot, used, NAMED if is_named else NOT_NAMED)[1]


def find_worst_ratio(budget: HitBudget, rounds: int, *, is_null: bool, move: Move = real_move) -> Fraction:
    """The largest likelihood ratio of two records over all transcripts of an adversary who chooses each round.

    The adversary chooses the query of each round after the earlier answers. What it can bring about in a round is that
    either record is hot or not, so all combinations are tried. Ratios multiply along a transcript.
    """

    either = (False, True)

    def search(first_hot: tuple[bool, ...], second_hot: tuple[bool, ...]) -> Fraction:
        @functools.cache
        def worst(left: int, used: int, other: int) -> Fraction:
            if left == 0:
                return Fraction(1)
            best = Fraction(0)
            for is_hot, is_other_hot in itertools.product(first_hot, second_hot):
                first, second = law(budget, is_hot, used), law(budget, is_other_hot, other)
                for is_named in (False, True):
                    ratio = first / second if is_named else (1 - first) / (1 - second)
                    now, then = move(budget, is_hot, used, is_named), move(budget, is_other_hot, other, is_named)
                    best = max(best, ratio * worst(left - 1, now, then))
            return best

        return worst(rounds, 0, 0)

    if not is_null:
        return search(either, either)
    return max(search(either, (False,)), search((False,), either))


def power(epsilon: float) -> Fraction:
    """A rational number just above e^epsilon."""
    with mpmath.workdps(60):
        return Fraction(int(mpmath.ceil(mpmath.exp(mpmath.mpf(epsilon)) * mpmath.mpf(2) ** 100)), 2**100)


BUDGETS = [HitBudget.split(1.0, 1), HitBudget.split(4.0, 2), HitBudget.split(9.0, 3), HitBudget(2, 0.3, 2.0)]


@pytest.mark.parametrize("budget", BUDGETS, ids=lambda one: f"{one.hits} hits at {one.replacement_epsilon:g}")
def test_worst_transcripts(budget: HitBudget) -> None:
    """However many rounds there are, the worst ratios are the stated ones, and they are attained."""
    cold, hot = (Fraction(weight, WHOLE) for weight in budget.weights)
    hit, miss = hot / cold, (1 - cold) / (1 - hot)
    for rounds in (1, budget.hits, budget.hits + 1, budget.hits + 4):
        null = find_worst_ratio(budget, rounds, is_null=True)
        between = find_worst_ratio(budget, rounds, is_null=False)
        assert null <= power(budget.null_epsilon)
        assert between <= power(budget.replacement_epsilon)
    assert null == max(hit**budget.hits, miss)
    assert between == hit**budget.hits * miss
    # The stated epsilons are not larger than needed.
    assert math.log(null) == pytest.approx(budget.null_epsilon, rel=1e-12)
    assert math.log(between) == pytest.approx(budget.replacement_epsilon, rel=1e-12)


def forget_misses(budget: HitBudget, is_hot: bool, used: int, is_named: bool) -> int:
    """A near miss: the counter counts released names alone."""
    return real_move(budget, is_hot, used, is_named) if is_named else used


def forget_hits(budget: HitBudget, is_hot: bool, used: int, is_named: bool) -> int:
    """A near miss: the counter is lost after an answer with a name."""
    return used if is_named else real_move(budget, is_hot, used, is_named)


@pytest.mark.parametrize("move", [forget_misses, forget_hits])
def test_near_misses(move: Move) -> None:
    """With a counter that forgets one kind of answer, more rounds break every promise."""
    budget = HitBudget.split(4.0, 2)
    assert find_worst_ratio(budget, 6, is_null=False, move=move) > power(budget.replacement_epsilon)
    assert find_worst_ratio(budget, 12, is_null=True, move=move) > power(budget.null_epsilon)


def test_one_extra_life_is_too_many() -> None:
    """A record that gets one hit back, as after a file that was not written, breaks the promise."""
    budget = HitBudget.split(4.0, 2)

    @functools.cache
    def worst(left: int, used: int, lives: int) -> Fraction:
        if left == 0:
            return Fraction(1)
        best = Fraction(0)
        for is_hot in (False, True):
            ratio = law(budget, is_hot, used) / law(budget, False, 0)
            now = real_move(budget, is_hot, used, True)
            best = max(best, ratio * worst(left - 1, now, lives))
            if lives:
                best = max(best, ratio * worst(left - 1, used, lives - 1))
        return best

    assert worst(4, 0, 0) <= power(budget.null_epsilon) < worst(4, 0, 1)


def test_queries_of_several_rounds() -> None:
    """Whole queries through the code: all draws of three adaptive queries over two levels, for one record."""
    budget = HitBudget.split(3.0, 1)
    cold, hot = (Fraction(weight, WHOLE) for weight in budget.weights)

    def play(levels: tuple[int, ...], draws: tuple[bool, ...]) -> tuple[tuple[int, ...], Fraction]:
        """The answers that these draws give, and the probability of the draws, by the law of the page."""
        used, given, chance, lives, left = np.zeros(1, dtype=np.uint8), [], Fraction(1), 1, list(draws)
        for level in levels:
            script = Script(*(NAMED if one else NOT_NAMED for one in left))
            answer = name_records(budget, script, np.array([level]), used, np.ones(1, dtype=bool), rounds=2, enough=1)
            given.append(int(answer[0]))
            for round_level in (2, 1):
                is_named = left.pop(0)
                p = hot if level == round_level and lives else cold
                if level == round_level:
                    lives = 0  # one hit or one miss ends the part of the record
                chance *= p if is_named else 1 - p
                if is_named:
                    break
        return tuple(given), chance

    def distribution(levels: tuple[int, ...]) -> dict[tuple[int, ...], Fraction]:
        # Draws after the last round that was played do not matter, and answers say which rounds were played.
        found = dict(play(levels, draws) for draws in itertools.product((False, True), repeat=2 * len(levels)))
        assert sum(found.values()) == 1
        return found

    laws = {levels: distribution(levels) for levels in itertools.product(range(3), repeat=3)}
    null = laws[0, 0, 0]
    for levels, one in laws.items():
        for answers in null:
            assert one[answers] <= null[answers] * power(budget.null_epsilon), levels
            assert null[answers] <= one[answers] * power(budget.null_epsilon)
            for other in laws.values():
                assert one[answers] <= other[answers] * power(budget.replacement_epsilon)
    # Some pair comes within a thousandth of the bound.
    worst = max(one[y] / other[y] for one in laws.values() for other in laws.values() for y in null)
    assert worst > power(budget.replacement_epsilon - 1e-3)


def test_early_end() -> None:
    """A query stops when enough records are named, and the records below keep their hits."""
    budget = HitBudget.split(9.0, 1)
    levels, used = np.array([3, 2, 1]), np.zeros(3, dtype=np.uint8)
    script = Script(NAMED, NOT_NAMED, NOT_NAMED, NOT_NAMED, NAMED, NOT_NAMED)
    released = name_records(budget, script, levels, used, np.ones(3, dtype=bool), rounds=3, enough=2)
    assert released.tolist() == [3, 2, 0]
    assert used.tolist() == [1, 1, 0]


def test_named_records_keep_quiet() -> None:
    """A record that an earlier round named by chance is not hot in the round of its own level."""
    budget = HitBudget.split(9.0, 1)
    used = np.zeros(1, dtype=np.uint8)
    released = name_records(
        budget, Script(NAMED, NOT_NAMED), np.array([1]), used, np.ones(1, dtype=bool), rounds=2, enough=5
    )
    assert (released.tolist(), used.tolist()) == ([2], [0])


def test_number_of_words() -> None:
    """Each round reads one word for each record, whatever their levels and counters are."""
    budget = HitBudget.split(9.0, 1)
    for levels in ([0, 0, 0], [2, 2, 2], [1, 0, 2]):
        for used in ([0, 0, 0], [1, 1, 1]):
            script = Script(*[NOT_NAMED] * 6)
            counters = np.array(used, dtype=np.uint8)
            name_records(budget, script, np.array(levels), counters, np.ones(3, dtype=bool), rounds=2, enough=3)
            assert script.words(0).size == 0
            assert not script._words


def test_records_that_are_not_asked() -> None:
    """A record outside the filter is neither named nor counted."""
    budget, used = HitBudget.split(9.0, 1), np.zeros(2, dtype=np.uint8)
    asked = np.array([False, True])
    released = name_records(budget, Script(NAMED, NAMED), np.array([1, 1]), used, asked, rounds=1, enough=5)
    assert (released.tolist(), used.tolist()) == ([0, 1], [0, 1])


@pytest.mark.parametrize("epsilon", [1e-5, 0.1, 1.0, 8.0, 16.0, 48.0, 100.0, 1e4])
@pytest.mark.parametrize("hits", [1, 2, 7])
@pytest.mark.parametrize("is_null", [False, True])
def test_split_keeps_within_epsilon(epsilon: float, hits: int, is_null: bool) -> None:
    """The parts of a budget add up to at most epsilon, and the weights keep the parts, in exact arithmetic."""
    budget = HitBudget.split(epsilon, hits, is_null=is_null)
    a, b = Fraction(budget.hit_epsilon), Fraction(budget.miss_epsilon)
    total = max(hits * a, b) if is_null else hits * a + b
    assert total <= Fraction(epsilon)
    assert total >= Fraction(epsilon) * (1 - Fraction(1, 2**50))
    assert (budget.null_epsilon if is_null else budget.replacement_epsilon) <= epsilon
    cold, hot = budget.weights
    assert 0 < cold <= hot < WHOLE
    if budget.hit_epsilon < 60:
        assert Fraction(hot, cold) <= power(budget.hit_epsilon)
        assert Fraction(WHOLE - cold, WHOLE - hot) <= power(budget.miss_epsilon)


@pytest.mark.parametrize(("epsilon", "hits"), [(0.5, 1), (16.0, 1), (32.0, 3), (48.0, 5)])
def test_probabilities(epsilon: float, hits: int) -> None:
    """p and f solve p = e^a f and 1 - f = e^b (1 - p), to fifty digits."""
    budget = HitBudget.split(epsilon, hits)
    with mpmath.workdps(50):
        a, b = mpmath.exp(mpmath.mpf(budget.hit_epsilon)), mpmath.exp(mpmath.mpf(budget.miss_epsilon))
        f = (b - 1) / (a * b - 1)
        assert abs(budget.false_probability / f - 1) < 1e-9
        assert abs(budget.true_probability / (a * f) - 1) < 1e-9


def test_default_number_of_hits() -> None:
    """The default grows with epsilon, falls with the number of records, and is at least one."""
    assert [HitBudget.choose(epsilon, 5_000).hits for epsilon in (4, 16, 32, 48, 100)] == [1, 1, 2, 4, 10]
    assert HitBudget.choose(48, 1_000).hits == 5
    assert HitBudget.choose(1e6, 10).hits == MOST_HITS
    assert HitBudget.choose(32, 5_000, is_null=True).hits == 3


def test_frequencies() -> None:
    """Hot and cold records are named as often as stated; a tenth more hit epsilon would be noticed."""
    budget, count = HitBudget(1, 1.0, 0.5), 200_000
    stream = ResearchStream(np.random.default_rng(5))
    for is_hot, p in ((True, budget.true_probability), (False, budget.false_probability)):
        used = np.zeros(count, dtype=np.uint8)
        named = budget.draw_round(stream, np.full(count, is_hot), used).sum()
        spread = math.sqrt(count * p * (1 - p))
        assert abs(named - count * p) < 5 * spread
        near = HitBudget(1, 1.1, 0.5)
        other = near.true_probability if is_hot else near.false_probability
        assert abs(named - count * other) > 5 * spread


@pytest.mark.parametrize("hits", [0, -1, 1.5, True, "2", None, 251])
def test_bad_hits(hits: object) -> None:
    with pytest.raises(ss.InvalidInput, match="hits"):
        HitBudget.split(8.0, hits)  # type: ignore[arg-type]


@pytest.mark.parametrize("epsilon", [0, -1, math.nan, math.inf, "8", 1e-7])
def test_bad_epsilon(epsilon: object) -> None:
    with pytest.raises(ss.InvalidInput, match="epsilon"):
        HitBudget.split(epsilon, 1)  # type: ignore[arg-type]
