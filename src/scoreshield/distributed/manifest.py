"""The manifest of a distributed release: every public fact that fixes what its tasks compute."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _loading
from scoreshield._version import VERSION
from scoreshield.distributed.keys import check_release_id, seal_state, seal_text
from scoreshield.distributed.sources.facts import SourceFacts
from scoreshield.errors import InvalidInput
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.ledger.entries import hash_canonical_json, write_canonical_json

#: The records of one tile. Noise is keyed by tile, so that it does not depend on the size of blocks.
TILE_ROWS = 2**16
#: The format of manifests. A number never changes meaning. Whole releases of format 1 can be read, and are not made.
_FORMAT = 2

#: The options that readers of a kind of release rely on.
_OPTIONS = {"index": {"projection", "center"}, "histogram": {"edges"}, "gram": {"side"}}


@dataclass(frozen=True)
class Manifest:
    """The public facts of one release.

    Attributes:
        release: The id of the release.
        kind: What is released, by the name in `scoreshield.distributed.kinds`.
        source: The collection; its sizes and states are sealed in a file.
        guarantee: The promise, as `Guarantee.to_dict` writes it.
        queries: The public queries, (m, d); no rows if the release has none.
        options: Further public arguments.
        block_rows: How many records a task takes, a multiple of `TILE_ROWS`. It changes no released value.
        version: The version of this package, which all workers must have.
        snapshot: A keyed hash of the facts of the collection, sizes and states included; empty before it is sealed.
        format: The format of the release.
    """

    release: str
    kind: str
    source: SourceFacts
    guarantee: dict[str, Any]
    queries: NDArray[np.float64]
    options: dict[str, Any] = field(default_factory=dict)
    block_rows: int = 16 * TILE_ROWS
    version: str = VERSION
    snapshot: str = ""
    format: int = _FORMAT

    def seal(self, release: str, secret: bytes) -> Manifest:
        """Return this request as the manifest of a release: with its id, and facts that reveal nothing of the files."""
        snapshot = seal_text(secret, "snapshot", write_canonical_json(self.source.to_dict()))
        details = self.guarantee["details"] | {"release": release, "snapshot": snapshot}
        return replace(
            self,
            release=release,
            source=self.source.seal(partial(seal_state, secret)),
            guarantee={**self.guarantee, "details": details},
            snapshot=snapshot,
        )

    @cached_property
    def mechanism(self) -> str:
        """The hash of everything but the release and the collection that fixes a released value."""
        facts = [self.kind, self._without_id(), self.queries.tolist(), self.options, TILE_ROWS]
        return hash_canonical_json(facts)

    @property
    def stream_name(self) -> str:
        """The part of each tile's key that no other release has. A research key repeats, and so has none."""
        return "research" if self.guarantee["sampler"] == "research" else self.release

    @property
    def count_blocks(self) -> int:
        """How many blocks of records there are."""
        return -(-self.source.rows // self.block_rows)

    @property
    def count_parts(self) -> int:
        """How many parts the release has: one for each block, or for each two tiles of pairs."""
        if self.kind != "gram":
            return self.count_blocks
        tiles = -(-self.source.rows // int(self.options["side"]))
        return tiles * (tiles + 1) // 2

    def find_tiles(self, part: int) -> tuple[int, int]:
        """Find what a part is of: a block and 0, or two tiles of pairs, the smaller one first."""
        if self.kind != "gram":
            return part, 0
        second = (math.isqrt(8 * part + 1) - 1) // 2
        return part - second * (second + 1) // 2, second

    def find_part(self, i: int, j: int) -> int:
        """Find the part of a block, or of two tiles of pairs, the smaller one first."""
        return j * (j + 1) // 2 + i if self.kind == "gram" else i

    def list_tiles(self, block: int) -> list[tuple[int, int, int]]:
        """List the number, the first record and the end of each tile of a block."""
        start, end = block * self.block_rows, min((block + 1) * self.block_rows, self.source.rows)
        return [(first // TILE_ROWS, first, min(first + TILE_ROWS, end)) for first in range(start, end, TILE_ROWS)]

    def read_guarantee(self) -> Guarantee:
        """Read the promise."""
        return Guarantee.from_dict(self.guarantee)

    def describe_request(self) -> dict[str, Any]:
        """Return what a caller asked for, without the id and what is sealed, to compare two requests."""
        public = self.source.seal(lambda *_: "").to_dict()
        request = self._to_dict() | {"release": "", "snapshot": "", "source": public, "guarantee": self._without_id()}
        return request | {"format": _FORMAT}

    def to_bytes(self) -> bytes:
        """Write the manifest, always as the same bytes."""
        return write_canonical_json(self._to_dict()).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Manifest:
        """Read what `to_bytes` wrote.

        Raises:
            InvalidInput: It is damaged, or of another version of this package.
        """
        try:
            data = _loading.parse_json(content)
            if data["format"] not in range(1, _FORMAT + 1):
                raise ValueError
            queries = np.array(data.pop("queries"), dtype=np.float64)
            dimension = data["source"]["dimension"]
            manifest = cls(
                **{**data, "source": SourceFacts.from_dict(data["source"])}, queries=queries.reshape(-1, dimension)
            )
            check_release_id(manifest.release)
            if not manifest._has_valid_types():
                raise ValueError
        except (KeyError, TypeError, ValueError, AttributeError, json.JSONDecodeError):
            raise InvalidInput("The manifest of the release is damaged, or was written by a later version.") from None
        return manifest

    def check_version(self) -> None:
        """Raise an error if this process has another version of the package than the one that began the release."""
        if self.format != _FORMAT:
            raise InvalidInput(
                "The release was begun by an earlier version of scoreshield, which drew its noise in another way: "
                "go on with that version, or name a new folder."
            )
        if self.version != VERSION:
            raise InvalidInput(
                f"The release was begun by version {self.version} of scoreshield, and this process has {VERSION}: "
                "install the same version on every worker."
            )

    def _has_valid_types(self) -> bool:
        """Whether the fields of a file, which anyone may have edited, have the types and ranges that others rely on."""
        texts = (self.kind, self.version, self.snapshot)
        counts = (self.options.get(name, 1) for name in ("side", "best"))
        sizes = (self.block_rows, self.source.rows, self.source.dimension, *counts)
        return (
            all(isinstance(text, str) for text in texts)
            and all(type(size) is int and size > 0 for size in (*sizes, self.format))
            and self.block_rows % TILE_ROWS == 0
            and self.options.keys() >= _OPTIONS.get(self.kind, set())
            and isinstance(self.guarantee.get("details"), dict)
        )

    def _without_id(self) -> dict[str, Any]:
        details = {
            name: value for name, value in self.guarantee["details"].items() if name not in ("release", "snapshot")
        }
        return {**self.guarantee, "details": details}

    def _to_dict(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "release": self.release,
            "kind": self.kind,
            "source": self.source.to_dict(),
            "guarantee": self.guarantee,
            "queries": self.queries.tolist(),
            "options": self.options,
            "block_rows": self.block_rows,
            "version": self.version,
            "snapshot": self.snapshot,
        }
