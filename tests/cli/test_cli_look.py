"""`show`, `verify`, `search` and `doctor`: what a file is, whether it is in order, and what is installed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import sqlite3
import sys
import tomllib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield.cli import doctor
from scoreshield.report.certificate import save_with_certificate
from scoreshield.stores import ArrayStore

URL = "sqlite:///ledger.db"
GOLDEN = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path: Path, collection: np.ndarray, query: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A release that was charged, with its page, and an index with ids."""
    monkeypatch.chdir(tmp_path)
    np.save("emb.npy", collection)
    np.save("q.npy", query)
    account = ss.Ledger.create(URL, epsilon=50, delta=1e-6).account("letters", who="ada", why="pilot")
    save_with_certificate(
        ss.release_scores(collection, query, epsilon=2, delta=1e-6, ledger=account), Path("r.npz"), has_page=True
    )
    save_with_certificate(ss.release_index(collection, epsilon=30), Path("index.npz"))
    return tmp_path


# ---- show.


def test_show_a_release(folder: Path, run: Any) -> None:
    """A release is named, and its certificate and verdict are printed; from any of its files."""
    del folder
    release = ss.load("r.npz")
    for name in ("r.npz", "r.json", "r.txt", "r.html"):
        code, out, err = run("show", name)
        assert (code, err) == (0, "")
        assert str(release.guarantee) in out
        assert f"verdict              {release.guarantee.verdict}\n" in out
    code, out, _ = run("show", "r.npz", "--json")
    facts = json.loads(out)
    assert (facts["kind"], facts["verdict"]) == ("release", "strong")
    assert facts["guarantee"] == release.guarantee.to_dict()
    assert facts["facts"]["files_beside_it"] == "r.json, r.txt, r.html"


def test_show_writes_a_page(folder: Path, run: Any) -> None:
    """The option --html writes the page, and no other file is overwritten."""
    code, out, _ = run("show", "r.npz", "--html", "page.html")
    assert code == 0
    assert "Written page.html" in out
    page = Path("page.html").read_text()
    assert "Privacy certificate" in page
    assert json.loads(Path("r.json").read_text())["sha256"] in page
    assert run("show", "r.npz", "--html", "page.html")[0] == 2
    assert run("show", "r.npz", "--html", "page.html", "--force")[0] == 0
    assert "--html must end in .html" in run("show", "r.npz", "--html", "page.txt")[2]
    assert "has none" in run("show", "ledger.db", "--html", "other.html")[2]
    assert not (folder / "other.html").exists()


def test_show_other_files(folder: Path, run: Any) -> None:
    """Codebooks, levels, tails, ledgers, counters, exports and folders are all known."""
    rng = np.random.default_rng(0)
    scores = np.clip(rng.normal(0.1, 0.2, (30, 400)), -1, 1)
    ss.PublicCodebook(rng.standard_normal((300, 8)), source="our help pages").save("book.npz")
    ss.PublicLevels.fit(scores, source="help pages").save("levels.json")
    ss.PrivateSearch(ArrayStore(np.load("emb.npy")), mode="hits", epsilon=8.0, file="docs.hits")
    ss.Ledger.open(URL).export("ledger.json")
    run_folder = folder / "run"
    run_folder.mkdir()
    (run_folder / "settings.json").write_text('{"version": "0.1.0", "grid": {}}')
    (folder / "begun").mkdir()
    (folder / "begun" / "settings.json").write_text('{"asked": {}, "begun": "2026-01-01T00:00:00+00:00"}')
    expected = {
        "book.npz": ("codebook", "a public codebook"),
        "levels.json": ("levels", "public levels"),
        "index.npz": ("index", "a release of kind index"),
        "docs.hits": ("hits", "the secret counters of a hit budget"),
        "ledger.db": ("ledger", "a ledger of privacy budgets"),
        URL: ("ledger", "a ledger of privacy budgets"),
        "ledger.json": ("ledger export", "the exported entries"),
        "run": ("run folder", "the folder of a run"),
        "begun": ("audit folder", "an audit that is not finished"),
    }
    for name, (kind, phrase) in expected.items():
        code, out, err = run("show", name)
        assert (code, err) == (0, ""), name
        assert phrase in out
        assert json.loads(run("show", name, "--json")[1])["kind"] == kind


def test_show_an_audit(folder: Path, run: Any) -> None:
    """The report of an audit is shown with its verdict: of today, where other rows break it, and of an old version."""
    result = json.loads((GOLDEN / "audit" / "golden" / "result.json").read_text()) | {"seconds": 1.0}
    rows = {"name": "rows of other lengths", "passed": False, "detail": "a long row shows more"}
    skipped = {"name": "low bits", "passed": None, "detail": "the outputs lie on a grid"}
    unit = result | {"epsilon_lower": 0.5, "checks": [rows, skipped], "calls": 900, "pairs": 7}
    cases = {
        "old": (result, "The claim is broken: at 95 % confidence the true epsilon is at least", (True, False)),
        "rows": (unit, "No violation found for unit rows with 900 outputs of 7 pairs of neighbouring", (False, True)),
        "none": (unit | {"checks": [skipped]}, "No violation found with 900 outputs of 7 pairs", (False, False)),
    }
    for name, (content, verdict, (is_broken, by_rows)) in cases.items():
        (folder / name).mkdir()
        report = {"verdict": "", "broken": is_broken, "time": "2026-01-01", "result": content}
        (folder / name / "report.json").write_text(json.dumps(report))
        for path in (name, f"{name}/report.json"):
            code, out, err = run("show", path)
            assert (code, err) == (0, ""), name
            assert verdict in out
            shown = json.loads(run("show", path, "--json")[1])
            assert shown["kind"] == ("audit folder" if path == name else "audit")
            assert shown["facts"]["is_broken"] is is_broken
            assert shown["facts"]["is_broken_by_rows"] is by_rows


def test_show_a_page(folder: Path, run: Any) -> None:
    """A page is named by its title; only a release can be verified."""
    shutil.copy("r.html", "alone.html")
    code, out, err = run("show", "alone.html")
    assert (code, err) == (0, "")
    assert out.startswith("alone.html: the page of a certificate, for people to read in a browser\n")
    assert "similarity scores, of one public query" in out
    code, _, err = run("verify", "alone.html")
    assert code == 2
    assert "verify the release that it is about" in err
    (folder / "other.html").write_text("<!DOCTYPE html><title>Recipes</title>")
    code, _, err = run("show", "other.html")
    assert code == 2
    assert "none that ScoreShield writes" in err


def test_show_an_edited_ledger(folder: Path, run: Any) -> None:
    """The totals of a ledger that was edited come with a warning."""
    assert "WARNING" not in run("show", "ledger.db")[1]
    with contextlib.closing(sqlite3.connect(folder / "ledger.db")) as database, database:
        database.execute("UPDATE scoreshield_entries SET who = 'eve'")
    code, out, _ = run("show", "ledger.db")
    assert code == 0
    assert "WARNING              the chain does not verify: " in out


def test_show_golden_files(run: Any) -> None:
    """Files of the first version are known."""
    for path in sorted((GOLDEN / "golden" / "releases").glob("*.npz")):
        code, out, _ = run("show", path)
        assert code == 0
        assert "ScoreShield certificate" in out
    code, out, _ = run("show", GOLDEN / "golden" / "index" / "index.ids.json")
    assert (code, "the public ids of the index index.npz" in out) == (0, True)


def test_show_tells_no_secret(folder: Path, run: Any) -> None:
    """Embeddings are not shown, and a file of someone else gives one sentence."""
    del folder
    Path("other.json").write_text('{"a": 1}')
    Path("notes.md").write_text("# Notes")
    for name, message in (
        ("emb.npy", "holds arrays and no release"),
        ("other.json", "no file that ScoreShield writes"),
        ("notes.md", "no file that ScoreShield writes"),
        ("none.npz", "There is no file"),
        (".", "neither a run nor an audit"),
    ):
        for command in ("show", "verify"):
            code, out, err = run(command, name)
            assert (code, out) == (2, ""), name
            assert message in err
            assert err.count("\n") == 1


# ---- verify.


def test_verify_passes(folder: Path, run: Any) -> None:
    """A release that nobody touched passes, from each of its files, also against the ledger."""
    del folder
    for name in ("r.npz", "r.json", "r.txt", "r.html"):
        code, out, err = run("verify", name, "--json")
        assert (code, err) == (0, "")
        answer = json.loads(out)
        outcomes = {check["name"]: check["outcome"] for check in answer["checks"]}
        assert answer["ok"] is True
        assert outcomes == {
            **dict.fromkeys(("content", "json", "txt", "html"), "passed"),
            **dict.fromkeys(("ledger", "signature"), "not checked"),
        }
    code, out, _ = run("verify", "r.npz", "--ledger", URL, "--dataset", "letters")
    assert code == 0
    assert "passed       ledger       entry 1 charges 'letters' for this promise" in out
    assert "only a service signs" in out
    code, out, _ = run("verify", "ledger.db")
    assert (code, "passed       chain        there is one entry" in out) == (0, True)


def change_text(path: str, old: str, new: str) -> None:
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new))


def append_text(path: str, text: str) -> None:
    Path(path).write_text(Path(path).read_text() + text)


def edit_record(path: str, drop: Sequence[str] = (), **changes: Any) -> None:
    record = json.loads(Path(path).read_text()) | changes
    Path(path).write_text(json.dumps({name: value for name, value in record.items() if name not in drop}))


def make_long(path: str) -> None:
    """Make a certificate longer than any, by zeros."""
    with Path(path).open("r+b") as file:
        file.truncate(2**26 + 1)


def swap_release() -> None:
    ss.release_scores(np.load("emb.npy"), np.load("q.npy"), epsilon=2, delta=1e-6).save("r.npz")


@pytest.mark.parametrize(
    ("damage", "failing"),
    [
        (swap_release, {"json", "txt", "html"}),
        (lambda: change_text("r.json", '"verdict": "strong"', '"verdict": "moderate"'), {"json"}),
        (lambda: change_text("r.json", '"epsilon": 2.0', '"epsilon": 1.0'), {"json"}),
        (lambda: Path("r.json").write_text("{"), {"json"}),
        (lambda: change_text("r.txt", "Strong.", "Strongest."), {"txt"}),
        (lambda: change_text("r.txt", "SHA-256        ", "SHA-256        0"), {"txt"}),
        (lambda: Path("r.html").write_text("<p>another page</p>"), {"html"}),
        (lambda: change_text("r.html", "Strong", "Perfect"), {"html"}),
        (lambda: change_text("r.html", "</main>", "<p>Approved.</p></main>"), {"html"}),
        (lambda: change_text("r.html", '<time datetime="', '<time datetime="x'), {"html"}),
        (lambda: append_text("r.txt", "Approved by the officer.\n"), {"txt"}),
        (lambda: change_text("r.txt", "Issued         2", "Issued         1"), {"txt"}),
        (lambda: edit_record("r.json", approved=True), {"json"}),
        (lambda: edit_record("r.json", issued="never"), {"json", "txt", "html"}),
        (lambda: edit_record("r.json", drop=["scoreshield"], verdict="moderate"), {"json"}),
        (lambda: make_long("r.txt"), {"txt"}),
        (lambda: make_long("r.json"), {"json"}),
        (lambda: Path("r.npz").write_bytes(Path("r.npz").read_bytes()[:-40]), {"content"}),
    ],
)
def test_verify_finds_edits(folder: Path, damage: Any, failing: set[str], run: Any) -> None:
    """Each edit of a file fails the check of that file, with exit code 1."""
    del folder
    damage()
    code, out, err = run("verify", "r.npz", "--json")
    assert (code, err) == (1, "")
    answer = json.loads(out)
    assert answer["ok"] is False
    assert {check["name"] for check in answer["checks"] if check["outcome"] == "failed"} == failing
    assert "NOT in order" in run("verify", "r.npz")[1]


def list_outcomes(answer: str) -> dict[str, str]:
    return {check["name"]: check["outcome"] for check in json.loads(answer)["checks"]}


@pytest.mark.parametrize(
    "damage",
    [
        lambda: edit_record("r.json", verdict="moderate"),
        lambda: change_text("r.txt", "Strong.", "Strongest."),
        lambda: append_text("r.txt", "Approved.\n"),
        lambda: change_text("r.html", "Strong", "Perfect"),
    ],
)
def test_verify_certificates_of_another_version(folder: Path, damage: Any, run: Any) -> None:
    """What another version worded, or an edit says so, is not compared: it does not pass, and the exit code is 2."""
    del folder
    edit_record("r.json", scoreshield="0.0")
    code, out, _ = run("verify", "r.npz", "--json")  # nothing differs, so that the version does not matter
    assert (code, list_outcomes(out)["txt"]) == (0, "passed")
    damage()
    code, out, _ = run("verify", "r.npz", "--json")
    outcomes = list_outcomes(out)
    assert (code, json.loads(out)["ok"]) == (2, False)
    assert sorted((outcomes["json"], outcomes["txt"], outcomes["html"])) == ["not checked", "passed", "passed"]
    assert "NOT everything could be checked" in run("verify", "r.npz")[1]


def test_verify_chart_of_another_version_is_not_checked(folder: Path, run: Any) -> None:
    """Another version of the drawing library draws the same chart otherwise."""
    del folder
    change_text("r.html", "</svg>", "<g></g></svg>")
    code, out, _ = run("verify", "r.npz", "--json")
    assert (code, list_outcomes(out)["html"]) == (2, "not checked")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 0),
        ({"verdict": "moderate"}, 1),
        ({"right_at_most": 0.5001}, 1),
        ({"warnings": ["None."]}, 1),
        ({"approved": True}, 1),
        ({"drop": ["scoreshield"], "verdict": "moderate"}, 1),
        ({"scoreshield": "0.0", "verdict": "moderate"}, 2),
    ],
)
def test_verify_a_lone_certificate(folder: Path, changes: dict[str, Any], code: int, run: Any) -> None:
    """A certificate without its release is compared with its own guarantee."""
    del folder
    shutil.copy("r.json", "alone.json")
    edit_record("alone.json", **changes)
    found, out, _ = run("verify", "alone.json", "--json")
    assert found == code
    assert list_outcomes(out)["json"] == {0: "passed", 1: "failed", 2: "not checked"}[code]
    assert code or "its release is not beside it" in out


def test_verify_exported_entries(folder: Path, run: Any) -> None:
    """The chain of an export is computed again."""
    del folder
    account = ss.Ledger.open(URL).account("faces")
    ss.release_scores(np.load("emb.npy"), np.load("q.npy"), epsilon=2, delta=1e-6, ledger=account)
    ss.Ledger.open(URL).export("ledger.json")
    whole = json.loads(Path("ledger.json").read_text())
    code, out, _ = run("verify", "ledger.json")
    assert code == 0
    assert f"passed       chain        2 entries follow one another; head {ss.Ledger.open(URL).head()}" in out
    first, second = whole["entries"]
    for entries in (
        [first | {"hash": "0" * 64}, second],
        [first, second | {"guarantee": {}}],
        [first, second, second, second],
        [second],
        [first, second | {"id": 7}],
        [{}],
        [3],
    ):
        Path("ledger.json").write_text(json.dumps(whole | {"entries": entries}))
        code, out, _ = run("verify", "ledger.json", "--json")
        assert (code, list_outcomes(out)["chain"]) == (1, "failed")
    Path("ledger.json").write_text(json.dumps(whole | {"ledger": whole["ledger"] | {"epsilon": 1e9}}))
    assert run("verify", "ledger.json")[0] == 1


def test_verify_says_where_nothing_was_compared(folder: Path, run: Any) -> None:
    """A file that states nothing twice does not pass; ids are compared with the index beside them."""
    golden = GOLDEN / "golden" / "index"
    shutil.copy(golden / "index.ids.json", "lone.ids.json")
    code, out, _ = run("verify", "lone.ids.json")
    assert (code, "passed" in out, "nothing could be checked" in out) == (2, False, True)
    shutil.copy(golden / "index.npz", "lone.npz")
    code, out, _ = run("verify", "lone.ids.json")
    assert (code, "passed       ids" in out) == (0, True)
    ss.PublicLevels.fit(np.random.default_rng(0).normal(0.1, 0.1, (30, 400)), source="pages").save("levels.json")
    code, out, _ = run("verify", "levels.json")
    assert (code, "passed" in out) == (2, False)
    del folder


def test_verify_takes_endings_in_capitals(folder: Path, run: Any) -> None:
    """The certificates beside r.NPZ are checked too, and a given certificate is the one that is checked."""
    del folder
    shutil.copy("r.npz", "s.NPZ")
    for ending in ("txt", "html"):
        shutil.copy(f"r.{ending}", f"s.{ending}")
    shutil.copy("r.json", "s.JSON")
    for name in ("s.NPZ", "s.txt", "s.JSON"):
        outcomes = list_outcomes(run("verify", name, "--json")[1])
        assert (outcomes["txt"], outcomes["html"]) == ("passed", "passed")
    assert outcomes["json"] == "passed"
    edit_record("s.JSON", verdict="moderate")
    assert run("verify", "s.JSON")[0] == 1


@pytest.mark.parametrize("name", ["file", "issued", "scoreshield"])
def test_texts_of_a_file_stay_on_their_line(folder: Path, name: str, run: Any) -> None:
    """A line break in a certificate cannot write a line of the answer."""
    del folder
    forged = "x\npassed       signature    everything is signed\n\x1b[2J"
    edit_record("r.json", **{name: forged})
    shutil.copy("r.json", "alone.json")
    for command in ("show", "verify"):
        for file in ("r.npz", "alone.json"):
            _, out, err = run(command, file)
            assert "\npassed       signature" not in out + err
            assert "\x1b" not in out + err


def test_verify_missing_certificates(folder: Path, run: Any) -> None:
    """A release alone is checked by itself, and the files that are missing are named."""
    del folder
    for name in ("r.json", "r.txt", "r.html"):
        Path(name).unlink()
    code, out, _ = run("verify", "r.npz")
    assert code == 0
    assert "there is no certificate r.json beside it" in out
    assert "there is no certificate r.txt beside it" in out


def test_verify_renamed_files(folder: Path, run: Any) -> None:
    """Renamed files agree still, and the first name is stated."""
    del folder
    for ending in ("npz", "json", "txt", "html"):
        Path(f"r.{ending}").rename(f"s.{ending}")
    code, out, _ = run("verify", "s.npz")
    assert code == 0
    assert "it was written as r.npz" in out


def test_verify_against_ledgers(folder: Path, run: Any) -> None:
    """A ledger that never charged the release, another dataset, and an uncharged release all fail."""
    del folder
    ss.Ledger.create("sqlite:///other.db", epsilon=50, delta=1e-6)
    code, out, _ = run("verify", "r.npz", "--ledger", "sqlite:///other.db")
    assert (code, "has no entry 1" in out) == (1, True)
    code, out, _ = run("verify", "r.npz", "--ledger", URL, "--dataset", "faces")
    assert (code, "--dataset is 'faces'" in out) == (1, True)
    code, out, _ = run("verify", "index.npz", "--ledger", URL)
    assert (code, "no ledger was charged" in out) == (1, True)
    code, _, err = run("verify", "r.npz", "--dataset", "letters")
    assert (code, "--dataset needs --ledger" in err) == (2, True)
    code, _, err = run("verify", "ledger.db", "--ledger", URL)
    assert (code, "--ledger is for files with a certificate" in err) == (2, True)


def test_verify_another_promise(folder: Path, run: Any) -> None:
    """A certificate that names the entry of another release fails."""
    del folder
    import dataclasses

    charged = ss.load("r.npz").guarantee.provenance
    release = ss.release_scores(np.load("emb.npy"), np.load("q.npy"), epsilon=3, delta=1e-6)
    dataclasses.replace(release, guarantee=dataclasses.replace(release.guarantee, provenance=charged)).save("fake.npz")
    code, out, _ = run("verify", "fake.npz", "--ledger", URL)
    assert (code, "charges another promise" in out) == (1, True)


def test_verify_versions_of_an_index(folder: Path, run: Any) -> None:
    """An index whose changes are public was charged by draws; each version is found in the ledger."""
    del folder
    rows = np.load("emb.npy")
    account = ss.Ledger.open(URL).account("index")
    first = ss.release_index(rows, epsilon=10, changes="public", ids=[str(n) for n in range(len(rows))], ledger=account)
    second = first.update(removed=["3"], changed=(["5"], rows[5:6] + 1), ledger=account)
    first.save("first.npz")
    second.save("second.npz")
    for name in ("first.npz", "second.npz"):
        code, out, err = run("verify", name, "--ledger", URL, "--dataset", "index")
        assert code == 0, out + err


def test_verify_prints_the_checksum(folder: Path, run: Any) -> None:
    """The checksum of the release is printed, so that people can note it elsewhere."""
    checksum = hashlib.sha256((folder / "r.npz").read_bytes()).hexdigest()
    assert f"SHA-256      {checksum}  " in run("verify", "r.txt")[1]
    assert json.loads(run("verify", "r.npz", "--json")[1])["sha256"] == checksum
    assert json.loads(run("verify", "ledger.db", "--json")[1])["sha256"] is None


def test_verify_the_end_of_a_ledger(folder: Path, run: Any) -> None:
    """Entries that were cut off at the end show with --head, and the result says so where there is none."""
    del folder
    head = ss.Ledger.open(URL).head()
    assert "entries cut off at the end show only with --head" in run("verify", "ledger.db")[1]
    code, out, _ = run("verify", "ledger.db", "--head", head)
    assert code == 0
    assert "cut off" not in out
    later = f"2:{head.partition(':')[2]}"
    assert run("verify", "ledger.db", "--head", later)[0] == 1
    code, _, err = run("verify", "r.npz", "--head", head)
    assert code == 2
    assert "--head is for a ledger" in err


def test_a_ledger_by_its_path(folder: Path, run: Any) -> None:
    """A ledger is named by its path or its address, and an error names the option."""
    del folder
    for ledger in ("ledger.db", URL):
        assert run("verify", "r.npz", "--ledger", ledger)[0] == 0
        assert run("ledger", "status", ledger)[0] == 0
    release = ("release", "scores", "emb.npy", "--query", "q.npy", "--epsilon", 1, "--delta", 1e-6)
    assert run(*release, "--output", "s.npz", "--ledger", "ledger.db", "--dataset", "letters")[0] == 0
    assert ss.Ledger.open(URL).head().startswith("2:")
    code, _, err = run(*release, "--output", "ledger.npz", "--ledger", "ftp://ledger", "--dataset", "letters")
    assert code == 2
    assert "'--ledger': a ledger is a file, sqlite:///FILE or postgresql://HOST/DATABASE" in err


# ---- search.


def test_search(folder: Path, run: Any) -> None:
    """The best records are those of the index, with its worth; nothing is charged."""
    del folder
    index = ss.load("index.npz")
    found = index.search(np.load("q.npy"), 3)
    code, out, err = run("search", "index.npz", "--query", "q.npy", "--k", "3")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["rank", "id", "score"]
    for place, (score, record) in enumerate(zip(*found, strict=True), start=1):
        assert lines[place].split() == [str(place), str(record), f"{score:.4f}"]
    assert index.worth(3).sentence in out
    code, out, _ = run("search", "index.npz", "--query", "emb.npy", "--k", "2", "--json")
    answer = json.loads(out)
    assert len(answer["answers"]) == len(np.load("emb.npy"))
    assert answer["answers"][4]["ids"] == index.search(np.load("emb.npy")[4], 2).indices.tolist()
    assert answer["worth"]["recall"] == index.worth(2).recall
    assert answer["verdict"] == index.guarantee.verdict


def test_search_with_ids(folder: Path, run: Any) -> None:
    """An index that a search saved answers with its ids, without hidden records."""
    del folder
    rows = np.load("emb.npy")
    names = [f"doc-{number}" for number in range(len(rows))]
    search = ss.PrivateSearch(ArrayStore(rows, names), mode="index", epsilon=30.0, max_epsilon=100.0)
    search.save("saved.npz")
    expected = search.search(np.load("q.npy"), 4).ids
    code, out, _ = run("search", "saved.npz", "--query", "q.npy", "--k", "4", "--json")
    assert code == 0
    assert json.loads(out)["answers"][0]["ids"] == list(expected)
    ss.release_index(rows, epsilon=30, changes="public", ids=names).save("version.npz")
    code, out, _ = run("search", "version.npz", "--query", "q.npy", "--k", "1", "--json")
    assert json.loads(out)["answers"][0]["ids"][0] in names


def test_search_bad_input(folder: Path, run: Any) -> None:
    """What is no index, and a query of another dimension, give one sentence."""
    del folder
    np.save("long.npy", np.ones(9))
    assert "holds a scores release and no index" in run("search", "r.npz", "--query", "q.npy")[2]
    code, _, err = run("search", "index.npz", "--query", "long.npy")
    assert (code, "--query must be" in err) == (2, True)


# ---- doctor.


def test_doctor(run: Any) -> None:
    """The report has the versions and ends with 0, whatever is missing."""
    code, out, err = run("doctor")
    assert (code, err) == (0, "")
    assert f"scoreshield     {ss.__version__}" in out
    assert f"numpy {metadata.version('numpy')}" in out
    facts = json.loads(run("doctor", "--json")[1])
    assert facts["required"]["scipy"] == metadata.version("scipy")
    assert facts["databases"]["sqlite"]
    assert facts["optional"]["report"]["install"] == "pip install 'scoreshield[report]'"
    assert "dev" not in facts["optional"]


def test_doctor_describes_every_extra() -> None:
    """Every extra for users has a purpose, and no extra for developers is shown."""
    project = tomllib.loads((GOLDEN.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"])
    assert extras == set(doctor.PURPOSES) | doctor._LEFT_OUT
    assert "packaging" in doctor._LEFT_OUT


def test_doctor_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    """A missing part has its install line, whole, on a line of its own; an old version is missing too."""
    real = doctor.find_version
    versions = {"jinja2": None, "psycopg": None, "pyarrow": "1.0.1"}
    monkeypatch.setattr(doctor, "find_version", lambda name: versions.get(name, real(name)))
    monkeypatch.setattr(doctor, "find_gpu", lambda: "none")
    code, out, _ = run("doctor")
    assert code == 0
    assert "    pip install 'scoreshield[report]'\n" in out
    assert "needs jinja2" in out
    assert "pyarrow>=15 (found 1.0.1)" in out
    assert "no driver; pip install 'scoreshield[postgres]'" in out


def test_doctor_without_metadata(monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    """A copy of the source that is not installed is described too."""
    monkeypatch.setattr(doctor, "_DISTRIBUTION", "scoreshield-that-is-not-installed")
    monkeypatch.setattr(doctor, "find_gpu", lambda: "none")
    code, out, _ = run("doctor")
    assert (code, "required        unknown" in out) == (0, True)


def test_gpu_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PyTorch the install line is given, and a PyTorch that fails is named."""
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda _: None)
    assert doctor.find_gpu().endswith("pip install 'scoreshield[gpu]'")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda _: object())
    assert doctor.find_gpu() == "not usable: importing PyTorch raised ModuleNotFoundError"


# ---- The page beside a release.


def test_release_with_a_page(folder: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch --html writes a fourth file; without the extra nothing is charged or written."""
    command = ["release", "top-k", "emb.npy", "--query", "q.npy", "--k", "3", "--epsilon", "1"]
    code, out, _ = run(*command, "--output", "t.npz", "--html")
    assert code == 0
    assert "t.npz, t.json, t.txt, t.html" in out
    assert json.loads(Path("t.json").read_text())["sha256"] in Path("t.html").read_text()
    assert run("verify", "t.html")[0] == 0
    monkeypatch.setitem(sys.modules, "jinja2", None)
    charge = ["--ledger", URL, "--dataset", "letters"]
    spent = ss.Ledger.open(URL).spent_on("letters")
    code, _, err = run(*command, "--output", "u.npz", "--html", *charge)
    assert (code, "pip install 'scoreshield[report]'" in err) == (2, True)
    assert ss.Ledger.open(URL).spent_on("letters") == spent
    assert not list(folder.glob("u.*"))
    shutil.copy("t.html", "v.html")
    assert run(*command, "--output", "v.npz")[0] == 0  # a page of that name is not in the way without --html
