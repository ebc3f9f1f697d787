"""`scoreshield verify FILE`: whether a file, its certificate and its ledger entry agree.

The exit code is 0 where every check passed, 1 where one failed, and 2 where nothing could be checked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer

import scoreshield as ss
from scoreshield import _files, _loading
from scoreshield.cli.inspection import FileDescription, UnknownFile, describe_file, locate_release
from scoreshield.cli.options import Json
from scoreshield.cli.output import say
from scoreshield.privacy.ledger.entries import Entry, write_canonical_json
from scoreshield.releases.index import PrivateIndex
from scoreshield.report.certificate import describe_verdict, write_file_facts

EXAMPLE = "scoreshield verify r.npz\nscoreshield verify r.npz --ledger sqlite:///ledger.db --dataset letters"
_RELEASES = (".npz", ".json", ".txt", ".html")
_NO_SIGNATURE = "none: this version signs nothing; the checks find accidents and edits, not a forged set of files"


class FileCheck(NamedTuple):
    """One check of a file.

    Attributes:
        name: What was checked.
        outcome: Whether it passed, failed, or was left out.
        detail: One sentence.
    """

    name: str
    outcome: Literal["passed", "failed", "not checked"]
    detail: str


def verify_file_command(
    file: Annotated[str, typer.Argument(help="A file that `scoreshield show` knows.", metavar="FILE")],
    ledger: Annotated[
        str | None, typer.Option(help="Look for the entry of the release here: sqlite:///FILE or postgresql://...")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="With --ledger: the dataset that must have been charged.")] = None,
    as_json: Json = False,
) -> None:
    """Check that a file holds together, that its certificate agrees, and that a ledger was charged for it.

    Exit code 0 means that every check passed, 1 that one failed. Nothing is changed and nothing is charged.
    """
    if dataset is not None and ledger is None:
        raise ss.InvalidInput("--dataset needs --ledger, which says where its budget is kept.")
    checks = list(_check_file(file, ledger, dataset))
    is_sound = all(check.outcome != "failed" for check in checks)
    if as_json:
        typer.echo(json.dumps({"file": file, "ok": is_sound, "checks": [check._asdict() for check in checks]}))
    else:
        for check in checks:
            say(f"{check.outcome:<12} {check.name:<12} {check.detail}")
        say(f"{file}: {'everything that was checked agrees' if is_sound else 'NOT in order'}.")
    if not is_sound:
        raise typer.Exit(1)


def _check_file(file: str, url: str | None, dataset: str | None) -> Iterator[FileCheck]:
    try:
        path = _find_release(file)
        found = describe_file(file if path is None else str(path))
    except UnknownFile:
        raise
    except (ss.InvalidInput, ss.LedgerError) as error:
        yield FileCheck("content", "failed", str(error))
        return
    yield FileCheck("content", "passed", f"{found.summary}: its parts agree with one another")
    if path is not None and found.guarantee is not None:
        yield from _check_certificate(path, found)
        if isinstance(found.content, PrivateIndex) and path.with_name(f"{path.stem}.ids.json").exists():
            yield _check_ids(path)
    if found.kind == "ledger":
        yield _check_chain(found.content)
    if found.guarantee is not None:
        yield _check_entry(found, url, dataset)
    elif url is not None:
        raise ss.InvalidInput(f"--ledger is for files with a certificate; this is {found.summary}.")
    yield FileCheck("signature", "not checked", _NO_SIGNATURE)


def _find_release(file: str) -> Path | None:
    """Find the release that a file belongs to; None where it is another file."""
    path = Path(file)
    if path.suffix not in _RELEASES or path.name.endswith(".ids.json") or not locate_release(path).is_file():
        return None
    release = locate_release(path)
    return release if _files.holds_release(release) else None


# ---- The files beside a release.


def _check_certificate(path: Path, found: FileDescription) -> Iterator[FileCheck]:
    guarantee = found.guarantee
    assert guarantee is not None
    checksum = hashlib.sha256(_loading.read_bytes(path)).hexdigest()
    record = _read_record(path.with_suffix(".json"))
    if record is None:
        yield FileCheck("json", "not checked", f"there is no certificate {path.with_suffix('.json').name} beside it")
    else:
        yield _check_record(path, record, checksum, guarantee)
    version = None if record is None else record.get("scoreshield")
    for ending, check in ((".txt", _check_text), (".html", _check_page)):
        beside = path.with_suffix(ending)
        if beside.exists():
            text = _loading.read_bytes(beside).decode("utf-8", "replace")
            yield check(beside, text, checksum, guarantee, version)
        elif ending == ".txt":
            yield FileCheck("txt", "not checked", f"there is no certificate {beside.name} beside it")


def _read_record(path: Path) -> dict[str, Any] | None:
    try:
        record = _loading.parse_json(_loading.read_bytes(path))
    except _loading.MissingFile:
        return None
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _check_record(path: Path, record: dict[str, Any], checksum: str, guarantee: ss.Guarantee) -> FileCheck:
    name = path.with_suffix(".json").name
    if record.get("sha256") != checksum:
        return FileCheck("json", "failed", f"{name} is the certificate of another file, or {path.name} was changed")
    expected = json.loads(json.dumps(describe_verdict(guarantee)))
    if record.get("guarantee") != expected["guarantee"]:
        return FileCheck("json", "failed", f"{name} states another guarantee than {path.name}")
    judged = [key for key in ("verdict", "right_at_most", "warnings") if record.get(key) != expected[key]]
    if judged and record.get("scoreshield") == ss.__version__:
        return FileCheck("json", "failed", f"{name} states another {judged[0]} than follows from the guarantee")
    beside = "" if record.get("file") == path.name else f"; it was written as {str(record.get('file'))[:80]}"
    return FileCheck("json", "passed", f"{name} has the checksum and the guarantee of {path.name}{beside}")


def _check_text(beside: Path, text: str, checksum: str, guarantee: ss.Guarantee, version: object) -> FileCheck:
    if f"\n{'SHA-256':<15}{checksum}\n" not in text:
        return FileCheck("txt", "failed", f"{beside.name} has the checksum of another file, or none")
    if version not in (None, ss.__version__):
        return FileCheck("txt", "passed", f"{beside.name} has the checksum; another version worded it")
    expected = f"{guarantee}\n{write_file_facts({'File': ''}).rstrip()}"
    if not text.startswith(expected):
        return FileCheck("txt", "failed", f"{beside.name} says something else than the guarantee")
    return FileCheck("txt", "passed", f"{beside.name} has the checksum and the words of the guarantee")


def _check_page(beside: Path, text: str, checksum: str, guarantee: ss.Guarantee, version: object) -> FileCheck:
    del guarantee, version
    if checksum not in text:
        return FileCheck(
            "html", "failed", f"{beside.name} is the page of another file, or {beside.stem}.npz was changed"
        )
    return FileCheck("html", "passed", f"{beside.name} has the checksum; its words are not compared")


def _check_ids(path: Path) -> FileCheck:
    from scoreshield.search.index_files import read_index

    try:
        saved = read_index(path)
    except (ss.InvalidInput, ss.FileError) as error:
        return FileCheck("ids", "failed", str(error))
    return FileCheck("ids", "passed", f"{len(saved.ids):,} ids belong to this index")


# ---- The ledger.


def _check_chain(ledger: ss.Ledger) -> FileCheck:
    verification = ledger.verify()
    if not verification:
        return FileCheck("chain", "failed", verification.reason)
    return FileCheck(
        "chain", "passed", f"{verification.entries:,} entries follow one another; head {verification.head}"
    )


def _check_entry(found: FileDescription, url: str | None, dataset: str | None) -> FileCheck:
    """Check whether the ledger has the entry that the certificate names, for this promise and this dataset."""
    assert found.guarantee is not None
    provenance = found.guarantee.provenance
    stated = "" if provenance is None else provenance.entry
    number = stated.partition(":")[0]
    if url is None:
        detail = f"the certificate names entry {number}; give --ledger to look for it" if number else (
            "the certificate names no entry: no ledger was charged"
        )  # fmt: skip
        return FileCheck("ledger", "not checked", detail)
    if provenance is None or not stated:
        return FileCheck("ledger", "failed", "the certificate names no entry: no ledger was charged")
    ledger = ss.Ledger.open(url)
    chain = _check_chain(ledger)
    if chain.outcome == "failed":
        return chain._replace(name="ledger")
    entry = ledger.entry(stated.partition(":")[2])
    fault = _find_entry_fault(found.guarantee, entry, number, dataset)
    if fault is not None:
        return FileCheck("ledger", "failed", fault)
    return FileCheck(
        "ledger", "passed", f"entry {number} charges {provenance.dataset!r} for this promise; {chain.detail}"
    )


def _find_entry_fault(guarantee: ss.Guarantee, entry: Entry | None, number: str, dataset: str | None) -> str | None:
    """Return what is wrong with the entry of a release; None if nothing is."""
    assert guarantee.provenance is not None
    if entry is None or str(entry.id) != number:
        return f"the ledger has no entry {number} with the hash that the certificate names"
    if entry.dataset != guarantee.provenance.dataset:
        return f"entry {number} charges another dataset than the certificate names"
    if dataset is not None and entry.dataset != dataset:
        return f"entry {number} charges {entry.dataset!r}, and --dataset is {dataset!r}"
    promise = guarantee.drop_provenance().to_dict()
    charged = json.loads(entry.guarantee)
    charged = charged.get("promise", charged) if isinstance(charged, dict) else charged  # of an index with versions
    if write_canonical_json(charged) != write_canonical_json(promise):
        return f"entry {number} charges another promise than the certificate states"
    return None
