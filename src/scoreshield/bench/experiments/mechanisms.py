"""The mechanisms that experiments on score vectors compare, by name, under one contract or at one attack advantage.

Besides the contract, a mechanism may use public facts, which the grid states: a range that scores are clamped to, a
threshold, cuts between levels. The paper's own mechanism is Gaussian noise by a rule that is false at large epsilon. It
is run as published, and its guarantee states its true privacy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

import scoreshield as ss
from scoreshield._types import Rng
from scoreshield.bench.experiments.cells import ExperimentCell
from scoreshield.bench.experiments.custom_laws import LawMaker, make_custom_law
from scoreshield.bench.experiments.grid import Grid
from scoreshield.plan.candidates import make_response_profiles, make_staircase_profile, make_unit_profiles
from scoreshield.plan.contracts import make_contract
from scoreshield.privacy.levels.tables import LevelChannel
from scoreshield.privacy.noise import CustomNoise
from scoreshield.privacy.profiles import GaussianProfile, LaplaceProfile

#: Noise on every score, tables of levels, and answers that name records.
MECHANISMS = (
    "gaussian",
    "gaussian, clamped",
    "laplace",
    "staircase",
    "staircase, clamped",
    "optimal",
    "levels",
    "screening",
    "screen and refine",
    "selection",
    "index",
)
#: Above this a table of levels is exact to rounding and its linear program ill-conditioned.
LARGEST_TABLE_EPSILON = 40.0
_LEVELS = 21


@dataclass(frozen=True)
class PublicKnowledge:
    """Facts that the curator chose without reading the private records.

    Attributes:
        score_range: The range that the clamped variants enforce.
        threshold: The threshold of screening, or of one accept bit.
        cuts: The cuts between the levels of randomised response, by epsilon; empty where there are none.
        refine: The share of the budget that orders what passed the screen.
    """

    score_range: tuple[float, float]
    threshold: float
    cuts: Mapping[float, tuple[float, ...]]
    refine: float = 0.5


def list_mechanism_cells(grid: Grid, laws: Mapping[str, LawMaker]) -> list[ExperimentCell]:
    """List the reference, the paper as published, our contract at each (epsilon, delta) and at each advantage.

    A custom law is made for a contract, so it has no cells at an advantage.
    """
    found = []
    for dataset, repeat in product(grid.datasets, range(grid.repeats)):
        found.append(ExperimentCell(dataset, "clean", repeat=repeat))
        for delta in grid.delta:
            for epsilon in grid.epsilon:
                found.append(ExperimentCell(dataset, "paper", "gaussian", epsilon=epsilon, delta=delta, repeat=repeat))
        for name in grid.mechanism:
            deltas = grid.delta if name.startswith("gaussian") or name in laws else (0.0,)
            found.extend(
                ExperimentCell(dataset, "contract", name, epsilon=epsilon, delta=delta, repeat=repeat)
                for delta in deltas
                for epsilon in grid.epsilon
                if name != "optimal" or epsilon <= LARGEST_TABLE_EPSILON
            )
            found.extend(
                ExperimentCell(dataset, "advantage", name, delta=deltas[0], advantage=advantage, repeat=repeat)
                for advantage in grid.advantage
                if name not in laws
            )
    return found


def find_cell_epsilon(cell: ExperimentCell, *, levels: int = 2, dimension: int | None = None) -> float:
    """Find the epsilon of a cell's contract, or that at which its mechanism has the cell's attack advantage.

    For selection, screening with refinement and optimal tables, only the bound for all pure mechanisms is known
    beforehand. They get the epsilon at which that bound is the advantage, and leak less than that.
    """
    if cell.epsilon is not None:
        return cell.epsilon
    assert cell.advantage is not None
    assert cell.delta is not None
    contract = make_contract(delta=cell.delta, max_advantage=cell.advantage)
    assert contract is not None
    if cell.mechanism.startswith("gaussian"):
        return GaussianProfile(contract.mu).epsilon_at(cell.delta)
    match cell.mechanism:
        case "laplace":
            return contract.find_pure_epsilon(LaplaceProfile)
        case "staircase" | "staircase, clamped":
            return contract.find_pure_epsilon(make_staircase_profile)
        case "levels":
            return contract.find_pure_epsilon(make_response_profiles(levels))
        case "index" if dimension is not None:
            return contract.find_pure_epsilon(make_unit_profiles(dimension))
    return contract.find_pure_epsilon()


def release_cell(
    cell: ExperimentCell,
    rows: NDArray[Any],
    query: NDArray[Any],
    public: PublicKnowledge,
    rng: Rng,
    k: int,
    laws: Mapping[str, LawMaker],
) -> Any:
    """Release one private answer to one query, by the cell's mechanism; for an index see `release_cell_index`."""
    epsilon = find_cell_epsilon(cell, levels=1 + max(map(len, public.cuts.values()), default=1))
    if cell.setting == "paper":
        return ss.release_scores(
            rows, query, epsilon=epsilon, delta=cell.delta or 0.0, calibration="conservative", rng=rng,
            unsafe_reproduce_paper=True,
        )  # fmt: skip
    if cell.mechanism in laws:
        delta = cell.delta or 0.0
        law = _make_law_once(laws[cell.mechanism], cell.mechanism, epsilon, delta)
        return ss.release_scores(rows, query, epsilon=epsilon, delta=delta, mechanism=law, rng=rng)
    match cell.mechanism:
        case "gaussian" | "laplace" | "staircase":
            return ss.release_scores(
                rows, query, epsilon=epsilon, delta=cell.delta or 0.0, mechanism=cell.mechanism, rng=rng
            )
        case "gaussian, clamped" | "staircase, clamped":
            return ss.release_scores(
                rows, query, epsilon=epsilon, delta=cell.delta or 0.0, mechanism=cell.mechanism.split(",")[0],  # type: ignore[arg-type]
                score_range=public.score_range, rng=rng,
            )  # fmt: skip
        case "optimal":
            return ss.release_scores(rows, query, epsilon=epsilon, mechanism=_table(epsilon), rng=rng)
        case "levels":
            table = _levels(epsilon, public.cuts[find_nearest(epsilon, public.cuts)])
            return ss.release_scores(rows, query, epsilon=epsilon, mechanism=table, rng=rng)
        case "screening":
            return ss.release_matches(rows, query, public.threshold, epsilon=epsilon, rng=rng)
        case "screen and refine":
            return ss.release_matches(rows, query, public.threshold, epsilon=epsilon, refine=public.refine, rng=rng)
        case "selection":
            return ss.release_top_k(rows, query, min(k, len(rows)), epsilon=epsilon, rng=rng)
    raise AssertionError(cell.mechanism)


def release_cell_index(cell: ExperimentCell, rows: NDArray[Any], rng: Rng) -> Any:
    """Release one private index for all queries."""
    return ss.release_index(rows, epsilon=find_cell_epsilon(cell, dimension=rows.shape[1]), rng=rng)


def find_pair_budget(cell: ExperimentCell, dimension: int) -> tuple[float, int]:
    """Find epsilon and components of an index for pairwise scores: the components that suit a pure budget best."""
    components = ss.pair_components(find_cell_epsilon(cell), dimension)
    return find_cell_epsilon(cell, dimension=components), components


def find_nearest(epsilon: float, tables: Mapping[float, Any]) -> float:
    """Find the budget whose public table fits best: cuts exist for a few budgets."""
    return min(tables, key=lambda budget: abs(np.log(budget / epsilon)))


@lru_cache(maxsize=64)
def _make_law_once(make: LawMaker, name: str, epsilon: float, delta: float) -> CustomNoise:
    return make_custom_law({name: make}, name, epsilon, delta)


@lru_cache(maxsize=64)
def _table(epsilon: float) -> LevelChannel:
    return ss.optimal_channel(min(epsilon, LARGEST_TABLE_EPSILON), levels=_LEVELS)


@lru_cache(maxsize=64)
def _levels(epsilon: float, cuts: tuple[float, ...]) -> LevelChannel:
    return ss.randomised_response(epsilon, cuts)
