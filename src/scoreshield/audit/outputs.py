"""How an audit calls a release and reads its outputs: one row of numbers per output, many outputs per side.

There are three ways of drawing, and the fastest correct one is used. A callable that takes `repeats=` returns that
number of independent outputs itself. For ScoreShield releases in which every record has its own noise, the collection
is repeated inside one call, which has the same law. Any other callable is called once per output.
"""

from __future__ import annotations

import copy
import inspect
import math
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield.audit.encoding import Failure, prepare_output
from scoreshield.audit.plain_values import is_a, make_failure
from scoreshield.audit.statistics import KnownLaw
from scoreshield.audit.targets import TargetError
from scoreshield.errors import InvalidInput
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
#: The least and the most outputs of one bulk call where two collections take turns.
_TURN = (32, 2000)
#: How often the first call is made before its failure ends the audit.
_TRIES = 16
#: About how many rows one repeated call has.
_BLOCK = 1 << 20


class Source:
    """A release under audit, which draws outputs of a collection.

    Args:
        release: A callable from an (n, d) array to an output. It gets `rng=` and `repeats=` where it has such
            parameters.
        seed: The seed of the generator that the callable gets. None passes no generator; ScoreShield releases then use
            the secure sampler.
        timeout: Seconds that one call may take; None sets no limit.

    Attributes:
        calls: How many outputs were drawn.
        end: When the time is up, by `time.perf_counter`. Outputs that are not drawn by then are left out.
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
        self._is_single = False
        self.calls = 0
        self.end = math.inf

    @property
    def is_late(self) -> bool:
        """Whether the time is up."""
        return time.perf_counter() >= self.end

    @property
    def is_bulk(self) -> bool:
        """Whether one call draws many outputs."""
        return self._trusts_repeats or self._tiled is not None

    @property
    def takes_repeats(self) -> bool:
        """Whether the callable returns many outputs at once by its own `repeats` argument."""
        return self._repeats

    @property
    def _trusts_repeats(self) -> bool:
        return self._repeats and not self._is_single

    def draw_singly(self) -> bool:
        """From now on, draw one output per call where the callable takes `repeats`, which may not keep its contract.

        Returns:
            Whether this changes anything.
        """
        was_single, self._is_single = self._is_single, True
        return self._repeats and not was_single

    def with_query(self, query: Any) -> Source | None:
        """Return a source of the same release that answers another query; None where it takes no query."""
        release = self._release
        if isinstance(release, partial) and "query" in release.keywords:
            changed: Any = partial(release, query=query)
        elif hasattr(release, "with_query"):
            changed = release.with_query(query)
        else:
            return None
        other = copy.copy(self)
        other._release = changed
        other._tiled = _choose_cutting(changed)
        return other

    def draw_one(self, rows: Any) -> Any:
        """Draw one output, as the callable returns it.

        Raises:
            InvalidInput: The release fails several times in a row.
        """
        for _ in range(_TRIES):  # an honest release may fail now and then
            self.calls += 1
            output = self._call(rows, {"repeats": 1} if self._repeats else {})
            if not is_a(output, Failure):
                break
        if is_a(output, Failure):
            raise InvalidInput(
                f"The release under audit raised {output.kind} ({output.message}) on a collection of shape "
                f"{rows.shape}; it must return an output for every collection of unit rows."
            )
        return output[0] if self._repeats and hasattr(output, "__getitem__") and len(output) == 1 else output

    def draw(self, rows: Any, count: int) -> list[Any] | Float:
        """Draw independent outputs of one collection; an exception is an output too.

        Returns:
            A matrix with one row per output for releases in bulk, otherwise a list of `count` outputs.
        """
        if not self.is_bulk:
            return self._draw_singles([rows] * count)
        self.calls += count
        if self._trusts_repeats:
            drawn = self._call(rows, {"repeats": count})
            return [drawn] * count if is_a(drawn, Failure) else self._check_bulk(drawn, count)
        assert self._tiled is not None
        parts, size = [], max(1, _BLOCK // len(rows))
        for start in range(0, count, size):
            times = min(size, count - start)
            output = self._call(np.tile(rows, (times, 1)), {})
            if is_a(output, Failure):
                return [output] * count
            parts.append(self._tiled(output, times))
        return np.concatenate(parts)

    def draw_sides(self, first: Any, second: Any, sides: NDArray[np.bool_]) -> list[Any] | Float:
        """Draw one output for each side, in this order: of the first collection where it is True, else of the second.

        Releases in bulk take turns, a part of each side at a time.
        """
        if not self.is_bulk:
            return self._draw_singles([first if side else second for side in sides])
        rows: Float | None = None
        failures: dict[int, Any] = {}
        size = int(np.clip(len(sides) // 24, *_TURN))
        turns = [(side, part) for side in (True, False) for part in _cut(np.flatnonzero(sides == side), size)]
        for number in np.random.default_rng(len(sides)).permutation(len(turns)):
            side, part = turns[number]
            drawn = self.draw(first if side else second, len(part))
            if not isinstance(drawn, np.ndarray):
                failures |= dict.fromkeys(part.tolist(), drawn[0])
                continue
            rows = np.empty((len(sides), drawn.shape[1])) if rows is None else rows
            if rows.shape[1] != drawn.shape[1]:
                raise InvalidInput("The release under audit changed the shape of its outputs between calls.")
            rows[part] = drawn
        if failures:
            return [
                failures[place] if place in failures or rows is None else rows[place] for place in range(len(sides))
            ]
        return np.empty((0, 1)) if rows is None else rows

    def _draw_singles(self, collections: list[Any]) -> list[Any]:
        """Draw one output of each collection, in order, until the time is up."""

        def draw() -> list[Any]:
            outputs = []
            for rows in collections:
                output = self._call_once(rows, {"repeats": 1} if self._repeats else {})
                if self._repeats and not is_a(output, Failure):
                    output = self._check_bulk(output, 1)[0]
                is_release = is_a(output, Release)
                outputs.append(flatten_release(output, len(rows)) if is_release else prepare_output(output, len(rows)))
                if self._worker is not None:
                    self._worker.calls += 1
                if self.is_late:
                    break
            return outputs

        outputs: list[Any] = draw() if self._worker is None else self._worker.run(draw)
        self.calls += len(outputs)
        return outputs

    def _call(self, rows: Any, further: dict[str, Any]) -> Any:
        if self._worker is None:
            return self._call_once(rows, further)
        return self._worker.run(lambda: self._call_once(rows, further))

    def _call_once(self, rows: Any, further: dict[str, Any]) -> Any:
        try:
            # A release may change its argument, which must not reach the next call.
            return self._release(rows.copy(), **self._rng, **further)
        except TargetError:
            raise
        except BaseException as error:  # the release is not our code; it may even call sys.exit()
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise  # the user pressed Ctrl-C; in another thread only the release itself can raise it
            return make_failure(error)

    def _check_bulk(self, output: Any, count: int) -> Float:
        array = _validation.check_array(output, "output", "an array of one output per row")
        if array.ndim < 1 or len(array) != count or array.dtype.kind not in "fiub":
            raise InvalidInput(
                f"A release called with repeats={count} must return an array of {count} outputs. Got shape "
                f"{array.shape}, type {array.dtype}."
            )
        return array.reshape(count, -1).astype(np.float64)


def _cut(positions: NDArray[np.intp], size: int) -> list[NDArray[np.intp]]:
    return [positions[start : start + size] for start in range(0, len(positions), size)]


class _Worker:
    """Runs jobs one after the other in its own thread, so that the audit can leave a call that hangs.

    A job may make many calls, and counts them; only a call that takes longer than the limit ends the audit.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = _validation.check_positive(timeout, "timeout")
        self.calls = 0
        self._jobs: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True).start()

    def run(self, job: Callable[[], Any]) -> Any:
        self._jobs.put(job)
        while True:
            before = self.calls
            try:
                answer, error = self._answers.get(timeout=self.timeout)
                break
            except queue.Empty:
                if self.calls != before:
                    continue
                raise InvalidInput(
                    f"The release under audit did not return within {self.timeout:g} seconds; give it a longer "
                    "timeout, or a smaller collection."
                ) from None
        if error is not None:
            raise error
        return answer

    def _serve(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                self._answers.put((job(), None))
            except BaseException as error:  # also sys.exit(); the caller raises it
                self._answers.put((None, error))


def find_noise_law(output: Any) -> tuple[KnownLaw | None, int]:
    """Find the noise law of an output, where its guarantee names one with a known density.

    Returns:
        The law or None, and how many leading numbers of the flat output carry it.
    """
    law = output.guarantee.noise if is_a(output, Release) else None
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
    if is_a(output, Release):
        regime: Regime = output.guarantee.regime
        return regime
    if is_a(output, set) or is_a(output, frozenset):
        return "matches"
    shape: tuple[int, ...] = output.shape if is_a(output, np.ndarray) else ()
    if shape == (records, records) and records > 1:
        return "gram"
    return "index" if len(shape) == 2 and shape[0] == records else "scores"


def flatten_release(output: Release, records: int) -> Float:
    """Convert a ScoreShield release to a flat row of numbers."""
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
