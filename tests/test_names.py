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
    "release_batch": "the same release on a cluster is found under the same name",
    "release_gram": "the same release on a cluster is found under the same name",
    "release_histogram": "the same release on a cluster is found under the same name",
    "release_index": "the same release on a cluster is found under the same name",
    "release_matches": "the same release on a cluster is found under the same name",
    "release_scores": "the same release on a cluster is found under the same name",
    "upgrade": "Alembic calls it in every migration",
}

#: Participles and pronouns, and words that only look like participles.
PARTICIPLES = re.compile(
    "answering|broken|brought|built|caught|chosen|done|drawn|found|given|gone|held|hidden|kept|known|left|lost|made|meant"
    "|paid|said|seen|sent|shown|spent|taken|thrown|told|written|own|what|which|who|whom|whose|[a-z]+ed"
)
VERBS_AND_NOUNS = {"aembed", "bed", "embed", "exceed", "feed", "need", "seed", "speed"}

#: The ends of class names that belong to one folder or a few.
HOMES = {
    "Adjacency": ("privacy",),
    "Experiment": ("bench",),
    "Noise": ("privacy/noise",),
    "Page": ("bench/report", "report"),
    "Plan": ("plan",),
    "Release": ("releases",),
    "Retriever": ("integrations",),
    "Search": ("search",),
    "Store": ("stores", "integrations"),
}

#: Classes in another folder than the end of their name says, and why.
AWAY = {
    "DemoRelease": "one row of what the demo shows",
    "DistributedRelease": "a release in parts on storage, which no function on one machine returns",
    "IdentityRelease": "a release that an audit attacks",
    "IndexPlan": "how one index is made; releases/ charges it",
    "RuleNoise": "the noise of a textbook rule, in a figure",
    "ShippedRelease": "a release that an audit attacks",
    "UselessRelease": "a warning, with the errors",
}

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


def is_participle(name: str) -> bool:
    """Return whether a name is one word that says neither what an object is nor what a function does."""
    word = name.strip("_")
    word = word[:1].lower() + word[1:]
    return PARTICIPLES.fullmatch(word) is not None and word not in VERBS_AND_NOUNS


def test_one_module_per_name() -> None:
    """No public class or function is defined in two modules, except those with a reason."""
    twice = {
        name: [path for path, _ in places]
        for name, places in public_definitions().items()
        if len({path for path, _ in places}) > 1
    }
    assert {name: paths for name, paths in twice.items() if name not in SHARED} == {}


def test_functions_are_verbs() -> None:
    """No function, public or private, is named by a participle alone, such as ``judged``."""
    functions = [
        f"{path.relative_to(SOURCE).as_posix()}: {node.name}"
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and is_participle(node.name)
        and node.name not in STATES
        and not any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
    ]
    assert functions == []


def test_reasons_are_needed() -> None:
    """The list of exceptions holds no name that is unique by now."""
    twice = {name for name, places in public_definitions().items() if len({path for path, _ in places}) > 1}
    assert SHARED.keys() <= twice


def list_classes() -> list[tuple[str, str]]:
    return [
        (path.relative_to(SOURCE).as_posix(), node.name)
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]


def test_classes_are_nouns() -> None:
    """No class, public or private, is named by a participle or a pronoun alone."""
    assert [f"{path}: {name}" for path, name in list_classes() if is_participle(name)] == []


def test_classes_are_at_home() -> None:
    """A store is in ``stores/``, a noise law in ``privacy/noise/``, and so on."""
    away = {
        name: path
        for path, name in list_classes()
        for end, homes in HOMES.items()
        if name.endswith(end) and not any(path.startswith((f"{home}/", f"{home}.py")) for home in homes)
    }
    assert {name: path for name, path in away.items() if name not in AWAY} == {}
    assert AWAY.keys() <= away.keys(), "a reason that is not needed"
