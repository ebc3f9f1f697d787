"""A private index through its public function: what its scores carry, what it promises, what it refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from release_support import make_plan
from scipy.special import gamma as gamma_function
from scipy.special import hyp2f1
from support import STRICT, assert_feasible

import scoreshield as ss
from scoreshield.privacy.calibration import find_mu
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.privunit import PrivUnit
from scoreshield.privacy.sampling.stream import open_stream
from scoreshield.releases import index as indexing
from scoreshield.releases import index_plan
from scoreshield.releases.index import IndexRelease, release_index
from scoreshield.releases.index_pairs import pair_components

Array = np.ndarray
GAUSSIAN = {"epsilon": 4.0, "delta": 1e-6, "mechanism": "gaussian"}


def unit(rows: Array) -> Array:
    rows = np.asarray(rows, dtype=np.float64)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def deviations(values: Array, mean: float, std: float) -> float:
    return float(abs(values.mean() - mean) / std * math.sqrt(values.size))


class TestScores:
    @pytest.mark.parametrize("mechanism", ["privunit", "gaussian"])
    def test_unbiased_with_the_stated_noise(self, mechanism: str, rng: np.random.Generator) -> None:
        """One record many times: its scores with one query are independent draws. False alarm 1e-7 each."""
        record, query = rng.standard_normal(12), rng.standard_normal(12)
        clean = float(unit(record) @ unit(query))
        delta = 1e-6 if mechanism == "gaussian" else 0.0
        index = release_index(np.tile(record, (40_000, 1)), epsilon=6, delta=delta, mechanism=mechanism, rng=1)
        scores = index.scores(query)
        std = index.score_std if delta else float(PrivUnit.calibrate(12, 6.0).score_std(clean))
        assert deviations(scores, clean, std) < STRICT
        assert deviations(scores, clean + 0.05, std) > STRICT
        squares = (scores - clean) ** 2
        assert deviations(squares, std**2, squares.std()) < STRICT
        assert deviations(squares, (1.05 * std) ** 2, squares.std()) > STRICT
        assert np.abs(index.scores(query, clip=True)).max() <= 1
        assert index.guarantee.grid <= index.score_std / 256

    def test_gaussian_noise_is_calibrated_to_two(self, rng: np.random.Generator) -> None:
        rows = rng.standard_normal((5000, 16))
        index = release_index(rows, **GAUSSIAN, rng=3)
        sigma = ss.calibrate(4, 1e-6, 2.0)
        noise = index.vectors - unit(rows)
        assert index.score_std == pytest.approx(sigma, rel=1e-3)
        assert index.score_std > sigma  # the grid's share is paid for
        error = abs(float(np.mean(noise**2)) / sigma**2 - 1) / math.sqrt(2 / noise.size)
        assert error < STRICT
        assert abs(float(np.mean(noise**2)) / (0.95 * sigma) ** 2 - 1) / math.sqrt(2 / noise.size) > STRICT

    def test_batches_searches_single_queries_agree(
        self, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Batches searches and single queries agree."""
        rows, queries = rng.standard_normal((500, 10)).astype(np.float32), rng.standard_normal((7, 10))
        index = release_index(rows, epsilon=20, components=6, rng=5)
        scores = index.scores(queries)
        assert scores.shape == (7, 500)
        assert np.allclose(index.scores(queries[2]), scores[2], atol=1e-5)
        whole = index.search(queries, 9)
        monkeypatch.setattr(indexing, "SEARCH_ROWS", 64)  # several blocks, merged
        found = index.search(queries, 9)
        assert np.array_equal(whole.indices, found.indices)
        assert np.array_equal(found.indices, np.argsort(-scores, axis=1, kind="stable")[:, :9])
        assert np.allclose(found.scores, np.take_along_axis(scores, found.indices, 1), atol=1e-5)
        one = index.search(queries[3], 9)
        assert np.array_equal(one.indices, found.indices[3])
        assert one.scores.shape == (9,)
        distances, ids = index.search(queries, 1000)  # the order in which FAISS returns them
        assert distances.shape == ids.shape == (7, 500)
        assert np.all(np.diff(distances, axis=1) <= 0)

    def test_gram_is_unbiased_off_its_diagonal(self, rng: np.random.Generator) -> None:
        first, second = unit(rng.standard_normal((2, 5)))
        rows = np.concatenate([np.tile(first, (300, 1)), np.tile(second, (300, 1))])
        index = release_index(rows, epsilon=12, rng=2)
        gram = index.gram()
        assert np.all(gram.diagonal() == 1)
        assert np.array_equal(gram, gram.T)
        maker = PrivUnit.calibrate(5, 12.0)
        # The mean over a block is the product of two means of 300 vectors each.
        error = STRICT * 2 * float(maker.score_std(0.0)) / math.sqrt(300)
        assert abs(gram[:300, 300:].mean() - first @ second) < error < 0.12
        assert_feasible(release_index(rows[::20], epsilon=12, rng=2).gram(project=True))


class TestReduction:
    def test_random_subspace_keeps_cosines_average(self, rng: np.random.Generator) -> None:
        """The mean reduced cosine is that of r pairs of normals, up to O(1/d), not the cosine. False alarm 1e-7."""
        d, r, s = 256, 4, 0.6
        pair = np.zeros((2, d))
        pair[0, 0] = 1
        pair[1, :2] = s, math.sqrt(1 - s * s)
        found = np.empty(8000)
        for place in range(len(found)):
            first, second = unit(pair @ index_plan._orthonormal(rng.standard_normal((r, d))).T)
            found[place] = first @ second
        ratio = gamma_function((r + 1) / 2) / gamma_function(r / 2)
        wanted = 2 / r * ratio**2 * s * hyp2f1(0.5, 0.5, (r + 2) / 2, s * s)
        assert wanted == pytest.approx(0.548, abs=1e-3)
        assert deviations(found, wanted, found.std()) < STRICT
        assert deviations(found, s, found.std()) > STRICT

    def test_scores_are_the_reduced_cosines(self, rng: np.random.Generator) -> None:
        rows, query = rng.standard_normal((40, 64)), rng.standard_normal(64)
        index = release_index(rows, epsilon=400, components=4, rng=1)
        assert index.projection is not None
        wanted = unit(rows @ index.projection.T) @ unit(index.projection @ query)
        assert index.scores(query) == pytest.approx(wanted, abs=1e-4)
        assert np.abs(wanted - unit(rows) @ unit(query)).max() > 0.1

    def test_projections(self, rng: np.random.Generator) -> None:
        rows = rng.standard_normal((30, 9))
        index = release_index(rows, epsilon=5, components=4, rng=1)
        assert index.projection is not None
        assert index.projection @ index.projection.T == pytest.approx(np.eye(4), abs=1e-12)
        other = release_index(rows, epsilon=5, components=4)
        assert other.projection is not None
        assert not np.allclose(other.projection, index.projection)
        assert release_index(rows, epsilon=5).projection is None
        assert release_index(rows, epsilon=5, components=9).projection is None
        # It does not depend on the rows.
        moved = release_index(-rows[::-1] * 3, epsilon=5, components=4, rng=1)
        assert moved.projection is not None
        assert np.array_equal(moved.projection, index.projection)

    def test_a_public_basis(self, rng: np.random.Generator) -> None:
        rows, basis = rng.standard_normal((30, 9)), rng.standard_normal((3, 9))
        index = release_index(rows, epsilon=300, reduction=basis, rng=1)
        assert index.projection is not None
        assert index.vectors.shape == (30, 3)
        span = index.projection.T @ index.projection
        assert basis @ span == pytest.approx(basis)
        assert index.scores(basis[0]) == pytest.approx(
            unit(rows @ index.projection.T) @ unit(index.projection @ basis[0]), abs=1e-3
        )
        assert index.guarantee.details["reduction"] == "public basis"

    def test_pair_components(self) -> None:
        assert [pair_components(e, 384) for e in (5, 10, 20, 50)] == [2, 6, 14, 43]
        assert pair_components(50, 8) == 8


class TestPrivatePca:
    def test_it_finds_what_is_strong(self, rng: np.random.Generator) -> None:
        d = 24
        axes = np.linalg.qr(rng.standard_normal((d, 3)))[0]
        rows = rng.standard_normal((20_000, 3)) @ axes.T + 0.1 * rng.standard_normal((20_000, d))
        index = release_index(rows, epsilon=10, delta=1e-6, components=3, reduction="pca", rng=1)
        assert index.projection is not None
        cosines = np.linalg.svd(index.projection @ axes, compute_uv=False)
        assert cosines.min() > 0.99
        details = index.guarantee.details
        assert details["pca_share"] == 0.1
        assert details["covariance_sensitivity"] == pytest.approx(math.sqrt(2), rel=1e-3)

    def test_the_moment_is_exact_and_noisy_as_stated(self, rng: np.random.Generator) -> None:
        rows = rng.standard_normal((300, 40))
        plan = make_plan(rows, epsilon=1.0, delta=1e-6, components=3, reduction="pca", mechanism="gaussian")
        noisy = plan._moment(rows, open_stream(1))
        assert np.array_equal(noisy, noisy.T)
        _, std, step = plan._moment_noise()
        assert np.array_equal(noisy / step, np.rint(noisy / step))
        noise = noisy - unit(rows).T @ unit(rows)
        above = noise[np.triu_indices(40, 1)]
        for values, wanted in ((above, std / math.sqrt(2)), (noise.diagonal(), std)):
            error = abs(float(np.mean(values**2)) / wanted**2 - 1) / math.sqrt(2 / values.size)
            assert error < STRICT
        assert abs(float(np.mean(above**2)) / std**2 - 1) / math.sqrt(2 / above.size) > STRICT  # near miss
        mu = find_mu(1.0, 1e-6)
        assert std == pytest.approx(math.sqrt(2) / (mu * math.sqrt(0.1)), rel=1e-4)

    def test_sensitivity_attained_not_passed(self, rng: np.random.Generator) -> None:
        """Its sensitivity is attained and not passed."""

        def moment(rows: Array) -> Array:
            return unit(rows).T @ unit(rows)

        largest = 0.0
        for _ in range(300):
            rows = rng.standard_normal((6, 4))
            other = rows.copy()
            other[2] = rng.standard_normal(4)
            largest = max(largest, float(np.linalg.norm(moment(rows) - moment(other))))
        rows, other = np.eye(4), np.eye(4)
        other[0] = [0, 1, 0, 0]
        assert np.linalg.norm(moment(rows) - moment(other)) == pytest.approx(math.sqrt(2))
        assert 1.3 < largest <= math.sqrt(2)

    @pytest.mark.parametrize("mechanism", ["privunit", "gaussian"])
    def test_the_whole_budget_and_no_more(self, mechanism: str, rng: np.random.Generator) -> None:
        rows = rng.standard_normal((50, 8))
        index = release_index(
            rows, epsilon=6, delta=1e-5, mechanism=mechanism, components=3, reduction="pca", pca_share=0.25, rng=1
        )
        guarantee = index.guarantee
        assert guarantee.delta_at(6.0) <= 1e-5
        details = guarantee.details
        if mechanism == "gaussian":
            parts = (2 / index.score_std, details["covariance_sensitivity"] / details["covariance_std"])
            assert math.hypot(*parts) == pytest.approx(guarantee.mu, rel=1e-3)
            assert guarantee.mu == find_mu(6.0, 1e-5)
            assert parts[1] ** 2 / guarantee.mu**2 == pytest.approx(0.25)
        else:
            assert details["epsilon_per_record"] == pytest.approx(4.5, rel=1e-12)
            assert guarantee.delta_at(6.0) > 0.5e-5
            # Randomised response with 4.5, then the Gaussian: by summing the two losses over their laws.
            mu, p = find_mu(1.5, 1e-5), 1 / (1 + math.exp(-4.5))
            x = np.linspace(-12, 12, 400_001)
            density = np.exp(-((x - mu / 2) ** 2) / 2 / 1.0) / math.sqrt(2 * math.pi)
            total = 0.0
            for loss, weight in ((4.5, p), (-4.5, 1 - p)):
                total += weight * np.trapezoid(density * np.maximum(0, 1 - np.exp(3.0 - loss - mu * x)), x)
            assert guarantee.delta_at(3.0) == pytest.approx(total, rel=1e-4)
            assert guarantee.delta_at(3.02) >= 0.99 * total


class TestGuarantee:
    def test_privunit_is_pure(self, collection: Array) -> None:
        guarantee = release_index(collection, epsilon=3).guarantee
        assert (guarantee.epsilon, guarantee.delta, guarantee.regime) == (3.0, 0.0, "index")
        assert guarantee.sampler == "exact"
        assert guarantee.epsilon_at(0) == 3.0
        assert guarantee.noise is None
        maker = PrivUnit.calibrate(8, 3.0)
        # Opposite vectors have disjoint caps: total variation p - (1 - p) P / (1 - P).
        apart = maker.p - (1 - maker.p) * maker.cap / (1 - maker.cap)
        assert guarantee.attack_advantage == pytest.approx(apart, rel=1e-9)
        assert guarantee.attack_advantage < 0.9 * math.tanh(1.5)
        assert guarantee.grid == maker.step
        assert guarantee.details["cap_height"] == maker.gamma
        assert "pure 3-differential privacy" in str(guarantee)
        assert release_index(collection, epsilon=3, rng=1).guarantee.sampler == "research"

    def test_gaussian(self, collection: Array) -> None:
        guarantee = release_index(collection, **GAUSSIAN).guarantee
        assert guarantee.delta_at(4.0) <= 1e-6
        assert guarantee.mu == pytest.approx(2 / guarantee.scale, rel=1e-3)
        assert guarantee.grid_sensitivity > guarantee.sensitivity >= 2
        assert guarantee.noise.std == guarantee.scale

    @pytest.mark.parametrize("options", [{"epsilon": 9.0}, {**GAUSSIAN}])
    def test_identities(self, options: dict[str, float], collection: Array) -> None:
        labels = np.arange(len(collection)) // 3
        raw = release_index(collection, **options, adjacency=ss.Identity(labels))
        central = release_index(collection, **options, adjacency=ss.Identity(labels, centroids=True))
        alone = release_index(collection, **options)
        assert raw.vectors.shape == (40, 8)
        assert central.vectors.shape == (14, 8)
        assert central.score_std == alone.score_std
        if "delta" in options:
            assert raw.score_std == pytest.approx(alone.score_std * math.sqrt(3), rel=1e-3)
        else:
            assert raw.guarantee.details["epsilon_per_record"] == pytest.approx(3.0, rel=1e-12)
            assert raw.score_std == pytest.approx(PrivUnit.calibrate(8, 3.0).std, rel=1e-9)
            assert raw.guarantee.epsilon == 9.0

    @pytest.mark.parametrize(
        "options",
        [
            {"epsilon": 3.0},
            {"epsilon": 3.0, "components": 4},
            GAUSSIAN,
            {**GAUSSIAN, "components": 4, "reduction": "pca"},
            {"epsilon": 3.0, "delta": 1e-6, "components": 4, "reduction": "pca"},
        ],
        ids=["privunit", "random", "gaussian", "gaussian-pca", "privunit-pca"],
    )
    def test_saved_and_loaded_equal(self, options: dict[str, object], collection: Array, tmp_path: Path) -> None:
        index = release_index(collection, **options)  # type: ignore[arg-type]
        path = tmp_path / "index.npz"
        index.save(path)
        back = ss.load(path)
        assert type(back) is IndexRelease
        assert back == index
        assert back.guarantee == index.guarantee
        assert Guarantee.from_dict(json.loads(json.dumps(index.guarantee.to_dict()))) == index.guarantee
        assert not back.vectors.flags.writeable
        query = np.arange(8.0)
        assert np.array_equal(back.scores(query), index.scores(query))
        assert back != release_index(collection, **options)  # type: ignore[arg-type]
        assert f"IndexRelease 40 x {index.vectors.shape[1]}" in repr(index)
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        for name, change in (("vectors", 1e-5), ("projection", 1e-3)):
            if name in arrays:
                np.savez(path, **{**arrays, name: arrays[name] + arrays[name].dtype.type(change)})
                with pytest.raises(ss.InvalidInput, match="does not hold together"):
                    ss.load(path)


class TestStreaming:
    @pytest.mark.parametrize("options", [{"epsilon": 5.0, "components": 4}, GAUSSIAN])
    def test_a_mapped_file_gives_the_same_bits(
        self, options: dict[str, object], rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rows = rng.standard_normal((1000, 6)).astype(np.float32)
        np.save(tmp_path / "rows.npy", rows)
        monkeypatch.setattr(index_plan, "_BLOCK_BYTES", 6 * 8 * 128)  # several blocks
        seen: list[tuple[int, int]] = []
        mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
        first = release_index(mapped, **options, rng=7, progress=lambda *at: seen.append(at))  # type: ignore[arg-type]
        assert first == release_index(rows, **options, rng=7)  # type: ignore[arg-type]
        assert seen == [(min(end, 1000), 1000) for end in range(128, 1025, 128)]

    def test_kinds_of_input(self, collection: Array) -> None:
        before = collection.copy()
        one = release_index(collection, epsilon=4, rng=1)
        assert one.vectors.dtype == np.float32
        assert np.array_equal(collection, before)
        assert np.array_equal(release_index(collection.tolist(), epsilon=4, rng=1).vectors, one.vectors)
        assert np.array_equal(release_index(np.asfortranarray(collection), epsilon=4, rng=1).vectors, one.vectors)
        assert np.array_equal(release_index(4 * collection, epsilon=4, rng=1).vectors, one.vectors)  # a power of two


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"epsilon": 0}, "'epsilon'"),
            ({"epsilon": -1}, "'epsilon'"),
            ({"epsilon": 1000}, "'epsilon'"),
            ({"epsilon": 1, "delta": 1e-6}, "0 .left out. for PrivUnit"),
            ({"epsilon": 1, "mechanism": "gaussian"}, "above 0 for Gaussian noise"),
            ({"epsilon": 1, "mechanism": "laplace"}, "'mechanism'"),
            ({"epsilon": 1, "components": 1}, "'components'"),
            ({"epsilon": 1, "components": 9}, "from 2 to the embeddings' 8"),
            ({"epsilon": 1, "components": 2.0}, "'components'"),
            ({"epsilon": 1, "components": True}, "'components'"),
            ({"epsilon": 1, "components": 3, "reduction": "umap"}, "'reduction'"),
            ({"epsilon": 1, "components": 3, "reduction": "pca"}, "above 0 for a private PCA"),
            ({"epsilon": 1, "delta": 1e-6, "reduction": "pca"}, "given for a private PCA"),
            ({"epsilon": 1, "delta": 1e-6, "components": 3, "reduction": "pca", "pca_share": 1.0}, "'pca_share'"),
            ({"epsilon": 1, "reduction": np.ones((2, 8))}, "independent rows"),
            ({"epsilon": 1, "reduction": np.full((2, 8), np.nan)}, "independent rows"),
            ({"epsilon": 1, "reduction": np.eye(8)[:3], "components": 2}, "left out"),
            ({"epsilon": 1, "adjacency": ss.GramRadius(1.0)}, "'adjacency'"),
            ({"epsilon": 1, "adjacency": "replacement"}, "'adjacency'"),
            ({"epsilon": 1, "rng": -1}, "'rng'"),
            ({"epsilon": 1e-9, "delta": 1e-12, "mechanism": "gaussian"}, "hides every cosine"),
        ],
    )
    def test_bad_arguments(self, options: dict[str, object], message: str, collection: Array) -> None:
        with pytest.raises(ss.InvalidInput, match=message):
            release_index(collection, **options)  # type: ignore[arg-type]

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_bad_rows(self, value: float, collection: Array) -> None:
        rows = collection.copy()
        rows[17] = value
        for options in ({"epsilon": 1}, GAUSSIAN, {"epsilon": 1, "components": 3}):
            with pytest.raises(ss.InvalidInput, match="Row 17"):
                release_index(rows, **options)  # type: ignore[arg-type]

    def test_bad_shapes_and_queries(self, collection: Array) -> None:
        for rows in (np.zeros(3), np.zeros((0, 4)), [["a", "b"]]):
            with pytest.raises(ss.InvalidInput, match="embeddings"):
                release_index(rows, epsilon=1)
        with pytest.raises(ss.InvalidInput, match="two dimensions"):
            release_index(np.ones((4, 1)), epsilon=1)
        index = release_index(collection, epsilon=5, components=3)
        for query in (np.zeros(8), np.ones(7), np.full(8, np.nan), "query"):
            with pytest.raises(ss.InvalidInput, match="query"):
                index.scores(query)  # type: ignore[arg-type]
        for k in (0, -1, 1.5):
            with pytest.raises(ss.InvalidInput, match="'k'"):
                index.search(np.ones(8), k)  # type: ignore[arg-type]

    def test_a_refused_contract_reads_no_row(self) -> None:
        rows = np.full((3, 4), np.nan)
        with pytest.raises(ss.InvalidInput, match="PrivUnit"):
            release_index(rows, epsilon=1, delta=0.1)


@pytest.mark.parametrize("mechanism", ["privunit", "gaussian"])
@pytest.mark.parametrize("vanishing", ["zero", "orthogonal", "nearly orthogonal"])
def test_every_finite_record_is_released(mechanism: str, vanishing: str, rng: np.random.Generator) -> None:
    """A record that vanishes is taken as the first direction of its space, and no other vector knows of it."""
    contract: dict[str, Any] = {"epsilon": 5, "mechanism": mechanism, "delta": 1e-6 if mechanism == "gaussian" else 0}
    basis = np.eye(6)[[4, 2, 1]]
    rows = rng.standard_normal((50, 6))
    rows[7] = {"zero": 0 * rows[7], "orthogonal": np.eye(6)[0], "nearly orthogonal": [1, 0, 1e-12, 0, 0, 0]}[vanishing]
    axis = rows.copy()
    # A zero row is the first basis vector, which is orthogonal to this basis too: then the basis' first direction.
    axis[7] = basis[0]
    index = release_index(rows, reduction=basis, rng=3, **contract)
    assert np.array_equal(index.vectors, release_index(axis, reduction=basis, rng=3, **contract).vectors)
    rows[7] = rng.standard_normal(6)
    other = release_index(rows, reduction=basis, rng=3, **contract)
    assert np.array_equal(np.delete(index.vectors, 7, axis=0), np.delete(other.vectors, 7, axis=0))
    assert not np.array_equal(index.vectors[7], other.vectors[7])


@pytest.mark.parametrize("mechanism", ["privunit", "gaussian"])
@pytest.mark.parametrize("centroids", [True, False])
def test_every_finite_collection_index_private(mechanism: str, centroids: bool) -> None:
    """Every finite collection has an index by private pca."""
    contract: dict[str, Any] = {"epsilon": 5, "delta": 1e-6, "components": 2, "reduction": "pca"}
    who = ss.Identity([0, 0, 1, 1, 2], centroids=centroids)
    for rows in (np.zeros((5, 4)), np.eye(5, 4), [[1, 0, 0, 0], [-1, 0, 0, 0], [0, 1, 0, 0], [0, -1, 0, 0], [0] * 4]):
        index = release_index(rows, mechanism=mechanism, adjacency=who, **contract)
        assert np.isfinite(index.vectors).all()
        assert index.is_intact()


def test_ledger_charged_before_noise_not_bad_rows(collection: Array) -> None:
    """A ledger is charged before the noise and not for bad rows."""

    class Book:
        dataset = "faces"
        entries: list[Guarantee]

        def __init__(self, refuse: bool = False) -> None:
            self.entries, self.refuse = [], refuse

        def reserve(self, guarantees: list[Guarantee], **_: object) -> Book:
            self.asked = guarantees
            return self

        def commit(self) -> list[Guarantee]:
            if self.refuse:
                raise ss.ScoreShieldError("no budget")
            self.entries += self.asked
            return self.asked

    book = Book()
    index = release_index(collection, epsilon=3, ledger=book)
    assert book.entries == [index.guarantee]
    with pytest.raises(ss.ScoreShieldError, match="no budget"):
        release_index(collection, epsilon=3, ledger=Book(refuse=True))
    bad = collection.copy()
    bad[-1] = np.nan
    with pytest.raises(ss.InvalidInput, match="Row 39"):
        release_index(bad, epsilon=3, ledger=book)
    with pytest.raises(ss.InvalidInput, match="'ledger'"):
        release_index(collection, epsilon=3, ledger="book")
    assert len(book.entries) == 1


def test_figures_on_real_sentences(shared_data: Path) -> None:
    """The least that one index under pure record replacement must reach on STS-B; one draw each, fixed seed."""
    from scipy.stats import spearmanr

    with np.load(shared_data / "stsb_test_minilm.npz") as file:
        rows, first, second, human = file["emb"], file["i"], file["j"], file["score"]
    for epsilon, least in ((10, 0.44), (20, 0.61), (50, 0.73)):
        index = release_index(rows, epsilon=epsilon, components=pair_components(epsilon, 384), rng=1)
        vectors = index.vectors.astype(np.float64)
        assert spearmanr(np.vecdot(vectors[first], vectors[second]), human)[0] >= least


def test_the_grid_counts_in_the_sensitivity() -> None:
    g = release_index(np.eye(6), **GAUSSIAN).guarantee  # type: ignore[arg-type]
    assert g.grid_sensitivity == pytest.approx(g.sensitivity + g.grid * math.sqrt(6), rel=1e-12)
    assert g.grid_sensitivity > g.sensitivity
