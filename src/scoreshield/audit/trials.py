"""One trial of an audit: a pair of neighbouring collections, and a way of asking the release about them.

Besides single calls there are two kinds of sessions. In the first, the release answers for public collections just
before and just after it answers for the private one. The public answers cost nothing, so the claim stays as it is. But
if noise repeats between calls, they take the noise away, and if a release remembers a collection, the last answer shows
it. In the second, the release answers two queries about one collection. By basic composition the two answers have at
most twice the claimed epsilon and delta.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield.audit.betting import BetAccount
from scoreshield.audit.encoding import Failure, OutputReader, take_apart, to_numbers
from scoreshield.audit.learning import OutputHistory
from scoreshield.audit.neighbours import Pair, random_pair, replace_record
from scoreshield.audit.outputs import Source
from scoreshield.audit.statistics import KnownLaw

Float = NDArray[np.float64]
Flags = NDArray[np.bool_]
#: How the release is asked: once, between two calls about a public collection, or two queries in a row.
Session = Literal["single", "between public", "two queries"]


@dataclass(eq=False)
class Trial:
    """A pair of collections, how the release is asked about them, and what it answered so far.

    Attributes:
        pair: The two collections.
        source: The release.
        session: How it is asked.
        other: For two queries: the same release with the second one.
        law: The noise law of the leading entries, where it is known.
        law_entries: How many leading entries carry it.
        is_anchor: Whether it stays until one trial is left, whatever it shows.
        is_covered: Whether the claim surely covers the pair. Rows that are no unit vectors may lie outside of it.
        reader: Reads the outputs, once there are some.
        history: All outputs so far.
        accounts: What is played on the next outputs.
        last: Outputs and sides of the latest whole round, which `played` was played on.
        played: The accounts that were played on them.
        failures: Exceptions among the outputs of the first round.
        failure_share: Their share of these outputs.
        rejected: Whether all outputs of the first collection were exceptions in the first round, and of the second.
    """

    pair: Pair
    source: Source
    session: Session = "single"
    other: Source | None = None
    law: KnownLaw | None = None
    law_entries: int = 0
    is_anchor: bool = False
    is_covered: bool = True
    reader: OutputReader | None = None
    history: OutputHistory | None = None
    accounts: list[BetAccount] = field(default_factory=list)
    last: tuple[Float, Flags] | None = None
    played: list[BetAccount] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    failure_share: float = 0.0
    rejected: tuple[bool, bool] = (False, False)

    @property
    def is_saved(self) -> bool:
        """Whether the outputs were made before, so that nothing can be asked again."""
        return False

    @property
    def composed(self) -> int:
        """How many times the claim one output may spend."""
        return 2 if self.session == "two queries" else 1

    @property
    def calls_per_output(self) -> int:
        """How many calls one output takes."""
        return {"single": 1, "between public": 3, "two queries": 2}[self.session]

    @property
    def outputs(self) -> int:
        """How many outputs there are, of both sides."""
        return 0 if self.history is None else sum(len(part) for part in (*self.history.first, *self.history.second))

    @property
    def description(self) -> str:
        """The pair and the session in words."""
        words = {
            "single": "",
            "between public": "; asked between calls about public collections, the first of the two and a random one",
            "two queries": "; two queries in a row",
        }
        return self.pair.description + words[self.session]

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Float, Flags]:
        """Draw outputs, each of a collection that a fair coin chooses. There are fewer if the time is up before.

        Returns:
            The outputs as rows of numbers, and for each whether it is of the first collection.
        """
        sides = rng.random(count) < 0.5
        if self.session == "single":
            outputs = self.source.draw_sides(self.pair.first, self.pair.second, sides)
        else:
            outputs = []
            for side in sides:
                outputs.append(self._ask(self.pair.first if side else self.pair.second))
                if self.source.is_late:
                    break
        sides = sides[: len(outputs)]
        if self.reader is None:
            self._open(list(outputs), sides)
            has_failed = np.array([isinstance(output, Failure) for output in outputs], dtype=bool)
            self.failure_share = float(has_failed.mean()) if len(has_failed) else 0.0
            self.rejected = _are_all(has_failed[sides]), _are_all(has_failed[~sides])
        assert self.reader is not None
        return self.reader.read(outputs), sides

    def add(self, rows: Float, sides: Flags) -> None:
        """Remember outputs."""
        assert self.history is not None
        self.history.add(rows, sides)
        if self.last is None or len(rows) > len(self.last[0]) / 4:  # a round that was cut short measures little
            self.last, self.played = (rows, sides), self.accounts

    def probe(self, collections: int) -> list[Float] | None:
        """Ask twice about some random collections.

        Returns:
            The numbers of each answer, or None where two answers about one collection differ, or all are the same.
        """
        n, d = self.pair.first.shape
        answers = []
        for seed in range(collections):
            rows = random_pair(n, d, seed).first
            one, other = (_read_numbers(self.source.draw(rows, 1)[0], n) for _ in range(2))
            if one is None or other is None or not np.array_equal(one, other, equal_nan=True):
                return None
            answers.append(one)
        return answers if any(not np.array_equal(answers[0], answer) for answer in answers) else None

    def _ask(self, rows: Any) -> Any:
        """Ask several times. Differences of numbers are part of the output, because shared noise cancels in them."""
        if self.session == "between public":
            # A release that answers from a cache shows whether the collection is the one that it has just seen.
            before, after = self.pair.first, random_pair(len(rows), rows.shape[1], seed=len(rows)).first
            answers = [self.source.draw(asked, 1)[0] for asked in (before, rows, after)]
        else:
            assert self.other is not None
            answers = [self.source.draw(rows, 1)[0], self.other.draw(rows, 1)[0]]
        numbers = [values for values in map(to_numbers, answers) if values is not None]
        if len(numbers) < len(answers) or len({len(values) for values in numbers}) > 1:
            return answers
        differences = [after - before for before, after in pairwise(numbers)]
        return np.concatenate([*numbers, *differences])

    def _open(self, outputs: Sequence[Any], sides: Flags) -> None:
        # No account plays on these outputs, so that the sides may choose the columns.
        self.failures = [output for output in outputs if isinstance(output, Failure)]
        self.reader = OutputReader(outputs, len(self.pair.first), sides)
        self.history = OutputHistory(self.reader.is_number)

    @property
    def is_useless(self) -> bool:
        """Whether the release rejects both collections, or one of them that has rows which are no unit vectors.

        Errors that come now and then are outputs like others.
        """
        return all(self.rejected) if self.is_covered else any(self.rejected)


def _are_all(flags: Flags) -> bool:
    """Return whether all flags are set, and there is one."""
    return bool(flags.any() and flags.all())


def _read_numbers(output: Any, records: int) -> Float | None:
    """Read the numbers of an output of any kind; None for an exception, and where there are no numbers."""
    numbers = to_numbers(output)
    if numbers is not None or isinstance(output, Failure):
        return numbers
    parts = take_apart(output, records)
    return np.array(parts.numbers) if parts.numbers else None


def list_sessions(source: Source, pair: Pair, query: ArrayLike | None) -> list[Trial]:
    """List trials that ask several times: between two public calls, and for two queries where it takes one."""
    trials = [Trial(pair, source, "between public")]
    if query is None or np.ndim(query) != 1 or len(np.asarray(query)) < 2:
        return trials
    q = np.asarray(query, dtype=np.float64)
    q = q / np.linalg.norm(q)
    second = np.eye(len(q))[int(np.argmin(np.abs(q)))]
    second = second - (second @ q) * q
    second /= np.linalg.norm(second)
    other = source.with_query(second.astype(np.float32))
    if other is None:
        return trials
    one, two = (q + second) / np.sqrt(2), (q - second) / np.sqrt(2)
    rows = np.tile(-q, (len(pair.first), 1))
    text = "a record between two queries against one between the first and the opposite of the second"
    return [*trials, Trial(replace_record(rows, 0, one, two, text), source, "two queries", other)]
