"""Releases through the public functions: the noise they carry, the sets they land in, how they rank."""

from __future__ import annotations

import math
import pickle
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support import STRICT

import scoreshield as ss
from scoreshield.geometry import denoise as post
from scoreshield.geometry import embeddings
from scoreshield.releases import gram

Array = np.ndarray


def unit(rows: Array) -> Array:
    rows = rows.astype(float)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def errors_of_std(noise: Array, std: float) -> float:
    return abs(float(np.mean(noise**2)) / std**2 - 1) / math.sqrt(2 / noise.size)


def check_noise(noise: Array, std: float) -> None:
    """Accept the stated standard deviation and reject it 5 % off; false alarm 1e-7."""
    assert errors_of_std(noise, std) < STRICT
    assert errors_of_std(noise, 1.05 * std) > STRICT
    assert errors_of_std(noise, std / 1.05) > STRICT


def on_grid(release: ss.Release) -> bool:
    return bool(np.all(np.fmod(release.noisy, release.guarantee.grid) == 0))


def test_scores_carry_exactly_noise_state(rng: np.random.Generator) -> None:
    """Scores carry exactly the noise they state."""
    rows, query = rng.standard_normal((100_000, 4)), rng.standard_normal(4)
    for source in (None, 3):
        release = ss.release_scores(rows, query, epsilon=2, delta=1e-6, rng=source)
        check_noise(release.noisy - unit(rows) @ unit(query), ss.calibrate(2, 1e-6, 2.0))
        assert on_grid(release)
        assert release.noisy.dtype == np.float64
        assert np.array_equal(release.scores, np.clip(release.noisy, -1, 1))


def test_row_carries_more_entry_none(rng: np.random.Generator) -> None:
    """A row carries more and its own entry none."""
    rows = rng.standard_normal((20_000, 4))
    release = ss.release_row(rows, -3, epsilon=2, delta=1e-6, rng=1)
    assert release.index == 19_997
    noise = release.noisy - unit(rows) @ unit(rows)[19_997]
    check_noise(np.delete(noise, 19_997), ss.calibrate(2, 1e-6, 2 * math.sqrt(19_999)))
    assert release.noisy[19_997] == release.scores[19_997] == 1
    assert on_grid(release)


def test_a_gram_matrix_is_drawn_once_and_mirrored(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((700, 4))  # more than one tile, and not a multiple of it
    release = ss.release_gram(rows, epsilon=2, delta=1e-6, projection="none", rng=1)
    sigma = ss.calibrate(2, 1e-6, 2 * math.sqrt(2 * 699))
    noise = release.noisy - unit(rows) @ unit(rows).T
    check_noise(noise[np.triu_indices(700, 1)], sigma / math.sqrt(2))
    assert release.guarantee.scale == pytest.approx(sigma, rel=1e-6)
    assert release.guarantee.noise.std == pytest.approx(sigma / math.sqrt(2), rel=1e-6)
    assert np.array_equal(release.noisy, release.noisy.T)
    assert np.all(release.noisy.diagonal() == 1)
    assert on_grid(release)
    # No entry was drawn twice: all values of the triangle differ.
    assert np.unique(noise[np.triu_indices(700, 1)]).size == 700 * 699 // 2


def test_gram_projected_onto_valid_cosine(rng: np.random.Generator) -> None:
    """Gram is projected onto valid cosine matrices."""
    rows = rng.standard_normal((30, 5))
    release = ss.release_gram(rows, epsilon=10, delta=1e-6, adjacency=ss.GramRadius(1.0), rng=1)
    assert (release.projection, release.denoise) == ("exact", "projection")
    assert release.converged
    assert np.all(release.gram.diagonal() == 1)
    assert np.linalg.eigvalsh(release.gram)[0] > -1e-9
    for name, method in (("exact", "newton"), ("aap", "aap"), ("dykstra", "dykstra")):
        release = ss.release_gram(rows, epsilon=10, delta=1e-6, adjacency=ss.GramRadius(1.0), projection=name, rng=1)
        same = ss.project_elliptope(release.noisy, method)
        assert np.array_equal(release.gram, same.matrix)
        assert (release.converged, release.iterations) == (same.converged, same.iterations)


@pytest.mark.parametrize("denoise", ["none", "projection", "rank", "shrinkage", "identity", "sure"])
def test_denoisers_read_the_noisy_release_alone(denoise: str, rng: np.random.Generator) -> None:
    rows = rng.standard_normal((60, 4))
    contract = {"epsilon": 10, "delta": 1e-6, "adjacency": ss.GramRadius(1.0), "rng": 1}
    release = ss.release_gram(rows, **contract, denoise=denoise)
    plain = ss.release_gram(rows, **contract, projection="none")
    assert np.array_equal(release.noisy, plain.noisy)
    assert release.guarantee == plain.guarantee
    again = post.denoise(
        release.noisy,
        release.guarantee.noise.std,
        denoise,
        rank=4,
        project=lambda matrix: ss.project_elliptope(matrix).matrix,
    )
    assert np.array_equal(release.gram, again.matrix)
    assert release.denoise == again.method
    assert set(release.risks) == (
        set() if denoise != "sure" else {"none", "projection", "rank", "shrinkage", "identity"}
    )
    if denoise != "none":
        clean = unit(rows) @ unit(rows).T
        assert np.mean((release.gram - clean) ** 2) < np.mean((plain.noisy - clean) ** 2)


def test_public_range_enforced_cuts_noise(rng: np.random.Generator) -> None:
    """A public range is enforced and cuts the noise."""
    rows, query = rng.standard_normal((100_000, 2)), rng.standard_normal(2)
    release = ss.release_scores(rows, query, epsilon=2, delta=1e-6, score_range=(0, 0.5), rng=1)
    assert release.guarantee.sensitivity == 0.5
    check_noise(release.noisy - np.clip(unit(rows) @ unit(query), 0, 0.5), ss.calibrate(2, 1e-6, 0.5))
    assert release.scores.min() == 0
    assert release.scores.max() == 0.5


def test_the_range_is_enforced_in_every_regime(rng: np.random.Generator) -> None:
    """At a budget with next to no noise the noisy values are the clamped clean ones."""
    rows = rng.standard_normal((60, 3))
    contract = {"epsilon": 1e9, "delta": 0.5, "score_range": (0, 0.5), "rng": 1}
    cosines = np.clip(unit(rows) @ unit(rows).T, 0, 0.5)
    row = ss.release_row(rows, 4, **contract)
    others = np.arange(60) != 4
    assert row.noisy[others] == pytest.approx(cosines[4][others], abs=0.01)
    assert row.noisy[4] == row.scores[4] == 1  # public, whatever the range
    gram = ss.release_gram(rows, **contract, projection="none")
    off = ~np.eye(60, dtype=bool)
    assert gram.noisy[off] == pytest.approx(cosines[off], abs=0.01)
    assert np.abs(np.clip(unit(rows) @ unit(rows).T, -1, 1)[off] - cosines[off]).max() > 0.3  # the clamp does bite


def test_grid_accounted_every_moved_entry(rng: np.random.Generator) -> None:
    """The grid is accounted for on every moved entry."""
    rows = rng.standard_normal((101, 3))
    contract = {"epsilon": 1, "delta": 1e-6}
    labels = np.arange(101) // 2
    for release, moved in (
        (ss.release_scores(rows, rows[0], **contract), 1),
        (ss.release_scores(rows, rows[:3], **contract), 3),
        (ss.release_scores(rows, rows[0], **contract, adjacency=ss.Identity(labels)), 2),
        (ss.release_row(rows, 0, **contract), 100),
        (ss.release_gram(rows, **contract, projection="none"), 200),
        (ss.release_gram(rows, **contract, projection="none", adjacency=ss.GramRadius(1.0)), 101 * 100),
    ):
        g = release.guarantee
        assert g.grid_sensitivity == g.sensitivity + g.grid * math.sqrt(moved)
        assert g.scale == pytest.approx(ss.calibrate(1, 1e-6, g.grid_sensitivity), rel=1e-12)


def test_scores_above_float_error_clipped_before() -> None:
    """Parallel vectors whose float32 cosine exceeds one must not move further than the sensitivity allows."""
    rng = np.random.default_rng(1)
    query = rng.standard_normal(384).astype(np.float32)
    rows = np.outer(rng.uniform(0.1, 10, 5000), query).astype(np.float32)
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    assert ((rows @ (query / np.linalg.norm(query))) / lengths).max() > 1  # what an index would return
    release = ss.release_scores(rows, query, epsilon=1e9, delta=0.5, rng=1)
    noise_free = np.round(release.noisy, 2)
    assert np.array_equal(noise_free, np.ones(5000))
    clean = embeddings.compute_scores(rows, unit(query)[None], "unit")
    assert clean.max() > 1 >= np.clip(clean, -1, 1).max()


def test_batch_is_calibrated_to_its_spectral_norm(rng: np.random.Generator) -> None:
    rows, queries = rng.standard_normal((30_000, 6)).astype(np.float32), rng.standard_normal((4, 6)) + 1
    release = ss.release_scores(rows, queries, epsilon=2, delta=1e-6, rng=1)
    norm = np.linalg.norm(unit(queries), 2)
    assert release.noisy.shape == (4, 30_000)
    assert release.guarantee.sensitivity == pytest.approx(2 * norm, rel=1e-5)
    slack = (
        2 * math.sqrt(4) * embeddings.bound_rounding_error(6, np.float32)
    )  # float error of single precision is paid for
    assert release.guarantee.sensitivity == pytest.approx(2 * norm + slack, rel=3e-9)
    assert slack > 1e-6
    check_noise(release.noisy - unit(queries) @ unit(rows).T, ss.calibrate(2, 1e-6, 2 * norm))
    alone = ss.release_scores(rows, queries[:1], epsilon=2, delta=1e-6)
    assert alone.noisy.shape == (1, 30_000)
    assert alone.guarantee.sensitivity == 2


def test_identities_cost_root_size_or_nothing(rng: np.random.Generator) -> None:
    """Identities cost the root of their size or nothing as centroids."""
    rows, labels = rng.standard_normal((1000, 5)), np.arange(1000) // 4
    query = rng.standard_normal(5)
    raw = ss.release_scores(rows, query, epsilon=2, delta=1e-6, adjacency=ss.Identity(labels))
    assert raw.guarantee.sensitivity == 4
    assert raw.noisy.shape == (1000,)
    central = ss.release_scores(rows, query, epsilon=2, delta=1e-6, adjacency=ss.Identity(labels, centroids=True))
    assert central.guarantee.sensitivity == 2
    assert central.noisy.shape == (250,)
    gram = ss.release_gram(
        rows[:40], epsilon=2, delta=1e-6, adjacency=ss.Identity(labels[:40], centroids=True), projection="none"
    )
    assert gram.noisy.shape == (10, 10)
    assert gram.guarantee.sensitivity == ss.Replacement().sensitivity("gram", 10).l2
    with pytest.raises(ss.InvalidInput, match="one per record, 40 of them"):
        ss.release_gram(rows[:40], epsilon=2, delta=1e-6, adjacency=ss.Identity(labels))


def test_a_gram_radius_is_calibrated_to_itself(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((200, 4))
    release = ss.release_gram(rows, epsilon=3, delta=1e-6, adjacency=ss.GramRadius(0.5), projection="none", rng=2)
    noise = (release.noisy - unit(rows) @ unit(rows).T)[np.triu_indices(200, 1)]
    check_noise(noise, ss.calibrate(3, 1e-6, 0.5) / math.sqrt(2))
    assert release.guarantee.sensitivity == pytest.approx(0.5, rel=1e-9)


def test_noise_fresh_each_time_repeats_request(collection: Array, query: Array) -> None:
    """Noise is fresh each time and repeats only on request."""
    contract = {"epsilon": 1, "delta": 1e-6}
    assert ss.release_scores(collection, query, **contract) != ss.release_scores(collection, query, **contract)
    for make in (
        lambda rng: ss.release_scores(collection, query, **contract, rng=rng),
        lambda rng: ss.release_row(collection, 1, **contract, rng=rng),
        lambda rng: ss.release_gram(collection, **contract, rng=rng, max_iterations=3),
    ):
        assert make(5) == make(5)
        assert make(5) == make(np.random.default_rng(5))
        assert make(5) != make(6)
        assert make(5).guarantee.sampler == "research"
        assert make(None).guarantee.sampler == "exact"


class TestRanking:
    def release(self, noisy: list[float] | Array, tie_break: int = 0) -> ss.ScoreRelease:
        noisy = np.asarray(noisy, dtype=float)
        guarantee = ss.release_scores(np.eye(3), np.ones(3), epsilon=1, delta=0.1).guarantee
        return ss.ScoreRelease(noisy=noisy, guarantee=guarantee, tie_break=tie_break)

    def test_best_first_on_noisy_values(self) -> None:
        release = self.release([0.2, 5.0, -3.0, 7.0, 1.5])
        assert release.scores.tolist() == [0.2, 1, -1, 1, 1]  # clipped, three tie; ranking still tells them apart
        assert release.top_k(3).tolist() == [3, 1, 4]
        assert release.top_k(99).tolist() == [3, 1, 4, 0, 2]

    def test_threshold_is_inclusive_and_cuts(self) -> None:
        release = self.release([0.2, 5.0, -3.0, 7.0, 1.5])
        assert release.top_k(5, threshold=1.5).tolist() == [3, 1, 4]
        assert release.top_k(2, threshold=1.5).tolist() == [3, 1]
        assert release.top_k(5, threshold=8).tolist() == []

    def test_ties_broken_random_but_consistently(self) -> None:
        """Four records tie for two places; each must be first about a quarter of the time."""
        noisy = [1.0, 2.0, 2.0, 0.5, 2.0, 2.0]
        firsts = [int(self.release(noisy, seed).top_k(2)[0]) for seed in range(4000)]
        counts = np.bincount(firsts, minlength=6)
        assert counts[[0, 3]].sum() == 0
        assert np.abs(counts[[1, 2, 4, 5]] - 1000).max() < STRICT * math.sqrt(750)
        by_index = np.bincount([1] * 4000, minlength=6)  # near miss: always the smallest index
        assert np.abs(by_index[[1, 2, 4, 5]] - 1000).max() > STRICT * math.sqrt(750)
        for seed in range(50):
            release = self.release(noisy, seed)
            everything = release.top_k(6).tolist()
            assert all(release.top_k(k).tolist() == everything[:k] for k in range(1, 7))
            assert release.top_k(4, threshold=1.5).tolist() == everything[:4]

    def test_each_release_random_order(self) -> None:
        """Each release has a random order of its own."""
        seen = {ss.release_scores(np.eye(3), np.ones(3), epsilon=1, delta=0.1).tie_break for _ in range(20)}
        assert len(seen) == 20

    def test_batch_gives_a_row_a_query_padded(self) -> None:
        release = self.release([[0.1, 0.9, 0.5], [0.3, 0.2, 0.1]])
        assert release.top_k(2).tolist() == [[1, 2], [0, 1]]
        assert release.top_k(3, threshold=0.25).tolist() == [[1, 2], [0, -1]]

    @given(st.lists(st.integers(-5, 5), min_size=1, max_size=30), st.integers(1, 40), st.integers(-6, 6))
    def test_agrees_with_a_full_sort(self, values: list[int], k: int, threshold: int) -> None:
        release = self.release(values)
        chosen = release.top_k(k, threshold=threshold)
        eligible = [v for v in values if v >= threshold]
        assert [values[i] for i in chosen] == sorted(eligible, reverse=True)[:k]
        assert len(set(chosen.tolist())) == len(chosen)

    @pytest.mark.parametrize("arguments", [(0,), (-1,), (1.5,), ("3",), (1, math.nan), (1, "0")])
    def test_bad_questions(self, arguments: tuple[object, ...]) -> None:
        with pytest.raises(ss.InvalidInput):
            self.release([1.0]).top_k(*arguments)  # type: ignore[arg-type]


@given(
    st.integers(1, 30),
    st.integers(1, 12),
    st.sampled_from(["f4", "f8", "f2"]),
    st.booleans(),
    st.floats(1e-3, 1e3),
    st.floats(1e-12, 0.1),
    st.integers(0, 2**32 - 1),
)
def test_any_reasonable_release_holds_together(
    n: int, d: int, dtype: str, transposed: bool, epsilon: float, delta: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((d, n)).astype(dtype).T if transposed else rng.standard_normal((n, d)).astype(dtype)
    assume(bool(np.all(np.abs(rows).max(axis=1) > 0)))
    contract = {"epsilon": epsilon, "delta": delta, "rng": seed}
    releases: list[ss.Release] = [ss.release_scores(rows, rng.standard_normal(d), **contract)]
    if n > 1:
        releases.append(ss.release_row(rows, n - 1, **contract))
        releases.append(ss.release_gram(rows, **contract, max_iterations=2))
    for release in releases:
        guarantee = release.guarantee
        assert on_grid(release)
        assert np.isfinite(release.noisy).all()
        assert guarantee.delta_at(epsilon) <= delta
        assert guarantee.scale / 2**46 <= guarantee.grid
        assert guarantee.shape == release.noisy.shape
        assert guarantee.grid_sensitivity > guarantee.sensitivity
        assert not release.noisy.flags.writeable
        assert 0.5 <= guarantee.attack_auc <= 1


def test_duplicates_get_noise_of_their_own() -> None:
    rows = np.tile(np.array([[0.6, 0.8]]), (100, 1))
    release = ss.release_scores(rows, np.array([1.0, 0.0]), epsilon=1, delta=1e-6)
    assert np.unique(release.noisy).size == 100


def test_one_record_and_one_dimension() -> None:
    one = ss.release_scores(np.array([[2.0]]), np.array([-3.0]), epsilon=1e6, delta=0.1, rng=0)
    assert one.noisy == pytest.approx([-1], abs=0.1)
    line = ss.release_gram(np.array([[2.0], [-1.0], [5.0]]), epsilon=1e6, delta=0.1, rng=0)
    assert line.gram == pytest.approx(np.array([[1, -1, 1], [-1, 1, -1], [1, -1, 1]]), abs=0.1)


def test_nothing_of_a_release_can_be_changed(collection: Array, query: Array) -> None:
    release = ss.release_scores(collection, query, epsilon=1, delta=1e-6)
    with pytest.raises(ValueError, match="read-only"):
        release.noisy[0] = 0
    assert release.noisy.base is None or not release.noisy.base.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        pickle.loads(pickle.dumps(release)).noisy[0] = 0
    assert pickle.loads(pickle.dumps(release)) == release
    with pytest.raises(AttributeError):
        release.noisy = np.zeros(3)  # type: ignore[misc]
    with pytest.raises(AttributeError):
        release.guarantee.epsilon = 0.1  # type: ignore[misc]


def test_no_clean_score_is_kept_or_shown(collection: Array, query: Array) -> None:
    """Nothing a release holds, prints or pickles is a clean score, rounded to the grid or not."""
    release = ss.release_scores(collection, query, epsilon=1, delta=1e-6)
    clean = unit(collection) @ unit(query)
    held = [value for value in vars(release).values() if isinstance(value, np.ndarray)]
    assert len(held) == 1
    content = pickle.dumps(release) + repr(release).encode() + str(release.guarantee).encode()
    for score in clean:
        for form in (score, np.float32(score), np.rint(score / release.guarantee.grid) * release.guarantee.grid):
            assert np.float64(form).tobytes() not in content
            assert f"{float(form):.6f}".encode() not in content
    assert np.abs(np.sort(held[0]) - np.sort(clean)).min() > 1e-7


@pytest.mark.parametrize("position", [40, -41, 1.0, True, "1", None])
def test_a_row_that_is_not_there(collection: np.ndarray, position: object) -> None:
    with pytest.raises(ss.InvalidInput):
        ss.release_row(collection, position, epsilon=1, delta=1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize("position", [0, 39, -1, -40, np.int64(3)])
def test_the_ends_of_the_rows(collection: np.ndarray, position: int) -> None:
    assert len(ss.release_row(collection, position, epsilon=1, delta=1e-6).scores) == 40


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("dimension", [1, 8, 1000])
def test_error_computed_score_within_bound(kind: type, dimension: int, rng: np.random.Generator) -> None:
    """A cosine from rows of this type against fractions, and a bound that is not vacuous."""
    bound = embeddings.bound_rounding_error(dimension, np.dtype(kind))
    # Two inner products with one rounding per term each are part of any proof.
    assert dimension * float(np.finfo(kind).eps) < bound <= (dimension + 6) * float(np.finfo(kind).eps)
    for _ in range(3):
        a, b = rng.standard_normal((2, dimension)).astype(kind)
        found = float((a / np.sqrt(a @ a)) @ (b / np.sqrt(b @ b)))
        one, other = ([Fraction(float(value)) for value in each] for each in (a, b))
        dot = sum(x * y for x, y in zip(one, other, strict=True))
        lengths = float(sum(x * x for x in one)) * float(sum(y * y for y in other))
        assert abs(found - float(dot) / math.sqrt(lengths)) <= bound


def test_projection_converged_if_each_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A projection has converged if each of its parts has."""
    ends = [SimpleNamespace(iterations=3, residual=0.5, converged=False, matrix="first", factor=None)]
    ends.append(SimpleNamespace(iterations=4, residual=0.1, converged=True, matrix="second", factor=None))
    monkeypatch.setattr(gram, "project_array", lambda *_, **__: ends.pop(0))
    projector = gram._Projector("nearest", None, None)
    assert projector.converged
    assert [projector(np.eye(2)), projector(np.eye(2))] == ["first", "second"]
    assert (projector.iterations, projector.residual, projector.converged) == (7, 0.5, False)
