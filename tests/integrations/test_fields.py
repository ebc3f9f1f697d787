"""Public fields: metadata leaves without scores and vectors, and filters name declared fields alone."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import uuid
from typing import Any, NamedTuple

import numpy as np
import pytest

from scoreshield.errors import InvalidInput
from scoreshield.integrations.fields import GUARANTEE_FIELD, PublicFields, scrub_metadata

ROWS = np.random.default_rng(2).standard_normal((20, 4))


class Pair(NamedTuple):
    left: Any
    right: Any


def test_numpy_scalars() -> None:
    """A single number of NumPy stays, as a Python number."""
    given = {
        "year": np.int64(2021), "price": np.float32(0.5), "open": np.bool_(True), "name": np.str_("x"),
        "zero": np.array(7), "list": [np.int8(1), {"deep": np.float64(2)}], "pair": (np.uint16(3), "a"),
    }  # fmt: skip
    found = scrub_metadata(given)
    assert found == {
        "year": 2021, "price": 0.5, "open": True, "name": "x", "zero": 7, "list": [1, {"deep": 2.0}], "pair": (3, "a"),
    }  # fmt: skip
    assert [type(found[name]) for name in ("year", "price", "open", "name", "zero")] == [int, float, bool, str, int]
    json.dumps(found)
    time = np.datetime64("2021-05-01")
    assert scrub_metadata({"when": time}) == {"when": time}


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
def test_vectors(vector: Any) -> None:
    """Vectors are dropped, in every form and at any depth."""
    assert scrub_metadata({"a": vector, "b": 1}) == {"b": 1}
    assert scrub_metadata({"a": {"deep": vector, "b": 1}}) == {"a": {"b": 1}}
    assert scrub_metadata({"a": [vector, "b"]}) == {"a": ["b"]}
    assert scrub_metadata({"a": ("b", [{"deep": vector}, vector])}) == {"a": ("b", [{}])}
    assert scrub_metadata({"a": Pair(vector, "b")}) == {"a": ("b",)}


@pytest.mark.parametrize("thing", [b"packed", object(), ROWS.data, iter([0.5]), lambda: 0.5, Ellipsis, ROWS.tolist])
def test_other_types(thing: Any) -> None:
    """A value of another type may hold a vector, whatever its name is."""
    assert scrub_metadata({"a": thing, "b": {"c": thing}, "d": [thing, 1]}) == {"b": {}, "d": [1]}


def test_plain_values() -> None:
    """Plain values stay as they are."""
    day = dt.datetime(2021, 5, 1, tzinfo=dt.UTC)
    given = {
        "text": "x", "none": None, "day": day, "date": day.date(), "time": day.time(), "span": dt.timedelta(1),
        "id": uuid.UUID(int=1), "price": decimal.Decimal("1.5"), "tags": {"a", "b"}, "few": [0.5] * 7, "pair": (1, "a"),
        "boxes": [{"page": 1, "box": {"left": 0.1, "top": 0.2, "right": 0.3, "bottom": 0.4}}] * 9, "many": ["a"] * 9,
    }  # fmt: skip
    assert scrub_metadata(given) == given
    assert scrub_metadata({"set": frozenset(range(8)), "names": frozenset("ab")}) == {"names": frozenset("ab")}


def test_declared_fields() -> None:
    """Filters need declared fields, and answers carry the visible ones."""
    fields = PublicFields.declare(["year"], None)
    fields.require(["year"])
    with pytest.raises(InvalidInput, match=r"^A filter on the field 'name' needs filterable=\['name'\], because"):
        fields.require(["year", "name"])
    assert fields.select({"year": 1, "name": "x", "score": 0.5}) == {"year": 1, "name": "x"}
    assert PublicFields.declare((), ["name"]).select({"year": 1, "name": "x"}) == {"name": "x"}
    assert PublicFields.declare((), []).select({"year": 1}) == {}
    for wrong in ("year", 3, [3]):
        with pytest.raises(InvalidInput, match="'visible' parameter must be a list of names of fields"):
            PublicFields.declare((), wrong)


@pytest.mark.parametrize("key", ["score", "_distance", "Similarity", "embedding", GUARANTEE_FIELD])
def test_score_names(key: str) -> None:
    """A field with the name of a score is dropped."""
    assert scrub_metadata({key: 0.5, "a": {key: 0.5}}) == {"a": {}}
    assert scrub_metadata(None) == {}
