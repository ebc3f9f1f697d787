"""sentence-transformers: a private ``semantic_search``, and a corpus that pays once.

``semantic_search(queries, corpus, epsilon=8)`` has the shape of ``sentence_transformers.util.semantic_search``: for
each query a list of ``{"corpus_id", "score"}``, best first, with released cosines as scores. Each call makes a release
of its own; :class:`PrivateCorpus` makes one and answers every later query from it.
"""

from __future__ import annotations

import asyncio
import inspect
import numbers
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._validation import validate
from scoreshield.errors import InvalidInput, InvalidParameter
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.geometry.arrays import Progress
from scoreshield.integrations._common import refuse
from scoreshield.integrations.text import Encode, as_array, check_texts, embed_rows, encode_batch
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.search import Hits, PrivateSearch
from scoreshield.stores import ArrayStore, Convention, Records, StoreScores
from scoreshield.stores.protocol import read_store

_DROPPED = ("score_function", "query_chunk_size", "corpus_chunk_size")
_OPTIONS = frozenset(inspect.signature(PrivateSearch).parameters) - {"store", "epsilon"}


class Found(list[dict[str, Any]]):
    """One query's answers, best first: a list, which also knows its ``guarantee`` (None if nothing was released)."""

    guarantee: Guarantee | None

    def __init__(self, answers: Sequence[dict[str, Any]], guarantee: Guarantee | None) -> None:
        super().__init__(answers)
        self.guarantee = guarantee


@clear_frames_on_error
@validate()
def semantic_search(
    query_embeddings: Any, corpus_embeddings: Any, *, epsilon: float, top_k: int = 10, **options: Any
) -> list[Found]:
    """In the place of ``sentence_transformers.util.semantic_search``.

    Parameters
    ----------
    query_embeddings : one vector or a matrix of them; a tensor on any device, an array or lists.
    corpus_embeddings : the private ones, likewise.
    epsilon, options : of :class:`scoreshield.search.PrivateSearch`, less ``file``. In mode ``"index"`` one release
        answers all queries of the call; two calls with one corpus make two releases, and their epsilons add up.
    top_k : answers for each query.
    """
    for name in _DROPPED:
        if name in options:
            refuse(
                f"{name!r} in a private semantic_search", "it scores by the cosine alone, and all of the corpus at once"
            )
    if "file" in options:
        refuse("'file' in semantic_search", "nothing tells a corpus of vectors from another; use a PrivateCorpus")
    options = _checked(options)
    k, queries = _validation.check_count(top_k, "top_k"), as_array(query_embeddings)
    held = [corpus_embeddings]
    del corpus_embeddings  # so that the frames of an error do not hold them

    def make() -> PrivateSearch:
        rows = _embeddings.as_rows(as_array(held.pop()), "corpus_embeddings")
        _embeddings.as_queries(queries, rows.shape[1])  # before anything is paid for
        return PrivateSearch(ArrayStore(rows), epsilon=epsilon, **options)

    return [_found(hits) for hits in make().search_batch(queries, k)]


class PrivateCorpus:
    """Sentences that can be searched by meaning.

    Parameters
    ----------
    model : a SentenceTransformer, or anything with ``encode(sentences, normalize_embeddings=True)``. Where it has
        ``encode_document`` and ``encode_query``, these are used: they add the prompts that the model was trained with.
    sentences : the corpus; hits name them by their place in it. Each is encoded by a call of its own, so that a row
        depends on its own sentence alone (:mod:`scoreshield.integrations.text`).
    epsilon, options : of :class:`scoreshield.search.PrivateSearch`. In mode ``"index"`` no clean embedding is kept, and
        with a ``file`` that is there the corpus is not encoded again. ``progress`` counts encoded sentences too.
    ids : one for each sentence, public: different whole numbers or strings. A ``file`` is then taken for a corpus of
        the same ids, in any order. Without them sentences are known by their place, and a file tells another corpus by
        its number of sentences only: nothing about the sentences themselves is in it that could be compared.
    """

    @clear_frames_on_error
    @validate()
    def __init__(
        self,
        model: Any,
        sentences: Sequence[str],
        *,
        epsilon: float,
        ids: Sequence[int] | Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        if not callable(getattr(model, "encode", None)):
            raise InvalidInput(
                f"PrivateCorpus takes a model with an 'encode' method. Got {type(model).__name__} instead."
            )
        self._model, self._sentences = model, check_texts(sentences, "sentences")
        options = _checked(options)
        names = range(len(self._sentences)) if ids is None else _names(ids, len(self._sentences))
        self._places: dict[Any, int] = {one: place for place, one in enumerate(names)}
        self._named = ids is not None
        if options.get("pin") == "scores":
            refuse("pin='scores' for a PrivateCorpus", "every query would encode the corpus again")
        store = _Encoded(model, self._sentences, names, options.get("progress"))
        self._search = PrivateSearch(store, epsilon=epsilon, **options)
        if self._search.mode == "index" and set(self._search.ids) != self._places.keys():
            raise InvalidInput(
                f"The saved index is of {len(self._search.ids):,} records, and there are {len(self._sentences):,} "
                "sentences, or they have other ids: it was made of another corpus."
            )

    def __len__(self) -> int:
        return len(getattr(self, "_sentences", ()))

    def __repr__(self) -> str:
        search = getattr(self, "_search", None)  # an error tracker may show one that was refused half-way
        return f"<PrivateCorpus of {len(self):,} sentences, {getattr(search, 'mode', 'nothing')!r}>"

    def __reduce__(self) -> Any:
        raise InvalidInput("A corpus may hold private vectors and is not pickled or copied; see the option 'file'.")

    @property
    def private_search(self) -> PrivateSearch:
        """What releases: its guarantee, and ``save()``."""
        return self._search

    @clear_frames_on_error
    @validate()
    def search(self, query: str | Sequence[str], k: int = 10, *, threshold: float | None = None) -> Any:
        """The ``k`` best sentences: a list of ``{"corpus_id", "score", "text"}``; for several queries, a list of such.

        Where the sentences were given ids, these are there too, as ``"id"``.

        ``threshold`` leaves out those with a released score below it. Several queries are charged together or not at
        all, where queries are charged.
        """
        one = isinstance(query, str)
        texts = check_texts([query] if isinstance(query, str) else query, "query")
        vectors = encode_batch(_encoder(self._model, "encode_query"), texts)  # public, so together
        answers = [self._found(hits) for hits in self._search.search_batch(vectors, k, threshold=threshold)]
        return answers[0] if one else answers

    def _found(self, hits: Hits) -> Found:
        found = _found(hits, self._places)
        for answer, one in zip(found, hits.ids, strict=True):
            answer["text"] = self._sentences[answer["corpus_id"]]
            if self._named:
                answer["id"] = one
        return found

    @clear_frames_on_error
    async def asearch(self, query: str | Sequence[str], k: int = 10, *, threshold: float | None = None) -> Any:
        """:meth:`search`, encoding included, in a thread of its own."""
        return await asyncio.to_thread(self.search, query, k, threshold=threshold)


class _Encoded:
    """Sentences as a store of their embeddings, which it makes when asked, one sentence per call, and does not keep."""

    name = "The corpus"
    convention = Convention.COSINE
    zero_copy = False

    def __init__(self, model: Any, sentences: Sequence[str], names: Sequence[Any], progress: Progress | None) -> None:
        self._model, self._sentences, self._names, self._progress = model, sentences, names, progress
        self._dimension: int | None = None
        self._fresh: NDArray[Any] | None = None  # for the probe that follows a reading, then let go

    @property
    def dimension(self) -> int:
        if self._dimension is None:
            self._dimension = int(self._encoded(self._sentences[:1], None).shape[1])
        return self._dimension

    def state(self) -> Hashable:
        return len(self._sentences)

    def ids(self) -> Sequence[Any]:
        """Without encoding anything."""
        return self._names

    def records(self) -> Records:
        self._fresh = self._encoded(self._sentences, self._progress)
        return Records(self._names, self._fresh)

    def scores(self, query: NDArray[np.float32]) -> StoreScores:
        rows, self._fresh = self._fresh, None
        return ArrayStore(self.records().vectors if rows is None else rows, ids=self._names).scores(query)

    def _encoded(self, sentences: Sequence[str], progress: Progress | None) -> NDArray[Any]:
        encode = _encoder(self._model, "encode_document")
        return read_store(self, "being encoded", lambda: embed_rows(encode, sentences, progress))


def _encoder(model: Any, method: str) -> Encode:
    encode = getattr(model, method, model.encode)
    return lambda texts: encode(texts, normalize_embeddings=True)


def _names(ids: Any, count: int) -> list[Any]:
    must = f"{count:,} different whole numbers or strings, one for each sentence"
    given = ids.tolist() if isinstance(ids, np.ndarray) else ids
    if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != count:
        _validation.reject("ids", must, ids)
    whole = (isinstance(one, str) or (isinstance(one, numbers.Integral) and not isinstance(one, bool)) for one in given)
    if not all(whole) or len(set(given)) != count:
        _validation.reject("ids", must, ids)
    return [one if isinstance(one, str) else int(one) for one in given]


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    for name in sorted(options.keys() - _OPTIONS):
        raise InvalidParameter(name, "is unknown, also to PrivateSearch.")
    if options.get("centroids"):
        refuse("'centroids' here", "answers name records, and a centroid is of several")
    return options


def _found(hits: Hits, places: Mapping[Any, int] | None = None) -> Found:
    scores = [None] * len(hits) if hits.scores is None else hits.scores.tolist()
    named = [int(one) if places is None else places[one] for one in hits.ids]
    answers = [{"corpus_id": place, "score": score} for place, score in zip(named, scores, strict=True)]
    return Found(answers, hits.guarantee)
