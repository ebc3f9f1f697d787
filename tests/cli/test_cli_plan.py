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
    lead = re.search(r"With epsilon 20, delta 1e-6, ([\w ]+) is predicted to do best: ", text)
    assert lead
    assert lead.start() < text.index("For comparison, Gaussian noise of standard deviation")
    assert f"Ask for {lead[1]} in Python" in text
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
        (["--target-fmr", "0.01", "--epsilon", "0"], "--epsilon must be"),
        (["--target-fmr", "1e-5", "--epsilon", "1"], "smallest target they support is 1/3000"),
        (["--target-fmr", "0.01", "--max-tpr", "0.1"], "max_tpr and at_fpr together"),
        (["--target-fmr", "0.01", "--epsilon", "1", "--records", "10"], "cannot go with a search"),
        (["--records", "10", "--epsilon", "1"], "needs --k too"),
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
    assert text.startswith("With epsilon 5, delta 1e-6, an optimal level table is predicted to do best")
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


def match_arguments(files: tuple[Path, Path], *more: str) -> list[str]:
    """The arguments of a matcher without a delta."""
    return ["plan", "--impostor", str(files[0]), "--genuine", str(files[1]), "--target-fmr", "0.01", *more]


def test_a_pure_plan_needs_no_delta(run: Run, score_files: tuple[Path, Path]) -> None:
    """Without a delta the plan ranks pure mechanisms and says so; with --need the answer is the same."""
    code, out, error = run(*match_arguments(score_files, "--epsilon", "5"))
    assert code == 0, error
    text = " ".join(out.split())
    assert "With epsilon 5, an accept bit is predicted to do best" in text
    assert "Delta is 0, so only pure mechanisms are ranked" in text
    assert "gaussian" not in text
    assert run(*match_arguments(score_files, "--epsilon", "5", "--need", "verification"))[1] == out


def test_a_ranking_with_a_target(run: Run, score_files: tuple[Path, Path]) -> None:
    """A target is judged under a contract, and without one the least epsilon is found."""
    code, out, error = run(*match_arguments(score_files, "--epsilon", "8", "--target-tar", "0.9", "--json"))
    assert code == 0, error
    told = json.loads(out)
    assert told["kind"] == "choice"
    assert told["goal"]["is_met"]
    code, out, _ = run(*match_arguments(score_files, "--target-tar", "0.9"))
    assert code == 0
    text = " ".join(out.split())
    assert text.startswith("Below epsilon 4.5 no mechanism reaches the 90 % asked for.")
    found = re.search(r"The least epsilon that meets the need is ([\d.]+), with an accept bit: 90", text)
    assert found
    scores = {"impostor": np.load(score_files[0]), "genuine": np.load(score_files[1]), "false_match_rate": 0.01}
    rates = [ss.accept_bit(float(found[1]) + step, **scores).true_match_rate for step in (-2e-3, 2e-3)]
    assert rates[0] < 0.9 <= rates[1]
    code, out, _ = run(*match_arguments(score_files, "--epsilon", "2", "--target-tar", "0.9"))
    text = " ".join(out.split())
    assert "No mechanism reaches the 90 % asked for under this contract: the most is 7.39 %." in text
    assert "Raise epsilon to 4.5 or more, or lower target_tar (--target-tar)." in text


def test_a_ranking_writes_its_page(run: Run, score_files: tuple[Path, Path], tmp_path: Path) -> None:
    """A ranking writes its page, for a matcher, for a search, and for a need without scores."""
    search = ["plan", "--impostor", str(score_files[0]), "--genuine", str(score_files[1]), "--need", "retrieval"]
    for place, arguments in enumerate(
        (
            match_arguments(score_files, "--epsilon", "5", "--need", "verification", "--target-tar", "0.9"),
            [*search, "--records", "5000", "--k", "10", "--epsilon", "8", "--target-recall", "0.5"],
            ["plan", "--need", "many-queries", "--epsilon", "8", "--dimension", "64", "--queries", "10"],
        )
    ):
        page = tmp_path / f"{place}.html"
        code, out, error = run(*arguments, "--html", str(page))
        assert code == 0, error
        assert f"Written {page}" in out
        assert page.read_text().startswith("<!DOCTYPE html>")


def test_needs_are_spelt_without_spaces(run: Run) -> None:
    """A need has no spaces, and the older spelling means the same."""
    for new, old in (("many-queries", "many queries"), ("operating-point", "operating point")):
        more = ["--dimension", "64"] if new == "many-queries" else ["--records", "1000"]
        outputs = [run("plan", "--need", name, "--epsilon", "5", *more, "--json") for name in (new, old)]
        assert outputs[0][0] == 0, outputs[0][2]
        assert outputs[0] == outputs[1]
    code, _, error = run("plan", "--need", "peace", "--epsilon", "5")
    assert code == 2
    assert "--need must be one of scores, verification" in error


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--need", "retrieval", "--target-fmr", "0.01", "--epsilon", "5"], "--target-fmr cannot go with --need retr"),
        (["--need", "verification", "--target-fmr", "0.01", "--k", "5"], "--k cannot go with --need verification"),
        (["--need", "scores", "--epsilon", "5"], "--impostor and --genuine cannot go with --need scores"),
        (["--target-fmr", "0.01", "--target-tar", "0.005"], "chance alone reaches 1 %. Raise target_tar"),
        (["--target-fmr", "0.01", "--target-tar", "0.99999"], "No mechanism meets this need: without any noise"),
        (["--records", "100", "--k", "10", "--target-recall", "0.1"], "chance alone reaches 10 %"),
        (["--records", "10", "--k", "10", "--target-recall", "0.5"], "every record is returned"),
        (["--target-fmr", "0.01", "--epsilon", "5", "--clipped"], "give a --delta above 0"),
        (["--target-fmr", "0.01", "--epsilon", "5", "--scores", "x.npz"], "cannot go with"),
        (["--target-fmr", "0.01", "--epsilon", "5", "--relevant", "x.npz"], "cannot go with"),
    ],
)
def test_needs_that_contradict_themselves(
    arguments: list[str], says: str, run: Run, score_files: tuple[Path, Path]
) -> None:
    """A need that contradicts itself prints one line that says what to change."""
    files = ["--impostor", str(score_files[0]), "--genuine", str(score_files[1])]
    code, out, error = run("plan", *files, *arguments)
    assert (code, out) == (2, "")
    assert says in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("more", [["--target-fmr", "0.01"], ["--records", "1000", "--k", "10"]])
@pytest.mark.parametrize("delta", [[], ["--delta", "1e-6"]])
def test_exchanged_files(more: list[str], delta: list[str], run: Run, score_files: tuple[Path, Path]) -> None:
    """Exchanged files print one line that names the options, with and without --need."""
    needs = [[], ["--need", "verification" if "--target-fmr" in more else "retrieval"]]
    for need in needs:
        code, out, error = run(
            "plan", "--impostor", str(score_files[1]), "--genuine", str(score_files[0]), "--epsilon", "5", *more,
            *delta, *need,
        )  # fmt: skip
        assert (code, out) == (2, "")
        assert "exchange the two, which are --genuine and --impostor" in error


# files of scores


@pytest.mark.parametrize(
    ("name", "before", "between"),
    [
        ("scores.csv", "", "\n"),
        ("scores.csv", "score\n", "\r\n"),
        ("scores.txt", "# made by hand\n", "\n\n"),
        ("scores.CSV", "\ufeffscore\n", "\n"),
    ],
)
def test_scores_in_text(
    name: str, before: str, between: str, run: Run, score_files: tuple[Path, Path], tmp_path: Path
) -> None:
    """Scores in .csv and .txt give the plan of the same scores in .npy."""
    wanted = run(*match_arguments(score_files, "--epsilon", "5", "--json"))[1]
    text = tmp_path / name
    values = np.load(score_files[0]).astype(np.float64)
    text.write_text(before + between.join(repr(float(value)) for value in values) + between, newline="")
    code, out, error = run(*match_arguments((text, score_files[1]), "--epsilon", "5", "--json"))
    assert code == 0, error
    assert json.loads(out) == json.loads(wanted)


@pytest.mark.parametrize("sign", [",", ";", "\t"])
def test_a_column_of_a_text_file(sign: str, run: Run, score_files: tuple[Path, Path], tmp_path: Path) -> None:
    """FILE.csv:NAME is one column of a table, between commas, semicolons or tabs."""
    wanted = run(*match_arguments(score_files, "--epsilon", "5", "--json"))[1]
    table = tmp_path / "scores.csv"
    columns = [np.load(path).astype(np.float64) for path in score_files]
    lines = [sign.join(["imp", '"gen"', "id"])]
    lines += [
        sign.join([repr(float(one)), repr(float(two)), f"pair {n}"])
        for n, (one, two) in enumerate(zip(*columns, strict=True))
    ]
    table.write_text("\n".join(lines))
    code, out, error = run(
        "plan", "--impostor", f"{table}:imp", "--genuine", f"{table}:gen", "--target-fmr", "0.01", "--epsilon", "5",
        "--json",
    )  # fmt: skip
    assert code == 0, error
    assert json.loads(out) == json.loads(wanted)


SECRET = "0.123456"


@pytest.mark.parametrize(
    ("name", "text", "column", "says"),
    [
        ("bad.csv", f"score\n{SECRET}\nnan\n", "", "Line 3 of .*bad.csv is not a finite number"),
        ("bad.csv", f"score\n{SECRET}\n{SECRET}x\n", "", "Line 3 of .*bad.csv is not a finite number"),
        ("bad.txt", f"{SECRET}\n\ninf\n", "", "Line 3 of .*bad.txt is not a finite number"),
        ("bad.csv", f"a,b\n{SECRET},1\n{SECRET}\n", ":a", "Line 3 of .*bad.csv has 1 cells, where the table has 2"),
        ("bad.csv", f"a,b\n{SECRET},1\n", "", "has 2 columns \\(a, b\\): name one, as FILE:NAME"),
        ("bad.csv", f"a,b\n{SECRET},1\n", ":c", "has no column 'c'; its columns are a, b"),
        ("bad.csv", f"a,a\n{SECRET},1\n", ":a", "has 2 columns 'a'"),
        ("bad.csv", f"{SECRET}\n", ":a", "has no header line"),
        ("bad.csv", "", "", "is empty"),
        ("bad.csv", "score\n", "", "at least two"),
        ("bad.csv", f"a,b\n{SECRET},x\n", ":b", "Line 2, column 2, of .*bad.csv is not a finite number"),
    ],
)
def test_bad_text_files(
    name: str, text: str, column: str, says: str, run: Run, score_files: tuple[Path, Path], tmp_path: Path
) -> None:
    """A bad text file prints one line with the line of the file, and no score."""
    path = tmp_path / name
    path.write_text(text)
    code, out, error = run(
        "plan", "--impostor", f"{path}{column}", "--genuine", str(score_files[1]), "--target-fmr", "0.5",
        "--epsilon", "5",
    )  # fmt: skip
    assert (code, out) == (2, "")
    assert re.search(says, error)
    assert SECRET not in error
    assert error.count("\n") == 1


@pytest.fixture
def benchmark_files(tmp_path: Path) -> Path:
    """Vectors of 400 records and 40 queries, their scores, and the pairs that answer, in one .npz."""
    rng = np.random.default_rng(4)
    records = rng.standard_normal((400, 16))
    queries = records[:40] + 0.5 * rng.standard_normal((40, 16))
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (queries, records)]
    pairs = np.column_stack([np.arange(40), np.arange(40)])
    np.savez(tmp_path / "set.npz", records=records, queries=queries, scores=unit[0] @ unit[1].T, pairs=pairs)
    np.savetxt(tmp_path / "pairs.csv", pairs, fmt="%d", delimiter=",", header="query,record", comments="")
    return tmp_path / "set.npz"


def test_a_public_benchmark(run: Run, benchmark_files: Path) -> None:
    """A benchmark is given as scores or as vectors, with pairs in an array or a text file."""
    rest = ["--k", "5", "--epsilon", "6", "--source", "public", "--json"]
    pairs = benchmark_files.with_name("pairs.csv")
    vectors = ["--embeddings", f"{benchmark_files}:records", "--query-embeddings", f"{benchmark_files}:queries"]
    told = []
    for arguments in (
        ["--scores", f"{benchmark_files}:scores", "--relevant", f"{benchmark_files}:pairs"],
        ["--scores", f"{benchmark_files}:scores", "--relevant", str(pairs)],
        [*vectors, "--relevant", str(pairs)],
    ):
        code, out, error = run("plan", *arguments, *rest)
        assert code == 0, error
        told.append(json.loads(out))
    assert told[0]["need"] == "retrieval"
    assert told[0]["warnings"] == []
    assert told[0] == told[1]
    for one, other in zip(told[0]["candidates"], told[2]["candidates"], strict=True):
        assert one["utility"] == pytest.approx(other["utility"], abs=1e-9)
    with np.load(benchmark_files) as file:
        made = ss.plan.choose("retrieval", benchmark=(file["scores"], file["pairs"]), k=5, epsilon=6, source="public")
    assert told[0]["candidates"] == json.loads(json.dumps(made.to_dict()))["candidates"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"--relevant": None}, "--scores needs --relevant"),
        ({"--relevant": "one.csv"}, "must hold two columns, query and record"),
        ({"--relevant": "half.csv"}, "Line 2 of .*half.csv must hold two whole numbers"),
        ({"--relevant": "far.csv"}, "places in the matrix"),
        ({"--scores": None}, "Say what you need|goes with --scores"),
        ({"--impostor": "normal:0,0.1"}, "--impostor cannot go with --scores"),
        ({"--target-recall": "0.001"}, "chance alone reaches"),
    ],
)
def test_bad_benchmarks(change: dict[str, str | None], says: str, run: Run, benchmark_files: Path) -> None:
    """A bad benchmark prints one line."""
    folder = benchmark_files.parent
    for name, text in (("one.csv", "1\n2\n"), ("half.csv", "1,1\n0.5,1\n"), ("far.csv", "0,0\n0,400\n")):
        (folder / name).write_text(text)
    given: dict[str, str | None] = {
        "--scores": f"{benchmark_files}:scores",
        "--relevant": f"{benchmark_files}:pairs",
        "--k": "5",
        "--epsilon": "6",
    }
    given |= {
        name: str(folder / value) if value and value.endswith(".csv") else value for name, value in change.items()
    }
    arguments = [part for name, value in given.items() if value is not None for part in (name, value)]
    code, out, error = run("plan", *arguments)
    assert (code, out) == (2, "")
    assert re.search(says, error)
    assert error.count("\n") == 1


def test_vectors_need_a_confirmation(run: Run, benchmark_files: Path) -> None:
    """Vectors are read as clean scores, so the user confirms that they may be."""
    code, _, error = run(
        "plan", "--embeddings", f"{benchmark_files}:records", "--query-embeddings", f"{benchmark_files}:queries",
        "--relevant", f"{benchmark_files}:pairs", "--k", "5", "--epsilon", "6",
    )  # fmt: skip
    assert code == 2
    assert "state --source public, or --research" in error


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


def test_messages_of_plans_name_options(run: Run, tmp_path: Path) -> None:
    """A missing fact, too few scores and a file of another kind are stated by the names of options."""
    few, other = tmp_path / "few.csv", tmp_path / "page.png"
    few.write_text("0.1\n0.2\n0.3\n")
    other.write_bytes(b"x")
    for arguments, says in (
        (["--need", "gram", "--epsilon", "3"], "--need gram needs --records and --dimension"),
        (["--need", "retrieval", "--epsilon", "3"], "needs --k and --records and --impostor and --genuine"),
        (["--impostor", str(few), "--target-fmr", "0.01", "--epsilon", "3"], "The scores of --impostor must be at"),
        (["--impostor", str(other), "--target-fmr", "0.01", "--epsilon", "3"], ".csv or .txt file"),
    ):
        code, _, error = run("plan", *arguments)
        assert code == 2
        assert says in error
