"""Write one small release file of each kind: `python tests/golden/make_releases.py FOLDER`.

The files in `releases/` were written by the version before the loaders got their limits. They are never written anew:
a later version must load them with the same meaning, which `contents.json` states. The verdicts and
their warnings were added to its certificates when certificates got them.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats

import scoreshield as ss

#: What fields were called when the files were written, by their names now.
FORMER_NAMES = {"candidates": "told"}


def releases() -> dict[str, Any]:
    """The releases by file name: seeded generators, six public records of five dimensions."""
    rng = np.random.default_rng(20)
    rows = rng.standard_normal((6, 5)).astype(np.float32)
    query, labels = rng.standard_normal(5).astype(np.float32), np.array([0, 0, 1, 1, 2, 3])
    people, both = ss.Identity(labels), {"epsilon": 3.0, "delta": 1e-6}
    return {
        "scores-gaussian": ss.release_scores(rows, query, **both, rng=1),
        "scores-batch": ss.release_scores(rows, np.stack([query, -query]), **both, rng=2),
        "scores-identity": ss.release_scores(rows, query, **both, adjacency=people, rng=3),
        "scores-laplace": ss.release_scores(rows, query, epsilon=3.0, mechanism="laplace", rng=4),
        "scores-staircase": ss.release_scores(rows, query, epsilon=3.0, mechanism="staircase", rng=5),
        "scores-optimal": ss.release_scores(rows, query, epsilon=3.0, mechanism="optimal", rng=6),
        "row": ss.release_row(rows, 2, **both, rng=7),
        "gram": ss.release_gram(rows, **both, rng=8),
        "gram-sure": ss.release_gram(rows, **both, denoise="sure", rng=9),
        "gram-factored": ss.release_gram(rows, **both, rng=10).factored(2),
        "gram-radius": ss.release_gram(rows, **both, adjacency=ss.GramRadius(0.5), rng=11),
        "matches": ss.release_matches(rows, query, 0.1, epsilon=3.0, rng=12),
        "matches-refined": ss.release_matches(rows, query, 0.1, epsilon=6.0, refine=0.5, rng=13),
        "top-k": ss.release_top_k(rows, query, 2, epsilon=3.0, rng=14),
        "top-k-gumbel": ss.release_top_k(rows, query, 2, epsilon=3.0, mechanism="gumbel", rng=15),
        "histogram": ss.release_histogram(rows, query, bins=4, epsilon=3.0, rng=16),
        "index-privunit": ss.release_index(rows, epsilon=8.0, rng=17),
        "index-gaussian": ss.release_index(rows, epsilon=8.0, delta=1e-6, mechanism="gaussian", rng=18),
        "index-random": ss.release_index(rows, epsilon=8.0, components=3, rng=19),
        "index-pca": ss.release_index(rows, epsilon=8.0, delta=1e-6, components=3, reduction="pca", rng=20),
        "index-codebook": ss.release_index(
            rows, epsilon=8.0, codebook=ss.PublicCodebook(np.eye(5), source="The axes."), rng=22
        ),
        "index-center": ss.release_index(rows, epsilon=8.0, delta=1e-6, center="private", rng=23),
        "index-public-center": ss.release_index(rows, epsilon=8.0, center=np.full(5, 0.1), rng=24),
        "index-version": ss.release_index(rows, epsilon=4.0, changes="public", ids=list("abcdef"), rng=25).update(
            changed={"b": rows[0]}, added={"g": query}, removed=["a"], rng=26
        ),
        "index-codebook-version": ss.release_index(
            rows, epsilon=4.0, codebook=ss.PublicCodebook(np.eye(5)), changes="public", ids=range(6), rng=27
        ).update(changed={2: rows[0]}, rng=28),
        "scores-custom": ss.release_scores(
            rows,
            query,
            epsilon=3.0,
            delta=1e-6,
            mechanism=ss.CustomNoise.tabulate(scipy.stats.logistic(scale=0.75), step=0.5, label="logistic"),
            rng=29,
        ),
        "scores-levels": ss.release_scores(
            rows, query, epsilon=2.0, mechanism=ss.optimal_channel(2.0, levels=4), rng=21
        ),
        "batch": ss.release_batch(rows, np.stack([query, -query, rows[0]]), epsilon=3.0, k=2, rng=22),
        "batch-two-names": ss.release_batch(
            rows, np.stack([query, -query, rows[0]]), epsilon=3.0, k=2, names=2, levels=[0.1, 0.4], rng=23
        ),
    }


def content(release: Any) -> dict[str, str]:
    """What a release says: its kind, a checksum of its arrays and facts, and its certificate."""
    digest = hashlib.sha256()
    saved = {name: value for name, value in release._fields().items() if not release._is_default(name, value)}
    fields = {FORMER_NAMES.get(name, name): value for name, value in saved.items()}
    for name, value in sorted(fields.items()):
        if name == "guarantee":
            continue
        if isinstance(value, np.ndarray):
            value = [value.dtype.str, list(value.shape), hashlib.sha256(np.ascontiguousarray(value)).hexdigest()]
        digest.update(json.dumps([name, value], sort_keys=True).encode())
    return {"kind": release.kind, "sha256": digest.hexdigest(), "certificate": str(release.guarantee)}


def main(folder: Path) -> None:
    folder.mkdir(parents=True)
    contents = {}
    for name, release in releases().items():
        release.save(folder / f"{name}.npz")
        contents[name] = content(release)
    (folder / "contents.json").write_text(json.dumps(contents, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
