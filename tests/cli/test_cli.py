"""The command line, in process where that is enough and as a real process where it is not."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import scoreshield as ss
from scoreshield import cli

CONTRACT = ["--epsilon", "2", "--delta", "1e-6"]


@pytest.fixture
def folder(tmp_path: Path, collection: np.ndarray, query: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> Path:
    np.save(tmp_path / "emb.npy", collection)
    np.save(tmp_path / "q.npy", query)
    np.save(tmp_path / "labels.npy", np.arange(len(collection)) // 4)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["scoreshield", *arguments])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return int(stopped.value.code or 0)


def outputs(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.name not in ("emb.npy", "q.npy", "labels.npy"))


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (["scores", "emb.npy", "--query", "q.npy"], ss.ScoreRelease),
        (["scores", "emb.npy", "--query", "q.npy", "--score-range", "0", "0.5", "--norm", "ball"], ss.ScoreRelease),
        (["scores", "emb.npy", "--query", "emb.npy", "--top-k", "3"], ss.ScoreRelease),
        (["scores", "emb.npy", "--query", "q.npy", "--labels", "labels.npy", "--centroids"], ss.ScoreRelease),
        (["matches", "emb.npy", "--query", "q.npy", "--threshold", "0.2"], ss.MatchRelease),
        (["matches", "emb.npy", "--query", "q.npy", "--threshold", "0.2", "--refine", "0.5"], ss.MatchRelease),
        (["top-k", "emb.npy", "--query", "q.npy", "--k", "3"], ss.TopKRelease),
        (["batch", "emb.npy", "--queries", "emb.npy", "--k", "3", "--print-best"], ss.BatchRelease),
        (["batch", "emb.npy", "--queries", "q.npy", "--k", "3", "--level", "0.1", "--level", "0.4"], ss.BatchRelease),
        (["histogram", "emb.npy", "--query", "q.npy", "--bins", "10", "--target-fmr", "0.1"], ss.HistogramRelease),
        (["histogram", "emb.npy", "--labels", "labels.npy", "--centroids"], ss.HistogramRelease),
        (["scores", "emb.npy", "--query", "q.npy", "--mechanism", "staircase"], ss.ScoreRelease),
        (["scores", "emb.npy", "--query", "q.npy", "--mechanism", "optimal"], ss.ScoreRelease),
        (["scores", "emb.npy", "--query", "q.npy", "--mechanism", "auto"], ss.ScoreRelease),
        (["index", "emb.npy", "--components", "4"], ss.IndexRelease),
        (["index", "emb.npy", "--use", "pairs"], ss.IndexRelease),
        (["index", "emb.npy", "--mechanism", "gaussian"], ss.IndexRelease),
        (["row", "emb.npy", "--index", "7", "--top-k", "2", "--threshold", "0.5"], ss.RowRelease),
        (["gram", "emb.npy", "--projection", "none"], ss.GramRelease),
        (["gram", "emb.npy", "--gram-radius", "0.5", "--projection", "aap", "--max-iterations", "4"], ss.GramRelease),
        (["gram", "emb.npy", "--gram-radius", "0.5", "--denoise", "sure"], ss.GramRelease),
    ],
)
def test_three_files_agree(
    folder: Path,
    command: list[str],
    kind: type,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A release writes three files that agree."""
    pure = command[0] in ("matches", "top-k", "histogram", "index", "batch") or command[-1] in (
        "staircase",
        "optimal",
        "auto",
    )
    pure &= command[-1] != "gaussian"
    contract = CONTRACT[:2] if pure else CONTRACT
    assert run("release", *command, *contract, "--output", "out.npz", monkeypatch=monkeypatch) == 0
    assert outputs(folder) == ["out.json", "out.npz", "out.txt"]
    release = ss.load("out.npz")
    assert type(release) is kind
    assert release.guarantee.sampler == "exact"
    certificate = json.loads(Path("out.json").read_text())
    assert certificate["guarantee"] == release.guarantee.to_dict()
    assert certificate["sha256"] == hashlib.sha256(Path("out.npz").read_bytes()).hexdigest()
    assert certificate["scoreshield"] == ss.__version__
    text = Path("out.txt").read_text()
    assert text.startswith(str(release.guarantee))
    assert certificate["sha256"] in text
    printed = capsys.readouterr()
    assert str(release.guarantee) in printed.out
    assert printed.err == ""


@pytest.mark.usefixtures("folder")
def test_json_is_one_object_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The option --json prints one object and nothing else."""
    base = ["--output", "out.npz", "--json"]
    slow = ["--projection", "aap", "--max-iterations", "3"]
    run("release", "gram", "emb.npy", *CONTRACT, *slow, *base, monkeypatch=monkeypatch)
    answer = json.loads(capsys.readouterr().out)
    assert answer["files"] == ["out.npz", "out.json", "out.txt"]
    assert answer["guarantee"]["epsilon"] == 2
    assert (answer["iterations"], answer["converged"]) == (3, False)
    run(
        "release",
        "row",
        "emb.npy",
        "--index",
        "1",
        "--top-k",
        "4",
        *CONTRACT,
        *base,
        "--force",
        monkeypatch=monkeypatch,
    )
    answer = json.loads(capsys.readouterr().out)
    assert answer["top_k"] == ss.load("out.npz").top_k(4).tolist()
    best = ["--queries", "q.npy", "--k", "4", "--epsilon", "2", "--print-best", "--force"]
    run("release", "batch", "emb.npy", *best, *base, monkeypatch=monkeypatch)
    answer = json.loads(capsys.readouterr().out)
    assert answer["best"] == [ss.load("out.npz").search(0, 4).indices.tolist()]
    assert answer["false_names"] == ss.load("out.npz").false_names
    run("calibrate", *CONTRACT, "--sensitivity", "2", "--json", monkeypatch=monkeypatch)
    answer = json.loads(capsys.readouterr().out)
    assert answer["scale"] == ss.calibrate(2, 1e-6, 2)
    assert answer["delta_at_epsilon"] <= 1e-6
    assert answer["verdict"] == "strong"


def test_calibrate_for_people(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The calibrate command prints lines for people."""
    arguments = ["calibrate", "--epsilon", "1", "--delta", "1e-6", "--sensitivity", "2"]
    assert run(*arguments, monkeypatch=monkeypatch) == 0
    printed = capsys.readouterr().out
    assert "8.4493577" in printed
    assert "verdict                      strong\n" in printed
    assert run(*arguments, "--method", "conservative", monkeypatch=monkeypatch) == 0
    arguments[2] = "100"
    assert run(*arguments, "--method", "conservative", monkeypatch=monkeypatch) == 2
    assert "use method 'analytic'" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_research_mode_repeats_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Research mode repeats, and the certificate states it."""
    for name in ("a.npz", "b.npz"):
        run(
            *("release", "scores", "emb.npy", "--query", "q.npy", *CONTRACT, "--seed", "3", "--output", name),
            monkeypatch=monkeypatch,
        )
    assert ss.load("a.npz") == ss.load("b.npz")
    assert "NOT PRIVATE" in Path("a.txt").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["release", "scores", "emb.npy", "--query", "q.npy", "--epsilon", "0", "--delta", "1e-6"], "positive finite"),
        (
            ["release", "scores", "emb.npy", "--query", "q.npy", "--epsilon", "1", "--delta", "0"],
            "above 0 for Gaussian",
        ),
        (["release", "scores", "emb.npy", "--query", "q.npy", "--epsilon", "1", "--delta", "2"], "[0, 1)"),
        (["release", "scores", "emb.npy", "--query", "q.npy", "--epsilon", "one", "--delta", "1e-6"], "--epsilon"),
        (["release", "scores", "emb.npy", "--query", "q.npy", "--delta", "1e-6"], "Missing option '--epsilon'"),
        (["release", "scores", "none.npy", "--query", "q.npy", *CONTRACT], "There is no file none.npy"),
        (["release", "scores", "emb.npy", "--query", "none.npy", *CONTRACT], "There is no file none.npy"),
        (["release", "scores", "emb.npy", "--query", "labels.npy", *CONTRACT], "a vector of 8 real numbers"),
        (["release", "scores", "emb.xlsx", "--query", "q.npy", *CONTRACT], ".npy, .npz, .parquet or .csv"),
        (["release", "scores", "emb.npy", *CONTRACT], "Missing option '--query'"),
        (["release", "scores", "emb.npy", "--query", "q.npy", *CONTRACT, "--centroids"], "--centroids needs --labels"),
        (["release", "scores", "emb.npy", "--query", "q.npy", *CONTRACT, "--threshold", "1"], "needs --top-k"),
        (["release", "scores", "emb.npy", "--query", "q.npy", *CONTRACT, "--mechanism", "magic"], "--mechanism"),
        (
            ["release", "scores", "emb.npy", "--query", "q.npy", *CONTRACT, "--score-range", "0", "3"],
            "-1 <= a < b <= 1",
        ),
        (["release", "row", "emb.npy", "--index", "40", *CONTRACT], "from 0 to 39"),
        (["release", "row", "emb.npy", "--index", "x", *CONTRACT], "--index"),
        (["release", "gram", "emb.npy", *CONTRACT, "--gram-radius", "-1"], "positive"),
        (["release", "gram", "emb.npy", *CONTRACT, "--gram-radius", "1", "--labels", "labels.npy"], "not both"),
        (["release", "gram", "q.npy", *CONTRACT], "two-dimensional"),
        (["release", "hologram", "emb.npy", *CONTRACT], "No such command 'hologram'"),
        (["reelase"], "No such command"),
        (["calibrate", "--epsilon", "1", "--delta", "1e-6", "--sensitivity", "-2"], "sensitivity"),
    ],
)
def test_bad_input(
    folder: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Bad input prints one line and exits with code 2."""
    if arguments[0] == "release" and len(arguments) > 1:
        arguments = [*arguments, "--output", "out.npz"]
    assert run(*arguments, monkeypatch=monkeypatch) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("scoreshield: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err
    assert outputs(folder) == []


@pytest.mark.parametrize(
    ("output", "message"),
    [("out.csv", "must end in .npz"), ("no/such/out.npz", "There is no folder no/such"), ("emb.npz", "exists already")],
)
def test_output_checked_before_any_noise(
    folder: Path, output: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output is checked before any noise is drawn."""
    (folder / "emb.txt").write_text("an earlier certificate")

    def never(*_: object, **__: object) -> None:
        raise AssertionError("the release was made")

    monkeypatch.setattr(ss, "release_row", never)
    assert run("release", "row", "emb.npy", "--index", "1", *CONTRACT, "--output", output, monkeypatch=monkeypatch) == 2
    assert message in capsys.readouterr().err
    assert outputs(folder) == ["emb.txt"]


def test_corrupt_embeddings(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A corrupt file of embeddings prints one line."""
    content = (folder / "emb.npy").read_bytes()
    for damaged in (b"", content[:50], content[:-7], b"\0" * 500):
        (folder / "emb.npy").write_bytes(damaged)
        assert run("release", "gram", "emb.npy", *CONTRACT, "--output", "o.npz", monkeypatch=monkeypatch) == 2
        error = capsys.readouterr().err
        assert "corrupt, truncated or of another kind" in error
        assert error.count("\n") == 1
    assert outputs(folder) == []


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1.0, np.nan], [1.0, 2.0]], "Row 0 of EMBEDDINGS holds a NaN"),
        ([[1.0, 2.0], [np.inf, 2.0]], "Row 1 of EMBEDDINGS holds a NaN or an infinity"),
        ([[1.0, 2.0]], "at least two records"),
        (np.zeros((0, 2)), "at least one row"),
        ([["a", "b"], ["c", "d"]], "real numbers"),
    ],
)
def test_bad_rows_through_the_command_line(
    folder: Path, rows: object, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad rows print one line."""
    np.save(folder / "emb.npy", np.array(rows))
    assert run("release", "gram", "emb.npy", *CONTRACT, "--output", "out.npz", monkeypatch=monkeypatch) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert outputs(folder) == []


def test_other_formats(folder: Path, collection: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other formats and odd sizes are accepted."""
    np.savez(folder / "all.npz", a=collection * 1e30, b=collection)
    parquet.write_table(pa.table({"vector": pa.array(collection.tolist())}), folder / "emb.parquet")
    np.save(folder / "line.npy", np.arange(1.0, 6.0)[:, None])  # d = 1
    np.save(folder / "one.npy", np.ones(1))
    for place, arguments in enumerate(
        (
            ["all.npz", "--array", "a", "--query", "q.npy"],
            ["emb.parquet", "--query", "emb.parquet"],
            ["line.npy", "--query", "one.npy"],
        )
    ):
        output = f"out{place}.npz"
        assert run("release", "scores", *arguments, *CONTRACT, "--output", output, monkeypatch=monkeypatch) == 0
        assert ss.load(output).noisy.shape[-1] == (5 if place == 2 else 40)


def test_unprintable_answer(folder: Path) -> None:
    """An answer that cannot be printed gives one line."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*SCORESHIELD, "calibrate", *CONTRACT, "--sensitivity", "2"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "scoreshield: Cannot print the answer: No space left on device.\n"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_folder_without_permission(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder without permission gives one line."""
    (folder / "locked").mkdir(mode=0o500)
    output = "locked/out.npz"
    assert run("release", "gram", "emb.npy", *CONTRACT, "--output", output, monkeypatch=monkeypatch) == 2
    assert "Permission denied" in capsys.readouterr().err


def test_help_has_examples(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The help has an example for every command."""
    assert run("--help", monkeypatch=monkeypatch) == 0
    text = capsys.readouterr().out
    assert "--install-completion" in text
    for command in ("demo", "release", "calibrate"):
        assert command in text
    for command in ("scores", "row", "gram"):
        assert run("release", command, "--help", monkeypatch=monkeypatch) == 0
        text = capsys.readouterr().out
        assert "No default." in text
        assert f"scoreshield release {command}" in text
    assert run(monkeypatch=monkeypatch) == 0
    assert "Start with: scoreshield demo (first: pip install 'scoreshield[demo]')" in capsys.readouterr().out
    assert run("--version", monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out.strip() == f"scoreshield {ss.__version__}"


SCORESHIELD = [sys.executable, "-m", "scoreshield.cli"]


def test_shell_completion_answers(folder: Path) -> None:
    """Shell completion works."""
    environment = {
        "_SCORESHIELD_COMPLETE": "complete_bash",
        "COMP_WORDS": "scoreshield release ",
        "COMP_CWORD": "2",
        "PATH": "",
    }
    done = subprocess.run(SCORESHIELD, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    assert {"scores", "row", "gram", "matches", "top-k", "histogram"} <= set(done.stdout.split())


@pytest.mark.skipif(sys.platform == "win32", reason="file-size limits are a POSIX facility")
def test_full_disk(folder: Path) -> None:
    """A limit of 4 kB on any file stands in for a full disk: the write fails half-way, in a real process."""
    np.save(folder / "emb.npy", np.random.default_rng(0).standard_normal((2000, 4)))
    done = subprocess.run(
        [*SCORESHIELD, "release", "row", "emb.npy", "--index", "3", *CONTRACT, "--output", "out.npz"],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
    )
    assert done.returncode == 2
    assert done.stderr.startswith("scoreshield: Cannot write out.npz: ")
    assert done.stderr.count("\n") == 1
    assert outputs(folder) == []


@pytest.mark.skipif(sys.platform == "win32", reason="sends a POSIX signal")
@pytest.mark.parametrize("moment", ["scoreshield.releases.gram.project_array", "os.fsync"])
def test_interrupt(folder: Path, moment: str) -> None:
    """A real interrupt in a real process: while projecting, and with the file half-written."""
    module, name = moment.rsplit(".", 1)
    driver = (
        f"import os, signal, {module}; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); "
        f"from scoreshield import cli; {module}.{name} = lambda *a, **k: os.kill(os.getpid(), signal.SIGINT); "
        "cli.main()"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            driver,
            "release",
            "gram",
            "emb.npy",
            *CONTRACT,
            "--output",
            "out.npz",
            "--max-iterations",
            "2",
        ],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 130
    assert done.stderr == "scoreshield: Interrupted; no file was left half-written.\n"
    assert outputs(folder) == []
