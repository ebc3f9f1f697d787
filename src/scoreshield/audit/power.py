"""What an audit of a given size finds: for each kind of fault, the size that it finds with probability 90 %.

A fault of a given size lets the capital grow at a known rate per output. The audit finds it if the growth on the
outputs of one pair exceeds what the confidence and the search ask for. Half of these outputs teach, the other half are
played on. The figures are estimates, with a margin for chance; `tests/audit/test_power.py` compares them with audits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from scipy.special import expit, log_expit, ndtri

from scoreshield.audit.betting import best_growth_per_output
from scoreshield.audit.claims import Claim
from scoreshield.audit.statistics import SEARCHED_ROWS
from scoreshield.privacy.profiles import GaussianProfile

if TYPE_CHECKING:
    from scoreshield.audit.trials import Trial

#: What the search for pairs and statistics costs, as a growth of the logarithm of the capital.
_SEARCH_COST = 5.0
#: Releases on each side that only teach.
_TAUGHT = 32
#: How many standard deviations of chance the growth must exceed.
_LUCK = 1.3
#: How many of the outputs that are searched for a direction must have no noise in it.
_SEARCHED_LEAKS = 10
#: How many times too long the rows of the pairs are that test their length, and the most outputs that are planned for.
_TOO_LONG, _MOST_OUTPUTS = 3.0, 1e9


def find_needed_growth(confidence: float) -> float:
    """Find the growth of the logarithm of the capital that breaks a claim."""
    return _SEARCH_COST - math.log(1 - confidence)


def find_least_releases(claim: Claim, confidence: float) -> float:
    """Find how many releases on each side an audit needs to contradict the claim if everything leaks.

    Returns:
        A whole number, which may be infinite.
    """
    epsilon = 0.0 if claim.profile is not None else claim.epsilon
    if epsilon > 40:
        return math.inf
    # Half of the outputs are played on with full knowledge; the rest teaches.
    return math.ceil((2.0 - math.log(1 - confidence)) / best_growth_per_output(epsilon)) + _TAUGHT


def find_detectable(claim: Claim, releases: int, confidence: float) -> float:
    """Find the least true epsilon that is found.

    Without a claimed curve, the release must reveal it as clearly as randomised response does. With the claim of
    Gaussian noise, it is the epsilon of Gaussian noise that is too small.

    Returns:
        The epsilon; infinite where even a complete leak would not be found.
    """
    if isinstance(claim.profile, GaussianProfile):
        mu = _find_detectable_mu(claim.profile, releases, confidence)
        return math.inf if math.isinf(mu) or claim.delta <= 0 else GaussianProfile(mu).epsilon_at(claim.delta)
    return _search(lambda true: _is_enough(true, claim.epsilon, releases, confidence), claim.epsilon)


def _find_detectable_mu(profile: GaussianProfile, releases: int, confidence: float) -> float:
    """Find the least mu whose advantage exceeds the claimed one by what chance and the search ask for."""
    advantage = profile.advantage + (_LUCK + math.sqrt(2 * find_needed_growth(confidence))) / math.sqrt(releases)
    return math.inf if advantage >= 1 else 2 * float(ndtri((1 + advantage) / 2))


def _find_growth_per_leak(claim: Claim) -> float:
    """Find the largest growth per output if everything leaks."""
    growth = best_growth_per_output(claim.epsilon)
    # A claimed curve says that guesses are right in at most (1 + advantage) / 2 of all cases.
    return growth if claim.profile is None else max(growth, -math.log((1 + claim.profile.advantage) / 2))


def count_informative(trial: Trial) -> int:
    """Count the outputs of calls that succeeded, by the share of failures in the first round."""
    return round(trial.outputs * (1 - trial.failure_share))


def _find_needed_share(claim: Claim, outputs: int, confidence: float) -> float:
    """Find the share of outputs that must leak everything to be found; above 1 where no share is found."""
    per_leak = _find_growth_per_leak(claim)
    if per_leak <= 0 or not outputs:
        return math.inf
    leaks = find_needed_growth(confidence) / per_leak
    # How many leaks there are is up to chance as well.
    mean = (_LUCK / 2 + math.sqrt(_LUCK**2 / 4 + leaks)) ** 2
    return mean / (outputs / 2)


def describe_power(name: str, claim: Claim, trials: Sequence[Trial], confidence: float) -> str | None:
    """Describe what size of a kind of fault would have been found.

    Args:
        name: The kind of fault.
        claim: The claim.
        trials: The trials that the claim covers.
        confidence: That of the audit.

    Returns:
        A sentence, or None where no fault of this kind could have been found.
    """
    is_session = name == "several calls"
    used = [trial for trial in trials if (trial.session != "single") is is_session]
    outputs = max(map(count_informative, used), default=0)
    if name == "amount of noise":
        return _describe_noise(claim, outputs, confidence)
    share = _find_needed_share(claim, outputs, confidence)
    if name == "noise in every direction":
        # A direction is searched among few outputs, of which some must have no noise in it.
        share = max(share, _SEARCHED_LEAKS / SEARCHED_ROWS)
    if share > 0.9:
        return None
    things = "sessions of several calls" if is_session else "outputs"
    often = f"in 1 of {_describe_count(1 / share)} {things}, or more often," if share <= 0.5 else f"in all {things}"
    match name:
        case "low bits":
            return f"last bits that distinguish the collections {often} would be found"
        case "noise in every direction":
            return f"a record that shows without noise {often} would be found"
        case "fresh noise":
            # Most outputs that came before are met again, so that chance has a smaller part.
            states = (outputs / 2) ** 2 / 4 / (find_needed_growth(confidence) / _find_growth_per_leak(claim))
            return f"a generator of up to {_describe_count(states)} states would be found"
        case "form of the output":
            return f"a form that depends on the record {often} would be found"
        case _:
            return f"noise that two calls share {often} would be found"


def find_needed_outputs_for_rows(claim: Claim, confidence: float) -> float:
    """Find how many outputs show that rows which are three times too long move the outputs three times as far."""
    needed = 64.0
    while not _shows_long_rows(claim, needed, confidence):
        needed *= 1.25
        if needed > _MOST_OUTPUTS:
            return math.inf
    return needed


def _shows_long_rows(claim: Claim, outputs: float, confidence: float) -> bool:
    if isinstance(claim.profile, GaussianProfile):
        return _find_detectable_mu(claim.profile, int(outputs // 2), confidence) <= _TOO_LONG * claim.profile.mu
    return _is_found_laplace(_TOO_LONG * claim.epsilon, claim.epsilon, outputs, confidence)


def _describe_noise(claim: Claim, outputs: int, confidence: float) -> str | None:
    if claim.epsilon <= 0:
        return "any difference between the collections would be found" if outputs else None
    if isinstance(claim.profile, GaussianProfile):
        mu = _find_detectable_mu(claim.profile, max(1, outputs // 2), confidence)
        times = mu / claim.profile.mu
        return None if math.isinf(mu) else f"Gaussian noise {_round_up(times)} times too small would be found"
    laplace = _search(lambda true: _is_found_laplace(true, claim.epsilon, outputs, confidence), claim.epsilon)
    if math.isinf(laplace):
        return None
    return f"Laplace noise {_round_up(laplace / claim.epsilon)} times too small would be found"


def _is_found_laplace(true: float, claimed: float, outputs: float, confidence: float) -> bool:
    """Whether Laplace noise with a true epsilon is found, which shows it in the outer part of its outputs."""
    # Beyond both clean values lie half of the outputs of each side and half e^-epsilon of the other's.
    return _is_enough(true, claimed, outputs / 2 * (1 + math.exp(-true)) / 2, confidence)


def _is_enough(true: float, claimed: float, guesses: float, confidence: float) -> bool:
    """Whether guesses that are right with odds e^true break a claim that allows the odds e^claimed."""
    chance, miss = float(expit(true)), float(expit(-true))
    up, down = float(log_expit(true) - log_expit(claimed)), float(log_expit(-true) - log_expit(-claimed))
    mean = chance * up + miss * down
    spread = (up - down) * math.sqrt(chance * miss)
    return guesses * mean - _LUCK * spread * math.sqrt(guesses) > find_needed_growth(confidence)


def _search(is_found: Callable[[float], bool], claimed: float) -> float:
    """Find the least epsilon above the claimed one that is found; infinite where none is."""
    low, high = claimed, claimed + 0.05
    while not is_found(high):
        low, high = high, claimed + 2 * (high - claimed)
        if high > claimed + 60:
            return math.inf
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return high


def _describe_count(count: float) -> str:
    digits = 10 ** max(0, math.floor(math.log10(max(count, 1))) - 1)
    return f"{int(count // digits * digits):,}"


def _round_up(value: float) -> str:
    return f"{math.ceil(value * 100) / 100:g}"
