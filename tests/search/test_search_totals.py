"""The total of an index and its refreshes: what was drawn is counted, whatever fails, forks or calls back."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scoreshield._locks import ThreadLock
from scoreshield.errors import BudgetExceeded, FileError, InvalidInput, ScoreShieldError
from scoreshield.privacy.adjacency import Replacement
from scoreshield.privacy.ledger import Account, Ledger
from scoreshield.releases import pipeline
from scoreshield.search import IndexNotSaved, PrivateSearch, index_files, totals
from scoreshield.stores import ArrayStore

ROWS = np.random.default_rng(41).standard_normal((30, 6)).astype(np.float32)
IDS = [f"doc-{number}" for number in range(30)]
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


@pytest.fixture
def account(tmp_path: Path) -> Account:
    return Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=100.0, delta=1e-6).account("people")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "index.npz"


@contextlib.contextmanager
def full_disk() -> Any:
    """Indexes cannot be written; a count, which is small, still can."""

    def fail(*_: Any) -> None:
        raise FileError("Cannot write: the disk is full.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scoreshield.search.index.write_index", fail)
        yield


def read_vectors(search: PrivateSearch) -> bytes:
    return search._search.index.release.vectors.tobytes()  # type: ignore[union-attr]


def make(file: Path | None = None, **options: Any) -> PrivateSearch:
    return PrivateSearch(ArrayStore(ROWS, IDS), **({"epsilon": 5, "file": file} | options))


def run_in_fork(function: Callable[[], Any]) -> Any:
    """What a function returns, or the text of the error that it raises, in a real fork of this process."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            with os.fdopen(write, "wb") as pipe:
                try:
                    answer = function()
                except ScoreShieldError as error:
                    answer = str(error)
                pickle.dump(answer, pipe)
        finally:
            os._exit(0)  # nothing of the test session runs twice
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pickle.load(pipe)
    os.waitpid(child, 0)
    return answer


def run_in_thread(function: Callable[[], Any]) -> Any:
    """What a function returns, or the error that it raises; a test fails where it never does."""
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(function())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "it waits forever"
    return found[0]


class TestUnsavedIndexes:
    def test_two_processes(self, file: Path) -> None:
        """Two counts that each held an index of their own were joined by the larger: 7 indexes for the price of 4."""
        one, other = (make(file, max_epsilon=20) for _ in range(2))
        seen = {read_vectors(one)}
        for _ in range(6):
            with full_disk():
                try:
                    one.refresh()
                except IndexNotSaved as error:
                    seen.add(read_vectors(error.search))
                except BudgetExceeded:
                    pass
            with contextlib.suppress(BudgetExceeded):
                other.refresh()
                seen.add(read_vectors(other))
        assert len(seen) == 4
        again = make(file, max_epsilon=20)
        assert other.spent == again.spent == PrivateSearch.load(file).spent == 20
        for search in (one, other, again):
            with pytest.raises(BudgetExceeded):
                search.refresh()
        assert one.spent == 20

    def test_restart(self, file: Path) -> None:
        """A restart counts an index that could not be saved."""
        search = make(file, max_epsilon=15)
        with full_disk(), pytest.raises(IndexNotSaved):
            search.refresh()
        again = make(file, max_epsilon=15)
        assert (again.version, again.spent) == (1, 10)
        again.refresh()
        with pytest.raises(BudgetExceeded):
            again.refresh()

    def test_first_index(self, file: Path) -> None:
        """The first index counts too, where it could not be saved."""
        with full_disk(), pytest.raises(IndexNotSaved) as caught:
            make(file)
        with pytest.raises(BudgetExceeded, match=r"by the indexes that are counted in .*index\.total\.json\. Give"):
            make(file)
        assert make(file, max_epsilon=10).spent == 10
        lost: PrivateSearch = caught.value.search
        lost.save(file)
        assert read_vectors(make(file)) == read_vectors(lost)
        assert make(file).spent == PrivateSearch.load(file).spent == 10

    def test_dead_process(self, file: Path) -> None:
        """The index of a process that died counts."""
        make(file, max_epsilon=10)
        code = (
            "import os, sys, pickle; from scoreshield.search import PrivateSearch; from scoreshield.stores import "
            "ArrayStore; rows, ids, file = pickle.load(sys.stdin.buffer);"
            "PrivateSearch(ArrayStore(rows, ids), epsilon=5, max_epsilon=10, file=file,"
            " progress=lambda *_: os._exit(7)).refresh()"
        )
        ended = subprocess.run([sys.executable, "-c", code], input=pickle.dumps((ROWS, IDS, str(file))), check=False)
        assert ended.returncode == 7
        again = make(file, max_epsilon=10)
        assert again.spent == 10
        with pytest.raises(BudgetExceeded):
            again.refresh()

    def test_ledger_count(self, file: Path, account: Account) -> None:
        """A ledger counts each of them once."""
        search = make(file, ledger=account)
        with full_disk(), pytest.raises(IndexNotSaved) as caught:
            search.refresh()
        assert search.spent == account.spent == pytest.approx(10)
        caught.value.search.save(file)
        again = make(file, ledger=account)
        assert read_vectors(again) == read_vectors(search)
        assert again.spent == account.spent == pytest.approx(10)

    def test_late_save(self, file: Path) -> None:
        """A late save keeps all counts and hidden records."""
        one, other = (make(file, max_epsilon=15) for _ in range(2))
        with full_disk(), pytest.raises(IndexNotSaved) as caught:
            one.refresh()
        other.hide(IDS[:2])
        other.refresh()
        caught.value.search.save(file)
        for again in (PrivateSearch.load(file), make(file)):
            assert read_vectors(again) == read_vectors(one)
            assert set(again.search(ROWS[0], 30).ids) == set(IDS[2:])
            assert again.spent == 15


class TestCountOnDisk:
    def test_full_disk(self, file: Path, account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where the count cannot be written, nothing is drawn or charged."""
        searches = make(file, ledger=account), make(file.with_name("other.npz"), max_epsilon=100)
        before = [read_vectors(search) for search in searches]

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        def draw(*_: Any) -> None:
            pytest.fail("noise was drawn")

        with monkeypatch.context() as patch:
            patch.setattr(totals.os, "fsync", full)
            patch.setattr(pipeline.PendingRelease, "finish", draw)
            for search in searches:
                with pytest.raises(FileError, match=r"total\.json: No space left on device; nothing was released"):
                    search.refresh()
        assert [read_vectors(search) for search in searches] == before
        assert [search.spent for search in searches] == [5, 5]
        assert account.spent == pytest.approx(5)
        assert not list(file.parent.glob(".*"))
        searches[1].refresh()
        assert searches[1].spent == 10

    def test_before_noise(self, file: Path) -> None:
        """The count is on disk before the noise is drawn."""
        counted: list[int] = []
        search = make(file, max_epsilon=20, progress=lambda *_: counted.append(len(totals.read_total(file))))
        search.refresh()
        assert counted == [1, 2]

    @pytest.mark.parametrize(
        "content",
        [
            "", "{", "5", "[]", "null", "{}", '{"format": 9, "charged": []}', '{"format": 1, "charged": 5}',
            '{"format": 1, "charged": [[{}, ["a"]]]}', '{"format": 1, "charged": [["x"]]}', "cut", "letters", "twice",
        ],
    )  # fmt: skip
    def test_damaged_count(self, file: Path, content: str) -> None:
        """A damaged count raises an error, and is never read as zero."""
        search = make(file, max_epsilon=20)
        total = totals.locate_total(file)
        facts = json.loads(total.read_text())
        (profile, names), *_ = facts["charged"]
        content = {
            "cut": total.read_text()[:-5],
            "letters": json.dumps(facts | {"charged": [[profile, "abc"]]}),
            "twice": json.dumps(facts | {"charged": [[profile, names * 2]]}),
        }.get(content, content)
        total.write_text(content)
        for action in (search.refresh, lambda: make(file), lambda: PrivateSearch.load(file)):
            with pytest.raises(InvalidInput, match=r"index\.total\.json does not hold the total") as caught:
                action()
            assert "\n" not in str(caught.value)
        assert (search.version, search.spent) == (1, 5)

    def test_copy_without_count(self, file: Path) -> None:
        """Files that are copied without the count keep their own charges."""
        search = make(file, max_epsilon=10)
        search.refresh()
        totals.locate_total(file).unlink()
        again = make(file, max_epsilon=10)
        assert again.spent == 10
        with pytest.raises(BudgetExceeded):
            again.refresh()

    def test_removed_index(self, file: Path) -> None:
        """An index whose file was removed stays counted."""
        make(file)
        file.unlink()
        with pytest.raises(BudgetExceeded):
            make(file)

    def test_counts_of_the_formats_before(self, file: Path) -> None:
        """A count without names for its indexes: 3 were made, and one more fits."""
        search = make(file, max_epsilon=20)
        beside = file.with_name("index.ids.json")
        totals.locate_total(file).unlink()
        facts = json.loads(beside.read_text())
        facts["charged"] = [[search.guarantee.profile.to_dict(), 3]]
        del facts["format"], facts["index"]
        digest = index_files._hash_index(search._search.index.release, facts)  # type: ignore[union-attr]
        beside.write_text(json.dumps({"format": 3, "index": digest, **facts}))
        assert search.spent == 5
        again = make(file, max_epsilon=20)
        assert again.spent == PrivateSearch.load(file).spent == 15
        again.hide(IDS[:1])  # which writes the format of now
        again.refresh()
        with pytest.raises(BudgetExceeded):
            again.refresh()
        assert again.spent == make(file).spent == PrivateSearch.load(file).spent == 20
        for count in (0, -1, True, 1.5, 10**12):
            facts["charged"] = [[search.guarantee.profile.to_dict(), count]]
            digest = index_files._hash_index(again._search.index.release, facts)  # type: ignore[union-attr]
            beside.write_text(json.dumps({"format": 3, "index": digest, **facts}))
            with pytest.raises(InvalidInput, match="does not hold the ids"):
                PrivateSearch.load(file)

    def test_save_over(self, file: Path) -> None:
        """Saving over another index adds its count, and over the same index does not."""
        one, other = make(max_epsilon=10), make(max_epsilon=10)
        for _ in range(3):
            one.save(file)
        assert PrivateSearch.load(file).spent == 5
        other.save(file)
        assert PrivateSearch.load(file).spent == 10
        one.refresh()
        one.save(file)
        assert PrivateSearch.load(file).spent == 15

    def test_own_limits(self, file: Path) -> None:
        """Each search has its own limit on one count."""
        small, large = make(file, max_epsilon=10), make(file, max_epsilon=20)
        large.refresh()
        with pytest.raises(BudgetExceeded):
            small.refresh()
        large.refresh()
        large.refresh()
        assert large.spent == 20

    def test_research_file(self, file: Path) -> None:
        """Research mode writes no count."""
        search = make(file, rng=1)
        search.refresh()
        assert search.spent == PrivateSearch.load(file).spent == 0
        assert not totals.locate_total(file).exists()

    def test_other_contract(self, file: Path) -> None:
        """An index of another contract counts too."""
        with full_disk(), pytest.raises(IndexNotSaved):
            make(file, mechanism="gaussian", delta=1e-6)
        with pytest.raises(BudgetExceeded):
            make(file, max_epsilon=1000)  # no pure promise covers Gaussian noise
        both = make(file, mechanism="gaussian", delta=1e-6, max_epsilon=10)
        assert 5 < both.spent < 10

    def test_relative_file(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A relative path means the same file after a change of the working directory."""
        monkeypatch.chdir(file.parent)
        search = make(Path(file.name), max_epsilon=10)
        (file.parent / "elsewhere").mkdir()
        monkeypatch.chdir(file.parent / "elsewhere")
        search.refresh()
        search.hide(IDS[:1])
        assert make(file).spent == 10
        assert list(Path.cwd().iterdir()) == []

    def test_links(self, file: Path) -> None:
        """Each name had a count, and each search could spend the whole limit."""
        make(file, max_epsilon=10)
        (file.parent / "elsewhere").mkdir()
        link = file.parent / "elsewhere" / "link.npz"
        link.symlink_to(file)
        (link.parent / "link.ids.json").symlink_to(file.parent / "index.ids.json")
        make(link, max_epsilon=10).refresh()
        assert link.is_symlink()
        assert not (link.parent / "link.total.json").exists()
        assert make(file).spent == 10
        for name in (file, link):
            with pytest.raises(BudgetExceeded):
                make(name, max_epsilon=10).refresh()

    @pytest.mark.parametrize("ending", ["", ".x", ".NPZ"])
    def test_shared_lock(self, file: Path, ending: str) -> None:
        """The ids and the count go by the name without its ending; two processes lost counts of each other."""
        with (
            index_files.lock_index(file),
            pytest.raises(InvalidInput, match="are being written in this thread"),
            index_files.lock_index(file.with_suffix(ending)),
        ):
            pass

    def test_missing_lock(self, file: Path) -> None:
        """Without the lock nothing is written."""
        search = make(file, max_epsilon=20)
        (file.parent / ".index.npz.lock").mkdir()
        for action in (search.refresh, lambda: search.save(file), lambda: search.hide(IDS[:1])):
            with pytest.raises(FileError, match="nothing was released"):
                action()
        assert search.spent == make(file).spent == 5


@forks
class TestForks:
    def test_memory_total(self) -> None:
        """A total in memory is spent by one process."""
        search = make(max_epsilon=10)
        says = run_in_fork(search.refresh)
        assert says.startswith("This search was made in another process and keeps its total in memory: refresh it ther")
        search.refresh()
        assert search.spent == 10

    def test_the_child_answers(self) -> None:
        search = make()
        assert run_in_fork(lambda: search.search(ROWS[3], 5).ids) == search.search(ROWS[3], 5).ids

    def test_reused_process_id(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A process id that is used again does not hide a fork."""
        monkeypatch.setattr(os, "getpid", lambda: 4711)
        search = make(max_epsilon=10)
        assert "made in another process" in run_in_fork(search.refresh)

    def test_shared_totals(self, file: Path, account: Account) -> None:
        """A fork may refresh an index with a file or a ledger."""
        search = make(file, max_epsilon=10)
        assert run_in_fork(lambda: (search.refresh(), search.spent)[1]) == 10
        with pytest.raises(BudgetExceeded):
            search.refresh()
        paid = make(ledger=account)
        assert run_in_fork(paid.refresh) is None
        assert account.spent == pytest.approx(10)
        assert run_in_fork(make(rng=1).refresh) is None  # research mode counts nothing

    @pytest.mark.parametrize("is_in_file", [False, True])
    def test_fork_while_drawing(self, file: Path, is_in_file: bool) -> None:
        """The child of a callback cannot go on: noise of its own would be a second index for one charge."""
        children: list[tuple[int, int]] = []

        def fork(*_: Any) -> None:
            if search is not None:
                read, write = os.pipe()
                child = os.fork()
                children.append((child, read if child else write))
                os.close(write if child else read)

        search: PrivateSearch | None = None
        search = make(file if is_in_file else None, max_epsilon=10, progress=fork)
        before, says = read_vectors(search), ""
        try:
            search.refresh()
        except InvalidInput as error:
            says = str(error)
        ((child, end),) = children
        if child == 0:
            os.write(end, f"{says} {read_vectors(search) == before}".encode())
            os._exit(0)
        with os.fdopen(end, "rb") as pipe:
            answer = pipe.read().decode()
        os.waitpid(child, 0)
        assert answer.startswith("This release was started in another process")
        assert answer.endswith("True")
        assert (says, search.spent, search.version) == ("", 10, 2)
        assert not list(file.parent.glob(".*"))

    @pytest.mark.parametrize("mode", ["index", "query"])
    def test_fork_before_charge(self, file: Path, account: Account, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A signal handler or a store's own code may fork; what the child would pay for, it would not get."""
        children: list[int] = []
        reserve = pipeline.reserve

        def fork(*args: Any, **options: Any) -> Any:
            pending = reserve(*args, **options)
            if args[0] is None:  # the check of the contract on public records
                return pending
            children.append(os.fork())
            if children[0]:
                os.waitpid(children[0], 0)
            return pending

        monkeypatch.setattr(pipeline, "reserve", fork)
        try:
            if mode == "index":
                make(file, ledger=account)
            else:
                make(mode=mode, ledger=account).search(ROWS[0])
        finally:
            if children == [0]:
                os._exit(0)
        assert len(account.ledger.entries()) == 1
        if mode == "index":
            assert len(totals.read_total(file)) == 1

    def test_lock_after_fork(self) -> None:
        """A lock that another thread of the parent holds is free in the fork."""
        lock, held, done = ThreadLock(), threading.Event(), threading.Event()

        def work() -> None:
            with lock.hold("work"):
                held.set()
                done.wait(30)

        thread = threading.Thread(target=work)
        thread.start()
        held.wait(30)

        def enter() -> str:
            with lock.hold("enter"):
                return "entered"

        try:
            assert run_in_fork(lambda: run_in_thread(enter)) == "entered"
        finally:
            done.set()
            thread.join()


class TestCallbacks:
    """What a callback asks of the search that called it raises an error; a plain lock would wait forever."""

    @pytest.mark.parametrize("action", ["refresh", "hide", "save", "open", "another"])
    def test_of_a_refresh(self, file: Path, action: str) -> None:
        said: list[str] = []
        actions: dict[str, Callable[[], Any]] = {
            "refresh": lambda: search.refresh(),
            "hide": lambda: search.hide(IDS[:1]),
            "save": lambda: search.save(file),
            "open": lambda: make(file),
            "another": lambda: other.refresh(),
        }

        def progress(*_: Any) -> None:
            if is_ready:
                with pytest.raises(InvalidInput) as caught:
                    actions[action]()
                said.append(str(caught.value))

        is_ready = False
        search, other = (make(file, max_epsilon=20, progress=progress) for _ in range(2))
        is_ready = True
        assert run_in_thread(search.refresh) is None
        (says,) = said
        own = "was called from a callback or signal handler while the same search"
        assert (own if action in ("refresh", "hide") else "a callback may not open, refresh or save them") in says
        is_ready = False
        search.refresh()  # nothing is held any more
        assert search.spent == 15

    def test_in_memory(self) -> None:
        search: PrivateSearch | None = None
        error = run_in_thread(make(max_epsilon=20, progress=lambda *_: search and search.refresh()).refresh)
        assert error is None
        search = make(max_epsilon=20, progress=lambda *_: search and search.refresh())
        assert isinstance(run_in_thread(search.refresh), InvalidInput)
        assert search.spent == 10  # it was counted, and failed

    def test_allowed_callbacks(self, file: Path) -> None:
        """A callback may search, and read the total."""
        found: list[Any] = []

        def progress(*_: Any) -> None:
            if search is not None:
                search.save(file)
                found.append((search.search(ROWS[0], 3).version, search.spent, search.stale))

        search: PrivateSearch | None = None
        search = make(max_epsilon=20, progress=progress)
        assert run_in_thread(search.refresh) is None
        assert found == [(1, 10, False)]

    def test_recursive_store(self, account: Account) -> None:
        """A store that searches itself raises an error and costs nothing."""

        class Curious(ArrayStore):
            def state(self) -> Any:
                if search is not None:
                    search.search(ROWS[0], 3)
                return super().state()

        search: PrivateSearch | None = None
        search = PrivateSearch(Curious(ROWS, IDS), epsilon=1, mode="query", ledger=account)
        assert isinstance(run_in_thread(lambda: search.search(ROWS[0], 3)), ScoreShieldError)
        assert account.spent == 0

    def test_unfinished_index(self) -> None:
        """Its mechanism could release scores too, and nothing would be charged for them."""
        said: list[str] = []

        class Eager(PrivateSearch):
            def __init__(self) -> None:
                super().__init__(ROWS, epsilon=5, delta=1e-6, mechanism="gaussian", progress=self.ask)

            def ask(self, *_: Any) -> None:
                with pytest.raises(InvalidInput) as caught:
                    self.search(ROWS[0], 3)
                said.append(str(caught.value))

        Eager()
        assert said == ["The index is still being made; it answers when the constructor has returned."]

    def test_other_threads_wait(self) -> None:
        lock, order = ThreadLock(), list[str]()
        with lock.hold("first"):
            thread = threading.Thread(target=lambda: [lock.hold("second").__enter__(), order.append("second")])
            thread.start()
            thread.join(0.2)
            order.append("first")
        thread.join(30)
        assert order == ["first", "second"]


def test_merge() -> None:
    """Merged counts lose no index, and count none twice."""
    guarantee = make().guarantee
    shared = totals.IndexTotal(100, 0, {})
    shared.merge(shared.include(guarantee))
    one, other = (totals.IndexTotal(100, 0, shared.charges) for _ in range(2))
    for total in (one, other):
        total.merge(total.include(guarantee))
    one.merge(other.charges)
    one.merge(other.charges)
    assert (shared.spent, other.spent, one.spent) == (5, 10, 15)


def test_account(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reserving writes nothing. Committing writes the count, and then charges the ledger."""
    order: list[str] = []

    class Book:
        dataset = "people"

        def reserve(self, *_: Any, **__: Any) -> Book:
            order.append("reserve")
            return self

        def commit(self) -> list[Any]:
            order.append("commit")
            return ["entry"]

    search = make()
    write = totals.write_total
    monkeypatch.setattr(totals, "write_total", lambda *args: (order.append("write"), write(*args)))
    total = totals.IndexTotal(5, 0, {})
    account = totals.IndexAccount(total, Book(), file)
    pending = account.reserve([search.guarantee], adjacency=Replacement(), same_people=True)
    assert (order, total.charges, account.entries) == (["reserve"], {}, ())
    pending.commit()
    assert (order, account.entries) == (["reserve", "write", "commit"], ["entry"])
    assert total.spent == 5
    assert totals.read_total(file) == total.charges
    with pytest.raises(BudgetExceeded):
        totals.IndexAccount(total, None, file).reserve([search.guarantee], adjacency=Replacement())
