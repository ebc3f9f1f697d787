"""Where a ledger lives, in small pieces: the statements, the gate for forks, the file, and addresses of servers."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import sqlite3
import stat
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import scoreshield as ss
from scoreshield._files import sync_folder
from scoreshield.privacy.ledger import accounts, database, postgres, sqlite
from scoreshield.privacy.ledger.accounts import open_database
from scoreshield.privacy.ledger.database import LedgerDatabase, Session
from scoreshield.privacy.ledger.entries import Entry
from scoreshield.privacy.ledger.sqlite import SQLiteDatabase, _Gate, _Pass

ENTRY = Entry(1, 1, "charge", "now", "", "a", "u", "ann", "why", "profile", "guarantee", "before", "hash 1")


def entry(number: int, dataset: str | None = "a") -> Entry:
    return replace(ENTRY, id=number, dataset=dataset, profile=f"profile {number}", hash=f"hash {number}")


@pytest.fixture
def session() -> Session:
    """On a database in memory."""
    found = Session(sqlite3.connect(":memory:", isolation_level=None).execute, has_accounts=False)
    found.create("facts", "key", "head")
    return found


class TestSession:
    def test_facts(self, session: Session) -> None:
        assert session.read_facts() == ("facts", "key", 0, "head")
        session.advance(entry(7))
        assert session.read_facts() == ("facts", "key", 7, "hash 7")
        session._execute("DELETE FROM scoreshield_ledger")
        assert session.read_facts() is None

    def test_what_is_made(self, session: Session) -> None:
        made = session._execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        assert {(kind, name): " ".join(sql.split()) for kind, name, sql in made} == {
            key: " ".join(sql.split()) for key, sql in database.OBJECTS.items()
        }
        assert session.has_accounts() is True
        assert Session(session._execute, False).has_accounts() is False

    def test_an_index_that_is_there(self, session: Session) -> None:
        """A table of sums that was dropped is made again beside its index."""
        session._execute("DROP TABLE scoreshield_accounts")
        session.add_accounts()
        assert session.read_accounts() == []

    def test_none(self, session: Session) -> None:
        assert (session.read_entry(1), session.find_entry("hash 1"), session.read_first(), session.read_last()) == (
            None,
        ) * 4
        assert (session.read_last_number(), session.read_links(3), session.count(), session.count(0)) == (0, [], 0, 0)
        assert (session.read_latest("a"), session.read_latest(None)) == (0, 0)
        assert (list(session.read_charges("a", 0)), session.read_datasets(), list(session.read_entries())) == (
            [],
            [],
            [],
        )
        assert (session.read_account("a"), session.read_accounts()) == (None, [])

    def test_entries(self, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(database, "_PAGE", 2)
        names = ["b", None, "a", "a", "b", None, "a"]
        all_ = [entry(number, name) for number, name in enumerate(names, 1)]
        for one in all_:
            session.append(one)
        assert (session.read_first(), session.read_last()) == (all_[0], all_[-1])
        assert (session.read_entry(3), session.find_entry("hash 4")) == (all_[2], all_[3])
        assert (session.read_entry(8), session.find_entry("hash 8")) == (None, None)
        assert session.read_last_number() == 7
        assert session.read_links(2) == [(7, "before", "hash 7"), (6, "before", "hash 6")]
        assert (session.count(), session.count(0), session.count(5), session.count(7)) == (7, 7, 2, 0)
        assert (
            session.read_latest("a"),
            session.read_latest("b"),
            session.read_latest(None),
            session.read_latest("c"),
        ) == (7, 5, 6, 0)
        assert session.read_datasets() == ["a", "b"]
        assert list(session.read_entries()) == all_
        assert list(session.read_entries(after=3)) == all_[3:]
        for dataset in ("a", "b", None):
            own = [(one.id, "u", 1, "charge", one.profile) for one in all_ if one.dataset == dataset]
            assert list(session.read_charges(dataset, 0)) == own
            assert list(session.read_charges(dataset, own[0][0])) == own[1:]

    @pytest.mark.parametrize("number", [0, -1, -(2**61)])
    def test_numbers_below_one(self, session: Session, number: int) -> None:
        """A check must see an entry that was put before the first."""
        session.append(entry(number))
        assert list(session.read_entries()) == [entry(number)]

    def test_no_numbers(self, session: Session) -> None:
        session._execute("INSERT INTO scoreshield_entries SELECT 'x',1,'','','','a','','','','','','','hash'")
        for use in (session.read_last_number, lambda: session.read_links(1), lambda: session.read_latest("a")):
            with pytest.raises(ss.LedgerError, match="without a number"):
                use()

    def test_accounts(self, session: Session) -> None:
        session.write_account("a", (3, "sums", "seal"))
        session.write_account("", (4, "s", "t"))
        assert session.read_account("a") == (3, "sums", "seal")
        session.write_account("a", (5, "more", "other"))
        assert session.read_account("a") == (5, "more", "other")
        assert sorted(session.read_accounts()) == [("", 4, "s", "t"), ("a", 5, "more", "other")]

    def test_damage(self, session: Session) -> None:
        assert session.find_damage() is None
        for statement, found in (("SELECT 'ok'", None), ("SELECT 'row 3 missing'", "row 3 missing"), ("SELECT 5", "5")):
            assert Session(session._execute, True, statement).find_damage() == found


class TestGate:
    def test_own_thread(self) -> None:
        """A fork in the middle of a transaction does not wait for its own thread."""
        gate = _Gate()
        assert gate.was_forked_inside is False
        with gate.enter():
            assert [one.thread for one in gate._inside] == [threading.current_thread()]
            assert gate._is_empty()
            gate.close()
            gate.open()
        assert len(gate._inside) == 0

    def test_other_threads(self) -> None:
        """It waits until they are through, and keeps new ones out until it is opened."""
        gate, inside, leave, order = _Gate(), threading.Event(), threading.Event(), []

        def transaction() -> None:
            with gate.enter():
                inside.set()
                leave.wait(5)
                order.append("left")

        def late() -> None:
            with gate.enter():
                order.append("entered")

        first, second = threading.Thread(target=transaction), threading.Thread(target=late)
        first.start()
        assert inside.wait(5)
        assert not gate._is_empty()
        threading.Timer(0.03, leave.set).start()
        gate.close()
        order.append("closed")
        second.start()
        second.join(0.03)
        order.append("open")
        gate.open()
        first.join(5)
        second.join(5)
        assert order == ["left", "closed", "open", "entered"]

    def test_it_does_not_wait_forever(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
        gate, inside, leave, closed = _Gate(), threading.Event(), threading.Event(), threading.Event()
        took = []

        def transaction() -> None:
            with gate.enter():
                inside.set()
                leave.wait(5)

        def fork() -> None:
            start = time.monotonic()
            gate.close()
            took.append(time.monotonic() - start)
            gate.open()
            closed.set()

        threads = [threading.Thread(target=work, daemon=True) for work in (transaction, fork)]
        threads[0].start()
        assert inside.wait(5)
        threads[1].start()
        assert closed.wait(3)
        assert took[0] >= 0.05
        leave.set()
        threads[0].join(5)

    def test_threads_that_ended(self) -> None:
        """An interrupt may end a thread in the middle; nobody waits for it."""
        gate, passes = _Gate(), []
        thread = threading.Thread(target=lambda: passes.append(_Pass()))
        thread.start()
        thread.join()
        gate._inside.add(passes[0])
        assert gate._is_empty()

    def test_children(self) -> None:
        """Of the parent's transactions, a child has only the one that it was forked in."""
        gate, passes = _Gate(), []
        thread = threading.Thread(target=lambda: passes.append(_Pass()))
        thread.start()
        thread.join()
        gate._inside.add(passes[0])
        gate.close()
        gate.open_in_child()
        assert (len(gate._inside), gate.was_forked_inside) == (0, False)
        with gate.enter():  # the child's lock is its own, and free
            gate._inside.add(passes[0])
            gate.close()
            gate.open_in_child()
            assert [one.thread for one in gate._inside] == [threading.current_thread()]
            assert gate.was_forked_inside is True
        gate.open_in_child()
        assert gate.was_forked_inside is True
        entered = threading.Event()

        def enter() -> None:
            with gate.enter():
                entered.set()

        threading.Thread(target=enter, daemon=True).start()
        assert entered.wait(5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger [1].db"


@pytest.fixture
def sqlite_database(path: Path) -> SQLiteDatabase:
    made = SQLiteDatabase(f"sqlite:///{path}")
    assert made.create("facts", "key", "head") is True
    return made


class TestFile:
    def test_making(self, sqlite_database: SQLiteDatabase, path: Path) -> None:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert [one.name for one in path.parent.iterdir()] == [path.name]
        assert sqlite_database.exists() is True
        assert sqlite_database.read(lambda session: (session.read_facts(), session.has_accounts())) == (
            ("facts", "key", 0, "head"),
            True,
        )
        assert sqlite_database.create("other", "key", "head") is False
        assert [one.name for one in path.parent.iterdir()] == [path.name]
        assert sqlite_database.read(lambda session: session.read_facts()) == ("facts", "key", 0, "head")

    def test_making_on_the_disk(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The folder is synchronised once the name is in it, and the file is exclusively ours before that."""
        seen: list[Any] = []
        opened, sync = os.open, os.fsync
        monkeypatch.setattr(os, "open", lambda name, *rest: seen.append((Path(name), *rest)) or opened(name, *rest))
        monkeypatch.setattr(
            os, "fsync", lambda number: seen.append(stat.S_ISDIR(os.fstat(number).st_mode)) or sync(number)
        )
        SQLiteDatabase(f"sqlite:///{path}").create("facts", "key", "head")
        (fresh, flags, mode), folder, is_folder = seen
        assert (fresh.parent, fresh.name[:14], fresh.name[-5:]) == (path.parent, ".ledger [1].db", ".part")
        assert flags == os.O_RDWR | os.O_CREAT | os.O_EXCL
        assert mode == 0o600
        assert folder == (path.parent, os.O_RDONLY)
        assert is_folder is True

    def test_folders_that_cannot_be_opened(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Windows cannot open folders, so none is opened there."""
        folder, opened = path.parent, []
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", lambda *given: opened.append(given))
            patch.setattr(os, "name", "nt")
            sync_folder(folder)
        assert opened == []

    def test_no_descriptor_is_left(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        before = len(list(Path("/dev/fd").iterdir()))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, "broken")))
            with pytest.raises(OSError, match="broken"):
                sync_folder(path.parent)
        assert len(list(Path("/dev/fd").iterdir())) == before

    def test_nowhere(self, tmp_path: Path) -> None:
        nowhere = SQLiteDatabase(f"sqlite:///{tmp_path / 'no' / 'l.db'}")
        assert nowhere.exists() is False
        with pytest.raises(ss.LedgerError, match=r"cannot be made: No such file or directory\."):
            nowhere.create("facts", "key", "head")
        for bad in ("a\0b", "x" * 5000):
            with pytest.raises(ss.ScoreShieldError):
                SQLiteDatabase(f"sqlite:///{tmp_path}/{bad}").exists()

    def test_no_path(self, tmp_path: Path) -> None:
        with pytest.raises(ss.LedgerError, match="cannot be made: embedded null byte"):
            SQLiteDatabase(f"sqlite:///{tmp_path}/a\0b").create("facts", "key", "head")

    def test_an_index_that_hides_an_entry(self, sqlite_database: SQLiteDatabase, path: Path) -> None:
        """What a reader asks SQLite about the file includes its indexes."""
        assert sqlite_database.read(lambda session: session.find_damage()) is None
        sqlite_database.write(lambda session: session.append(entry(1)))
        name, made = "scoreshield_entries_by_dataset", database._BY_DATASET
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(f"DROP INDEX {name}")
        connection.execute(f"CREATE INDEX {name} ON scoreshield_entries (dataset, id) WHERE id < 1")
        connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (made, name))
        connection.close()
        assert "missing from index" in (sqlite_database.read(lambda session: session.find_damage()) or "")

    def test_addresses(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        for url in ("sqlite:///l.db", f"sqlite:///{tmp_path}/l.db"):
            found = open_database(url)
            assert isinstance(found, SQLiteDatabase)
            assert found.name == f"sqlite:///{tmp_path}/l.db"
        assert open_database("sqlite:///x").name == f"sqlite:///{tmp_path}/x"
        for url in ("sqlite:///:memory:", "sqlite:///", "sqlite://x", "mysql://db/x", "", None, 5, b"sqlite:///x"):
            with pytest.raises(ss.InvalidInput):
                open_database(url)

    def test_servers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(accounts, "PostgresDatabase", lambda url: ("server", url))
        for url in ("postgresql://db/x", "postgres://ann:pw@db/x", "postgresql://"):
            assert open_database(url) == ("server", url)
        for url in ("POSTGRESQL://db/x", "xpostgres://db/x", "postgresqldb/x"):
            with pytest.raises(ss.InvalidInput):
                open_database(url)

    @pytest.mark.parametrize(
        ("url", "said"),
        [("mysql://db/x", "'mysql://db/x'"), (["a@b"], "['a@b']"), ("mysql://ann:pw@db/x", "another address")],
    )
    def test_what_is_said_of_addresses(self, url: object, said: str) -> None:
        with pytest.raises(ss.InvalidInput) as caught:
            open_database(url)
        assert f"Got {said} instead" in str(caught.value)

    @pytest.mark.parametrize("mode", [0o604, 0o602, 0o601, 0o666])
    def test_everyone(self, sqlite_database: SQLiteDatabase, path: Path, mode: int) -> None:
        path.chmod(mode)
        with pytest.warns(ss.LedgerWarning, match="Everyone"):
            assert sqlite_database.exists()

    @pytest.mark.parametrize("mode", [0o600, 0o660, 0o640])
    def test_groups(self, sqlite_database: SQLiteDatabase, path: Path, mode: int) -> None:
        path.chmod(mode)
        assert sqlite_database.exists()

    def test_is_at(self, sqlite_database: SQLiteDatabase, path: Path) -> None:
        link, other = path.with_name("link"), path.with_name("other")
        link.symlink_to(path)
        other.touch()
        assert sqlite_database.is_at(path) is sqlite_database.is_at(link) is True
        assert sqlite_database.is_at(other) is sqlite_database.is_at(path.with_name("none")) is False
        path.unlink()
        assert sqlite_database.is_at(other) is False
        assert LedgerDatabase.is_at(sqlite_database, other) is False

    def test_connections(self, sqlite_database: SQLiteDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only a file that is there, without SQLite's own waiting and without Python's own transactions."""
        seen: list[Any] = []
        connect = sqlite3.connect
        monkeypatch.setattr(sqlite3, "connect", lambda *a, **o: seen.append((a, o)) or connect(*a, **o))
        sqlite_database.exists()
        ((address,), options), *_ = seen
        assert address.startswith("file:/")
        assert address.endswith("/ledger%20%5B1%5D.db?mode=rw")
        assert options == {"uri": True, "timeout": 0.0, "isolation_level": None, "check_same_thread": False}

    def test_what_no_ledger_has(self, sqlite_database: SQLiteDatabase, path: Path) -> None:
        def execute(statement: str) -> None:
            connection = sqlite3.connect(path, isolation_level=None)
            connection.execute(statement)
            connection.close()

        assert ("table", "scoreshield_accounts") in database.OBJECTS
        execute("DROP TABLE scoreshield_accounts")
        assert sqlite_database.read(lambda session: session.has_accounts()) is False
        assert sqlite_database.write(lambda session: session.has_accounts()) is True
        for make, drop, name in (
            ("CREATE TABLE more (x)", "DROP TABLE more", "table more"),
            ("CREATE INDEX quick ON scoreshield_entries (who)", "DROP INDEX quick", "index quick"),
            ("CREATE VIEW look AS SELECT 1", "DROP VIEW look", "view look"),
        ):
            execute(make)
            with pytest.raises(ss.LedgerError, match=f"holds the {name}, which no ledger has"):
                sqlite_database.exists()
            execute(drop)
            assert sqlite_database.exists()
        execute("DROP TABLE scoreshield_ledger")
        with pytest.raises(ss.LedgerError, match="database without a ledger"):
            sqlite_database.exists()
        path.unlink()
        path.touch(0o600)
        with pytest.raises(ss.LedgerError, match="exists and holds no ledger"):
            sqlite_database.exists()

    def test_own_indexes(self) -> None:
        """SQLite makes an index for each key; for a table of somebody else it is no index of ours."""
        assert sqlite._is_automatic("sqlite_autoindex_scoreshield_entries_1", "scoreshield_entries")
        assert not sqlite._is_automatic("sqlite_autoindex_more_1", "more")
        assert not sqlite._is_automatic("by_who", "scoreshield_entries")

    @pytest.mark.parametrize("statement", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
    def test_a_lock_that_is_given_back(self, sqlite_database: SQLiteDatabase, path: Path, statement: str) -> None:
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute(statement)
        timer = threading.Timer(0.03, lambda: other.execute("ROLLBACK"))
        timer.start()
        sqlite_database.write(lambda session: session.advance(entry(1)))
        timer.join()
        other.close()
        assert sqlite_database.read(lambda session: session.read_facts()) == ("facts", "key", 1, "hash 1")

    def test_it_waits_in_short_turns(
        self, sqlite_database: SQLiteDatabase, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A hundredth of a second or so, by chance: so that no fork waits for long, and no two processes in step."""
        monkeypatch.setattr(database, "BUSY_SECONDS", 0.01)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        for draw in (lambda _: 0, lambda most: most - 1):
            turns: list[float] = []
            with monkeypatch.context() as patch:
                patch.setattr(sqlite.secrets, "randbelow", draw)
                patch.setattr(time, "sleep", lambda seconds, turns=turns: turns.append(seconds))
                with pytest.raises(ss.LedgerError, match="locked"):
                    sqlite_database.write(lambda _: None)
            assert 0.0005 < min(turns) <= max(turns) < 0.02
        other.close()

    def test_a_commit_waits_for_readers(self, sqlite_database: SQLiteDatabase, path: Path) -> None:
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN")
        other.execute("SELECT * FROM scoreshield_ledger").fetchall()
        timer = threading.Timer(0.03, lambda: other.execute("ROLLBACK"))
        timer.start()
        sqlite_database.write(lambda session: session.advance(entry(1)))
        timer.join()
        other.close()

    @pytest.mark.parametrize("statement", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
    def test_a_lock_that_is_kept(
        self, sqlite_database: SQLiteDatabase, path: Path, statement: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(database, "BUSY_SECONDS", 0.04)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute(statement)
        start = time.monotonic()
        with pytest.raises(ss.LedgerError, match=r"locked by another process for 0\.04 s"):
            sqlite_database.write(lambda _: pytest.fail("it was locked"))
        assert 0.04 <= time.monotonic() - start < 5
        other.close()

    def test_a_fork_inside(self, sqlite_database: SQLiteDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sqlite._gate, "was_forked_inside", True)
        with pytest.raises(ss.LedgerError, match="was forked"):
            sqlite_database.exists()

    def test_a_process_of_its_own(self) -> None:
        sqlite._check_not_forked(os.getpid())
        with pytest.raises(ss.LedgerError, match="was forked"):
            sqlite._check_not_forked(os.getpid() + 1)

    def test_a_child_leaves_the_connection_open(
        self, sqlite_database: SQLiteDatabase, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """To close it, or to let it go at the end, would roll back what the parent is writing."""
        assert sqlite_database.exists()
        with sqlite_database._borrow(path) as connection:
            pass
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")
        numbers = iter([1, 2, 2])
        monkeypatch.setattr(os, "getpid", lambda: next(numbers))
        with sqlite_database._borrow(path) as connection:
            held = sys.getrefcount(connection)
        assert sys.getrefcount(connection) == held, "the block holds it no more, so something else does"
        assert connection.execute("SELECT 1").fetchone() == (1,)
        connection.close()

    def test_kept_connections(self, sqlite_database: SQLiteDatabase) -> None:
        """A kept connection is outside of every transaction: others may write, and it sees what they wrote."""
        sqlite_database.keep_connections(2)
        other = SQLiteDatabase(sqlite_database.name)
        numbers = []
        for number in range(4):
            sqlite_database.write(lambda session: session.execute("SELECT 1").fetchone())
            kept = [one.connection for one in sqlite_database._kept]
            numbers.append(len(kept))
            assert not any(connection.in_transaction for connection in kept)
            other.write(lambda session, value=number: session.advance(entry(value)))
            assert sqlite_database.read(lambda session: session.read_facts())[2] == number
        assert numbers == [1] * 4, "the same one was used again"
        with sqlite_database._transaction("BEGIN") as first, sqlite_database._transaction("BEGIN") as second:
            assert first is not second
            with sqlite_database._transaction("BEGIN") as third:
                assert third not in (first, second)
        assert len(sqlite_database._kept) == 2
        assert pickle.loads(pickle.dumps(sqlite_database))._kept == []

    def test_kept_connection_sees_another_schema(self, sqlite_database: SQLiteDatabase, path: Path) -> None:
        """A trigger that was made since the last transaction is found, though the schema was checked before."""
        sqlite_database.keep_connections(2)
        sqlite_database.write(lambda session: session.advance(entry(1)))
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("CREATE TRIGGER quiet AFTER UPDATE ON scoreshield_ledger BEGIN SELECT 1; END")
        with pytest.raises(ss.LedgerError, match="trigger quiet"):
            sqlite_database.write(lambda session: session.advance(entry(2)))
        other.execute("DROP TRIGGER quiet")
        other.close()
        sqlite_database.write(lambda session: session.advance(entry(2)))
        assert sqlite_database.read(lambda session: session.read_facts())[2] == 2

    def test_kept_connection_after_an_error(self, sqlite_database: SQLiteDatabase) -> None:
        """What a failed work wrote is gone, and its connection is not used again."""
        sqlite_database.keep_connections(2)

        def fail(session: Session) -> None:
            session.advance(entry(7))
            raise ValueError

        with pytest.raises(ValueError, match=r"^$"):
            sqlite_database.write(fail)
        assert sqlite_database._kept == []
        assert sqlite_database.read(lambda session: session.read_facts())[2] == 0

    def test_kept_connection_of_another_file(self, sqlite_database: SQLiteDatabase, path: Path) -> None:
        """A ledger that was moved away is not charged through a connection that still has it open."""
        sqlite_database.keep_connections(2)
        sqlite_database.write(lambda session: session.advance(entry(3)))
        away = path.with_name("away.db")
        shutil.copy(path, path.with_name("copy.db"))
        path.rename(away)
        with pytest.raises(ss.LedgerError, match="cannot be opened"):
            sqlite_database.write(lambda _: pytest.fail("there is no ledger"))
        path.with_name("copy.db").rename(path)
        sqlite_database.write(lambda session: session.advance(entry(4)))
        assert sqlite_database.read(lambda session: session.read_facts())[2] == 4
        assert SQLiteDatabase(f"sqlite:///{away}").read(lambda session: session.read_facts())[2] == 3

    def test_kept_connection_of_the_parent(
        self, sqlite_database: SQLiteDatabase, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A child opens its own, and does not close the one of its parent."""
        sqlite_database.keep_connections(2)
        assert sqlite_database.exists()
        (parent,) = [one.connection for one in sqlite_database._kept]
        process = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: process + 1)
        with sqlite_database._transaction("BEGIN") as connection:
            assert connection is not parent
        assert parent.execute("SELECT 1").fetchone() == (1,)
        assert [one.connection for one in sqlite_database._kept] == [connection]
        parent.close()

    def test_write_ahead(self, sqlite_database: SQLiteDatabase, path: Path) -> None:
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.close()
        assert not path.with_name(path.name + "-wal").exists()
        with pytest.raises(ss.LedgerError, match="has a write-ahead log"):
            sqlite_database.exists()

    def test_write_ahead_beside(self, sqlite_database: SQLiteDatabase, path: Path) -> None:
        """SQLite looks for a log beside the file itself, not beside a link to it."""
        folder = path.parent / "elsewhere"
        folder.mkdir()
        (folder / "link.db").symlink_to(path)
        linked = SQLiteDatabase(f"sqlite:///{folder / 'link.db'}")
        assert linked.exists()
        path.with_name(path.name + "-wal").symlink_to("nowhere")
        for one in (sqlite_database, linked):
            with pytest.raises(ss.LedgerError, match="has a write-ahead log"):
                one.exists()

    @pytest.mark.parametrize("ending", ["-journal", "-wal", "-shm"])
    def test_left_behind(self, path: Path, ending: str) -> None:
        left = path.with_name(path.name + ending)
        left.symlink_to("nowhere")
        with pytest.raises(ss.LedgerError) as caught:
            SQLiteDatabase(f"sqlite:///{path}").create("facts", "key", "head")
        assert f"cannot be made beside {left}. An earlier" in str(caught.value)
        path.touch()
        assert SQLiteDatabase(f"sqlite:///{path}").create("facts", "key", "head") is False

    def test_second_names(self, sqlite_database: SQLiteDatabase, path: Path) -> None:
        """What a killed creation left is removed, and nothing else; any other second name is an error."""
        ours, foreign = path.with_name(f".{path.name}.0f.part"), path.with_name(f".{path.name}.1f.part")
        ours.hardlink_to(path)
        foreign.write_text("of another creation")
        dangling = path.with_name(f".{path.name}.2f.part")
        dangling.symlink_to(path)
        assert sqlite_database.exists()
        assert not ours.exists()
        assert foreign.read_text() == "of another creation"
        assert dangling.is_symlink()
        path.with_name("copy.db").hardlink_to(path)
        with pytest.raises(ss.LedgerError, match="has a second name"):
            sqlite_database.exists()
        path.with_name("copy.db").unlink()
        assert sqlite_database.exists()

    def test_a_second_name_that_stays(
        self, sqlite_database: SQLiteDatabase, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What cannot be removed is named."""

        def unlink(_: Path) -> None:
            raise PermissionError(errno.EPERM, "Operation not permitted")

        path.with_name(f".{path.name}.0f.part").hardlink_to(path)
        monkeypatch.setattr(Path, "unlink", unlink)
        with pytest.raises(ss.LedgerError, match="has a second name"):
            sqlite_database.exists()

    @pytest.mark.parametrize("name", ["l.db", "a b.db", "a\tb", "a\nb", "a\\b", "a\\040b", "a\rb", "a\x0bb", "\u00e9"])
    def test_mounts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        """Linux lists mounts with the place in the fifth field, in octal where a character would end a field."""
        file = tmp_path / name
        file.touch()
        (tmp_path / "link").symlink_to(file)
        place = os.fsencode(file)
        for character in b"\\ \t\n":
            place = place.replace(bytes([character]), b"\\%03o" % character)
        mounts = tmp_path / "mountinfo"
        monkeypatch.setattr(sqlite, "_MOUNTS", mounts)
        assert not sqlite._is_mount(file), "a system without such a list"
        lines = [b"22 1 8:1 / / rw - ext4 /dev/sda1 rw", b"short", b"36 22 8:2 %s /elsewhere rw - ext4 x rw" % place]
        mounts.write_bytes(b"\n".join(lines))
        assert not sqlite._is_mount(file)
        mounts.write_bytes(b"\n".join([*lines, b"37 22 8:1 /x %s rw - ext4 /dev/sda1 rw" % place, lines[0]]))
        assert sqlite._is_mount(file)
        assert sqlite._is_mount(tmp_path / "link")
        assert not sqlite._is_mount(tmp_path / "other")
        with pytest.raises(ss.LedgerError, match="is mounted as a single file"):
            SQLiteDatabase(f"sqlite:///{file}").exists()

    def test_folders_are_no_ledger(self, tmp_path: Path) -> None:
        """A folder has several links, and that is not what is wrong with it."""
        (tmp_path / "folder" / "inner").mkdir(parents=True)
        with pytest.raises(ss.LedgerError, match="cannot be opened: Is a directory"):
            SQLiteDatabase(f"sqlite:///{tmp_path / 'folder'}").exists()


def failing(kind: type[sqlite3.Error], code: int, words: str = "words") -> sqlite3.Error:
    error = kind(words)
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "doing", "words"),
    [
        (failing(sqlite3.OperationalError, sqlite3.SQLITE_BUSY), "opened", "locked by another process for 60 s"),
        (failing(sqlite3.OperationalError, sqlite3.SQLITE_LOCKED), "used", "locked by another process"),
        (failing(sqlite3.OperationalError, sqlite3.SQLITE_FULL), "used", "cannot be used: words; if this charge was"),
        (failing(sqlite3.OperationalError, sqlite3.SQLITE_CANTOPEN), "opened", "cannot be opened: words."),
        (failing(sqlite3.DatabaseError, sqlite3.SQLITE_NOTADB), "opened", "is not a ledger, or is corrupt: words."),
        (failing(sqlite3.DatabaseError, sqlite3.SQLITE_CORRUPT), "used", "is not a ledger, or is corrupt: words."),
        (failing(sqlite3.DatabaseError, sqlite3.SQLITE_BUSY), "used", "is not a ledger, or is corrupt: words."),
        (sqlite3.InterfaceError("words"), "used", "cannot be opened: words."),
        (OSError(errno.EACCES, "Permission denied"), "opened", "cannot be opened: Permission denied."),
    ],
)
def test_failures(tmp_path: Path, error: BaseException, doing: str, words: str) -> None:
    failure = SQLiteDatabase(f"sqlite:///{tmp_path}/l.db")._make_error(error, doing)
    assert isinstance(failure, ss.LedgerError)
    assert words in str(failure)
    assert f"{tmp_path}/l.db" in str(failure)


def test_busy() -> None:
    """By the lowest byte of SQLite's code: the others say more."""
    for code in (5, 6, 5 | 1 << 8, 6 | 2 << 8):
        assert sqlite._is_busy(failing(sqlite3.OperationalError, code))
    for code in (0, 1, 4, 7, 10, 13, 5 << 8):
        assert not sqlite._is_busy(failing(sqlite3.OperationalError, code))
    assert not sqlite._is_busy(sqlite3.OperationalError("without a code"))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EIO, "Input/output error", "file"), "Input/output error"),
        (OSError("only words"), "only words"),
        (OSError(), "OSError"),
        (ValueError("two\n  lines."), "two lines"),
        (ValueError(""), "ValueError"),
        (ValueError("file X."), "file X"),
        (ValueError("x" * 201), "x" * 200),
        (ValueError("a\x1b[31m"), None),
    ],
)
def test_reasons(error: BaseException, said: str | None) -> None:
    """One short line that a terminal does not act on."""
    found = database.explain_failure(error)
    assert found.isprintable()
    assert found == said or said is None


class FakeDriver:
    """What is asked of psycopg before there is a server."""

    class Error(Exception):
        pass

    def __init__(self, **parts: Any) -> None:
        self.conninfo = SimpleNamespace(conninfo_to_dict=self._parse)
        self._parts, self.asked = parts, []

    def _parse(self, url: str) -> dict[str, Any]:
        self.asked.append(url)
        if "error" in self._parts:
            raise self._parts["error"]
        return self._parts


class TestServers:
    @pytest.mark.parametrize(
        "parts",
        [
            {"host": "db", "port": "5432", "user": "ann", "password": "p@ss/w:rd", "dbname": "x"},
            {"host": "a,b", "port": "10,23456789", "dbname": "x"},
            {"hostaddr": "10.0.0.1", "dbname": ""},
            {"host": "/run/pg"},
            {},
        ],
    )
    def test_parts(self, parts: dict[str, str]) -> None:
        driver = FakeDriver(**parts)
        assert postgres._parse_address(driver, "address") == parts
        assert driver.asked == ["address"]

    def test_parts_are_texts(self) -> None:
        assert postgres._parse_address(FakeDriver(port=5432), "address") == {"port": "5432"}

    @pytest.mark.parametrize(
        "parts",
        [
            {"host": "ss@db"},
            {"hostaddr": "ss@db"},
            {"user": "ann@x"},
            {"dbname": "ss@db"},
            {"dbname": "ss/x"},
            {"port": "12ab"},
            {"port": "X1"},
            {"port": "5432 "},
            {"error": FakeDriver.Error("no")},
            {"error": ValueError("no")},
        ],
    )
    def test_a_password_in_another_part(self, parts: dict[str, Any]) -> None:
        """A raw character in a password moves its rest into host, user, port or database."""
        others = {"host": "db", "hostaddr": "1", "user": "ann", "dbname": "x", "port": "1"}
        assert postgres._parse_address(FakeDriver(**{**others, **parts}), "address") is None
        assert postgres._parse_address(FakeDriver(**parts), "address") is None

    @pytest.mark.parametrize(
        ("parts", "name"),
        [
            ({"host": "db", "port": "5432", "dbname": "x"}, "postgresql://db:5432/x"),
            ({"host": "db", "hostaddr": "10.0.0.1", "dbname": "x"}, "postgresql://db/x"),
            ({"hostaddr": "10.0.0.1", "port": ""}, "postgresql://10.0.0.1/"),
            ({"host": "[::1],b-c.d:1/e", "dbname": "a/b c:d"}, "postgresql://[::1],b-c.d:1/e/a%2Fb%20c%3Ad"),
            ({"host": "a b@c?", "dbname": "x"}, "postgresql://a%20b%40c%3F/x"),
            ({"password": "s3cret", "user": "ann", "sslkey": "k"}, "postgresql:///"),
        ],
    )
    def test_names(self, parts: dict[str, str], name: str) -> None:
        assert postgres._write_address(parts) == name

    def test_hiding(self) -> None:
        hide = postgres._make_redactor(["s3cret", "key"])
        assert hide("a s3cret and a key, s3cret") == "a *** and a ***, ***"
        assert postgres._make_redactor([])("a s3cret") == "a s3cret"

    @pytest.mark.parametrize(("setting", "is_changed"), [("off", True), ("local", True), ("on", False)])
    def test_commits_wait_for_the_disk(self, setting: str, is_changed: bool) -> None:
        seen: list[str] = []

        def execute(statement: str) -> Any:
            seen.append(statement)
            return SimpleNamespace(fetchone=lambda: (setting, "more"))

        postgres._make_durable(SimpleNamespace(execute=execute))
        assert seen[:2] == ["SET LOCAL lock_timeout = '60s'", "SHOW synchronous_commit"]
        assert seen[2:] == (["SET LOCAL synchronous_commit = on"] if is_changed else [])
