"""What is learnt from earlier outputs of one pair of collections: statistics, and the accounts that play them.

The first part of the outputs fits the statistics. The rest counts how often each value of a statistic came from
which side. So what an account expects is not what it was fitted to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scoreshield.audit.betting import BetAccount, Hypotheses, open_accounts
from scoreshield.audit.statistics import (
    KnownLaw,
    Statistic,
    fit_classifier,
    fit_likelihood,
    fit_linear,
    fit_low_bits,
    fit_noiseless,
    fit_noiseless_ratio,
    fit_repeats,
    fit_sometimes_noiseless,
    fit_summaries,
    fit_table,
    measure_moves,
)

Float = NDArray[np.float64]
Flags = NDArray[np.bool_]
#: What kind of fault a statistic looks for.
FaultKind = Literal["amount of noise", "low bits", "noise in every direction", "fresh noise", "form of the output"]

#: The most rows of each side that fit a statistic, and that are counted.
_FITTED, _COUNTED = 50_000, 200_000
#: The share of the outputs that fits statistics; the rest is counted.
_FIT_SHARE = 0.4
#: From this number of outputs per entry on, a direction may be counted on the outputs that fitted it.
_PER_PARAMETER = 100
#: The most entries of an output that are used: those that move most.
_ENTRIES = 256
#: Fewer outputs on each side than this teach nothing.
FEWEST = 4
#: From this number of outputs on each side, trees are worth their time.
_TREES = 400


@dataclass
class OutputHistory:
    """All outputs so far of one pair of collections, as rows of numbers.

    Attributes:
        is_number: For each column, whether it holds numbers and no tokens.
        first: Blocks of outputs of the first collection.
        second: Blocks of outputs of the second collection.
    """

    is_number: Flags
    first: list[Float] = field(default_factory=list)
    second: list[Float] = field(default_factory=list)

    def add(self, rows: Float, sides: Flags) -> None:
        """Add outputs; `sides` is True where the first collection made them."""
        self.first.append(rows[sides])
        self.second.append(rows[~sides])

    def join(self) -> tuple[Float, Float]:
        """Return all outputs of each side."""
        self.first, self.second = [np.concatenate(self.first)], [np.concatenate(self.second)]
        return self.first[0], self.second[0]


@dataclass(frozen=True)
class OnColumns:
    """A statistic of some columns."""

    inner: Statistic
    columns: NDArray[np.intp]

    @property
    def name(self) -> str:
        return self.inner.name

    def __call__(self, outputs: Float) -> Float:
        return self.inner(outputs[:, self.columns])


def learn_accounts(
    history: OutputHistory,
    hypotheses: Hypotheses,
    *,
    law: KnownLaw | None = None,
    law_entries: int = 0,
    with_trees: bool = False,
    seed: int = 0,
) -> list[BetAccount]:
    """Open the accounts that earlier outputs of one pair suggest.

    Args:
        history: The outputs.
        hypotheses: What is played against.
        law: The noise law of the leading entries, where it is known.
        law_entries: How many leading entries carry it.
        with_trees: Whether to fit a classifier too, and to search for a direction that is sometimes without noise. It
            takes a part of a second.
        seed: The seed of the classifier.
    """
    first, second = history.join()
    if min(len(first), len(second)) < FEWEST:
        return []
    halves = [max(2, int(_FIT_SHARE * len(side))) for side in (first, second)]
    fit = first[: halves[0]][-_FITTED:], second[: halves[1]][-_FITTED:]
    count = first[halves[0] :][-_COUNTED:], second[halves[1] :][-_COUNTED:]
    columns = np.flatnonzero(history.is_number)
    if len(columns) > _ENTRIES:
        moves = measure_moves(fit[0][:, columns], fit[1][:, columns])
        columns = np.sort(columns[np.argsort(-moves, kind="stable")[:_ENTRIES]])
        law_entries = int((columns < law_entries).sum())
    accounts: list[BetAccount] = []
    numbers = fit[0][:, columns], fit[1][:, columns]
    for kind, statistic in _fit_all(*numbers, with_trees, seed):
        accounts += open_accounts(OnColumns(statistic, columns), kind, *count, hypotheses)
    # A direction has so few parameters that many outputs may both fit it and be counted.
    is_safe = min(len(first), len(second)) >= _PER_PARAMETER * len(columns)
    fitted, counted = ((first[-_COUNTED:], second[-_COUNTED:]),) * 2 if is_safe else (fit, count)
    for statistic in _fit_simple(fitted[0][:, columns], fitted[1][:, columns], law, law_entries):
        accounts += open_accounts(OnColumns(statistic, columns), "amount of noise", *counted, hypotheses)
    tokens = np.flatnonzero(~history.is_number)
    form = fit_table(fit[0][:, tokens], fit[1][:, tokens], name="form")
    if form is not None:
        accounts += open_accounts(OnColumns(form, tokens), "form of the output", *count, hypotheses)
    repeats = open_accounts(fit_repeats(*fit), "fresh noise", *count, hypotheses)
    # Now that the chances are known, remember all outputs.
    remembered = fit_repeats(first, second)
    return accounts + [replace(account, statistic=remembered) for account in repeats]


def _fit_simple(first: Float, second: Float, law: KnownLaw | None, law_entries: int) -> Iterator[Statistic]:
    for statistic in (fit_likelihood(first, second, law, law_entries), fit_linear(first, second)):
        if statistic is not None:
            yield statistic


def _fit_all(first: Float, second: Float, with_trees: bool, seed: int) -> Iterator[tuple[FaultKind, Statistic]]:
    makers: list[tuple[FaultKind, Callable[[], Statistic | None]]] = [
        ("amount of noise", lambda: fit_table(first, second)),
        ("amount of noise", lambda: fit_summaries(first, second)),
        ("low bits", lambda: fit_low_bits(first, second)),
        ("noise in every direction", lambda: fit_noiseless(first, second)),
        ("noise in every direction", lambda: fit_noiseless_ratio(first, second)),
    ]
    if with_trees and first.shape[1] > 1:
        makers.append(("noise in every direction", lambda: fit_sometimes_noiseless(first, second)))
    if with_trees and min(len(first), len(second)) >= _TREES and first.shape[1] > 1:
        makers.append(("amount of noise", lambda: fit_classifier(first, second, seed)))
    for kind, make in makers:
        statistic = make()
        if statistic is not None:
            yield kind, statistic
