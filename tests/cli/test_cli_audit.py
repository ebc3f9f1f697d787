"""`scoreshield audit` as people type it: on functions, files and a service; killed and resumed; mistakes."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scoreshield import cli
from scoreshield.audit import engine, neighbours
from scoreshield.audit.result import AuditResult

# Laplace noise of scale 2 on scores with sensitivity 2 is 1-private; the bad one adds a fifth of that. Both count their
# calls, and draw the noise of a call from its number: a second run goes on as the first would have.
SERVICE = """
import numpy as np
import scoreshield as ss
from scoreshield.audit.targets import TargetError
calls, stop_after, trouble = 0, None, None

def _noisy(embeddings, query, scale):
    global calls
    if stop_after is not None and calls >= stop_after:
        raise TargetError("The store is gone.")
    calls += 1
    rows = embeddings / np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), 1e-9)
    noise = np.random.default_rng([calls, 7]).laplace(size=len(rows)) * scale
    return np.round((rows @ query + noise) * 2**20) / 2**20

def sound(embeddings, query): return _noisy(embeddings, query, 2.0)
def leaky(embeddings, query): return _noisy(embeddings, query, 0.4)
def ours(embeddings, query): return ss.release_scores(embeddings, query, epsilon=1.0, mechanism="laplace")
def bulk(embeddings, query, repeats):
    global calls
    calls += 1
    rows = embeddings / np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), 1e-9)
    noise = np.random.default_rng([calls, 3]).laplace(size=(repeats, len(rows))) * 2
    return np.round((rows @ query + noise) * 2**20) / 2**20
def fifth_power(embeddings, query):
    global calls
    calls += 1
    noise = np.random.default_rng([calls, 5]).laplace(size=len(embeddings)) * 2
    return np.round(((embeddings @ query) ** 5 + noise) * 2**20) / 2**20
def batch(embeddings, query): return np.stack([_noisy(embeddings, one, 2.0 * len(query)) for one in query], axis=1)
def leaky_batch(embeddings, query): return np.stack([_noisy(embeddings, one, 0.4) for one in query], axis=1)

def chatty(embeddings, query):
    import os
    print("hello")
    if calls < 2: os.system("echo past Python")
    return sound(embeddings, query)
def seldom(embeddings, query):
    global trouble
    found = sound(embeddings, query)
    if calls < 300 or trouble is None: return found
    found, trouble = np.append(found[1:], trouble), None
    return found
async def waits(embeddings): return embeddings
def hands_on(embeddings): return waits(embeddings)
def rude(embeddings): raise ValueError("\\x1b[31mred\\x07")
def dead(embeddings): raise RuntimeError("the disk is full")
def enormous(embeddings): return [10**400, 0.5]
def same(embeddings): return embeddings[:, 0]
def nan(embeddings): return np.full(3, np.nan)
def text(embeddings): return "high"
def empty(embeddings): return []
def slow(embeddings, query):
    import time
    time.sleep(30)

class Hit:
    def __init__(self, id, score): self.id, self.score = id, score
def _fail(message): raise LookupError(message)
def _name(score, yes, no): return yes if score > 0 else no
KINDS = {
    "text": lambda scores: f"the first record scores {scores[0]:.3f}",
    "hits": lambda scores: [{"id": f"r{place}", "score": float(scores[place])} for place in np.argsort(-scores)],
    "dict": lambda scores: {"best": float(scores[0]), "rest": None},
    "pairs": lambda scores: [(int(place), float(scores[place])) for place in np.argsort(-scores)[:2]],
    "objects": lambda scores: [Hit(place, float(score)) for place, score in enumerate(scores)],
    "none": lambda scores: _name(scores[0], None, "low"),
    "length": lambda scores: ["x"] * (1 + int(scores[0] > 0)),
    "error": lambda scores: _fail("high") if scores[0] > 0 else 0.5,
    "message": lambda scores: _fail(f"no record above {scores[0]:.3f}") if scores[0] > -1e9 and calls > 3 else 0.5,
}
for _kind, _make in KINDS.items():
    globals()[f"sound_{_kind}"] = lambda embeddings, query, make=_make: make(_noisy(embeddings, query, 2.0))
    globals()[f"leaky_{_kind}"] = lambda embeddings, query, make=_make: make(_noisy(embeddings, query, 0.2))
"""
SLOWLY = """
import audited, os, time
def release(embeddings, query):
    time.sleep(float(os.environ.get("PAUSE", "0")))
    return audited.leaky(embeddings, query)
"""
CLAIM = ["--epsilon", "1", "--adjacency", "replace"]
SURE = ["--confidence", "0.9999999"]  # where the outputs of a sound mechanism differ from run to run
_FIRST = 20  # the calls that show what kind of release it is are not counted
KINDS = ("text", "hits", "dict", "pairs", "objects", "none", "length", "error")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs the command line in this process, in a folder with a module to audit."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    (tmp_path / "audited.py").write_text(SERVICE)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["scoreshield", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    yield call
    sys.modules.pop("audited", None)


@pytest.fixture
def steady_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock for which no call takes long, so that the pace of this machine decides nothing."""
    ticks = itertools.count()
    monkeypatch.setattr(engine.time, "perf_counter", lambda: next(ticks) * 1e-9)


def audited() -> Any:
    return sys.modules["audited"]


@pytest.fixture(autouse=True)
def steady_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit that is resumed measures the pace by as many outputs as before, however busy the machine is."""
    monkeypatch.setattr(engine, "_PACE_SECONDS", 60.0)


def not_finished(folder: str = "audit") -> None:
    """As if the audit had been killed while it wrote its report."""
    for name in ("report.html", "report.json"):
        Path(folder, name).unlink()


def contents(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_broken_claim(run: Run) -> None:
    """A broken claim is exit code 1, with the evidence in a folder."""
    code, out, err = run("audit", "audited:leaky", *CLAIM, "--releases", "600", "--out", "audit")
    assert code == 1
    assert err == ""
    assert "The claim is broken: at 99 % confidence the true epsilon is at least" in out
    told = json.loads(Path("audit/report.json").read_text())
    result = AuditResult.from_dict(told["result"])
    assert told["broken"] is True
    assert 1 < result.epsilon_lower < 5  # the true one is 2 / 0.4
    assert result.releases <= 600  # it ends when the claim is broken
    assert result.name == told["facts"]["Target"] == "audited:leaky"
    assert "a record equal to the query against its opposite" in result.neighbours
    assert result.verdict in out
    assert "Claim broken" in Path("audit/report.html").read_text()


def test_sound_mechanism(run: Run) -> None:
    """A sound mechanism is exit code 0, and no proof."""
    code, out, _ = run("audit", "audited:sound", *CLAIM, "--releases", "600", "--out", "audit", "--json")
    assert code == 0
    told = json.loads(out)
    assert told["broken"] is False
    assert 4 * 600 <= told["calls"] <= 4 * 600 + 700  # about four for each release
    assert 0 <= audited().calls - told["calls"] <= _FIRST
    effort = f"{told['calls']:,} outputs of {told['pairs']} pairs of neighbouring collections"
    assert told["verdict"].startswith(f"No violation found with {effort}.")
    assert told["verdict"].endswith("this is evidence, not proof.")
    assert told["files"] == ["audit/report.html", "audit/report.json"]


def test_other_rows(run: Run) -> None:
    """A claim that only rows of other lengths break is exit code 3, and 0 where the claim is about unit rows."""
    arguments = ("audit", "audited:fifth_power", *CLAIM, "--releases", "1500")
    code, out, err = run(*arguments, "--out", "audit")
    assert (code, err) == (3, "")
    verdict = out.splitlines()[1]
    assert re.match(r"No violation found for unit rows with [\d,]+ outputs of \d+ pairs of neighbouring coll", verdict)
    assert ", but the claim is broken for other rows: a record " in verdict
    assert verdict.endswith(
        "because rows are not normalised or clamped. Normalise or clamp rows, or claim it for unit rows alone."
    )
    told = json.loads(Path("audit/report.json").read_text())
    assert told["result"]["broken"] is False
    assert AuditResult.from_dict(told["result"]).broken_by_rows
    code, out, _ = run(*arguments, "--json")
    assert (code, json.loads(out)["broken"]) == (3, False)
    code, out, err = run(*arguments, "--rows", "unit", "--json")
    assert code == 0, err
    assert "rows of other lengths" not in {check["name"] for check in json.loads(out)["checks"]}


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_of_any_kind(run: Run, kind: str) -> None:
    """Texts, lists, dicts, None and exceptions are audited: a leak is exit code 1, and an honest release 0."""
    code, out, err = run("audit", f"audited:leaky_{kind}", *CLAIM, "--releases", "600", "--json")
    assert code == 1, err
    assert json.loads(out)["epsilon_lower"] > 1
    code, out, err = run("audit", f"audited:sound_{kind}", *CLAIM, *SURE, "--releases", "300", "--json")
    assert code == 0, err
    assert json.loads(out)["broken"] is False


@pytest.mark.usefixtures("steady_clock")
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_of_any_kind_resumed(run: Run, kind: str) -> None:
    """The same outputs are recorded and replayed: an honest release stays honest, and a resumed one is the same."""
    arguments = ("audit", f"audited:sound_{kind}", *CLAIM, *SURE, "--releases", "200", "--json")
    assert run("audit", "audited:sound", *CLAIM, "--releases", "2")[0] == 2  # which imports the module
    audited().stop_after = 500
    assert run(*arguments, "--out", "audit")[0] == 2
    audited().stop_after = None
    code, out, err = run(*arguments, "--out", "audit")
    assert code == 0, err
    resumed = json.loads(out)
    assert resumed["facts"]["Resumed"].startswith("500 releases were there before; ")
    assert Path("audit/releases.jsonl").read_bytes().count(b"\n") == audited().calls  # none was drawn twice
    drawn, audited().calls = audited().calls, 0
    code, out, _ = run(*arguments)
    whole = json.loads(out)
    assert audited().calls == drawn
    for different in ("files", "seconds", "facts", "verdict"):
        resumed.pop(different), whole.pop(different)
    assert resumed == whole


@pytest.mark.parametrize("target", ["nan", "text", "empty", "enormous"])
def test_constant_outputs(run: Run, target: str) -> None:
    """An output that never changes reveals nothing, whatever it is."""
    code, out, err = run("audit", f"audited:{target}", *CLAIM, "--releases", "100", "--out", "audit", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["epsilon_lower"] == 0


def test_no_noise(run: Run) -> None:
    """A release without noise is broken, whatever is claimed."""
    for epsilon in ("1", "30"):
        code, out, _ = run("audit", "audited:same", "--epsilon", epsilon, "--adjacency", "replace", "--releases", "100")
        assert code == (1 if epsilon == "1" else 2), out


def test_batch(run: Run) -> None:
    """A file of several queries is a batch."""
    np.save("queries.npy", np.eye(3, 5))
    arguments = (*CLAIM, "--query", "queries.npy", "--releases", "400", "--json")
    code, _, err = run("audit", "audited:batch", *arguments)
    assert code == 0, err
    assert run("audit", "audited:leaky_batch", *arguments)[0] == 1
    np.save("queries.npy", np.zeros((2, 3, 4)))
    code, _, err = run("audit", "audited:batch", *arguments)
    assert code == 2
    assert "must hold one query, a vector, or a batch of queries, one per row. Got shape (2, 3, 4)" in err


def test_target_that_always_fails(run: Run) -> None:
    """A release that fails on every collection is exit code 2 and one sentence, and leaves no folder."""
    code, out, err = run("audit", "audited:dead", *CLAIM, "--releases", "100", "--out", "audit")
    assert (code, out) == (2, "")
    assert err.startswith("scoreshield: The release under audit raised RuntimeError (the disk is full) on ")
    assert err.count("\n") == 1
    assert not Path("audit").exists()


def test_no_folder(run: Run, tmp_path: Path) -> None:
    """Without a folder nothing is written."""
    code, out, _ = run("audit", "audited:bulk", *CLAIM, "--releases", "600")
    assert code == 0
    assert "Audit of audited:bulk" in out
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["audited.py"]


def test_core_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit without a folder needs no extra; one with a folder names the extra that is missing."""
    for name in ("filelock", "httpx", "jinja2", "matplotlib"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "scoreshield.audit.connection", raising=False)
    monkeypatch.delattr("scoreshield.audit.connection", raising=False)
    assert run("audit", "audited:bulk", *CLAIM, "--releases", "600")[0] == 0
    code, _, err = run("audit", "audited:bulk", *CLAIM, "--releases", "600", "--out", "audit")
    assert code == 2
    assert "pip install 'scoreshield[" in err
    code, _, err = run("audit", "http://127.0.0.1:9/", *CLAIM)
    assert code == 2
    assert "pip install 'scoreshield[audit]'" in err


# ---- Resuming.


@pytest.mark.usefixtures("steady_clock")
def test_resume(run: Run) -> None:
    """A stopped audit is resumed, and ends as if it had not been stopped."""
    arguments = ("audit", "audited:leaky", *CLAIM, "--releases", "400", "--json")
    _, whole, _ = run(*arguments, "--out", "whole")
    drawn, audited().calls, audited().stop_after = audited().calls, 0, 550
    code, out, err = run(*arguments, "--out", "parts")
    assert (code, out) == (2, "")
    assert err == "scoreshield: The store is gone.\n"
    assert Path("parts/releases.jsonl").read_bytes().count(b"\n") == 550
    assert not Path("parts/report.json").exists()
    audited().stop_after = None
    code, out, _ = run(*arguments, "--out", "parts")
    assert code == 1
    assert audited().calls == drawn  # none was drawn twice
    resumed, once = json.loads(out), json.loads(whole)
    found = resumed["facts"].pop("Resumed")
    assert re.fullmatch(r"550 releases were there before; the audit was begun at \S+ \S+ UTC, less than .* ago", found)
    assert resumed.pop("verdict") == f"{once.pop('verdict')} Resumed: {found}."
    for different in ("files", "seconds"):
        resumed.pop(different), once.pop(different)
    assert resumed == once


def test_resume_scoreshield_release(run: Run) -> None:
    """A ScoreShield release is recognised after a stop."""
    arguments = ("audit", "audited:ours", *CLAIM, *SURE, "--releases", "400", "--out", "audit", "--json")
    _, first, _ = run(*arguments)
    path = Path("audit/releases.jsonl")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:300]))
    not_finished()
    code, second, _ = run(*arguments)
    assert code == 0
    assert json.loads(second)["facts"]["Resumed"].startswith("300 releases were there before; the audit was begun at ")
    assert json.loads(first)["broken"] is json.loads(second)["broken"] is False


def test_a_killed_audit_goes_on(run: Run, tmp_path: Path) -> None:
    (tmp_path / "slowly.py").write_text(SLOWLY)
    arguments = ["audit", "slowly:release", *CLAIM, "--releases", "300", "--out", "audit"]
    pausing = os.environ | {"PAUSE": "0.004"}
    process = subprocess.Popen([sys.executable, "-m", "scoreshield.cli", *arguments], cwd=tmp_path, env=pausing)
    kept = tmp_path / "audit" / "releases.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (kept.exists() and kept.read_bytes().count(b"\n") >= 100):
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = kept.read_bytes().count(b"\n")
    assert 100 <= before < 900
    code, out, _ = run(*arguments, "--json")
    sys.modules.pop("slowly", None)
    assert code == 1
    assert json.loads(out)["facts"]["Resumed"].startswith(f"{before:,} releases were there before; ")


def test_other_settings(run: Run) -> None:
    """Other settings raise an error, and the audit in the folder stays."""
    arguments = ("audit", "audited:leaky", "--adjacency", "replace", "--releases", "400", "--out", "audit")
    assert run(*arguments, "--epsilon", "1")[0] == 1
    before = {path.name: path.read_bytes() for path in Path("audit").iterdir()}
    code, _, err = run(*arguments, "--epsilon", "2")
    assert code == 2
    assert "was begun with other settings (claim); name another folder" in err
    assert {path.name: path.read_bytes() for path in Path("audit").iterdir()} == before


def test_time_limit(run: Run) -> None:
    """The time limit is kept, and a resumed audit of such a folder begins with the outputs that are there."""
    arguments = ("audit", "audited:sound", *CLAIM, *SURE, "--minutes", "0.02", "--out", "audit", "--json")
    start = time.monotonic()
    code, out, err = run(*arguments)
    assert code == 0, err
    assert time.monotonic() - start < 12  # 1.2 seconds of releases, and the report
    asked = json.loads(Path("audit/settings.json").read_text())["asked"]
    assert (asked["minutes"], asked["releases"]) == (0.02, None)
    before = Path("audit/releases.jsonl").read_bytes()
    drawn = audited().calls
    assert before.count(b"\n") == drawn
    assert 600 < json.loads(out)["calls"] <= drawn
    not_finished()
    code, again, _ = run(*arguments)
    assert code == 0
    told = json.loads(again)
    assert told["facts"]["Resumed"].startswith(f"{drawn:,} releases were there before; ")
    assert told["calls"] > audited().calls - drawn  # some were there
    assert Path("audit/releases.jsonl").read_bytes().startswith(before)


def test_too_few_outputs_in_time(run: Run) -> None:
    """A claim that no number of calls in this time can contradict: the outcome is printed, and the exit code is 2."""
    code, out, _ = run("audit", "audited:leaky", "--epsilon", "14", "--adjacency", "replace", "--minutes", "0.02")
    assert code == 2
    assert "cannot raise the bound above 14, even if everything leaks" in " ".join(out.split())


def test_finished_audit(run: Run) -> None:
    """A finished audit is not resumed, unless it is to start again."""
    arguments = ("audit", "audited:sound", *CLAIM, *SURE, "--releases", "400", "--out", "audit")
    assert run(*arguments)[0] == 0
    before = contents("audit")
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("scoreshield: The audit in audit is finished")
    assert "name a new folder, or start again there with --again." in err
    assert contents("audit") == before
    sound = audited().sound
    for dead, words in ((audited().dead, "raised RuntimeError"), (sound, "The store is gone.")):
        audited().sound, audited().stop_after = dead, 0
        code, _, err = run(*arguments, "--again")
        assert code == 2
        assert words in err
        assert contents("audit") == before  # nothing new: nothing is lost
    audited().stop_after, audited().sound = None, audited().leaky
    code, out, _ = run(*arguments, "--again", "--json")
    assert code == 1
    assert "Resumed" not in json.loads(out)["facts"]
    assert set(contents("audit")) == {"settings.json", "releases.jsonl", "report.html", "report.json", ".lock"}
    assert json.loads(Path("audit/report.json").read_text())["broken"] is True
    code, _, err = run(*arguments[:-2], "--again")
    assert (code, "name it with --out" in err) == (2, True)
    code, _, err = run("audit", "--own", "--again")
    assert (code, "leave --again out" in err) == (2, True)


def test_resumed_audit_says_so(run: Run) -> None:
    """A resumed audit says so, and how old its releases are."""
    arguments = ("audit", "audited:sound", *CLAIM, *SURE, "--releases", "400", "--out", "audit")
    assert "Resumed" not in run(*arguments)[1]
    not_finished()
    path = Path("audit/settings.json")
    settings = json.loads(path.read_text())
    old = datetime.now(UTC) - timedelta(hours=75)
    path.write_text(json.dumps(settings | {"begun": old.isoformat()}))
    known = Path("audit/releases.jsonl").read_bytes().count(b"\n")
    code, out, _ = run(*arguments)
    assert code == 0
    said = f"{known:,} releases were there before; the audit was begun at {old:%Y-%m-%d %H:%M} UTC, 3 days ago"
    assert re.search(f"^Resumed +{re.escape(said)}$", out, re.MULTILINE)
    assert json.loads(Path("audit/report.json").read_text())["verdict"].endswith(f" Resumed: {said}.")
    assert said in Path("audit/report.html").read_text()


def test_other_code(run: Run, tmp_path: Path) -> None:
    """An audit is not resumed with other code."""
    (tmp_path / "slowly.py").write_text(SLOWLY)
    arguments = ("audit", "slowly:release", *CLAIM, "--releases", "300", "--out", "audit")
    for changed in ("slowly.py", "audited.py"):  # its own file, and one that it imports from the same folder
        assert run(*arguments, "--again")[0] == 1
        not_finished()
        (tmp_path / changed).write_text((tmp_path / changed).read_text() + "# changed\n")
        for name in ("slowly", "audited"):
            sys.modules.pop(name)
        code, _, err = run(*arguments)
        assert code == 2
        assert "was begun with other settings (code)" in err
    sys.modules.pop("slowly", None)


# ---- Files of outputs.


def test_outputs_in_files(run: Run) -> None:
    rng = np.random.default_rng(5)
    outputs = rng.laplace(size=(2, 3000, 2)) * 2
    outputs[0, :, 0] += 2.0  # one entry moves by 2: epsilon 1
    outputs = np.round(outputs * 2**20) / 2**20  # or the low bits would tell
    np.save("with.npy", outputs[0])
    np.save("without.npy", outputs[1])
    command = ("audit", "with.npy", "--without", "without.npy", "--adjacency", "add or remove one document", "--json")
    code, out, _ = run(*command, "--epsilon", "1", "--out", "fair")
    assert code == 0
    told = json.loads(out)
    assert told["claim"]["adjacency"] == "add or remove one document"
    assert 2900 < told["releases"] <= 3000  # a coin chooses the sides, until one has no more outputs
    assert 0.5 < told["epsilon_lower"] < 1
    code, out, _ = run(*command, "--epsilon", "0.3")
    assert code == 1
    np.savez("both.npz", **{"with": outputs[0], "without": outputs[1]})
    code, out, _ = run(
        "audit", "both.npz", "--adjacency", "replace", "--epsilon", "0.3", "--releases", "2000", "--json"
    )
    assert code == 1
    assert json.loads(out)["releases"] <= 2000
    code, _, err = run(*command, "--epsilon", "2", "--out", "fair")
    assert (code, "other settings (claim)" in err) == (2, True)


def test_order_of_rows(run: Run) -> None:
    """The order of rows in files hides nothing."""
    outputs = np.random.default_rng(7).laplace(size=(2, 2000, 2)) * 2
    outputs[0, 1000:, 1] += 30.0  # gross, but only in the rows that come last, as in a file that was sorted
    outputs = np.round(outputs * 2**20) / 2**20
    np.savez("both.npz", **{"with": outputs[0], "without": outputs[1]})
    code, out, _ = run("audit", "both.npz", "--adjacency", "replace", "--epsilon", "1", "--json")
    assert code == 1
    assert json.loads(out)["epsilon_lower"] > 3
    code, out, _ = run("audit", "both.npz", "--adjacency", "replace", "--epsilon", "1", "--releases", "900", "--json")
    assert code == 1  # nor may the first 900 rows be taken for all
    assert json.loads(out)["epsilon_lower"] > 3


def test_gaussian_claims(run: Run) -> None:
    """Gaussian claims show smaller violations."""
    from scoreshield import calibrate

    noise = np.random.default_rng(6).standard_normal((2, 4000, 1)) * calibrate(4.0, 1e-6, 2.0)
    command = ("audit", "both.npz", "--adjacency", "replace", "--epsilon", "4", "--delta", "1e-6", "--json")

    def save(share: float) -> None:
        sides = np.round(share * noise * 2**20) / 2**20  # or the low bits would tell
        np.savez("both.npz", **{"with": sides[0] + 2.0, "without": sides[1]})

    save(0.65)
    assert run(*command)[0] == 0
    code, out, _ = run(*command, "--noise", "gaussian")
    assert code == 1
    assert "the claimed curve has delta" in json.loads(out)["verdict"]
    save(0.8)
    code, out, _ = run(*command, "--noise", "gaussian", "--plain")
    assert code == 1
    assert "noise scale: the outputs move by at least 0.9" in json.loads(out)["verdict"]
    save(1.0)
    assert run(*command, *SURE, "--noise", "gaussian", "--plain")[0] == 0
    assert run(*command, "--plain")[0] == 2


# ---- A service.


class Service(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    scale, seen, fail, kind = 2.0, [], (), "scores"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).seen.append(body)
        if len(self.seen) in self.fail:
            return self._answer(503, {})
        rows = np.array(body["embeddings"])
        if np.abs(np.linalg.norm(rows, axis=1) - 1).max() > 1e-3:
            return self._answer(422, {})
        clean = rows @ np.array(body["query"]).T
        scores = np.round(clean + np.random.default_rng(len(self.seen)).laplace(size=clean.shape) * self.scale, 6)
        if self.kind == "status" and len(self.seen) > 1 and scores[0] > 0:
            return self._answer(409, {})
        output = {
            "scores": scores.tolist(),
            "text": f"the best is {scores.ravel()[0]:.3f}",
            "hits": [{"id": f"r{place}", "score": one} for place, one in enumerate(scores.tolist())],
            "null": None if scores.ravel()[0] > 0 else [],
            "status": {"found": True},
        }[self.kind]
        return self._answer(200, {"result": {"scores": output}})

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        head = f"HTTP/1.1 {status} .\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        self.wfile.write(head + body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def service() -> Iterator[str]:
    Service.seen = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1/scores"
    server.shutdown()
    thread.join()
    server.server_close()


def test_service(run: Run, service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that leaks is found, and one that does not passes."""
    command = (
        "audit",
        service + "?key=secret",
        *CLAIM,
        "--releases",
        "300",
        "--output-field",
        "result.scores",
        "--json",
    )
    code, out, err = run(*command)
    assert (code, err) == (0, "")
    assert json.loads(out)["name"] == service  # what follows the path may be a secret
    assert "secret" not in out
    assert Service.seen[0]["query"] == np.eye(1, 8)[0].tolist()
    assert all(set(body) == {"embeddings", "query"} and len(body["query"]) == 8 for body in Service.seen)
    assert {np.shape(body["embeddings"])[1] for body in Service.seen} == {8}
    monkeypatch.setattr(Service, "scale", 0.3)
    code, out, _ = run(*command)
    assert code == 1


def test_query_string(run: Run, service: str) -> None:
    """Another query string is another target, and is not written down."""
    fields = ("--releases", "200", "--output-field", "result.scores", "--out", "audit")
    assert run("audit", f"{service}?index=a&key=secret", *CLAIM, *SURE, *fields)[0] == 0
    assert not any(b"secret" in content for content in contents("audit").values())
    not_finished()
    code, _, err = run("audit", f"{service}?index=b&key=secret", *CLAIM, *SURE, *fields)
    assert code == 2
    assert "was begun with other settings (what follows the address)" in err
    assert "secret" not in err
    asked = len(Service.seen)
    assert run("audit", f"{service}?index=a&key=secret", *CLAIM, *SURE, *fields)[0] == 0
    assert len(Service.seen) - asked < asked


def test_repeated_requests(run: Run, service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that were repeated before a stop are counted."""
    from scoreshield.audit import targets

    monkeypatch.setattr(targets.time, "sleep", lambda _: None)
    monkeypatch.setattr(Service, "fail", (7, 9, 60, 61))  # two troubles that pass, and one that does not
    arguments = ("audit", service, *CLAIM, *SURE, "--releases", "200", "--output-field", "result.scores")
    arguments += ("--retries", "1", "--out", "audit", "--json")
    assert run(*arguments)[0] == 2
    monkeypatch.setattr(Service, "fail", (100,))
    code, out, err = run(*arguments)
    assert code == 0, err
    assert json.loads(out)["facts"]["Requests repeated"] == "4"


@pytest.mark.parametrize("kind", ["text", "hits", "null", "status"])
def test_service_of_any_kind(run: Run, service: str, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Texts, lists of objects, null and rejected collections are outputs of a service too."""
    monkeypatch.setattr(Service, "kind", kind)
    command = ("audit", service, *CLAIM, "--releases", "200", "--output-field", "result.scores", "--json")
    code, out, err = run(*command, *SURE, "--out", "audit")
    assert (code, err) == (0, "")
    asked = len(Service.seen)
    assert Path("audit/releases.jsonl").read_bytes().count(b"\n") == asked
    assert 0 <= asked - json.loads(out)["calls"] <= _FIRST
    not_finished()
    code, out, _ = run(*command, *SURE, "--out", "audit")
    assert (code, len(Service.seen) - asked < 200) == (0, True)
    monkeypatch.setattr(Service, "scale", 0.1)
    Service.seen.clear()
    code, out, err = run(*command)
    assert code == 1, err


def test_service_of_a_batch(run: Run, service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of queries is sent to a service."""
    np.save("queries.npy", np.eye(2, 4))
    command = ("audit", service, *CLAIM, "--query", "queries.npy", "--releases", "200", "--json")
    monkeypatch.setattr(Service, "scale", 4.0)
    code, _, err = run(*command, *SURE, "--output-field", "result.scores")
    assert (code, err) == (0, "")
    assert all(body["query"] == np.eye(2, 4).tolist() for body in Service.seen)
    assert {np.shape(body["embeddings"])[1] for body in Service.seen} == {4}
    monkeypatch.setattr(Service, "scale", 0.1)
    assert run(*command, "--output-field", "result.scores")[0] == 1


def test_endpoint_without_outputs(run: Run, service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint without the field, or one that rejects everything, is exit code 2 and leaves no folder."""
    monkeypatch.setattr(Service, "do_POST", lambda self: self._answer(200, {"values": []}))
    code, _, err = run("audit", service, *CLAIM, "--out", "audit")
    assert code == 2
    assert "answered without the field 'scores'; name its field of outputs." in err
    monkeypatch.setattr(Service, "do_POST", lambda self: self._answer(422, {}))
    code, _, err = run("audit", service, *CLAIM, "--out", "audit")
    assert code == 2
    assert "does not accept the fields that were sent (status 422)." in err
    assert not Path("audit").exists()


def test_endpoint_that_goes_away(run: Run, service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that stops answering ends the audit with exit code 2: that is no output. It can be resumed."""
    arguments = (
        "audit",
        service,
        *CLAIM,
        *SURE,
        "--releases",
        "200",
        "--output-field",
        "result.scores",
        "--retries",
        "0",
    )
    monkeypatch.setattr(Service, "fail", range(600, 10_000))
    code, out, err = run(*arguments, "--out", "audit")
    assert (code, out) == (2, "")
    assert "answered with status 503 (1 try)." in err
    monkeypatch.setattr(Service, "fail", ())
    code, out, err = run(*arguments, "--out", "audit", "--json")
    assert code == 0, err
    assert json.loads(out)["facts"]["Resumed"].startswith("599 releases were there before; ")


def test_canaries(run: Run, service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Canaries are the records that differ."""
    monkeypatch.setattr(Service, "scale", 0.1)
    there = neighbours.random_pair(8, 5, seed=0).first[0]  # the first canary is the record that it replaces
    planted = np.stack([there, np.eye(1, 5)[0]])
    np.save("canaries.npy", planted)
    command = ("audit", service, *CLAIM, "--releases", "200", "--output-field", "result.scores", "--json")
    code, out, err = run(*command, "--canaries", "canaries.npy")
    assert code == 1, err
    assert json.loads(out)["neighbours"] == "canary 1 in place of record 1"
    sent = {tuple(row) for body in Service.seen for row in body["embeddings"]}
    assert {tuple(row) for row in planted.astype(np.float32).tolist()} <= sent
    assert len(Service.seen[0]["query"]) == 5


# ---- Mistakes.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["audit"], "Say what to audit: module:function, an address, a file of outputs, or --own."),
        (["audit", "audited:sound"], "--epsilon must say what is claimed"),
        (["audit", "audited:sound", "--epsilon", "1"], "--adjacency must say which collections are neighbours"),
        (["audit", "audited:sound", "--epsilon", "1", "--adjacency", "zero-out"], "--adjacency must be 'replace'"),
        (["audit", "audited:sound", "--epsilon", "-1", "--adjacency", "replace"], "--epsilon must be"),
        (["audit", "audited:sound", *CLAIM, "--noise", "gaussian"], "--noise gaussian needs --epsilon and --delta"),
        (["audit", "audited:sound", *CLAIM, "--releases", "9", "--minutes", "1"], "both set the budget"),
        (["audit", "audited:sound", *CLAIM, "--minutes", "-1"], "--minutes must be a positive number"),
        (["audit", "audited:sound", *CLAIM, "--releases", "20"], "20 releases are too few to contradict"),
        (["audit", "audited:sound", *CLAIM, "--confidence", "2"], "--confidence must be"),
        (["audit", "audited:sound", *CLAIM, "--statistic", "auto"], "No such option: --statistic"),
        (["audit", "audited:sound", *CLAIM, "--rows", "all"], "--rows: 'all' is not one of 'any', 'unit'"),
        (["audit", "audited:sound", *CLAIM, "--without", "x.npy"], "--without is for outputs in files"),
        (["audit", "audited:sound", *CLAIM, "--query", "none.npy"], "There is no file none.npy."),
        (["audit", "audited:nothing", *CLAIM], "The module audited holds no function 'nothing'."),
        (["audit", "nowhere:f", *CLAIM], "There is no module 'nowhere'"),
        (["audit", "service", *CLAIM], "must be of the form module:function"),
        (["audit", "audited:waits", *CLAIM], "audited:waits is asynchronous (async def); wrap it in a plain function"),
        (["audit", "audited:hands_on", *CLAIM], "The release under audit is asynchronous; wrap it in a function"),
        (["audit", "audited:rude", *CLAIM], "The release under audit raised ValueError (?[31mred?)"),
        (["audit", "audited:sound", *CLAIM, "--timeout", "1e300"], "--timeout must be at most 86400"),
        (["audit", "audited:slow", *CLAIM, "--timeout", "0.1"], "did not return within 0.1 seconds"),
        (["audit", "with.npy", *CLAIM], "a second file must hold those without it"),
        (["audit", "with.npy", *CLAIM, "--minutes", "3"], "--minutes is for targets that the audit calls"),
        (["audit", "with.npy", "--without", "with.npy", *CLAIM, "--releases", "9"], "must be at most the 2 outputs"),
        (["audit", "http://127.0.0.1:9/", *CLAIM, "--retries", "0"], "cannot be reached, or broke the connection off"),
        (["audit", "http://127.0.0.1:9/", *CLAIM, "--key-from", "NO_SUCH_KEY"], "'NO_SUCH_KEY', which is not set"),
        (["audit", "--own", "--epsilon", "1"], "--own has its own claims and budgets; leave --epsilon out."),
        (["audit", "audited:sound", *CLAIM, "--quick"], "--quick is the short form of --own"),
        (["audit", "audited:sound", "--own"], "--own audits ScoreShield itself; leave 'audited:sound' out."),
        (["audit", "audited:sound", *CLAIM, "--out", "audited.py"], "Cannot use the folder audited.py"),
    ],
)  # fmt: skip
def test_bad_input(run: Run, tmp_path: Path, arguments: list[str], words: str) -> None:
    """Bad input is one line, and leaves no file."""
    np.save("with.npy", np.zeros((2, 2)))
    code, out, err = run(*arguments, *([] if "--out" in arguments else ["--out", "audit"]))
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} <= {"audited.py", "with.npy", "__pycache__"}


def test_a_folder_of_other_files_is_refused(run: Run) -> None:
    Path("mine").mkdir()
    Path("mine/thesis.tex").write_text("x")
    code, _, err = run("audit", "audited:sound", *CLAIM, "--out", "mine")
    assert code == 2
    assert "holds other files and no audit" in err
    assert [path.name for path in Path("mine").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("trouble", [np.nan, np.inf, [1.0, 2.0]], ids=str)
def test_one_odd_release(run: Run, trouble: Any) -> None:
    """A NaN, an infinity or another length is an output: it is saved, replayed, and one of them breaks nothing."""
    arguments = ("audit", "audited:seldom", *CLAIM, *SURE, "--releases", "400", "--out", "audit", "--json")
    assert run("audit", "audited:seldom", *CLAIM, "--releases", "2")[0] == 2  # which imports the module
    audited().trouble = trouble
    code, _, err = run(*arguments)
    assert code == 0, err
    assert audited().trouble is None
    saved = Path("audit/releases.jsonl").read_bytes()
    assert saved.count(b"\n") == audited().calls
    assert b"NaN" not in saved
    not_finished()
    code, out, err = run(*arguments)
    assert code == 0, err
    assert json.loads(out)["facts"]["Resumed"].startswith(f"{saved.count(b'on'):,} releases")


@pytest.mark.usefixtures("run")
def test_target_that_prints(tmp_path: Path) -> None:
    """What a target prints goes to standard error."""
    command = [sys.executable, "-m", "scoreshield.cli", "audit", "audited:chatty", *CLAIM, *SURE]
    done = subprocess.run([*command, "--releases", "200", "--json"], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["broken"] is False
    assert b"hello" in done.stderr
    assert b"past Python" in done.stderr


def test_unexpected_failure(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected failure has not the exit code of a broken claim."""
    from scoreshield.audit import engine

    def fail(*_: Any, **__: Any) -> None:
        raise OverflowError("too large\x1b[2J\nfor us")

    monkeypatch.setattr(engine, "audit", fail)
    code, out, err = run("audit", "audited:sound", *CLAIM)
    assert (code, out) == (70, "")
    assert err == "scoreshield: Unforeseen OverflowError (too large?[2J); SCORESHIELD_DEBUG=1 shows where.\n"
    monkeypatch.setenv("SCORESHIELD_DEBUG", "1")
    code, _, err = run("audit", "audited:sound", *CLAIM)
    assert code == 70
    assert "in fail" in err


def test_a_log_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    from scoreshield.cli import audit_run

    now = [1000.0]
    log = audit_run.ProgressLog(lambda: now[0])
    release = log.count(lambda rows: rows)
    for _ in range(100):  # one a second
        now[0] += 1
        assert release("rows") == "rows"
    log.update(0.025, 0.0)
    now[0] += 44
    log.update(0.05, 0.12345)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "scoreshield: 45 outputs; trying pairs of collections",
        "scoreshield: 90 outputs; trying pairs of collections",
        "scoreshield: 100 outputs; 5% of the work, epsilon at least 0.123 so far",
    ]


def test_progress_in_log(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit writes its progress to a log."""
    from scoreshield.cli import audit_run

    monkeypatch.setattr(audit_run, "EVERY", 0.0)
    for target in ("audited:sound", "audited:bulk"):
        code, out, err = run("audit", target, *CLAIM, *SURE, "--releases", "400", "--json")
        assert code == 0
        assert json.loads(out)["broken"] is False
        assert re.search(r"^scoreshield: .*\d+% of the work, epsilon at least 0\.\d+ so far$", err, re.MULTILINE)


def test_progress_at_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal shows the bound so far."""
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    monkeypatch.setenv("TERM", "xterm")
    code, _, err = run("audit", "audited:leaky", *CLAIM, "--releases", "400")
    assert code == 1
    assert "epsilon at least" in err


def test_own_releases(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option --own audits ScoreShield's own releases."""
    from scoreshield.audit import self_audit

    kept = self_audit.list_shipped_releases((2.0,))[:2]
    monkeypatch.setattr(self_audit, "list_shipped_releases", lambda *_: kept)
    monkeypatch.setattr(self_audit, "_QUICK_RELEASES", dict.fromkeys(self_audit._QUICK_RELEASES, 2000))
    code, out, _ = run("audit", "--own", "--quick")
    assert code == 0
    assert [line.split(",")[0] for line in out.splitlines()[1:]] == ["scores", "scores"]
    bad = self_audit.ShippedRelease("bad", kept[1].release, type(kept[1].claim)(0.1), kept[1].pair, kept[1].pace)
    monkeypatch.setattr(self_audit, "list_shipped_releases", lambda *_: [bad])
    code, out, _ = run("audit", "--own", "--quick", "--json")
    assert code == 1
    assert json.loads(out)[0]["broken"] is True


def test_quick_form() -> None:
    """`audit --own --quick` finds no violation. With other seeds, one in 10,000 runs would raise a false alarm."""
    from scoreshield.audit import self_audit

    results = self_audit.audit_shipped_releases(quick=True)
    assert not any(result.broken for result in results)
    lines = self_audit.format_results(results).splitlines()
    assert len(lines) == 1 + len(self_audit.list_shipped_releases(self_audit.QUICK_BUDGETS))
    assert all(line.endswith("no violation found") for line in lines[1:])
