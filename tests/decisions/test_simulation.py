"""Simulations of batches and hit budgets on public scores: they draw what the releases draw, and see what is shared."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

import scoreshield as ss
from scoreshield.decisions.queries import JointScores, QueryScores
from scoreshield.decisions.simulation import (
    _draw_records,
    _name_records,
    add_note,
    simulate_batch,
    simulate_hits,
)
from scoreshield.decisions.worth import Worth
from scoreshield.errors import InvalidInput, UselessRelease
from scoreshield.privacy.hit_budget import HitBudget, name_records
from scoreshield.privacy.response import SetResponse
from scoreshield.privacy.sampling.stream import open_stream
from scoreshield.search import PrivateSearch
from scoreshield.search.hits import predict_hits_worth

Array = NDArray[np.float64]
RECORDS, DIMENSION, QUERIES, K = 600, 96, 40, 4


def unit(rows: Array) -> Array:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


class World:
    """Records, queries, and one relevant record for each query. ``shared`` queries want the same record."""

    def __init__(self, seed: int, shared: int = 1) -> None:
        rng = np.random.default_rng(seed)
        self.rows = unit(rng.standard_normal((RECORDS, DIMENSION)))
        self.answers = np.repeat(rng.permutation(RECORDS)[: QUERIES // shared], shared)
        noise = rng.standard_normal((QUERIES, DIMENSION)) / math.sqrt(DIMENSION)
        self.queries = unit(self.rows[self.answers] + 1.2 * noise)
        self.pairs = np.column_stack([np.arange(QUERIES), self.answers])
        self.scores = np.clip(self.queries @ self.rows.T, -1, 1)

    @property
    def public(self) -> QueryScores:
        return QueryScores(self.scores, self.pairs, origin="forty public queries")

    def measure_batch(self, epsilon: float, seed: int) -> float:
        batch = ss.release_batch(self.rows, self.queries, epsilon=epsilon, k=K, rng=seed)
        return float(np.mean([one in batch.search(q, K).indices for q, one in enumerate(self.answers)]))

    def measure_hits(self, search: PrivateSearch) -> float:
        found = search.search_batch(self.queries, K)
        return float(np.mean([one in hits.ids for one, hits in zip(self.answers, found, strict=True)]))


ALONE, SHARED = World(1), World(2, shared=8)


class TestBatch:
    @pytest.mark.parametrize("world", [World(3), World(4, shared=8)], ids=["each its own", "eight share one"])
    @pytest.mark.parametrize("epsilon", [5.0, 9.0])
    def test_released(self, world: World, epsilon: float) -> None:
        """The prediction from another world of the same kind holds the released recall."""
        public = (ALONE if len(set(world.answers)) == QUERIES else SHARED).public
        batch = ss.release_batch(world.rows, world.queries, epsilon=epsilon, k=K, rng=1)
        worth = batch.worth(K, public_scores=public)
        measured = float(np.mean([world.measure_batch(epsilon, seed) for seed in range(5)]))
        assert abs(worth.recall - measured) < worth.error < 0.3
        assert "Simulated on batches of 40 public queries." in worth.sentence

    def test_shared_records(self) -> None:
        """Queries that want the same records find less, and the required recall stops the release."""
        options = {"epsilon": 9.0, "k": K, "rng": 1}
        batch = ss.release_batch(ALONE.rows, ALONE.queries, **options)
        alone, shared = (batch.worth(K, public_scores=world.public) for world in (ALONE, SHARED))
        assert alone.recall > 0.8
        assert shared.recall < 0.6 * alone.recall
        with pytest.raises(InvalidInput, match=r"A recall of 0\.8 is required"):
            ss.release_batch(SHARED.rows, SHARED.queries, **options, public_scores=SHARED.public, require_recall=0.8)

    def test_without_public_scores(self) -> None:
        """The sentence says that records are shared, and the error reaches a fifth of the estimate."""
        batch = ss.release_batch(ALONE.rows, ALONE.queries, epsilon=9, k=K, rng=1)
        pooled = QueryScores.pool(ALONE.scores.ravel()[::7], ALONE.scores[tuple(ALONE.pairs.T)])
        for public in (None, pooled):
            worth = batch.worth(K, public_scores=public)
            assert "are shared among those queries" in worth.sentence
            assert worth.figure in worth.sentence
            assert worth.interval[0] <= 0.2 * worth.recall + 1e-9
        one = ss.release_batch(ALONE.rows, ALONE.queries[:1], epsilon=9, k=K, rng=1).worth(K)
        assert "shared" not in one.sentence

    def test_more_queries_than_public_ones(self) -> None:
        """A larger batch is estimated from the simulated one, and the sentence says so."""
        many = unit(np.random.default_rng(9).standard_normal((200, DIMENSION)))
        few = ss.release_batch(ALONE.rows, ALONE.queries, epsilon=9, k=K, rng=1).worth(K, public_scores=ALONE.public)
        more = ss.release_batch(ALONE.rows, many, epsilon=9, k=K, rng=1).worth(K, public_scores=ALONE.public)
        assert "and estimated from there for 200." in more.sentence
        assert more.recall < few.recall

    def test_levels_matter(self) -> None:
        """Cuts above all scores name no record truly: the prediction follows the levels of the batch."""
        public = ALONE.public
        good, bad = (
            simulate_batch(public, SetResponse(12.0, QUERIES, 1, 2, has_bottom=True), cuts, records=RECORDS, k=K)
            for cuts in ((0.3, 0.6), (0.98, 0.99))
        )
        assert good.predict(1.0, asked=100).value > 0.8
        assert bad.predict(1.0, asked=100).value < 0.05


class TestHits:
    def test_draws_as_the_release_does(self) -> None:
        """False names, true names and counters have the means of `name_records`."""
        budget = HitBudget(2, 4.0, 2.0)
        levels = np.zeros(500, dtype=np.uint8)
        levels[:12] = np.arange(12) % 3 + 1
        figures: list[list[tuple[float, ...]]] = [[], []]
        for seed in range(400):
            rng = np.random.default_rng(seed)
            used = np.zeros((2, 500), dtype=np.uint8)
            stream = open_stream(np.random.default_rng([seed, 1]))
            for _ in range(2):
                quick = _name_records(budget, rng, levels, used[0], 3, 5)
                slow = np.flatnonzero(
                    name_records(
                        budget, stream, levels.astype(np.int64), used[1], np.ones(500, dtype=bool), rounds=3, enough=5
                    )
                )
            for place, named in enumerate((quick, slow)):
                true = int((named < 12).sum())
                figures[place].append((true, len(named) - true, float(used[place].sum())))
        first, second = (np.array(one) for one in figures)
        gaps = np.abs(first.mean(axis=0) - second.mean(axis=0))
        assert (gaps < 4 * np.sqrt((first.var(axis=0) + second.var(axis=0)) / 400) + 0.05).all()

    @pytest.mark.parametrize("shared", [1, 8])
    def test_released(self, shared: int) -> None:
        """Forty queries in a row find what was simulated on other ones, also where a record may answer one of eight."""
        world = World(6, shared)
        public = (ALONE if shared == 1 else SHARED).public
        search = PrivateSearch(world.rows, epsilon=20, mode="hits", k=K, public_scores=public, rng=3)
        assert search.worth is not None
        assert abs(world.measure_hits(search) - search.worth.recall) < search.worth.error
        assert "Simulated on 40 public queries in a row" in search.worth.sentence
        assert (search.worth.recall > 0.7) == (shared == 1)

    def test_warning(self) -> None:
        """Where most queries find nothing, the warning comes before the charge."""
        with pytest.warns(UselessRelease, match="a hit budget ranks mostly by noise"):
            PrivateSearch(SHARED.rows, epsilon=20, mode="hits", k=K, public_scores=SHARED.public)

    def test_without_public_scores(self) -> None:
        """The prediction is about the first query, and its sentence says so."""
        search = PrivateSearch(ALONE.rows, epsilon=20, mode="hits", k=K, rng=1)
        assert search.worth is not None
        assert "This is about the first query" in search.worth.sentence
        assert "This is about the first query" in str(search.search(ALONE.queries[0], K))

    def test_names(self) -> None:
        """How many names end a query is a public fact, and changes the prediction."""
        search = PrivateSearch(SHARED.rows, epsilon=40, mode="hits", k=K, public_scores=SHARED.public, rng=1)
        few, many = (
            predict_hits_worth(search.guarantee, DIMENSION, K, SHARED.public, names=names) for names in (1, 60)
        )
        assert few != many


class TestAuto:
    def test_shared_records(self) -> None:
        """A batch is picked where each query wants its own records, and not where many want the same."""
        for world, mode in ((ALONE, "batch"), (SHARED, "query")):
            search = PrivateSearch(
                world.rows, epsilon=9, mode="auto", k=K, queries=world.queries, public_scores=world.public, rng=1
            )
            assert search.mode == mode

    def test_agrees_with_the_plan(self) -> None:
        """The planner and the search state the same batch and the same hits, from the same scores."""
        plan = ss.plan.choose(
            "retrieval",
            benchmark=(SHARED.scores, SHARED.pairs),
            k=K,
            epsilon=20.0,
            queries=QUERIES,
            dimension=DIMENSION,
            source="public",
        )
        found = {one.mechanism: one for one in plan.candidates}
        levels = ss.PublicLevels.fit(SHARED.scores)
        batch = ss.release_batch(SHARED.rows, SHARED.queries, epsilon=20.0, k=K, levels=levels, rng=1)
        assert batch.worth(K, public_scores=SHARED.public).recall == pytest.approx(found["batch"].utility, abs=1e-9)
        search = PrivateSearch(SHARED.rows, epsilon=20.0, mode="hits", k=K, public_scores=SHARED.public, rng=1)
        assert search.worth is not None
        assert search.worth.recall == pytest.approx(found["hit budget"].utility, abs=1e-9)


class TestScores:
    def test_kept_queries_and_records(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of a large matrix, some queries and records are kept, and each relevant pair keeps its score."""
        monkeypatch.setattr("scoreshield.decisions.queries._MOST_JOINT", 10)
        monkeypatch.setattr("scoreshield.decisions.queries._MOST_JOINT_SCORES", 10 * 100)
        joint = ALONE.public.joint
        assert joint is not None
        assert joint.scores.shape == (10, 100)
        known = ALONE.scores[tuple(ALONE.pairs.T)].astype(np.float32)
        assert np.isin(joint.scores[tuple(joint.pairs.T)], known).all()

    def test_parts_have_none(self) -> None:
        """A part of the queries, moved scores and pooled ones are not simulated."""
        public = ALONE.public
        assert public.split()[0].joint is None
        assert public.shift(0.1).joint is None
        assert QueryScores.default().joint is None
        assert public.joint is not None

    def test_more_and_fewer_records(self) -> None:
        """Further records are draws that answer no query; fewer leave the relevant ones."""
        scores = np.zeros((2, 30), dtype=np.float32)
        scores[[0, 1], [4, 7]] = 1.0
        joint = JointScores(scores, np.array([[0, 4], [1, 7]]))
        chosen, rng = np.arange(2), np.random.default_rng(1)
        for records in (10, 300):
            matrix, wanted = _draw_records(joint, chosen, records, rng)
            assert matrix.shape == (2, records)
            assert [matrix[query, one].tolist() for query, one in enumerate(wanted)] == [[1.0], [1.0]]
            assert matrix.sum() == 2  # no drawn record is relevant

    def test_groups(self) -> None:
        """Queries that want the same record do not vary independently, so the error is larger."""
        budget = HitBudget(250, 20.0, 4.0)
        alone, shared = (
            simulate_hits(world.public, budget, (0.8,), records=RECORDS, k=K, enough=1, queries=QUERIES)
            for world in (ALONE, SHARED)
        )
        assert len(set(shared.groups[0])) == QUERIES // 8
        assert len(set(alone.groups[0])) == QUERIES

    def test_note(self) -> None:
        worth = Worth(0.5, 0.1, 4, 100, "Predicted to find 0.50 ± 0.10 of them.", "", clean=0.6)
        wider = add_note(worth, "Much is unknown.", further=0.4)
        assert wider.error == pytest.approx(math.hypot(0.1, 0.4))
        assert wider.sentence == "Predicted to find 0.50 ± 0.41 of them. Much is unknown."
        assert add_note(worth, "More.").error == 0.1
