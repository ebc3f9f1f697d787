"""A ledger on SQLite: what it charges, what it refuses, what it shows when it is tampered with."""

from __future__ import annotations

import csv
import json
import sqlite3
import stat
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from ledger_support import Promise, gaussian, pure

import scoreshield as ss
from scoreshield.errors import BudgetExceeded, LedgerError
from scoreshield.privacy import filters
from scoreshield.privacy.ledger import Ledger
from scoreshield.privacy.ledger import accounts as module
from scoreshield.privacy.ledger import units as ledger_units
from scoreshield.privacy.ledger.database import PagedSession
from scoreshield.privacy.ledger.entries import Entry
from scoreshield.privacy.profiles import CurveProfile, GaussianProfile, LaplaceProfile, Profile, PureProfile


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def ledger(url: str) -> Ledger:
    return Ledger.create(url, epsilon=10.0, delta=1e-6)


def tamper(url: str, *statements: str) -> None:
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def test_making_and_opening_are_two_acts(url: str, tmp_path: Path) -> None:
    for opening in (Ledger.open, Ledger):
        with pytest.raises(LedgerError, match=r"There is no ledger at .*; make one with Ledger\.create"):
            opening(url)
    assert list(tmp_path.iterdir()) == [], "looking for a ledger does not make one"
    first = Ledger.create(url, epsilon=1.0, delta=1e-6)
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.db"], "no temporary file is left"
    assert stat.S_IMODE((tmp_path / "ledger.db").stat().st_mode) == 0o600
    assert repr(first) == "<Ledger ledger.db: at most epsilon 1 at delta 1e-06 for each dataset>"
    with pytest.raises(LedgerError, match=r"There is a ledger at .*; open it with Ledger\.open"):
        Ledger.create(url, epsilon=1.0, delta=1e-6)
    assert Ledger.open(url).head() == first.head()


def test_constructor_opens_or_creates(url: str, tmp_path: Path) -> None:
    """The constructor opens a ledger that exists, and warns where it creates one."""
    with pytest.raises(ss.InvalidInput, match="Give both epsilon and delta"):
        Ledger(url, epsilon=1.0)
    with pytest.warns(
        ss.LedgerWarning, match=r"There was no ledger at sqlite:///.*ledger\.db, so a new one was made"
    ) as seen:
        Ledger(url, epsilon=1.0, delta=1e-6)
    assert seen[0].filename == __file__
    assert stat.S_IMODE((tmp_path / "ledger.db").stat().st_mode) == 0o600
    for more in ({}, {"epsilon": 1.0}, {"delta": 1e-6}, {"epsilon": 1, "delta": 1e-6}):
        assert (Ledger(url, **more).epsilon, Ledger(url, **more).delta) == (1.0, 1e-6)
    for other in ({"epsilon": 2.0}, {"delta": 0.0}, {"epsilon": 1.0, "delta": 1e-7}):
        with pytest.raises(ss.InvalidInput, match=r"limit epsilon 1\.0 at delta 1e-06, which cannot be changed\. Got"):
            Ledger(url, **other)


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are POSIX")
def test_file_not_made_into_ledger(url: str, tmp_path: Path) -> None:
    """Its permissions are not the ledger's, and another process may be making something of it."""
    path = tmp_path / "ledger.db"
    path.touch(mode=0o644)
    for make in (Ledger.create, Ledger):
        with pytest.raises(LedgerError, match="exists and holds no ledger; name another file"):
            make(url, epsilon=1.0, delta=0.0)
    assert path.read_bytes() == b""


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are POSIX")
def test_a_ledger_that_everyone_may_read_warns(url: str, tmp_path: Path) -> None:
    Ledger.create(url, epsilon=1.0, delta=0.0)
    for mode in (0o644, 0o602):
        (tmp_path / "ledger.db").chmod(mode)
        with pytest.warns(ss.LedgerWarning, match="Everyone on this computer may read or write the ledger"):
            Ledger.open(url)
    for mode in (0o600, 0o660):  # a group is a decision
        (tmp_path / "ledger.db").chmod(mode)
        Ledger.open(url)
        assert stat.S_IMODE((tmp_path / "ledger.db").stat().st_mode) == mode


def test_a_path_is_absolute_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    ledger = Ledger.create("sqlite:///ledger.db", epsilon=1.0, delta=0.0)
    assert ledger.name == f"sqlite:///{tmp_path / 'ledger.db'}"
    monkeypatch.chdir(tmp_path / "elsewhere")
    ledger.spend(pure(0.5), dataset="a")
    assert Ledger.open(ledger.name).spent == 0.5
    with pytest.raises(LedgerError, match="There is no ledger at"):
        Ledger.open("sqlite:///ledger.db")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("bad", [{"epsilon": 0, "delta": 0}, {"epsilon": 1, "delta": 1}, {"epsilon": "1", "delta": 0}])
def test_bad_limits_make_nothing(url: str, tmp_path: Path, bad: dict[str, float]) -> None:
    with pytest.raises(ss.InvalidInput):
        Ledger.create(url, **bad)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["ledger.db", "sqlite://", "sqlite:///", "mysql://a@b/c", 3, "sqlite:///:memory:"])
def test_addresses(address: object) -> None:
    with pytest.raises(ss.InvalidInput, match=r"sqlite:///"):
        Ledger.create(address, epsilon=1.0, delta=0.0)


def test_relative_addresses_and_missing_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Ledger.create("sqlite:///here ?#%.db", epsilon=1.0, delta=0.0).spend(pure(0.5))
    assert (tmp_path / "here ?#%.db").exists()
    assert Ledger.open("sqlite:///here ?#%.db").spent == 0.5
    with pytest.raises(LedgerError, match="cannot be made: No such file or directory"):
        Ledger.create("sqlite:///no/such/ledger.db", epsilon=1.0, delta=0.0)
    (tmp_path / "folder").mkdir()
    with pytest.raises(LedgerError, match="Is a directory"):
        Ledger.create("sqlite:///folder", epsilon=1.0, delta=0.0)


def test_a_charge_is_an_entry(ledger: Ledger) -> None:
    release = ss.release_scores(np.eye(4), np.ones(4), epsilon=2.0, delta=1e-6)
    before = datetime.now(UTC)
    entry = ledger.spend(release, dataset="customers", who="ada", why="ticket 7")
    assert isinstance(entry, Entry)
    assert (entry.id, entry.format, entry.kind, entry.note) == (1, 1, "charge", "")
    assert (entry.dataset, entry.unit, entry.who, entry.why) == ("customers", "replacement", "ada", "ticket 7")
    assert before <= datetime.fromisoformat(entry.time) <= datetime.now(UTC)
    assert json.loads(entry.guarantee) == json.loads(json.dumps(release.guarantee.to_dict()))
    assert entry.to_dict()["profile"] == {"kind": "gaussian", "mu": release.guarantee.mu}
    assert ledger.entries() == [entry]
    assert ledger.spent == pytest.approx(2.0, rel=1e-9)
    assert ledger.remaining == pytest.approx(8.0, rel=1e-9)
    second = ledger.spend(release.guarantee, dataset="customers")
    assert second.previous == entry.hash
    assert "@" in second.who
    assert ledger.head() == f"2:{second.hash}"
    exact = GaussianProfile(release.guarantee.mu * 2**0.5)
    assert ledger.spent == pytest.approx(exact.epsilon_at(1e-6), rel=1e-9)
    with pytest.raises(AttributeError):
        entry.why = "other"  # type: ignore[misc]


def test_the_budget_is_exceeded_with_a_sentence(ledger: Ledger) -> None:
    ledger.spend(pure(6.0))
    with pytest.raises(BudgetExceeded) as caught:
        ledger.spend(pure(5.0))
    error = caught.value
    assert isinstance(error, ss.ScoreShieldError)
    assert (error.spent, error.asked, error.limit) == (6.0, 5.0, 10.0)
    assert str(error).startswith(
        "The privacy budget does not cover this: it asks for epsilon 5 where 6 of 10 is spent at delta 1e-06; what "
        "still fits is a pure epsilon up to 4 or Gaussian noise up to epsilon "
    )
    assert len(ledger.entries()) == 1
    room = ledger.headroom
    assert room.pure == 4.0
    with pytest.raises(BudgetExceeded):
        ledger.spend(gaussian(room.mu * 1.001))
    ledger.spend(gaussian(room.mu))
    assert len(ledger.entries()) == 2


@pytest.mark.parametrize("contract", [(1.0, 1e-6), (5.0, 1e-8), (30.0, 1e-5)])
def test_a_release_may_take_the_limit_whole(tmp_path: Path, contract: tuple[float, float]) -> None:
    book = Ledger.create(f"sqlite:///{tmp_path / 'whole.db'}", epsilon=contract[0], delta=contract[1])
    release = ss.release_scores(np.eye(4), np.ones(4), epsilon=contract[0], delta=contract[1])
    book.spend(release)
    assert book.spent == pytest.approx(contract[0], rel=1e-6)
    with pytest.raises(BudgetExceeded):
        book.spend(release)


def test_datasets_budgets_unnamed_charges_count(ledger: Ledger) -> None:
    """Datasets have their own budgets and unnamed charges count against all."""
    assert ledger.datasets() == []
    ledger.spend(pure(6.0), dataset="a")
    ledger.spend(pure(7.0), dataset="b")
    assert (ledger.spent_on("a"), ledger.spent_on("b"), ledger.spent_on("c"), ledger.spent) == (6.0, 7.0, 0.0, 7.0)
    with pytest.raises(BudgetExceeded) as caught:
        ledger.spend(pure(3.5))
    assert caught.value.spent == 7.0
    ledger.spend(pure(2.0))
    assert (ledger.spent_on("a"), ledger.spent_on("b"), ledger.spent_on("c")) == (8.0, 9.0, 2.0)
    assert ledger.remaining_on("a") == 2.0
    assert ledger.headroom_on("a").pure == 2.0
    assert ledger.headroom.pure == 1.0
    assert ledger.datasets() == ["a", "b"]
    with pytest.raises(BudgetExceeded):
        ledger.spend(pure(1.5), dataset="b")


def test_an_account_is_a_ledger_for_one_dataset(ledger: Ledger) -> None:
    account = ledger.account("patients", who="ada", why="pilot")
    entry = account.spend(pure(2.0))
    assert (entry.dataset, entry.who, entry.why) == ("patients", "ada", "pilot")
    account.spend(pure(1.0))
    assert (account.spent, account.remaining, account.headroom.pure) == (3.0, 7.0, 7.0)
    assert ledger.account("others").spent == 0.0
    with pytest.raises(BudgetExceeded):
        account.spend(pure(8.0))


def grouped(labels: np.ndarray, **options: bool) -> ss.Guarantee:
    """The guarantee of a release, which has forgotten the labels."""
    rows = np.random.default_rng(1).standard_normal((len(labels), 3))
    adjacency = ss.Identity(labels, **options)
    return ss.release_scores(rows, np.ones(3), epsilon=0.5, delta=1e-8, adjacency=adjacency).guarantee


def test_identities_come_go_promised_same(ledger: Ledger) -> None:
    """Where the caller says that they are the same people: without, other labels are another grouping."""
    for labels in (np.arange(6) // 2, np.arange(8) // 2, np.arange(9) // 3, np.arange(5)):
        adjacency = ss.Identity(labels)
        ledger.spend_all([grouped(labels)], dataset="clinic", adjacency=adjacency, same_people=True)
        with pytest.raises(ss.InvalidInput, match="groups the records in another way"):
            ledger.spend(grouped(np.arange(12)), dataset="clinic", adjacency=ss.Identity(np.arange(12)))
    units = [entry.unit.partition(" labels ") for entry in ledger.entries()]
    assert [unit for unit, *_ in units] == [
        f"identity centroids False identities {number} largest {most}"
        for number, most in ((3, 2), (4, 2), (3, 3), (5, 1))
    ]
    assert len({hash_ for *_, hash_ in units}) == 4
    assert ledger.verify()
    assert Ledger.open(ledger.name).spent_on("clinic") == ledger.spent_on("clinic") > 0.5
    for other in (grouped(np.arange(6) // 2, centroids=True), pure(0.1)):
        with pytest.raises(ss.InvalidInput, match="do not add up") as caught:
            ledger.spend_all([other], dataset="clinic", same_people=True)
        assert "identity centroids False" in str(caught.value)
        assert "Another name for them would not count what was spent" in str(caught.value)
        with pytest.raises(ss.InvalidInput, match="do not add up"):
            ledger.spend(other, same_people=True)
    assert len(ledger.entries()) == 4


@pytest.mark.parametrize("centroids", [False, True])
def test_two_groupings_equal_counts_not_share(tmp_path: Path, centroids: bool) -> None:
    """Records 0 and 1 are one person, or 0 and 2 are: two promises of 1 each do not make one of 2."""
    ledger = Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=2.0, delta=1e-6)
    account, rows = ledger.account("people"), np.eye(4) + 0.1
    first, second = (ss.Identity(np.array(labels), centroids=centroids) for labels in ([0, 0, 1, 1], [0, 1, 0, 1]))
    contract = {"epsilon": 1, "delta": 1e-6, "ledger": account}
    ss.release_scores(rows, rows[0], adjacency=first, **contract)
    with pytest.raises(ss.InvalidInput, match="groups the records in another way"):
        ss.release_scores(rows, rows[0], adjacency=second, **contract)
    with pytest.raises(ss.InvalidInput, match="groups the records in another way"):
        account.spend(pure(0.5, adjacency=second))
    ss.release_scores(rows, rows[0], adjacency=first, **contract)
    assert account.spent == pytest.approx(2**0.5, rel=0.03)
    assert len(ledger.entries()) == 2


def test_equal_labels_hash_whatever_holds_them(ledger: Ledger) -> None:
    """Equal labels have one hash whatever holds them."""

    def unit(labels: object, name: str) -> str:
        return ledger.spend(pure(0.01, adjacency=ss.Identity(labels)), dataset=name).unit  # type: ignore[arg-type]

    numbers = [3, 1, 3]
    whole = {unit(np.array(numbers, dtype=kind), "n") for kind in ("i1", ">i4", "u2", "u8", "i8")} | {
        unit(numbers, "n")
    }
    assert len(whole) == 1
    words = np.array(["ann", "bob", "ann"])
    text = {unit(kind, "t") for kind in (words, words.astype("U20"), words.astype(">U3"), words.astype(object))}
    assert len(text) == 1
    flags = {unit(labels, "f") for labels in ([True, False], np.array([1, 0], dtype="u1"))}
    assert len(flags) == 1
    others = (
        [3, 1, 1],
        [1, 3, 3],
        [1, 3, 1],
        ["3", "1", "3"],
        [b"ann", b"bob", b"ann"],
        np.array([2**63, 1, 2**63], dtype="u8"),
    )
    assert len({unit(labels, str(place)) for place, labels in enumerate(others)} | whole | text) == len(others) + 2
    other = Ledger.create(ledger.name + ".2", epsilon=1.0, delta=0.0)
    assert other.spend(pure(0.1, adjacency=ss.Identity(numbers))).unit not in whole, "the hash is keyed"


def test_identity_without_labels_charged_callers(ledger: Ledger) -> None:
    """An identity without its labels is charged only on the callers word."""
    labels = np.arange(6) // 2
    promise = grouped(labels)
    with pytest.raises(ss.InvalidInput, match=r"needs its labels.*or same_people=True"):
        ledger.spend(promise, dataset="a")
    for wrong in (ss.Identity(np.arange(6)), ss.Identity(labels, centroids=True), ss.Replacement()):
        with pytest.raises(ss.InvalidInput, match="must be the one of the release"):
            ledger.spend(promise, dataset="a", adjacency=wrong)
    ledger.spend(promise, dataset="a", adjacency=ss.Identity(labels))
    ledger.spend(promise, dataset="b", same_people=True)
    with pytest.raises(ss.InvalidInput, match="without a hash of its labels") as caught:
        ledger.spend(promise, dataset="b", adjacency=ss.Identity(labels))
    assert "same_people=True if they are" in str(caught.value)
    ledger.spend(promise, dataset="b", adjacency=ss.Identity(labels), same_people=True)
    assert ledger.verify()


def test_radii_stay_different(ledger: Ledger) -> None:
    def within(radius: float) -> ss.Guarantee:
        return ss.release_gram(np.eye(3), epsilon=0.5, delta=1e-8, adjacency=ss.GramRadius(radius)).guarantee

    ledger.spend(within(0.5), dataset="a")
    ledger.spend(within(0.5), dataset="a")
    with pytest.raises(ss.InvalidInput, match=r"'gram-radius radius 0\.5', .* 'gram-radius radius 0\.25'"):
        ledger.spend(within(0.25), dataset="a")


#: All of them look like "faces" on a screen, or nearly so.
SPELLINGS = ("faces ", " faces", "fa\u200bces", "fa\u00adces", "f\u0430ces", "\uff46aces", "faces\ufe0f", "faces\u00a0")


@pytest.mark.parametrize("name", SPELLINGS, ids=ascii)
def test_one_name_has_one_spelling(ledger: Ledger, name: str) -> None:
    ledger.spend(pure(1.0), dataset="faces")
    for use in (
        ledger.account,
        ledger.spent_on,
        ledger.headroom_on,
        lambda name: ledger.spend(pure(1.0), dataset=name),
    ):
        with pytest.raises(ss.InvalidInput, match="must be a name") as caught:
            use(name)
        assert str(caught.value).isascii()
    assert ledger.datasets() == ["faces"]


REJECTED = {
    "nothing": "",
    "too long": "x" * 201,
    "two spaces": "my  faces",
    "a tab": "my\tfaces",
    "a line's end": "my\u2028faces",
    "a private character": "faces\ue000",
    "an unassigned one": "faces\u0378",
    "half a character": "faces\ud800",
    "a tag": "faces\U000e0041",
    "a filler that is a letter": "faces\u3164",
    "a loose accent": "fac\u0337es",
    "a turned direction": "\u202efaces",
    "another dash": "my\u2013faces",
    "another quote": "ann\u02bcs faces",
    "a ligature": "\ufb01les",
    "a letter of mathematics": "\U0001d41faces",
    "Greek in Latin": "f\u03b1ces",
    "all Cyrillic, as in 'cop'": "\u0441\u043e\u0440",
    "all Cyrillic with an accent, as in 'cop\u00eb'": "\u0441\u043e\u0440\u0451",
    "all Greek with an accent, as in '\u00f3po'": "\u03cc\u03c1\u03bf",
    "all Cyrillic, as in 'rG'": "\u0433\u050c",
    "all Greek, as in 'Fj'": "\u03dc\u03f3",
    "a Greek small capital": "\u1d26\u03b4",
    "a Cyrillic small capital": "\u1d2b\u0436",
    "an f of manuscripts": "\u1e9daces",
    "a y of manuscripts": "\u1effes",
    "a fingerprint": "hmac-sha256:00",
    "a phonetic letter": "f\u0251ces",
    "a phonetic g": "ima\u0261es",
    "a small capital": "fa\u1d04es",
    "a click": "\u01c3id",
    "a dotless i": "\u0131d",
    "Cherokee, as in 'CAT'": "\u13df\u13aa\u13a2",
    "Lisu, as in 'CAT'": "\ua4da\ua4ee\ua4d4",
    "Coptic, as in 'o'": "\u2c9f",
    "Armenian, as in 'o'": "\u0585",
}


@pytest.mark.parametrize("what", REJECTED)
def test_names_that_could_be_taken_for_another(ledger: Ledger, what: str) -> None:
    with pytest.raises(ss.InvalidInput, match="must be a name"):
        ledger.account(REJECTED[what])


def test_names_that_are_fine(ledger: Ledger) -> None:
    russian, japanese = "\u043f\u0430\u0446\u0438\u0435\u043d\u0442\u044b", "\u65e5\u672c\u8a9e\u30c7\u30fc\u30bf v2"
    names = [
        "faces",
        "Faces",
        "faces 2024/05: v1.2_x-y",
        "caf\u00e9",
        "\ud658\uc790",
        russian,
        japanese,
        "7",
        "\u0645\u0631\u0636\u0649",
    ]
    for name in names:
        assert ledger.account(name).dataset == name
        ledger.account(name).spend(pure(1.0))
    assert ledger.datasets() == sorted(names), "capitals make another name"
    assert ledger.account("cafe\u0301").dataset == "caf\u00e9"
    assert ledger.spent_on("cafe\u0301") == 1.0


@pytest.mark.parametrize("collection", [np.eye(3), [[1.0, 0.0]], 3, b"faces", None], ids=str)
def test_only_a_name_is_charged(ledger: Ledger, collection: object) -> None:
    with pytest.raises(ss.InvalidInput, match="must be the collection's name, a string"):
        ledger.account(collection)  # type: ignore[arg-type]
    if collection is not None:
        with pytest.raises(ss.InvalidInput, match="must be the collection's name, a string"):
            ledger.spend(pure(1.0), dataset=collection)  # type: ignore[arg-type]
    assert ledger.entries() == []


def test_what_cannot_be_charged(ledger: Ledger) -> None:
    research = ss.release_scores(np.eye(3), np.ones(3), epsilon=1.0, delta=1e-6, rng=1)
    with pytest.raises(ss.InvalidInput, match="'research' sampler"):
        ledger.spend(research)
    for item in (PureProfile(1.0), 1.0, None):
        with pytest.raises(
            ss.InvalidInput, match=r"'item' parameter of Ledger\.spend must be a guarantee or a release"
        ):
            ledger.spend(item)

    class Foreign(PureProfile):
        kind = "foreign"

    with pytest.raises(ss.InvalidInput, match="does not support: 'foreign'"):
        ledger.spend(Promise(Foreign(1.0)))
    for more in ({"who": 3}, {"why": "two\nlines"}, {"why": "x" * 1001}, {"who": "\ud800"}):
        with pytest.raises(ss.InvalidInput, match="printable characters"):
            ledger.spend(pure(1.0), **more)
    assert ledger.entries() == []


def test_could_not_read_again_not_charged(tmp_path: Path) -> None:
    """An entry that is too long to be read left its account unusable, and verify false forever."""
    ledger = Ledger.create(f"sqlite:///{tmp_path / 'long.db'}", epsilon=50.0, delta=0.01)
    for number in (80_000, 260_000):
        losses = (np.arange(number) * 1.000000001e-5).tolist()
        deltas = (1e-3 * (1 - np.arange(number) / (number - 1)) ** 2).tolist()
        promise = Promise(CurveProfile(tuple(losses), tuple(deltas)))
        if number == 80_000:
            ledger.spend(promise, dataset="a")
            continue
        with pytest.raises(ss.InvalidInput, match="cannot be written to a ledger: it has more than 4,000,000 char"):
            ledger.spend(promise, dataset="a")
    ledger.spend(pure(0.1), dataset="a")
    assert ledger.verify()


def test_promises_about_different_changes_not_add(ledger: Ledger) -> None:
    """Promises about different changes do not add up."""
    ledger.spend(pure(1.0), dataset="a")
    for adjacency in (ss.GramRadius(0.5), ss.Identity(np.array([0, 0, 1]))):
        with pytest.raises(ss.InvalidInput, match="counts promises about 'replacement'"):
            ledger.spend(pure(1.0, adjacency=adjacency), dataset="a")
        with pytest.raises(ss.InvalidInput, match="counts promises about 'replacement'"):
            ledger.spend(pure(1.0, adjacency=adjacency))
    ledger.spend(pure(1.0, adjacency=ss.GramRadius(0.5)), dataset="b")
    with pytest.raises(ss.InvalidInput, match=r"'gram-radius radius 0\.5', and the release makes one about 'gram-"):
        ledger.spend(pure(1.0, adjacency=ss.GramRadius(1.0)), dataset="b")


def test_all_kinds_of_profiles_come_back(ledger: Ledger) -> None:
    profiles: list[Profile] = [
        GaussianProfile(0.1),
        PureProfile(0.1),
        LaplaceProfile(0.1),
        CurveProfile((0.0, 0.1, 0.3), (0.02, 0.01, 0.0)),
    ]
    for profile in profiles:
        ledger.spend(Promise(profile))
    budget = filters.PrivacyFilter(10.0, 1e-6)
    for profile in profiles:
        budget.spend(profile)
    assert ledger.spent == budget.spent
    assert ledger.verify()


def test_a_clock_that_goes_back_is_noted(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    start = datetime(2030, 1, 1, tzinfo=UTC)
    for seconds in (0.0, 5.0, 2.5, 3.0):
        monkeypatch.setattr(module, "_get_time", lambda now=start + timedelta(seconds=seconds): now)
        ledger.spend(pure(0.1))
    entries = ledger.entries()
    assert [entry.id for entry in entries] == [1, 2, 3, 4]
    assert [entry.time[17:19] for entry in entries] == ["00", "05", "02", "03"]
    assert [entry.note for entry in entries] == [
        "",
        "",
        "this clock stood 2.500000 s before that of the entry above",
        "",
    ]
    assert ledger.verify()


TAMPERING = {
    "a smaller charge": (
        ['UPDATE scoreshield_entries SET profile = \'{"epsilon":0.1,"kind":"pure"}\' WHERE id = 3'],
        3,
    ),
    "another reason": (["UPDATE scoreshield_entries SET why = 'x' WHERE id = 2"], 2),
    "another dataset": (["UPDATE scoreshield_entries SET dataset = 'x' WHERE id = 5"], 5),
    "a removal in the middle": (["DELETE FROM scoreshield_entries WHERE id = 3"], 4),
    "a removal with renumbering": (
        ["DELETE FROM scoreshield_entries WHERE id = 3", "UPDATE scoreshield_entries SET id = id - 1 WHERE id > 3"],
        3,
    ),
    "a swap": (
        [
            "UPDATE scoreshield_entries SET id = 99 WHERE id = 2",
            "UPDATE scoreshield_entries SET id = 2 WHERE id = 3",
            "UPDATE scoreshield_entries SET id = 3 WHERE id = 99",
        ],
        2,
    ),
    "an end cut off": (["DELETE FROM scoreshield_entries WHERE id > 3"], 4),
    "the first gone": (["DELETE FROM scoreshield_entries WHERE id = 1"], 2),
    "a limit raised": (["UPDATE scoreshield_ledger SET facts = replace(facts, '10.0', '99.0')"], None),
    "a key changed": (["UPDATE scoreshield_ledger SET fingerprint_key = lower(hex(randomblob(32)))"], None),
}


@pytest.mark.parametrize("how", TAMPERING)
def test_tampering_is_evident(ledger: Ledger, url: str, how: str) -> None:
    for place in range(5):
        ledger.spend(pure(0.5 + place / 10))
    good = ledger.verify()
    assert good
    assert (good.entries, good.head, good.first_bad) == (5, ledger.head(), None)
    statements, first = TAMPERING[how]
    tamper(url, *statements)
    for book in (ledger, Ledger.open(url)):
        found = book.verify()
        if how == "a limit raised" and book is not ledger:
            assert found.first_bad == 1  # the whole chain hangs on the ledger's facts of the ledger
        else:
            assert found.first_bad == first
        assert not found
        assert str(found) == found.reason != ""
        kept: list[Entry] = []
        assert book.verify_in_use(kept) == found
        assert kept == ([] if found.first_bad is None else book.entries())
    charges_notice = {"a removal in the middle", "a removal with renumbering", "an end cut off", "the first gone"}
    if how in charges_notice | {"a limit raised", "another dataset"}:
        with pytest.raises(LedgerError, match="has been altered"):
            ledger.spend(pure(0.1))


def test_charges_go_on_while_a_ledger_in_use_is_checked(
    ledger: Ledger, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A charge that is made at any page of the check is committed, and left out of what was checked."""
    for _ in range(3):
        ledger.spend(pure(0.5))
    head, other = ledger.head(), Ledger.open(url)
    find_fault = Entry.find_fault

    def charge_first(entry: Entry, previous: str) -> str | None:
        other.spend(pure(0.1))  # it would wait for the lock that verify holds
        return find_fault(entry, previous)

    kept: list[Entry] = []
    with monkeypatch.context() as patch:
        patch.setattr(Entry, "find_fault", charge_first)
        found = ledger.verify_in_use(kept)
    assert found
    assert (found.entries, found.head, kept) == (3, head, ledger.entries()[:3])
    assert len(ledger.entries()) == 6
    assert ledger.verify()


def test_pages_of_a_check(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check reads all pages, whether the last one is full or not."""
    monkeypatch.setattr(PagedSession.read_page, "__defaults__", (2,))
    for number in range(6):
        kept: list[Entry] = []
        assert ledger.verify_in_use(kept) == ledger.verify()
        assert kept == ledger.entries()
        assert len(kept) == number
        ledger.spend(pure(0.5))


def test_what_only_a_pinned_head_shows(ledger: Ledger, url: str) -> None:
    """Someone who may write the database and knows the format cuts off the end and puts the ledger's row right."""
    empty = ledger.head()
    for _ in range(5):
        ledger.spend(pure(0.5))
    middle, pinned = ledger.entries()[2], ledger.head()
    tamper(
        url,
        "DELETE FROM scoreshield_entries WHERE id > 3",
        f"UPDATE scoreshield_ledger SET entries = 3, head = '{middle.hash}'",
    )
    assert "saved sums" in ledger.verify().reason
    with pytest.raises(LedgerError, match="has been altered"):
        ledger.spend(pure(0.5))
    tamper(url, "DELETE FROM scoreshield_accounts")
    assert ledger.verify(), "the shorter chain is whole"
    found = ledger.verify(head=pinned)
    assert not found
    assert found.first_bad == 4
    assert "The given head has 5 entries and the chain has 3" in found.reason
    assert ledger.verify(head=f"3:{middle.hash}")
    assert ledger.verify(head=empty)
    ledger.spend(pure(0.5))
    ledger.spend(pure(0.4))
    found = ledger.verify(head=pinned)
    assert found.first_bad == 5
    assert "the chain was rewritten" in found.reason
    assert "another ledger" in ledger.verify(head="0:" + "0" * 64).reason
    for bad in ("5", "x:" + "0" * 64, "5:" + "z" * 64, 5):
        with pytest.raises(ss.InvalidInput, match="NUMBER:HASH"):
            ledger.verify(head=bad)


def test_a_profile_that_cannot_be_read_is_named(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(GaussianProfile, "kind", "later")
        patch.setattr(ledger_units, "profile_from_dict", lambda _: GaussianProfile(0.1))
        ledger.spend(gaussian(0.1))
    assert ledger.verify().reason == "Entry 1 holds a privacy profile or guarantee that cannot be read."
    with pytest.raises(LedgerError, match="a privacy profile that this version cannot read"):
        ledger.spend(pure(1.0))


def test_entries_beyond_the_limit_are_seen(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.spend(pure(9.0))
    with monkeypatch.context() as patch:
        patch.setattr(filters.PrivacyFilter, "would_fit", lambda *_: True)
        ledger.spend(pure(9.0))
    assert ledger.verify().reason == "The entries add up to more than the limit."
    with pytest.raises(BudgetExceeded):
        ledger.spend(pure(0.001))


def test_unknown_formats_and_kinds_are_refused(ledger: Ledger, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:  # an entry that a later version wrote, chain and all
        patch.setattr(module, "CHARGE", "refund")
        ledger.spend(pure(1.0))
    for use in (lambda: ledger.spend(pure(1.0)), lambda: ledger.spent, lambda: ledger.headroom, ledger.datasets):
        with pytest.raises(LedgerError, match="format 1 and kind 'refund', which this version does not know"):
            use()
    assert ledger.verify().first_bad == 1
    assert "kind 'refund'" in ledger.verify().reason
    tamper(url, "UPDATE scoreshield_ledger SET facts = replace(facts, '\"format\":1', '\"format\":2')")
    with pytest.raises(LedgerError, match="has format 2 and rules 2"):
        Ledger.open(url)
    with pytest.raises(LedgerError, match="has format 2 and rules 2"):
        ledger.verify()
    tamper(url, "UPDATE scoreshield_ledger SET facts = '{'")
    with pytest.raises(LedgerError, match="cannot be read"):
        Ledger.open(url)
    tamper(url, "DELETE FROM scoreshield_ledger")
    with pytest.raises(LedgerError, match="row of the ledger itself is missing"):
        Ledger.open(url)


def test_the_hash_is_what_the_documentation_says(ledger: Ledger) -> None:
    """Anyone can check an export with a few lines and no ScoreShield."""
    import hashlib

    for place in range(3):
        ledger.spend(gaussian(0.1), who="ada", why=f"nº {place}", dataset="customers")
    previous = ledger.entries()[0].previous
    for entry in ledger.entries():
        facts = {name: getattr(entry, name) for name in Entry.__dataclass_fields__ if name != "hash"}
        assert facts["previous"] == previous
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
        previous = hashlib.sha256(text.encode()).hexdigest()
        assert previous == entry.hash


def test_export(ledger: Ledger, tmp_path: Path) -> None:
    ledger.spend(pure(1.0), why='commas, "quotes" and ünïcode', who="ada")
    ledger.spend(gaussian(0.2), dataset="b")
    ledger.export(tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == ["1", "2"]
    assert rows[0]["why"] == 'commas, "quotes" and ünïcode'
    assert rows[1]["hash"] == ledger.entries()[1].hash
    ledger.export(tmp_path / "out.json")
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["entries"] == [entry.to_dict() for entry in ledger.entries()]
    assert content["ledger"]["epsilon"] == 10.0
    assert "fingerprint_key" not in json.dumps(content)
    for name in ("out.csv", "out.json"):
        assert sys.platform == "win32" or stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    with pytest.raises(ss.InvalidInput, match=r"\.csv or \.json"):
        ledger.export(tmp_path / "out.xlsx")
    with pytest.raises(ss.FileError, match="Cannot write"):
        ledger.export(tmp_path / "no" / "out.csv")


@pytest.mark.parametrize("start", ["=", "+", "-", "@"])
def test_no_cell_of_an_export_is_a_formula(ledger: Ledger, tmp_path: Path, start: str) -> None:
    text = f"{start}HYPERLINK(A1)"
    ledger.spend(pure(1.0), dataset=text, who=text, why=text)
    ledger.export(tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert {row[name] for name in ("dataset", "who", "why")} == {"'" + text}
    assert not [cell for cell in row.values() if cell[:1] in tuple("=+-@\t\r")]
    ledger.export(tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text())["entries"][0]["why"] == text


@pytest.mark.parametrize("ending", ["csv", "json"])
def test_an_export_never_replaces_the_ledger(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"ledger.{ending}"
    ledger = Ledger.create(f"sqlite:///{path}", epsilon=1.0, delta=0.0)
    ledger.spend(pure(0.5))
    (tmp_path / f"link.{ending}").symlink_to(path)
    for name in (path, tmp_path / f"link.{ending}", tmp_path / "." / path.name):
        with pytest.raises(ss.InvalidInput, match="is the ledger itself"):
            ledger.export(name)
    assert ledger.verify()


@pytest.mark.parametrize("mechanism", ["laplace", "staircase", "gaussian"])
def test_real_releases_take_a_budget_whole(tmp_path: Path, mechanism: str) -> None:
    delta = 1e-6 if mechanism == "gaussian" else 0.0
    for epsilon in (0.1, 1.0, 7.3):
        book = Ledger.create(f"sqlite:///{tmp_path / f'{epsilon}.db'}", epsilon=epsilon, delta=delta)
        release = ss.release_scores(np.eye(4), np.ones(4), epsilon=epsilon, delta=delta, mechanism=mechanism)
        book.spend(release, dataset="people")
        assert book.spent == pytest.approx(epsilon, rel=1e-6)
        with pytest.raises(BudgetExceeded):
            book.spend(release, dataset="people")
        assert book.verify()


def test_postgres_without_driver_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Postgres without its driver is one sentence."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ss.InvalidInput, match="needs the 'postgres' extra"):
        Ledger.create("postgresql://ada:secret@localhost/x", epsilon=1.0, delta=0.0)


def test_several_charges_made_together_or_not(url: str) -> None:
    """Several charges are made together or not at all."""
    ledger = Ledger.create(url, epsilon=1.0, delta=0.0)
    entries = ledger.spend_all([pure(0.3), pure(0.3)], dataset="files")
    assert [entry.id for entry in entries] == [1, 2]
    assert ledger.spent_on("files") == pytest.approx(0.6)
    with pytest.raises(BudgetExceeded, match=r"asks for epsilon 0\.3, 2 times, where 0\.6 of 1 is spent") as refused:
        ledger.spend_all([pure(0.3), pure(0.3)], dataset="files")
    assert refused.value.spent == pytest.approx(0.6)
    assert len(ledger.entries()) == 2, "the first of the two would have fitted"
    assert ledger.account("files").spend_all([]) == []
    assert ledger.account("files").spend_all([pure(0.3)])[0].dataset == "files"
    assert ledger.verify()
