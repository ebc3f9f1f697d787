"""The documentation: every block of code runs, every link leads somewhere, the site builds and needs no network.

What cannot run in a test stands in `NOT_RUN` with its reason, and what can be checked of it is checked.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import os
import re
import runpy
import shutil
import struct
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
import yaml
from chat_server import ChatServer, running
from docs_blocks import ROOT, Block, blocks, inline_commands, problem, prose

import scoreshield as ss

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]

#: (pages, what is not run, why). A command is named by a pattern of its whole, a block of Python by a word in it.
NOT_RUN = (
    ("README.md", r"make (demo|test)", "makes an environment first; tests/test_demo.py runs the demo"),
    ("README.md", r"pip install \.", "changes the environment of the tests"),
    ("README.md", r"scoreshield serve .*", "runs until it is stopped; tests/service/ runs such"),
    ("docs/index.md", r"pip install \.", "changes the environment of the tests"),
    ("docs/start/*.md", r"pip install .*", "changes the environment of the tests"),
    ("docs/audit-battery.md", r"python (benchmarks/audit|-m audit_battery).*", "needs an hour, or other libraries"),
    ("docs/audit.md", r"scoreshield audit https://.*", "there is no such service; test_cli_audit.py has one"),
    ("docs/container.md", r"(make image|docker .*|SCORESHIELD_USER=.*)", "needs a container engine"),
    ("docs/deployment.md", r"(docker|curl) .*", "needs a container engine"),
    ("docs/deployment.md", r"(echo|export|mkdir|openssl|umask) .*", "makes a password file beside compose.yaml"),
    ("docs/deployment.md", r"scoreshield ledger verify .*", "there is no such ledger; tests/cli/ verifies some"),
    ("docs/deployment.md", r"spend_all", "there is no such ledger; tests/service/test_outage.py runs these lines"),
    ("docs/distributed.md", r"SparkSession", "needs Spark; tests/distributed/test_spark.py runs such"),
    ("docs/experiments.md", r"make bench-quick.*", "needs the data sets and ten minutes"),
    ("docs/experiments.md", r"scoreshield bench .* --out runs/.*", "needs the data sets and minutes"),
    ("docs/experiments.md", r"scoreshield report results .*", "needs the runs; test_results_page.py has some"),
    ("docs/membership.md", r"python benchmarks/.*", "needs the data sets"),
    ("docs/mutation.md", r"(make mutate|python tools/mutate.py .*)", "needs mutmut and minutes or hours"),
    ("docs/results/*.md", r"scoreshield (bench|report results) .*", "needs the data sets and minutes"),
    ("docs/service.md", r"docker .*", "needs a container engine"),
    ("docs/service.md", r"curl .*", "needs that server; tests/service/ sends such requests"),
    ("docs/service.md", r"scoreshield (serve|verify) .*", "runs until it is stopped; tests/service/ runs such"),
    (
        "docs/service.md",
        r"scoreshield audit http://127.*",
        "needs that server; tests/service/test_audit_mode.py runs one",
    ),
    ("docs/service.md", r"(QdrantClient|OpenAI)\(", "there is no such service; tests/service/ runs these clients"),
    ("docs/versions.md", r"gh attestation .*", "needs a published version"),
    ("docs/reference/cli.md", r"scoreshield .*", "the help texts' own examples; the tests of the commands run such"),
)
#: What a page's placeholders stand for here: an embedder that needs no download, and the tests' chat server. An audit
#: takes two minutes and calls a sound release broken in up to one of 100 times; not so here.
STAND_INS = {
    "docs/audit.md": {"--out audit": "--out audit --confidence 0.999999 --releases 400"},
    "docs/start/privacy-officer.md": {"--out audit": "--out audit --confidence 0.999999 --releases 400"},
    "docs/rag.md": {"sentence-transformers:MODEL": "hashing:256", "http://localhost:8000/v1": "{server}"},
}


def test_skipped_blocks_exist() -> None:
    """Every entry of the list of code that is not run matches a block of a page."""
    code = [(block.page, text) for page in PAGES for block in blocks(page) for text in _pieces(block)]
    for pages, pattern, _ in NOT_RUN:
        assert any(_matches(pages, pattern, page, text) for page, text in code), f"{pages}: nothing is {pattern!r}"
    for page, texts in STAND_INS.items():
        for text in texts:
            assert text in (ROOT / page).read_text(encoding="utf-8"), f"{page} has no {text!r}"


def test_code_is_told_from_what_it_prints() -> None:
    console = Block("x.md", 1, "", "$ scoreshield demo \\\n    --json  # all\n$ make demo\n{}\n")
    assert console.kind == "shell"
    assert console.commands == ["scoreshield demo --json", "make demo"]
    assert Block("x.md", 1, "", ">>> 1 + 1\n2\n").kind == "doctest"
    assert Block("x.md", 1, "", "Written out.npz\n").kind == "output"
    with pytest.raises(ValueError, match=r"x\.md:1: what is 'pyhton'"):
        _ = Block("x.md", 1, "pyhton", "1\n").kind
    _imports_work(Block("x.md", 1, "python", "from scoreshield.audit import Claim\n"))
    with pytest.raises(AssertionError, match="has no Clam"):
        _imports_work(Block("x.md", 1, "python", "from scoreshield.audit import Clam\n"))
    assert problem("scoreshield release scores docs.npy --query q.npy", whole=True)  # no epsilon
    assert problem("scoreshield release scores --query", whole=False) is None
    assert problem("scoreshield relaese scores", whole=False) == "no command 'relaese'"
    assert problem("python benchmarks/nothing.py", whole=True) == "no file benchmarks/nothing.py"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_and_data_are_well_formed(page: Path) -> None:
    found = [(block.where, command) for block in blocks(page) if block.kind == "shell" for command in block.commands]
    wrong = [f"{where}: {command}: {told}" for where, command in found if (told := problem(command, whole=True))]
    wrong += [f"{command}: {told}" for command in inline_commands(page) if (told := problem(command, whole=False))]
    assert not wrong, "\n".join(wrong)
    read: dict[str, Callable[[str], object]] = {"yaml": yaml.safe_load, "json": json.loads, "toml": tomllib.loads}
    for block in blocks(page):
        if block.kind == "data":
            read[block.language](block.text)
        elif block.kind == "python" and _left_out(block.page, block.text):
            _imports_work(block)


def test_code_fits_the_page() -> None:
    """A line of code has at most 100 columns: it fits a window of 1,280 pixels. The reference is generated."""
    texts = [ROOT / "CONTRIBUTING.md", *(ROOT / "packages").glob("*/README.md"), *PAGES]
    wide = [
        f"{block.page}:{block.line + number}: {len(line)} columns"
        for page in texts
        if (ROOT / "docs" / "reference") not in page.parents
        for block in blocks(page)
        for number, line in enumerate(block.text.splitlines())
        if len(line) > 100
    ]
    assert not wide, "\n".join(wide)


def test_nothing_is_installed_from_an_index() -> None:
    """No version is published yet, so pages and examples install from a checkout."""
    sources = [*(ROOT / "examples").rglob("*.py"), *(ROOT / "examples").rglob("*.ipynb")]
    own = re.compile(r"pip install (?:-\S+ )*'?(?:[\w-]+ )*(?:langchain-|llama-index-retrievers-)?scoreshield\b")
    for page in (*PAGES, *(ROOT / "packages").glob("*/README.md"), *sources):
        assert not own.search(page.read_text(encoding="utf-8")), page


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_the_code_of_a_page_runs(page: Path, page_folders: dict[Path, Path]) -> None:
    folder = page_folders[page]
    if json.loads((folder / "steps.json").read_text()):
        assert (folder / "code").read_text() == "0", (folder / "output.txt").read_text()


@pytest.fixture(scope="session")
def page_folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    """The pages that were asked for, run, each in a process and an empty folder with the files that it names."""
    asked = [item.callspec.params["page"] for item in request.session.items if "code_of_a_page" in item.name]  # type: ignore[attr-defined]
    quiet = {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error", "COLUMNS": "120"}
    folders = {page: tmp_path_factory.mktemp("page") for page in asked}
    with running(ChatServer(reply=lambda _: "TRUE")) as server:
        for page, folder in folders.items():
            (folder / "work").mkdir()
            INPUTS.get(page.relative_to(ROOT).as_posix(), lambda _: None)(folder / "work")
            steps = [step for block in blocks(page) for step in _steps(block, server.url)]
            (folder / "steps.json").write_text(json.dumps(steps))
        command = [sys.executable, str(ROOT / "tests" / "docs_blocks.py"), *map(str, folders.values())]
        subprocess.run(command, env=os.environ | quiet, check=True, timeout=900)
    return folders


def _steps(block: Block, server: str) -> Iterator[dict[str, object]]:
    if block.kind in ("data", "output"):
        return
    kept = [piece for piece in _pieces(block) if not _left_out(block.page, piece)]
    whole = len(kept) == len(_pieces(block)) and "$ " not in block.text[:2]
    text = block.text if whole else "\n".join(kept)
    for placeholder, meant in STAND_INS.get(block.page, {}).items():
        text = text.replace(placeholder, meant.format(server=server))
    if text:
        yield {"page": block.page, "line": block.line, "kind": block.kind, "text": text}


def _pieces(block: Block) -> list[str]:
    """What is run or left out as a whole: a command; a block of anything else."""
    return block.commands if block.kind == "shell" else [block.text]


def _left_out(page: str, text: str) -> bool:
    return any(_matches(pages, pattern, page, text) for pages, pattern, _ in NOT_RUN)


def _matches(pages: str, pattern: str, page: str, text: str) -> bool:
    match = re.search if "\n" in text else re.fullmatch
    return fnmatch(page, pages) and match(pattern, text) is not None


def _imports_work(block: Block) -> None:
    """Of Python that cannot run: it is Python, and the names it takes from this library are there."""
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("scoreshield"):
            module = importlib.import_module(str(node.module))
            for name in node.names:
                assert hasattr(module, name.name), f"{block.where}: {node.module} has no {name.name}"


def _embeddings(folder: Path) -> None:
    rng = np.random.default_rng(1)
    np.save(folder / "docs.npy", rng.standard_normal((60, 16)).astype(np.float32))
    np.save(folder / "q.npy", rng.standard_normal(16))


def _scores(folder: Path) -> None:
    rng = np.random.default_rng(2)
    for impostor, genuine in (("imp", "gen"), ("irrelevant", "relevant")):
        for name, mean, sd in ((impostor, 0.0, 0.1), (genuine, 0.55, 0.14)):
            scores = rng.normal(mean, sd, 5_000).clip(-1, 1)
            np.save(folder / f"{name}.npy", scores)
            for ending in ("csv", "txt"):
                np.savetxt(folder / f"{name}.{ending}", scores)
    records = rng.standard_normal((300, 16))
    queries = records[:40] + 0.5 * rng.standard_normal((40, 16))
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (queries, records)]
    np.savez(folder / "set.npz", scores=unit[0] @ unit[1].T, pairs=np.column_stack([np.arange(40)] * 2))


def _pages_and_questions(folder: Path) -> None:
    pages = {"Olympus Mons": "The tallest volcano on Mars.", "Aletsch Glacier": "The longest glacier in the Alps."}
    lines = [json.dumps({"title": title, "text": text}) for title, text in pages.items()]
    (folder / "pages.jsonl").write_text("\n".join(lines) + "\n")
    links = "['https://en.wikipedia.org/wiki/Olympus_Mons']"
    header = "\tPrompt\tAnswer\twiki_links\treasoning_types\n"
    (folder / "test.tsv").write_text(f"{header}0\tWhat is the tallest volcano?\tOlympus Mons\t{links}\tTabular\n")


def _service(folder: Path) -> None:
    (folder / "service.py").write_text(
        "import numpy as np\nimport scoreshield as ss\n\n\n"
        "def release(embeddings, query, repeats):\n"
        "    return np.array([ss.release_scores(embeddings, query, epsilon=1, delta=1e-6).noisy\n"
        "                     for _ in range(repeats)])\n"
    )


def _grid(folder: Path) -> None:
    (grid,) = [block for block in blocks(ROOT / "docs" / "experiments.md") if block.language == "yaml"]
    (folder / "mine.yaml").write_text(grid.text)


def _all(*parts: Callable[[Path], None]) -> Callable[[Path], None]:
    return lambda folder: [part(folder) for part in parts] and None


#: The files that a page's commands name and no code of the page makes.
INPUTS: dict[str, Callable[[Path], None]] = {
    "README.md": _all(_embeddings, _scores, _pages_and_questions),
    "docs/audit.md": _service,
    "docs/experiments.md": _grid,
    "docs/plan.md": _scores,
    "docs/rag.md": _pages_and_questions,
}


EXAMPLES = ROOT / "examples"


@pytest.mark.parametrize(
    "example", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: path.relative_to(EXAMPLES).as_posix()
)
def test_examples_run(example: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, example], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    missing = re.search(r"needs the '(.+)' extra", done.stderr)
    if missing:
        pytest.skip(f"the '{missing[1]}' extra is not installed")
    assert done.returncode == 0, done.stderr
    assert re.search(r"epsilon|ScoreShield certificate|spent", done.stdout), "an example ends with what it promises"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_and_pictures_lead_somewhere(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    for target in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text):
        place = urlsplit(target)
        if place.scheme:
            assert place.scheme in ("https", "mailto"), f"{page.name}: {target}"
            continue
        path = page.parent / unquote(place.path) if place.path else page
        assert path.exists(), f"{page.name}: {target}"
        assert not place.fragment or place.fragment in _anchors(path), f"{page.name}: {target}"


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_pictures_are_sharp_and_small() -> None:
    """Twice the pixels of a page's column, so that a picture is sharp on a dense screen; all of them load quickly."""
    paths = sorted((ROOT / "docs" / "images").rglob("*.png"))
    widths = {path.name: struct.unpack(">I", path.read_bytes()[16:20])[0] for path in paths}
    assert {name: width for name, width in widths.items() if width < 1400} == {}
    assert sum(path.stat().st_size for path in paths) < 6e6


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_code_names_exist(page: Path) -> None:
    """A dotted name of the package in the text of a page can be imported."""
    dotted = r"`(?:scoreshield\.)?((?:privacy|releases|geometry|stores|report|bench)(?:\.[A-Za-z_]\w*)+)`"
    for name in set(re.findall(dotted, prose(page))):
        if name.rpartition(".")[2] in ("csv", "html", "json", "jsonl", "md", "npz", "py", "txt", "yaml"):
            continue
        found: object = importlib.import_module("scoreshield")
        path = "scoreshield"
        for part in name.split("."):
            path = f"{path}.{part}"
            if not hasattr(found, part):
                importlib.import_module(path)
            assert hasattr(found, part), path
            found = getattr(found, part)


def test_command_line_page() -> None:
    """The page of the command line is what its script writes today."""
    script = runpy.run_path(str(ROOT / "docs" / "reference" / "_command_line.py"))
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    assert page == script["text"](), "run: python docs/reference/_command_line.py"


class _Page(HTMLParser):
    """What a page of the site loads, where its links go, and what can be linked to in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.text: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        facts = {name: value or "" for name, value in attrs}
        self.ids |= {facts["id"]} if "id" in facts else set()
        loaded = [facts[name] for name in ("src", "srcset", "poster", "data") if name in facts]
        if tag == "link" and facts.get("rel") not in ("canonical", "next", "prev"):
            loaded.append(facts["href"])
        self.loads += loaded
        if tag == "a" and "href" in facts:
            self.links.append(facts["href"])

    def handle_data(self, data: str) -> None:
        self.text.append(data)


#: What builds the site, with the packages that it needs and its command. Both read mkdocs.yml.
BUILDERS = {
    "mkdocs": (("mkdocs", "material", "mkdocstrings", "griffe"), ("mkdocs", "build", "--strict")),
    "zensical": (("zensical", "mkdocstrings", "griffe"), ("zensical", "build", "--strict", "--clean")),
}


@pytest.fixture(scope="session", params=BUILDERS)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[Path, _Page]:
    """The site, built as strictly as can be by one of the two programs; its pages by their paths."""
    modules, command = BUILDERS[request.param]
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"the site needs {module}: pip install 'scoreshield[docs]'")
    folder = tmp_path_factory.mktemp(request.param)
    shutil.copytree(ROOT / "docs", folder / "docs")  # a copy, because Zensical writes a cache beside its configuration
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "mkdocs.yml", folder)
    built = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1", "SITE_DIR": "site"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return {path: _Page(path) for path in (folder / "site").rglob("*.html")}


def test_the_site_has_every_page(site: dict[Path, _Page]) -> None:
    """Both programs write one file per page, and one for addresses that do not exist."""
    home = next(path.parent for path in site if path.name == "404.html")
    sources = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    assert {path.relative_to(home) for path in site} == {page.with_suffix(".html") for page in sources} | {
        Path("404.html")
    }


def test_the_site_shows_no_raw_markdown(site: dict[Path, _Page]) -> None:
    """Tables and lists, also those in folded parts, are shown as such."""
    for path in site:
        text = re.sub(r"<(pre|code|script).*?</\1>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        found = re.search(r"\|---|<p>\s*[|-] |^- \S|^```|^::: |markdown=\"1\"", text, flags=re.MULTILINE)
        assert not found, f"{path.name}: {text[max(0, found.start() - 60) : found.end() + 60]}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_markdown_reads_the_same_on_github_and_on_the_site(page: Path) -> None:
    """The site is stricter than GitHub: a list follows an empty line, and a folded part says that it is Markdown."""
    text = prose(page)
    if page.name != "README.md":  # which is no page of the site
        assert not re.search(r"<details>|<details (?!markdown=\"1\")", text), page.name
        for paragraph in re.split(r"\n\s*\n", text):
            first, *others = paragraph.strip("\n").splitlines() or [""]
            glued = [line for line in others if re.match(r"(- |1\. )\S", line)]
            assert re.match(r"\s*([-*] |\d+\. )", first) or not glued, f"{page.name}: an empty line before {glued[:1]}"


def test_the_site_loads_nothing_from_elsewhere(site: dict[Path, _Page]) -> None:
    for path, page in site.items():
        elsewhere = [target for target in page.loads if urlsplit(target).scheme not in ("", "data")]
        elsewhere += [target for target in page.loads if target.startswith("//")]
        assert not elsewhere, f"{path.name}: {elsewhere}"
    styles = [path for path in next(iter(site)).parent.rglob("*.css")]
    assert not [path for path in styles if re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", path.read_text())]


def test_the_links_of_the_site_lead_somewhere(site: dict[Path, _Page]) -> None:
    for path, page in site.items():
        if path.name == "404.html":  # its links are for a server
            continue
        for target in page.links:
            place = urlsplit(target)
            if place.scheme:
                continue
            there = (path.parent / unquote(place.path)).resolve() if place.path else path
            assert there.exists(), f"{path.name}: {target}"
            known = not place.fragment or there not in site or unquote(place.fragment) in site[there].ids
            assert known, f"{path.name}: {target}"


def test_the_reference_has_every_public_name(site: dict[Path, _Page]) -> None:
    ids = set().union(*(page.ids for page in site.values()))
    modules = {"": ss, "audit.": ss.audit, "decisions.": ss.decisions, "plan.": ss.plan, "risk.": ss.risk}
    for prefix, module in (modules | {"attack.": ss.attack, "stores.": ss.stores, "tasks.": ss.tasks}).items():
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                paths = {f"scoreshield.{prefix}{name}", f"{thing.__module__}.{thing.__qualname__}"}
                assert paths & ids, f"ss.{prefix}{name} is on no page of docs/reference"


def test_reference_docstrings(site: dict[Path, _Page]) -> None:
    """The reference shows parameters with their types, formulas as text, and no foreign marks."""
    texts = {
        path.name: " ".join(" ".join(page.text).split()) for path, page in site.items() if "reference" in path.parts
    }
    assert "adjacency Adjacency Who is protected:" in texts["releases.html"]  # name, type from the signature, text
    assert "δ ≥ Φ(-ε/μ + μ/2) - e^ε Φ(-ε/μ - μ/2)" in texts["guarantee.html"]
    for name, text in texts.items():
        assert not re.search(r":(func|class|meth|math):|\.\. \w+::|\\[a-z]{2,}|Parameters -----", text), name
