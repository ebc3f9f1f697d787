"""How an audit calls a release and reads what comes back: one row of numbers an output, many outputs a side.

Three ways of drawing, the fastest that is sound: a callable that takes ``repeats=`` returns so many independent
outputs itself; of ScoreShield's own releases in which every record has noise of its own, the collection is repeated
inside one call, which is the same law; anything else is called once for each output.
"""

from __future__ import annotations

import inspect
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._loading import describe_error
from scoreshield.errors import InvalidInput, ScoreShieldError
from scoreshield.privacy.adjacency import Replacement
from scoreshield.releases import release_scores
from scoreshield.releases.index import IndexRelease, release_index
from scoreshield.releases.matches import release_matches
from scoreshield.releases.results import (
    FactoredGramRelease,
    GramRelease,
    HistogramRelease,
    MatchRelease,
    Release,
    ScoreRelease,
    TopKRelease,
)

Float = NDArray[np.float64]
#: Noise laws whose density `statistics` knows.
_DENSITIES = ("gaussian", "laplace", "staircase")
#: Outputs of one call in bulk where two collections take turns, at least and at most; turns after which they are even.
_TURN, _TURNS = (32, 2000), 8
#: Rows that one repeated call holds, about.
_BLOCK = 1 << 20


class Source:
    """A release under audit: called with a collection, it gives outputs as rows of numbers.

    Parameters
    ----------
    release : a callable from an (n, d) array to an output; ``rng=`` and ``repeats=`` are handed over where it has them.
    seed : of the generator that is handed over; None hands none over, which for our own releases is the secure sampler.
    timeout : seconds that one call may take; None does not watch.
    """

    def __init__(self, release: Callable[..., Any], *, seed: int | None, timeout: float | None) -> None:
        if not callable(release):
            _validation.reject("release", "a callable from an (n, d) array to an output", release)
        names, bound = _parameters(release), release.keywords if isinstance(release, partial) else {}
        self._release = release
        self._rng = {"rng": np.random.default_rng(seed)} if seed is not None and "rng" in names - set(bound) else {}
        self._repeats = "repeats" in names - set(bound)
        self._tiled = _repeats_inside(release)
        self._worker = None if timeout is None else _Worker(timeout)
        self._width: int | None = None

    @property
    def in_bulk(self) -> bool:
        """Whether many outputs take one call."""
        return self._repeats or self._tiled is not None

    def one(self, rows: Any) -> Any:
        """One output as the callable gives it."""
        output = self._call(rows, {"repeats": 1} if self._repeats else {})
        return output[0] if self._repeats and hasattr(output, "__getitem__") and len(output) == 1 else output

    def draw(self, rows: Any, count: int) -> Float:
        """``count`` independent outputs, one a row."""
        if self._repeats:
            found = self._numbers(self._call(rows, {"repeats": count}), count)
        elif self._tiled is not None:
            parts, size = [], max(1, _BLOCK // len(rows))
            for start in range(0, count, size):
                times = min(size, count - start)
                parts.append(self._tiled(self._call(np.tile(rows, (times, 1)), {}), times))
            found = np.concatenate(parts)
        else:
            return np.concatenate([self._single(rows) for _ in range(count)])
        return self._checked(found)

    def both(self, first: Any, second: Any, count: int, rng: np.random.Generator) -> tuple[Float, Float]:
        """``count`` outputs of either collection, drawn in a random order.

        A release may change while it is audited: it counts its calls, warms up, or takes turns between machines. Were
        one collection's turn always first, such a change would look like a leak. Every few calls each collection has
        had equally many turns; a call that makes many outputs counts as one turn, and makes few of the whole number.
        """
        size = int(np.clip(count // 12, *_TURN)) if self.in_bulk else 1
        sides: tuple[list[Float], list[Float]] = ([], [])
        for start in range(0, count, _TURNS * size):
            sizes = [min(size, count - begin) for begin in range(start, min(start + _TURNS * size, count), size)]
            left = [iter(sizes), iter(sizes)]
            for side in rng.permutation(np.repeat([0, 1], len(sizes))):
                rows = (first, second)[side]
                drawn = self.draw(rows, next(left[side])) if self.in_bulk else self._single(rows)
                sides[side].append(drawn)
        one, other = (np.concatenate(side) for side in sides)
        return one, other

    def _single(self, rows: Any) -> Float:
        return self._checked(self._vector(self._call(rows, {}), len(rows))[None])

    def _call(self, rows: Any, further: dict[str, Any]) -> Any:
        def call() -> Any:
            try:
                return self._release(rows, **self._rng, **further)
            except ScoreShieldError:
                raise
            except BaseException as error:  # whatever a stranger's code raises, sys.exit() included
                if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                    raise  # a person's: in another thread only the release itself can raise it
                raise InvalidInput(
                    f"The release under audit raised {type(error).__name__} ({describe_error(error)}) on a collection "
                    f"of shape {rows.shape}; it must return an output for every collection of unit rows."
                ) from error

        return call() if self._worker is None else self._worker.run(call)

    def _vector(self, output: Any, records: int) -> Float:
        vector = numbers(output, records)
        if self._width is None:
            self._width = len(vector)
        if len(vector) != self._width:
            raise InvalidInput(
                f"The release under audit returned {len(vector)} numbers after {self._width} before; every output must "
                "have one shape (a varying choice of records can be returned as a set of their positions)."
            )
        return vector

    def _numbers(self, output: Any, count: int) -> Float:
        array = _validation.check_array(output, "output", "an array of one output a row")
        if array.ndim < 1 or len(array) != count or array.dtype.kind not in "fiub":
            raise InvalidInput(
                f"A release called with repeats={count} must return an array of {count} outputs. Got shape "
                f"{array.shape}, type {array.dtype}."
            )
        return array.reshape(count, -1).astype(np.float64)

    def _checked(self, found: Float) -> Float:
        bad = ~np.isfinite(found).all(axis=1)
        if bad.any():
            raise InvalidInput(
                f"The release under audit returned a NaN or an infinity in {bad.sum()} of {len(found)} outputs; every "
                "output must be finite numbers."
            )
        return found


class _Worker:
    """Runs calls one after the other in a thread of its own, so that one that hangs can be left behind."""

    def __init__(self, timeout: float) -> None:
        self.timeout = _validation.check_positive(timeout, "timeout")
        self._calls: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True).start()

    def run(self, call: Callable[[], Any]) -> Any:
        self._calls.put(call)
        try:
            answer, error = self._answers.get(timeout=self.timeout)
        except queue.Empty:
            raise InvalidInput(
                f"The release under audit did not return within {self.timeout:g} seconds; give it a longer timeout, or "
                "a smaller collection."
            ) from None
        if error is not None:
            raise error
        return answer

    def _serve(self) -> None:
        while True:
            call = self._calls.get()
            try:
                self._answers.put((call(), None))
            except BaseException as error:  # handed to the caller, sys.exit() included
                self._answers.put((None, error))


def numbers(output: Any, records: int) -> Float:
    """One output as a flat row of numbers; a set of positions as one bit a record."""
    if isinstance(output, Release):
        return _of_release(output, records)
    if isinstance(output, set | frozenset):
        bits = np.zeros(records)
        for place in output:
            if isinstance(place, bool) or not isinstance(place, int | np.integer) or not 0 <= place < records:
                raise InvalidInput(f"A set that a release returns must hold positions from 0 to {records - 1}.")
            bits[int(place)] = 1.0
        return bits
    if isinstance(output, tuple | list) and any(isinstance(part, np.ndarray | Release | set) for part in output):
        return np.concatenate([numbers(part, records) for part in output])
    try:
        array = np.asarray(output)
    except (TypeError, ValueError):
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "fiub" or not array.size:
        raise InvalidInput(
            "The release under audit must return numbers, an array of them, a set of positions or a ScoreShield "
            f"release. Got {_brief(output)}."
        )
    return array.astype(np.float64).ravel()


def law_of(output: Any) -> tuple[Any, int]:
    """The law of the noise, where the output says it and it is known, and how many leading numbers carry it."""
    law = output.guarantee.noise if isinstance(output, Release) else None
    if getattr(law, "name", None) not in _DENSITIES:
        return None, 0
    match output:
        case ScoreRelease():
            return law, output.noisy.size
        case GramRelease():
            return law, len(_upper(output.noisy))
        case IndexRelease() if output.projection is None:
            return law, output.vectors.size
    return None, 0


def kind_of(output: Any, records: int) -> str:
    """Which worst cases an output calls for, by its type or shape."""
    if isinstance(output, Release):
        return output.guarantee.regime
    if isinstance(output, set | frozenset):
        return "matches"
    shape = np.shape(output) if isinstance(output, np.ndarray) else ()
    if shape == (records, records) and records > 1:
        return "gram"
    return "index" if len(shape) == 2 and shape[0] == records else "scores"


def _of_release(output: Release, records: int) -> Float:
    match output:
        case ScoreRelease():
            return output.noisy.ravel()
        case GramRelease():
            return np.concatenate([_upper(output.noisy), _upper(output.gram)])
        case FactoredGramRelease():
            return _upper(output.gram)
        case MatchRelease():
            bits, scores = np.zeros(records), np.zeros(records)
            bits[output.candidates] = 1.0
            if len(output.noisy):
                scores[output.candidates] = output.noisy
            return np.concatenate([bits, scores]) if output.guarantee.mechanism == "screen-and-refine" else bits
        case TopKRelease():
            places = np.full(records, float(len(output.indices)))
            places[output.indices] = np.arange(len(output.indices))
            return places
        case HistogramRelease():
            return output.counts.astype(np.float64)
        case IndexRelease():
            vectors = output.vectors.astype(np.float64)
            # A random subspace differs from release to release: look at the vectors where the records live.
            return (vectors if output.projection is None else vectors @ output.projection).ravel()
    raise InvalidInput(f"An audit does not read a {type(output).__name__}.")


def _upper(matrix: Float) -> Float:
    return matrix[np.triu_indices(len(matrix), 1)]


def _parameters(release: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(release).parameters)
    except (TypeError, ValueError):  # compiled functions may have no signature
        return set()


def _repeats_inside(release: Any) -> Callable[[Any, int], Float] | None:
    """How to cut one output on a repeated collection into outputs, where every record has noise of its own."""
    if not isinstance(release, partial) or release.args:
        return None
    given = release.keywords
    if given.get("ledger") is not None or not isinstance(given.get("adjacency", Replacement()), Replacement):
        return None
    if release.func is release_scores and np.ndim(given.get("query", 0.0)) == 1:
        return lambda output, times: output.noisy.reshape(times, -1)
    if release.func is release_matches and not given.get("refine", 0.0):
        return _bits
    whole = given.get("components") is None and isinstance(given.get("reduction", "random"), str)
    if release.func is release_index and whole and given.get("reduction", "random") == "random":
        return lambda output, times: output.vectors.astype(np.float64).reshape(times, -1)
    return None


def _bits(output: MatchRelease, times: int) -> Float:
    bits = np.zeros(output.guarantee.shape[0])
    bits[output.candidates] = 1.0
    return bits.reshape(times, -1)


def _brief(output: Any) -> str:
    return "nothing" if output is None else f"a {type(output).__name__}"
