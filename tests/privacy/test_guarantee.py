"""A guarantee against closed forms, a simulated attacker and its own certificate."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import ndtr
from support import STRICT

import scoreshield as ss


@pytest.fixture
def guarantee(collection: np.ndarray, query: np.ndarray) -> ss.Guarantee:
    return ss.release_scores(collection, query, epsilon=1, delta=1e-6).guarantee


def test_fields_of_a_score_release(guarantee: ss.Guarantee) -> None:
    assert (guarantee.epsilon, guarantee.delta, guarantee.mechanism, guarantee.sampler) == (
        1,
        1e-6,
        "gaussian",
        "exact",
    )
    assert guarantee.adjacency == ss.Replacement()
    assert guarantee.sensitivity == 2
    assert guarantee.scale == pytest.approx(8.4493577787, rel=1e-7)
    assert guarantee.scale >= 8.4493577787
    assert guarantee.noise.std == pytest.approx(guarantee.scale)
    assert guarantee.grid >= guarantee.scale / 2**46
    assert guarantee.grid_sensitivity == 2 + guarantee.grid


def test_profile_meets_the_contract_and_no_more(guarantee: ss.Guarantee) -> None:
    assert guarantee.delta_at(1) <= 1e-6
    assert guarantee.delta_at(1) == pytest.approx(1e-6, rel=1e-6)
    assert guarantee.epsilon_at(1e-6) <= 1 + 1e-9
    assert guarantee.delta_at(0) == pytest.approx(guarantee.attack_advantage)
    grid = [guarantee.delta_at(e) for e in np.linspace(0, 5, 30)]
    assert all(a > b for a, b in itertools.pairwise(grid))


def test_attack_figures_agree_with_each_other(guarantee: ss.Guarantee) -> None:
    mu = guarantee.mu
    assert guarantee.attack_auc == pytest.approx(ndtr(mu / math.sqrt(2)))
    assert guarantee.attack_auc == pytest.approx(quad(guarantee.tpr_at, 0, 1)[0], abs=1e-7)
    rates = np.linspace(0, 1, 100_001)
    assert guarantee.attack_advantage == pytest.approx((guarantee.tpr_at(rates) - rates).max(), abs=1e-8)
    assert guarantee.tpr_at(0.0) == 0.0
    assert guarantee.tpr_at(1.0) == 1.0


def test_simulated_attacker_reaches_stated_rate() -> None:
    """The likelihood-ratio test on worst-case neighbours, each row of the collection an experiment of its own."""
    size, generator = 400_000, np.random.default_rng(2)
    contract = {"epsilon": 5, "delta": 1e-5, "rng": generator}
    query = np.array([1.0, 0.0])
    member, other = (ss.release_scores(np.tile([sign, 0.0], (size, 1)), query, **contract) for sign in (1.0, -1.0))
    threshold = -1 + other.guarantee.noise.quantile(0.99)

    def errors(rate: float, expected: float) -> float:
        return abs(rate - expected) / math.sqrt(expected * (1 - expected) / size)

    expected = member.guarantee.tpr_at(0.01)
    seen = float(np.mean(member.noisy > threshold))
    assert errors(float(np.mean(other.noisy > threshold)), 0.01) < STRICT
    assert errors(seen, expected) < STRICT
    too_sure = float(ndtr(-2.3263478740408408 + member.guarantee.mu * 1.05))  # near miss: 5 % less noise
    assert errors(seen, too_sure) > STRICT


def test_survives_a_dictionary(guarantee: ss.Guarantee) -> None:
    assert ss.Guarantee.from_dict(json.loads(json.dumps(guarantee.to_dict()))) == guarantee


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mechanism", "magic"),
        ("calibration", "by eye"),
        ("sampler", "dice"),
        ("regime", "cube"),
        ("scale", None),
        ("scale", -1.0),
        ("scale", 7.0),  # too little noise for the promise
        ("epsilon", 0.001),  # a promise that the noise does not keep
        ("epsilon", math.nan),
        ("delta", 1e-9),
        ("noise", {"name": "gaussian", "std": 1.0}),
        ("noise", 3),
        ("shape", [1.5]),
        ("shape", 4),
        ("score_range", [0]),
        ("adjacency", []),
        ("adjacency", {"kind": "unheard of"}),
        ("claimed", [1]),
    ],
)
def test_a_forged_guarantee_is_refused(guarantee: ss.Guarantee, field: str, value: object) -> None:
    with pytest.raises(ss.InvalidInput):
        ss.Guarantee.from_dict({**guarantee.to_dict(), field: value})
    with pytest.raises(ss.InvalidInput, match="not complete"):
        ss.Guarantee.from_dict({name: item for name, item in guarantee.to_dict().items() if name != field})


def test_certificate_says_what_an_officer_needs(guarantee: ss.Guarantee) -> None:
    text = str(guarantee)
    flat = " ".join(text.split())
    for phrase in (
        "(1, 1e-06)-differential privacy",
        "40 similarity scores, of one public query against 40 records",
        "whether any one record was replaced by any other record",
        f"AUC of at most {math.ceil(1e4 * guarantee.attack_auc) / 1e4:.4f}",
        f"advantage of at most {math.ceil(1e4 * guarantee.attack_advantage) / 1e4:.4f}",
        "Does not cover Other releases from the same records",
        "The records themselves",
        "What is taken as public: the query, the number",
        "detects at most",
        "AES-256 stream",
        "l2 sensitivity 2",
    ):
        assert phrase in flat
    assert "WARNING" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_certificate_warns_where_it_must(collection: np.ndarray, query: np.ndarray) -> None:
    research = ss.release_scores(collection, query, epsilon=1, delta=1e-6, rng=1).guarantee
    assert research.sampler == "research"
    assert "NOT PRIVATE" in str(research)
    radius = ss.GramRadius(3.0)
    assert radius.dominates_replacement(2)  # but not for the forty records here
    weak = ss.release_gram(collection, epsilon=1, delta=1e-6, adjacency=radius, projection="none").guarantee
    assert not weak.covers_record_replacement
    assert "does NOT cover the replacement" in " ".join(str(weak).split())
    strong = ss.release_gram(collection, epsilon=1, delta=1e-6, projection="none").guarantee
    assert strong.covers_record_replacement
    assert "WARNING" not in str(strong)


@pytest.mark.parametrize("calibration", ["conservative", "classical"])
def test_reproducing_paper_carries_true_pair(calibration: str, collection: np.ndarray, query: np.ndarray) -> None:
    """Reproducing the paper carries the true pair."""
    contract = {"epsilon": 100, "delta": 1e-4, "calibration": calibration}
    with pytest.raises(ss.InvalidCalibration) as refused:
        ss.release_scores(collection, query, **contract)
    guarantee = ss.release_scores(collection, query, **contract, unsafe_reproduce_paper=True).guarantee
    assert guarantee.epsilon == pytest.approx(refused.value.true_epsilon, rel=1e-6)
    assert guarantee.delta == 1e-4
    assert guarantee.claimed == (100, 1e-4)
    assert guarantee.delta_at(guarantee.epsilon) <= 1e-4
    assert "claims (epsilon 100, delta 0.0001) and does not reach it" in " ".join(str(guarantee).split())
    numerator = {"conservative": 2, "classical": 1.25}[calibration]
    assert guarantee.scale == pytest.approx(2 * math.sqrt(2 * math.log(numerator / 1e-4)) / 100, rel=1e-6)


def test_flag_changes_nothing_rule_true(collection: np.ndarray, query: np.ndarray) -> None:
    """The flag changes nothing where the rule is true."""
    guarantee = ss.release_scores(
        collection, query, epsilon=1, delta=1e-4, calibration="conservative", unsafe_reproduce_paper=True
    ).guarantee
    assert guarantee.epsilon == 1
    assert guarantee.claimed is None


@pytest.mark.parametrize("wrong", [-0.1, math.nan, "1"])
def test_bad_questions(guarantee: ss.Guarantee, wrong: object) -> None:
    for ask in (guarantee.delta_at, guarantee.epsilon_at):
        with pytest.raises(ss.InvalidInput):
            ask(wrong)  # type: ignore[arg-type]
    with pytest.raises(ss.InvalidInput):
        guarantee.tpr_at(wrong)  # type: ignore[arg-type]
