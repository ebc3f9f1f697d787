"""FAISS indexes as a store: those that keep every vector, read as they are, whatever they search by.

A flat index is viewed, not copied; so is the flat storage under HNSW and NSG, and the vectors kept beside codes by
``RFlat``. IVF lists are read one by one, never through the quantiser, which may be approximate itself: nothing in the
index changes, and no direct map is made. What an approximate index would find plays no part. Half-precision codes are
decoded. Everything else is refused: codes of a codebook that was trained on other records would let one record move the
scores of others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._validation import validate
from scoreshield.errors import InvalidInput, StoreError
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.stores.protocol import Convention, Records, StoreScores, explain_missing_extra

_FLAT = ("IndexFlat", "IndexFlatIP", "IndexFlatL2")
_MAPPED = ("IndexIDMap", "IndexIDMap2")
_GRAPHS = ("IndexHNSW", "IndexHNSWFlat", "IndexHNSWSQ", "IndexNSG", "IndexNSGFlat", "IndexNSGSQ")
_REFINED = ("IndexRefine", "IndexRefineFlat")
_CODED = re.compile(r"PQ|Quantizer|HNSWSQ|LSH|RaBitQ|SpectralHash|Lattice|2Layer|NeuralNet|QINCo|EDEN|RowwiseMinMax")
_SAMPLE = 16  # rows that a state looks at
_PAGE = 4_096  # rows that are decoded at a time


class FaissStore:
    """A FAISS index of float vectors.

    Parameters
    ----------
    index : flat, HNSW or NSG over flat, IVF with flat lists, half-precision scalar quantiser, any of them under an
        IDMap; by inner product or L2. Lengths are divided out: what is released is cosines.
    ids : names for FAISS's own numbers 0, 1, ..., for an index without an IDMap; without them, those numbers. A list
        may grow along with the index. FAISS moves later records up when one is removed, so after any change but an
        addition the ids are refused until they are given again, by :meth:`mark_changed`; an IDMap moves its ids along.
        IVF lists keep their numbers, and have no such trouble.

    ``state`` sees the number of records, all ids of an IDMap or of IVF lists, and some of the vectors, the last one
    among them: FAISS closes the gap that a removal leaves and adds at the end, so both are seen. A vector that is
    written over in place may not be: then say :meth:`mark_changed`. As with FAISS itself, nothing may be added while
    another thread searches.
    """

    convention = Convention.COSINE  # by either metric: scores are computed from the vectors

    @clear_frames_on_error
    @validate()
    def __init__(self, index: Any, ids: Sequence[Any] | None = None) -> None:
        faiss = _faiss()
        if not isinstance(index, faiss.Index):
            _validation.reject("index", "a FAISS index of float vectors", index)
        self.name = f"The FAISS index ({type(index).__name__})"
        self._index = index  # held: what lies inside it is its own
        self._told = 0
        inside, self._id_map = _inside(faiss, index)
        _check_metric(faiss, inside)
        self._vectors: _Lists | _Rows = (
            _Lists(faiss, inside) if _name(inside) == "IndexIVFFlat" else _Rows(faiss, inside)
        )
        self.zero_copy = self._vectors.zero_copy
        self._ids: Sequence[Any] | None = None
        self._named: tuple[int, int] = (0, 0)
        if ids is not None:
            self._name_all(ids)

    @property
    def dimension(self) -> int:
        return int(self._index.d)

    def state(self) -> Hashable:
        mapped = None if self._id_map is None else hash(self._id_map().tobytes())
        return self._told, mapped, self._vectors.state()

    @validate()
    def mark_changed(self, ids: Sequence[Any] | None = None) -> None:
        """Say that vectors were written over in place or, with ``ids``, what the records are called now."""
        if ids is not None:
            self._name_all(ids)
        self._told += 1

    @clear_frames_on_error
    def scores(self, query: NDArray[np.float32]) -> StoreScores:
        """The cosines of all records, each from its own vector as it is kept; a page of vectors is held at a time."""
        names = self._names(self._vectors.numbers())
        return StoreScores(names, self._vectors.in_order(self._cosines(query[None].astype(np.float64))))

    @clear_frames_on_error
    def records(self) -> Records:
        return Records(self._names(self._vectors.numbers()), self._vectors.all())

    def _cosines(self, query: NDArray[np.float64]) -> NDArray[np.float32]:
        """In the order in which the vectors lie."""
        out, done = np.full(int(self._index.ntotal), np.nan, dtype=np.float32), 0
        for page in self._vectors.pages():
            try:
                out[done : done + len(page)] = _embeddings.scores(page, query, "unit")[0]
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
            _validation.reject("ids", "a sequence, one id a record", ids)
        if self._id_map is not None:
            raise InvalidInput(f"{self.name} has ids of its own; leave 'ids' out.")
        self._ids = ids
        if isinstance(self._vectors, _Rows):
            self._named = self._vectors.state()

    def _names(self, numbers: NDArray[np.int64]) -> Sequence[Any]:
        """Numbers as FAISS has them, as ids: those of the map, the given ones, or themselves."""
        if self._ids is None:
            return (numbers if self._id_map is None else self._id_map()[numbers]).data
        if isinstance(self._vectors, _Rows) and not self._vectors.begins_as(self._named):
            raise StoreError(
                f"{self.name} changed otherwise than at its end, so the given ids may be of other records now; nothing "
                "was released: give them again by mark_changed(ids), or use an IDMap."
            )
        if len(self._ids) != len(numbers) or (len(numbers) and numbers.max() >= len(self._ids)):
            raise StoreError(f"{self.name} holds {len(numbers):,} records, and {len(self._ids):,} ids were given.")
        if isinstance(self._vectors, _Rows):
            self._named = self._vectors.state()  # what was added at the end has its ids too, from now on
            return self._ids
        return [self._ids[number] for number in numbers]


class _Rows:
    """Vectors in rows: in memory as they are, or in half precision."""

    def __init__(self, faiss: Any, index: Any) -> None:
        self._faiss, self._index = faiss, index
        self.zero_copy = _name(index) in _FLAT

    def numbers(self) -> NDArray[np.int64]:
        return np.arange(self._index.ntotal)

    def all(self) -> NDArray[np.float32]:
        n, d = int(self._index.ntotal), int(self._index.d)
        if not n:
            return np.empty((0, d), dtype=np.float32)
        if not self.zero_copy:
            decoded: NDArray[np.float32] = self._index.reconstruct_n(0, n)
            return decoded
        # Taken anew each time, and never kept: adding records moves them.
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

    def in_order(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        return values

    def state(self) -> tuple[int, int]:
        n = int(self._index.ntotal)
        return n, self._sample(n)

    def begins_as(self, state: tuple[int, int]) -> bool:
        """Whether nothing but additions came since then, as far as the sample tells."""
        n, sample = state
        return n <= int(self._index.ntotal) and self._sample(n) == sample

    def _sample(self, n: int) -> int:
        """Of the first n rows, the last of them included: whatever is removed before it moves it."""
        if not n:
            return 0
        seen = np.unique(np.linspace(0, n - 1, _SAMPLE).astype(np.int64))
        return hash(self._index.reconstruct_batch(seen).tobytes())


class _Lists:
    """Vectors in inverted lists, by rising number."""

    zero_copy = False

    def __init__(self, faiss: Any, index: Any) -> None:
        self._faiss, self._index = faiss, index

    def numbers(self) -> NDArray[np.int64]:
        numbers = self._as_they_lie()
        numbers.sort()
        return numbers

    def all(self) -> NDArray[np.float32]:
        numbers, done = self._as_they_lie(), 0
        places = np.empty(len(numbers), dtype=np.int64)
        places[np.argsort(numbers, kind="stable")] = np.arange(len(numbers))
        rows = np.empty((len(numbers), int(self._index.d)), dtype=np.float32)
        for ids, part in self._lists():
            rows[places[done : done + len(ids)]] = part
            done += len(ids)
        return rows

    def pages(self) -> Iterator[NDArray[np.float32]]:
        for _, part in self._lists():
            yield part

    def in_order(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        return values[np.argsort(self._as_they_lie(), kind="stable")]

    def _as_they_lie(self) -> NDArray[np.int64]:
        found = [ids.copy() for ids, _ in self._lists()]
        numbers: NDArray[np.int64] = np.concatenate(found) if found else np.empty(0, dtype=np.int64)
        if len(numbers) != self._index.ntotal:  # FAISS puts such vectors into no list
            raise StoreError(
                f"An IndexIVFFlat counts {self._index.ntotal:,} records and holds {len(numbers):,}: the others have "
                "entries that are not finite numbers, or too large for its L2; nothing was released."
            )
        return numbers

    def state(self) -> Hashable:
        return tuple(hash(ids.tobytes() + part[-1].tobytes()) for ids, part in self._lists())

    def _lists(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """The ids and vectors of each list that is not empty, as views that do not outlive the step."""
        lists, d = self._index.invlists, int(self._index.d)
        for number in range(int(self._index.nlist)):
            size = int(lists.list_size(number))
            if size:
                ids, codes = lists.get_ids(number), lists.get_codes(number)
                part = self._faiss.rev_swig_ptr(codes, size * d * 4).view(np.float32).reshape(size, d)
                yield self._faiss.rev_swig_ptr(ids, size), part
                lists.release_ids(number, ids)
                lists.release_codes(number, codes)


def _faiss() -> Any:
    try:
        return import_module("faiss")
    except ImportError:
        raise explain_missing_extra("faiss", "FaissStore") from None


def _name(index: Any) -> str:
    return type(index).__name__


def _inside(faiss: Any, index: Any) -> tuple[Any, Callable[[], NDArray[np.int64]] | None]:
    """What holds the vectors, and the ids where there is a map of them; or a refusal that says why."""
    if _name(index).startswith("Gpu"):
        raise InvalidInput(
            f"A {_name(index)} keeps its vectors on a GPU; give FaissStore faiss.index_gpu_to_cpu(index)."
        )
    inside = faiss.downcast_index(index)
    name = _name(inside)
    if name in _MAPPED:
        deeper, nested = _inside(faiss, inside.index)
        if nested is not None:
            raise InvalidInput("An IDMap inside an IDMap is not read; use one.")
        return deeper, lambda: faiss.vector_to_array(inside.id_map)
    if name in _GRAPHS:
        return _inside(faiss, inside.storage)
    if name in _REFINED:
        return _inside(faiss, inside.refine_index)
    if name == "IndexScalarQuantizer" and inside.sq.qtype in _per_record(faiss):
        return inside, None
    if name == "IndexIVFFlat" and inside.invlists.code_size == 4 * inside.d:
        return inside, None
    if name in _FLAT:
        return inside, None
    raise InvalidInput(f"An {name} {_why(name)}; use one that keeps the vectors: Flat, HNSW, IVF with Flat, SQfp16.")


def _per_record(faiss: Any) -> list[int]:
    """The scalar quantisers that learn nothing from other records; older versions have no bf16."""
    names = ("QT_fp16", "QT_bf16")
    return [getattr(faiss.ScalarQuantizer, name) for name in names if hasattr(faiss.ScalarQuantizer, name)]


def _why(name: str) -> str:
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
        raise InvalidInput(f"An {_name(index)} by another metric than inner product or L2 gives no cosines.")
