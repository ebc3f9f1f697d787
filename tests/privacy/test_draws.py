"""Draws of one record: their profile against enumeration and high precision, and the claim against timed changes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import mpmath
import pytest

import scoreshield as ss
from scoreshield.errors import InvalidInput, InvalidParameter
from scoreshield.privacy.draws import DrawCounts, check_ids, repeat_profile
from scoreshield.privacy.profiles import CurveProfile, GaussianProfile, LaplaceProfile, PureProfile, StepProfile


def compute_delta(step: StepProfile, draws: int, epsilon: mpmath.mpf) -> mpmath.mpf:
    """Compute delta of several draws with 60 digits, over all combinations of losses E, 0 and -E."""
    with mpmath.workdps(60):
        e, m = mpmath.mpf(step.epsilon), mpmath.mpf(step.mass)
        down = m * mpmath.exp(-e)
        total = mpmath.mpf(0)
        for ups in range(draws + 1):
            for downs in range(draws + 1 - ups):
                ways = math.comb(draws, ups) * math.comb(draws - ups, downs)
                mass = ways * m**ups * down**downs * (1 - m - down) ** (draws - ups - downs)
                total += mass * max(mpmath.mpf(0), 1 - mpmath.exp(epsilon - e * (ups - downs)))
        return total


@pytest.mark.parametrize("epsilon", [0.01, 0.7, 5.0, 30.0])
@pytest.mark.parametrize("share", [0.3, 0.999999])
@pytest.mark.parametrize("draws", [2, 3, 9])
def test_step_profile_against_high_precision(epsilon: float, share: float, draws: int) -> None:
    """The composed profile is never below the exact one, and above it by rounding alone."""
    step = StepProfile(epsilon, share / (1 + math.exp(-epsilon)))
    profile = repeat_profile(step, draws)
    assert isinstance(profile, CurveProfile)
    assert profile.epsilon_at(0.0) >= draws * epsilon
    for k in range(4 * draws):
        at = epsilon * k / 4
        exact = compute_delta(step, draws, mpmath.mpf(at))
        assert exact <= mpmath.mpf(profile.delta_at(at)) <= exact * (1 + mpmath.mpf(1e-9)) + mpmath.mpf(1e-14)


def test_step_profile_against_convolution() -> None:
    """A second algorithm, which convolves on a grid and rounds up, agrees."""
    pytest.importorskip("dp_accounting")
    step = StepProfile(2.0, 0.6)
    exact, convolved = repeat_profile(step, 5), ss.compose([step] * 5, method="pld")
    for epsilon in (0.0, 1.0, 3.5, 7.0, 9.0):
        assert exact.delta_at(epsilon) <= convolved.delta_at(epsilon) * (1 + 1e-9)
        assert convolved.delta_at(epsilon) <= exact.delta_at(epsilon) * 1.02 + 1e-6


def test_one_draw_fewer_is_not_enough() -> None:
    """The profile of two draws lies below the exact one of three."""
    step = StepProfile(2.0, 0.6)
    assert mpmath.mpf(repeat_profile(step, 2).delta_at(3.0)) < compute_delta(step, 3, mpmath.mpf(3.0))


def test_other_profiles() -> None:
    assert repeat_profile(LaplaceProfile(0.1), 3) == PureProfile(0.30000000000000004)
    assert repeat_profile(PureProfile(400.0), 2) == PureProfile(800.0)
    assert repeat_profile(StepProfile(400.0, 0.5), 2) == PureProfile(800.0)  # further than a curve reaches
    assert repeat_profile(PureProfile(1.0), 1) == PureProfile(1.0)
    gaussian = repeat_profile(GaussianProfile(1.5), 4)
    assert isinstance(gaussian, GaussianProfile)
    assert 3.0 <= gaussian.mu <= 3.0 * (1 + 1e-14)
    with pytest.raises(InvalidInput, match="cannot be drawn more than once"):
        repeat_profile(CurveProfile((0.0, 1.0), (0.5, 0.1)), 2)


def test_counts() -> None:
    """Counts never fall, and their hash depends on ids and counts, not on their order."""
    counts = DrawCounts({"a": 1, "b": 1}).add(["b", "c"])
    assert dict(counts.counts) == {"a": 1, "b": 2, "c": 1}
    assert counts.largest == 2
    assert counts.compute_hash() == DrawCounts({"c": 1, "b": 2, "a": 1}).compute_hash()
    others = [{"a": 1, "b": 2}, {"a": 2, "b": 1, "c": 1}, {1: 1, "b": 2, "c": 1}]
    assert counts.compute_hash() not in [DrawCounts(other).compute_hash() for other in others]  # type: ignore[arg-type]
    assert DrawCounts({1: 1}).compute_hash() != DrawCounts({"1": 1}).compute_hash()


@pytest.mark.parametrize(
    "ids", ["ab", 3, None, [1, 1], [1, "a"], [True], [1.0], [""], ["a\n"], [2**63], ["a" * 1001], [None], [[1]]]
)
def test_bad_ids(ids: object) -> None:
    with pytest.raises(InvalidParameter, match="different ids"):
        check_ids(ids, "ids")


# ---- An adversary who times changes.
#
# One slot holds a bit in each version. A draw is randomised response with odds 3 : 1, so one draw costs ln 3, exactly.
# The adversary sees all outputs and chooses from them, adaptively, whether the slot changes, is removed or comes back,
# and what it then holds on either side. All transcripts are enumerated with exact fractions.

TRUE, FALSE = Fraction(3, 4), Fraction(1, 4)
Choose = Callable[[tuple[int, ...]], str]
Rule = Callable[[list[str]], int]


def enumerate_histories(choose: Choose, steps: int, bit: int, redraw: bool = False) -> Iterator[tuple[tuple, Fraction]]:
    """Yield each transcript of actions and outputs with its probability, if the slot always holds this bit."""
    for outputs in itertools.product((0, 1), repeat=steps):
        seen: tuple[int, ...] = ()
        actions: list[str] = []
        probability, transcript = Fraction(1), []
        for number in range(steps):
            action = choose(seen) if number else "add"
            actions.append(action)
            transcript.append(action)
            if action in ("add", "change") or (redraw and action == "keep"):
                probability *= TRUE if outputs[number] == bit else FALSE
                transcript.append(outputs[number])
                seen = (*seen, outputs[number])
            elif outputs[number]:  # no output: count this transcript once
                probability = Fraction(0)
        if probability:
            yield (tuple(transcript), tuple(actions)), probability


def count_draws(actions: list[str]) -> int:
    """Count as `DrawCounts` does: a removed id that comes back continues its count."""
    counts = DrawCounts({})
    for action in actions:
        counts = counts.add(["slot"] if action in ("add", "change") else [])
    return counts.largest


def count_since_return(actions: list[str]) -> int:
    """A near miss: an id that comes back starts from zero."""
    count = largest = 0
    for action in actions:
        count = 1 if action == "add" else count + (action == "change")
        largest = max(largest, count)
    return largest


def count_mean(actions: list[str]) -> int:
    """A near miss: the mean over this slot and three that were drawn once."""
    return round((count_draws(actions) + 3) / 4)


def find_violation(choose: Choose, steps: int, rule: Rule, redraw: bool = False) -> bool:
    """Find whether the odds of some transcript exceed 3^draws, with the draws that a rule counts."""
    first = dict(enumerate_histories(choose, steps, 0, redraw))
    second = dict(enumerate_histories(choose, steps, 1, redraw))
    assert sum(first.values()) == sum(second.values()) == 1
    return any(probability > Fraction(3) ** rule(list(key[1])) * second[key] for key, probability in first.items())


def change_while_equal(seen: tuple[int, ...]) -> str:
    """Change the record as long as all answers agree."""
    return "change" if len(set(seen)) <= 1 else "keep"


def test_timed_changes_stay_within_the_count() -> None:
    assert not find_violation(change_while_equal, 4, count_draws)


def test_the_count_is_attained() -> None:
    """One draw fewer would be too little: the bound is exact."""
    assert find_violation(change_while_equal, 4, lambda actions: count_draws(actions) - 1)


def remove_and_add(seen: tuple[int, ...]) -> str:
    """Bring the record back as long as all answers agree."""
    return "add" if len(set(seen)) <= 1 else "remove"


def test_a_count_that_starts_again_breaks_the_claim() -> None:
    assert not find_violation(remove_and_add, 3, count_draws)
    assert find_violation(remove_and_add, 3, count_since_return)


def never_change(_: tuple[int, ...]) -> str:
    return "keep"


def test_redrawing_unchanged_rows_breaks_the_claim() -> None:
    assert not find_violation(never_change, 3, count_draws)
    assert find_violation(never_change, 3, count_draws, redraw=True)


def test_the_mean_count_breaks_the_claim() -> None:
    assert find_violation(change_while_equal, 3, count_mean)
