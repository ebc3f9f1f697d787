"""Who a charge protects, in small pieces."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ledger_support import Promise, pure

import scoreshield as ss
from scoreshield.privacy.ledger import units
from scoreshield.privacy.ledger.entries import write_canonical_json
from scoreshield.privacy.ledger.units import _drop_hash, _drop_identities, _hash_labels, check_units, make_charge
from scoreshield.privacy.profiles import Profile, PureProfile

KEY = bytes(range(32))
OLD = "identity centroids False identities 3 largest 2"
NEW = OLD + " labels " + "a" * 64
OTHER = "identity centroids False identities 4 largest 2 labels " + "b" * 64
CENTROIDS = "identity centroids True identities 3 largest 2 labels " + "a" * 64


@pytest.mark.parametrize(
    ("known", "unit", "same_people", "words"),
    [
        ([], NEW, False, None),
        ([NEW], NEW, False, None),
        ([NEW, NEW], NEW, False, None),
        ([NEW, OLD], OTHER, True, None),
        ([OTHER], NEW, False, f"about {OTHER.partition(' labels')[0]!r}, and the release groups the records in"),
        ([OLD], NEW, False, f"about {OLD!r} without a hash"),
        ([OLD], NEW, True, None),
        ([NEW], OLD, False, "groups the records in another way"),
        ([CENTROIDS], NEW, True, "makes one about 'identity centroids False identities 3 largest 2'"),
        ([CENTROIDS], NEW, False, "do not add up"),
        (["replacement"], NEW, True, "about 'replacement', and the release makes one about"),
        ([NEW, "replacement"], NEW, False, "about 'replacement'"),
        ([OTHER, "replacement"], NEW, True, "about 'replacement'"),
        (["gram-radius radius 0.5"], "gram-radius radius 0.6", True, "do not add up"),
    ],
)
def test_units(known: list[str], unit: str, same_people: bool, words: str | None) -> None:
    if words is None:
        check_units(known, unit, same_people=same_people)
        return
    with pytest.raises(ss.InvalidInput) as caught:
        check_units(known, unit, same_people=same_people)
    assert words in str(caught.value)
    assert "a" * 64 not in str(caught.value), "nobody can read a hash"


def test_promises() -> None:
    """The numbers and the labels of identities come and go; the rest of a unit is what is promised."""
    assert {_drop_identities(unit) for unit in (OLD, NEW, OTHER)} == {"identity centroids False"}
    assert _drop_identities(CENTROIDS) == "identity centroids True"
    for unit in ("replacement", "gram-radius radius 0.5", "other identities 3 largest 2", NEW + "x"):
        assert _drop_identities(unit) == unit
    assert (_drop_hash(NEW), _drop_hash(OLD), _drop_hash("replacement")) == (OLD, OLD, "replacement")


def charge(item: Any, adjacency: Any = None, same_people: bool = False) -> tuple[Profile, str, str]:
    return make_charge(item, adjacency, KEY, same_people=same_people)


class TestCharges:
    def test_whole(self) -> None:
        promise = pure(0.5)
        expected = (PureProfile(0.5), "replacement", write_canonical_json(promise.to_dict()))
        assert charge(promise) == expected
        assert charge(SimpleNamespace(guarantee=promise, sampler="research")) == expected
        assert charge(promise, ss.Replacement()) == expected
        assert charge(pure(0.5, adjacency=ss.GramRadius(0.5)))[1] == "gram-radius radius 0.5"

    @pytest.mark.parametrize("item", [5, None, "text", PureProfile(0.5), SimpleNamespace(guarantee=PureProfile(0.5))])
    def test_no_guarantee(self, item: Any) -> None:
        with pytest.raises(ss.InvalidInput, match="'item' parameter must"):
            charge(item)

    def test_a_profile_with_a_sampler(self) -> None:
        """A profile says nothing of who is protected, whatever else it has."""

        @dataclass(frozen=True)
        class Odd(PureProfile):
            sampler: str = "exact"

        with pytest.raises(ss.InvalidInput, match="'item' parameter must"):
            charge(Odd(0.5))

    def test_seeds(self) -> None:
        with pytest.raises(ss.InvalidInput, match="'research' sampler"):
            charge(pure(0.5, sampler="research"))

    def test_no_profile(self) -> None:
        with pytest.raises(ss.InvalidInput, match="'item' parameter must"):
            charge(Promise("profile"))  # type: ignore[arg-type]

    @pytest.mark.parametrize("mechanism", ["x", "x" * 500])
    def test_long_texts(self, monkeypatch: pytest.MonkeyPatch, mechanism: str) -> None:
        promise = pure(0.5, mechanism=mechanism)
        most = max(len(write_canonical_json(promise.to_dict())), len(write_canonical_json(promise.profile.to_dict())))
        monkeypatch.setattr(units, "LONGEST_WRITTEN", most)
        assert charge(promise)[0] == PureProfile(0.5)
        monkeypatch.setattr(units, "LONGEST_WRITTEN", most - 1)
        with pytest.raises(ss.InvalidInput, match="cannot be written to a ledger: it has more than"):
            charge(promise)

    def test_a_long_profile(self, monkeypatch: pytest.MonkeyPatch) -> None:
        profile = PureProfile(0.1234567890123)
        monkeypatch.setattr(Promise, "to_dict", lambda _: {})
        monkeypatch.setattr(units, "LONGEST_WRITTEN", len(write_canonical_json(profile.to_dict())) - 1)
        with pytest.raises(ss.InvalidInput, match="more than"):
            charge(Promise(profile))

    def test_what_does_not_read_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(units, "profile_from_dict", lambda _: PureProfile(0.25))
        with pytest.raises(ss.InvalidInput, match="does not read back"):
            charge(pure(0.5))
        assert charge(pure(0.25))[0] == PureProfile(0.25)

    @pytest.mark.parametrize("value", [float("nan"), object()])
    def test_what_cannot_be_written(self, monkeypatch: pytest.MonkeyPatch, value: Any) -> None:
        monkeypatch.setattr(Promise, "to_dict", lambda _: {"odd": value})
        with pytest.raises(ss.InvalidInput, match="cannot be written"):
            charge(pure(0.5))


class TestIdentities:
    adjacency = ss.Identity([0, 0, 1])
    promise = pure(0.5, adjacency=ss.Identity([0, 0, 1]).drop_labels())
    plain = "identity centroids False identities 2 largest 2"

    def test_labels(self) -> None:
        hashed = f"{self.plain} labels {_hash_labels(np.array([0, 0, 1]), KEY)}"
        assert charge(self.promise, self.adjacency)[1] == hashed
        assert charge(self.promise, self.adjacency, same_people=True)[1] == hashed
        assert charge(replace(self.promise, adjacency=self.adjacency))[1] == hashed
        assert charge(replace(self.promise, adjacency=self.adjacency), self.adjacency.drop_labels())[1] == hashed
        other = ss.Identity([0, 1, 1])
        theirs = f"{self.plain} labels {_hash_labels(np.array([0, 1, 1]), KEY)}"
        assert charge(replace(self.promise, adjacency=self.adjacency), other)[1] == theirs

    def test_no_labels(self) -> None:
        assert charge(self.promise, same_people=True)[1] == self.plain
        assert charge(self.promise, self.adjacency.drop_labels(), same_people=True)[1] == self.plain
        for adjacency in (None, self.adjacency.drop_labels()):
            with pytest.raises(ss.InvalidInput, match="needs its labels"):
                charge(self.promise, adjacency)

    def test_another_adjacency(self) -> None:
        for other in (ss.Replacement(), ss.Identity([0, 1, 2]), ss.Identity([0, 0, 1], centroids=True)):
            with pytest.raises(ss.InvalidInput, match="'adjacency' parameter must be the one of the release"):
                charge(self.promise, other, same_people=True)


@pytest.mark.parametrize(
    ("labels", "header", "content"),
    [
        (np.array([1, -2]), "integer 8 2", np.array([1, -2], "<i8").tobytes()),
        (np.array([True, False]), "integer 8 2", np.array([1, 0], "<i8").tobytes()),
        (np.array([1, 2], "u1"), "integer 8 2", np.array([1, 2], "<i8").tobytes()),
        (np.array([2**63 - 1, 0], "u8"), "integer 8 2", np.array([2**63 - 1, 0], "<i8").tobytes()),
        (np.array([2**63, 0], "u8"), "large 8 2", np.array([2**63, 0], "<u8").tobytes()),
        (np.array(["a", "b"], ">U5"), "U 4 2", "ab".encode("utf-32-le")),
        (np.array(["", ""]), "U 4 2", bytes(8)),
        (np.array(["ab", "c"]), "U 8 2", "abc\0".encode("utf-32-le")),
        (np.array([b"a", b"b"], "S5"), "S 1 2", b"ab"),
        (np.array([b"", b""]), "S 1 2", bytes(2)),
        (np.array([b"ab", b"c"]), "S 2 2", b"abc\0"),
    ],
)
def test_hashes(labels: Any, header: str, content: bytes) -> None:
    """An HMAC over the kind, the width and the number of labels, and the labels themselves."""
    text = f"scoreshield labels 1\n{header}\n".encode() + content
    assert _hash_labels(labels, KEY) == hmac.new(KEY, text, hashlib.sha256).hexdigest()
