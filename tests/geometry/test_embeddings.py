"""Clean cosines: right against double precision, for every layout, and each from its own row alone."""

from __future__ import annotations

from collections import UserList, deque
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import scoreshield as ss
from scoreshield.geometry import embeddings

Array = np.ndarray


def reference(rows: Array, queries: Array) -> Array:
    """Cosines in extended precision, each row scaled to its largest entry first."""
    a, b = (x.astype(np.longdouble) for x in (rows, queries))
    a, b = a / np.abs(a).max(axis=1, keepdims=True), b / np.abs(b).max(axis=1, keepdims=True)
    a /= np.sqrt((a * a).sum(axis=1, keepdims=True))
    b /= np.sqrt((b * b).sum(axis=1, keepdims=True))
    return (b @ a.T).astype(float)


def cosines(rows: Array, query: Array, norm: str = "unit") -> Array:
    checked = embeddings.as_rows(rows)
    queries, _ = embeddings.as_queries(query, checked.shape[1])
    return embeddings.compute_scores(checked, queries, norm)


@given(
    st.integers(1, 40),
    st.integers(1, 30),
    st.integers(1, 4),
    st.sampled_from(["f2", "f4", "f8", "i4", "u1"]),
    st.sampled_from(["C", "F", "every other row", "every other column", "backwards"]),
    st.integers(0, 2**32 - 1),
)
def test_shapes_types_layouts(n: int, d: int, m: int, dtype: str, layout: str, seed: int) -> None:
    """Scores are right for every shape, type and memory layout."""
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
    bound = embeddings.bound_rounding_error(d, precision)
    assert np.abs(cosines(rows, queries) - exact).max() <= bound
    assert np.array_equal(rows, before)


def test_rounding_bound_is_not_idle(rng: np.random.Generator) -> None:
    """Near miss: float32 cosines do break the bound for float64, so the test above can fail."""
    rows, queries = rng.standard_normal((50, 200)).astype(np.float32), rng.standard_normal((3, 200))
    error = np.abs(cosines(rows, queries) - reference(rows, queries)).max()
    assert embeddings.bound_rounding_error(200, np.float64) < error < embeddings.bound_rounding_error(200, np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_huge_and_tiny_rows(dtype: type, rng: np.random.Generator) -> None:
    """Huge and tiny rows have the right scores."""
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
def test_score_depends_own_row_alone(m: int, norm: str, dtype: type, rng: np.random.Generator) -> None:
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


def pairwise(rows: np.ndarray) -> np.ndarray:
    """Compute the clean cosines of all pairs, on and above the diagonal."""
    return np.triu(embeddings.compute_upper_gram(rows, (-1.0, 1.0)))


@pytest.mark.parametrize(("n", "d"), [(2, 3), (17, 1), (300, 24), (701, 64)])
def test_pairwise_score_depends_two_rows(n: int, d: int, rng: np.random.Generator) -> None:
    """A pairwise score depends on its two rows alone."""
    rows = rng.standard_normal((n, d))
    before = pairwise(rows)
    keep = np.arange(n) != n // 2
    for other in (np.full(d, 1e-200), np.full(d, 1e200), -rows[0]):
        rows[n // 2] = other
        after = pairwise(rows)
        assert np.array_equal(after[np.ix_(keep, keep)], before[np.ix_(keep, keep)])


@pytest.mark.parametrize("n", [1, 5, 256, 257, 600])
def test_pairwise_scores_are_the_products(n: int, rng: np.random.Generator) -> None:
    """Every pair on and above the diagonal has its cosine, clamped to the range."""
    rows = rng.standard_normal((n, 7))
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert pairwise(rows) == pytest.approx(np.triu(unit @ unit.T), abs=1e-14)
    clamped = np.triu(embeddings.compute_upper_gram(rows, (-0.2, 0.4)))
    assert clamped == pytest.approx(np.triu(np.clip(unit @ unit.T, -0.2, 0.4)), abs=1e-14)


class Rows(Sequence[Array]):
    """A sequence of somebody's own: it has a length and items, and no dtype."""

    def __init__(self, rows: list[Array]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: Any) -> Any:
        return self._rows[place]


class Block:
    """An array of somebody's own: it says its dtype, as those of PyTorch and pandas do."""

    def __init__(self, rows: list[Array]) -> None:
        self._rows = np.array(rows, dtype=np.float32)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return np.array(self._rows, dtype=dtype, copy=copy)


SEQUENCES: dict[str, Callable[[list[Array]], Any]] = {
    "list": list,
    "tuple": tuple,
    "deque": deque,
    "UserList": UserList,
    "own sequence": Rows,
    "list of lists": lambda rows: [list(row) for row in rows],
    "deque of tuples": lambda rows: deque(tuple(row) for row in rows),
}


@pytest.mark.parametrize("kind", SEQUENCES)
def test_sequence_precision(kind: str, rng: np.random.Generator) -> None:
    """A sequence has one precision, which no single record changes."""
    rows = list(rng.standard_normal((300, 8)).astype(np.float32))
    query = rng.standard_normal((1, 8))
    before = cosines(SEQUENCES[kind](rows), query)
    rows[3] = rng.standard_normal(8)  # a float64 record among float32 ones
    after = cosines(SEQUENCES[kind](rows), query)
    assert np.array_equal(np.delete(after, 3, axis=1), np.delete(before, 3, axis=1))
    # The check would see another precision: it moves most scores.
    single = cosines(np.array(rows, dtype=np.float32), query)
    assert (np.delete(single, 3, axis=1) != np.delete(before, 3, axis=1)).mean() > 0.5


def test_array_keeps_dtype(rng: np.random.Generator, tmp_path: Path) -> None:
    """An array keeps its own number type."""
    rows = rng.standard_normal((6, 4)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    for given_ in (rows, Block(list(rows)), memoryview(rows), mapped):
        assert embeddings.as_rows(given_).dtype == np.float32
    for given_ in (rows.astype(np.float64), memoryview(rows.astype(np.float64)), rows.astype(np.int64)):
        assert embeddings.as_rows(given_).dtype == np.float64


@pytest.mark.parametrize("library", ["torch", "pandas"])
def test_tensors_and_frames_keep_dtype(library: str, rng: np.random.Generator) -> None:
    """Tensors and data frames keep their own number type."""
    module = pytest.importorskip(library)
    rows = rng.standard_normal((6, 4)).astype(np.float32)
    given_ = module.from_numpy(rows) if library == "torch" else module.DataFrame(rows)
    assert embeddings.as_rows(given_).dtype == np.float32


def test_ball_keeps_short_rows_short() -> None:
    """Ball keeps short rows short."""
    rows = np.array([[0.3, 0.0], [0.0, 0.0], [3.0, 4.0], [1e-30, 0.0], [1e300, 0.0]])
    assert cosines(rows, np.array([[1.0, 0.0]]), "ball")[0] == pytest.approx([0.3, 0, 0.6, 1e-30, 1])


def test_centroids_directions_means_sorted(rng: np.random.Generator) -> None:
    """Centroids are directions of means in sorted order."""
    rows, labels = rng.standard_normal((7, 3)), np.array(list("bcabbca"))
    means = embeddings.compute_centroids(rows, labels)
    for place, label in enumerate("abc"):
        chosen = rows[labels == label]
        mean = (chosen / np.linalg.norm(chosen, axis=1, keepdims=True)).mean(axis=0)
        assert means[place] == pytest.approx(mean / np.linalg.norm(mean))


def test_centroid_of_cancelling_rows() -> None:
    """Rows that cancel out have the first basis vector as centroid."""
    rows = np.array([[0.0, 1], [0, 1], [0, -1], [0.6, 0.8], [-0.6, -0.8]])
    means = embeddings.compute_centroids(rows, np.array([0, 1, 1, 2, 2]))
    assert np.array_equal(means, [[0, 1], [1, 0], [1, 0]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [1, 3])
def test_every_finite_row_has_a_score(m: int, dtype: type, rng: np.random.Generator) -> None:
    """A zero row has the scores of the first basis vector, and no other score knows of it."""
    rows = rng.standard_normal((3000, 24)).astype(dtype)
    query = rng.standard_normal((m, 24))
    before, pairs = cosines(rows, query), pairwise(rows[:40])
    axis = rows.copy()
    axis[11] = np.eye(24)[0]
    rows[11] = 0
    after = cosines(rows, query)
    assert after[:, 11] == pytest.approx(query[:, 0] / np.linalg.norm(query, axis=1), abs=1e-6)
    assert np.abs(after - cosines(axis, query)).max() < 1e-6
    assert np.array_equal(np.delete(after, 11, axis=1), np.delete(before, 11, axis=1))
    assert np.array_equal(cosines(rows, query, "ball")[:, 11], np.zeros(m))
    keep = np.arange(40) != 11
    assert np.array_equal(pairwise(rows[:40]), pairwise(axis[:40]))
    assert np.array_equal(pairwise(rows[:40])[np.ix_(keep, keep)], pairs[np.ix_(keep, keep)])
    assert np.array_equal(embeddings.normalise_rows(rows)[11], np.eye(24)[0])


def test_centroid_depends_own_identity_alone(rng: np.random.Generator) -> None:
    """A centroid depends on its own identity alone."""
    rows, labels = rng.standard_normal((900, 16)), rng.integers(0, 200, 900)
    before = embeddings.compute_centroids(rows, labels)
    own = labels == labels[7]
    for other in (0 * rows[own], 1e200 * rows[own], -rows[own], np.resize([1.0, -1.0], (own.sum(), 1)) * rows[7]):
        changed = rows.copy()
        changed[own] = other
        after = embeddings.compute_centroids(changed, labels)
        assert np.abs(np.linalg.norm(after, axis=1) - 1).max() < 1e-12
        assert np.array_equal(np.delete(after, labels[7], axis=0), np.delete(before, labels[7], axis=0))
        assert not np.array_equal(after[labels[7]], before[labels[7]])


def test_a_public_zero_is_an_error() -> None:
    """A public zero is an error."""
    with pytest.raises(ss.InvalidInput, match="Row 1 of 'query' is zero and has no direction"):
        cosines(np.eye(3), np.array([[1.0, 0, 0], [0, 0, 0]]))


@pytest.mark.parametrize("odd", [2**70, -(2**70), Fraction(1, 3), True, np.longdouble(0.5), np.float32(0.1), 5e-324])
@pytest.mark.parametrize("wrap", [list, tuple, deque])
def test_real_numbers_in_sequences(odd: Any, wrap: Any) -> None:
    """Whether a collection is taken must not depend on the number type of one record."""
    others = [[0.6, 0.8], [1.0, 0.0]]
    with_odd = embeddings.as_rows(wrap([*others, [odd, 1.0]]))
    without = embeddings.as_rows(wrap([*others, [0.5, 1.0]]))
    assert with_odd.dtype == without.dtype == np.float64
    assert np.array_equal(with_odd[:2], without[:2])
    assert with_odd[2, 0] == float(odd)


@pytest.mark.parametrize("bad", ["0.5", 1j, None, 10**400, [1.0]])
def test_what_is_no_double_is_rejected(bad: Any) -> None:
    """Values that are no doubles raise an error."""
    with pytest.raises(ss.InvalidInput, match="embeddings"):
        embeddings.as_rows([[1.0, 0.0], [bad, 1.0]])


@pytest.mark.parametrize("norm", ["unit", "ball"])
@pytest.mark.parametrize("odd", [5e-324, 1e-310, 1e-200, 1e200, 1.7e308, 0.0])
def test_raising_float_flags(norm: str, odd: float) -> None:
    """Floating point flags that raise change nothing."""
    rows = np.array([[0.6, 0.8], [odd, odd / 3], [1.0, 0.0]])
    calm = embeddings.compute_scores(rows, np.array([[1.0, 0.0]]), norm)
    with np.errstate(all="raise"):
        assert np.array_equal(embeddings.compute_scores(rows, np.array([[1.0, 0.0]]), norm), calm)
        assert np.isfinite(embeddings.normalise_rows(rows)).all()
        assert np.isfinite(embeddings.compute_centroids(rows, np.array([0, 0, 1]))).all()


def test_vanishing_identity_is_local() -> None:
    """Records that nearly cancel out, beside an identity whose sum is as long or as short as it can be."""
    labels = np.array([0, 0, 1, 1, 1, 1])
    for tilt in (0.5e-9, 0.9e-9, 1.1e-9, 2e-9, 3.9e-9, 1e-8):
        nearly = np.array([[0.0, 1.0, tilt], [0.0, -1.0, 0.0]])
        found = {
            embeddings.compute_centroids(np.vstack([nearly, others]), labels)[0].tobytes()
            for others in (np.tile([0.0, 0.0, 1.0], (4, 1)), np.eye(4, 3), np.array([[1.0, 0, 0], [-1, 0, 0]] * 2))
        }
        assert len(found) == 1
    # The same for rows that a public basis nearly maps to zero.
    alone = embeddings.normalise_directions(np.array([[2e-9, 0.0]]))
    assert np.array_equal(embeddings.normalise_directions(np.array([[2e-9, 0.0], [5.0, 0.0]]))[:1], alone)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_that_fit_are_not_copied(dtype: type) -> None:
    """Rows that fit are not copied."""
    rows = np.eye(3, dtype=dtype)
    assert embeddings.as_rows(rows) is rows
    assert np.shares_memory(embeddings.as_rows(memoryview(rows)), rows)


@pytest.mark.parametrize(
    "rows",
    [
        np.ones(3),
        np.ones((1, 2, 3)),
        np.ones((0, 3)),
        np.ones((3, 0)),
        np.float64(1.0),
        np.ones((2, 2), dtype=np.longdouble),
        np.ones((2, 2), dtype=bool),
        np.ones((2, 2), dtype=complex),
        np.array([["a", "b"]]),
        np.array([[None, 1.0]], dtype=object),
        np.zeros((2, 2), dtype="M8[s]"),
        [[1.0, 2.0], [3.0]],
        [[]],
        "rows",
    ],
)
def test_rows_that_are_none(rows: Any) -> None:
    """Values that are no rows raise an error."""
    with pytest.raises(ss.InvalidInput, match="'embeddings'"):
        embeddings.as_rows(rows)
    with pytest.raises(ss.InvalidInput, match="'others'"):
        embeddings.as_rows(rows, "others")


def test_object_arrays() -> None:
    """An array has a type of its own: objects are rejected, where a list of the same numbers is taken."""
    assert embeddings.as_rows([[1, 2**70]]).tolist() == [[1.0, 2.0**70]]
    with pytest.raises(ss.InvalidInput):
        embeddings.as_rows(np.array([[1, 2**70]], dtype=object))


@pytest.mark.parametrize("name", ["__array__", "__array_interface__", "__array_struct__"])
def test_each_way_to_be_an_array(name: str) -> None:
    """Every array interface of NumPy counts as an array."""

    class Given:
        """It has this attribute, and no other."""

    assert not embeddings.has_own_dtype(Given())
    setattr(Given, name, None)
    assert embeddings.has_own_dtype(Given())
    assert embeddings.has_own_dtype(bytearray(4))
    assert not embeddings.has_own_dtype([1.0])


@pytest.mark.parametrize(
    "query", [np.ones(2), np.ones((2, 2)), np.ones((0, 3)), np.ones((1, 1, 3)), np.float64(1.0), [True] * 3, ["a"] * 3]
)
def test_queries_that_are_none(query: Any) -> None:
    """Values that are no queries raise an error."""
    with pytest.raises(ss.InvalidInput, match="'query'"):
        embeddings.as_queries(query, 3)


def test_queries_become_unit_rows() -> None:
    """Queries become unit rows."""
    for query, single in (([3, 0, 4], True), ([[3.0, 0.0, 4.0]], False), (np.array([3, 0, 4], dtype=np.uint8), True)):
        rows, one = embeddings.as_queries(query, 3)
        assert rows == pytest.approx(np.array([[0.6, 0.0, 0.8]]))
        assert rows.dtype == np.float64
        assert one is single
    for bad, row in (([np.nan, 0, 1], 0), ([[1, 0, 0], [0, np.inf, 0]], 1)):
        with pytest.raises(ss.InvalidInput, match=f"Row {row} of 'query' holds"):
            embeddings.as_queries(bad, 3)


def test_the_bound_on_rounding() -> None:
    """(2 d + 8) u, with u half of the type's epsilon."""
    assert embeddings.bound_rounding_error(5, np.float64) == 18 * 2.0**-53
    assert embeddings.bound_rounding_error(1000, np.float32) == 2008 * 2.0**-24


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 1, 4, 6])
def test_a_bad_row_is_named(bad: float, row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its number in the collection, whichever block it is in."""
    rows = np.ones((7, 3))
    monkeypatch.setattr(embeddings, "_BLOCK_BYTES", 2 * 3 * 8)
    embeddings.check_finite(rows)
    rows[row, 2] = bad
    for check in (
        lambda: embeddings.check_finite(rows),
        lambda: embeddings.normalise_rows(rows),
        lambda: embeddings.compute_scores(rows, np.eye(3), "unit"),
        lambda: embeddings.compute_scores(rows, np.eye(3), "ball"),
        lambda: pairwise(rows),
        lambda: embeddings.compute_centroids(rows, np.zeros(7)),
    ):
        with pytest.raises(ss.InvalidInput, match=f"Row {row} of 'embeddings'"):
            check()
    with pytest.raises(ss.InvalidInput, match=f"Row {row} of 'others'"):
        embeddings.check_finite(rows, "others")
    with pytest.raises(ss.InvalidInput, match=f"Row {row + 100} of 'others'"):
        embeddings.normalise_rows(rows, "others", first=100)
    rows[6] = bad  # the first of two is named
    with pytest.raises(ss.InvalidInput, match=f"Row {row} "):
        embeddings.check_finite(rows)


@pytest.mark.parametrize("block", [1, 24, 48, 71, 72, 10**6])
def test_blocks_change_no_score(block: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks change no score."""
    rows, queries = rng.standard_normal((7, 3)), rng.standard_normal((2, 3))
    rows[3] = 0
    monkeypatch.setattr(embeddings, "_BLOCK_BYTES", block)
    rows[5] *= 1e-200
    exact = reference(np.where(np.arange(7)[:, None] == 3, [1.0, 0, 0], rows), queries)
    assert np.abs(cosines(rows, queries) - exact).max() < 1e-15
    embeddings.check_finite(rows)


def test_no_flag_for_distant_entries() -> None:
    """A small entry beside a large one vanishes without a word, whatever the caller has set for NumPy."""
    rows = np.array([[1e300, 1e-300], [1e-160, 1e-300], [1.0, 1e-170]])
    with np.errstate(all="raise"):
        assert embeddings.normalise_rows(rows) == pytest.approx(np.eye(2)[[0, 0, 0]])
        assert embeddings.compute_scores(rows, np.eye(2), "unit")[0] == pytest.approx([1, 1, 1])
        assert embeddings.compute_scores(rows, np.eye(2), "ball")[0] == pytest.approx([1, 0, 1])
        assert embeddings.normalise_rows(np.array([[1.0, 1.0, 1e-310]]))[0, :2] == pytest.approx([0.5**0.5] * 2)
        # Too large for a double: infinite, which the check of the rows will say.
        assert np.isinf(embeddings.as_rows([[np.longdouble("1e400"), 1.0]])[0, 0])
        assert embeddings.normalise_directions(rows[[2, 1]]).tolist() == [[1.0, 1e-170], [1.0, 0.0]]
        assert embeddings.compute_centroids(rows, np.array([0, 0, 1])) == pytest.approx(np.eye(2)[[0, 0]])


def test_what_vanishes() -> None:
    """A sum of unit rows that is shorter than 1e-9 has no direction of its own."""
    rows = np.array([[0.0, 2e-9], [0.0, 0.5e-9], [3.0, 4.0], [0.0, -5.0]])
    found = embeddings.normalise_directions(rows)
    assert found is rows
    assert found == pytest.approx(np.array([[0, 1], [1, 0], [0.6, 0.8], [0, -1]]))


def test_lengths_of_a_ball() -> None:
    """Rows of at most length one stay; longer ones are cut to it: on the fast path and on the careful one."""
    rows = np.array(
        [
            [0.5, 0.0],
            [1.0, 0.0],
            [1.5, 0.0],
            [1e-130, 0.0],
            [1e130, 0.0],
            [0.0, 0.0],
            [0.6e-130, 0.8e-130],
            [3e130, 4e130],
        ]
    )
    wanted = [0.5, 1.0, 1.0, 1e-130, 1.0, 0.0, 0.6e-130, 0.6]
    found = embeddings.compute_scores(rows, np.eye(2), "ball")[0]
    assert found == pytest.approx(wanted, rel=1e-14, abs=0)
    assert embeddings.compute_scores(rows, np.eye(2)[:1], "ball")[0] == pytest.approx(wanted, rel=1e-14, abs=0)
    assert embeddings.compute_scores(rows, np.eye(2), "unit")[0] == pytest.approx([1, 1, 1, 1, 1, 1, 0.6, 0.6])
