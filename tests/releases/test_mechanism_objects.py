"""Objects that a caller passes to a release: what is certified is what is drawn, whatever was done to the object."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import scipy.stats

import scoreshield as ss
from scoreshield.privacy.adjacency import ReleaseShape, Sensitivity

ROWS = np.random.default_rng(1).standard_normal((80, 6))
QUERY = ROWS[0]
LAW = ss.CustomNoise.tabulate(scipy.stats.logistic(scale=0.5))
TABLE = ss.randomised_response(2.0, [0.0, 0.5])


@pytest.mark.parametrize(
    "array",
    [
        LAW.probabilities,
        LAW._edges,
        LAW._rises,
        LAW._falls,
        TABLE.weights,
        TABLE.probabilities,
        TABLE._cumulative,
        TABLE._tails,
    ],
)
def test_arrays_of_laws_cannot_be_written_to(array: np.ndarray) -> None:
    with pytest.raises(ValueError, match="read-only"):
        array[...] = 0
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True


def test_arrays_of_a_codebook_cannot_be_written_to() -> None:
    book = ss.PublicCodebook(ROWS)
    for one in (book, pickle.loads(pickle.dumps(book)), copy.deepcopy(book)):
        assert not any(array.flags.writeable for array in (one.vectors, one.center))
        assert one.fingerprint == book.fingerprint
    assert not book._directions.flags.writeable


def test_what_a_custom_law_caches_does_not_count() -> None:
    """A copy has arrays of its own, which can be written to: the release computes its bounds from the weights."""
    law = pickle.loads(pickle.dumps(LAW))
    vars(law)["probabilities"] = np.full(len(law.weights), 1 / len(law.weights))
    vars(law)["std"] = 1e9
    assert law.bound_delta(1.0) == LAW.bound_delta(1.0)
    with pytest.raises(ss.InvalidInput, match="does not cover"):
        ss.release_scores(ROWS, QUERY, epsilon=1.0, delta=1e-3, mechanism=law)
    vars(law)["_curve"] = ss.CustomNoise.tabulate(scipy.stats.logistic(scale=50.0))._curve
    with pytest.raises(ss.InvalidInput, match="does not cover"):
        ss.release_scores(ROWS, QUERY, epsilon=1.0, delta=1e-3, mechanism=law)
    kept = ss.release_scores(ROWS, QUERY, epsilon=6.0, delta=1e-3, mechanism=law).guarantee
    assert kept == ss.release_scores(ROWS, QUERY, epsilon=6.0, delta=1e-3, mechanism=LAW).guarantee
    assert kept.noise is not law


def test_what_a_table_caches_does_not_count() -> None:
    table = pickle.loads(pickle.dumps(TABLE))
    vars(table)["_cumulative"] = np.zeros_like(TABLE._cumulative)
    release = ss.release_scores(ROWS, QUERY, epsilon=2.0, mechanism=table, rng=3)
    assert np.array_equal(release.noisy, ss.release_scores(ROWS, QUERY, epsilon=2.0, mechanism=TABLE, rng=3).noisy)
    table = pickle.loads(pickle.dumps(TABLE))
    table.weights[...] = np.eye(3, dtype=np.uint64) * 2**62
    with pytest.raises(ss.InvalidInput, match="These weights are not"):
        ss.release_scores(ROWS, QUERY, epsilon=2.0, mechanism=table)


class SilentNoise(ss.CustomNoise):
    def fill(self, stream: Any, step: float, out: np.ndarray) -> None:
        del stream, step
        out[:] = 0


class CleanTable(ss.LevelChannel):
    def release(self, stream: Any, clean_scores: Any) -> Any:
        del stream
        return clean_scores


class OtherWindows(ss.AnchoredWindows):
    pass


class OtherCodebook(ss.PublicCodebook):
    pass


class SmallMoves(ss.Replacement):
    def bound_sensitivity(self, shape: ReleaseShape) -> Sensitivity:
        del shape
        return Sensitivity(1e-6, 1e-6, 1)


class OtherTail(ss.TailShape):
    pass


class LongTuple(tuple):
    def __iter__(self) -> Any:
        return iter(LAW.weights)


def make_scores(mechanism: Any = None, **options: Any) -> Any:
    return ss.release_scores(ROWS, QUERY, epsilon=8.0, delta=1e-3, mechanism=mechanism, **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda: make_scores(SilentNoise(LAW.weights, LAW.first, LAW.step, LAW.sensitivity)),
        lambda: make_scores(
            CleanTable(TABLE.inputs, TABLE.cuts, TABLE.outputs, TABLE.step, TABLE.weights, TABLE.epsilon)
        ),
        lambda: make_scores(OtherWindows()),
        lambda: make_scores(adjacency=SmallMoves()),
        lambda: ss.release_index(ROWS, epsilon=8.0, codebook=OtherCodebook(ROWS)),
        lambda: ss.AnchoredWindows(tail=OtherTail(**vars(ss.TailShape.default()))),
        lambda: ss.CustomNoise(LongTuple((1,)), LAW.first, LAW.step, LAW.sensitivity),
    ],
)
def test_subclasses_are_rejected(make: Any) -> None:
    """A subclass can draw, or state, something else than what is certified."""
    with pytest.raises(ss.InvalidInput, match="must be"):
        make()
