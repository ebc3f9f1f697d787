"""An extra brings what its page, its examples and its modules import (tools/check_extras.py)."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("packaging", reason="needs packaging: pip install packaging")
ROOT = Path(__file__).resolve().parents[1]


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_extras", ROOT / "tools" / "check_extras.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    sys.modules["check_extras"] = tool  # dataclasses look their module up
    spec.loader.exec_module(tool)
    return tool


TOOL = load_tool()
SOURCES = TOOL.find_sources()


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_extras_bring_imports(source: object) -> None:
    """Every import comes with the install line that the code names."""
    for extra in source.extras:  # type: ignore[attr-defined]
        missing = [name for name in list_needs(extra) if not is_installed(name)]
        if missing:
            pytest.skip(f"needs {missing[0]}: pip install 'scoreshield[{extra}]'")
    assert not TOOL.find_missing(source)


def test_install_lines() -> None:
    """Every page of a framework and every example that needs an extra names it, and no extra is misspelled."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert all(extra in extras for source in SOURCES for extra in source.extras)
    pages = [source for source in SOURCES if source.path.suffix == ".md"]
    assert len(pages) >= 4
    assert all(source.extras for source in pages)


def test_stores_and_frameworks_are_checked() -> None:
    """No module of a store or a framework is left out."""
    package = ROOT / "src" / "scoreshield"
    plain = {"arrays", "base", "core", "export", "fields", "opening", "pinned", "protocol"}
    plain |= {"sentence_transformers", "text"}
    found = {
        path.relative_to(package).as_posix()
        for folder in ("integrations", "stores")
        for path in (package / folder).glob("*.py")
        if path.stem not in plain | {"__init__"}
    }
    assert found == set(TOOL.MODULES)


def test_missing_imports_are_found() -> None:
    """The check fails for an import that an extra does not bring, also within a shared namespace."""
    pytest.importorskip(
        "llama_index.vector_stores.faiss", reason="no FAISS store: pip install llama-index-vector-stores-faiss"
    )
    pytest.importorskip("langchain_core", reason="needs langchain-core: pip install langchain-core")
    page = ROOT / "docs" / "frameworks" / "langchain.md"
    code = "import json\nimport numpy\nimport langchain_core.documents\nimport langsmith\nimport scoreshield.stores\n"
    assert not TOOL.find_missing(TOOL.Source(page, ("langchain",), code))
    assert TOOL.find_missing(TOOL.Source(page, (), code)) == {"langchain_core.documents", "langsmith"}
    code = "def late():\n    from faiss import IndexFlatL2\n"
    assert TOOL.find_missing(TOOL.Source(page, ("langchain",), code)) == {"faiss"}
    code = "from llama_index.core import Document\nfrom llama_index.vector_stores.faiss import FaissVectorStore\n"
    missing = TOOL.find_missing(TOOL.Source(page, ("llama-index",), code))
    assert missing == {"llama_index.vector_stores.faiss"}


def list_needs(extra: str) -> list[str]:
    """List the packages that an extra names itself."""
    return [requirement.name for requirement in TOOL._list_requirements("scoreshield", frozenset([extra]))]


def is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return name == "scoreshield"
    return True
