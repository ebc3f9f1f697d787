"""What commands write: never over an input, for the owner alone where it shows private data, fit for a terminal."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield import _files
from scoreshield.bench.experiments import table
from scoreshield.bench.experiments.cells import COLUMNS

ESCAPE = "\x1b[2J\x1b[31mred"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(1)
    np.save(tmp_path / "rows.npy", rng.standard_normal((20, 4)))
    np.save(tmp_path / "query.npy", rng.standard_normal(4))
    np.save(tmp_path / "labels.npy", np.arange(20) // 2)
    np.savez(tmp_path / "rows.npz", embeddings=rng.standard_normal((20, 4)))
    np.save(tmp_path / "far.npy", np.clip(rng.normal(0, 0.2, 500), -1, 1))
    np.save(tmp_path / "near.npy", np.clip(rng.normal(0.6, 0.1, 500), -1, 1))
    monkeypatch.chdir(tmp_path)
    return tmp_path


RELEASES = {
    "scores": ("--query", "query.npy", "--epsilon", 5, "--delta", 1e-6),
    "row": ("--index", 3, "--epsilon", 5, "--delta", 1e-6),
    "gram": ("--epsilon", 5, "--delta", 1e-6),
    "matches": ("--query", "query.npy", "--threshold", 0.1, "--epsilon", 5),
    "top-k": ("--query", "query.npy", "--k", 2, "--epsilon", 5),
    "histogram": ("--query", "query.npy", "--epsilon", 5),
    "index": ("--epsilon", 5),
    "batch": ("--queries", "query.npy", "--k", 2, "--epsilon", 5),
}


class TestOutputsOverInputs:
    MESSAGE = "is the same file as the input"

    def read_error(self, outcome: tuple[int, str, str]) -> str:
        """Return the one line of a command that ended with code 2."""
        code, out, err = outcome
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        return err

    @pytest.mark.parametrize("kind", sorted(RELEASES))
    def test_the_collection_itself(self, kind: str, folder: Path, run: Any) -> None:
        """No release overwrites its collection."""
        before = (folder / "rows.npz").read_bytes()
        assert self.MESSAGE in self.read_error(
            run("release", kind, "rows.npz", *RELEASES[kind], "--output", "rows.npz", "--force")
        )
        assert (folder / "rows.npz").read_bytes() == before
        assert sorted(path.suffix for path in folder.iterdir()) == [*[".npy"] * 5, ".npz"]

    @pytest.mark.parametrize("name", ["query.npy", "labels.npy"])
    @pytest.mark.parametrize("ending", [".npz", ".json", ".txt"])
    @pytest.mark.parametrize("link", [os.link, os.symlink])
    def test_other_inputs(self, name: str, ending: str, link: Any, folder: Path, run: Any) -> None:
        """No release overwrites another input, not even by a link or with its certificate."""
        link(folder / name, folder / f"out{ending}")
        before = (folder / name).read_bytes()
        command = ("release", "scores", "rows.npy", *RELEASES["scores"], "--labels", "labels.npy")
        assert self.MESSAGE in self.read_error(run(*command, "--output", "out.npz", "--force"))
        assert (folder / name).read_bytes() == before

    def test_by_another_path(self, folder: Path, run: Any) -> None:
        """An input is recognised under another path."""
        (folder / "sub").mkdir()
        (folder / "elsewhere").symlink_to(folder, target_is_directory=True)
        for output in ("sub/../rows.npz", folder / "rows.npz", "elsewhere/rows.npz"):
            assert self.MESSAGE in self.read_error(
                run("release", "index", "rows.npz", "--epsilon", 5, "--output", output, "--force")
            )

    def test_the_ledger(self, folder: Path, run: Any) -> None:
        """No release overwrites its ledger."""
        ss.Ledger.create(f"sqlite:///{folder / 'ledger.npz'}", epsilon=10, delta=1e-6)
        before = (folder / "ledger.npz").read_bytes()
        command = ("release", "index", "rows.npz", "--epsilon", 5, "--ledger", "sqlite:///ledger.npz")
        assert self.MESSAGE in self.read_error(run(*command, "--dataset", "rows", "--output", "ledger.npz", "--force"))
        assert (folder / "ledger.npz").read_bytes() == before

    def test_the_export_of_a_ledger(self, folder: Path, run: Any) -> None:
        """No export overwrites its ledger."""
        ss.Ledger.create(f"sqlite:///{folder / 'ledger.json'}", epsilon=10, delta=1e-6)
        (folder / "export.csv").symlink_to("ledger.json")
        for output in ("ledger.json", "export.csv"):
            assert self.MESSAGE in self.read_error(
                run("ledger", "export", "sqlite:///ledger.json", "--output", output, "--force")
            )
        os.link(folder / "ledger.json", folder / "other.csv")
        code, out, _ = run("ledger", "export", "sqlite:///ledger.json", "--output", "other.csv", "--force")
        assert (code, out) == (2, "")
        (folder / "other.csv").unlink()
        assert ss.Ledger.open("sqlite:///ledger.json").verify()

    def test_the_page_of_a_plan(self, folder: Path, run: Any) -> None:
        """No page of a plan overwrites its scores."""
        os.link(folder / "far.npy", folder / "page.html")
        command = ("plan", "--impostor", "far.npy", "--genuine", "near.npy", "--target-fmr", 0.01, "--delta", 1e-6)
        assert self.MESSAGE in self.read_error(run(*command, "--epsilon", 10, "--html", "page.html", "--force"))

    def test_a_results_page_over_a_run(self, folder: Path, run: Any) -> None:
        """No results page overwrites a run."""
        (folder / "runs" / "noise").mkdir(parents=True)
        (folder / "runs" / "noise" / "results.csv").write_text("kept")
        assert self.MESSAGE in self.read_error(run("report", "results", "--markdown", "runs/noise/results.csv"))
        assert (folder / "runs" / "noise" / "results.csv").read_text() == "kept"

    def test_a_run_over_its_grid(self, folder: Path, run: Any) -> None:
        """No run overwrites its grid."""
        (folder / "run").mkdir()
        (folder / "run" / "environment.json").write_text("repeats: 1")
        assert self.MESSAGE in self.read_error(run("bench", "noise", "--grid", "run/environment.json", "--out", "run"))

    @pytest.mark.usefixtures("folder")
    def test_force(self, run: Any) -> None:
        """An earlier release is replaced with --force."""
        command = ("release", "index", "rows.npz", "--epsilon", 5, "--output", "out.npz")
        assert run(*command)[0] == 0
        assert run(*command)[0] == 2
        assert run(*command, "--force")[0] == 0


@pytest.mark.skipif(sys.platform == "win32", reason="needs permissions")
class TestPermissions:
    def mode(self, path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    @pytest.fixture(autouse=True)
    def wide(self) -> Any:
        before = os.umask(0o022)
        yield
        os.umask(before)

    def test_plan_permissions(self, folder: Path, run: Any) -> None:
        """Only the owner may read a plan of private scores."""
        command = ("plan", "--impostor", "far.npy", "--genuine", "near.npy", "--target-fmr", 0.01, "--delta", 1e-6)
        assert run(*command, "--epsilon", 10, "--html", "page.html")[0] == 0
        assert self.mode(folder / "page.html") == 0o600
        (folder / "page.html").chmod(0o644)
        assert run(*command, "--epsilon", 10, "--html", "page.html", "--force")[0] == 0
        assert self.mode(folder / "page.html") == 0o600

    def test_an_audit_is_for_its_owner(self, folder: Path, run: Any) -> None:
        """Only the owner may read an audit."""
        (folder / "target.py").write_text(
            "import numpy as np\n\ndef noisy(embeddings):\n    return np.random.normal(0, 9, len(embeddings))\n"
        )
        claim = ("--epsilon", 1, "--delta", 1e-3, "--adjacency", "replace", "--releases", 100)
        assert run("audit", "target:noisy", *claim, "--out", "kept")[0] == 0
        assert self.mode(folder / "kept") == 0o700
        names = ("settings.json", "releases.jsonl", "report.html", "report.json")
        assert {name: self.mode(folder / "kept" / name) for name in names} == dict.fromkeys(names, 0o600)

    def test_a_release_is_public(self, folder: Path, run: Any) -> None:
        """Everyone may read a release."""
        assert run("release", "index", "rows.npz", "--epsilon", 5, "--output", "out.npz")[0] == 0
        assert {self.mode(folder / f"out.{ending}") for ending in ("npz", "json", "txt")} == {0o644}


class TestTerminal:
    @pytest.mark.usefixtures("folder")
    def test_names_of_files_in_errors(self, run: Any) -> None:
        """Errors print names of files without control characters."""
        for arguments in (
            ("release", "index", f"{ESCAPE}.npy", "--epsilon", 5, "--output", "out.npz"),
            ("release", "index", "rows.npy", "--epsilon", 5, "--output", f"{ESCAPE}.txt"),
            ("bench", f"{ESCAPE}"),
            (f"{ESCAPE}",),
            ("plan", "--impostor", f"{ESCAPE}.npy", "--target-fmr", 0.01, "--delta", 1e-6),
            ("ledger", "status", f"sqlite:///{ESCAPE}.db"),
        ):
            code, out, err = run(*arguments)
            assert code == 2
            assert "\x1b" not in out + err
            assert err.count("\n") == 1

    @pytest.mark.usefixtures("folder")
    def test_names_of_files_in_answers(self, run: Any) -> None:
        """Answers print names of files without control characters."""
        code, out, err = run("release", "index", "rows.npy", "--epsilon", 5, "--output", f"{ESCAPE}.npz")
        assert code == 0
        assert "\x1b" not in out + err
        command = ("plan", "--impostor", "far.npy", "--genuine", "near.npy", "--target-fmr", 0.01, "--delta", 1e-6)
        code, out, err = run(*command, "--epsilon", 10, "--html", f"{ESCAPE}.html")
        assert code == 0
        assert "\x1b[2J" not in out + err

    def test_names_of_arrays_in_a_file(self, folder: Path, run: Any) -> None:
        """Names of arrays are printed without control characters."""
        np.savez(folder / "two.npz", **{f"a{ESCAPE}": np.zeros(3), "b": np.zeros(3)})
        code, _, err = run("release", "index", "two.npz", "--epsilon", 5, "--output", "out.npz")
        assert code == 2
        assert "holds several arrays (a?[2J?[31mred, b)" in err
        with pytest.raises(ss.InvalidInput) as caught:
            _files.read_array(folder / "two.npz")
        assert str(caught.value).isprintable()


class TestTables:
    def test_spreadsheet_cells(self, tmp_path: Path) -> None:
        """A cell that a spreadsheet would run is written as text."""
        texts = ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\nx\ny", "'quoted", "plain", "a=b", ""]
        rows = [
            dict.fromkeys(COLUMNS) | {"experiment": "noise", "method": text, "value": -0.5, "n": 3} for text in texts
        ]
        table.write_results(tmp_path, rows)
        read = list(csv.DictReader(io.StringIO((tmp_path / "results.csv").read_bytes().decode(), newline="")))
        assert not any(row["method"].startswith(("=", "+", "-", "@", "\t", "\r")) for row in read)
        assert {row["value"] for row in read} == {"-0.5"}  # a number, not a formula
        assert [row["method"] or "" for row in table.read_results(tmp_path / "results.csv")] == texts
        table.write_results(tmp_path, [rows[0] | {"method": "a\r=1"}])
        assert [row["method"] for row in table.read_results(tmp_path / "results.csv")] == ["a\n=1"]


@pytest.mark.usefixtures("folder")
def test_json_output_no_control_characters() -> None:
    """JSON output has no control characters."""
    command = [sys.executable, "-m", "scoreshield.cli", "release", "index", "rows.npy", "--epsilon", "5", "--json"]
    done = subprocess.run([*command, "--output", f"{ESCAPE}.npz"], capture_output=True, text=True, check=True)
    assert "\x1b" not in done.stdout
    assert json.loads(done.stdout)["files"][0] == f"{ESCAPE}.npz"


def _make_folder(name: str) -> None:
    Path(name).mkdir()


@pytest.mark.parametrize(
    ("output", "prepare"),
    [
        ("taken.npz", lambda: _make_folder("taken.npz")),
        ("taken.npz", lambda: _make_folder("taken.txt")),  # the certificate's place
        ("a" * 240 + ".npz", lambda: None),  # fits, and the temporary name beside it does not
        ("a" * 300 + ".npz", lambda: None),
        ("b" * 300 + "/a.npz", lambda: None),
        ("\udce9.npz", lambda: None),
    ],
    ids=["folder", "certificate", "temporary", "long", "long-folder", "no-text"],
)
@pytest.mark.usefixtures("folder")
def test_unwritable_output(run: Any, output: str, prepare: Any) -> None:
    """An output that cannot be written charges nothing."""
    prepare()
    account = ss.Ledger.create("sqlite:///ledger.db", epsilon=10, delta=0).account("people")
    before = set(Path().iterdir())
    command = [
        "release",
        "scores",
        "rows.npy",
        "--query",
        "query.npy",
        "--epsilon",
        "1",
        "--mechanism",
        "laplace",
        "--force",
    ]
    code, out, err = run(*command, "--ledger", "sqlite:///ledger.db", "--dataset", "people", "--output", output)
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "Cannot print" not in err
    assert account.spent == 0
    assert set(Path().iterdir()) == before


def test_show_completion(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option that shows completions exits without failure."""
    monkeypatch.setattr("typer._completion_shared.shellingham", None, raising=False)
    monkeypatch.setattr("typer.completion.shellingham", None, raising=False)
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: "bash", raising=False)
    code, out, err = run("--show-completion")
    assert (code, err) == (0, "")
    assert "complete" in out
