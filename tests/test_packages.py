"""The packages for frameworks: their metadata, and their own tests with their source on the path.

Nothing is built or downloaded. `make packages` builds them, and runs the same tests in empty environments.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAIN = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
#: For each package: its extra, the module of its framework, the folder of its source, and its import path.
PACKAGES = {
    "langchain-scoreshield": ("langchain", "langchain_core", ".", "langchain_scoreshield"),
    "llama-index-retrievers-scoreshield": (
        "llama-index",
        "llama_index.core",
        ".",
        "llama_index.retrievers.scoreshield",
    ),
    "scoreshield-haystack": (
        "haystack",
        "haystack",
        "src",
        "haystack_integrations.components.retrievers.scoreshield",
    ),
}

each_package = pytest.mark.parametrize("name", PACKAGES)


def read_project(name: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / "packages" / name / "pyproject.toml").read_text("utf-8"))


def test_all_packages_are_listed() -> None:
    """Every folder of packages/ is tested here."""
    assert sorted(path.parent.name for path in (ROOT / "packages").glob("*/pyproject.toml")) == sorted(PACKAGES)


@each_package
def test_metadata(name: str) -> None:
    """A package has the version of scoreshield, needs exactly it, and states the same Pythons and licence."""
    whole, main = read_project(name), MAIN["project"]
    project, extra = whole["project"], PACKAGES[name][0]
    assert project["name"] == name
    assert project["version"] == main["version"]
    assert project["dependencies"] == [f"scoreshield[{extra}]=={main['version']}"]
    for field in ("requires-python", "license", "license-files", "authors"):
        assert project[field] == main[field]
    pythons = [one for one in main["classifiers"] if one.startswith("Programming Language")]
    assert [one for one in project["classifiers"] if one.startswith("Programming Language")] == pythons
    assert "Typing :: Typed" in project["classifiers"]
    assert whole["build-system"] == MAIN["build-system"]


@each_package
def test_files(name: str) -> None:
    """A package has the licence, a README with its install line, a mark of types, and no file in a shared namespace."""
    folder = ROOT / "packages" / name
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    readme = (folder / "README.md").read_text("utf-8")
    assert f"pip install '.[{PACKAGES[name][0]}]' packages/{name}\n" in readme, "no package is published yet"
    _, _, source, path = PACKAGES[name]
    parts = path.split(".")
    assert f"from {path} import PrivateRetriever" in readme
    assert (folder.joinpath(source, *parts) / "py.typed").is_file()
    for depth in range(1, len(parts)):
        assert [one.name for one in folder.joinpath(source, *parts[:depth]).iterdir() if one.is_file()] == []
    (packaged,) = read_project(name)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert (folder / packaged) == folder / source / parts[0]


@each_package
def test_package(name: str) -> None:
    """The tests of a package pass with its source on the path: imports, a retrieval, what is written, the README."""
    extra, framework, source, _ = PACKAGES[name]
    pytest.importorskip(framework, reason=f"needs {framework}: pip install 'scoreshield[{extra}]'")
    folder = ROOT / "packages" / name
    path = os.pathsep.join(map(str, (folder / source, ROOT / "src")))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    result = subprocess.run(
        [*command, "-c", str(folder / "pyproject.toml"), "--rootdir", str(folder), str(folder / "tests")],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed" in result.stdout
    assert "skipped" not in result.stdout
