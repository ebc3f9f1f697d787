"""Published faults of differentially private software, each as one release of a collection.

Each docstring says in its first line what is wrong, and then where it was published or what the right form is. A
parameter `fixed` gives the right form where that is simple. References:

- Mironov 2012: On significance of the least significant bits for differential privacy. CCS.
- Lyu, Su & Li 2017: Understanding the sparse vector technique for differential privacy. PVLDB 10(6). Its algorithms
  3 to 6 are those of Roth 2011 (lecture notes), Lee & Clifton 2014 (KDD), Stoddard, Chen & Machanavajjhala 2014
  (CoRR) and Chen, Xiao, Zhang & Xu 2015 (KDD).
- Ding, Wang, Wang, Zhang & Kifer 2018: Detecting violations of differential privacy (StatDP). CCS.
- Bichsel, Steffen, Bogunovic & Vechev 2021: DP-Sniper. IEEE S&P.
- Jin, McMurtry, Rubinstein & Ohrimenko 2022: Are we there yet? Timing and floating-point attacks on differential
  privacy systems. IEEE S&P.
- Casacuberta, Shoemate, Vadhan & Wagaman 2022: Widespread underestimation of sensitivity in differentially private
  libraries and how to fix it. CCS.
- Haney, Desfontaines, Hartman, Shrestha & Hay 2022: Precision-based attacks and interval refining. arXiv 2207.13793.
- Tramèr, Terzis, Steinke, Song, Jagielski & Carlini 2022: Debugging differential privacy. arXiv 2202.12219.
- Lokna, Paradis, Dimitrov & Vechev 2023: Group and attack: auditing differential privacy. CCS.
- Garfinkel & Leclerc 2020: Randomness concerns when deploying differential privacy. WPES.
- Gadotti, Houssiau, Rocher, Livshits & de Montjoye 2019: When the signal is in the noise. USENIX Security.
- Holohan, Antonatos, Braghin & Mac Aonghusa 2020: The bounded Laplace mechanism. J. Privacy and Confidentiality 10(1).
- Nissim, Raskhodnikova & Smith 2007: Smooth sensitivity and sampling in private data analysis. STOC.
- Korolova, Kenthapadi, Mishra & Ntoulas 2009: Releasing search queries and clicks privately. WWW.
- Ding, Wang, Zhang & Kifer 2019: Free gap information from the sparse vector and noisy max mechanisms. PVLDB 13(3).
- Andrew, Thakkar, McMahan & Ramaswamy 2021: Differentially private learning with adaptive clipping. NeurIPS.
- Dwork & Roth 2014: The algorithmic foundations of differential privacy.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from typing import Any

import numpy as np

import scoreshield as ss
from audit_battery.cases import (
    APPROXIMATE,
    BATCH,
    COUNTED,
    DELTA,
    EPSILON,
    GENERATOR,
    SCALE,
    SIGMA,
    Array,
    Case,
    add_case,
    count,
    draw_laplace,
    draw_normal,
    round_to_grid,
    score,
    score_batch,
    shorten,
)
from scoreshield.audit import Claim
from scoreshield.privacy.profiles import GaussianProfile

FAULTS: list[Case] = []

#: The public threshold of the sparse vector on counts, and after how many answers "above" it stops.
THRESHOLD, ABOVE = 1.0, 3
#: Counts below this are suppressed.
SMALL = 3
#: The half width of the noise that is cut off: three scales, or three standard deviations.
LAPLACE_BOUND, GAUSSIAN_BOUND = 3 * SCALE, 3 * SIGMA
#: How often an answer is clean.
CLEAN_SHARE = 0.01
#: The delta of the noise whose claim leaves it out.
IGNORED_DELTA = 0.01
IGNORED_SIGMA = float(ss.calibrate(EPSILON, IGNORED_DELTA, 2.0))
#: Four queries that differ little: each has a cosine of 0.89 with the first axis.
CLOSE_QUERIES = (2 * BATCH[0] + BATCH[1:5]) / math.sqrt(5)
NOT_ASKED = -1.0
#: The claim of Gaussian noise as a whole, not of one epsilon and delta.
CURVE = Claim(EPSILON, DELTA, profile=GaussianProfile(2.0 / SIGMA))

LYU = "Lyu, Su & Li 2017, algorithm {}"


# ---- The sparse vector technique.


def _compare(
    values: Array, threshold: float, threshold_scale: float, value_scale: float, limit: float
) -> tuple[Array, Array]:
    """Compare noisy values with one noisy threshold until `limit` of them are above it.

    Returns:
        One answer per value (1 above, 0 below, -1 not asked), and the noisy values.
    """
    bar = threshold + draw_laplace(threshold_scale)
    noisy = values + (draw_laplace(value_scale, len(values)) if value_scale else 0.0)
    is_above = noisy >= bar
    answers = is_above.astype(np.float64)
    places = np.flatnonzero(is_above)
    if len(places) >= limit:
        answers[places[int(limit) - 1] + 1 :] = NOT_ASKED
    return answers, noisy


def _compare_correctly(values: Array, threshold: float, sensitivity: float, limit: int) -> Array:
    """Algorithm 1 of Lyu, Su & Li 2017: half of epsilon for the threshold, half for `limit` answers "above"."""
    half = EPSILON / 2
    return _compare(values, threshold, sensitivity / half, 2 * limit * sensitivity / half, limit)[0]


@add_case(FAULTS, LYU.format(3), query=BATCH, note="the informed test needs the pattern and the value")
def report_compared_value(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """The sparse vector returns the noisy value that it compared, so its answers reveal the noisy threshold.

    From the lecture notes of Roth 2011, whose noise is also half of what counts need that rise and fall. The right
    form returns "above" or "below" only, or a value with fresh noise.
    """
    counts, half = count(rows, query), EPSILON / 2
    if fixed:
        return np.pad(_compare_correctly(counts, THRESHOLD, 1.0, 1), (0, len(counts)))
    answers, noisy = _compare(counts, THRESHOLD, 1 / half, 1 / half, 1)
    return np.concatenate([answers, np.where(answers == 1, round_to_grid(noisy), 0.0)])


@add_case(
    FAULTS,
    LYU.format(4),
    query=BATCH,
    note="shows where some counts rise while others fall",
)
def ignore_number_of_answers(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """The noise of the sparse vector does not grow with the number of answers "above".

    From Lee & Clifton 2014. For counts that rise and fall, c answers cost (1 + 6 c) / 4 times epsilon.
    """
    counts = count(rows, query)
    if fixed:
        return _compare_correctly(counts, THRESHOLD, 1.0, ABOVE)
    return _compare(counts, THRESHOLD, 4 / EPSILON, 4 / (3 * EPSILON), ABOVE)[0]


@add_case(
    FAULTS,
    LYU.format(5),
    query=BATCH,
    note="shows where a record leaves one count for another",
)
def compare_clean_counts(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """The sparse vector adds noise to the threshold only, and compares clean counts with it.

    From Stoddard, Chen & Machanavajjhala 2014. Two counts that change places give answers that the neighbour cannot.
    """
    counts = count(rows, query)
    if fixed:
        return _compare_correctly(counts, 0.5, 1.0, len(counts))
    return _compare(counts, 0.5, 2 / EPSILON, 0.0, math.inf)[0]


@add_case(FAULTS, LYU.format(5))
def compare_clean_scores(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """The sparse vector over records adds noise to the threshold only, so the order of the scores is clean.

    The scores of the records take the place of the counts of Stoddard, Chen & Machanavajjhala 2014.
    """
    scores = score(rows, query)
    if fixed:
        return _compare_correctly(scores, 0.0, 2.0, len(scores))
    return _compare(scores, 0.0, 2 * SCALE, 0.0, math.inf)[0]


@add_case(
    FAULTS,
    LYU.format(6),
    query=BATCH,
    note="shows where some counts rise while others fall",
)
def answer_without_limit(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """The sparse vector never stops, and its noise is for one answer "above".

    From Chen, Xiao, Zhang & Xu 2015. The loss grows with the number of queries.
    """
    counts = count(rows, query)
    if fixed:
        return _compare_correctly(counts, THRESHOLD, 1.0, len(counts))
    return _compare(counts, THRESHOLD, 2 / EPSILON, 2 / EPSILON, math.inf)[0]


# ---- Selections.


@add_case(
    FAULTS,
    "Ding et al. 2018, noisy max",
    query=BATCH,
    note="shows where all counts rise",
)
def report_max_value(rows: Array, query: Any, *, fixed: bool = False) -> Any:
    """Noisy max returns the largest noisy count in place of its position.

    All counts may move at once, and the noise is for one of them. The position alone is private.
    """
    noisy = count(rows, query) + draw_laplace(2 / EPSILON, len(query))
    return int(noisy.argmax()) if fixed else float(round_to_grid(noisy.max()))


@add_case(FAULTS, "Ding, Wang, Zhang & Kifer 2019, with the wrong gap", query=BATCH)
def report_clean_gap(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """Noisy max returns the gap between the two largest clean counts.

    The gap between the two largest noisy counts is free.
    """
    counts = count(rows, query)
    noisy = counts + draw_laplace(2 / EPSILON, len(counts))
    first, second = np.sort(noisy if fixed else counts)[[-1, -2]]
    return np.array([noisy.argmax(), round_to_grid(first - second)])


@add_case(
    FAULTS,
    "Dwork & Roth 2014, section 3.4",
    query=BATCH[:3],
    note="shows where one count rises while the others fall",
)
def select_without_factor_two(rows: Array, query: Any, *, fixed: bool = False) -> int:
    """The exponential mechanism leaves out the factor 2, though counts move in both directions.

    The exponent is epsilon u / (2 sensitivity); without the 2 it is private only where all utilities move one way.
    """
    weights = np.exp(count(rows, query) * (EPSILON / 2 if fixed else EPSILON))
    return int(np.searchsorted(np.cumsum(weights / weights.sum())[:-1], GENERATOR.random(), side="right"))


@add_case(FAULTS, "Dwork & Roth 2014, section 3.3 (noisy max)")
def preselect_by_score(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """The two best records are selected by their clean scores; only then noise is added."""
    scores = score(rows, query)
    noisy = round_to_grid(scores + draw_laplace(SCALE, len(scores)))
    best = np.argsort(-(noisy if fixed else scores), kind="stable")[:2]
    output = np.zeros(len(scores))
    output[best] = noisy[best]
    return output


@add_case(FAULTS, "Dwork & Roth 2014, section 3.3 (noisy max)")
def order_by_score(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """Noisy scores are listed in the order of the clean ones."""
    scores = score(rows, query)
    noisy = round_to_grid(scores + draw_laplace(SCALE, len(scores)))
    order = np.argsort(-(noisy if fixed else scores), kind="stable")
    return np.stack([order.astype(np.float64), noisy[order]], axis=1)


@add_case(FAULTS, "Dwork & Roth 2014, proposition 2.1 (post-processing reads no data)")
def break_ties_by_score(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """Noisy scores are clipped to [-1, 1], and clean scores break the ties at the ends."""
    scores = score(rows, query)
    noisy = np.clip(round_to_grid(scores + draw_laplace(SCALE, len(scores))), -1.0, 1.0)
    return np.lexsort((GENERATOR.random(len(scores)) if fixed else -scores, -noisy)).astype(np.float64)


# ---- Sensitivity and composition.


@add_case(FAULTS, "Dwork & Roth 2014, theorem 3.6", query=BATCH[:4])
def scale_batch_by_l2(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """Laplace noise on a batch of queries is scaled to the L2 sensitivity; it needs the L1 sensitivity."""
    scores = score_batch(rows, query)
    l2 = 2.0 * float(np.linalg.norm(np.asarray(query), 2))
    sensitivity = l2 * math.sqrt(len(query)) if fixed else l2
    return round_to_grid(scores + draw_laplace(sensitivity / EPSILON, scores.shape))


@add_case(FAULTS, "Dwork & Roth 2014, theorem 3.6", query=None)
def scale_gram_by_l2(rows: Array, *, fixed: bool = False) -> Array:
    """Laplace noise on all pairwise similarities is scaled to the L2 sensitivity; it needs the L1 sensitivity."""
    unit, n = shorten(rows), len(rows)
    sensitivity = 2.0 * (n - 1 if fixed else math.sqrt(n - 1))
    noise = np.triu(draw_laplace(sensitivity / EPSILON, (n, n)), 1)
    similarity = unit @ unit.T
    np.fill_diagonal(similarity, 1.0)
    return round_to_grid(similarity + noise + noise.T)


@add_case(FAULTS, "Dwork & Roth 2014, theorem 3.16 (composition)", query=CLOSE_QUERIES)
def spend_epsilon_on_each_query(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """Each query of a batch spends the whole epsilon."""
    scores = score_batch(rows, query)
    return round_to_grid(scores + draw_laplace(SCALE * (len(query) if fixed else 1), scores.shape))


@add_case(FAULTS, "Dwork & Roth 2014, section 2.3 (neighbours), section 3.3 (histograms)")
def count_for_added_records(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """Counts above and below a threshold have the noise for an added record; a replaced one moves both."""
    above = int(count(rows, [query])[0])
    noise = draw_laplace((2 if fixed else 1) / EPSILON, 2)
    return round_to_grid(np.array([above, len(rows) - above]) + noise)


@add_case(
    FAULTS,
    "Casacuberta et al. 2022, integer overflow",
    note="shows where one, two, five or six of the other seven records equal the query",
)
def overflow_sum(rows: Array, query: Any, *, fixed: bool = False) -> float:
    """Scores in 64ths are summed as 8-bit integers, which overflow: the sum then moves by up to 4, not 2."""
    parts = np.rint(score(rows, query) * 64)
    total = float(parts.sum() if fixed else parts.astype(np.int8).sum(dtype=np.int8))
    return float(round_to_grid(total / 64 + draw_laplace(SCALE)))


@add_case(FAULTS, "Tramèr et al. 2022")
def divide_noise_twice(rows: Array, query: Any, *, fixed: bool = False) -> float:
    """The sensitivity of a mean is divided by the number of records twice.

    The audit of Tramèr et al. 2022 found noise that was too small by the size of the batch.
    """
    n = len(rows)
    sensitivity = 2.0 / n if fixed else 2.0 / n**2
    return float(round_to_grid(score(rows, query).mean() + draw_laplace(sensitivity / EPSILON)))


@add_case(FAULTS, "Dwork & Roth 2014, section 3.3 (the sensitivity is that of the mean over the matches)")
def divide_by_matches(rows: Array, query: Any, *, fixed: bool = False) -> float:
    """A mean over the matching records has the noise for a mean over all records."""
    scores, n = score(rows, query), len(rows)
    matching = scores[scores > COUNTED]
    if fixed:  # a noisy sum and a noisy number, each with half of epsilon
        total, number = np.array([matching.sum(), len(matching)]) + draw_laplace(2 / EPSILON, 2)
        return float(round_to_grid(total / max(number, 1.0)))
    mean = float(matching.mean()) if len(matching) else 0.0
    return float(round_to_grid(mean + draw_laplace(2.0 / (n * EPSILON))))


@add_case(FAULTS, "Dwork & Roth 2014, section 3.3", note="shows only on records that are longer than 1")
def skip_clamping(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """Rows are neither normalised nor clamped, so a long record moves its score by more than 2."""
    scores = score(rows, query) if fixed else np.asarray(rows, dtype=np.float64) @ np.asarray(query)
    return round_to_grid(scores + draw_laplace(SCALE, len(scores)))


# ---- The generator.


@add_case(FAULTS, "Garfinkel & Leclerc 2020")
def seed_with_16_bits(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """Each release has a fresh generator with a seed of 16 bits, so only 65,536 outputs are possible."""
    return add_seeded_noise(score(rows, query), secrets.randbits(128 if fixed else 16))


@add_case(
    FAULTS,
    "Garfinkel & Leclerc 2020",
    note="outputs of one collection repeat after about 80,000 releases; the informed test searches 2^32 seeds",
)
def seed_with_32_bits(rows: Array, query: Any) -> Array:
    """Each release has a fresh generator with a seed of 32 bits, which can all be tried."""
    return add_seeded_noise(score(rows, query), secrets.randbits(32))


@add_case(FAULTS, "Garfinkel & Leclerc 2020")
def seed_with_clock(rows: Array, query: Any) -> Array:
    """Each release has a fresh generator whose seed is the time in seconds."""
    return add_seeded_noise(score(rows, query), int(time.time()))


def add_seeded_noise(scores: Array, seed: int) -> Array:
    """Add Laplace noise from a generator with this seed."""
    return round_to_grid(scores + np.random.default_rng(seed).laplace(0.0, SCALE, len(scores)))


_NOISE_OF_QUERY: dict[bytes, Array] = {}


@add_case(FAULTS, "Gadotti et al. 2019 (noise that depends on the query)")
def cache_noise_of_query(rows: Array, query: Any) -> Array:
    """The noise of a query is drawn once and used for every collection, so two releases differ by clean scores."""
    scores, key = score(rows, query), np.asarray(query, dtype=np.float64).tobytes()
    noise = _NOISE_OF_QUERY.get(key)
    if noise is None or len(noise) < len(scores):
        noise = _NOISE_OF_QUERY[key] = draw_laplace(SCALE, max(64, len(scores)))
    return round_to_grid(scores + noise[: len(scores)])


_KEY = secrets.token_bytes(16)


@add_case(FAULTS, "Gadotti et al. 2019 (noise that depends on the data)")
def hash_collection(rows: Array, query: Any) -> Array:
    """The noise comes from a hash of the collection, so every collection has one output."""
    digest = hashlib.sha256(_KEY + np.asarray(rows).tobytes()).digest()
    return add_seeded_noise(score(rows, query), int.from_bytes(digest[:16], "little"))


@add_case(
    FAULTS,
    "Dwork & Roth 2014, theorem 3.6 (independent noise)",
    query=BATCH[:2],
    note="shows where a record moves from one query to the other",
)
def share_noise_between_queries(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """Two queries get the same noise, so the difference of their scores is clean."""
    scores = score_batch(rows, query)
    n, m = scores.shape
    return round_to_grid(scores + draw_laplace(SCALE * m, (n, m if fixed else 1)))


@add_case(FAULTS, "Dwork & Roth 2014, theorem 3.6 (independent noise)")
def share_noise_between_records(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """One number is drawn and added to the scores of all records, so their differences are clean."""
    scores = score(rows, query)
    return round_to_grid(scores + draw_laplace(SCALE, len(scores) if fixed else None))


@add_case(FAULTS, "Dwork & Roth 2014, theorem 3.6", note="shows only in the last place")
def skip_last_record(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """The loop that adds noise ends one record too early."""
    scores = score(rows, query)
    noise = draw_laplace(SCALE, len(scores))
    if not fixed:
        noise[-1] = 0.0
    return round_to_grid(scores + noise)


# ---- Numbers of a computer.


@add_case(
    FAULTS,
    "Mironov 2012; Haney et al. 2022",
    note="shows between scores of 0 and 1",
)
def add_float_laplace(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """Laplace noise is added as a float: a score of 0 keeps low bits that a score of 1 rounds away."""
    scores = score(rows, query)
    noisy = scores + draw_laplace(SCALE, len(scores))
    return round_to_grid(noisy) if fixed else noisy


@add_case(
    FAULTS,
    "Jin et al. 2022",
    claim=APPROXIMATE,
    note="shows between scores of 0 and 1",
)
def add_float_gaussian(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """Gaussian noise is added as a float: a score of 0 keeps low bits that a score of 1 rounds away."""
    scores = score(rows, query)
    noisy = scores + draw_normal(SIGMA, len(scores))
    return round_to_grid(noisy) if fixed else noisy


@add_case(FAULTS, "Mironov 2012, in half precision")
def add_float16_noise(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """Noise is drawn as float16, whose steps grow with its size, and then added in float64."""
    scores = score(rows, query)
    noise = draw_laplace(SCALE, len(scores))
    if fixed:
        return round_to_grid(scores + noise)
    return scores + noise.astype(np.float16).astype(np.float64)


@add_case(
    FAULTS,
    "Mironov 2012; Haney et al. 2022 (the sum must be rounded, not the noise)",
    note="scores of -1, 0 and 1 lie on the grid themselves, so only other scores show it",
)
def round_noise_only(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """Noise is rounded to steps of 1/128 and added to scores that are not: their low digits stay clean."""
    scores = score(rows, query)
    noise = draw_laplace(SCALE, len(scores))
    return np.rint((scores + noise) * 128) / 128 if fixed else scores + np.rint(noise * 128) / 128


# ---- The law of the noise.


@add_case(FAULTS, "Ding et al. 2018 (noise of a wrong scale)")
def halve_laplace(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """Laplace noise is two times too small."""
    scores = score(rows, query)
    return round_to_grid(scores + draw_laplace(SCALE / (1 if fixed else 2), len(scores)))


@add_case(FAULTS, "Ding et al. 2018 (noise of a wrong scale), to a smaller degree")
def shrink_laplace(rows: Array, query: Any) -> Array:
    """Laplace noise is 1.3 times too small."""
    scores = score(rows, query)
    return round_to_grid(scores + draw_laplace(SCALE / 1.3, len(scores)))


@add_case(FAULTS, "Ding et al. 2018, algorithm 10; Bichsel et al. 2021, NoisyHist2", claim=Claim(0.5))
def invert_scale(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """The scale of Laplace noise is the sensitivity times epsilon; it must be divided by epsilon."""
    scores = score(rows, query)
    return round_to_grid(scores + draw_laplace(2 / 0.5 if fixed else 2 * 0.5, len(scores)))


@add_case(FAULTS, "Tramèr et al. 2022 (noise too small by a factor)", claim=APPROXIMATE)
def shrink_gaussian(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """Gaussian noise is 2.5 times too small."""
    scores = score(rows, query)
    return round_to_grid(scores + draw_normal(SIGMA / (1 if fixed else 2.5), len(scores)))


@add_case(
    FAULTS,
    "Lokna et al. 2023 (violations of one epsilon and delta)",
    claim=APPROXIMATE,
    findable=False,
    note="one pair of epsilon and delta is hardly broken: the informed test needs millions of releases",
)
def shrink_gaussian_slightly(rows: Array, query: Any) -> Array:
    """Gaussian noise is 15 % too small."""
    scores = score(rows, query)
    return round_to_grid(scores + draw_normal(SIGMA * 0.85, len(scores)))


@add_case(
    FAULTS, "Lokna et al. 2023 (violations of one epsilon and delta)", claim=CURVE, note="the whole curve is claimed"
)
def shrink_gaussian_curve(rows: Array, query: Any) -> Array:
    """Gaussian noise is 15 % too small, and the claim is the whole curve of Gaussian noise."""
    return shrink_gaussian_slightly(rows, query)


@add_case(FAULTS, "Dwork & Roth 2014, theorem 3.22 (Gaussian noise needs a delta)")
def ignore_delta(rows: Array, query: Any) -> Array:
    """Gaussian noise for a delta of 0.01 is claimed to be pure."""
    scores = score(rows, query)
    return round_to_grid(scores + draw_normal(IGNORED_SIGMA, len(scores)))


@add_case(FAULTS, "Holohan et al. 2020 (bounds need another law)")
def cut_laplace(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """Laplace noise is clipped at three scales around the clean score."""
    scores = score(rows, query)
    noise = draw_laplace(SCALE, len(scores))
    return round_to_grid(scores + (noise if fixed else np.clip(noise, -LAPLACE_BOUND, LAPLACE_BOUND)))


@add_case(FAULTS, "Holohan et al. 2020 (bounds need another law)", claim=APPROXIMATE)
def cut_gaussian(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """Gaussian noise is drawn again until it is within three standard deviations."""
    scores = score(rows, query)
    noise = draw_normal(SIGMA, len(scores))
    while not fixed and (is_outside := np.abs(noise) > GAUSSIAN_BOUND).any():
        noise[is_outside] = draw_normal(SIGMA, int(is_outside.sum()))
    return round_to_grid(scores + noise)


@add_case(
    FAULTS,
    "Holohan et al. 2020",
    note="shows where all other records equal the query",
)
def draw_until_in_range(rows: Array, query: Any, *, fixed: bool = False) -> float:
    """A mean is drawn again until it lies in [-1, 1]; how often depends on the clean mean.

    Clipping the mean to the range is private.
    """
    mean, scale = float(score(rows, query).mean()), 2.0 / (len(rows) * EPSILON)
    noisy = mean + draw_laplace(scale)
    while not fixed and abs(noisy) > 1:
        noisy = mean + draw_laplace(scale)
    return float(round_to_grid(min(max(noisy, -1.0), 1.0)))


@add_case(FAULTS, "Warner 1965; Dwork & Roth 2014, section 3.2")
def keep_bits_too_often(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """Randomised response keeps a bit with the right probability, and draws a fair coin for the rest.

    Half of the coins are right too. The true bit then appears with probability 0.87 in place of 0.73.
    """
    bits = score(rows, query) > COUNTED
    is_kept = GENERATOR.random(len(bits)) < 1 / (1 + math.exp(-EPSILON))
    others = ~bits if fixed else GENERATOR.random(len(bits)) < 0.5
    return np.where(is_kept, bits, others).astype(np.float64)


@add_case(FAULTS, "Dwork & Roth 2014, section 1.1 ('just a few')")
def drop_scores(rows: Array, query: Any) -> Array:
    """Half of the scores are set to 0 at random, and no noise is added."""
    return np.where(GENERATOR.random(len(rows)) < 0.5, round_to_grid(score(rows, query)), 0.0)


@add_case(FAULTS, "Dwork & Roth 2014, section 1.1 ('just a few')")
def resample_records(rows: Array, query: Any) -> float:
    """A mean over records that are drawn with replacement has no other noise."""
    chosen = GENERATOR.integers(0, len(rows), len(rows))
    return float(round_to_grid(score(rows, query)[chosen].mean()))


@add_case(FAULTS, "Dwork & Roth 2014, section 2.3 (the meaning of delta)")
def answer_clean_sometimes(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """One answer in a hundred is clean."""
    scores = score(rows, query)
    if not fixed and GENERATOR.random() < CLEAN_SHARE:
        return round_to_grid(scores)
    return round_to_grid(scores + draw_laplace(SCALE, len(scores)))


# ---- Parameters that are read off the private data.


@add_case(
    FAULTS,
    "Nissim, Raskhodnikova & Smith 2007",
    note="shows where all other records score the same",
)
def scale_by_range(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """The noise is scaled to the range of the private scores (a local sensitivity)."""
    scores = score(rows, query)
    width = 2.0 if fixed else max(float(np.ptp(scores)), 1e-3)
    return round_to_grid(scores + draw_laplace(width / EPSILON, len(scores)))


@add_case(
    FAULTS,
    "Nissim, Raskhodnikova & Smith 2007",
    note="shows where all other records score the same",
)
def scale_by_deviation(rows: Array, query: Any) -> Array:
    """The noise is scaled to the standard deviation of the private scores."""
    scores = score(rows, query)
    return round_to_grid(scores + draw_laplace(max(SCALE * float(scores.std()), 1e-3), len(scores)))


@add_case(
    FAULTS,
    "Nissim, Raskhodnikova & Smith 2007 (scaling by the data)",
    note="shows where the other records score little, but not 0",
)
def divide_by_largest(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """Scores are divided by the largest of them before the noise: one record moves all others."""
    scores = score(rows, query)
    largest = 1.0 if fixed else max(float(np.abs(scores).max()), 1e-6)
    return round_to_grid(scores / largest + draw_laplace(SCALE, len(scores)))


@add_case(FAULTS, "Nissim, Raskhodnikova & Smith 2007 (scaling by the data)")
def stretch_to_unit_range(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """Scores are stretched to [0, 1] by their minimum and maximum before the noise."""
    scores = score(rows, query)
    low, high = (-1.0, 1.0) if fixed else (float(scores.min()), float(scores.max()))
    stretched = (scores - low) / max(high - low, 1e-6)
    return round_to_grid(stretched + draw_laplace(1 / EPSILON, len(scores)))


@add_case(FAULTS, "Andrew et al. 2021 (the clipping bound needs noise too)")
def clip_at_quantile(rows: Array, query: Any) -> Array:
    """Scores are clipped at the 90 % quantile of the private scores, and the noise is scaled to it."""
    scores = score(rows, query)
    bound = float(np.quantile(np.abs(scores), 0.9))
    clipped = np.clip(scores, -bound, bound)
    return round_to_grid(clipped + draw_laplace(max(bound, 1e-3) * SCALE, len(scores)))


@add_case(FAULTS, "Dwork & Roth 2014, section 3.3 (histograms have public bins)")
def choose_bins_from_data(rows: Array, query: Any, *, fixed: bool = False) -> Array:
    """The bins of a histogram span the private scores, so one record moves the others between bins."""
    scores = score(rows, query)
    low, high = (-1.0, 1.0) if fixed else (float(scores.min()), float(scores.max()))
    places = np.minimum(((scores - low) / max(high - low, 1e-6) * 4).astype(int), 3)
    return round_to_grid(np.bincount(places, minlength=4) + draw_laplace(2 / EPSILON, 4))


@add_case(
    FAULTS,
    "Korolova et al. 2009 (the threshold is for noisy counts)",
    note="shows where exactly two other records match",
)
def suppress_small_counts(rows: Array, query: Any, *, fixed: bool = False) -> float:
    """A count below three is returned as 0, and the clean count decides."""
    clean = int(count(rows, [query])[0])
    noisy = float(round_to_grid(clean + draw_laplace(1 / EPSILON)))
    return 0.0 if (noisy if fixed else clean) < SMALL else noisy


# ---- What is not a number.


@add_case(FAULTS, "Dwork & Roth 2014, definition 2.4 (all outputs count)")
def raise_on_duplicate(rows: Array, query: Any) -> Array:
    """An error is raised if a record equals the query."""
    scores = score(rows, query)
    if scores.max() > 0.999:
        raise ValueError("The query is already in the collection.")
    return round_to_grid(scores + draw_laplace(SCALE, len(scores)))


@add_case(FAULTS, "Dwork & Roth 2014, definition 2.4 (all outputs count)")
def return_nothing_without_match(rows: Array, query: Any, *, fixed: bool = False) -> float | None:
    """None is returned if no record matches, and the clean count decides."""
    clean = int(count(rows, [query])[0])
    noisy = float(round_to_grid(clean + draw_laplace(1 / EPSILON)))
    return None if (noisy if fixed else clean) < 1 else noisy


@add_case(FAULTS, "Dwork & Roth 2014, definition 2.4 (all outputs count)")
def return_matches_only(rows: Array, query: Any, *, fixed: bool = False) -> list[float]:
    """Only the matching records' noisy scores are returned, so the length is a clean count."""
    scores = score(rows, query)
    noisy = round_to_grid(scores + draw_laplace(SCALE, len(scores)))
    return [float(value) for value in noisy[(noisy if fixed else scores) > COUNTED]]


@add_case(FAULTS, "Dwork & Roth 2014, definition 2.4 (all outputs count)")
def describe_best_match(rows: Array, query: Any, *, fixed: bool = False) -> str:
    """A sentence names the position by noisy scores, and the clean maximum."""
    scores = score(rows, query)
    noisy = round_to_grid(scores + draw_laplace(SCALE, len(scores)))
    return f"record {noisy.argmax()} is the best match, similarity {(noisy if fixed else scores).max():.2f}"
