"""The attacker's estimators run on real releases; measured errors match the closed forms and reject near misses.

Seeds are fixed, and each check has a false-alarm rate of 1e-7. Errors are Gaussian, so a mean square over m releases is
chi-squared with m degrees of freedom, and with r m if the error's covariance is s^2 times a projector of rank r.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy.stats import chi2
from support import STRICT

import scoreshield as ss
from scoreshield.attack import reconstruction as rec

Array = np.ndarray
N, D, ROW, REPEATS = 24, 5, 5, 3000
CONTRACT = {"epsilon": 20, "delta": 1e-6}


def unit(rows: Array) -> Array:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def rows() -> Array:
    """Records of uneven leverage: two of them alone hold most of two directions."""
    rows = np.random.default_rng(1).standard_normal((N, D)) * [1, 1, 1, 0.05, 0.05]
    rows[3, 3] = rows[9, 4] = 3.0
    return unit(rows)


@pytest.fixture(scope="module")
def query() -> Array:
    return unit(np.random.default_rng(2).standard_normal(D))


@pytest.fixture(scope="module")
def scores(rows: Array, query: Array) -> list[ss.ScoreRelease]:
    return [ss.release_scores(rows, query, **CONTRACT, rng=seed) for seed in range(REPEATS)]


@pytest.fixture(scope="module")
def row_releases(rows: Array) -> list[ss.RowRelease]:
    return [ss.release_row(rows, ROW, **CONTRACT, rng=seed) for seed in range(REPEATS)]


@pytest.fixture(scope="module")
def grams(rows: Array) -> list[ss.GramRelease]:
    return [ss.release_gram(rows, **CONTRACT, projection="none", rng=seed) for seed in range(REPEATS)]


def projector(rows: Array) -> Array:
    return rows @ np.linalg.pinv(rows)


def accepts(ratio: Array, freedom: int) -> Array:
    """Whether each measured over stated mean square is one of chi-squared by its law; false alarm 1e-7 for all."""
    tail = 0.5e-7 / ratio.size
    return (chi2.ppf(tail, freedom) < freedom * ratio) & (freedom * ratio < chi2.isf(tail, freedom))


def check(errors: Array, mse: Array, near_miss: Array | None = None, rank: int = 1) -> None:
    """Every entry has its stated error and would reject a standard deviation 20 % off; the total, of at least ``rank``
    equal degrees of freedom a release, rejects one 10 % off where there are several."""
    positive = mse > 1e-9
    ratio = np.mean(errors[:, positive] ** 2, axis=0) / mse[positive]
    assert accepts(ratio, len(errors)).all()
    assert not accepts(ratio / 1.2**2, len(errors)).any()
    total = np.array([np.mean(errors[:, positive] ** 2) / mse[positive].mean()])
    assert accepts(total, rank * len(errors)).all()
    if rank > 1:
        assert not accepts(total / 1.1**2, rank * len(errors)).any()
    if near_miss is not None:
        assert not accepts(ratio * mse[positive] / near_miss[positive], len(errors)).all()


def certain(errors: Array, result: rec.Reconstruction) -> list[int]:
    """The places that the attacker is said to know, which must be known in every release."""
    places = np.flatnonzero(result.expected_mse == 0)
    assert np.abs(errors.reshape(len(errors), -1)[:, places]).max(initial=0) < 1e-9
    return places.tolist()


def run(
    attack: object, releases: list[ss.Release], clean: Array, **options: object
) -> tuple[Array, rec.Reconstruction]:
    results = [attack(release, **options) for release in releases]  # type: ignore[operator]
    return np.array([result.estimate for result in results]) - clean, results[0]


class TestNothing:
    def test_noisy_variance(self, scores: list, rows: Array, query: Array) -> None:
        """Noisy values have the variance of the noise."""
        errors, result = run(rec.from_nothing, scores, rows @ query)
        check(errors, np.full(N, ss.calibrate(20, 1e-6, 2.0) ** 2), rank=N)
        assert result.expected_mse == pytest.approx(np.full(N, ss.calibrate(20, 1e-6, 2.0) ** 2), rel=1e-6)
        assert result.knowledge == "nothing"
        assert result.exact

    def test_clipping_only_lowers_it(self, scores: list, rows: Array, query: Array) -> None:
        errors, result = run(rec.from_nothing, scores, rows @ query, projected=True)
        assert not result.exact
        assert np.all(np.mean(errors**2, axis=0) < result.expected_mse)
        assert np.mean(errors**2) < 0.9 * result.expected_mse.mean()  # an inequality here, not an equality

    def test_public_entries_are_certain(self, row_releases: list, grams: list, rows: Array) -> None:
        errors, result = run(rec.from_nothing, row_releases, rows @ rows[ROW])
        assert certain(errors, result) == [ROW]
        check(errors, result.expected_mse, rank=N - 1)
        _, clipped = run(rec.from_nothing, row_releases[:1], rows @ rows[ROW], projected=True)
        assert clipped.estimate[ROW] == 1
        errors, result = run(rec.from_nothing, grams, rows @ rows.T)
        sigma = ss.calibrate(20, 1e-6, 2 * math.sqrt(2 * (N - 1)))
        assert result.expected_mse[0, 1] == pytest.approx(sigma**2 / 2, rel=1e-6)
        assert certain(errors, result) == list(range(0, N * N, N + 1))
        check(errors.reshape(REPEATS, -1), result.expected_mse.reshape(-1), rank=N * (N - 1) // 2)

    def test_an_exact_projection_lowers_the_total(self, rows: Array) -> None:
        clean = rows @ rows.T
        contract = {**CONTRACT, "adjacency": ss.GramRadius(2.0)}
        release = ss.release_gram(rows, **contract, rng=1)
        result = rec.from_nothing(release, projected=True)
        assert not result.exact
        assert result.mse(clean) < rec.from_nothing(release).mse(clean)
        assert result.mse(clean) < 0.9 * result.expected_mse.mean()
        for options in ({"projection": "aap"}, {"denoise": "shrinkage"}, {"projection": "none"}):
            other = ss.release_gram(rows, **contract, **options, rng=1)
            with pytest.raises(ss.InvalidInput, match="'projected' parameter of from_nothing"):
                rec.from_nothing(other, projected=True)


class TestColumnSpace:
    def test_scores_are_denoised_by_leverage(self, scores: list, rows: Array, query: Array) -> None:
        errors, result = run(rec.from_column_space, scores, rows @ query, embeddings=rows)
        variance = scores[0].guarantee.noise.std ** 2
        leverage = projector(rows).diagonal()
        assert result.expected_mse == pytest.approx(variance * leverage)
        assert result.expected_mse.mean() == pytest.approx(variance * D / N)
        assert leverage.max() > 0.9 > 0.12 > leverage.min()
        check(errors, result.expected_mse, near_miss=np.full(N, variance * D / N), rank=D)  # not flat

    def test_a_basis_is_as_good_as_the_records(self, scores: list, rows: Array) -> None:
        basis = np.linalg.qr(rows)[0]
        one = rec.from_column_space(scores[0], basis=basis)
        other = rec.from_column_space(scores[0], embeddings=rows * 7.0)  # lengths are taken out, as releases do
        assert one.estimate == pytest.approx(other.estimate)
        assert one.expected_mse == pytest.approx(other.expected_mse)
        assert one.estimate == pytest.approx(projector(rows) @ scores[0].noisy)

    def test_the_rank_is_numerical(self, scores: list, rows: Array) -> None:
        thin = rows[:, :2] @ np.random.default_rng(3).standard_normal((2, 7))
        variance = scores[0].guarantee.noise.std ** 2
        for source in (thin, thin.astype(np.float32), thin + 1e-17):
            result = rec.from_column_space(scores[0], embeddings=source)
            assert result.expected_mse.sum() == pytest.approx(2 * variance, rel=1e-6)
        full = rec.from_column_space(scores[0], embeddings=thin.astype(np.float32), tolerance=1e-12)
        assert full.expected_mse.sum() == pytest.approx(7 * variance, rel=1e-6)  # rounding taken for signal

    def test_a_batch_is_denoised_query_by_query(self, rows: Array) -> None:
        queries = np.random.default_rng(4).standard_normal((3, D))
        release = ss.release_scores(rows, queries, **CONTRACT, rng=1)
        result = rec.from_column_space(release, embeddings=rows)
        assert result.estimate == pytest.approx(release.noisy @ projector(rows))
        assert result.expected_mse.shape == (3, N)

    def test_a_row_uses_its_public_entry(self, row_releases: list, rows: Array) -> None:
        errors, result = run(rec.from_column_space, row_releases, rows @ rows[ROW], embeddings=rows)
        p, variance = projector(rows), row_releases[0].guarantee.noise.std ** 2
        expected = variance * (p.diagonal() - p[:, ROW] ** 2 / p[ROW, ROW])
        assert result.expected_mse == pytest.approx(expected, rel=1e-6, abs=1e-9 * variance)
        assert certain(errors, result) == [ROW]
        assert result.expected_mse.sum() == pytest.approx(variance * (D - 1))
        # The near miss is the paper's formula, which has noise on the public 1.
        check(errors, result.expected_mse, near_miss=variance * p.diagonal(), rank=D - 1)
        assert np.all(result.expected_mse <= variance * p.diagonal() + 1e-9)

    def test_gram_denoised(self, grams: list, rows: Array) -> None:
        """A Gram matrix is denoised on both sides."""
        errors, result = run(rec.from_column_space, grams, rows @ rows.T, embeddings=rows)
        p, variance = projector(rows), grams[0].guarantee.noise.std ** 2
        plain = p @ grams[0].noisy @ p
        away = ~np.eye(N, dtype=bool)
        assert result.estimate[away] == pytest.approx(plain[away])
        assert np.all(result.estimate.diagonal() == 1)
        independent = variance * np.outer(p.diagonal(), p.diagonal())  # as if no draw were mirrored
        check(errors.reshape(REPEATS, -1), result.expected_mse.reshape(-1), near_miss=independent.reshape(-1), rank=4)
        assert len(certain(errors, result)) == N


class TestAllButOne:
    def test_scores_of_others(self, scores: list, rows: Array, query: Array) -> None:
        """Scores of the others are denoised, and the unknown record's own is not."""
        others = np.delete(rows, 9, axis=0)
        errors, result = run(rec.from_others, scores, rows @ query, others=others, index=9)
        variance = scores[0].guarantee.noise.std ** 2
        expected = variance * np.insert(projector(others).diagonal(), 9, 1.0)
        assert result.expected_mse == pytest.approx(expected)
        check(errors, expected, near_miss=variance * projector(rows).diagonal(), rank=D)  # P is not P_{-i}
        assert result.knowledge == "all but one record"

    def test_public_query(self, scores: list, rows: Array, query: Array) -> None:
        """With a public query the others' scores are computed."""
        others = np.delete(rows, 9, axis=0)
        errors, result = run(rec.from_others, scores, rows @ query, others=others, index=9, query=3 * query)
        assert certain(errors, result) == [j for j in range(N) if j != 9]
        check(errors, result.expected_mse)
        assert result.knowledge == "all but one record, and the query"

    def test_public_query_batches(self, rows: Array) -> None:
        """The estimate with a query holds for batches and narrow ranges."""
        queries = unit(np.random.default_rng(4).standard_normal((3, D)))
        release = ss.release_scores(rows, queries, **CONTRACT, score_range=(0, 0.5), rng=1)
        result = rec.from_others(release, np.delete(rows, 0, axis=0), index=-N, query=queries)
        assert result.estimate[:, 1:] == pytest.approx(np.clip(queries @ rows[1:].T, 0, 0.5))
        assert np.array_equal(result.estimate[:, 0], release.noisy[:, 0])

    def test_a_row_of_the_unknown_record(self, row_releases: list, rows: Array) -> None:
        others = np.delete(rows, ROW, axis=0)
        errors, result = run(rec.from_others, row_releases, rows @ rows[ROW], others=others)
        variance = row_releases[0].guarantee.noise.std ** 2
        assert result.expected_mse == pytest.approx(variance * np.insert(projector(others).diagonal(), ROW, 0.0))
        assert result.expected_mse.sum() == pytest.approx(variance * D)
        average = np.full(N, variance * D / (N - 1))
        assert certain(errors, result) == [ROW]
        check(errors, result.expected_mse, near_miss=average, rank=D)

    def test_a_row_whose_record_is_known(self, row_releases: list, rows: Array) -> None:
        for index in (1, 7):  # before and after the row's own
            others = np.delete(rows, index, axis=0)
            errors, result = run(rec.from_others, row_releases, rows @ rows[ROW], others=others, index=index)
            assert certain(errors, result) == [j for j in range(N) if j != index]
            check(errors, result.expected_mse)

    def test_the_gram_row_of_the_unknown_record(self, grams: list, rows: Array) -> None:
        others = np.delete(rows, 9, axis=0)
        errors, result = run(rec.from_others, grams, rows @ rows[9], others=others, index=9)
        half = grams[0].guarantee.scale ** 2 / 2
        assert result.expected_mse == pytest.approx(half * np.insert(projector(others).diagonal(), 9, 0.0))
        check(errors, result.expected_mse, near_miss=2 * result.expected_mse, rank=D)  # sigma^2 / 2, not sigma^2
        assert certain(errors, result) == [9]
        assert np.all(result.expected_mse <= half)


class TestTemplate:
    @pytest.mark.parametrize("kind", ["gram", "row"])
    def test_least_squares_has_its_stated_error(self, kind: str, grams: list, row_releases: list, rows: Array) -> None:
        others = np.delete(rows, ROW, axis=0)
        found = [rec.template_from_others(r, others, index=ROW) for r in (grams if kind == "gram" else row_releases)]
        errors = np.array([template.estimate for template in found]) - rows[ROW]
        first = found[0]
        variance = grams[0].guarantee.noise.std ** 2 if kind == "gram" else row_releases[0].guarantee.noise.std ** 2
        assert first.covariance == pytest.approx(variance * np.linalg.inv(others.T @ others))
        assert first.expected_squared_error == pytest.approx(np.trace(first.covariance))
        check(errors, first.covariance.diagonal().copy())
        spread = math.sqrt(2 * np.sum(first.covariance**2) / REPEATS)
        measured = np.mean(np.sum(errors**2, axis=1))
        assert abs(measured - first.expected_squared_error) < STRICT * spread
        assert abs(measured - first.expected_squared_error * 1.21) > STRICT * spread

    def test_template_cosines(self) -> None:
        """Random templates, so that the prior is the one the bound speaks of."""
        rng = np.random.default_rng(6)
        least, shrunk, expected, attainable = [], [], [], []
        for seed in range(300):
            rows = unit(rng.standard_normal((400, 24)) * np.geomspace(1, 6, 24))
            rows[0] = unit(rng.standard_normal(24))
            release = ss.release_row(rows, 0, epsilon=300, delta=1e-6, rng=seed)
            found = rec.template_from_others(release, rows[1:])
            least.append(unit(found.estimate) @ rows[0])
            shrunk.append(unit(found.shrunk) @ rows[0])
            expected.append(found.expected_cosine)
            attainable.append(found.attainable_cosine)
        error = np.std(shrunk) / math.sqrt(300)
        assert np.mean(least) == pytest.approx(np.mean(expected), abs=0.08)
        assert np.mean(shrunk) > np.mean(least) + 0.02
        assert np.mean(shrunk) < np.mean(attainable) + STRICT * error
        assert np.mean(shrunk) > np.mean(attainable) - 0.05

    def test_even_gallery(self) -> None:
        """A record's Gram row is the linear attack with n - 1 fixed probes, and the same law stops it."""
        others = np.vstack([np.eye(8)] * 5)
        release = ss.release_row(np.vstack([np.ones(8), others]), 0, epsilon=50, delta=1e-6, rng=1)
        found = rec.template_from_others(release, others)
        sigma = release.guarantee.noise.std
        assert found.expected_squared_error == pytest.approx(8 * 8 * sigma**2 / 40)
        assert found.expected_cosine == pytest.approx(1 / math.sqrt(1 + 64 * sigma**2 / 40))
        assert found.attainable_cosine == pytest.approx(found.expected_cosine)
        assert found.expected_cosine == pytest.approx(1 / math.sqrt(1 + 4 * 64 / release.guarantee.mu**2), rel=1e-6)

    def test_outside_the_span(self) -> None:
        """What lies outside the span is not estimated."""
        flat = np.random.default_rng(7).standard_normal((30, 4))
        flat[:, 3] = 0
        release = ss.release_row(np.vstack([[0, 0, 1, 1], flat]), 0, epsilon=1e9, delta=0.5, rng=1)
        found = rec.template_from_others(release, flat)
        assert found.estimate == pytest.approx([0, 0, math.sqrt(0.5), 0], abs=0.01)
        assert np.all(found.covariance[3] == 0)


def test_reconstruction_is_frozen(scores: list, rows: Array, query: Array) -> None:
    """A reconstruction is frozen, and measures its error."""
    result = rec.from_nothing(scores[0])
    assert result.mse(rows @ query) == pytest.approx(np.mean((scores[0].noisy - rows @ query) ** 2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.knowledge = "all"  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        result.estimate[0] = 0
    for bad in (np.zeros(3), "clean", np.full(N, "x"), [[1], [2, 3]]):
        with pytest.raises(ss.InvalidInput, match=r"'clean' parameter of Reconstruction\.mse"):
            result.mse(bad)


def test_bad_input(scores: list, row_releases: list, grams: list, rows: Array, query: Array) -> None:
    release, row, gram, others = scores[0], row_releases[0], grams[0], rows[1:]
    narrow = ss.release_scores(rows, query, **CONTRACT, score_range=(0, 1), rng=1)
    factored = ss.release_gram(rows, **CONTRACT, adjacency=ss.GramRadius(1.0), rng=1).factored()
    calls = [
        lambda: rec.from_nothing(release.noisy),
        lambda: rec.from_nothing(factored),
        lambda: rec.from_nothing(release, projected=1),
        lambda: rec.from_column_space(release),
        lambda: rec.from_column_space(release, basis=np.eye(N), embeddings=rows),
        lambda: rec.from_column_space(release, basis=rows),
        lambda: rec.from_column_space(release, basis=np.eye(N - 1)),
        lambda: rec.from_column_space(release, basis=np.full((N, 2), np.nan)),
        lambda: rec.from_column_space(release, basis=np.eye(N), tolerance=1e-9),
        lambda: rec.from_column_space(release, embeddings=others),
        lambda: rec.from_column_space(release, embeddings=rows * 0),
        lambda: rec.from_column_space(release, embeddings=rows, tolerance=1.0),
        lambda: rec.from_column_space(release, embeddings=rows, tolerance=-1e-9),
        lambda: rec.from_column_space(narrow, embeddings=rows),
        lambda: rec.from_column_space(row, basis=np.eye(N)[:, :2]),
        lambda: rec.from_others(release, others),
        lambda: rec.from_others(release, others, index=N),
        lambda: rec.from_others(release, others, index=True),
        lambda: rec.from_others(release, rows, index=0),
        lambda: rec.from_others(narrow, others, index=0),
        lambda: rec.from_others(release, others, index=0, query=query[1:]),
        lambda: rec.from_others(release, others, index=0, query=np.stack([query, query])),
        lambda: rec.from_others(release, others, index=0, query=query, tolerance=1e-9),
        lambda: rec.from_others(row, others, index=0, query=query),
        lambda: rec.from_others(row, others, query=query),
        lambda: rec.from_others(gram, others, index=0, query=query),
        lambda: rec.from_others(gram, others),
        lambda: rec.template_from_others(release, others, index=0),
        lambda: rec.template_from_others(row, others, index=0),
        lambda: rec.template_from_others(gram, rows, index=0),
    ]
    for call in calls:
        with pytest.raises(ss.InvalidInput):
            call()
