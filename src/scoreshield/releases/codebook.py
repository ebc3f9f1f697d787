"""A private index over a public codebook: each record becomes a set of public vectors of the same model.

A record's code is the set of T codewords whose centred sum points nearest to the record, chosen one after the other.
The code is released by one randomised response over all C(K, T) sets (`scoreshield.privacy.response`), so one epsilon
covers the whole code, and every later query is free. The codebook is public: it must not come from the private records.
docs/proofs/codebook.md has the proof.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from scoreshield import _files, _loading, _validation
from scoreshield._types import Rng
from scoreshield._validation import check_count, check_epsilon, optional, validate, whole_from
from scoreshield.decisions.laws import TableLaw, make_binned_table
from scoreshield.decisions.queries import QueryScores
from scoreshield.decisions.worth import USEFUL_SHARE, Worth
from scoreshield.errors import InvalidInput
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.geometry.arrays import Progress
from scoreshield.privacy.adjacency import FULL_RANGE, Adjacency, Identity, Replacement
from scoreshield.privacy.guarantee import Guarantee, ReleaseFacts
from scoreshield.privacy.profiles import Profile, PureProfile
from scoreshield.privacy.response import LARGEST_SIZE, SetResponse, Symbols, estimate_log_sets
from scoreshield.privacy.sampling.stream import Stream, name_sampler, open_stream
from scoreshield.releases.index import PrivateIndex, predict_index_worth, release_index
from scoreshield.releases.index_plan import check_center, subtract_center
from scoreshield.releases.pipeline import PendingRelease, PrivateCollection

Float = NDArray[np.float64]
Single = NDArray[np.float32]
Ints = NDArray[np.int64]

#: A larger code is used only if e^epsilon is at least e^2 times the number of codes: 88 % of the codes are then true.
_TRUTH_MARGIN = 2.0
#: Products of records and codewords are computed in blocks of about this many bytes.
_BLOCK_BYTES = 1 << 25
#: How many codewords measure which code size still helps.
_SAMPLE = 512
#: The levels of the law of coded scores.
_LEVELS = 256
#: The deviation of private records from the line may be so many times that of the codewords. A record that is a
#: codeword has none, and records of another domain have more.
_DEVIATIONS = (0.0, 2.0)
#: Codes that are true with probabilities this close to each other count as true equally often.
_SAME_TRUTH = 1e-3
_LONGEST_SOURCE = 500
_KIND = "public codebook"


class PublicCodebook:
    """Public vectors of the same model as the private records.

    The vectors must be public: of another collection, of a public corpus, or of a log of past queries. They must not
    come from the private records, not even as averages of them. Nothing checks this, because an error would reveal who
    is in the collection. The certificate states `source` and `fingerprint`.

    Args:
        vectors: K vectors, (K, d), K at least 2, no two of the same direction.
        source: One sentence that says where the vectors come from. It appears on the certificate.
        center: The public vector that is subtracted before directions are compared; None for the mean of the unit
            vectors.
        code_size: T, how many codewords a record's code has; None chooses it for each epsilon (`choose_size`).

    Attributes:
        vectors: The unit vectors, float32.
        center: The center, float64.
    """

    @validate(code_size=optional(check_count))
    def __init__(
        self,
        vectors: ArrayLike,
        *,
        source: str = "The caller did not state a source.",
        center: ArrayLike | None = None,
        code_size: int | None = None,
    ) -> None:
        rows = _embeddings.as_rows(vectors, "vectors")
        if len(rows) < 2:
            raise InvalidInput("A codebook needs at least two vectors: one says nothing about a record.")
        unit = _embeddings.normalise_public_rows(rows, "vectors").astype(np.float32)
        repeated = _count_repeated_rows(unit)
        if repeated:
            raise InvalidInput(f"{repeated:,} vectors of the codebook have the direction of another one: remove them.")
        if center is None:
            middle: Float = unit.mean(axis=0, dtype=np.float64)
        elif isinstance(center, str):
            _validation.reject("center", "None or a public vector", center)
        else:
            middle = np.array(check_center(center, unit.shape[1]), dtype=np.float64)
        if code_size is not None and code_size >= len(unit):
            _validation.reject("code_size", f"below the number of vectors, {len(unit):,}", code_size)
        if code_size is not None and code_size > LARGEST_SIZE:
            _validation.reject("code_size", f"at most {LARGEST_SIZE}", code_size)
        self.vectors, self.center, self.code_size, self.source = unit, middle, code_size, _check_source(source)
        if not (np.linalg.norm(unit - middle, axis=1) > 1e-6).all():
            raise InvalidInput("A vector of the codebook equals the center and has no direction from it: remove it.")
        self._freeze()

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._freeze()  # a copy of an array is writable

    def _freeze(self) -> None:
        for array in (self.vectors, self.center):
            array.flags.writeable = False

    def __len__(self) -> int:
        return len(self.vectors)

    def __repr__(self) -> str:
        return f"<PublicCodebook of {len(self):,} vectors of {self.dimension:,} dimensions, {self.fingerprint[:12]}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PublicCodebook):
            return NotImplemented
        mine, theirs = ((one.fingerprint, one.source, one.code_size) for one in (self, other))
        return mine == theirs

    __hash__ = None  # type: ignore[assignment]

    @property
    def dimension(self) -> int:
        return int(self.vectors.shape[1])

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the unit vectors and the center, in hexadecimal."""
        digest = hashlib.sha256(f"{self.vectors.shape}".encode())
        digest.update(np.ascontiguousarray(self.vectors, dtype="<f4").data)
        digest.update(np.ascontiguousarray(self.center, dtype="<f8").data)
        return digest.hexdigest()

    @cached_property
    def _directions(self) -> Single:
        """The unit directions of the vectors from the center."""
        directions = subtract_center(self.vectors.astype(np.float64), self.center).astype(np.float32)
        directions.flags.writeable = False
        return directions

    @validate(epsilon=check_epsilon)
    def choose_size(self, epsilon: float) -> int:
        """Choose T, the number of codewords in a code, from public facts.

        It is the largest with `ln C(K, T) + 2 ≤ ε`, at least 1 and at most 256 or half of the codewords. If this allows
        more than three, T is at most the number that reproduces the codewords themselves best, each from the others.
        """
        if self.code_size is not None:
            return self.code_size
        size, most = 1, min(len(self) // 2, LARGEST_SIZE)
        while size < most and estimate_log_sets(len(self), size + 1) + _TRUTH_MARGIN <= epsilon:
            size += 1
        return size if size <= 3 else self._find_useful_size(size)

    def _find_useful_size(self, most: int) -> int:
        chosen = np.unique(np.linspace(0, len(self) - 1, _SAMPLE).astype(np.int64))
        best, reached = 1, -1.0
        steps = self._choose_codewords(self._directions[chosen], chosen)
        for size, (_, cosines) in enumerate(islice(steps, most), start=1):
            if float(cosines.mean()) > reached:
                best, reached = size, float(cosines.mean())
        return best

    def encode(self, rows: Float, size: int, *, without: Ints | None = None) -> Ints:
        """Find the codes of unit rows, (n, size), clean: for a release or for public rows only.

        Args:
            rows: The unit rows.
            size: T.
            without: For each row a codeword that its code may not have: itself, if the row is a codeword.
        """
        codes = np.empty((len(rows), size), dtype=np.int64)
        block = _choose_block(len(self))
        for start in range(0, len(rows), block):
            part = slice(start, start + block)
            directions = subtract_center(rows[part].astype(np.float64), self.center).astype(np.float32)
            steps = self._choose_codewords(directions, None if without is None else without[part])
            for place, (chosen, _) in enumerate(islice(steps, size)):
                codes[part, place] = chosen
        return codes

    def _choose_codewords(self, rows: Single, without: Ints | None) -> Iterator[tuple[Ints, Single]]:
        """Choose for each row the codeword that turns the sum nearest to it, one after the other.

        Yields:
            The chosen codewords, and the cosines of the rows with their sums so far.
        """
        words, places = self._directions, np.arange(len(rows))
        products = rows @ words.T
        if without is not None:
            products[places, without] = -np.inf
        chosen = products.argmax(axis=1)
        along, sums = products[places, chosen], words[chosen]
        yield chosen, along
        while True:
            products[places, chosen] = -np.inf  # a set has each codeword once
            values = sums @ words.T
            values *= 2
            values += (np.vecdot(sums, sums) + 1)[:, None]
            np.sqrt(np.maximum(values, 1e-12, out=values), out=values)
            np.divide(products + along[:, None], values, out=values)
            chosen = values.argmax(axis=1)
            along = along + products[places, chosen]
            sums = sums + words[chosen]
            yield chosen, values[places, chosen]

    def describe_scores(self, size: int, epsilon: float) -> list[CodeLaw]:
        """Describe how codes change scores, from the codewords alone, for predictions.

        Each of some codewords is encoded by the others. Its scores with further codewords are compared with the clean
        ones, for each of these alone, because only differences between records rank: a line, and a normal deviation
        from it. A code that is not true is a random set of codewords.

        Args:
            size: T.
            epsilon: What a record spends.

        Returns:
            The laws of the best smaller codes at the same epsilon, and of this one if it is among the best. A smaller
            code is less likely to be false. The best of their predictions does not fall as epsilon grows. Where this
            code is larger than `choose_size` allows, it is mostly false, and its law alone is returned.
        """
        sizes = [size]
        if estimate_log_sets(len(self), size) + _TRUTH_MARGIN <= epsilon:
            sizes = sorted({2**power for power in range(size.bit_length())} | {max(size - 1, 1), size})
        if not set(sizes) <= self._code_figures.keys():
            self._code_figures.update(self._measure_codes(sizes))
        truths = {one: SetResponse(epsilon, names=len(self), size=one).truth for one in sizes}
        chosen = _drop_worse_sizes({one: self._code_figures[one].deviation for one in sizes}, truths)
        for one in chosen:
            if (one, epsilon) not in self._code_laws:
                self._code_laws[one, epsilon] = CodeLaw.make(self._code_figures[one], truths[one])
        return [self._code_laws[one, epsilon] for one in chosen]

    @cached_property
    def _code_figures(self) -> dict[int, CodeFigures]:
        return {}

    @cached_property
    def _code_laws(self) -> dict[tuple[int, float], CodeLaw]:
        return {}

    @np.errstate(all="ignore")
    def _measure_codes(self, sizes: list[int]) -> dict[int, CodeFigures]:
        """Measure what codes of some sizes do to scores between codewords."""
        count = min(_SAMPLE, len(self) // 2)
        rng = np.random.default_rng(len(self))
        order = rng.permutation(len(self))
        rows, queries = np.sort(order[:count]), np.sort(order[count : 2 * count])
        unit = self.vectors.astype(np.float64)
        codes = self.encode(unit[rows], max(sizes), without=rows)
        random = np.argsort(rng.random((count, len(self))), axis=1)[:, : max(sizes)]
        clean = unit[rows] @ unit[queries].T
        return {size: _compare_scores(clean, unit, unit[queries], codes[:, :size], random[:, :size]) for size in sizes}

    def save(self, path: str | Path) -> None:
        """Write the codebook to one .npz file, completely or not at all."""
        facts = {"source": self.source, "code_size": self.code_size}
        arrays: dict[str, NDArray[Any]] = {"vectors": self.vectors, "center": self.center}
        _files.write_whole({Path(path): _files.release_writer(_KIND, {}, facts, arrays)})

    @classmethod
    def load(cls, path: str | Path) -> PublicCodebook:
        """Read back a codebook that `save` wrote, equal to what was saved."""
        kind, _, facts, arrays = _files.read_release(path)
        if kind != _KIND:
            raise InvalidInput(f"{path} holds a release of kind {kind[:40]!r} and no public codebook.")
        with _loading.explain_read_errors(path):
            found = cls(arrays["vectors"], center=arrays["center"], **facts)
            found._keep_rounding(arrays["vectors"])
        return found

    def _keep_rounding(self, vectors: NDArray[Any]) -> None:
        """Keep unit vectors from a file as they are: to normalise them again would change their last bits."""
        if vectors.dtype != np.float32 or np.abs(vectors - self.vectors).max() > 1e-6:
            raise InvalidInput("The vectors of the codebook in the file are not unit vectors in single precision.")
        self.vectors = vectors
        self._freeze()

    @validate(epsilon=check_epsilon, k=check_count, repeats=whole_from(1), seed=whole_from(0))
    def try_on(
        self,
        public_queries: ArrayLike,
        public_records: ArrayLike | None = None,
        *,
        epsilon: float,
        k: int = 10,
        repeats: int = 3,
        seed: int = 0,
    ) -> CodebookTrial:
        """Measure on public data what an index over this codebook keeps of a search, for free.

        Nothing private is read and nothing is charged. Each trial makes an index of the public records in research
        mode. Public records should be like the private ones: of the same domain and about as many. Without them a trial
        measures the codebook's own domain only, and cannot say whether the codebook is useful for other records.

        Args:
            public_queries: Public queries, (m, d), such as past ones.
            public_records: Public records, (n, d), like the private ones, that are not in the codebook. None takes the
                codewords themselves, each encoded by the others; `CodebookTrial.is_useful` is then None.
            epsilon: The epsilon of the index.
            k: How many best records of each query are compared, fewer than there are records.
            repeats: How many indexes are made.
            seed: Of the research mode.

        Returns:
            The measured shares and, if public records were given, whether the codebook is useful for such records.

        Raises:
            InvalidInput: The queries or the records have another dimension, or there are not more than `k` records.
        """
        queries = _embeddings.as_queries(public_queries, self.dimension)[0]
        has_records = public_records is not None
        given = _embeddings.as_rows(self.vectors if public_records is None else public_records, "public_records")
        records = _embeddings.normalise_public_rows(given, "public_records")
        if records.shape[1] != self.dimension:
            _validation.reject("public_records", f"of {self.dimension} dimensions, as the codebook is", records)
        if k >= len(records):
            must = f"below the number of public records, {len(records):,}: all of them would be the best ones"
            _validation.reject("k", must, k)
        response = SetResponse(epsilon, names=len(self), size=self.choose_size(epsilon))
        codes = self.encode(records, response.size, without=None if has_records else np.arange(len(records)))
        clean = np.argsort(-(queries @ records.T), axis=1, kind="stable")[:, :k]
        guarantee = _state_guarantee(self, response, len(records), Replacement(), epsilon, "research")
        kept, kept_by_vectors = np.zeros(len(queries)), np.zeros(len(queries))
        for number in range(repeats):
            stream = open_stream(np.random.default_rng([seed, number]))
            drawn = response.release(stream, Symbols(codes, np.zeros_like(codes)))
            coded = CodebookRelease.make(guarantee, drawn.names, self)
            vectors = release_index(records, epsilon=min(epsilon, 500.0), rng=np.random.default_rng([seed, number]))
            kept += _count_common(coded.search(queries, k).indices, clean) / (k * repeats)
            kept_by_vectors += _count_common(vectors.search(queries, k).indices, clean) / (k * repeats)
        return CodebookTrial(
            epsilon=epsilon,
            k=k,
            records=len(records),
            queries=len(queries),
            code_size=response.size,
            recall=float(kept.mean()),
            error=float(kept.std() / math.sqrt(len(queries))),
            without_codebook=float(kept_by_vectors.mean()),
            chance=k / len(records),
            has_public_records=has_records,
        )


@dataclass(frozen=True)
class CodebookTrial:
    """What an index over a codebook keeps of the clean answers to public queries on public records.

    Attributes:
        epsilon: The epsilon of the index.
        k: How many best records of each query were compared.
        records: How many public records there were.
        queries: How many public queries there were.
        code_size: T, the number of codewords in a code.
        recall: The mean share of the clean best k records that the index names among its best k.
        error: The standard error of `recall` over the queries.
        without_codebook: The same share for an index by PrivUnit at the same epsilon.
        chance: The same share for a random answer, k / records.
        has_public_records: Whether public records were given. Without them, the codewords were the records.
    """

    epsilon: float
    k: int
    records: int
    queries: int
    code_size: int
    recall: float
    error: float
    without_codebook: float
    chance: float
    has_public_records: bool

    @property
    def is_useful(self) -> bool | None:
        """Whether it keeps at least half of the clean answers, and clearly more than PrivUnit and chance.

        Clearly more than PrivUnit is beyond three standard errors; clearly more than chance is also twice as much.
        None without public records: a codebook serves its own domain even where it is useless for other records.
        """
        if not self.has_public_records:
            return None
        return self._is_better and self.recall >= USEFUL_SHARE

    @property
    def _is_better(self) -> bool:
        return self.recall - 3 * self.error > max(self.without_codebook, 2 * self.chance)

    @property
    def verdict(self) -> str:
        """Whether the codebook is useful, in a sentence."""
        if self.is_useful is None:
            return (
                "This is about the codebook's own domain; your records were not tried. Give public_records that are "
                "like them."
            )
        if self.is_useful:
            return "The codebook serves this domain."
        if self._is_better:
            return (
                f"The codebook keeps more than PrivUnit, and only {self.recall:.2f} of the clean answers: the ranking "
                "would be MOSTLY NOISE. Use a larger epsilon, or vectors that are nearer to the records."
            )
        return (
            "The codebook is USELESS here: it does not keep clearly more than PrivUnit, or not more than twice what "
            "chance keeps. Use vectors of the domain of the records, or no codebook."
        )

    def __str__(self) -> str:
        codes = "codes of 1 codeword" if self.code_size == 1 else f"codes of {self.code_size} codewords"
        records = "public records" if self.has_public_records else "codewords, each encoded by the others"
        return (
            f"At epsilon {self.epsilon:g}, {codes} keep {self.recall:.3f} ± {self.error:.3f} of the clean best "
            f"{self.k} of {self.records:,} {records}, over {self.queries:,} public queries. PrivUnit keeps "
            f"{self.without_codebook:.3f} and chance {self.chance:.3f}. {self.verdict}"
        )


@dataclass(frozen=True, eq=False, repr=False)
class CodebookRelease(PrivateIndex):
    """A private code per record, and the public codebook, which answer any number of queries.

    A score is the cosine of the query with the direction of the sum of the code's codewords. It is not unbiased.

    Attributes:
        codes: (n, T), unsigned whole numbers: the codewords of each record in increasing order.
        codewords: (K, d), float32, the public unit vectors.
        center: (d,), the public center.
    """

    kind = "codebook index"

    codes: NDArray[Any]
    codewords: Single
    center: Float

    @classmethod
    def make(cls, guarantee: Guarantee, codes: Ints, codebook: PublicCodebook) -> CodebookRelease:
        small = np.uint16 if len(codebook) <= 1 << 16 else np.uint32
        return cls(guarantee, codes.astype(small), codebook.vectors, codebook.center)

    @cached_property
    def codebook(self) -> PublicCodebook:
        """The public codebook."""
        details = self.guarantee.details
        found = PublicCodebook(
            self.codewords, source=details["source"], center=self.center, code_size=details["code_size"]
        )
        found._keep_rounding(self.codewords)
        return found

    @property
    def dimension(self) -> int:
        return int(self.codewords.shape[1])

    @property
    def vectors(self) -> Single:
        """One unit vector per record, (n, d): the direction of the sum of its codewords. Made anew at each call."""
        vectors: Single = self.codewords[self.codes[:, 0]]
        for place in range(1, self.codes.shape[1]):
            vectors += self.codewords[self.codes[:, place]]
        vectors *= self._factors[:, None]
        return vectors

    @cached_property
    def _factors(self) -> Single:
        """What makes each sum of codewords a unit vector."""
        factors = np.empty(len(self.codes), dtype=np.float32)
        block = max(1, _BLOCK_BYTES // (4 * self.codewords.shape[1] * self.codes.shape[1]))
        for start in range(0, len(factors), block):
            sums = self.codewords[self.codes[start : start + block]].sum(axis=1)
            factors[start : start + block] = 1 / np.maximum(np.sqrt(np.vecdot(sums, sums)), 1e-6)
        return factors

    def is_intact(self) -> bool:
        guarantee, codes = self.guarantee, self.codes
        words, details = self.codewords, guarantee.details
        return (
            (guarantee.regime, guarantee.mechanism) == ("index", "codebook")
            and codes.shape == guarantee.shape
            and codes.dtype == (np.uint16 if len(words) <= 1 << 16 else np.uint32)
            and len(words) == details["codewords"]
            and bool((codes < len(words)).all())
            and bool((np.diff(codes.astype(np.int64), axis=1) > 0).all())
            and self.codebook.fingerprint == details["fingerprint"]
        )

    def _read_queries(self, query: ArrayLike) -> tuple[Single, bool]:
        queries, single = _embeddings.as_queries(query, self.dimension)
        # One row per codeword, so that a record's scores with all queries lie side by side.
        return np.ascontiguousarray((queries.astype(np.float32) @ self.codewords.T).T), single

    def _score_rows(self, queries: Single, rows: slice) -> Single:
        codes = self.codes[rows]
        sums: Single = queries[codes[:, 0]]
        for place in range(1, codes.shape[1]):
            sums += queries[codes[:, place]]
        sums *= self._factors[rows, None]
        return sums.T

    def _list_vectors(self) -> Single:
        return self.vectors

    def _predict_worth(self, k: int, public_scores: QueryScores | None) -> Worth:
        return predict_index_worth(self.guarantee, self.dimension, k, public_scores, self.codebook)


class CodeFigures(NamedTuple):
    """What codes do to the scores of public vectors.

    Attributes:
        slope: Of the line from clean to coded scores of one query.
        std: The standard deviation of coded scores from the line.
        false: Scores of random codes, less the mean coded score of the query.
        middle: The mean clean score.
    """

    slope: float
    std: float
    false: Float
    middle: float

    @property
    def deviation(self) -> float:
        """The standard deviation on the scale of clean scores."""
        return self.std / self.slope


class CodeLaw(NamedTuple):
    """The law of scores by codes, with those at the ends of what it may be for private records.

    Attributes:
        law: The law for records that are like the codewords.
        ends: The laws with a smaller and with a larger deviation.
    """

    law: TableLaw
    ends: tuple[TableLaw, ...]

    @classmethod
    def make(cls, figures: CodeFigures, truth: float) -> CodeLaw:
        """Make the laws for a probability that a code is true."""
        return cls(
            make_code_law(figures, truth),
            tuple(make_code_law(figures._replace(std=figures.std * factor), truth) for factor in _DEVIATIONS),
        )


def make_code_law(figures: CodeFigures, truth: float) -> TableLaw:
    """Make the law of scores by codes, on the scale of clean scores, for a probability that a code is true."""
    std = max(figures.deviation, 1e-3)
    edges = np.linspace(-1, 1, _LEVELS + 1)
    middles = (edges[:-1] + edges[1:]) / 2
    cuts = np.linspace(-1 - 4 * std, 1 + 4 * std, 2 * _LEVELS)
    unrelated = np.sort(figures.middle + figures.false / figures.slope)
    false = 1 - np.searchsorted(unrelated, cuts, side="right") / len(unrelated)
    tails = truth * ndtr((middles[:, None] - cuts) / std) + (1 - truth) * false
    return make_binned_table(edges[1:-1], cuts, tails)


def _drop_worse_sizes(deviations: dict[int, float], truths: dict[int, float]) -> list[int]:
    """Leave out code sizes to which another one is as good: it deviates less, and is true at least nearly as often."""
    return [
        size
        for size in deviations
        if not any(
            deviations[other] < deviations[size] and truths[other] >= truths[size] - _SAME_TRUTH for other in deviations
        )
    ]


def _compare_scores(clean: Float, words: Float, queries: Float, codes: Ints, random: Ints) -> CodeFigures:
    """Compare the scores of codes with the clean ones, (rows, queries), query by query."""
    coded, false = (_point(words, chosen) @ queries.T for chosen in (codes, random))
    false = false - coded.mean(axis=0)
    coded = coded - coded.mean(axis=0)
    centred = clean - clean.mean(axis=0)
    slope = max(float((centred * coded).mean() / max(float((centred**2).mean()), 1e-12)), 1e-3)
    return CodeFigures(slope, float((coded - slope * centred).std()), false.ravel(), float(clean.mean()))


def _point(words: Float, codes: Ints) -> Float:
    """Find the direction of the sum of the codewords of each code."""
    sums = np.zeros((len(codes), words.shape[1]))
    for chosen in codes.T:
        sums += words[chosen]
    pointed: Float = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-6)
    return pointed


def prepare_codebook_index(
    source: PrivateCollection, codebook: Any, *, epsilon: float, rng: Rng, progress: Progress | None
) -> PendingRelease[_embeddings.Rows, CodebookRelease]:
    """Prepare an index over a codebook without a charge. The rows are checked before it, and encoded after it."""
    if type(codebook) is not PublicCodebook:  # a subclass could encode a record by the others
        _validation.reject("codebook", "a PublicCodebook", codebook)
    if codebook.dimension != source.dimension:
        must = f"of {source.dimension:,} dimensions, as the embeddings are"
        _validation.reject("codebook", must, f"{codebook.dimension:,} dimensions")
    group = source.adjacency.largest if isinstance(source.adjacency, Identity) else 1
    each = epsilon if group == 1 else epsilon / group * (1 - 2**-50)
    response = SetResponse(each, names=len(codebook), size=codebook.choose_size(each))
    guarantee = _state_guarantee(codebook, response, source.size, source.adjacency, epsilon, name_sampler(rng))

    def check_rows() -> _embeddings.Rows:
        rows = source.rows()
        _embeddings.check_finite(rows)
        return rows

    def draw(rows: _embeddings.Rows, stream: Stream) -> CodebookRelease:
        codes = np.empty(guarantee.shape, dtype=np.int64)
        block = _choose_block(len(codebook))
        for start in range(0, len(rows), block):
            unit = _embeddings.normalise_rows(rows[start : start + block], first=start)
            true = codebook.encode(unit, response.size)
            end = start + len(true)
            codes[start:end] = response.release(stream, Symbols(true, np.zeros_like(true))).names
            if progress is not None:
                progress(end, len(rows))
        return CodebookRelease.make(guarantee, codes, codebook)

    return PendingRelease(guarantee, source.adjacency, rng, check_rows, draw)


def _state_guarantee(
    codebook: PublicCodebook, response: SetResponse, records: int, adjacency: Adjacency, epsilon: float, sampler: str
) -> Guarantee:
    group = adjacency.largest if isinstance(adjacency, Identity) else 1
    profile: Profile = response.profile if group == 1 else PureProfile(epsilon)
    return Guarantee.for_mechanism(
        ReleaseFacts(adjacency, "index", (records, response.size), FULL_RANGE, sampler),
        epsilon=epsilon,
        delta=0.0,
        mechanism="codebook",
        sensitivity=2 * math.sqrt(group),
        grid_sensitivity=2 * math.sqrt(group),
        scale=1.0,
        grid=1.0,
        noise=None,
        profile=profile,
        details={
            "source": codebook.source,
            "fingerprint": codebook.fingerprint,
            "codewords": len(codebook),
            "code_size": response.size,
            "epsilon_per_record": response.epsilon,
            "true_code_probability": response.truth,
        },
    )


def _choose_block(codewords: int) -> int:
    return max(1, _BLOCK_BYTES // (8 * codewords))


def _check_source(source: Any) -> str:
    must = f"one line of text of at most {_LONGEST_SOURCE} characters"
    if not isinstance(source, str) or not source.strip() or not source.isprintable() or len(source) > _LONGEST_SOURCE:
        _validation.reject("source", must, source)
    return source


def _count_repeated_rows(rows: Single) -> int:
    rows = np.ascontiguousarray(rows + np.float32(0))  # -0.0 and 0.0 are equal
    whole = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1])))[:, 0]
    return len(rows) - len(np.unique(whole))


def _count_common(found: NDArray[np.intp], wanted: NDArray[np.intp]) -> Float:
    """Count for each row how many numbers are in both."""
    common: Float = (found[:, :, None] == wanted[:, None, :]).any(axis=2).sum(axis=1).astype(np.float64)
    return common
