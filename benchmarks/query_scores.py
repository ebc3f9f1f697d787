"""Print the scores of queries that ship in `scoreshield.decisions.query_tables`, from public scores of FRAMES.

python benchmarks/query_scores.py --data-dir DIR

DIR holds the compact data sets. FRAMES has 824 questions and 2,519 titles of Wikipedia pages, embedded with
all-MiniLM-L6-v2. The questions are sorted by how far their relevant scores lie above the 10th best irrelevant one, and
every eighth is kept. Of the eight ways to do so, the one is printed whose predictions are nearest to those of all
questions, over several laws. Of a question's irrelevant scores only some quantiles are kept. It takes half a minute
and prints the same numbers every time.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

import scoreshield as ss
from scoreshield.decisions.queries import QueryScores
from scoreshield.decisions.query_tables import RANKS

EVERY, DIGITS, K = 8, 3, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    with np.load(parser.parse_args().data_dir / "frames_minilm.npz") as file:
        scores, pairs = (file["query_emb"] @ file["title_emb"].T).astype(np.float64).clip(-1, 1), file["qrels"]
    relevant = [np.sort(scores[q, pairs[pairs[:, 0] == q, 1]])[::-1] for q in range(len(scores))]
    irrelevant = []
    for q, row in enumerate(scores):
        others = np.delete(row, pairs[pairs[:, 0] == q, 1])
        irrelevant.append(np.interp(np.log(RANKS), np.log(np.arange(1, len(others) + 1)), np.sort(others)[::-1]))
    tenth = [np.interp(np.log(10), np.log(RANKS), far) for far in irrelevant]
    margin = np.array([near.mean() for near in relevant]) - tenth
    order = np.argsort(margin, kind="stable")
    whole = QueryScores(scores, pairs)
    laws: list[object] = [0, 0.05, 0.2]
    laws += [ss.StaircaseNoise.calibrate(epsilon, 2.0) for epsilon in (10, 12)]
    laws += [ss.randomised_response(8, [0.3, 0.37, 0.44, 0.51, 0.58]), ss.randomised_response(10, [0.4, 0.5, 0.6])]
    laws += [ss.AnchoredWindows(k=K).choose(epsilon, 2519, (-1.0, 1.0)).law for epsilon in (7, 8, 10)]
    wanted = np.array([whole.predict_recall(law, k=K).value for law in laws])  # type: ignore[arg-type]
    best, nearest = np.inf, None
    for first in range(EVERY):
        chosen = order[first::EVERY]
        rows = [(tuple(np.round(irrelevant[q], DIGITS)), tuple(np.round(relevant[q], DIGITS))) for q in np.sort(chosen)]
        part = QueryScores.from_ranks(rows, RANKS, records=scores.shape[1], sampled=len(scores), origin="FRAMES")
        gap = np.abs([part.predict_recall(law, k=K).value for law in laws] - wanted).max()  # type: ignore[arg-type]
        if gap < best:
            best, nearest = gap, rows
    assert nearest is not None
    print(f"{len(nearest)} questions; predictions differ from those of all by at most {best:.4f}", file=sys.stderr)
    for far, near in nearest:
        print(f'    "{" ".join(f"{1000 * s:.0f}" for s in far)} : {" ".join(f"{1000 * s:.0f}" for s in near)}",')


if __name__ == "__main__":
    main()
