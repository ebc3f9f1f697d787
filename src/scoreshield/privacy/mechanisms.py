"""The public facts about each mechanism and each kind of release, in one table each.

Certificates and the checks of files read them. A new mechanism is one row of `MECHANISMS`. A new kind of release is
also one name in `Regime` and one row of `REGIMES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: What a release can be of.
Regime = Literal["scores", "row", "gram", "matches", "top-k", "histogram", "index", "batch", "hits"]


@dataclass(frozen=True)
class RegimeFacts:
    """The public facts about one kind of release.

    Attributes:
        public: What the certificate lists as public, beside the number, order and dimension of the records.
        dimensions: How many dimensions the released object can have.
    """

    public: str
    dimensions: tuple[int, ...]


@dataclass(frozen=True)
class MechanismFacts:
    """The public facts about one mechanism.

    Attributes:
        sentence: The sentence of the certificate.
        laws: What can be released with it, each with the name of the law of the noise on entries; None if no noise is
            added to entries.
        is_pure: True if the mechanism takes no delta, False if it needs one, None if both occur.
    """

    sentence: str
    laws: dict[Regime, str | None]
    is_pure: bool | None = True


REGIMES: dict[Regime, RegimeFacts] = {
    "scores": RegimeFacts("the query, ", (1, 2)),
    "row": RegimeFacts("the index of the record, ", (1,)),
    "gram": RegimeFacts("", (2,)),
    "matches": RegimeFacts("the query, the threshold, ", (1,)),
    "top-k": RegimeFacts("the query, ", (1,)),
    "histogram": RegimeFacts("the bins, ", (1,)),
    "index": RegimeFacts("the projection, ", (2,)),
    "batch": RegimeFacts("the queries, the levels, ", (2,)),
    "hits": RegimeFacts("the queries, the cuts, ", (1,)),
}

MECHANISMS: dict[str, MechanismFacts] = {
    "gaussian": MechanismFacts(
        "Gaussian noise.",
        {"scores": "gaussian", "row": "gaussian", "gram": "gaussian", "index": "gaussian", "histogram": None},
        is_pure=False,
    ),
    "laplace": MechanismFacts(
        "Laplace noise: one record moves one score, so this is private without delta.", {"scores": "laplace"}
    ),
    "staircase": MechanismFacts(
        "Staircase noise (Geng and Viswanath): one record moves one score, so this is private without delta.",
        {"scores": "staircase"},
    ),
    "custom": MechanismFacts(
        "Noise of a custom law: a public table of probabilities on the grid. The privacy profile is the larger of what "
        "was claimed for the law and what was computed from this table, for every move of one score.",
        {"scores": "custom"},
        is_pure=False,  # a table has ends, and a move shows what lies beyond them
    ),
    "optimal": MechanismFacts(
        "A table of probabilities on public score levels, the best for its stated purpose, checked in whole numbers.",
        {"scores": "levels"},
        is_pure=None,
    ),
    "levels": MechanismFacts(
        "A public table of probabilities on score levels, checked in whole numbers.", {"scores": "levels"}, is_pure=None
    ),
    "anchored": MechanismFacts(
        "A private quantile of the scores, by the exponential mechanism on counts; then one cell of a public scale "
        "around it for each record, by randomised response on windows. The two budgets add up to the promise.",
        {"scores": None},
    ),
    "randomised-response": MechanismFacts("Randomised response on one bit for each record.", {"matches": None}),
    "permute-and-flip": MechanismFacts(
        "Permute-and-flip selection on scores: one record moves one score.", {"top-k": None}
    ),
    "gumbel": MechanismFacts(
        "Gumbel noise on scores: one record moves one score. The release names the best records, without scores.",
        {"top-k": None},
    ),
    "geometric": MechanismFacts("Two-sided geometric noise on counts.", {"histogram": None}),
    "privunit": MechanismFacts(
        "PrivUnit: each vector is replaced by a random direction; directions near the vector are more likely.",
        {"index": None},
        is_pure=None,  # a private PCA and a private center need a delta
    ),
    "codebook": MechanismFacts(
        "Randomised response over all sets of public codewords: each record sends one set, the true one or a uniform "
        "one. The promise holds if the codewords were chosen without the records, which the caller states.",
        {"index": None},
    ),
    "screen-and-refine": MechanismFacts(
        "Randomised response screens records; scores with staircase noise are released for those that pass.",
        {"matches": None},
    ),
    "set-response": MechanismFacts(
        "Randomised response: each record sends one symbol, the queries that it answers best and a level of its score "
        "for each of them. The true symbol is e^(epsilon per record) times as likely as any other one.",
        {"batch": None},
    ),
    "hit-budget": MechanismFacts(
        "A hit budget: a query names records level by level, by coins that favour the records of the level. A secret "
        "counter ends the part of a record after its last hit, or after one miss. Without a file the counters end with "
        "the search, and a new search is a new charge.",
        {"hits": None},
    ),
}
