"""The verdict of a certificate: one word from the best attacker's rates, with a near miss at each limit."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

import scoreshield as ss
from scoreshield.privacy.profiles import GaussianProfile, Profile, PureProfile
from scoreshield.privacy.verdicts import (
    LAST,
    LIMITS,
    choose_verdict,
    format_right_guesses,
    judge_profile,
)
from scoreshield.search import PrivateSearch

WORDS = [limit.word for limit in LIMITS] + [LAST]
DOCS = Path(__file__).resolve().parents[2] / "docs"


def flatten(guarantee: ss.Guarantee) -> str:
    return " ".join(str(guarantee).split())


@pytest.mark.parametrize("place", range(len(LIMITS)))
def test_each_limit_belongs_to_the_next_word(place: int) -> None:
    """A rate at its limit gets the next word; the double below it does not."""
    limit, better, worse = LIMITS[place], WORDS[place], WORDS[place + 1]
    assert choose_verdict(math.nextafter(limit.advantage, 0), 0.0) == better
    assert choose_verdict(limit.advantage, 0.0) == worse
    assert choose_verdict(0.0, math.nextafter(limit.tpr, 0)) == better
    assert choose_verdict(0.0, limit.tpr) == worse


def test_the_worse_rate_decides() -> None:
    assert choose_verdict(0.1, 0.5) == "weak"
    assert choose_verdict(0.8, 0.01) == "weak"
    assert choose_verdict(0.1, 0.01) == "strong"
    assert choose_verdict(1.0, 1.0) == LAST


@pytest.mark.parametrize(("epsilon", "place"), [(math.log(3), 0), (math.log(7), 1), (math.log(19), 2)])
def test_randomised_response_in_closed_form(epsilon: float, place: int) -> None:
    """Its advantage is tanh(epsilon / 2): 1/2, 3/4 and 9/10 at ln 3, ln 7 and ln 19."""
    rows, query = np.eye(5), np.eye(5)[0]
    for factor, word in ((1 - 1e-9, WORDS[place]), (1 + 1e-9, WORDS[place + 1])):
        release = ss.release_matches(rows, query, 0.5, epsilon=epsilon * factor)
        assert release.guarantee.verdict == word
        assert release.guarantee.attack_advantage == pytest.approx(LIMITS[place].advantage, rel=1e-8)


@pytest.mark.parametrize(
    ("mu", "place"),
    [
        (norm.ppf(0.05) - norm.ppf(0.01), 0),
        (norm.ppf(0.2) - norm.ppf(0.01), 1),
        (2 * norm.ppf(0.95), 2),  # here the advantage decides: it reaches 0.9 before the other rate does
    ],
)
def test_gaussian_noise_in_closed_form(mu: float, place: int) -> None:
    """Gaussian noise detects Phi(Phi^-1(0.01) + mu) at 1 % false alarms, and has the advantage 2 Phi(mu / 2) - 1."""
    assert judge_profile(GaussianProfile(mu * (1 - 1e-9))) == WORDS[place]
    assert judge_profile(GaussianProfile(mu * (1 + 1e-9))) == WORDS[place + 1]


def test_a_simulated_attacker_is_right_as_often_as_stated() -> None:
    """The likelihood-ratio test between N(0, 1) and N(mu, 1), with both equally likely."""
    mu, draws = 0.9, 400_000
    rng = np.random.default_rng(7)
    truth = rng.integers(0, 2, draws)
    guesses = rng.standard_normal(draws) + mu * truth > mu / 2
    right = np.mean(guesses == truth)
    error = 6 * 0.5 / math.sqrt(draws)  # six standard deviations: a false alarm in 10^9

    def read_stated(profile: Profile) -> float:
        return float(format_right_guesses(profile.advantage).removesuffix(" %")) / 100

    stated = read_stated(GaussianProfile(mu))
    assert right - error <= stated <= right + error + 0.001
    assert not right - error <= read_stated(GaussianProfile(0.95 * mu))  # a bound that is too small


def test_the_share_of_right_guesses_is_rounded_up() -> None:
    assert format_right_guesses(0.0) == "50.0 %"
    assert format_right_guesses(0.5) == "75.0 %"
    assert format_right_guesses(0.50001) == "75.1 %"
    assert format_right_guesses(0.9981) == "99.91 %", "a share below one is not written as one"
    assert format_right_guesses(0.9999) == "99.995 %"
    assert format_right_guesses(1.0) == "100 %"


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.7, 1.0, 3.3, 6.0, 8.0, 12.0])
def test_attack_figures_are_rounded_up(epsilon: float) -> None:
    """What a certificate states as a limit is never below it, and at most one unit of its last digit above."""
    release = ss.release_scores(np.eye(3), np.ones(3), epsilon=epsilon, mechanism="staircase", rng=1)
    guarantee = release.guarantee
    found = re.search(
        r"AUC of at most ([\d.]+) .*advantage of at most ([\d.]+) .*detects at most ([\d.]+) %", flatten(guarantee)
    )
    assert found is not None
    limits = guarantee.attack_auc, guarantee.attack_advantage, 100 * guarantee.tpr_at(0.01)
    for stated, limit, unit in zip(map(float, found.groups()), limits, (1e-4, 1e-4, 1e-2), strict=True):
        assert limit <= stated <= limit + unit * (1 + 1e-9)


def test_the_certificate_begins_with_the_verdict(collection: np.ndarray, query: np.ndarray) -> None:
    guarantee = ss.release_scores(collection, query, epsilon=2, delta=1e-6).guarantee
    assert guarantee.verdict == "strong"
    assert guarantee.warnings == ()
    assert str(guarantee).split("\n")[3].startswith("Verdict        Strong. An attacker who")
    right = math.ceil(500 * (1 + guarantee.attack_advantage)) / 10
    assert f"for one record is right at most {right} % of the time (50 % is a coin toss)." in flatten(guarantee)
    people = ss.Identity(np.arange(40) // 2)
    grouped = ss.release_scores(collection, query, epsilon=2, delta=1e-6, adjacency=people).guarantee
    assert "two candidates for one identity is right" in flatten(grouped)


def test_a_certificate_without_protection_says_so(collection: np.ndarray, query: np.ndarray) -> None:
    guarantee = ss.release_scores(collection, query, epsilon=50, delta=0.5).guarantee
    assert guarantee.verdict == LAST
    first, second = guarantee.warnings
    assert first.startswith("this release hides practically nothing about one record")
    assert second.startswith("delta 0.5 is not below 1/n for the n = 40 records: a release that reveals 20 whole")
    text = str(guarantee)
    assert text.count("WARNING: ") == 2
    assert text.rindex("WARNING: ") < text.index("Verdict        Hides practically nothing. ")
    assert max(map(len, text.splitlines())) <= 79


@pytest.mark.parametrize(("factor", "warns"), [(1 - 1e-9, False), (1 + 1e-9, True)])
def test_a_warning_from_an_advantage_of_nine_tenths(factor: float, warns: bool) -> None:
    guarantee = ss.release_matches(np.eye(3), np.eye(3)[0], 0.5, epsilon=math.log(19) * factor).guarantee
    assert bool(guarantee.warnings) == warns
    assert ("WARNING" in str(guarantee)) == warns


@pytest.mark.parametrize("records", [7, 40, 49, 1000])
def test_a_warning_from_a_delta_of_one_over_n(records: int) -> None:
    rows = np.random.default_rng(1).standard_normal((records, 4))
    for delta, warns in ((1 / records, True), (math.nextafter(1 / records, 0), False), (2 / records, True)):
        guarantee = ss.release_scores(rows, rows[0], epsilon=0.1, delta=delta).guarantee
        assert any(f"n = {records:,} records" in warning for warning in guarantee.warnings) == warns


def test_every_kind_of_release_counts_its_records(collection: np.ndarray, query: np.ndarray) -> None:
    """The n of the warning is the number of records: not of queries, bins or dimensions."""
    both = {"epsilon": 0.1, "delta": 1 / 40}
    for release in (
        ss.release_scores(collection, np.stack([query, -query, query]), **both),
        ss.release_row(collection, 3, **both),
        ss.release_gram(collection, **both, projection="none"),
        ss.release_histogram(collection, query, bins=4, mechanism="gaussian", **both),
        ss.release_histogram(collection, None, bins=4, mechanism="gaussian", **both),
        ss.release_index(collection, **both, mechanism="gaussian", components=3),
    ):
        (warning,) = release.guarantee.warnings
        assert "n = 40 records: a release that reveals 1 whole" in warning, release
        better = replace(release.guarantee, delta=1 / 41)
        assert better.warnings == ()


def test_research_mode_hides_nothing(collection: np.ndarray, query: np.ndarray) -> None:
    """A gate on the verdict must not pass what a seed undoes; the text says what the noise alone would be."""
    guarantee = ss.release_scores(collection, query, epsilon=1, delta=1e-6, rng=1).guarantee
    assert guarantee.verdict == LAST
    assert "Hides practically nothing, because it was made in research mode. With the exact sampler it would be " in (
        flatten(guarantee)
    )
    assert "it would be strong. An attacker who knows everything else, except the seed, and" in flatten(guarantee)
    assert len(guarantee.warnings) == 1


def test_a_radius_is_judged_by_a_whole_record(collection: np.ndarray) -> None:
    """A tiny radius has a small epsilon and protects no record."""
    radius = ss.GramRadius(0.01)
    guarantee = ss.release_gram(collection, epsilon=1, delta=1e-6, adjacency=radius, projection="none").guarantee
    assert judge_profile(guarantee.profile) == "strong"
    assert guarantee.verdict == LAST
    assert [warning.split()[:2] for warning in guarantee.warnings] == [["this", "radius"], ["this", "release"]]


def test_a_hit_budget_is_judged_between_two_records() -> None:
    """Against a null record its promise has half the epsilon: the verdict is for the replacement of a record."""
    rows = np.random.default_rng(3).standard_normal((30, 4))
    search = PrivateSearch(rows, mode="hits", epsilon=1.9, hits=1, adjacency=ss.NullRecord())
    guarantee = search.guarantee
    replacement = PureProfile(guarantee.details["replacement_epsilon"])
    assert guarantee.verdict == judge_profile(replacement)
    assert judge_profile(guarantee.profile) != guarantee.verdict
    assert f"right at most {format_right_guesses(replacement.advantage)} of the time" in flatten(guarantee)


def test_the_documentation_states_the_limits() -> None:
    """The table of docs/certificate.md is the one of the code."""
    text = (DOCS / "certificate.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| below ([\d.]+) \| below ([\d.]+) % \| below ([\d.]+) % of", text, re.M)
    assert [(word, float(advantage), float(tpr) / 100) for word, advantage, tpr, _ in rows] == [
        (limit.word, limit.advantage, limit.tpr) for limit in LIMITS
    ]
    assert [float(right) for *_, right in rows] == [50 * (1 + limit.advantage) for limit in LIMITS]
    assert f"| **{LAST}** |" in text
