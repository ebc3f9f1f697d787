r"""The interface of all noise laws, and the function that reads them from a file.

Laplace noise, staircase noise and level tables are for releases in which one record moves one score. There the l1 and
the l2 sensitivity are equal: D = b - a for scores clamped to [a, b]. Noise that is private for one coordinate is then
private for the whole vector, since the other coordinates cancel. Laplace noise has the scale D / epsilon. The density
of staircase noise (Geng & Viswanath 2014) falls by e^-epsilon with every step of width D. Both give *pure* epsilon.

All draws lie on the grid. Clean scores are rounded to it first, so two neighbours differ by a whole number of
steps, at most ``width``. The laws are calibrated to that number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield.errors import InvalidInput
from scoreshield.privacy.noise.custom import CustomNoise
from scoreshield.privacy.noise.gaussian import GaussianNoise
from scoreshield.privacy.noise.laplace import LaplaceNoise
from scoreshield.privacy.noise.staircase import StaircaseNoise
from scoreshield.privacy.profiles import Profile
from scoreshield.privacy.sampling.stream import Stream

if TYPE_CHECKING:
    from scoreshield.privacy.levels.tables import LevelChannel

Float = NDArray[np.float64]


class NoiseLaw(Protocol):
    """The noise on a released entry: its distribution, its privacy and its sampler."""

    name: ClassVar[str]

    @property
    def std(self) -> float: ...

    def cdf(self, x: ArrayLike) -> Any:
        """P[noise <= x]."""

    def profile(self, sensitivity: float) -> Profile:
        """Return the privacy of this noise on an entry that one change moves by at most ``sensitivity``."""

    def fill(self, stream: Stream, step: float, out: Float) -> None:
        """Fill an array with independent draws, in whole steps of the grid."""

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class CalibratedNoise:
    """The noise of one release.

    Attributes:
        sensitivity: How far one neighbour can move the clean object, in l2.
        grid_sensitivity: The same after rounding to the grid; the scale is calibrated to it.
        scale: The calibrated scale of the law.
        law: The law of the noise on each entry.
        step: The step of the grid.
        profile: The privacy of the release.
    """

    sensitivity: float
    grid_sensitivity: float
    scale: float
    law: NoiseLaw
    step: float
    profile: Profile


def law_from_dict(data: dict[str, Any]) -> NoiseLaw | LevelChannel:
    """Read back what ``to_dict`` wrote."""
    match data:
        case {"name": GaussianNoise.name, "std": std}:
            return GaussianNoise(std)
        case {"name": LaplaceNoise.name, "b": b}:
            return LaplaceNoise(b)
        case {"name": StaircaseNoise.name, "epsilon": epsilon, "sensitivity": sensitivity, "gamma": gamma}:
            return StaircaseNoise(epsilon, sensitivity, gamma)
        case {"name": CustomNoise.name}:
            return CustomNoise.from_dict(data)
        case {"name": "levels"}:
            from scoreshield.privacy.levels.tables import LevelChannel

            return LevelChannel.from_dict(data)
    raise InvalidInput(f"The file names a noise law that this version does not know: {data.get('name')!r}.")
