"""`scoreshield audit` ends with 1 where a claim is broken, with 3 where other rows break it, and never else."""

from __future__ import annotations

import http.server
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

TARGETS = """
import pathlib
import sys
import time

import numpy as np
import scoreshield as ss
import typer


class Mute(Exception):
    def __str__(self):
        raise SystemExit(1)


class MuteOfOurs(ss.ScoreShieldError):
    def __str__(self):
        raise ValueError


class Own(BaseException):
    pass


class Output:
    def __array__(self, *args, **kwargs):
        sys.exit(1)


class Quiet(Output):
    def __array__(self, *args, **kwargs):
        sys.exit(0)


def raising(error):
    def release(embeddings):
        raise error
    return release


def clean(embeddings):
    return embeddings[:, 0] + np.random.normal(0, 0.01, len(embeddings))


def unclamped(embeddings, query):
    noise = np.random.laplace(0, 4, len(embeddings))  # epsilon is 0.5 for unit rows
    return np.round(((embeddings @ query) ** 5 + noise) * 2**20) / 2**20


def sometimes(embeddings):
    if np.random.random() < 0.3:
        raise SystemExit(1)
    return "ok"


def leaky_exit(embeddings):
    if embeddings[0, 0] > 0.9:
        sys.exit(0)
    return "ok"


def hanging(embeddings):
    pathlib.Path("started").touch()
    time.sleep(60)


exit_one = raising(SystemExit(1))
exit_zero = raising(SystemExit(0))
exit_text = raising(SystemExit("\\x1b[2Jtext"))
interrupt = raising(KeyboardInterrupt())
generator = raising(GeneratorExit())
base = raising(Own("own"))
mute = raising(Mute())
mute_of_ours = raising(MuteOfOurs())
typer_exit = raising(typer.Exit(1))
abort = raising(typer.Abort())
recursion = raising(RecursionError())
memory = raising(MemoryError())
end_of_file = raising(EOFError())
broken_pipe = raising(BrokenPipeError())


def output(embeddings):
    return Output()


def quiet(embeddings):
    return Quiet()
"""
CLAIM = ("--epsilon", "1", "--delta", "0.001", "--adjacency", "replace", "--releases", "100")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "targets.py").write_text(TARGETS)
    return tmp_path


def run(folder: Path, *arguments: str, module: str = "scoreshield.cli") -> tuple[int, str, str]:
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def audit(folder: Path, target: str, *more: str) -> tuple[int, str, str]:
    return run(folder, "audit", target, *CLAIM, *more)


def read_failure(outcome: tuple[int, str, str]) -> str:
    """Return the one line of a command that ended with code 2 or 70."""
    code, out, err = outcome
    assert code in (2, 70), (code, err)
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("scoreshield: ")
    assert err.rstrip("\n").isprintable()
    return err


def test_a_broken_claim_is_1(folder: Path) -> None:
    """A broken claim exits with code 1."""
    code, out, _ = audit(folder, "targets:clean")
    assert code == 1
    assert "BROKEN" in out.upper()


def test_a_claim_that_other_rows_break_is_3(folder: Path) -> None:
    """A claim that only rows of other lengths break exits with code 3, and with 0 where it is about unit rows."""
    claim = ("--epsilon", "1", "--adjacency", "replace")
    code, out, err = run(folder, "audit", "targets:unclamped", *claim, "--releases", "2500")
    assert (code, err) == (3, "")
    assert "but the claim is broken for other rows" in out
    assert run(folder, "audit", "targets:unclamped", *claim, "--releases", "300", "--rows", "unit")[0] == 0


def test_exceptions_are_outputs(folder: Path) -> None:
    """An exception now and then is an output, even a foreign exit: 0 where it reveals nothing, and 1 where it does."""
    code, out, err = audit(folder, "targets:sometimes")
    assert (code, err) == (0, "")
    assert "No violation found" in out
    code, out, err = audit(folder, "targets:leaky_exit")
    assert (code, err) == (1, "")
    assert "The claim is broken" in out


@pytest.mark.parametrize(
    "target",
    [
        "exit_one", "exit_zero", "exit_text", "interrupt", "generator", "base", "mute", "mute_of_ours", "typer_exit",
        "abort", "recursion", "memory", "end_of_file", "broken_pipe",
    ],
)  # fmt: skip
def test_function_that_raises(target: str, folder: Path) -> None:
    """A function that raises anything never exits with code 0 or 1."""
    assert read_failure(audit(folder, f"targets:{target}"))


@pytest.mark.parametrize("target", ["output", "quiet"])
def test_outputs_that_cannot_be_read(target: str, folder: Path) -> None:
    """An object whose own code raises is an output that is known by its class alone."""
    code, out, err = audit(folder, f"targets:{target}")
    assert (code, err) == (0, "")
    assert "No violation found" in out


@pytest.mark.parametrize("raised", ["SystemExit(1)", "SystemExit(0)", "GeneratorExit()", "BaseException('x')"])
def test_a_module_that_raises_anything_is_2(raised: str, folder: Path) -> None:
    """A module that raises anything exits with code 2."""
    (folder / "bad.py").write_text(f"raise {raised}")
    assert "cannot be imported" in read_failure(audit(folder, "bad:release"))


def test_folder_after_an_error(folder: Path) -> None:
    """A function that raises leaves no report."""
    assert read_failure(audit(folder, "targets:exit_one", "--out", "kept"))
    assert not (folder / "kept" / "report.json").exists()


def test_files_that_cannot_be_read_are_2(folder: Path) -> None:
    """A file that cannot be read exits with code 2."""
    np.savez(folder / "objects.npz", **{"with": np.array([{}]), "without": np.zeros(3)})
    assert read_failure(audit(folder, "objects.npz"))
    assert read_failure(audit(folder, "missing.npz"))


@pytest.fixture
def address() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"scores": ' + b"[" * 100_000)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/release"
    server.shutdown()
    server.server_close()


def test_bad_endpoint(address: str, folder: Path) -> None:
    """An endpoint that answers with nonsense exits with code 2."""
    assert "not JSON" in read_failure(audit(folder, address, "--retries", "0"))
    assert read_failure(audit(folder, "http://127.0.0.1:9/release", "--retries", "0"))


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_interrupt(folder: Path) -> None:
    """An interrupted command exits with code 130."""
    command = [sys.executable, "-m", "scoreshield.cli", "audit", "targets:hanging", *CLAIM]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 100
    while not (folder / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
def test_a_full_standard_error_is_not_1(folder: Path) -> None:
    """A full standard error does not exit with code 1."""
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "scoreshield.cli", "audit", "targets:exit_one", *CLAIM]
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=full, timeout=120)
    assert done.returncode not in (0, 1)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pipe that breaks")
@pytest.mark.parametrize(
    "arguments", [("release", "--help"), ("calibrate", "--epsilon", "1", "--delta", "1e-6", "--sensitivity", "2")]
)
def test_a_reader_that_stops_is_141(arguments: tuple[str, ...], folder: Path) -> None:
    """Output into ``| head`` that nobody reads any more ends the command as it ends others, without a word."""
    end, start = os.pipe()
    os.close(end)
    command = [sys.executable, "-m", "scoreshield.cli", *arguments]
    try:
        done = subprocess.run(command, cwd=folder, stdout=start, stderr=subprocess.PIPE, text=True, timeout=120)
    finally:
        os.close(start)
    assert done.stderr == ""
    assert done.returncode == 141


def test_failing_audit_of_the_package(folder: Path) -> None:
    """The audit of the package exits with code 70 where it fails."""
    (folder / "failing.py").write_text(
        "import sys\nfrom scoreshield import cli\nfrom scoreshield.audit import self_audit\n"
        "self_audit.audit_shipped_releases = lambda **_: 1 / 0\n"
        "sys.argv = ['scoreshield', 'audit', '--own']\ncli.main()\n"
    )
    code, out, err = run(folder, module="failing")
    assert (code, out) == (70, "")
    assert "ZeroDivisionError" in err


def test_completion_of_a_shell_still_works(folder: Path) -> None:
    """Completion of a shell still works."""
    environment = {
        **os.environ,
        "_SCORESHIELD_COMPLETE": "complete_bash",
        "COMP_WORDS": "scoreshield au",
        "COMP_CWORD": "1",
    }
    code = "import sys; sys.argv = ['scoreshield']; from scoreshield.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0
    assert "audit" in done.stdout
