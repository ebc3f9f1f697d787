"""`scoreshield rag`: DP-RAG end to end, from pages and questions to retrieval metrics and judged answers."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from scoreshield.cli.options import Dataset, Json, LedgerUrl, progress_bar
from scoreshield.cli.output import check_not_input, find_ledger_file, make_printable, open_account, say
from scoreshield.errors import InvalidInput, ScoreShieldError

EXAMPLE = (
    "scoreshield rag --corpus pages.jsonl --questions test.tsv --embedder hashing:256 --mechanism index --epsilon 20 "
    "--out runs/rag"
)


def rag_command(
    corpus: Annotated[
        Path,
        typer.Option(
            help='Pages, one JSON object {"title": ..., "text": ...} per line. FRAMES has titles of Wikipedia pages, '
            "not their texts: download the texts yourself."
        ),
    ],
    questions: Annotated[
        Path,
        typer.Option(
            help='The official FRAMES test.tsv, or a .jsonl of {"id", "question", "answer", "documents": (titles)}.'
        ),
    ],
    epsilon: Annotated[
        float,
        typer.Option(
            help="Epsilon of one release: one per question, or one for all questions with the index. No default."
        ),
    ],
    embedder: Annotated[
        str, typer.Option(help="sentence-transformers:MODEL, or hashing:DIMENSIONS, which needs no weights.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="Run folder. It holds embeddings: only the curator may read it. A stopped run is resumed there."
        ),
    ],
    delta: Annotated[
        float, typer.Option(help="Delta of one release: Gaussian noise needs it, the others take none.")
    ] = 0.0,
    mechanism: Annotated[
        Literal["gaussian", "laplace", "staircase", "optimal", "screening", "index"],
        typer.Option(help="What is released: noisy scores, screened chunks, or an index for all questions."),
    ] = "gaussian",
    threshold: Annotated[float, typer.Option(help="The least score of a retrieved chunk.")] = 0.35,
    k: Annotated[int, typer.Option("--k", help="The most chunks a question gets.", min=1)] = 20,
    paper_rule: Annotated[
        bool, typer.Option("--paper-rule", help="Rank clipped scores, ties by index, as the paper does.")
    ] = False,
    generator: Annotated[
        str | None, typer.Option(help="The model that answers; without one, retrieval alone is measured.")
    ] = None,
    generator_url: Annotated[
        str | None, typer.Option(help="Its OpenAI-compatible server, such as http://localhost:8000/v1.")
    ] = None,
    judge: Annotated[str | None, typer.Option(help="The model that judges; by default the generator.")] = None,
    judge_url: Annotated[str | None, typer.Option(help="Its server; by default the generator's.")] = None,
    conditions: Annotated[
        str | None, typer.Option(help="Some of none,clean,private,oracle; by default all of them.")
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(help="The most tokens of an answer; models that reason need more.", min=1)
    ] = 512,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait for a connection, or for the next byte of an answer.")
    ] = 60.0,
    retries: Annotated[int, typer.Option(help="How often a failed request is repeated.", min=0)] = 5,
    allow_http: Annotated[
        bool,
        typer.Option(
            "--allow-http", help="Send prompts over plain http to another machine, where others can read them."
        ),
    ] = False,
    proxy: Annotated[
        str | None,
        typer.Option(help="An HTTP proxy for servers on other machines; proxies of the environment are never used."),
    ] = None,
    leave_out: Annotated[
        str | None,
        typer.Option(help="Parameters that the servers do not support: some of temperature,max_tokens,seed."),
    ] = None,
    size: Annotated[int, typer.Option(help="Tokens of a chunk.", min=1)] = 2000,
    overlap: Annotated[int, typer.Option(help="Tokens that it shares with the chunk before.", min=0)] = 200,
    limit: Annotated[int | None, typer.Option(help="Use only this number of questions, the first ones.", min=1)] = None,
    workers: Annotated[int, typer.Option(help="The largest number of simultaneous requests.", min=1)] = 4,
    ledger: LedgerUrl = None,
    dataset: Dataset = None,
    research_seed: Annotated[
        int | None, typer.Option(help="Research mode: repeatable noise, NOT PRIVATE, for public data only.", min=0)
    ] = None,
    as_json: Json = False,
) -> None:
    """Retrieve privately for each question, answer from what was found, and compare with clean retrieval.

    The key of the servers, if they need one, is read from $SCORESHIELD_API_KEY.
    """
    from scoreshield.bench.experiments.rag_folder import FILES
    from scoreshield.bench.experiments.rag_run import LEAVABLE, AnswerSettings, ReleaseSettings, run_rag
    from scoreshield.bench.rag.evaluation import CONDITIONS

    check_not_input((out / name for name in FILES), (corpus, questions, find_ledger_file(ledger)))
    answering = None
    if (models := _choose_models(generator, generator_url, judge, judge_url, conditions)) is not None:
        chosen = CONDITIONS if conditions is None else _parse_names(CONDITIONS, conditions, "conditions")
        left = () if leave_out is None else _parse_names(LEAVABLE, leave_out, "leave-out")
        answering = AnswerSettings(*models, chosen, max_tokens, timeout, retries, workers, allow_http, left, proxy)
    try:
        done = run_rag(
            corpus,
            questions,
            out,
            embedder=embedder,
            release_settings=ReleaseSettings(mechanism, epsilon, delta, threshold, k, paper_rule, research_seed),
            answer_settings=answering,
            size=size,
            overlap=overlap,
            limit=limit,
            ledger=open_account(ledger, dataset),
            bar=partial(progress_bar, as_json),
        )
    except MemoryError:
        raise ScoreShieldError(
            f"Not enough memory for these pages and questions; what was retrieved or answered before is kept in {out}."
        ) from None
    files = [str(out / name) for name in ("results.json", "results.csv")]
    if as_json:
        typer.echo(json.dumps({"files": files, **done.to_dict(records=False)}))
        return
    say(str(done))
    say("Written        " + ", ".join(map(make_printable, files)))


def _choose_models(
    generator: str | None, generator_url: str | None, judge: str | None, judge_url: str | None, conditions: str | None
) -> tuple[tuple[str, str], tuple[str, str]] | None:
    """Choose the generator and the judge, each with its address; None for retrieval alone."""
    if generator is None:
        others = {"generator-url": generator_url, "judge": judge, "judge-url": judge_url, "conditions": conditions}
        for name, value in others.items():
            if value is not None:
                raise InvalidInput(f"--{name} needs --generator, the model that answers.")
        return None
    if generator_url is None:
        raise InvalidInput("--generator needs --generator-url, its server, such as http://localhost:8000/v1.")
    if judge is None and judge_url is not None:
        raise InvalidInput("--judge-url needs --judge, the model that judges there.")
    return (generator, generator_url), (judge or generator, judge_url or generator_url)


def _parse_names(known: tuple[str, ...], text: str, option: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not set(names) <= set(known) or len(set(names)) != len(names):
        raise InvalidInput(f"--{option} must be some of {','.join(known)}, each once, with commas. Got {text[:80]!r}.")
    return names
