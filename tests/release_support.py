"""What the tests of releases share: a few rows with known cosines, an account that remembers, the plan of an index."""

from __future__ import annotations

from typing import Any

import numpy as np

import scoreshield as ss
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.releases.index_plan import IndexPlan
from scoreshield.releases.pipeline import PrivateCollection

#: Cosines 1, 0.8, 0, -0.6 and -1 with the query, exactly.
ROWS = np.array([[2.0, 0], [4, 3], [0, 1], [-3, 4], [-1, 0]])
QUERY = np.array([1.0, 0])
PEOPLE = ss.Identity([0, 0, 1, 2, 3], centroids=True)


class Account:
    """An account that has room for everything and remembers what it was asked."""

    dataset = "records"

    def __init__(self) -> None:
        self.guarantees: list[Guarantee] = []
        self.adjacency: Any = None
        self.paid = False

    def reserve(self, guarantees: list[Guarantee], *, adjacency: Any, same_people: bool) -> Account:
        assert not same_people
        self.guarantees, self.adjacency = guarantees, adjacency
        return self

    def commit(self) -> tuple[()]:
        self.paid = True
        return ()


def make_plan(rows: np.ndarray, **options: object) -> IndexPlan:
    """The plan of an index of these rows, pure and of all dimensions unless the options say otherwise."""
    usual: dict[str, object] = {"mechanism": "privunit", "delta": 0.0, "components": None, "reduction": "random"}
    usual |= {"pca_share": 0.1, "adjacency": ss.Replacement(), **options}
    source = PrivateCollection.check(rows, usual.pop("adjacency"))
    return IndexPlan.check(source, **usual)  # type: ignore[arg-type]
