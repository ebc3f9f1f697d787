"""Every sensitivity against a numerical search for the worst pair of neighbours: random starts, then hill-climbing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import mpmath
import numpy as np
import pytest

import scoreshield as ss
from scoreshield.privacy.adjacency import ReleaseShape, adjacency_from_dict, spectral_norm

Array = np.ndarray
Output = Callable[[Array], Array]


def unit(rows: Array) -> Array:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def worst_movement(output: Output, n: int, d: int, replaced: Array, rng: np.random.Generator) -> float:
    """The largest |output(E) - output(E')| found over collections that differ in the ``replaced`` rows alone."""

    def movement(rows: Array, others: Array) -> float:
        neighbour = rows.copy()
        neighbour[replaced] = others
        return float(np.linalg.norm(output(unit(rows)) - output(unit(neighbour))))

    best = 0.0
    for _ in range(4):
        starts = [(rng.standard_normal((n, d)), rng.standard_normal((len(replaced), d))) for _ in range(50)]
        rows, others = max(starts, key=lambda pair: movement(*pair))
        value, step = movement(rows, others), 0.5
        for _ in range(1500):
            trial = unit(rows + step * rng.standard_normal(rows.shape) * (rng.random((n, 1)) < 0.3))
            trial_others = unit(
                others + step * rng.standard_normal(others.shape) * (rng.random((len(replaced), 1)) < 0.5)
            )
            moved = movement(trial, trial_others)
            if moved > value:
                rows, others, value, step = trial, trial_others, moved, min(1.0, step * 1.3)
            else:
                step = max(1e-3, step * 0.98)
        best = max(best, value)
    return best


def gram(rows: Array) -> Array:
    return rows @ rows.T


def clamped(output: Output, low: float, high: float) -> Output:
    return lambda rows: np.clip(output(rows), low, high)


LABELS = [0, 0, 0, 1, 2, 3, 4, 4]  # eight records, largest identity three


@pytest.mark.parametrize(
    ("adjacency", "regime", "replaced", "score_range", "tight"),
    [
        (ss.Replacement(), "scores", [2], (-1, 1), True),
        (ss.Replacement(), "row", [0], (-1, 1), True),
        (ss.Replacement(), "row", [5], (-1, 1), False),  # another record than the row's own moves one entry
        (ss.Replacement(), "gram", [2], (-1, 1), True),
        (ss.Replacement(), "scores", [2], (0, 0.5), True),
        (ss.Replacement(), "row", [0], (-0.2, 0.6), True),
        (ss.Replacement(), "gram", [2], (0, 0.5), True),
        (ss.Identity(LABELS), "scores", [0, 1, 2], (-1, 1), True),
        (ss.Identity(LABELS), "row", [0, 1, 2], (-1, 1), True),
        (ss.Identity(LABELS), "gram", [0, 1, 2], (-1, 1), True),
        (ss.Identity(LABELS), "gram", [0, 1, 2], (0, 0.5), False),
        (ss.Identity([0] * 5 + [1, 1, 2]), "gram", [0, 1, 2, 3, 4], (-1, 1), True),  # more than half: 2 n^2
    ],
)
def test_no_neighbour_moves_further_bound(
    adjacency: ss.Adjacency,
    regime: str,
    replaced: list[int],
    score_range: tuple[float, float],
    tight: bool,
    rng: np.random.Generator,
) -> None:
    """No neighbour moves further than the bound."""
    n, d = 8, 3
    query = unit(rng.standard_normal(d))
    output = {"scores": lambda rows: rows @ query, "row": lambda rows: rows @ rows[0], "gram": gram}[regime]
    bound = adjacency.sensitivity(regime, n, score_range=score_range).l2
    found = worst_movement(clamped(output, *score_range), n, d, np.array(replaced), rng)
    assert found <= bound * (1 + 1e-12)
    if tight:
        assert found >= 0.99 * bound


def test_batch_queries_moves_twice_spectral_norm(rng: np.random.Generator) -> None:
    """Batch of queries moves by twice its spectral norm."""
    queries = unit(rng.standard_normal((5, 3)) + 2)
    bound = ss.Replacement().sensitivity("scores", 8, queries=queries).l2
    assert bound == pytest.approx(2 * np.linalg.norm(queries, 2), rel=1e-8)
    assert bound < 2 * math.sqrt(5)
    found = worst_movement(lambda rows: rows @ queries.T, 8, 3, np.array([2]), rng)
    assert 0.99 * bound <= found <= bound
    raw = ss.Identity(LABELS).sensitivity("scores", 8, queries=queries).l2
    found = worst_movement(lambda rows: rows @ queries.T, 8, 3, np.array([0, 1, 2]), rng)
    assert 0.99 * raw <= found <= raw


def test_centroids_move_like_single_records(rng: np.random.Generator) -> None:
    """Two identities of the collection are centroids; replacing all records of one moves one centroid anywhere."""
    query = unit(rng.standard_normal(3))

    def centroids(rows: Array) -> Array:
        return unit(np.stack([rows[:3].mean(0), rows[3], rows[4], rows[5], rows[6:].mean(0)]))

    adjacency = ss.Identity(LABELS, centroids=True)
    for regime, output in (
        ("scores", lambda rows: centroids(rows) @ query),
        ("gram", lambda rows: gram(centroids(rows))),
    ):
        bound = adjacency.sensitivity(regime, adjacency.identities).l2
        assert bound == ss.Replacement().sensitivity(regime, 5).l2
        found = worst_movement(output, 8, 3, np.array([0, 1, 2]), rng)
        assert 0.99 * bound <= found <= bound * (1 + 1e-12)


@pytest.mark.parametrize(
    ("radius", "threat"),
    [
        (ss.GramRadius.from_drift(8, 2, 0.3), "drift"),
        (ss.GramRadius.from_pairs(5, 0.25), "pairs"),
        (ss.GramRadius.from_record(4, 0.25), "record"),
    ],
)
def test_radius_covers_the_threat_it_was_made_for(radius: ss.GramRadius, threat: str, rng: np.random.Generator) -> None:
    worst = 0.0
    for _ in range(2000):
        rows = unit(rng.standard_normal((8, 3)))
        if rng.random() < 0.5:  # the worst drift is of nearly parallel rows
            rows = unit(rows[:1] + 0.05 * rows)
        clean = gram(rows)
        if threat == "drift":
            # Drift is free in l2; it need not keep the rows on the sphere.
            rows[:2] += 0.3 * unit(rng.standard_normal((2, 3)) * (rng.random() < 0.5) + rows[:2])
            other = gram(rows)
        else:
            other = clean.copy()
            pairs = [(0, j) for j in range(1, 5)] if threat == "record" else [(0, 1), (2, 3), (4, 5), (6, 7), (0, 7)]
            for i, j in pairs:
                other[i, j] = other[j, i] = clean[i, j] + 0.25 * rng.choice([-1, 1])
        worst = max(worst, float(np.linalg.norm(other - clean)))
    assert worst <= radius.radius * (1 + 1e-12)
    if threat != "drift":
        assert worst >= 0.99 * radius.radius


def test_formulas() -> None:
    n = 50
    replacement = ss.Replacement()
    assert replacement.sensitivity("scores", n).l2 == replacement.sensitivity("scores", n).l1 == 2
    assert replacement.sensitivity("row", n).l2 == pytest.approx(2 * math.sqrt(n - 1))
    assert replacement.sensitivity("row", n).l1 == 2 * (n - 1)
    assert replacement.sensitivity("gram", n).l2 == pytest.approx(2 * math.sqrt(2 * (n - 1)))
    assert replacement.sensitivity("scores", n, score_range=(0, 0.8)).l2 == pytest.approx(0.8)
    assert ss.Identity([1, 1, 1, 1, 2, *list(range(3, 48))]).sensitivity("scores", n).l2 == 4
    g = ss.Identity([1] * 4 + list(range(2, 48))).sensitivity("gram", n)
    assert g.l2 == pytest.approx(math.sqrt(8 * 4 * 46))
    assert g.moved == 2 * 4 * 46 + 4 * 3
    assert ss.Identity(list(range(n))).sensitivity("gram", n).l2 == replacement.sensitivity("gram", n).l2


def test_radius_helpers_and_what_they_dominate() -> None:
    assert ss.GramRadius.from_pairs(8, 0.5).radius == pytest.approx(2.0)
    assert ss.GramRadius.from_record(8, 0.5).radius == pytest.approx(2.0)
    assert ss.GramRadius.from_drift(100, 4, 0.1).radius == pytest.approx(2 * 0.1 * 20 + 0.01 * 4)
    n = 2552
    full = ss.Replacement().sensitivity("gram", n).l2
    assert ss.GramRadius(full).dominates_replacement(n)
    assert not ss.GramRadius(full * (1 - 1e-9)).dominates_replacement(n)
    assert not ss.GramRadius(2).dominates_replacement(3)
    assert ss.GramRadius(2 * math.sqrt(2)).dominates_replacement(2)


def test_float_error_paid_geometry_used() -> None:
    """Each bound that is derived for exact cosines grows by 2 gamma sqrt(moved entries)."""
    gamma = 1e-3
    batch = ReleaseShape("scores", 50, queries=4, query_norm=1.5)
    radius = ss.GramRadius(0.5)
    people = ss.Identity([1] * 4 + list(range(2, 48)))
    gram = ReleaseShape("gram", 50)
    for adjacency, released, moved in (
        (ss.Replacement(), batch, 4),
        (people, batch, 16),
        (people, gram, people.bound_sensitivity(gram).moved),
        (radius, gram, 50 * 49),
    ):
        exact, computed = (
            adjacency.bound_sensitivity(released),
            adjacency.bound_sensitivity(replace(released, rounding=gamma)),
        )
        assert computed.l2 - exact.l2 == pytest.approx(2 * gamma * math.sqrt(moved), rel=1e-9)
    # Counting entries needs no such thing: clamping has seen to it.
    for regime in ("scores", "row", "gram"):
        one = ReleaseShape(regime, 50)
        assert ss.Replacement().bound_sensitivity(one) == ss.Replacement().bound_sensitivity(
            replace(one, rounding=gamma)
        )


def test_spectral_norm_is_rounded_up(rng: np.random.Generator) -> None:
    for m, d in ((2, 3), (7, 4), (30, 30)):
        queries = unit(rng.standard_normal((m, d)))
        with mpmath.workdps(40):
            exact = max(mpmath.svd_r(mpmath.matrix(queries.tolist()), compute_uv=False))
        assert exact <= spectral_norm(queries) <= exact * (1 + 1e-8)


def test_guarantees_keep_no_labels_centroids_no() -> None:
    """Guarantees keep no labels and centroids no sizes."""
    people = ss.Identity(["ann", "ann", "bob"])
    assert people.drop_labels() == people
    assert people.drop_labels().labels is None
    assert (people.largest, people.identities) == (2, 2)
    assert "largest" in people.to_dict()
    central, larger = ss.Identity(["ann", "ann", "bob"], centroids=True), ss.Identity(["ann", "bob"], centroids=True)
    assert central.to_dict() == larger.to_dict()  # adding a record to an identity changes nothing that is published


def test_radius_is_for_gram_matrices_only() -> None:
    with pytest.raises(ss.InvalidInput, match="says nothing about a release of scores"):
        ss.GramRadius(1.0).sensitivity("scores", 10)
    with pytest.raises(ss.InvalidInput, match="says nothing about a release of row"):
        ss.GramRadius(1.0).sensitivity("row", 10)


@pytest.mark.parametrize(
    "adjacency", [ss.Replacement(), ss.GramRadius(0.5), ss.Identity(LABELS), ss.Identity(list("abca"), centroids=True)]
)
def test_adjacency_survives_a_file(adjacency: ss.Adjacency) -> None:
    assert adjacency_from_dict(adjacency.to_dict()) == adjacency


@pytest.mark.parametrize(
    "make",
    [
        lambda: ss.GramRadius(0),
        lambda: ss.GramRadius(math.inf),
        lambda: ss.GramRadius.from_pairs(0, 1.0),
        lambda: ss.GramRadius.from_pairs(1.5, 1.0),
        lambda: ss.GramRadius.from_drift(3, 4, 0.1),
        lambda: ss.Identity([]),
        lambda: ss.Identity([[1, 2]]),
        lambda: ss.Identity([[1], [2, 3]]),
        lambda: ss.Identity([None, "a"]),
        lambda: ss.GramRadius.from_pairs(10**400, 1.0),
        lambda: ss.GramRadius(1.0).dominates_replacement(10**400),
        lambda: ss.Replacement().sensitivity("gram", 4, score_range=(-(10**400), 1)),
        lambda: ss.Replacement().sensitivity("gram", 4, score_range="01"),
        lambda: ss.Replacement().sensitivity("scores", 4, queries=[[0.0, 0.0]]),
        lambda: ss.Replacement().sensitivity("scores", 4, queries=[[1.0], [1.0, 2.0]]),
        lambda: ss.Replacement().sensitivity("scores", 4, queries="q"),
        lambda: ss.Identity([0.5, 1.5]),
        lambda: ss.Identity([1, 2], centroids="yes"),
        lambda: ss.Replacement().sensitivity("matrix", 4),
        lambda: ss.Replacement().sensitivity("gram", 0),
        lambda: ss.Replacement().sensitivity("gram", 4, score_range=(0.5, 0.5)),
        lambda: ss.Replacement().sensitivity("gram", 4, score_range=(-2, 1)),
        lambda: ss.Replacement().sensitivity("gram", 4, score_range=3),
        lambda: adjacency_from_dict({"kind": "zero-out"}),
    ],
)
def test_bad_input(make: Callable[[], object]) -> None:
    with pytest.raises(ss.InvalidInput) as caught:
        make()
    assert "\n" not in str(caught.value)
