"""The protocol: what a number says, what a store must have, and what an error may carry."""

from __future__ import annotations

import sys
import traceback

import numpy as np
import pytest

from scoreshield.errors import InvalidInput, StoreError
from scoreshield.stores import ArrayStore, Convention, PinnedStore, Store, StoreScores
from scoreshield.stores.protocol import explain_missing_extra, is_store, read_store, strip_frames

RNG = np.random.default_rng(11)
ROWS = RNG.standard_normal((50, 6))
ROWS /= np.linalg.norm(ROWS, axis=1, keepdims=True)
QUERY = ROWS[7]


@pytest.mark.parametrize(
    ("convention", "values"),
    [
        (Convention.COSINE, ROWS @ QUERY),
        (Convention.INNER_PRODUCT, np.einsum("ij,j", ROWS, QUERY)),
        (Convention.COSINE_DISTANCE, [1 - sum(a * b for a, b in zip(row, QUERY, strict=True)) for row in ROWS]),
        (Convention.SQUARED_L2, ((ROWS - QUERY) ** 2).sum(axis=1)),
    ],
)
def test_conventions(convention: Convention, values: object) -> None:
    """Each convention is a linear function of the cosine."""
    found = convention.to_cosine(np.asarray(values, dtype=np.float32))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, ROWS @ QUERY, atol=3e-7)


def test_conversion() -> None:
    """A conversion changes a copy, and does not clip."""
    values = np.array([2.5, -0.5], dtype=np.float32)
    assert Convention.COSINE_DISTANCE.to_cosine(values).tolist() == [-1.5, 1.5]
    assert Convention.SQUARED_L2.to_cosine(values).tolist() == [-0.25, 1.25]
    assert values.tolist() == [2.5, -0.5]


def test_distinct_conventions() -> None:
    """Three of the four conventions differ."""
    cosines = ROWS @ QUERY
    found = {c: c.to_cosine(cosines).round(9).tobytes() for c in Convention}
    assert found[Convention.COSINE] == found[Convention.INNER_PRODUCT]
    assert len(set(found.values())) == 3


def test_protocol() -> None:
    """An adapter has the members of the protocol."""
    assert isinstance(ArrayStore(ROWS), Store)
    assert not isinstance(ROWS, Store)
    assert not isinstance(StoreScores([], np.empty(0, dtype=np.float32)), Store)


def test_lazy_check() -> None:
    """A dimension may be a property that asks a server, or reads all of the store."""

    class Costly(ArrayStore):
        @property
        def dimension(self) -> int:
            raise AssertionError("it was read")

    assert is_store(Costly(ROWS))
    assert is_store(ArrayStore(ROWS))
    assert PinnedStore(Costly(ROWS)).version == 0
    lacking = ArrayStore(ROWS)
    del lacking.name
    for thing in (lacking, ArrayStore, ROWS, None, StoreScores([], np.empty(0, dtype=np.float32))):
        assert not is_store(thing)


def test_a_class_is_no_store() -> None:
    class Whole:
        name, convention, zero_copy, dimension = "Whole", Convention.COSINE, False, 3
        state = scores = records = None

    assert is_store(Whole())
    assert not is_store(Whole)


class TestReading:
    def test_gives_what_was_read(self) -> None:
        assert read_store(ArrayStore(ROWS), "counting", lambda: 7) == 7

    def test_client_error(self) -> None:
        """An error of a client is named by its type alone."""

        def fail() -> None:
            secret = ROWS @ QUERY
            raise ConnectionResetError(f"password hunter2, scores {secret[:3]}")

        handled = sys.exception()  # by the test runner, which may call tests while it handles one
        with pytest.raises(StoreError) as caught:
            read_store(ArrayStore(ROWS), "scoring a query", fail)
        told = "".join(traceback.format_exception(caught.value))
        assert (
            str(caught.value) == "The array failed while scoring a query (ConnectionResetError); nothing was released."
        )
        assert "hunter2" not in told
        assert caught.value.__context__ is handled
        assert caught.value.__cause__ is None
        assert "fail" not in {frame.f_code.co_name for frame, _ in traceback.walk_tb(caught.value.__traceback__)}

    def test_own_error(self) -> None:
        """The library's own errors pass without their frames."""

        def fail() -> None:
            raise InvalidInput("A clear sentence.")

        with pytest.raises(InvalidInput, match="A clear sentence") as caught:
            read_store(ArrayStore(ROWS), "scoring a query", fail)
        assert "fail" not in {frame.f_code.co_name for frame, _ in traceback.walk_tb(caught.value.__traceback__)}

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
    def test_interrupt(self, error: type[BaseException]) -> None:
        """An interruption is not an error of the store."""

        def stop() -> None:
            raise error

        with pytest.raises(error):
            read_store(ArrayStore(ROWS), "scoring a query", stop)


def test_helpers() -> None:
    """Errors lose their frames, and a missing extra has one sentence."""
    error = ValueError("x")
    error.__cause__ = KeyError("y")
    assert strip_frames(error) is error
    assert error.__cause__ is None
    said = str(explain_missing_extra("faiss", "FaissStore"))
    assert said == "FaissStore needs the 'faiss' extra: pip install 'scoreshield[faiss]'."
