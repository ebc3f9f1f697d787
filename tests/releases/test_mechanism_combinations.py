"""What two options do together: private PCA and identities, releases of more than one chunk, batches of queries."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
from mechanism_registry import ADJACENCIES, BY_NAME, DIMENSION, GROUP, LABELS, RECORDS, ROWS

import scoreshield as ss
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.privacy.noise import GaussianNoise
from scoreshield.privacy.profiles import GaussianProfile
from scoreshield.releases import gram, index_plan, scores

Array = np.ndarray
CHUNK = 1 << 20  # values that get their noise at once
LIMIT = 6.0  # standard deviations: two in a billion for each comparison

# Private PCA and identities.

PCA = {"components": 3, "reduction": "pca", "delta": 1e-6, "epsilon": 6.0, "rng": 1}


def unit(rows: Array) -> Array:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def most_moved_moment(group: int) -> float:
    """The largest change of the second moment that a search over replacements of ``group`` rows finds."""
    rng = np.random.default_rng(8)
    ends = [*np.eye(DIMENSION), *-np.eye(DIMENSION), *unit(rng.standard_normal((20, DIMENSION)))]
    largest = 0.0
    for before, after in itertools.product(ends, ends):
        old, new = np.tile(before, (group, 1)), np.tile(after, (group, 1))
        largest = max(largest, float(np.linalg.norm(old.T @ old - new.T @ new)))
    for _ in range(300):
        old, new = (unit(rng.standard_normal((group, DIMENSION))) for _ in range(2))
        largest = max(largest, float(np.linalg.norm(old.T @ old - new.T @ new)))
    return largest


def most_moved_rows(group: int) -> float:
    """The largest change of ``group`` unit rows: each to its opposite."""
    old = unit(np.random.default_rng(9).standard_normal((group, DIMENSION)))
    return float(np.linalg.norm(old - -old))


def certified(mechanism: str, who: str) -> ss.Guarantee:
    return ss.release_index(ROWS, mechanism=mechanism, adjacency=ADJACENCIES[who], **PCA).guarantee


def moved_rows(who: str) -> int:
    return GROUP if who == "identities" else 1


def check_sensitivities(guarantee: ss.Guarantee, who: str) -> None:
    """What is certified covers the worst neighbours that are found, and is within 0.1 % of them."""
    moment, rows = most_moved_moment(moved_rows(who)), most_moved_rows(moved_rows(who))
    assert moment <= guarantee.details["covariance_sensitivity"] <= 1.001 * moment
    assert rows <= guarantee.sensitivity * (1 + 1e-12) <= 1.001 * rows


def check_profile(guarantee: ss.Guarantee, who: str) -> None:
    """Never below the two mechanisms one after the other, by their closed form, and close to it."""
    told = guarantee.details
    covariance = GaussianProfile(told["covariance_sensitivity"] / told["covariance_std"])

    def delta(epsilon: float) -> float:
        if guarantee.mechanism == "gaussian":
            moved = most_moved_rows(moved_rows(who)) / guarantee.noise.std
            return GaussianProfile(math.hypot(covariance.mu, moved)).delta_at(epsilon)
        pure = told["epsilon_per_record"] * moved_rows(who)
        p = 1 / (1 + math.exp(-pure))
        return p * either(covariance, epsilon - pure) + (1 - p) * either(covariance, epsilon + pure)

    for epsilon in np.linspace(0, guarantee.epsilon, 65):  # where the curve has its knots
        true = delta(float(epsilon))
        assert true * (1 - 1e-9) <= guarantee.delta_at(float(epsilon)) <= 1.05 * true + 1e-12
    assert guarantee.delta_at(guarantee.epsilon) <= guarantee.delta


def either(profile: GaussianProfile, epsilon: float) -> float:
    if epsilon >= 0:
        return profile.delta_at(epsilon)
    return 1 - math.exp(epsilon) * (1 - profile.delta_at(-epsilon))


@pytest.mark.parametrize("mechanism", ["privunit", "gaussian"])
@pytest.mark.parametrize("who", ADJACENCIES)
def test_private_pca_of_identities(mechanism: str, who: str) -> None:
    guarantee = certified(mechanism, who)
    check_sensitivities(guarantee, who)
    check_profile(guarantee, who)


@pytest.mark.parametrize("mechanism", ["privunit", "gaussian"])
def test_a_forgotten_group_is_noticed(mechanism: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group left out of the covariance, of the rows, or of the profile: each by itself."""
    plan = index_plan.IndexPlan
    moment = plan._moment_noise
    monkeypatch.setattr(plan, "_moment_noise", lambda self: moment(dataclasses.replace(self, group=1)))
    with pytest.raises(AssertionError):
        check_sensitivities(certified(mechanism, "identities"), "identities")
    monkeypatch.undo()
    if mechanism == "privunit":
        monkeypatch.setattr(plan, "per_record", property(lambda self: self.epsilon * (1 - self.share)))
        with pytest.raises(AssertionError):
            check_profile(certified(mechanism, "identities"), "identities")
    else:
        rows = index_plan.GaussianRows
        monkeypatch.setattr(index_plan, "GaussianRows", lambda r, _, mu: rows(r, 1, mu))
        with pytest.raises(AssertionError):
            check_sensitivities(certified(mechanism, "identities"), "identities")
    monkeypatch.undo()
    monkeypatch.setattr(plan, "profile", lambda self: GaussianProfile(0.9 * self.mu))
    with pytest.raises(AssertionError):
        check_profile(certified(mechanism, "identities"), "identities")


def test_centroids_count_once_in_a_private_pca() -> None:
    """An identity is one row, however many records it has: replacing all of them moves the moment by sqrt 2."""
    records = certified("privunit", "centroids")
    assert records.shape == (RECORDS // GROUP, 3)
    assert records.details["covariance_sensitivity"] < 1.001 * math.sqrt(2)
    assert len(np.unique(LABELS)) == records.shape[0]


# More values than one chunk holds.


def noise_of(release: Any, clean: Array) -> Array:
    grid = release.guarantee.grid
    return np.asarray((release.noisy - np.rint(clean / grid) * grid).reshape(-1) / grid)


def repeats(values: Array) -> int:
    """How many values of later chunks are those at the same place of the first."""
    return int(
        sum(
            np.count_nonzero(values[start:] == values[: len(values) - start])
            for start in range(CHUNK, len(values), CHUNK)
        )
    )


def correlation(first: Array, second: Array) -> float:
    """In standard deviations of independent values."""
    return float(abs(np.corrcoef(first, second)[0, 1]) * math.sqrt(len(first)))


LONG = CHUNK + 20_000
MANY = np.random.default_rng(21).standard_normal((LONG, 2))
FIRST = np.array([1.0, 0.0])


def clean_scores(rows: Array, query: Array) -> Array:
    return np.clip(_embeddings.compute_scores(rows, np.atleast_2d(query), "unit")[0], -1, 1)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace", "staircase"])
def test_noise_of_a_second_chunk_is_fresh(mechanism: str) -> None:
    delta = {"delta": 1e-6} if mechanism == "gaussian" else {}
    release = ss.release_scores(MANY, FIRST, epsilon=1, mechanism=mechanism, **delta)
    noise = noise_of(release, clean_scores(MANY, FIRST))
    second = noise[CHUNK:]
    # Steps are a 2^26th of the noise: equal values are a matter of a few in ten million.
    assert repeats(noise) < 10
    assert correlation(second, noise[: len(second)]) < LIMIT
    assert correlation(np.abs(second), np.abs(noise[: len(second)])) < LIMIT
    assert abs(np.std(second) / np.std(noise[:CHUNK]) - 1) < 0.1  # and not left out


def test_a_repeated_or_missing_chunk_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    fill = GaussianNoise.fill
    first: list[Array] = []

    def repeated(self: GaussianNoise, stream: Any, step: float, out: Array) -> None:
        if not first:
            fill(self, stream, step, out)
            first.append(out.copy())
        out[:] = first[0][: len(out)]

    monkeypatch.setattr(GaussianNoise, "fill", repeated)
    release = ss.release_scores(MANY, FIRST, epsilon=1, delta=1e-6)
    noise = noise_of(release, clean_scores(MANY, FIRST))
    assert repeats(noise) > 10
    assert correlation(noise[CHUNK:], noise[: len(noise) - CHUNK]) > LIMIT


def test_draws_tables_coins_fresh_beyond_chunks() -> None:
    """Equal clean scores: the draws of any two chunks of 16,384 agree no more often than chance has it."""
    rows = np.tile([[1.0, 0.0]], (5 * 16_384, 1))
    told = np.zeros(len(rows))
    told[ss.release_matches(rows, [0.0, 1.0], 0.1, epsilon=1).candidates] = 1
    drawn = ss.release_scores(rows, [0.0, 1.0], epsilon=1, mechanism=ss.randomised_response(1.0, [0.1])).noisy
    for values in (told, drawn):
        parts = values.reshape(5, -1)
        for one, other in itertools.combinations(parts, 2):
            assert correlation(one, other) < LIMIT
        assert correlation(parts[0], np.where(np.arange(16_384) % 10, parts[1], parts[0])) > LIMIT  # a tenth repeated


@pytest.mark.parametrize("mechanism", ["privunit", "gaussian"])
def test_vectors_of_later_blocks_are_fresh(mechanism: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than 2^20 entries, all rows equal: no two private rows agree."""
    monkeypatch.setattr(index_plan, "_BLOCK_BYTES", 1 << 22)
    rows = np.tile(np.eye(64)[:1], (17_000, 1))
    delta = {"delta": 1e-6} if mechanism == "gaussian" else {}
    vectors = ss.release_index(rows, epsilon=8, mechanism=mechanism, **delta).vectors
    assert vectors.size > CHUNK
    assert len(np.unique(vectors[:, :8], axis=0)) == len(vectors)


def test_a_large_gram_matrix_repeats_no_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gram, "_TILE", 64)
    rows = np.tile([[1.0, 0.0]], (300, 1))
    noisy = ss.release_gram(rows, epsilon=1, delta=1e-6, projection="none").noisy
    above = noisy[np.triu_indices(300, 1)]
    assert len(np.unique(above)) > 0.999 * len(above)


# Batches of queries.


def batch_noise(queries: Array) -> Array:
    rows = np.random.default_rng(4).standard_normal((4000, DIMENSION))
    release = ss.release_scores(rows, queries, epsilon=1, delta=1e-6)
    return np.stack(
        [
            (noisy - clean_scores(rows, query)) / release.guarantee.noise.std
            for noisy, query in zip(release.noisy, queries, strict=True)
        ]
    )


def check_fresh(noise: Array) -> None:
    for one, other in itertools.combinations(noise, 2):
        assert correlation(one, other) < LIMIT
        assert np.count_nonzero(one == other) < 5
        assert np.std(one - other) > 0.5


QUERIES = np.random.default_rng(6).standard_normal((3, DIMENSION))
REPEATED = np.vstack([QUERIES[:1], QUERIES[:1], QUERIES[1:], QUERIES[:1]])


@pytest.mark.parametrize("queries", [QUERIES, REPEATED], ids=["different", "repeated"])
def test_each_query_batch_noise(queries: Array) -> None:
    """Each query of a batch has noise of its own."""
    check_fresh(batch_noise(queries))


@pytest.mark.parametrize("share", [1.0, 0.15])
def test_noise_that_queries_share_is_noticed(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it, or a seventh of its variance."""
    add = scores.add_noise

    def shared(values: Array, law: Any, step: float, stream: Any) -> None:
        common = np.zeros(4000)
        add(common, law, step, stream)
        own = np.zeros(len(values))
        add(own, law, step, stream)
        values += math.sqrt(share) * np.tile(common, len(values) // 4000) + math.sqrt(1 - share) * own

    monkeypatch.setattr(scores, "add_noise", shared)
    for queries in (QUERIES, REPEATED):
        with pytest.raises(AssertionError):
            check_fresh(batch_noise(queries))


#: Mechanisms with few outcomes: two releases may agree by chance, a hundred do not (at most 0.8 of pairs agree).
COARSE = (
    *("randomised-response", "permute-and-flip", "gumbel", "levels", "optimal", "set-response", "codebook"),
    "hit-budget",
)


@pytest.mark.parametrize("name", BY_NAME)
def test_one_release_after_the_other_is_fresh_too(name: str) -> None:
    """Nothing is kept between releases of the same records."""
    entry = BY_NAME[name]
    fields = ("vectors", "candidates", "noisy", "counts", "names", "indices")
    releases = [entry.release() for _ in range(100 if entry.mechanism in COARSE else 2)]
    one, *others = (next(getattr(each, field) for field in fields if hasattr(each, field)) for each in releases)
    assert not all(np.array_equal(one, other) for other in others)
