"""A release on disk with its certificate beside it: three files, all or none."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import scoreshield as ss
from scoreshield import _files
from scoreshield.privacy.verdicts import bound_right_guesses


def list_release_paths(output: Path) -> tuple[Path, Path, Path]:
    """List the three files of a release: FILE.npz, FILE.json and FILE.txt."""
    return output, output.with_suffix(".json"), output.with_suffix(".txt")


def describe_verdict(guarantee: ss.Guarantee) -> dict[str, Any]:
    """Describe a guarantee for machines: its verdict and its warnings, which follow from it, and the guarantee."""
    return {
        "verdict": guarantee.verdict,
        "right_at_most": bound_right_guesses(guarantee.record_profile().advantage),
        "warnings": list(guarantee.warnings),
        "guarantee": guarantee.to_dict(),
    }


def save_with_certificate(release: ss.Release, output: Path) -> None:
    """Write FILE.npz with the release, FILE.json and FILE.txt with the certificate, bound to it by a checksum."""
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
    text = f"{release.guarantee}\nFile           {output.name}\nSHA-256        {checksum}\nIssued         {issued}\n"
    release_path, json_path, text_path = list_release_paths(output)
    _files.write_whole(
        {
            release_path: lambda file: file.write(content),
            json_path: lambda file: file.write(json.dumps(record, indent=2).encode() + b"\n"),
            text_path: lambda file: file.write(text.encode()),
        }
    )
