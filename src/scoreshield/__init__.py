"""ScoreShield: differentially private release of similarity scores."""

from importlib.metadata import version as _version

from scoreshield import attack
from scoreshield.errors import FileError, InvalidCalibration, InvalidInput, ScoreShieldError
from scoreshield.geometry.elliptope import Projection, project_elliptope
from scoreshield.privacy.adjacency import Adjacency, GramRadius, Identity, Replacement, Sensitivity
from scoreshield.privacy.calibration import calibrate
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.noise import GaussianNoise
from scoreshield.releases import release_gram, release_row, release_scores
from scoreshield.results import FactoredGramRelease, GramRelease, Release, RowRelease, ScoreRelease, load
from scoreshield.utility import decisions, plan, risk

__version__ = _version("scoreshield")

__all__ = [
    "Adjacency",
    "FactoredGramRelease",
    "FileError",
    "GaussianNoise",
    "GramRadius",
    "GramRelease",
    "Guarantee",
    "Identity",
    "InvalidCalibration",
    "InvalidInput",
    "Projection",
    "Release",
    "Replacement",
    "RowRelease",
    "ScoreRelease",
    "ScoreShieldError",
    "Sensitivity",
    "attack",
    "calibrate",
    "decisions",
    "load",
    "plan",
    "project_elliptope",
    "release_gram",
    "release_row",
    "release_scores",
    "risk",
]
