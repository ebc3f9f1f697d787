"""`scoreshield audit` as people type it: on functions, files and a service; killed and resumed; mistakes."""

from __future__ import annotations

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
from scoreshield.audit import neighbours
from scoreshield.audit.result import AuditResult

# Laplace noise of scale 2 on scores with sensitivity 2 is 1-private; the bad one adds a fifth of that. Both count their
# calls, and draw the noise of a call from its number: a second run goes on as the first would have.
SERVICE = """
import numpy as np
import scoreshield as ss
calls, stop_after = 0, None

def _noisy(embeddings, query, scale):
    global calls
    if stop_after is not None and calls >= stop_after:
        raise RuntimeError("the disk is full")
    calls += 1
    rows = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    noise = np.random.default_rng([calls, 7]).laplace(size=len(rows)) * scale
    return np.round((rows @ query + noise) * 2**20) / 2**20

def sound(embeddings, query): return _noisy(embeddings, query, 2.0)
def leaky(embeddings, query): return _noisy(embeddings, query, 0.4)
def ours(embeddings, query): return ss.release_scores(embeddings, query, epsilon=1.0, mechanism="laplace")
def bulk(embeddings, query, repeats):
    global calls
    calls += 1
    noise = np.random.default_rng([calls, 3]).laplace(size=(repeats, 8)) * 2
    return np.round((embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True) @ query + noise) * 2**20) / 2**20

def chatty(embeddings, query):
    import os
    print("hello")
    if calls < 2: os.system("echo past Python")
    return sound(embeddings, query)
def seldom(embeddings, query):
    global trouble
    found = sound(embeddings, query)
    if calls < 300 or trouble is None or abs(np.linalg.norm(embeddings, axis=1) - 1).max() > 1e-3: return found
    found, trouble = np.append(found[1:], trouble), None
    return found
trouble = None
async def waits(embeddings): return embeddings
def hands_on(embeddings): return waits(embeddings)
def rude(embeddings): raise ValueError("\\x1b[31mred\\x07")
def enormous(embeddings): return [10**400, 0.5]
def same(embeddings): return embeddings[:, 0]
def nan(embeddings): return np.full(3, np.nan)
def text(embeddings): return "high"
def slow(embeddings, query):
    import time
    time.sleep(30)
"""
SLOWLY = """
import audited, os, time
def release(embeddings, query):
    time.sleep(float(os.environ.get("PAUSE", "0")))
    return audited.leaky(embeddings, query)
"""
CLAIM = ["--epsilon", "1", "--adjacency", "replace"]
SURE = ["--confidence", "0.9999999"]  # where the outputs of a sound mechanism differ from run to run
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


def audited() -> Any:
    return sys.modules["audited"]


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
    assert "The claim is broken: at 95 % confidence the true epsilon is at least" in out
    told = json.loads(Path("audit/report.json").read_text())
    result = AuditResult.from_dict(told["result"])
    assert told["broken"] is True
    assert 1 < result.epsilon_lower < 5  # the true one is 2 / 0.4
    assert result.releases == 600
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
    assert told["verdict"].startswith("No violation found: with 600 releases")
    assert told["verdict"].endswith("this is evidence, not proof.")
    assert told["files"] == ["audit/report.html", "audit/report.json"]


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


def test_resume(run: Run) -> None:
    """A stopped audit is resumed, and ends as if it had not been stopped."""
    arguments = ("audit", "audited:leaky", *CLAIM, "--releases", "400", "--json")
    _, whole, _ = run(*arguments, "--out", "whole")
    drawn, audited().calls, audited().stop_after = audited().calls, 0, 500
    code, out, err = run(*arguments, "--out", "parts")
    assert (code, out) == (2, "")
    assert "The release under audit raised RuntimeError (the disk is full)" in err
    assert Path("parts/releases.jsonl").read_bytes().count(b"\n") == 500
    assert not Path("parts/report.json").exists()
    audited().stop_after = None
    code, out, _ = run(*arguments, "--out", "parts")
    assert code == 1
    assert audited().calls == drawn  # none was drawn twice
    resumed, once = json.loads(out), json.loads(whole)
    found = resumed["facts"].pop("Resumed")
    assert re.fullmatch(r"500 releases were there before; the audit was begun at \S+ \S+ UTC, less than .* ago", found)
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


def test_minutes_become_releases_once(run: Run) -> None:
    arguments = ("audit", "audited:sound", *CLAIM, *SURE, "--minutes", "0.02", "--out", "audit", "--json")
    start = time.monotonic()
    code, out, err = run(*arguments)
    assert code == 0, err
    assert time.monotonic() - start < 12  # 1.2 seconds of releases, and statistics
    planned = json.loads(Path("audit/settings.json").read_text())["releases"]
    assert json.loads(out)["releases"] == planned > 100
    not_finished()
    _, again, _ = run(*arguments)
    assert json.loads(again)["releases"] == planned


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
    audited().stop_after = 0  # a target that is dead
    code, _, err = run(*arguments, "--again")
    assert code == 2
    assert "raised RuntimeError" in err
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
    assert told["releases"] == 3000
    assert 0.5 < told["epsilon_lower"] < 1
    code, out, _ = run(*command, "--epsilon", "0.3")
    assert code == 1
    np.savez("both.npz", **{"with": outputs[0], "without": outputs[1]})
    code, out, _ = run(
        "audit", "both.npz", "--adjacency", "replace", "--epsilon", "0.3", "--releases", "2000", "--json"
    )
    assert code == 1
    assert json.loads(out)["releases"] == 2000
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

    scale = calibrate(4.0, 1e-6, 2.0)
    noise = np.random.default_rng(6).standard_normal((2, 4000, 1)) * scale * 0.8
    noise = np.round(noise * 2**20) / 2**20  # or the low bits would tell
    np.savez("both.npz", **{"with": noise[0] + 2.0, "without": noise[1]})
    command = ("audit", "both.npz", "--adjacency", "replace", "--epsilon", "4", "--delta", "1e-6", "--json")
    assert run(*command)[0] == 0
    code, out, _ = run(*command, "--noise", "gaussian")
    assert code == 1
    assert "trade-off curve" in json.loads(out)["verdict"]
    code, out, _ = run(*command, "--noise", "gaussian", "--plain")
    assert code == 1
    assert "noise scale" in json.loads(out)["verdict"]
    assert run(*command, "--plain")[0] == 2


# ---- A service.


class Service(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    scale, seen, fail = 2.0, [], ()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).seen.append(body)
        if len(self.seen) in self.fail:
            return self._answer(503, {})
        rows = np.array(body["embeddings"])
        if np.abs(np.linalg.norm(rows, axis=1) - 1).max() > 1e-3:
            return self._answer(422, {})
        scores = rows @ np.array(body["query"]) + np.random.default_rng(len(self.seen)).laplace(size=8) * self.scale
        return self._answer(200, {"result": {"scores": np.round(scores, 6).tolist()}})

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
    query = np.eye(1, 8)[0].tolist()
    assert all(set(body) == {"embeddings", "query"} and body["query"] == query for body in Service.seen)
    assert all(np.shape(body["embeddings"]) == (8, 8) for body in Service.seen)
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


def test_endpoint_without_scores(run: Run, service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint without scores leaves no folder."""
    monkeypatch.setattr(Service, "do_POST", lambda self: self._answer(200, {"scores": []}))
    code, _, err = run("audit", service, *CLAIM, "--out", "audit")
    assert code == 2
    assert "holds no array of finite numbers" in err
    assert not Path("audit").exists()


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
        (["audit", "audited:sound", *CLAIM, "--statistic", "best"], "--statistic must be"),
        (["audit", "audited:sound", *CLAIM, "--without", "x.npy"], "--without is for outputs in files"),
        (["audit", "audited:sound", *CLAIM, "--query", "none.npy"], "There is no file none.npy."),
        (["audit", "audited:nothing", *CLAIM], "The module audited holds no function 'nothing'."),
        (["audit", "nowhere:f", *CLAIM], "There is no module 'nowhere'"),
        (["audit", "service", *CLAIM], "must be of the form module:function"),
        (["audit", "audited:same", *CLAIM], "The release under audit is not random"),
        (["audit", "audited:nan", *CLAIM], "returned a NaN or an infinity"),
        (["audit", "audited:text", *CLAIM], "The release under audit must return numbers"),
        (["audit", "audited:waits", *CLAIM], "audited:waits is asynchronous (async def); wrap it in a plain function"),
        (["audit", "audited:hands_on", *CLAIM], "The release under audit is asynchronous; wrap it in a function"),
        (["audit", "audited:rude", *CLAIM], "The release under audit raised ValueError (?[31mred?)"),
        (["audit", "audited:enormous", *CLAIM], "The release under audit must return numbers"),
        (["audit", "audited:sound", *CLAIM, "--timeout", "1e300"], "'--timeout'"),
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
    left = {path.name for path in tmp_path.iterdir()} - {"audited.py", "with.npy", "__pycache__"}
    assert left <= ({"audit"} if words.startswith("The release under audit is not") else set())


def test_a_folder_of_other_files_is_refused(run: Run) -> None:
    Path("mine").mkdir()
    Path("mine/thesis.tex").write_text("x")
    code, _, err = run("audit", "audited:sound", *CLAIM, "--out", "mine")
    assert code == 2
    assert "holds other files and no audit" in err
    assert [path.name for path in Path("mine").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("trouble", [np.nan, np.inf, [1.0, 2.0]], ids=str)
def test_one_bad_release(run: Run, trouble: Any) -> None:
    """One bad release does not spoil the folder."""
    arguments = ("audit", "audited:seldom", *CLAIM, *SURE, "--releases", "400", "--out", "audit", "--json")
    assert run("audit", "audited:seldom", *CLAIM, "--releases", "20")[0] == 2  # which imports the module
    audited().trouble = trouble
    code, _, err = run(*arguments)
    assert code == 2
    assert "returned a NaN or an infinity" in err or "returned 9 numbers after 8 before" in err
    kept = Path("audit/releases.jsonl").read_bytes()
    assert kept.count(b"\n") == audited().calls - 1 >= 299
    assert b"NaN" not in kept
    code, out, err = run(*arguments)
    assert code == 0, err
    assert json.loads(out)["facts"]["Resumed"].startswith(f"{kept.count(b'{'):,} releases")


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
    log.update(50, 2000, 0.0)
    now[0] += 44
    log.update(100, 2000, 0.12345)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "scoreshield: 45 outputs; choosing neighbours",
        "scoreshield: 90 outputs; choosing neighbours",
        "scoreshield: 100 outputs; 100 of 2,000 releases on each side, epsilon at least 0.123 so far",
    ]


def test_progress_in_log(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit writes its progress to a log."""
    from scoreshield.cli import audit_run

    monkeypatch.setattr(audit_run, "EVERY", 0.0)
    for target in ("audited:sound", "audited:bulk"):
        code, out, err = run("audit", target, *CLAIM, *SURE, "--releases", "400", "--json")
        assert code == 0
        assert json.loads(out)["broken"] is False
        assert re.search(r"^scoreshield: .*400 of 400 releases on each side, epsilon at least", err, re.MULTILINE)


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
