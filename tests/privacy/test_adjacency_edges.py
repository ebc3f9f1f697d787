"""Adjacencies, the grid and the adding of noise at their edges."""

from __future__ import annotations

import math

import numpy as np
import pytest

import scoreshield as ss
from scoreshield.privacy.adjacency import ReleaseShape, adjacency_from_dict, spectral_norm
from scoreshield.privacy.noise import FINEST_STEP, GRID_BITS, GaussianNoise, add_noise, choose_grid_step
from scoreshield.privacy.sampling.stream import ResearchStream


def test_all_may_drift() -> None:
    assert ss.GramRadius.from_drift(4, 4, 0.1).radius == pytest.approx(2 * 0.1 * 4 + 0.01 * 4)


def test_a_radius_bounds_the_sum_of_all_moves() -> None:
    """Cauchy and Schwarz: n (n - 1) entries off the diagonal that move by ``radius`` in all move by so much in l1."""
    found = ss.GramRadius(0.5).sensitivity("gram", 10)
    assert found.moved == 90
    assert found.l2 == 0.5
    assert found.l1 == pytest.approx(0.5 * math.sqrt(90))


def test_everyone_replaced_moves_every_entry_no() -> None:
    """One identity has all records: each of the n (n - 1) entries may move, and half flipped is the worst of all."""
    n = 6
    everyone = ss.Identity(["a"] * n)
    gram = everyone.sensitivity("gram", n)
    assert gram.moved == n * (n - 1)
    assert gram.l1 == 2 * n * (n - 1)
    assert gram.l2 == pytest.approx(math.sqrt(8 * 3 * 3))
    flipped = np.outer([1, 1, 1, -1, -1, -1], [1, 1, 1, -1, -1, -1])
    assert gram.l2 >= np.linalg.norm(np.ones((n, n)) - flipped)
    # Fewer rows are released than the largest identity has records: it moves those, not more.
    assert everyone.sensitivity("scores", 2).moved == 2
    assert everyone.sensitivity("scores", 2).l1 == 4
    assert everyone.sensitivity("row", n).moved == n - 1
    assert everyone.sensitivity("row", n).l1 == 2 * (n - 1)


def test_two_of_three_in_a_narrow_range() -> None:
    """Where the range is narrow, counting entries is better than geometry."""
    people = ss.Identity(["a", "a", "b"])
    narrow = people.sensitivity("gram", 3, score_range=(0, 0.1))
    assert narrow.moved == 2 * 2 * 1 + 2
    assert narrow.l2 == pytest.approx(0.1 * math.sqrt(6))
    assert people.sensitivity("gram", 3).l2 == pytest.approx(math.sqrt(8 * 1.5 * 1.5))


def test_a_batch_of_queries() -> None:
    queries = np.array([[3.0, 0.0], [0.0, 0.5]])
    two = ss.Replacement().sensitivity("scores", 9, queries=queries)
    assert two.moved == 2
    assert two.l1 == 4.0
    assert two.l2 == pytest.approx(2.0, rel=1e-8)  # orthogonal: a record moves them by 2 together
    same = ss.Replacement().sensitivity("scores", 9, queries=[[1, 0], [2, 0]])
    assert same.l2 == pytest.approx(2 * math.sqrt(2))
    one = ss.Replacement().sensitivity("scores", 9, queries=[5.0, 1.0])
    assert one == ss.Replacement().sensitivity("scores", 9)
    people = ss.Identity(["a", "a", "b"]).sensitivity("scores", 3, queries=queries)
    assert people.l2 == pytest.approx(2 * math.sqrt(2), rel=1e-8)
    narrow = ss.Replacement().sensitivity("scores", 9, queries=queries, score_range=(0, 0.5))
    assert narrow.l2 == pytest.approx(0.5 * math.sqrt(2))


@pytest.mark.parametrize(
    "queries",
    [[[math.nan, 1.0]], [[math.inf, 1.0]], [[1j, 1.0]], np.zeros((0, 3)), np.ones((2, 2, 2)), [["1", "2"]], [[True]]],
)
def test_queries_that_are_none(queries: object) -> None:
    with pytest.raises(ss.InvalidInput):
        ss.Replacement().sensitivity("scores", 4, queries=queries)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [np.float32, np.int64, np.uint8])
def test_queries_may_be_of_any_real_type(kind: type) -> None:
    found = ss.Replacement().sensitivity("scores", 4, queries=np.array([[1, 0], [0, 2]], dtype=kind))
    assert found.l2 == pytest.approx(2.0, rel=1e-8)


def test_norm_unit_queries_between_root_number() -> None:
    """The norm of unit queries is between one and the root of their number."""
    assert spectral_norm(np.array([[1.0, 0.0]])) == 1.0
    assert spectral_norm(np.array([[1.0, 0.0], [1.0, 0.0]])) == math.sqrt(2)
    apart = spectral_norm(np.eye(3))
    assert 1 + 1e-10 < apart < 1 + 1e-8


def test_labels_of_every_kind() -> None:
    for labels in (
        ["a", "b", "b"],
        np.array(["a", "b", "b"], dtype=object),
        np.array([b"a", b"b", b"b"]),
        np.array([True, False, False]),
        np.array([1, 2, 2], dtype=np.uint8),
    ):
        people = ss.Identity(labels)
        assert (people.identities, people.largest) == (2, 2)
        assert people.labels is not None
        assert not people.labels.flags.writeable
    assert ss.Identity(np.array(["a", "b"], dtype=object)).labels.dtype.kind == "U"  # type: ignore[union-attr]


def test_labels_are_a_copy() -> None:
    labels = np.array([1, 2, 2])
    people = ss.Identity(labels, centroids=np.bool_(True))
    labels[:] = 7
    assert people.labels is not None
    assert people.labels.tolist() == [1, 2, 2]
    assert people.centroids is True


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"kind": "gram-radius"},
        {"kind": "gram-radius", "radius": -1.0},
        {"kind": "identity", "centroids": True},
        {"kind": "identity", "centroids": False, "identities": 3},
        {"kind": "identity", "centroids": False, "identities": 3, "largest": -5},
        {"kind": "identity", "centroids": False, "identities": 0, "largest": 1},
        {"kind": "identity", "centroids": False, "identities": 3.0, "largest": 1},
        {"kind": "identity", "centroids": 1, "identities": 3, "largest": 1},
    ],
)
def test_damaged_adjacencies_are_errors(data: dict[str, object]) -> None:
    with pytest.raises(ss.InvalidInput):
        adjacency_from_dict(data)


@pytest.mark.parametrize("score_range", [(-1, 1), [0, 1], np.array([-1.0, 0.0])])
def test_ranges_of_every_kind(score_range: object) -> None:
    low, high = score_range  # type: ignore[misc]
    assert ss.Replacement().sensitivity("scores", 2, score_range=score_range).l2 == high - low  # type: ignore[arg-type]


@pytest.mark.parametrize("score_range", [(-1.01, 1), (-1, 1.01), (0.5, 0.4), (0.0,), (0.0, 0.1, 0.2), {0.0, 0.1}, None])
def test_ranges_that_are_none(score_range: object) -> None:
    with pytest.raises(ss.InvalidInput):
        ss.Replacement().sensitivity("scores", 2, score_range=score_range)  # type: ignore[arg-type]


def test_each_regime_has_its_own_bound() -> None:
    moved = {
        regime: ss.Replacement().bound_sensitivity(ReleaseShape(regime, 10)).moved
        for regime in ("scores", "row", "gram")
    }
    assert moved == {"scores": 1, "row": 9, "gram": 18}


def test_words_adjacency_say_about() -> None:
    """The words for an adjacency say what it is about."""
    people = ss.Identity(["a"] * 1200 + ["b"])
    assert "2 identities" in people.describe()
    assert "1,200" in people.describe()
    assert "centroid" not in people.describe()
    central = ss.Identity(["a"] * 1200 + ["b"], centroids=True).describe()
    assert "centroid" in central
    assert "1,200" not in central


@pytest.mark.parametrize("std", [1.0, 1.5, 0.999, 0.001, 2.0**26, 1.9 * 2.0**26])
def test_grid_largest_power_two_fine_enough(std: float) -> None:
    """The grid is the largest power of two that is fine enough."""
    step = choose_grid_step(std)
    assert std / 2 < step * 2**GRID_BITS <= std


def test_the_ends_of_the_grid() -> None:
    assert choose_grid_step(1e-300) == FINEST_STEP
    assert choose_grid_step(2.0 ** (GRID_BITS + 1) * 0.999) == 1.0
    for std in (2.0 ** (GRID_BITS + 1), math.inf, math.nan):
        with pytest.raises(ss.InvalidInput):
            choose_grid_step(std)


class Counting:
    """A law that draws 1, 2, 3, ... and remembers how it was asked."""

    def __init__(self) -> None:
        self.drawn = 0
        self.asked: list[tuple[float, int]] = []

    def fill(self, stream: object, step: float, out: np.ndarray) -> None:
        assert stream is not None
        self.asked.append((step, len(out)))
        out[:] = np.arange(self.drawn, self.drawn + len(out))
        self.drawn += len(out)


@pytest.mark.parametrize("size", [0, 1, 7, (1 << 20) - 1, 1 << 20, (1 << 20) + 5, (1 << 21) + 1])
def test_every_value_has_a_draw_of_its_own(size: int) -> None:
    """Rounded to the grid, plus the draw: also beyond the block in which noise is drawn."""
    law = Counting()
    values = np.linspace(-1, 1, size)
    clean = np.rint(values / 0.25)
    add_noise(values, law, 0.25, ResearchStream(np.random.default_rng(1)))
    assert np.array_equal(values, (clean + np.arange(size)) * 0.25)
    assert sum(asked for _, asked in law.asked) == size
    assert all(step == 0.25 for step, _ in law.asked)
    assert max((asked for _, asked in law.asked), default=0) <= 1 << 20


def test_profile_gaussian_noise_ratio() -> None:
    """The profile of gaussian noise is its ratio."""
    assert GaussianNoise(0.5).profile(2.0).mu == 4.0  # type: ignore[attr-defined]


def test_guarantee_keeps_identities_counts() -> None:
    """What a guarantee keeps of identities are their counts."""
    for centroids, largest in ((False, 4), (True, 1)):
        kept = ss.Identity([0, 0, 0, 0, 1, 2, 2, 3, 4, 5], centroids=centroids).drop_labels()
        assert (kept.centroids, kept.identities, kept.largest) == (centroids, 6, largest)
        assert kept.labels is None


def test_each_query_has_its_own_length() -> None:
    """As many queries as dimensions, so that lengths taken for columns would go unnoticed."""
    found = ss.Replacement().sensitivity("scores", 5, queries=[[3.0, 4.0], [0.0, 2.0]])
    assert found.l2 == pytest.approx(2 * math.sqrt(1.8), rel=1e-8)
    assert found.l1 == 4.0


def test_plain_values_of_adjacencies() -> None:
    assert type(ss.GramRadius(3).radius) is float
    assert ss.GramRadius(3).radius == 3.0
    alone = ss.Identity([7])
    assert (alone.identities, alone.largest) == (1, 1)
    central = ss.Identity([7, 7, 8], centroids=True)
    assert (central.identities, central.largest, central.centroids) == (2, 1, True)
    assert ss.Identity([7, 7, 8]).largest == 2
    assert type(ss.Identity([7, 7, 8]).largest) is int
    for labels in ([], [[1, 2]], [1.5], [None], [1j]):
        with pytest.raises(ss.InvalidInput, match="'labels'"):
            ss.Identity(labels)  # type: ignore[arg-type]
