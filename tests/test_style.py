"""The style of code and prose: Google sections, ordinary words, pages as templates, decisions by types."""

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
    r"^ *-{3,} *$|^ *={4,}|:(func|class|meth|math|mod|data|attr|exc):`|^ *\.\. \w+::"
    r"|^ *:(param|returns?|raises|r?type)\b|^ *(Parameters|Arguments|Return|Raise|Throws|Examples):? *$",
    re.MULTILINE,
)
#: Elements of a page. They belong to templates, which escape what they show.
MARKUP = re.compile(
    r"(?<!\?P)</?(a|b|body|br|code|details|div|em|figure|g|h[1-6]|head|html|i|img|li|link|meta|ol|p|path|pre|script|section|span"
    r"|strong|style|summary|svg|table|td|text|th|title|tr|ul)(\s[^<>]*)?/?>",
    re.IGNORECASE,
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
    r"\brefus(e|es|ed|ing|al)\b": "reject, or raise an error",
    r"\b(tell|tells|telling|told)( \w+){1,4} apart\b": "distinguish",
    r"\btells? (no more|nothing|at least as much)\b": "reveal",
    r"\btold, not judged\b": "measured only",
    r"\bnobody\b": "no one, or name the attacker",
    r"\bone and the same\b": "the same",
    r"\bonce for all\b": "once",
    r"\b(lest|thereof|whereof|hereby)\b": "an ordinary word",
    r"'s sake\b": "because of, or for",
    r"\bpa(id|ys?) for\b": "charged",
    r"\bin truth\b": "exactly, or really",
    r"\bif need be\b|\bas one likes\b|\bas (that|it) takes\b": "if necessary",
    r"\bnext to nothing\b": "negligible",
    r"\ball of whose\b": "for which all",
    r"\bon the way to read\b|\bfor all to read\b": "where others can read it",
    r"\bleans? towards\b": "near",
    r"\blives? on (the|a) grid\b": "lies on the grid",
    r"\bbears? (it|this) out\b": "support it",
}


def _docstrings(module: Path) -> Iterator[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, kinds):
            yield ast.get_docstring(node) or ""


each_module = pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(ROOT / "src").as_posix())


@each_module
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


@each_module
def test_pages_are_templates(module: Path) -> None:
    """No string in code holds elements of a page."""
    strings = [
        (node.lineno, node.value)
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert [(line, found[0]) for line, text in strings if (found := MARKUP.search(text))] == []


@each_module
def test_errors_have_types(module: Path) -> None:
    """No code decides by the words of an error: it looks at the class or the attributes."""
    assert _list_text_decisions(ast.parse(module.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "code",
    [
        "if 'locked' in str(error): retry()",
        "if f'{error}' == 'locked': retry()",
        "if error.args[0] == 'locked': retry()",
        "if str(error).startswith('locked'): retry()",
        "if re.search('locked', str(error)): retry()",
        "text = str(error).lower()\n    if 'locked' in text: retry()",
    ],
)
def test_text_decision_is_found(code: str) -> None:
    """The check finds a decision in each of its usual forms."""
    assert _list_text_decisions(ast.parse(f"try:\n    work()\nexcept OSError as error:\n    {code}")) != []


def test_other_uses_of_errors() -> None:
    """An error may be shown, and asked for its attributes."""
    code = "try:\n    work()\nexcept OSError as error:\n    if error.errno == 2: print(str(error), 'x' in name)"
    assert _list_text_decisions(ast.parse(code)) == []


def _list_text_decisions(tree: ast.AST) -> list[str]:
    """List the expressions that search or compare the text of an exception."""
    errors = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name}
    errors |= {
        node.arg
        for node in ast.walk(tree)
        if isinstance(node, ast.arg)
        and node.annotation
        and re.search(r"(Error|Exception)\b", ast.unparse(node.annotation))
    }
    texts = {"str", "repr", "format", "describe_error", "explain_failure"}

    def is_text(node: ast.AST) -> bool:
        inner = list(ast.walk(node))
        names = {one.id for one in inner if isinstance(one, ast.Name)}
        is_converted = bool(names & texts) or any(
            isinstance(one, ast.JoinedStr) or (isinstance(one, ast.Attribute) and one.attr == "args") for one in inner
        )
        return bool(names & copies) or (bool(names & errors) and is_converted)

    copies: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and is_text(node.value):
            copies |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    found = []
    for node in ast.walk(tree):
        is_comparison = isinstance(node, ast.Compare) and isinstance(
            node.ops[0], ast.In | ast.NotIn | ast.Eq | ast.NotEq
        )
        if is_comparison and any(map(is_text, [node.left, *node.comparators])):
            found.append(ast.unparse(node))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_search = node.func.attr in {"search", "match", "fullmatch", "findall"} and any(map(is_text, node.args))
            is_test = node.func.attr in {"startswith", "endswith", "find", "count"} and is_text(node.func.value)
            if is_search or is_test:
                found.append(ast.unparse(node))
    return found
