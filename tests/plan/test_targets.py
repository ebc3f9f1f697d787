"""Targets of a ranking: what is met, what no mechanism reaches, and the least epsilon."""

from __future__ import annotations

import math

import numpy as np
import pytest

import scoreshield as ss
from scoreshield import plan
from scoreshield.plan.targets import MatchTarget, SearchTarget
from scoreshield.privacy.levels.bits import find_accept_epsilon

RNG = np.random.default_rng(8)
FAR, NEAR = RNG.normal(0.05, 0.1, 4000).clip(-1, 1), RNG.normal(0.5, 0.14, 3000).clip(-1, 1)


def fail(epsilon: float) -> plan.Choice:
    raise AssertionError(epsilon)


def make_match(value: float, fmr: float = 0.01, delta: float = 0.0) -> MatchTarget:
    far, near = ss.decisions.Sample(FAR), ss.decisions.Sample(NEAR)
    clean = float(near.rate(far.clean_threshold(fmr), None))
    return MatchTarget(value, clean, delta, fail, far, near, fmr)


@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_bounds_hold_with_equality_at_the_floor(delta: float) -> None:
    """At the floor the bound is the target."""
    for target in (
        make_match(0.5, delta=delta),
        make_match(0.995, delta=delta),
        SearchTarget(0.6, 0.9, delta, fail, 5000, 10),
    ):
        assert target.bound(target.find_floor(), delta) == pytest.approx(target.value, rel=1e-9)
        assert target.bound(target.find_floor() - 0.01, delta) < target.value


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 6.0])
@pytest.mark.parametrize("fmr", [0.01, 0.2, 0.6])
def test_no_table_exceeds_the_bound(epsilon: float, fmr: float) -> None:
    """Perfectly separated scores reach the bound of every mechanism, and no more."""
    far, near = np.linspace(-0.9, -0.1, 4000), np.linspace(0.1, 0.9, 4000)
    reached = ss.accept_bit(epsilon, impostor=far, genuine=near, false_match_rate=fmr).true_match_rate
    bound = make_match(0.99, fmr).bound(epsilon, 0.0)
    assert reached <= bound * (1 + 1e-9)
    assert reached == pytest.approx(bound, rel=2e-2)


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.9, 0.93])
def test_the_least_epsilon_of_an_accept_bit(rate: float) -> None:
    """The accept bit reaches the rate at the least epsilon, and misses it just below."""
    public = {"impostor": FAR, "genuine": NEAR, "false_match_rate": 0.01}
    least = find_accept_epsilon(rate, **public)
    assert ss.accept_bit(least * (1 + 1e-6), **public).true_match_rate >= rate
    assert ss.accept_bit(least * (1 - 1e-6), **public).true_match_rate < rate


def test_no_epsilon_is_enough() -> None:
    """A rate above the clean one has no least epsilon."""
    public = {"impostor": FAR, "genuine": NEAR, "false_match_rate": 0.01}
    assert find_accept_epsilon(0.99999, **public) == math.inf
    with pytest.raises(ss.InvalidInput, match=r"without any noise the true-match rate is .*; lower target_tar"):
        make_match(0.99999).find_least()


def test_a_target_that_chance_reaches() -> None:
    """A target that chance reaches raises an error that says what to raise."""
    with pytest.raises(ss.InvalidInput, match=r"chance alone reaches 1 %. Raise target_tar"):
        make_match(0.01)
    with pytest.raises(ss.InvalidInput, match=r"chance alone reaches 20 %. Raise target_recall"):
        SearchTarget(0.1, 0.9, 0.0, fail, 50, 10)


def test_the_least_epsilon_of_a_search() -> None:
    """The best mechanism reaches the target at the least epsilon, and misses it two parts in 100 below."""

    def choose_at(epsilon: float) -> plan.Choice:
        return plan.choose("retrieval", FAR, NEAR, epsilon=epsilon, records=2000, k=10, source="public")

    target = SearchTarget(0.5, 0.99, 0.0, choose_at, 2000, 10)
    found = target.find_least()
    assert 0.5 <= found.chosen.utility < 0.52
    assert found.contract.epsilon > target.find_floor()
    assert choose_at(found.contract.epsilon * 0.95).chosen.utility < 0.5
    assert target.judge(found).is_met


def test_verdicts() -> None:
    """The sentence says what to change: epsilon, the target, or the model."""

    def judge(value: float, **contract: float) -> plan.targets.Goal:
        choice = plan.choose("verification", FAR, NEAR, target_fmr=0.01, source="public", **contract)
        return make_match(value).judge(choice)

    assert judge(0.5, epsilon=6).sentence.startswith("That meets the 50 % asked for")
    assert (
        "No mechanism reaches the 50 % asked for under this contract: the most is 7.39 %"
        in judge(0.5, epsilon=2).sentence
    )
    assert "Raise epsilon to 3.91 or more" in judge(0.5, epsilon=2).sentence
    assert "no epsilon reaches it: without any noise" in judge(0.99999, epsilon=2).sentence
    assert "Allow a larger advantage" in judge(0.5, max_advantage=0.2).sentence
    assert judge(0.5, max_advantage=0.2).bound == pytest.approx(0.21)
    rates = judge(0.5, max_tpr=0.3, at_fpr=0.01)
    assert rates.bound == pytest.approx(0.3)
    assert "the most is 30 %. Allow more true positives (max_tpr, --max-tpr), or lower target_tar" in rates.sentence
    assert judge(0.5, max_tpr=0.1, at_fpr=0.002).bound == pytest.approx(0.5)
    assert judge(0.5, max_tpr=0.3, at_fpr=0.02).bound == pytest.approx(1 - 0.7 * 0.99 / 0.98)
    both = judge(0.9, max_advantage=0.99, epsilon=3)
    assert both.sentence.endswith("Raise epsilon to 4.5 or more, or lower target_tar (--target-tar).")


@pytest.mark.parametrize("contract", [{"max_advantage": 0.6}, {"max_tpr": 0.6, "at_fpr": 0.01}], ids=str)
def test_a_contract_without_epsilon_is_not_told_to_raise_it(contract: dict[str, float]) -> None:
    """A target that a bound allows and no mechanism reaches: the sentences name what the contract has."""
    choice = plan.choose(
        "retrieval", FAR, NEAR, records=2000, k=10, delta=1e-6, target=0.5, source="public", **contract
    )
    goal = SearchTarget(0.5, 0.99, 1e-6, fail, 2000, 10).judge(choice)
    assert not goal.is_met
    assert goal.bound == choice.bound > 0.5
    for sentence in (goal.sentence, choice.warnings[-1]):
        assert "epsilon" not in sentence
        assert choice.contract.remedy in sentence


def test_plans_lead_with_the_best_mechanism() -> None:
    """A plan of Gaussian noise says first which mechanism does better, and has it among its alternatives."""
    made = plan.verification(FAR, NEAR, target_fmr=0.01, epsilon=5, delta=1e-6, source="public")
    bit = ss.accept_bit(5, impostor=FAR, genuine=NEAR, false_match_rate=0.01)
    assert "With epsilon 5, delta 1e-6, an accept bit is predicted to do best: it keeps " in made.answer
    assert made.is_surpassed
    row = made.alternatives[-1]
    assert (row.mechanism, row.tar, row.threshold) == ("accept bit", bit.true_match_rate, bit.threshold)
    assert made.to_dict()["choice"]["candidates"][0]["mechanism"] == "accept bit"
    found = plan.verification(FAR, NEAR, target_fmr=0.01, target_tar=0.9, delta=1e-6, source="public")
    least = find_accept_epsilon(0.9, impostor=FAR, genuine=NEAR, false_match_rate=0.01)
    assert found.answer.startswith("Below epsilon 4.5 no mechanism reaches the 90 % asked for. The least epsilon")
    assert f"The least epsilon that meets the need is {least:.4g}, with an accept bit: 90" in found.answer
    assert f"The least epsilon at which Gaussian noise meets the need is {found.least_epsilon:.4g}" in found.answer
    assert found.alternatives[-1].least_epsilon == least < found.least_epsilon
    search = plan.retrieval(FAR, NEAR, records=2000, k=10, target_recall=0.5, delta=1e-6, source="public")
    assert search.answer.startswith("No mechanism returns")
    assert search.choice is not None
    assert search.choice.contract.epsilon < search.contract.epsilon
    assert search.goal is not None
    assert search.goal.is_met
