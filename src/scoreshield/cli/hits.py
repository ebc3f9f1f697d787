"""`scoreshield hits`: search a collection with a hit budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import scoreshield as ss
from scoreshield import _files
from scoreshield.cli.options import (
    Array,
    ChargeOptions,
    Embeddings,
    Epsilon,
    IdentityOptions,
    Ids,
    Json,
    Levels,
    Queries,
    QueryArray,
    WorthOptions,
    expand_groups,
)
from scoreshield.cli.output import check_not_input, find_ledger_file, read_ids, read_query, say
from scoreshield.geometry.embeddings import as_queries, as_rows
from scoreshield.report.certificate import describe_verdict

if TYPE_CHECKING:
    from scoreshield.search import Hits

#: What the released number of a hit is.
_PLACES = "The middle of the public level that was released for a hit: it ranks the hit, and is no cosine."

EXAMPLE = "scoreshield hits docs.npy --query q.npy --epsilon 32 --file docs.hits --k 5"


@expand_groups
def hits_command(
    *,
    embeddings: Embeddings,
    query: Queries,
    epsilon: Epsilon,
    file: Annotated[
        Path,
        typer.Option(
            help="The secret counters. A new file charges epsilon once; later commands with it are free. Never copy it."
        ),
    ],
    k: Annotated[int, typer.Option("--k", help="The most records that a query returns.", min=1)] = 10,
    hits: Annotated[
        int | None, typer.Option(help="How many queries may name each record truly; chosen by default.")
    ] = None,
    cut: Annotated[
        list[float] | None,
        typer.Option(help="A public cut between levels, inside (-1, 1); give it once per cut, in rising order."),
    ] = None,
    levels: Levels = None,
    names: Annotated[int | None, typer.Option(help="How many names end a query; chosen by default.")] = None,
    null_record: Annotated[
        bool, typer.Option("--null-record", help="Epsilon is against a record that never answers: a weaker promise.")
    ] = False,
    ids: Ids = None,
    array: Array = None,
    query_array: QueryArray = None,
    identities: IdentityOptions,
    worth: WorthOptions,
    charge: ChargeOptions,
    as_json: Json = False,
) -> None:
    """Name the records that are near a query: one charge for all queries, a few true answers of each record.

    Ask queries together, in one file: a query that is asked again by another command uses hits again. Each hit has a
    place: the middle of the level that was released, which ranks it and is no cosine.
    """
    from scoreshield.search import PrivateSearch  # loaded here, so that other commands start sooner
    from scoreshield.stores import ArrayStore

    check_not_input([file], [embeddings, query, levels, ids, identities.labels, find_ledger_file(charge.ledger)])
    if cut is not None and levels is not None:
        raise ss.InvalidInput("Give --cut or --levels, not both: each places the cuts.")
    rows = as_rows(_files.read_array(embeddings, name=array, mapped=True))
    queries, _ = as_queries(read_query(query, query_array), rows.shape[1])  # before the charge
    store = ArrayStore(rows, None if ids is None else read_ids(ids))
    is_new = not file.exists()
    search = PrivateSearch(
        store,
        mode="hits",
        epsilon=epsilon,
        file=file,
        k=k,
        hits=hits,
        cuts=ss.PublicLevels.load(levels) if levels is not None else cut,
        names=names,
        adjacency=ss.NullRecord() if null_record else None,
        identity_of=identities.map_ids(store.ids()),
        centroids=identities.centroids,
        public_scores=worth.read_scores(),
        require_recall=worth.require_recall,
        ledger=charge.open_account(),
        rng=charge.seed,
    )
    assert search.worth is not None  # that of a hit budget is always predicted
    guarantee = charge.annotate(search.guarantee)
    answers = search.search_batch(queries, k)
    if as_json:
        facts = {"file": str(file), "is_new": is_new, "hits": [_to_facts(answer) for answer in answers]}
        more = {"scores_are": _PLACES, "worth": search.worth.sentence}
        typer.echo(json.dumps({**facts, **more, **describe_verdict(guarantee)}))
        return
    say(str(guarantee))
    say(f"counters        {file}, {'new: epsilon was charged now' if is_new else 'charged before'}")
    say(f"worth           {search.worth.sentence}")
    for number, answer in enumerate(answers):
        say(f"query {number:<9} {_describe(answer)}")
    if any(answer.ids for answer in answers):
        say(f"place           {_PLACES}")


def _to_facts(answer: Hits) -> dict[str, Any]:
    assert answer.scores is not None  # mode "hits" releases levels
    return {"ids": list(answer.ids), "scores": answer.scores.tolist()}


def _describe(answer: Hits) -> str:
    facts = _to_facts(answer)
    named = [f"{one} (place {score:.3f})" for one, score in zip(facts["ids"], facts["scores"], strict=True)]
    return ", ".join(named) or "no record was named"
