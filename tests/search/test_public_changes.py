"""A search over an index whose changes are public: a refresh draws only what was added or named."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield.errors import BudgetExceeded, InvalidInput
from scoreshield.search import PrivateSearch
from scoreshield.stores import ArrayStore

EPSILON = 5.0
ROWS = np.random.default_rng(11).normal(size=(8, 6)).astype(np.float32)


class Collection:
    """A store of named records that can be changed, with the search over it."""

    def __init__(self, folder: Path, limit: float = 100.0, **options: Any) -> None:
        self.rows = {f"r{place}": row for place, row in enumerate(ROWS)}
        self.account = ss.Ledger.create(f"sqlite:///{folder / 'ledger.db'}", epsilon=limit, delta=0.0).account("r")
        self.options = {"epsilon": EPSILON, "ledger": self.account, "changes": "public"} | options
        self.store = self.make_store()
        self.search = PrivateSearch(self.store, **self.options)

    def make_store(self) -> ArrayStore:
        return ArrayStore(np.stack(list(self.rows.values())), ids=list(self.rows))

    def read(self) -> dict[str, Any]:
        served = self.search._search.index  # type: ignore[attr-defined]
        return dict(zip(served.ids, served.release.vectors, strict=True))

    def change_store(self) -> None:
        fresh = self.make_store()
        vars(self.store).update(vars(fresh))
        self.store.mark_changed()


def test_only_named_and_new_records_are_drawn(tmp_path: Path) -> None:
    here = Collection(tmp_path)
    before = here.read()
    assert here.account.spent == here.search.spent == EPSILON
    here.rows["r1"] = ROWS[0]
    here.rows["new"] = ROWS[3]
    del here.rows["r5"]
    here.change_store()
    here.search.refresh(changed=["r1"])
    after = here.read()
    assert after.keys() == here.rows.keys()
    drawn = {name for name, row in after.items() if name not in before or not np.array_equal(row, before[name])}
    assert drawn == {"r1", "new"}
    assert here.account.spent == here.search.spent == here.search.guarantee.epsilon == 2 * EPSILON
    here.search.refresh(changed=["r2", "r3"])
    assert here.account.spent == here.search.spent == 2 * EPSILON
    hits = here.search.search(ROWS[0], k=3)
    assert set(hits.ids) <= here.rows.keys()
    assert here.account.ledger.verify()


def test_nothing_named_draws_all_that_stayed(tmp_path: Path) -> None:
    here = Collection(tmp_path)
    before = here.read()
    here.search.refresh()
    assert not any(np.array_equal(row, before[name]) for name, row in here.read().items())
    assert here.account.spent == 2 * EPSILON


def test_a_removal_costs_nothing(tmp_path: Path) -> None:
    here = Collection(tmp_path)
    del here.rows["r0"]
    here.change_store()
    here.search.refresh(changed=[])
    assert "r0" not in here.search.ids
    here.search.refresh(changed=[])  # nothing to do
    assert here.account.spent == EPSILON


def test_a_file_continues_the_counts(tmp_path: Path) -> None:
    here = Collection(tmp_path, file=tmp_path / "index.npz")
    here.search.refresh(changed=["r1"])
    again = PrivateSearch(here.make_store(), **here.options)  # another process, later
    assert here.account.spent == 2 * EPSILON
    again.refresh(changed=["r1"])
    assert here.account.spent == again.guarantee.epsilon == 3 * EPSILON
    here.search.refresh(changed=["r2"])  # from the file, which the other one wrote
    assert here.account.spent == here.search.guarantee.epsilon == 3 * EPSILON
    with pytest.raises(InvalidInput, match="another declaration"):
        PrivateSearch(here.make_store(), **here.options | {"changes": "private"})


def test_the_budget_holds(tmp_path: Path) -> None:
    here = Collection(tmp_path, limit=2 * EPSILON)
    here.search.refresh(changed=["r1"])
    before = here.read()
    with pytest.raises(BudgetExceeded):
        here.search.refresh(changed=["r1"])
    assert all(np.array_equal(row, before[name]) for name, row in here.read().items())


def test_errors(tmp_path: Path) -> None:
    here = Collection(tmp_path)
    with pytest.raises(InvalidInput, match="has no record 'zz'"):
        here.search.refresh(changed=["zz"])
    with pytest.raises(InvalidInput, match="needs a ledger"):
        PrivateSearch(ROWS, epsilon=EPSILON, changes="public")
    with pytest.raises(InvalidInput, match="is for mode='index'"):
        PrivateSearch(ROWS, epsilon=EPSILON, changes="public", mode="query", ledger=here.account)
    with pytest.raises(InvalidInput, match="leave the adjacency"):
        PrivateSearch(ROWS, epsilon=EPSILON, changes="public", ledger=here.account, identity_of=lambda one: one % 2)
    plain = PrivateSearch(ROWS, epsilon=EPSILON)
    with pytest.raises(InvalidInput, match="is for an index with changes='public'"):
        plain.refresh(changed=[1])
    with pytest.raises(InvalidInput, match="'changed' parameter"):
        here.search.refresh(changed="r1")
    assert here.account.spent == EPSILON


KILLS = """
import json, os, signal, sys
from pathlib import Path
import numpy as np
import scoreshield as ss
from scoreshield.search import PrivateSearch
from scoreshield.stores import ArrayStore

ROWS = np.random.default_rng(11).normal(size=(8, 6)).astype(np.float32)
IDS = [f"r{place}" for place in range(8)]
first = json.loads(sys.argv[2])
results = []

def search(folder, ids=IDS):
    account = ss.Ledger.open(f"sqlite:///{folder / 'ledger.db'}").account("r")
    options = {"changes": "public", "ledger": account} if first else {"max_epsilon": 100.0}
    return PrivateSearch(ArrayStore(ROWS[:len(ids)], ids=ids), epsilon=5.0, file=folder / "i.npz", **options)

def kill_at(last):
    steps = 0
    def watch(name):
        original = getattr(os, name)
        def watched(*arguments, **options):
            nonlocal steps
            steps += 1
            if steps == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **options)
        setattr(os, name, watched)
    for name in ("link", "replace", "unlink", "rename"):
        watch(name)

for last in range(1, 100):
    folder = Path(sys.argv[1]) / str(last)
    folder.mkdir()
    ledger = ss.Ledger.create(f"sqlite:///{folder / 'ledger.db'}", epsilon=100.0, delta=0.0)
    before = search(folder)
    before.hide(["r3"])
    child = os.fork()
    if child == 0:
        try:
            here = search(folder, IDS[:-1])  # one record was removed, and one is drawn again
            kill_at(last)
            here.refresh(changed=["r1"]) if first else here.refresh()
        finally:
            os._exit(0)
    is_killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    charged = ledger.spent
    after = search(folder, IDS[:-1])
    results.append([is_killed, charged, ledger.spent, len(after.ids), sorted(after._search.hidden)])
    if not is_killed:
        break
print(json.dumps(results))
"""


@pytest.mark.parametrize("is_public", [True, False])
def test_kill_at_every_step_of_a_refresh(tmp_path: Path, is_public: bool) -> None:
    """Killed at any step, the files hold the old index or the new one, and the next start charges nothing."""
    script = tmp_path / "kills.py"
    script.write_text(textwrap.dedent(KILLS))
    child = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(tmp_path), json.dumps(is_public)],
        capture_output=True,
        check=False,
        timeout=300,
    )
    assert child.returncode == 0, child.stderr.decode()
    results = json.loads(child.stdout)
    for is_killed, charged, after, size, hidden in results:
        assert after == charged
        assert charged in ((EPSILON, 2 * EPSILON) if is_public else (0.0,))
        assert size in ((7, 8) if is_killed else (7,))
        assert hidden == ["r3"]
    assert not results[-1][0]
    assert {size for *_, size, _ in results} == {7, 8}
    assert len(results) > 10
