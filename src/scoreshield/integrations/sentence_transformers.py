"""sentence-transformers: a private ``semantic_search``, and a corpus that pays once.

``semantic_search(queries, corpus, epsilon=8)`` has the shape of ``sentence_transformers.util.semantic_search``: for
each query a list of ``{"corpus_id", "score"}``, best first, with released cosines as scores. Each call makes a release
of its own; :class:`PrivateCorpus` makes one and answers every later query from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _checks
from scoreshield import embeddings as _embeddings
from scoreshield.errors import InvalidInput
from scoreshield.integrations._common import refuse
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.search import Hits, PrivateSearch
from scoreshield.stores import ArrayStore, Convention, Records, Scored
from scoreshield.stores.protocol import reading, scrubbed

_DROPPED = ("score_function", "query_chunk_size", "corpus_chunk_size")


class Found(list[dict[str, Any]]):
    """One query's answers, best first: a list, which also knows its ``guarantee``."""

    guarantee: Guarantee

    def __init__(self, answers: Sequence[dict[str, Any]], guarantee: Guarantee) -> None:
        super().__init__(answers)
        self.guarantee = guarantee


def semantic_search(
    query_embeddings: Any, corpus_embeddings: Any, *, epsilon: float, top_k: int = 10, **options: Any
) -> list[Found]:
    """In the place of ``sentence_transformers.util.semantic_search``.

    Parameters
    ----------
    query_embeddings : one vector or a matrix of them; a tensor on any device, an array or lists.
    corpus_embeddings : the private ones, likewise.
    epsilon, options : of :class:`scoreshield.search.PrivateSearch`. In mode ``"index"`` one release answers all queries
        of the call; two calls with one corpus make two releases, and their epsilons add up.
    top_k : answers for each query.
    """
    for name in _DROPPED:
        if name in options:
            refuse(
                f"{name!r} in a private semantic_search", "it scores by the cosine alone, and all of the corpus at once"
            )
    k, queries = _checks.count(top_k, "top_k", "semantic_search"), _array(query_embeddings)
    held = [corpus_embeddings]
    del corpus_embeddings  # so that the frames of an error do not hold them

    def make() -> PrivateSearch:
        rows = _embeddings.as_rows(_array(held.pop()), "semantic_search", "corpus_embeddings")
        return PrivateSearch(ArrayStore(rows), epsilon=epsilon, **_checked(options))

    return [_found(hits) for hits in scrubbed(make).search_batch(queries, k)]


class PrivateCorpus:
    """Sentences that can be searched by meaning.

    Parameters
    ----------
    model : a SentenceTransformer, or anything with ``encode(sentences, normalize_embeddings=True)``. Where it has
        ``encode_document`` and ``encode_query``, these are used: they add the prompts that the model was trained with.
    sentences : the corpus; hits name them by their place in it.
    epsilon, options : of :class:`scoreshield.search.PrivateSearch`. In mode ``"index"`` no clean embedding is kept, and
        with a ``file`` that is there the corpus is not encoded again.
    """

    def __init__(self, model: Any, sentences: Sequence[str], *, epsilon: float, **options: Any) -> None:
        if not callable(getattr(model, "encode", None)):
            raise InvalidInput(
                f"PrivateCorpus takes a model with an 'encode' method. Got {type(model).__name__} instead."
            )
        self._model, self._sentences = model, _texts(sentences, "sentences", "PrivateCorpus")
        options = _checked(options)
        if options.get("pin") == "scores":
            refuse("pin='scores' for a PrivateCorpus", "every query would encode the corpus again")
        self._search = PrivateSearch(_Encoded(model, self._sentences), epsilon=epsilon, **options)
        if self._search.mode == "index" and self._search.ids != tuple(range(len(self._sentences))):
            raise InvalidInput(
                f"The saved index is of {len(self._search.ids):,} records, and there are {len(self._sentences):,} "
                "sentences: it was made of another corpus."
            )

    def __len__(self) -> int:
        return len(self._sentences)

    def __repr__(self) -> str:
        return f"<PrivateCorpus of {len(self):,} sentences, {self._search.mode!r}>"

    def __reduce__(self) -> Any:
        raise InvalidInput("A corpus may hold private vectors and is not pickled or copied; see the option 'file'.")

    @property
    def private_search(self) -> PrivateSearch:
        """What releases: its guarantee, and ``save()``."""
        return self._search

    def search(self, query: str | Sequence[str], k: int = 10, *, threshold: float | None = None) -> Any:
        """The ``k`` best sentences: a list of ``{"corpus_id", "score", "text"}``; for several queries, a list of such.

        ``threshold`` leaves out those with a released score below it. Several queries are charged together or not at
        all, where queries are charged.
        """
        one = isinstance(query, str)
        texts = _texts([query] if isinstance(query, str) else query, "query", "PrivateCorpus.search")
        vectors = _encode(self._model, "encode_query", texts)
        answers = [_found(hits, self._sentences) for hits in self._search.search_batch(vectors, k, threshold=threshold)]
        return answers[0] if one else answers

    async def asearch(self, query: str | Sequence[str], k: int = 10, *, threshold: float | None = None) -> Any:
        """:meth:`search`, encoding included, in a thread of its own."""
        return await asyncio.to_thread(self.search, query, k, threshold=threshold)


class _Encoded:
    """Sentences as a store of their embeddings, which it makes when asked and does not keep."""

    name = "The corpus"
    convention = Convention.COSINE
    zero_copy = False

    def __init__(self, model: Any, sentences: Sequence[str]) -> None:
        self._model, self._sentences = model, sentences
        self._dimension: int | None = None
        self._fresh: NDArray[Any] | None = None  # for the probe that follows a reading, then let go

    @property
    def dimension(self) -> int:
        if self._dimension is None:
            first = self._sentences[:1]
            rows = reading(self, "being encoded", lambda: _encode(self._model, "encode_document", first))
            self._dimension = int(rows.shape[1])
        return self._dimension

    def state(self) -> Hashable:
        return len(self._sentences)

    def records(self) -> Records:
        self._fresh = _encode(self._model, "encode_document", self._sentences)
        return Records(range(len(self._fresh)), self._fresh)

    def scores(self, query: NDArray[np.float32]) -> Scored:
        rows, self._fresh = self._fresh, None
        return ArrayStore(self.records().vectors if rows is None else rows).scores(query)


def _encode(model: Any, method: str, texts: Sequence[str]) -> NDArray[Any]:
    encode = getattr(model, method, model.encode)
    rows = _array(encode(list(texts), normalize_embeddings=True))
    if rows.ndim != 2 or len(rows) != len(texts) or rows.dtype.kind != "f":
        raise InvalidInput(f"The model must encode {len(texts):,} texts as so many rows of real numbers.")
    return rows


def _array(given: Any) -> NDArray[Any]:
    """Tensors of any device and precision, lists of them, and whatever NumPy reads."""
    if isinstance(given, list | tuple) and given and hasattr(given[0], "detach"):
        return np.stack([_array(one) for one in given])
    if hasattr(given, "detach"):
        dense = given.detach().to_dense() if given.is_sparse else given.detach()
        return np.asarray((dense.float() if dense.dtype.itemsize < 4 else dense).cpu().numpy())
    return _checks.array(given, "embeddings", "semantic_search", "a matrix of real numbers")


def _texts(given: Any, name: str, function: str) -> list[str]:
    must = "a list of at least one string"
    if isinstance(given, str) or not isinstance(given, Sequence) or not len(given):
        _checks.reject(name, function, must, given)
    if not all(isinstance(one, str) for one in given):
        _checks.reject(name, function, must, given)
    return list(given)


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    if options.get("centroids"):
        refuse("'centroids' here", "answers name records, and a centroid is of several")
    return options


def _found(hits: Hits, sentences: Sequence[str] | None = None) -> Found:
    scores = [None] * len(hits) if hits.scores is None else hits.scores.tolist()
    answers: list[dict[str, Any]] = [
        {"corpus_id": int(one), "score": score} for one, score in zip(hits.ids, scores, strict=True)
    ]
    if sentences is not None:
        answers = [{**one, "text": sentences[one["corpus_id"]]} for one in answers]
    return Found(answers, hits.guarantee)
