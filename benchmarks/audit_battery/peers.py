"""Mechanisms of OpenDP and diffprivlib, as they are documented: each releases scores, counts or bits of one query.

A mechanism of these libraries is honest here unless a leak was measured. `measure_low_bits` looks for the known leak of
noise that is added as a float (Mironov 2012): a score of 0 keeps low bits that a score of 1 rounds away. Haney et al.
2022 published it for diffprivlib and for an older OpenDP. It is still in diffprivlib 0.6.6, and not in OpenDP 0.16.

    python -m audit_battery.peers     measures all of them, in the folder `benchmarks`

The libraries are the extra `peers`; this was written for OpenDP 0.16 and diffprivlib 0.6.6. `MISSING` names those that
are not installed. Their cases are left out.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from audit_battery.attacks import ZERO, bound_rate, count_low_bits
from audit_battery.cases import (
    APPROXIMATE,
    BATCH,
    COUNTED,
    DELTA,
    EPSILON,
    PURE,
    QUERY,
    RECORDS,
    Array,
    Case,
    count,
    score,
)
from scoreshield.audit import Claim

PEERS: list[Case] = []
MISSING: list[str] = []
INSTALL = "pip install 'scoreshield[peers]'"

#: The mechanisms that leak, with the share of outputs that are no multiple of 2^-53 if the score is 0. If it is 1, none
#: of 50,000 outputs was one, and none can be: 1 plus noise is rounded to such a multiple. See the command above.
KNOWN_LEAKS = {
    "diffprivlib-laplace": 0.095,
    "diffprivlib-laplace-truncated": 0.095,
    "diffprivlib-laplace-folded": 0.095,
    "diffprivlib-laplace-bounded-domain": 0.243,
    "diffprivlib-laplace-bounded-noise": 0.094,
    "diffprivlib-staircase": 0.174,
    "diffprivlib-gaussian": 0.027,
    "diffprivlib-gaussian-analytic": 0.036,
}


def load_mechanisms() -> types.ModuleType:
    """Import `diffprivlib.mechanisms` without the models of that library.

    diffprivlib 0.6 imports names that scikit-learn 1.8 removed. Its models need them; its mechanisms do not.
    """
    spec = importlib.util.find_spec("diffprivlib")
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError("No module named 'diffprivlib'", name="diffprivlib")
    if "diffprivlib" not in sys.modules:
        package = types.ModuleType("diffprivlib")
        package.__path__ = list(spec.submodule_search_locations)
        sys.modules["diffprivlib"] = package
    return importlib.import_module("diffprivlib.mechanisms")


def _add(name: str, release: Callable[..., Any], claim: Claim = PURE, query: Array = QUERY, note: str = "") -> None:
    source, rate = name.partition("-")[0], KNOWN_LEAKS.get(name)
    leaks = rate is not None
    fault = "Low bits of the float reveal the score." if leaks else ""
    leak = f"no multiple of 2^-53: {rate:.1%} of outputs at score 0, none of 50,000 at score 1" if leaks else ""
    PEERS.append(Case(name, release, claim, query, source, not leaks, fault, leaks, note, leak))


def _release_scores(randomise: Callable[[float], float]) -> Callable[..., Array]:
    """Make a release that calls a mechanism for one number on each score."""

    def release(rows: Array, query: Any) -> Array:
        return np.array([randomise(value) for value in score(rows, query).tolist()])

    return release


def _release_count(randomise: Callable[[int], int]) -> Callable[..., int]:
    def release(rows: Array, query: Any) -> int:
        return int(randomise(int(count(rows, [query])[0])))

    return release


def _release_bits(randomise: Callable[[bool], bool]) -> Callable[..., Array]:
    def release(rows: Array, query: Any) -> Array:
        bits = (score(rows, query) > COUNTED).tolist()
        return np.array([float(randomise(bit)) for bit in bits])

    return release


# ---- diffprivlib.


def _add_diffprivlib() -> None:
    m = load_mechanisms()
    pure = {"epsilon": EPSILON, "sensitivity": 2.0}
    inside = {"lower": -1.0, "upper": 1.0}
    counts = {"epsilon": EPSILON, "sensitivity": 1}
    laplace = {
        "laplace": m.Laplace(**pure),
        "laplace-truncated": m.LaplaceTruncated(**pure, **inside),
        "laplace-folded": m.LaplaceFolded(**pure, **inside),
        "laplace-bounded-domain": m.LaplaceBoundedDomain(**pure, **inside),
        "staircase": m.Staircase(**pure),
        "snapping": m.Snapping(**pure, **inside),
    }
    for name, mechanism in laplace.items():
        _add(f"diffprivlib-{name}", _release_scores(mechanism.randomise))
    gaussian = {
        "laplace-bounded-noise": m.LaplaceBoundedNoise(**pure, delta=DELTA),
        "gaussian": m.Gaussian(**pure, delta=DELTA),
        "gaussian-analytic": m.GaussianAnalytic(**pure, delta=DELTA),
    }
    for name, mechanism in gaussian.items():
        _add(f"diffprivlib-{name}", _release_scores(mechanism.randomise), APPROXIMATE)
    whole = {
        "geometric": m.Geometric(**counts),
        "geometric-truncated": m.GeometricTruncated(**counts, lower=0, upper=8),
        "geometric-folded": m.GeometricFolded(**counts, lower=0, upper=8),
    }
    for name, mechanism in whole.items():
        _add(f"diffprivlib-{name}", _release_count(mechanism.randomise))
    discrete = m.GaussianDiscrete(**counts, delta=DELTA)
    _add("diffprivlib-gaussian-discrete", _release_count(discrete.randomise), APPROXIMATE)
    binary = m.Binary(epsilon=EPSILON, value0="no", value1="yes")
    _add("diffprivlib-binary", _release_bits(lambda bit: binary.randomise("yes" if bit else "no") == "yes"))

    def select(rows: Array, query: Any, *, mechanism: type) -> int:
        utility = count(rows, query).tolist()
        return int(mechanism(epsilon=EPSILON, sensitivity=1, utility=utility).randomise())

    _add("diffprivlib-exponential", lambda rows, query: select(rows, query, mechanism=m.Exponential), query=BATCH)
    _add(
        "diffprivlib-permute-and-flip", lambda rows, query: select(rows, query, mechanism=m.PermuteAndFlip), query=BATCH
    )


# ---- OpenDP.


def _add_opendp() -> None:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    number, whole = dp.atom_domain(T=float, nan=False), dp.atom_domain(T=int)

    def release_vector(measurement: Any) -> Callable[..., Array]:
        return lambda rows, query: np.array(measurement(score(rows, query).tolist()))

    scores = dp.vector_domain(number), dp.l1_distance(T=float)
    _add("opendp-laplace-float", release_vector(dp.m.make_laplace(*scores, scale=2 / EPSILON)))
    squared = dp.vector_domain(number), dp.l2_distance(T=float)

    def make_gaussian(scale: float) -> Any:
        return dp.c.make_fix_delta(dp.c.make_zCDP_to_approxDP(dp.m.make_gaussian(*squared, scale=scale)), DELTA)

    sigma = dp.binary_search_param(make_gaussian, d_in=2.0, d_out=(EPSILON, DELTA))
    gaussian = dp.m.make_gaussian(*squared, scale=sigma)
    _add("opendp-gaussian-float", release_vector(gaussian), APPROXIMATE, note="its conversion from zCDP is not tight")
    one_count = whole, dp.absolute_distance(T=int)
    _add("opendp-laplace-integer", _release_count(dp.m.make_laplace(*one_count, scale=1 / EPSILON)))
    bounded = dp.m.make_geometric(*one_count, scale=1 / EPSILON, bounds=(0, 8))
    _add("opendp-geometric", _release_count(bounded))
    kept = 1 / (1 + math.exp(-EPSILON))
    _add("opendp-randomized-response-bool", _release_bits(dp.m.make_randomized_response_bool(prob=kept)))
    categories = [0, 1, 2, 3]
    respond = dp.m.make_randomized_response(categories, prob=math.exp(EPSILON) / (math.exp(EPSILON) + 3))

    def release_categories(rows: Array, query: Any) -> Array:
        places = np.minimum(((score(rows, query) + 1) * 2).astype(int), 3).tolist()
        return np.array([float(respond(place)) for place in places])

    _add("opendp-randomized-response", release_categories)
    # Counts of a batch rise and fall, so the scale is twice the sensitivity over epsilon.
    counts = dp.vector_domain(whole), dp.linf_distance(T=int)
    noisy_max = dp.m.make_noisy_max(*counts, dp.max_divergence(), scale=2 / EPSILON)
    if noisy_max.map(1) > EPSILON * (1 + 1e-9):
        raise RuntimeError("The noisy max of OpenDP has another scale than expected.")
    _add("opendp-noisy-max", lambda rows, query: int(noisy_max(count(rows, query).tolist())), query=BATCH)


for _name, _add_library in (("diffprivlib", _add_diffprivlib), ("opendp", _add_opendp)):
    if importlib.util.find_spec(_name) is None:
        MISSING.append(_name)
    else:
        _add_library()


# ---- The measurement.


def measure_low_bits(case: Case, releases: int = 100_000, error: float = 1e-4) -> tuple[float, int, float, float]:
    """Measure how well the lowest set bit of an output distinguishes a score of 0 from a score of 1.

    Half of the releases choose the bit. The other half counts.

    Args:
        case: A case that releases one number per record.
        releases: How many outputs of each score.
        error: The error of each bound.

    Returns:
        A lower bound on epsilon, the exponent e of the event "the output is no multiple of 2^e", and the event's rates
        for a score of 0 and for a score of 1.
    """
    half = releases // 2
    zero, one = (_draw_low_bits(case, rows[0], releases) for rows in ZERO)
    ratios = {
        float(cut): (zero[:half] >= cut).sum() / ((one[:half] >= cut).sum() + 1)
        for cut in np.unique(zero[:half])
        if (zero[:half] >= cut).sum() > 30
    }
    cut = max(ratios, key=ratios.__getitem__)
    hits = [int((side[half:] >= cut).sum()) for side in (zero, one)]
    low, high = bound_rate(hits[0], half, error)[0], bound_rate(hits[1], half, error)[1]
    return math.log(low / high) if low > 0 else 0.0, 1 - int(cut), hits[0] / half, hits[1] / half


def _draw_low_bits(case: Case, record: Array, releases: int) -> Array:
    """Draw outputs for one record. All records are equal, so that each call gives as many outputs as records."""
    rows, bits = np.tile(record, (RECORDS, 1)), []
    while len(bits) < releases:
        bits += [count_low_bits([output]) for output in case.release(rows, query=case.query)]
    return np.array(bits[:releases])


def main() -> None:
    """Print the measured leak of each mechanism that returns floats."""
    for case in PEERS:
        output = case.release(ZERO[0], query=case.query)
        if isinstance(output, np.ndarray) and not np.array_equal(output, np.rint(output)):
            epsilon, exponent, zero, one = measure_low_bits(case)
            print(f"{case.name:36} epsilon at least {epsilon:6.2f}: no multiple of 2^{exponent}: {zero:.4f} {one:.4f}")


if __name__ == "__main__":
    main()
