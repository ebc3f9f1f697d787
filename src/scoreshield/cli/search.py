"""`scoreshield search INDEX`: the best records of a query, from a released index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

import scoreshield as ss
from scoreshield.cli.options import Json, PublicRelevant, PublicScores, Queries, QueryArray, WorthOptions
from scoreshield.cli.output import read_ids, read_query, say
from scoreshield.distributed.readers import DistributedIndex
from scoreshield.distributed.results import open_release
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
            help="A released index, as `release index` or PrivateSearch.save wrote it, or the folder of one in parts.",
            metavar="INDEX",
        ),
    ],
    query: Queries,
    k: Annotated[int, typer.Option("--k", help="How many records each query returns.", min=1)] = 10,
    ids: Annotated[
        Path | None,
        typer.Option(help="Public ids of the records, one per row of the index: a text of lines or .npy."),
    ] = None,
    query_array: QueryArray = None,
    public_scores: PublicScores = None,
    public_relevant: PublicRelevant = None,
    as_json: Json = False,
) -> None:
    """Search a released index: the best records of each query, with private scores. This costs no budget.

    A record is named by its row number, counted from 0, unless the index or --ids states its id.
    """
    release = _open_index(index)
    public = WorthOptions(None, public_scores, public_relevant).read_scores()
    names = None if ids is None else _read_names(ids, release, index)
    answers = _search(release, index, read_query(query, query_array), k, names)
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


def _open_index(path: Path) -> PrivateIndex | DistributedIndex:
    """Open the file of an index, or the folder of one that was made in blocks."""
    if path.is_dir():
        found = open_release(path)
        if isinstance(found, DistributedIndex):
            return found
        raise ss.InvalidInput(f"{path} holds a release of {found.manifest.kind} and no index.")
    release = ss.load(path)
    if not isinstance(release, PrivateIndex):
        raise ss.InvalidInput(f"{path} holds a {release.kind} release and no index.")
    return release


def _read_names(ids: Path, release: PrivateIndex | DistributedIndex, path: Path) -> list[Any]:
    """Read the public ids of an index that states none, one per record."""
    if getattr(release, "ids", None) is not None or _has_ids_beside(path):
        raise ss.InvalidInput(f"{path} states the ids of its records: leave --ids out.")
    names, records = read_ids(ids), release.guarantee.shape[0]
    if len(names) != records:
        raise ss.InvalidInput(f"--ids must hold one id per record, {records:,} of them. {ids} has {len(names):,}.")
    return names


def _has_ids_beside(path: Path) -> bool:
    return path.with_name(f"{path.stem}.ids.json").exists()


def _search(
    release: PrivateIndex | DistributedIndex, path: Path, queries: Any, k: int, names: list[Any] | None
) -> list[QueryAnswer]:
    """Search the index, with its ids and without its hidden records where a search saved them beside it."""
    if _has_ids_beside(path):
        saved = ss.PrivateSearch.load(path)
        return [
            QueryAnswer(list(hits.ids), [] if hits.noisy is None else hits.noisy.tolist())
            for hits in saved.search_batch(np.atleast_2d(queries), k)
        ]
    found = release.search(np.atleast_2d(queries), k)
    ids = getattr(release, "ids", None) if names is None else names
    named = found.indices if ids is None else np.asarray(ids)[found.indices]
    return [QueryAnswer(*pair) for pair in zip(named.tolist(), found.scores.tolist(), strict=True)]
