"""The hash of labels, units and sums of a ledger, in small pieces."""

from __future__ import annotations

import sqlite3
import unicodedata
from pathlib import Path

import numpy as np
import pytest

import scoreshield as ss
from scoreshield.privacy.ledger.names import normalise_name
from scoreshield.privacy.ledger.postgres import _write_address
from scoreshield.privacy.ledger.units import _hash_labels, make_charge

KEY = bytes(32)
INTEGERS = "e6ce004d46bf0499354ec31278476eb84fe01b19d0c486568c13eab5063b76fa"
LARGE = "a62777081894b26af6830079592960451f525feba1b02acd7d9241ed0042677e"
TEXTS = "f4b2c1eb235c94a59fb6b4ee28f72410ed6387a9651d17e2a5da50d254316802"
BYTES = "03033ded7128b37c7a6141bbc4aac7e9556fcbaff64c71e1b934794f1d3bc225"


def test_equal_labels_hash_whatever_array_holds() -> None:
    """Equal labels have one hash whatever array holds them."""
    same = [np.array([1, 2, 200], dtype=kind) for kind in ("i8", "u1", "u2", "i2", ">i4", "u8")]
    assert len({_hash_labels(labels, KEY) for labels in same}) == 1
    texts = [np.array(["a", "bc"]), np.array(["a", "bc"], dtype="<U9"), np.array(["a", "bc"], dtype=">U2")]
    assert len({_hash_labels(labels, KEY) for labels in texts}) == 1
    largest = [np.array([1, 2**63 - 1], dtype=kind) for kind in ("i8", "u8")]
    assert len({_hash_labels(labels, KEY) for labels in largest}) == 1
    assert _hash_labels(np.array([True, False]), KEY) == _hash_labels(np.array([1, 0]), KEY)


def test_other_labels_have_another_hash() -> None:
    labels = [
        np.array([1, 2]),
        np.array([2, 1]),
        np.array([1, 2, 2]),
        np.array([-1, 2]),
        np.array([2**64 - 1, 2], dtype=np.uint64),  # the same bits as -1, 2
        np.array(["1", "2"]),
        np.array([b"1", b"2"]),
        np.array(["12", ""]),
    ]
    assert len({_hash_labels(each, KEY) for each in labels}) == len(labels)
    assert _hash_labels(labels[0], KEY) != _hash_labels(labels[0], bytes(31) + b"1")


def test_another_process_charged_counted_before(tmp_path: Path) -> None:
    """Two handles of one ledger: each catches up with what the other has written, and the limit holds for both."""
    rows, query = np.eye(6), np.ones(6)
    first = ss.Ledger.create(f"sqlite:///{tmp_path / 'l.db'}", epsilon=1.0, delta=0.0)
    second = ss.Ledger.open(f"sqlite:///{tmp_path / 'l.db'}")
    for number in range(8):
        handle = (first, second)[number % 2]
        ss.release_scores(rows, query, epsilon=0.125, mechanism="laplace", ledger=handle.account("six"))
        assert first.account("six").spent == second.account("six").spent == pytest.approx(0.125 * (number + 1))
    for handle in (first, second):
        with pytest.raises(ss.BudgetExceeded):
            ss.release_scores(rows, query, epsilon=0.125, mechanism="laplace", ledger=handle.account("six"))
    assert len(first.entries()) == 8


def test_the_hash_of_labels_never_changes() -> None:
    """A ledger holds these hashes; another way to compute them would take known groups for new ones."""
    assert _hash_labels(np.array([1, 2, 2]), KEY) == INTEGERS
    assert _hash_labels(np.array([1, 2**63], dtype=np.uint64), KEY) == LARGE
    assert _hash_labels(np.array(["ann", "bob"]), KEY) == TEXTS
    assert _hash_labels(np.array([b"ann", b"bob"]), KEY) == BYTES


def test_names_letters_every_alphabet_plain() -> None:
    """Names are of letters of every alphabet and of plain characters."""
    # Upper, lower and title case, letters without case, digits and punctuation.
    for name in (
        "Faces",
        "faces-2024_v2 (EU)",
        "\u01c5ep",
        "\u9854",
        "\u0436\u0443\u043a",
        "\u05d0\u05d1",
        "x" * 200,
        "a",
    ):
        if unicodedata.normalize("NFKC", name) == name:
            assert normalise_name(name) == name
    assert normalise_name("caf" + "e\u0301") == "caf\u00e9"
    for name in (
        "",
        "x" * 201,
        " faces",
        "faces ",
        "two  spaces",
        "tab\there",
        "line\nbreak",
        "zero\u200bwidth",
        "soft\u00adhyphen",
        "no\u00a0break",
        "filler\u3164",
        "\uac00\u115f",  # a filler that is a letter by its kind
        "\uff46aces",  # full width
        "\ufb01les",  # a ligature
        "f\u0430ces",  # one Cyrillic letter among Latin ones
        "\u0430\u0441\u0435",  # Cyrillic letters that look Latin
        "hmac-sha256:00",
        "HMAC-SHA256:00",
        "\ud800",
        "\ue000",  # a private character, without a name
    ):
        with pytest.raises(ss.InvalidInput):
            normalise_name(name)
    for name in (None, 3, b"faces", ["faces"]):
        with pytest.raises(ss.InvalidInput):
            normalise_name(name)


def test_name_server_host_port_database() -> None:
    """The name of a server is host port and database."""
    secret = {"password": "s3cret", "user": "ann", "sslkey": "k"}
    assert _write_address({"host": "db", "port": "5432", "dbname": "x", **secret}) == "postgresql://db:5432/x"
    assert _write_address({"hostaddr": "10.0.0.1", "dbname": "a/b", **secret}) == "postgresql://10.0.0.1/a%2Fb"
    assert _write_address({"host": "a,b", "port": "1,2", **secret}) == "postgresql://a,b:1,2/"
    assert _write_address({"host": "/run/pg", "dbname": "x"}) == "postgresql:///run/pg/x"
    assert _write_address(secret) == "postgresql:///"


def test_a_release_is_charged_by_its_guarantee() -> None:
    release = ss.release_scores(np.eye(6), np.ones(6), epsilon=0.5, mechanism="laplace")
    of_release, of_guarantee = (
        make_charge(item, None, KEY, same_people=False) for item in (release, release.guarantee)
    )
    assert of_release == of_guarantee
    assert of_release[0] == release.guarantee.profile


def test_check_names_first_entry_wrong(tmp_path: Path) -> None:
    """A check names the first entry that is wrong."""
    path = tmp_path / "l.db"
    ledger = ss.Ledger.create(f"sqlite:///{path}", epsilon=2.0, delta=0.0)
    for _ in range(4):
        ss.release_scores(np.eye(6), np.ones(6), epsilon=0.125, mechanism="laplace", ledger=ledger.account("six"))
    good = ledger.verify()
    assert good
    assert (good.entries, good.first_bad, good.reason) == (4, None, "")
    assert good.head.startswith("4:")
    assert ledger.verify(head=good.head)
    other = ss.Ledger.create(f"sqlite:///{tmp_path / 'other.db'}", epsilon=2.0, delta=0.0)
    for _ in range(4):
        ss.release_scores(np.eye(6), np.ones(6), epsilon=0.125, mechanism="laplace", ledger=other.account("six"))
    foreign = ledger.verify(head=other.verify().head)
    assert not foreign
    assert (foreign.entries, foreign.first_bad) == (3, 4)
    assert foreign.reason
    assert set(ledger.entries()[0].to_dict()) >= {"dataset", "guarantee", "hash", "previous", "profile", "time"}
    times = [entry.time for entry in ledger.entries()]
    assert times == sorted(times)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE scoreshield_entries SET note = 'forged' WHERE id = 3")
    bad = ledger.verify()
    assert not bad
    assert (bad.entries, bad.first_bad) == (2, 3)
    assert bad.head.startswith("2:")
    assert bad.reason


@pytest.mark.parametrize("url", ["mysql://ann:s3cret@db/x", "ann:s3cret@db", "http://s3cret@db"])
def test_address_none_not_repeated_password(url: str) -> None:
    """An address that is none is not repeated with its password."""
    with pytest.raises(ss.ScoreShieldError) as caught:
        ss.Ledger.open(url)
    assert "s3cret" not in str(caught.value)
