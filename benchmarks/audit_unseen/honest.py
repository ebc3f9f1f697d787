"""25 honest mechanisms, as their author wrote them, which an auditor must not accuse.

The claims cover the replacement of one record, and all of them bound rows that are not unit vectors too. Each docstring
says why the claim is true. Those that are tight reach their claim on some pair of neighbours.
"""

from __future__ import annotations

import json
import math
import random
import secrets
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from audit_battery.cases import Array
from audit_unseen.cases import STEPS, UnseenCase, add_case, compute_mu, draw_geometric, make_generator

HONEST: list[UnseenCase] = []
add_honest = partial(add_case, HONEST, is_honest=True, findable=False)

FOUR_QUERIES = np.eye(4, 8, dtype=np.float32)


def clean_rows(embeddings: Array) -> Array:
    """Put 0 for entries that are not finite."""
    return np.nan_to_num(np.asarray(embeddings, dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0)


def round_scores(embeddings: Array, query: Any, k: int = STEPS) -> Array:
    """Compute scores in whole steps of 1 / k, from -k to k, each from its own row alone."""
    q = np.nan_to_num(np.asarray(query, dtype=np.float64).ravel())
    norm_q = math.sqrt(float((q * q).sum()))
    if norm_q > 0:
        q = q / norm_q
    s = np.clip((clean_rows(embeddings) * q).sum(axis=1), -1.0, 1.0)
    return np.rint(s * k).astype(np.int64)


def find_topics(embeddings: Array) -> Array:
    """Find the largest entry of each row."""
    return np.argmax(clean_rows(embeddings), axis=1)


@add_honest("discrete Laplace", note="tight")
def clipped_sum(embeddings: Array, query: Any, rng: np.random.Generator | None = None) -> Any:
    """Whole-number sum moves by 2000; discrete Laplace of scale 2000; the clip is public."""
    rng = make_generator(rng)
    n = len(embeddings)
    v = int(round_scores(embeddings, query).sum()) + draw_geometric(rng, 2.0 * STEPS)
    return max(-n * STEPS, min(n * STEPS, v)) / STEPS


@add_honest("sampling", note="tight")
def sampled_count(embeddings: Array, query: Any) -> Any:
    """A count of a sample of m of n records, drawn without replacement.

    Its epsilon is log(1 + m/n (e^inner - 1)) = 1 for replacement (Balle, Barthe & Gaboardi 2018).
    """
    rng = make_generator()
    n = len(embeddings)
    m = max(1, n // 2)
    part = rng.permutation(n)[:m]
    inner = math.log(1 + math.expm1(1.0) / (m / n))
    hits = int((round_scores(embeddings, query)[part] >= 500).sum())
    return hits + draw_geometric(rng, 1.0 / inner)


@add_honest("randomised response", epsilon=math.log(3.0), note="tight")
def coin_match(embeddings: Array, query: Any) -> Any:
    """Randomised response, 3/4 against 1/4."""
    rng = random.SystemRandom()
    truth = bool((round_scores(embeddings, query) > 900).any())
    return "yes" if truth == (rng.randrange(4) > 0) else "no"


_SPAN = np.arange(-400, 401)
_W = np.exp(-((np.abs(_SPAN) // 4) + ((np.abs(_SPAN) % 4) >= 2)).astype(float))
_CDF = np.cumsum(_W / _W.sum())


@add_honest("staircase", note="tight")
def staircase(embeddings: Array, query: Any, rng: np.random.Generator | None = None) -> Any:
    """Discrete staircase for a sum that moves by at most 4 (checked for all shifts); truncation at 100 epsilon."""
    rng = make_generator(rng)
    total = int(round_scores(embeddings, query, 2).sum())  # each score is -2 ... 2, so the sum moves by 4 at most
    z = int(_SPAN[min(int(np.searchsorted(_CDF, rng.random(), side="right")), 800)])
    return (total + z) / 2


@add_honest("exponential", epsilon=2.0, query=None)
def favourite(embeddings: Array) -> Any:
    """Exponential mechanism, counts move by 1, exp(eps u / 2)."""
    rng = make_generator()
    u = np.bincount(find_topics(embeddings) % 5, minlength=5)
    return ("red", "green", "blue", "white", "black")[int(np.argmax(2.0 * u / 2.0 + rng.gumbel(size=5)))]


@add_honest("permute and flip", query=None)
def flip_favourite(embeddings: Array) -> Any:
    """Permute and flip, counts move by 1."""
    rng = make_generator()
    u = np.bincount(find_topics(embeddings) % 5, minlength=5)
    top = int(u.max())
    for j in rng.permutation(5):
        if rng.random() < math.exp(1.0 * (int(u[j]) - top) / 2.0):
            return [int(j)]
    raise AssertionError("not reached")


@add_honest("noisy max", query=None)
def noisy_max(embeddings: Array, rng: np.random.Generator | None = None) -> Any:
    """Report noisy max, discrete Laplace of scale 2 / eps on counts; index only, ties to the lowest index."""
    rng = make_generator(rng)
    d = embeddings.shape[1]
    u = np.bincount(find_topics(embeddings), minlength=d)
    return int(np.argmax(u + draw_geometric(rng, 2.0, d)))


@add_honest("k-RR", epsilon=1.5, query=None, note="tight")
def local_categories(embeddings: Array) -> Any:
    """k-ary randomised response for every record; one record changes one entry."""
    rng = make_generator()
    n, k = np.shape(embeddings)
    c = np.argmax(np.abs(clean_rows(embeddings)), axis=1)
    if k == 1:
        return [0] * n
    keep = rng.random(n) < math.exp(1.5) / (math.exp(1.5) + k - 1)
    other = (c + rng.integers(1, k, size=n)) % k
    return [int(x) for x in np.where(keep, c, other)]


SUM_MU = compute_mu(1.0, 1e-5)


@add_honest("Gaussian", delta=1e-05, is_gaussian=True, note="tight")
def gaussian_sum(embeddings: Array, query: Any, rng: np.random.Generator | None = None) -> Any:
    """Analytic Gaussian for a sum that moves by 2000, rounded to whole numbers afterwards."""
    rng = make_generator(rng)
    total = int(round_scores(embeddings, query).sum())
    return int(np.rint(total + rng.normal(0.0, 2.0 * STEPS / SUM_MU))) / STEPS


@add_honest("histogram", query=None, note="tight")
def topic_counts(embeddings: Array) -> Any:
    """Histogram, replacement moves two bins by 1; discrete Laplace of scale 2."""
    rng = make_generator()
    d = embeddings.shape[1]
    u = np.bincount(find_topics(embeddings), minlength=d) + draw_geometric(rng, 2.0, d)
    return {f"topic-{j}": int(c) for j, c in enumerate(u)}


@add_honest("JSON", epsilon=0.5, note="tight")
def mean_json(embeddings: Array, query: Any) -> Any:
    """Discrete Laplace of scale 4000 on a sum that moves by 2000; the width is public."""
    rng = make_generator()
    n = len(embeddings)
    scale = 2.0 * STEPS / 0.5
    m = (int(round_scores(embeddings, query).sum()) + draw_geometric(rng, scale)) / (STEPS * n)
    half = 3.0 * scale / (STEPS * n)
    return json.dumps({"mean": round(m, 5), "ci95": [round(m - half, 5), round(m + half, 5)], "unit": "cosine"})


@add_honest("public answer", epsilon=0.1, query=None)
def health(embeddings: Array) -> Any:
    """The answer depends on the public shape alone."""
    n, d = np.shape(embeddings)
    return {"status": "ok", "model": "face-v2", "records": n, "dimensions": d}


@add_honest("exponential")
def private_median(embeddings: Array, query: Any) -> Any:
    """Exponential mechanism on a public grid.

    The rank moves by 1, so the utility moves by 1; the error depends on the public n.
    """
    n = len(embeddings)
    if n < 3:
        raise ValueError(f"need at least 3 records, got {n}")
    rng = make_generator()
    v = round_scores(embeddings, query)
    grid = np.arange(-STEPS, STEPS + 1, 100)
    below = (v[:, None] < grid[None, :]).sum(axis=0)
    u = -np.abs(2 * below - n) / 2.0  # moves by 1 at most
    return int(grid[int(np.argmax(u / 2.0 + rng.gumbel(size=len(grid))))]) / STEPS


@add_honest("large epsilon", epsilon=10.0, note="tight")
def count_ten(embeddings: Array, query: Any) -> Any:
    """Geometric noise at epsilon 10 on a count."""
    rng = make_generator()
    return int((round_scores(embeddings, query) >= 0).sum()) + draw_geometric(rng, 1.0 / 10.0)


@add_honest("large epsilon", epsilon=20.0, note="tight")
def all_scores_twenty(embeddings: Array, query: Any) -> Any:
    """Discrete Laplace, one number moves by 20 steps, scale 1."""
    rng = make_generator()
    v = round_scores(embeddings, query, 10)  # -10 ... 10; a record moves only its own number, by 20 at most
    return (v + draw_geometric(rng, 20.0 / 20.0, len(v))) / 10


@add_honest("small epsilon", epsilon=0.1, query=None, note="tight")
def distinct_wrapped(embeddings: Array) -> Any:
    """A distinct count moves by at most 1 under replacement; geometric noise of scale 10; modulo is public."""
    rng = make_generator()
    e = clean_rows(embeddings)
    b = np.argmax(np.abs(e), axis=1)
    sign = e[np.arange(len(e)), b] >= 0
    distinct = len(set((2 * b + sign).tolist()))
    return (distinct + draw_geometric(rng, 10.0)) % 256


VECTOR_MU = compute_mu(2.0, 1e-5)


@add_honest("repeats", epsilon=2.0, delta=1e-05, is_gaussian=True, query=None, note="tight")
def gaussian_vectors(embeddings: Array, repeats: int = 1) -> Any:
    """Analytic Gaussian for rows of norm at most 1, rounding counted in the sensitivity."""
    rng = make_generator()
    e = np.clip(clean_rows(embeddings), -1e6, 1e6)
    norms = np.sqrt((e * e).sum(axis=1, keepdims=True))
    rows = np.rint(e / np.maximum(1.0, norms) * STEPS).astype(np.int64)
    d = rows.shape[1]
    sigma = (2.0 * STEPS + math.sqrt(d) + 1e-3) / VECTOR_MU  # rounding adds half a step to every number of two rows
    return np.rint(rows.sum(axis=0) + rng.normal(0.0, sigma, (repeats, d))) / STEPS


_CALL = [0]


@add_honest("stateful", note="tight")
def numbered(embeddings: Array, query: Any) -> Any:
    """Geometric count; number of the call and the maintenance answer depend on the number of calls alone."""
    rng = make_generator()
    _CALL[0] += 1
    hits = int((round_scores(embeddings, query) >= 500).sum())
    if _CALL[0] % 40 == 0:
        return {"call": _CALL[0], "status": "maintenance"}
    return {"call": _CALL[0], "hits": hits + draw_geometric(rng, 1.0)}


@dataclass
class Stamped:
    at: int
    version: str
    total: float


@add_honest("stateful", epsilon=3.0, note="tight")
def stamped(embeddings: Array, query: Any) -> Any:
    """Discrete Laplace; the clock in whole seconds is public."""
    rng = make_generator()
    total = (int(round_scores(embeddings, query).sum()) + draw_geometric(rng, 2.0 * STEPS / 3.0)) / STEPS
    return Stamped(int(time.time()), "1.4.2", total)


@add_honest("nonce", note="tight")
def with_nonce(embeddings: Array, query: Any) -> Any:
    """Discrete Laplace; the nonce is random."""
    rng = make_generator()
    total = (int(round_scores(embeddings, query).sum()) + draw_geometric(rng, 2.0 * STEPS)) / STEPS
    return (secrets.token_hex(8), f"{total:.3f}")


@add_honest("random failures", note="tight")
def flaky(embeddings: Array, query: Any) -> Any:
    """Geometric count; failures and None do not depend on data."""
    rng = make_generator()
    if rng.random() < 0.05:
        raise ConnectionError("upstream reset, try again")
    if rng.random() < 0.02:
        return None
    return int((round_scores(embeddings, query) >= 500).sum()) + draw_geometric(rng, 1.0)


@add_honest("delta", delta=0.005, note="tight")
def allowed_leak(embeddings: Array, query: Any) -> Any:
    """Raw data with probability delta, else epsilon-private: (epsilon, delta) exactly."""
    rng = make_generator()
    v = round_scores(embeddings, query)
    if rng.random() < 0.005:  # exactly the delta of the claim
        return v.tolist()
    return int((v >= 500).sum()) + draw_geometric(rng, 1.0)


_REACH = np.arange(-4, 5)
_TP = np.exp(-np.abs(_REACH).astype(float))
_TP /= _TP.sum()
_TCDF = np.cumsum(_TP)
BOUNDED_DELTA = float(_TP[0]) + 1e-9


@add_honest("delta", delta=BOUNDED_DELTA, note="tight")
def bounded_noise(embeddings: Array, query: Any) -> Any:
    """Truncated geometric noise; delta is the weight of one end."""
    rng = make_generator()
    hits = int((round_scores(embeddings, query) >= 500).sum())
    return hits + int(_REACH[min(int(np.searchsorted(_TCDF, rng.random(), side="right")), 8)])


@add_honest("sparse vector", query=FOUR_QUERIES)
def first_above(embeddings: Array, query: Any) -> Any:
    """AboveThreshold: threshold noise 2 / eps, query noise 4 / eps, counts move by 1, stops at the first."""
    rng = make_generator()
    threshold = 2 + rng.laplace(scale=2.0)
    for i, q in enumerate(np.atleast_2d(query)):
        if int((round_scores(embeddings, q) >= 500).sum()) + rng.laplace(scale=4.0) >= threshold:
            return i
    return None


@add_honest("exponential", epsilon=1.5)
def top_three(embeddings: Array, query: Any) -> Any:
    """Three rounds of the exponential mechanism at eps / 3 (Gumbel top-k is the same).

    One utility moves by 2, so exp(eps u / 2) is enough.
    """
    rng = make_generator()
    v = round_scores(embeddings, query) / STEPS  # one record moves one utility, by 2 at most
    noisy = v * (1.5 / 3.0) / 2.0 + rng.gumbel(size=len(v))
    return [f"id{i}" for i in np.argsort(-noisy)[:3]]
