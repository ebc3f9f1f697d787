"""A release on disk with its certificate beside it: three files, or four with a page, all or none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import scoreshield as ss
from scoreshield import _files, _loading
from scoreshield.privacy.verdicts import bound_right_guesses
from scoreshield.report.certificate_page import render_certificate_page


def list_release_paths(output: Path, *, has_page: bool = False) -> tuple[Path, ...]:
    """List the files of a release: FILE.npz, FILE.json and FILE.txt, and FILE.html where it has a page."""
    beside = (".json", ".txt", ".html") if has_page else (".json", ".txt")
    return output, *(output.with_suffix(ending) for ending in beside)


def describe_verdict(guarantee: ss.Guarantee) -> dict[str, Any]:
    """Describe a guarantee for machines: its verdict and its warnings, which follow from it, and the guarantee."""
    return {
        "verdict": guarantee.verdict,
        "right_at_most": bound_right_guesses(guarantee.record_profile().advantage),
        "warnings": list(guarantee.warnings),
        "guarantee": guarantee.to_dict(),
    }


def save_with_certificate(release: ss.Release, output: Path, *, has_page: bool = False) -> None:
    """Write FILE.npz with the release, FILE.json and FILE.txt with the certificate, bound to it by a checksum.

    Args:
        release: The release.
        output: FILE.npz.
        has_page: Whether to write the certificate as a page too, FILE.html.
    """
    buffer = BytesIO()
    release.writer()(buffer)
    content = buffer.getbuffer()
    checksum = hashlib.sha256(content).hexdigest()
    issued = datetime.now(UTC).isoformat(timespec="seconds")
    record = {
        "file": output.name,
        "sha256": checksum,
        "issued": issued,
        "scoreshield": ss.__version__,
        **describe_verdict(release.guarantee),
    }
    facts = {"File": output.name, "SHA-256": checksum, "Issued": issued}
    contents: list[bytes | memoryview] = [content, json.dumps(record, indent=2).encode() + b"\n"]
    contents.append(f"{release.guarantee}\n{write_file_facts(facts)}".encode())
    if has_page:
        contents.append(render_certificate_page(release, facts=facts).encode())
    paths = list_release_paths(output, has_page=has_page)
    _files.write_whole({path: partial(_write, part) for path, part in zip(paths, contents, strict=True)})


def list_file_facts(path: Path) -> dict[str, str]:
    """List what binds a page to a release that was written before: its name and its checksum."""
    return {"File": path.name, "SHA-256": _loading.compute_checksum(path)}


def write_file_facts(facts: Mapping[str, str]) -> str:
    """Write the last lines of FILE.txt, which bind it to the release."""
    return "".join(f"{name:<15}{_loading.make_printable(value)}\n" for name, value in facts.items())


def _write(content: bytes | memoryview, file: BinaryIO) -> None:
    file.write(content)
