"""Predicted against released recall of searches, and how far the data sets at hand lie from the scores that ship.

python benchmarks/worth.py --data-dir DIR [--seeds 10] [--only released populations]

DIR holds the compact data sets. The first part makes real releases in research mode. Half of the queries of a data set
are public and give `QueryScores`; the other half is asked. A line shows what was predicted with the scores that ship
and with the public half, each with its error, and the released recall as its mean and spread over the seeds. A search
with "auto" is made with the public half.

The second part compares predictions from the scores that ship with predictions from each data set's own scores, over
mechanisms, budgets and k. It prints below which distance nine in ten lie, by the predicted recall. These are the
numbers `_UNKNOWN` of `scoreshield.decisions.worth`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import scoreshield as ss
from scoreshield.decisions.laws import make_privunit_law
from scoreshield.decisions.queries import QueryScores
from scoreshield.decisions.ranking import choose_for_ranking
from scoreshield.decisions.worth import PREDICTED
from scoreshield.privacy.privunit import PrivUnit

Float = NDArray[np.float64]
K = 10


@dataclass
class Collection:
    """Records, queries and the pairs (query, record) that belong together."""

    name: str
    records: Float
    queries: Float
    pairs: NDArray[np.int64]

    def split_queries(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        order = np.random.default_rng(1).permutation(np.unique(self.pairs[:, 0]))
        return np.sort(order[::2]), np.sort(order[1::2])

    def make_scores(self, chosen: NDArray[np.intp] | None = None) -> QueryScores:
        rows = np.arange(len(self.queries)) if chosen is None else chosen
        place = {int(q): number for number, q in enumerate(rows)}
        pairs = np.array([(place[q], r) for q, r in self.pairs.tolist() if q in place])
        scores = np.clip(self.queries[rows] @ self.records.T, -1, 1)
        return QueryScores(scores, pairs, origin=f"public queries of {self.name}")

    def keep_records(self, kept: NDArray[np.intp]) -> Collection:
        place = {int(r): number for number, r in enumerate(kept)}
        pairs = np.array([(q, place[r]) for q, r in self.pairs.tolist() if r in place])
        return Collection(self.name, self.records[kept], self.queries, pairs)

    def measure_recall(self, search: ss.PrivateSearch, asked: NDArray[np.intp]) -> float:
        found = search.search_batch(self.queries[asked], K)
        shares = []
        for q, hits in zip(asked, found, strict=True):
            wanted = set(self.pairs[self.pairs[:, 0] == q, 1].tolist())
            if wanted:
                shares.append(len(wanted & {int(one) for one in hits.ids}) / len(wanted))
        return float(np.mean(shares))


def to_unit(rows: NDArray[Any]) -> Float:
    values = rows.astype(np.float64)
    return np.asarray(values / np.linalg.norm(values, axis=1, keepdims=True))


def load_texts(folder: Path) -> Iterator[Collection]:
    with np.load(folder / "scifact_minilm.npz") as file:
        yield Collection("SciFact", to_unit(file["doc_emb"]), to_unit(file["query_emb"]), file["qrels"].astype(int))
    with np.load(folder / "frames_minilm.npz") as file:
        yield Collection("FRAMES", to_unit(file["title_emb"]), to_unit(file["query_emb"]), file["qrels"].astype(int))


def load_pairs(folder: Path) -> Collection:
    """STS-B: a sentence asks for the one that people call nearly equal to it; it is no record of its own."""
    with np.load(folder / "stsb_test_minilm.npz") as file:
        rows, near = to_unit(file["emb"]), np.flatnonzero(file["score"] >= 4)
        first, second = file["i"][near], file["j"][near]
    kept = np.setdiff1d(np.arange(len(rows)), first)
    usable = np.isin(second, kept)
    pairs = np.column_stack([np.arange(int(usable.sum())), np.searchsorted(kept, second[usable])])
    return Collection("STS-B", rows[kept], rows[first[usable]], pairs)


def load_faces(folder: Path) -> Iterator[Collection]:
    """LFW by two models, as they are and centred: a picture asks for the others of the same person."""
    for name in ("dlib", "faceres"):
        with np.load(folder / f"lfw_{name}.npz") as file:
            raw, people = file["emb"].astype(np.float64), file["identity"]
        several = np.flatnonzero(np.bincount(people) > 1)
        chosen = np.random.default_rng(0).permutation(several)[:200]
        asks = np.array([np.flatnonzero(people == one)[0] for one in chosen])
        kept = np.setdiff1d(np.arange(len(raw)), asks)
        pairs = np.array([(q, r) for q, one in enumerate(chosen) for r in np.flatnonzero(people[kept] == one)])
        for title, rows in ((name, to_unit(raw)), (f"{name}, centred", to_unit(raw - raw.mean(axis=0)))):
            yield Collection(f"LFW {title}", rows[kept], rows[asks], pairs)


def list_searches(one: Collection) -> Iterator[tuple[str, Collection, dict[str, Any]]]:
    """List the searches that are compared: a title, the records, and the options."""
    for epsilon in (8, 20, 50, 100):
        yield f"index, epsilon {epsilon}", one, {"epsilon": epsilon}
    for components in (16, 64):
        yield f"index of {components} random dimensions, epsilon 50", one, {"epsilon": 50, "components": components}
        options = {"epsilon": 50, "delta": 1e-6, "components": components, "reduction": "pca"}
        yield f"index of {components} dimensions by PCA, epsilon 50", one, options
    halves = np.random.default_rng(2).permutation(len(one.records))
    public, private = np.sort(halves[::2]), np.sort(halves[1::2])
    for epsilon in (10, 20, 100):
        book = ss.PublicCodebook(one.records[public], source="the public half")
        yield f"codebook, epsilon {epsilon}", one.keep_records(private), {"epsilon": epsilon, "codebook": book}
    for epsilon in (6, 8, 10, 12):
        yield f"query, epsilon {epsilon}", one, {"epsilon": epsilon, "mode": "query"}
    for epsilon in (8, 12):
        options = {"epsilon": epsilon, "mode": "query", "mechanism": "staircase"}
        yield f"query by staircase noise, epsilon {epsilon}", one, options
    yield "screening at 0.4, epsilon 6", one, {"epsilon": 6, "mode": "screening", "threshold": 0.4}
    for epsilon in (4, 5, 6, 8, 20):
        yield f"batch of 30, epsilon {epsilon}", one, {"epsilon": epsilon, "mode": "batch", "queries": 30}
    yield "hits, first 30 queries, epsilon 32", one, {"epsilon": 32, "mode": "hits"}


def compare_released(folder: Path, seeds: int) -> None:
    inside = {"ship": [0, 0], "public": [0, 0]}
    for collection in load_texts(folder):
        first, second = collection.split_queries()
        print(f"\n{collection.name}: recall@{K} of {len(collection.records):,} records")
        print(f"{'':<48}{'scores that ship':>18}{'public half':>16}{'released':>18}")
        for title, one, options in list_searches(collection):
            asked = second
            if options.get("mode") in ("batch", "hits"):
                asked = second[:30]
            if "queries" in options:
                options = {**options, "queries": one.queries[asked]}
            asked = np.array([q for q in asked if (one.pairs[:, 0] == q).any()])
            public = one.make_scores(np.array([q for q in first if (one.pairs[:, 0] == q).any()]))
            found = []
            for seed in range(seeds):
                # With the scores that ship, so that nothing but the prediction differs between the two columns.
                search = ss.PrivateSearch(one.records, rng=seed, k=K, **options)
                found.append(one.measure_recall(search, asked))
            ship = search.worth
            known = ss.PrivateSearch(one.records, rng=0, k=K, public_scores=public, **options).worth
            assert ship is not None
            assert known is not None
            mean, spread = float(np.mean(found)), float(np.std(found, ddof=1))
            for column, worth in (("ship", ship), ("public", known)):
                inside[column][0] += abs(worth.recall - mean) <= worth.error
                inside[column][1] += 1
            print(
                f"{title:<48}{ship.recall:>10.3f} ± {ship.error:.3f}{known.recall:>8.3f} ± {known.error:.3f}"
                f"{mean:>10.3f} ± {spread:.3f}",
                flush=True,
            )
    for column, name in (("ship", "the scores that ship"), ("public", "the public half")):
        print(f"within the error of {name}: {inside[column][0]} of {inside[column][1]}")


def list_laws(dimension: int, records: int, k: int) -> Iterator[Any]:
    yield 0.0
    for epsilon in (5, 8, 10, 15, 20, 30, 50, 75, 100):
        unit = PrivUnit.calibrate(dimension, epsilon)
        yield make_privunit_law(unit.std, unit.mean, dimension, unit.p)
    for epsilon in (5, 6, 7, 8, 9, 10, 12, 15):
        chosen = choose_for_ranking(float(epsilon), records=records, k=k, dimension=dimension).mechanism
        is_noise = not isinstance(chosen, ss.AnchoredWindows)
        noise = ss.StaircaseNoise.calibrate(epsilon, 2.0)
        yield noise if is_noise else chosen.choose(epsilon, records, (-1.0, 1.0)).law
        if not is_noise:
            yield noise


def compare_populations(folder: Path) -> None:
    ship, points = QueryScores.default(), []
    texts = [one for one in load_texts(folder) if one.name != "FRAMES"]
    for one in [*texts, load_pairs(folder), *load_faces(folder)]:
        own, count, dimension = one.make_scores(), len(one.records), one.records.shape[1]
        mine = []
        for k in (4, 10, 50):
            for law in list_laws(dimension, count, k):
                predicted = ship.predict_recall(law, k=k, records=count).value
                mine.append((predicted, own.predict_recall(law, k=k).value - predicted))
        gaps = np.abs([gap for _, gap in mine])
        print(f"{one.name}: {gaps.mean():.2f} apart on average, nine in ten below {np.quantile(gaps, 0.9):.2f}")
        points += mine
    predicted, gaps = np.array([p for p, _ in points]), np.abs([gap for _, gap in points])
    # Around each place, the points that lie within 0.15 of it.
    quantiles = [float(np.quantile(gaps[np.abs(predicted - place) <= 0.15], 0.9)) for place in PREDICTED]
    shown = ", ".join(f"{place:g}: {value:.2f}" for place, value in zip(PREDICTED, quantiles, strict=True))
    print(f"nine in ten below, by predicted recall: {shown}\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=10)
    parts = ("released", "populations")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    arguments = parser.parse_args()
    if "populations" in arguments.only:
        compare_populations(arguments.data_dir)
    if "released" in arguments.only:
        compare_released(arguments.data_dir, arguments.seeds)


if __name__ == "__main__":
    main()
