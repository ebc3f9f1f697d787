"""One mechanism under a contract with its predicted utility, and the noise laws and profiles that a choice compares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from scoreshield.decisions.queries import Prediction
from scoreshield.decisions.scores import Law
from scoreshield.plan.base import ScoreRange, as_plain_value
from scoreshield.plan.contracts import Contract
from scoreshield.privacy.adjacency import FULL_RANGE
from scoreshield.privacy.noise import GaussianNoise, LaplaceNoise, StaircaseNoise
from scoreshield.privacy.privunit import LARGEST_EPSILON, SMALLEST_EPSILON, PrivUnit
from scoreshield.privacy.profiles import GaussianProfile, LaplaceProfile, Profile, PureProfile, StepProfile

#: How far all scores of another population may lie from the public ones, in a choice's last sentence.
SHIFT = 0.05


@dataclass(frozen=True)
class Candidate:
    """One mechanism under the contract, with its predicted utility.

    Attributes:
        mechanism: The name of the mechanism.
        call: The call that makes the release, or all releases where several queries share the contract.
        utility: The predicted figure.
        epsilon: The epsilon of the mechanism.
        delta: The delta of the mechanism.
        advantage: The advantage of the best membership test against one release.
        score_range: The public score range.
        note: What the reader must know about the prediction.
        error: Half the width of an interval around ``utility`` that holds the released figure nine times in ten; 0
            where the figure follows from the mechanism alone.
        shifted: The predicted figures if all private scores lay 0.05 lower, and 0.05 higher; None where no scores are
            read.
        false_matches: For verification, the ends of an interval that holds the false-match rate of other impostors nine
            times in ten; None where the law of the impostors is given.
    """

    mechanism: str
    call: str
    utility: float
    epsilon: float
    delta: float
    advantage: float
    score_range: ScoreRange
    note: str = ""
    error: float = 0.0
    shifted: tuple[float, float] | None = None
    false_matches: tuple[float, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON. A value that is no finite number is null."""
        pairs = {
            "score_range": list(self.score_range),
            "shifted": None if self.shifted is None else [as_plain_value(value) for value in self.shifted],
            "false_matches": None if self.false_matches is None else list(self.false_matches),
        }
        return {name: as_plain_value(value) for name, value in (vars(self) | pairs).items()}


def make_candidate(
    name: str,
    call: str,
    prediction: Prediction | float,
    profile: Profile,
    contract: Contract,
    *,
    within: ScoreRange = FULL_RANGE,
    note: str = "",
    shifted: tuple[float, float] | None = None,
    false_matches: tuple[float, float] | None = None,
) -> Candidate:
    """Make a candidate from its prediction and its profile.

    Args:
        name: The name of the mechanism.
        call: The call that makes the release.
        prediction: The utility with its error, or without one.
        profile: The privacy profile.
        contract: The contract.
        within: The public score range.
        note: What the reader must know.
        shifted: How the utility changes if all private scores lie lower, and higher.
        false_matches: The interval of the false-match rate.
    """
    value, error = prediction if isinstance(prediction, Prediction) else (float(prediction), 0.0)
    epsilon, delta = profile.epsilon_at(0.0), 0.0
    if not math.isfinite(epsilon):  # not a pure mechanism
        delta = contract.delta
        epsilon = profile.epsilon_at(delta) if delta else math.inf
    ends = None if shifted is None else (_clip_rate(value + shifted[0]), _clip_rate(value + shifted[1]))
    return Candidate(
        name, call, float(value), epsilon, delta, profile.advantage, within, note, float(error), ends, false_matches
    )


def _clip_rate(value: float) -> float:
    return float(min(max(value, 0.0), 1.0))


def list_noise_laws(contract: Contract, within: ScoreRange) -> Iterator[tuple[str, str, Law, Profile]]:
    """List the noise laws for one query's scores on a range: name, call, law, profile."""
    width = within[1] - within[0]
    window = "" if within == FULL_RANGE else f", score_range=({within[0]:g}, {within[1]:g})"
    budget = write_gaussian_budget(contract)
    if budget is not None:
        call = f"release_scores(rows, query, {budget}{window})"
        yield "gaussian", call, GaussianNoise(width / contract.mu), GaussianProfile(contract.mu)
    spend = contract.find_call_epsilon(LaplaceProfile)
    call = f'release_scores(rows, query, epsilon={spend:.6g}, mechanism="laplace"{window})'
    yield "laplace", call, LaplaceNoise.calibrate(spend, width), LaplaceProfile(spend)
    spend = contract.find_call_epsilon(make_staircase_profile)
    call = f'release_scores(rows, query, epsilon={spend:.6g}, mechanism="staircase"{window})'
    yield "staircase", call, StaircaseNoise.calibrate(spend, width), make_staircase_profile(spend)


def write_gaussian_budget(contract: Contract) -> str | None:
    """Write the budget of a Gaussian release under the contract; None where no Gaussian noise fits."""
    budget = contract.gaussian_budget
    return None if budget is None else f"epsilon={budget[0]:.6g}, delta={budget[1]:.6g}"


def write_repeated_call(call: str, queries: int) -> str:
    """Write a call for each of several queries."""
    return call if queries == 1 else f"[{call} for query in queries]"


def make_staircase_profile(epsilon: float) -> Profile:
    """Make the profile of staircase noise at an epsilon."""
    return StaircaseNoise.calibrate(epsilon, 1.0).profile(1.0)  # the same at every width


def make_unit_profiles(dimension: int) -> Callable[[float], Profile]:
    """Make the function from epsilon to the profile of PrivUnit in this dimension.

    Outside PrivUnit's range of epsilon, the profile is that of any pure mechanism.
    """

    def profile(epsilon: float) -> Profile:
        if not SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON:
            return PureProfile(epsilon)
        return PrivUnit.calibrate(dimension, epsilon).profile

    return profile


def make_response_profiles(bins: int) -> Callable[[float], Profile]:
    """Make the function from epsilon to the profile of randomised response on this number of bins."""
    return lambda epsilon: StepProfile(epsilon, 1 / (1 + (bins - 1) * math.exp(-epsilon)))
