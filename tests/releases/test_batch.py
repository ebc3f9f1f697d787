"""A batch of queries: the true symbols, their law, the search, the plan, files and bad input."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, chi2

import scoreshield as ss
from scoreshield.privacy.profiles import PureProfile
from scoreshield.privacy.response import SetResponse
from scoreshield.releases import batch
from scoreshield.releases.batch import BatchAlphabet

Array = np.ndarray
RNG = np.random.default_rng(61)
ROWS, QUERIES = RNG.standard_normal((300, 12)), RNG.standard_normal((7, 12))
CUTS = (0.0, 0.2, 0.4)
#: Every symbol is the true one, but for one in e^60.
SURE: dict[str, Any] = {"epsilon": 100.0, "k": 5, "levels": CUTS}


def cosines(rows: Array, queries: Array) -> Array:
    """(records, queries), computed one pair at a time."""
    return np.array([[math.fsum(x * q) / math.hypot(*x) / math.hypot(*q) for q in queries] for x in rows])


def list_true_symbols(scores: Array, size: int, cuts: tuple[float, ...]) -> list[tuple[tuple[int, int], ...]]:
    """The best queries of each record with their levels, by sorting."""
    found = []
    for row in scores:
        best = sorted(sorted(range(len(row)), key=lambda query: -row[query])[:size])
        levels = [sum(row[query] >= cut for cut in cuts) - 1 for query in best]
        if size == 1:
            found.append(((best[0], levels[0]) if levels[0] >= 0 else (-1, -1),))
        else:
            found.append(tuple((query, max(level, 0)) for query, level in zip(best, levels, strict=True)))
    return found


def list_symbols(release: ss.BatchRelease) -> list[tuple[tuple[int, int], ...]]:
    return [
        tuple(zip(*pair, strict=True)) for pair in zip(release.names.tolist(), release.levels.tolist(), strict=True)
    ]


# The true symbols.


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_symbols_agree_with_brute_force(size: int, dtype: type) -> None:
    rows = ROWS.astype(dtype)
    release = ss.release_batch(rows, QUERIES, names=size, rng=1, **SURE)
    assert list_symbols(release) == list_true_symbols(cosines(rows.astype(float), QUERIES), size, CUTS)


@pytest.mark.parametrize("size", [1, 2, 6])
def test_blocks_of_records_and_queries_change_nothing(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ss.release_batch(ROWS, QUERIES, names=size, rng=1, **SURE)
    monkeypatch.setattr(batch, "_ROWS", 7)
    monkeypatch.setattr(batch, "_QUERIES", 2)
    steps: list[tuple[int, int]] = []
    parts = ss.release_batch(
        ROWS, QUERIES, names=size, rng=1, progress=lambda done, total: steps.append((done, total)), **SURE
    )
    assert parts == whole
    assert steps[0] == (7, 300)
    assert steps[-1] == (300, 300)


def test_draws_of_later_blocks_are_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal records in blocks of 1,000: two blocks agree in as many symbols as chance has it."""
    monkeypatch.setattr(batch, "_DRAWN", 1000)
    release = ss.release_batch(np.tile(ROWS[:1], (20_000, 1)), QUERIES, epsilon=1.0, k=5, names=1, levels=CUTS)
    blocks = (release.names[:, 0] * 3 + release.levels[:, 0]).reshape(20, 1000)
    response = SetResponse(1.0, 7, 1, 3, has_bottom=True)
    other = (1 - response.truth) / 21
    agree = response.truth**2 + 21 * other**2
    limit = binom.isf(1e-9, 1000, agree)
    assert all(np.count_nonzero(one == two) < limit for one, two in itertools.combinations(blocks, 2))
    assert np.count_nonzero(blocks[0] == np.where(np.arange(1000) % 3, blocks[1], blocks[0])) > limit


def test_zero_rows_and_extreme_rows_have_a_symbol() -> None:
    """A zero row is the first basis vector; huge and tiny rows keep their direction."""
    rows = np.zeros((6, 3), dtype=np.float32)
    rows[1], rows[2], rows[3], rows[4], rows[5] = [1e38, 0, 0], [0, 1e-40, 0], [0, 0, 1e30], [0, 1e-20, 0], [0, 0, 1]
    release = ss.release_batch(rows, np.eye(3), names=1, rng=1, **SURE)
    assert release.names[:, 0].tolist() == [0, 0, 1, 2, 1, 2]
    ball = ss.release_batch(rows, np.eye(3), names=1, norm="ball", rng=1, **SURE)
    assert ball.levels[:, 0].tolist() == [0, 2, 0, 2, 0, 2]
    assert ball.names[:, 0].tolist() == [0, 0, 1, 2, 1, 2]


@pytest.mark.parametrize("norm", ["unit", "ball"])
def test_settings_of_numpy_change_nothing(norm: Any) -> None:
    """Whether a warning or an error appears does not depend on the size of one record's entries."""
    rows = np.ones((4, 8), dtype=np.float32)
    rows[1] = 0
    rows[1, :2] = 1e25, 1e-20
    with np.errstate(all="raise"):
        release = ss.release_batch(rows, np.eye(8)[:3], epsilon=8, k=2, norm=norm, rng=1)
    assert release == ss.release_batch(rows, np.eye(8)[:3], epsilon=8, k=2, norm=norm, rng=1)


def test_one_record_changes_one_symbol() -> None:
    """To the last bit, for rows of every size beside it."""
    sizes = {"records": len(ROWS), "queries": len(QUERIES)}
    alphabet = batch.BatchAlphabet.choose(names=2, **sizes, **SURE)
    unit = QUERIES / np.linalg.norm(QUERIES, axis=1, keepdims=True)
    clean = alphabet.find_symbols(ROWS, unit, "unit", None)
    for row in (np.zeros(12), 1e200 * QUERIES[0], -QUERIES[3], np.full(12, 1e-300)):
        changed = ROWS.copy()
        changed[17] = row
        other = alphabet.find_symbols(changed, unit, "unit", None)
        for one, two in zip(clean, other, strict=True):
            assert np.array_equal(np.delete(one, 17, 0), np.delete(two, 17, 0))


# The law.


@pytest.mark.parametrize(("size", "levels"), [(1, (0.2,)), (1, (0.0, 0.5)), (2, (0.1, 0.5))])
def test_released_symbols_follow_the_law(size: int, levels: tuple[float, ...]) -> None:
    """A chi-square test over all symbols, at a false-alarm rate of 1e-8; 5 % more epsilon is seen."""
    count, epsilon = 200_000, 1.2
    row, queries = ROWS[:1], QUERIES[:3]
    release = ss.release_batch(np.tile(row, (count, 1)), queries, epsilon=epsilon, k=5, names=size, levels=levels)
    true = list_true_symbols(cosines(row, queries), size, levels)[0]
    symbols = [
        tuple(zip(names, chosen, strict=True))
        for names in itertools.combinations(range(3), size)
        for chosen in itertools.product(range(len(levels)), repeat=size)
    ] + [((-1, -1),)] * (size == 1)
    seen = Counter(list_symbols(release))
    assert set(seen) == set(symbols)

    def measure(claimed: float) -> float:
        total = math.exp(claimed) + len(symbols) - 1
        expected = {one: count * (math.exp(claimed) if one == true else 1.0) / total for one in symbols}
        return sum((seen[one] - expected[one]) ** 2 / expected[one] for one in symbols)

    limit = chi2.isf(1e-8, len(symbols) - 1)
    assert measure(epsilon) < limit < measure(epsilon * 1.05)
    assert release.guarantee.details["symbols"] == len(symbols)


def test_false_names_are_as_many_as_stated() -> None:
    """Records that never name the last query by right: a binomial test at 1e-8 on both sides, and a near miss."""
    rows = np.tile([[1.0, 0.0, 0.0]], (50_000, 1))
    release = ss.release_batch(rows, np.eye(3), epsilon=3.0, k=5, names=1, levels=CUTS, rng=5)
    count, stated = int((release.names == 2).sum()), release.false_names
    chance = stated / len(rows)
    assert binom.isf(1e-8, len(rows), 0.9 * chance) < count < binom.isf(1e-8, len(rows), chance)
    assert count > binom.ppf(1e-8, len(rows), chance)
    response = SetResponse(3.0, 3, 1, 3, has_bottom=True)
    assert stated == pytest.approx(len(rows) * 3 / (math.exp(3.0) + 9))
    assert stated == pytest.approx(len(rows) * response.false_names)


# Identities.


def test_records_of_an_identity_share_the_budget() -> None:
    for epsilon, size in ((1.0, 3), (7.7, 7), (0.3, 11)):
        labels = np.arange(len(ROWS)) // size
        people = ss.Identity(labels)
        guarantee = ss.release_batch(ROWS, QUERIES, epsilon=epsilon, k=5, adjacency=people).guarantee
        each = Fraction(guarantee.details["epsilon_per_record"])
        assert each * size <= Fraction(epsilon) < each * size * (1 + Fraction(1, 2**50))
        assert guarantee.profile == PureProfile(epsilon)
        assert guarantee.sensitivity == size


def test_centroids_send_one_symbol_per_identity() -> None:
    labels = np.arange(len(ROWS)) // 3
    release = ss.release_batch(ROWS, QUERIES, adjacency=ss.Identity(labels, centroids=True), names=1, rng=1, **SURE)
    unit = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
    means = np.array([unit[labels == label].mean(axis=0) for label in range(100)])
    assert list_symbols(release) == list_true_symbols(cosines(means, QUERIES), 1, CUTS)
    assert release.guarantee.shape == (100, 1)
    assert release.guarantee.details["epsilon_per_record"] == 100.0


def test_profile_is_that_of_the_response() -> None:
    guarantee = ss.release_batch(ROWS, QUERIES, epsilon=2.0, k=5, names=1, levels=CUTS).guarantee
    total = math.exp(2.0) + 21
    for epsilon in (0.0, 0.5, 1.5):
        assert guarantee.delta_at(epsilon) == pytest.approx((math.exp(2.0) - math.exp(epsilon)) / total)
    assert guarantee.attack_advantage == pytest.approx((math.exp(2.0) - 1) / total)
    assert guarantee.delta_at(2.0) == 0


# The search.


def score_by_hand(release: ss.BatchRelease, query: int, only_named: bool) -> dict[int, float]:
    unit = QUERIES / np.linalg.norm(QUERIES, axis=1, keepdims=True)
    found: dict[int, float] = {}
    for record, (names, levels) in enumerate(zip(release.names.tolist(), release.levels.tolist(), strict=True)):
        for name, level in zip(names, levels, strict=True):
            if name == query or (name >= 0 and not only_named):
                cosine = 1.0 if name == query else float(unit[name] @ unit[query])
                score = cosine**3 * release.cuts[level]
                if name == query or score > 0:
                    found[record] = max(found.get(record, -1.0), score)
    return found


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("only_named", [False, True])
def test_search_agrees_with_scores_by_hand(size: int, only_named: bool) -> None:
    release = ss.release_batch(ROWS, QUERIES, epsilon=4.0, k=5, names=size, levels=(0.1, 0.3), rng=3)
    for query in range(7):
        wanted = score_by_hand(release, query, only_named)
        everything = release.search(query, 1000, only_named=only_named)
        assert set(everything.indices.tolist()) == set(wanted)
        np.testing.assert_allclose(everything.scores, [wanted[record] for record in everything.indices], atol=1e-5)
        assert (np.diff(everything.scores) <= 1e-12).all()
        best = release.search(query, 5, only_named=only_named)
        assert best.scores.tolist() == everything.scores[:5].tolist()
        assert best.indices.tolist() == everything.indices[:5].tolist()
        assert len(best.indices) == min(5, len(wanted))


def test_search_of_several_queries() -> None:
    release = ss.release_batch(ROWS[:20], QUERIES, epsilon=4.0, k=5, names=1, levels=(0.1, 0.3), rng=3)
    together = release.search([3, 0, 3], 4, only_named=True)
    for place, query in enumerate((3, 0, 3)):
        one = release.search(query, 4, only_named=True)
        kept = together.indices[place] >= 0
        assert together.indices[place][kept].tolist() == one.indices.tolist()
        assert together.scores[place][kept].tolist() == one.scores.tolist()
        assert (together.scores[place][~kept] == -np.inf).all()
    assert release.search(np.empty(0, dtype=int), 4).indices.shape == (0, 0)


def test_ties_are_random_and_belong_to_the_release() -> None:
    rows = np.tile(QUERIES[:1], (50, 1))
    first, second = (ss.release_batch(rows, QUERIES, names=1, rng=seed, **SURE) for seed in (1, 2))
    orders = [release.search(0, 50).indices.tolist() for release in (first, first, second)]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == list(range(50))


def test_equal_queries_share_their_records() -> None:
    queries = np.vstack([QUERIES, QUERIES[:1], 3 * QUERIES[:1]])
    release = ss.release_batch(ROWS, queries, names=1, rng=1, **SURE)
    assert not (release.names == 7).any()  # the first of equal queries is named
    found = [release.search(query, 1000) for query in (0, 7, 8)]
    for other in found[1:]:
        assert sorted(other.indices.tolist()) == sorted(found[0].indices.tolist())
        np.testing.assert_allclose(other.scores, found[0].scores, atol=1e-5)


def test_levels_below_zero_rank_before_other_queries() -> None:
    release = ss.release_batch(np.eye(4), np.eye(4), epsilon=200.0, k=2, names=1, levels=(-0.9, -0.5), rng=1)
    assert release.search(2, 1).indices.tolist() == [2]
    assert release.search(2, 1).scores.tolist() == [-0.5]


# The plan.


def test_plan_is_chosen_from_public_facts() -> None:
    def plan(**facts: Any) -> BatchAlphabet:
        return BatchAlphabet.choose(**{"epsilon": 10.0, "records": 5000, "queries": 300, "k": 10, **facts})

    assert plan(queries=1).response.levels > plan().response.levels  # one query has room for more levels
    assert plan(epsilon=20.0).response.size == 2
    assert plan(epsilon=5.0).response.size == 1
    assert plan(k=50).cuts[0] < plan(k=10).cuts[0]
    assert plan(names=3).response.size == 3
    assert plan(levels=[0.1, 0.2]).cuts == (0.1, 0.2)
    for epsilon, queries in itertools.product((1.0, 5.0, 12.0, 20.0, 60.0, 300.0), (1, 2, 10, 1000, 10**6)):
        chosen = plan(epsilon=epsilon, queries=queries)
        response = chosen.response
        assert response.size == 1 or chosen.false_names <= 2
        assert response.has_bottom == (response.size == 1)
        assert len(chosen.cuts) == response.levels
        assert all(low < high for low, high in itertools.pairwise(chosen.cuts))
        assert response.size <= queries


def test_given_names_may_exceed_two_false_names() -> None:
    release = ss.release_batch(ROWS, QUERIES, epsilon=2.0, k=5, names=3)
    assert release.false_names > 2
    assert f"by chance, at most: {release.false_names:g}" in " ".join(str(release.guarantee).split())


def test_public_levels_fit_public_scores() -> None:
    """Scores whose r-th best is 0.6 - 0.05 ln r for every query, and the same moved."""
    ranks = np.arange(1, 2001)
    scores = 0.6 - 0.05 * np.log(ranks) + np.linspace(-0.05, 0.05, 9)[:, None]
    levels = ss.PublicLevels.fit(np.random.default_rng(1).permuted(scores, axis=1))
    assert levels.tenth == pytest.approx(0.6 - 0.05 * math.log(10))
    assert levels.fiftieth == pytest.approx(0.6 - 0.05 * math.log(50))
    moved = ss.PublicLevels.fit(scores + 0.1)
    cuts, other = levels.place(5, 2000, 10), moved.place(5, 2000, 10)
    np.testing.assert_allclose(np.subtract(other, cuts), 0.1, atol=2e-3)
    # A collection twice as large has its 20th best score where the 10th best of the other one is.
    assert levels.place(5, 4000, 20) == cuts
    release = ss.release_batch(ROWS, QUERIES, epsilon=8.0, k=5, levels=levels)
    assert release.guarantee.details["cuts_from"] == "public scores given by the caller"
    known = ss.release_batch(ROWS, QUERIES, epsilon=8.0, k=5).guarantee.details
    assert known["cuts_from"] == "all-MiniLM-L6-v2 on FRAMES"


@pytest.mark.parametrize("tail", [(0.357, 0.272), (0.95, 0.9), (0.999, 0.5), (0.3, 0.2999), (-0.9, -0.99), (0.8, -0.8)])
def test_levels_rise_within_the_cosines(tail: tuple[float, float]) -> None:
    """For models with narrow, wide, high and low scores, and collections of every size."""
    public = ss.PublicLevels(*tail, 1000)
    for epsilon, records, queries, k in itertools.product((8.0, 20.0), (10, 10**7), (3, 1000), (1, 500)):
        cuts = BatchAlphabet.choose(epsilon=epsilon, records=records, queries=queries, k=k, levels=public).cuts
        assert all(low < high for low, high in itertools.pairwise(cuts))
        assert cuts[0] > -1
        assert cuts[-1] <= 1


# The ledger.


def test_a_ledger_adds_up_batches(tmp_path: Path) -> None:
    """Two batches of epsilon 4 fit a budget of 9, a third one does not, and together they lose no more than 8."""
    ledger = ss.Ledger.create(f"sqlite:///{tmp_path / 'books.db'}", epsilon=9.0, delta=0.0)
    account = ledger.account("documents")
    made = [ss.release_batch(ROWS, QUERIES, epsilon=4.0, k=5, ledger=account) for _ in range(2)]
    assert ledger.spent == pytest.approx(8.0)
    with pytest.raises(ss.BudgetExceeded):
        ss.release_batch(ROWS, QUERIES, epsilon=4.0, k=5, ledger=account)
    assert len(ledger.entries()) == 2
    together = ss.compose([release.guarantee for release in made])
    assert together.epsilon_at(0.0) == pytest.approx(8.0)
    assert together.epsilon_at(0.01) < 8


# Files and certificates.


@pytest.mark.parametrize("size", [1, 2])
def test_saved_batch_comes_back_equal(size: int, tmp_path: Path) -> None:
    release = ss.release_batch(ROWS, QUERIES, epsilon=4.0, k=5, names=size)
    release.save(tmp_path / "batch.npz")
    loaded = ss.load(tmp_path / "batch.npz")
    assert loaded == release
    assert isinstance(loaded, ss.BatchRelease)
    assert loaded.names.dtype == np.int8
    assert loaded.search(2, 5).indices.tolist() == release.search(2, 5).indices.tolist()
    assert not loaded.names.flags.writeable


@pytest.mark.parametrize(
    "damage",
    [
        {"names": lambda a: a + 7},
        {"names": lambda a: a.astype(float)},
        {"names": lambda a: a[:, ::-1]},
        {"names": lambda a: a[1:]},
        {"names": lambda a: np.zeros_like(a)},
        {"levels": lambda a: a + 2},
        {"levels": lambda a: np.full_like(a, -1)},
        {"queries": lambda a: a[:-1]},
        {"queries": lambda a: 2 * a},
        {"queries": lambda a: a.astype(np.float64)},
    ],
)
def test_damaged_batches_are_rejected(damage: dict[str, Any], tmp_path: Path) -> None:
    ss.release_batch(ROWS, QUERIES, epsilon=4.0, k=5, names=2, levels=(0.1, 0.3), rng=1).save(tmp_path / "batch.npz")
    with np.load(tmp_path / "batch.npz") as file:
        parts = dict(file)
    for name, change in damage.items():
        parts[name] = change(parts[name])
    np.savez(tmp_path / "bad.npz", **parts)
    with pytest.raises(ss.InvalidInput, match="hold together"):
        ss.load(tmp_path / "bad.npz")


@pytest.mark.parametrize(
    "edit",
    [
        {"queries": 8},
        {"names_per_record": 2},
        {"levels": 2},
        {"cuts": [0.0, 0.4, 0.2]},
        {"cuts": [0.0, 0.2]},
        {"cuts_from": None},
        {"has_bottom": False},
        {"symbols": 21},
        {"truth": 0.5},
        {"false_names": 0.1},
        {"epsilon_per_record": 1.9},
        {"epsilon_per_record": 2.1},
    ],
    ids=str,
)
def test_edited_guarantees_are_rejected(edit: dict[str, Any]) -> None:
    data = ss.release_batch(ROWS, QUERIES, epsilon=2.0, k=5, names=1, levels=CUTS).guarantee.to_dict()
    assert ss.Guarantee.from_dict(json.loads(json.dumps(data))).to_dict() == data
    with pytest.raises(ss.InvalidInput, match="contradicts itself"):
        ss.Guarantee.from_dict({**data, "details": {**data["details"], **edit}})


def test_certificate_states_the_public_facts() -> None:
    text = " ".join(str(ss.release_batch(ROWS, QUERIES, epsilon=2.0, k=5, names=1, levels=CUTS).guarantee).split())
    for fact in (
        "which of 7 public queries each of 300 records answers best",
        "pure 2-differential privacy",
        "the queries, the levels, the number, order",
        "Score levels: 3. Lower edges of the levels: [0.0, 0.2, 0.4]. Source of these edges: given by the caller.",
        "Possible symbols: 22.",
        "sends its true symbol: 0.260",
        "name a given query by chance, at most: ",
    ):
        assert fact in text
    assert "clamped" not in text


# Sizes and bad input.


def test_a_batch_of_one_query() -> None:
    release = ss.release_batch(ROWS, QUERIES[0], names=1, rng=1, **SURE)
    assert list_symbols(release) == list_true_symbols(cosines(ROWS, QUERIES[:1]), 1, CUTS)
    assert release.search(0, 3).indices.shape == (3,)


def test_a_batch_of_many_queries() -> None:
    queries = np.random.default_rng(3).standard_normal((100_000, 4)).astype(np.float32)
    release = ss.release_batch(queries[70_000:70_040], queries, names=1, rng=1, **SURE)
    assert release.names.dtype == np.int32
    assert release.names[:, 0].tolist() == list(range(70_000, 70_040))
    assert release.search(70_003, 1).indices.tolist() == [3]


def test_more_records_asked_for_than_there_are() -> None:
    release = ss.release_batch(ROWS[:3], QUERIES, epsilon=5.0, k=1000, rng=1)
    assert len(release.search(0, 1000).indices) <= 3


BAD: list[tuple[dict[str, Any], str]] = [
    ({"epsilon": 0}, "epsilon"),
    ({"epsilon": math.nan}, "epsilon"),
    ({"k": 0}, "'k'"),
    ({"k": 2.5}, "'k'"),
    ({"names": 0}, "'names'"),
    ({"names": 8}, "at most the number of queries, 7"),
    ({"names": 7, "levels": (0.1,)}, "One symbol says nothing"),
    ({"levels": ()}, "'levels'"),
    ({"levels": (0.3, 0.1)}, "'levels'"),
    ({"levels": (0.3, 0.3)}, "'levels'"),
    ({"levels": (0.3, math.nan)}, "'levels'"),
    ({"levels": (0.3, 1.5)}, "'levels'"),
    ({"levels": "high"}, "'levels'"),
    ({"levels": [[0.1]]}, "'levels'"),
    ({"levels": np.linspace(0, 1, 101)}, "'levels'"),
    ({"norm": "none"}, "'norm'"),
    ({"adjacency": ss.GramRadius(1.0)}, "'adjacency'"),
    ({"adjacency": ss.Identity([0, 1])}, "'labels'"),
    ({"adjacency": ss.Identity(np.zeros(300, dtype=int)), "epsilon": 1e-8}, "'epsilon'"),
    ({"queries": np.ones((3, 5))}, "'queries'"),
    ({"queries": np.empty((0, 12))}, "'queries'"),
    ({"queries": np.full((2, 12), np.nan)}, "queries"),
    ({"queries": np.vstack([QUERIES, np.zeros((1, 12))])}, "Row 7 of 'queries' is zero"),
    ({"embeddings": np.full((3, 12), np.inf)}, "Row 0"),
    ({"progress": 5}, r"'progress' parameter of release_batch must be a function of \(done, total\)"),
]


class Account:
    """An account that fails a test where it is charged."""

    dataset = "records"

    def reserve(self, *_: Any, **__: Any) -> Account:
        return self

    def commit(self) -> list[Any]:
        raise AssertionError("bad input was charged")


@pytest.mark.parametrize(("options", "words"), BAD, ids=[f"{next(iter(o))}-{n}" for n, (o, _) in enumerate(BAD)])
def test_bad_input_is_one_sentence_and_costs_nothing(options: dict[str, Any], words: str) -> None:
    contract: dict[str, Any] = {"embeddings": ROWS, "queries": QUERIES, "epsilon": 5.0, "k": 5, **options}
    with pytest.raises(ss.InvalidInput, match=words) as caught:
        ss.release_batch(**contract, ledger=Account())
    assert "\n" not in str(caught.value)


def test_alphabets_beyond_any_double_are_rejected() -> None:
    queries = np.random.default_rng(1).standard_normal((2000, 12))
    with pytest.raises(ss.InvalidInput, match="ask for smaller sets"):
        ss.release_batch(ROWS, queries, epsilon=5.0, k=5, names=200)
    with pytest.raises(ss.InvalidInput, match="at most 256"):
        ss.release_batch(ROWS, queries, epsilon=5.0, k=5, names=300)


@pytest.mark.parametrize("query", [-1, 7, 1.5, "a", True, [0, 9], [[0]], None])
def test_queries_outside_the_batch_are_rejected(query: Any) -> None:
    release = ss.release_batch(ROWS, QUERIES, epsilon=5.0, k=5, rng=1)
    with pytest.raises(ss.InvalidInput, match=r"'query' parameter of BatchRelease\.search"):
        release.search(query, 5)


@pytest.mark.parametrize(
    "scores", [np.ones((3, 100)), np.ones((3, 20)), np.ones(100), [[math.nan] * 60], "none", np.empty((0, 60))]
)
def test_public_scores_without_spread_are_rejected(scores: Any) -> None:
    with pytest.raises(ss.InvalidInput, match="public scores"):
        ss.PublicLevels.fit(scores)


def test_levels_must_fall() -> None:
    bad: list[tuple[Any, ...]] = [(0.2, 0.3, 100), (0.3, 0.3, 100), (0.3, 0.2, 10), (math.nan, 0.2, 100)]
    bad += [(1.0, 0.9, 100), (0.3, -1.1, 100), (0.3, 0.2, 100, 7), (0.3, 0.2, 100, "two\nlines"), (0.3, 0.2, 100, "")]
    for arguments in bad:
        with pytest.raises(ss.InvalidInput):
            ss.PublicLevels(*arguments)


def test_public_levels_are_saved(tmp_path: Path) -> None:
    """What is loaded equals what was saved."""
    levels = ss.PublicLevels(0.3123456789, 0.2, 777, "our pages")
    levels.save(tmp_path / "levels.json")
    assert ss.PublicLevels.load(tmp_path / "levels.json") == levels


def test_a_null_record_is_rejected_before_anything_is_drawn() -> None:
    rows = np.random.default_rng(3).standard_normal((20, 4))
    with pytest.raises(ss.InvalidInput, match="NullRecord is the adjacency of a search with a hit budget"):
        ss.release_batch(rows, rows[:3], epsilon=2.0, k=2, adjacency=ss.NullRecord(), rng=1)
    assert ss.release_batch(rows, rows[:3], epsilon=2.0, k=2, adjacency=ss.Replacement(), rng=1).guarantee.epsilon == 2


def test_more_than_one_name_leaves_at_most_two_false_names() -> None:
    """Also at a tiny epsilon, where almost every symbol is drawn from all: N / (N + e^epsilon - 1) of them."""
    for epsilon, records, queries in itertools.product((0.02, 0.5, 4.0), (4, 50), (3, 20)):
        chosen = BatchAlphabet.choose(epsilon=epsilon, records=records, queries=queries, k=10)
        assert chosen.response.size == 1 or chosen.false_names <= 2 * (1 + 1e-9)
    response = SetResponse(0.02, 3, 2, 2)
    uniform = batch._estimate_uniform(0.02, 3, 2, 2)
    assert uniform == pytest.approx(response.symbols / (response.symbols + math.expm1(0.02)), rel=1e-9)
