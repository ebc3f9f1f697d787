"""`scoreshield doctor`: what is installed, what is missing, and the line that installs it."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import sqlite3
import sys
from importlib import metadata
from typing import Any, NamedTuple

import typer

from scoreshield._version import VERSION
from scoreshield.cli.options import Json
from scoreshield.cli.output import say, say_line

EXAMPLE = "scoreshield doctor"

#: What each extra is for.
PURPOSES = {
    "parquet": "embeddings and exports in .parquet files",
    "plots": "figures",
    "report": "pages of plans, audits and certificates",
    "frames": "data frames of pandas and polars",
    "tasks": "metrics of tasks",
    "demo": "scoreshield demo",
    "audit": "audits that are saved, and audits of services",
    "bench": "scoreshield bench",
    "gpu": "projections and searches on a GPU",
    "accounting": "comparison with dp-accounting",
    "postgres": "ledgers and stores in PostgreSQL",
    "rag": "scoreshield rag",
    "service": "scoreshield serve",
    "oidc": "sign-in of people by OpenID Connect",
    "traces": "traces of the service for OpenTelemetry",
    "text-embedders": "sentence-transformers models",
    "image-embedders": "image models",
    "face-embedders": "face models",
    "faiss": "FAISS stores and exports",
    "usearch": "USearch stores",
    "qdrant": "Qdrant stores and exports",
    "pgvector": "pgvector stores and exports",
    "chroma": "Chroma stores",
    "lancedb": "LanceDB stores and exports",
    "duckdb": "DuckDB stores",
    "langchain": "LangChain retrievers",
    "llama-index": "LlamaIndex retrievers",
    "haystack": "Haystack retrievers",
    "dask": "releases on Dask clusters",
    "spark": "releases on Spark clusters",
    "ray": "releases on Ray clusters",
    "lance": "collections in Lance tables",
    "delta": "collections in Delta tables",
    "iceberg": "collections in Iceberg tables",
    "fsspec": "collections and releases on object storage",
    "sklearn": "nearest neighbours in the style of scikit-learn",
    "sdp": "semidefinite programs, for comparison",
}
#: Extras for developers, and sums of other extras.
_LEFT_OUT = {"all", "dev", "docs", "mutation", "packaging", "peers", "stores"}
_DISTRIBUTION = "scoreshield"
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)(?:\[([^\]]*)\])?\s*([^;]*)(?:;.*?extra\s*==\s*['\"]([^'\"]+)['\"])?")
_LEAST = re.compile(r">=\s*([\d.]+)")


class InstalledPart(NamedTuple):
    """An optional part: its extra, what it is for, the versions that were found, and what it lacks."""

    extra: str
    purpose: str
    found: dict[str, str]
    missing: list[str]

    @property
    def install(self) -> str:
        """The line that installs it."""
        return f"pip install 'scoreshield[{self.extra}]'"


class Requirement(NamedTuple):
    """One line of the metadata: a distribution, its extras, the least version, and the extra that needs it."""

    name: str
    extras: tuple[str, ...]
    least: str
    extra: str | None


def doctor_command(as_json: Json = False) -> None:
    """Say which versions are installed, which optional parts are missing, and how to install them.

    It also looks for a GPU and for database drivers. The exit code is 0 whatever is missing.
    """
    requirements = read_requirements()
    parts = list_parts(requirements)
    base = {one.name: find_version(one.name) or "missing" for one in requirements if one.extra is None}
    facts: dict[str, Any] = {
        "scoreshield": VERSION,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "executable": sys.executable,
        "required": base,
        "gpu": find_gpu(),
        "databases": list_databases(),
        "environment": sorted(name for name in os.environ if name.startswith("SCORESHIELD_")),
        "optional": {
            part.extra: {"purpose": part.purpose, "found": part.found, "missing": part.missing, "install": part.install}
            for part in parts
        },
    }
    if as_json:
        typer.echo(json.dumps(facts))
        return
    say_line(f"scoreshield     {facts['scoreshield']}")
    say_line(f"python          {facts['python']} on {facts['platform']}")
    say_line(f"required        {', '.join(f'{name} {version}' for name, version in base.items()) or 'unknown'}")
    say_line(f"gpu             {facts['gpu']}")
    for name, state in facts["databases"].items():
        say_line(f"{name:<15} {state}")
    if facts["environment"]:
        say_line(f"environment     {', '.join(facts['environment'])}")
    _print_parts(parts)


def _print_parts(parts: list[InstalledPart]) -> None:
    present, lacking = [part for part in parts if not part.missing], [part for part in parts if part.missing]
    if present:
        say("\nOptional parts that are installed:")
    for part in present:
        say_line(f"  {part.extra:<16} {part.purpose}")
    if lacking:
        say("\nOptional parts that are missing; each line installs one:")
    for part in lacking:
        say_line(f"  {part.extra:<16} {part.purpose}; needs {', '.join(part.missing)}")
        say_line(f"    {part.install}")


def read_requirements() -> list[Requirement]:
    """Read what the installed package requires; nothing where it is not installed."""
    try:
        lines = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return []
    found = []
    for line in lines:
        match = _REQUIREMENT.match(line)
        if match is not None:
            name, extras, versions, extra = match.groups()
            least = _LEAST.search(versions)
            known = tuple(part.strip() for part in (extras or "").split(",") if part.strip())
            found.append(Requirement(name, known, least.group(1) if least else "", extra))
    return found


def list_parts(requirements: list[Requirement]) -> list[InstalledPart]:
    """List the optional parts, with what was found of each."""
    extras = dict.fromkeys(one.extra for one in requirements if one.extra is not None)
    parts = []
    for extra in extras:
        if extra in _LEFT_OUT:
            continue
        found, missing = {}, []
        for need in _collect(extra, requirements):
            version = find_version(need.name)
            if version is None:
                missing.append(need.name)
            elif _is_older(version, need.least):
                missing.append(f"{need.name}>={need.least} (found {version})")
            else:
                found[need.name] = version
        parts.append(InstalledPart(extra, PURPOSES.get(extra, ""), found, missing))
    return parts


def find_version(name: str) -> str | None:
    """Find the version of an installed distribution; None where it is missing."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def find_gpu() -> str:
    """Say which GPU can be used, or why none can."""
    if importlib.util.find_spec("torch") is None:
        return "not looked for: PyTorch is missing; pip install 'scoreshield[gpu]'"
    try:
        import torch

        if torch.cuda.is_available():
            return f"{torch.cuda.get_device_name(0)}, through PyTorch {torch.__version__}"
        return f"none that PyTorch {torch.__version__} can use"
    except Exception as error:  # a driver that does not fit fails in many ways
        return f"not usable: importing PyTorch raised {type(error).__name__}"


def list_databases() -> dict[str, str]:
    """List the databases that a ledger can be in, with the version of each driver."""
    driver = find_version("psycopg")
    return {
        "sqlite": sqlite3.sqlite_version,
        "postgresql": f"psycopg {driver}" if driver else "no driver; pip install 'scoreshield[postgres]'",
    }


def _collect(extra: str, requirements: list[Requirement]) -> list[Requirement]:
    """Collect the distributions of an extra, and of the extras that it includes."""
    found: dict[str, Requirement] = {}
    waiting, seen = [extra], set[str]()
    while waiting:
        current = waiting.pop()
        seen.add(current)
        for one in requirements:
            if one.extra == current and one.name == _DISTRIBUTION:
                waiting += [inner for inner in one.extras if inner not in seen]
            elif one.extra == current:
                found.setdefault(one.name, one)
    return list(found.values())


def _is_older(version: str, least: str) -> bool:
    def split(text: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3]]

    return bool(least) and split(version) < split(least)
