"""Bets against a claim: that they are fair under it, that they win where it is false, and what the bound states.

Statistical tests use fixed seeds; where one could fail by chance, the rate is stated.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.special import expit, log_expit

from scoreshield.audit.betting import (
    STYLES,
    BetAccount,
    Hypotheses,
    Portfolio,
    best_growth_per_output,
    bound_epsilon,
    choose_stakes,
    count_bins,
    find_bins,
    fit_chances,
    open_accounts,
)


class Entry:
    """The first entry as a statistic."""

    name = "entry"

    def __call__(self, outputs: np.ndarray) -> np.ndarray:
        return outputs[:, 0]


def make_hypothesis(epsilon: float, delta: float = 0.0) -> Hypotheses:
    return Hypotheses(np.array([epsilon]), np.array([delta]))


def draw_private_pair(
    rng: np.random.Generator, bins: int, epsilon: float, delta: float
) -> tuple[np.ndarray, np.ndarray]:
    """Draw two laws over bins that are (epsilon, delta)-close in both directions, most of them at the limit."""
    while True:
        second = rng.dirichlet(np.full(bins, 0.5))
        tilt = np.exp(epsilon * rng.choice([-1.0, 1.0], bins))
        first = second * tilt
        moved = first.sum() - 1
        first = first / first.sum() if moved > 0 else first + np.eye(bins)[rng.integers(bins)] * -moved
        over = [np.maximum(a - math.exp(epsilon) * b, 0).sum() for a, b in ((first, second), (second, first))]
        if max(over) <= delta:
            return first, second


# ---- Fairness.


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.1), (0.5, 0.0), (1.0, 1e-6), (1.0, 0.05), (3.0, 0.3)])
def test_no_private_law_lets_stakes_grow(style: str, epsilon: float, delta: float) -> None:
    """The expected factor of one output is at most 1 under every private pair of laws, computed and not simulated."""
    rng = np.random.default_rng(5)
    for _ in range(300):
        bins = int(rng.integers(2, 7))
        counts = rng.integers(0, 60, (2, bins))
        stakes = choose_stakes(*counts, make_hypothesis(epsilon, delta), style, np.arange(bins, dtype=float))
        first, second = draw_private_pair(rng, bins, epsilon, delta)
        expected = (first @ np.exp(stakes.log_first[0]) + second @ np.exp(stakes.log_second[0])) / 2
        assert expected <= 1 + 1e-9


def test_a_leaking_law_lets_stakes_grow() -> None:
    """The near miss: the same computation with a larger epsilon exceeds 1, so the test above can fail."""
    stakes = choose_stakes(np.array([90, 10]), np.array([10, 90]), make_hypothesis(1.0), "bins")
    right = float(expit(1.2))
    law = np.array([right, 1 - right])
    assert (law @ np.exp(stakes.log_first[0]) + law[::-1] @ np.exp(stakes.log_second[0])) / 2 > 1.001
    right = float(expit(1.0))
    law = np.array([right, 1 - right])
    assert (law @ np.exp(stakes.log_first[0]) + law[::-1] @ np.exp(stakes.log_second[0])) / 2 <= 1 + 1e-12


def test_large_delta_is_paid_for() -> None:
    """Laws that differ by delta in total variation and are alike else: nothing is won at (0, delta)."""
    counts = np.array([600, 400]), np.array([400, 600])
    for delta, wins in ((0.2, False), (0.1, True)):
        stakes = choose_stakes(*counts, make_hypothesis(0.0, delta), "bins")
        law = np.array([0.6, 0.4])
        expected = (law @ np.exp(stakes.log_first[0]) + law[::-1] @ np.exp(stakes.log_second[0])) / 2
        assert (expected > 1 + 1e-6) == wins


def play(rng: np.random.Generator, true: float, claimed: float, rounds: int, *, peeks: bool = False) -> float:
    """Play one portfolio on randomised response; with `peeks`, on the outputs that taught the account."""
    hypothesis = make_hypothesis(claimed)
    portfolio, records, past = Portfolio(hypothesis), {}, np.empty((0, 2))
    for _ in range(rounds):
        sides = rng.random(60) < 0.5
        outputs = np.where(rng.random(60) < expit(true), sides, ~sides).astype(float)
        new = np.column_stack([outputs, sides])
        taught = new if peeks else past
        if len(taught):
            first, second = (taught[taught[:, 1] == side][:, :1] for side in (1, 0))
            accounts = open_accounts(Entry(), "any", first, second, hypothesis)
            nothing = np.zeros(1)
            stakes = portfolio.divide(
                [a.promise(60) for a in accounts], [records.get(a.key, nothing) for a in accounts]
            )
            results = np.stack([a.play(outputs[:, None], sides) for a in accounts])
            records |= {a.key: records.get(a.key, nothing) + r for a, r in zip(accounts, results, strict=True)}
            portfolio.settle(stakes, results)
        past = np.concatenate([past, new])
    return float(portfolio.log_peak[0])


def test_false_alarms() -> None:
    """Of 2,000 plays against a true claim, at most 5 % ever reach a capital of 20; 147 have a chance below 1e-6.

    A player who learns from the outputs that it plays on reaches it nearly always.
    """
    rng = np.random.default_rng(8)
    alarms = sum(play(rng, 1.0, 1.0, 12) >= math.log(20) for _ in range(2_000))
    assert alarms <= 147
    cheats = sum(play(rng, 1.0, 1.0, 12, peeks=True) >= math.log(20) for _ in range(50))
    assert cheats > 25


def test_a_false_claim_is_broken() -> None:
    """Randomised response of epsilon 2 against a claim of 1, 720 outputs: found in nearly all plays."""
    rng = np.random.default_rng(9)
    assert sum(play(rng, 2.0, 1.0, 12) >= math.log(100) for _ in range(100)) >= 95


# ---- Efficiency.


def test_growth_of_a_known_chance() -> None:
    """With many counts the growth per output is the divergence from the nearest chance that the claim allows."""
    right = float(expit(2.0))
    counts = np.rint(np.array([right, 1 - right]) * 1_000_000).astype(int)
    stakes = choose_stakes(counts, counts[::-1], make_hypothesis(1.0), "bins")
    cap = float(expit(1.0))
    best = right * math.log(right / cap) + (1 - right) * math.log((1 - right) / (1 - cap))
    assert stakes.growth[0] / 2_000_000 == pytest.approx(best, rel=1e-3)
    assert stakes.growth[0] / 2_000_000 <= best
    assert best_growth_per_output(1.0) == pytest.approx(-float(log_expit(1.0)))


def test_nothing_is_staked_without_evidence() -> None:
    for style, epsilon in itertools.product(STYLES, (0.5, 1.0, 5.0)):
        stakes = choose_stakes(np.array([50, 50]), np.array([50, 50]), make_hypothesis(epsilon), style, np.arange(2.0))
        assert not stakes.growth.any()
        assert not stakes.log_first.any()


def test_smooth_chances_are_those_of_gaussian_noise() -> None:
    """For means of +-mu/2 and standard deviation 1 the chance is expit(mu x); 5 standard errors are allowed."""
    rng, mu, n = np.random.default_rng(2), 0.8, 200_000
    first, second = rng.normal(mu / 2, 1, n), rng.normal(-mu / 2, 1, n)
    edges = find_bins(np.concatenate([first, second]))
    counts = count_bins(first, edges), count_bins(second, edges)
    pooled = np.concatenate([first, second])
    places = np.searchsorted(edges, pooled, side="right")
    centres = np.bincount(places, pooled) / np.bincount(places)
    chances = fit_chances(*counts, centres)
    inner = np.abs(centres) < 2
    assert np.abs(chances - expit(mu * centres))[inner].max() < 0.01


def test_bins_of_few_and_of_many_values() -> None:
    assert find_bins(np.array([0.0, 1.0, 0.0])).tolist() == [0.5]
    assert not len(find_bins(np.zeros(10)))
    values = np.random.default_rng(0).standard_normal(10_000)
    edges = find_bins(values)
    assert 20 <= len(edges) <= 33
    counts = count_bins(values, edges)
    assert counts.sum() == 10_000
    assert counts.min() >= 1


# ---- The portfolio and the bound.


def test_capital_is_divided_and_kept_back() -> None:
    """The stakes and the reserve are the capital; who won before and who promises more gets more."""
    portfolio = Portfolio(Hypotheses(np.array([0.5, 1.0]), np.zeros(2)), 0.9)
    promises = [np.array([0.0, 3.0]), np.zeros(2), np.array([50.0, 50.0])]
    stakes = portfolio.divide(promises, [np.zeros(2), np.array([2.0, -2.0]), np.zeros(2)])
    assert np.exp(stakes).sum(axis=0) == pytest.approx(0.9 - 0.3)
    assert stakes[2, 0] - stakes[0, 0] == pytest.approx(4.0)  # a promise moves at most e^4
    assert stakes[1, 0] - stakes[0, 0] == pytest.approx(2.0)
    portfolio.settle(stakes, np.full((3, 2), -1e9))
    assert np.exp(portfolio.log_capital) == pytest.approx(0.3)  # a bad round is not the end
    portfolio.settle(portfolio.divide(promises, [np.zeros(2)] * 3), np.full((3, 2), 3.0))
    assert (portfolio.log_peak == portfolio.log_capital).all()


def test_the_bound_needs_all_smaller_ones() -> None:
    epsilons = np.array([0.0, 0.5, 1.0, 1.5])
    assert bound_epsilon(epsilons, np.array([9.0, 8.0, 1.0, 8.0]), 3.0) == 0.5
    assert bound_epsilon(epsilons, np.array([1.0, 8.0, 8.0, 8.0]), 3.0) == 0.0
    assert bound_epsilon(epsilons, np.full(4, 9.0), 3.0) == 1.5


def test_composed_hypotheses() -> None:
    twice = Hypotheses(np.array([1.0]), np.array([0.6])).compose(2)
    assert (twice.epsilons[0], twice.deltas[0]) == (2.0, 1.0)


def test_an_account_plays_its_bins() -> None:
    """Two accounts of one statistic have the same bins; the factor is that of the counts in them."""
    first, second = np.ones((200, 1)), np.zeros((200, 1))
    accounts = open_accounts(Entry(), "any", first, second, make_hypothesis(1.0))
    assert [account.style for account in accounts] == list(STYLES)
    one: BetAccount = accounts[0]
    rows, sides = np.array([[1.0], [0.0], [0.0]]), np.array([True, False, True])
    assert one.play(rows, sides)[0] == pytest.approx(
        one.stakes.log_first[0, 1] + one.stakes.log_second[0, 0] + one.stakes.log_first[0, 0]
    )
    assert not open_accounts(Entry(), "any", np.zeros((9, 1)), np.zeros((9, 1)), make_hypothesis(1.0))
