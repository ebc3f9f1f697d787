"""The help of every command: its example runs and is not wrapped, ``-h`` works, and it is there quickly."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import scoreshield as ss
from scoreshield import cli
from scoreshield._version import VERSION
from scoreshield.cli import commands, root_help

#: Examples that take minutes, or need data that are not here; their options are checked all the same.
NOT_RUN = {
    "scoreshield audit --own --quick": "minutes",
    "scoreshield bench noise --quick --out runs/noise": "minutes",
    "scoreshield demo --output scoreshield-demo": "a minute; tests/test_demo.py runs it",
    "scoreshield serve --collection docs=docs.parquet --epsilon 8 --budget 400": "a minute; test_server.py runs such",
    "scoreshield serve --config policy.yaml": "a minute; tests/service/test_server.py runs it",
    "scoreshield serve --dummy --records 1000 --dimension 384": "a minute; tests/service/test_server.py runs it",
    "scoreshield serve keys create --config policy.yaml --caller app": "a minute; test_server.py runs it",
    "scoreshield serve keys list": "a minute; tests/service/test_access.py lists keys",
    "scoreshield serve keys list --config policy.yaml": "a minute; tests/service/test_access.py lists keys",
    "scoreshield serve keys rotate 1a2b3c4d --overlap-hours 24": "a minute; tests/service/test_access.py does",
    "scoreshield serve keys revoke 1a2b3c4d": "a minute; tests/service/test_server.py does",
    "scoreshield serve people create ada --role officer --collection docs": "a minute; test_people.py does",
    "scoreshield serve people change ada --role admin --all-collections": "a minute; test_people.py does",
    "scoreshield serve people disable ada --config policy.yaml": "a minute; tests/service/test_people.py does",
    "scoreshield serve people enable ada --config policy.yaml": "a minute; tests/service/test_people.py does",
    "scoreshield serve people list": "a minute; tests/service/test_people.py does",
    "scoreshield serve people list --config policy.yaml": "a minute; tests/service/test_people.py does",
    "scoreshield serve people set-password ada --config policy.yaml": "a minute; tests/service/test_people.py does",
    "scoreshield serve rotate-signing-key scoreshield-installation.key": "a minute; tests/service/test_rest.py does",
    "scoreshield report results --runs runs --markdown results.md --html results.html": "finished runs",
    "scoreshield report figures --out figures": "a minute; tests/report/test_figures.py draws them",
}


def run(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["scoreshield", *arguments])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return int(stopped.value.code or 0)


def list_commands(command: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield names, command
    for name, below in getattr(command, "commands", {}).items():
        yield from list_commands(below, (*names, name))


COMMANDS = dict(list_commands(typer.main.get_command(cli.app)))
EXAMPLES = {line for names, command in COMMANDS.items() if names for line in str(command.epilog).split("\n")}
each_command = pytest.mark.parametrize("names", COMMANDS, ids=lambda names: " ".join(names) or "scoreshield")


@each_command
def test_help_has_an_example_on_one_line(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both names of the help show the example whole, also on a narrow terminal, and no value for a switch."""
    monkeypatch.setenv("COLUMNS", "60")
    shown = []
    for option in ("--help", "-h"):
        assert run(*names, option, monkeypatch=monkeypatch) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert "<bool>" not in shown[0]
    assert "-h" in shown[0]
    example = COMMANDS[names].epilog
    assert example, "every command has an example"
    lines = [line.strip() for line in shown[0].split("\n")]
    assert all(line in lines for line in example.split("\n"))


@pytest.mark.parametrize("group", ["release", "ledger", "report", "public", "serve"])
def test_bare_groups_show_their_help(
    group: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A group without a command shows the same as its help."""
    assert run(group, monkeypatch=monkeypatch) == 0
    bare = capsys.readouterr()
    assert run(group, "--help", monkeypatch=monkeypatch) == 0
    assert bare.out == capsys.readouterr().out
    assert "Usage: scoreshield" in bare.out
    assert bare.err == ""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the examples name."""
    rng = np.random.default_rng(3)
    rows, query = rng.standard_normal((60, 8)), rng.standard_normal(8)
    monkeypatch.chdir(tmp_path)
    for name in ("docs.npy", "faces.npy", "emb.npy"):
        np.save(name, rows)
    np.save("q.npy", query)
    np.save("qs.npy", rows[:4])
    np.save("past.npy", rng.standard_normal((20, 8)))
    np.save("codebook.npy", rng.standard_normal((300, 8)))
    np.save("scores.npy", np.clip(rng.normal(0.1, 0.2, (30, 400)), -1, 1))
    np.savetxt("imp.csv", np.clip(rng.normal(0.0, 0.1, 2000), -1, 1))
    np.savetxt("gen.csv", np.clip(rng.normal(0.6, 0.1, 2000), -1, 1))
    Path("gone.txt").write_text("3\n7\n")
    Path("service.py").write_text("import numpy as np\ndef release(rows):\n    return np.random.normal(0, 9, 8)\n")
    Path("pages.jsonl").write_text("".join(json.dumps({"title": f"T{i}", "text": f"words {i}"}) + "\n" for i in (1, 2)))
    Path("test.tsv").write_text("")
    return tmp_path


def prepare(line: str) -> None:
    """Make what an example takes from an earlier command."""
    rows, query = np.load("docs.npy"), np.load("q.npy")
    if "ledger.db" in line and "init" not in line:
        account = ss.Ledger.create("sqlite:///ledger.db", epsilon=10, delta=1e-6).account("letters")
        ss_release(rows, query, account)
        if "abandon" in line:
            stop_cluster_release(query, account)
    elif " r.npz" in line and "--output r.npz" not in line:
        ss_release(rows, query, None)
    if "index.npz" in line and "--output index.npz" not in line:
        ids = [str(number) for number in range(len(rows))]
        ss.release_index(rows, epsilon=20, changes="public", ids=ids).save("index.npz")


def stop_cluster_release(query: Any, account: Any) -> None:
    """Begin a release in parts, and interrupt it after its charge."""
    from scoreshield import distributed

    def stop(step: str, *_: int) -> None:
        if step == "release":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distributed.release_scores(
            "docs.npy", query, to="scores-of-q", epsilon=2, mechanism="staircase", ledger=account, progress=stop
        )


def ss_release(rows: Any, query: Any, account: Any) -> None:
    from scoreshield.report.certificate import save_with_certificate

    save_with_certificate(ss.release_scores(rows, query, epsilon=2, delta=1e-6, ledger=account), Path("r.npz"))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("line", sorted(EXAMPLES))
def test_examples_run(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Every example is a command that exists, and the quick ones end well."""
    words = shlex.split(line)
    assert words[0] == "scoreshield"
    place = next(count for count in (3, 2) if tuple(words[1:count]) in COMMANDS)
    COMMANDS[tuple(words[1:place])].make_context("scoreshield", words[place:])  # raises an error for unknown options
    if line in NOT_RUN:
        pytest.skip(f"needs {NOT_RUN[line]}; run it by hand: {line}")
    if words[1] == "rag":
        pytest.skip(f"needs pages and questions; tests/cli/test_cli_rag.py runs such: {line}")
    prepare(line)
    monkeypatch.setattr("scoreshield.audit.engine.MINUTES", 0.03)  # an audit takes as long as it may
    code = run(*words[1:], monkeypatch=monkeypatch)
    assert code == 0, capsys.readouterr().err


# ---- Start-up.

UNWANTED = ("typer", "click", "rich", "numpy", "scipy", "typing", "json", "re", "importlib.metadata", "pathlib")


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["-h"], []], ids=str)
def test_start_up_loads_little(arguments: list[str]) -> None:
    """The version and the help load neither Typer nor NumPy, nor any part of ScoreShield but the command line."""
    code = (
        f"import sys; sys.argv = ['scoreshield', *{arguments!r}]\n"
        "before = set(sys.modules)\n"
        "from scoreshield.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "print('|'.join(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1].split("|")
    assert [name for name in loaded if name in UNWANTED] == []
    ours = {name for name in loaded if name.startswith("scoreshield")}
    assert ours <= {
        *("scoreshield", "scoreshield._version", "scoreshield.cli"),
        *("scoreshield.cli.commands", "scoreshield.cli.root_help"),
    }


def test_version_is_that_of_the_package() -> None:
    """The version that is printed without metadata is the one in the metadata and in pyproject.toml."""
    import tomllib

    project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())["project"]
    assert VERSION == project["version"] == ss.__version__
    assert metadata.version("scoreshield") == VERSION, "the package is installed from another version: install it again"


def test_a_command_loads_no_other(tmp_path: Path) -> None:
    """A command imports its own module, not those of the others."""
    code = (
        "import sys; sys.argv = 'scoreshield calibrate --epsilon 1 --delta 1e-6 --sensitivity 2'.split()\n"
        "from scoreshield.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    print(sorted(name for name in sys.modules if '.cli.' in name))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "scoreshield.cli.calibrate" in done.stdout
    assert [name for name in ("plan", "audit", "rag", "release") if f"'scoreshield.cli.{name}'" in done.stdout] == []


def test_root_help_names_every_command() -> None:
    """The help without Typer names every command once, with the line that completion shows for it."""
    text = root_help.format_root_help(100, is_colored=False)
    for group in commands.GROUPS.values():
        for name, (_, _, summary) in group.items():
            assert f"│ {name} " in text
            assert summary in text
            assert COMMANDS[(name,)].short_help == summary
    assert all(len(line) <= 100 for line in text.split("\n"))
    assert "\x1b" not in text
    assert "\x1b[1;36m" in root_help.format_root_help(100, is_colored=True)
    assert all(len(line) <= 50 for line in root_help.format_root_help(50, is_colored=False).split("\n")[5:-4])


def test_root_help_without_unicode() -> None:
    """A terminal that cannot show the frame gets one of plain characters."""
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    code = "import sys; sys.argv = ['scoreshield']; from scoreshield.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, check=True)
    assert b"+- Options -" in done.stdout


# ---- Errors.


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("release scores docs.npy --query q.npy --epsilon -1 --output r.npz", "--epsilon must be a positive finite"),
        ("release scores docs.npy --query q.npy --epsilon 1 --delta 2 --output r.npz", "--delta must be a number in"),
        ("release scores docs.npy --query scores.npy --epsilon 1 --delta 1e-6 --output r.npz", "--query must be"),
        ("release top-k docs.npy --query q.npy --k 0 --epsilon 1 --output r.npz", "--k must be"),
        ("release gram q.npy --epsilon 1 --delta 1e-6 --output r.npz", "EMBEDDINGS must be"),
        (
            "release gram docs.npy --epsilon 1 --delta 1e-6 --projection none --denoise rank --output r.npz",
            "leave --projection none out",
        ),
        (
            "release scores docs.npy --query q.npy --epsilon 1 --for ranking --mechanism laplace --output r.npz",
            "leave --mechanism out, or --for",
        ),
        ("release scores docs.npy --query q.npy --epsilon 1 --for threshold --output r.npz", "needs --threshold"),
        ("release scores docs.npy --query q.npy --epsilon 1 --delta 1e-6 --output r.txt", "--output must end in .npz"),
        ("calibrate --epsilon 1 --delta 1e-6 --sensitivity -2", "--sensitivity must be"),
        ("relese", "Did you mean 'release'? (see 'scoreshield --help')"),
        ("release scores docs.npy", "(see 'scoreshield release scores --help')"),
    ],
)
def test_errors_name_the_option(
    line: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error names what the user typed, not the parameter of a Python function."""
    assert run(*line.split(), monkeypatch=monkeypatch) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert "parameter" not in printed.err
    assert printed.err.count("\n") == 1
