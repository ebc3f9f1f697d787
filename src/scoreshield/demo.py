"""The demo: search among handwritten digits, where it works and where it cannot, with a picture and certificates.

The data are scikit-learn's digits (1,797 images of 8 x 8 pixels; Alpaydin & Kaynak, UCI, 1998). The first 297 are a
public reference set: their mean is subtracted from all vectors, so that cosines spread, and their scores set the levels
and the threshold. The next 40 images are queries, and the other 1,460 are the private collection. These
images are public, so this module may count what a release found and draw clean answers. No other module may.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import scoreshield as ss
from scoreshield.decisions.queries import QueryScores
from scoreshield.geometry.arrays import Progress
from scoreshield.privacy.verdicts import format_right_guesses

EPSILON, INDEX_EPSILON, DELTA = 6.0, 20.0, 1e-6
REFERENCE, QUERIES, BEST, GRAM_RECORDS = 297, 40, 10, 100
FALSE_MATCH_RATE = 0.01

Float = NDArray[np.float64]
Ints = NDArray[np.intp]


@dataclass(frozen=True)
class Digits:
    """The images, as pictures and as unit vectors, with the digit that each shows."""

    images: Float
    vectors: Float
    digits: NDArray[np.int64]

    @classmethod
    def load(cls) -> Digits:
        try:
            from sklearn.datasets import load_digits
        except ImportError:
            raise ss.InvalidInput("The demo needs the 'demo' extra: pip install 'scoreshield[demo]'.") from None
        data = load_digits()
        vectors = data.data - data.data[:REFERENCE].mean(axis=0)
        return cls(data.images, vectors / np.linalg.norm(vectors, axis=1, keepdims=True), data.target)

    @property
    def queries(self) -> Float:
        return self.vectors[REFERENCE : REFERENCE + QUERIES]

    @property
    def collection(self) -> Float:
        """The records that count as private."""
        return self.vectors[REFERENCE + QUERIES :]

    @cached_property
    def is_same(self) -> NDArray[np.bool_]:
        """Whether a record shows the digit of a query, (queries, records)."""
        asked, held = self.digits[REFERENCE : REFERENCE + QUERIES], self.digits[REFERENCE + QUERIES :]
        return np.equal(asked[:, None], held)

    @cached_property
    def public_scores(self) -> tuple[Float, Float]:
        """The cosines of reference images that show different digits, and of those that show the same."""
        first, second = np.triu_indices(REFERENCE, 1)
        scores = np.vecdot(self.vectors[first], self.vectors[second])
        is_same = self.digits[first] == self.digits[second]
        return scores[~is_same], scores[is_same]

    def rank(self) -> Ints:
        """Find the best records of each query without privacy."""
        return np.argsort(-(self.queries @ self.collection.T), axis=1)[:, :BEST]

    def count_same(self, best: Ints) -> Float:
        """Count, for each query, the named records that show its digit."""
        counts: Float = np.take_along_axis(self.is_same, best, axis=1).sum(axis=1).astype(np.float64)
        return counts


@dataclass(frozen=True)
class DemoRelease:
    """One way to search privately: what it found, and why.

    Attributes:
        name: What was released.
        release: The release, of the first query where each query has its own.
        covers: What one promise covers.
        best: The best records of each query.
        counts: How many of them show the digit of the query.
        reason: Why it works, or cannot.
    """

    name: str
    release: ss.Release
    covers: str
    best: Ints
    counts: Float
    reason: str

    @property
    def promise(self) -> str:
        g = self.release.guarantee
        return f"ε = {g.epsilon:g}" + (f", δ = {g.delta:.0e}" if g.delta else "")

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "guarantee": self.release.guarantee.to_dict(),
            "covers": self.covers,
            "same_digit_in_best_10": float(self.counts.mean()),
            "spread": float(self.counts.std(ddof=1)),
            "reason": self.reason,
        }


@dataclass(frozen=True)
class DemoSummary:
    """The results of the demo: its releases, what is found without privacy and by chance, a decision, and the files."""

    releases: tuple[DemoRelease, ...]
    clean: Float
    chance: float
    gram: str
    decision: str
    files: tuple[Path, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "releases": [line.to_dict() for line in self.releases],
            "same_digit_in_best_10": {"clean": float(self.clean.mean()), "chance": self.chance},
            "gram": self.gram,
            "decision": self.decision,
            "files": [str(path) for path in self.files],
        }

    def show(self, console: Console) -> None:
        console.print(str(self.releases[0].release.guarantee), highlight=False, soft_wrap=True)
        table = Table(
            title=f"Of the {BEST} best matches of a digit, how many show the same digit? ({QUERIES} queries)",
            caption="Compare how often an attacker is right at most, not epsilons: equal epsilons protect differently.",
        )
        for column in ("release", "promise", "covers", "attacker right", "same digit", "why"):
            table.add_column(column, justify="right" if column == "same digit" else "left")
        table.add_row("clean scores", "none", "", "100 %", _format_counts(self.clean), "not private")
        for line in self.releases:
            right = format_right_guesses(line.release.guarantee.attack_advantage)
            table.add_row(line.name, line.promise, line.covers, right, _format_counts(line.counts), line.reason)
        table.add_row("chance", "", "", "50 %", f"{self.chance:.1f}", "")
        console.print(table)
        console.print(f"Cannot work: {self.gram}", highlight=False)
        console.print(f"One decision: {self.decision}", highlight=False)
        for path in self.files:
            console.print(f"  {path}", highlight=False, soft_wrap=True)
        best = self.releases[0]
        console.print(
            f"Private search at epsilon {EPSILON:g} names {best.counts.mean():.1f} images of the right digit among "
            f"{BEST}; without privacy it is {self.clean.mean():.1f}.\nOn your own vectors: "
            "scoreshield release scores vectors.npy --query query.npy --epsilon 8 --for ranking "
            "--top-k 10 --output scores.npz",
            highlight=False,
            soft_wrap=True,
        )


def run_demo(output: Path, progress: Progress | None = None) -> DemoSummary:
    """Search in three ways, release a matrix and a decision, and write releases, certificates and a picture."""
    from scoreshield.report.certificate import save_with_certificate
    from scoreshield.report.plots import draw_best_matches, save_picture

    data = Digits.load()
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ss.FileError(f"Cannot make the folder {output}: {error.strerror}.") from None
    clean = data.rank()
    lines = (release_levels(data), release_index(data), release_gaussian(data))
    files = []
    for line, name in zip(lines, ("levels", "index", "gaussian"), strict=True):
        path = output / f"demo-{name}.npz"
        save_with_certificate(line.release, path)
        files += [path, path.with_suffix(".txt")]
    gram = _release_gram(data, progress)
    picture = output / "demo.png"
    answers = {"without privacy": clean} | {f"{line.name}\n{line.promise}": line.best for line in lines}
    figure = draw_best_matches(
        query=data.images[REFERENCE],
        records=data.images[REFERENCE + QUERIES :],
        is_same=data.is_same[0],
        best={name: best[0] for name, best in answers.items()},
        counts={name: data.count_same(best) for name, best in answers.items()},
        chance=BEST * float(data.is_same.mean()),
        note="Clean answers are drawn only because these data (handwritten digits) are public.",
    )
    save_picture(figure, picture)
    decision = _accept_pairs(data)
    return DemoSummary(
        lines, data.count_same(clean), BEST * float(data.is_same.mean()), gram, decision, (picture, *files)
    )


def release_levels(data: Digits) -> DemoRelease:
    """Release the level of each score, with cuts that were chosen on the public images."""
    irrelevant, relevant = data.public_scores
    cuts = ss.retrieval_cuts(EPSILON, len(data.collection), BEST, irrelevant, relevant, 6).cuts
    table = ss.randomised_response(EPSILON, cuts)
    return _release_queries(
        data,
        "levels of the scores",
        lambda query: ss.release_scores(data.collection, query, epsilon=EPSILON, mechanism=table),
        "public images set the levels; few records appear in a high level by chance",
    )


def release_gaussian(data: Digits) -> DemoRelease:
    """Release scores with Gaussian noise, as the paper does."""
    sigma = ss.calibrate(EPSILON, DELTA, 2.0)
    return _release_queries(
        data,
        "Gaussian noise",
        lambda query: ss.release_scores(data.collection, query, epsilon=EPSILON, delta=DELTA, mechanism="gaussian"),
        f"noise of standard deviation {sigma:.1f} on every score, and cosines differ by less than 1",
    )


def _release_queries(data: Digits, name: str, release: Callable[[Float], ss.ScoreRelease], reason: str) -> DemoRelease:
    releases = [release(query) for query in data.queries]
    best = np.array([one.top_k(BEST) for one in releases])
    return DemoRelease(name, releases[0], "one query", best, data.count_same(best), reason)


def release_index(data: Digits) -> DemoRelease:
    """Release vectors that answer every query."""
    public = QueryScores.pool(*data.public_scores, origin="the reference images")
    index = ss.release_index(data.collection, epsilon=INDEX_EPSILON, public_scores=public)
    best = index.search(data.queries, BEST).indices
    reason = "each vector is private, and later queries are free"
    return DemoRelease("an index", index, "all queries", best, data.count_same(best), reason)


def _release_gram(data: Digits, progress: Progress | None) -> str:
    """Release all pairwise scores of some records, which no noise can do well, and state why."""
    rows = data.collection[:GRAM_RECORDS]
    release = ss.release_gram(rows, epsilon=EPSILON, delta=DELTA, progress=progress)
    above = np.triu_indices(GRAM_RECORDS, 1)
    kept = np.corrcoef((rows @ rows.T)[above], release.gram[above])[0, 1]
    return (
        f"all pairwise scores of {GRAM_RECORDS} records under the same promise have a correlation of {kept:.2f} with "
        f"the clean ones. One record moves {GRAM_RECORDS - 1} of them, so each carries noise of standard deviation "
        f"{release.guarantee.noise_std:.0f}."
    )


def _accept_pairs(data: Digits) -> str:
    """Release one decision per pair: do a query and a record show the same digit?"""
    impostor, genuine = data.public_scores
    bit = ss.accept_bit(EPSILON, impostor=impostor, genuine=genuine, false_match_rate=FALSE_MATCH_RATE)
    accepted = np.array(
        [
            ss.release_scores(data.collection, query, epsilon=EPSILON, mechanism=bit.table).noisy > bit.threshold
            for query in data.queries
        ]
    )
    true, false = accepted[data.is_same].mean(), accepted[~data.is_same].mean()
    clean = (data.queries @ data.collection.T > np.quantile(impostor, 1 - FALSE_MATCH_RATE))[data.is_same].mean()
    return (
        f"an accept bit at epsilon {EPSILON:g} accepts {true:.0%} of the pairs with the same digit and {false:.1%} of "
        f"the others; without privacy, a threshold from the same public images accepts {clean:.0%}."
    )


def _format_counts(counts: Float) -> str:
    return f"{counts.mean():.1f} ± {counts.std(ddof=1):.1f}"
