"""The audit of ScoreShield's own releases: every mechanism and regime at three budgets, as one table.

``python -m scoreshield.audit.own`` draws from the secure sampler, the one that ships, and exits with 1 if a claim is
broken; ``--quick`` is the short form, one budget from seeded generators. Each audit is at confidence 1 - 1e-6, so that
the whole table raises a false alarm less than once in ten thousand runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield.audit.claim import Claim
from scoreshield.audit.engine import audit
from scoreshield.audit.neighbours import Pair, replaced, worst_pairs
from scoreshield.audit.outputs import Source
from scoreshield.audit.result import AuditResult
from scoreshield.histograms import release_histogram
from scoreshield.indexing import release_index
from scoreshield.privacy.adjacency import GramRadius, Identity
from scoreshield.privacy.channels import optimal_channel, randomised_response
from scoreshield.releases import release_gram, release_row, release_scores
from scoreshield.selection import release_matches, release_top_k

BUDGETS = (0.5, 2.0, 5.0)
QUICK_BUDGETS = (2.0,)
DELTA = 1e-6
CONFIDENCE = 1 - 1e-6
_RECORDS, _LENGTH = 4, 4
_QUERY: NDArray[np.float64] = np.eye(_LENGTH)[0]
#: Releases on each side: of what is drawn in bulk, what is called one by one, and what takes a millisecond or more.
_RELEASES = {"bulk": 400_000, "single": 8_000, "slow": 5_000}
_QUICK_RELEASES = {"bulk": 20_000, "single": 800, "slow": 300}


@dataclass(frozen=True, eq=False)
class Own:
    """One of our releases, what it claims, and the neighbours that move it farthest.

    Attributes
    ----------
    name : mechanism, regime and budget.
    release : a callable from a collection to a release.
    claim : of the release's own guarantee.
    pair : the neighbours.
    pace : "bulk", "single" or "slow": how it is drawn, which sets how often.
    """

    name: str
    release: Callable[..., Any]
    claim: Claim
    pair: Pair
    pace: str


def own_releases(budgets: Sequence[float] = BUDGETS) -> list[Own]:
    """Every mechanism and regime that we ship, at each budget."""
    found = []
    for epsilon in budgets:
        for name, release, pair in (*_scores(epsilon), *_matrices(epsilon), *_indexes(epsilon), *_selections(epsilon)):
            claim = Claim.of(release(pair.first))
            found.append(Own(f"{name}, epsilon {epsilon:g}", release, claim, pair, _pace(name, release)))
    return found


_Named = tuple[str, Callable[..., Any], Pair]


def _scores(epsilon: float) -> list[_Named]:
    pair = _worst("scores")
    both = np.stack([_QUERY, np.eye(_LENGTH)[1]])
    # Half-way between the two queries a record moves both scores at once, by the spectral norm in all.
    between = both.sum(axis=0) / np.sqrt(2)
    batch = replaced(np.tile(np.eye(_LENGTH)[2], (_RECORDS, 1)), 0, between, -between, "a record between both queries")
    one = partial(release_scores, query=_QUERY, epsilon=epsilon)
    return [
        ("scores, gaussian", partial(one, delta=DELTA), pair),
        ("scores, laplace", partial(one, mechanism="laplace"), pair),
        ("scores, staircase", partial(one, mechanism="staircase"), pair),
        ("scores in [0, 0.6], staircase", partial(one, mechanism="staircase", score_range=(0.0, 0.6)), pair),
        ("scores, optimal levels", partial(one, mechanism=optimal_channel(epsilon)), pair),
        ("scores, randomised response", partial(one, mechanism=randomised_response(epsilon, cuts=(0.0,))), pair),
        ("scores of two queries, gaussian", partial(release_scores, query=both, epsilon=epsilon, delta=DELTA), batch),
        ("scores, identity of two records, gaussian", partial(_identity_scores, epsilon=epsilon), pair),
        ("row, gaussian", partial(release_row, index=0, epsilon=epsilon, delta=DELTA), _worst("row")),
    ]


def _matrices(epsilon: float) -> list[_Named]:
    pair = _worst("gram")
    # At this angle n - 1 similarities fall by 1 / sqrt(2 (n - 1)): a move of length 1 in Frobenius norm.
    cosine = 1 - 1 / np.sqrt(2 * (_RECORDS - 1))
    turned = cosine * _QUERY + np.sqrt(1 - cosine**2) * np.eye(_LENGTH)[1]
    drift = replaced(np.tile(_QUERY, (_RECORDS, 1)), 0, _QUERY, turned, "a record that drifts by the Gram radius")
    gram = partial(release_gram, epsilon=epsilon, delta=DELTA)
    return [
        ("gram, gaussian", partial(gram, projection="none"), pair),
        ("gram, gaussian, projected", gram, pair),
        ("gram, gaussian, radius 1", partial(gram, projection="none", adjacency=GramRadius(1.0)), drift),
    ]


def _indexes(epsilon: float) -> list[_Named]:
    pair = _worst("index")
    index = partial(release_index, epsilon=epsilon)
    return [
        ("index, privunit", index, pair),
        ("index, gaussian", partial(index, mechanism="gaussian", delta=DELTA), pair),
        ("index, privunit, random subspace", partial(index, components=2), pair),
        ("index, privunit, private pca", partial(index, components=2, reduction="pca", delta=DELTA), pair),
    ]


def _selections(epsilon: float) -> list[_Named]:
    passing, first, binned = _worst("matches"), _worst("top-k"), _worst("histogram")
    alike = _worst("gram")
    matches = partial(release_matches, query=_QUERY, threshold=0.5, epsilon=epsilon)
    best = partial(release_top_k, query=_QUERY, epsilon=epsilon)
    counts = partial(release_histogram, query=_QUERY, bins=4, epsilon=epsilon)
    return [
        ("matches, randomised response", matches, passing),
        ("matches, screen and refine", partial(matches, refine=0.5), passing),
        ("top 1, permute and flip", partial(best, k=1), first),
        ("top 1, gumbel", partial(best, k=1, mechanism="gumbel"), first),
        ("top 2, permute and flip", partial(best, k=2), first),
        ("histogram, geometric", counts, binned),
        ("histogram, gaussian", partial(counts, delta=DELTA, mechanism="gaussian"), binned),
        ("histogram of all pairs, geometric", partial(counts, query=None), alike),
    ]


def _identity_scores(rows: NDArray[Any], epsilon: float, rng: Any = None) -> Any:
    """Each row stands for an identity of two equal records: replacing a row replaces the identity."""
    labels = np.repeat(np.arange(len(rows)), 2)
    twice = np.repeat(rows, 2, axis=0)
    return release_scores(twice, _QUERY, epsilon=epsilon, delta=DELTA, adjacency=Identity(labels), rng=rng)


def _worst(kind: str) -> Pair:
    return worst_pairs(_RECORDS, _LENGTH, kind, _QUERY)[0]


def _pace(name: str, release: Callable[..., Any]) -> str:
    if Source(release, seed=None, timeout=None).in_bulk:
        return "bulk"
    return "slow" if "projected" in name or "pca" in name else "single"


def run(*, quick: bool = False, progress: Callable[[int, int, str], None] | None = None) -> list[AuditResult]:
    """Audit them all.

    Parameters
    ----------
    quick : one budget, few releases and fixed seeds: the same outcome every time, within 40 seconds.
    progress : called with (done, total, the name of the next).
    """
    owned = own_releases(QUICK_BUDGETS if quick else BUDGETS)
    releases = _QUICK_RELEASES if quick else _RELEASES
    results = []
    for done, one in enumerate(owned):
        if progress is not None:
            progress(done, len(owned), one.name)
        results.append(
            audit(
                one.release,
                one.claim,
                neighbours=one.pair,
                releases=releases[one.pace],
                confidence=CONFIDENCE,
                seed=done if quick else None,
                name=one.name,
            )
        )
    if progress is not None:
        progress(len(owned), len(owned), "")
    return results


def table(results: Sequence[AuditResult]) -> str:
    """Claimed epsilon, the bound that was found, and what would have been found, one line an audit.

    "By scale" is the epsilon that the measured noise has if it is Gaussian, where Gaussian noise is claimed.
    """
    width = max(len(result.name) for result in results)
    head = f"{'release':{width}}  claimed    delta  found at least  by scale  detectable  releases  seconds  verdict"
    return "\n".join([head, *(_line(result, width) for result in results)])


def _line(result: AuditResult, width: int) -> str:
    claim = result.claim
    return (
        f"{result.name:{width}}  {claim.epsilon:7.3g}  {claim.delta:7.1g}  {result.epsilon_lower:14.3f}  "
        f"{_by_scale(result):>8}  {result.detectable:10.3f}  {result.releases:8d}  {result.seconds:7.1f}  "
        + ("BROKEN" if result.broken else "no violation found")
    )


def _by_scale(result: AuditResult) -> str:
    said = [
        check.detail.rpartition("an epsilon of at least ") for check in result.checks if check.name == "noise scale"
    ]
    return said[0][2] if said and said[0][1] else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: 1 where a claim is broken, 0 otherwise."""
    parser = argparse.ArgumentParser(prog="scoreshield.audit.own", description="Audit ScoreShield's own releases.")
    parser.add_argument("--quick", action="store_true", help="one budget, few releases, fixed seeds")
    parser.add_argument("--json", action="store_true", help="results for machines")
    given = parser.parse_args(arguments)
    results = run(quick=given.quick, progress=_shown if sys.stderr.isatty() else None)
    if given.json:
        print(json.dumps([result.to_dict() for result in results]))
    else:
        print(table(results))
        for result in results:
            if result.broken:
                print(f"\n{result}")
    return int(any(result.broken for result in results))


def _shown(done: int, total: int, name: str) -> None:
    print(f"\r{done} of {total}: {name:60}", end="" if done < total else "\n", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
