"""How noisy the pairwise scores of an index are, and how many components serve them best; from public facts alone.

A pairwise score is the product of two private vectors of r components. It should distinguish equal records (mean 1)
from unrelated ones (mean 0), so the sum of the two variances measures it. Noise adds up over the components, and a
random subspace of r components has an error of 1 / r itself, so there is a best r. docs/index-release.md derives the
variances.
"""

from __future__ import annotations

import math
import warnings

from scoreshield._formatting import format_number
from scoreshield._validation import check_epsilon, validate, whole_from
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.privunit import PrivUnit

#: Pairs have a warning where their variance is this many times the least possible.
_NOTABLE = 2.0


@validate(epsilon=check_epsilon, dimension=whole_from(2))
def pair_components(epsilon: float, dimension: int) -> int:
    """Compute the best number of components of a random subspace for pairwise scores, from public facts alone.

    A score of two private vectors should distinguish equal records from unrelated ones: of mean 1 or 0, with variances
    that are public. This is the number of components r that minimises the sum of the two; docs/index-release.md.

    Args:
        epsilon: What PrivUnit spends on each record.
        dimension: The dimension of the records.
    """
    best, least = 2, math.inf
    for r in range(2, dimension + 1):
        loss = _sum_unit_variances(epsilon, r)
        if loss < least:
            best, least = r, loss
        elif r > 2 * best:
            break
    return best


def _sum_unit_variances(epsilon: float, r: int) -> float:
    """The variance of a score of two equal records plus that of two unrelated ones, by PrivUnit."""
    maker = PrivUnit.calibrate(r, epsilon)
    along = maker.second_moment
    unrelated, equal = 1 / r, along**2 + (1 - along) ** 2 / (r - 1)
    return (unrelated + equal) / maker.mean**4 - 1


def choose_gaussian_components(scale: float, dimension: int) -> int:
    """Find the r that minimises the two variances under Gaussian noise: their sum is 1/r + 4 s^2 + 2 r s^4."""
    return min(max(2, round(min(1 / (math.sqrt(2) * scale**2), dimension))), dimension)


def _sum_gaussian_variances(scale: float, r: int) -> float:
    return 1 / r + 4 * scale**2 + 2 * r * scale**4


def warn_of_noisy_pairs(guarantee: Guarantee, dimension: int) -> None:
    """Warn where the pairwise scores of an index have twice the least variance that its budget allows, or more.

    Args:
        guarantee: The guarantee of the index.
        dimension: The dimension of the records.
    """
    r = guarantee.shape[1]
    if guarantee.mechanism == "gaussian":
        best = choose_gaussian_components(guarantee.scale, dimension)
        variance, least = (_sum_gaussian_variances(guarantee.scale, count) for count in (r, best))
    elif guarantee.mechanism == "privunit":
        spend = float(guarantee.details["epsilon_per_record"])
        best = pair_components(spend, dimension)
        variance, least = (_sum_unit_variances(spend, count) for count in (r, best))
    else:
        return
    if variance < _NOTABLE * least:
        return
    warnings.warn(
        f"Pairwise scores of this index are mostly noise: with {r} components their variance is "
        f"{format_number(variance / least)} times that of {best} components at the same budget. For pairs, make the "
        f'index with use="pairs", or with fewer components.',
        stacklevel=4,
    )
