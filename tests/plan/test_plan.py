"""Plans: what they answer agrees with the decisions they rest on, and what they cannot answer they say."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.stats import norm

import scoreshield as ss
from scoreshield import decisions, plan
from scoreshield.decisions.models import parse_score_model
from scoreshield.plan.base import check_order

DELTA = 1e-6


@pytest.fixture
def scores(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return rng.normal(0, 0.1, 6000).clip(-1, 1), rng.normal(0.55, 0.14, 5000).clip(-1, 1)


# Contracts


def test_contract_by_epsilon() -> None:
    """A contract by epsilon is the calibration."""
    made = plan.make_contract(epsilon=1.0, delta=1e-5)
    assert made.scale(2.0) == pytest.approx(7.4612632696, rel=1e-9)
    assert made.scale(2.0) >= ss.calibrate(1.0, 1e-5, 2.0) * (1 - 1e-14)


@pytest.mark.parametrize("advantage", [1e-4, 0.1, 0.5, 0.99])
def test_contract_by_advantage(advantage: float) -> None:
    """A contract by advantage gives exactly that."""
    made = plan.make_contract(max_advantage=advantage, delta=1e-5)
    assert made.attack_advantage <= advantage
    assert made.attack_advantage == pytest.approx(advantage, rel=1e-9)
    release = ss.release_scores(np.eye(3), np.ones(3), epsilon=made.epsilon, delta=1e-5, rng=1)
    assert release.guarantee.attack_advantage == pytest.approx(advantage, rel=1e-5)


def test_contract_by_true_positives() -> None:
    """A contract by true positives gives exactly that."""
    made = plan.make_contract(max_tpr=0.05, at_fpr=0.01, delta=1e-5)
    assert float(made.tpr_at(0.01)) == pytest.approx(0.05, rel=1e-9)
    assert float(made.tpr_at(0.01)) <= 0.05


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"epsilon": 1, "max_tpr": 0.1, "at_fpr": 0.01}, "one contract, not several: got epsilon and max_tpr"),
        (
            {"epsilon": 1, "max_advantage": 0.1, "max_tpr": 0.1, "at_fpr": 0.01},
            "one contract, not several: got epsilon and max_advantage and max_tpr",
        ),
        ({"max_tpr": 0.1}, "max_tpr and at_fpr together"),
        ({"max_tpr": 0.01, "at_fpr": 0.1}, "guessing reaches that much"),
        ({"max_advantage": 1.0}, "'max_advantage'"),
        ({"epsilon": 0}, "'epsilon'"),
        ({"max_advantage": 0.1, "calibration": "classical"}, "leave the classical calibration out"),
        ({"epsilon": 1, "calibration": "best"}, "'calibration'"),
    ],
)
def test_contradictory_contracts(given: dict[str, object], says: str) -> None:
    """A contradictory contract raises an error."""
    with pytest.raises(ss.InvalidInput, match=says):
        plan.make_contract(delta=1e-5, **given)


def test_no_contract_is_none() -> None:
    """Without a contract the result is None."""
    assert plan.make_contract(delta=1e-5) is None


# Matchers


def test_the_answer_is_what_decisions_say(scores: tuple[np.ndarray, np.ndarray]) -> None:
    """The answer is what decisions say."""
    made = plan.verification(*scores, target_fmr=1e-2, epsilon=30, delta=DELTA, source="public")
    sigma = ss.calibrate(30, DELTA, 2.0)
    moved = decisions.recalibrate(scores[0], 1e-2, sigma, clipped=False)
    assert made.scale == pytest.approx(sigma, rel=1e-12)
    assert made.recalibration.threshold == pytest.approx(moved.threshold, rel=1e-10)
    curve = decisions.roc(scores[1], scores[0], sigma)
    assert made.tar == pytest.approx(curve.tpr_at(1e-2), abs=1e-9)
    assert made.clean_tar == pytest.approx(decisions.roc(scores[1], scores[0]).tpr_at(1e-2))
    assert made.met
    assert f"{moved.threshold:.4g}" in made.answer
    assert str(made) == made.answer
    assert not made.warnings or "epsilon" in made.warnings[0]


def test_the_least_epsilon_is_least(scores: tuple[np.ndarray, np.ndarray]) -> None:
    """The least epsilon is least."""
    made = plan.verification(*scores, target_fmr=1e-2, target_tar=0.9, delta=DELTA, source="public")
    assert made.met
    assert made.tar == pytest.approx(0.9, abs=1e-6)
    assert made.contract.epsilon == pytest.approx(made.least_epsilon, rel=1e-6)
    for factor, enough in ((1.001, True), (0.999, False)):
        at = plan.verification(
            *scores, target_fmr=1e-2, target_tar=0.9, delta=DELTA, epsilon=made.least_epsilon * factor, source="public"
        )
        assert at.met == enough
        assert at.least_epsilon == pytest.approx(made.least_epsilon, rel=1e-9)
    assert "misses the 90 %" in at.answer
    assert f"{made.least_epsilon:.4g}" in at.answer


@pytest.mark.parametrize(
    ("need", "says"),
    [
        ({"target_tar": 0.005}, "Any epsilon meets this need"),
        ({"target_fmr": 0.6, "clipped": True}, "Any epsilon meets this need"),
        ({"target_tar": 0.9, "calibration": "conservative"}, "not private at the epsilon that this need takes"),
    ],
)
def test_search_without_answer(need: dict[str, object], says: str, scores: tuple[np.ndarray, np.ndarray]) -> None:
    """A search without an answer states the reason."""
    with pytest.raises(ss.InvalidInput, match=says):
        plan.verification(*scores, **{"target_fmr": 0.01, "delta": DELTA, **need})


def test_rule_that_is_not_private(scores: tuple[np.ndarray, np.ndarray]) -> None:
    """The answer states where a calibration rule is not private."""
    made = plan.verification(
        *scores, target_fmr=0.01, target_tar=0.9, epsilon=5, delta=DELTA, calibration="conservative"
    )
    assert "this calibration is not private" in made.answer


@pytest.mark.parametrize("advantage", [1e-9, 1e-7, 1e-4])
def test_tiny_attack_bounds_are_kept(advantage: float, scores: tuple[np.ndarray, np.ndarray]) -> None:
    """Tiny attack bounds are kept."""
    made = plan.verification(*scores, target_fmr=0.01, max_advantage=advantage, delta=1e-2, source="public")
    assert made.contract.attack_advantage <= advantage
    assert made.contract.epsilon == 0  # delta alone covers it
    assert made.contract.scale(2.0) == pytest.approx(2 / (advantage * math.sqrt(2 * math.pi)), rel=1e-6)
    json.dumps(made.to_dict(), allow_nan=False)
    search = plan.retrieval(*scores, records=1000, k=10, max_advantage=advantage, delta=1e-2, source="public")
    assert np.isfinite(search.recall_curve[1]).all()


def test_ties_at_a_clamp(scores: tuple[np.ndarray, np.ndarray]) -> None:
    """Ties at a clamp do not contradict the answer."""
    made = plan.verification(
        *scores, target_fmr=0.01, target_tar=0.05, epsilon=100, delta=DELTA, score_range=(0, 0.1), source="public"
    )
    assert made.met == (made.least_epsilon <= 100)


def test_mass_at_range_end() -> None:
    """Models with mass at the end of a range have a plan."""
    for impostor, within in (("normal:0,0.2", (0.0, 0.3)), ("normal:0.5,0.2", (-1.0, 1.0))):
        made = plan.verification(
            parse_score_model(impostor),
            parse_score_model("normal:0.6,0.1"),
            target_fmr=0.01,
            epsilon=10,
            delta=DELTA,
            score_range=within,
            clipped=within[0] < 0,
        )
        assert made.source == "parameters"
        assert len(made.alternatives) >= 8


def test_out_of_reach_without_noise(scores: tuple[np.ndarray, np.ndarray]) -> None:
    """No epsilon reaches what clean scores do not reach."""
    made = plan.verification(*scores, target_fmr=1e-3, target_tar=0.9999, epsilon=50, delta=DELTA)
    assert not made.met
    assert made.least_epsilon == math.inf
    assert "no epsilon reaches them: without any noise" in made.answer
    with pytest.raises(ss.InvalidInput, match="No epsilon meets this need: without any noise"):
        plan.verification(*scores, target_fmr=1e-3, target_tar=0.9999, delta=DELTA)


def test_clipped_scores_may_be_out_of_reach(scores: tuple[np.ndarray, np.ndarray]) -> None:
    """Clipped scores may be out of reach."""
    made = plan.verification(*scores, target_fmr=1e-2, epsilon=5, delta=DELTA, clipped=True)
    assert not made.met
    assert not made.recalibration.feasible
    assert "not reachable on clipped scores, strict (>), because" in made.answer
    assert f"{made.recalibration.unclipped_threshold:.4g}" in made.answer
    assert made.least_epsilon == pytest.approx(decisions.minimum_epsilon(scores[0], 1e-2, DELTA), rel=1e-9)
    found = plan.verification(*scores, target_fmr=1e-2, delta=DELTA, clipped=True)
    assert found.contract.epsilon == pytest.approx(made.least_epsilon, rel=1e-6)
    assert found.met


def test_without_genuine_scores(scores: tuple[np.ndarray, np.ndarray]) -> None:
    """A plan without genuine scores has no true-match rate."""
    made = plan.verification(scores[0], target_fmr=1e-2, epsilon=20, delta=DELTA)
    assert math.isnan(made.tar)
    assert "true matches" not in made.answer
    assert made.roc(0.1) is None
    with pytest.raises(ss.InvalidInput, match="needs genuine scores"):
        plan.verification(scores[0], target_fmr=1e-2, target_tar=0.5, epsilon=20, delta=DELTA)


def test_alternatives(scores: tuple[np.ndarray, np.ndarray]) -> None:
    """Alternatives change one thing at a time."""
    made = plan.verification(*scores, target_fmr=1e-2, epsilon=20, delta=DELTA, source="public")
    first, *others = made.alternatives
    assert first.change == "this plan"
    assert first.threshold == made.recalibration.threshold
    for row in others:
        changed = [
            row.calibration != first.calibration or row.mechanism != first.mechanism,
            row.rule != first.rule,
            row.score_range != first.score_range,
        ]
        assert sum(changed) == 1
    by_name = {row.change: row for row in others}
    wrong = by_name["conservative calibration"]
    assert not wrong.private
    true = ss.privacy.calibration.find_epsilon(DELTA, 2.0 / wrong.scale)
    assert f"its true epsilon is {true:.4g}" in wrong.note
    assert "out of reach" in by_name["on clipped scores, strict (>)"].note
    narrow = by_name["range [0, 1]"]
    clamped = decisions.recalibrate(np.clip(scores[0], 0, 1), 1e-2, narrow.scale, clipped=False)
    assert narrow.sensitivity == 1
    assert narrow.threshold == pytest.approx(clamped.threshold, rel=1e-10)
    assert narrow.tar > first.tar


def test_pure_noise_stands_beside_gaussian(scores: tuple[np.ndarray, np.ndarray]) -> None:
    """Pure noise is compared with the Gaussian."""
    made = plan.verification(*scores, target_fmr=1e-2, target_tar=0.8, epsilon=8, delta=DELTA, source="public")
    rows = {row.mechanism: row for row in made.alternatives}
    law = ss.StaircaseNoise.calibrate(8, 2.0)
    moved = decisions.recalibrate(scores[0], 1e-2, law, clipped=False)
    staircase = rows["staircase"]
    assert staircase.threshold == pytest.approx(moved.threshold, abs=1e-9)
    assert staircase.tar == pytest.approx(decisions.roc(scores[1], scores[0], law).tpr_at(1e-2), abs=1e-6)
    assert staircase.tar > 0.8 > rows["laplace"].tar > made.tar
    for name, kind in (("laplace", ss.LaplaceNoise), ("staircase", ss.StaircaseNoise)):
        least = rows[name].least_epsilon
        for factor, enough in ((1.01, True), (0.99, False)):
            noise = kind.calibrate(least * factor, 2.0)
            assert (decisions.roc(scores[1], scores[0], noise).tpr_at(1e-2) >= 0.8) == enough
    held = plan.verification(*scores, target_fmr=1e-2, max_advantage=0.2, delta=DELTA, source="public")
    pure = next(row for row in held.alternatives if row.mechanism == "laplace")
    assert pure.scale == pytest.approx(math.sqrt(2) * 2 / (-2 * math.log(0.8)), rel=1e-6)
    assert pure.scale > held.scale


def test_another_calibration(scores: tuple[np.ndarray, np.ndarray]) -> None:
    """Another calibration keeps its alternatives right."""
    made = plan.verification(*scores, target_fmr=1e-2, epsilon=5, delta=DELTA, calibration="conservative")
    assert made.scale == pytest.approx(ss.calibrate(5, DELTA, 2.0, "conservative"), rel=1e-12)
    analytic = next(row for row in made.alternatives if row.change == "analytic calibration")
    assert analytic.scale == pytest.approx(ss.calibrate(5, DELTA, 2.0), rel=1e-12)
    with pytest.raises(ss.InvalidCalibration):
        plan.verification(*scores, target_fmr=1e-2, epsilon=50, delta=DELTA, calibration="conservative")


def test_an_attack_bound_is_a_contract(scores: tuple[np.ndarray, np.ndarray]) -> None:
    """An attack bound is a contract."""
    made = plan.verification(*scores, target_fmr=1e-2, max_advantage=0.2, delta=DELTA)
    assert made.scale == pytest.approx(2 / (2 * norm.ppf(0.6)), rel=1e-9)
    assert made.answer.startswith("With an attacker's advantage of at most 0.2")


def test_private_scores(scores: tuple[np.ndarray, np.ndarray]) -> None:
    """A plan from private scores has a warning."""
    need = {"target_fmr": 1e-2, "epsilon": 5, "delta": DELTA}
    assert any("no budget was charged" in text for text in plan.verification(*scores, **need).warnings)
    for source in ("public", "released", "parameters"):
        assert not plan.verification(*scores, source=source, **need).warnings
    with pytest.raises(ss.InvalidInput, match="'source'"):
        plan.verification(*scores, source="mine", **need)


def test_warnings(scores: tuple[np.ndarray, np.ndarray]) -> None:
    """Few scores, a large epsilon and a large delta have warnings."""
    made = plan.verification(scores[0][:300], target_fmr=1e-2, epsilon=30, delta=0.01, source="public")
    assert [text.split()[0] for text in made.warnings] == ["Only", "At", "A"]


def test_parameters_stand_for_scores() -> None:
    """Parameters stand for scores."""
    impostor, genuine = parse_score_model("normal:0,0.1"), parse_score_model("normal:0.55,0.14")
    made = plan.verification(impostor, genuine, target_fmr=1e-5, epsilon=40, delta=DELTA, source="parameters")
    spread = math.hypot(0.1, made.scale)
    assert made.recalibration.threshold == pytest.approx(norm.isf(1e-5) * spread, rel=1e-6)
    assert made.rate_error == 0


def test_json_is_plain(scores: tuple[np.ndarray, np.ndarray]) -> None:
    """The plain values are valid JSON."""
    for made in (
        plan.verification(*scores, target_fmr=1e-2, epsilon=5, delta=DELTA, clipped=True),
        plan.verification(scores[0], target_fmr=1e-2, epsilon=5, delta=DELTA),
        plan.retrieval(*scores, records=1000, k=10, epsilon=5, delta=DELTA),
    ):
        text = json.dumps(made.to_dict(), allow_nan=False)
        assert json.loads(text)["contract"]["epsilon"] == 5


def test_curves_for_pictures(scores: tuple[np.ndarray, np.ndarray]) -> None:
    """The curve of shifts agrees with the recalibration."""
    made = plan.verification(*scores, target_fmr=1e-2, epsilon=30, delta=DELTA)
    scales, shifts, small = made.shift_curve
    assert scales[0] < made.scale < scales[-1]
    assert np.all(np.diff(shifts) > 0)
    middle = decisions.recalibrate(scores[0], 1e-2, scales[30], clipped=False)
    assert shifts[30] == pytest.approx(middle.shift, rel=1e-9)
    assert small[0] == pytest.approx(shifts[0], rel=0.3)


# Searches


def test_retrieval_agrees_with_recall(scores: tuple[np.ndarray, np.ndarray]) -> None:
    """Retrieval agrees with recall."""
    made = plan.retrieval(*scores, records=5000, k=10, epsilon=60, delta=DELTA, target_recall=0.5, source="public")
    sigma = ss.calibrate(60, DELTA, 2.0)
    told = decisions.recall_at_k(scores[1], scores[0], sigma, records=5000, k=10)
    assert made.recall == pytest.approx(told, abs=1e-9)
    assert made.floor == pytest.approx(math.log(5000 * (0.5 - DELTA) / 10))
    assert made.answer.startswith("No mechanism returns the relevant record among 10 of 5,000 in 50 % of the")
    assert "below epsilon 5.52" in made.answer
    epsilons, recalls = made.recall_curve
    assert np.all(np.diff(recalls) > -1e-12)
    assert epsilons[0] < 60 < epsilons[-1]


def test_retrieval_finds_the_least_epsilon(scores: tuple[np.ndarray, np.ndarray]) -> None:
    """Retrieval finds the least epsilon."""
    made = plan.retrieval(*scores, records=5000, k=10, delta=DELTA, target_recall=0.5, source="public")
    assert made.recall == pytest.approx(0.5, abs=1e-6)
    assert made.least_epsilon > made.floor
    ranges = {row[0]: row for row in made.alternatives}
    assert ranges[(0.0, 1.0)][3] < ranges[(-1.0, 1.0)][3] == made.least_epsilon


def test_the_floor_is_the_specs() -> None:
    """SciFact, 5,183 abstracts: 4.3 for recall 0.70 at k = 50 and 5.9 at k = 10."""
    impostor, genuine = parse_score_model("normal:0,0.1"), parse_score_model("normal:0.6,0.1")
    for k, floor in ((50, 4.3), (10, 5.9)):
        made = plan.retrieval(
            impostor, genuine, records=5183, k=k, delta=DELTA, epsilon=10, target_recall=0.7, compare_ranges=()
        )
        assert made.floor == pytest.approx(floor, abs=0.05)


def test_bad_retrieval(scores: tuple[np.ndarray, np.ndarray]) -> None:
    """A bad argument of retrieval raises an error."""
    good = {"records": 1000, "k": 10, "delta": DELTA}
    for change, says in (
        ({"k": 1000}, "every record is returned"),
        ({"records": 1}, "'records'"),
        ({"target_recall": 1.5}, "'target_recall'"),
        ({}, "Give a contract"),
        ({"target_recall": 0.99999}, "No epsilon meets this need"),
        ({"target_recall": 0.4, "records": 100, "k": 50}, "Any epsilon meets this need"),
        ({"target_recall": 0.9, "calibration": "classical"}, "not private at the epsilon"),
        ({"records": 10**7, "epsilon": 5}, "cannot show: give at least 1,000,000"),
        ({"epsilon": 5, "compare_ranges": 5}, "'compare_ranges'"),
    ):
        with pytest.raises(ss.InvalidInput, match=says):
            plan.retrieval(*scores, **{**good, **change})


# Input


@pytest.mark.parametrize(
    ("impostor", "says"),
    [
        ([0.1, 1.5], "cosines, in \\[-1, 1\\]. Got a score of 1.5"),
        ([0.1, -7.0], "Got a score of -7"),
        ([0.1, math.nan], "entry 1 is not"),
        ([], "at least two"),
        ([0.2], "at least two"),
        ([[0.1, 0.2]], "one-dimensional"),
        ([0.1, 0.2] * 9, "at least 20 scores. Got 18"),
        ([0.25] * 40, "must be scores that differ. Got 40 equal ones"),
    ],
)
def test_bad_scores_are_one_clear_sentence(impostor: list[float], says: str) -> None:
    """Bad scores raise one clear sentence."""
    with pytest.raises(ss.InvalidInput, match=says):
        plan.verification(impostor, target_fmr=0.5, epsilon=1, delta=DELTA)


def test_single_precision_cosines() -> None:
    """Single precision cosines just above one are cosines."""
    impostor = np.array([0.1, 0.2, 1.0000001] * 7, dtype=np.float32)
    assert plan.verification(impostor, target_fmr=0.5, epsilon=1, delta=DELTA).impostor.highest == 1.0


EXCHANGED = "exchange the two, which are --genuine and --impostor"


@pytest.mark.parametrize("is_model", [False, True])
def test_exchanged_scores_are_noticed(scores: tuple[np.ndarray, np.ndarray], is_model: bool) -> None:
    """Genuine scores below impostor scores raise an error in every plan; those of a useless model do not."""
    impostor, genuine = scores
    if is_model:
        impostor, genuine = parse_score_model("normal:0,0.1"), parse_score_model("normal:0.05,0.1")
    search = {"records": 1000, "k": 10, "epsilon": 5, "delta": DELTA}
    match = {"target_fmr": 0.01, "epsilon": 5, "delta": DELTA}
    for call in (
        lambda one, two: plan.verification(one, two, **match),
        lambda one, two: plan.retrieval(one, two, **search),
        lambda one, two: plan.choose("verification", one, two, **match),
        lambda one, two: plan.choose("retrieval", one, two, **search),
    ):
        with pytest.raises(ss.InvalidInput, match=EXCHANGED):
            call(genuine, impostor)
        call(impostor, impostor)


def test_chance_does_not_count_as_an_exchange() -> None:
    """Two samples of one law are accepted a hundred times of a hundred, for any number of scores."""
    rng = np.random.default_rng(3)
    for size in (20, 30, 100, 3000):
        for _ in range(25):
            check_order(decisions.Sample(rng.normal(0, 0.1, size)), decisions.Sample(rng.normal(0, 0.1, size + 7)))
    with pytest.raises(ss.InvalidInput, match=EXCHANGED):
        check_order(decisions.Sample(rng.normal(0.3, 0.1, 20)), decisions.Sample(rng.normal(0, 0.1, 20)))


def test_needs_that_make_no_plan(scores: tuple[np.ndarray, np.ndarray]) -> None:
    """A need without targets or with bad targets raises an error."""
    with pytest.raises(ss.InvalidInput, match="give a true-match target, or a contract"):
        plan.verification(*scores, target_fmr=1e-2, delta=DELTA)
    with pytest.raises(ss.InvalidInput, match="the smallest target they support is 1/6000"):
        plan.verification(*scores, target_fmr=1e-5, epsilon=1, delta=DELTA)
    with pytest.raises(ss.InvalidInput, match="score_range"):
        plan.verification(*scores, target_fmr=1e-2, epsilon=1, delta=DELTA, score_range=(0.5, 0.1))


# Collections


def test_scores_small_collection_all_pairs(rng: np.random.Generator) -> None:
    """Scores of a small collection are all pairs."""
    rows, labels = rng.standard_normal((30, 5)), rng.integers(0, 6, 30)
    impostor, genuine = plan.scores_of_collection(rows, labels, research=True)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    first, second = np.triu_indices(30, 1)
    same = labels[first] == labels[second]
    gram = (unit @ unit.T)[first, second]
    assert np.allclose(np.sort(genuine), np.sort(gram[same]), atol=1e-14)
    assert np.allclose(np.sort(impostor), np.sort(gram[~same]), atol=1e-14)


def test_scores_large_collection_drawn(rng: np.random.Generator) -> None:
    """Scores of a large collection are drawn."""
    labels = np.repeat(np.arange(1000), 4)
    centres = rng.standard_normal((1000, 8))
    rows = centres[labels] + 0.1 * rng.standard_normal((4000, 8))
    impostor, genuine = plan.scores_of_collection(rows, labels, research=True, pairs=20_000, seed=3)
    assert len(impostor) == 20_000
    assert len(genuine) == 6_000  # all there are: 1,000 groups of four
    assert genuine.mean() > 0.9
    assert abs(impostor.mean()) < 0.05
    again = plan.scores_of_collection(rows, labels, research=True, pairs=20_000, seed=3)
    assert np.array_equal(again[0], impostor)


def test_few_pairs_of_large_collection(rng: np.random.Generator) -> None:
    """Few pairs of a large collection are not multiplied."""
    rows = rng.standard_normal((3100, 4))
    labels = np.arange(3100)
    labels[[1, 3]] = labels[[0, 2]]
    impostor, genuine = plan.scores_of_collection(rows, labels, research=True, pairs=50_000)
    assert len(genuine) == 2
    assert len(impostor) == len(np.unique(impostor)) == 50_000
    labels = np.zeros(5000, dtype=int)
    labels[7] = 1
    impostor, genuine = plan.scores_of_collection(rng.standard_normal((5000, 4)), labels, research=True, pairs=50_000)
    assert len(impostor) == 4999
    assert len(np.unique(genuine)) == 50_000


def test_drawn_pairs_are_uniform() -> None:
    """Of groups of 40, 60 and 1,900 records, pairs of two labels are drawn as often as there are such pairs."""
    labels = np.repeat(np.arange(3), (40, 60, 1900))
    rows = np.eye(3)[labels]
    rows[:, 0] += 0.5
    impostor, _ = plan.scores_of_collection(rows, labels, research=True, pairs=20_000, seed=1)
    values, counts = np.unique(np.round(impostor, 9), return_counts=True)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    kinds = {round(float(unit[a] @ unit[b]), 9): 0 for a, b in ((0, 40), (0, 100), (40, 100))}
    for (a, b), share in (((0, 40), 40 * 60), ((0, 100), 40 * 1900), ((40, 100), 60 * 1900)):
        kinds[round(float(unit[a] @ unit[b]), 9)] += share
    total = sum(kinds.values())
    for value, count in zip(values, counts, strict=True):
        expected = 20_000 * kinds[float(value)] / total
        assert count == pytest.approx(expected, abs=5.33 * math.sqrt(expected))


def test_collection_needs_flag(rng: np.random.Generator) -> None:
    """Collections need the flag and labels."""
    rows = rng.standard_normal((10, 3))
    with pytest.raises(ss.InvalidInput, match="research=True"):
        plan.scores_of_collection(rows, np.arange(10))
    with pytest.raises(ss.InvalidInput, match="'labels'"):
        plan.scores_of_collection(rows, np.arange(9), research=True)
    with pytest.raises(ss.InvalidInput, match="0 pairs of records of one label"):
        plan.scores_of_collection(rows, np.arange(10), research=True)
    with pytest.raises(ss.InvalidInput, match="0 pairs of records of two labels"):
        plan.scores_of_collection(rows, np.zeros(10), research=True)


def test_least_epsilon_of_laplace_noise_above_100() -> None:
    """Laplace noise that needs more than epsilon 100 has a least epsilon."""
    rng = np.random.default_rng(3)
    far, near = rng.normal(0.8, 0.03, 2000), rng.normal(0.93, 0.02, 2000).clip(-1, 1)
    made = plan.verification(far, near, target_fmr=0.01, target_tar=0.9, epsilon=5, delta=1e-6, source="public")
    row = next(row for row in made.alternatives if row.mechanism == "laplace")
    assert 100 < row.least_epsilon < 400
    assert "For comparison, Gaussian noise of standard deviation" in made.answer
    assert "add Gaussian noise" not in made.answer
