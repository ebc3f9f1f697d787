"""The worth of a release: its law from the guarantee, the prediction against simulation, and what it may depend on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield.decisions.laws import TableLaw, find_noise_std, find_ranking_law, find_score_law, has_unknown_law
from scoreshield.decisions.queries import QueryScores
from scoreshield.decisions.worth import Worth, check_recall, find_population, predict_worth
from scoreshield.errors import InvalidInput
from scoreshield.privacy.anchors import AnchoredLaw
from scoreshield.privacy.hit_budget import HitBudget, name_records
from scoreshield.privacy.sampling.stream import open_stream
from scoreshield.search.hits import state_guarantee

RNG = np.random.default_rng(7)
RECORDS, DIMENSION = 400, 160
ROWS = RNG.standard_normal((RECORDS, DIMENSION))
ROWS /= np.linalg.norm(ROWS, axis=1, keepdims=True)
#: Each query is near one record.
PAIRS = np.column_stack([np.arange(60), RNG.permutation(RECORDS)[:60]])
QUERIES = ROWS[PAIRS[:, 1]] + 1.2 * RNG.standard_normal((60, DIMENSION)) / np.sqrt(DIMENSION)
QUERIES /= np.linalg.norm(QUERIES, axis=1, keepdims=True)
SCORES = np.clip(QUERIES @ ROWS.T, -1, 1)


@pytest.fixture(scope="module")
def public() -> QueryScores:
    return QueryScores(SCORES, PAIRS, origin="sixty public queries")


def measure(release_of: object, k: int = 5, seeds: int = 6) -> float:
    """Measure recall over seeds; a release gives the best records of one query."""
    found = [
        PAIRS[q, 1] in release_of(q, np.random.default_rng([seed, q]))[:k]  # type: ignore[operator]
        for seed in range(seeds)
        for q in range(60)
    ]
    return float(np.mean(found))


class TestLaws:
    def test_scores(self) -> None:
        release = ss.release_scores(ROWS, QUERIES[0], epsilon=5, mechanism="laplace", rng=1)
        assert find_score_law(release.guarantee) == release.guarantee.noise
        assert find_noise_std(release.guarantee) == release.guarantee.noise_std

    def test_index(self) -> None:
        whole = ss.release_index(ROWS, epsilon=20, rng=1).guarantee
        part = ss.release_index(ROWS, epsilon=20, components=8, rng=1).guarantee
        assert find_noise_std(whole) == pytest.approx(whole.details["score_std"])
        assert find_noise_std(part) == pytest.approx(np.hypot(part.details["score_std"], 8**-0.5))

    @pytest.mark.parametrize(
        "options",
        [
            {"delta": 1e-6, "components": 8, "reduction": "pca"},
            {"reduction": np.eye(DIMENSION)[:8]},
            {"center": np.full(DIMENSION, 0.03)},
            {"delta": 1e-6, "center": "private"},
        ],
        ids=["pca", "public basis", "public center", "private center"],
    )
    def test_unknown_law(self, options: dict[str, Any]) -> None:
        """What a basis or a center changes depends on the records, so no standard deviation is stated."""
        guarantee = ss.release_index(ROWS, epsilon=20, rng=1, **options).guarantee
        assert has_unknown_law(guarantee)
        assert find_noise_std(guarantee) is None

    def test_levels_have_no_deviation(self) -> None:
        release = ss.release_scores(ROWS, QUERIES[0], epsilon=5, mechanism="optimal", rng=1)
        assert not has_unknown_law(release.guarantee)
        assert find_noise_std(release.guarantee) is None

    @pytest.mark.parametrize("components", [2, 3, 8, 40, 120])
    def test_random_subspace(self, components: int) -> None:
        """The law of a random subspace is that of projected cosines, for a small cosine and for a large one."""
        rng, cosine = np.random.default_rng(components), np.array([0.1, 0.7])
        guarantee = ss.release_index(ROWS, epsilon=400, components=components, rng=1).guarantee
        law = find_ranking_law(guarantee, DIMENSION)
        assert isinstance(law, TableLaw)
        drawn = []
        for _ in range(1_500):
            basis = np.linalg.qr(rng.standard_normal((DIMENSION, components)))[0]
            query, others = basis[0], cosine[:, None] * basis[0] + np.sqrt(1 - cosine**2)[:, None] * basis[1]
            drawn.append(others @ query / np.linalg.norm(others, axis=1) / np.linalg.norm(query))
        for place, clean in enumerate(cosine):
            for least in (0.0, 0.3, 0.6, 0.8):
                share = float((np.array(drawn)[:, place] > least).mean())
                assert abs(share - float(law.exceed(least, clean))) < (0.1 if components < 4 else 0.05)

    def test_all_dimensions_lose_nothing(self) -> None:
        guarantee = ss.release_index(
            ROWS, epsilon=20, delta=1e-6, components=DIMENSION, reduction="pca", rng=1
        ).guarantee
        worth = predict_worth(guarantee, k=5, dimension=DIMENSION)
        assert "basis" not in worth.sentence
        fewer = ss.release_index(ROWS, epsilon=20, delta=1e-6, components=8, reduction="pca", rng=1).guarantee
        assert predict_worth(fewer, k=5, dimension=DIMENSION).recall < worth.recall

    def test_anchored(self) -> None:
        """Windows have a law, and no standard deviation: they end below the best scores."""
        with pytest.warns(ss.TailShapeWarning):
            guarantee = ss.release_scores(ROWS, QUERIES[0], epsilon=12, mechanism="anchored", rng=1).guarantee
        assert isinstance(find_score_law(guarantee), AnchoredLaw)
        assert find_noise_std(guarantee) is None

    @pytest.mark.parametrize("refine", [0.0, 0.5])
    def test_screening(self, refine: float) -> None:
        """The law of a screening gives the share of records that are released above any score."""
        threshold, count = 0.3, 3000
        law, seen = None, []
        for seed in range(count // RECORDS):
            release = ss.release_matches(ROWS, QUERIES[0], threshold, epsilon=3, refine=refine, rng=seed)
            law = find_score_law(release.guarantee)
            noisy = np.full(RECORDS, -np.inf)
            noisy[release.candidates] = release.noisy if refine else 1.0
            seen.append(noisy)
        assert law is not None
        for least in (0.35, 0.6, 0.9) if refine else (threshold,):
            expected = np.asarray(law.exceed(np.full(RECORDS, least), SCORES[0])).sum() * len(seen)
            deviation = 5.5 * np.sqrt(expected) + (0.05 * expected if refine else 0)
            assert abs(float((np.array(seen) > least).sum()) - expected) < deviation

    def test_hits(self) -> None:
        """The law of a hit budget is that of the first query: the shares of the levels are those that are drawn."""
        budget, cuts = HitBudget.split(6.0, 1), np.array([0.2, 0.4, 0.6])
        law = find_score_law(state_guarantee(budget, cuts, ss.Replacement(), RECORDS, 6.0, 0))
        assert isinstance(law, TableLaw)
        np.testing.assert_allclose(law.probabilities.sum(axis=1), 1)
        for level in range(4):
            levels, used = np.full(40_000, level), np.zeros(40_000, dtype=np.uint8)
            asked = np.ones(40_000, dtype=bool)
            drawn = name_records(budget, open_stream(level), levels, used, asked, rounds=3, enough=10**9)
            shares = np.bincount(drawn, minlength=4) / 40_000
            assert np.abs(shares - law.probabilities[level]).max() < 5.5 * 0.5 / 200

    def test_no_search(self) -> None:
        gram = ss.release_gram(ROWS[:20], epsilon=5, delta=1e-5, rng=1)
        assert find_score_law(gram.guarantee) is None
        with pytest.raises(InvalidInput, match="answers no search"):
            predict_worth(gram.guarantee)


class TestPrediction:
    @pytest.mark.parametrize("epsilon", [12.0, 20.0, 32.0])
    def test_index(self, public: QueryScores, epsilon: float) -> None:
        """The prediction is that of real indexes; a noise that is wrong by a third would be found."""
        seeds = 12
        indexes = [ss.release_index(ROWS, epsilon=epsilon, rng=seed) for seed in range(seeds)]
        found = np.mean(
            [[PAIRS[q, 1] in row for q, row in enumerate(one.search(QUERIES, 5).indices)] for one in indexes]
        )
        worth = indexes[0].worth(5, public_scores=public)
        assert abs(worth.recall - found) < 0.04
        assert worth.error < 0.2
        near_miss = public.predict_recall(indexes[0].score_std * 1.33, k=5).value
        assert abs(near_miss - found) > 0.06

    @pytest.mark.parametrize("mechanism", ["privunit", "gaussian"])
    @pytest.mark.parametrize("components", [4, 16, 64])
    def test_random_subspace(self, public: QueryScores, components: int, mechanism: Any) -> None:
        """The prediction counts what a random subspace loses."""
        delta = 1e-6 if mechanism == "gaussian" else 0.0
        indexes = [
            ss.release_index(ROWS, epsilon=60, delta=delta, mechanism=mechanism, components=components, rng=seed)
            for seed in range(30)
        ]
        found = np.mean(
            [[PAIRS[q, 1] in row for q, row in enumerate(one.search(QUERIES, 5).indices)] for one in indexes]
        )
        worth = indexes[0].worth(5, public_scores=public)
        assert abs(worth.recall - found) < 0.06

    @pytest.mark.parametrize(
        "options",
        [{"delta": 1e-6, "components": 3, "reduction": "pca"}, {"reduction": np.eye(DIMENSION)[:3]}],
        ids=["pca", "public basis"],
    )
    def test_unknown_basis(self, public: QueryScores, options: dict[str, Any]) -> None:
        """A basis of unknown quality counts as a random one, with an error that reaches a basis that loses nothing."""
        index = ss.release_index(ROWS, epsilon=60, rng=1, **options)
        found = np.mean([PAIRS[q, 1] in row for q, row in enumerate(index.search(QUERIES, 5).indices)])
        worth = index.worth(5, public_scores=public)
        assert found < 0.2
        assert worth.recall < 0.2
        assert worth.interval[1] > 0.8
        assert not worth.is_useful
        assert "what its basis keeps is unknown, so as 3 random dimensions keep it" in worth.sentence
        with pytest.raises(InvalidInput, match=r"A recall of 0\.5 is required"):
            ss.release_index(ROWS, epsilon=60, rng=1, k=5, public_scores=public, require_recall=0.5, **options)

    def test_query(self, public: QueryScores) -> None:
        def release(q: int, rng: np.random.Generator) -> list[int]:
            made = ss.release_scores(
                ROWS, QUERIES[q], epsilon=6, mechanism="auto", for_="ranking", k=5, public_scores=public, rng=rng
            )
            found.append(made.guarantee)
            return made.top_k(5).tolist()

        found: list[ss.Guarantee] = []
        recall = measure(release)
        worth = predict_worth(found[0], k=5, dimension=DIMENSION, public_scores=public)
        assert abs(worth.recall - recall) < 0.09  # 360 draws: 3.4 standard errors at most
        assert (
            worth.recall
            > 2
            * predict_worth(
                ss.release_scores(ROWS, QUERIES[0], epsilon=6, mechanism="staircase", rng=0).guarantee,
                k=5,
                dimension=DIMENSION,
                public_scores=public,
            ).recall
        )

    def test_batch(self, public: QueryScores) -> None:
        batch = ss.release_batch(ROWS, QUERIES[:20], epsilon=5, k=5, rng=1)
        worth = batch.worth(5, public_scores=public)
        assert 0.5 < worth.recall < worth.clean
        weak = ss.release_batch(ROWS, QUERIES[:20], epsilon=2, k=5, rng=1).worth(5, public_scores=public)
        assert not weak.is_useful

    def test_codebook(self, public: QueryScores) -> None:
        """A codebook that is like the records is worth more than one that is not."""
        near = ss.PublicCodebook(ROWS[::2] + 0.1 * RNG.standard_normal((RECORDS // 2, DIMENSION)))
        index = ss.release_index(ROWS, epsilon=12, codebook=near, rng=1)
        assert 0 < index.worth(5, public_scores=public).recall < 1

    def test_codebook_by_epsilon(self) -> None:
        """A larger epsilon is never predicted to find less, and released recall lies within the error."""
        rng = np.random.default_rng(3)
        # A common direction, as text models have: long codes sum it up, and it must not count as noise.
        shift = np.full(DIMENSION, 0.6 / np.sqrt(DIMENSION))
        rows, words = ROWS + shift, ROWS[::2] + shift + 0.3 * rng.standard_normal((RECORDS // 2, DIMENSION)) / 12
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        queries = QUERIES + shift
        queries /= np.linalg.norm(queries, axis=1, keepdims=True)
        scores, book = QueryScores(np.clip(queries @ rows.T, -1, 1), PAIRS), ss.PublicCodebook(words)
        worths = []
        for epsilon in (4, 8, 12, 20, 40, 70, 100, 150, 250):
            index = ss.release_index(rows, epsilon=epsilon, codebook=book, rng=1)
            worths.append(index.worth(5, public_scores=scores))
            found = np.mean([PAIRS[q, 1] in row for q, row in enumerate(index.search(queries, 5).indices)])
            assert abs(found - worths[-1].recall) < worths[-1].error + 0.1
        recalls = [one.recall for one in worths]
        assert (np.diff(recalls) > -1e-3).all()
        assert "if the records are like the codewords" in worths[0].sentence

    def test_codes_that_are_too_long(self, public: QueryScores) -> None:
        """A code size of the caller for which epsilon does not suffice is mostly false, whatever shorter ones are."""
        words = ROWS[::2] + 0.1 * RNG.standard_normal((RECORDS // 2, DIMENSION)) / 12
        long, short = (ss.PublicCodebook(words, code_size=size) for size in (20, 1))
        worths = [
            ss.release_index(ROWS, epsilon=10, codebook=book, rng=1).worth(5, public_scores=public)
            for book in (long, short)
        ]
        assert worths[0].recall < 0.05 < worths[1].recall

    def test_few_records(self) -> None:
        """Where all records are returned, everything is found, whatever the noise."""
        worth = ss.release_index(ROWS[:8], epsilon=0.5, rng=1).worth(10)
        assert (worth.recall, worth.error, worth.is_useful) == (1.0, 0.0, True)

    def test_unknown_population(self, public: QueryScores) -> None:
        """Without public scores the error is larger, and the sentence says why."""
        index = ss.release_index(ROWS, epsilon=30, rng=1)
        known, unknown = index.worth(5, public_scores=public), index.worth(5)
        assert unknown.error > 2 * known.error
        assert "sixty public queries" in known.sentence
        assert "another model" in unknown.sentence
        assert str(known) == known.sentence
        assert find_population(None, 384).is_known
        assert not find_population(None, 385).is_known

    def test_public_facts_alone(self) -> None:
        """Other records of the same shape have the same worth, in every number and word."""
        others = np.random.default_rng(99).standard_normal(ROWS.shape)
        for make in (
            lambda rows: ss.release_index(rows, epsilon=9, rng=1).worth(5),
            lambda rows: ss.release_batch(rows, QUERIES[:9], epsilon=9, k=5, rng=1).worth(5),
            lambda rows: predict_worth(ss.release_matches(rows, QUERIES[0], 0.4, epsilon=5, rng=1).guarantee, k=5),
        ):
            assert make(ROWS) == make(others)

    def test_top_k(self) -> None:
        """The selection of the best records is predicted by the exponential mechanism."""
        guarantee = ss.release_top_k(ROWS, QUERIES[0], 3, epsilon=20, rng=1).guarantee
        worth = predict_worth(guarantee, k=3, dimension=DIMENSION)
        assert (worth.records, worth.k) == (RECORDS, 3)
        assert 0 < worth.recall < worth.clean

    def test_required(self) -> None:
        worth = ss.release_index(ROWS, epsilon=5, rng=1).worth(5)
        check_recall(worth, None)
        check_recall(worth, worth.recall)
        with pytest.raises(InvalidInput, match="nothing was released or charged"):
            check_recall(worth, worth.recall + 1e-9)

    def test_required_says_what_to_change(self) -> None:
        """The error states the recall without privacy, and claims no remedy that was not predicted."""
        worth = Worth(0.4, 0.1, 10, 2_000, "", "", clean=0.6)
        with pytest.raises(InvalidInput, match=r"0\.40 ± 0\.10 is .* Without privacy it is 0\.60\.$"):
            check_recall(worth, 0.5)
        with pytest.raises(InvalidInput, match=r"Without privacy it is 0\.60; epsilon 40 reaches it\.$"):
            check_recall(worth, 0.5, "epsilon 40 reaches it")
        with pytest.raises(InvalidInput, match=r"so no epsilon reaches it: ask for a lower recall or a larger k\.$"):
            check_recall(worth, 0.9, "epsilon 40 reaches it")
        with pytest.raises(InvalidInput, match=r"so no epsilon reaches it: ask for a lower recall or a larger k\.$"):
            check_recall(worth, 0.9)
        with pytest.raises(InvalidInput, match=r"a lower recall or a lower threshold\.$"):
            check_recall(replace(worth, chance=0.01), 0.9)
        with pytest.raises(InvalidInput, match=r"for all 8 records; .* a lower recall\.$"):
            check_recall(replace(worth, k=10, records=8), 0.9)
        with pytest.raises(InvalidInput, match=r"those of another model, so give public scores of this one\.$"):
            check_recall(replace(worth, is_known=False), 0.9)

    def test_figures_lie_between_0_and_1(self) -> None:
        """An interval beyond 0 or 1 is written by its ends."""
        worth = Worth(0.27, 0.53, 10, 2_000, "", "", clean=0.6)
        assert worth.figure == "0.27 (between 0 and 0.80)"
        assert replace(worth, recall=0.9).figure == "0.90 (between 0.37 and 1)"
        assert replace(worth, error=0.27).figure == "0.27 ± 0.27"
        assert replace(worth, recall=1.0, error=0.0).figure == "1.00 ± 0.00"
        assert "between 0 and" in ss.release_index(ROWS, epsilon=5, rng=1).worth(5).sentence

    def test_own_scores_hold_no_change_of_population(self, public: QueryScores) -> None:
        """The sentence states the condition under which the small error of own public scores holds."""
        index = ss.release_index(ROWS, epsilon=30, rng=1)
        condition = "if private queries and records are like these"
        assert condition in index.worth(5, public_scores=public).sentence
        assert condition not in index.worth(5).sentence

    @pytest.mark.parametrize("threshold", [0.99, -0.99])
    @pytest.mark.parametrize("epsilon", [0.5, 8.0])
    def test_screening_that_cannot_work(self, threshold: float, epsilon: float) -> None:
        """A threshold that no relevant score passes, or every score, finds nothing that names at random do not."""
        rows = np.random.default_rng(4).standard_normal((2_000, 384))
        worth = predict_worth(ss.release_matches(rows, rows[0], threshold, epsilon=epsilon, rng=1).guarantee)
        assert not worth.is_useful
        good = ss.release_matches(rows, rows[0], 0.4, epsilon=8, rng=1).guarantee
        assert predict_worth(good).is_useful

    def test_screening_of_few_records(self, public: QueryScores) -> None:
        """Where k is the number of records, a record is found if it passes."""
        release = ss.release_matches(ROWS[:8], QUERIES[0], 0.99, epsilon=3, rng=1)
        worth = predict_worth(release.guarantee, k=10, public_scores=public)
        assert worth.recall == pytest.approx(1 / (1 + np.exp(3)))
        with pytest.raises(InvalidInput, match="is required"):
            check_recall(worth, 0.99)
        passed = ss.release_matches(ROWS[:8], QUERIES[0], -0.5, epsilon=3, rng=1)
        assert predict_worth(passed.guarantee, k=10, public_scores=public).recall == pytest.approx(1 / (1 + np.exp(-3)))

    @pytest.mark.parametrize("epsilon", [4.0, 5.0, 6.0])
    def test_error_of_a_batch(self, public: QueryScores, epsilon: float) -> None:
        """The error of a batch covers the sampling of queries, and a share that is off by a half."""
        worth = ss.release_batch(ROWS, QUERIES[:20], epsilon=epsilon, k=5, rng=1).worth(5, public_scores=public)
        share = worth.recall / worth.clean
        assert worth.error > 0.85 * worth.clean * share * (1 - share)
        assert worth.error > 1.6 * np.sqrt(worth.recall * (1 - worth.recall) / 100)

    def test_bad_input(self) -> None:
        index = ss.release_index(ROWS, epsilon=5, rng=1)
        with pytest.raises(InvalidInput, match="'k' parameter"):
            index.worth(0)
        with pytest.raises(InvalidInput, match="QueryScores of public scores, or None"):
            index.worth(5, public_scores=SCORES)  # type: ignore[arg-type]
