"""ScoreShield: differentially private release of similarity scores."""

from importlib import import_module as _import_module
from importlib.metadata import version as _version
from typing import Any as _Any

from scoreshield import attack, decisions, plan, risk, tasks
from scoreshield.errors import (
    BudgetExceeded,
    FileError,
    InvalidCalibration,
    InvalidInput,
    LedgerError,
    LedgerWarning,
    ScoreShieldError,
    StoreError,
)
from scoreshield.geometry.elliptope import Projection, project_elliptope
from scoreshield.privacy.adjacency import Adjacency, GramRadius, Identity, Replacement, Sensitivity
from scoreshield.privacy.calibration import calibrate
from scoreshield.privacy.composition import Filter, compose, group, parallel
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.ledger import Ledger
from scoreshield.privacy.levels.tables import LevelChannel, optimal_channel, randomised_response, retrieval_cuts
from scoreshield.privacy.noise import GaussianNoise
from scoreshield.privacy.noise.laws import LaplaceNoise, StaircaseNoise
from scoreshield.releases import release_gram, release_row, release_scores
from scoreshield.releases.histogram import release_histogram
from scoreshield.releases.index import IndexRelease, pair_components, release_index
from scoreshield.releases.matches import release_matches, release_top_k
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

__version__ = _version("scoreshield")

__all__ = [
    "Adjacency",
    "BudgetExceeded",
    "FactoredGramRelease",
    "FileError",
    "Filter",
    "GaussianNoise",
    "GramRadius",
    "GramRelease",
    "Guarantee",
    "HistogramRelease",
    "Identity",
    "IndexRelease",
    "InvalidCalibration",
    "InvalidInput",
    "LaplaceNoise",
    "Ledger",
    "LedgerError",
    "LedgerWarning",
    "LevelChannel",
    "MatchRelease",
    "PrivateSearch",
    "Projection",
    "Release",
    "Replacement",
    "RowRelease",
    "ScoreRelease",
    "ScoreShieldError",
    "Sensitivity",
    "StaircaseNoise",
    "StoreError",
    "TopKRelease",
    "attack",
    "audit",
    "calibrate",
    "compose",
    "decisions",
    "group",
    "load",
    "optimal_channel",
    "pair_components",
    "parallel",
    "plan",
    "project_elliptope",
    "randomised_response",
    "release_gram",
    "release_histogram",
    "release_index",
    "release_matches",
    "release_row",
    "release_scores",
    "release_top_k",
    "retrieval_cuts",
    "risk",
    "stores",
    "tasks",
]


#: Imported when asked for: what few need, or what brings more.
_LATER = {
    "PrivateSearch": ("scoreshield.search", "PrivateSearch"),
    "audit": ("scoreshield.audit", None),
    "stores": ("scoreshield.stores", None),
}


def __getattr__(name: str) -> _Any:
    if name in _LATER:
        module, attribute = _LATER[name]
        found = _import_module(module)
        return found if attribute is None else getattr(found, attribute)
    raise AttributeError(f"module 'scoreshield' has no attribute {name!r}")
