"""`scoreshield verify FILE`: whether a file, its certificate and its ledger entry agree.

The exit code is 0 where every check that could be made passed, 1 where one failed, and 2 where nothing could be
checked, or where a certificate is there that could not be compared.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer

import scoreshield as ss
from scoreshield import _files, _loading
from scoreshield._loading import make_printable
from scoreshield.cli.inspection import FileDescription, UnknownFile, describe_file, locate_release
from scoreshield.cli.options import Json
from scoreshield.cli.output import read_ledger_address, say_line
from scoreshield.distributed.results import DistributedRelease
from scoreshield.privacy.ledger.entries import Entry, is_time, verify_export, write_canonical_json
from scoreshield.privacy.signatures import find_signature_fault
from scoreshield.releases.index import PrivateIndex
from scoreshield.report.certificate import describe_verdict, write_file_facts
from scoreshield.report.certificate_page import render_certificate_page

EXAMPLE = "scoreshield verify r.npz\nscoreshield verify r.npz --ledger sqlite:///ledger.db --dataset letters"
_RELEASES = (".npz", ".json", ".txt", ".html")
#: Kinds of files that state the same thing several times, which is compared when they are read.
_COMPARED = ("release", "release in parts", "index", "certificate", "hits")
#: The most bytes of a certificate. A table of a million weights takes a quarter of it.
_LARGEST_CERTIFICATE = 2**26
_PAGE_FACT = re.compile("<dt>(File|SHA-256|Issued)</dt><dd>(.*?)</dd>")
_PAGE_MOMENT = re.compile('<time datetime="([^"]{1,40})">')
_PAGE_DRAWING = re.compile(r"<(svg)\b.*?/\1>", re.DOTALL)
_NO_SIGNATURE = "none: only a service signs; the checks find accidents and edits, not a forged set of files"


class FileCheck(NamedTuple):
    """One check of a file.

    Attributes:
        name: What was checked.
        outcome: Whether it passed, failed, or was left out.
        detail: One sentence.
        is_open: Whether something that is there could not be compared.
    """

    name: str
    outcome: Literal["passed", "failed", "not checked"]
    detail: str
    is_open: bool = False

    def to_dict(self) -> dict[str, str]:
        return {"name": self.name, "outcome": self.outcome, "detail": self.detail}


class Certificate(NamedTuple):
    """What the certificates of a release must agree with.

    Attributes:
        path: The release.
        checksum: Its SHA-256.
        guarantee: Its guarantee.
        record: The certificate for machines; None if there is none.
    """

    path: Path
    checksum: str
    guarantee: ss.Guarantee
    record: dict[str, Any] | None

    @property
    def version(self) -> str:
        """The version that says to have written it. Where none is stated it is this one."""
        stated = ss.__version__ if self.record is None else self.record.get("scoreshield", ss.__version__)
        return make_printable(str(stated))[:40]

    def is_stated(self, name: str, issued: str | None) -> bool:
        """Whether the record for machines has this name and this time of issue too."""
        if self.record is None:
            return True
        return name in (self.record.get("file"), self.path.name) and issued in (self.record.get("issued"), None)

    def judge_difference(self, name: str, fault: str) -> FileCheck:
        """Judge a difference: a fault, unless another version says to have written the certificate."""
        if self.version == ss.__version__:
            return FileCheck(name, "failed", fault)
        return FileCheck(name, "not checked", f"{fault}; version {self.version} wrote it, and this is another", True)


def verify_file_command(
    file: Annotated[str, typer.Argument(help="A file that `scoreshield show` knows.", metavar="FILE")],
    ledger: Annotated[
        str | None,
        typer.Option(
            callback=read_ledger_address,
            help="Look for the entry of the release here: a file, sqlite:///FILE or postgresql://...",
        ),
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="With --ledger: the dataset that must have been charged.")] = None,
    head: Annotated[
        str | None,
        typer.Option(help="Where FILE is a ledger: a head that was noted earlier; shows entries cut off since then."),
    ] = None,
    public_key: Annotated[
        str | None,
        typer.Option(
            help="Where FILE is an answer of a service: the public key of the installation, to check who signed."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check that a file holds together, that its certificate agrees, and that a ledger was charged for it.

    Exit code 0 means that every check passed, 1 that one failed, 2 that nothing could be checked, or that a
    certificate could not be compared. Nothing is changed and nothing is charged.
    """
    if dataset is not None and ledger is None:
        raise ss.InvalidInput("--dataset needs --ledger, which says where its budget is kept.")
    found = _check_file(file, ledger, dataset, head, public_key)
    checks = [check._replace(detail=make_printable(check.detail)) for check in found]
    code, summary = _summarise(checks)
    checksum = _hash_release(file) if code == 0 else None
    if as_json:
        listed = [check.to_dict() for check in checks]
        typer.echo(json.dumps({"file": file, "ok": code == 0, "sha256": checksum, "checks": listed}))
    else:
        for check in checks:
            say_line(f"{check.outcome:<12} {check.name:<12} {check.detail}")
        if checksum is not None:
            say_line(f"SHA-256      {checksum}  (note it outside the reach of those who can change the files)")
        say_line(f"{file}: {summary}.")
    if code:
        raise typer.Exit(code)


def _summarise(checks: list[FileCheck]) -> tuple[int, str]:
    """Find the exit code of some checks, and its words."""
    outcomes = {check.outcome for check in checks}
    if "failed" in outcomes:
        return 1, "NOT in order"
    if "passed" not in outcomes:
        return 2, "nothing could be checked"
    if left := [check.name for check in checks if check.is_open]:
        return 2, f"NOT everything could be checked: {', '.join(left)}"
    return 0, "everything that was checked agrees"


def _check_file(
    file: str, url: str | None, dataset: str | None, head: str | None, public_key: str | None
) -> Iterator[FileCheck]:
    given = Path(file)
    try:
        path = _find_release(given)
        found = describe_file(file if path is None else str(path))
    except UnknownFile:
        raise
    except (ss.InvalidInput, ss.LedgerError) as error:
        yield FileCheck("content", "failed", str(error))
        return
    if found.kind == "page":
        raise ss.InvalidInput(f"{file} is {found.summary}: verify the release that it is about.")
    if head is not None and found.kind != "ledger":
        raise ss.InvalidInput(f"--head is for a ledger; this is {found.summary}.")
    if public_key is not None and found.kind != "signed document":
        raise ss.InvalidInput(f"--public-key is for an answer of a service; this is {found.summary}.")
    if found.kind == "signed document":
        if url is not None:
            raise ss.InvalidInput(f"--ledger is for files with a certificate; this is {found.summary}.")
        yield _check_signature(found.content, public_key)
        return
    if found.kind in _COMPARED:
        yield FileCheck("content", "passed", f"{found.summary}: its parts agree with one another")
    elif found.kind not in ("ledger", "ledger export"):  # whose chain is checked below
        yield FileCheck("content", "not checked", f"{found.summary}: it can be read, and states nothing twice")
    if path is not None and found.guarantee is not None:
        yield from _check_certificates(path, given, found.guarantee)
        if isinstance(found.content, PrivateIndex) and path.with_name(f"{path.stem}.ids.json").exists():
            yield _check_ids(path)
    elif found.kind == "certificate" and found.guarantee is not None:
        yield _check_lone_record(given, found.content, found.guarantee)
    elif found.kind == "release in parts":
        yield from _check_folder(found.content, url)
    elif found.kind == "ids":
        yield _check_lone_ids(given)
    elif found.kind == "ledger":
        yield _check_chain(found.content, head)
        if head is None:
            yield FileCheck(
                "end", "not checked", "entries cut off at the end show only with --head, a head noted before"
            )
    elif found.kind == "ledger export":
        yield _check_export(found.content)
    if found.guarantee is not None:
        yield _check_entry(found, url, dataset)
    elif url is not None:
        raise ss.InvalidInput(f"--ledger is for files with a certificate; this is {found.summary}.")
    yield FileCheck("signature", "not checked", _NO_SIGNATURE)


def _check_folder(release: DistributedRelease, url: str | None) -> Iterator[FileCheck]:
    """Check that the files of a release in parts fit together, and that they are those that were charged."""
    yield _attempt("parts", release.check_parts, f"all {len(release):,} parts have their checksums")
    if release.manifest.version == ss.__version__:
        yield _attempt("txt", release.check_certificate, "certificate.txt is that of the release")
    else:
        author = f"version {release.manifest.version} of scoreshield"
        yield FileCheck("txt", "not checked", f"{author} wrote certificate.txt")
    if url is not None and release.guarantee.provenance is not None:
        ledger = ss.Ledger.open(url)
        try:
            is_fixed = release.check_charge(ledger)
        except ss.InvalidInput as error:
            yield FileCheck("files", "failed", str(error))
        else:
            detail = "are those that the ledger was charged for" if is_fixed else (
                "have the manifest that the ledger was charged for; an earlier version noted no more"
            )  # fmt: skip
            yield FileCheck("files", "passed", f"the files {detail}")


def _attempt(name: str, check: Callable[[], None], detail: str) -> FileCheck:
    """Run a check that raises an error if it fails."""
    try:
        check()
    except ss.InvalidInput as error:
        return FileCheck(name, "failed", str(error))
    return FileCheck(name, "passed", detail)


def _find_release(path: Path) -> Path | None:
    """Find the release that a file belongs to; None where it is another file."""
    if path.suffix.lower() not in _RELEASES or path.name.lower().endswith(".ids.json"):
        return None
    release = locate_release(path)
    return release if release.is_file() and _files.holds_release(release) else None


def _hash_release(file: str) -> str | None:
    """Compute the checksum of the release that a file belongs to; None where it is another file."""
    path = _find_release(Path(file))
    return None if path is None else _loading.compute_checksum(path)


# ---- The files beside a release.


def _check_certificates(path: Path, given: Path, guarantee: ss.Guarantee) -> Iterator[FileCheck]:
    """Check the certificates beside a release; ``given`` is one of them, or the release."""

    def locate(ending: str) -> Path:
        return given if given.suffix.lower() == ending else path.with_suffix(ending)

    record: dict[str, Any] | None = None
    checksum, beside = _loading.compute_checksum(path), locate(".json")
    try:
        record = _read_record(beside)
    except _loading.MissingFile:
        yield FileCheck("json", "not checked", f"there is no certificate {beside.name} beside it")
    except ss.InvalidInput as error:
        yield FileCheck("json", "failed", str(error))
    else:
        yield _check_record(Certificate(path, checksum, guarantee, record), beside.name, record)
    certificate = Certificate(path, checksum, guarantee, record)
    for ending, check in ((".txt", _check_text), (".html", _check_page)):
        beside = locate(ending)
        if beside.exists():
            try:
                text = _loading.read_bytes(beside, most=_LARGEST_CERTIFICATE).decode("utf-8", "replace")
            except ss.InvalidInput as error:
                yield FileCheck(ending[1:], "failed", str(error))
            else:
                yield check(certificate, beside, text)
        elif ending == ".txt":
            yield FileCheck("txt", "not checked", f"there is no certificate {beside.name} beside it")


def _read_record(path: Path) -> dict[str, Any]:
    with _loading.explain_read_errors(path):
        record = _loading.parse_json(_loading.read_bytes(path, most=_LARGEST_CERTIFICATE))
    if not isinstance(record, dict):
        raise ss.InvalidInput(f"{path.name} is no certificate.")
    return record


def _check_record(certificate: Certificate, name: str, record: dict[str, Any]) -> FileCheck:
    release = certificate.path.name
    if record.get("sha256") != certificate.checksum:
        return FileCheck("json", "failed", f"{name} is the certificate of another file, or {release} was changed")
    expected = json.loads(json.dumps(describe_verdict(certificate.guarantee)))
    if record.get("guarantee") != expected["guarantee"]:
        return FileCheck("json", "failed", f"{name} states another guarantee than {release}")
    if fault := _find_record_fault(record, expected):
        return certificate.judge_difference("json", f"{name} {fault}")
    beside = "" if record.get("file") == release else f"; it was written as {str(record.get('file'))[:80]}"
    return FileCheck("json", "passed", f"{name} has the checksum and the guarantee of {release}{beside}")


def _find_record_fault(record: dict[str, Any], expected: dict[str, Any]) -> str | None:
    """Return what is wrong with a certificate for machines beside its checksum; None if nothing is."""
    for key, value in expected.items():
        if record.get(key) != value:
            return f"states another {key} than follows from the guarantee"
    if more := sorted(record.keys() - expected.keys() - {"file", "sha256", "issued", "scoreshield"}):
        return f"states {more[0][:40]!r}, which no certificate has"
    name = record.get("file")
    if not isinstance(name, str) or not name.isprintable() or not is_time(record.get("issued")):
        return "names no file, or no time of issue"
    return None


def _check_lone_record(path: Path, record: dict[str, Any], guarantee: ss.Guarantee) -> FileCheck:
    """Check a certificate for machines whose release is elsewhere."""
    certificate = Certificate(path, "", guarantee, record)
    if fault := _find_record_fault(record, json.loads(json.dumps(describe_verdict(guarantee)))):
        return certificate.judge_difference("json", f"{path.name} {fault}")
    detail = f"{path.name} agrees with itself; its release is not beside it, and the checksum was not compared"
    return FileCheck("json", "passed", detail)


def _check_text(certificate: Certificate, beside: Path, text: str) -> FileCheck:
    if f"\n{'SHA-256':<15}{certificate.checksum}\n" not in text:
        return FileCheck("txt", "failed", f"{beside.name} has the checksum of another file, or none")
    words = f"{certificate.guarantee}\n"
    if not text.startswith(words):
        return certificate.judge_difference("txt", f"{beside.name} says something else than the guarantee")
    facts = {line[:15].rstrip(): line[15:] for line in text.removeprefix(words).splitlines()}
    is_whole = facts.keys() == {"File", "SHA-256", "Issued"} and text == words + write_file_facts(facts)
    if not is_whole or not is_time(facts["Issued"]) or not certificate.is_stated(facts["File"], facts["Issued"]):
        return certificate.judge_difference("txt", f"{beside.name} says more, less or something else about the file")
    return FileCheck("txt", "passed", f"{beside.name} has the checksum and the words of the guarantee")


def _check_page(certificate: Certificate, beside: Path, text: str) -> FileCheck:
    """Render the page again, with its own time and its own facts about the file, and compare the two."""
    release = certificate.path.name
    if certificate.checksum not in text:
        return FileCheck("html", "failed", f"{beside.name} is the page of another file, or {release} was changed")
    facts = {name: html.unescape(value) for name, value in _PAGE_FACT.findall(text)}
    moment = _PAGE_MOMENT.search(text)
    try:
        now = datetime.fromisoformat(moment.group(1)).astimezone(UTC) if moment else None
        expected = render_certificate_page(certificate.guarantee, facts=facts, now=now)
    except ss.InvalidInput as error:  # pages need an extra
        return FileCheck("html", "not checked", f"{beside.name} has the checksum; {error}", True)
    except (ValueError, OverflowError):
        return FileCheck("html", "failed", f"{beside.name} states no time")
    names, issued = {"File", "SHA-256"}, facts.get("Issued")
    is_whole = facts.keys() in (names, names | {"Issued"}) and facts["SHA-256"] == certificate.checksum
    if not is_whole or _drop_drawings(text) != _drop_drawings(expected):
        return certificate.judge_difference("html", f"{beside.name} says something else than the guarantee")
    if not certificate.is_stated(facts["File"], issued):
        return certificate.judge_difference("html", f"{beside.name} says something else about the file")
    if text != expected:
        detail = f"{beside.name} has the words of the guarantee; its chart is drawn otherwise than here"
        return FileCheck("html", "not checked", detail, True)
    return FileCheck("html", "passed", f"{beside.name} is the page of this certificate")


def _drop_drawings(page: str) -> str:
    return _PAGE_DRAWING.sub("", page)


def _check_ids(path: Path) -> FileCheck:
    from scoreshield.search.index_files import read_index

    try:
        saved = read_index(path)
    except (ss.InvalidInput, ss.FileError) as error:
        return FileCheck("ids", "failed", str(error))
    return FileCheck("ids", "passed", f"{len(saved.ids):,} ids belong to this index")


def _check_lone_ids(path: Path) -> FileCheck:
    release = path.with_name(path.name[: -len(".ids.json")] + ".npz")
    if not path.name.lower().endswith(".ids.json") or not release.is_file():
        return FileCheck("ids", "not checked", "there is no index beside it")
    return _check_ids(release)


# ---- Documents of a service.


def _check_signature(document: dict[str, Any], public_key: str | None) -> FileCheck:
    """Check who signed an answer. Without the public key of the installation, anyone could have signed it."""
    fault = find_signature_fault(document, public_key)
    if fault is not None:
        return FileCheck("signature", "failed", fault)
    signer = document["signature"]["key"]
    if public_key is None:
        detail = f"the content is as key {signer} signed it; give --public-key to check whose key this is"
        return FileCheck("signature", "not checked", detail, True)
    return FileCheck("signature", "passed", f"the content is as the installation with key {signer} signed it")


# ---- The ledger.


def _check_export(data: dict[str, Any]) -> FileCheck:
    """Compute the hash chain of exported entries again."""
    head, fault = verify_export(data)
    if fault is not None:
        return FileCheck("chain", "failed", fault)
    counted = _count_entries(int(head.partition(":")[0]))
    detail = f"{counted}; head {head}; only the ledger shows whether later ones are missing"
    return FileCheck("chain", "passed", detail)


def _check_chain(ledger: ss.Ledger, head: str | None = None) -> FileCheck:
    verification = ledger.verify(head=head)
    if not verification:
        return FileCheck("chain", "failed", verification.reason)
    return FileCheck("chain", "passed", f"{_count_entries(verification.entries)}; head {verification.head}")


def _count_entries(number: int) -> str:
    return "there is one entry" if number == 1 else f"{number:,} entries follow one another"


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
