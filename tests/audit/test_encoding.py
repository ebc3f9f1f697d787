"""Outputs of any kind as rows of numbers: that different outputs give different rows, and equal ones equal rows."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from scoreshield.audit.encoding import (
    Failure,
    OutputParts,
    OutputReader,
    make_token,
    prepare_output,
    take_apart,
    to_numbers,
)
from scoreshield.audit.outputs import Source
from scoreshield.audit.plain_values import make_failure


@dataclass
class Hit:
    """An output of a class of its own."""

    name: str
    score: float


@dataclass(slots=True)
class SlotHit:
    """The same without a `__dict__`."""

    name: str
    score: float


def is_same(first: np.ndarray, second: np.ndarray) -> bool:
    return np.array_equal(first, second, equal_nan=True)


def read_both(one: Any, other: Any, records: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Read two outputs with a reader that has seen both."""
    rows = OutputReader([one, other], records).read([one, other])
    return rows[0], rows[1]


# ---- One output, taken apart.


def test_scalars() -> None:
    """Numbers of all kinds are numbers, and every type has a form of its own."""
    values = {"int": 2, "number": 2.0, "f4": np.float32(2), "f8": np.float64(2), "i1": np.int8(2), "u8": np.uint64(2)}
    for form, value in values.items():
        parts = take_apart(value, 3)
        assert (parts.form, parts.numbers) == ([form], [2.0])
        assert to_numbers(value).tolist() == [2.0]
    for value in (True, np.True_):
        assert (take_apart(value, 3).form, take_apart(value, 3).numbers) == (["bool"], [1.0])
        assert to_numbers(value).tolist() == [1.0]
    assert take_apart(None, 3).form == ["None"]
    assert math.isnan(take_apart(math.nan, 3).numbers[0])
    assert take_apart(-math.inf, 3).numbers == [-math.inf]


def test_text_with_numbers() -> None:
    """Numbers are taken out of a text, in every usual spelling; the words between them are its form."""
    parts = take_apart("best 0.25, then -3e-2 of 12: nan", 3)
    assert parts.numbers[:3] == [0.25, -0.03, 12.0]
    assert math.isnan(parts.numbers[3])
    assert parts.form == ["str", "best #, then # of #: #"]
    assert take_apart("none", 3).numbers == []
    assert take_apart("information", 3).numbers == []  # no infinity
    assert take_apart(".5 5. +5", 3).numbers == [0.5, 5.0, 5.0]
    assert take_apart(np.str_("a5"), 3).form == ["str", "a#"]
    assert take_apart(b"a5", 3).numbers == [5.0]


def test_exceptions() -> None:
    """The class and the words of an exception are its form, and the numbers in its text are numbers."""
    parts = take_apart(Failure("KeyError", "no record 17"), 3)
    assert parts.form == ["raises KeyError", "no record #"]
    assert parts.numbers == [17.0]
    assert take_apart(Failure("ValueError", "no record 17"), 3).form != parts.form
    assert to_numbers(Failure("KeyError", "17")) is None


def test_dicts_name_their_keys() -> None:
    """A dict names ids in its order, with the numbers beside them."""
    parts = take_apart({"b": 1.5, "a": [0, 2.5], 7: "x"}, 3)
    assert list(parts.places) == ["b", "a", "7"]
    assert parts.values == {"b": 1.5, "a": 2.5}
    assert parts.numbers == [1.5, 0.0, 2.5]
    assert parts.form[0] == "dict3"
    for mapping in (OrderedDict(b=1.5), MappingProxyType({"b": 1.5})):
        assert take_apart(mapping, 3) == take_apart({"b": 1.5}, 3)


def test_sets_have_no_order() -> None:
    assert take_apart({3, 1, 2}, 9) == take_apart({2, 3, 1}, 9)
    assert list(take_apart({"b", 10, 9, (1, 2), 0.5}, 9).places) == ["(1, 2)", "0.5", "9", "10", "b"]
    assert take_apart(frozenset({1}), 9) == take_apart({1}, 9)
    assert take_apart(set(), 9).form == ["set0"]


def test_lists_of_pairs_name_their_first_part() -> None:
    """Ids are the first part of a tuple or the field of a dict, as search results have them."""
    parts = take_apart([("d1", 0.5), ("d0", 0.25)], 3)
    assert list(parts.places) == ["d1", "d0"]
    assert parts.values == {"d1": 0.5, "d0": 0.25}
    parts = take_apart([{"id": 7, "score": 0.5}, {"id": 3, "score": 0.75}], 9)
    assert parts.places["7"] < parts.places["3"]
    assert (parts.values["7"], parts.values["3"]) == (0.5, 0.75)


def test_positions_of_records() -> None:
    """Different whole numbers below the number of records may be positions; others are only numbers."""
    assert list(take_apart([2, 0], 3).places) == ["2", "0"]
    assert list(take_apart(np.array([2, 0]), 3).places) == ["2", "0"]
    for values in ([2, 2], [3, 0], [-1, 0], [2.0, 0.0], [True, False], [0, 1, 2, 3]):
        assert not take_apart(values, 3).places
    assert take_apart([2, 2], 3).numbers == [2.0, 2.0]


def test_nested_outputs() -> None:
    """Numbers and ids are found at every depth, and deeper ones as text."""
    parts = take_apart({"hits": [("a", {"score": np.float64(0.5)}), None], "more": (np.arange(2.0), {"x"})}, 3)
    assert parts.numbers == [0.5, 0.0, 1.0]
    assert {"hits", "a", "score", "more", "x"} <= parts.places.keys()
    assert "None" in parts.form
    deep: Any = 0.5
    for _ in range(12):
        deep = [deep, "end"]
    assert take_apart(deep, 3).numbers == [0.5]


def test_objects() -> None:
    """Objects are read by their attributes, or by how they print where they have none."""
    for output in (Hit("a", 0.5), SlotHit("a", 0.5), SimpleNamespace(name="a", score=0.5)):
        assert 0.5 in take_apart(output, 3).numbers
        assert not is_same(*read_both(output, type(output)(name="b", score=0.5)))
        assert not is_same(*read_both(output, type(output)(name="a", score=0.6)))
        assert is_same(*read_both(output, type(output)(name="a", score=0.5)))
    assert take_apart(complex(1, 2), 3).numbers == [1.0, 2.0]
    assert take_apart(np.array(["a", "b"]), 3) == take_apart(["a", "b"], 3)
    parts = OutputParts(form=["x"])
    assert take_apart(parts, 3) is parts


# ---- Outputs that are nothing but numbers.


def test_to_numbers() -> None:
    """Arrays and nested lists of numbers become flat, and everything else is None."""
    assert to_numbers(np.array([[1, 2], [3, 4]], dtype=np.int8)).tolist() == [1, 2, 3, 4]
    assert to_numbers([[1, 2.5], (True, 4)]).tolist() == [1, 2.5, 1, 4]
    assert to_numbers([np.arange(2), np.arange(2)]).tolist() == [0, 1, 0, 1]
    assert to_numbers(np.array([np.nan, np.inf])).tolist()[1] == math.inf
    assert to_numbers(np.zeros((2, 2), dtype=bool)).dtype == np.float64
    others: list[Any] = [
        None, "1", b"1", np.str_("1"), {}, {"a": 1}, {1}, frozenset({1}), [], [[]], (), np.zeros(0), [1, "a"],
        [1, None], [[1, 2], [3]], ["a"], np.array(["1"]), np.array([None]), 1j, np.array([1j]), [(1, {2})],
        np.datetime64("2024-01-01"), Failure("E", ""), OutputParts(), object(),
    ]  # fmt: skip
    for output in others:
        assert to_numbers(output) is None, output


# ---- Rows.


@pytest.mark.parametrize(
    "outputs",
    [
        np.array([[0.5, -1.0, np.nan], [1.0, np.inf, 2.0**-60], [-0.0, 0.0, 3.0]]),
        np.array([[1, 2], [3, 2**40]]),
        np.array([[True, False], [False, False]]),
    ],
)
def test_fast_path_is_slow_path(outputs: np.ndarray) -> None:
    """A matrix, a list of its rows, and lists of its numbers give the same numbers, to the last bit."""
    reader = OutputReader(list(outputs), 3)
    assert reader.is_plain
    rows = reader.read(outputs.astype(np.float64))
    assert rows[:, :-1].tobytes() == outputs.astype(np.float64).tobytes()
    assert not rows[:, -1].any()
    assert reader.is_number.tolist() == [True] * outputs.shape[1] + [False]
    assert is_same(reader.read(list(outputs)), rows)
    for others in (outputs.tolist(), [tuple(row) for row in outputs], [row[None] for row in outputs]):
        assert is_same(reader.read(others)[:, :-1], rows[:, :-1])
        assert reader.read(others)[:, -1].all()  # of another form
    assert is_same(OutputReader([0.5, 1.5], 3).read([0.5, 1.5]), np.array([[0.5, 0.0], [1.5, 0.0]]))
    assert OutputReader([0.5, 1.5], 3).read([np.float64(0.5), np.float32(0.5), 1])[:, -1].all()  # of another type


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (None, "ok"),
        (None, 0.0),
        ("ok", "no"),
        ("score 1", "score 2"),
        (1.0, [1.0, 1.0]),
        (np.zeros(2), np.zeros(3)),
        (np.array([0.0, np.nan]), np.array([0.0, 1.0])),
        (Failure("KeyError", "x"), Failure("ValueError", "x")),
        (Failure("KeyError", "x"), Failure("KeyError", "y")),
        (Failure("KeyError", "at 1"), Failure("KeyError", "at 2")),
        (Failure("KeyError", "x"), 1.0),
        ({"a": 1.0, "b": 2.0}, {"b": 2.0, "a": 1.0}),
        ({"a": 1.0}, {"b": 1.0}),
        ({"a": 1.0}, {"a": 1.5}),
        ({"a": "x"}, {"a": "y"}),
        ({1, 2}, {1, 3}),
        ({1, 2}, {1}),
        (["a", "b"], ["b", "a"]),
        (["a"], ["a", "a"]),
        ([("a", 0.5), ("b", 0.5)], [("b", 0.5), ("a", 0.5)]),
        ([2, 0, 1], [2, 1, 0]),
        ([0, None], [1, None]),
        ([0.5, True], [0.5, 1, 1]),
        ({"a": [1, None]}, {"a": [None, 1]}),
        (b"a", b"b"),
        ([], {}),
        ([], None),
        ((), []),
    ],
)
def test_different_outputs_have_different_rows(one: Any, other: Any) -> None:
    """A reader that saw both distinguishes them, and reads each of them again as before."""
    reader = OutputReader([one, other], 4)
    rows = reader.read([one, other, one])
    assert not is_same(rows[0], rows[1])
    assert is_same(rows[0], rows[2])
    assert rows.shape == (3, len(reader.is_number))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["yes", "no", "no"], ["yes", "no", "yes"]),
        (("a", "a", "b"), ("a", "b", "b")),
        (({1, 2}, {2, 3}), ({1, 2}, {1, 3})),
        ([["a", "b"], ["b", "c"]], [["a", "b"], ["a", "c"]]),
        ({"x": {"a": 1.0, "b": 2.0}, "y": {"a": 3.0}}, {"x": {"a": 1.0, "b": 2.0}, "y": {"b": 3.0}}),
    ],
)
def test_repeated_ids_have_different_rows(one: Any, other: Any) -> None:
    """Labels, one for each record, and ids that several answers name: what is named again matters too."""
    assert not is_same(*read_both(one, other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.zeros((2, 3)), np.zeros((3, 2))),
        ([1.0, 2.0], (1.0, 2.0)),
        ([1, 0], [True, False]),
        ([[1.0, 2.0]], [1.0, 2.0]),
    ],
)
def test_forms_of_numbers_have_different_rows(one: Any, other: Any) -> None:
    """Arrays of other shapes and sequences of other types are different outputs, with the same numbers."""
    assert not is_same(*read_both(one, other))


@pytest.mark.parametrize(
    ("one", "other"), [(2**60, 2**60 + 1), (10**400, 10**400 + 1), (["x", 2**60], ["x", 2**60 + 1])]
)
def test_large_whole_numbers_have_different_rows(one: Any, other: Any) -> None:
    assert not is_same(*read_both(one, other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        ({"a": 1}, {"a": 1.0}),
        ([1, 2.0], [1.0, 2]),
        ([[1, 2.0]], [[1.0, 2.0]]),
        ([[1.0], (2.0,)], [(1.0,), [2.0]]),
        (True, 1),
        (1.0, np.float64(1.0)),
        (np.zeros(2), np.zeros(2, dtype=np.float32)),
        ({"a": np.zeros(2)}, {"a": np.zeros(2, dtype=np.int8)}),
        (np.array([1.0, np.nan]), np.array([1.0, 0.0])),
        (ValueError("no record"), ValueError("too short")),
        (Failure("E", "x", {"record": 1}), Failure("E", "x", {"record": 2})),
    ],
)
def test_types_have_different_rows(one: Any, other: Any) -> None:
    """A number with and without a decimal point, and exceptions that are returned and not raised."""
    assert not is_same(*read_both(one, other))


def test_later_numbers_of_mixed_outputs() -> None:
    """One missing output in the beginning must not hide the later numbers of all others."""
    one, other = np.zeros(100), np.zeros(100)
    other[80] = 1.0
    rows = OutputReader([None, one, other], 4).read([one, other])
    assert not is_same(rows[0], rows[1])


def test_columns_of_mixed_outputs() -> None:
    """Ids have a column for their place and one for their number; missing values are -1 and NaN."""
    outputs = [{"a": 0.5, "b": 0.25}, {"b": 2.0}, None]
    reader = OutputReader(outputs, 4)
    assert not reader.is_plain
    rows = reader.read(outputs)
    # Three types are counted, dict, number and None; and two numbers have a key.
    assert rows.shape == (3, 2 * 2 + 2 + 1 + 3 + 2 + 2 + 2)
    assert reader.is_number.tolist() == [True] * 12 + [False] * 4
    assert rows[:, 0].tolist() == [0, -1, -1]
    assert rows[:, 1].tolist() == [1, 0, -1]
    assert is_same(rows[:, 3], np.array([0.25, 2.0, np.nan]))
    assert is_same(rows[:, 4:6], np.array([[0.5, 0.25], [2.0, np.nan], [np.nan, np.nan]]))
    assert rows[:, 6].tolist() == [2, 1, 0]
    assert sorted(rows[:, 7:10].T.tolist()) == [[0, 0, 1], [1, 1, 0], [2, 1, 0]]
    assert is_same(rows[:, 10:12], np.array([[0.5, 0.25], [np.nan, 2.0], [np.nan, np.nan]]))
    assert len(set(rows[:, 12])) == 3
    assert len(set(rows[:, 13])) == 3


def test_columns_are_limited() -> None:
    """Outputs with very many ids and numbers have rows of a fixed length."""
    large = {f"d{number}": float(number) for number in range(500)}
    reader = OutputReader([large, {}], 1_000)
    assert len(reader.is_number) == 4 * 256 + 500 + 1 + 1 + 2
    assert reader.read([large, {}]).shape == (2, 4 * 256 + 500 + 1 + 1 + 2)
    # The order of all of them counts: here the last two are swapped.
    items = list(large.items())
    assert not is_same(*reader.read([large, dict([*items[:-2], items[-1], items[-2]])]))


@pytest.mark.parametrize("place", [0, 700, 1_490])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda values: dict(enumerate(values[::-1].tolist())),
        lambda values: [None, *values[::-1].tolist()],
        lambda values: [("x", None), *((f"d{place}", value) for place, value in enumerate(values.tolist()))][:1_500],
        lambda values: [f"{int(value / 4)}" for value in values],
        lambda values: {"a": values[::-1], "b": None},
    ],
    ids=["dict", "list", "pairs", "words", "array"],
)
def test_columns_that_move_are_kept(wrap: Callable[[np.ndarray], Any], place: int) -> None:
    """Of more entries than there are columns, one that tells the sides apart has a column, wherever it is."""
    rng = np.random.default_rng(place)
    sides = np.arange(40) % 2 == 0
    numbers = rng.normal(size=(40, 3_000))
    numbers[:, place] = np.where(sides, 8.5, -8.5)
    examples = [wrap(row) for row in numbers]
    reader = OutputReader(examples, 9_000, sides)
    assert len(reader.is_number) < 6_000
    rows = np.nan_to_num(reader.read(examples), nan=-1.0)
    moved = rows[sides].min(axis=0) > rows[~sides].max(axis=0)
    moved |= rows[sides].max(axis=0) < rows[~sides].min(axis=0)
    assert moved.any()  # by chance with a probability below 1e-7: 40! / (20! 20!) is 1.4e11


def test_constant_columns_come_last() -> None:
    """Without sides, columns that differ between examples are kept before constant ones."""
    one, other = {f"d{number}": 0.5 for number in range(3_000)}, {f"d{number}": 0.5 for number in range(3_000)}
    other["d2900"] = 0.75
    reader = OutputReader([one, other], 4_000)
    rows = reader.read([one, other])
    assert (rows[0, reader.is_number] != rows[1, reader.is_number]).sum() >= 2  # among the ids and the numbers


def test_buffers_are_copied() -> None:
    """A release that writes every output to one array, or one list, has different outputs."""
    buffer, items, rng = np.zeros(3), [0.0, 0.0], np.random.default_rng(0)

    def fill(_: np.ndarray) -> np.ndarray:
        buffer[:] = rng.normal(size=3)
        return buffer

    def fill_items(_: np.ndarray) -> list[float]:
        items[:] = rng.normal(size=2).tolist()
        return items

    for release in (fill, fill_items):
        outputs = Source(release, seed=None, timeout=None).draw(np.eye(2), 5)
        assert len({tuple(output) for output in outputs}) == 5


def test_iterators_are_read_once() -> None:
    """What an iterator yields is read where it is drawn, and again as often as needed."""
    outputs = Source(lambda rows: iter(rows.tolist()), seed=None, timeout=None).draw(np.eye(2), 3)
    texts = Source(lambda rows: (f"{row}" for row in rows), seed=None, timeout=None).draw(np.eye(2), 3)
    for drawn in (outputs, texts):
        reader = OutputReader(drawn, 2)
        assert is_same(reader.read(drawn), reader.read(drawn))
        assert 1.0 in reader.read(drawn)[0]


def test_failures_have_attributes() -> None:
    """What an exception holds besides its message is read, and its cause; a message of one line is not repeated."""
    try:
        try:
            raise KeyError("inner")
        except KeyError as cause:
            error = OSError(2, "no such file")
            error.add_note("a note")
            raise error from cause
    except OSError as caught:
        failure = make_failure(caught)
    assert (failure.kind, failure.message) == ("FileNotFoundError", "[Errno 2] no such file")
    assert failure.attributes == {"__notes__": ["a note"], "cause": Failure("KeyError", "'inner'")}
    assert make_failure(ValueError("one\ntwo")).attributes == {"line 2": "two"}
    assert make_failure(ValueError("one", 2)).attributes == {"argument 2": 2}
    assert make_failure(ValueError("one")).attributes == make_failure(KeyError("one")).attributes == {}
    assert "note" in take_apart(failure, 3).counts
    assert "inner" in take_apart(failure, 3).counts


def test_parts_within_lists() -> None:
    """A session puts two outputs that are taken apart into a list: nothing of them is lost."""
    one, other = (prepare_output(output, 3) for output in ({"a": 0.5}, {"b": "text 1.5"}))
    both = take_apart([one, other], 3)
    whole = take_apart([{"a": 0.5}, {"b": "text 1.5"}], 3)
    assert (both.form, both.numbers, both.words, both.places) == (whole.form, whole.numbers, whole.words, whole.places)
    assert both.counts == whole.counts
    failed = take_apart([one, Failure("KeyError", "x")], 3)
    assert failed.form[-2:] == ["raises KeyError", "x"]


@pytest.mark.parametrize(
    "later", [None, "late 3", np.zeros(3), [1.0, None], {"a": 1.0}, {2}, Failure("KeyError", "x"), [], [1.0]]
)
def test_numbers_become_other_outputs(later: Any) -> None:
    """Outputs were two numbers until now: others have no numbers, and the token of their form."""
    reader = OutputReader([np.zeros(2), [1.0, 2.0]], 4)
    rows = reader.read([np.ones(2), later, later])
    assert rows[0].tolist() == [1, 1, 0]
    assert np.isnan(rows[1, :2]).all()
    assert rows[1, 2] == make_token(" ".join(take_apart(later, 4).form)) != 0
    assert is_same(rows[1], rows[2])


def test_matrix_of_another_width() -> None:
    """A release in bulk that changes its width: every row has the token of the new one."""
    reader = OutputReader([np.zeros(2)], 4)
    rows = reader.read(np.zeros((5, 3)))
    assert rows.shape == (5, 3)
    assert np.isnan(rows[:, :2]).all()
    assert set(rows[:, 2]) == {make_token("array(3,)")}


def test_other_outputs_become_numbers() -> None:
    """Outputs were texts until now: numbers, new ids and longer outputs still have rows, which differ."""
    reader = OutputReader(["ok", None], 4)
    assert not reader.is_plain
    outputs = [0.5, np.zeros(3), {"new": 1.0}, {"newer": 1.0}, "ok", Failure("KeyError", "x")]
    rows = reader.read(outputs)
    assert rows.shape == (6, len(reader.is_number))
    assert len({row.tobytes() for row in rows}) == 6
    assert is_same(reader.read(np.zeros((2, 3)))[0], rows[1])


def test_readers_agree() -> None:
    """The row of an output does not depend on its neighbours in a batch."""
    rng = np.random.default_rng(0)
    outputs = [
        {f"d{i}": round(float(rng.random()), 3) for i in rng.permutation(5)[: rng.integers(6)]} for _ in range(40)
    ]
    reader = OutputReader(outputs, 5)
    together = reader.read(outputs)
    assert is_same(together, np.concatenate([reader.read([output]) for output in outputs]))
    assert is_same(together, np.array(OutputReader(outputs, 5).read(tuple(outputs))))


# ---- Tokens.


def test_tokens() -> None:
    """Tokens are exact as floats, equal for equal texts only, and take any text."""
    texts = [f"array({number},)" for number in range(2_000)]
    tokens = [make_token(text) for text in texts]
    assert len(set(tokens)) == len(texts)
    assert [make_token(text) for text in texts] == tokens
    assert all(token == int(token) and 0 <= token < 2**32 for token in tokens)
    assert make_token("") == 0.0
    assert make_token("ä\n\udcff") > 0
