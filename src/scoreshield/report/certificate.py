"""A release on disk with its certificate beside it: three files, all or none."""

from __future__ import annotations

import hashlib
import io as bytes_io
import json
from datetime import UTC, datetime
from pathlib import Path

import scoreshield as ss
from scoreshield import _files


def beside(output: Path) -> tuple[Path, Path, Path]:
    """FILE.npz, FILE.json and FILE.txt."""
    return output, output.with_suffix(".json"), output.with_suffix(".txt")


def write_with_certificate(release: ss.Release, output: Path) -> None:
    """FILE.npz with the release, FILE.json and FILE.txt with the certificate, bound to it by a checksum."""
    buffer = bytes_io.BytesIO()
    release.writer()(buffer)
    content = buffer.getbuffer()
    checksum = hashlib.sha256(content).hexdigest()
    issued = datetime.now(UTC).isoformat(timespec="seconds")
    record = {
        "file": output.name,
        "sha256": checksum,
        "issued": issued,
        "scoreshield": ss.__version__,
        "guarantee": release.guarantee.to_dict(),
    }
    text = f"{release.guarantee}\nFile           {output.name}\nSHA-256        {checksum}\nIssued         {issued}\n"
    npz, beside_json, beside_text = beside(output)
    _files.write_whole(
        {
            npz: lambda file: file.write(content),
            beside_json: lambda file: file.write(json.dumps(record, indent=2).encode() + b"\n"),
            beside_text: lambda file: file.write(text.encode()),
        }
    )
