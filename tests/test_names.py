"""One meaning per name: a public class or function is defined in one module, classes are nouns, functions are verbs."""

from __future__ import annotations

import ast
import collections
import re
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "scoreshield"

#: Names that two modules define, and why each keeps its name.
SHARED = {
    "PrivateRetriever": "users of each framework look for this name in its module",
    "PrivateVectorStore": "users of each framework look for this name in its module",
}

#: Participles, pronouns and adjectives that say nothing about what an object is.
NOT_NOUNS = re.compile(
    r"(Made|Held|Whose|Told|Found|Kept|Known|Given|Seen|Own|Paid|Asked|Wanted|Saved|Prepared|Released|Observed|Weighted"
    r"|Grouped|Denoised|Adapted|Answering|Releasing|Pinned|[A-Z][a-z]+ed)"
)

NOT_VERBS = re.compile(
    r"_*(made|held|told|found|kept|known|given|seen|own|paid|drawn|taken|left|(?!a?embed|need|seed|feed|exceed)[a-z]+ed)_*"
)

#: Public methods that keep their names for the sake of their users.
STATES = {
    "changed": "PrivateRetriever.changed() of the Haystack integration",
    "factored": "GramRelease.factored()",
}


def public_definitions() -> dict[str, list[tuple[str, ast.stmt]]]:
    found: dict[str, list[tuple[str, ast.stmt]]] = collections.defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith(
                "_"
            ):
                found[node.name].append((path.relative_to(SOURCE).as_posix(), node))
    return found


def test_one_module_per_name() -> None:
    """No public class or function is defined in two modules, except those with a reason."""
    twice = {name: [path for path, _ in places] for name, places in public_definitions().items() if len(places) > 1}
    assert {name: paths for name, paths in twice.items() if name not in SHARED} == {}


def test_functions_are_verbs() -> None:
    """No function, public or private, is named by a participle alone, such as ``judged``."""
    functions = [
        f"{path.relative_to(SOURCE).as_posix()}: {node.name}"
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and NOT_VERBS.fullmatch(node.name)
        and node.name not in STATES
        and not any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
    ]
    assert functions == []


def test_reasons_are_needed() -> None:
    """The list of exceptions holds no name that is unique by now."""
    twice = {name for name, places in public_definitions().items() if len(places) > 1}
    assert SHARED.keys() <= twice


def test_classes_are_nouns() -> None:
    """No class is named by a participle, a pronoun or an adjective alone."""
    classes = [
        f"{path}: {name}"
        for name, places in public_definitions().items()
        for path, node in places
        if isinstance(node, ast.ClassDef) and NOT_NOUNS.fullmatch(name)
    ]
    assert classes == []
