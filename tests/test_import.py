"""What ``import scoreshield`` loads, and what it offers."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import scoreshield as ss


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_loads_no_library() -> None:
    """``import scoreshield`` alone loads neither NumPy nor any part of ScoreShield."""
    loaded = json.loads(run("import json, sys, scoreshield; print(json.dumps(sorted(sys.modules)))"))
    assert [name for name in loaded if name.partition(".")[0] in ("numpy", "scipy", "mpmath", "cryptography")] == []
    assert [name for name in loaded if name.startswith("scoreshield.")] == []


def test_release_loads_no_plan() -> None:
    """A release loads no plans, tasks, attacks, pages or statistics."""
    code = (
        "import json, sys, numpy as np, scoreshield as ss;"
        "ss.release_scores(np.eye(3), [1.0, 0.0, 0.0], epsilon=1.0, delta=1e-6);"
        "print(json.dumps(sorted(sys.modules)))"
    )
    loaded = set(json.loads(run(code)))
    assert "scoreshield.releases.scores" in loaded
    unwanted = ("plan", "tasks", "attack", "audit", "risk", "report", "bench", "search", "stores", "integrations")
    assert [name for name in unwanted if f"scoreshield.{name}" in loaded] == []
    assert "scipy.stats" not in loaded


@pytest.mark.parametrize("name", ["plan", "risk", "decisions", "attack", "audit", "search", "stores", "tasks"])
def test_subpackages_import_by_name(name: str) -> None:
    """``import scoreshield.plan`` and ``scoreshield.plan`` are the same."""
    assert import_module(f"scoreshield.{name}") is getattr(ss, name)
    assert run(f"import scoreshield.{name}; print(scoreshield.{name}.__name__)").strip() == f"scoreshield.{name}"


def test_every_public_name_is_found() -> None:
    """Each name in ``__all__`` exists, ``dir`` shows these and the version alone, and others raise."""
    assert all(getattr(ss, name) is not None for name in ss.__all__)
    assert dir(ss) == sorted([*ss.__all__, "__version__"])
    assert ss.__version__
    with pytest.raises(AttributeError, match="no attribute 'release_everything'"):
        _ = ss.release_everything


def test_type_checkers_see_the_same_names() -> None:
    """The imports for type checkers name the modules that the names are loaded from."""
    tree = ast.parse(Path(ss.__file__).read_text("utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        name.name: None if node.module == "scoreshield" else node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("scoreshield")
        for name in node.names
    }
    assert seen == ss._HOMES
    assert sorted(seen) == sorted(ss.__all__)


def test_public_signatures_have_types() -> None:
    """No public function or method takes Any where it takes a generator, a ledger or a choice of noise."""
    rooms = [ss, *(getattr(ss, name) for name in ss.__all__ if inspect.ismodule(getattr(ss, name)))]
    named = {f"{room.__name__}.{name}": getattr(room, name) for room in rooms for name in room.__all__}
    methods = {
        f"{name}.{method}": function
        for name, found in named.items()
        if inspect.isclass(found)
        for method, function in vars(found).items()
        if not method.startswith("_") or method == "__init__"
    }
    typed = {"adjacency", "calibration", "ledger", "mechanism", "norm", "rng"}
    untyped = [
        f"{name}({parameter.name})"
        for name, found in {**named, **methods}.items()
        if inspect.isfunction(function := inspect.unwrap(getattr(found, "__func__", found)))
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name in typed and str(parameter.annotation) in ("Any", "typing.Any", "<class 'inspect._empty'>")
    ]
    assert untyped == []
    assert len(methods) > 100, "the check has seen the public classes"
