"""What every adapter does alike: metadata without scores and vectors, and with what a score is worth."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import uuid
from typing import Any, NamedTuple

import numpy as np
import pytest

from scoreshield.errors import InvalidInput
from scoreshield.integrations._common import KEY, Fields, annotated, growing_pages, look_every, scrub
from scoreshield.search import PrivateSearch

ROWS = np.random.default_rng(2).standard_normal((20, 4))


class Pair(NamedTuple):
    left: Any
    right: Any


def test_single_numbers_of_numpy_stay_as_python_s() -> None:
    given = {
        "year": np.int64(2021), "price": np.float32(0.5), "open": np.bool_(True), "name": np.str_("x"),
        "zero": np.array(7), "list": [np.int8(1), {"deep": np.float64(2)}], "pair": (np.uint16(3), "a"),
    }  # fmt: skip
    found = scrub(given)
    assert found == {
        "year": 2021, "price": 0.5, "open": True, "name": "x", "zero": 7, "list": [1, {"deep": 2.0}], "pair": (3, "a"),
    }  # fmt: skip
    assert [type(found[name]) for name in ("year", "price", "open", "name", "zero")] == [int, float, bool, str, int]
    json.dumps(found)
    time = np.datetime64("2021-05-01")
    assert scrub({"when": time}) == {"when": time}


@pytest.mark.parametrize(
    "vector",
    [
        ROWS[0], ROWS[:1], np.float32([1]), np.array(["a"]), np.array([0.5, 1], dtype="f8,f8")[0],
        np.array(ROWS[0], dtype=object), [0.5] * 8, tuple(np.float32([0.5] * 8)),
        np.zeros(1, dtype=[("v", "f4", 3)])[0],
        {str(place): 0.5 for place in range(8)}, {"a": [0.5] * 4, "b": [0.5] * 4},
        [(place, 0.5) for place in range(4)], [[0.5, 0.5]] * 4, ["a", True, *[0.5] * 8], [np.array(0.5)] * 8,
        [decimal.Decimal("0.5")] * 8,
    ],
)  # fmt: skip
def test_vectors_do_not(vector: Any) -> None:
    assert scrub({"a": vector, "b": 1}) == {"b": 1}
    assert scrub({"a": {"deep": vector, "b": 1}}) == {"a": {"b": 1}}
    assert scrub({"a": [vector, "b"]}) == {"a": ["b"]}
    assert scrub({"a": ("b", [{"deep": vector}, vector])}) == {"a": ("b", [{}])}
    assert scrub({"a": Pair(vector, "b")}) == {"a": ("b",)}


@pytest.mark.parametrize("thing", [b"packed", object(), ROWS.data, iter([0.5]), lambda: 0.5, Ellipsis, ROWS.tolist])
def test_only_plain_values_stay(thing: Any) -> None:
    """What is no plain value may hold a vector, whatever it is called."""
    assert scrub({"a": thing, "b": {"c": thing}, "d": [thing, 1]}) == {"b": {}, "d": [1]}


def test_plain_values_stay_as_they_are() -> None:
    day = dt.datetime(2021, 5, 1, tzinfo=dt.UTC)
    given = {
        "text": "x", "none": None, "day": day, "date": day.date(), "time": day.time(), "span": dt.timedelta(1),
        "id": uuid.UUID(int=1), "price": decimal.Decimal("1.5"), "tags": {"a", "b"}, "few": [0.5] * 7, "pair": (1, "a"),
        "boxes": [{"page": 1, "box": {"left": 0.1, "top": 0.2, "right": 0.3, "bottom": 0.4}}] * 9, "many": ["a"] * 9,
    }  # fmt: skip
    assert scrub(given) == given
    assert scrub({"set": frozenset(range(8)), "names": frozenset("ab")}) == {"names": frozenset("ab")}


def test_fields_are_declared() -> None:
    fields = Fields.checked(["year"], None)
    fields.require(["year"])
    with pytest.raises(InvalidInput, match=r"^A filter on the field 'name' needs filterable=\['name'\], because"):
        fields.require(["year", "name"])
    assert fields.shown({"year": 1, "name": "x", "score": 0.5}) == {"year": 1, "name": "x"}
    assert Fields.checked((), ["name"]).shown({"year": 1, "name": "x"}) == {"name": "x"}
    assert Fields.checked((), []).shown({"year": 1}) == {}
    for wrong in ("year", 3, [3]):
        with pytest.raises(InvalidInput, match="'visible' parameter must be a list of names of fields"):
            Fields.checked((), wrong)


def test_pages_grow_and_hold_every_id_once() -> None:
    pages = list(growing_pages(range(1_000)))
    assert [len(page) for page in pages] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 256, 233]
    assert [one for page in pages for one in page] == list(range(1_000))


@pytest.mark.parametrize("key", ["score", "_distance", "Similarity", "embedding", KEY])
def test_scores_do_not_by_their_names(key: str) -> None:
    assert scrub({key: 0.5, "a": {key: 0.5}}) == {"a": {}}
    assert scrub(None) == {}


def test_annotated() -> None:
    search = PrivateSearch(ROWS, epsilon=5)
    hits = search.search(ROWS[0], 2)
    assert hits.noisy is not None
    found = annotated(scrub({"year": np.int64(2021), "score": 1.0}), search, hits, 1)
    assert found == {"year": 2021, KEY: {**search.facts(hits), "noisy_score": float(hits.noisy[1])}}
    assert found[KEY]["epsilon"] == 5


def test_large_stores_in_memory_are_looked_at_once_a_second() -> None:
    """A look takes a millisecond or more there; small ones are looked at before every release."""
    assert look_every(20_000) == 0.0
    assert look_every(20_001) == 1.0
