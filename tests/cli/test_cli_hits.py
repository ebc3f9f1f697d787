"""`scoreshield hits`: one charge for all commands that use the same counters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreshield as ss

ROWS = np.eye(12)
#: Coins are so unfair that nothing is left to chance: errors have a probability of e^-40.
CERTAIN = ("--epsilon", 60, "--null-record", "--hits", 1, "--cut", 0.9)
BASE = ("hits", "rows.npy", "--query", "one.npy", "--file", "rows.hits")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    np.save(tmp_path / "rows.npy", ROWS)
    np.save(tmp_path / "one.npy", ROWS[3])
    np.save(tmp_path / "three.npy", ROWS[[3, 5, 3]])
    np.save(tmp_path / "long.npy", np.ones(13))
    np.save(tmp_path / "labels.npy", np.arange(12) // 2)
    np.save(tmp_path / "five.npy", np.arange(5))
    (tmp_path / "names.txt").write_text("\n".join(f"person {number}" for number in range(12)))
    ss.Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=200, delta=0)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read_ids(outcome: tuple[int, str, str]) -> list[list[Any]]:
    code, out, err = outcome
    assert (code, err) == (0, "")
    return [answer["ids"] for answer in json.loads(out)["hits"]]


@pytest.mark.usefixtures("folder")
def test_a_record_answers_once_over_all_commands(run: Any) -> None:
    """The counters outlive a command: a record with one hit is named once."""
    assert read_ids(run(*BASE, *CERTAIN, "--json")) == [[3]]
    assert read_ids(run(*BASE, *CERTAIN, "--json")) == [[]]
    several = ("hits", "rows.npy", "--query", "three.npy", "--file", "rows.hits")
    assert read_ids(run(*several, *CERTAIN, "--json")) == [[], [5], []]
    assert read_ids(run(*several[:-1], "other.hits", *CERTAIN, "--json")) == [[3], [5], [3]]  # asked together: once


@pytest.mark.usefixtures("folder")
def test_one_charge(run: Any) -> None:
    """The first command charges the ledger, and later ones charge nothing."""
    ledger = ("--ledger", "sqlite:///ledger.db", "--dataset", "people")
    account = ss.Ledger.open("sqlite:///ledger.db").account("people")
    code, out, _ = run(*BASE, *CERTAIN, *ledger)
    assert code == 0
    assert "new: epsilon was charged now" in out
    spent = account.spent
    assert spent == 120  # against a null record 60, and between any two records 120
    code, out, _ = run(*BASE, *CERTAIN, *ledger)
    assert code == 0
    assert "charged before" in out
    assert "no record was named" in out
    assert account.spent == spent
    assert "Dataset        people\nLedger entry   Number 1, with the hash\n" in out  # also from the file
    code, _, err = run(*BASE[:-1], "more.hits", *CERTAIN, *ledger)
    assert code == 2
    assert "budget" in err.lower()
    assert not Path("more.hits").exists()


@pytest.mark.usefixtures("folder")
def test_places_are_marked(run: Any) -> None:
    """The number of a hit is the place of a level, and the output says that it is no cosine."""
    code, out, _ = run(*BASE, *CERTAIN)
    assert code == 0
    assert "query 0         3 (place 0.950)\n" in out
    assert "and is no cosine" in out
    assert "no cosine" not in run(*BASE, *CERTAIN)[1]  # no record is left to name
    _, out, _ = run(*BASE[:-1], "other.hits", *CERTAIN, "--json")
    assert "no cosine" in json.loads(out)["scores_are"]


@pytest.mark.usefixtures("folder")
def test_worth(run: Any) -> None:
    """The worth of k records is printed, and a required recall stops before the charge."""
    code, out, _ = run(*BASE, "--k", 3, *CERTAIN)
    assert code == 0
    assert "worth           Unknown for this model. Predicted" in out
    assert "among the best 3 of 12" in out
    assert "This is about the first query" in out
    ledger = ("--ledger", "sqlite:///ledger.db", "--dataset", "people")
    weak = ("--file", "weak.hits", "--epsilon", 0.1, "--k", 3, "--require-recall", 0.9)
    code, _, err = run(*BASE[:4], *weak, *ledger)
    assert code == 2
    assert "A recall of 0.9 is required" in err
    assert ss.Ledger.open("sqlite:///ledger.db").spent_on("people") == 0
    assert not Path("weak.hits").exists()


@pytest.mark.usefixtures("folder")
def test_worth_by_public_scores(run: Any) -> None:
    """Public queries that want the same records are simulated in a row."""
    scores = np.full((30, 100), 0.1) + np.random.default_rng(1).uniform(-0.05, 0.05, (30, 100))
    pairs = np.column_stack([np.arange(30), np.arange(30) // 6])
    scores[pairs[:, 0], pairs[:, 1]] = 0.95
    np.save("public.npy", scores)
    np.save("relevant.npy", pairs)
    public = ("--public-scores", "public.npy", "--public-relevant", "relevant.npy", "--k", 3)
    code, out, _ = run(*BASE, *CERTAIN, *public, "--json")
    assert code == 0
    worth = json.loads(out)["worth"]
    assert worth.startswith("Predicted to find 0.17")  # one in six, because a record answers one query
    assert "Simulated on 30 public queries in a row" in worth


@pytest.mark.usefixtures("folder")
def test_texts_without_a_ledger(run: Any) -> None:
    """The certificate states them, and that no ledger was charged."""
    code, out, err = run(*BASE, *CERTAIN, "--dataset", "people", "--who", "ada", "--why", "pilot")
    assert code == 0
    assert "Dataset        people\nWho            ada\nWhy            pilot\nLedger entry   None" in out
    assert err == "scoreshield: No ledger was charged for 'people': --ledger says where its budget is kept.\n"
    code, out, _ = run(*BASE, *CERTAIN, "--json")
    assert json.loads(out)["verdict"] == "hides practically nothing"


@pytest.mark.usefixtures("folder")
def test_ids_and_identities(run: Any) -> None:
    """Hits have the given ids, or are identities."""
    code, out, _ = run(*BASE, *CERTAIN, "--ids", "names.txt")
    assert code == 0
    assert "query 0         person 3 (place 0.950)" in out
    sure = ("--epsilon", 160, "--hits", 1, "--cut", 0.6)
    found = read_ids(run(*BASE[:-1], "two.hits", *sure, "--labels", "labels.npy", "--centroids", "--seed", 1, "--json"))
    assert found == [[1]]  # records 2 and 3; another seed misses it in 1.8 % of the rounds
    code, _, err = run(*BASE[:-1], "three.hits", *sure, "--labels", "labels.npy")
    assert code == 2
    assert "one vector" in err


@pytest.mark.usefixtures("folder")
def test_levels_from_public_scores(run: Any) -> None:
    """A file of levels places the cuts for the number of records."""
    levels = ss.PublicLevels(0.357, 0.272, 2519)
    levels.save("levels.json")
    code, out, _ = run(*BASE, "--epsilon", 30, "--levels", "levels.json", "--json")
    assert code == 0
    assert json.loads(out)["guarantee"]["details"]["cuts"] == list(levels.place_for_hits(12))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--query", "long.npy"), "a vector of 12 real numbers"),
        (("--query", "missing.npy"), "There is no file missing.npy"),
        (("--k", 0), "--k"),
        (("--epsilon", 0), "epsilon"),
        (("--hits", 0), "hits"),
        (("--cut", 2), "--cut must be"),
        (("--cut", 0.5, "--cut", 0.2), "--cut must be"),
        (("--names", 0), "names"),
        (("--file", "rows.npy"), "is the same file as the input"),
        (("--file", "names.txt"), "holds no counters"),
        (("--file", "ledger.db"), "is the same file as the input"),
        (("--file", "none/rows.hits"), "none"),
        (("--ids", "five.npy"), "one id per row"),
        (("--ids", "one.npy"), "the same id more than once"),
        (("--centroids",), "--centroids needs --labels"),
        (("--labels", "five.npy", "--centroids"), "one label per record"),
        (("--levels", "names.txt"), "names.txt"),
        (("--cut", 0.4, "--levels", "names.txt"), "Give --cut or --levels"),
        (("--why", "one line\nand another"), "printable characters"),
        (("--ledger", "sqlite:///ledger.db"), "--ledger needs --dataset"),
    ],
)
def test_bad_input(folder: Path, more: tuple[object, ...], words: str, run: Any) -> None:
    """One sentence, nothing charged and no counters."""
    account = ss.Ledger.open("sqlite:///ledger.db").account("people")
    ledger = () if more[0] in ("--dataset", "--ledger") else ("--ledger", "sqlite:///ledger.db", "--dataset", "people")
    code, out, err = run(*BASE, "--epsilon", 30, *ledger, *more)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert account.spent == 0
    assert not list(folder.rglob("*.hits"))


@pytest.mark.usefixtures("folder")
def test_other_settings_need_another_file(run: Any) -> None:
    """Counters of one budget do not serve another."""
    assert run(*BASE, "--epsilon", 30)[0] == 0
    for other in (("--epsilon", 31), ("--epsilon", 30, "--cut", 0.2), ("--epsilon", 30, "--ids", "names.txt")):
        code, out, err = run(*BASE, *other)
        assert (code, out) == (2, "")
        assert "name another file" in err
