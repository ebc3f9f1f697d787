"""Build scoreshield and the packages in packages/, install each package into an empty environment, and run its tests.

`make packages` runs it. Wheels are built from source distributions, so that these are complete. The tests run in a
folder that holds neither the repository nor the source of a package.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = sorted(path.parent for path in (ROOT / "packages").glob("*/pyproject.toml"))
PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="the packages to build; all by default")
    parser.add_argument("--built", action="store_true", help="use the scoreshield that is in the output folder")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="the folder of the built files")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - {package.name for package in PACKAGES}
    if unknown:
        parser.error(f"no package {min(unknown)!r} in packages/; there are {', '.join(p.name for p in PACKAGES)}")
    if arguments.built and not list(arguments.output.glob("scoreshield-*.whl")):
        parser.error(f"there is no wheel of scoreshield in {arguments.output}; build it first: make wheel")
    chosen = [package for package in PACKAGES if not arguments.names or package.name in arguments.names]
    with tempfile.TemporaryDirectory() as folder:
        python = _make_environment(Path(folder, "build"))
        _run(python, *PIP, "install", "build")
        for project in chosen if arguments.built else (ROOT, *chosen):
            _run(python, "-m", "build", "--outdir", str(arguments.output), str(project), is_quiet=True)
        for package in chosen:
            _test(package, arguments.output, Path(folder, package.name))
    print(f"Built and tested: {', '.join(package.name for package in chosen)}. The files are in {arguments.output}.")


def _test(package: Path, built: Path, folder: Path) -> None:
    """Install a package from its wheel, scoreshield too, and run a copy of its tests."""
    print(f"--- {package.name}", flush=True)
    python = _make_environment(folder / "environment")
    wheel = max(built.glob(f"{package.name.replace('-', '_')}-*.whl"), key=lambda path: path.stat().st_mtime)
    _run(python, *PIP, "install", "--find-links", str(built), f"{wheel}[test]")
    copy = folder / "copy"
    shutil.copytree(package / "tests", copy / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(package / name, copy)
    _run(python, "-m", "pytest", "-q", "--rootdir", str(copy), str(copy / "tests"), folder=copy)


def _make_environment(folder: Path) -> str:
    venv.create(folder, with_pip=True)
    return str(folder / ("Scripts" if os.name == "nt" else "bin") / "python")


def _run(python: str, *words: str, folder: Path | None = None, is_quiet: bool = False) -> None:
    """Run Python without the source tree on its path, and stop with its exit code if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [python, *words],
        cwd=folder or tempfile.gettempdir(),
        env=environment,
        stdout=subprocess.PIPE if is_quiet else None,
        stderr=subprocess.STDOUT if is_quiet else None,
    )
    if result.returncode:
        sys.stdout.buffer.write(result.stdout or b"")
        sys.exit(result.returncode)


if __name__ == "__main__":
    main()
