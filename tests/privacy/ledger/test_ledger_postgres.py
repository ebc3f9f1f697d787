"""The same ledger on a real PostgreSQL server, started for these tests and thrown away after them."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from ledger_support import gaussian, pure

import scoreshield as ss
from scoreshield.errors import BudgetExceeded, LedgerError
from scoreshield.privacy.ledger import Ledger, database, postgres
from scoreshield.privacy.ledger.postgres import connect_server

psycopg = pytest.importorskip("psycopg", reason="the driver of PostgreSQL is not installed")

TESTS = Path(__file__).resolve().parents[2]
_schemas = itertools.count()


@pytest.fixture
def url(postgres: str) -> str:
    """A schema of its own for each test."""
    name = f"ledger{next(_schemas)}"
    execute(postgres, f"CREATE SCHEMA {name}")
    return f"{postgres}&options=-csearch_path%3D{name}"


def execute(url: str, *statements: str) -> list[Any]:
    with psycopg.connect(url) as connection:
        cursors = [connection.execute(statement) for statement in statements]
        return cursors[-1].fetchall() if cursors[-1].description else []


def drive(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(TESTS / "ledger_drivers.py"), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]), "OMP_NUM_THREADS": "1"},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_same_ledger(url: str, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="There is no ledger at postgresql:"):
        Ledger.open(url)
    here = Ledger.create(url, epsilon=10.0, delta=1e-6)
    there = Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=10.0, delta=1e-6)
    for ledger in (here, there):
        ledger.spend(pure(2.0), dataset="a", who="ada", why="100 % of it? nº 1")
        ledger.spend(gaussian(0.4), dataset="b")
        ledger.spend(gaussian(0.3))
        with pytest.raises(BudgetExceeded):
            ledger.spend(pure(9.0), dataset="a")
        with pytest.raises(ss.InvalidInput, match="cannot be changed"):
            Ledger(url if ledger is here else there.name, epsilon=11.0)
        assert ledger.verify() == ledger.verify_in_use()
        assert ledger.verify()
        assert Ledger.open(url if ledger is here else there.name).verify(head=ledger.head())
    assert here.spent == there.spent
    assert here.headroom_on("a") == there.headroom_on("a")
    assert here.datasets() == there.datasets() == ["a", "b"]
    same = ("id", "kind", "note", "dataset", "unit", "why", "profile", "guarantee")
    for mine, other in zip(here.entries(), there.entries(), strict=True):
        assert [getattr(mine, name) for name in same] == [getattr(other, name) for name in same]


def test_racing_charges(url: str) -> None:
    Ledger.create(url, epsilon=3.0, delta=0.0)
    found = drive("race", url, "8", "75")
    print(f"\n{found}")
    assert found["charged"] == found["entries"] == 300
    assert found["refused"] == 300
    assert (found["failed"], found["lost"], found["twice"]) == (0, 0, 0)
    assert found["spent"] <= found["limit"]
    assert found["whole"]


def test_killed_at_random_moments(url: str) -> None:
    found = drive("kill_at_random", url, "25")
    print(f"\n{found}")
    assert found["whole"]
    assert found["in_order"]
    assert found["lost"] == 0
    assert found["acknowledged"] > 0
    assert 0 <= found["entries"] - found["acknowledged"] <= found["rounds"]


def test_eight_makers_make_one_ledger(url: str) -> None:
    made, errors = [], []

    def make() -> None:
        try:
            made.append(Ledger.create(url, epsilon=1.0, delta=0.0).head())
        except LedgerError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert len(errors) == 7
    assert all("; open it with Ledger.open" in error for error in errors)
    assert made == [Ledger.open(url).head()]


@pytest.mark.parametrize("moment", ["append", "advance"])
def test_a_server_that_hangs_up(url: str, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger.create(url, epsilon=10.0, delta=0.0)
    ledger.spend(pure(1.0))
    usual = getattr(database.Session, moment)

    def hang_up(session: Any, entry: Any) -> None:
        usual(session, entry)
        session._execute("SELECT pg_terminate_backend(pg_backend_pid())")

    with monkeypatch.context() as patch:
        patch.setattr(database.Session, moment, hang_up)
        with pytest.raises(LedgerError, match=r"cannot be used: .*it costs budget and released nothing") as caught:
            ledger.spend(pure(1.0))
    assert "\n" not in str(caught.value)
    assert len(ledger.entries()) == 1
    ledger.spend(pure(1.0))
    assert ledger.spent == 2.0
    assert ledger.verify()


def test_a_conflict_is_tried_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger.create(url, epsilon=10.0, delta=0.0)
    usual, tries = database.Session.advance, []

    def conflict(session: Any, entry: Any) -> None:
        tries.append(entry.id)
        if len(tries) < 4:
            raise psycopg.errors.SerializationFailure
        usual(session, entry)

    with monkeypatch.context() as patch:
        patch.setattr(database.Session, "advance", conflict)
        ledger.spend(pure(1.0))
    assert tries == [1, 1, 1, 1]
    assert len(ledger.entries()) == 1
    monkeypatch.setattr(postgres, "_RETRIES", 2)
    monkeypatch.setattr(database.Session, "advance", lambda *_: (_ for _ in ()).throw(psycopg.errors.DeadlockDetected))
    with pytest.raises(LedgerError, match=r"Too many processes charged the ledger .* nothing was charged"):
        ledger.spend(pure(1.0))


def test_a_lock_that_is_never_given_back(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger.create(url, epsilon=10.0, delta=0.0)
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.2)
    with psycopg.connect(url) as other:
        other.execute("SELECT * FROM scoreshield_ledger FOR UPDATE")
        with pytest.raises(LedgerError, match=r"locked by another process for 0\.2 s; nothing was charged"):
            ledger.spend(pure(1.0))
        assert ledger.spent == 0.0  # reading does not wait
    ledger.spend(pure(1.0))


def test_commits_wait_for_the_disk(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = url.replace("-csearch_path", "-csynchronous_commit%3Doff%20-csearch_path")
    ledger = Ledger.create(quick, epsilon=10.0, delta=0.0)
    seen, usual = [], database.Session.advance

    def look(session: Any, entry: Any) -> None:
        seen.append(session._execute("SHOW synchronous_commit").fetchone()[0])
        usual(session, entry)

    monkeypatch.setattr(database.Session, "advance", look)
    ledger.spend(pure(1.0))
    assert seen == ["on"]


def test_a_role_that_may_charge_and_not_rewrite(url: str) -> None:
    """The rights that docs/accounting.md gives to those who charge."""
    ledger = Ledger.create(url, epsilon=10.0, delta=0.0)
    ledger.spend(pure(1.0))
    schema = url.rpartition("%3D")[2]
    execute(
        url,
        f"CREATE ROLE {schema}_charger LOGIN",
        f"GRANT USAGE ON SCHEMA {schema} TO {schema}_charger",
        f"GRANT SELECT, INSERT ON scoreshield_entries TO {schema}_charger",
        f"GRANT SELECT, UPDATE (entries, head) ON scoreshield_ledger TO {schema}_charger",
        f"GRANT SELECT, INSERT, UPDATE ON scoreshield_accounts TO {schema}_charger",
    )
    theirs = url.replace("postgres:@", f"{schema}_charger:@", 1)
    Ledger.open(theirs).spend(pure(1.0))
    for forbidden in (
        "DELETE FROM scoreshield_entries",
        "UPDATE scoreshield_entries SET why = ''",
        "UPDATE scoreshield_ledger SET facts = ''",
        "DELETE FROM scoreshield_ledger",
        "DELETE FROM scoreshield_accounts",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            execute(theirs, forbidden)
    assert ledger.spent == 2.0


def test_tampering_is_evident(url: str) -> None:
    ledger = Ledger.create(url, epsilon=10.0, delta=0.0)
    for _ in range(4):
        ledger.spend(pure(1.0))
    execute(url, "DELETE FROM scoreshield_entries WHERE id = 2")
    assert ledger.verify().first_bad == 3
    with pytest.raises(LedgerError, match="has been altered"):
        ledger.spend(pure(1.0))


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE RULE quiet AS ON INSERT TO scoreshield_entries DO INSTEAD NOTHING",
        "CREATE TRIGGER quiet BEFORE INSERT ON scoreshield_entries FOR EACH ROW EXECUTE FUNCTION nothing()",
        "CREATE TRIGGER quiet BEFORE UPDATE ON scoreshield_accounts FOR EACH ROW EXECUTE FUNCTION nothing()",
        "ALTER TABLE scoreshield_entries ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE scoreshield_entries SET UNLOGGED",
        "CREATE TABLE more () INHERITS (scoreshield_entries)",
        "ALTER TABLE scoreshield_accounts RENAME TO a; CREATE VIEW scoreshield_accounts AS SELECT * FROM a",
    ],
)
def test_triggers_rules_and_views_stop_a_charge(url: str, statement: str) -> None:
    ledger = Ledger.create(url, epsilon=10.0, delta=0.0)
    ledger.spend(pure(1.0), dataset="a")
    execute(
        url,
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        *statement.split("; "),
    )
    with pytest.raises(LedgerError, match="is a view, is not logged, or has a trigger, a rule or a row policy"):
        ledger.spend(pure(1.0), dataset="a")
    assert execute(url, "SELECT COUNT(*) FROM ONLY scoreshield_entries") == [(1,)]


def test_table_sums_dropped_made_again(url: str) -> None:
    """A table of sums that was dropped is made again."""
    ledger = Ledger.create(url, epsilon=10.0, delta=0.0)
    ledger.spend(pure(1.0), dataset="a")
    execute(url, "DROP TABLE scoreshield_accounts")
    ledger.spend(pure(2.0), dataset="a")
    assert ledger.spent_on("a") == 3.0
    assert ledger.verify()


def test_old_ledger_gets_sums_owner_alone(url: str) -> None:
    """An old ledger gets its sums from its owner alone."""
    ledger = Ledger.create(url, epsilon=10.0, delta=0.0)
    ledger.spend_all([pure(1.0), pure(2.0)], dataset="a")
    schema = url.rpartition("%3D")[2]
    execute(
        url,
        "DROP TABLE scoreshield_accounts",  # as an earlier version left it
        "DROP INDEX scoreshield_entries_by_dataset",
        f"CREATE ROLE {schema}_charger LOGIN",
        f"GRANT USAGE ON SCHEMA {schema} TO {schema}_charger",
        f"GRANT SELECT, INSERT ON scoreshield_entries TO {schema}_charger",
        f"GRANT SELECT, UPDATE (entries, head) ON scoreshield_ledger TO {schema}_charger",
    )
    theirs = Ledger.open(url.replace("postgres:@", f"{schema}_charger:@", 1))
    theirs.spend(pure(3.0), dataset="a")
    assert theirs.spent_on("a") == 6.0
    assert execute(url, "SELECT to_regclass('scoreshield_accounts')") == [(None,)]
    ledger.spend(pure(1.0), dataset="a")
    assert execute(url, "SELECT dataset, last FROM scoreshield_accounts") == [("a", 4)]
    assert ledger.spent_on("a") == 7.0
    assert ledger.verify()


#: Raw, a password with one of these may be read as something else; as an escape it is read as it is.
RAW = tuple("#?/%@:&= ")
ESCAPED = tuple(f"%{ord(one):02X}" for one in RAW)


@pytest.mark.parametrize("where", ["user", "query"])
@pytest.mark.parametrize("mark", [*RAW, *ESCAPED], ids=ascii)
def test_no_part_of_a_password_is_said(tmp_path: Path, mark: str, where: str) -> None:
    """In names, reprs, errors, their frames and pickles, whatever characters the password has."""
    parts = ("s3cr", "h1dd")
    password = mark.join((parts[0], parts[1], "w0rd"))
    tail = f"books?host={tmp_path}"
    address = (
        f"postgresql://ada:{password}@/{tail}" if where == "user" else f"postgresql://ada@/{tail}&password={password}"
    )
    caught = failure(address)
    del address
    said = [str(caught), repr(caught), *dump(caught)]
    try:
        said.append(pickle.dumps(caught).decode("latin-1"))
    except Exception as error:
        said.append(repr(error))
    for text in said:
        for part in (*parts, "w0rd", password):
            assert part not in text, text
    assert "\n" not in str(caught)


def failure(address: str) -> Exception:
    try:
        Ledger.create(address, epsilon=1.0, delta=0.0)
    except (LedgerError, ss.InvalidInput) as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # this frame is the caller's own
        return error
    raise AssertionError("there is no server")


def dump(error: BaseException | None) -> list[str]:
    """What a tool that reports errors would send: the variables of every frame, of every error in the chain."""
    found = []
    while error is not None:
        trace = error.__traceback__
        while trace is not None:
            for value in trace.tb_frame.f_locals.values():
                found += [repr(value), repr(getattr(value, "__dict__", ""))]
            trace = trace.tb_next
        found.append(repr(error.args))
        error = error.__cause__ or error.__context__
    return found


def test_ledger_server_shows_host_database_alone(url: str) -> None:
    """A ledger on a server shows host and database alone."""
    ledger = Ledger.create(url, epsilon=1.0, delta=0.0)
    shown = url.partition("@")[2].partition("?")[0]
    secret = url.replace("postgres:@", "postgres:w0rd%23%2F@", 1) + "&sslmode=prefer"
    for book in (ledger, Ledger.open(secret)):
        assert "search_path" not in book.name
        for text in (book.name, repr(book), repr(vars(book)), repr(vars(book._database))):
            assert "w0rd" not in text
        assert book.name.startswith("postgresql://")
        with pytest.raises(ss.InvalidInput, match="cannot be pickled"):
            pickle.dumps(book)
    assert shown.rpartition("/")[2] in ledger.name


def test_environment_service_say_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment and a service say stays there."""
    monkeypatch.setenv("PGPASSWORD", "w0rd")
    for address in (f"postgresql://ada@/books?host={tmp_path}", "postgresql:///?service=h1dden"):
        caught = failure(address)
        for text in (str(caught), *dump(caught)):
            assert "w0rd" not in text
            assert "h1dden" not in text
        assert "\n" not in str(caught)


def test_no_server_no_password_said(tmp_path: Path) -> None:
    """No server and no password in what is said."""
    address = f"postgresql://ada:s3cret@/books?host={tmp_path}"
    with pytest.raises(LedgerError, match="cannot be used") as caught:
        Ledger.create(address, epsilon=1.0, delta=0.0)
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_kept_connections(url: str) -> None:
    """Charges share a connection; one that the server has closed is replaced, and nothing is charged twice."""
    ledger = Ledger.create(url, epsilon=10.0, delta=0.0)
    account = ledger.account("people", who="a test")
    asked = "SELECT pg_backend_pid()"

    def find_process() -> int:
        return ledger.write_beside(lambda session: int(session.execute(asked).fetchone()[0]))

    assert len({find_process() for _ in range(3)}) == 3  # by default a connection lasts for one transaction
    ledger.keep_connections(2)
    kept = {find_process() for _ in range(3)}
    assert len(kept) == 1
    ledger.spend(pure(1.0), dataset="people", who="a test")
    execute(url, f"SELECT pg_terminate_backend({kept.pop()})")
    ledger.spend(pure(1.0), dataset="people", who="a test")
    assert account.spent == 2.0

    def fail(session: Any) -> None:
        session.execute("UPDATE scoreshield_ledger SET entries = 0")
        raise LedgerError("stop")

    with pytest.raises(LedgerError, match="stop"):
        ledger.write_beside(fail)
    assert ledger.verify()
    with pytest.raises(LedgerError):
        ledger.write_beside(lambda session: session.execute("SELECT nothing"))
    assert len(ledger.entries()) == 2
    threads = [threading.Thread(target=ledger.spend, args=(pure(1.0),), kwargs={"dataset": "people"}) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert account.spent == 8.0
    idle = execute(url, "SELECT COUNT(*) FROM pg_stat_activity WHERE application_name = 'scoreshield'")
    assert idle[0][0] <= 2


def test_silent_network_ends_a_connection(postgres: str) -> None:
    """A connection does not wait for long where packets are dropped. An address may state other times."""
    with connect_server(psycopg, postgres) as connection:
        found = connection.info.get_parameters()
    assert int(found["tcp_user_timeout"]) == 60_000
    assert int(found["keepalives_idle"]) * 1000 <= 60_000
    stated = f"{postgres}{'&' if '?' in postgres else '?'}tcp_user_timeout=5000&connect_timeout=3"
    with connect_server(psycopg, stated) as connection:
        found = connection.info.get_parameters()
    assert (found["tcp_user_timeout"], found["connect_timeout"]) == ("5000", "3")
    assert found["keepalives_count"] == "3"
