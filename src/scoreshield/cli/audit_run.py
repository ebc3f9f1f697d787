"""What `scoreshield audit` does with its options: finds the target, keeps the folder, runs, and tells the outcome.

Apart from the command itself, because the audit's statistics take a second to import.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import typer
from numpy.typing import NDArray

from scoreshield import _files
from scoreshield.audit import engine, journal, neighbours, targets
from scoreshield.audit.claim import REPLACE, Claim
from scoreshield.audit.outputs import Source
from scoreshield.audit.result import AuditResult
from scoreshield.cli.audit_progress import prints_aside, shown
from scoreshield.cli.output import one_or_many
from scoreshield.cli.text import say
from scoreshield.errors import InvalidInput
from scoreshield.privacy import calibration
from scoreshield.privacy.profiles import GaussianProfile
from scoreshield.report import audit_page
from scoreshield.report.pages import check_report_extra

RELEASES, MOST = 2000, 1_000_000
#: What an audit writes into its folder.
FILES = (journal.SETTINGS, journal.RELEASES, journal.LOCK, *journal.REPORTS)
#: Of the order that outputs in files are taken in.
_SEED = 0
#: Facts that are printed, apart from being in the report.
_TOLD = (audit_page.RESUMED, "Requests repeated")
#: Releases that the search for telling neighbours takes where no query is known: 35 pairs, 128 on either side.
_SEARCH = 35 * 2 * 128
#: Releases in all for one on each side, with the pilots that choose among the pairs.
_EACH = 3.1


@dataclass(frozen=True)
class Budget:
    """How much is drawn and how it is judged: releases on each side, or minutes; confidence, statistic, noise."""

    releases: int | None
    minutes: float | None
    confidence: float
    statistic: str
    plain: bool = False

    def __post_init__(self) -> None:
        if self.releases is not None and self.minutes is not None:
            raise InvalidInput("--releases and --minutes both set the budget; give one of them.")
        if self.minutes is not None and not 0 < self.minutes <= 1e5:
            raise InvalidInput(f"--minutes must be a positive number, at most 100,000. Got {self.minutes:g}.")


@dataclass(frozen=True)
class Inputs:
    """What the auditor makes its collections of: their size, the query and the canaries, where they are given."""

    records: int
    dimensions: int
    query: Any
    canaries: NDArray[Any] | None

    @classmethod
    def read(cls, records: int, dimensions: int, query: Path | None, canaries: Path | None) -> Inputs:
        vector = None if query is None else one_or_many(_files.read_array(query))
        if vector is not None and (vector.ndim != 1 or vector.dtype.kind not in "fiu"):
            raise InvalidInput(f"{query} must hold one query, a vector. Got shape {vector.shape}, type {vector.dtype}.")
        planted = None if canaries is None else np.atleast_2d(_files.read_array(canaries))
        if planted is not None and vector is not None and planted.shape[-1] != len(vector):
            raise InvalidInput(f"Canaries and query must have one length. Got {planted.shape[-1]} and {len(vector)}.")
        length = dimensions if planted is None else planted.shape[-1]
        return cls(records, length if vector is None else len(vector), vector, planted)


@dataclass(frozen=True)
class Subject:
    """What is audited: something that releases, under a name, with its query where one is known.

    ``settings`` and ``secret`` tell it from others when an audit goes on; the secret is never written down.
    """

    release: Any
    name: str
    query: Any
    settings: dict[str, Any]
    timeout: float | None = None
    secret: str | None = None

    @property
    def bulk(self) -> bool:
        """Whether it makes many releases in one call: fast, and with no need to be resumed."""
        return Source(self.release, seed=None, timeout=None).in_bulk


def claimed(epsilon: float | None, delta: float, adjacency: str | None, noise: str, *, files: bool) -> Claim:
    """The claim that the options state."""
    if epsilon is None:
        raise InvalidInput("--epsilon must say what is claimed; an audit without a claim has nothing to contradict.")
    if adjacency is None or not adjacency.strip():
        raise InvalidInput(
            "--adjacency must say who counts as a neighbour, such as 'replace': a claim without it says nothing."
        )
    if adjacency != "replace" and not files:
        raise InvalidInput(
            f"--adjacency must be 'replace', one record by another, which is what the auditor does. Got {adjacency!r}; "
            "outputs for other neighbours can be audited from files."
        )
    profile = None
    if noise == "gaussian":
        if not 0 < delta < 1 or not epsilon > 0:
            raise InvalidInput("--noise gaussian needs --epsilon and --delta above 0: Gaussian noise is never pure.")
        profile = GaussianProfile(calibration.find_mu(epsilon, delta))
    return Claim(epsilon, delta, REPLACE if adjacency == "replace" else adjacency, profile)


# ---- Targets.


def function(target: str, inputs: Inputs, timeout: float) -> Subject:
    """A function by its name; it may have a query of its own, bound by `functools.partial`."""
    with prints_aside():
        release = targets.entry_point(target, query=inputs.query, dimensions=inputs.dimensions)
    known = release.keywords.get("query") if isinstance(release, partial) else None
    query, settings = inputs.query if known is None else known, {"code": targets.code_digest(target)}
    subject = Subject(release, target, query, settings, timeout)
    return subject if subject.bulk else replace(subject, release=targets.waited_for(release))


def endpoint(
    target: str,
    inputs: Inputs,
    fields: dict[str, str],
    *,
    no_query: bool,
    key_from: str | None,
    timeout: float,
    retries: int,
) -> Subject:
    """An address; without a query of the user's, the first axis is sent."""
    query = np.eye(1, inputs.dimensions)[0] if inputs.query is None else inputs.query
    key = None if key_from is None else os.environ.get(key_from)
    if key_from is not None and not key:
        raise InvalidInput(f"--key-from names the environment variable {key_from!r}, which is not set.")
    chosen = None if no_query else query
    service = targets.Endpoint(target, chosen, timeout=timeout, retries=retries, bearer=key, **fields)
    parts = urlsplit(target)  # its query string may hold a key
    name, settings = f"{parts.scheme}://{parts.netloc}{parts.path}", {"no_query": no_query, **fields}
    return Subject(service, name, chosen, settings, secret=target)


# ---- Running.


@dataclass(frozen=True)
class Folder:
    """Where the audit is kept, if it is; ``again`` begins afresh where one was before."""

    path: Path | None
    again: bool = False

    @contextlib.contextmanager
    def opened(self, asked: dict[str, Any], plan: Any, secret: str | None = None) -> Iterator[tuple[Any, int]]:
        """The journal, if there is a folder, and how many releases the audit takes."""
        if self.path is None:
            yield None, plan()
            return
        check_report_extra()  # before an hour of releases, not after it
        stated = {"version": version("scoreshield"), **asked}
        with journal.opened(self.path, stated, plan, secret=secret, again=self.again) as opened:
            yield opened

    def save(self, result: AuditResult, facts: dict[str, str]) -> list[str]:
        """Write the reports, and say where they are."""
        if self.path is None:
            return []
        return [str(path) for path in audit_page.save_audit_page(result, self.path, facts=facts)]


def of_files(target: str, without: Path | None, claim: Claim, budget: Budget, folder: Folder) -> Outcome:
    """Audit outputs that were made before.

    Both sides are shuffled before they are cut to ``--releases``.
    """
    rng = np.random.default_rng(_SEED)
    first, second = (rng.permutation(side) for side in targets.saved_outputs(target, without))
    most = min(len(first), len(second))
    if budget.releases is not None and budget.releases > most:
        raise InvalidInput(f"--releases must be at most the {most:,} outputs that there are on each side.")
    first, second = first[: budget.releases or most], second[: budget.releases or most]
    named = Path(target).name + ("" if without is None else f" and {without.name}")
    settings: dict[str, Any] = {
        "confidence": budget.confidence,
        "statistic": budget.statistic,
        "plain": budget.plain,
    }
    asked = {"target": named, "claim": claim.to_dict(), **settings, "with": _digest(first), "without": _digest(second)}
    facts = {"Target": f"outputs in {named}, made before"}
    with folder.opened(asked, lambda: len(first)):
        result = engine.audit_outputs(first, second, claim, seed=_SEED, name=named, **settings)
        return Outcome(result, facts, folder.save(result, facts))


def of_subject(
    subject: Subject, claim: Claim, budget: Budget, inputs: Inputs, folder: Folder, *, quiet: bool
) -> Outcome:
    """Audit something that can be asked, going on where an audit in the folder was stopped."""
    length = inputs.dimensions if subject.query is None else int(np.shape(subject.query)[-1])
    shape, pairs = (inputs.records, length), None
    if inputs.canaries is not None:
        pairs = neighbours.from_canaries(neighbours.random_pair(*shape, seed=0).first, inputs.canaries)
    asked = {
        "target": subject.name, "claim": claim.to_dict(), **vars(budget), "shape": list(shape),
        "query": _digest(subject.query), "canaries": _digest(inputs.canaries), **subject.settings,
    }  # fmt: skip
    made_up = f"{shape[0]:,} records of {shape[1]:,} dimensions, made up by the auditor"
    facts = {"Target": subject.name, "Collections": made_up + (", and the canaries" if pairs else "")}
    plan = partial(_planned, subject, budget, shape, searching=subject.query is None and pairs is None)
    with (
        _closed_after(subject), prints_aside(), folder.opened(asked, plan, subject.secret) as (kept, releases),
        shown(quiet) as (progress, counting),
    ):  # fmt: skip
        if kept is not None:
            kept.note_repeated(_repeated(subject))  # while the pace was measured
        release = subject.release
        if not subject.bulk:
            release = counting(release if kept is None else kept.recording(release))
        result = engine.audit(
            release, claim, neighbours=pairs, releases=releases, confidence=budget.confidence,
            statistic=budget.statistic, seed=None, progress=progress, timeout=subject.timeout, name=subject.name,
            shape=shape, query=subject.query, plain=budget.plain,
        )  # fmt: skip
        if kept is not None and kept.known:
            facts[audit_page.RESUMED] = f"{kept.known:,} releases were there before; {_begun(kept.begun)}"
        if repeated := _repeated(subject) + (0 if kept is None else kept.repeated):
            facts["Requests repeated"] = f"{repeated:,}"
        return Outcome(result, facts, folder.save(result, facts))


@dataclass(frozen=True)
class Outcome:
    """A result, facts about how it was made, and the files that hold it."""

    result: AuditResult
    facts: dict[str, str]
    files: list[str]

    def tell(self, as_json: bool) -> None:
        """Print it, and end with exit code 1 where the claim is broken."""
        if as_json:
            told = self.result.to_dict() | {"verdict": audit_page.write_verdict(self.result, self.facts)}
            typer.echo(json.dumps({"files": self.files, "facts": self.facts, **told}))
        else:
            lines = str(self.result).splitlines()
            lines += [f"{name:<17} {self.facts[name]}" for name in _TOLD if name in self.facts]
            lines += [f"{'Written':<17} {', '.join(self.files)}"] if self.files else []
            say("\n".join(lines))
        if self.result.broken:
            raise typer.Exit(1)


def _repeated(subject: Subject) -> int:
    return int(getattr(subject.release, "retried", 0))


def _begun(moment: datetime) -> str:
    """When an audit was begun, and how long ago."""
    minutes = (datetime.now(UTC) - moment).total_seconds() / 60
    units = (("days", 1440), ("hours", 60), ("minutes", 1))
    ago = next((f"{minutes / size:.0f} {unit}" for unit, size in units if minutes >= 2 * size), "less than 2 minutes")
    return f"the audit was begun at {moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC, {ago} ago"


@contextlib.contextmanager
def _closed_after(subject: Subject) -> Iterator[None]:
    try:
        yield
    finally:
        if isinstance(subject.release, targets.Endpoint):
            subject.release.close()


def _planned(subject: Subject, budget: Budget, shape: tuple[int, int], *, searching: bool) -> int:
    """How many releases on each side: as asked, or as many as the time allows at the pace of the first few."""
    if budget.minutes is None:
        return budget.releases or RELEASES
    source = Source(subject.release, seed=None, timeout=subject.timeout)
    rows = neighbours.random_pair(*shape, seed=0).first
    count, pace, begin = 1, 0.0, time.perf_counter()
    while count <= 4096 and time.perf_counter() - begin < 0.5:
        start = time.perf_counter()
        source.draw(rows, count)
        pace, count = (time.perf_counter() - start) / count, 2 * count
    left = 0.9 * 60 * budget.minutes - (_SEARCH * pace if searching else 0.0)
    if left <= 0:
        raise InvalidInput(
            f"At {pace:.3g} seconds a release, {budget.minutes:g} minutes do not suffice to search for telling "
            "neighbours; name the query with --query, or allow more --minutes."
        )
    return max(1, min(MOST, int(left / (_EACH * max(pace, 1e-9)))))


def _digest(array: Any) -> str | None:
    return None if array is None else hashlib.sha256(np.ascontiguousarray(array, np.float64).tobytes()).hexdigest()[:16]
