"""`scoreshield search INDEX`: the best records of a query, from a released index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

import scoreshield as ss
from scoreshield.cli.options import Json, PublicRelevant, PublicScores, QueryArray, WorthOptions
from scoreshield.cli.output import read_query, say
from scoreshield.releases.index import PrivateIndex

EXAMPLE = "scoreshield search index.npz --query q.npy --k 5"


class QueryAnswer(NamedTuple):
    """The best records of one query: their ids, and their private scores."""

    ids: list[Any]
    scores: list[float]


def search_command(
    index: Annotated[
        Path,
        typer.Argument(
            help="A released index, as `release index` or PrivateSearch.save wrote it. It needs no embeddings.",
            metavar="INDEX",
        ),
    ],
    query: Annotated[Path, typer.Option(help="The public query, a vector, or a matrix of several, one per row.")],
    k: Annotated[int, typer.Option("--k", help="How many records each query returns.", min=1)] = 10,
    query_array: QueryArray = None,
    public_scores: PublicScores = None,
    public_relevant: PublicRelevant = None,
    as_json: Json = False,
) -> None:
    """Search a released index: the best records of each query, with private scores. This costs no budget."""
    release = ss.load(index)
    if not isinstance(release, PrivateIndex):
        raise ss.InvalidInput(f"{index} holds a {release.kind} release and no index.")
    public = WorthOptions(None, public_scores, public_relevant).read_scores()
    answers = _search(release, index, read_query(query, query_array), k)
    worth = release.worth(k, public_scores=public)
    if as_json:
        facts = {
            "index": str(index),
            "k": k,
            "answers": [answer._asdict() for answer in answers],
            "worth": {"recall": worth.recall, "error": worth.error, "sentence": worth.sentence, "basis": worth.basis},
            "verdict": release.guarantee.verdict,
            "epsilon": release.guarantee.epsilon,
            "delta": release.guarantee.delta,
        }
        typer.echo(json.dumps(facts))
        return
    width = max([2, *(len(str(one)) for answer in answers for one in answer.ids)])
    for number, answer in enumerate(answers):
        if len(answers) > 1:
            say(f"query {number}")
        say(f"rank  {'id':<{width}}  score")
        for rank, (one, score) in enumerate(zip(*answer, strict=True), start=1):
            say(f"{rank:>4}  {one!s:<{width}}  {score:.4f}")
    say(f"worth           {worth.sentence}")
    say(f"verdict         {release.guarantee.verdict}; the search spent nothing")


def _search(release: PrivateIndex, path: Path, queries: Any, k: int) -> list[QueryAnswer]:
    """Search the index, with its ids and without its hidden records where a search saved them beside it."""
    if path.with_name(f"{path.stem}.ids.json").exists():
        saved = ss.PrivateSearch.load(path)
        return [
            QueryAnswer(list(hits.ids), [] if hits.noisy is None else hits.noisy.tolist())
            for hits in saved.search_batch(np.atleast_2d(queries), k)
        ]
    found = release.search(np.atleast_2d(queries), k)
    ids = getattr(release, "ids", None)
    named = found.indices if ids is None else np.asarray(ids)[found.indices]
    return [QueryAnswer(*pair) for pair in zip(named.tolist(), found.scores.tolist(), strict=True)]
