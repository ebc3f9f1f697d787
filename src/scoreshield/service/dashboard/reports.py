"""Pages of plans and audits in one folder of the operator.

A page in the folder of a collection, such as ``docs/plan.html``, is shown to people who may see that collection. Any
other page is shown to people who may see all of them. Only names that a listing has found are opened, and links are
never followed, so no other file can be read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from scoreshield.service.problems import ServiceProblem

#: Folders below the folder of reports: that of a collection, and that of one audit.
_DEPTH = 2
_MOST_FILES = 500
_LARGEST = 2**25
#: A report has its own styles and may do nothing else: no script, no form, no request, and an origin of its own.
REPORT_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"


class ReportFile(NamedTuple):
    """One page: its parts below the folder, and when it was written."""

    parts: tuple[str, ...]
    time: datetime

    @property
    def name(self) -> str:
        """The path below the folder, as an address has it."""
        return "/".join(self.parts)


def list_reports(folder: Path | None, collections: list[str], *, sees_all: bool) -> list[ReportFile]:
    """List the newest pages that a person may see, the newest first. Pages of others take no place of theirs.

    Args:
        folder: The folder of the policy; None for no reports.
        collections: The collections that the person sees.
        sees_all: Whether these are all collections.
    """
    found = () if folder is None else _walk(folder, (), _DEPTH)
    shown = [one for one in found if sees_all or (len(one.parts) > 1 and one.parts[0] in collections)]
    return sorted(shown, key=lambda one: (one.time, one.name), reverse=True)[:_MOST_FILES]


def read_report(folder: Path | None, name: str, collections: list[str], *, sees_all: bool) -> bytes:
    """Read one page that `list_reports` lists for a person.

    Raises:
        ServiceProblem: There is no such page, or the person may not see it.
    """
    listed = {one.name: one for one in list_reports(folder, collections, sees_all=sees_all)}
    if folder is None or name not in listed:
        raise ServiceProblem("not_found")
    path = folder.joinpath(*listed[name].parts)
    try:
        # The listing has left links out; the flag also stops one that took the place of the file since.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb") as file:
            is_inside = path.resolve().is_relative_to(folder.resolve())
            if not is_inside or not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ServiceProblem("not_found")
            content = file.read(_LARGEST + 1)
    except OSError:
        raise ServiceProblem("not_found") from None
    if len(content) > _LARGEST:
        raise ServiceProblem("not_found")
    return content


def _walk(folder: Path, above: tuple[str, ...], depth: int) -> Iterator[ReportFile]:
    try:
        with os.scandir(folder) as entries:
            inside = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in inside:
        if entry.name.startswith(".") or not entry.name.isprintable():
            continue
        if entry.is_file(follow_symlinks=False) and entry.name.endswith(".html"):
            time = datetime.fromtimestamp(entry.stat(follow_symlinks=False).st_mtime, UTC)
            yield ReportFile((*above, entry.name), time)
        elif depth and entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), (*above, entry.name), depth - 1)
