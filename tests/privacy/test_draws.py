"""Draws of one record: what their guarantee states, and the claim against an attacker who times changes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy.signal import fftconvolve

import scoreshield as ss
from scoreshield.errors import InvalidInput, InvalidParameter
from scoreshield.privacy.draws import DrawCounts, check_ids, state_draws
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.losses import find_pure_epsilon
from scoreshield.privacy.profiles import GaussianProfile, PureProfile

ROWS = np.random.default_rng(7).normal(size=(3, 4))


def make_guarantee(**options: Any) -> Guarantee:
    return ss.release_index(ROWS, epsilon=2.0, **options).guarantee


@pytest.mark.parametrize("draws", [1, 2, 8])
def test_the_profile_is_pure(draws: int) -> None:
    """Only the pure total is stated: a curve below it holds for no number of draws that depends on the releases."""
    codebook = ss.PublicCodebook(np.random.default_rng(8).normal(size=(2000, 4)), source="test", code_size=20)
    for single in (make_guarantee(), make_guarantee(codebook=codebook)):
        total = state_draws(single, draws, (3, 4))
        assert total.profile == PureProfile(2.0 * draws)
        assert find_pure_epsilon(total.profile) == total.epsilon == 2.0 * draws


def test_the_total_is_rounded_up() -> None:
    single = ss.release_index(ROWS, epsilon=0.1).guarantee
    assert state_draws(single, 3, (3, 4)).epsilon == 0.30000000000000004


def test_delta_is_rejected() -> None:
    with pytest.raises(InvalidInput, match="private without delta"):
        state_draws(make_guarantee(mechanism="gaussian", delta=1e-6), 1, (3, 4))


def compute_delta_of_stopping(epsilons: list[float], mu: float, most: int) -> float:
    """Compute what an attacker gains who changes a record until its loss is above the stated epsilon, then stops.

    The loss of v Gaussian draws is a sum of v normal steps of mean mu^2 / 2 and deviation mu. Each step is a
    convolution on a grid. The result is the sum over v of P(stop at v) - e^epsilon_v Q(stop at v).
    """
    step = 0.01
    losses = np.arange(-20.0, 40.0, step)
    kernel = np.arange(-8.0, 8.0, step)
    kernel = step * np.exp(-((kernel - mu**2 / 2) ** 2) / (2 * mu**2)) / (mu * np.sqrt(2 * np.pi))
    law = np.zeros(len(losses))
    law[2000] = 1.0
    gain = 0.0
    for epsilon in epsilons[:most]:
        law = fftconvolve(law, kernel, mode="full")[800 : 800 + len(losses)]
        stopped = losses > epsilon + 0.5
        gain += float(np.sum(law[stopped] * -np.expm1(epsilon - losses[stopped])))
        law[stopped] = 0.0
    return gain


def test_why_delta_is_rejected() -> None:
    """An attacker who times changes breaks the (epsilon, delta) of the number of Gaussian draws that were made."""
    delta, most = 1e-3, 100
    epsilons = [GaussianProfile(math.sqrt(v)).epsilon_at(delta) for v in range(1, most + 1)]
    assert compute_delta_of_stopping(epsilons, 1.0, 1) <= delta
    assert compute_delta_of_stopping(epsilons, 1.0, most) > 3 * delta


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
    "ids", ["ab", 3, None, [1, "a"], [True], [1.0], [""], ["a\n"], [2**63], ["a" * 1001], [None], [[1]]]
)
def test_bad_ids(ids: object) -> None:
    with pytest.raises(InvalidParameter, match="different ids"):
        check_ids(ids, "ids")


@pytest.mark.parametrize("ids", [ROWS[0], ROWS[0].tolist(), [ROWS[0].tolist()], float(ROWS[0, 0]), ROWS])
def test_an_error_shows_no_number_of_a_row(ids: object) -> None:
    """A row that was given in the place of ids is not shown."""
    with pytest.raises(InvalidParameter) as error:
        check_ids(ids, "ids")
    assert not any(str(value)[:6] in str(error.value) for value in ROWS.ravel().tolist())


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


def test_repeated_ids() -> None:
    """A text is shown; a number is not, because it may be an entry of a row."""
    with pytest.raises(InvalidInput, match="The id 'b' is given 2 times"):
        check_ids(["a", "b", "b"], "ids")
    with pytest.raises(InvalidInput, match="The id in place 1 is given 2 times"):
        check_ids([5, 77, 77], "ids")
