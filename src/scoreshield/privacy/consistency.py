"""Check whether a guarantee from a file can be true: its noise and its budgets must give its promise.

A guarantee states its promise several times: as an epsilon and a delta, as a profile, as noise of a scale for a
sensitivity, and as budgets of parts. An edit of one of them must contradict another. The checks are that the mechanism
allows the adjacency, that the profile is nowhere below that of the stated noise and budgets, and that the promise is
not below the profile. A file does not hold what was really drawn; the tests compare that with the guarantee.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from scoreshield import _validation
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.adjacency import (
    FULL_RANGE,
    GramRadius,
    Identity,
    NullRecord,
    ReleaseShape,
    Replacement,
)
from scoreshield.privacy.anchors import AnchoredLaw
from scoreshield.privacy.draws import state_draws
from scoreshield.privacy.hit_budget import HitBudget
from scoreshield.privacy.levels.cuts import check_increasing
from scoreshield.privacy.levels.tables import LevelChannel
from scoreshield.privacy.mechanisms import MECHANISMS, REGIMES
from scoreshield.privacy.noise import CustomNoise, GaussianNoise, LaplaceNoise, StaircaseNoise
from scoreshield.privacy.noise.custom import count_moved_steps
from scoreshield.privacy.privunit import PrivUnit
from scoreshield.privacy.profiles import (
    CurveProfile,
    GaussianProfile,
    LaplaceProfile,
    Profile,
    PureProfile,
    StepProfile,
)
from scoreshield.privacy.response import SetResponse

if TYPE_CHECKING:
    from scoreshield.privacy.guarantee import Guarantee

#: Room for rounding where budgets are added up, and where calibrations are repeated.
_ROUNDING, _REPEATED = 1e-12, 1e-9
#: What a guarantee states beside its promise: of a batch, of a codebook, of a hit budget, of an index of vectors.
_BATCH_DETAILS = frozenset(
    (
        "queries",
        "names_per_record",
        "levels",
        "cuts",
        "cuts_from",
        "has_bottom",
        "symbols",
        "truth",
        "false_names",
        "epsilon_per_record",
    )
)
_CODEBOOK_DETAILS = frozenset(
    ("source", "fingerprint", "codewords", "code_size", "epsilon_per_record", "true_code_probability")
)
_HITS_DETAILS = frozenset(
    (
        "hits",
        "hit_epsilon",
        "miss_epsilon",
        "null_epsilon",
        "replacement_epsilon",
        "true_name_probability",
        "false_name_probability",
        "cuts",
    )
)
_VECTOR_DETAILS = frozenset(("score_std", "reduction"))
_PRIVUNIT_DETAILS = frozenset(("cap_probability", "cap_height", "shrinkage", "epsilon_per_record"))
_PCA_DETAILS = frozenset(("pca_share", "covariance_sensitivity", "covariance_std"))
_CENTER_DETAILS = {
    "none": frozenset[str](),
    "private": frozenset(("center", "center_share", "center_sensitivity", "center_std")),
    "public": frozenset(("center", "center_fingerprint")),
}
_DISTRIBUTED_DETAILS = frozenset(("release", "snapshot"))
_REDUCTIONS = ("none", "random", "public basis", "pca")


class ImpliedProfile(Protocol):
    """The profile that the stated noise and budgets give. It falls, and it is convex in e^epsilon."""

    def delta_at(self, epsilon: float) -> float: ...


def is_consistent(guarantee: Guarantee) -> bool:
    """Whether the stated noise gives the profile, and the profile the promise."""
    if _DISTRIBUTED_DETAILS & guarantee.details.keys():
        return _fits_distributed(guarantee)
    if {"largest_draws", "changes"} & guarantee.details.keys():
        return _fits_draws(guarantee)
    mechanism = MECHANISMS[guarantee.mechanism]
    law = None if guarantee.noise is None else guarantee.noise.name
    if guarantee.regime not in mechanism.laws or mechanism.laws[guarantee.regime] != law:
        return False
    if not _fits_shape(guarantee) or not _fits_adjacency(guarantee) or not _fits_details(guarantee):
        return False
    pure = guarantee.delta == 0
    if mechanism.is_pure not in (None, pure) or (guarantee.calibration == "pure") != pure:
        return False
    if pure and _has_gaussian_part(guarantee):
        return False
    if guarantee.epsilon < 0 or guarantee.delta_at(guarantee.epsilon) > guarantee.delta:
        return False
    if (
        not _compute_least_sensitivity(guarantee) * (1 - _ROUNDING)
        <= guarantee.sensitivity
        <= guarantee.grid_sensitivity
    ):
        return False
    implied_profile = _derive_profile(guarantee)
    return implied_profile is not None and _covers(guarantee.profile, implied_profile)


def _fits_distributed(guarantee: Guarantee) -> bool:
    """Whether a release in blocks names itself and the state of its collection, beside its other facts."""
    details = {name: value for name, value in guarantee.details.items() if name not in _DISTRIBUTED_DETAILS}
    release, snapshot = (guarantee.details.get(name) for name in ("release", "snapshot"))
    is_named = isinstance(release, str) and len(release) == 32 and set(release) <= set("0123456789abcdef")
    return is_named and _is_hash(snapshot) and is_consistent(replace(guarantee, details=details))


def _fits_draws(guarantee: Guarantee) -> bool:
    """Whether an index whose changes are public states the total of its most drawn record: the draws of one, repeated.

    One draw is private without delta: it has no part that reads all records, such as a private PCA.
    """
    details = dict(guarantee.details)
    if guarantee.regime != "index" or details.pop("changes") != "public":
        return False
    if guarantee.delta > 0 or _has_gaussian_part(guarantee):
        return False
    draws = _validation.check_count(details.pop("largest_draws"), "largest_draws")
    each = _validation.check_epsilon(details.pop("epsilon_per_draw"))
    if guarantee.mechanism == "codebook":
        profile: Profile = SetResponse(
            details["epsilon_per_record"], names=details["codewords"], size=details["code_size"]
        ).profile
    else:
        profile = PrivUnit.calibrate(guarantee.shape[1], details["epsilon_per_record"]).profile
    single = replace(guarantee, epsilon=each, profile=profile, details=details)
    if not isinstance(guarantee.adjacency, Replacement) or not is_consistent(single):
        return False
    total = state_draws(single, draws, guarantee.shape)
    return (guarantee.epsilon, guarantee.profile) == (total.epsilon, total.profile)


def _fits_shape(guarantee: Guarantee) -> bool:
    shape = guarantee.shape
    return len(shape) in REGIMES[guarantee.regime].dimensions and (guarantee.regime != "gram" or shape[0] == shape[1])


def _fits_details(guarantee: Guarantee) -> bool:
    """Whether what is stated beside the promise, for people and for predictions, is that of the same release."""
    details, law = guarantee.details, guarantee.noise
    if math.frexp(guarantee.grid)[0] != 0.5:  # a grid is a power of two
        return False
    match guarantee.regime:
        case "scores" if isinstance(law, LevelChannel):
            return (
                details["levels"] == len(law.inputs)
                and details.get("share") == (law.share if law.share < 1 else None)
                and guarantee.grid == law.step
                and math.isclose(guarantee.scale, law.std, rel_tol=_REPEATED)
            )
        case "scores" if isinstance(law, CustomNoise):
            return _fits_custom(guarantee, law)
        case "scores" if guarantee.mechanism == "anchored":
            return _fits_anchored(guarantee)
        case "top-k":
            return bool(details["selections"] == guarantee.shape[0])
        case "index" if guarantee.mechanism == "codebook":
            return (
                guarantee.scale == guarantee.grid == 1.0
                and guarantee.score_range == FULL_RANGE
                and details.keys() == _CODEBOOK_DETAILS
                and isinstance(details["source"], str)
                and _is_hash(details["fingerprint"])
            )
        case "index":
            return _fits_vectors(guarantee)
        case "hits":
            return guarantee.score_range == FULL_RANGE and details.keys() == _HITS_DETAILS
        case "batch":
            return _fits_batch(guarantee)
    return True


def _fits_custom(guarantee: Guarantee, law: CustomNoise) -> bool:
    """Whether custom noise has the stated grid and scale, and covers the whole range of the scores."""
    return (
        guarantee.grid == law.step
        and guarantee.grid_sensitivity == law.sensitivity
        and count_moved_steps(guarantee.score_range, law.step) <= law.width
        and math.isclose(guarantee.scale, law.std, rel_tol=_REPEATED)
        and guarantee.details.keys() == {"law", "profile_from"}
        and guarantee.details["law"] == law.label
        and guarantee.details["profile_from"] in ("claim", "table")
    )


def _fits_vectors(guarantee: Guarantee) -> bool:
    """Whether an index of vectors states the facts of its reduction and of its center, and no others."""
    details = guarantee.details
    covariance, center = details["reduction"] == "pca", details.get("center", "none")
    names = _VECTOR_DETAILS | _CENTER_DETAILS[center] | (_PCA_DETAILS if covariance else frozenset())
    if guarantee.mechanism == "privunit":
        names |= _PRIVUNIT_DETAILS
    return (
        details.keys() == names
        and details["reduction"] in _REDUCTIONS
        and guarantee.score_range == FULL_RANGE
        and math.isclose(details["score_std"], guarantee.scale, rel_tol=_REPEATED)
        and not (covariance and center == "private")
        and (not covariance or 0 < details["pca_share"] < 1)
        and (center != "private" or _fits_center_share(guarantee))
        and (center != "public" or _is_hash(details["center_fingerprint"]))
    )


def _fits_center_share(guarantee: Guarantee) -> bool:
    """Whether the share of a private center is at most what the vectors leave; a larger promise leaves more."""
    share, left = guarantee.details["center_share"], 1.0
    if guarantee.mechanism == "privunit":
        vectors = guarantee.details["epsilon_per_record"] * _count_moved_rows(guarantee)
        left = 1 - vectors / guarantee.epsilon * (1 - _REPEATED)
    return bool(0 < share < 1 and share <= left)


def _fits_anchored(guarantee: Guarantee) -> bool:
    """Whether anchored windows state their law, and beside it only facts that such a release can have."""
    details = guarantee.details
    law = AnchoredLaw.from_details(details, guarantee.score_range)
    facts = {"k", "tail_shape", "predicted_recall", "reason"}
    return (
        guarantee.grid == law.step
        and guarantee.scale == law.window_width
        and set(law.to_details()) | {"k", "tail_shape"} <= set(details) <= set(law.to_details()) | facts
        and _validation.check_count(details["k"], "k") > 0
        and 4 * law.anchor.rank <= guarantee.shape[-1]
        and isinstance(details["tail_shape"], str)
        and isinstance(details.get("reason", ""), str)
        and 0 <= _validation.check_real(details.get("predicted_recall", 0.0), "predicted_recall") <= 1
    )


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


def _has_gaussian_part(guarantee: Guarantee) -> bool:
    """Whether Gaussian noise on the covariance or on the center stands beside the vectors of an index."""
    details = guarantee.details
    return details.get("reduction") == "pca" or details.get("center") == "private"


def _fits_adjacency(guarantee: Guarantee) -> bool:
    """Whether the release functions make such a release for this adjacency, and its counts are those of some labels."""
    adjacency, regime = guarantee.adjacency, guarantee.regime
    if isinstance(adjacency, GramRadius):
        return regime == "gram"
    if isinstance(adjacency, NullRecord):
        return regime == "hits"
    if regime == "hits" and isinstance(adjacency, Identity) and not adjacency.centroids:
        return False
    rows = count_rows(guarantee)
    if isinstance(adjacency, Identity) and not any(_has_labels(adjacency, count) for count in rows):
        return False
    # All but indexes, responses and Gaussian noise on entries are private where one neighbour moves one score.
    if guarantee.mechanism in ("privunit", "codebook", "set-response") or (
        guarantee.mechanism == "gaussian" and regime != "histogram"
    ):
        return True
    queries = guarantee.shape[0] if regime == "scores" and len(guarantee.shape) == 2 else 1
    return adjacency.bound_sensitivity(ReleaseShape("scores", max(rows), queries=queries)).moved == 1


def count_rows(guarantee: Guarantee) -> tuple[int, ...]:
    """Count the rows (records or centroids) that the release was made of; several numbers if the file allows several.

    A histogram states how many scores it counts: one for each row, or one for each pair of rows.
    """
    match guarantee.regime:
        case "scores":
            return (guarantee.shape[-1],)
        case "top-k":
            return (_validation.check_count(guarantee.details["records"], "records"),)
        case "histogram":
            scores = _validation.check_count(guarantee.details["scores"], "scores")
            of_pairs = (1 + math.isqrt(1 + 8 * scores)) // 2
            alone = math.isclose(guarantee.sensitivity, _compute_least_sensitivity(guarantee), rel_tol=_REPEATED)
            return (scores,) * alone + (of_pairs,) * (not alone or scores == 1)
    return (guarantee.shape[0],)


def _has_labels(adjacency: Identity, rows: int) -> bool:
    """Whether this number of rows can be labelled with these counts."""
    if adjacency.centroids:
        return adjacency.largest == 1 and adjacency.identities == rows
    return adjacency.largest + adjacency.identities - 1 <= rows <= adjacency.largest * adjacency.identities


def _covers(stated: Profile, implied: ImpliedProfile) -> bool:
    """Whether the stated profile is nowhere below the implied one.

    Finitely many points prove it. As functions of e^epsilon, a pure profile and a step are straight until they end, and
    a curve is straight between its knots and constant after the last one. The implied profile is convex, so it lies
    below its chords; it falls, so it stays below a constant. Gaussian and Laplace profiles are convex too, so no points
    decide there: each covers only its own kind, by its one parameter.
    """
    match stated:
        case GaussianProfile(mu):
            return isinstance(implied, GaussianProfile) and mu >= implied.mu
        case LaplaceProfile(epsilon):
            return isinstance(implied, LaplaceProfile) and epsilon >= implied.epsilon
        case PureProfile(epsilon) | StepProfile(epsilon):
            points: tuple[float, ...] = (0.0, epsilon)
        case CurveProfile(losses):
            points = losses
        case _:
            return False
    return all(_is_at_least(stated.delta_at(point), implied.delta_at(point)) for point in points)


def _is_at_least(stated: float, implied: float) -> bool:
    """Whether a stated delta is at least the implied one, up to rounding; 0 is at least 0 only."""
    return implied <= (stated * (1 + _REPEATED) + gaussian.LEAST_DELTA if stated else 0.0)


def _derive_profile(guarantee: Guarantee) -> ImpliedProfile | None:
    """Derive the profile from the stated noise and budgets; None if they contradict each other."""
    match guarantee.regime:
        case "matches":
            return _derive_screening_profile(guarantee)
        case "top-k":
            return _derive_selection_profile(guarantee)
        case "histogram":
            return _derive_histogram_profile(guarantee)
        case "hits":
            return _derive_hits_profile(guarantee)
        case "scores" if guarantee.mechanism == "anchored":
            return _derive_anchored_profile(guarantee)
        case "index" if guarantee.mechanism == "privunit":
            return _derive_privunit_profile(guarantee)
        case "batch":
            return _derive_batch_profile(guarantee)
        case "index" if guarantee.mechanism == "codebook":
            return _derive_codebook_profile(guarantee)
    return _derive_noise_profile(guarantee)


def _derive_histogram_profile(guarantee: Guarantee) -> ImpliedProfile | None:
    """Derive the profile of noisy counts.

    One record moves one score of a query, or n - 1 of the n (n - 1) / 2 scores of all pairs.
    """
    scores, ratio = guarantee.details["scores"], guarantee.sensitivity / guarantee.scale
    moved_scores = guarantee.sensitivity / _compute_least_sensitivity(guarantee)
    pairs = math.isclose(moved_scores * (moved_scores + 1) / 2, scores, rel_tol=_REPEATED)
    if scores < 1 or not (pairs or math.isclose(moved_scores, 1, rel_tol=_REPEATED)):
        return None
    if guarantee.mechanism == "geometric":
        return PureProfile(ratio * (1 - _ROUNDING))
    return GaussianProfile(ratio * (1 - _ROUNDING))


def _derive_hits_profile(guarantee: Guarantee) -> ImpliedProfile | None:
    """Derive the profile of a hit budget from the number of hits, and the epsilons of a hit and of the miss."""
    details = guarantee.details
    check_increasing(details["cuts"], "cuts")
    budget = HitBudget(details["hits"], details["hit_epsilon"], details["miss_epsilon"])
    stated = (
        details["null_epsilon"],
        details["replacement_epsilon"],
        details["true_name_probability"],
        details["false_name_probability"],
    )
    derived = (
        budget.null_epsilon,
        budget.replacement_epsilon,
        budget.true_probability,
        budget.false_probability,
    )
    if stated != derived or guarantee.scale != 1:  # no noise is added
        return None
    is_null = isinstance(guarantee.adjacency, NullRecord)
    return PureProfile((derived[0] if is_null else derived[1]) * (1 - _ROUNDING))


def _derive_screening_profile(guarantee: Guarantee) -> ImpliedProfile | None:
    """Derive the profile of screening from its two budgets; the second one must give the stated staircase noise."""
    details, grid = guarantee.details, guarantee.grid
    screening, refining, low = details["screening_epsilon"], details["refining_epsilon"], details["threshold"]
    high = guarantee.score_range[1]
    has_refinement = guarantee.mechanism == "screen-and-refine"
    if not (
        screening > 0 and refining >= 0 and (refining > 0) == has_refinement and guarantee.score_range[0] <= low < high
    ):
        return None
    if has_refinement:
        width = max(round(high / grid) - round(low / grid), math.ceil((high - low) / grid)) * grid
        if not math.isclose(guarantee.scale, StaircaseNoise.calibrate(refining, width, grid).std, rel_tol=_REPEATED):
            return None
    return PureProfile((screening + refining) * (1 - _ROUNDING))


def _derive_anchored_profile(guarantee: Guarantee) -> ImpliedProfile | None:
    """Derive the profile of windows around a private quantile from its two budgets, which add up to at most epsilon."""
    law = AnchoredLaw.from_details(guarantee.details, guarantee.score_range)
    profile = law.profile
    within = Fraction(law.anchor.epsilon) + Fraction(law.response.epsilon) <= Fraction(guarantee.epsilon)
    # Other cells give another profile: what is stated must not lie above what they give, either.
    same = _covers(profile, guarantee.profile)
    return profile if within and same else None


def _derive_selection_profile(guarantee: Guarantee) -> ImpliedProfile | None:
    details, (selections,) = guarantee.details, guarantee.shape
    each = details["epsilon_for_each"]
    noisy_enough = guarantee.sensitivity / guarantee.scale <= each * (1 + _ROUNDING)
    if not (each > 0 and noisy_enough and details["records"] >= selections):
        return None
    return PureProfile(selections * each * (1 - _ROUNDING))


def _derive_batch_profile(guarantee: Guarantee) -> ImpliedProfile | None:
    """Derive the profile of one symbol per record; the records of an identity share the budget."""
    response, group = _read_response(guarantee), _count_moved_rows(guarantee)
    if group == 1:
        return response.profile
    return PureProfile(response.epsilon * group * (1 - _ROUNDING))


def _read_response(guarantee: Guarantee) -> SetResponse:
    """Make the randomised response of a batch from what its guarantee states."""
    details = guarantee.details
    return SetResponse(
        details["epsilon_per_record"],
        details["queries"],
        details["names_per_record"],
        details["levels"],
        _validation.check_flag(details["has_bottom"], "has_bottom"),
    )


def _fits_batch(guarantee: Guarantee) -> bool:
    """Whether a batch states the number of symbols, the truth and the false names of its response, and its cuts."""
    details, response = guarantee.details, _read_response(guarantee)
    cuts = [_validation.check_real(cut, "cuts") for cut in details["cuts"]]
    stated = (details["truth"], details["false_names"], guarantee.scale)
    implied = (response.truth, response.false_names * guarantee.shape[0], 1.0)
    return (
        guarantee.shape[1] == response.size
        and response.has_bottom == (response.size == 1)
        and details["symbols"] == response.symbols
        and len(cuts) == response.levels
        and all(low < high for low, high in itertools.pairwise(cuts))
        and all(-1 <= cut <= 1 for cut in cuts)
        and details.keys() == _BATCH_DETAILS
        and isinstance(details["cuts_from"], str)
        and guarantee.grid == 1.0
        and guarantee.score_range == FULL_RANGE
        and guarantee.sensitivity == guarantee.grid_sensitivity == _count_moved_rows(guarantee)
        and bool(np.allclose(stated, implied, rtol=_REPEATED, atol=0))
    )


def _derive_privunit_profile(guarantee: Guarantee) -> ImpliedProfile | None:
    """Derive the profile of PrivUnit on each record of an identity, and of Gaussian noise beside it if there is any."""
    details, group = guarantee.details, _count_moved_rows(guarantee)
    maker = PrivUnit.calibrate(guarantee.shape[1], details["epsilon_per_record"])
    stated_values = (
        details["cap_probability"],
        details["cap_height"],
        details["shrinkage"],
        guarantee.scale,
        guarantee.grid,
    )
    if not np.allclose(stated_values, (maker.p, maker.gamma, maker.mean, maker.std, maker.step), rtol=1e-6, atol=0):
        return None
    pure = maker.epsilon * group
    if not _has_gaussian_part(guarantee):
        return maker.profile if group == 1 else PureProfile(pure * (1 - _ROUNDING))
    mu = _compute_mu_beside(guarantee)
    return None if mu is None else _PureBesideGaussian(pure, GaussianProfile(mu))


@dataclass(frozen=True)
class _PureBesideGaussian:
    """The profile of randomised response, the worst mechanism of its pure epsilon, and of Gaussian noise beside it."""

    pure: float
    beside: GaussianProfile

    def delta_at(self, epsilon: float) -> float:
        p = 1 / (1 + math.exp(-self.pure))
        first = _extend_delta(self.beside, epsilon - self.pure)
        # Where a product underflows, delta is still not 0: Gaussian noise is never pure.
        return max(p * first + (1 - p) * self.beside.delta_at(epsilon + self.pure), gaussian.LEAST_DELTA)


def _derive_codebook_profile(guarantee: Guarantee) -> ImpliedProfile | None:
    """Derive the profile of one response per record over all sets of codewords."""
    details, group = guarantee.details, _count_moved_rows(guarantee)
    response = SetResponse(details["epsilon_per_record"], names=details["codewords"], size=details["code_size"])
    if guarantee.shape[1] != response.size:
        return None
    if not math.isclose(details["true_code_probability"], response.truth, rel_tol=_REPEATED):
        return None
    if group == 1:
        return response.profile
    return PureProfile(response.epsilon * group * (1 - _ROUNDING))


def _extend_delta(profile: Profile, epsilon: float) -> float:
    """Compute the delta of a profile at any epsilon, also a negative one."""
    if epsilon >= 0:
        return profile.delta_at(epsilon)
    return -math.expm1(epsilon) + math.exp(epsilon) * profile.delta_at(-epsilon)


def _compute_mu_beside(guarantee: Guarantee) -> float | None:
    """Compute mu of the Gaussian noise beside the vectors: on the covariance or on the center."""
    if guarantee.details.get("center") == "private":
        return _compute_center_mu(guarantee)
    return _compute_covariance_mu(guarantee)


def _compute_covariance_mu(guarantee: Guarantee) -> float | None:
    """Compute mu of the noise on the second moment, which g records of an identity move by up to g sqrt 2."""
    details = guarantee.details
    sensitivity, std = details["covariance_sensitivity"], details["covariance_std"]
    return sensitivity / std if sensitivity >= _count_moved_rows(guarantee) * math.sqrt(2) and std > 0 else None


def _compute_center_mu(guarantee: Guarantee) -> float | None:
    """Compute mu of the noise on the sum of the rows, which g records of an identity move by up to 2 g."""
    details = guarantee.details
    sensitivity, std = details["center_sensitivity"], details["center_std"]
    return sensitivity / std if sensitivity >= 2 * _count_moved_rows(guarantee) and std > 0 else None


@dataclass(frozen=True)
class _LeastCustomProfile:
    """A lower bound on the profile of a table of noise, which another machine computes alike up to rounding."""

    law: CustomNoise

    def delta_at(self, epsilon: float) -> float:
        return self.law.bound_delta(epsilon, is_lower=True)


def _derive_noise_profile(guarantee: Guarantee) -> ImpliedProfile | None:
    """Derive the profile of noise on entries.

    An entry of a Gram matrix is drawn once for two places, with its share of the scale.
    """
    law, scale = guarantee.noise, guarantee.scale
    share = math.sqrt(0.5) if guarantee.regime == "gram" else 1.0
    if law is None:
        return None
    if isinstance(law, LaplaceNoise | StaircaseNoise) and not math.isclose(law.scale, scale, rel_tol=_REPEATED):
        return None
    if isinstance(law, CustomNoise):
        return _LeastCustomProfile(law)
    if not isinstance(law, GaussianNoise):
        return law.profile(guarantee.grid_sensitivity)
    if not math.isclose(law.std, scale * share, rel_tol=_REPEATED):
        return None
    if not math.isclose(guarantee.mu * scale, guarantee.grid_sensitivity, rel_tol=_REPEATED):
        return None
    # Rounding to the grid moves each entry that moves at all by up to a step more.
    on_grid = guarantee.sensitivity + guarantee.grid * math.sqrt(_count_moved_entries(guarantee))
    mu = on_grid / scale
    if _has_gaussian_part(guarantee):
        beside = _compute_mu_beside(guarantee)
        if beside is None:
            return None
        mu = math.hypot(mu, beside)
    elif not math.isclose(on_grid, guarantee.grid_sensitivity, rel_tol=_REPEATED):
        return None
    return GaussianProfile(mu * (1 - _ROUNDING))


def _count_moved_entries(guarantee: Guarantee) -> int:
    """Count the released entries that one neighbour can move."""
    match guarantee.regime:
        case "index":
            return _count_moved_rows(guarantee) * guarantee.shape[1]
        case "scores" if len(guarantee.shape) == 2:
            return _count_moved_rows(guarantee) * guarantee.shape[0]
    return guarantee.adjacency.sensitivity(guarantee.regime, guarantee.shape[-1]).moved


def _count_moved_rows(guarantee: Guarantee) -> int:
    """Count the released rows that one neighbour can move."""
    return guarantee.adjacency.largest if isinstance(guarantee.adjacency, Identity) else 1


def _compute_least_sensitivity(guarantee: Guarantee) -> float:
    """Compute a lower bound on how far one neighbour can move the released object."""
    low, high = guarantee.score_range
    match guarantee.regime:
        case "scores" if len(guarantee.shape) == 2:
            # The spectral norm of the queries is at least 1; only the queries themselves say how much more.
            return math.sqrt(_count_moved_rows(guarantee)) * min((high - low) * math.sqrt(guarantee.shape[0]), 2.0)
        case "scores" | "row" | "gram":
            count = guarantee.shape[-1]
            return guarantee.adjacency.sensitivity(guarantee.regime, count, score_range=(low, high)).l2
        case "top-k":
            return high - low
        case "histogram":
            return 2.0 if guarantee.calibration == "pure" else math.sqrt(2)
        case "index":
            return 2 * math.sqrt(_count_moved_rows(guarantee))
    return 1.0
