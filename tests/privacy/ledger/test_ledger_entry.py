"""One entry of a ledger: its text, its hash, and what is wrong with it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, fields, replace
from typing import Any

import pytest

import scoreshield as ss
from scoreshield._validation import check_text
from scoreshield.privacy.ledger import entries
from scoreshield.privacy.ledger.entries import (
    COLUMNS,
    Entry,
    hash_canonical_json,
    is_time,
    read_json,
    read_profile,
    shorten,
    write_canonical_json,
)
from scoreshield.privacy.profiles import PureProfile

PROFILE = write_canonical_json(PureProfile(0.5).to_dict())
ENTRY = Entry(
    id=3,
    format=1,
    kind="charge",
    time="2026-01-02T03:04:05.000006+00:00",
    note="",
    dataset="faces",
    unit="replacement",
    who="ann",
    why="test",
    profile=PROFILE,
    guarantee='{"delta":0.0,"epsilon":0.5}',
    previous="a" * 64,
).seal()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x", "'x'"),
        (None, "None"),
        ("x" * 38, "'" + "x" * 38 + "'"),
        ("x" * 39, "'" + "x" * 36 + "..."),
        ("\u00e9\x1b[31m", r"'\xe9\x1b[31m'"),
    ],
)
def test_brief(value: object, text: str) -> None:
    """Forty characters of ASCII at most, and nothing that a terminal acts on."""
    assert shorten(value) == text


def test_json(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_json('{"a":[1,2.5,null]}') == {"a": [1, 2.5, None]}
    monkeypatch.setattr(entries, "_LONGEST", 10)
    assert read_json("1234567890") == 1234567890
    with pytest.raises(ValueError, match="long"):
        read_json("12345678901")


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a":-Infinity}', "[" * 100_000, "", "{", "nul"])
def test_bad_json(text: str) -> None:
    """One kind of error for all that is no JSON, a tower of brackets included."""
    with pytest.raises(ValueError, match=r"."):
        read_json(text)


def test_canonical() -> None:
    """Sorted keys, no spaces, ASCII, the shortest numbers; no value that JSON does not have."""
    assert (
        write_canonical_json({"b": 0.1, "a": ["\u00e9", None, True], "c": 1e300})
        == r'{"a":["\u00e9",null,true],"b":0.1,"c":1e+300}'
    )
    for value in (float("nan"), float("inf"), [-float("inf")]):
        with pytest.raises(ValueError, match=r"."):
            write_canonical_json(value)


def test_digest() -> None:
    assert hash_canonical_json({"b": 1, "a": "\u00e9"}) == hashlib.sha256(rb'{"a":"\u00e9","b":1}').hexdigest()


def test_columns() -> None:
    """The order of the database's columns."""
    order = "id format kind time note dataset unit who why profile guarantee previous hash"
    assert tuple(order.split()) == COLUMNS == tuple(field.name for field in fields(Entry))


def test_hash() -> None:
    """Over every field but the hash itself."""
    facts = asdict(ENTRY)
    del facts["hash"]
    assert ENTRY.compute_hash() == ENTRY.hash == hash_canonical_json(facts)
    assert replace(ENTRY, hash="").seal() == ENTRY
    assert replace(ENTRY, hash="f" * 64).seal() == ENTRY
    for name in facts:
        assert replace(ENTRY, **{name: "other"}).compute_hash() != ENTRY.hash
    for odd in (b"bytes", float("nan")):  # what a database may hold and JSON may not
        assert replace(ENTRY, who=odd).compute_hash() == ""


def test_to_dict() -> None:
    expected: dict[str, Any] = {
        **asdict(ENTRY),
        "profile": json.loads(PROFILE),
        "guarantee": {"delta": 0.0, "epsilon": 0.5},
    }
    assert ENTRY.to_dict() == expected
    for name in ("profile", "guarantee"):
        for value in ("{", None, "NaN", b"\xff"):
            with pytest.raises(ss.LedgerError, match="Entry 3 "):
                replace(ENTRY, **{name: value}).to_dict()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"previous": "b" * 64}, "does not follow"),
        ({"who": "bob", "hash": ENTRY.hash}, "was changed"),
        ({"hash": "f" * 64}, "was changed"),
        ({"who": b"bytes", "hash": ""}, "was changed"),
        ({"format": 2}, "format 2 and kind 'charge'"),
        ({"format": 0}, "format 0 and kind 'charge'"),
        ({"kind": "refund"}, "format 1 and kind 'refund'"),
        ({"time": "2026-01-02T03:04:05"}, "a time that cannot be read"),
        ({"profile": "{"}, "profile or guarantee that cannot be read"),
        ({"profile": '{"kind":"unknown"}'}, "profile or guarantee that cannot be read"),
        ({"profile": 7}, "profile or guarantee that cannot be read"),
        ({"guarantee": "{"}, "profile or guarantee that cannot be read"),
        ({"guarantee": None}, "profile or guarantee that cannot be read"),
    ],
)
def test_fault(change: dict[str, Any], words: str) -> None:
    """Whoever has changed an entry may have given it a hash that fits."""
    bad = replace(ENTRY, **change)
    bad = bad if "hash" in change else bad.seal()
    assert words in (bad.find_fault("a" * 64) or "")


def test_no_fault() -> None:
    assert ENTRY.find_fault("a" * 64) is None
    assert replace(ENTRY, dataset=None).seal().find_fault("a" * 64) is None


def test_times() -> None:
    assert is_time("2026-01-02T03:04:05.000006+00:00")
    assert is_time("2026-01-02T03:04:05+02:00")
    for text in ("2026-01-02T03:04:05", "2026-01-02", "yesterday", "", None, 5):
        assert not is_time(text)


def test_profiles() -> None:
    assert read_profile(PROFILE) == PureProfile(0.5)
    for text in (
        "{",
        "[]",
        "7",
        "null",
        "{}",
        '{"kind":"pure"}',
        '{"kind":"pure","epsilon":"x"}',
        '{"kind":"unknown"}',
    ):
        with pytest.raises(ss.LedgerError, match="privacy profile"):
            read_profile(text)


def test_texts() -> None:
    """Free text is up to 1,000 printable characters, unless the caller says otherwise."""
    for good in ("", "a", "x" * 1000, "\u00e9 \u9854"):
        assert check_text(good, "who") == good
    for bad in ("x" * 1001, "a\nb", "\x00", "\ud800", None, 3, b"a"):
        with pytest.raises(ss.InvalidInput):
            check_text(bad, "who")
    assert check_text("ab", "who", least=2, most=2) == "ab"
    for bad in ("a", "abc"):
        with pytest.raises(ss.InvalidInput):
            check_text(bad, "who", least=2, most=2)
