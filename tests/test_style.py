"""The style of docstrings and prose: Google sections, Markdown without Sphinx marks, and ordinary words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted((ROOT / "src").rglob("*.py"))
TEMPLATES = sorted((ROOT / "src").rglob("templates/*"))
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

#: Sections of numpydoc, and the roles and directives of Sphinx: no Markdown tool shows them.
FOREIGN_MARKS = re.compile(
    r"^ *-{3,} *$|^ *={4,}|:(func|class|meth|math|mod|data|attr|exc):`|^ *\.\. \w+::", re.MULTILINE
)
#: Archaic words and metaphors, each with a plain word for it.
BANNED = {
    r"\bfor ever\b": "forever",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bvouch": "guarantee, or hold",
    r"not to be had": "unavailable",
    r"nobody has paid|unpaid for": "uncharged",
    r"slow to tell": "slow",
    r"as plainly as": "as clearly as",
    r"who knows about": "unknown",
    r"\bwhoever\b": "anyone who",
    r"\b(told|tells?|telling) apart\b": "distinguish",
    r"\bin earnest\b": "in production",
    r"leaves? the house": "is released",
}


def _docstrings(module: Path) -> Iterator[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, kinds):
            yield ast.get_docstring(node) or ""


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(ROOT / "src").as_posix())
def test_docstring_sections(module: Path) -> None:
    """Docstrings have Google sections, and no marks of numpydoc or Sphinx."""
    foreign = [mark[0].strip() for text in _docstrings(module) for mark in FOREIGN_MARKS.finditer(text)]
    assert not foreign, f"{module.relative_to(ROOT)}: {foreign}"


@pytest.mark.parametrize("path", [*MODULES, *TEMPLATES, *PAGES], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_ordinary_words(path: Path) -> None:
    """Code, templates and pages use ordinary words."""
    text = " ".join(path.read_text(encoding="utf-8").split())
    for pattern, plain in BANNED.items():
        found = re.search(pattern, text, flags=re.IGNORECASE)
        assert found is None, f"{path.relative_to(ROOT)}: {found[0]!r}; write: {plain}"


def test_readme_lines() -> None:
    """Lines of the README fit on a screen; rows of tables may be longer."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if len(line) > 220 and not line.startswith("|")]
