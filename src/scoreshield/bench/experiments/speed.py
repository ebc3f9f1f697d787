"""Experiments that measure time and run alone: projections of one noisy matrix (``runtime``), and the noise laws."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

import scoreshield as ss
from scoreshield.bench.experiments.cells import Experiment, ExperimentCell, Measurement, Metric
from scoreshield.bench.experiments.custom_laws import make_custom_law
from scoreshield.bench.experiments.grid import Choices, Grid

_METHODS = ("newton", "aap", "dykstra", "sdp")
_SIZES = (32, 64, 100, 200, 400, 800, 1600)
_LAWS = ("gaussian", "laplace", "staircase")
#: Kept to show what is wrong with it: NumPy's floating-point Gaussian of the same standard deviation.
_FLOAT = "float gaussian"


class Runtime(Experiment):
    """``scoreshield bench runtime``: each projection on the same noisy matrix of random unit vectors."""

    name = "runtime"
    title = "Time of the projections"
    serial = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "seconds": Metric("projection", "lower"),
        "eigendecompositions": Metric("projection", "lower"),
        "excess distance": Metric("projection", "lower"),
        "converged": Metric("projection"),
    }

    def list_choices(self, base: Mapping[str, Any]) -> Choices:
        sets = tuple(f"sphere/{n}" for n in _SIZES)
        return Choices(sets, ("gaussian",), _METHODS, tuple(self.metrics), base["options"])

    def list_cells(self, grid: Grid) -> list[ExperimentCell]:
        return [
            ExperimentCell(dataset, "contract", "gaussian", projection, radius, epsilon, delta, repeat=repeat)
            for dataset in grid.datasets
            for repeat in range(grid.repeats)
            for radius in grid.adjacency
            for delta in grid.delta
            for epsilon in grid.epsilon
            for projection in grid.projection
            if projection != "sdp" or int(dataset.split("/")[1]) <= grid.options["sdp_records"]
        ]

    def load(self, grid: Grid, data_dir: Path | None) -> None:
        """Nothing is read: the records are random."""

    def measure(self, cell: ExperimentCell, grid: Grid, data: Any) -> Measurement:  # noqa: ARG002
        n = int(cell.dataset.split("/")[1])
        rows = np.random.default_rng(cell.sample_seed(grid.seed)).standard_normal((n, grid.options["dimension"]))
        assert cell.epsilon is not None
        assert cell.delta is not None
        adjacency = ss.Replacement() if cell.radius is None else ss.GramRadius(cell.radius)
        release = ss.release_gram(
            rows, epsilon=cell.epsilon, delta=cell.delta, adjacency=adjacency, projection="none",
            rng=cell.seed(grid.seed),
        )  # fmt: skip
        nearest = ss.project_elliptope(release.noisy).distance  # outside the clock, for the excess
        limit = grid.options["seconds"] if cell.projection == "sdp" else None
        start = time.perf_counter()
        found = ss.project_elliptope(
            release.noisy,
            cast("Any", cell.projection),
            time_limit=limit,
            device=grid.options["device"],
            max_iterations=grid.options["dykstra_iterations"] if cell.projection == "dykstra" else None,
        )
        if cell.projection == "sdp" and not found.converged:  # over the limit: left out, not extrapolated
            return Measurement({"seconds": math.nan, "converged": 0.0}, release.guarantee, n)
        seconds = time.perf_counter() - start
        values = {
            "seconds": seconds,
            "eigendecompositions": float(found.eigendecompositions) if cell.projection != "sdp" else math.nan,
            "excess distance": found.distance / nearest - 1,
            "converged": float(found.converged),
        }
        return Measurement(values, release.guarantee, n)

    def name_method(self, cell: ExperimentCell) -> str:
        return cell.projection


class NoiseLaws(Experiment):
    """``scoreshield bench noise``: how large the noise of each law is, how long it takes, and what its low bits leak.

    If noise is added in floating point, an attacker can distinguish a score of 0 from a score of 1 by one test: is the
    output a whole multiple of 2^-53? 1 + x is rounded to such a multiple, 0 + x is not. On a public grid the answer is
    always the same.
    """

    name = "noise"
    title = "The noise itself"
    has_custom_laws = True
    serial = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "standard deviation": Metric("noise", "lower"),
        "sampled standard deviation": Metric("noise", "lower"),
        "low-bit leak": Metric("noise", "lower"),
        "seconds per million": Metric("noise", "lower"),
    }

    def list_choices(self, base: Mapping[str, Any]) -> Choices:
        return Choices(("two scores",), (*_LAWS, _FLOAT, *self.laws), (), tuple(self.metrics), base["options"])

    def list_cells(self, grid: Grid) -> list[ExperimentCell]:
        return [
            ExperimentCell("two scores", "contract", name, epsilon=epsilon, delta=delta, repeat=repeat)
            for repeat in range(grid.repeats)
            for name in grid.mechanism
            for delta in (grid.delta if name in ("gaussian", _FLOAT, *self.laws) else (0.0,))
            for epsilon in grid.epsilon
        ]

    def load(self, grid: Grid, data_dir: Path | None) -> None:
        """Nothing is read: the scores are 0 and 1."""

    def measure(self, cell: ExperimentCell, grid: Grid, data: Any) -> Measurement:  # noqa: ARG002
        count = grid.options["draws"]
        assert cell.epsilon is not None
        # Half of the records score 0 against the query, half score 1.
        rows = np.zeros((2 * count, 2), dtype=np.float32)
        rows[:count, 1] = rows[count:, 0] = 1.0
        query = np.array([1.0, 0.0])
        mechanism: Any = "gaussian" if cell.mechanism == _FLOAT else cell.mechanism
        if cell.mechanism in self.laws:
            mechanism = make_custom_law(self.laws, cell.mechanism, cell.epsilon, cell.delta or 0.0)
        start = time.perf_counter()
        release = ss.release_scores(
            rows, query, epsilon=cell.epsilon, delta=cell.delta or 0.0, mechanism=mechanism, rng=None
        )
        seconds = time.perf_counter() - start
        noisy, guarantee = release.noisy, release.guarantee
        if cell.mechanism == _FLOAT:
            rng = np.random.default_rng(cell.seed(grid.seed))
            start = time.perf_counter()
            noisy = np.repeat([0.0, 1.0], count) + guarantee.noise_std * rng.standard_normal(2 * count)
            seconds = time.perf_counter() - start
        sampled = float(np.std(np.concatenate([noisy[:count], noisy[count:] - 1.0])))
        values = {
            "standard deviation": guarantee.noise_std,
            "sampled standard deviation": sampled,
            "low-bit leak": abs(_share_of_multiples(noisy[:count]) - _share_of_multiples(noisy[count:])),
            "seconds per million": seconds / (2 * count) * 1e6,
        }
        seeded = cell.mechanism == _FLOAT
        return Measurement(values, None if seeded else guarantee, 2 * count, seeded=seeded)


def _share_of_multiples(values: NDArray[np.float64]) -> float:
    """Compute the share of whole multiples of 2^-53."""
    steps = np.ldexp(values, 53)
    return float(np.mean(steps == np.rint(steps)))
