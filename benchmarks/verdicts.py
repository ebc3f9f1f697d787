"""Print up to which epsilon each mechanism keeps each verdict of a certificate: `python benchmarks/verdicts.py`.

Nothing is drawn: the verdict follows from the privacy profile of the mechanism.
"""

from __future__ import annotations

from collections.abc import Callable

from scoreshield.privacy import calibration
from scoreshield.privacy.noise import LaplaceNoise, StaircaseNoise
from scoreshield.privacy.privunit import PrivUnit
from scoreshield.privacy.profiles import GaussianProfile, Profile, PureProfile
from scoreshield.privacy.verdicts import LIMITS, judge_profile

WIDTH = 2.0  # of the full range of cosines
DIMENSION = 128
WORDS = [limit.word for limit in LIMITS]

MECHANISMS: dict[str, Callable[[float], Profile]] = {
    "Gaussian noise, delta 1e-6": lambda epsilon: GaussianProfile(1 / calibration.calibrate(epsilon, 1e-6, 1.0)),
    "Laplace noise": lambda epsilon: LaplaceNoise.calibrate(epsilon, WIDTH).profile(WIDTH),
    "staircase noise": lambda epsilon: StaircaseNoise.calibrate(epsilon, WIDTH).profile(WIDTH),
    "randomised response, any pure promise": PureProfile,
    f"PrivUnit in {DIMENSION} dimensions": lambda epsilon: PrivUnit.calibrate(DIMENSION, epsilon).profile,
}


def find_largest_epsilon(make: Callable[[float], Profile], place: int) -> float:
    """Find the largest epsilon, in hundredths, that keeps this verdict or a better one."""
    low, high = 1, 10_000
    while high - low > 1:
        middle = (low + high) // 2
        keeps = judge_profile(make(middle / 100)) in WORDS[: place + 1]
        low, high = (middle, high) if keeps else (low, middle)
    return low / 100


def main() -> None:
    print(f"{'':40}" + "".join(f"{word:>10}" for word in WORDS))
    for name, make in MECHANISMS.items():
        values = [find_largest_epsilon(make, place) for place in range(len(WORDS))]
        print(f"{name:40}" + "".join(f"{value:10.2f}" for value in values))


if __name__ == "__main__":
    main()
