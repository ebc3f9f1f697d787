"""The noise laws that a release adds to scores, and their grids."""

from scoreshield.privacy.noise.custom import CustomNoise
from scoreshield.privacy.noise.gaussian import FINEST_STEP, GRID_BITS, GaussianNoise, add_noise, choose_grid_step
from scoreshield.privacy.noise.laplace import LaplaceNoise
from scoreshield.privacy.noise.staircase import StaircaseNoise

__all__ = [
    "FINEST_STEP",
    "GRID_BITS",
    "CustomNoise",
    "GaussianNoise",
    "LaplaceNoise",
    "StaircaseNoise",
    "add_noise",
    "choose_grid_step",
]
