"""FAISS indexes that keep every vector, as a store.

A flat index is viewed, not copied; so is the flat storage under HNSW and NSG, and the vectors kept beside codes by
``RFlat``. IVF lists are read one by one, never through the quantiser, which may be approximate itself. Nothing in the
index changes, and no direct map is made. The approximate search is not used. Half-precision codes are decoded. Every
other index raises an error: with codes of a codebook that was trained on other records, one record could move the
scores of others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._validation import validate
from scoreshield.errors import InvalidInput, StoreError
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.stores.base import BaseStore
from scoreshield.stores.protocol import Records, StoreScores, explain_missing_extra

_FLAT = ("IndexFlat", "IndexFlatIP", "IndexFlatL2")
_MAPPED = ("IndexIDMap", "IndexIDMap2")
_GRAPHS = ("IndexHNSW", "IndexHNSWFlat", "IndexHNSWSQ", "IndexNSG", "IndexNSGFlat", "IndexNSGSQ")
_REFINED = ("IndexRefine", "IndexRefineFlat")
_CODED = re.compile(r"PQ|Quantizer|HNSWSQ|LSH|RaBitQ|SpectralHash|Lattice|2Layer|NeuralNet|QINCo|EDEN|RowwiseMinMax")
_SAMPLE = 16  # rows that a state looks at
_PAGE = 4_096  # rows that are decoded at a time


class FaissStore(BaseStore):
    """A FAISS index of float vectors.

    Scores are computed from the vectors, so both metrics give cosines.

    ``state`` reads the number of records, all ids of an IDMap or of IVF lists, and some of the vectors, the last one
    among them. FAISS closes the gap that a removal leaves and adds at the end, so it detects both. It may not detect a
    vector that is written over in place: call `mark_changed` then. As with FAISS itself, nothing may be added
    while another thread searches.

    Args:
        index: Flat, HNSW or NSG over flat, IVF with flat lists, half-precision scalar quantiser, any of them under an
            IDMap; by inner product or L2. Vectors are divided by their lengths: cosines are released.
        ids: Names for FAISS's own numbers 0, 1, ..., for an index without an IDMap; without them, those numbers. A
            list may grow along with the index. FAISS moves later records up when one is removed, so after any change
            but an addition the ids raise an error until `mark_changed` gives them again. An IDMap moves its ids
            along, and IVF lists keep their numbers.
    """

    @clear_frames_on_error
    @validate()
    def __init__(self, index: Any, ids: Sequence[Any] | None = None) -> None:
        faiss = _import_faiss()
        if not isinstance(index, faiss.Index):
            _validation.reject("index", "a FAISS index of float vectors", index)
        self.name = f"The FAISS index ({type(index).__name__})"
        self._index = index  # a reference keeps the vectors inside it alive
        self._dimension = int(index.d)
        inside, self._id_map = _find_vectors(faiss, index)
        _check_metric(faiss, inside)
        self._vectors: _Lists | _Rows = (
            _Lists(faiss, inside) if _read_kind(inside) == "IndexIVFFlat" else _Rows(faiss, inside)
        )
        self.zero_copy = self._vectors.zero_copy
        self._ids: Sequence[Any] | None = None
        self._state_of_ids: tuple[int, int] = (0, 0)
        if ids is not None:
            self._name_all(ids)

    def read_state(self) -> Hashable:
        mapping = None if self._id_map is None else hash(self._id_map().tobytes())
        return mapping, self._vectors.state()

    @validate()
    def mark_changed(self, ids: Sequence[Any] | None = None) -> None:
        """Report that vectors were written over in place.

        Args:
            ids: The names of the records now, for an index that was opened with ``ids``.
        """
        if ids is not None:
            self._name_all(ids)
        super().mark_changed()

    @clear_frames_on_error
    def scores(self, query: NDArray[np.float32]) -> StoreScores:
        """Compute the cosine of each record from its own vector, a page of vectors at a time."""
        names = self._list_names(self._vectors.numbers())
        return StoreScores(names, self._vectors.sort(self._compute_cosines(query[None].astype(np.float64))))

    @clear_frames_on_error
    def records(self) -> Records:
        return Records(self._list_names(self._vectors.numbers()), self._vectors.all())

    def _compute_cosines(self, query: NDArray[np.float64]) -> NDArray[np.float32]:
        """Compute the cosines in the order of the vectors in memory."""
        out, done = np.full(int(self._index.ntotal), np.nan, dtype=np.float32), 0
        for page in self._vectors.pages():
            try:
                out[done : done + len(page)] = _embeddings.compute_scores(page, query, "unit")[0]
            except InvalidInput:
                raise StoreError(
                    f"{self.name} holds vectors that are not finite numbers; nothing was released."
                ) from None
            done += len(page)
        return out

    def _name_all(self, ids: Any) -> None:
        if isinstance(ids, np.ndarray) and ids.ndim == 1:
            ids = ids.tolist()
        if isinstance(ids, str | bytes | bytearray) or not isinstance(ids, Sequence):
            _validation.reject("ids", "a sequence, one id per record", ids)
        if self._id_map is not None:
            raise InvalidInput(f"{self.name} has its own ids; leave 'ids' out.")
        self._ids = ids
        if isinstance(self._vectors, _Rows):
            self._state_of_ids = self._vectors.state()

    def _list_names(self, numbers: NDArray[np.int64]) -> Sequence[Any]:
        """Convert FAISS's numbers to ids: those of the map, the given ones, or the numbers themselves."""
        if self._ids is None:
            return (numbers if self._id_map is None else self._id_map()[numbers]).data
        if isinstance(self._vectors, _Rows) and not self._vectors.begins_with(self._state_of_ids):
            raise StoreError(
                f"{self.name} changed otherwise than at its end, so the given ids may be of other records now; nothing "
                "was released: give them again with mark_changed(ids), or use an IDMap."
            )
        if len(self._ids) != len(numbers) or (len(numbers) and numbers.max() >= len(self._ids)):
            raise StoreError(f"{self.name} holds {len(numbers):,} records, and {len(self._ids):,} ids were given.")
        if isinstance(self._vectors, _Rows):
            self._state_of_ids = self._vectors.state()  # records that were added at the end have ids now
            return self._ids
        return [self._ids[number] for number in numbers]


class _Rows:
    """Vectors in rows: in memory as they are, or in half precision."""

    def __init__(self, faiss: Any, index: Any) -> None:
        self._faiss, self._index = faiss, index
        self.zero_copy = _read_kind(index) in _FLAT

    def numbers(self) -> NDArray[np.int64]:
        return np.arange(self._index.ntotal)

    def all(self) -> NDArray[np.float32]:
        n, d = int(self._index.ntotal), int(self._index.d)
        if not n:
            return np.empty((0, d), dtype=np.float32)
        if not self.zero_copy:
            decoded: NDArray[np.float32] = self._index.reconstruct_n(0, n)
            return decoded
        # The view is made again each time, because adding records moves the vectors in memory.
        view: NDArray[np.float32] = self._faiss.rev_swig_ptr(self._index.get_xb(), n * d).reshape(n, d)
        view.flags.writeable = False
        return view

    def pages(self) -> Iterator[NDArray[np.float32]]:
        n = int(self._index.ntotal)
        if self.zero_copy and n:
            yield self.all()
        elif not self.zero_copy:
            for start in range(0, n, _PAGE):
                yield self._index.reconstruct_n(start, min(_PAGE, n - start))

    def sort(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        return values

    def state(self) -> tuple[int, int]:
        n = int(self._index.ntotal)
        return n, self._hash_sample(n)

    def begins_with(self, state: tuple[int, int]) -> bool:
        """Check that records were only added since then, as far as the sample shows."""
        n, sample = state
        return n <= int(self._index.ntotal) and self._hash_sample(n) == sample

    def _hash_sample(self, n: int) -> int:
        """Hash some of the first n rows. The last one is among them, because every removal before it moves it."""
        if not n:
            return 0
        sample = np.unique(np.linspace(0, n - 1, _SAMPLE).astype(np.int64))
        return hash(self._index.reconstruct_batch(sample).tobytes())


class _Lists:
    """Vectors in inverted lists, by rising number."""

    zero_copy = False

    def __init__(self, faiss: Any, index: Any) -> None:
        self._faiss, self._index = faiss, index

    def numbers(self) -> NDArray[np.int64]:
        numbers = self._read_numbers()
        numbers.sort()
        return numbers

    def all(self) -> NDArray[np.float32]:
        numbers, done = self._read_numbers(), 0
        places = np.empty(len(numbers), dtype=np.int64)
        places[np.argsort(numbers, kind="stable")] = np.arange(len(numbers))
        rows = np.empty((len(numbers), int(self._index.d)), dtype=np.float32)
        for ids, part in self._read_lists():
            rows[places[done : done + len(ids)]] = part
            done += len(ids)
        return rows

    def pages(self) -> Iterator[NDArray[np.float32]]:
        for _, part in self._read_lists():
            yield part

    def sort(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        return values[np.argsort(self._read_numbers(), kind="stable")]

    def _read_numbers(self) -> NDArray[np.int64]:
        parts = [ids.copy() for ids, _ in self._read_lists()]
        numbers: NDArray[np.int64] = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        if len(numbers) != self._index.ntotal:  # FAISS puts such vectors into no list
            raise StoreError(
                f"An IndexIVFFlat counts {self._index.ntotal:,} records and holds {len(numbers):,}: the others have "
                "entries that are not finite numbers, or too large for its L2; nothing was released."
            )
        return numbers

    def state(self) -> Hashable:
        return tuple(hash(ids.tobytes() + part[-1].tobytes()) for ids, part in self._read_lists())

    def _read_lists(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Read the ids and vectors of each list that is not empty, as views that are valid for one step."""
        lists, d = self._index.invlists, int(self._index.d)
        for number in range(int(self._index.nlist)):
            size = int(lists.list_size(number))
            if size:
                ids, codes = lists.get_ids(number), lists.get_codes(number)
                part = self._faiss.rev_swig_ptr(codes, size * d * 4).view(np.float32).reshape(size, d)
                yield self._faiss.rev_swig_ptr(ids, size), part
                lists.release_ids(number, ids)
                lists.release_codes(number, codes)


def _import_faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise explain_missing_extra("faiss", "FaissStore") from None
    return faiss


def _read_kind(index: Any) -> str:
    return type(index).__name__


def _find_vectors(faiss: Any, index: Any) -> tuple[Any, Callable[[], NDArray[np.int64]] | None]:
    """Find the index that holds the vectors, and the ids where there is a map of them; or raise an error."""
    if _read_kind(index).startswith("Gpu"):
        raise InvalidInput(
            f"A {_read_kind(index)} keeps its vectors on a GPU; give FaissStore faiss.index_gpu_to_cpu(index)."
        )
    inside = faiss.downcast_index(index)
    name = _read_kind(inside)
    if name in _MAPPED:
        deeper, nested = _find_vectors(faiss, inside.index)
        if nested is not None:
            raise InvalidInput("An IDMap inside an IDMap is not read; use one.")
        return deeper, lambda: faiss.vector_to_array(inside.id_map)
    if name in _GRAPHS:
        return _find_vectors(faiss, inside.storage)
    if name in _REFINED:
        return _find_vectors(faiss, inside.refine_index)
    if name == "IndexScalarQuantizer" and inside.sq.qtype in _list_untrained(faiss):
        return inside, None
    if name == "IndexIVFFlat" and inside.invlists.code_size == 4 * inside.d:
        return inside, None
    if name in _FLAT:
        return inside, None
    reason = _explain_rejection(name)
    raise InvalidInput(f"An {name} {reason}; use one that keeps the vectors: Flat, HNSW, IVF with Flat, SQfp16.")


def _list_untrained(faiss: Any) -> list[int]:
    """List the scalar quantisers that learn nothing from other records; older versions have no bf16."""
    names = ("QT_fp16", "QT_bf16")
    return [getattr(faiss.ScalarQuantizer, name) for name in names if hasattr(faiss.ScalarQuantizer, name)]


def _explain_rejection(name: str) -> str:
    if name == "IndexPreTransform":
        return (
            "changes vectors before it keeps them, by a transform that may be trained on other records, so that one "
            "record could move the scores of others"
        )
    if _CODED.search(name):
        return (
            "keeps codes in place of vectors, by a code that is trained on other records, so that one record could "
            "move the scores of others"
        )
    return "is not an index whose exact vectors FaissStore can read"


def _check_metric(faiss: Any, index: Any) -> None:
    if index.metric_type not in (faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2):
        raise InvalidInput(f"An {_read_kind(index)} by another metric than inner product or L2 gives no cosines.")
