"""Membership inference on a RAG index and a face matcher, with and without ScoreShield, beside the ceiling.

    python benchmarks/membership.py --data-dir DIR     (scifact_* and lfw_dlib.npz; 3.6 processor minutes, two cores)

Every line is a statistic of attack.membership on SciFact or LFW. Intervals are 95 %. Noise is seeded, so it repeats.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy: the processes share the cores

import numpy as np

import scoreshield as ss
from scoreshield.attack import hillclimb, membership
from scoreshield.attack.membership import MembershipResult, Targets
from scoreshield.bench.data import compact
from scoreshield.report import plots

DELTA = 1e-6
EPSILONS = (1.0, 2.0, 5.0, 10.0, 20.0)
ROUNDS = (1, 4, 16, 64)
CUT = 0.45  # of the screening
WORST = 4000  # trials of each kind in the worst case
#: With their ceilings these are six curves in a panel. The tables have all.
DRAWN = ("Gaussian", "staircase", "PrivUnit index")
#: A legend below its panel covers no data.
BELOW = {"fontsize": 8, "loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "ncols": 4, "frameon": False}
COLOURS = {
    "Gaussian": "#6a4c93",
    "Gaussian, narrow range": "#1b6ca8",
    "staircase": "#e09f1f",
    "screening": "#d1495b",
    "PrivUnit index": "#2a9d5c",
}
Line = tuple[str, dict[str, MembershipResult]]


def service(
    name: str, collection: Any, epsilon: float, span: tuple[float, float], seed: int
) -> tuple[Callable[[Any], Any], Any]:
    """What answers queries, and the ceiling where the answers do not carry their own."""
    rows, rng = collection.astype(np.float32), np.random.default_rng(seed)
    if name == "PrivUnit index":
        index = ss.release_index(rows, epsilon=epsilon, rng=rng)
        return index.scores, index.guarantee
    make: dict[str, Callable[[Any], Any]] = {
        "nothing": lambda q: rows @ q.astype(np.float32),
        "Gaussian": lambda q: ss.release_scores(rows, q, epsilon=epsilon, delta=DELTA, rng=rng),
        "Gaussian, narrow range": lambda q: ss.release_scores(
            rows, q, epsilon=epsilon, delta=DELTA, score_range=span, rng=rng
        ),
        "staircase": lambda q: ss.release_scores(rows, q, epsilon=epsilon, mechanism="staircase", rng=rng),
        "screening": lambda q: ss.release_matches(rows, q, CUT, epsilon=epsilon, rng=rng),
    }
    return make[name], None


def statistics_for(name: str, *, unknown: bool = False) -> tuple[str, ...]:
    """Without and with the position; the likelihood where there is a law of additive noise."""
    if name in ("Gaussian", "Gaussian, narrow range", "staircase"):
        return ("best", "position", "likelihood at position", *(("likelihood",) if unknown else ()))
    return ("total" if name == "screening" else "best", "position")


@cache
def abstracts(folder: Path) -> tuple[Any, Any, list[tuple[int, int]]]:
    """Unit rows of the abstracts and of the claims, and which claim is about which abstract."""
    data = compact.load_compact_scifact(folder)
    pairs = [(claim, int(abstract)) for claim, found in enumerate(data.relevant) for abstract in found]
    return _unit(data.document_embeddings), _unit(data.query_embeddings), pairs


def passages(folder: Path, name: str, epsilon: float) -> Line:
    """The attacker has the abstract itself; half of the abstracts are in."""
    game = membership.make_game(abstracts(folder)[0], rng=int(10 * epsilon))
    return _attack(name, epsilon, _some(game, 1500), (0.0, 0.8), statistics_for(name))


def every_statistic(folder: Path, name: str, epsilon: float) -> Line:
    """All statistics, on 600 targets of each kind: the likelihood without a position reads every score."""
    game = membership.make_game(abstracts(folder)[0], rng=3)
    names = membership.STATISTICS if name not in ("nothing", "PrivUnit index") else membership.STATISTICS[:-2]
    return _attack(name, epsilon, _some(game, 600), (0.0, 0.8), names)


def claims(folder: Path, name: str, epsilon: float) -> Line:
    """The weaker attacker has a claim that the abstract supports or refutes; eight fresh halves, all 339 pairs each."""
    rows, asked, pairs = abstracts(folder)
    seen: dict[bool, list[Any]] = {True: [], False: []}
    for split in range(8):
        rng = np.random.default_rng([split, 5])
        half = rng.permutation(len(rows))[: len(rows) // 2]
        place = {int(record): position for position, record in enumerate(half)}
        answer, ceiling = service(name, rows[half], epsilon, (0.0, 0.8), split)
        for kind, answers in seen.items():
            chosen = [(q, d) for q, d in pairs if (d in place) is kind]
            where = [place.get(d, int(rng.integers(len(half)))) for _, d in chosen]
            targets = Targets(asked[[q for q, _ in chosen]], np.array(where))
            answers.append(membership.observe(answer, targets, statistics=("best", "position")))
    promise = ceiling if ceiling is not None else seen[True][0].profile
    found = {}
    for statistic in ("best", "position"):
        both = [np.concatenate([one.values[statistic] for one in answers]) for answers in seen.values()]
        found[statistic] = membership.evaluate_statistic(*both, ceiling=promise, statistic=statistic)
    return name, found


def faces(folder: Path, name: str, epsilon: float) -> Line:
    """Is this person enrolled? One picture a person is in the matcher, the probe is another one."""
    data = compact.load_compact_lfw_faces(folder, "dlib")
    rows = _unit(data.embeddings)
    order = np.argsort(data.identity, kind="stable")
    _, first, count = np.unique(data.identity[order], return_index=True, return_counts=True)
    two = first[count > 1]
    game = membership.make_game(rows[order[two]], probes=rows[order[two + 1]], rng=int(10 * epsilon), reference=0.15)
    return _attack(name, epsilon, game, (0.7, 1.0), statistics_for(name, unknown=True))


def many(folder: Path, name: str, epsilon: float, rounds: int) -> Line:
    """The same question over and over, on 600 of 1,200 abstracts."""
    rows = abstracts(folder)[0][:1200]
    game = membership.make_game(rows, rng=11)
    return _attack(name, epsilon, game, (0.0, 0.8), statistics_for(name), rounds)


def worst_case(_: Path, name: str, epsilon: float) -> Line:
    """Where the target is not in, its place holds its opposite: what the guarantee is about, and the ceiling is met."""
    queries = _unit(np.random.default_rng(4).standard_normal((2 * WORST, 32)))
    kinds = {sign: queries[part] for sign, part in ((1, slice(WORST)), (-1, slice(WORST, None)))}
    own, others, places = np.ones(1), -np.ones((WORST, 1)), np.arange(2 * WORST)
    if name == "PrivUnit index":
        answer, ceiling = service(name, np.vstack([kinds[1], -kinds[-1]]), epsilon, (-1.0, 1.0), 1)
        ins, outs = Targets(kinds[1], places[:WORST]), Targets(kinds[-1], places[WORST:])
        return name, membership.score_attack(answer, ins, outs, statistics="position", ceiling=ceiling)
    statistic = "position" if name == "screening" else "likelihood at position"
    rng, seen = np.random.default_rng(6), []
    for sign, asked in kinds.items():

        def answer(query: Any, sign: int = sign) -> Any:
            seed = int(rng.integers(2**31))
            return service(name, sign * query[None], epsilon, (-1.0, 1.0), seed)[0](query)

        targets = Targets(asked, 0 * places[:WORST], own, others)
        seen.append(membership.observe(answer, targets, statistics=statistic))
    values = [answers.values[statistic] for answers in seen]
    return name, {statistic: membership.evaluate_statistic(*values, ceiling=seen[0].profile, statistic=statistic)}


def climbs(folder: Path) -> list[tuple[str, float, float, float, float, tuple[tuple[int, float], ...]]]:
    """Templates of 40 people from a matcher's answers, by hill climbing and by the linear attack, 16 d answers each."""
    rows = _unit(compact.load_compact_lfw_faces(folder, "dlib").embeddings)[::190][:40]
    d = rows.shape[1]
    found = []
    for label, sigma in (
        ("no noise", 0.0),
        *((f"epsilon {e:g} an answer", ss.calibrate(e, DELTA, 2.0)) for e in (100, 10)),
        ("epsilon 10 in all", ss.calibrate(10, DELTA, 2.0 * np.sqrt(16 * d))),
    ):
        ends = []
        for attack in (hillclimb.hill_climb, hillclimb.linear_attack):
            runs = [
                attack(hillclimb.Matcher(t, sigma=sigma, threshold=0.9, rng=i), queries=16 * d, delta=DELTA, rng=i)
                for i, t in enumerate(rows)
            ]
            ends.append(runs)
        cosine = [float(np.mean([run.cosine for run in runs])) for runs in ends]
        passed = float(np.mean([run.accepted for run in ends[1]]))
        history = np.mean([[c for _, c in run.history] for run in ends[0]], axis=0)
        steps = [q for q, _ in ends[0][0].history]
        curve = tuple(zip(steps, history.tolist(), strict=True))
        found.append((label, hillclimb.budget_at(16 * d, sigma, DELTA), cosine[0], cosine[1], passed, curve))
    return found


def _attack(
    name: str, epsilon: float, game: membership.Game, span: tuple[float, float], names: Any, rounds: int = 1
) -> Line:
    answer, ceiling = service(name, game.collection, epsilon, span, 1)
    return name, membership.score_attack(
        answer, game.members, game.non_members, statistics=names, rounds=rounds, ceiling=ceiling
    )


def _some(game: membership.Game, count: int) -> membership.Game:
    """The same collection and fewer targets; they are in random order already."""
    kinds = []
    for targets in game[1:]:
        assert targets.positions is not None
        assert targets.others is not None
        part = slice(count)
        kinds.append(Targets(targets.queries[part], targets.positions[part], targets.own, targets.others[part]))
    return membership.Game(game.collection, *kinds)


def _unit(rows: Any) -> Any:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def table(title: str, lines: list[tuple[str, Line]]) -> None:
    results = [r for _, (_, by_name) in lines for r in by_name.values()]
    print(f"\n{title}\n{'-' * len(title)}")
    print(f"members, non-members: {results[0].trials[0]:,}, {results[0].trials[1]:,}")
    print(f"{'epsilon':>8}  {'protected by':<24}{'statistic':<24}{'AUC':>7}{'interval':>17}{'at most':>9}"
          f"{'TPR 1 %':>9}{'interval':>17}{'at most':>9}")  # fmt: skip
    for epsilon, (name, by_name) in lines:
        for r in by_name.values():
            print(f"{epsilon:>8}  {name:<24}{r.statistic:<24}{r.auc:>7.3f}{_interval(r.auc_interval):>17}"
                  f"{r.ceiling_auc:>9.3f}{r.tpr_at_1_percent:>9.3f}{_interval(r.tpr_interval):>17}{r.ceiling_tpr:>9.3f}"
                  f"{'  BROKEN' if r.violation else ''}", flush=True)  # fmt: skip
    print(f"lines above their ceiling: {sum(r.violation for r in results)} of {len(results)}")


def _budget(name: str, epsilon: float, rounds: int = 1) -> str:
    if name == "nothing":
        return "none"
    if name == "PrivUnit index" and rounds > 1:  # paid once, however often it is asked
        return f"1 ({rounds})"
    return f"{epsilon:g}" if rounds == 1 else f"{epsilon:g} x {rounds}"


def _interval(ends: tuple[float, float]) -> str:
    return f"[{ends[0]:.3f}, {ends[1]:.3f}]"


def draw(
    swept: dict[tuple[str, float], MembershipResult],
    repeated: dict[tuple[str, int], MembershipResult],
    climbed: Any,
    path: Path,
) -> None:
    figure = plots.make_figure(11.5, 8.6)
    axes = figure.subplots(2, 2)
    for panel, value, ends, most, label in (
        (axes[0, 0], "auc", "auc_interval", "ceiling_auc", "AUC"),
        (axes[0, 1], "tpr_at_1_percent", "tpr_interval", "ceiling_tpr", "members found at 1 % false alarms"),
    ):
        for name in DRAWN:
            colour = COLOURS[name]
            results = [swept[name, e] for e in EPSILONS]
            points = np.array([getattr(r, value) for r in results])
            low, high = np.array([getattr(r, ends) for r in results]).T
            panel.plot(EPSILONS, points, color=colour, marker="o", markersize=4, label=name)
            panel.errorbar(EPSILONS, points, (points - low, high - points), color=colour, alpha=0.4, linestyle="none")
            panel.plot(EPSILONS, [getattr(r, most) for r in results], color=colour, linestyle=":", linewidth=1.4)
        panel.set(xscale="log", xticks=EPSILONS, xticklabels=[f"{e:g}" for e in EPSILONS], xlabel="ε", ylabel=label)
        panel.minorticks_off()
        panel.legend(**BELOW)
    bare = swept["nothing", EPSILONS[0]]
    axes[0, 0].set_title(f"Is this abstract in the index? (unprotected: {bare.auc:.3f})", fontsize=11)
    axes[0, 1].set_title(f"For a cautious attacker (unprotected: {bare.tpr_at_1_percent:.3f})", fontsize=11)
    figure.suptitle("Measured attacks; dotted lines are the ceilings of the guarantees", fontsize=12)
    panel = axes[1, 0]
    for name in DRAWN:
        results = [repeated[name, m] for m in ROUNDS]
        panel.plot(ROUNDS, [r.auc for r in results], color=COLOURS[name], marker="o", markersize=4, label=name)
        panel.plot(ROUNDS, [r.ceiling_auc for r in results], color=COLOURS[name], linestyle=":", linewidth=1.4)
    panel.set(
        xscale="log",
        xticks=ROUNDS,
        xticklabels=ROUNDS,
        xlabel="times asked, ε = 1 each",
        ylabel="AUC",
        ylim=(0.45, 1.02),
    )
    panel.minorticks_off()
    panel.set_title("Asked again and again", fontsize=11)
    panel.legend(**BELOW)
    panel = axes[1, 1]
    for (label, *_, curve), colour in zip(climbed, ("#22272b", "#e09f1f", "#6a4c93", "#d1495b"), strict=True):
        panel.plot(
            *zip(*curve, strict=True), color=colour, marker="o", markersize=3, label=label.replace("epsilon", "ε =")
        )
    panel.axhline(0.9, color="#7d868e", linewidth=1, linestyle="--")
    panel.set(xscale="log", xlabel="answers", ylabel="cosine with the template", ylim=(-0.1, 1.05))
    panel.set_title("Hill climbing to a face template (dashed: accepted)", fontsize=11)
    panel.legend(**BELOW)
    plots.save_picture(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("docs/images/membership.png"))
    arguments = parser.parse_args()
    start = time.perf_counter()
    folder = arguments.data_dir
    plain = ("nothing", 1.0)
    parts: dict[str, tuple[Callable[..., Line], list[tuple[Any, ...]]]] = {
        "passages": (passages, [plain, *((name, e) for e in EPSILONS for name in COLOURS)]),
        "statistics": (
            every_statistic,
            [plain, ("Gaussian", 10.0), ("staircase", 5.0), ("staircase", 10.0), ("PrivUnit index", 10.0)],
        ),
        "claims": (claims, [plain, ("Gaussian", 10.0), ("staircase", 5.0), ("PrivUnit index", 10.0)]),
        "faces": (faces, [plain, *((n, e) for e in (1.0, 5.0, 10.0) for n in COLOURS if n != "screening")]),
        "many": (many, [(n, 1.0, m) for n in DRAWN for m in ROUNDS]),
        "worst": (worst_case, [(n, e) for e in (1.0, 5.0) for n in COLOURS if n != "Gaussian, narrow range"]),
    }
    with ProcessPoolExecutor(2) as pool:
        asked = {part: [(job, pool.submit(run, folder, *job)) for job in jobs] for part, (run, jobs) in parts.items()}
        climbing = pool.submit(climbs, folder)
        done = {part: [(job, line.result()) for job, line in jobs] for part, jobs in asked.items()}
        climbed = climbing.result()
    for part, title in {
        "passages": "SciFact, 2,591 of 5,183 abstracts; the attacker has the abstract",
        "statistics": "SciFact, every statistic",
        "claims": "SciFact, the attacker has a claim about the abstract",
        "faces": "LFW (dlib), 779 of 1,559 people enrolled; the attacker has another picture",
        "many": "SciFact, 600 abstracts; the same question m times, epsilon 1 each, for the index 1 in all",
        "worst": "The worst case: the place holds the target or its opposite",
    }.items():
        table(title, [(_budget(*job), line) for job, line in done[part]])
    print("\nLFW (dlib), templates of 40 people, 2,048 answers, threshold 0.9\n" + "-" * 64)
    print(f"{'noise':<26}{'total epsilon':>15}{'hill climbing':>15}{'linear attack':>15}{'linear accepted':>17}")
    for label, total, climb, linear, passed, _ in climbed:
        print(f"{label:<26}{total:>15,.0f}{climb:>15.3f}{linear:>15.3f}{passed:>17.2f}")
    swept, repeated = (
        {(job[0], job[-1]): list(by_name.values())[-1] for job, (_, by_name) in done[part]}
        for part in ("passages", "many")
    )
    draw(swept, repeated, climbed, arguments.out)
    print(f"\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
