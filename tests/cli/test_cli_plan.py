"""`scoreshield plan` and `scoreshield report`, from the command line."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import scoreshield as ss
from scoreshield import cli

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["scoreshield", *arguments])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        out, error = capsys.readouterr()
        return int(stopped.value.code or 0), out, error

    return call


@pytest.fixture
def score_files(tmp_path: Path) -> tuple[Path, Path]:
    rng = np.random.default_rng(5)
    impostor, genuine = tmp_path / "impostor.npy", tmp_path / "genuine.npy"
    np.save(impostor, rng.normal(0, 0.1, 3000).astype(np.float32))
    np.save(genuine, rng.normal(0.5, 0.1, 3000).clip(-1, 1).astype(np.float32))
    return impostor, genuine


def plan_arguments(files: tuple[Path, Path], *more: str) -> list[str]:
    return ["plan", "--impostor", str(files[0]), "--genuine", str(files[1]), "--delta", "1e-6", *more]


def test_plan_answers_sentence_table(run: Run, score_files: tuple[Path, Path]) -> None:
    """A plan answers in a sentence and a table."""
    code, out, error = run(*plan_arguments(score_files, "--target-fmr", "0.01", "--epsilon", "20"))
    assert code == 0, error
    text = " ".join(out.split())
    assert text.startswith("With epsilon 20, delta 1e-6: add Gaussian noise of standard deviation")
    assert "no budget was charged for them" in text
    assert "this plan" in text
    assert "not private: its true epsilon is" in text


def test_a_plan_in_json_is_the_librarys(run: Run, score_files: tuple[Path, Path]) -> None:
    """A plan as JSON is that of the library."""
    code, out, _ = run(
        *plan_arguments(score_files, "--target-fmr", "0.01", "--target-tar", "0.9", "--source", "public", "--json")
    )
    assert code == 0
    told = json.loads(out)
    made = ss.plan.verification(
        np.load(score_files[0]), np.load(score_files[1]), target_fmr=0.01, target_tar=0.9, delta=1e-6, source="public"
    )
    assert told == json.loads(json.dumps(made.to_dict()))
    assert told["met"]


def test_a_plan_from_parameters(run: Run) -> None:
    """A plan is made from parameters alone."""
    code, out, _ = run(
        "plan", "--impostor", "normal:0,0.1", "--genuine", "beta:9,2", "--delta", "1e-6", "--target-fmr", "1e-6",
        "--max-advantage", "0.5", "--json",
    )  # fmt: skip
    assert code == 0
    assert json.loads(out)["source"] == "parameters"
    assert json.loads(out)["warnings"] == []


def test_a_plan_of_a_search(run: Run, score_files: tuple[Path, Path]) -> None:
    """A plan of a search is printed."""
    code, out, _ = run(*plan_arguments(score_files, "--records", "5000", "--k", "10", "--target-recall", "0.5"))
    assert code == 0
    assert "in 50 % of the queries below epsilon 5.52" in " ".join(out.split())


def test_plan_collection_needs_flag(run: Run, tmp_path: Path) -> None:
    """A plan of a collection needs the flag."""
    rng = np.random.default_rng(2)
    labels = np.repeat(np.arange(50), 4)
    np.save(tmp_path / "rows.npy", rng.standard_normal((50, 8))[labels] + 0.3 * rng.standard_normal((200, 8)))
    np.save(tmp_path / "labels.npy", labels)
    arguments = ["plan", "--embeddings", str(tmp_path / "rows.npy"), "--labels", str(tmp_path / "labels.npy"),
                 "--target-fmr", "0.01", "--epsilon", "30", "--delta", "1e-6"]  # fmt: skip
    code, _, error = run(*arguments)
    assert code == 2
    assert "--research" in error
    code, out, _ = run(*arguments, "--research", "--json")
    assert code == 0
    assert "no budget was charged" in json.loads(out)["warnings"][0]


def test_a_plan_writes_its_page(run: Run, score_files: tuple[Path, Path], tmp_path: Path) -> None:
    """A plan writes its page."""
    page = tmp_path / "plan.html"
    arguments = plan_arguments(score_files, "--target-fmr", "0.01", "--epsilon", "20", "--html", str(page))
    code, out, _ = run(*arguments)
    assert code == 0
    assert f"Written {page}" in out
    assert page.read_text().lower().startswith("<!doctype html>")
    before = page.read_bytes()
    code, _, error = run(*arguments)
    assert (code, page.read_bytes()) == (2, before)
    assert "exists already" in error
    assert run(*arguments, "--force")[0] == 0


def test_array_after_a_colon(run: Run, score_files: tuple[Path, Path], tmp_path: Path) -> None:
    """One array of an .npz is named after a colon."""
    both = tmp_path / "scores.npz"
    np.savez(both, imp=np.load(score_files[0]), gen=np.load(score_files[1]))
    code, out, _ = run(
        "plan", "--impostor", f"{both}:imp", "--genuine", f"{both}:gen", "--delta", "1e-6", "--target-fmr", "0.01",
        "--epsilon", "20", "--json",
    )  # fmt: skip
    assert code == 0
    assert json.loads(out)["target_fmr"] == 0.01


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ([], "Say what you need"),
        (["--target-fmr", "0.01"], "give a true-match target, or a contract"),
        (
            ["--target-fmr", "0.01", "--epsilon", "1", "--max-tpr", "0.1", "--at-fpr", "0.01"],
            "one contract, not several",
        ),
        (["--target-fmr", "0.01", "--epsilon", "0"], "'epsilon'"),
        (["--target-fmr", "1e-5", "--epsilon", "1"], "smallest target they support is 1/3000"),
        (["--target-fmr", "0.01", "--max-tpr", "0.1"], "max_tpr and at_fpr together"),
        (["--target-fmr", "0.01", "--epsilon", "1", "--records", "10"], "cannot go with a search"),
        (["--records", "10", "--epsilon", "1"], "needs --records, --k"),
        (["--records", "100", "--k", "3", "--epsilon", "1", "--clipped"], "leave them out for a search"),
        (["--target-fmr", "1e-310", "--epsilon", "1"], "cannot be measured"),
        (["--target-fmr", "0.01", "--epsilon", "1", "--target-recall", "0.5"], "cannot go with a matcher"),
        (["--target-fmr", "0.01", "--epsilon", "1", "--labels", "x.npy"], "go with --embeddings"),
        (["--target-fmr", "0.01", "--epsilon", "1", "--embeddings", "x.npy"], "cannot go with --embeddings"),
        (["--target-fmr", "0.01", "--epsilon", "1", "--html", "page.pdf"], "must end in .html"),
        (["--target-fmr", "0.01", "--epsilon", "1", "--html", "nowhere/page.html"], "no folder"),
        (["--target-fmr", "0.01", "--epsilon", "50", "--calibration", "classical"], "is not .*private"),
        (["--target-fmr", "0.01", "--target-tar", "0.999999", "--epsilon", "1", "--source", "mine"], "mine"),
    ],
)
def test_bad_plan(change: list[str], says: str, run: Run, score_files: tuple[Path, Path], tmp_path: Path) -> None:
    """A bad plan prints one line."""
    before = sorted(tmp_path.iterdir())
    code, out, error = run(*plan_arguments(score_files, *change))
    assert (code, out) == (2, "")
    assert re.search(says, error)
    assert error.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_a_column_of_a_parquet_file(run: Run, score_files: tuple[Path, Path], tmp_path: Path) -> None:
    """A column of a .parquet file holds scores."""
    one, two = tmp_path / "one.parquet", tmp_path / "two.parquet"
    impostor, genuine = (np.load(path) for path in score_files)
    parquet.write_table(pa.table({"score": impostor}), one)
    parquet.write_table(pa.table({"score": genuine, "other": impostor}), two)
    code, out, error = run(
        "plan", "--impostor", str(one), "--genuine", f"{two}:score", "--delta", "1e-6", "--target-fmr", "0.01",
        "--epsilon", "20", "--json",
    )  # fmt: skip
    assert code == 0, error
    assert json.loads(out)["clean_tar"] > 0.9


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([0.1, 1.7], "cosines, in"),
        ([0.1, float("nan")], "finite"),
        ([], "at least two"),
        ([0.4], "at least two"),
        ([[0.1, 0.2]], "one-dimensional"),
    ],
)
def test_bad_score_files_are_one_line(values: list[float], says: str, run: Run, tmp_path: Path) -> None:
    """A bad score file prints one line."""
    np.save(tmp_path / "bad.npy", np.array(values))
    code, out, error = run(
        "plan", "--impostor", str(tmp_path / "bad.npy"), "--target-fmr", "0.5", "--epsilon", "1", "--delta", "1e-6"
    )
    assert (code, out) == (2, "")
    assert says in error
    assert error.count("\n") == 1


def test_a_truncated_score_file_is_one_line(run: Run, score_files: tuple[Path, Path]) -> None:
    """A truncated score file prints one line."""
    score_files[0].write_bytes(score_files[0].read_bytes()[:200])
    code, _, error = run(*plan_arguments(score_files, "--target-fmr", "0.01", "--epsilon", "1"))
    assert code == 2
    assert "corrupt, truncated" in error


# mechanisms


def test_mechanisms_are_ranked(run: Run) -> None:
    """Mechanisms are ranked."""
    code, out, error = run("plan", "--need", "scores", "--epsilon", "5", "--delta", "1e-6")
    assert code == 0, error
    text = " ".join(out.split())
    assert text.startswith("With epsilon 5, delta 1e-6, optimal is predicted to do best")
    assert text.index("staircase") < text.index("laplace") < text.index("gaussian")
    code, out, _ = run(
        "plan", "--need", "gram", "--epsilon", "5", "--delta", "0", "--records", "100", "--dimension", "64", "--json"
    )
    assert code == 0
    assert json.loads(out)["candidates"][0]["mechanism"] == "privunit index"


def test_a_ranking_for_a_matcher_from_files(run: Run, score_files: tuple[Path, Path]) -> None:
    """A ranking for a matcher is made from files."""
    code, out, _ = run(
        *plan_arguments(score_files, "--need", "verification", "--target-fmr", "0.01", "--epsilon", "8", "--json")
    )
    told = json.loads(out)
    assert code == 0
    assert [candidate["mechanism"] for candidate in told["candidates"][:2]] == ["accept bit", "staircase"]
    assert "no budget was charged" in told["warnings"][0]
    code, _, error = run("plan", "--need", "verification", "--epsilon", "8", "--delta", "1e-6")
    assert code == 2
    assert "Verification needs" in error
    code, _, error = run("plan", "--need", "scores", "--epsilon", "8", "--delta", "1e-6", "--html", "x.html")
    assert code == 2
    assert "cannot go with --need" in error


# report


def test_figures_of_the_paper(run: Run, tmp_path: Path) -> None:
    """The figures of the paper are drawn."""
    code, out, error = run("report", "figures", "--out", str(tmp_path / "figures"), "--scores", "2000", "--json")
    assert code == 0, error
    files = [Path(name) for name in json.loads(out)["files"]]
    assert len(files) >= 6
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in files)


def test_too_few_scores_for_figures(run: Run, tmp_path: Path) -> None:
    """Too few scores for the figures print one line."""
    code, _, error = run("report", "figures", "--out", str(tmp_path / "figures"), "--scores", "10")
    assert code == 2
    assert "--scores must be at least 1000" in error
    assert not (tmp_path / "figures").exists()
