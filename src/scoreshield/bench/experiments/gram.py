"""Tasks that read a whole similarity matrix: STS-B, MovieLens-100K, and images, as in the paper's regime (ii).

Every method post-processes the same noisy matrix. The paper's own setting is its rule, its Gram radius and its averaged
projections. Its rows also state the promise for the replacement of a whole record. A private index gives the same
matrix under record replacement directly.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

import scoreshield as ss
from scoreshield.bench.data import compact
from scoreshield.bench.data.sets import LabelledSet, Ratings, SentencePairs
from scoreshield.bench.experiments import mechanisms
from scoreshield.bench.experiments.cells import Experiment, ExperimentCell, Measurement, Metric
from scoreshield.bench.experiments.grid import Choices, Grid
from scoreshield.errors import InvalidInput

MECHANISMS = ("gaussian", "index", "gaussian index")
#: Baselines without information: the identity matrix, where no two records are similar, and the matrix of ones, where
#: all are equal (in a recommender, this gives plain averages).
NOTHING, EQUAL = "no similarities", "equal similarities"
#: Of an entry off the diagonal, against the clean matrix: for the experimenter, not for release.
ERROR = "squared error"
#: What is made of the noisy matrix: nothing, a projection, or a denoiser that ends on a valid cosine matrix.
PROJECTIONS = ("none", "aap", "dykstra", "exact", "rank", "shrinkage", "identity", "sure")
_DENOISERS = ("rank", "shrinkage", "identity", "sure")
#: Of the paper's own noise: what it shows, and beside it the exact projection of the same matrix.
_IN_THE_PAPER = ("none", "aap", "exact")

#: What a task makes of a released object.
Score = Callable[[Any], dict[str, float]]


@dataclass(frozen=True)
class Problem:
    """The private records of one repeat, and the function that scores a released matrix of them."""

    rows: NDArray[np.float32]
    score: Score


class GramExperiment(Experiment):
    """What the matrix experiments share; each says what its records are and what is done with the matrix."""

    dataset_names: ClassVar[tuple[str, ...]]
    baselines: ClassVar[tuple[str, ...]] = (NOTHING,)

    @abstractmethod
    def make_problem(self, cell: ExperimentCell, grid: Grid, data: Any) -> Problem:
        """Choose the records of a cell's data set in its repeat."""

    def list_choices(self, base: Mapping[str, Any]) -> Choices:
        return Choices(self.dataset_names, MECHANISMS, PROJECTIONS, tuple(self.metrics), base["options"])

    def list_cells(self, grid: Grid) -> list[ExperimentCell]:
        return [
            cell
            for dataset in grid.datasets
            for repeat in range(grid.repeats)
            for cell in (
                ExperimentCell(dataset, "clean", repeat=repeat),
                *(ExperimentCell(dataset, "clean", baseline, repeat=repeat) for baseline in self.baselines),
                *self._list_published_cells(grid, dataset, repeat),
                *self._list_contract_cells(grid, dataset, repeat),
                *self._list_advantage_cells(grid, dataset, repeat),
            )
        ]

    def _list_published_cells(self, grid: Grid, dataset: str, repeat: int) -> Iterator[ExperimentCell]:
        for radius in grid.adjacency:
            for epsilon, delta in _list_contracts(grid) if radius is not None else ():
                for projection in grid.projection:
                    if projection in _IN_THE_PAPER and "gaussian" in grid.mechanism:
                        yield ExperimentCell(
                            dataset, "paper", "gaussian", projection, radius, epsilon, delta, repeat=repeat
                        )

    def _list_contract_cells(self, grid: Grid, dataset: str, repeat: int) -> Iterator[ExperimentCell]:
        for radius in grid.adjacency:
            for epsilon, delta in _list_contracts(grid) if "gaussian" in grid.mechanism else ():
                for projection in grid.projection:
                    yield ExperimentCell(
                        dataset, "contract", "gaussian", projection, radius, epsilon, delta, repeat=repeat
                    )
        if None not in grid.adjacency:
            return
        for epsilon in grid.epsilon:
            if "index" in grid.mechanism:
                yield ExperimentCell(dataset, "contract", "index", epsilon=epsilon, delta=0.0, repeat=repeat)
            if "gaussian index" in grid.mechanism:
                for delta in grid.delta:
                    yield ExperimentCell(
                        dataset, "contract", "gaussian index", epsilon=epsilon, delta=delta, repeat=repeat
                    )

    def _list_advantage_cells(self, grid: Grid, dataset: str, repeat: int) -> Iterator[ExperimentCell]:
        for advantage in grid.advantage:
            for mechanism in grid.mechanism:
                delta = 0.0 if mechanism == "index" else grid.delta[0]
                for projection in ("none", "exact") if mechanism == "gaussian" else ("none",):
                    if mechanism != "gaussian" or projection in grid.projection:
                        yield ExperimentCell(
                            dataset, "advantage", mechanism, projection,
                            delta=delta, advantage=advantage, repeat=repeat,
                        )  # fmt: skip

    def measure(self, cell: ExperimentCell, grid: Grid, data: Any) -> Measurement:
        problem = self.make_problem(cell, grid, data)
        rows = problem.rows.astype(np.float64)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        clean = rows @ rows.T
        if cell.setting == "clean":
            shown = {NOTHING: np.eye(len(clean)), EQUAL: np.ones_like(clean)}.get(cell.mechanism, clean)
            return Measurement(problem.score(shown) | {ERROR: _error(shown, clean)}, None, len(clean))
        release = _release(cell, grid, problem.rows)
        facts: dict[str, Any] = {}
        if cell.mechanism == "gaussian" and cell.projection != "none":
            facts = {"iterations": release.iterations, "converged": release.converged, "denoise": release.denoise}
        shown = release.gram() if callable(release.gram) else release.gram
        return Measurement(problem.score(release) | {ERROR: _error(shown, clean)}, release.guarantee, len(clean), facts)

    def name_method(self, cell: ExperimentCell) -> str:
        if cell.mechanism in self.baselines:
            return cell.mechanism
        if cell.setting == "paper" and cell.projection == "exact":
            return "exact, on the paper's noise"
        if cell.setting != "clean" and cell.mechanism == "gaussian" and cell.projection == "none":
            return "noisy (paper)" if cell.setting == "paper" else "noisy"
        return super().name_method(cell)


def _error(shown: NDArray[np.float64], clean: NDArray[np.float64]) -> float:
    n = len(clean)
    return float(np.sum((shown - clean) ** 2) / (n * (n - 1)))  # both have the public 1 on the diagonal


def _list_contracts(grid: Grid) -> list[tuple[float, float]]:
    return [(epsilon, delta) for delta in grid.delta for epsilon in grid.epsilon]


def find_gaussian_components(epsilon: float, delta: float, dimension: int) -> int:
    """Find how many components of a random subspace give Gaussian noise the least error, by public facts alone.

    Two vectors with noise of variance e^2 along each of r directions: 2 e^2 + r e^4, and 1/r of the subspace unless it
    is the whole space.
    """
    e = ss.calibrate(epsilon, delta, 2.0)  # two unit vectors are at most 2 apart

    def error(r: int) -> float:
        return (1 / r if r < dimension else 0.0) + 2 * e**2 + r * e**4

    return min(range(2, dimension + 1), key=error)


def _release(cell: ExperimentCell, grid: Grid, rows: NDArray[np.float32]) -> Any:
    epsilon, delta, seed = mechanisms.find_cell_epsilon(cell), cell.delta or 0.0, cell.seed(grid.seed)
    if cell.mechanism == "index":
        epsilon, components = mechanisms.find_pair_budget(cell, rows.shape[1])
        return ss.release_index(rows, epsilon=epsilon, components=components, rng=seed)
    if cell.mechanism == "gaussian index":
        components = find_gaussian_components(epsilon, delta, rows.shape[1])
        return ss.release_index(
            rows, epsilon=epsilon, delta=delta, mechanism="gaussian", components=components, rng=seed
        )
    adjacency = ss.Replacement() if cell.radius is None else ss.GramRadius(cell.radius)
    paper = cell.setting == "paper"
    return ss.release_gram(
        rows,
        epsilon=epsilon,
        delta=delta,
        calibration="conservative" if paper else "analytic",
        adjacency=adjacency,
        projection="exact" if cell.projection in _DENOISERS else cell.projection,  # type: ignore[arg-type]
        denoise=cell.projection if cell.projection in _DENOISERS else "projection",  # type: ignore[arg-type]
        max_iterations=grid.options["aap_iterations"] if cell.projection == "aap" else None,
        device=grid.options["device"],
        rng=seed,
        unsafe_reproduce_paper=paper,
    )


class SentenceSimilarity(GramExperiment):
    """``scoreshield bench gram-sts``: Spearman correlation of released entries with human judgements."""

    name = "gram-sts"
    title = "Sentence similarity from a private matrix"
    metrics: ClassVar[Mapping[str, Metric]] = {
        "spearman": Metric("sentence similarity"),
        ERROR: Metric("release", "lower"),
    }
    files = ("stsb_test_minilm.npz", "stsb_test.csv")
    dataset_names = ("stsb",)

    def load(self, grid: Grid, data_dir: Path | None) -> SentencePairs:  # noqa: ARG002
        return compact.load_compact_stsb(_check_folder(data_dir, self))

    def make_problem(self, cell: ExperimentCell, grid: Grid, data: SentencePairs) -> Problem:
        from scoreshield.tasks import sts_spearman

        pairs = np.arange(len(data.human))
        if grid.options["pairs"] < len(pairs):
            rng = np.random.default_rng(cell.sample_seed(grid.seed))
            pairs = np.sort(rng.choice(pairs, grid.options["pairs"], replace=False))
        sentences, places = np.unique(data.pairs[pairs], return_inverse=True)
        places, human = places.reshape(-1, 2), data.human[pairs]
        assert data.embeddings is not None
        return Problem(data.embeddings[sentences], lambda released: {"spearman": sts_spearman(released, places, human)})


class CollaborativeFiltering(GramExperiment):
    """``scoreshield bench gram-movielens``: RMSE of ratings predicted from released similarities of users."""

    name = "gram-movielens"
    baselines = (NOTHING, EQUAL)
    title = "Recommendation from a private matrix"
    metrics: ClassVar[Mapping[str, Metric]] = {
        "rmse": Metric("collaborative filtering", "lower"),
        ERROR: Metric("release", "lower"),
    }
    files = ("ml100k_ratings.csv",)
    dataset_names = tuple(f"ml100k/u{fold}" for fold in range(1, 6))

    def load(self, grid: Grid, data_dir: Path | None) -> Ratings:  # noqa: ARG002
        return compact.load_compact_movielens(_check_folder(data_dir, self))

    def make_problem(self, cell: ExperimentCell, grid: Grid, data: Ratings) -> Problem:
        from scoreshield.tasks import RatingTable, collaborative_filtering, user_vectors

        users = np.arange(data.user_count)
        if grid.options["users"] < len(users):
            rng = np.random.default_rng(cell.sample_seed(grid.seed))
            users = np.sort(rng.choice(users, grid.options["users"], replace=False))
        number = np.full(data.user_count, -1)
        number[users] = np.arange(len(users))
        tables = []
        for part in data.split(int(cell.dataset[-1])):
            kept = number[part.users] >= 0
            tables.append(RatingTable(number[part.users[kept]], part.items[kept], part.ratings[kept]))
        train, test = tables
        neighbours = grid.options["neighbours"]
        return Problem(
            user_vectors(train, len(users), data.item_count),
            lambda released: {"rmse": collaborative_filtering(released, train, test, neighbours=neighbours).rmse},
        )


class ImageSimilarity(GramExperiment):
    """``scoreshield bench gram-vision``: verification, neighbours, retrieval and clusters of images."""

    name = "gram-vision"
    title = "Images from a private matrix"
    metrics: ClassVar[Mapping[str, Metric]] = {
        "auc": Metric("verification"),
        "5-nn accuracy": Metric("nearest neighbours"),
        "recall@1": Metric("instance retrieval"),
        "map": Metric("instance retrieval"),
        "nmi": Metric("spectral clustering"),
        ERROR: Metric("release", "lower"),
    }
    files = ("cifar10_effnetlite0.npz",)
    dataset_names = tuple(f"cifar10/{n}" for n in (32, 64, 100, 256, 500, 1000, 2048))

    def load(self, grid: Grid, data_dir: Path | None) -> LabelledSet:  # noqa: ARG002
        return compact.load_compact_cifar10(_check_folder(data_dir, self))[0]

    def make_problem(self, cell: ExperimentCell, grid: Grid, data: LabelledSet) -> Problem:
        from scoreshield.tasks import clustering_nmi, evaluate_verification, instance_retrieval, knn_accuracy

        rng = np.random.default_rng(cell.sample_seed(grid.seed))
        chosen = np.sort(rng.choice(len(data), int(cell.dataset.split("/")[1]), replace=False))
        labels, metrics = data.labels[chosen], grid.metrics or tuple(self.metrics)
        assert data.embeddings is not None

        def score(released: Any) -> dict[str, float]:
            values = {}
            if "auc" in metrics:
                values["auc"] = evaluate_verification(released, labels).auc
            if "5-nn accuracy" in metrics:
                values["5-nn accuracy"] = knn_accuracy(released, labels, 5)
            if "recall@1" in metrics or "map" in metrics:
                found = instance_retrieval(released, labels, ks=(1,))
                values |= {"recall@1": found.recall_at[1], "map": found.map}
            if "nmi" in metrics:
                values["nmi"] = clustering_nmi(released, labels)
            return values

        return Problem(data.embeddings[chosen], score)


def _check_folder(data_dir: Path | None, experiment: Experiment) -> Path:
    if data_dir is None:
        raise InvalidInput(f"{experiment.name} reads {' and '.join(experiment.files)}: say where with --data-dir.")
    return data_dir
