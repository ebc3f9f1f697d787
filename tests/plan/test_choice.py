"""Ranking mechanisms: predictions against the laws they rest on, against simulation, under both kinds of contract."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.special import ndtr

import scoreshield as ss
from scoreshield import decisions, plan
from scoreshield._formatting import format_rate
from scoreshield.decisions import QueryScores
from scoreshield.decisions.models import parse_score_model
from scoreshield.plan.candidates import Candidate
from scoreshield.plan.choice import Choice, _state_caution
from scoreshield.plan.contracts import make_contract
from scoreshield.plan.match_candidates import _predict_accept_bit
from scoreshield.plan.sentences import format_utility, name_mechanism, state_best
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
            assert profile.advantage == pytest.approx(bound["max_advantage"], rel=2e-5)
            assert profile.advantage <= bound["max_advantage"]
        else:
            assert float(profile.tpr_at(0.01)) == pytest.approx(0.05, rel=2e-5)
            assert float(profile.tpr_at(0.01)) <= 0.05
    # At the same attack, unlike at the same epsilon, Gaussian noise is smaller than the pure additive laws.
    noise = {c.mechanism: c.utility for c in made.candidates}
    if bound.get("max_advantage") == 0.2:
        assert noise["gaussian"] < noise["laplace"] < noise["staircase"]


def test_verification_is_what_decisions_say() -> None:
    """Verification is what decisions say."""
    far, near = parse_score_model("normal:0,0.1"), parse_score_model("normal:0.55,0.14")
    assert far is not None
    assert near is not None
    made = plan.choose("verification", far, near, target_fmr=0.01, epsilon=8, delta=1e-6)
    assert made.source == "parameters"
    for name in ("staircase", "laplace", "gaussian"):
        row = by_name(made, name)
        width = row.score_range[1] - row.score_range[0]
        law = {
            "staircase": ss.StaircaseNoise.calibrate(8, width),
            "laplace": ss.LaplaceNoise.calibrate(8, width),
            "gaussian": ss.GaussianNoise(ss.calibrate(8, 1e-6, width)),
        }[name]
        told = decisions.roc(near.clamp(*row.score_range), far.clamp(*row.score_range), law).tpr_at(0.01)
        assert row.utility == pytest.approx(told, abs=1e-3)
    assert by_name(made, "gaussian").score_range == (-1.0, 1.0)
    asked = plan.choose("verification", far, near, target_fmr=0.01, epsilon=8, ranges=[(0.0, 0.8)])
    assert by_name(asked, "staircase").score_range == (0.0, 0.8)
    assert by_name(made, "staircase").utility > by_name(asked, "staircase").utility - 1e-3


def test_retrieval_prefers_levels() -> None:
    """Retrieval prefers levels and states the floor."""
    rng = np.random.default_rng(1)
    far, near = rng.normal(0.06, 0.1, 20_000), rng.normal(0.55, 0.14, 3_000).clip(-1, 1)
    made = plan.choose("retrieval", far, near, records=5000, k=10, epsilon=8, source="public", ranges=[(0.0, 0.8)])
    assert by_name(made, "staircase").score_range == (0.0, 0.8)
    assert made.floor == pytest.approx(math.log(5000 * max(row.utility for row in made.candidates) / 10))
    most = max(row.utility for row in made.candidates)
    assert made.impossible == f"No mechanism finds {format_rate(most)} below epsilon {made.floor:.3g}."
    assert made.answer.index(" find") < made.answer.index(made.impossible), "the figure comes before its floor"
    assert made.answer.endswith(made.caution)
    assert by_name(made, "selection of the k best").utility < 0.05


def test_many_queries_prefer_an_index() -> None:
    """Many queries prefer an index."""
    one = plan.choose("many-queries", epsilon=10, delta=1e-6, queries=1, dimension=384)
    assert one.chosen.mechanism == "staircase, query by query"
    many = plan.choose("many-queries", epsilon=10, delta=1e-6, queries=100, dimension=384)
    assert many.chosen.mechanism == "privunit index"
    assert many.chosen.utility == pytest.approx(0.304, abs=0.002)
    index, separate = (by_name(many, f"gaussian{name}").utility for name in (" index", ", query by query"))
    assert 10 * index < separate < 10.01 * index  # a ledger keeps one part in a hundred of delta


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
    made = plan.choose("operating-point", epsilon=1, records=4000)
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
        ({"need": "scores", "epsilon": 1, "k": 10}, "does not use k"),
        ({"need": "scores", "epsilon": 1, "target_fmr": 0.1, "queries": 5}, "target_fmr and queries"),
        ({"need": "retrieval", "epsilon": 1, "target_fmr": 0.1}, "does not use target_fmr"),
        ({"need": "gram", "epsilon": 1, "target": 0.5}, "does not use target"),
    ],
)
def test_bad_choices(arguments: dict[str, object], says: str) -> None:
    """A bad argument of choose raises an error."""
    need = arguments.pop("need")
    with pytest.raises(ss.InvalidInput, match=says):
        plan.choose(need, **arguments)  # type: ignore[arg-type]


# Search, query by query


def make_benchmark(seed: int = 2, queries: int = 80, records: int = 600) -> tuple[np.ndarray, np.ndarray]:
    """Scores of queries whose levels differ, with a relevant record each."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(0.05, 0.12, (queries, records)) + rng.normal(0, 0.05, (queries, 1))
    pairs = np.stack([np.arange(queries), rng.integers(0, records, queries)], axis=1)
    scores[pairs[:, 0], pairs[:, 1]] += rng.normal(0.45, 0.1, queries)
    return scores.clip(-1, 1), pairs


BENCHMARK = make_benchmark()


def release_from_scores(row: np.ndarray, mechanism: object, seed: int, epsilon: float, **more: object) -> np.ndarray:
    """Release scores of a query: rows in a plane have these cosines with it."""
    rows = np.zeros((len(row), 384))
    rows[:, 0], rows[:, 1] = row, np.sqrt(1 - row**2)
    made = ss.release_scores(rows, np.eye(384)[0], epsilon=epsilon, mechanism=mechanism, rng=seed, **more)  # type: ignore[arg-type]
    return made.top_k(5)


def test_search_ranks_every_mechanism() -> None:
    """Each mechanism has one row, an error and a call that can be made; the paper's is on the full range."""
    made = plan.choose("retrieval", benchmark=BENCHMARK, k=5, epsilon=7, delta=1e-6, source="public")
    names = {row.mechanism.split(" on ")[0] for row in made.candidates}
    assert names == {
        "gaussian",
        "laplace",
        "staircase",
        "screening",
        "randomised response",
        "anchored windows",
        "selection of the k best",
    }
    assert len(made.candidates) == len(names)
    assert by_name(made, "gaussian").score_range == (-1.0, 1.0)
    assert all(row.error > 0 for row in made.candidates)
    public = {name: getattr(ss, name) for name in ss.__all__ if not name.startswith("__")}
    rng = np.random.default_rng(1)
    rows, query = rng.standard_normal((200, 384)), rng.standard_normal(384)
    for row in made.candidates:
        release = eval(row.call, {"np": np, "rows": rows, "query": query, "public_scores": BENCHMARK[0], **public})
        assert release.guarantee.epsilon == pytest.approx(row.epsilon, rel=1e-5)
        assert release.guarantee.delta == row.delta
    json.dumps(made.to_dict(), allow_nan=False)


@pytest.mark.parametrize("epsilon", [6.0, 9.0])
def test_released_recall_is_within_the_error(epsilon: float) -> None:
    """Tables, noise and windows, released for queries of the same population, keep what was predicted for them."""
    asked = 100
    made = plan.choose("retrieval", benchmark=BENCHMARK, k=5, epsilon=epsilon, asked=asked, source="public")
    scores, pairs = make_benchmark(77, queries=asked)
    public = {name: getattr(ss, name) for name in ss.__all__ if not name.startswith("__")}
    checked = 0
    for row in made.candidates:
        if not row.call.startswith("release_scores"):
            continue
        found = eval(f"dict({row.call.split('rows, query, ')[1]}", {"np": np, "public_scores": BENCHMARK[0], **public})
        named = [release_from_scores(scores[q], seed=q, **found) for q in range(asked)]
        released = np.mean([pairs[q, 1] in named[q] for q in range(asked)])
        assert abs(released - row.utility) <= 2.5 * row.error, row.mechanism  # nine in ten within one
        checked += 1
    assert checked == 4


def test_cuts_are_not_judged_by_the_queries_that_chose_them() -> None:
    """Without cross-fitting, cuts on few queries promise more than they keep on fresh ones."""
    promised, kept = [], []
    for seed in range(6):
        scores, pairs = make_benchmark(seed, queries=24, records=300)
        made = plan.choose("retrieval", benchmark=(scores, pairs), k=3, epsilon=6, source="public")
        row = next(row for row in made.candidates if row.mechanism.startswith("randomised"))
        cuts = eval(row.call.split("randomised_response(6, ")[1][:-2], {"np": np})
        law = ss.randomised_response(6, cuts)
        fresh = QueryScores(*make_benchmark(1000 + seed, queries=200, records=300))
        kept.append(fresh.predict_recall(law, k=3).value)
        promised.append(row.utility)
        own = QueryScores(scores, pairs).predict_recall(law, k=3).value
        assert row.utility <= own + 0.03
    assert abs(np.mean(promised) - np.mean(kept)) < 0.06


def test_more_records_keep_less() -> None:
    few, many = (
        plan.choose("retrieval", benchmark=BENCHMARK, k=5, epsilon=7, records=n, source="public") for n in (600, 20_000)
    )
    for row in few.candidates:
        other = [one for one in many.candidates if one.mechanism.split(" on ")[0] == row.mechanism.split(" on ")[0]]
        assert other[0].utility <= row.utility + 1e-9
    assert "of 20,000" in many.metric
    bound = 5 * math.exp(7) / 20_000
    assert bound < 1
    assert many.impossible == "" or many.chosen.utility <= bound


def test_what_no_mechanism_can_do_comes_first() -> None:
    """Below the bound for any mechanism, the first sentence states it, and a target above it raises an error."""
    made = plan.choose("retrieval", benchmark=BENCHMARK, k=5, records=50_000, epsilon=7, source="public")
    bound = 5 * math.exp(7) / 50_000
    assert made.answer.startswith(f"With epsilon 7, no mechanism finds more than {format_rate(bound)}")
    assert made.chosen.utility < bound
    with pytest.raises(ss.InvalidInput, match=r"no mechanism reaches 50 %.*larger budget"):
        plan.choose("retrieval", benchmark=BENCHMARK, k=5, records=50_000, epsilon=7, target=0.5, source="public")
    short = plan.choose("retrieval", benchmark=BENCHMARK, k=5, epsilon=5, target=0.99, source="public")
    assert "below the 99 %" in short.warnings[-1]
    both = plan.choose("retrieval", benchmark=BENCHMARK, k=5, max_advantage=0.2, delta=1e-6, source="public")
    assert both.chosen.utility <= 0.2 + 5 / 600
    assert "gaussian bit" in [row.mechanism for row in both.candidates]


def test_a_shift_is_the_last_word() -> None:
    """Fixed levels depend on where scores lie, and windows do not."""
    made = plan.choose("retrieval", benchmark=BENCHMARK, k=5, epsilon=7, source="public")
    table = next(row for row in made.candidates if row.mechanism.startswith("randomised"))
    windows = by_name(made, "anchored windows")
    assert windows.shifted == (windows.utility, windows.utility)
    assert table.shifted is not None
    assert min(table.shifted) < table.utility - 0.005
    assert "0.05" in made.caution


def test_many_queries_of_a_search() -> None:
    """Several queries share the contract: separate releases get a part, and a batch, an index and hits are ranked."""
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((400, 16))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    pairs = np.stack([np.arange(40), rng.integers(0, 400, 40)], axis=1)
    queries = rows[pairs[:, 1]] + 0.15 * rng.standard_normal((40, 16))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    codebook = ss.PublicCodebook(rng.standard_normal((64, 16)), source="random directions")
    made = plan.choose(
        "retrieval",
        benchmark=(queries @ rows.T, pairs),
        k=5,
        epsilon=12,
        delta=1e-6,
        queries=40,
        dimension=16,
        codebook=codebook,
        public_queries=queries,
        source="public",
    )
    names = {row.mechanism for row in made.candidates}
    assert {"batch", "hit budget", "privunit index", "gaussian index", "codebook index"} <= names
    assert any(name.endswith("query by query") for name in names)
    assert made.chosen.mechanism in ("batch", "privunit index", "hit budget")
    assert by_name(made, "laplace, query by query").call == (
        '[release_scores(rows, query, epsilon=0.3, mechanism="laplace") for query in queries]'
    )
    batch = by_name(made, "batch")
    recalls = []
    for seed in range(10):
        release = ss.release_batch(
            rows, queries, epsilon=12, k=5, levels=ss.PublicLevels.fit(queries @ rows.T), rng=seed
        )
        recalls.append(np.mean([pairs[q, 1] in release.search(q, 5).indices for q in range(40)]))
    assert abs(np.mean(recalls) - batch.utility) <= batch.error
    index = by_name(made, "privunit index")
    recalls = []
    for seed in range(10):
        release = ss.release_index(rows, epsilon=index.epsilon, rng=seed)
        recalls.append(np.mean([pairs[q, 1] in release.search(queries[q], 5).indices for q in range(40)]))
    assert abs(np.mean(recalls) - index.utility) <= index.error


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


def test_verification_states_bounds_and_bad_scores() -> None:
    rng = np.random.default_rng(1)
    far, near = rng.normal(0, 0.1, 20_000).clip(-1, 1), rng.normal(0.55, 0.14, 5_000).clip(-1, 1)
    made = plan.choose("verification", far, near, target_fmr=0.01, epsilon=2, source="public")
    bound = 0.01 * math.exp(2)
    assert made.chosen.utility <= bound
    assert made.impossible.startswith(f"With epsilon 2, no mechanism keeps more than {format_rate(bound)}")
    with pytest.raises(ss.InvalidInput, match="no mechanism reaches 90 %"):
        plan.choose("verification", far, near, target_fmr=0.01, epsilon=2, target=0.9, source="public")
    for pair, says in (
        ((near, far), "exchange the two"),
        ((far[:19], near), "at least 20"),
        ((100 * far, near), "percentages"),
        ((np.full(500, 0.2), near), "differ"),
        ((np.append(far, np.nan), near), "finite"),
    ):
        with pytest.raises(ss.InvalidInput, match=says):
            plan.choose("verification", *pair, target_fmr=0.1, epsilon=5, source="public")
    for pair, says in (((near, far), "exchange the two"), ((far, near[:19]), "at least 20")):
        with pytest.raises(ss.InvalidInput, match=says):
            plan.choose("retrieval", *pair, records=1000, k=10, epsilon=5, source="public")
    with pytest.raises(ss.InvalidInput, match="All 10 records"):
        plan.choose("retrieval", far, near, records=10, k=10, epsilon=5, source="public")
    with pytest.raises(ss.InvalidInput, match="not both"):
        plan.choose("retrieval", far, near, benchmark=BENCHMARK, k=10, epsilon=5, source="public")
    codebook = ss.PublicCodebook(np.eye(4))
    with pytest.raises(ss.InvalidInput, match="public_queries"):
        plan.choose("retrieval", benchmark=BENCHMARK, k=10, epsilon=5, queries=2, codebook=codebook, source="public")


def test_old_names_of_needs() -> None:
    made = plan.choose("operating point", epsilon=1, records=1000)  # type: ignore[arg-type]
    assert made.need == "operating-point"


def _make_choice(*rows: tuple[str, float, tuple[float, float]]) -> Choice:
    """A ranking with these rows: mechanism, utility, and the utilities after a shift."""
    contract = make_contract(delta=0.0, epsilon=8.0)
    assert contract is not None
    candidates = tuple(
        Candidate(name, "call", utility, 8.0, 0.0, 0.9, (-1.0, 1.0), error=0.08, shifted=shifted)
        for name, utility, shifted in rows
    )
    return Choice("retrieval", "recall among the best 10 of 5,000", True, contract, candidates, 0.0, "public", ())


def test_the_recommended_mechanism_is_not_called_the_best_of_a_tie() -> None:
    """Where another mechanism is predicted to do better, the sentence says by how much and why it does not lead."""
    rows = ("anchored windows", 0.895, (0.895, 0.895)), ("screening", 0.905, (0.8, 0.9))
    assert state_best(_make_choice(*rows)) == (
        "With epsilon 8, anchored windows are recommended: they find 89.5 ± 8.0 % of the relevant records among the "
        "best 10 of 5,000, within one point of the best (90.5 %), and a shift of the scores harms them least."
    )
    assert "screening is predicted to do best: it finds 90.5" in state_best(_make_choice(rows[1], rows[0]))
    assert name_mechanism("optimal") == "an optimal level table"
    assert name_mechanism("gaussian, query by query") == "Gaussian noise, query by query"


def test_a_small_prediction_changes_by_its_own_share() -> None:
    """A change of 0.3 points is none at 90 %, and is stated at 5 %."""
    assert "would not change" in _state_caution(_make_choice(("a", 0.9, (0.897, 0.9))).candidates)
    assert "4.7 % or 4.6 %" in _state_caution(_make_choice(("a", 0.05, (0.047, 0.046))).candidates)


def test_a_rate_near_zero_has_one_unit() -> None:
    """An interval ends at 0 and at 1, and has the form of the others inside."""
    made = _make_choice(("a", 0.0, (0.0, 0.0)), ("b", 0.95, (0.9, 0.9)), ("c", 0.08, (0.1, 0.1)))
    shown = [format_utility(made, row) for row in made.candidates]
    assert shown == ["0.0 % (between 0 and 8.0 %)", "95.0 % (between 87.0 and 100 %)", "8.0 ± 8.0 %"]


def test_one_query_has_an_interval_inside_the_rates() -> None:
    """A prediction for one query does not state an error above 100 %."""
    made = plan.choose("retrieval", benchmark=BENCHMARK, k=5, epsilon=5, asked=1, source="public")
    assert made.chosen.error > 1
    assert "(between 0 and 100 %)" in made.answer


def test_scores_that_know_nothing_are_named() -> None:
    """Where relevant scores are like the others, the answer says so instead of naming a best mechanism."""
    rng = np.random.default_rng(3)
    scores = rng.normal(0.1, 0.1, (60, 300)).clip(-1, 1)
    pairs = np.stack([np.arange(60), rng.integers(0, 300, 60)], axis=1)
    made = plan.choose("retrieval", benchmark=(scores, pairs), k=6, epsilon=8, source="public")
    assert made.is_chance
    assert "no mechanism is predicted to do better than chance, which finds 2 %" in made.answer
    assert "predicted to do best" not in made.answer
    far, near = rng.normal(0.1, 0.1, (2, 2000)).clip(-1, 1)
    match = plan.choose("verification", far, near, target_fmr=0.05, epsilon=8, source="public")
    assert "better than chance, which keeps 5 % of true matches" in match.answer
    useful = plan.choose("retrieval", benchmark=BENCHMARK, k=5, epsilon=7, source="public")
    assert not useful.is_chance
    assert "hance" not in useful.answer
    weak = plan.choose("retrieval", benchmark=BENCHMARK, k=5, epsilon=0.1, source="public")
    assert "Chance finds 0.833 %." in weak.answer


def test_a_contract_is_stated_in_all_its_digits() -> None:
    """An advantage just below one is not stated as one."""
    made = plan.choose("scores", max_advantage=0.9999999)
    assert made.contract.stated == "an attacker's advantage of at most 0.9999999"


def _release_bit(bit: ss.AcceptBit, scores: np.ndarray, rng: np.random.Generator) -> float:
    chances = np.asarray(bit.table.probabilities, dtype=float)[:, 1]
    return float(np.mean(rng.random(len(scores)) < np.where(scores > bit.threshold, chances[1], chances[0])))


@pytest.mark.parametrize(("impostors", "genuine"), [(3000, 20), (3000, 100), (200, 50)])
def test_few_public_scores_have_an_error_that_holds(impostors: int, genuine: int) -> None:
    """Nine times in ten the released true matches, and the real false matches, lie inside."""
    rng = np.random.default_rng(genuine)
    contract = make_contract(delta=0.0, epsilon=10.0)
    assert contract is not None
    inside, kept, trials = 0, 0, 150
    for _ in range(trials):
        far, near = rng.normal(0, 0.1, impostors).clip(-1, 1), rng.normal(0.45, 0.1, genuine).clip(-1, 1)
        row = _predict_accept_bit(contract, decisions.Sample(far), decisions.Sample(near), 0.01, 100)
        bit = ss.accept_bit(10, impostor=far, genuine=near, false_match_rate=0.01)
        inside += abs(_release_bit(bit, rng.normal(0.45, 0.1, 100), rng) - row.utility) <= row.error
        assert row.false_matches is not None
        chances = np.asarray(bit.table.probabilities, dtype=float)[:, 1]
        real = chances[0] + (chances[1] - chances[0]) * float(ndtr(-bit.threshold / 0.1))
        kept += row.false_matches[0] <= real <= row.false_matches[1]
    assert inside >= 0.82 * trials
    assert kept >= 0.82 * trials


def test_twenty_scores_do_not_predict_certainty() -> None:
    """Twenty genuine scores that all pass leave an error of several points, and few impostors an open rate."""
    rng = np.random.default_rng(6)
    far, near = rng.normal(0, 0.1, 3000).clip(-1, 1), rng.normal(0.6, 0.05, 20)
    made = plan.choose("verification", far, near, target_fmr=0.01, epsilon=10, source="public")
    assert made.chosen.utility > 0.999
    assert made.chosen.error > 0.05
    assert "Few impostor scores" not in made.answer
    few = plan.choose("verification", far[:100], near, target_fmr=0.01, epsilon=10, source="public")
    assert "nine times in ten the false-match rate of other impostors lies between" in few.answer
    ends = few.chosen.false_matches
    assert ends is not None
    assert ends[1] > 0.02
    assert few.to_dict()["candidates"][0]["false_matches"] == list(ends)
    large = plan.choose(
        "verification", far, rng.normal(0.45, 0.12, 3000).clip(-1, 1), target_fmr=0.01, epsilon=5, source="public"
    ).chosen
    assert large.error == pytest.approx(1.645 * math.sqrt(large.utility * (1 - large.utility) / 97), rel=0.25)


def test_advice_on_another_need() -> None:
    """Many queries with much noise point to retrieval."""
    made = ss.plan.choose("many-queries", epsilon=10, queries=100, dimension=384)
    assert "--need retrieval --queries 100" in made.answer
    assert ss.plan.choose("many-queries", epsilon=60, queries=100, dimension=8).advice == ""


def test_a_nan_in_a_benchmark_is_named() -> None:
    """The error says in which row the NaN is."""
    scores = np.zeros((30, 200))
    scores[3, 4] = np.nan
    with pytest.raises(ss.InvalidInput, match="Row 3 of 'scores' holds a NaN"):
        QueryScores(scores, np.array([[0, 1]]))
