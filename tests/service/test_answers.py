"""Charges and stored answers: one of each, under races, crashes and changes of the data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
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
from scoreshield.service.answers import AnswerBook, Payer, Spending
from scoreshield.service.core import Service
from scoreshield.service.offers import StoredRanking, parse_ranking
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
    seeds = read_seeds(service)
    first = ask(service, 1)
    assert account.spent == 1.0
    assert read_seeds(service) == [None]
    if seeds and seeds[0] is not None:
        # The same row, with its seed back, gives the same bytes in another process: the noise is that of the charge.
        restore_seed(service, seeds[0])
        assert json.loads(run_driver(tmp_path, "").stdout)["hits"] == first
    assert ask(open_service(tmp_path), 1) == first
    assert account.spent == 1.0
    assert account.ledger.verify()
    assert service.collections["docs"]._book.read_spending("app") == Spending(1, Decimal("1.0"))


def read_seeds(service: Service) -> list[str | None]:
    def work(session: Any) -> list[str | None]:
        return [row[0] for row in session.execute("SELECT seed FROM scoreshield_service_answers").fetchall()]

    return service.collections["docs"].account.ledger.read_beside(work)


def restore_seed(service: Service, seed: str) -> None:
    statement = "UPDATE scoreshield_service_answers SET state = 'pending', content = NULL, signer = NULL, seed = ?"
    service.collections["docs"].account.ledger.write_beside(lambda session: session.execute(statement, (seed,)))


def test_other_seed_gives_other_noise(tmp_path: Path) -> None:
    """The near miss of the test above: the answer depends on the seed of the charge."""
    service = open_service(tmp_path)
    first = ask(service, 1)
    restore_seed(service, "ab" * 32)
    assert ask(open_service(tmp_path), 1) != first


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


def test_small_epsilons_add_up_as_written() -> None:
    """Ten queries of 0.1 are within an allowance of 1, and eleven are not."""
    allowance = AllowancePolicy(epsilon=1.0)
    total = sum((Decimal(repr(0.1)) for _ in range(10)), Decimal(0))
    assert allowance.covers(10, total)
    assert not allowance.covers(11, total + Decimal("0.1"))


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
