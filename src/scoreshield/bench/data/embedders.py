"""Embedders by name, and a folder that keeps their embeddings.

``embedder("sentence-transformers:all-MiniLM-L6-v2")`` for texts, ``embedder("timm:vit_base_patch14_dinov2.lvd142m")``
for images, ``embedder("dlib")`` for faces, and ``embedder("hashing:256")`` for texts without any weights. Any object
with a ``name`` and an ``embed`` can replace them.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from scoreshield import _loading, _validation
from scoreshield._files import read_array, write_whole
from scoreshield._validation import validate
from scoreshield.bench.data._fields import Float32, Items
from scoreshield.bench.data.archives import parse_digits
from scoreshield.errors import FileError, InvalidInput

Progress = Callable[[int, int], object]  # items so far, items in all


class Embedder(Protocol):
    """Makes one row of float32 numbers of each item.

    Attributes:
        name: Identifies the model and its weights. Embedders with different names may give different rows.
    """

    @property
    def name(self) -> str: ...

    @validate()
    def embed(self, items: Items, *, progress: Progress | None = None) -> Float32: ...


@validate()
def embedder(kind: str, **options: Any) -> Embedder:
    """Make an embedder by its name, "kind:model".

    Args:
        kind: "sentence-transformers:<model or folder>", "timm:<model>", "dlib" or "hashing:<dimensions>".
        options: Those of `SentenceEmbedder`, `ImageEmbedder`, `FaceEmbedder` and `HashingEmbedder`.
    """
    must = "'sentence-transformers:<model>', 'timm:<model>', 'dlib' or 'hashing:<dimensions>'"
    if not isinstance(kind, str):
        _validation.reject("kind", must, kind)
    family, _, model = kind.partition(":")
    if family not in ("sentence-transformers", "timm", "dlib", "hashing") or (family == "dlib") != (not model):
        _validation.reject("kind", must, kind)
    if family == "hashing":
        dimensions = parse_digits(model, 2**20)
        if not dimensions:
            _validation.reject("kind", "'hashing:<dimensions>' with 1 to 1048576 dimensions", kind)
        return _make(HashingEmbedder, [dimensions], options)
    from scoreshield.bench.data import neural  # which builds on this module

    classes = {"sentence-transformers": neural.SentenceEmbedder, "timm": neural.ImageEmbedder}
    return _make(classes.get(family, neural.FaceEmbedder), [model] if model else [], options)


class HashingEmbedder:
    """Texts by hashed counts of words and pairs of words (scikit-learn's HashingVectorizer), rows of length one.

    It needs no weights and always gives the same result, which is useful in tests and demonstrations. It does not model
    meaning.
    """

    def __init__(self, dimensions: int, *, batch_size: int = 1024) -> None:
        self.dimensions = _validation.check_count(dimensions, "dimensions")
        self.batch_size = _validation.check_count(batch_size, "batch_size")
        self.name = f"hashing:{self.dimensions}"
        try:
            from sklearn.feature_extraction.text import HashingVectorizer
        except ImportError:
            raise InvalidInput(
                "The hashing embedder needs the 'tasks' extra: pip install 'scoreshield[tasks]'."
            ) from None

        # The pattern finds a token in every text but a blank one; k tokens and their k - 1 neighbouring pairs are an
        # odd number of signs, which cannot all cancel: no row is zero.
        self._counts = HashingVectorizer(
            n_features=dimensions, ngram_range=(1, 2), token_pattern=r"\w+|[^\w\s]", alternate_sign=True, norm="l2"
        )

    @validate()
    def embed(self, items: Items, *, progress: Progress | None = None) -> Float32:
        """Embed each text as one row."""

        def count(batch: Items, _: int) -> NDArray[Any]:
            return np.asarray(self._counts.transform(batch).toarray())

        return gather(check_text_items(items), count, self.batch_size, progress)


@validate()
def embed_cached(embedder: Embedder, items: Items, folder: str | Path, *, progress: Progress | None = None) -> Float32:
    """Return the embeddings of ``items``: from ``folder`` if they were made before, else made now and kept there.

    They are kept under a digest of the items (of a ``Path``: what the file holds) and the name of the embedder, and are
    used only if they are complete. A damaged file is made again. The folder holds private embeddings: protect it.
    """
    if not isinstance(folder, str | Path) or not str(folder):
        _validation.reject("folder", "the path of a folder", folder)
    key = _make_cache_key(embedder.name, _check_items(items))
    rows_file, facts_file = Path(folder) / f"{key}.npy", Path(folder) / f"{key}.json"
    kept = _read_kept(rows_file, facts_file, len(items))
    if kept is not None:
        return kept
    rows = check_embedded_rows(embedder.embed(items, progress=progress), len(items))
    facts = {"embedder": embedder.name, "shape": list(rows.shape), "sha256": hashlib.sha256(rows.data).hexdigest()}
    try:
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"Cannot make the folder {folder}: {error.strerror}.") from None
    text = json.dumps(facts).encode()
    write_whole({rows_file: lambda out: np.save(out, rows), facts_file: lambda out: out.write(text)}, private=True)
    return rows


def gather(
    items: Items, embed: Callable[[Items, int], NDArray[Any]], batch_size: int, progress: Progress | None
) -> Float32:
    """Embed all items through ``embed(batch, number of its first item)``, batch by batch."""
    total = len(_check_items(items))
    parts = []
    for start in range(0, total, batch_size):
        batch = items[start : start + batch_size]
        parts.append(check_embedded_rows(embed(batch, start), len(batch)))
        if progress is not None:
            progress(start + len(batch), total)
    return np.concatenate(parts)


def check_text_items(items: Items) -> tuple[str, ...]:
    """Check for items that are texts, none of them blank."""
    texts = tuple(_check_items(items))
    for place, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            got = "blank" if isinstance(text, str) else f"a {type(text).__name__}"
            raise InvalidInput(f"Item {place} must be a text with at least one character to read; it is {got}.")
    return texts


def check_embedded_rows(rows: Any, records: int) -> Float32:
    """Check what an embedder gave, and return it as float32."""
    array = np.asarray(rows)
    if array.ndim != 2 or len(array) != records or array.dtype.kind != "f" or not array.shape[1]:
        raise InvalidInput(f"An embedder must give {records} rows of numbers; it gave {array.dtype} {array.shape}.")
    array = np.ascontiguousarray(array, dtype=np.float32)
    bad = np.flatnonzero(~np.isfinite(array).all(axis=1))
    if len(bad):
        raise InvalidInput(f"An embedder must give finite numbers; row {bad[0]} of a batch does not hold them.")
    return array


def _check_items(items: Any) -> Items:
    sized = isinstance(items, list | tuple) or (isinstance(items, np.ndarray) and items.ndim > 0)
    if not sized or not len(items):
        _validation.reject("items", "a list, tuple or array of at least one item", items)
    counted: Items = items
    return counted


def _make(cls: Callable[..., Embedder], arguments: list[Any], options: dict[str, Any]) -> Embedder:
    allowed = [name for name, p in inspect.signature(cls).parameters.items() if p.kind is p.KEYWORD_ONLY]
    for name in options:
        _validation.check_option(name, "options", allowed)
    return cls(*arguments, **options)


def _make_cache_key(name: str, items: Items) -> str:
    digest = hashlib.sha256(b"scoreshield embeddings 1\0" + name.encode())
    for place, item in enumerate(items):
        kind, content = _content(item, place)
        digest.update(f"\0{kind} {len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _content(item: Any, place: int) -> tuple[str, bytes]:
    if isinstance(item, str):
        return "text", item.encode("utf-8", "surrogatepass")
    if isinstance(item, bytes):
        return "bytes", item
    if isinstance(item, np.ndarray) and item.dtype.kind in "buif":
        return f"array {item.dtype.str} {item.shape}", item.tobytes()
    if isinstance(item, Path):
        try:
            return "bytes", item.read_bytes()
        except OSError as error:
            raise FileError(f"Item {place} cannot be read from {item}: {error.strerror}.") from None
    raise InvalidInput(f"Item {place} must be a text, a path, bytes or an array; it is a {type(item).__name__}.")


def _read_kept(rows_file: Path, facts_file: Path, records: int) -> Float32 | None:
    """Read embeddings that are whole and unchanged, or None."""
    try:
        facts = _loading.parse_json(_loading.read_bytes(facts_file))
        rows = read_array(rows_file)
        whole = (
            rows.dtype == np.float32
            and rows.ndim == 2
            and len(rows) == records
            and list(rows.shape) == facts["shape"]
            and hashlib.sha256(np.ascontiguousarray(rows).data).hexdigest() == facts["sha256"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return rows if whole else None
