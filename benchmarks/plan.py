"""Check the predictions of `plan.choose` against releases, on every data set at hand.

python benchmarks/plan.py --data-dir DIR [--seeds 10] [--only coverage|transfer|small]

Coverage: half of the queries (or pairs) of a set are public. `plan.choose` predicts every mechanism from them, and the
calls that it states are made, in research mode, for 100 other queries (or all other pairs). The share of released
figures within the stated errors is printed: nine in ten is right. Each seed is another half, fresh noise and another
epsilon. Transfer: `plan.choose` sees FRAMES alone and states mechanisms for a collection of SciFact's size. All are
released on SciFact. Small: `plan.choose` predicts an accept bit from few pairs of LFW. It is released for 100 other
genuine pairs, and its false matches are counted on other impostors: 20 splits for each seed. DIR holds the compact data
sets. One free core takes about fifteen minutes.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from useful_parts import Retrieval

import scoreshield as ss

K, ASKED = 10, 100
EPSILONS = (6.0, 8.0, 10.0, 12.0, 15.0)
TRANSFER = (8.0, 10.0, 12.0, 15.0)


@dataclass
class Count:
    """How many released figures lie within the stated error, and how far they are from the predictions."""

    inside: int = 0
    number: int = 0
    gaps: tuple[float, ...] = ()

    def add(self, released: float, row: ss.plan.Candidate) -> None:
        self.inside += abs(released - row.utility) <= row.error
        self.number += 1
        self.gaps += (released - row.utility,)

    def __str__(self) -> str:
        gaps = np.array(self.gaps)
        return (
            f"{self.inside:>3} of {self.number:>3} inside ({self.inside / self.number:.2f}); released minus predicted "
            f"{gaps.mean():+.3f} ± {gaps.std(ddof=1):.3f}"
        )


def read_call(call: str, **names: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Read the stated call: the function, and its arguments after the rows and the query."""
    public = {name: getattr(ss, name) for name in ss.__all__ if not name.startswith("_")}
    name, inner = call.split("(", 1)
    found = eval(f"capture({inner}", {"np": np, "rows": None, "query": None, **public, **names, "capture": _capture})
    return public[name], found[0][2:], found[1]


def _capture(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


def release_recall(data: Retrieval, row: ss.plan.Candidate, asked: np.ndarray, seed: int, **names: Any) -> float:
    """Make the stated call for some queries, and compute the recall of what it returns."""
    function, args, kwargs = read_call(row.call, **names)

    def answer(query: int) -> np.ndarray:
        rng = np.random.default_rng([seed, query])
        made = function(data.records, data.queries[query], *args, rng=rng, **kwargs)
        if function is ss.release_matches:
            return rng.permutation(made.indices)
        return made.indices if function is ss.release_top_k else made.top_k(K)

    return data.recall(answer, K, asked.tolist())


def compute_scores(data: Retrieval) -> np.ndarray:
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (data.queries, data.records)]
    return (unit[0].astype(np.float64) @ unit[1].astype(np.float64).T).clip(-1, 1)


def list_pairs(data: Retrieval, queries: np.ndarray) -> np.ndarray:
    """The relevant pairs of some queries, which are numbered anew."""
    return np.array([(place, record) for place, q in enumerate(queries) for record in sorted(data.relevant[q])])


def load_cifar(folder: Path) -> Retrieval:
    """Images of CIFAR-10: the nearest gallery image of the query's own class is to be found."""
    with np.load(folder / "cifar10_effnetlite0.npz") as file:
        rows, queries = file["gallery_emb"].astype(np.float32), file["query_emb"].astype(np.float32)
        labels, classes = file["gallery_label"], file["query_label"]
    unit = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in (queries, rows)]
    scores = np.where(classes[:, None] == labels, unit[0] @ unit[1].T, -2.0)
    return Retrieval(rows, queries, np.stack([np.arange(len(queries)), scores.argmax(axis=1)], axis=1))


def cover_search(data: Retrieval, seeds: int, *, is_pooled: bool = False) -> Iterator[tuple[str, Count]]:
    """Predict from half of the queries, and release for others: once per seed, with all mechanisms."""
    scores, counts = compute_scores(data), {}
    chosen = Count()
    for seed in range(seeds):
        rng, epsilon = np.random.default_rng(seed), EPSILONS[seed % len(EPSILONS)]
        order = rng.permutation(len(data.queries))
        public, asked = np.sort(order[: len(order) // 2]), order[len(order) // 2 :][:ASKED]
        pairs = list_pairs(data, public)
        contract = {"k": K, "epsilon": epsilon, "delta": 1e-6, "asked": len(asked), "source": "public"}
        if is_pooled:
            others = np.ones((len(public), scores.shape[1]), dtype=bool)
            others[pairs[:, 0], pairs[:, 1]] = False
            far = rng.choice(scores[public][others], 100_000, replace=False)
            near = scores[public][pairs[:, 0], pairs[:, 1]]
            made = ss.plan.choose("retrieval", far, near, records=len(data.records), **contract)
        else:
            made = ss.plan.choose("retrieval", benchmark=(scores[public], pairs), **contract)
        for row in made.candidates:
            released = release_recall(data, row, asked, seed, public_scores=scores[public])
            name = re.sub(r" on \d+ levels", "", row.mechanism)
            counts.setdefault(name, Count()).add(released, row)
            if row is made.chosen:
                chosen.add(released, row)
    yield "the chosen one", chosen
    yield from counts.items()


def cover_pairs(
    genuine: np.ndarray, impostor: np.ndarray, groups: np.ndarray, seeds: int, rate: float = 0.01
) -> Iterator[tuple[str, Count]]:
    """Predict true matches from half of the folds, and release the pairs of the others, each by itself."""
    counts: dict[str, Count] = {}
    for seed in range(seeds):
        rng, epsilon = np.random.default_rng(seed), (3.0, 5.0, 8.0)[seed % 3]
        folds = rng.permutation(np.unique(groups))
        is_public = np.isin(groups, folds[: len(folds) // 2])
        far, near, asked = impostor[is_public], genuine[is_public], genuine[~is_public]
        made = ss.plan.choose(
            "verification", far, near, target_fmr=rate, epsilon=epsilon, delta=1e-6, asked=len(asked), source="public"
        )
        for row in made.candidates:
            _, _, kwargs = read_call(row.call, impostor=far, genuine=near)
            threshold = float(re.search(r"exceeds (-?[\d.e-]+)", row.note)[1])  # type: ignore[index]
            # In two dimensions, rows with these cosines to one query: a record moves one score, as in a pair.
            angles = np.arccos(asked)
            rows = np.stack([np.cos(angles), np.sin(angles)], axis=1)
            released = ss.release_scores(rows, np.array([1.0, 0.0]), rng=rng, **kwargs)
            counts.setdefault(row.mechanism, Count()).add(float(np.mean(released.noisy > threshold)), row)
    yield from counts.items()


def show_coverage(folder: Path, seeds: int) -> None:
    sets = {"FRAMES": Retrieval.frames(folder), "SciFact": Retrieval.scifact(folder), "CIFAR-10": load_cifar(folder)}
    total = Count()
    for name, data in sets.items():
        for is_pooled in (False, True) if name == "FRAMES" else (False,):
            print(f"\n{name}{', pooled scores' if is_pooled else ''}: recall@{K}, {ASKED} queries asked", flush=True)
            for mechanism, count in cover_search(data, seeds, is_pooled=is_pooled):
                print(f"  {mechanism:<28} {count}", flush=True)
                if mechanism != "the chosen one" and not is_pooled:
                    total.inside, total.number = total.inside + count.inside, total.number + count.number
                    total.gaps += count.gaps
    with np.load(folder / "lfw_scores.npz") as file:
        faces = {name: (file[f"{name}_genuine"], file[f"{name}_impostor"]) for name in ("dlib", "faceres_centred")}
        folds = file["fold_genuine"]
    with np.load(folder / "stsb_test_minilm.npz") as file:
        cosines, truth = (file["emb"][file["i"]] * file["emb"][file["j"]]).sum(axis=1), file["score"]
    near, far = cosines[truth >= 4], cosines[truth <= 2]
    size = min(len(near), len(far)) // 10 * 10
    pairs = {f"LFW {name}": (*both, folds) for name, both in faces.items()}
    pairs["STS-B, alike (>= 4) against unlike (<= 2)"] = (near[:size], far[:size], np.arange(size) % 10)
    for name, (genuine, impostor, groups) in pairs.items():
        print(f"\n{name}: true matches at a false-match rate of 1 %", flush=True)
        for mechanism, count in cover_pairs(genuine.clip(-1, 1), impostor.clip(-1, 1), groups, seeds):
            print(f"  {mechanism:<28} {count}", flush=True)
            total.inside, total.number = total.inside + count.inside, total.number + count.number
            total.gaps += count.gaps
    print(f"\nall sets, query by query: {total}")


def cover_small_sample(
    genuine: np.ndarray, impostor: np.ndarray, sizes: tuple[int, int], epsilon: float, splits: int
) -> tuple[Count, int, float]:
    """Predict an accept bit from few pairs: true matches inside the error, false matches inside their interval."""
    count, kept, false = Count(), 0, []
    for seed in range(splits):
        rng = np.random.default_rng([seed, *sizes])
        near, far = rng.permutation(genuine), rng.permutation(impostor)
        public = {"impostor": far[: sizes[0]], "genuine": near[: sizes[1]]}
        made = ss.plan.choose(
            "verification",
            public["impostor"],
            public["genuine"],
            target_fmr=0.01,
            epsilon=epsilon,
            asked=ASKED,
            ranges=[(-1.0, 1.0)],
            source="public",
        )
        row = next(row for row in made.candidates if row.mechanism == "accept bit")
        bit = ss.accept_bit(epsilon, **public, false_match_rate=0.01)
        first, second = (float(bit.table.probabilities[level, 1]) for level in (0, 1))
        asked = near[sizes[1] :][:ASKED]
        count.add(float(np.mean(rng.random(len(asked)) < np.where(asked > bit.threshold, second, first))), row)
        real = first + (second - first) * float(np.mean(far[sizes[0] :] > bit.threshold))
        kept += row.false_matches[0] <= real <= row.false_matches[1]
        false.append(real)
    return count, kept, float(np.mean(false))


def show_small_samples(folder: Path, seeds: int) -> None:
    with np.load(folder / "lfw_scores.npz") as file:
        for name in ("dlib", "faceres_centred"):
            genuine, impostor = (file[f"{name}_{kind}"].astype(float).clip(-1, 1) for kind in ("genuine", "impostor"))
            print(f"\nLFW {name}, few public pairs: an accept bit at epsilon 10, false-match rate 1 %", flush=True)
            for sizes in ((1500, 20), (1500, 50), (1500, 100), (1500, 200), (300, 50), (100, 100)):
                count, kept, mean = cover_small_sample(genuine, impostor, sizes, 10.0, 20 * seeds)
                # With many public impostors the others are too few to show the rate.
                inside = f", {kept} of {count.number} inside" if 5 * sizes[0] <= len(impostor) else ""
                print(
                    f"  {sizes[0]:>5,} impostors, {sizes[1]:>3} genuine: {count}; "
                    f"false matches {100 * mean:.2f} %{inside}",
                    flush=True,
                )


def show_transfer(folder: Path, seeds: int) -> None:
    """Choose on FRAMES, and release everything in the table on SciFact."""
    frames, scifact = Retrieval.frames(folder), Retrieval.scifact(folder)
    scores = compute_scores(frames)
    pairs = list_pairs(frames, np.arange(len(frames.queries)))
    queries = np.arange(len(scifact.queries))
    for epsilon in TRANSFER:
        made = ss.plan.choose(
            "retrieval",
            benchmark=(scores, pairs),
            records=len(scifact.records),
            k=K,
            epsilon=epsilon,
            delta=1e-6,
            source="public",
        )
        print(f"\nepsilon {epsilon:g}: {made.chosen.mechanism} is chosen", flush=True)
        means = {}
        for row in made.candidates:
            times = seeds if row.utility > 0.5 * made.chosen.utility else 2
            values = [release_recall(scifact, row, queries, seed, public_scores=scores) for seed in range(times)]
            means[row.mechanism] = float(np.mean(values))
            spread = np.std(values, ddof=1)
            print(
                f"  {row.mechanism:<34} {np.mean(values):.3f} ± {spread:.3f}  predicted {row.utility:.3f}", flush=True
            )
        behind = max(means.values()) - means[made.chosen.mechanism]
        print(f"  the chosen one is {behind:.3f} behind the best: {'within' if behind <= 0.02 else 'NOT WITHIN'} 0.02")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", choices=("coverage", "transfer", "small"))
    options = parser.parse_args()
    start = time.perf_counter()
    if options.only in (None, "transfer"):
        show_transfer(options.data_dir, options.seeds)
    if options.only in (None, "coverage"):
        show_coverage(options.data_dir, options.seeds)
    if options.only in (None, "small"):
        show_small_samples(options.data_dir, options.seeds)
    print(f"\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
