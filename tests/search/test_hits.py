"""Search with a hit budget: one charge, secret counters that survive, and what raises an error."""

from __future__ import annotations

import copy
import errno
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield.errors import BudgetExceeded, FileError, InvalidInput, StoreError
from scoreshield.releases.batch import MINILM_LEVELS
from scoreshield.search import PrivateSearch, hit_counters, hits
from scoreshield.search.hit_counters import CounterFile
from scoreshield.search.hits import HIT_CUTS, check_cuts
from scoreshield.stores import ArrayStore

DIMENSION, RECORDS = 8, 20
#: Orthogonal records, and some at a cosine of about 0.6 to the first.
ROWS = np.vstack([np.eye(DIMENSION), np.eye(DIMENSION)[1:] + 0.7 * np.eye(DIMENSION)[0], -np.eye(DIMENSION)[:5]])
OWNERS = {one: one // 2 for one in range(RECORDS)}
#: Where coins are so unfair that nothing is left to chance: errors have a probability of e^-40.
CERTAIN: dict[str, Any] = {"mode": "hits", "epsilon": 60.0, "adjacency": ss.NullRecord(), "hits": 1, "cuts": [0.9]}


def near(record: int, seed: int = 0) -> np.ndarray:
    """A query within a cosine of 0.99 of a record, another one for each seed."""
    query = ROWS[record] / np.linalg.norm(ROWS[record])
    return query + 0.02 * np.random.default_rng(seed).standard_normal(DIMENSION)


def make_ledger(folder: Path, epsilon: float = 100.0) -> ss.Ledger:
    return ss.Ledger.create(f"sqlite:///{folder}/ledger.db", epsilon=epsilon, delta=0.0)


# What is answered.


def test_names_by_level() -> None:
    """Records are named by falling level, and records below the lowest cut are not named."""
    search = PrivateSearch(ROWS, **{**CERTAIN, "cuts": [0.3, 0.5, 0.9]})
    hits = search.search(np.eye(DIMENSION)[0], k=10)
    assert hits.ids[0] == 0
    assert sorted(hits.ids) == [0, *range(8, 15)]
    assert (np.diff(hits.scores) <= 0).all()
    assert hits.scores[0] == pytest.approx(0.95, abs=1e-6)
    assert (hits.scores % search.guarantee.grid == 0).all()
    assert hits.guarantee is search.guarantee


@pytest.mark.parametrize("hits", [1, 2, 5])
def test_budget_ends(hits: int) -> None:
    """A record is named for so many queries, and never again."""
    search = PrivateSearch(ROWS, **{**CERTAIN, "hits": hits, "epsilon": 60.0 * hits})
    named = [0 in search.search(near(0, seed)).ids for seed in range(hits + 20)]
    assert named == [True] * hits + [False] * 20
    assert 1 in search.search(near(1)).ids  # the other records still have theirs


def test_repeated_query() -> None:
    """The same query gets the same answer, which is public already, and uses nothing up."""
    search = PrivateSearch(ROWS, **CERTAIN)
    for _ in range(30):
        assert search.search(near(0)).ids == (0,)
    assert search.search(near(0), threshold=0.99).ids == ()  # a filter of the same answer
    assert [hits.ids for hits in search.search_batch([near(1), near(1)])] == [(1,), (1,)]


def test_repeated_query_beyond_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of very many queries the first ones are forgotten; asked again, they find no second life."""
    monkeypatch.setattr("scoreshield.search.hits._MOST_ANSWERS", 3)
    search = PrivateSearch(ROWS, **CERTAIN)
    assert search.search(near(0)).ids == (0,)
    for record in (1, 2, 3, 4):
        assert search.search(near(record)).ids == (record,)
    assert search.search(near(0)).ids == ()


def test_batch_is_queries_in_a_row() -> None:
    queries = np.random.default_rng(1).standard_normal((12, DIMENSION))
    options: dict[str, Any] = {"mode": "hits", "epsilon": 6.0, "hits": 1, "cuts": [0.3, 0.6], "rng": 3}
    one, other = PrivateSearch(ROWS, **options), PrivateSearch(ROWS, **options)
    batch = [hits.ids for hits in one.search_batch(queries)]
    assert batch == [other.search(query).ids for query in queries]
    assert any(batch)


def test_filters_use_nothing_up() -> None:
    """A record that a public filter leaves out, or that is hidden, is not asked."""
    search = PrivateSearch(ROWS, **CERTAIN)
    for seed in range(3):
        assert search.search(near(0, seed), where=lambda one: one != 0).ids == ()
    assert search.search(near(0)).ids == (0,)
    nothing = search.search(near(1), where=lambda _: False)
    assert (nothing.ids, nothing.guarantee) == ((), None)
    search.hide([1])
    assert search.search(near(1)).ids == ()


def test_few_names() -> None:
    """``names`` ends a query, and ``k`` only shows less."""
    options = {**CERTAIN, "cuts": [0.3, 0.5, 0.9]}
    search = PrivateSearch(ROWS, **options, names=1)
    assert search.search(np.eye(DIMENSION)[0], k=10).ids == (0,)
    assert 8 in search.search(near(8), k=10).ids  # the first query left it alone
    assert len(PrivateSearch(ROWS, **options, names=20).search(np.eye(DIMENSION)[0], k=3).ids) == 3


def test_warning_of_low_cuts() -> None:
    """Cuts below most scores use all hits up at once, which the number of names shows."""
    rows = 1 + 0.1 * np.random.default_rng(0).standard_normal((200, DIMENSION))
    search = PrivateSearch(rows, **{**CERTAIN, "cuts": [0.2]})
    with pytest.warns(UserWarning, match="200 records, and 5 would have been enough"):
        search.search(np.ones(DIMENSION), k=20)
    search.search(-np.ones(DIMENSION))  # no second warning, which would be an error


def test_zero_hits_above_cuts_cost_nothing() -> None:
    """A record at the bottom keeps its budget, however often it is asked."""
    search = PrivateSearch(ROWS, **CERTAIN)
    for record in range(1, 6):
        search.search(near(record))
    assert search.search(near(0)).ids == (0,)


# What is promised and charged.


def test_both_figures() -> None:
    """The certificate states the figure against a null record and the one between any two records."""
    two = PrivateSearch(ROWS, mode="hits", epsilon=16, hits=1).guarantee
    assert (two.epsilon, two.details["null_epsilon"], two.details["replacement_epsilon"]) == (16, 12, 16)
    null = PrivateSearch(ROWS, mode="hits", epsilon=16, hits=2, adjacency=ss.NullRecord()).guarantee
    assert (null.epsilon, null.details["null_epsilon"], null.details["replacement_epsilon"]) == (16, 16, 32)
    assert isinstance(null.adjacency, ss.NullRecord)
    assert null.record_profile().epsilon_at(0.0) == 32
    for guarantee, warns in ((two, False), (null, True)):
        text = " ".join(str(guarantee).split())
        assert "(against a null record)" in text
        assert "(record replacement)" in text
        assert ("the promise is against a null record" in text) == warns
        assert ss.Guarantee.from_dict(guarantee.to_dict()) == guarantee


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon", 8.0),
        ("hits", 1),
        ("hit_epsilon", 3.0),
        ("miss_epsilon", 1.0),
        ("null_epsilon", 8.0),
        ("replacement_epsilon", 8.0),
        ("true_name_probability", 0.5),
        ("cuts", [0.5, 0.4]),
        ("hits", 0),
    ],
)
@pytest.mark.parametrize("adjacency", [None, ss.NullRecord()])
def test_edited_guarantee(name: str, value: Any, adjacency: Any) -> None:
    """An edit of one figure contradicts the others."""
    data = PrivateSearch(ROWS, mode="hits", epsilon=16, hits=2, adjacency=adjacency).guarantee.to_dict()
    if name == "epsilon":
        data["epsilon"] = value
        data["profile"]["epsilon"] = value
    else:
        data["details"][name] = value
    with pytest.raises(InvalidInput, match="guarantee"):
        ss.Guarantee.from_dict(data)


def test_null_record_elsewhere() -> None:
    """No other release takes the adjacency, and no other guarantee is read with it."""
    null = ss.NullRecord()
    for release in (
        lambda: ss.release_scores(ROWS, ROWS[0], epsilon=1.0, mechanism="laplace", adjacency=null),
        lambda: ss.release_index(ROWS, epsilon=5.0, adjacency=null),
        lambda: ss.release_gram(ROWS, epsilon=1.0, delta=1e-6, adjacency=null),
        lambda: ss.release_matches(ROWS, ROWS[0], 0.5, epsilon=1.0, adjacency=null),
        lambda: null.sensitivity("scores", 3),
    ):
        with pytest.raises(InvalidInput, match="NullRecord"):
            release()
    data = ss.release_scores(ROWS, ROWS[0], epsilon=1.0, mechanism="laplace").guarantee.to_dict()
    with pytest.raises(InvalidInput, match="contradicts"):
        ss.Guarantee.from_dict(data | {"adjacency": null.to_dict()})


def test_one_charge(tmp_path: Path) -> None:
    """The whole budget is charged when the search is made; queries are free."""
    account = make_ledger(tmp_path).account("people")
    search = PrivateSearch(ROWS, mode="hits", epsilon=16, ledger=account)
    assert account.spent == search.spent == 16
    search.search_batch(ROWS)
    assert account.spent == 16
    PrivateSearch(ROWS, mode="hits", epsilon=16, ledger=account)  # another object is another charge
    assert account.spent == 32


def test_null_record_is_charged_as_replacement(tmp_path: Path) -> None:
    """On an account promises add up between any two records, those of other releases included."""
    account = make_ledger(tmp_path).account("people")
    ss.release_scores(ROWS, ROWS[0], epsilon=1.0, mechanism="laplace", ledger=account)
    PrivateSearch(ROWS, mode="hits", epsilon=8, adjacency=ss.NullRecord(), ledger=account)
    assert account.spent == pytest.approx(17)
    assert {entry.unit for entry in account.ledger.entries()} == {"replacement"}
    assert account.ledger.verify()


def test_budget_exceeded(tmp_path: Path) -> None:
    """What does not fit is not charged, and leaves no file."""
    account = make_ledger(tmp_path, epsilon=10.0).account("people")
    for file in (None, tmp_path / "counters"):
        with pytest.raises(BudgetExceeded):
            PrivateSearch(ROWS, mode="hits", epsilon=16, ledger=account, file=file)
    assert account.spent == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ledger.db"]


def test_bad_rows_cost_nothing(tmp_path: Path) -> None:
    account = make_ledger(tmp_path).account("people")
    rows = ROWS.copy()
    rows[3, 2] = np.nan
    with pytest.raises(StoreError):
        PrivateSearch(rows, mode="hits", epsilon=16, ledger=account)
    assert account.spent == 0


def test_research_mode() -> None:
    search = PrivateSearch(ROWS, mode="hits", epsilon=16, rng=1)
    assert search.spent == 0
    assert "NOT PRIVATE" in str(search.guarantee)


# Bad input.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hits": 0}, "hits"),
        ({"hits": 251}, "hits"),
        ({"hits": 1.5}, "hits"),
        ({"epsilon": 1e-8}, "epsilon"),
        ({"epsilon": 1e-5, "hits": 100}, "epsilon"),
        ({"cuts": [0.5, 0.4]}, "cuts"),
        ({"cuts": []}, "cuts"),
        ({"cuts": [0.5, np.nan]}, "cuts"),
        ({"cuts": [0.5, 1.0]}, "cuts"),
        ({"cuts": np.linspace(0, 0.9, 200)}, "cuts"),
        ({"cuts": "0.5"}, "cuts"),
        ({"names": 0}, "names"),
        ({"delta": 1e-6}, "delta"),
        ({"mechanism": "privunit"}, "mechanism"),
        ({"components": 4}, "components"),
        ({"reduction": np.eye(2, DIMENSION)}, "reduction"),
        ({"codebook": ss.PublicCodebook(np.eye(DIMENSION))}, "codebook"),
        ({"center": "private"}, "center"),
        ({"threshold": 0.5}, "threshold"),
        ({"refine": 0.5}, "refine"),
        ({"max_epsilon": 20}, "max_epsilon"),
        ({"score_range": (0, 1)}, "score range"),
        ({"adjacency": ss.GramRadius(1.0)}, "adjacency"),
        ({"adjacency": "null"}, "adjacency"),
        ({"identity_of": OWNERS}, "centroids"),
        ({"identity_of": OWNERS, "centroids": True, "adjacency": ss.NullRecord()}, "Null"),
        ({"file": ""}, "file"),
        ({"ledger": "ledger.db"}, "ledger"),
    ],
)  # fmt: skip
def test_bad_options(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    """One sentence, and nothing charged or written."""
    account = make_ledger(tmp_path).account("people")
    given = {"mode": "hits", "epsilon": 16, "ledger": account, "file": tmp_path / "counters", **options}
    with pytest.raises(InvalidInput, match=message) as caught:
        PrivateSearch(ROWS, **given)
    assert "\n" not in str(caught.value)
    assert account.spent == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ledger.db"]


@pytest.mark.parametrize("mode", ["index", "query", "screening"])
@pytest.mark.parametrize("option", [{"hits": 1}, {"cuts": [0.5]}, {"names": 3}, {"adjacency": ss.NullRecord()}])
def test_options_of_other_modes(mode: Any, option: dict[str, Any], tmp_path: Path) -> None:
    account = make_ledger(tmp_path).account("people")
    threshold = {"threshold": 0.5} if mode == "screening" else {}
    with pytest.raises(InvalidInput, match="mode='hits'"):
        PrivateSearch(ROWS, mode=mode, epsilon=5, ledger=account, **threshold, **option)


def test_no_refresh_and_no_save(tmp_path: Path) -> None:
    search = PrivateSearch(ROWS, **CERTAIN)
    with pytest.raises(InvalidInput, match="charged again"):
        search.refresh()
    with pytest.raises(InvalidInput, match="'file'"):
        search.save(tmp_path / "x.npz")


def test_nothing_shows_counters() -> None:
    """Neither texts nor copies show a counter."""
    search = PrivateSearch(ROWS, **CERTAIN)
    search.search(near(0))
    counters = search._search._counters  # type: ignore[attr-defined]
    assert repr(counters) == "<MemoryCounters>"
    assert [name for name in dir(counters) if not name.startswith("_")] == ["update"]
    for copier in (copy.copy, copy.deepcopy, pickle.dumps):
        for thing in (search, search._search, counters):
            with pytest.raises(InvalidInput, match="not pickled"):
                copier(thing)
    assert "1" not in repr(search).replace("version 1", "")


# Stores.


def test_changed_vectors_keep_their_counters() -> None:
    """The counter belongs to the id: another vector under the same id has no new life."""
    rows = ROWS.copy()
    store = ArrayStore(rows)
    search = PrivateSearch(store, **CERTAIN)
    assert search.search(near(0)).ids == (0,)
    rows[0], rows[19] = ROWS[19], ROWS[0]
    store.mark_changed()
    assert search.stale
    assert search.search(near(0, 1)).ids == (19,)
    assert search.version == 2
    assert search.search(near(19)).ids == ()  # where record 0 is now


def test_other_ids_need_a_new_search() -> None:
    """Records that come or go end the search; the error shows nothing of them."""

    class Growing(ArrayStore):
        def records(self) -> Any:
            found = super().records()
            return type(found)(list(found.ids)[: self.size], found.vectors[: self.size])

        def scores(self, query: Any) -> Any:
            found = super().scores(query)
            return type(found)(list(found.ids)[: self.size], found.values[: self.size])

        size = RECORDS

    store = Growing(ROWS)
    search = PrivateSearch(store, **CERTAIN)
    store.size = RECORDS - 1
    store.mark_changed()
    with pytest.raises(StoreError, match="charged again"):
        search.search(near(0))


def test_scores_of_the_store() -> None:
    """A store that computes its own scores answers the same way."""
    search = PrivateSearch(ArrayStore(ROWS), pin="scores", **CERTAIN)
    assert search.search(near(0)).ids == (0,)
    assert search.search(near(0, 1)).ids == ()


def test_centroids() -> None:
    """With centroids an identity is one record."""
    labels = {one: f"person {one % 10}" for one in range(RECORDS)}
    rows = np.tile(np.eye(10), (2, 1))
    search = PrivateSearch(rows, **{**CERTAIN, "adjacency": None}, identity_of=labels, centroids=True)
    assert search.search(np.eye(10)[3]).ids == ("person 3",)
    assert search.search(np.eye(10)[3] + 0.01).ids == ()
    assert isinstance(search.guarantee.adjacency, ss.Identity)
    assert ss.Guarantee.from_dict(search.guarantee.to_dict()) == search.guarantee


# Several threads and processes.


def test_threads() -> None:
    """Threads that ask at once name a record once."""
    search, found = PrivateSearch(ROWS, **CERTAIN), []
    threads = [
        threading.Thread(target=lambda seed=seed: found.append(search.search(near(0, seed)).ids)) for seed in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [()] * 15 + [(0,)]


def test_callback_that_searches() -> None:
    """A filter may search with the same object: it is called before the lock."""
    search = PrivateSearch(ROWS, **CERTAIN)
    assert search.search(near(0), where=lambda _: bool(search.search(near(1)).ids)).ids == (0,)


def test_fork_with_counters_in_memory() -> None:
    search = PrivateSearch(ROWS, **CERTAIN)
    child = os.fork()
    if child == 0:
        try:
            search.search(near(0))
            os._exit(1)
        except InvalidInput as error:
            os._exit(0 if "another process" in str(error) else 2)
        finally:
            os._exit(3)
    assert os.waitpid(child, 0)[1] == 0
    assert search.search(near(0)).ids == (0,)


def _ask(path: str, start: int, queue: Any) -> None:
    search = PrivateSearch(ROWS, **CERTAIN, file=path)
    queue.put([search.search(near(0, seed)).ids for seed in range(start, start + 10)])


def test_processes(tmp_path: Path) -> None:
    """Processes that make the search and ask at once share one set of counters."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    path = str(tmp_path / "counters")
    processes = [context.Process(target=_ask, args=(path, 100 * number, queue)) for number in range(4)]
    for process in processes:
        process.start()
    answers = [ids for _ in processes for ids in queue.get(timeout=60)]
    for process in processes:
        process.join()
    assert sorted(answers) == [()] * 39 + [(0,)]


# The file.


def test_resume(tmp_path: Path) -> None:
    """A search that starts again continues with the counters, and charges nothing."""
    account, path = make_ledger(tmp_path).account("people"), tmp_path / "counters"
    options = {**CERTAIN, "epsilon": 40.0, "ledger": account, "file": path}
    first = PrivateSearch(ROWS, **options)
    size = path.stat().st_size
    assert first.search(near(0)).ids == (0,)
    again = PrivateSearch(ROWS, **options)
    assert account.spent == 80
    assert again.search(near(0, 1)).ids == ()
    assert again.search(near(1)).ids == (1,)
    assert first.search(near(1, 1)).ids == ()  # the first one sees what the second one did
    assert path.stat().st_size == size
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(one.name for one in tmp_path.iterdir()) == ["counters", "ledger.db"]
    assert PrivateSearch(ROWS, **{**options, "ledger": None}).search(near(0, 2)).ids == ()


def test_resume_in_another_order(tmp_path: Path) -> None:
    """Counters follow ids, whatever the order of the store is."""
    ids, path = [f"r{number}" for number in range(RECORDS)], tmp_path / "counters"
    assert PrivateSearch(ArrayStore(ROWS, ids=ids), **CERTAIN, file=path).search(near(0)).ids == ("r0",)
    again = PrivateSearch(ArrayStore(ROWS[::-1].copy(), ids=ids[::-1]), **CERTAIN, file=path)
    assert again.search(near(0, 1)).ids == ()
    assert again.search(near(3)).ids == ("r3",)
    assert again.search(near(3, 1)).ids == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 61.0}, "other epsilon"),
        ({"hits": 2}, "hits or cuts"),
        ({"cuts": [0.8]}, "hits or cuts"),
        ({"adjacency": None}, "adjacency"),
        ({"rng": 1}, "sampler"),
    ],
)
def test_resume_with_other_settings(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    PrivateSearch(ROWS, **CERTAIN, file=tmp_path / "counters")
    with pytest.raises(InvalidInput, match=message):
        PrivateSearch(ROWS, **{**CERTAIN, **change}, file=tmp_path / "counters")


def test_resume_with_other_records_or_accounts(tmp_path: Path) -> None:
    ledger, path = make_ledger(tmp_path), tmp_path / "counters"
    options = {**CERTAIN, "epsilon": 20.0, "file": path}
    PrivateSearch(ROWS, **options)
    with pytest.raises(InvalidInput, match="not charged"):
        PrivateSearch(ROWS, **options, ledger=ledger.account("people"))
    with pytest.raises(InvalidInput, match="other records"):
        PrivateSearch(ROWS[:-1], **options)
    assert ledger.entries() == []


def test_resume_with_another_account(tmp_path: Path) -> None:
    """Counters that one account was charged for do not serve another account of the same ledger."""
    ledger, path = make_ledger(tmp_path), tmp_path / "counters"
    options = {**CERTAIN, "epsilon": 20.0, "file": path}
    PrivateSearch(ROWS, **options, ledger=ledger.account("people"))
    PrivateSearch(ROWS, **options, ledger=ledger.account("people"))
    with pytest.raises(InvalidInput, match="not charged"):
        PrivateSearch(ROWS + 1, **options, ledger=ledger.account("others"))
    assert len(ledger.entries()) == 1


def test_copies_are_noticed(tmp_path: Path) -> None:
    """A copy, and a backup that took the place of the file, hold counters that may be old."""
    path, backup = tmp_path / "counters", tmp_path / "backup"
    search = PrivateSearch(ROWS, **CERTAIN, file=path)
    shutil.copy(path, backup)
    search.search(near(0))
    with pytest.raises(InvalidInput, match="copy"):
        PrivateSearch(ROWS, **CERTAIN, file=backup)
    backup.replace(path)
    with pytest.raises(InvalidInput, match="not the file"):
        search.search(near(0, 1))
    with pytest.raises(InvalidInput, match="copy"):
        PrivateSearch(ROWS, **CERTAIN, file=path)


def test_restored_content_is_noticed(tmp_path: Path) -> None:
    """Old content that is written into the file is noticed by every search that saw the new one."""
    path = tmp_path / "counters"
    search = PrivateSearch(ROWS, **CERTAIN, file=path)
    before = path.read_bytes()
    search.search(near(0))
    with path.open("r+b") as file:
        file.write(before)
    with pytest.raises(InvalidInput, match="older counters"):
        search.search(near(0, 1))


def test_damaged_files(tmp_path: Path) -> None:
    """What is no file of counters raises one sentence, and is left as it is."""
    path = tmp_path / "counters"
    PrivateSearch(ROWS, **CERTAIN, file=path)
    whole = path.read_bytes()

    def damage(content: bytes) -> None:
        with path.open("r+b") as file:
            file.truncate(0)
            file.write(content)

    slot = len(whole) - (8 + RECORDS + 32)
    bad_slots = bytearray(whole)
    bad_slots[slot + 9] ^= 1
    bad_slots[4096 + 9] ^= 1
    for content in (b"", b"hello", whole[:-1], whole[:100], whole.replace(b'"hits"', b'"hats"', 1), bytes(bad_slots)):
        damage(content)
        with pytest.raises(InvalidInput, match="counters"):
            PrivateSearch(ROWS, **CERTAIN, file=path)
        assert path.read_bytes() == content
    with pytest.raises((InvalidInput, FileError)):
        PrivateSearch(ROWS, **CERTAIN, file=tmp_path)
    with pytest.raises(FileError, match="folder"):
        PrivateSearch(ROWS, **CERTAIN, file=tmp_path / "no" / "counters")


def test_torn_slot(tmp_path: Path) -> None:
    """A slot whose writing was cut short leaves the state before it, which is the last that anyone saw."""
    path = tmp_path / "counters"
    search = PrivateSearch(ROWS, **CERTAIN, file=path)
    search.search(near(0))
    content = bytearray(path.read_bytes())
    search.search(near(1))
    later = path.read_bytes()
    changed = [place for place in range(len(later)) if later[place] != content[place]]
    content[changed[0] : changed[len(changed) // 2]] = later[changed[0] : changed[len(changed) // 2]]
    with path.open("r+b") as file:
        file.write(content)
    again = PrivateSearch(ROWS, **CERTAIN, file=path)
    assert again.search(near(0, 1)).ids == ()
    assert again.search(near(1, 1)).ids == (1,)


def test_lost_file(tmp_path: Path) -> None:
    search = PrivateSearch(ROWS, **CERTAIN, file=tmp_path / "counters")
    (tmp_path / "counters").unlink()
    with pytest.raises(FileError, match="nothing was released"):
        search.search(near(0))


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("place", ["pwrite", "fsync"])
def test_failed_write(failure: BaseException, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk and Ctrl-C show no answer, and the exception holds no score, level or counter."""
    path = tmp_path / "counters"
    search = PrivateSearch(ROWS, **CERTAIN, file=path)

    def fail(*_: Any) -> int:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(hit_counters.os, place, fail)
        expected = FileError if isinstance(failure, OSError) else KeyboardInterrupt
        with pytest.raises(expected) as caught:
            search.search(near(0))
    if expected is FileError:
        assert str(caught.value) == f"Cannot write {path}: No space left on device; nothing was released."
    for frame, _ in traceback.walk_tb(caught.value.__traceback__):
        if "scoreshield" in frame.f_code.co_filename:
            assert not [value for value in frame.f_locals.values() if isinstance(value, np.ndarray | bytes | list)]
    answers = [search.search(near(0, seed)).ids for seed in range(1, 4)]
    assert answers in ([(0,), (), ()], [(), (), ()])  # the write may have reached the disk before fsync failed


def test_full_disk_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk without room for the file costs nothing."""
    account = make_ledger(tmp_path).account("people")

    def fail(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(hit_counters.os, "pwrite", fail)
    with pytest.raises(FileError, match="nothing was released"):
        PrivateSearch(ROWS, **{**CERTAIN, "epsilon": 20.0}, ledger=account, file=tmp_path / "counters")
    assert account.spent == 0
    assert sorted(one.name for one in tmp_path.iterdir()) == ["ledger.db"]


FULL = """
import json, resource, sys
import numpy as np
import scoreshield as ss
from scoreshield.search import PrivateSearch
from scoreshield.stores import ArrayStore

ids = [("x" * 200) + str(place) for place in range(2000)]
store = ArrayStore(np.random.default_rng(0).normal(size=(2000, 8)), ids=ids)
ledger = ss.Ledger.open(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
try:
    PrivateSearch(store, epsilon=10.0, mode="hits", hits=1, file=sys.argv[2], ledger=ledger.account("people"))
    print(json.dumps([ledger.spent, ""]))
except ss.FileError as error:
    print(json.dumps([ledger.spent, str(error)]))
"""


@pytest.mark.parametrize("is_enough", [False, True])
def test_full_disk_for_long_ids(tmp_path: Path, is_enough: bool) -> None:
    """The rehearsal writes the ids too, so that a disk with room for the counters alone costs nothing."""
    ledger, size = make_ledger(tmp_path), 10**6 if is_enough else 2 * 10**5
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        FULL,
        f"sqlite:///{tmp_path}/ledger.db",
        f"{tmp_path}/c",
        str(size),
    ]
    child = subprocess.run(command, capture_output=True, check=False, timeout=120)
    assert child.returncode == 0, child.stderr.decode()
    spent, message = json.loads(child.stdout)
    assert spent == ledger.spent == (10.0 if is_enough else 0.0)
    assert message == "" if is_enough else "nothing was released" in message
    assert (tmp_path / "c").exists() == is_enough


def test_the_rehearsed_space_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the charge, the file is written over: it never becomes smaller than what is written into it."""
    sizes: list[int] = []
    write, truncate = os.pwrite, os.ftruncate

    def watch_write(file: int, content: Any, offset: int) -> int:
        sizes.append(os.fstat(file).st_size)
        return write(file, content, offset)

    def watch_truncate(file: int, size: int) -> None:
        truncate(file, size)
        sizes.append(-size)

    monkeypatch.setattr(hit_counters.os, "pwrite", watch_write)
    monkeypatch.setattr(hit_counters.os, "ftruncate", watch_truncate)
    PrivateSearch(ROWS, **CERTAIN, file=tmp_path / "counters")
    rehearsed = -sizes[3]
    assert sizes[4:7] == [rehearsed] * 3
    assert rehearsed >= -sizes[7] == (tmp_path / "counters").stat().st_size


CHILD = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import numpy as np
from scoreshield.search import PrivateSearch, hit_counters
from test_hits import CERTAIN, ROWS, near
path, last, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
search = PrivateSearch(ROWS, **CERTAIN, file=path)
events = 0

def watch(name):
    original = getattr(os, name)
    def watched(*arguments):
        global events
        events += 1
        if events == last:
            if name == "pwrite":  # half of it
                file, content, offset = arguments
                original(file, bytes(content)[: len(content) // 2], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments)
    setattr(hit_counters.os, name, watched)

for name in ("pread", "pwrite", "fsync", "close"):
    watch(name)
ids = search.search(near(0, seed)).ids
os.write(1, b"named" if ids == (0,) else b"not")
"""


def test_kill_at_every_step(tmp_path: Path) -> None:
    """Killed at any step, a record is shown by at most one process, and is not lost before it was shown."""
    script = tmp_path / "child.py"
    script.write_text(textwrap.dedent(CHILD).format(tests=str(Path(__file__).parent)))
    ends = []
    for last in range(1, 9):
        path = tmp_path / f"counters-{last}"
        shown = []
        for seed, step in ((1, last), (2, 0), (3, 0)):
            child = subprocess.run(
                [sys.executable, str(script), str(path), str(step), str(seed)],
                capture_output=True,
                check=False,
                timeout=120,
            )
            assert child.returncode in ((0, -signal.SIGKILL) if step else (0,)), child.stderr.decode()
            shown.append(child.stdout)
            if step:
                ends.append(child.returncode)
        assert shown.count(b"named") <= 1, (last, shown)
        assert shown[0] != b"named" or shown[1:] == [b"not", b"not"]
        if shown[0] == b"":  # killed; before the state was whole the record keeps its hit
            assert shown[1] in (b"named", b"not")
            assert shown[2] == b"not"
    assert -signal.SIGKILL in ends
    assert 0 in ends  # the last steps come after the end: all were tried


def test_near_miss_of_the_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters that are written after the answer would give a record a second life, and this would be noticed."""
    path = tmp_path / "counters"

    def update_late(self: CounterFile, step: Any) -> Any:
        with self._open() as file:
            return step(self._read_state(file)[2])[1]  # the process dies before it writes

    monkeypatch.setattr(CounterFile, "update", update_late)
    shown = [PrivateSearch(ROWS, **CERTAIN, file=path).search(near(0, seed)).ids for seed in (1, 2)]
    assert shown == [(0,), (0,)]


def test_no_leftover_locks(tmp_path: Path) -> None:
    """A process that ends leaves one file."""
    PrivateSearch(ROWS, **CERTAIN, file=tmp_path / "counters").search(near(0))
    assert [one.name for one in tmp_path.iterdir()] == ["counters"]


def test_cuts_from_public_levels() -> None:
    """Levels of the model of the default cuts give these cuts; another model's lie where its scores are."""
    assert MINILM_LEVELS.place_for_hits(MINILM_LEVELS.records) == HIT_CUTS
    levels = ss.PublicLevels(0.8, 0.75, 1000)
    search = PrivateSearch(ROWS, mode="hits", epsilon=20.0, cuts=levels)
    assert search.guarantee.details["cuts"] == list(levels.place_for_hits(RECORDS))
    larger = np.array(levels.place_for_hits(5_000))
    # A collection five times as large has higher best scores: ln 5 steps, which is the distance of the two points.
    assert larger[0] - levels.place_for_hits(1_000)[0] == pytest.approx(0.05, abs=0.002)


@pytest.mark.parametrize("tenth", [-0.99, 0.0, 0.9, 0.9999])
@pytest.mark.parametrize("spread", [1e-4, 0.05, 0.5])
@pytest.mark.parametrize("records", [1, 10**9])
def test_cuts_of_every_tail_are_valid(tenth: float, spread: float, records: int) -> None:
    """Placed cuts increase and are cosines, whatever the tail is."""
    levels = ss.PublicLevels(tenth, max(tenth - spread, -1.0), 100)
    assert len(check_cuts(levels.place_for_hits(records))) == len(HIT_CUTS)


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header["facts"].pop("guarantee"),
        lambda header: header["facts"].pop("ids"),
        lambda header: header["facts"].pop("paid"),
        lambda header: header.update(facts=[]),
        lambda header: header["facts"].update(ids=None),
        lambda header: header["facts"].update(ids=[0, *range(RECORDS)]),
        lambda header: header["facts"].update(ids=[0, *range(1, RECORDS - 1), 0]),
        lambda header: header["facts"].update(ids=[[place] for place in range(RECORDS)]),
        lambda header: header["facts"].update(guarantee=[]),
        lambda header: header["facts"].update(paid={"dataset": "a"}),
        lambda header: header["facts"].update(paid={"dataset": 1, "entry": 2}),
        lambda header: header.update(records=True),
    ],
)
def test_a_made_up_header_is_one_sentence(tmp_path: Path, change: Any) -> None:
    """The hash of such a file fits, and its facts are not those of a hit budget."""
    path = tmp_path / "counters"
    PrivateSearch(ROWS, **CERTAIN, file=path)
    raw, front = path.read_bytes(), len(hit_counters._MAGIC) + 8
    header = json.loads(raw[front : front + int.from_bytes(raw[front - 8 : front], "big")])
    change(header)
    with path.open("r+b") as file:
        text = json.dumps(header).encode()
        start = hit_counters._MAGIC + len(text).to_bytes(8, "big") + text
        layout = hit_counters._make_layout(header["file"], start, header["records"])
        file.write(start + layout.digest)
        for place, offset in enumerate(layout.offsets):
            slot = hit_counters._encode_slot(place, hit_counters.make_counts(int(header["records"])), layout.digest)
            file.seek(offset)
            file.write(slot)
        file.truncate(layout.size)
    with pytest.raises(InvalidInput, match="holds no counters of a hit budget, or was changed"):
        PrivateSearch(ROWS, **CERTAIN, file=path)


@pytest.mark.parametrize("is_reversed", [False, True])
def test_the_first_array_of_clean_scores_is_overwritten(is_reversed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the names of a search are not in the order of the rows, and the scores are copied."""
    kept = []
    compute = hits._Collection.score

    def watch(collection: Any, query: Any) -> Any:
        kept.append(compute(collection, query))
        return kept[-1]

    monkeypatch.setattr(hits._Collection, "score", watch)
    if is_reversed:
        monkeypatch.setattr(hits._Collection, "find_places", lambda _, names: np.arange(len(names))[::-1])
    rows = np.random.default_rng(5).standard_normal((50, 8))
    PrivateSearch(ArrayStore(rows), epsilon=16.0, mode="hits", rng=1).search(rows[0], 5)
    assert len(kept) > 0
    assert not any(scores.any() for scores in kept)
