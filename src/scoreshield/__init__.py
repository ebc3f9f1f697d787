"""ScoreShield: differentially private release of similarity scores.

A public name is imported when it is first used, so that ``import scoreshield`` itself loads nothing but this file.
"""

from __future__ import annotations as _annotations

from importlib import import_module as _import_module

TYPE_CHECKING = False  # type checkers take it for True; typing, which defines it too, takes a third of the start-up
if TYPE_CHECKING:
    from typing import Any as _Any

    from scoreshield import attack, audit, decisions, distributed, plan, risk, search, stores, tasks
    from scoreshield.errors import (
        BudgetExceeded,
        FileError,
        InvalidCalibration,
        InvalidInput,
        InvalidParameter,
        LedgerError,
        LedgerWarning,
        ScoreShieldError,
        StoreError,
        TailShapeWarning,
        UselessRelease,
    )
    from scoreshield.geometry.elliptope import Projection, project_elliptope
    from scoreshield.privacy.adjacency import Adjacency, GramRadius, Identity, NullRecord, Replacement, Sensitivity
    from scoreshield.privacy.calibration import calibrate
    from scoreshield.privacy.composition import PrivacyFilter, compose, group, parallel
    from scoreshield.privacy.guarantee import Guarantee
    from scoreshield.privacy.ledger import Ledger
    from scoreshield.privacy.levels.bits import AcceptBit, accept_bit, gaussian_bit
    from scoreshield.privacy.levels.tables import (
        LevelChannel,
        optimal_channel,
        randomised_response,
        retrieval_cuts,
        thinned_response,
    )
    from scoreshield.privacy.noise import CustomNoise, GaussianNoise, LaplaceNoise, StaircaseNoise
    from scoreshield.privacy.tails import AnchoredWindows, TailShape
    from scoreshield.releases.batch import BatchRelease, PublicLevels, release_batch
    from scoreshield.releases.codebook import CodebookRelease, CodebookTrial, PublicCodebook
    from scoreshield.releases.gram import release_gram
    from scoreshield.releases.histogram import release_histogram
    from scoreshield.releases.index import IndexRelease, release_index
    from scoreshield.releases.index_pairs import pair_components
    from scoreshield.releases.matches import release_matches
    from scoreshield.releases.results import (
        FactoredGramRelease,
        GramRelease,
        HistogramRelease,
        MatchRelease,
        Release,
        RowRelease,
        ScoreRelease,
        TopKRelease,
        load,
    )
    from scoreshield.releases.row import release_row
    from scoreshield.releases.scores import release_scores
    from scoreshield.releases.top_k import release_top_k
    from scoreshield.releases.versions import CodebookVersion, IndexVersion
    from scoreshield.search import PrivateSearch

    __version__: str

#: Where each public name is defined; None for a subpackage.
_HOMES: dict[str, str | None] = {
    "AcceptBit": "scoreshield.privacy.levels.bits",
    "Adjacency": "scoreshield.privacy.adjacency",
    "AnchoredWindows": "scoreshield.privacy.tails",
    "BatchRelease": "scoreshield.releases.batch",
    "BudgetExceeded": "scoreshield.errors",
    "CodebookRelease": "scoreshield.releases.codebook",
    "CodebookTrial": "scoreshield.releases.codebook",
    "CodebookVersion": "scoreshield.releases.versions",
    "CustomNoise": "scoreshield.privacy.noise",
    "FactoredGramRelease": "scoreshield.releases.results",
    "FileError": "scoreshield.errors",
    "GaussianNoise": "scoreshield.privacy.noise",
    "GramRadius": "scoreshield.privacy.adjacency",
    "GramRelease": "scoreshield.releases.results",
    "Guarantee": "scoreshield.privacy.guarantee",
    "HistogramRelease": "scoreshield.releases.results",
    "Identity": "scoreshield.privacy.adjacency",
    "IndexRelease": "scoreshield.releases.index",
    "IndexVersion": "scoreshield.releases.versions",
    "InvalidCalibration": "scoreshield.errors",
    "InvalidInput": "scoreshield.errors",
    "InvalidParameter": "scoreshield.errors",
    "LaplaceNoise": "scoreshield.privacy.noise",
    "Ledger": "scoreshield.privacy.ledger",
    "LedgerError": "scoreshield.errors",
    "LedgerWarning": "scoreshield.errors",
    "LevelChannel": "scoreshield.privacy.levels.tables",
    "MatchRelease": "scoreshield.releases.results",
    "NullRecord": "scoreshield.privacy.adjacency",
    "PrivacyFilter": "scoreshield.privacy.composition",
    "PrivateSearch": "scoreshield.search",
    "Projection": "scoreshield.geometry.elliptope",
    "PublicCodebook": "scoreshield.releases.codebook",
    "PublicLevels": "scoreshield.releases.batch",
    "Release": "scoreshield.releases.results",
    "Replacement": "scoreshield.privacy.adjacency",
    "RowRelease": "scoreshield.releases.results",
    "ScoreRelease": "scoreshield.releases.results",
    "ScoreShieldError": "scoreshield.errors",
    "Sensitivity": "scoreshield.privacy.adjacency",
    "StaircaseNoise": "scoreshield.privacy.noise",
    "StoreError": "scoreshield.errors",
    "TailShape": "scoreshield.privacy.tails",
    "TailShapeWarning": "scoreshield.errors",
    "TopKRelease": "scoreshield.releases.results",
    "UselessRelease": "scoreshield.errors",
    "accept_bit": "scoreshield.privacy.levels.bits",
    "attack": None,
    "audit": None,
    "calibrate": "scoreshield.privacy.calibration",
    "compose": "scoreshield.privacy.composition",
    "decisions": None,
    "distributed": None,
    "gaussian_bit": "scoreshield.privacy.levels.bits",
    "group": "scoreshield.privacy.composition",
    "load": "scoreshield.releases.results",
    "optimal_channel": "scoreshield.privacy.levels.tables",
    "pair_components": "scoreshield.releases.index_pairs",
    "parallel": "scoreshield.privacy.composition",
    "plan": None,
    "project_elliptope": "scoreshield.geometry.elliptope",
    "randomised_response": "scoreshield.privacy.levels.tables",
    "release_batch": "scoreshield.releases.batch",
    "release_gram": "scoreshield.releases.gram",
    "release_histogram": "scoreshield.releases.histogram",
    "release_index": "scoreshield.releases.index",
    "release_matches": "scoreshield.releases.matches",
    "release_row": "scoreshield.releases.row",
    "release_scores": "scoreshield.releases.scores",
    "release_top_k": "scoreshield.releases.top_k",
    "retrieval_cuts": "scoreshield.privacy.levels.tables",
    "risk": None,
    "search": None,
    "stores": None,
    "tasks": None,
    "thinned_response": "scoreshield.privacy.levels.tables",
}

__all__ = [
    "AcceptBit",
    "Adjacency",
    "AnchoredWindows",
    "BatchRelease",
    "BudgetExceeded",
    "CodebookRelease",
    "CodebookTrial",
    "CodebookVersion",
    "CustomNoise",
    "FactoredGramRelease",
    "FileError",
    "GaussianNoise",
    "GramRadius",
    "GramRelease",
    "Guarantee",
    "HistogramRelease",
    "Identity",
    "IndexRelease",
    "IndexVersion",
    "InvalidCalibration",
    "InvalidInput",
    "InvalidParameter",
    "LaplaceNoise",
    "Ledger",
    "LedgerError",
    "LedgerWarning",
    "LevelChannel",
    "MatchRelease",
    "NullRecord",
    "PrivacyFilter",
    "PrivateSearch",
    "Projection",
    "PublicCodebook",
    "PublicLevels",
    "Release",
    "Replacement",
    "RowRelease",
    "ScoreRelease",
    "ScoreShieldError",
    "Sensitivity",
    "StaircaseNoise",
    "StoreError",
    "TailShape",
    "TailShapeWarning",
    "TopKRelease",
    "UselessRelease",
    "accept_bit",
    "attack",
    "audit",
    "calibrate",
    "compose",
    "decisions",
    "distributed",
    "gaussian_bit",
    "group",
    "load",
    "optimal_channel",
    "pair_components",
    "parallel",
    "plan",
    "project_elliptope",
    "randomised_response",
    "release_batch",
    "release_gram",
    "release_histogram",
    "release_index",
    "release_matches",
    "release_row",
    "release_scores",
    "release_top_k",
    "retrieval_cuts",
    "risk",
    "search",
    "stores",
    "tasks",
    "thinned_response",
]


def __getattr__(name: str) -> _Any:
    if name == "__version__":
        found: _Any = _import_module("scoreshield._version").VERSION
    elif name in _HOMES:
        home = _HOMES[name]
        found = _import_module(f"scoreshield.{name}") if home is None else getattr(_import_module(home), name)
    else:
        raise AttributeError(f"module 'scoreshield' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
