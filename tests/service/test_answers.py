"""Charges and stored answers: one of each, under races, crashes and changes of the data."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the 'service' extra is not installed")

from service_drivers import STEPS
from service_support import make_query, open_service, write_collection, write_policy

from scoreshield.errors import LedgerError, ScoreShieldError
from scoreshield.geometry.passes import MeasuredRows
from scoreshield.privacy.ledger import Ledger
from scoreshield.privacy.ledger.entries import write_canonical_json
from scoreshield.privacy.sampling.stream import KeyedStream
from scoreshield.service.answers import AnswerBook, Payer, Spending, _select_rows
from scoreshield.service.core import Service
from scoreshield.service.offers import StoredRanking, parse_ranking
from scoreshield.service.pending import PendingCharges
from scoreshield.service.policy import AllowancePolicy
from scoreshield.service.problems import ServiceProblem

TESTS = Path(__file__).resolve().parents[1]
APP = Payer("app")


def ask(service: Service, seed: int, payer: Payer = APP) -> list[dict[str, Any]]:
    served = service.collections["docs"]
    answer = served.search(payer, "search", [served.read_query(make_query(seed))], 50)[0]
    return [hit.to_dict() for hit in answer.hits]


def run_driver(folder: Path, step: str, seed: int = 1) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TESTS / "service_drivers.py"), str(folder), step, str(seed)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]), "OMP_NUM_THREADS": "1"},
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("step", STEPS)
def test_killed_process_charges_once_and_never_draws_again(tmp_path: Path, step: str) -> None:
    """A process that is killed at any step leaves one charge at most, and the answer of that charge alone."""
    service = open_service(tmp_path)
    killed = run_driver(tmp_path, step)
    assert killed.returncode == -9, killed.stderr
    is_charged = step in ("after the charge", "after the draw", "after the store")
    account = service.collections["docs"].account
    assert account.spent == float(is_charged)
    seeds, rows = read_seeds(service), read_rows(service)
    first = ask(service, 1)
    assert account.spent == 1.0
    assert read_seeds(service) == [None]
    if seeds and seeds[0] is not None:
        # The same row, with its seed back, gives the same bytes in another process: the noise is that of the charge.
        restore_rows(service, rows)
        assert json.loads(run_driver(tmp_path, "").stdout)["hits"] == first
    assert ask(open_service(tmp_path), 1) == first
    assert account.spent == 1.0
    assert account.ledger.verify()
    assert service.collections["docs"]._book.read_spending("app") == Spending(1, Decimal("1.0"))


def read_seeds(service: Service) -> list[str | None]:
    def work(session: Any) -> list[str | None]:
        return [row[0] for row in session.execute("SELECT seed FROM scoreshield_service_answers").fetchall()]

    return service.collections["docs"].account.ledger.read_beside(work)


def read_rows(service: Service) -> list[Any]:
    """Read what noise is drawn from, of all answers."""
    statement = "SELECT seed, proof, tag FROM scoreshield_service_answers"
    work = service.collections["docs"].account.ledger.read_beside
    return work(lambda session: [tuple(row) for row in session.execute(statement).fetchall()])


def restore_rows(service: Service, rows: list[Any]) -> None:
    """Bring back what noise was drawn from, so that it is drawn again."""
    change = "state = 'pending', content = NULL, signer = NULL, seed = ?, proof = ?"

    def work(session: Any) -> None:
        for row in rows:
            session.execute(f"UPDATE scoreshield_service_answers SET {change} WHERE tag = ?", row)

    service.collections["docs"].account.ledger.write_beside(work)


def keep_row(monkeypatch: pytest.MonkeyPatch, service: Service, seed: int) -> list[Any]:
    """Ask a query; return what the noise of its answer was drawn from."""
    kept: list[Any] = []
    draw = AnswerBook._draw

    def keep(self: AnswerBook, request: Any, row: Any, prepared: Any) -> Any:
        kept.append((row.seed, row.proof, row.tag))
        return draw(self, request, row, prepared)

    with monkeypatch.context() as patch:
        patch.setattr(AnswerBook, "_draw", keep)
        ask(service, seed)
    return kept


def test_other_seed_gives_other_noise(tmp_path: Path) -> None:
    """The near miss of the test above: the answer depends on the seed of the charge."""
    service = open_service(tmp_path)
    first = ask(service, 1)
    book = service.collections["docs"]._book
    tag = read_rows(service)[0][2]
    found = service.collections["docs"].account.ledger.read_beside(lambda session: _select_rows(session, (tag,)))[tag]
    other = found._replace(state="pending", seed="ab" * 32)
    restore_rows(service, [(other.seed, other.compute_proof(book._key), tag)])
    assert ask(open_service(tmp_path), 1) != first


def test_seed_that_others_wrote_draws_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can write to the database gets no second view of a charge by another seed for it."""
    service = open_service(tmp_path)
    one, two = (keep_row(monkeypatch, service, seed)[0] for seed in (1, 2))
    answers = [ask(service, seed) for seed in (1, 2)]
    stored = read_rows(service)
    own = one[1]
    for seed, proof in (("ab" * 32, own), (two[0], own), two[:2], (one[0], stored[0][1]), (None, own)):
        restore_rows(service, [(seed, proof, one[2])])
        with pytest.raises(ServiceProblem) as caught:
            ask(open_service(tmp_path), 1)
        assert caught.value.code == "ledger_unavailable"
    restore_rows(service, [one, two])
    again = open_service(tmp_path)
    assert [ask(again, seed) for seed in (1, 2)] == answers
    assert again.collections["docs"].account.spent == 2.0


def test_charge_without_proof_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A charge that an earlier version of the library has not answered is lost: its seed may be anyone's."""
    service = open_service(tmp_path)
    seed, _, tag = keep_row(monkeypatch, service, 1)[0]
    restore_rows(service, [(seed, None, tag)])
    again = open_service(tmp_path)
    with pytest.raises(ServiceProblem) as caught:
        ask(again, 1)
    assert caught.value.code == "answer_lost"
    assert ask(again, 1)
    assert again.collections["docs"].account.spent == 2.0


def race(count: int, work: Callable[[int], Any]) -> list[Any]:
    barrier = threading.Barrier(count)

    def start(place: int) -> Any:
        barrier.wait()
        try:
            return work(place)
        except ServiceProblem as problem:
            return problem.code

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))


def test_racing_threads_spend_exactly_the_budget(tmp_path: Path) -> None:
    """Of 200 racing fresh queries on a budget of 20, exactly 20 are answered."""
    service = open_service(tmp_path)
    results = race(200, lambda place: ask(service, place))
    assert results.count("budget_exhausted") == 180
    assert sum(isinstance(result, list) for result in results) == 20
    account = service.collections["docs"].account
    assert account.spent == 20.0
    assert len(account.entries()) == 20
    assert account.ledger.verify()


def test_racing_twins_pay_once(tmp_path: Path) -> None:
    """Forty twins of one request, on two replicas, get the same answer for one charge."""
    replicas = [open_service(tmp_path), open_service(tmp_path)]
    results = race(40, lambda place: ask(replicas[place % 2], 1))
    assert all(result == results[0] for result in results)
    assert isinstance(results[0], list)
    assert replicas[0].collections["docs"].account.spent == 1.0


def test_racing_allowance(tmp_path: Path) -> None:
    """Forty racing queries of a caller with an allowance of seven: seven are answered."""
    service = open_service(tmp_path)
    payer = Payer("app", AllowancePolicy(queries=7))
    results = race(40, lambda place: ask(service, place, payer))
    assert results.count("allowance_exhausted") == 33
    assert service.collections["docs"].account.spent == 7.0


@pytest.mark.parametrize("change", ["epsilon = 'NaN'", "epsilon = 'a lot'", "epsilon = '-5'", "queries = -3"])
def test_allowance_that_was_changed(tmp_path: Path, caplog: pytest.LogCaptureFixture, change: str) -> None:
    """Sums of a caller that the service did not write are a problem for this caller, who is charged nothing."""
    service = open_service(tmp_path)
    ask(service, 1)
    served = service.collections["docs"]
    served.account.ledger.write_beside(
        lambda session: session.execute(f"UPDATE scoreshield_service_allowances SET {change}")
    )
    for payer in (APP, Payer("app", AllowancePolicy(epsilon=20.0))):
        with pytest.raises(ServiceProblem) as caught:
            ask(service, 2, payer)
        assert caught.value.code == "ledger_unavailable"
    assert "was changed outside of the service" in caplog.text
    assert served.account.spent == 1.0
    ask(service, 2, Payer("other"))
    assert served.account.spent == 2.0


def test_small_epsilons_add_up_as_written() -> None:
    """Ten queries of 0.1 are within an allowance of 1, and eleven are not."""
    allowance = AllowancePolicy(epsilon=1.0)
    total = sum((Decimal(repr(0.1)) for _ in range(10)), Decimal(0))
    assert allowance.covers(10, total)
    assert not allowance.covers(11, total + Decimal("0.1"))


@pytest.mark.parametrize("cost", [0.1, 0.3, 1 / 3, 0.33333333333334, 7.0, 1e-30])
@pytest.mark.parametrize("spent", ["0", "0.1", "0.99999999999999"])
def test_count_of_an_allowance_is_what_it_covers(cost: float, spent: str) -> None:
    """The queries that are said to be left are covered, and one more is not. Rounding would allow one too many."""
    allowance, before, step = AllowancePolicy(epsilon=1.0), Fraction(spent), Fraction(repr(cost))
    left = allowance.count_left(0, Decimal(spent), cost)
    assert left is not None
    assert before + left * step <= 1 < before + (left + 1) * step
    assert AllowancePolicy(epsilon=1.0, queries=5).count_left(4, Decimal(spent), cost) == min(left, 1)
    assert AllowancePolicy().count_left(4, Decimal(spent), cost) is None


def test_stated_queries_left_are_charged_exactly(tmp_path: Path) -> None:
    """Three queries of 0.33333333333334 are above an allowance of 1, by less than the rounding of a quotient."""
    grants = {"docs": {"actions": ["search"], "allowance": {"epsilon": 1.0}}}
    content = write_policy(callers={"app": {"role": "reader", "collections": grants}})
    content["collections"]["docs"]["search"]["epsilon"] = 0.33333333333334
    service = open_service(tmp_path, content)
    served = service.collections["docs"]
    key = service.keys.create("app")[1]
    caller = service.identify(key)
    grant = service.open(caller, "docs")[1]
    assert served.count_left("search", caller, grant) == 2
    payer = Payer("app", grant.allowance)
    for seed in range(2):
        served.search(payer, "search", [served.read_query(make_query(seed))])
    assert served.count_left("search", caller, grant) == 0
    with pytest.raises(ServiceProblem, match="allowance of this caller"):
        served.search(payer, "search", [served.read_query(make_query(2))])


def stop_before_draw(service: Service, monkeypatch: pytest.MonkeyPatch, seed: int = 1) -> None:
    """Charge an answer, and stop before its noise is drawn."""

    class Stop(Exception):
        pass

    def stop(*_: Any) -> Any:
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(AnswerBook, "_draw", stop)
        with pytest.raises(Stop):
            ask(service, seed)


def test_changed_data_loses_pending_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of a charge is never used on other data: the answer is lost, which one request learns."""
    service = open_service(tmp_path)
    stop_before_draw(service, monkeypatch)
    write_collection(tmp_path / "docs.npz", seed=1)
    changed = open_service(tmp_path)
    with pytest.raises(ServiceProblem) as caught:
        ask(changed, 1)
    assert (caught.value.code, caught.value.status) == ("answer_lost", 410)
    assert read_seeds(changed) == [None]
    assert changed.collections["docs"].account.spent == 1.0
    assert ask(changed, 1)  # a new request, a new charge
    assert changed.collections["docs"].account.spent == 2.0
    assert ask(service, 1)  # a replica that still holds the old data does not use the erased key either
    assert changed.collections["docs"].account.spent == 3.0


def test_changed_promise_loses_pending_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A charge is never answered under another promise, as after an update of the library."""
    service = open_service(tmp_path)
    stop_before_draw(service, monkeypatch)
    monkeypatch.setattr("scoreshield.service.offers.QueryOffer.hash_promise", lambda *_: "another")
    with pytest.raises(ServiceProblem) as caught:
        ask(service, 1)
    assert caught.value.code == "answer_lost"
    assert read_seeds(service) == [None]
    monkeypatch.undo()
    assert ask(service, 1)  # a new request, a new charge
    assert service.collections["docs"].account.spent == 2.0


def test_late_answer_of_given_up_charge_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow request whose charge was given up meanwhile does not put its answer under the new charge."""
    slow, fast = open_service(tmp_path), open_service(tmp_path)
    book = slow.collections["docs"]._book
    draw = book._draw
    results: list[Any] = []

    def draw_slowly(*arguments: Any) -> bytes:
        content = draw(*arguments)
        book._give_up(arguments[1])
        results.append(ask(fast, 1))
        return content

    monkeypatch.setattr(book, "_draw", draw_slowly)
    with pytest.raises(ServiceProblem) as caught:
        ask(slow, 1)
    assert caught.value.code == "answer_lost"
    monkeypatch.undo()
    assert ask(open_service(tmp_path), 1) == results[0]
    assert slow.collections["docs"].account.spent == 2.0


def test_failed_computation_keeps_charge_and_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A computation that fails is not refunded, and the next request computes the same noise."""
    service = open_service(tmp_path)
    stop_before_draw(service, monkeypatch)
    account = service.collections["docs"].account
    assert account.spent == 1.0
    assert ask(service, 1) == ask(open_service(tmp_path), 1)
    assert account.spent == 1.0


def test_error_holds_no_clean_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception after the computation keeps no frame with clean scores."""
    service = open_service(tmp_path)

    def fail(*_: Any) -> Any:
        raise RuntimeError("no disk")

    monkeypatch.setattr(AnswerBook, "_store", fail)
    with pytest.raises(RuntimeError) as caught:
        ask(service, 1)
    traceback = caught.value.__traceback__
    while traceback is not None:
        if "service/answers" in traceback.tb_frame.f_code.co_filename:
            assert not traceback.tb_frame.f_locals
        traceback = traceback.tb_next


def test_no_stream_opens_before_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clean scores may be computed during the charge. No random word of the noise is drawn before it is committed."""
    service = open_service(tmp_path)
    order: list[str] = []
    write, begin = Ledger.write_beside, KeyedStream.__init__

    def commit(self: Ledger, work: Any) -> Any:
        result = write(self, work)
        order.append("commit")
        return result

    def open_stream(self: KeyedStream, *arguments: Any) -> None:
        order.append("noise")
        begin(self, *arguments)

    monkeypatch.setattr(Ledger, "write_beside", commit)
    monkeypatch.setattr(KeyedStream, "__init__", open_stream)
    ask(service, 1)
    assert order == ["commit", "noise", "commit"]


def test_a_thread_helps_to_compute_after_its_charge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that charges takes part in the pass that another thread has begun, once the charge is committed."""
    order: list[str] = []
    write = Ledger.write_beside

    def commit(self: Ledger, work: Any) -> Any:
        found = write(self, work)
        order.append("commit")
        return found

    monkeypatch.setattr(MeasuredRows, "help", lambda _: order.append("help"))
    service = open_service(tmp_path)
    monkeypatch.setattr(Ledger, "write_beside", commit)
    ask(service, 1)
    assert order == ["commit", "help", "commit"]


@pytest.mark.parametrize("failure", [ServiceProblem("budget_exhausted"), LedgerError("The disk is full.")])
def test_failed_charge_drops_clean_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: ScoreShieldError
) -> None:
    """What another thread has computed during a charge that fails is gone, and the error holds none of it."""
    service = open_service(tmp_path)
    book: AnswerBook = service.collections["docs"]._book
    found: list[weakref.ref[Any]] = []
    compute = MeasuredRows.score

    def score(self: MeasuredRows, query: Any) -> Any:
        values = compute(self, query)
        found.append(weakref.ref(values))
        return values

    def fail(work: Any) -> Any:
        del work
        while not found:  # the scores are there before the charge fails
            time.sleep(0.001)
        raise failure

    monkeypatch.setattr(MeasuredRows, "score", score)
    monkeypatch.setattr(book._writer, "run", fail)
    with pytest.raises(type(failure)) as caught:
        ask(service, 1)
    book._computing.submit(lambda: None).result(30)  # the thread has let go of the work before
    book._computing.shutdown()
    assert [one() for one in found] == [None]
    assert caught.value is failure
    assert service.collections["docs"].account.spent == 0


def test_exhausted_budget_computes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a rejection no clean score is computed ahead of a charge that will be rejected too."""
    service = open_service(tmp_path, write_policy(collection={"budget": {"epsilon": 2.0}}))
    book: AnswerBook = service.collections["docs"]._book
    submitted: list[Any] = []
    submit = book._computing.submit
    monkeypatch.setattr(book._computing, "submit", lambda work: submitted.append(work) or submit(work))  # type: ignore[func-returns-value]
    codes = []
    for seed in range(6):
        try:
            ask(service, seed)
            codes.append("paid")
        except ServiceProblem as problem:
            codes.append(problem.code)
    assert codes == ["paid"] * 2 + ["budget_exhausted"] * 4
    assert len(submitted) == 3  # the first rejection was not known before


def test_ledger_with_tables_beside(tmp_path: Path) -> None:
    """The ledger of a collection opens, verifies and charges outside of the service; a trigger in it does not."""
    import sqlite3

    from scoreshield.errors import LedgerError

    service = open_service(tmp_path)
    ask(service, 1)
    path = tmp_path / "service-docs.ledger.db"
    ledger = Ledger.open(f"sqlite:///{path}")
    assert ledger.verify()
    assert ledger.spent_on("docs") == 1.0
    for statement in (
        "CREATE TRIGGER scoreshield_service_x AFTER INSERT ON scoreshield_service_answers BEGIN SELECT 1; END",
        "CREATE VIEW scoreshield_service_y AS SELECT 1",
        "CREATE TABLE foreign_table (x)",
    ):
        connection = sqlite3.connect(path)
        connection.execute(statement)
        connection.commit()
        with pytest.raises(LedgerError, match="which no ledger has"):
            ledger.head()
        kind, name = statement.split()[1:3]
        connection.execute(f"DROP {kind} {name}")
        connection.commit()
        connection.close()
    assert ledger.head()


def test_budget_cannot_change(tmp_path: Path) -> None:
    """The budget is set when the ledger is made."""
    from scoreshield.errors import InvalidInput

    open_service(tmp_path)
    with pytest.raises(InvalidInput, match="cannot be changed"):
        open_service(tmp_path, write_policy(collection={"budget": {"epsilon": 30.0}}))


@pytest.mark.parametrize("scores", [None, [], [0.1, 0.0, -0.5, 1e-9, 0.1, 2.0**-24, 3.0, 0.1 + 2.0**-50]])
def test_rankings_are_stored_as_canonical_json(scores: list[float] | None) -> None:
    """Digits that are found once for equal scores are those that each of them would have."""
    records = [5, 3, 9, 1, 2, 7, 8, 4][: len(scores or ())]
    ranking = StoredRanking(records, scores, {"epsilon": 1.0, "delta": 0.0, "mechanism": "anchored"})
    packed = ranking.pack()
    assert packed.content == write_canonical_json(vars(ranking)).encode("ascii")
    assert parse_ranking(packed.content) == ranking


@pytest.mark.parametrize("way", ["reload", "replica"])
def test_answer_that_is_computed_outlives_a_change_of_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A charged answer on older data that is being computed is not lost, and its caller gets it."""
    service = open_service(tmp_path)
    book = service.collections["docs"]._book
    draw, later = book._draw, []

    def draw_slowly(*arguments: Any) -> Any:
        write_collection(tmp_path / "docs.npz", seed=1)
        if way == "reload":
            service.reload(service.policy)
        newer = service if way == "reload" else open_service(tmp_path)
        later.append(ask(newer, 1))
        return draw(*arguments)

    monkeypatch.setattr(book, "_draw", draw_slowly)
    first = ask(service, 1)
    assert first != later[0]
    assert service.collections["docs"].account.spent == 2.0
    assert read_seeds(service) == [None, None]
    write_collection(tmp_path / "docs.npz", seed=0)
    service.reload(service.policy)
    assert ask(service, 1) == first  # it was stored for its own data


@pytest.mark.parametrize(("minutes", "is_lost"), [(9, False), (11, True)])
def test_charge_of_another_replica_is_lost_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: int, is_lost: bool
) -> None:
    """What another process has charged on older data may be in work there, so it is lost after ten minutes only."""
    service = open_service(tmp_path)
    assert run_driver(tmp_path, "after the charge").returncode == -9
    write_collection(tmp_path / "docs.npz", seed=1)
    service.reload(service.policy)

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(minutes=minutes)

    monkeypatch.setattr("scoreshield.service.pending.datetime", Clock)
    if is_lost:
        with pytest.raises(ServiceProblem) as caught:
            ask(service, 1)
        assert caught.value.code == "answer_lost"
        assert read_seeds(service) == [None]
    else:
        assert ask(service, 1)
        assert [seed is None for seed in read_seeds(service)] == [False, True]


@pytest.mark.parametrize("way", ["rename", "copy", "copy and charge"])
def test_older_ledger_under_a_running_service(tmp_path: Path, way: str) -> None:
    """An older copy of the ledger answers nothing new, also if others have charged it since. The newer one does."""
    service = open_service(tmp_path)
    path, older, newer = (tmp_path / f"{name}.db" for name in ("service-docs.ledger", "older", "newer"))
    first = ask(service, 1)
    shutil.copy(path, older)
    second = ask(service, 2)
    shutil.copy(path, newer)
    if way == "rename":
        older.replace(path)
    else:
        path.write_bytes(older.read_bytes())  # into the same file
    other = open_service(tmp_path)  # has not seen what is missing
    if way == "copy and charge":
        ask(other, 3)
        ask(other, 4)
    entries = len(other.collections["docs"].account.ledger.entries())
    for served in (2, 5):
        if served == 2:
            assert ask(service, served) == second  # it is in memory
            continue
        with pytest.raises(ServiceProblem) as caught:
            ask(service, served)
        assert (caught.value.code, caught.value.status) == ("ledger_outdated", 503)
    assert len(other.collections["docs"].account.ledger.entries()) == entries
    assert ask(service, 1) == first
    for check in (service.check_databases, lambda: service.reload(service.policy)):
        with pytest.raises(ServiceProblem, match="The ledger is older than what was charged to it"):
            check()
    path.write_bytes(newer.read_bytes())
    assert ask(service, 5)
    service.check_databases()
    assert service.collections["docs"].account.spent == 3.0


def test_clocks_that_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas whose clocks are hours apart charge once and give the same bytes; the ledger notes the clock."""
    replicas = [open_service(tmp_path), open_service(tmp_path)]
    for place, hours in enumerate((0, -5, 3)):
        shifted = datetime.now(UTC) + timedelta(hours=hours)
        monkeypatch.setattr("scoreshield.privacy.ledger.accounts._get_time", lambda shifted=shifted: shifted)
        answers = [ask(replica, place) for replica in replicas]
        assert answers[0] == answers[1]
    account = replicas[0].collections["docs"].account
    assert account.spent == 3.0
    assert [bool(entry.note) for entry in account.entries()] == [False, True, False]
    assert account.ledger.verify()


@pytest.mark.parametrize(
    ("time", "is_lost"),
    [
        ("yesterday", True),
        ("2020-01-01T00:00:00", True),
        ("2020-01-01T00:00:00.000000+00:00", True),
        ("2999-01-01T00:00:00.000000+00:00", False),
    ],
)
def test_time_of_a_pending_charge(time: str, is_lost: bool) -> None:
    """A time that cannot be read, or has no zone, is that of a damaged row. A clock that is ahead is waited for."""
    charges = PendingCharges()
    assert charges.is_lost("entry", time) == is_lost
    charges.begin("entry")
    assert not charges.is_lost("entry", time)
    charges.end("entry", is_left=True)
    assert charges.is_lost("entry", time)
