"""Write the call of a plan for a terminal: as the command that makes the release, or as Python that runs."""

from __future__ import annotations

import ast
import json
import shlex
from collections.abc import Mapping
from typing import Any

import scoreshield as ss
from scoreshield.cli.score_files import split_array_name

#: The command of each release function, and the options for its arguments after the records.
_COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "release_batch": ("batch", ("--queries",)),
    "release_gram": ("gram", ()),
    "release_histogram": ("histogram", ("--query",)),
    "release_index": ("index", ()),
    "release_matches": ("matches", ("--query", "--threshold")),
    "release_scores": ("scores", ("--query",)),
    "release_top_k": ("top-k", ("--query", "--k")),
}
#: Arrays of a call, and the options of the plan that read them.
_SCORES = {"impostor": "--impostor", "genuine": "--genuine", "public_scores": "--scores"}


def write_plan_call(call: str, given: Mapping[str, Any]) -> list[str]:
    """Write what makes the release of a plan, in lines that can be pasted.

    Args:
        call: The call of a candidate.
        given: The options of the plan. The lines read the same files.

    Returns:
        One command, where a command can make the release; otherwise lines of Python.
    """
    command = write_release_command(call)
    if command is not None:
        return [command]
    tree = ast.parse(call)
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    imported = sorted({name for name in names if name in ss.__all__})
    lines = ["import numpy as np", f"from scoreshield import {', '.join(imported)}"]
    for name in ("rows", "query", "queries"):
        if name in names and not (name == "query" and "queries" in names):
            lines.append(f'{name} = np.load("{name}.npy")')
    lines += [f"{name} = {_write_file(given[option])}" for name, option in _SCORES.items() if name in names]
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "mechanism" and not isinstance(node.value, ast.Constant):
            lines.append(f"mechanism = {ast.get_source_segment(call, node.value)}")
            call = call.replace(str(ast.get_source_segment(call, node)), "mechanism=mechanism")
            break
    return [*lines, f"release = {call}"]


def write_release_command(call: str) -> str | None:
    """Write the command that makes the same release as a call of Python; None where there is none."""
    node = ast.parse(call, mode="eval").body
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _COMMANDS):
        return None
    command, options = _COMMANDS[node.func.id]
    words = ["scoreshield release", command, "rows.npy"]
    try:
        for option, value in zip(options, node.args[1:], strict=True):
            file = f"{value.id}.npy" if isinstance(value, ast.Name) else _write_value(value)
            words.append(f"{option} {file}")
        words += [_write_option(keyword) for keyword in node.keywords]
    except ValueError:  # an argument that no option takes
        return None
    return " ".join([*words, "--output release.npz"])


def _write_option(keyword: ast.keyword) -> str:
    """Write an argument of a call as an option."""
    value = keyword.value
    if keyword.arg == "mechanism" and isinstance(value, ast.Call) and ast.unparse(value.func) == "AnchoredWindows":
        best = {one.arg: _write_value(one.value) for one in value.keywords}
        if set(best) == {"k"}:
            return f"--mechanism anchored --best {best['k']}"
    return f"--{str(keyword.arg).replace('_', '-')} {_write_value(value)}"


def _write_value(node: ast.expr) -> str:
    """Write a literal as the value of an option; raise a ValueError for anything else."""
    value = ast.literal_eval(node)
    values = value if isinstance(value, tuple) else (value,)
    return " ".join(shlex.quote(str(one) if not isinstance(one, float) else f"{one:.12g}") for one in values)


def _write_file(text: str | None) -> str:
    """Write how Python reads the file of an option."""
    path, name = split_array_name(text or "")
    if path.suffix.lower() in (".npy", ".npz"):
        return f"np.load({json.dumps(str(path))})" + (f"[{json.dumps(name)}]" if name else "")
    return f"...  # {text}"
