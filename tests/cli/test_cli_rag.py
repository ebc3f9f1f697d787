"""`scoreshield rag` on a tiny corpus: real files, the hashing embedder, and a real chat server."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import inspect
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from chat_server import HANG, ChatServer, Request, running

import scoreshield as ss
from scoreshield import cli
from scoreshield.bench.data.embedders import HashingEmbedder
from scoreshield.bench.experiments import rag_run
from scoreshield.bench.rag import corpus as rag_files
from scoreshield.bench.rag import evaluation
from scoreshield.bench.rag.chunks import OVERLAP, SIZE
from scoreshield.bench.rag.prompts import SYSTEM
from scoreshield.cli.rag import rag_command

KEY = "a-key-that-nobody-may-see"
THRESHOLD, K = 0.2, 2
#: Title, text, answer, question. The last question shares no word with its page.
PAGES = [
    ("Volcano", "The tallest volcano on Mars is named Olympus.", "Olympus", "Which tallest volcano is on Mars?"),
    ("Violin", "A classical violin carries four strings.", "four", "How many strings carries a classical violin?"),
    ("Penguin", "Emperor penguin eggs hatch in August.", "August", "When do emperor penguin eggs hatch?"),
    ("Coffee", "Coffee beans first grew wild within Ethiopia.", "Ethiopia", "Where first grew wild coffee beans?"),
    ("Chess", "Every chess board holds sixty four squares.", "sixty", "How much squares holds every chess board?"),
    ("Telegraph", "Morse sent dots and dashes.", "dashes", "Long signals?"),
]
BASE = ["rag", "--corpus", "pages.jsonl", "--questions", "questions.jsonl", "--embedder", "hashing:512"]
BASE += ["--threshold", str(THRESHOLD), "--k", str(K), "--out", "run"]
NEARLY_CLEAN = ["--mechanism", "staircase", "--epsilon", "1e6"]


def lines(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    questions = [{"id": f"q{i}", "question": q, "answer": a, "documents": [t]} for i, (t, _, a, q) in enumerate(PAGES)]
    (tmp_path / "pages.jsonl").write_text(lines([{"title": title, "text": text} for title, text, _, _ in PAGES]))
    (tmp_path / "questions.jsonl").write_text(lines(questions))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("SCORESHIELD_API_KEY", KEY)
    return tmp_path


def by_context(request: Request) -> str:
    """The generator knows only what its documents say; the judge compares letter by letter."""
    if request.body["model"] == "judge":
        told = json.loads(request.user.splitlines()[0])
        return "yes" if told["reference"] in told["answer"] else "no"
    text, answer = next((text, answer) for _, text, answer, asked in PAGES if request.user.endswith(asked))
    return f"It is {answer}." if text in request.user else "I do not know."


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with running(ChatServer(reply=by_context)) as server:
        yield server


def models(server: ChatServer) -> list[str]:
    return ["--generator", "generator", "--generator-url", server.url, "--judge", "judge", "--retries", "0"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command line; gives the exit code, standard output and standard error."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["scoreshield", *arguments])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        printed = capsys.readouterr()
        return int(stopped.value.code or 0), printed.out, printed.err

    return call


def contents(folder: Path) -> dict[str, bytes]:
    """Every file's bytes; of the answers, which SQLite may arrange anew, the rows."""
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    found = {name: path.read_bytes() for name, path in files.items() if "cache.db" not in name}
    return found | {"answers": repr(answers(folder / "answers")).encode()}


def answers(folder: Path) -> list[Any]:
    """The rows of an answer cache, copied so that the cache stays as it is."""
    if not (folder / "cache.db").exists():
        return []
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        with contextlib.closing(sqlite3.connect(f"{copy}/cache.db")) as database:
            return database.execute("SELECT key, store_time, value FROM Cache ORDER BY key").fetchall()


def clean_by_hand() -> list[list[int]]:
    """The clean top-k from the definition, without the library's retrieval."""
    embedder = HashingEmbedder(512)
    rows = embedder.embed([f"{title}\n{text}" for title, text, _, _ in PAGES]).astype(float)
    queries = embedder.embed([question for *_, question in PAGES]).astype(float)
    scores = (queries @ rows.T) / np.linalg.norm(queries, axis=1)[:, None] / np.linalg.norm(rows, axis=1)
    return [[int(i) for i in np.argsort(-row)[:K] if row[i] >= THRESHOLD] for row in scores]


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "run/results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def check_rejected(outcome: tuple[int, str, str], message: str) -> None:
    code, out, err = outcome
    assert code == 2
    assert out == ""
    assert err.startswith("scoreshield: ")
    assert err.count("\n") == 1
    assert message in err


def test_end_to_end(folder: Path, server: ChatServer, run: Any) -> None:
    code, out, err = run(*BASE, *NEARLY_CLEAN, *models(server))
    assert (code, err) == (0, "")
    clean = clean_by_hand()
    found = [place in chunks for place, chunks in enumerate(clean)]
    assert 0 < sum(found) < len(PAGES)  # or the conditions could not be told apart

    rows = table(folder)
    told = {(row["id"], row["condition"]): (row["indices"], row["verdict"]) for row in rows}
    for place, (chunks, right) in enumerate(zip(clean, found, strict=True)):
        verdict = "yes" if right else "no"
        assert told[f"q{place}", "private"] == (" ".join(map(str, chunks)), verdict)
        assert told[f"q{place}", "clean"] == ("", verdict)  # which chunks, only in results.json, beside the notice
        assert told[f"q{place}", "none"] == ("", "no")
        assert told[f"q{place}", "oracle"] == ("", "yes")
    assert len(rows) == len(told) == 4 * len(PAGES)
    listed = json.loads((folder / "run/results.json").read_text())["answers"]
    assert [r["indices"] for r in listed["records"] if r["condition"] == "clean"] == clean
    assert listed["audience"] == evaluation.AUDIENCE

    results = json.loads((folder / "run/results.json").read_text())
    assert results["scope"] == results["retrieval"]["scope"] == results["answers"]["scope"] == evaluation.SCOPE
    assert results["answers"]["conditions"]["private"]["accuracy"] == pytest.approx(np.mean(found))
    assert results["guarantee_of_one_release"]["epsilon"] == 1e6
    assert (results["documents"], results["chunks"], results["questions"], results["left_out"]) == (6, 6, 6, 0)

    share = f"{np.mean(found):.3f}"
    printed = [line.split() for line in out.splitlines()]
    for line in (["none", "0.000", "+0.000", "6"], ["private", share, f"+{share}", "6"], ["oracle", "1.000", "+1.000"]):
        assert any(row[: len(line)] == line for row in printed)
    assert "ScoreShield certificate" in out
    assert "Private: 6 releases, adding up to at most epsilon 6e+06, delta 0." in out
    assert out.count(evaluation.SCOPE) == 2  # with the retrieval and with the answers

    kept = b"".join(contents(folder / "run").values()).decode("latin-1") + out
    assert KEY not in kept
    assert SYSTEM not in kept
    assert not any(text in kept for _, text, _, _ in PAGES)
    assert any(request.headers["authorization"] == f"Bearer {KEY}" for request in server.requests)


@pytest.mark.usefixtures("folder")
def test_json_is_one_object_without_records(server: ChatServer, run: Any) -> None:
    _, out, _ = run(*BASE, *NEARLY_CLEAN, *models(server), "--conditions", "none,private", "--json")
    answer = json.loads(out)
    assert answer["scope"] == evaluation.SCOPE
    assert answer["files"] == ["run/results.json", "run/results.csv"]
    assert list(answer["answers"]["conditions"]) == ["none", "private"]
    assert answer["retrieval"]["cost"] == {"releases": 6, "epsilon": 6e6, "delta": 0.0, "sampler": "exact"}
    assert "records" not in answer["retrieval"]
    assert "records" not in answer["answers"]
    assert len(json.loads(Path("run/results.json").read_text())["answers"]["records"]) == 12


@pytest.mark.usefixtures("folder")
def test_unread_verdicts_widen_the_accuracy(server: ChatServer, run: Any) -> None:
    def sometimes(request: Request) -> str:
        told = by_context(request)
        return "perhaps" if request.body["model"] == "judge" and "violin" in request.user else told

    server.reply = sometimes
    _, out, _ = run(*BASE, *NEARLY_CLEAN, *models(server), "--conditions", "oracle")
    assert ["oracle", "1.000", "(0.833..1.000)", "-", "6"] in [line.split() for line in out.splitlines()]


def test_same_command_asks_releases_nothing(folder: Path, server: ChatServer, run: Any) -> None:
    """The same command asks and releases nothing again."""
    command = [*BASE, "--mechanism", "laplace", "--epsilon", "3", *models(server)]
    first = run(*command)
    before, asked = contents(folder / "run"), len(server.requests)
    assert run(*command) == first
    assert contents(folder / "run") == before
    assert len(server.requests) == asked
    (folder / "run/results.json").unlink()
    (folder / "pages.jsonl").rename(folder / "moved.jsonl")
    command[command.index("pages.jsonl")] = "moved.jsonl"  # what counts is what the file holds
    assert run(*command) == first
    assert contents(folder / "run") == before


def test_a_generator_that_goes_away(folder: Path, server: ChatServer, run: Any) -> None:
    command = [*BASE, "--mechanism", "laplace", "--epsilon", "3", *models(server), "--workers", "1"]
    server.script = ["I do not know.", "I do not know.", *[(503, {})] * 9]
    check_rejected(run(*command), "answered with status 503")
    retrieval = (folder / "run/retrieval.json").read_bytes()
    assert len(answers(folder / "run/answers")) == 2
    assert not (folder / "run/results.json").exists()
    server.script.clear()
    server.requests.clear()
    assert run(*command)[0] == 0
    assert (folder / "run/retrieval.json").read_bytes() == retrieval
    asked = [request.user for request in server.requests if request.body["model"] == "generator"]
    assert not any(user == f"Question: {question}" for user in asked for *_, question in PAGES[:2])
    assert any(user == f"Question: {PAGES[2][3]}" for user in asked)

    away = ["--generator", "m", "--generator-url", "http://127.0.0.1:9/v1", "--retries", "0", "--out", "away"]
    check_rejected(run(*BASE, *NEARLY_CLEAN, *away), "cannot be reached")
    assert (folder / "away/retrieval.json").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="sends a POSIX signal")
def test_a_killed_run_goes_on(folder: Path, server: ChatServer, run: Any) -> None:
    command = [*BASE, "--mechanism", "laplace", "--epsilon", "3", *models(server), "--workers", "1"]
    server.script = ["I do not know.", "I do not know.", HANG]
    process = subprocess.Popen([sys.executable, "-m", "scoreshield.cli", *command], cwd=folder)
    deadline = time.monotonic() + 120
    while len(server.requests) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    retrieval = (folder / "run/retrieval.json").read_bytes()
    server.requests.clear()
    assert run(*command)[0] == 0
    assert (folder / "run/retrieval.json").read_bytes() == retrieval
    alone = [r.user for r in server.requests if r.body["model"] == "generator" and r.user.startswith("Question")]
    assert sorted(alone) == sorted(f"Question: {question}" for *_, question in PAGES[2:])


def test_embeddings_are_kept_block_by_block(folder: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    embed, done = HashingEmbedder.embed, []

    def counted(self: HashingEmbedder, items: Any, **options: Any) -> Any:
        done.append(len(items))
        if len(done) == 3:
            raise ss.ScoreShieldError("The machine went down.")
        return embed(self, items, **options)

    monkeypatch.setattr(rag_run, "_BLOCK", 2)
    monkeypatch.setattr(HashingEmbedder, "embed", counted)
    check_rejected(run(*BASE, *NEARLY_CLEAN), "went down")
    assert run(*BASE, *NEARLY_CLEAN)[0] == 0
    assert done == [2, 2, 2, 2, 2, 2, 2]  # two blocks of pages are not made again
    kept = json.loads((folder / "run/retrieval.json").read_text())["records"]
    assert [r["indices"] for r in kept if r["condition"] == "clean"] == clean_by_hand()


CHANGES = [
    (["--epsilon", "2e6"], "epsilon"),
    (["--mechanism", "laplace"], "mechanism"),
    (["--threshold", "0.3"], "threshold"),
    (["--k", "3"], "k"),
    (["--size", "300"], "size"),
    (["--overlap", "20"], "overlap"),
    (["--limit", "2"], "limit"),
    (["--embedder", "hashing:128"], "embedder"),
    (["--paper-rule"], "--paper-rule"),
    (["--research-seed", "1"], "--research-seed"),
    (["--corpus", "other.jsonl"], "corpus"),
    (["--questions", "fewer.jsonl"], "questions"),
    (["--generator", "other"], "generator"),
    (["--judge", "other"], "judge"),
    (["--conditions", "none"], "conditions"),
    (["--max-tokens", "9"], "--max-tokens"),
]


def test_another_run_rejected_left_alone(folder: Path, server: ChatServer, run: Any) -> None:
    """Another run is rejected and left alone."""
    (folder / "other.jsonl").write_text((folder / "pages.jsonl").read_text().replace("Olympus", "Elysium"))
    (folder / "fewer.jsonl").write_text((folder / "questions.jsonl").read_text().replace("Which", "What"))
    command = [*BASE, *NEARLY_CLEAN, *models(server), "--conditions", "oracle"]
    assert run(*command)[0] == 0
    before, asked = contents(folder / "run"), len(server.requests)
    for change, named in CHANGES:
        check_rejected(run(*command, *change), f"was begun with other settings ({named})")
    assert contents(folder / "run") == before
    assert len(server.requests) == asked


def test_a_generator_can_be_added_once(folder: Path, server: ChatServer, run: Any) -> None:
    alone = [*BASE, "--mechanism", "laplace", "--epsilon", "3"]
    code, out, _ = run(*alone)
    assert code == 0
    assert "Answers by" not in out
    assert out.count(evaluation.SCOPE) == 1
    rows = table(folder)
    assert {(row["condition"], row["verdict"]) for row in rows} == {("private", "")}
    retrieval = (folder / "run/retrieval.json").read_bytes()
    assert run(*alone, *models(server))[0] == 0
    assert (folder / "run/retrieval.json").read_bytes() == retrieval
    check_rejected(run(*alone), "other settings (generator)")
    assert json.loads((folder / "run/results.json").read_text())["answers"] is not None


@pytest.mark.parametrize(
    ("contract", "releases", "total"),
    [
        (["--mechanism", "gaussian", "--epsilon", "2", "--delta", "1e-6"], 6, (12, 6e-6)),
        (["--mechanism", "laplace", "--epsilon", "2"], 6, (12, 0)),
        (["--mechanism", "optimal", "--epsilon", "2"], 6, (12, 0)),
        (["--mechanism", "screening", "--epsilon", "2"], 6, (12, 0)),
        (["--mechanism", "index", "--epsilon", "2"], 1, (2, 0)),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_all_questions_cost(run: Any, contract: list[str], releases: int, total: tuple[float, float]) -> None:
    code, out, _ = run(*BASE, *contract, "--json")
    assert code == 0
    answer = json.loads(out)
    cost = answer["retrieval"]["cost"]
    assert (cost["releases"], cost["sampler"]) == (releases, "exact")
    assert (cost["epsilon"], cost["delta"]) == pytest.approx(total)
    assert answer["guarantee_of_one_release"]["epsilon"] == 2
    again = run(*BASE, *contract)[1]
    plural = "s" * (releases > 1)
    assert f"Private: {releases} release{plural}, adding up to at most epsilon {total[0]}, delta {total[1]:g}." in again


def test_screening_names_what_passes(folder: Path, run: Any) -> None:
    low = ["--threshold", "0.02", "--k", "6"]  # which some pages pass by little
    assert run(*BASE, "--mechanism", "screening", "--epsilon", "100", *low)[0] == 0
    kept = json.loads((folder / "run/retrieval.json").read_text())["records"]
    found = {name: [set(r["indices"]) for r in kept if r["condition"] == name] for name in ("clean", "private")}
    assert found["private"] == found["clean"]
    assert any(found["clean"])


def test_research_mode_repeats_and_says_so(folder: Path, run: Any) -> None:
    noisy = [*BASE, "--mechanism", "laplace", "--epsilon", "1e-4", "--threshold", "-1e9", "--k", "6"]
    for out, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        _, told, _ = run(*noisy, "--research-seed", seed, "--out", out)
        assert "NOT PRIVATE" in told
        assert "research sampler: not private." in told
    files = {name: (folder / name / "retrieval.json").read_bytes() for name in "abc"}
    assert files["a"] == files["b"] != files["c"]
    private = [r["indices"] for r in json.loads(files["a"])["records"] if r["condition"] == "private"]
    assert len({tuple(indices) for indices in private}) > 1  # noise of its own for each question


def test_the_papers_rule(folder: Path, run: Any) -> None:
    """At strong privacy most clipped scores tie at 1 or -1, and the paper's rule lists the former by index."""
    noisy = [*BASE, "--mechanism", "laplace", "--epsilon", "1e-4", "--research-seed", "1", "--k", "6"]
    increasing = {}
    for out, rule in (("ours", []), ("paper", ["--paper-rule"])):
        assert run(*noisy, *rule, "--out", out)[0] == 0
        kept = json.loads((folder / out / "retrieval.json").read_text())["records"]
        private = [r["indices"] for r in kept if r["condition"] == "private"]
        increasing[out] = [indices == sorted(indices) for indices in private]
    assert all(increasing["paper"])
    assert not all(increasing["ours"])


def test_frames_questions(folder: Path, run: Any) -> None:
    rows = [("", "Prompt", "Answer", "wiki_links")]
    for number, (title, _, answer, question) in enumerate(PAGES):
        rows.append((str(number), question, answer, f"['https://en.wikipedia.org/wiki/{title}#History']"))
    rows[2] = (*rows[2][:3], "['https://en.wikipedia.org/wiki/Violin', 'https://en.wikipedia.org/wiki/Viola']")
    (folder / "test.tsv").write_text("\n".join("\t".join(row) for row in rows) + "\n")
    command = [*BASE, *NEARLY_CLEAN, "--questions", "test.tsv", "--limit", "3"]
    code, out, _ = run(*command)
    assert code == 0
    assert "3 questions, 6 chunks of 6 documents." in out
    assert "Left out: 1 of 6 questions, whose documents are not all in the corpus." in out
    assert [row["id"] for row in table(folder)] == ["0", "2", "3"]
    by_hand = clean_by_hand()
    kept = json.loads((folder / "run/retrieval.json").read_text())["records"]
    assert [r["indices"] for r in kept if r["condition"] == "clean"] == [by_hand[i] for i in (0, 2, 3)]


def test_windows_of_a_long_page(folder: Path, run: Any) -> None:
    assert run(*BASE, *NEARLY_CLEAN, "--size", "4", "--overlap", "1")[0] == 0
    counted = json.loads((folder / "run/results.json").read_text())
    tokens = [len(re.findall(r"\w+|[^\w\s]", text)) for _, text, _, _ in PAGES]
    assert counted["chunks"] == sum(-(-(n - 1) // 3) for n in tokens)  # each window after the first adds three


GOOD = '{"title": "A", "text": "Some text."}\n'


@pytest.mark.parametrize(
    ("corpus", "message"),
    [
        (GOOD + "\n{broken\n", "pages.jsonl, line 3: a line must be a JSON object."),
        (GOOD + '["B", "text"]\n', "pages.jsonl, line 2: a line must be a JSON object."),
        (GOOD + '{"title": "B"}\n', "pages.jsonl, line 2: a page must have a 'title' and a 'text'"),
        (GOOD + '{"title": "B", "text": " "}\n', "line 2: a page must have"),
        (GOOD + '{"title": 7, "text": "Text."}\n', "line 2: a page must have"),
        (GOOD + '{"title": "B", "text": "\\ud800 text"}\n', "line 2: a page must have"),
        (GOOD + GOOD, "pages.jsonl, line 2: the title 'A' comes twice"),
        (f'{{"title": "{"x" * 1001}", "text": "Text."}}\n', "line 1: a title has at most 1,000 characters. Got 1,001."),
        ("[" * 100_000 + "\n", "pages.jsonl, line 1: a line must be a JSON object."),
        ("\n", "pages.jsonl holds no page"),
        (GOOD, "None of the 6 questions has all its documents in the corpus"),
    ],
)
def test_bad_corpus(folder: Path, run: Any, corpus: str, message: str) -> None:
    (folder / "pages.jsonl").write_text(corpus)
    check_rejected(run(*BASE, *NEARLY_CLEAN), message)
    (folder / "pages.jsonl").write_bytes(b'{"title": "\xff"}\n')
    check_rejected(run(*BASE, *NEARLY_CLEAN), "line 1: the text is not UTF-8")
    assert not (folder / "run").exists()


ASKED: dict[str, Any] = {"id": "q", "question": "Why?", "answer": "So.", "documents": ["Chess"]}


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([ASKED, ASKED], "questions.jsonl, line 2: the id 'q' comes twice"),
        ([ASKED | {"id": True}], "line 1: a question must have an 'id'"),
        ([ASKED | {"question": ""}], "line 1: a question must have an 'id', a 'question'"),
        ([ASKED | {"answer": None}], "line 1: a question must have an 'id', a 'question' and an 'answer'"),
        ([ASKED | {"documents": "Chess"}], "line 1: a question must have 'documents'"),
        ([ASKED | {"documents": []}], "line 1: a question must have 'documents'"),
        ([ASKED | {"documents": [3]}], "line 1: a question must have 'documents'"),
        ([ASKED | {"documents": ["chess"]}], "the first that is missing is 'chess'"),
        ([], "questions.jsonl holds no question"),
    ],
)
def test_bad_questions(folder: Path, run: Any, records: list[dict[str, Any]], message: str) -> None:
    (folder / "questions.jsonl").write_text(lines(records))
    check_rejected(run(*BASE, *NEARLY_CLEAN), message)
    assert not (folder / "run").exists()


def test_whole_numbers_as_identifiers(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text(lines([ASKED | {"id": 7}]))
    assert rag_files.read_questions(tmp_path / "q.jsonl") == (evaluation.Question("7", "Why?", "So.", ("Chess",)),)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mechanism", "laplace"], "Missing option '--epsilon'"),
        (["--epsilon", "1"], "above 0 for Gaussian"),
        (["--epsilon", "-1", "--mechanism", "laplace"], "positive finite"),
        (["--epsilon", "1", "--mechanism", "magic"], "--mechanism"),
        (["--epsilon", "1", "--mechanism", "screening", "--delta", "1e-6"], "Screening is pure"),
        (["--epsilon", "1", "--mechanism", "screening", "--threshold", "1.5"], "threshold"),
        (["--epsilon", "1", "--mechanism", "index", "--delta", "1e-6"], "delta"),
        (["--epsilon", "1", "--mechanism", "index", "--paper-rule"], "leave it out with 'index'"),
        (["--epsilon", "1", "--mechanism", "laplace", "--threshold", "nan"], "threshold"),
        ([*NEARLY_CLEAN, "--embedder", "word2vec"], "'hashing:<dimensions>'"),
        ([*NEARLY_CLEAN, "--embedder", "hashing:0"], "1 to 1048576 dimensions"),
        ([*NEARLY_CLEAN, "--corpus", "none.jsonl"], "There is no file none.jsonl."),
        ([*NEARLY_CLEAN, "--questions", "none.jsonl"], "There is no file none.jsonl."),
        ([*NEARLY_CLEAN, "--questions", "none.tsv"], "There is no file none.tsv."),
        ([*NEARLY_CLEAN, "--questions", "pages.csv"], "must be the FRAMES test.tsv or a .jsonl file"),
        ([*NEARLY_CLEAN, "--corpus", "."], "Cannot read .: Is a directory."),
        ([*NEARLY_CLEAN, "--size", "5", "--overlap", "5"], "smaller than the size"),
        ([*NEARLY_CLEAN, "--k", "0"], "--k"),
        ([*NEARLY_CLEAN, "--out", "pages.jsonl"], "Cannot use the folder pages.jsonl"),
        ([*NEARLY_CLEAN, "--out", "."], "holds other files and no run"),
        ([*NEARLY_CLEAN, "--generator", "m"], "--generator needs --generator-url"),
        ([*NEARLY_CLEAN, "--judge", "m"], "--judge needs --generator"),
        ([*NEARLY_CLEAN, "--conditions", "none"], "--conditions needs --generator"),
        ([*NEARLY_CLEAN, "--generator", "m", "--generator-url", "http://u:pass@"], "'base_url'"),
        (
            [*NEARLY_CLEAN, "--generator", "m", "--generator-url", "http://h/v1", "--judge-url", "http://h"],
            "needs --judge",
        ),
        (
            [*NEARLY_CLEAN, "--generator", "m", "--generator-url", "http://h/v1", "--conditions", "none,some"],
            "--conditions must be some of none,clean,private,oracle",
        ),
        (
            [*NEARLY_CLEAN, "--generator", "m", "--generator-url", "http://h/v1", "--conditions", "none,none"],
            "each once",
        ),
        (
            [*NEARLY_CLEAN, "--generator", "m", "--generator-url", "http://localhost/v1", "--timeout", "0"],
            "--timeout must be",
        ),
        ([*NEARLY_CLEAN, "--generator", "m", "--generator-url", "http://localhost/v1", "--timeout", "1e300"], "86,400"),
        ([*NEARLY_CLEAN, "--generator", "m", "--generator-url", "http://a..b/v1"], "'base_url'"),
        ([*NEARLY_CLEAN, "--generator", "m", "--generator-url", "http://h.example/v1"], "use https, or allow it with"),
        ([*NEARLY_CLEAN, "--generator", "m", "--generator-url", "https://\u2603\u200b.b/v1"], "'base_url'"),
    ],
)
def test_bad_options(folder: Path, run: Any, arguments: list[str], message: str) -> None:
    before = contents(folder)
    outcome = run(*BASE, *arguments)
    check_rejected(outcome, message)
    assert "pass@" not in outcome[2]
    assert contents(folder) == before


@pytest.mark.parametrize("option", ["--generator-url", "--judge-url"])
@pytest.mark.parametrize("form", ["http://user:hidden-word@{}", "http://{}?key=hidden-word", "http://{}#hidden-word"])
def test_passwords_address_not_kept(folder: Path, server: ChatServer, run: Any, option: str, form: str) -> None:
    """Passwords in an address are not kept."""
    url = form.format(server.url.removeprefix("http://"))
    outcome = run(*BASE, *NEARLY_CLEAN, *models(server), option, url)
    check_rejected(outcome, "'base_url' parameter of ChatModel must be an address")
    assert "hidden-word" not in outcome[2]
    assert not (folder / "run").exists()
    assert not server.requests


@pytest.mark.parametrize("content", [b"", b"[]", b'{"setting": {}}', b"[" * 200_000])
def test_damaged_retrieval_not_made_again(folder: Path, run: Any, content: bytes) -> None:
    """A damaged retrieval is not made again."""
    assert run(*BASE, *NEARLY_CLEAN)[0] == 0
    (folder / "run/retrieval.json").write_bytes(content)
    check_rejected(run(*BASE, *NEARLY_CLEAN), "retrieving again would release again")
    assert (folder / "run/retrieval.json").read_bytes() == content
    (folder / "run/settings.json").write_bytes(content)
    check_rejected(run(*BASE, *NEARLY_CLEAN), "was begun with other settings")


#: Where in a kept retrieval, and what is put there.
ALTERATIONS: list[tuple[tuple[Any, ...], Any]] = [
    (("records", 0, "indices"), [99]),
    (("records", 0, "indices"), [0, 1, 2]),  # more than k
    (("records", 0, "indices"), [1, 1]),
    (("records", 0, "indices"), ["1"]),
    (("records", 0, "question"), "q5"),
    (("records", 0, "condition"), "private"),
    (("records",), []),
    (("k",), 3),
    (("threshold",), 0.1),
    (("releases",), 1),
    (("chunks",), "0" * 64),
    (("guarantee", "epsilon"), "five"),
    (("guarantee", "sampler"), "research"),
    (("guarantee",), {}),
    (("guarantee",), []),
]


def test_retrieval_altered_rejected(folder: Path, run: Any) -> None:
    """A retrieval that was altered is rejected."""
    assert run(*BASE, *NEARLY_CLEAN)[0] == 0
    path = folder / "run/retrieval.json"
    kept = path.read_text()
    for places, value in ALTERATIONS:
        data = part = json.loads(kept)
        for name in places[:-1]:
            part = part[name]
        part[places[-1]] = value
        path.write_text(json.dumps(data))
        check_rejected(run(*BASE, *NEARLY_CLEAN), "retrieving again would release again")
    path.write_text(json.dumps(json.loads(kept)))  # which only looks different
    assert run(*BASE, *NEARLY_CLEAN)[0] == 0


def test_guarantee_another_budget_rejected(folder: Path, run: Any) -> None:
    """A guarantee of another budget is rejected."""
    cheap = [*BASE, "--mechanism", "laplace", "--epsilon", "0.5"]
    assert run(*cheap, "--out", "cheap")[0] == 0
    assert run(*BASE, *NEARLY_CLEAN)[0] == 0
    data = json.loads((folder / "run/retrieval.json").read_text())
    data["guarantee"] = json.loads((folder / "cheap/retrieval.json").read_text())["guarantee"]
    (folder / "run/retrieval.json").write_text(json.dumps(data))
    check_rejected(run(*BASE, *NEARLY_CLEAN), "retrieving again would release again")


def test_two_runs_at_once(folder: Path, run: Any) -> None:
    assert run(*BASE, *NEARLY_CLEAN)[0] == 0
    with (folder / "run/.lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        check_rejected(run(*BASE, *NEARLY_CLEAN), "Another run is writing into run")


def test_generator_not_added_while_run_goes(
    folder: Path, server: ChatServer, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generator is not added while a run goes on."""
    alone = [*BASE, "--mechanism", "laplace", "--epsilon", "3"]
    drawn: list[int] = []
    release_scores, outcomes = ss.release_scores, []

    def slow(*arguments: Any, **options: Any) -> Any:
        if options["rng"] is None:  # not the trial on public pages
            drawn.append(1)
        if len(drawn) == 3 and not outcomes:  # in the middle of the first run, another begins
            outcomes.append(None)
            outcomes[0] = run(*alone, *models(server))
        return release_scores(*arguments, **options)

    monkeypatch.setattr(ss, "release_scores", slow)
    assert run(*alone)[0] == 0
    check_rejected(outcomes[0], "Another run is writing into run")
    assert len(drawn) == len(PAGES)
    assert json.loads((folder / "run/settings.json").read_text())["generator"] is None
    assert not server.requests
    assert run(*alone, *models(server))[0] == 0
    assert len(drawn) == len(PAGES)


def test_a_retrieval_is_never_replaced(folder: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where locks do nothing, what another run has written meanwhile stays."""
    retrieve_all = rag_run.retrieve_all

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        (folder / "run/retrieval.json").write_text("another's")
        return retrieve_all(*arguments, **options)

    monkeypatch.setattr(rag_run, "retrieve_all", meanwhile)
    check_rejected(run(*BASE, *NEARLY_CLEAN), "was written by another run meanwhile")
    assert (folder / "run/retrieval.json").read_text() == "another's"
    assert not list((folder / "run").glob(".*.part"))


def test_release_kept_before_measured(folder: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The release is kept before it is measured."""
    command = [*BASE, "--mechanism", "laplace", "--epsilon", "3"]

    def too_large(*_: Any, **__: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(rag_run, "measure_rankings", too_large)
        check_rejected(run(*command), "what was retrieved or answered before is kept in run.")
    before = (folder / "run/retrieval.json").read_bytes()
    monkeypatch.setattr(ss, "release_scores", too_large)
    monkeypatch.setattr(rag_run.ReleaseSettings, "check", lambda _: None)
    assert run(*command)[0] == 0  # without another release
    assert (folder / "run/retrieval.json").read_bytes() == before


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes")
def test_everything_folder_owners(folder: Path, server: ChatServer, run: Any) -> None:
    """Everything in the folder is the owners."""
    assert run(*BASE, *NEARLY_CLEAN, *models(server))[0] == 0
    root = folder / "run"
    modes = {str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in (root, *root.rglob("*"))}
    for name in ("run", "run/embeddings", "run/answers"):
        assert modes[name] == 0o700
    for name in ("settings.json", "retrieval.json", "results.json", "results.csv"):
        assert modes[f"run/{name}"] == 0o600
    answers = [mode for name, mode in modes.items() if name.startswith("run/answers/")]
    assert set(answers) == {0o600}


@pytest.mark.skipif(sys.platform == "win32", reason="needs a named pipe")
def test_a_corpus_from_a_pipe(folder: Path, run: Any) -> None:
    pages = (folder / "pages.jsonl").read_text()
    os.mkfifo(folder / "pipe.jsonl")
    command = [*BASE, *NEARLY_CLEAN, "--corpus", "pipe.jsonl"]

    def piped(text: str) -> tuple[int, str, str]:
        writer = threading.Thread(target=(folder / "pipe.jsonl").write_text, args=(text,))
        writer.start()
        outcome = run(*command)
        writer.join()
        return outcome  # type: ignore[no-any-return]

    assert piped(pages)[0] == 0
    assert run(*BASE, *NEARLY_CLEAN)[0] == 0  # the same pages, from a file
    check_rejected(piped(pages.replace("Olympus", "Elysium")), "other settings (corpus)")


@pytest.mark.parametrize("embedder", ["dlib", "timm:vit_base_patch14_dinov2.lvd142m"])
def test_embedders_of_images_are_rejected(folder: Path, run: Any, embedder: str) -> None:
    check_rejected(
        run(*BASE, *NEARLY_CLEAN, "--embedder", embedder), "must be one for texts, 'sentence-transformers:<model>'"
    )
    assert not (folder / "run").exists()

    class Faces:
        name = f"{embedder.partition(':')[0]}:model@weights"

    files = (folder / "pages.jsonl", folder / "questions.jsonl", folder / "run")
    with pytest.raises(ss.InvalidInput, match="must be one for texts"):
        rag_run.run_rag(*files, embedder=Faces(), release_settings=rag_run.ReleaseSettings("staircase", 5.0))  # type: ignore[arg-type]
    assert not (folder / "run").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="sends a POSIX signal")
def test_an_interrupt_ends_at_once(folder: Path, server: ChatServer) -> None:
    server.reply = lambda _: HANG
    command = [*BASE, *NEARLY_CLEAN, *models(server), "--retries", "5"]
    process = subprocess.Popen(
        [sys.executable, "-m", "scoreshield.cli", *command], cwd=folder, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while len(server.requests) < 4 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    start = time.monotonic()
    _, err = process.communicate(timeout=30)
    assert time.monotonic() - start < 10  # a request that is waited for, or repeated, takes a minute or more
    assert process.returncode == 130
    assert err.splitlines()[-1] == "scoreshield: Interrupted; no file was left half-written."
    assert "Traceback" not in err


def test_every_release_is_charged(folder: Path, run: Any) -> None:
    ledger = ss.Ledger.create("sqlite:///books.db", epsilon=20, delta=1e-6)
    unnamed = [*BASE, "--mechanism", "laplace", "--epsilon", "2", "--ledger", "sqlite:///books.db"]
    check_rejected(run(*unnamed), "--ledger needs --dataset")
    assert ledger.entries() == []
    contract = [*unnamed, "--dataset", "chunks"]
    assert run(*contract)[0] == 0
    assert len(ledger.entries()) == len(PAGES)
    assert ledger.spent == pytest.approx(12)
    assert ledger.datasets() == ["chunks"]
    assert run(*contract)[0] == 0
    assert len(ledger.entries()) == len(PAGES)  # a run that goes on is not charged again
    check_rejected(run(*contract, "--out", "again"), "20")
    assert not (folder / "again/retrieval.json").exists()
    assert ledger.datasets() == ["chunks"]
    index = [*BASE, "--mechanism", "index", "--epsilon", "2", "--ledger", "sqlite:///books.db", "--dataset", "pages"]
    assert run(*index, "--out", "index")[0] == 0
    assert ledger.spent_on("pages") == pytest.approx(2)
    check_rejected(run(*contract, "--research-seed", "1", "--out", "seeded"), "leave out the seed or the ledger")
    check_rejected(run(*BASE, *NEARLY_CLEAN, "--dataset", "pages", "--out", "unnamed"), "--dataset needs --ledger")
    assert not (folder / "seeded").exists()


@pytest.mark.usefixtures("folder")
def test_server_not_know_left_out(server: ChatServer, run: Any) -> None:
    """What a server does not know is left out."""
    command = [*BASE, *NEARLY_CLEAN, *models(server), "--conditions", "none"]
    assert run(*command, "--leave-out", "seed,max_tokens")[0] == 0
    assert {frozenset(r.body) for r in server.requests} == {frozenset({"model", "messages", "temperature"})}
    check_rejected(run(*command), "other settings (--leave-out)")
    check_rejected(run(*command, "--leave-out", "messages"), "--leave-out must be some of temperature,max_tokens,seed")


def test_pages_oracle_come_order_links(folder: Path, server: ChatServer, run: Any) -> None:
    """Pages of the oracle come in the order of the links."""
    links = {"0": ["Chess", "Volcano"], "1": ["Volcano", "Violin", "Chess"]}
    rows = ["\tPrompt\tAnswer\twiki_links"]
    for number, titles in links.items():
        addresses = [f"https://en.wikipedia.org/wiki/{title}" for title in titles]
        rows.append(f"{number}\tWhich of {number}?\tNone\t{addresses}")
    (folder / "test.tsv").write_text("\n".join(rows) + "\n")
    assert [q.documents for q in rag_files.read_questions(folder / "test.tsv")] == list(map(tuple, links.values()))
    server.reply = lambda _: "no"
    command = [*BASE, *NEARLY_CLEAN, *models(server), "--questions", "test.tsv", "--conditions", "oracle"]
    assert run(*command)[0] == 0
    for number, titles in links.items():
        (asked,) = (r.user for r in server.requests if r.user.endswith(f"Question: Which of {number}?"))
        assert re.findall(r"^\[\d\] (\w+)$", asked, flags=re.MULTILINE) == titles


def test_help_teaches(run: Any) -> None:
    text = " ".join(run("rag", "--help")[1].replace("│", " ").split())
    assert "No default." in text
    assert "NOT PRIVATE" in text
    assert "download the texts yourself" in text
    assert "scoreshield rag --corpus" in text


def test_disk_without_links_keeps_retrieval(folder: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk without links keeps the retrieval too."""

    def unknown(*_: Any, **__: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", unknown)
    assert run(*BASE, *NEARLY_CLEAN)[0] == 0
    assert run(*BASE, *NEARLY_CLEAN)[0] == 0
    assert len(json.loads((folder / "run/retrieval.json").read_text())["records"]) == 2 * len(PAGES)


@pytest.mark.usefixtures("folder")
def test_plain_http_by_demand(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that resolves nowhere: the run gets as far as the server."""
    monkeypatch.setenv("NO_PROXY", "*")
    away = [
        "--generator",
        "m",
        "--generator-url",
        "http://nowhere.invalid/v1",
        "--retries",
        "0",
        "--conditions",
        "none",
    ]
    check_rejected(run(*BASE, *NEARLY_CLEAN, *away), "use https, or allow it with")
    check_rejected(run(*BASE, *NEARLY_CLEAN, *away, "--allow-http"), "cannot be reached")


def test_proxy_used_asked_never_written_down(
    folder: Path, server: ChatServer, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts to this machine take no proxy, neither that of the environment nor the one that was named."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as proxy:
        address = f"http://user:pass-of-proxy@127.0.0.1:{proxy.getsockname()[1]}"
        for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
            monkeypatch.setenv(name, address)
        code, out, err = run(*BASE, *NEARLY_CLEAN, *models(server), "--proxy", address)
        assert code == 0, err
        assert server.requests
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody came
            proxy.accept()
    assert "pass-of-proxy" not in out + err
    written = [path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()]
    assert written
    assert not any(b"pass-of-proxy" in content for content in written)
    answering = rag_run.AnswerSettings(("a", "https://host.example"), ("a", "https://host.example"), proxy=address)
    assert "pass-of-proxy" not in repr(answering)
    check_rejected(run(*BASE, *NEARLY_CLEAN, *models(server), "--proxy", "socks9://pass-of-proxy"), "--proxy must be")


def test_command_defaults() -> None:
    """The command, which loads nothing of the benchmarks until it runs, has the defaults and names of the library."""
    parameters = inspect.signature(rag_command).parameters
    rule = evaluation.SETTINGS[0]
    found = [parameters[name].default for name in ("threshold", "k", "size", "overlap")]
    assert found == [rule.threshold, rule.k, SIZE, OVERLAP]
    mechanism = get_type_hints(rag_command)["mechanism"]
    assert get_args(mechanism) == get_args(rag_run.Mechanism)
    code = "import sys, scoreshield.cli.rag; print([name for name in sys.modules if 'scoreshield.bench' in name])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
