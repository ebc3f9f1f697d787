"""Rankings and their figures: by hand, against loops and scikit-learn, and on real searches."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, ndcg_score

import scoreshield as ss
from scoreshield import tasks

Array = np.ndarray


class TestInstances:
    def test_a_case_by_hand(self) -> None:
        """Record 0 finds 1 (other), 2 (own), 3 (own): AP (1/2 + 2/3)/2. Record 1 is alone in its class."""
        matrix = np.array([[1, 0.9, 0.5, 0.1], [0.9, 1, 0.3, 0.2], [0.5, 0.3, 1, 0.8], [0.1, 0.2, 0.8, 1]])
        found = tasks.instance_retrieval(matrix, ["a", "b", "a", "a"], ks=[1, 2, 9])
        third = (1 + 2 / 3) / 2  # record 3 finds 2, 1, 0
        assert found.map == pytest.approx(((1 / 2 + 2 / 3) / 2 + 1 + third) / 3)
        assert found.recall_at == pytest.approx({1: 2 / 3, 2: 1.0, 9: 1.0})
        assert (found.queries, found.records) == (3, 4)

    def test_against_a_second_implementation(self, rng: np.random.Generator) -> None:
        """The figures agree with a second implementation."""
        rows = rng.standard_normal((60, 5))
        matrix, labels = rows @ rows.T, rng.integers(0, 6, 60)
        found = tasks.instance_retrieval(matrix, labels)
        others = [np.flatnonzero(np.arange(60) != i) for i in range(60)]
        same = [labels[near] == labels[i] for i, near in enumerate(others)]
        precision = [average_precision_score(s, matrix[i, others[i]]) for i, s in enumerate(same)]
        assert found.map == pytest.approx(np.mean(precision))
        for k in (1, 5, 10):
            best = [s[np.argsort(-matrix[i, others[i]])[:k]].any() for i, s in enumerate(same)]
            assert found.recall_at[k] == pytest.approx(np.mean(best))

    def test_equal_similarities_random_order(self) -> None:
        """Nothing but ties: precision at every rank is the share of mates, whatever the order of the records."""
        labels = np.repeat([0, 1], 150)
        found = tasks.instance_retrieval(np.ones((300, 300)), labels, ks=[1])
        assert found.recall_at[1] == pytest.approx(0.5, abs=5.33 * math.sqrt(0.25 / 300))
        assert found.map == pytest.approx(0.5, abs=0.02)
        other = tasks.instance_retrieval(np.ones((300, 300)), labels, ks=[1], seed=1)
        assert other.map != found.map

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({"labels": [0, 1, 2, 3]}, "at least two are equal"),
            ({"labels": [0, 0]}, "4 class labels"),
            ({"ks": [0]}, "'ks'"),
            ({"ks": 5}, "'ks'"),
            ({"ks": "15"}, "'ks'"),
            ({"seed": None}, "'seed'"),
            ({"release": [[1.0]]}, "at least two records"),
            ({"release": np.full((4, 4), np.nan)}, "finite"),
        ],
    )
    def test_bad_input(self, given: dict[str, object], says: str) -> None:
        """A bad argument raises an error."""
        with pytest.raises(ss.InvalidInput, match="instance_retrieval") as caught:
            tasks.instance_retrieval(**{"release": np.eye(4), "labels": [0, 0, 1, 1], **given})
        assert says in str(caught.value)


class TestRanked:
    @pytest.fixture
    def release(self, collection: Array, query: Array) -> ss.ScoreRelease:
        return ss.release_scores(collection, query, epsilon=2, delta=1e-6, rng=4)

    def test_scores_by_their_noisy_values(self, release: ss.ScoreRelease) -> None:
        """Scores are ranked by their noisy values."""
        order = np.argsort(-release.noisy)
        assert tasks.rank_records(release, 7).tolist() == order[:7].tolist()
        assert tasks.rank_records(release.noisy, 7).tolist() == order[:7].tolist()
        assert tasks.rank_records(release, 100).tolist() == order.tolist()

    @pytest.mark.parametrize("threshold", [-100.0, 0.25, 100.0])
    def test_a_threshold_cuts_before_k(self, release: ss.ScoreRelease, threshold: float) -> None:
        """A threshold cuts before k."""
        order = np.argsort(-release.noisy)
        expected = order[release.noisy[order] >= threshold]
        for k in (1, 5, 40):
            assert tasks.rank_records(release, k, threshold=threshold).tolist() == expected[:k].tolist()
            assert tasks.rank_records(release.noisy, k, threshold=threshold).tolist() == expected[:k].tolist()

    def test_a_score_at_the_threshold_passes(self) -> None:
        """A score at the threshold passes."""
        assert tasks.rank_records([0.1, 0.5, 0.3], 3, threshold=0.3).tolist() == [1, 2]

    def test_batches_are_padded(self) -> None:
        """Batches are padded."""
        scores = np.array([[0.1, 0.9, 0.5], [0.1, 0.2, 0.0], [0.6, 0.1, 0.2]])
        assert tasks.rank_records(scores, 2).tolist() == [[1, 2], [2 - 1, 0], [0, 2]]
        assert tasks.rank_records(scores, 3, threshold=0.4).tolist() == [[1, 2], [-1, -1], [0, -1]]
        assert tasks.rank_records(scores, 3, threshold=9).shape == (3, 0)

    def test_equal_scores_are_in_random_order(self) -> None:
        """Equal scores are in random order."""
        first = [int(tasks.rank_records(np.zeros(10), 1, seed=seed)[0]) for seed in range(400)]
        counts = np.bincount(first, minlength=10)
        assert np.abs(counts - 40).max() < 5.33 * math.sqrt(400 * 0.09)
        assert (
            tasks.rank_records(np.zeros(10), 3, seed=8).tolist() == tasks.rank_records(np.zeros(10), 3, seed=8).tolist()
        )

    def test_sets_come_as_they_were_named(self, collection: Array, query: Array) -> None:
        """Match and top-k releases keep their order."""
        best = ss.release_top_k(collection, query, 6, epsilon=5, rng=1)
        assert tasks.rank_records(best, 4).tolist() == best.indices[:4].tolist()
        matches = ss.release_matches(collection, query, 0.2, epsilon=3, rng=1)
        assert tasks.rank_records(matches, 3).tolist() == matches.indices[:3].tolist()
        for release in (best, matches):
            with pytest.raises(ss.InvalidInput, match="threshold"):
                tasks.rank_records(release, 3, threshold=0.1)

    def test_a_batch_answers_its_queries(self, collection: Array, query: Array) -> None:
        """A batch answers the queries of given numbers."""
        batch = ss.release_batch(collection, np.stack([query, -query]), epsilon=5, k=6, rng=1)
        assert tasks.rank_records(batch, 6, query=1).tolist() == batch.search(1, 6).indices.tolist()
        assert tasks.rank_records(batch, 6, query=[0, 1]).tolist() == batch.search([0, 1], 6).indices.tolist()
        with pytest.raises(ss.InvalidInput, match="'query'"):
            tasks.rank_records(batch, 6)

    def test_an_index_answers_its_query(self, collection: Array, query: Array) -> None:
        """An index answers its query."""
        index = ss.release_index(collection, epsilon=20, rng=1)
        scores = index.scores(query)
        order = np.argsort(-scores)
        assert tasks.rank_records(index, 5, query=query).tolist() == order[:5].tolist()
        cut = float((scores[order[2]] + scores[order[3]]) / 2)
        assert tasks.rank_records(index, 5, query=query, threshold=cut).tolist() == order[:3].tolist()
        both = tasks.rank_records(index, 5, query=np.stack([query, -query]), threshold=cut)
        assert both[0, :3].tolist() == order[:3].tolist()
        assert set(both[1][both[1] >= 0]) == set(np.argsort(scores)[:5][-np.sort(scores)[:5] >= cut])

    def test_a_query_belongs_to_an_index(self, release: ss.ScoreRelease, collection: Array, query: Array) -> None:
        """A query belongs to an index."""
        with pytest.raises(ss.InvalidInput, match="'query' parameter of rank_records"):
            tasks.rank_records(release, 3, query=query)
        with pytest.raises(ss.InvalidInput, match="'query' parameter of rank_records"):
            tasks.rank_records(ss.release_index(collection, epsilon=2, rng=1), 3)

    @pytest.mark.parametrize("release", [[], [np.nan, 1.0], ["a"], [[[1.0]]], None, "scores", np.float64(3)])
    def test_bad_scores(self, release: object) -> None:
        """Bad scores raise an error."""
        for function in (tasks.rank_records, tasks.paper_top_k):
            with pytest.raises(ss.InvalidInput, match="'release' parameter"):
                function(release, 2)

    def test_bad_numbers(self) -> None:
        """Bad numbers raise an error."""
        for function in (tasks.rank_records, tasks.paper_top_k):
            for given in ({"k": 0}, {"k": 1.5}, {"k": 1, "threshold": np.nan}, {"k": 1, "threshold": "0"}):
                with pytest.raises(ss.InvalidInput, match=function.__name__):
                    function([0.1, 0.2], **given)

    def test_a_matrix_release_is_not_a_ranking(self, collection: Array) -> None:
        """A matrix release is not a ranking."""
        gram = ss.release_gram(collection, epsilon=5, delta=1e-6, projection="none", rng=1)
        with pytest.raises(ss.InvalidInput, match="score or row release"):
            tasks.rank_records(gram, 2)


class TestThePapersRule:
    def test_clipped_scores_ties_smaller_index(self) -> None:
        """Clipped scores are ranked with ties by smaller index."""
        assert tasks.paper_top_k([0.2, 1.5, 0.9, 1.1, -3.0], 3).tolist() == [1, 3, 2]
        assert tasks.rank_records([0.2, 1.1, 0.9, 1.5, -3.0], 3).tolist() == [3, 1, 2]
        assert tasks.paper_top_k([0.2, 1.1, 0.9, 1.5, -3.0], 3).tolist() == [1, 3, 2]
        assert tasks.paper_top_k([0.2, 1.1, 0.9, 1.5], 4, threshold=0.9).tolist() == [1, 3, 2]
        assert tasks.paper_top_k([[1.1, 1.5], [0.0, 0.5]], 1).tolist() == [[0], [1]]

    def test_a_release_by_its_clipped_scores(self, collection: Array, query: Array) -> None:
        """A release is ranked by its clipped scores."""
        release = ss.release_scores(collection, query, epsilon=0.5, delta=1e-6, rng=4)
        top = np.flatnonzero(release.noisy >= 1)
        assert len(top) > 8
        assert tasks.paper_top_k(release, 5).tolist() == top[:5].tolist()
        assert tasks.paper_top_k(release, 5).tolist() != tasks.rank_records(release, 5).tolist()


class TestSearchMetrics:
    def test_a_case_by_hand(self) -> None:
        """Query 0 finds 7 at rank 2 of its relevant 7 and 9; query 1 returns one record, the right one."""
        found = tasks.search_metrics([[3, 7, 5], [4]], [{7, 9}, [4]], k=3, reference=[[7, 3], [8, 4]])
        gain = 1 / math.log2(3)
        assert found.recall == pytest.approx((1 / 2 + 1) / 2)
        assert found.precision == pytest.approx((1 / 3 + 1 / 3) / 2)
        assert found.ndcg == pytest.approx((gain / (1 + gain) + 1) / 2)
        assert found.map == pytest.approx((1 / 2 / 2 + 1) / 2)
        assert found.mrr == pytest.approx((1 / 2 + 1) / 2)
        assert found.hit_rate == 1.0
        assert found.overlap == pytest.approx((1 + 1 / 2) / 2)
        assert found.returned == 2.0
        assert (found.k, found.queries) == (3, 2)
        assert found.per_query["recall"].tolist() == [0.5, 1.0]
        assert set(found.per_query) == {
            *("recall", "precision", "ndcg", "map", "mrr", "hit_rate", "overlap", "returned"),
        }

    def test_only_the_first_k_count(self) -> None:
        """Only the first k count."""
        found = tasks.search_metrics([[1, 2, 3, 4]], [[4, 3, 2]], k=2, reference=[[2, 9, 1]])
        assert found.recall == pytest.approx(1 / 3)
        assert found.precision == 0.5
        assert found.map == pytest.approx((1 / 2) / 2)
        assert found.overlap == 0.5
        assert found.returned == 2.0

    def test_nothing_returned(self) -> None:
        """A query without results has figures of 0."""
        found = tasks.search_metrics([[], [1]], [[0], [0]], k=5, reference=[[], [0]])
        for name in ("recall", "precision", "ndcg", "map", "mrr", "hit_rate", "overlap"):
            assert getattr(found, name) == 0.0
        assert found.returned == 0.5
        assert tasks.search_metrics([[1]], [[1]], reference=[[]]).overlap is None
        assert tasks.search_metrics([[1]], [[1]]).overlap is None

    def test_padding_is_not_an_answer(self) -> None:
        """Padding is not an answer."""
        padded = tasks.search_metrics(np.array([[2, 1, -1], [0, -1, -1]]), [[1], [0]], k=3)
        plain = tasks.search_metrics([[2, 1], [0]], [[1], [0]], k=3)
        for name, values in plain.per_query.items():
            assert padded.per_query[name].tolist() == values.tolist()

    def test_against_scikit_learn(self, rng: np.random.Generator) -> None:
        """The figures agree with scikit-learn."""
        scores = rng.standard_normal((25, 40))
        relevance = rng.random((25, 40)) < 0.15
        relevance[:, 0] = True
        answers = [np.flatnonzero(row) for row in relevance]
        for k in (1, 5, 40):
            found = tasks.search_metrics(tasks.rank_records(scores, k), answers, k=k)
            assert found.ndcg == pytest.approx(ndcg_score(relevance, scores, k=k))
        precision = [average_precision_score(r, s) for r, s in zip(relevance, scores, strict=True)]
        assert found.map == pytest.approx(np.mean(precision))

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({"rankings": []}, "'rankings'"),
            ({"rankings": [1, 2]}, "'rankings'"),
            ({"rankings": np.array(3)}, "'rankings'"),
            ({"rankings": "ab"}, "'rankings'"),
            ({"rankings": [[1, 1], [2]]}, "different record numbers"),
            ({"rankings": [[-1, 1], [2]]}, "padded with -1"),
            ({"rankings": [[1, -2], [2]]}, "padded with -1"),
            ({"rankings": [[0.5], [2]]}, "'rankings'"),
            ({"rankings": [[1, [2]], [2]]}, "'rankings'"),
            ({"relevant": [[1]]}, "2 collections"),
            ({"relevant": [[1], []]}, "none of them empty"),
            ({"relevant": [[1], 2]}, "2 collections"),
            ({"relevant": [[1], "2"]}, "2 collections"),
            ({"relevant": [[1], [[2]]]}, "2 collections"),
            ({"relevant": [[1], [-2]]}, "2 collections"),
            ({"relevant": None}, "2 collections"),
            ({"k": 0}, "'k'"),
            ({"reference": [[1]]}, "which has 2 queries"),
            ({"reference": [[1], ["x"]]}, "'reference'"),
        ],
    )
    def test_bad_input(self, given: dict[str, object], says: str) -> None:
        """A bad argument raises an error."""
        with pytest.raises(ss.InvalidInput, match="search_metrics") as caught:
            tasks.search_metrics(**{"rankings": [[0, 1], [2]], "relevant": [{1}, {2}], **given})
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("name", "records", "ndcg", "recall"),
        [("scifact", "doc_emb", 0.6451, 0.783), ("frames", "title_emb", 0.600, 0.592)],
    )
    def test_real_searches(self, shared_data: Path, name: str, records: str, ndcg: float, recall: float) -> None:
        """The figures that came with the data."""
        with np.load(shared_data / f"{name}_minilm.npz") as file:
            scores, judged = file["query_emb"] @ file[records].T, file["qrels"]
        answers = [judged[judged[:, 0] == query, 1] for query in range(len(scores))]
        found = tasks.search_metrics(tasks.rank_records(scores, 10), answers)
        assert found.ndcg == pytest.approx(ndcg, abs=5e-4 if name == "frames" else 5e-5)
        assert found.recall == pytest.approx(recall, abs=5e-4)
