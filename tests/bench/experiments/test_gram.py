"""The matrix experiments compare with what is had without similarities, and give Gaussian noise its own best size."""

from __future__ import annotations

import numpy as np
import pytest

import scoreshield as ss
from scoreshield.bench.data.sets import Ratings
from scoreshield.bench.experiments import EXPERIMENTS
from scoreshield.bench.experiments.cells import ExperimentCell
from scoreshield.bench.experiments.gram import EQUAL, NOTHING, find_gaussian_components


@pytest.mark.parametrize(("epsilon", "delta", "dimension"), [(20.0, 1e-8, 384), (100.0, 1e-8, 384), (100.0, 1e-2, 8)])
def test_gaussian_components_make_error(epsilon: float, delta: float, dimension: int) -> None:
    """Gaussian components make the error least."""
    e = ss.calibrate(epsilon, delta, 2.0)
    errors = {r: (1 / r if r < dimension else 0.0) + 2 * e**2 + r * e**4 for r in range(2, dimension + 1)}
    assert errors[find_gaussian_components(epsilon, delta, dimension)] == min(errors.values())


def test_gaussian_components_closed_form() -> None:
    """Gaussian components are those of the closed form."""
    e = ss.calibrate(100.0, 1e-8, 2.0)  # 1/r + r e^4 is least at r = 1/e^2
    assert abs(find_gaussian_components(100.0, 1e-8, 384) - e**-2) < 1
    assert find_gaussian_components(1.0, 1e-8, 384) == 2


def test_only_movielens_equal_similarities() -> None:
    """Only movielens has equal similarities."""
    for name, wanted in (("gram-movielens", {NOTHING, EQUAL}), ("gram-sts", {NOTHING}), ("gram-vision", {NOTHING})):
        experiment = EXPERIMENTS[name]
        found = [cell for cell in experiment.list_cells(experiment.make_grid(quick=True)) if cell.setting == "clean"]
        assert {experiment.name_method(cell) for cell in found} == wanted | {"non-private"}


def test_equal_similarities_plain_averages() -> None:
    """Equal similarities are plain averages."""
    experiment = EXPERIMENTS["gram-movielens"]
    grid = experiment.make_grid({"options": {"users": 3}})
    # Users rate 0 and 1, then one more each; the last pair is the test fold.
    users, items = np.array([0, 0, 1, 1, 1, 2, 2, 2, 0]), np.array([0, 1, 0, 1, 2, 0, 1, 2, 2])
    ratings = np.array([2.0, 4.0, 1.0, 3.0, 5.0, 4.0, 2.0, 3.0, 5.0])
    fold = np.array([2] * 8 + [1])
    data = Ratings(name="hand", users=users, items=items, ratings=ratings, fold=fold, user_count=3, item_count=3)
    found = experiment.measure(ExperimentCell("ml100k/u1", "clean", EQUAL), grid, data)
    # User 0's mean is 3; the raters of item 2 depart from their means, 3 and 3, by 2 and 0.
    assert found.values["rmse"] == pytest.approx(abs(3 + 1 - 5))
    assert experiment.measure(ExperimentCell("ml100k/u1", "clean", NOTHING), grid, data).values[
        "rmse"
    ] == pytest.approx(2.0)
