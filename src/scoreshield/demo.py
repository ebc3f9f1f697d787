"""The demo: one release of each kind on public handwritten digits, a picture, certificates and a plan.

The data are scikit-learn's digits (1,797 images of 8 x 8 pixels; Alpaydin & Kaynak, UCI, 1998). The first 297 are a
public reference set. Their mean is subtracted from all vectors, so that cosines spread. The next image is the query,
and the other 1,499 are the collection. All are public, so this module may draw clean scores. No other module may.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import scoreshield as ss
from scoreshield.geometry.arrays import Progress

EPSILON, DELTA = 10.0, 1e-6
REFERENCE, GRAM_RECORDS, GRAM_RADIUS = 297, 200, 1.0


@dataclass(frozen=True)
class DemoRelease:
    """One release of the demo and how far it is from the truth."""

    name: str
    release: ss.Release
    noisy_error: float
    projected_error: float
    seconds: float


@dataclass(frozen=True)
class DemoSummary:
    """The results of the demo: its releases, their accuracy, a plan, and the files."""

    releases: tuple[DemoRelease, ...]
    clean_matches: int
    private_matches: int
    chance_matches: float
    plan: str
    files: tuple[Path, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "releases": [
                {
                    "name": line.name,
                    "guarantee": line.release.guarantee.to_dict(),
                    "noisy_error": line.noisy_error,
                    "projected_error": line.projected_error,
                }
                for line in self.releases
            ],
            "same_digit_in_best_10": {
                "clean": self.clean_matches,
                "private": self.private_matches,
                "chance": self.chance_matches,
            },
            "plan": self.plan,
            "files": [str(path) for path in self.files],
        }

    def show(self, console: Console) -> None:
        console.print(str(self.releases[0].release.guarantee), highlight=False, soft_wrap=True)
        table = Table(title="One release of each kind, on public data (so that errors can be shown)")
        for column in ("release", "promise", "protects", "noise sd", "rms error: noisy", "projected", "time"):
            table.add_column(column, justify="left" if column in ("release", "protects") else "right")
        for line in self.releases:
            g = line.release.guarantee
            table.add_row(
                line.name,
                f"({g.epsilon:g}, {g.delta:.0e})",
                "one record" if g.covers_record_replacement else f"radius {GRAM_RADIUS:g}",
                f"{g.noise_std:.3f}",
                f"{line.noisy_error:.3f}",
                f"{line.projected_error:.3f}",
                f"{line.seconds:.2f} s",
            )
        console.print(table)
        console.print(
            f"Of the ten best matches of the query, {self.clean_matches} show the same digit by the clean scores and "
            f"{self.private_matches} by the private ones (chance: {self.chance_matches:.1f}).",
            highlight=False,
        )
        console.print(f"Planned as a matcher of digits: {self.plan}", highlight=False)
        for path in self.files:
            console.print(f"  {path}", highlight=False, soft_wrap=True)


def run_demo(output: Path, progress: Progress | None = None) -> DemoSummary:
    """Make three releases, their certificates, a picture and a plan in a folder."""
    from scoreshield.report.certificate import save_with_certificate

    vectors, digits = _load_digits()
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ss.FileError(f"Cannot make the folder {output}: {error.strerror}.") from None

    query, collection = vectors[0], vectors[1:]
    digit, labels = digits[0], digits[1:]
    by_digit = np.argsort(labels[:GRAM_RECORDS], kind="stable")
    small = collection[by_digit]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    clean_scores = unit[1:] @ unit[0]
    clean_gram = unit[1:][by_digit] @ unit[1:][by_digit].T

    contract: dict[str, Any] = {"epsilon": EPSILON, "delta": DELTA}
    scores, scores_time = _measure_time(lambda: ss.release_scores(collection, query, **contract))
    row, row_time = _measure_time(lambda: ss.release_row(small, 0, **contract))
    radius = ss.GramRadius(GRAM_RADIUS)
    gram, gram_time = _measure_time(lambda: ss.release_gram(small, adjacency=radius, progress=progress, **contract))

    lines = (
        DemoRelease(
            "scores",
            scores,
            _compute_rms(scores.noisy, clean_scores),
            _compute_rms(scores.scores, clean_scores),
            scores_time,
        ),
        DemoRelease(
            "row", row, _compute_rms(row.noisy, clean_gram[0]), _compute_rms(row.scores, clean_gram[0]), row_time
        ),
        DemoRelease("gram", gram, _compute_rms(gram.noisy, clean_gram), _compute_rms(gram.gram, clean_gram), gram_time),
    )
    files = []
    for line in lines:
        path = output / f"demo-{line.name}.npz"
        save_with_certificate(line.release, path)
        files += [path, path.with_suffix(".txt")]
    picture = output / "demo.png"
    from scoreshield.report.plots import draw_three_regimes, save_picture

    save_picture(
        draw_three_regimes(
            scores=(clean_scores, scores),
            row=(clean_gram[0], row),
            gram=(clean_gram, gram),
            note="Clean scores are drawn only because these data (handwritten digits) are public.",
        ),
        picture,
    )
    page = output / "demo-plan.html"
    answer = _save_plan(collection, labels, page)
    clean_best = np.argsort(-clean_scores)[:10]
    return DemoSummary(
        lines,
        int((labels[clean_best] == digit).sum()),
        int((labels[scores.top_k(10)] == digit).sum()),
        10 * float((labels == digit).mean()),
        answer,
        (picture, page, *files),
    )


def _save_plan(collection: NDArray[np.float32], labels: NDArray[np.int64], page: Path) -> str:
    """Plan the same budget for a matcher that decides whether two images show the same digit."""
    from scoreshield.report.plan_page import save_plan_page

    impostor, genuine = ss.plan.scores_of_collection(collection, labels, research=True)
    plan = ss.plan.verification(
        impostor, genuine, target_fmr=0.01, target_tar=0.3, epsilon=EPSILON, delta=DELTA, source="public"
    )
    save_plan_page(plan, page)
    return plan.answer


def _load_digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ss.InvalidInput("The demo needs the 'demo' extra: pip install 'scoreshield[demo]'.") from None
    data = load_digits()
    vectors = data.data - data.data[:REFERENCE].mean(axis=0)
    return vectors[REFERENCE:].astype(np.float32), data.target[REFERENCE:]


def _measure_time(make: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    return make(), time.perf_counter() - start


def _compute_rms(released: NDArray[np.float64], clean: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean((released - clean) ** 2)))
