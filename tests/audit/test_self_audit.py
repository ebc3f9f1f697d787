"""The audit of our own releases: that it covers all of them, finds nothing, and would find something."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_args

import pytest

import scoreshield as ss
from scoreshield.audit import self_audit
from scoreshield.audit.self_audit import ShippedRelease, list_shipped_releases
from scoreshield.geometry import denoise, embeddings
from scoreshield.privacy import calibration
from scoreshield.privacy.adjacency import GramRadius, Identity, Replacement
from scoreshield.releases import gram, index_plan, scores
from scoreshield.releases.histogram import HISTOGRAM_MECHANISMS
from scoreshield.releases.top_k import SELECTIONS

#: Parameters that choose no mechanism: inputs, sizes, the budget, and how a release is drawn or written down.
NOT_MECHANISMS = {
    "embeddings", "query", "index", "threshold", "k", "bins", "epsilon", "delta", "rng", "ledger", "progress", "device",
    "max_iterations", "pca_share", "components", "queries", "center_share", "ids",
    "for_", "public_scores", "require_recall",
}  # fmt: skip
#: A table is what "optimal" makes, see below. Reproducing the paper's mistake is nothing that we claim.
SCORES = {"levels" if name == "optimal" else name for name in get_args(scores.ScoreMechanism)} | {"custom"}
GROUPS = {"none", "identity", "centroids"}
SHIPPED: dict[str, dict[str, set[Any]]] = {
    "release_scores": {
        "mechanism": SCORES, "calibration": set(calibration.METHODS), "adjacency": GROUPS,
        "score_range": {True, False}, "norm": set(embeddings.NORMS), "unsafe_reproduce_paper": {False},
        "part": {None, "scores"},
    },
    "release_row": {
        "mechanism": {"gaussian"}, "calibration": set(calibration.METHODS), "adjacency": GROUPS,
        "score_range": {True, False}, "unsafe_reproduce_paper": {False}, "part": {None, "scores"},
    },
    "release_gram": {
        "mechanism": {"gaussian"}, "calibration": set(calibration.METHODS), "adjacency": GROUPS | {GramRadius.kind},
        "score_range": {True, False}, "projection": set(gram.GRAM_PROJECTIONS), "denoise": set(denoise.METHODS),
        "unsafe_reproduce_paper": {False}, "part": {None, "gram"},
    },
    "release_index": {
        "mechanism": set(index_plan.MECHANISMS), "reduction": {*index_plan.REDUCTIONS, "matrix"}, "adjacency": GROUPS,
        "center": {*index_plan.CENTERS, "vector"}, "codebook": {None, "codebook"}, "part": {None},
        "changes": {"private", "public"},
        "use": set(index_plan.INDEX_USES),
    },
    "release_matches": {
        "refine": {True, False}, "adjacency": GROUPS - {"identity"}, "score_range": {True, False},
        "norm": set(embeddings.NORMS), "part": {None},
    },
    "release_top_k": {
        "mechanism": set(SELECTIONS), "adjacency": GROUPS - {"identity"}, "score_range": {True, False},
        "norm": set(embeddings.NORMS), "part": {None},
    },
    "release_histogram": {
        "mechanism": set(HISTOGRAM_MECHANISMS), "adjacency": GROUPS - {"identity"}, "score_range": {True, False},
        "norm": set(embeddings.NORMS), "part": {None},
    },
    "release_batch": {
        "names": {None, 1, 2}, "levels": {True, False}, "adjacency": GROUPS, "norm": set(embeddings.NORMS),
        "part": {None},
    },
}  # fmt: skip


def chosen(one: ShippedRelease, name: str, function: Callable[..., Any]) -> Any:
    """The value of one option: the given one or the default; of a range or a share only whether it was given."""
    if name == "part":
        return one.options.get("part")
    if name in ("score_range", "refine", "levels"):
        return name in one.options
    value = one.options.get(name, inspect.signature(function).parameters[name].default)
    if value is None and name == "mechanism":  # what scores for their values get
        return "gaussian"
    return "none" if isinstance(value, Replacement) else value


def test_list_is_complete() -> None:
    """Every release and every option is on the list."""
    public = {name for name in ss.__all__ if name.startswith("release_") and callable(getattr(ss, name))}
    assert public == set(SHIPPED)
    listed = list_shipped_releases((0.5,))
    for name, options in SHIPPED.items():
        function = getattr(ss, name)
        # A new parameter must be put on one of the two lists.
        assert set(inspect.signature(function).parameters) - NOT_MECHANISMS == set(options) - {"part"}, name
        mine = [one for one in listed if one.options["function"] == name]
        for option, values in options.items():
            assert {chosen(one, option, function) for one in mine} == values, f"{name}: {option}"
    # Both mechanisms of an index with every reduction, and a batch of queries.
    pairs = {
        (one.options["mechanism"], one.options.get("reduction", "random"))
        for one in listed
        if "reduction" in one.options
    }
    assert len(pairs) == 6
    assert any(one.options.get("query") == "matrix" for one in listed if one.options["function"] == "release_scores")
    assert set(ss.Identity([0, 1]).to_dict()) >= {"centroids"}
    kinds = {Replacement.kind, Identity.kind, GramRadius.kind, ss.NullRecord.kind}
    assert kinds == {kind.kind for kind in ss.Adjacency.__subclasses__()}


def test_list_textbook_calibrations() -> None:
    """Textbook calibrations are on the list where they hold."""
    assert len(list_shipped_releases((0.5,))) == len(list_shipped_releases((2.0,))) + 3 * (len(calibration.METHODS) - 1)


def test_list_optimal_mechanism() -> None:
    """The mechanism "optimal" is the level table on the list."""
    rows, query = [[1.0, 0.0], [0.0, 1.0]], [1.0, 0.0]
    made = ss.release_scores(rows, query, epsilon=2.0, mechanism="optimal", rng=0)
    listed = ss.release_scores(rows, query, epsilon=2.0, mechanism=ss.optimal_channel(2.0), rng=0)
    assert made.guarantee.noise.to_dict() == listed.guarantee.noise.to_dict()
    assert (made.noisy == listed.noisy).all()


def test_long_form_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The long form hands work to two processes, which end in any order; here the cheapest of it, in this one."""
    cheap = [
        one
        for one in list_shipped_releases((2.0,))
        if "matches, randomised" in one.name or "scores, laplace" in one.name
    ]
    monkeypatch.setattr(self_audit, "list_shipped_releases", {self_audit.BUDGETS: cheap}.__getitem__)
    monkeypatch.setattr(self_audit, "_list_once", lambda: cheap)
    monkeypatch.setattr(self_audit, "_RELEASES", dict.fromkeys(self_audit._RELEASES, 300))
    monkeypatch.setattr(
        self_audit, "_audit_in_processes", lambda order: map(self_audit._audit_by_number, reversed(order))
    )
    told: list[tuple[int, int, str]] = []
    results = self_audit.audit_shipped_releases(progress=lambda *said: told.append(said))
    assert [result.name for result in results] == [one.name for one in cheap]
    assert [done for done, _, _ in told] == list(range(1, len(cheap) + 1))
    assert all(result.releases >= 300 for result in results)
