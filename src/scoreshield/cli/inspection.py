"""What a file of ScoreShield is: a release, a certificate, a codebook, levels, a ledger, the folder of a run.

A file is recognised by its content. Only released and public facts are read out: no embeddings, and no hit counters.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import scoreshield as ss
from scoreshield import _files, _loading
from scoreshield.cli.output import LEDGER_SCHEMES
from scoreshield.distributed.results import open_release
from scoreshield.distributed.storage import MANIFEST
from scoreshield.releases.index import PrivateIndex

_SQLITE = b"SQLite format 3\x00"
_COUNTERS = b"scoreshield hit counters"
_TEXT = b"ScoreShield certificate\n"
_ARRAYS = (".npy", ".npz", ".parquet", ".csv")
#: How the titles of pages begin (report/templates).
_PAGES = {
    "ScoreShield certificate: ": "the page of a certificate",
    "ScoreShield: audit of ": "the page of an audit",
    "ScoreShield: ": "the page of a plan",
}


class UnknownFile(ss.InvalidInput):
    """The file is none that ScoreShield writes."""


@dataclass(frozen=True)
class FileDescription:
    """What a file is.

    Attributes:
        kind: A word for machines, such as "release" or "ledger".
        summary: A phrase for people.
        facts: Further public facts, by names that people read.
        guarantee: The guarantee, if the file has one.
        content: The object in the file, if it has one.
    """

    kind: str
    summary: str
    facts: dict[str, Any] = field(default_factory=dict)
    guarantee: ss.Guarantee | None = None
    content: Any = None


def describe_file(name: str) -> FileDescription:
    """Say what a file, a folder or the address of a ledger is.

    Raises:
        UnknownFile: ScoreShield writes no such file.
        InvalidInput: The file is damaged.
        FileError: It cannot be read.
    """
    if name.startswith(LEDGER_SCHEMES):
        return _describe_ledger(name)
    path = Path(name)
    if path.is_dir():
        return _describe_folder(path)
    start = _read_start(path)
    if start.startswith(_SQLITE):
        return _describe_ledger(f"sqlite:///{path}")
    if start.startswith(_COUNTERS):
        return _describe_counters(path)
    if start.startswith(_TEXT):
        return _describe_text(path)
    if start.lower().startswith(b"<!doctype html>"):
        return _describe_page(path)
    if path.suffix.lower() == ".json":
        return _describe_json(path)
    if path.suffix.lower() == ".npz" and _files.holds_release(path):
        return _describe_release(path)
    if path.suffix.lower() in _ARRAYS:
        raise UnknownFile(
            f"{path} holds arrays and no release: it has no certificate. Embeddings are released with "
            "'scoreshield release'."
        )
    raise UnknownFile(f"{path} is no file that ScoreShield writes.")


def locate_release(path: Path) -> Path:
    """Return the release that a file belongs to: FILE.npz for FILE.json, FILE.txt and FILE.html."""
    if path.suffix.lower() == ".npz":
        return path
    found = path.with_suffix(".npz")
    other = path.with_suffix(".NPZ")
    return other if other.is_file() and not found.is_file() else found


def _read_start(path: Path, length: int = 64) -> bytes:
    with _loading.open_regular_file(path) as raw:
        return raw.read(length)


# ---- Releases and what belongs to them.


def _describe_release(path: Path) -> FileDescription:
    kind = _files.read_release(path)[0]
    if kind == "public codebook":
        book = ss.PublicCodebook.load(path)
        facts = {"vectors": len(book), "dimension": book.dimension, "source": book.source}
        return FileDescription("codebook", "a public codebook, for an index over public vectors", facts, content=book)
    release: ss.Release = ss.load(path)
    return FileDescription(
        "index" if isinstance(release, PrivateIndex) else "release",
        f"a release of kind {release.kind}",
        _list_release_facts(release, path),
        release.guarantee,
        release,
    )


def _list_release_facts(release: ss.Release, path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = {"shape": " x ".join(f"{length:,}" for length in release.guarantee.shape)}
    if isinstance(release, PrivateIndex):
        facts["dimension of queries"] = release.dimension
    if isinstance(release, ss.IndexVersion | ss.CodebookVersion):
        facts["version"] = release.version
    beside = [ending for ending in (".json", ".txt", ".html", ".ids.json") if _beside(path, ending).exists()]
    facts["files beside it"] = ", ".join(_beside(path, ending).name for ending in beside) or "none"
    return facts


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.stem + ending)


def _describe_text(path: Path) -> FileDescription:
    release = locate_release(path)
    if not release.exists():
        raise ss.InvalidInput(f"{path} is a certificate as text, and its release {release.name} is not beside it.")
    found = _describe_release(release)
    return FileDescription(
        "certificate", f"the certificate of {release.name}, as text", found.facts, found.guarantee, found.content
    )


def _describe_page(path: Path) -> FileDescription:
    """Describe a page by its title; a certificate also by the release beside it."""
    found = re.search(r"title>(.*?)</", _read_start(path, 4096).decode("utf-8", "replace"), re.DOTALL)
    title = html.unescape(found[1]).strip() if found else ""
    kind = next((kind for beginning, kind in _PAGES.items() if title.startswith(beginning)), None)
    if kind is None:
        raise UnknownFile(f"{path} is a page, and none that ScoreShield writes.")
    release = locate_release(path)
    if title.startswith("ScoreShield certificate") and release.is_file() and _files.holds_release(release):
        certified = _describe_release(release)
        return replace(certified, kind="certificate", summary=f"the certificate of {release.name}, as a page")
    facts = {"title": title[:200], "not checked": "a page is for people; give `show` and `verify` the release itself"}
    return FileDescription("page", f"{kind}, for people to read in a browser", facts)


def _describe_counters(path: Path) -> FileDescription:
    from scoreshield.search.hit_counters import CounterFile

    header = CounterFile(path).header
    try:
        guarantee = ss.Guarantee.from_dict(dict(header.facts["guarantee"]))
    except (KeyError, TypeError, ValueError):
        raise ss.InvalidInput(f"{path} holds counters without a valid guarantee.") from None
    facts = {"records": header.records, "secret": "the counters; never copy or publish this file"}
    return FileDescription("hits", "the secret counters of a hit budget", facts, guarantee)


# ---- JSON files.


def _describe_json(path: Path) -> FileDescription:
    data = _files.read_json_file(path)
    if not isinstance(data, dict):
        raise UnknownFile(f"{path} is no file that ScoreShield writes.")
    for is_kind, describe in _JSON_KINDS:
        if is_kind(data):
            return describe(path, data)
    raise UnknownFile(f"{path} is no file that ScoreShield writes.")


def _describe_certificate(path: Path, data: dict[str, Any]) -> FileDescription:
    stated = [name for name in ("file", "sha256", "issued", "scoreshield") if name in data]
    facts: dict[str, Any] = {name: _loading.make_printable(str(data[name])[:200]) for name in stated}
    with _loading.explain_read_errors(path):
        guarantee = ss.Guarantee.from_dict(data["guarantee"])
    return FileDescription("certificate", f"the certificate of {facts['file']}, for machines", facts, guarantee, data)


def _describe_signed(path: Path, data: dict[str, Any]) -> FileDescription:
    """Describe a document that a service signed: an answer, several, a certificate or a list of entries."""
    del path
    stated = [name for name in ("collection", "action") if name in data]
    facts: dict[str, Any] = {name: _loading.make_printable(str(data[name])[:80]) for name in stated}
    signature = data["signature"]
    facts["signed by"] = _loading.make_printable(
        str(signature.get("key") if isinstance(signature, dict) else None)[:80]
    )
    return FileDescription("signed document", "a document that a service signed", facts, content=data)


def _describe_tail(path: Path, data: dict[str, Any]) -> FileDescription:
    del data
    shape = ss.TailShape.load(path)
    facts = {"k": shape.k, "origin": shape.origin, "dimension": shape.dimension or "not stated"}
    return FileDescription("tail", "a public tail shape, for release scores --tail", facts, content=shape)


def _describe_levels(path: Path, data: dict[str, Any]) -> FileDescription:
    del data
    levels = ss.PublicLevels.load(path)
    facts = {"10th best score": levels.tenth, "50th best score": levels.fiftieth, "source": levels.source}
    return FileDescription("levels", "public levels, for release batch and hits --levels", facts, content=levels)


def _describe_ids(path: Path, data: dict[str, Any]) -> FileDescription:
    release = path.with_name(path.name.removesuffix(".ids.json") + ".npz")
    facts = {"ids": len(data["ids"]), "hidden": len(data["hidden"]), "index": release.name}
    return FileDescription("ids", f"the public ids of the index {release.name}", facts, content=data)


def _describe_export(path: Path, data: dict[str, Any]) -> FileDescription:
    del path
    facts = {"entries": len(data["entries"])}
    return FileDescription("ledger export", "the exported entries of a ledger", facts, content=data)


def _describe_audit_report(path: Path, data: dict[str, Any]) -> FileDescription:
    from scoreshield.audit.result import AuditResult

    with _loading.explain_read_errors(path):
        result = AuditResult.from_dict(data["result"])
    facts = {
        "verdict of the audit": result.verdict,
        "time": str(data.get("time"))[:40],
        "is broken": result.broken,
        "is broken by rows": result.broken_by_rows,
    }
    return FileDescription("audit", f"the report of an audit of {result.name}", facts, content=result)


_Test = Callable[[dict[str, Any]], bool]
_Describe = Callable[[Path, dict[str, Any]], FileDescription]
_JSON_KINDS: tuple[tuple[_Test, _Describe], ...] = (
    (lambda data: {"file", "sha256", "guarantee"} <= data.keys(), _describe_certificate),
    (
        lambda data: "signature" in data and not {"collection", "answers", "scoreshield"}.isdisjoint(data),
        _describe_signed,
    ),
    (lambda data: data.get("kind") == "tail shape", _describe_tail),
    (lambda data: {"kind", "tenth", "fiftieth"} <= data.keys(), _describe_levels),
    (lambda data: isinstance(data.get("ids"), list) and isinstance(data.get("hidden"), list), _describe_ids),
    (lambda data: "ledger" in data and isinstance(data.get("entries"), list), _describe_export),
    (lambda data: {"verdict", "broken", "result"} <= data.keys(), _describe_audit_report),
)


# ---- Ledgers and folders.


def _describe_ledger(url: str) -> FileDescription:
    ledger = ss.Ledger.open(url)
    spent = ledger.spent_on(None)
    facts = {
        "limit": f"epsilon {ledger.epsilon:g} at delta {ledger.delta:g}, for each dataset",
        "spent": f"epsilon {spent:.6g}, on the dataset on which most is spent",
        "datasets": len(ledger.datasets()),
        "entries": int(ledger.head().partition(":")[0]),
        "head": ledger.head(),
    }
    verification = ledger.verify()
    if not verification:
        facts = {"WARNING": f"the chain does not verify: {verification.reason}"} | facts
    return FileDescription("ledger", "a ledger of privacy budgets", facts, content=ledger)


def _describe_parts(path: Path) -> FileDescription:
    release = open_release(path)
    facts = {"records": release.manifest.source.rows, "parts": len(release), "snapshot": release.manifest.snapshot}
    summary = f"a release of {release.manifest.kind} in parts"
    return FileDescription("release in parts", summary, facts, release.guarantee, release)


def _describe_folder(path: Path) -> FileDescription:
    if (path / "report.json").exists():
        found = _describe_json(path / "report.json")
        return replace(found, kind="audit folder", summary=f"the folder of an audit, with {found.summary}")
    if (path / MANIFEST).exists():
        return _describe_parts(path)
    settings = _files.RunFolder(path).read_settings()
    if settings is None:
        raise UnknownFile(f"The folder {path} holds neither a run nor an audit, and no release in parts.")
    if {"asked", "begun"} <= settings.keys():
        facts: dict[str, Any] = {"begun": str(settings["begun"])[:40]}
        return FileDescription("audit folder", "the folder of an audit that is not finished", facts)
    has_results = (path / "results.csv").exists()
    facts = {"made by version": str(settings.get("version", "unknown"))[:40], "has results": has_results}
    return FileDescription("run folder", "the folder of a run of 'scoreshield bench' or 'scoreshield rag'", facts)
