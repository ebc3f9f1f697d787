"""Ranking mechanisms: predictions against the laws they rest on, against simulation, under both kinds of contract."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import scoreshield as ss
from scoreshield import decisions, plan
from scoreshield.decisions.models import parse_score_model
from scoreshield.privacy.profiles import LaplaceProfile, PureProfile


def by_name(choice: plan.Choice, name: str) -> plan.Candidate:
    return next(candidate for candidate in choice.candidates if candidate.mechanism == name)


def test_scores_are_ranked_by_their_error() -> None:
    """Scores are ranked by their error."""
    made = plan.choose("scores", epsilon=5, delta=1e-6)
    assert [c.mechanism for c in made.candidates] == ["optimal", "staircase", "laplace", "gaussian"]
    assert by_name(made, "gaussian").utility == pytest.approx(ss.calibrate(5, 1e-6, 2.0), rel=1e-9)
    assert by_name(made, "staircase").utility == pytest.approx(0.3848, abs=1e-3)
    assert made.chosen.advantage == ss.optimal_channel(5, levels=33).profile().advantage < math.tanh(2.5)
    assert f"advantage of {100 * made.chosen.advantage:.1f} %" in made.answer
    json.dumps(made.to_dict(), allow_nan=False)


def test_without_delta_there_is_no_gaussian() -> None:
    """Without delta there is no Gaussian."""
    assert all("gaussian" not in c.mechanism for c in plan.choose("scores", epsilon=5).candidates)


@pytest.mark.parametrize(
    "bound", [{"max_advantage": 0.2}, {"max_advantage": 0.9}, {"max_tpr": 0.05, "at_fpr": 0.01}], ids=str
)
def test_attack_bound_ranking(bound: dict[str, float]) -> None:
    """Every mechanism keeps an attack bound, and the ranking changes."""
    made = plan.choose("scores", delta=1e-6, ranges=[(-1, 1)], **bound)
    for candidate in made.candidates:
        if candidate.mechanism == "gaussian":
            profile = plan.make_contract(delta=1e-6, **bound)
            assert candidate.utility == pytest.approx(2 / profile.mu, rel=1e-6)
            continue
        kinds = {"laplace": LaplaceProfile, "staircase": lambda e: ss.StaircaseNoise.calibrate(e, 2.0).profile(2.0)}
        profile = kinds.get(candidate.mechanism, PureProfile)(candidate.epsilon)
        if "max_advantage" in bound:
            assert profile.advantage == pytest.approx(bound["max_advantage"], rel=1e-6)
        else:
            assert float(profile.tpr_at(0.01)) == pytest.approx(0.05, rel=1e-6)
    # At the same attack, unlike at the same epsilon, Gaussian noise is smaller than the pure additive laws.
    noise = {c.mechanism: c.utility for c in made.candidates}
    if bound.get("max_advantage") == 0.2:
        assert noise["gaussian"] < noise["laplace"] < noise["staircase"]


def test_verification_is_what_decisions_say() -> None:
    """Verification is what decisions say."""
    far, near = parse_score_model("normal:0,0.1"), parse_score_model("normal:0.55,0.14")
    made = plan.choose("verification", far, near, target_fmr=0.01, epsilon=8, delta=1e-6)
    best = next(candidate for candidate in made.candidates if candidate.mechanism != "accept bit")
    assert (best.mechanism, best.score_range) == ("staircase", (0.0, 0.8))
    law = ss.StaircaseNoise.calibrate(8, 0.8)
    told = decisions.roc(near.clamp(0, 0.8), far.clamp(0, 0.8), law).tpr_at(0.01)
    assert best.utility == pytest.approx(told, abs=1e-6)
    assert made.source == "parameters"


def test_retrieval_prefers_levels() -> None:
    """Retrieval prefers levels and states the floor."""
    rng = np.random.default_rng(1)
    far, near = rng.normal(0.06, 0.1, 20_000), rng.normal(0.55, 0.14, 3_000).clip(-1, 1)
    made = plan.choose("retrieval", far, near, records=5000, k=10, epsilon=8, source="public", ranges=[(0.0, 0.8)])
    assert made.chosen.mechanism.startswith("randomised response on")
    assert made.floor == pytest.approx(math.log(5000 * made.chosen.utility / 10))
    assert made.answer.startswith(f"Below epsilon {made.floor:.3g} no mechanism at all reaches that.")
    assert by_name(made, "selection of the k best").utility < 0.05


def test_many_queries_prefer_an_index() -> None:
    """Many queries prefer an index."""
    one = plan.choose("many queries", epsilon=10, delta=1e-6, queries=1, dimension=384)
    assert one.chosen.mechanism == "staircase, query by query"
    many = plan.choose("many queries", epsilon=10, delta=1e-6, queries=100, dimension=384)
    assert many.chosen.mechanism == "privunit index"
    assert many.chosen.utility == pytest.approx(0.304, abs=0.002)
    index, separate = (by_name(many, f"gaussian{name}").utility for name in (" index", ", query by query"))
    assert separate == pytest.approx(10 * index, rel=1e-9)


def test_gram_from_index() -> None:
    """A Gram matrix is best read from an index."""
    made = plan.choose("gram", epsilon=10, delta=1e-6, records=400, dimension=64)
    assert made.chosen.mechanism == "privunit index"
    assert by_name(made, "gaussian Gram matrix").utility == pytest.approx(ss.calibrate(10, 1e-6, 2 * math.sqrt(399)))
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((400, 64))
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    off = ~np.eye(400, dtype=bool)
    components = int(made.chosen.call.split("components=")[1].split(")")[0])
    release = ss.release_index(rows, epsilon=10, components=components, rng=1)
    seen = float(np.sqrt(np.mean((release.gram() - unit @ unit.T)[off] ** 2)))
    assert seen == pytest.approx(made.chosen.utility, rel=0.1)


def test_an_operating_point_is_a_histogram() -> None:
    """An operating point is a histogram."""
    made = plan.choose("operating point", epsilon=1, records=4000)
    rng = np.random.default_rng(2)
    rows, query = rng.standard_normal((4000, 16)), rng.standard_normal(16)
    scores = rows @ query / np.linalg.norm(rows, axis=1) / np.linalg.norm(query)
    middle = 32
    misses = [
        ss.release_histogram(rows, query, epsilon=1, rng=seed).rates[middle] - np.mean(scores > 0)
        for seed in range(200)
    ]
    assert float(np.std(misses)) < made.chosen.utility * 1.2  # the monotone fit only helps


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"need": "peace", "epsilon": 1}, "'need'"),
        ({"need": "scores"}, "one contract"),
        ({"need": "scores", "epsilon": 1, "max_tpr": 0.1, "at_fpr": 0.01}, "one contract"),
        ({"need": "scores", "max_tpr": 0.01, "at_fpr": 0.1}, "guessing"),
        ({"need": "verification", "epsilon": 1}, "Verification needs"),
        ({"need": "retrieval", "epsilon": 1}, "Retrieval needs"),
        ({"need": "many queries", "epsilon": 1}, "dimension"),
        ({"need": "operating point", "epsilon": 1}, "number of records"),
        ({"need": "retrieval", "epsilon": 1, "k": 1, "benchmark": 3}, "'benchmark'"),
    ],
)
def test_bad_choices(arguments: dict[str, object], says: str) -> None:
    """A bad argument of choose raises an error."""
    need = arguments.pop("need")
    with pytest.raises(ss.InvalidInput, match=says):
        plan.choose(need, **arguments)  # type: ignore[arg-type]


# Recall of a benchmark


def test_predictions_hold_on_real_abstracts(shared_data: Path) -> None:
    """SciFact: the predicted recall of each mechanism within 5 % of what releases reach."""
    with np.load(shared_data / "scifact_minilm.npz") as file:
        records, queries, pairs = file["doc_emb"], file["query_emb"], file["qrels"]
    scores = (queries @ records.T).astype(np.float64)
    wanted: dict[int, set[int]] = {}
    for query, record in pairs:
        wanted.setdefault(int(query), set()).add(int(record))
    table = ss.randomised_response(8, [0.4, 0.5, 0.6])
    cases = {
        "staircase": (ss.StaircaseNoise.calibrate(12, 2.0), {"epsilon": 12, "mechanism": "staircase"}),
        "levels": (table, {"epsilon": 8, "mechanism": table}),
        "laplace": (ss.LaplaceNoise.calibrate(50, 2.0), {"epsilon": 50, "mechanism": "laplace"}),
    }
    for name, (law, contract) in cases.items():
        told = decisions.recall_of_queries(scores, pairs, law, k=10)
        seen = np.mean(
            [
                len(wanted[q] & set(ss.release_scores(records, queries[q], rng=q, **contract).top_k(10).tolist()))
                / len(wanted[q])
                for q in wanted
            ]
        )
        assert seen == pytest.approx(told, rel=0.05), name


def test_a_contract_of_an_advantage_and_an_epsilon() -> None:
    """Every candidate keeps both figures, and a thinned table does best at a large epsilon."""
    both = ss.plan.make_contract(delta=1e-6, epsilon=8, max_advantage=0.5)
    one, other = ss.plan.make_contract(delta=1e-6, epsilon=8), ss.plan.make_contract(delta=1e-6, max_advantage=0.5)
    assert both is not None
    assert one is not None
    assert other is not None
    assert both.mu == min(one.mu, other.mu)
    assert both.stated == "an attacker's advantage of at most 0.5 and epsilon 8"
    assert both.find_pure_epsilon() == pytest.approx(2 * math.atanh(0.5))
    small = ss.plan.make_contract(delta=0.0, epsilon=0.2, max_advantage=0.5)
    assert small is not None
    assert small.find_pure_epsilon() == 0.2
    assert small.mu == 0
    rng = np.random.default_rng(1)
    far, near = rng.normal(0.05, 0.1, 20_000).clip(-1, 1), rng.normal(0.6, 0.12, 2_000).clip(-1, 1)
    found = ss.plan.choose(
        "retrieval", far, near, epsilon=8, max_advantage=0.5, delta=1e-6, records=5_000, k=10, source="public"
    )
    assert found.chosen.mechanism.startswith("thinned response")
    assert "exposed as under epsilon 8" in found.chosen.note
    for candidate in found.candidates:
        assert candidate.advantage <= 0.5 * (1 + 1e-9)
        assert candidate.epsilon <= 8 * (1 + 1e-9)


def test_verification_considers_the_accept_bit() -> None:
    rng = np.random.default_rng(1)
    far, near = rng.normal(0, 0.1, 20_000).clip(-1, 1), rng.normal(0.55, 0.14, 5_000).clip(-1, 1)
    found = ss.plan.choose("verification", far, near, target_fmr=0.01, epsilon=5, source="public")
    assert found.chosen.mechanism == "accept bit"
    bit = ss.accept_bit(5, impostor=far, genuine=near, false_match_rate=0.01)
    assert found.chosen.utility == bit.true_match_rate
    assert found.chosen.advantage == bit.table.profile().advantage
