"""Declared constraints: one form of message, which names the parameter and the function that was called."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections import UserList, deque
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from scoreshield import _validation
from scoreshield._validation import (
    check_count,
    check_epsilon,
    constrain,
    one_of,
    optional,
    reject,
    validate,
    whole_from,
)
from scoreshield.errors import (
    BudgetExceeded,
    DocumentsNotRead,
    FileError,
    InvalidCalibration,
    InvalidInput,
    InvalidParameter,
    InvalidRow,
    LedgerError,
    ScoreShieldError,
)


@validate(epsilon=check_epsilon, k=optional(check_count), mode=one_of(("fast", "exact")))
def sample(rows: Any, epsilon: float, k: int | None = None, *, mode: str = "fast") -> tuple[Any, ...]:
    """Example."""
    if rows == "deep":
        reject("rows", "a matrix", rows)
    return rows, epsilon, k, mode


class Counter:
    @validate(start=whole_from(0))
    def __init__(self, start: int) -> None:
        self.start = start

    @validate(by=check_count)
    def add(self, by: int) -> int:
        return self.start + by


def test_values_pass_in_their_final_type() -> None:
    """Given values are converted; defaults and undeclared values pass as they are."""
    assert sample(1, np.float32(0.5), np.int64(3)) == (1, 0.5, 3, "fast")
    assert [type(value) for value in sample(1, np.float32(0.5), k=np.int64(3))] == [int, float, int, str]
    assert sample(rows=None, epsilon=1, mode="exact") == (None, 1.0, None, "exact")


@pytest.mark.parametrize(
    ("call", "parameter", "message"),
    [
        (
            lambda: sample(1, -1),
            "epsilon",
            "The 'epsilon' parameter of sample must be a positive finite number. Got -1",
        ),
        (lambda: sample(1, epsilon=True), "epsilon", "of sample must be a positive finite number. Got True instead."),
        (lambda: sample(1, 1, 0), "k", "of sample must be a whole number, at least 1 and below 2^53. Got 0 instead."),
        (lambda: sample(1, 1, mode="slow"), "mode", "of sample must be one of 'fast', 'exact'. Got 'slow' instead."),
        (lambda: sample("deep", 1), "rows", "'rows' parameter of sample must be a matrix. Got a text of 4 characters"),
        (lambda: Counter(-1), "start", "The 'start' parameter of Counter must be a whole number, at least 0"),
        (lambda: Counter(1).add("1"), "by", "The 'by' parameter of Counter.add must be a whole number"),
    ],
)
def test_message_names_parameter_and_function(call: Any, parameter: str, message: str) -> None:
    """The error says it in one sentence, and carries it as attributes."""
    with pytest.raises(InvalidParameter) as caught:
        call()
    assert message in str(caught.value)
    assert caught.value.parameter == parameter
    assert caught.value.function is not None
    assert f"of {caught.value.function} " in str(caught.value)


def test_innermost_public_function_is_named() -> None:
    """A parameter belongs to the function that declares it, not to a caller further out."""

    @validate()
    def outer() -> Any:
        return sample(1, -1)

    with pytest.raises(InvalidParameter, match="parameter of sample must"):
        outer()


def test_shared_function_is_not_named() -> None:
    """A function that public functions share checks and converts its arguments, and leaves the name to its caller."""

    @constrain(k=check_count)
    def shared(k: int) -> int:
        return k

    @validate()
    def outer(k: Any) -> int:
        return shared(k)

    assert type(outer(np.int8(2))) is int
    with pytest.raises(InvalidParameter, match="'k' parameter of outer must be a whole number"):
        outer(0)
    with pytest.raises(InvalidParameter, match="'k' parameter must be a whole number"):
        shared(0)
    with pytest.raises(ValueError, match="not in list"):
        constrain(missing=check_count)(lambda k: k)


def test_without_a_public_function() -> None:
    """A check that no public function called names the parameter alone."""
    with pytest.raises(InvalidInput, match=r"^The 'x' parameter must be a finite number\. Got nan instead\.$"):
        _validation.check_real(float("nan"), "x")


def test_coroutines() -> None:
    """A coroutine function is checked when it is awaited."""

    @validate(k=check_count)
    async def count(k: int) -> int:
        return k

    assert asyncio.run(count(np.int8(2))) == 2
    with pytest.raises(InvalidParameter, match="of count must be a whole number"):
        asyncio.run(count(0))


def test_signature_and_docstring_stay() -> None:
    """A decorated function shows its own signature, name and docstring."""
    assert list(inspect.signature(sample).parameters) == ["rows", "epsilon", "k", "mode"]
    assert (sample.__name__, sample.__doc__) == ("sample", "Example.")


def test_unknown_parameter_is_found_at_import() -> None:
    """A constraint on a parameter that does not exist raises when the function is defined."""
    with pytest.raises(ValueError, match="not in list"):
        validate(missing=check_count)(lambda k: k)


@pytest.mark.parametrize(
    "error",
    [
        InvalidParameter("k", "must be 1.", "f"),
        InvalidRow("embeddings", 3),
        InvalidCalibration("Not private.", true_delta=0.1, true_epsilon=2.0, analytic_scale=3.0),
        BudgetExceeded("Too much.", spent=1.0, asked=2.0, limit=2.5),
        DocumentsNotRead("Lost.", ids=((1, "two"),)),
        FileError("Cannot write x."),
        FileError(2, "No such file", "x"),
        LedgerError("Damaged."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_error_survives_pickling(error: ScoreShieldError) -> None:
    """Worker processes send errors back with their attributes."""
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.args, vars(again)) == (type(error), str(error), error.args, vars(error))


def test_no_array_content_in_messages() -> None:
    """A message shows the shape of an array and nothing of its content."""
    with pytest.raises(InvalidParameter) as caught:
        reject("rows", "a vector", np.full((2, 3), 0.123456))
    assert "0.123" not in str(caught.value)
    assert "an array of shape (2, 3) and type float64" in str(caught.value)


class Named:
    """An object whose representation shows what it holds."""

    def __repr__(self) -> str:
        return "secret"


SHOWN: list[Any] = [None, True, 3, -1, 0.5, np.float32(0.5), Fraction(1, 3), "a word", int, Named]
HIDDEN: list[Any] = [
    {"a": "secret"}.values(),
    {"secret": 1}.keys(),
    deque(["secret"]),
    UserList(["secret"]),
    frozenset(["secret"]),
    SimpleNamespace(a="secret"),
    b"secret",
    bytearray(b"secret"),
    Named(),
    np.array("secret"),
    iter(["secret"]),
    "secret " * 20,
    Path("secret"),
]


@pytest.mark.parametrize("got", SHOWN, ids=repr)
def test_messages_show_what_is_short_and_public(got: Any) -> None:
    with pytest.raises(InvalidParameter) as caught:
        reject("k", "a count", got)
    assert str(caught.value) == f"The 'k' parameter must be a count. Got {got!r} instead."


@pytest.mark.parametrize("name", ["k", "embeddings"])
@pytest.mark.parametrize("got", HIDDEN, ids=lambda got: type(got).__name__)
def test_messages_show_no_content(got: Any, name: str) -> None:
    """Of any other value a message shows the type, or the number of characters, and nothing that it holds."""
    with pytest.raises(InvalidParameter) as caught:
        reject(name, "an array", got)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("got", ["secret", 0.123456, np.float64(0.123456), Fraction(123456, 1000001)])
def test_messages_of_data_show_no_text_and_no_fraction(got: Any) -> None:
    with pytest.raises(InvalidParameter) as caught:
        reject("scores", "an array", got)
    assert "secret" not in str(caught.value)
    assert "123456" not in str(caught.value)


def test_numbers_of_many_digits() -> None:
    """Python prints no number of more than 4,300 digits."""
    with pytest.raises(InvalidParameter, match=r"Got <class 'int'> instead\."):
        check_count(10**5000, "k")


def test_categories_are_not_shown() -> None:
    polars = pytest.importorskip("polars", reason="pip install 'scoreshield[frames]' enables this")
    with pytest.raises(InvalidParameter, match=r"an array of shape \(1,\) and type Enum instead"):
        reject("labels", "numbers", polars.Series(["secret"], dtype=polars.Enum(["secret"])))
