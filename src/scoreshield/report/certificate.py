"""A release on disk with its certificate beside it: three files, all or none."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path

import scoreshield as ss
from scoreshield import _files


def list_release_paths(output: Path) -> tuple[Path, Path, Path]:
    """List the three files of a release: FILE.npz, FILE.json and FILE.txt."""
    return output, output.with_suffix(".json"), output.with_suffix(".txt")


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
        "guarantee": release.guarantee.to_dict(),
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
