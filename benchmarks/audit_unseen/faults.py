"""45 broken mechanisms, as their author wrote them. One record is replaced, and rows are unit vectors.

Each docstring says in its first line what is wrong, and then a pair of collections and an event that show it. Several
comments state the wrong reasoning of a fault. Names of functions are those under which the set was first audited.
"""

from __future__ import annotations

import json
import math
import random
import time
import zlib
from collections import namedtuple
from functools import partial
from hashlib import blake2b
from os import urandom
from typing import Any

import numpy as np

from audit_battery.cases import Array
from audit_unseen.cases import STEPS, UnseenCase, add_case, compute_mu, draw_geometric, make_generator

FAULTS: list[UnseenCase] = []
add_fault = partial(add_case, FAULTS)

#: Four queries that differ little, and five that share nothing.
_NEAR_FIRST_AXIS = np.eye(1, 8)[0] + 0.05 * np.array(
    [[0, 0, 0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0, 0, 0], [0, 0, 0, -1, 0, 0, 0, 0]]
)
PARAPHRASES = (_NEAR_FIRST_AXIS / np.linalg.norm(_NEAR_FIRST_AXIS, axis=1, keepdims=True)).astype(np.float32)
FIVE_AXES = np.eye(5, 8, dtype=np.float32)


def score(embeddings: Array, query: Any) -> Array:
    """Compute clean scores, in [-1, 1] whatever the rows are."""
    e = np.asarray(embeddings, dtype=np.float64)
    q = np.asarray(query, dtype=np.float64)
    with np.errstate(all="ignore"):
        s = (e * q).sum(axis=1)
    return np.clip(np.nan_to_num(s), -1.0, 1.0)


def round_scores(embeddings: Array, query: Any, k: int = STEPS) -> Array:
    """Compute clean scores in whole steps of 1 / k."""
    return np.rint(score(embeddings, query) * k).astype(np.int64)


def find_topics(embeddings: Array) -> Array:
    """Find the largest entry of each row."""
    return np.argmax(np.nan_to_num(np.asarray(embeddings, dtype=np.float64)), axis=1)


# ---- Sensitivity and scale.


@add_fault("sensitivity", query=None, rates=(0.534, 0.0723))
def topic_histogram(embeddings: Array, rng: np.random.Generator | None = None) -> Any:
    """A replaced record moves two bins of a histogram by 1, and the noise is for one bin.

    Eight records, seven on axis 3, one on axis 1 or on axis 2. Event: bin 1 at least 1 and bin 2 at most 0. True
    epsilon 2.
    """
    rng = make_generator(rng)
    d = embeddings.shape[1]
    counts = np.bincount(find_topics(embeddings), minlength=d)
    noisy = counts + draw_geometric(rng, 1.0, d)  # "one person is in one bin"
    return {f"topic_{j}": int(c) for j, c in enumerate(noisy)}


@add_fault("sensitivity", rates=(0.5, 0.015))
def score_variance(embeddings: Array, query: Any) -> Any:
    """The noise of a variance is for values in an interval of length 1, but scores lie in one of length 2.

    Eight records, seven at score 1, one at -1 or 1. Event: answer at least 0.4375. True epsilon 3.5.
    """
    rng = make_generator()
    n = len(embeddings)
    v = round_scores(embeddings, query)
    var = round((n * int((v * v).sum()) - int(v.sum()) ** 2) / (n * n) / 100)  # unit 1e-4
    return (var + draw_geometric(rng, 1e4 / n)) / 1e4  # variance of values in an interval of length one


@add_fault("sensitivity", rates=(0.9945, 0.0055))
def median_similarity(embeddings: Array, query: Any, rng: np.random.Generator | None = None) -> Any:
    """A median has the noise of a mean, though one record can move it across the whole range.

    Nine records, four at 1, four at -1, one at 1 or -1. Event: answer above 0. True epsilon 9.
    """
    rng = make_generator(rng)
    v = np.sort(round_scores(embeddings, query))
    n = len(v)
    return (int(v[n // 2]) + draw_geometric(rng, max(2 * STEPS / n, 1e-3))) / STEPS


@add_fault("sensitivity", query=None, rates=(0.9866, 0.0134))
def duplicate_pairs(embeddings: Array) -> Any:
    """The number of near-duplicate pairs has the noise for a count that moves by 1.

    Eight records, seven equal, the last equal or orthogonal: 28 or 21 pairs. Event: answer at least 25. True
    epsilon 7.
    """
    rng = make_generator()
    e = np.asarray(embeddings, dtype=np.float64)
    g = e @ e.T > 0.95
    pairs = (int(g.sum()) - int(np.diag(g).sum())) // 2
    return {"near_duplicates": pairs + draw_geometric(rng, 1.0)}


@add_fault("sensitivity", query=None, rates=(0.111, 0.0171))
def federated_sum(embeddings: Array, rng: np.random.Generator | None = None) -> Any:
    """Laplace noise on a sum of vectors is scaled to the L2 sensitivity; it needs the L1 sensitivity.

    Eight dimensions; the record is (1, ..., 1)/sqrt(8) or its negative. Event: log likelihood ratio above 1.5. True
    epsilon 2.83.
    """
    rng = make_generator(rng)
    e = np.asarray(embeddings, dtype=np.float64)
    norms = np.sqrt((e * e).sum(axis=1, keepdims=True))
    e = e / np.maximum(1.0, norms)  # clip to L2 norm 1
    total = np.rint(e * STEPS).astype(np.int64).sum(axis=0)
    return (total + draw_geometric(rng, 2.0 * STEPS, total.size)) / STEPS  # Laplace, eps = 1, "norm changes by 2"


SUM_MU = compute_mu(1.0, 1e-5)


@add_fault("units", delta=1e-05, is_gaussian=True, rates=(0.86, 0.14))
def gaussian_mean(embeddings: Array, query: Any) -> Any:
    """The variance of Gaussian noise is passed where the standard deviation belongs.

    Sixty records at 0, one of them at 1 or -1. Event: answer above 0. The noise is sigma squared instead of sigma,
    too small as soon as n is above 8.
    """
    rng = make_generator()
    n = len(embeddings)
    sigma = (2.0 / n) / SUM_MU
    mean = int(round_scores(embeddings, query).sum()) / (STEPS * n)
    return round(mean + rng.normal(0.0, sigma**2), 4)


@add_fault("calibration", delta=1e-06, is_gaussian=True, rates=(0.592, 0.408))
def gaussian_sum_delta(embeddings: Array, query: Any, rng: np.random.Generator | None = None) -> Any:
    """Gaussian noise is calibrated for delta = 1 / n in place of the claimed delta.

    Eight records, one at 1 or -1. Event: answer above the middle. mu = 0.466 instead of 0.22 (1.5 for a single
    record).
    """
    rng = make_generator(rng)
    n = len(embeddings)
    sigma = 2.0 * STEPS * math.sqrt(2 * math.log(1.25 * n))  # delta = 1 / n
    return {"sum": int(np.rint(int(round_scores(embeddings, query).sum()) + rng.normal(0.0, sigma))) / STEPS}


@add_fault("units", rates=(0.5, 0.1216))
def sum_in_std(embeddings: Array, query: Any, repeats: int = 1) -> Any:
    """The scale of Laplace noise is taken for its standard deviation, so the noise is too small by a factor of 1.41.

    Any collection, one score 1 or -1. Event: answer at least the larger sum. True epsilon 1.41.
    """
    rng = make_generator()
    total = int(round_scores(embeddings, query).sum())
    std = 2.0 * STEPS
    return (total + draw_geometric(rng, std / math.sqrt(2), (repeats, 1))) / STEPS


# ---- Composition.


@add_fault("composition", epsilon=0.5, query=PARAPHRASES, rates=(0.381, 0.107))
def paraphrases(embeddings: Array, query: Any) -> Any:
    """Each paraphrase of a query spends the whole epsilon.

    One score 1 or -1 in the direction that all four paraphrases share. Event: log likelihood ratio of the four
    answers above 0.9. True epsilon 2.
    """
    rng = make_generator()
    out = []
    for q in np.atleast_2d(query):
        out.append((int(round_scores(embeddings, q).sum()) + draw_geometric(rng, 2.0 * STEPS / 0.5)) / STEPS)
    return out


@add_fault("composition", rates=(0.1667, 0.0231))
def top_five(embeddings: Array, query: Any) -> Any:
    """Five records are selected, with the noise for one selection.

    Six records, five at -1, one at -1 or 1. Event: it is not among the five. Ratio 7.2.
    """
    rng = make_generator()
    s = round_scores(embeddings, query) / STEPS
    noisy = s / 2.0 * 1.0 + rng.gumbel(size=len(s))  # exponential mechanism at epsilon = 1
    return {int(i) for i in np.argsort(-noisy)[:5]}


@add_fault("composition", delta=1e-06, rates=(0.23, 0.039))
def sparkline(embeddings: Array, query: Any, rng: np.random.Generator | None = None) -> Any:
    """Sixteen noisy counts in one answer share epsilon by the square root of their number, not by their number.

    One more hit or not. Event: log likelihood ratio of the 16 numbers above 1.3. True epsilon 4; mu about 1.
    """
    rng = make_generator(rng)
    hits = int((round_scores(embeddings, query) >= 500).sum())
    return hits + draw_geometric(rng, 4.0, 16)


@add_fault("composition", rates=(0.822, 0.178))
def face_vote(embeddings: Array, query: Any) -> Any:
    """A majority of three randomised answers is returned, each of which spends the whole epsilon.

    One record above 0.8 or none. Event: 'match'. True epsilon 1.53.
    """
    rng = make_generator()
    truth = bool((round_scores(embeddings, query) > 800).any())
    keep = rng.random(3) < math.e / (1 + math.e)
    votes = sum(truth if k else not truth for k in keep)
    return "match" if votes >= 2 else "no match"


@add_fault("composition", epsilon=0.5, query=None, rates=(0.515, 0.151))
def bloom_bits(embeddings: Array) -> Any:
    """Bits of a Bloom filter are each flipped with the noise for one bit, though a record sets three.

    Three records, two on axis 1, one on axis 2 or 3: four of 64 bits differ (six for other records). Event: at
    least three of the four as in the first collection. True epsilon 2 here, up to 3.
    """
    rng = make_generator()
    rows = np.rint(np.nan_to_num(np.asarray(embeddings, dtype=np.float64)) * 10).clip(-99, 99).astype(np.int8)
    bits = np.zeros(64, dtype=bool)
    for r in rows:
        b = r.tobytes()
        for salt in (b"a", b"b", b"c"):
            bits[zlib.crc32(salt + b) % 64] = True
    bits ^= rng.random(64) < 1 / (1 + math.exp(0.5))
    return "".join("1" if b else "0" for b in bits)


# ---- Randomness.


@add_fault("randomness", rates=(1.0, 0.027))
def clock_seed(embeddings: Array, query: Any) -> Any:
    """Each release has a fresh generator with a seed of 8 bits from the clock.

    One score 1 or -1. Event: the answer is one of the 256 possible ones of the first collection.
    """
    rng = np.random.default_rng((time.perf_counter_ns() // 1000) & 0xFF)
    return (int(round_scores(embeddings, query).sum()) + draw_geometric(rng, 2.0 * STEPS)) / STEPS


_WORKER_SEED = int.from_bytes(urandom(16), "big")
_WORKERS = [np.random.default_rng(_WORKER_SEED) for _ in range(4)]  # forked after the generator was made
_TURN = [0]


@add_fault("randomness", rates=(0.75, 0.0002))
def forked_workers(embeddings: Array, query: Any) -> Any:
    """Four workers share one seed, so consecutive answers have the same noise.

    A public collection is asked, then the private one, with score 1 or -1. Event: the difference of the two answers
    is exactly that of the sums (three of four positions in the turn; all of them if calls come in twos).
    """
    worker = _WORKERS[_TURN[0] % 4]
    _TURN[0] += 1
    return (int(round_scores(embeddings, query).sum()) + draw_geometric(worker, 2.0 * STEPS)) / STEPS


# ---- Shape of the noise.


@add_fault("noise shape", rates=(0.632, 0.1887))
def never_negative(embeddings: Array, query: Any, rng: np.random.Generator | None = None) -> Any:
    """Noise is drawn again until the count is not negative.

    No hit or one hit. Event: answer 0. True epsilon 1.21.
    """
    rng = make_generator(rng)
    hits = int((round_scores(embeddings, query) >= 500).sum())
    while True:
        v = hits + draw_geometric(rng, 1.0)
        if v >= 0:
            return v


@add_fault("noise shape", rates=(0.632, 0.1163))
def signed_geometric(embeddings: Array, query: Any) -> Any:
    """One-sided noise gets a random sign, so that zero has twice its weight.

    c hits or c + 1. Event: answer c. True epsilon 1.69: zero has twice its weight.
    """
    rng = make_generator()
    hits = int((round_scores(embeddings, query) >= 500).sum())
    size = int(rng.geometric(-math.expm1(-1.0))) - 1
    return hits + (size if rng.random() < 0.5 else -size)


@add_fault("noise shape", rates=(1.0, 0.0))
def percent(embeddings: Array, query: Any) -> Any:
    """Whole-number noise is added to a percentage with four digits, so the digits after the point are clean.

    Eight records, one score 1 or 0.999 (0.0125 percent points apart). Event: the part after the point. Nothing
    shows for 1 against -1 at n = 8.
    """
    rng = make_generator()
    n = len(embeddings)
    value = round(100.0 * int(round_scores(embeddings, query).sum()) / (STEPS * n), 4)
    return round(value + draw_geometric(rng, 200.0 / n), 4)  # secure integer noise


# ---- Form and partial noise.


@add_fault("form", rates=(1.0, 0.0))
def paged_hits(embeddings: Array, query: Any) -> Any:
    """The clean count decides whether there is a next page.

    Ten other hits, the record is a hit or not. Event: there is a next page.
    """
    rng = make_generator()
    hits = int((round_scores(embeddings, query) >= 500).sum())
    return {"total": hits + draw_geometric(rng, 1.0), "page": 1, "next_page": 2 if hits > 10 else None}


@add_fault("form", rates=(1.0, 0.0))
def gzip_header(embeddings: Array, query: Any) -> Any:
    """A header has the compressed length of the clean scores.

    Eight records, seven at 0.5; one at 0.5 or at 0.123. Event: the compressed length is the shorter one.
    """
    rng = make_generator()
    v = round_scores(embeddings, query)
    body = json.dumps((v / STEPS).tolist()).encode()
    total = (int(v.sum()) + draw_geometric(rng, 2.0 * STEPS)) / STEPS
    return {"headers": {"content-encoding": "gzip", "content-length": len(zlib.compress(body, 1))}, "sum": total}


@add_fault("partial noise", rates=(1.0, 0.0))
def with_interval(embeddings: Array, query: Any) -> Any:
    """The width of a confidence interval is the clean standard deviation.

    Eight records, seven at 0; one at 1 or 0. Event: the interval has a width. (1 against -1 shows nothing there.)
    """
    rng = make_generator()
    n = len(embeddings)
    v = round_scores(embeddings, query)
    mean = (int(v.sum()) + draw_geometric(rng, 2.0 * STEPS)) / (STEPS * n)
    half = 1.96 * float(np.std(v / STEPS)) / math.sqrt(n)
    return {"mean": round(mean, 4), "ci95": [round(mean - half, 4), round(mean + half, 4)]}


@add_fault("form", rates=(0.715, 0.0))
def star_ratings(embeddings: Array, query: Any) -> Any:
    """Records with equal noisy ratings are listed in the order of their clean scores.

    Eight records, seven at 0, record 0 at 1 or -1. Event: a record with the same stars exists and record 0 comes
    before all of those.
    """
    rng = make_generator()
    v = round_scores(embeddings, query)
    noisy = v + draw_geometric(rng, 2.0 * STEPS, len(v))
    stars = np.rint(noisy / (2 * STEPS)).astype(int)
    ranked = np.argsort(-v, kind="stable")  # as the index returns them
    ranked = sorted(ranked.tolist(), key=lambda i: -stars[i])
    return json.dumps([{"id": i, "stars": int(stars[i])} for i in ranked])


# ---- Private statistics.


@add_fault("private statistics", rates=(0.846, 0.0067))
def adaptive_bound(embeddings: Array, query: Any) -> Any:
    """The noise is scaled to the largest clean score.

    Eight records, seven at 0; one at 1 or 0. Event: absolute answer above 0.5.
    """
    rng = make_generator()
    v = round_scores(embeddings, query)
    bound = max(50, int(np.abs(v).max()))
    return (int(v.sum()) + draw_geometric(rng, 2.0 * bound)) / STEPS


@add_fault("private statistics", epsilon=2.0, rates=(0.198, 0.0137))
def centred_scores(embeddings: Array, query: Any, rng: np.random.Generator | None = None) -> Any:
    """Scores are centred by the clean mean, so one record moves all of them.

    Four records, three at 0, one at 1 or -1: 1.5 in its own number, 0.5 in each of the three others. Event: log
    likelihood ratio above 2. True epsilon 3 (4 in the limit).
    """
    rng = make_generator(rng)
    e = np.asarray(embeddings, dtype=np.float64)
    e = e - e.mean(axis=0)
    v = np.rint((e * np.asarray(query, dtype=np.float64)).sum(axis=1) * STEPS).astype(np.int64)
    return ((v + draw_geometric(rng, 2.0 * STEPS / 2.0, len(v))) / STEPS).tolist()  # epsilon = 2


@add_fault("private statistics", query=None, rates=(0.981, 0.019))
def main_direction(embeddings: Array) -> Any:
    """The first principal direction has the noise of a mean.

    Nine records, four on axis 1 and four on axis 2, one on axis 1 or 2. Event: first number larger than the second.
    True epsilon 9.
    """
    rng = make_generator()
    e = np.asarray(embeddings, dtype=np.float64)
    n, d = e.shape
    w = np.linalg.eigh(e.T @ e)[1][:, -1]
    w = w * np.sign(w[np.argmax(np.abs(w))])
    return (np.rint(w * STEPS).astype(np.int64) + draw_geometric(rng, 2.0 * STEPS / n, d)) / STEPS


@add_fault("private statistics", query=None, rates=(0.5, 1.3e-05))
def two_clusters(embeddings: Array, rng: np.random.Generator | None = None) -> Any:
    """The centres of clusters have the noise for clusters that hold all records.

    Thirty records, the first alone in its cluster at axis 1 or its negative, the others on axis 2. Event: first
    number of the first centre at least 1. True epsilon 10.
    """
    rng = make_generator(rng)
    e = np.asarray(embeddings, dtype=np.float64)
    n, d = e.shape
    if n < 2:
        raise ValueError("two clusters need two records")
    centres = e[:2].copy()
    for _ in range(3):
        near = ((e[:, None, :] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)
        for j in (0, 1):
            if (near == j).any():
                centres[j] = e[near == j].mean(axis=0)
    return (
        np.rint(centres * STEPS).astype(np.int64) + draw_geometric(rng, 2.0 * STEPS * math.sqrt(d) / n, (2, d))
    ) / STEPS


# ---- Data touched again, or early.


@add_fault("early exit", rates=(0.5, 0.0056))
def scan_until_match(embeddings: Array, query: Any) -> Any:
    """A sum stops at the first match, so one record decides how many others are summed.

    Eight records, seven at -1, the first at 1 or -1. The sum is 1 or -8. Event: answer at least 1. True epsilon
    4.5.
    """
    rng = make_generator()
    total = 0
    for s in round_scores(embeddings, query).tolist():
        total += s
        if s > 950:
            break
    return (total + draw_geometric(rng, 2.0 * STEPS)) / STEPS


@add_fault("data touched again", rates=(0.731, 0.0))
def verified_tens(embeddings: Array, query: Any) -> Any:
    """The answer is never below the clean count, rounded down to tens.

    Nine other hits, the record is none or a hit. Event: the number is below 10.
    """
    rng = make_generator()
    hits = int((round_scores(embeddings, query) >= 500).sum())
    return f"{max(hits + draw_geometric(rng, 1.0), hits // 10 * 10)} people like this"


@add_fault("data touched again", rates=(0.788, 0.0))
def rag_context(embeddings: Array, query: Any) -> Any:
    """Chunks are selected privately, and then dropped if their clean score is low.

    Four records, three at 0, record 0 at 1 or 0. Event: chunk 0 is named.
    """
    rng = make_generator()
    v = round_scores(embeddings, query)
    noisy = (v / STEPS) / 2.0 / 3.0 + rng.gumbel(size=len(v))  # three picks, epsilon / 3 each
    chosen = np.argsort(-noisy)[:3].tolist()
    return "\n".join(f"[chunk-{i}]" for i in chosen if v[i] >= 200)  # grounding check


@add_fault("form", rates=(0.125, 0.0))
def content_id(embeddings: Array, query: Any) -> Any:
    """A record is selected privately, and its name is a hash of its content.

    Eight records, one of them on axis 2 or 3 (score 0 in both). Event: the id is that of the first.
    """
    rng = make_generator()
    v = round_scores(embeddings, query)
    i = int(np.argmax((v / STEPS) / 2.0 + rng.gumbel(size=len(v))))
    return f"doc:{zlib.crc32(np.ascontiguousarray(embeddings[i]).tobytes()):08x}"


# ---- Named algorithms.


@add_fault("named algorithm", query=FIVE_AXES, rates=(0.119, 0.0))
def above_threshold(embeddings: Array, query: Any) -> Any:
    """The sparse vector adds noise to the threshold only, and answers every query.

    Eight records on axis 8, one of them on axis 1 or 2. Event: query 1 is above and query 2 is not.
    """
    rng = make_generator()
    t = 2 + rng.laplace(scale=2.0)
    return [bool((round_scores(embeddings, q) >= 500).sum() >= t) for q in np.atleast_2d(query)]


@add_fault("delta", delta=1e-06, query=None, rates=(0.0115, 0.0))
def popular_labels(embeddings: Array) -> Any:
    """The threshold of a histogram with unknown labels is for delta = 0.01 in place of the claimed delta.

    Eight records, seven on axis 1, one on axis 2 or 3. Event: label 1 (axis 2) is named. Probability 0.01 against
    delta 1e-6.
    """
    rng = make_generator()
    threshold = 1 + 2.0 * math.log(1 / (2 * 0.01))
    labels, counts = np.unique(find_topics(embeddings), return_counts=True)
    noisy = counts + draw_geometric(rng, 2.0, len(counts))
    return {f"label-{int(a)}": int(c) for a, c in zip(labels, noisy, strict=True) if c > threshold}


@add_fault("named algorithm", query=None, rates=(0.2245, 0.0433))
def recommend(embeddings: Array, rng: np.random.Generator | None = None) -> Any:
    """The exponential mechanism leaves out the factor 2.

    Three records, two on axis 1, one on axis 2 or 1. Event: the second label. True epsilon up to 2, 1.65 here.
    """
    rng = make_generator(rng)
    u = np.bincount(find_topics(embeddings) % 4, minlength=4)
    return ("news", "sport", "music", "film")[int(np.argmax(1.0 * u + rng.gumbel(size=4)))]


@add_fault("sampling", rates=(0.816, 0.184))
def every_second(embeddings: Array, query: Any) -> Any:
    """Epsilon is amplified by sampling, but the sample is every second record and not random.

    The last record is a hit or not. Event: answer at least the larger count. True epsilon 1.49.
    """
    rng = make_generator()
    part = embeddings[::-2]
    inner = math.log(1 + (math.e - 1) / 0.5)
    return int((round_scores(part, query) >= 500).sum()) + draw_geometric(rng, 1 / inner)


@add_fault("named algorithm", epsilon=0.5, query=None, rates=(0.25, 0.0625))
def distinct_sketch(embeddings: Array) -> Any:
    """A sketch with a secret salt counts as private without noise.

    Two records, equal or not. Event: answer below 0.33 (lowest hash above 0.75). Ratio without bound for lower
    answers.
    """
    salt = urandom(16)
    lowest = 1.0
    for row in np.ascontiguousarray(embeddings):
        h = int.from_bytes(blake2b(row.tobytes(), key=salt, digest_size=6).digest(), "big") / 2.0**48
        lowest = min(lowest, h)
    return round(1 / max(lowest, 1e-3) - 1, 2)


@add_fault("named algorithm", query=None, rates=(1.0, 0.0))
def stable_mode(embeddings: Array) -> Any:
    """Propose, test, release compares the clean distance with its threshold.

    Four records, three on axis 1, one on axis 1 or 2. Event: None.
    """
    counts = np.sort(np.bincount(find_topics(embeddings), minlength=2))
    distance = (int(counts[-1]) - int(counts[-2])) // 2
    if distance < 2:
        return None
    return int(np.argmax(np.bincount(find_topics(embeddings))))


# ---- State.

_CACHE = {"key": None, "value": None}


@add_fault("state", rates=(1.0, 0.0002))
def etag_cache(embeddings: Array, query: Any) -> Any:
    """An answer is cached under a key that has the clean sum, so an equal answer reveals an equal sum.

    A public collection is asked, then the private one, which equals it or differs in one record. Event: the answer
    is the same.
    """
    v = round_scores(embeddings, query)
    key = (np.asarray(query).tobytes(), len(v), round(int(v.sum()) / STEPS, 2))
    if _CACHE["key"] != key:
        _CACHE["key"] = key
        _CACHE["value"] = (int(v.sum()) + draw_geometric(make_generator(), 2.0 * STEPS)) / STEPS
    return _CACHE["value"]


_LEFT = [10**9]


@add_fault("state", rates=(1.0, 0.0))
def budget_left(embeddings: Array, query: Any) -> Any:
    """Only answers with hits spend budget, and the budget that is left is part of the answer.

    A public collection is asked, then the private one with one hit or none. Event: the budget went down.
    """
    rng = make_generator()
    hits = int((round_scores(embeddings, query) >= 500).sum())
    if hits:
        _LEFT[0] -= 1  # empty answers are free
    return {"hits": hits + draw_geometric(rng, 1.0), "budget_left": _LEFT[0]}


_CALLS = [0]


@add_fault("state", delta=1e-06, rates=(0.00525, 0.0001))
def calibration(embeddings: Array, query: Any) -> Any:
    """Every 200th answer is clean.

    One score 1 or -1. Event: the answer is exactly the first sum.
    """
    _CALLS[0] += 1
    total = int(round_scores(embeddings, query).sum())
    if _CALLS[0] % 200 == 0:
        return total / STEPS  # self-test of the index
    return (total + draw_geometric(make_generator(), 2.0 * STEPS)) / STEPS


# ---- Rare, or for particular records.


@add_fault("rare", delta=1e-06, rates=(1 / 150, 0.0))
def deadline(embeddings: Array, query: Any) -> Any:
    """One answer in 150 is an exception whose message has the clean count.

    One more hit or not. Event: an exception with the first count.
    """
    rng = make_generator()
    hits = int((round_scores(embeddings, query) >= 500).sum())
    if rng.random() < 1 / 150:
        raise TimeoutError(f"deadline exceeded, {hits} hits so far")
    return hits + draw_geometric(rng, 1.0)


@add_fault("particular record", rates=(1.0, 0.0))
def enrol(embeddings: Array, query: Any) -> Any:
    """A record that equals the query changes the form of the answer.

    The record is the query or not. Event: 'already enrolled'.
    """
    rng = make_generator()
    v = round_scores(embeddings, query, 100_000)
    if (v >= 99_990).any():
        return "already enrolled"
    return f"{(int(np.rint(v / 100).sum()) + draw_geometric(rng, 2.0 * STEPS)) / STEPS:.3f}"


Hit = namedtuple("Hit", "id score")


@add_fault("partial noise", rates=(1.0, 0.0))
def public_first(embeddings: Array, query: Any) -> Any:
    """The last record has no noise.

    The last record has score 1 or -1. Event: the last number is 1.
    """
    rng = make_generator()
    v = round_scores(embeddings, query)
    v[:-1] = v[:-1] + draw_geometric(rng, 2.0 * STEPS, len(v) - 1)
    return [Hit(i, int(s) / STEPS) for i, s in enumerate(v)]


@add_fault("default branch", rates=(1.0, 0.0))
def demo_mode(embeddings: Array, query: Any) -> Any:
    """A collection below four records has no noise.

    Three records at most, one is a hit or not. Event: the larger count.
    """
    rng = make_generator()
    hits = int((round_scores(embeddings, query) >= 500).sum())
    if len(embeddings) < 4:
        return {"hits": hits, "note": "demo"}
    return {"hits": hits + draw_geometric(rng, 1.0), "note": ""}


# ---- Not findable by a black box in two minutes.


@add_fault(
    "particular record",
    rates=(1.0, 0.0),
    findable=False,
    note="an audit would have to guess a score in an interval of width 0.0001",
)
def watched_score(embeddings: Array, query: Any) -> Any:
    """A score in an interval of width 0.0001 raises a clean alert.

    One score 0.42425 or another. No black box would try that number.
    """
    rng = make_generator()
    s = score(embeddings, query)
    hits = int((s >= 0.5).sum())
    if ((s > 0.42420) & (s < 0.42430)).any():
        return {"hits": hits, "alert": True}
    return {"hits": hits + draw_geometric(rng, 1.0), "alert": False}


@add_fault(
    "rare",
    delta=1e-06,
    rates=(0.0001, 0.0),
    findable=False,
    note="the clean count is in one answer of 10,000, and a pair needs hundreds of thousands of outputs",
)
def rare_debug(embeddings: Array, query: Any) -> Any:
    """One answer in 10,000 has the clean count in a debug field.

    One more hit or not. Event: a debug field with the first count.
    """
    rng = make_generator()
    hits = int((round_scores(embeddings, query) >= 500).sum())
    out = {"hits": hits + draw_geometric(rng, 1.0)}
    if random.SystemRandom().random() < 1e-4:
        out["debug"] = hits
    return out
