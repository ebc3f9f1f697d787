"""A whole distributed release: its parts are read one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from scoreshield._loading import make_printable
from scoreshield._validation import check_count, validate
from scoreshield.distributed import storage
from scoreshield.distributed.blocks import select_best_scores
from scoreshield.distributed.driver import is_of_charge, make_certificate, read_final
from scoreshield.distributed.key_table import find_kept_key
from scoreshield.distributed.parts import Columns, join_columns, read_part
from scoreshield.distributed.storage import ReleaseFolder
from scoreshield.errors import InvalidInput
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.ledger.accounts import Ledger
from scoreshield.releases.index import BestRecords


class DistributedRelease:
    """A release in parts on storage. Reading it costs no privacy.

    Attributes:
        guarantee: The promise; ``str(release.guarantee)`` is the certificate.
        manifest: The public facts of the release.
    """

    def __init__(self, folder: ReleaseFolder) -> None:
        self._folder = folder
        self.manifest, self._final = read_final(folder)
        self.guarantee: Guarantee = Guarantee.from_dict(self._final["guarantee"])
        if replace(self.guarantee, provenance=None) != self.manifest.read_guarantee():
            raise InvalidInput("The last file of the release states another promise than its manifest.")

    def __repr__(self) -> str:
        g = self.guarantee
        return (
            f"<{type(self).__name__} of {self.manifest.kind}, {self.manifest.source.rows:,} records in {len(self):,} "
            f"parts: ({g.epsilon:g}, {g.delta:g})-DP, {g.mechanism}, {g.sampler} sampler>"
        )

    def __len__(self) -> int:
        """How many parts there are."""
        return len(self._final["parts"])

    @property
    def address(self) -> str:
        """The folder of the release."""
        return self._folder.address

    def parts(self) -> Iterator[Columns]:
        """Read the parts in the order of the records: a dictionary of columns each.

        Raises:
            InvalidInput: A part is missing, or its checksum is wrong.
        """
        yield from (read_part(self._read_file(number)) for number in range(len(self)))

    def check_parts(self) -> None:
        """Check that every part is there and has its checksum, and that no other file lies among them.

        Raises:
            InvalidInput: One is missing, or its checksum is wrong, or there is a file that is no part: other programs
                would read its rows too.
        """
        for number in range(len(self)):
            self._read_file(number)
        expected = {storage.name_part(number) for number in range(len(self))}
        for name in self._folder.list_names():
            if storage.is_read_by_others(name) and name not in expected:
                raise InvalidInput(f"{make_printable(name)} is no part of the release: remove it.")

    def check_certificate(self) -> None:
        """Check that the certificate in the folder is that of the release.

        Raises:
            InvalidInput: It is missing, or states something else.
        """
        if self._folder.read(storage.CERTIFICATE) != make_certificate(self._final):
            raise InvalidInput(f"{storage.CERTIFICATE} is missing, or is not the certificate of the release.")

    def check_charge(self, ledger: Ledger) -> bool:
        """Check that a ledger was charged for the files in this folder, and not only for the same promise.

        Returns:
            Whether the ledger fixes every file. Of a release that an earlier version of this package made, it fixes
            the manifest only.

        Raises:
            InvalidInput: It was charged for other files, or for none.
        """
        kept = find_kept_key(ledger, self.manifest.release)
        if kept is None or not kept.entry:
            raise InvalidInput("The ledger was charged for no such release in parts.")
        if not is_of_charge(self._folder, kept):
            raise InvalidInput("The files in the folder are not those of the release that the ledger was charged for.")
        return self.manifest.format > 1

    def _read_file(self, number: int) -> bytes:
        content = self._folder.read(storage.name_part(number))
        if content is None or storage.compute_digest(content) != self._final["parts"][number]["sha256"]:
            raise InvalidInput(f"Part {number} of the release is missing or damaged.")
        return content

    def read(self) -> Columns:
        """Read all parts into memory."""
        return join_columns(list(self.parts()))

    @validate(k=check_count)
    def top_k(self, k: int) -> BestRecords:
        """Return the records of the ``k`` best released scores, best first: (k,) for one query, (m, k) for several.

        It reads one part at a time.
        """
        kept = self.manifest.options.get("best")
        if kept is not None and k > kept:
            raise InvalidInput(f"The release keeps the {kept:,} best records of each block; ask for at most that many.")
        best: list[Columns] = []
        for columns in self.parts():
            if not columns.keys() & {"score", "scores"}:
                raise InvalidInput("This release has no scores to rank by.")
            here = select_best_scores(columns, k, self._final["tie_break"])
            best = [select_best_scores(join_columns([*best, here]), k, self._final["tie_break"])]
        shape = (len(self.manifest.queries), -1) if "query" in best[0] else (-1,)
        return BestRecords(best[0]["score"].reshape(shape), best[0]["row"].reshape(shape))

    def scores(self) -> NDArray[Any]:
        """Read all released scores into memory, (n,) for one query or (m, n) for several."""
        if self.manifest.kind != "scores" or self.manifest.options.get("best") is not None:
            raise InvalidInput("This release does not hold all scores.")
        columns = self.read()
        return columns["score"] if "score" in columns else columns["scores"].T


def open_release(address: str | Path) -> DistributedRelease:
    """Open a whole release in its folder.

    Raises:
        InvalidInput: It is not whole yet.
    """
    from scoreshield.distributed.readers import READERS  # which builds on this module

    folder = storage.open_folder(address)
    kind = read_final(folder)[0].kind
    return READERS.get(kind, DistributedRelease)(folder)
