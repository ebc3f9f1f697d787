"""For every mechanism: how far clean values move between neighbours, where they lie, and that noise reaches them all.

The registry's own checks compare what the samplers get with the certificate. These compare the other side: the numbers
that the noise is put on, and the numbers that leave.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from inspect import signature
from typing import Any

import mechanism_registry
import numpy as np
import pytest
from mechanism_registry import BATCH, BY_NAME, DIMENSION, ENTRIES, GROUP, LABELS, QUERY, RECORDS, ROWS, Entry

import scoreshield as ss
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.releases import gram, index_plan, matches, pipeline, row, scores

Array = np.ndarray
#: A hit budget puts no noise on values: tests/search/test_hits.py has its tests.
every_entry = pytest.mark.parametrize(
    "entry", [entry for entry in ENTRIES if entry.regime != "hits"], ids=lambda entry: entry.name
)


class Captured(Exception):
    """What a release would put its noise on."""

    def __init__(self, guarantee: Guarantee, clean: Array) -> None:
        super().__init__()
        self.guarantee, self.clean = guarantee, clean


def clean_of(entry: Entry, rows: Array, monkeypatch: pytest.MonkeyPatch) -> Captured:
    def capture(prepared: Any, ledger: Any) -> Any:
        del ledger
        raise Captured(prepared.guarantee, np.array(prepared.compute(), dtype=np.float64))

    with monkeypatch.context() as patch:
        patch.setattr(pipeline.PendingRelease, "release", capture)
        patch.setattr(mechanism_registry, "ROWS", rows)
        try:
            entry.release(rng=1)
        except Captured as captured:
            return captured
    raise AssertionError("nothing was prepared")


def neighbours(adjacency: Any) -> Iterator[tuple[Array, Array, Array]]:
    """Two collections, and which records differ: extreme ones, which move the most, and random ones."""
    rng = np.random.default_rng(7)
    unit = QUERY / np.linalg.norm(QUERY)
    aligned = np.tile(unit, (RECORDS, 1))
    person = np.flatnonzero(LABELS[1] == LABELS)
    moved = person if isinstance(adjacency, ss.Identity) else np.array([1])
    for rows, others in (
        (ROWS, (np.zeros(DIMENSION), 1e200 * BATCH[0], rng.standard_normal((len(moved), DIMENSION)))),
        (aligned, (-unit,)),
    ):
        for other in others:
            changed = rows.copy()
            changed[moved] = other
            yield rows, changed, moved


def entries_of(guarantee: Guarantee, clean: Array) -> Array:
    """What noise is put on: without the public ones of a row or a Gram matrix, and rows of an index at length one."""
    match guarantee.regime:
        case "row":
            clean[1] = 1.0
        case "gram":
            np.fill_diagonal(clean, 1.0)
        case "index":
            clean = _embeddings.normalise_rows(clean)
        case "top-k":
            return clean * guarantee.grid
        case "batch":
            return np.moveaxis(clean, 0, 1).reshape(clean.shape[1], -1)
        case "matches":
            return (clean > guarantee.details["threshold"]).astype(np.float64)
    return clean


@every_entry
def test_neighbours_move_clean_values_no_further(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbours move clean values no further than the certificate says."""
    stated = clean_of(entry, ROWS, monkeypatch).guarantee
    adjacency = stated.adjacency
    if isinstance(adjacency, ss.GramRadius):  # whatever moves further is no neighbour
        assert adjacency.radius <= stated.sensitivity <= adjacency.radius * (1 + 1e-12)
        return
    for one, other, moved in neighbours(adjacency):
        first, second = (clean_of(entry, rows, monkeypatch) for rows in (one, other))
        guarantee = first.guarantee
        assert guarantee == second.guarantee  # nothing public depends on the records
        a, b = (entries_of(guarantee, captured.clean) for captured in (first, second))
        gap = np.abs(a - b)
        if guarantee.regime == "batch":  # how many symbols differ
            gap = gap.any(axis=1).astype(np.float64)
        distance = float(gap.sum() if guarantee.mechanism in ("geometric", "set-response") else np.linalg.norm(gap))
        limit = guarantee.grid_sensitivity if guarantee.regime == "top-k" else guarantee.sensitivity
        assert distance <= limit * (1 + 1e-12)
        check_untouched(guarantee, gap, moved)


def check_untouched(guarantee: Guarantee, gap: Array, moved: Array) -> None:
    """Values of records that were not replaced are the same to the last bit."""
    centroids = isinstance(guarantee.adjacency, ss.Identity) and guarantee.adjacency.centroids
    places = np.unique(LABELS[moved]) if centroids else moved
    match guarantee.regime:
        case "scores" | "matches" | "top-k":
            assert not np.delete(
                gap.reshape(-1, gap.shape[-1] if gap.ndim > 1 else rows_of(guarantee)), places, 1
            ).any()
        case "index" | "batch":
            assert not np.delete(gap, places, 0).any()
        case "gram":
            assert not np.delete(np.delete(gap, places, 0), places, 1).any()
        case "row" if 1 not in places:
            assert not np.delete(gap, places).any()


def rows_of(guarantee: Guarantee) -> int:
    centroids = isinstance(guarantee.adjacency, ss.Identity) and guarantee.adjacency.centroids
    return RECORDS // GROUP if centroids else RECORDS


@every_entry
def test_noise_put_lies_public_range(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the noise on scores that passed a screen, the range above its threshold."""
    seen: list[Array] = []
    add = scores.add_noise

    def watched(values: Array, *rest: Any) -> None:
        seen.append(values.copy())
        add(values, *rest)

    unit = QUERY / np.linalg.norm(QUERY)
    for rows in (ROWS, np.tile(unit, (RECORDS, 1)), np.tile(-unit, (RECORDS, 1))):
        with monkeypatch.context() as patch:
            for module in (scores, row, gram, matches):
                patch.setattr(module, "add_noise", watched)
            patch.setattr(mechanism_registry, "ROWS", rows)
            guarantee = entry.release(rng=1).guarantee
        low, high = guarantee.score_range
        if guarantee.regime == "matches":
            low = guarantee.details["threshold"]
        for values in seen:
            assert low <= values.min(initial=low)
            assert values.max(initial=high) <= high
        without = ("levels", "optimal", "anchored")  # these draw a new value instead of adding noise
        if guarantee.regime in ("scores", "row", "gram") and guarantee.mechanism not in without:
            assert seen
    if guarantee.regime == "top-k":
        steps = clean_of(entry, ROWS, monkeypatch).clean
        low, high = (round(end / guarantee.grid) for end in guarantee.score_range)
        assert low <= steps.min() <= steps.max() <= high


#: What leaves a release with noise on it, by the name of its field.
FIELDS = ("vectors", "counts", "noisy")


@pytest.mark.parametrize(
    "entry",
    [entry for entry in ENTRIES if entry.mechanism in ("gaussian", "laplace", "staircase", "geometric")],
    ids=lambda entry: entry.name,
)
def test_noise_reaches_every_value_that_leaves(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two releases of the same records agree nowhere, but for the public ones; in tiles and blocks of two rows too."""
    monkeypatch.setattr(gram, "_TILE", 2)
    monkeypatch.setattr(index_plan, "_BLOCK_BYTES", 2 * 8 * DIMENSION)
    # A count gets no noise with a chance of one in four: 24 times in a row, once in 10^14.
    releases_made = [entry.release() for _ in range(24 if entry.mechanism == "geometric" else 8)]
    field = next(name for name in FIELDS if hasattr(releases_made[0], name))
    values = np.stack([np.asarray(getattr(release, field), dtype=np.float64) for release in releases_made])
    agree = (values == values[0]).all(axis=0)
    match releases_made[0].guarantee.regime:
        case "row":
            assert np.flatnonzero(agree).tolist() == [1]
        case "gram":
            assert np.array_equal(agree, np.eye(len(agree), dtype=bool))
            assert np.array_equal(values, values.transpose(0, 2, 1))
        case _:
            assert not agree.any()


@pytest.mark.parametrize("mechanism", ["privunit", "gaussian"])
def test_noise_reaches_every_entry_private(mechanism: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the leading directions are taken of is symmetric, and none of it is as it was."""
    taken: list[Array] = []
    eigh = np.linalg.eigh

    def watched(matrix: Array) -> Any:
        taken.append(matrix.copy())
        return eigh(matrix)

    monkeypatch.setattr(np.linalg, "eigh", watched)
    for _ in range(4):
        BY_NAME[f"index, {mechanism}, private PCA, records"].release()
    assert all(np.array_equal(matrix, matrix.T) for matrix in taken)
    assert not (np.stack(taken[1:]) == taken[0]).any()
    assert math.isfinite(taken[0].sum())


WITH_A_NORM: dict[str, Any] = {
    "scores": lambda **k: ss.release_scores(SHORT, QUERY, epsilon=1.0, delta=1e-6, **k),
    "table": lambda **k: ss.release_scores(SHORT, QUERY, epsilon=1.0, mechanism="optimal", **k),
    "matches": lambda **k: ss.release_matches(SHORT, QUERY, 0.1, epsilon=1.0, **k),
    "top-k": lambda **k: ss.release_top_k(SHORT, QUERY, 2, epsilon=1.0, **k),
    "histogram": lambda **k: ss.release_histogram(SHORT, QUERY, epsilon=1.0, bins=200, **k),
    "batch": lambda **k: ss.release_batch(SHORT, QUERY, epsilon=1.0, k=2, levels=HUNDRED, **k),
}
HUNDRED = np.linspace(-1, 0.98, 100)
SHORT = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True) / 4


@pytest.mark.parametrize("norm", ["unit", "ball"])
@pytest.mark.parametrize("name", WITH_A_NORM)
def test_each_release_scores_norm_asked(name: str, norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of length one fourth keep it in the ball, and lose it on the sphere."""

    def capture(prepared: Any, ledger: Any) -> Any:
        del ledger
        raise Captured(prepared.guarantee, np.array(prepared.compute(), dtype=np.float64))

    monkeypatch.setattr(pipeline.PendingRelease, "release", capture)
    with pytest.raises(Captured) as caught:
        WITH_A_NORM[name](norm=norm)
    guarantee, clean = caught.value.guarantee, caught.value.clean
    cosines = 4 * SHORT @ QUERY / np.linalg.norm(QUERY)
    wanted = cosines if norm == "unit" else cosines / 4
    if name == "batch":
        wanted, clean = np.searchsorted(HUNDRED, wanted, side="right") - 1, clean[1, :, 0]
    if name == "top-k":
        wanted = np.rint(wanted / guarantee.grid)
    if name == "histogram":
        wanted = np.histogram(wanted, np.linspace(-1, 1, 201))[0]
    np.testing.assert_allclose(clean, wanted, atol=2 if name == "top-k" else 1e-9)


def test_norm_option_tested_here() -> None:
    """The norm is an option of what is tested here."""
    takes = {
        name for name in ss.__all__ if name.startswith("release_") and "norm" in signature(getattr(ss, name)).parameters
    }
    assert takes == {"release_scores", "release_matches", "release_top_k", "release_histogram", "release_batch"}
