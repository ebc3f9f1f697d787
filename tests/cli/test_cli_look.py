"""`show`, `verify`, `search` and `doctor`: what a file is, whether it is in order, and what is installed."""

from __future__ import annotations

import json
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield import cli
from scoreshield.cli import doctor
from scoreshield.report.certificate import save_with_certificate
from scoreshield.stores import ArrayStore

URL = "sqlite:///ledger.db"
GOLDEN = Path(__file__).parents[1]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["scoreshield", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        printed = capsys.readouterr()
        return int(stopped.value.code or 0), printed.out, printed.err

    return call


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
    for name in ("r.npz", "r.json", "r.txt"):
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
    assert "this version signs nothing" in out
    code, out, _ = run("verify", "ledger.db")
    assert (code, "passed       chain        1 entries" in out) == (0, True)


def change_text(path: str, old: str, new: str) -> None:
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new))


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
