"""What a command prints is in the words of the command line: its options, and no call of Python."""

from __future__ import annotations

import builtins
import json
import re
import shlex
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield import _files, cli
from scoreshield._formatting import choose_words, speak_commands
from scoreshield.cli.plan_calls import write_plan_call, write_release_command

SCORES = "release scores docs.npy --query q.npy --output r.npz"
INDEX = "release index docs.npy --epsilon 50 --output i.npz"
HITS = "hits docs.npy --query q.npy --epsilon 32 --file d.hits"
BATCH = "release batch docs.npy --queries qs.npy --k 3 --epsilon 8 --output b.npz"
MATCHES = "release matches docs.npy --query q.npy --threshold 0.4 --epsilon 5 --output m.npz"
GRAM = "release gram docs.npy --epsilon 5 --delta 1e-6 --output g.npz"
PLAN = "plan --impostor scores.npy --genuine near.npy"

#: Bad calls, and what their errors must name.
BAD = {
    f"{SCORES} --epsilon 8": "--for ranking keeps more and needs none",
    f"{SCORES} --epsilon eight": "--epsilon must be a number. Got 'eight'",
    f"{SCORES} --epsilon 8 --for rank": "--for: 'rank' is not one of 'values', 'ranking', 'threshold'",
    f"{SCORES} --epsilon 8 --for ranking --score-range 1 0": "<= 1. Got (1, 0) instead",
    f"{SCORES} --epsilon 8 --for ranking --delta 2": "--delta",
    f"{SCORES} --epsilon 8 --for ranking --top-k 2.5": "--top-k must be a whole number. Got '2.5'",
    f"{SCORES} --epsilon 8 --mechanism laplace --delta 1e-6": "--delta must be 0",
    f"{SCORES} --epsilon 8 --mechanism laplace --calibration classical": "Calibration rules",
    f"{SCORES} --epsilon 8 --mechanism anchored --best 0": "--best",
    f"{SCORES} --epsilon 8 --mechanism anchored --tail levels.json": "levels.json",
    f"{SCORES} --epsilon 8 --for ranking --require-recall 0.99": "A recall of 0.99 is required",
    f"{SCORES} --epsilon 8 --for ranking --require-recall 2": "--require-recall",
    f"{SCORES} --epsilon 8 --for ranking --ledger sqlite:///no.db --dataset a": "one with `scoreshield ledger init`",
    f"{SCORES} --epsilon 8 --for ranking --labels labels.npy": "give a --delta above 0",
    f"{SCORES} --epsilon 8 --for ranking --labels scores.npy": "labels",
    "release scores docs.npy --query qs.npy --epsilon 8 --for ranking --output r.npz": "`scoreshield release batch`",
    "release scores docs.npy --query qs.npy --epsilon 8 --mechanism laplace --output r.npz": "--mechanism gaussian",
    "release scores two.npz --query q.npy --epsilon 8 --output r.npz": "(a, b); say which one with --array",
    "release scores docs.npy --query two.npz --epsilon 8 --output r.npz": "--query: two.npz holds several arrays",
    "release matches docs.npy --query two.npz --threshold 0.4 --epsilon 8 --output r.npz": "with --query-array",
    "release batch docs.npy --query two.npz --k 3 --epsilon 8 --output r.npz": "one with --queries-array",
    "release scores docs.npy --query words.txt --epsilon 8 --output r.npz": "--query: words.txt must be a .npy",
    f"{SCORES} --epsilon 8 --for ranking --labels two.npz": "--labels: two.npz holds several arrays (a, b); give",
    f"{SCORES} --epsilon 8 --for ranking --public-scores two.npz --public-relevant near.npy": "as two.npz:NAME",
    "release scores missing.parquet --query q.npy --epsilon 8 --output r.npz": "There is no file missing.parquet",
    f"{INDEX} --ids ids.txt": "--ids must be left out unless --changes public",
    f"{INDEX} --center words.txt": "--center: words.txt must be a .npy",
    f"{INDEX} --center two.npz": "say which one with --center-array",
    f"{INDEX} --center-share 0.1": "--center-share must be left out unless --center private",
    f"{INDEX} --mechanism gaussian": "--delta must be above 0",
    f"{INDEX} --delta 1e-6 --changes public --mechanism gaussian --ids ids.txt": "--mechanism privunit",
    f"{INDEX} --components 999": "--components",
    f"{INDEX} --codebook q.npy": "codebook",
    f"{INDEX} --codebook docs2.npy --codebook-source x --code-size 999": "--code-size",
    f"{HITS} --cut 0.5 --cut 0.2": "--cut must be",
    f"{HITS} --hits 1000": "--hits",
    f"{HITS} --names 0": "--names",
    f"{HITS} --labels labels.npy": "--centroids",
    f"{HITS} --labels labels.npy --centroids --null-record": "--null-record",
    f"{HITS} --ids words.txt": "one id per row",
    f"{BATCH} --level 0.5 --level 0.2": "--level must be",
    f"{BATCH} --names 0": "--names",
    f"{BATCH} --labels labels.npy --require-recall 3": "--require-recall",
    f"{MATCHES} --refine 2": "--refine",
    f"{MATCHES} --labels labels.npy": "--centroids",
    "release gram docs.npy --epsilon 5 --delta 0 --mechanism laplace --output g.npz": "`scoreshield release index`",
    f"{GRAM} --denoise rank --projection none": "leave --projection none out",
    f"{GRAM} --device tpu": "--device",
    f"{GRAM} --max-iterations 0": "--max-iterations",
    f"{GRAM} --gram-radius -1": "radius",
    "release row docs.npy --index 900 --epsilon 5 --delta 1e-6 --output w.npz": "--index",
    "release row docs.npy --index 1 --epsilon 5 --delta 0 --mechanism staircase --output w.npz": "--mechanism gaussian",
    "release top-k docs.npy --query q.npy --k 0 --epsilon 5 --output t.npz": "--k",
    "release histogram docs.npy --query q.npy --epsilon 1 --delta 1e-6 --output h.npz": "--delta",
    "release histogram docs.npy --query q.npy --epsilon 1 --bins 0 --output h.npz": "--bins",
    "release update docs.npy --removed ids.txt --output u.npz": "docs.npy is an .npy file, which holds one array",
    "search codebook.npz --query q.npy": "give it as --codebook",
    "search docs.npy --query q.npy": "docs.npy is an .npy file, which holds one array, and no .npz file",
    "search index.npz --query q.npy --k 0": "--k must be at least 1. Got '0'",
    "search index.npz --query q.npy --ids words.txt": "--ids must hold one id per record, 30 of them",
    "search index.npz --query long.npy": "query",
    "ledger status sqlite:///none.db": "`scoreshield ledger init`",
    "ledger init sqlite:///ledger.db --epsilon 1 --delta 0": "`scoreshield ledger status`",
    "ledger init sqlite:///new.db --epsilon -1 --delta 0": "--epsilon",
    "calibrate --epsilon 1 --delta 0 --sensitivity 1": "--delta",
    "calibrate --epsilon 1 --delta 1e-6 --sensitivity 0": "--sensitivity",
    f"{PLAN} --target-fmr 2 --epsilon 5": "--target-fmr",
    f"{PLAN} --target-fmr 0.01 --epsilon 0": "--epsilon",
    f"{PLAN} --target-fmr 0.01 --epsilon 5 --html plan.txt": ".html",
    "plan --impostor two.npz --genuine near.npy --target-fmr 0.01 --epsilon 5": "as two.npz:NAME",
    "public fit-levels q.npy --source x --output l.json": "scores",
    "public fit-tail two.npz --source x --output l.json": "say which one with --array",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((30, 12))
    np.save("docs.npy", rows)
    np.save("docs2.npy", rng.standard_normal((30, 12)))
    np.save("q.npy", rows[0])
    np.save("qs.npy", rows[:3])
    np.save("long.npy", np.ones(13))
    np.save("labels.npy", np.arange(30) // 2)
    np.save("scores.npy", rng.normal(0, 0.1, 500).clip(-1, 1))
    np.save("near.npy", rng.normal(0.5, 0.1, 500).clip(-1, 1))
    np.savez("two.npz", a=rows, b=rows)
    Path("words.txt").write_text("one\ntwo\n")
    Path("ids.txt").write_text("\n".join(f"doc {number}" for number in range(30)))
    ss.PublicCodebook(rows, source="made up").save("codebook.npz")
    ss.PublicLevels(0.357, 0.272, 2519).save("levels.json")
    ss.release_index(rows, epsilon=50, rng=1).save("index.npz")
    ss.Ledger.create("sqlite:///ledger.db", epsilon=5, delta=0)
    return tmp_path


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    assert folder.exists()

    def call(line: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["scoreshield", *shlex.split(line)])
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            with pytest.raises(SystemExit) as caught:
                cli.main()
        printed = capsys.readouterr()
        return int(caught.value.code or 0), printed.out, printed.err

    return call


def find_python(text: str) -> list[str]:
    """Find names and calls of Python in a text of the command line."""
    names = {name for name in dir(ss) if re.fullmatch(r"[A-Z][a-z]+([A-Z][a-z]+)+|[a-z]+_[a-z_]+", name)}
    names -= {"UselessRelease", "TailShapeWarning", "LedgerWarning"}  # a warning begins with its class
    found = re.findall(r"parameter of|\w+='|\w+=(?:True|False)|\b[A-Z]\w+\(\)", text)
    return found + sorted(name for name in names if re.search(rf"(?<![\w./-]){name}\b", text))


@pytest.mark.parametrize("line", BAD)
def test_errors_are_in_words_of_the_command_line(line: str, run: Any) -> None:
    """One line that names the option, and no parameter, class or call of Python."""
    code, out, err = run(line)
    assert (code, out) == (2, ""), (out, err)
    assert BAD[line] in err
    last = err.splitlines()[-1]
    assert last.startswith("scoreshield: ")
    assert find_python(err) == []


def test_warnings_and_predictions_are_in_words_of_the_command_line(run: Any) -> None:
    """A prediction names --public-scores, and a warning the command that would help."""
    np.save("wide.npy", np.random.default_rng(1).standard_normal((2_000, 384)))
    np.save("wide-q.npy", np.random.default_rng(2).standard_normal(384))
    code, _, err = run("release index wide.npy --epsilon 8 --output w.npz")
    assert code == 0
    assert err.startswith("UselessRelease: ")
    assert "a release per query (scoreshield release scores --for ranking) is predicted" in err
    assert "; --public-scores of your model" in err
    code, out, more = run("hits wide.npy --query wide-q.npy --epsilon 32 --file w.hits")
    assert code == 0
    assert "public scores of each query (--public-scores) show how many" in out
    assert find_python(err) == find_python(more) == []
    assert find_python(out.partition("worth")[2]) == []


def test_words_are_those_of_python_elsewhere() -> None:
    assert choose_words("Ledger.create", "ledger init") == "Ledger.create"
    with speak_commands():
        assert choose_words("Ledger.create", "ledger init") == "ledger init"
    with pytest.raises(ss.LedgerError, match=r"make one with Ledger\.create\.$"):
        ss.Ledger.open("sqlite:///no-such-ledger.db")


def test_both_spellings_of_a_query(run: Any) -> None:
    """One query or several: --query and --queries are the same option."""
    for line in (
        "release scores docs.npy --queries q.npy --epsilon 8 --for ranking --output a.npz",
        "release batch docs.npy --query qs.npy --k 3 --epsilon 20 --output b.npz",
        "search index.npz --queries qs.npy --query-array x",
    ):
        code, _, err = run(line)
        assert code == (2 if "--query-array" in line else 0), err


def test_search_with_ids(run: Any) -> None:
    """Public ids replace row numbers, and an index that states its ids takes none."""
    numbers = json.loads(run("search index.npz --query q.npy --k 3 --json")[1])["answers"][0]["ids"]
    named = json.loads(run("search index.npz --query q.npy --k 3 --ids ids.txt --json")[1])["answers"][0]["ids"]
    assert named == [f"doc {number}" for number in numbers]
    assert run(f"{INDEX} --changes public --ids ids.txt")[0] == 0
    code, _, err = run("search i.npz --query q.npy --ids ids.txt")
    assert code == 2
    assert "i.npz states the ids of its records: leave --ids out" in err


@pytest.mark.parametrize("command", ["hits", "search", "release scores", "show"])
def test_a_command_without_arguments_shows_its_help(command: str, run: Any) -> None:
    code, out, err = run(command)
    assert (code, err) == (0, "")
    assert f"Usage: scoreshield {command} " in out


def test_help_is_in_whole_sentences(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of the source ends no line of the help, and an option that is repeated names one value."""
    monkeypatch.setenv("COLUMNS", "200")
    out = run("hits --help")[1]
    assert "Each hit has a place: the middle of the level" in " ".join(out.split())
    assert "Each hit has a\n" not in re.sub(" +\n", "\n", out)
    assert "list[" not in out
    assert "<float>" in out.partition("--cut ")[2][:40]
    for command in ("show", "plan"):
        assert "Overwrite earlier files of that name." in run(f"{command} --help")[1]


def test_facts_of_a_release_are_words_in_four_digits(run: Any) -> None:
    """Printed text has no name of JSON and no number of 17 digits, beside a list of whole numbers."""
    for line, words in (
        ("release histogram docs.npy --query q.npy --epsilon 1 --output h.npz", "error of a rate at most "),
        (INDEX, "on a score, as a standard deviation"),
        (MATCHES, ", 95 times in 100"),
    ):
        code, out, _ = run(line)
        assert code == 0
        assert words in out
        facts = out.partition("Every released number")[2] or out[-600:]
        assert not re.search(r"\d\.\d{7}|[a-z]+_[a-z]+", facts.rpartition("\n\n")[2].partition("worth")[0])


def test_a_missing_file_is_reported_before_a_missing_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_module = builtins.__import__

    def without_arrow(name: str, *more: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return import_module(name, *more)

    monkeypatch.setattr(builtins, "__import__", without_arrow)
    with pytest.raises(ss.FileError, match=r"There is no file .*missing"):
        _files.read_array(folder / "missing.parquet")
    (folder / "there.parquet").write_bytes(b"PAR1")
    with pytest.raises(ss.InvalidInput, match="'parquet' extra"):
        _files.read_array(folder / "there.parquet")


# ---- The call of a plan.


@pytest.mark.parametrize(
    ("call", "command"),
    [
        (
            'release_scores(rows, query, epsilon=20, mechanism="staircase", score_range=(-0.07, 0.395))',
            "scores rows.npy --query query.npy --epsilon 20 --mechanism staircase --score-range -0.07 0.395",
        ),
        (
            "release_scores(rows, query, epsilon=8, mechanism=AnchoredWindows(k=10))",
            "scores rows.npy --query query.npy --epsilon 8 --mechanism anchored --best 10",
        ),
        (
            "release_matches(rows, query, 0.31, epsilon=1e-05)",
            "matches rows.npy --query query.npy --threshold 0.31 --epsilon 1e-05",
        ),
        ("release_top_k(rows, query, 5, epsilon=8)", "top-k rows.npy --query query.npy --k 5 --epsilon 8"),
        ("release_batch(rows, queries, epsilon=8, k=5)", "batch rows.npy --queries queries.npy --epsilon 8 --k 5"),
        ("release_index(rows, epsilon=8, components=64)", "index rows.npy --epsilon 8 --components 64"),
        ("release_gram(rows, epsilon=8, delta=1e-06)", "gram rows.npy --epsilon 8 --delta 1e-06"),
        ("release_histogram(rows, query, epsilon=1)", "histogram rows.npy --query query.npy --epsilon 1"),
        ("release_index(rows, epsilon=8).gram()", None),
        ("[release_scores(rows, query, epsilon=8) for query in queries]", None),
        ("release_batch(rows, queries, epsilon=8, k=5, levels=PublicLevels.fit(public_scores))", None),
        ("release_scores(rows, query, epsilon=8, mechanism=AnchoredWindows(tail=TailShape.fit(x)))", None),
    ],
)
def test_the_call_of_a_plan_as_a_command(call: str, command: str | None) -> None:
    expected = None if command is None else f"scoreshield release {command} --output release.npz"
    assert write_release_command(call) == expected


def test_a_plan_prints_what_runs(run: Any) -> None:
    """The printed command, or the printed Python, makes the release."""
    np.save("rows.npy", np.load("docs.npy"))
    np.save("query.npy", np.load("q.npy"))
    code, out, _ = run(f"{PLAN} --target-fmr 0.01 --epsilon 5 --source public")
    assert code == 0
    lines = out.splitlines()
    start = lines.index("import numpy as np")
    end = next(place for place, line in enumerate(lines) if line.startswith("release = "))
    space: dict[str, Any] = {}
    exec("\n".join(lines[start : end + 1]), space)
    assert space["release"].guarantee.mechanism == "levels"
    code, out, _ = run("plan --need operating-point --records 30 --epsilon 1")
    command = next(line for line in out.splitlines() if line.startswith("  scoreshield "))
    assert run(command.removeprefix("  scoreshield "))[0] == 0


def test_files_that_python_cannot_load_by_one_call() -> None:
    lines = write_plan_call(
        "release_scores(rows, query, epsilon=5, mechanism=accept_bit(5, impostor=impostor, genuine=genuine).table)",
        {"--impostor": "far.csv", "--genuine": "both.npz:near"},
    )
    assert "impostor = ...  # far.csv" in lines
    assert 'genuine = np.load("both.npz")["near"]' in lines


def test_a_plan_without_a_target_says_so(run: Any) -> None:
    """No row says 'any' where no rate of true matches is asked for."""
    _, out, _ = run(f"{PLAN} --target-fmr 0.01 --epsilon 5 --delta 1e-6 --source public")
    assert "no target" in out
    assert not re.search(r"\bany\b", out)
