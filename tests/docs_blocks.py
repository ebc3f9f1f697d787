"""The code of a Markdown page: finds it, says what each command must satisfy, and runs it.

As a program it runs pages: `python docs_blocks.py FOLDER...`. Each page has a process and a folder of its own; all its
Python runs in one fresh namespace, with the commands between.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SHELL, DATA, OUTPUT = ("sh", "bash", "console"), ("yaml", "json", "toml"), ("", "text")
COMMANDS = ("make", "pip", "python", "scoreshield")
_PROMPT = "$ "


@dataclass(frozen=True)
class Block:
    """One block of code of a page; ``line`` is that of its first line of code, counted from 1."""

    page: str
    line: int
    language: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def kind(self) -> str:
        """python, doctest, shell, data or output; a language that is none of these is an error."""
        first = self.text.lstrip()
        if self.language == "python":
            return "doctest" if first.startswith(">>>") else "python"
        if self.language in SHELL:
            return "shell"
        if self.language in DATA:
            return "data"
        if self.language not in OUTPUT:
            raise ValueError(f"{self.where}: what is {self.language!r}? Code must have a language that runs.")
        if first.startswith(">>>"):
            return "doctest"
        return "shell" if first.startswith(_PROMPT) else "output"

    @property
    def commands(self) -> list[str]:
        """A shell block's commands, one a line; after a prompt, the lines without one are what it printed."""
        lines = re.sub(r"\\\n\s*", "", self.text).splitlines()
        if any(line.startswith(_PROMPT) for line in lines):
            lines = [line.removeprefix(_PROMPT) for line in lines if line.startswith(_PROMPT)]
        kept = [re.sub(r"(^|\s+)#\s.*", "", line).strip() for line in lines]
        return [line for line in kept if line]


def blocks(page: Path) -> list[Block]:
    """Every fenced block, and every indented one that begins with a command."""
    name = page.relative_to(ROOT).as_posix()
    found: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    place = 0
    while place < len(lines):
        fence = re.match(r"(\s*)(```+)\s*(\S*)", lines[place])
        start = place + 1 if fence else place
        if fence:
            place = start
            while lines[place].strip() != fence[2]:  # a fence that is never closed ends in an IndexError
                place += 1
            found.append(_block(name, start, fence[3], lines[start:place]))
        elif _indented_command(lines, place):
            while place < len(lines) and lines[place].startswith("    "):
                place += 1
            found.append(_block(name, start, "sh", lines[start:place]))
            continue
        place += 1
    return found


def _block(name: str, start: int, language: str, lines: list[str]) -> Block:
    depth = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return Block(name, start + 1, language, "".join(f"{line[depth:]}\n" for line in lines))


def _indented_command(lines: list[str], place: int) -> bool:
    above_is_blank = place == 0 or not lines[place - 1].strip()
    words = lines[place].split()
    return above_is_blank and lines[place].startswith("    ") and words[:1] != [] and words[0] in (*COMMANDS, "$")


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^(\s*)(```+).*?^\s*\2\s*$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def inline_commands(page: Path) -> list[str]:
    """What stands in the text as `scoreshield ...`, `make ...` and so on."""
    return [code for code in re.findall(r"`([^`\n]+)`", prose(page)) if code.split()[0] in COMMANDS and " " in code]


@cache
def problem(command: str, *, whole: bool) -> str | None:
    """What is wrong with a command, without running it; None where nothing is, or nothing can be known.

    A ``whole`` command must have everything it requires; one in a sentence may name an option or two.
    """
    words = shlex.split(command.replace("…", ""))
    if words[0] == "scoreshield":
        return _scoreshield(words[1:], whole)
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
        missing = [word for word in words[1:] if "=" not in word and word not in targets]
        return f"no target {missing[0]!r} in the Makefile" if missing else None
    if words[0] == "pip":
        return _pip(words)
    if words[0] == "python" and words[1].endswith(".py"):
        return _script(words[1], words[2:])
    return None


def _scoreshield(words: list[str], whole: bool) -> str | None:
    import typer

    command = _command_line()
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return f"no command {words[0]!r}"
        command, words = command.commands[words[0]], words[1:]
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
    unknown = [word for word in words if word.startswith("--") and word.split("=")[0] not in known]
    if unknown:
        return f"no option {unknown[0]!r}"
    if whole and not hasattr(command, "commands"):
        try:
            command.make_context("scoreshield", list(words))
        except typer.TyperException as error:
            return error.format_message() if hasattr(error, "format_message") else str(error)
    return None


@cache
def _command_line() -> Any:
    import typer

    from scoreshield.cli import app

    return typer.main.get_command(app)


def _pip(words: list[str]) -> str | None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for word in words:
        named = re.fullmatch(r"(?:scoreshield|\.)\[(.+)\]", word)
        for extra in named[1].split(",") if named else []:
            if extra not in project["optional-dependencies"]:
                return f"no extra {extra!r}"
    return None


def _script(name: str, words: list[str]) -> str | None:
    """Whether a script is there and its argument parser has the options, read from its text: running it is slow."""
    path = ROOT / name
    if not path.is_file():
        return f"no file {name}"
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    known = {
        argument.value
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"
        for argument in call.args
        if isinstance(argument, ast.Constant)
    }
    unknown = [word for word in words if word.startswith("--") and word.split("=")[0] not in known]
    return f"{name} has no option {unknown[0]!r}" if unknown else None


def run(steps: list[dict[str, Any]]) -> None:
    """Run a page: Python in one namespace, commands by a shell that stops at the first failure."""
    page = types.ModuleType("page")
    sys.modules["page"] = page  # classes that a page defines look their module up
    for step in steps:
        print(f"--- {step['page']}:{step['line']}", flush=True)
        if step["kind"] == "python":
            source = "\n" * (step["line"] - 1) + step["text"]  # a traceback then names the page's own line
            exec(compile(source, step["page"], "exec"), vars(page))
        elif step["kind"] == "doctest":
            test = doctest.DocTestParser().get_doctest(step["text"], vars(page), step["page"], None, step["line"])
            if doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, clear_globs=False).failed:
                raise SystemExit(f"{step['page']}:{step['line']} prints something else")
        else:
            _shell(step["text"])


def _shell(script: str) -> None:
    """Most commands are our own and plain: those run in a fork, which has imported all that takes a second."""
    lines = re.sub(r"\\\n\s*", "", script).splitlines()
    if not all(line.startswith("scoreshield ") or not line.strip() for line in lines):
        lines = [script]
    for line in filter(str.strip, lines):
        if line.startswith("scoreshield ") and not re.search(r"[\n$|&;<>(){}*?~`…]", line):
            _in_a_fork(_scoreshield_main, shlex.split(line, comments=True), line)
        else:  # the commands of this environment come first
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            subprocess.run(["bash", "-euo", "pipefail", "-c", line], check=True, env=os.environ | {"PATH": path})


def _scoreshield_main(words: list[str]) -> None:
    (entry,) = entry_points(group="console_scripts", name="scoreshield")
    sys.argv = words
    sys.path[0] = str(Path(sys.executable).parent)  # as the installed command has it
    entry.load()()


def _in_a_fork(function: Callable[[Any], None], argument: Any, what: str) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(_fork(function, argument), 0)[1])
    if code != 0:
        raise SystemExit(f"exit code {code}: {what}")


def _fork(function: Callable[[Any], None], argument: Any) -> int:
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        function(argument)
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _page(folder: str) -> None:
    """What a page's process does: everything it prints goes to a file beside the folder it works in."""
    with Path(folder, "output.txt").open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.chdir(Path(folder, "work"))
    sys.path[0] = str(Path.cwd())  # as for someone who tries the page out
    run(json.loads(Path(folder, "steps.json").read_text()))


def run_pages(folders: list[str], at_once: int) -> None:
    """Run the pages whose ``steps.json`` are in these folders, each in a fork, and write its exit code there."""
    importlib.import_module("scoreshield")  # once, not in every fork
    waiting, going = list(folders), dict[int, str]()
    while waiting or going:
        if waiting and len(going) < at_once:
            folder = waiting.pop(0)
            going[_fork(_page, folder)] = folder
            continue
        child, status = os.wait()
        Path(going.pop(child), "code").write_text(str(os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    run_pages(sys.argv[1:], os.cpu_count() or 1)
