"""sentence-transformers: a private ``semantic_search``, and a corpus that is charged once.

``semantic_search(queries, corpus, epsilon=8)`` has the shape of ``sentence_transformers.util.semantic_search``: for
each query a list of ``{"corpus_id", "score"}``, best first. A score is the expected clean cosine, given the released
one. Each call makes a release of its own. `PrivateCorpus` makes one release and answers every later query from it.
"""

from __future__ import annotations

import asyncio
import numbers
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._validation import validate
from scoreshield.decisions.worth import Worth
from scoreshield.errors import InvalidInput
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.geometry.arrays import Progress
from scoreshield.integrations.core import check_search_options, reject_bypass
from scoreshield.integrations.text import Encode, as_array, check_texts, embed_rows, encode_batch
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.search import Hits, PrivateSearch
from scoreshield.stores import ArrayStore, Convention, Records, StoreScores
from scoreshield.stores.protocol import read_store

#: Parameters of the package's own function that a private one does not have.
_DROPPED = ("score_function", "query_chunk_size", "corpus_chunk_size")


class SentenceHits(list[dict[str, Any]]):
    """The answers to one query, best first.

    Attributes:
        guarantee: The guarantee of the release; None if nothing was released.
        worth: What the search is predicted to find, from public facts.
        noise_std: The standard deviation of a released score; None where there is none (`Hits.noise_std`).
    """

    guarantee: Guarantee | None

    def __init__(
        self,
        answers: Sequence[dict[str, Any]],
        guarantee: Guarantee | None,
        worth: Worth | None = None,
        noise_std: float | None = None,
    ) -> None:
        super().__init__(answers)
        self.guarantee, self.worth, self.noise_std = guarantee, worth, noise_std


@clear_frames_on_error
@validate()
def semantic_search(
    query_embeddings: Any, corpus_embeddings: Any, *, epsilon: float, top_k: int = 10, **options: Any
) -> list[SentenceHits]:
    """Search in place of ``sentence_transformers.util.semantic_search``.

    In mode ``"index"`` one release answers all queries of the call. Two calls with one corpus make two releases, and
    their epsilons add up.

    Args:
        query_embeddings: One vector or a matrix of them; a tensor on any device, an array or lists.
        corpus_embeddings: The private vectors, likewise.
        epsilon: Of the index, or of each query (``mode``). There is no default.
        top_k: How many answers each query gets.
        options: Of `PrivateSearch`, without ``file``.

    Returns:
        The answers to each query.
    """
    for name in _DROPPED:
        if name in options:
            why = "it scores by the cosine alone, and the whole corpus at once"
            reject_bypass(f"{name!r} in a private semantic_search", why)
    if "file" in options:
        why = "a file of vectors without ids does not show of which corpus it is; use a PrivateCorpus"
        reject_bypass("'file' in semantic_search", why)
    check_search_options(options)
    k, queries = _validation.check_count(top_k, "top_k"), as_array(query_embeddings)
    corpus = [corpus_embeddings]
    del corpus_embeddings  # so that the frames of an error do not hold them

    def open_search() -> PrivateSearch:
        rows = _embeddings.as_rows(as_array(corpus.pop()), "corpus_embeddings")
        _embeddings.as_queries(queries, rows.shape[1])  # before anything is charged
        return PrivateSearch(ArrayStore(rows), epsilon=epsilon, **{"k": k, **options})

    return [_translate(hits) for hits in open_search().search_batch(queries, k)]


class PrivateCorpus:
    """Sentences that can be searched by meaning.

    In mode ``"index"`` no clean embedding is kept, and the corpus is not encoded again if its ``file`` exists.

    Args:
        model: A SentenceTransformer, or any object with ``encode(sentences, normalize_embeddings=True)``. Its methods
            ``encode_document`` and ``encode_query`` are used if it has them: they add the prompts that the model was
            trained with.
        sentences: The corpus. Answers name sentences by their place in it. Each is encoded by a call of its own, so
            that a row depends on its own sentence alone (`scoreshield.integrations.text`).
        epsilon: Of the index, once; or of each query (``mode``). There is no default.
        ids: One public id per sentence: different whole numbers or strings. A ``file`` is then accepted for a corpus of
            the same ids, in any order. Without ids, sentences are known by their place, and a file of another corpus is
            recognised by its number of sentences only, since the file holds nothing of the sentences themselves.
        options: Of `PrivateSearch`. ``progress`` counts encoded sentences too.
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
        check_search_options(options)
        names = range(len(self._sentences)) if ids is None else _check_ids(ids, len(self._sentences))
        self._places: dict[Any, int] = {one: place for place, one in enumerate(names)}
        self._has_ids = ids is not None
        if options.get("pin") == "scores":
            reject_bypass("pin='scores' for a PrivateCorpus", "every query would encode the corpus again")
        store = _SentenceStore(model, self._sentences, names, options.get("progress"))
        self._search = PrivateSearch(store, epsilon=epsilon, **options)
        if self._search.mode == "index" and set(self._search.ids) != self._places.keys():
            raise InvalidInput(
                f"The saved index is of {len(self._search.ids):,} records, and there are {len(self._sentences):,} "
                "sentences, or they have other ids: it was made of another corpus."
            )

    def __len__(self) -> int:
        return len(getattr(self, "_sentences", ()))

    def __repr__(self) -> str:
        search = getattr(self, "_search", None)  # an error tracker may show a corpus whose constructor failed
        return f"<PrivateCorpus of {len(self):,} sentences, {getattr(search, 'mode', 'nothing')!r}>"

    def __reduce__(self) -> Any:
        raise InvalidInput("A corpus may hold private vectors and is not pickled or copied; see the option 'file'.")

    @property
    def private_search(self) -> PrivateSearch:
        """The search that releases: its guarantee, and ``save()``."""
        return self._search

    @clear_frames_on_error
    @validate()
    def search(self, query: str | Sequence[str], k: int = 10, *, threshold: float | None = None) -> Any:
        """Find the ``k`` best sentences of one query or of several.

        Several queries are charged together or not at all, where queries are charged.

        Args:
            query: One text, or a list of texts.
            k: How many sentences to return for each.
            threshold: Leave out sentences with a released score below it.

        Returns:
            A list of ``{"corpus_id", "score", "text"}``, with ``"id"`` where the sentences have ids. For a list of
            texts, a list of such lists.
        """
        is_single = isinstance(query, str)
        texts = check_texts([query] if isinstance(query, str) else query, "query")
        vectors = encode_batch(_get_encoder(self._model, "encode_query"), texts)  # public, so in one call
        answers = [self._translate(hits) for hits in self._search.search_batch(vectors, k, threshold=threshold)]
        return answers[0] if is_single else answers

    def _translate(self, hits: Hits) -> SentenceHits:
        answers = _translate(hits, self._places)
        for answer, one in zip(answers, hits.ids, strict=True):
            answer["text"] = self._sentences[answer["corpus_id"]]
            if self._has_ids:
                answer["id"] = one
        return answers

    @clear_frames_on_error
    async def asearch(self, query: str | Sequence[str], k: int = 10, *, threshold: float | None = None) -> Any:
        """`search` in a thread, with the encoding."""
        return await asyncio.to_thread(self.search, query, k, threshold=threshold)


class _SentenceStore:
    """Encodes sentences when they are read, one sentence per call, and does not keep the embeddings."""

    name = "The corpus"
    convention = Convention.COSINE
    zero_copy = False

    def __init__(self, model: Any, sentences: Sequence[str], names: Sequence[Any], progress: Progress | None) -> None:
        self._model, self._sentences, self._names, self._progress = model, sentences, names, progress
        self._dimension: int | None = None
        self._fresh: NDArray[Any] | None = None  # for the probe that follows a reading

    @property
    def dimension(self) -> int:
        if self._dimension is None:
            self._dimension = int(self._encode(self._sentences[:1], None).shape[1])
        return self._dimension

    def state(self) -> Hashable:
        return len(self._sentences)

    def ids(self) -> Sequence[Any]:
        """Return the ids without encoding a sentence."""
        return self._names

    def records(self) -> Records:
        self._fresh = self._encode(self._sentences, self._progress)
        return Records(self._names, self._fresh)

    def scores(self, query: NDArray[np.float32]) -> StoreScores:
        rows, self._fresh = self._fresh, None
        return ArrayStore(self.records().vectors if rows is None else rows, ids=self._names).scores(query)

    def _encode(self, sentences: Sequence[str], progress: Progress | None) -> NDArray[Any]:
        encode = _get_encoder(self._model, "encode_document")
        return read_store(self, "being encoded", lambda: embed_rows(encode, sentences, progress))


def _get_encoder(model: Any, method: str) -> Encode:
    encode = getattr(model, method, model.encode)
    return lambda texts: encode(texts, normalize_embeddings=True)


def _check_ids(ids: Any, count: int) -> list[Any]:
    must = f"{count:,} different whole numbers or strings, one for each sentence"
    names = ids.tolist() if isinstance(ids, np.ndarray) else ids
    if isinstance(names, str) or not isinstance(names, Sequence) or len(names) != count:
        _validation.reject("ids", must, ids)
    valid = (isinstance(one, str) or (isinstance(one, numbers.Integral) and not isinstance(one, bool)) for one in names)
    if not all(valid) or len(set(names)) != count:
        _validation.reject("ids", must, ids)
    return [one if isinstance(one, str) else int(one) for one in names]


def _translate(hits: Hits, places: Mapping[Any, int] | None = None) -> SentenceHits:
    scores = [None] * len(hits) if hits.scores is None else hits.scores.tolist()
    corpus_ids = [int(one) if places is None else places[one] for one in hits.ids]
    answers = [{"corpus_id": place, "score": score} for place, score in zip(corpus_ids, scores, strict=True)]
    return SentenceHits(answers, hits.guarantee, hits.worth, hits.noise_std)
