"""Clean cosines: right against double precision, for every layout, and each from its own row alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import scoreshield as ss
from scoreshield import embeddings

Array = np.ndarray


def reference(rows: Array, queries: Array) -> Array:
    """Cosines in extended precision, each row scaled to its largest entry first."""
    a, b = (x.astype(np.longdouble) for x in (rows, queries))
    a, b = a / np.abs(a).max(axis=1, keepdims=True), b / np.abs(b).max(axis=1, keepdims=True)
    a /= np.sqrt((a * a).sum(axis=1, keepdims=True))
    b /= np.sqrt((b * b).sum(axis=1, keepdims=True))
    return (b @ a.T).astype(float)


def cosines(rows: Array, query: Array, norm: str = "unit") -> Array:
    checked = embeddings.as_rows(rows, "test")
    queries, _ = embeddings.as_queries(query, checked.shape[1], "test")
    return embeddings.scores(checked, queries, norm, "test")


@given(
    st.integers(1, 40),
    st.integers(1, 30),
    st.integers(1, 4),
    st.sampled_from(["f2", "f4", "f8", "i4", "u1"]),
    st.sampled_from(["C", "F", "every other row", "every other column", "backwards"]),
    st.integers(0, 2**32 - 1),
)
def test_right_for_every_shape_type_and_layout(n: int, d: int, m: int, dtype: str, layout: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = (rng.standard_normal((2 * n, 2 * d)) * 20 + 60).astype(dtype)
    rows = {
        "C": lambda x: np.ascontiguousarray(x[:n, :d]),
        "F": lambda x: np.asfortranarray(x[:n, :d]),
        "every other row": lambda x: x[::2, :d],
        "every other column": lambda x: x[:n, ::2],
        "backwards": lambda x: x[n - 1 :: -1, d - 1 :: -1],
    }[layout](rows)
    queries = rng.standard_normal((m, d))
    before = rows.copy()
    exact = reference(rows, queries)
    precision = np.float64 if dtype in ("f8", "i4", "u1") else np.float32
    bound = embeddings.rounding_error(d, precision)
    assert np.abs(cosines(rows, queries) - exact).max() <= bound
    assert np.array_equal(rows, before)


def test_rounding_bound_is_not_idle(rng: np.random.Generator) -> None:
    """Near miss: float32 cosines do break the bound for float64, so the test above can fail."""
    rows, queries = rng.standard_normal((50, 200)).astype(np.float32), rng.standard_normal((3, 200))
    error = np.abs(cosines(rows, queries) - reference(rows, queries)).max()
    assert embeddings.rounding_error(200, np.float64) < error < embeddings.rounding_error(200, np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_huge_and_tiny_rows(dtype: type, rng: np.random.Generator) -> None:
    rows = rng.standard_normal((9, 6)).astype(dtype)
    limits = np.finfo(dtype)
    scales = [limits.max / 8, limits.tiny * 8, limits.smallest_subnormal * 64, 1, 1e-12, 1e12, 1e18, 1e-18, 1]
    with np.errstate(all="ignore"):
        rows = (rows * np.array(scales, dtype=dtype)[:, None]).astype(dtype)
    query = rng.standard_normal((2, 6))
    assert np.abs(cosines(rows, query) - reference(rows, query)).max() < 1e-5


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("norm", ["unit", "ball"])
def test_a_score_depends_on_its_own_row_alone(m: int, norm: str, dtype: type, rng: np.random.Generator) -> None:
    """Bit for bit: whatever one record is replaced by, no other record's clean score changes."""
    rows = rng.standard_normal((3000, 96)).astype(dtype)
    rows[7] *= 1e-17  # a row that takes the careful path in any case
    query = rng.standard_normal((m, 96))
    before = cosines(rows, query, norm)
    largest = np.finfo(dtype).max / 16
    for other in (np.ones(96), np.full(96, 1e-20), np.full(96, largest), np.eye(96)[0] * 1e-30, -rows[11]):
        changed = rows.copy()
        changed[11] = other
        after = cosines(changed, query, norm)
        assert np.array_equal(np.delete(after, 11, axis=1), np.delete(before, 11, axis=1))
    moved = rows.copy()
    moved[12] = rows[13]
    assert not np.array_equal(np.delete(cosines(moved, query, norm), 11, axis=1), np.delete(before, 11, axis=1))


@pytest.mark.parametrize(("n", "d"), [(2, 3), (17, 1), (300, 24), (701, 64)])
def test_a_pairwise_score_depends_on_its_two_rows_alone(n: int, d: int, rng: np.random.Generator) -> None:
    rows = rng.standard_normal((n, d))
    before = embeddings.gram(rows, "test")
    assert np.array_equal(before, before.T)
    keep = np.arange(n) != n // 2
    for other in (np.full(d, 1e-200), np.full(d, 1e200), -rows[0]):
        rows[n // 2] = other
        after = embeddings.gram(rows, "test")
        assert np.array_equal(after[np.ix_(keep, keep)], before[np.ix_(keep, keep)])


def test_a_list_has_one_precision_whatever_one_record_is(rng: np.random.Generator) -> None:
    rows = list(rng.standard_normal((40, 8)).astype(np.float32))
    before = cosines(rows, np.ones((1, 8)))
    rows[3] = rng.standard_normal(8)  # a float64 record among float32 ones
    after = cosines(rows, np.ones((1, 8)))
    assert np.array_equal(np.delete(after, 3, axis=1), np.delete(before, 3, axis=1))


def test_ball_keeps_short_rows_short() -> None:
    rows = np.array([[0.3, 0.0], [0.0, 0.0], [3.0, 4.0], [1e-30, 0.0], [1e300, 0.0]])
    assert cosines(rows, np.array([[1.0, 0.0]]), "ball")[0] == pytest.approx([0.3, 0, 0.6, 1e-30, 1])


def test_centroids_are_directions_of_means_in_sorted_order(rng: np.random.Generator) -> None:
    rows, labels = rng.standard_normal((7, 3)), np.array(list("bcabbca"))
    means = embeddings.centroids(rows, labels, "test")
    for place, label in enumerate("abc"):
        chosen = rows[labels == label]
        mean = (chosen / np.linalg.norm(chosen, axis=1, keepdims=True)).mean(axis=0)
        assert means[place] == pytest.approx(mean / np.linalg.norm(mean))


def test_centroids_that_cancel_are_refused() -> None:
    with pytest.raises(ss.InvalidInput, match=r"identity number 1 .* cancel out"):
        embeddings.centroids(np.array([[1.0, 0], [0, 1], [0, -1]]), np.array([0, 1, 1]), "test")
