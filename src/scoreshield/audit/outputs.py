"""How an audit calls a release and reads its outputs: one row of numbers per output, many outputs per side.

There are three ways of drawing, and the fastest correct one is used. A callable that takes `repeats=` returns that
number of independent outputs itself. For ScoreShield releases in which every record has its own noise, the collection
is repeated inside one call, which has the same law. Any other callable is called once per output.
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
from scoreshield.audit.statistics import KnownLaw
from scoreshield.errors import InvalidInput, ScoreShieldError
from scoreshield.privacy.adjacency import Replacement
from scoreshield.privacy.mechanisms import Regime
from scoreshield.privacy.tails import AnchoredWindows
from scoreshield.releases import release_scores
from scoreshield.releases.batch import BatchRelease, release_batch
from scoreshield.releases.codebook import CodebookRelease
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
#: The least and the most outputs of one bulk call where two collections take turns, and after how many turns both have
#: had equally many.
_TURN, _TURNS = (32, 2000), 8
#: About how many rows one repeated call has.
_BLOCK = 1 << 20


class Source:
    """A release under audit, which draws outputs of a collection as rows of numbers.

    Args:
        release: A callable from an (n, d) array to an output. It gets `rng=` and `repeats=` where it has such
            parameters.
        seed: The seed of the generator that the callable gets. None passes no generator; ScoreShield releases then use
            the secure sampler.
        timeout: Seconds that one call may take; None sets no limit.
    """

    def __init__(self, release: Callable[..., Any], *, seed: int | None, timeout: float | None) -> None:
        if not callable(release):
            _validation.reject("release", "a callable from an (n, d) array to an output", release)
        names, bound = _list_parameters(release), release.keywords if isinstance(release, partial) else {}
        self._release = release
        self._rng = {"rng": np.random.default_rng(seed)} if seed is not None and "rng" in names - set(bound) else {}
        self._repeats = "repeats" in names - set(bound)
        self._tiled = _choose_cutting(release)
        self._worker = None if timeout is None else _Worker(timeout)
        self._width: int | None = None

    @property
    def is_bulk(self) -> bool:
        """Whether one call draws many outputs."""
        return self._repeats or self._tiled is not None

    def draw_one(self, rows: Any) -> Any:
        """Draw one output, as the callable returns it."""
        output = self._call(rows, {"repeats": 1} if self._repeats else {})
        return output[0] if self._repeats and hasattr(output, "__getitem__") and len(output) == 1 else output

    def draw(self, rows: Any, count: int) -> Float:
        """Draw `count` independent outputs, one per row."""
        if self._repeats:
            outputs = self._check_bulk(self._call(rows, {"repeats": count}), count)
        elif self._tiled is not None:
            parts, size = [], max(1, _BLOCK // len(rows))
            for start in range(0, count, size):
                times = min(size, count - start)
                parts.append(self._tiled(self._call(np.tile(rows, (times, 1)), {}), times))
            outputs = np.concatenate(parts)
        else:
            return np.concatenate([self._draw_single(rows) for _ in range(count)])
        return self._check_finite(outputs)

    def draw_both(self, first: Any, second: Any, count: int, rng: np.random.Generator) -> tuple[Float, Float]:
        """Draw `count` outputs of each collection, in a random order.

        A release may change while it is audited: it counts its calls, warms up, or alternates between machines. If one
        collection were always first, such a change would look like a leak. After every few calls, both collections have
        had equally many turns. A bulk call counts as one turn, and draws only a small part of the outputs.
        """
        size = int(np.clip(count // 12, *_TURN)) if self.is_bulk else 1
        sides: tuple[list[Float], list[Float]] = ([], [])
        for start in range(0, count, _TURNS * size):
            sizes = [min(size, count - begin) for begin in range(start, min(start + _TURNS * size, count), size)]
            left = [iter(sizes), iter(sizes)]
            for side in rng.permutation(np.repeat([0, 1], len(sizes))):
                rows = (first, second)[side]
                drawn = self.draw(rows, next(left[side])) if self.is_bulk else self._draw_single(rows)
                sides[side].append(drawn)
        one, other = (np.concatenate(side) for side in sides)
        return one, other

    def _draw_single(self, rows: Any) -> Float:
        return self._check_finite(self._flatten(self._call(rows, {}), len(rows))[None])

    def _call(self, rows: Any, further: dict[str, Any]) -> Any:
        def call() -> Any:
            try:
                return self._release(rows, **self._rng, **further)
            except ScoreShieldError:
                raise
            except BaseException as error:  # the release is not our code; it may even call sys.exit()
                if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                    raise  # the user pressed Ctrl-C; in another thread only the release itself can raise it
                raise InvalidInput(
                    f"The release under audit raised {type(error).__name__} ({describe_error(error)}) on a collection "
                    f"of shape {rows.shape}; it must return an output for every collection of unit rows."
                ) from error

        return call() if self._worker is None else self._worker.run(call)

    def _flatten(self, output: Any, records: int) -> Float:
        vector = flatten_output(output, records)
        if self._width is None:
            self._width = len(vector)
        if len(vector) != self._width:
            raise InvalidInput(
                f"The release under audit returned {len(vector)} numbers after {self._width} before; every output must "
                "have one shape (a varying choice of records can be returned as a set of their positions)."
            )
        return vector

    def _check_bulk(self, output: Any, count: int) -> Float:
        array = _validation.check_array(output, "output", "an array of one output per row")
        if array.ndim < 1 or len(array) != count or array.dtype.kind not in "fiub":
            raise InvalidInput(
                f"A release called with repeats={count} must return an array of {count} outputs. Got shape "
                f"{array.shape}, type {array.dtype}."
            )
        return array.reshape(count, -1).astype(np.float64)

    def _check_finite(self, outputs: Float) -> Float:
        bad = ~np.isfinite(outputs).all(axis=1)
        if bad.any():
            raise InvalidInput(
                f"The release under audit returned a NaN or an infinity in {bad.sum()} of {len(outputs)} outputs; "
                "every output must be finite numbers."
            )
        return outputs


class _Worker:
    """Runs calls one after the other in its own thread, so that the audit can leave a call that hangs."""

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
            except BaseException as error:  # also sys.exit(); the caller raises it
                self._answers.put((None, error))


def flatten_output(output: Any, records: int) -> Float:
    """Convert one output to a flat row of numbers; a set of positions becomes one bit per record."""
    if isinstance(output, Release):
        return _flatten_release(output, records)
    if isinstance(output, set | frozenset):
        bits = np.zeros(records)
        for place in output:
            if isinstance(place, bool) or not isinstance(place, int | np.integer) or not 0 <= place < records:
                raise InvalidInput(f"A set that a release returns must hold positions from 0 to {records - 1}.")
            bits[int(place)] = 1.0
        return bits
    if isinstance(output, tuple | list) and any(isinstance(part, np.ndarray | Release | set) for part in output):
        return np.concatenate([flatten_output(part, records) for part in output])
    try:
        array = _validation.to_array(output)
    except (TypeError, ValueError):
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "fiub" or not array.size:
        raise InvalidInput(
            "The release under audit must return numbers, an array of them, a set of positions or a ScoreShield "
            f"release. Got {_describe_output(output)}."
        )
    return array.astype(np.float64).ravel()


def find_noise_law(output: Any) -> tuple[KnownLaw | None, int]:
    """Find the noise law of an output, where its guarantee names one with a known density.

    Returns:
        The law or None, and how many leading numbers of the flat output carry it.
    """
    law = output.guarantee.noise if isinstance(output, Release) else None
    if not isinstance(law, KnownLaw):
        return None, 0
    match output:
        case ScoreRelease():
            return law, output.noisy.size
        case GramRelease():
            return law, len(_take_upper(output.noisy))
        case IndexRelease() if output.projection is None and output.center is None:
            return law, output.vectors.size
    return None, 0


def classify_output(output: Any, records: int) -> Regime:
    """Find out what is released, by the type or the shape of an output."""
    if isinstance(output, Release):
        return output.guarantee.regime
    if isinstance(output, set | frozenset):
        return "matches"
    shape = np.shape(output) if isinstance(output, np.ndarray) else ()
    if shape == (records, records) and records > 1:
        return "gram"
    return "index" if len(shape) == 2 and shape[0] == records else "scores"


def _flatten_release(output: Release, records: int) -> Float:
    match output:
        case ScoreRelease():
            return output.noisy.ravel()
        case GramRelease():
            return np.concatenate([_take_upper(output.noisy), _take_upper(output.gram)])
        case FactoredGramRelease():
            return _take_upper(output.gram)
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
        case BatchRelease():
            return _spread_names(output).ravel()
        case IndexRelease():
            vectors = output.vectors.astype(np.float64)
            # A random subspace differs from release to release: compare the vectors in the space of the records.
            # A private center is used there and not shown: its noise is far larger, and would hide what they show.
            return (vectors if output.projection is None else vectors @ output.projection).ravel()
        case CodebookRelease():
            return output.codes.astype(np.float64).ravel()
    raise InvalidInput(f"An audit does not read a {type(output).__name__}.")


def _take_upper(matrix: Float) -> Float:
    return matrix[np.triu_indices(len(matrix), 1)]


def _list_parameters(release: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(release).parameters)
    except (TypeError, ValueError):  # compiled functions may have no signature
        return set()


def _choose_cutting(release: Any) -> Callable[[Any, int], Float] | None:
    """Choose how to cut one output on a repeated collection into outputs, where every record has its own noise."""
    if not isinstance(release, partial) or release.args:
        return None
    given = release.keywords
    if given.get("ledger") is not None or not isinstance(given.get("adjacency", Replacement()), Replacement):
        return None
    if _has_shared_draws(given.get("mechanism")):
        return None
    if release.func is release_scores and _validation.to_array(given.get("query", 0.0)).ndim == 1:
        return lambda output, times: output.noisy.reshape(times, -1)
    if release.func is release_matches and not given.get("refine", 0.0):
        return _cut_matches
    # By default the symbols depend on the number of records, which a repeated collection has more of.
    if release.func is release_batch and given.get("names") is not None and given.get("levels") is not None:
        return lambda output, times: _spread_names(output).reshape(times, -1)
    whole = given.get("components") is None and isinstance(given.get("reduction", "random"), str)
    center = given.get("center", "none")
    whole = whole and given.get("use", "search") == "search"
    whole = whole and not (isinstance(center, str) and center == "private")
    if release.func is release_index and given.get("codebook") is not None:
        return lambda output, times: output.codes.astype(np.float64).reshape(times, -1)
    if release.func is release_index and whole and given.get("reduction", "random") == "random":
        return lambda output, times: output.vectors.astype(np.float64).reshape(times, -1)
    return None


def _has_shared_draws(mechanism: Any) -> bool:
    """Return whether all records of a release share a draw, such as an anchor."""
    return isinstance(mechanism, AnchoredWindows) or mechanism == "anchored"


def _cut_matches(output: MatchRelease, times: int) -> Float:
    bits = np.zeros(output.guarantee.shape[0])
    bits[output.candidates] = 1.0
    return bits.reshape(times, -1)


def _spread_names(output: BatchRelease) -> Float:
    """Convert the symbols to one number per record and query: the level counted from 1, or 0 where it is not named."""
    spread = np.zeros((len(output.names), len(output.queries)))
    records, places = np.nonzero(output.names >= 0)
    spread[records, output.names[records, places]] = output.levels[records, places] + 1.0
    return spread


def _describe_output(output: Any) -> str:
    return "nothing" if output is None else f"a {type(output).__name__}"
