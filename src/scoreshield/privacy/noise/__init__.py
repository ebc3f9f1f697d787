"""The noise laws: what a release adds to scores, on which grid."""

from scoreshield.privacy.noise.gaussian import FINEST_STEP, GRID_BITS, GaussianNoise, add_noise, grid_step

__all__ = ["FINEST_STEP", "GRID_BITS", "GaussianNoise", "add_noise", "grid_step"]
