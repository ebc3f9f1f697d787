"""What `scoreshield audit` does with its options: find the target, run the audit, show progress and the outcome.

This is apart from the command itself, because the audit's statistics take a second to import.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
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
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from scoreshield import _files
from scoreshield.audit import engine, journal, neighbours, targets
from scoreshield.audit.claims import REPLACE, Claim
from scoreshield.audit.outputs import Source
from scoreshield.audit.result import AuditResult
from scoreshield.cli.output import say, select_query
from scoreshield.errors import InvalidInput
from scoreshield.privacy import calibration
from scoreshield.privacy.profiles import GaussianProfile
from scoreshield.report import audit_page
from scoreshield.report.pages import check_report_extra

#: The exit code where only rows that are not unit vectors break the claim.
ONLY_OTHER_ROWS = 3
#: The exit code where so few outputs came in time that no fault could be found: no audit was made.
TOO_FEW_OUTPUTS = 2
#: What an audit writes into its folder.
FILES = (journal.SETTINGS, journal.RELEASES, journal.LOCK, *journal.REPORTS)
#: The seed of the order of outputs in files.
_SEED = 0
#: Facts that are printed as well as in the report.
_PRINTED_FACTS = (audit_page.RESUMED, "Requests repeated")
#: The most minutes of an audit.
_LONGEST = 1e5
#: Seconds between two lines in a log.
EVERY = 45.0


@dataclass(frozen=True)
class AuditBudget:
    """How much is drawn and how it is evaluated: releases on each side, or minutes; confidence, noise, rows."""

    releases: int | None
    minutes: float | None
    confidence: float
    plain: bool = False
    rows: engine.RowDomain = "any"

    def __post_init__(self) -> None:
        if self.releases is not None and self.minutes is not None:
            raise InvalidInput("--releases and --minutes both set the budget; give one of them.")
        if self.minutes is not None and not 0 < self.minutes <= _LONGEST:
            raise InvalidInput(f"--minutes must be a positive number, at most 100,000. Got {self.minutes:g}.")

    @property
    def time_limit(self) -> float:
        """The most minutes that the audit takes."""
        if self.minutes is not None:
            return self.minutes
        return engine.MINUTES if self.releases is None else _LONGEST


@dataclass(frozen=True)
class AuditInputs:
    """What the auditor constructs its collections from: their size, the query, and the canaries if there are any."""

    records: int
    dimensions: int
    query: Any
    canaries: NDArray[Any] | None

    @classmethod
    def read(cls, records: int, dimensions: int, query: Path | None, canaries: Path | None) -> AuditInputs:
        """Read the files of the query and the canaries."""
        vector = None if query is None else select_query(_files.read_array(query))
        if vector is not None and (vector.ndim not in (1, 2) or not vector.size or vector.dtype.kind not in "fiu"):
            raise InvalidInput(
                f"{query} must hold one query, a vector, or a batch of queries, one per row. Got shape {vector.shape}, "
                f"type {vector.dtype}."
            )
        planted = None if canaries is None else np.atleast_2d(_files.read_array(canaries))
        if planted is not None and vector is not None and planted.shape[-1] != vector.shape[-1]:
            raise InvalidInput(
                f"Canaries and query must have one length. Got {planted.shape[-1]} and {vector.shape[-1]}."
            )
        length = dimensions if planted is None else planted.shape[-1]
        return cls(records, length if vector is None else vector.shape[-1], vector, planted)


@dataclass(frozen=True)
class AuditSubject:
    """A function or an endpoint that is audited.

    Attributes:
        release: The callable.
        name: Its name in the result.
        query: Its query, where one is known.
        settings: What distinguishes it from others when an audit is resumed.
        timeout: Seconds that one call may take; None sets no limit.
        secret: A further setting that is never written down.
    """

    release: Any
    name: str
    query: Any
    settings: dict[str, Any]
    timeout: float | None = None
    secret: str | None = None

    @property
    def is_bulk(self) -> bool:
        """Whether it makes many releases in one call. Such an audit is fast, and is not resumed."""
        return Source(self.release, seed=None, timeout=None).is_bulk


def make_claim(epsilon: float | None, delta: float, adjacency: str | None, noise: str, *, is_file: bool) -> Claim:
    """Make the claim that the options state."""
    if epsilon is None:
        raise InvalidInput("--epsilon must say what is claimed; an audit without a claim has nothing to contradict.")
    if adjacency is None or not adjacency.strip():
        raise InvalidInput(
            "--adjacency must say which collections are neighbours, such as 'replace': a claim without it says nothing."
        )
    if adjacency != "replace" and not is_file:
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


def make_function_subject(target: str, inputs: AuditInputs, timeout: float) -> AuditSubject:
    """Load a function by its name. It may have its own query, bound by `functools.partial`."""
    with redirect_prints():
        release = targets.load_function(target, query=inputs.query, dimensions=inputs.dimensions)
    known = release.keywords.get("query") if isinstance(release, partial) else None
    query, settings = inputs.query if known is None else known, {"code": targets.digest_code(target)}
    subject = AuditSubject(release, target, query, settings, timeout)
    return subject if subject.is_bulk else replace(subject, release=targets.reject_awaitables(release))


def make_endpoint_subject(
    target: str,
    inputs: AuditInputs,
    fields: dict[str, str],
    *,
    no_query: bool,
    key_from: str | None,
    timeout: float,
    retries: int,
) -> AuditSubject:
    """Prepare an endpoint. Without a given query, the first axis is sent."""
    query = np.eye(1, inputs.dimensions)[0] if inputs.query is None else inputs.query
    key = None if key_from is None else os.environ.get(key_from)
    if key_from is not None and not key:
        raise InvalidInput(f"--key-from names the environment variable {key_from!r}, which is not set.")
    chosen = None if no_query else query
    service = targets.Endpoint(target, chosen, timeout=timeout, retries=retries, bearer=key, **fields)
    parts = urlsplit(target)  # its query string may hold a key
    name, settings = f"{parts.scheme}://{parts.netloc}{parts.path}", {"no_query": no_query, **fields}
    return AuditSubject(service, name, chosen, settings, secret=target)


# ---- Running.


@dataclass(frozen=True)
class AuditFolder:
    """The folder of an audit, or None where nothing is saved. `again` starts again where an audit was before."""

    path: Path | None
    again: bool = False

    @contextlib.contextmanager
    def open(
        self, settings: dict[str, Any], plan: Callable[[], int], secret: str | None = None
    ) -> Iterator[tuple[journal.Journal | None, int]]:
        """Open the journal, if there is a folder, and find the number of releases on each side."""
        if self.path is None:
            yield None, plan()
            return
        check_report_extra()  # before an hour of releases, not after it
        versioned = {"version": version("scoreshield"), **settings}
        with journal.open_journal(self.path, versioned, plan, secret=secret, again=self.again) as pair:
            yield pair

    def save(self, result: AuditResult, facts: dict[str, str]) -> list[str]:
        """Write the reports, and return their paths."""
        if self.path is None:
            return []
        return [str(path) for path in audit_page.save_audit_page(result, self.path, facts=facts)]


def audit_files(
    target: str, without: Path | None, claim: Claim, budget: AuditBudget, folder: AuditFolder
) -> AuditOutcome:
    """Audit outputs that were made before.

    Both sides are shuffled before they are cut to `--releases`.
    """
    rng = np.random.default_rng(_SEED)
    first, second = (rng.permutation(side) for side in targets.read_saved_outputs(target, without))
    most = min(len(first), len(second))
    if budget.releases is not None and budget.releases > most:
        raise InvalidInput(f"--releases must be at most the {most:,} outputs that there are on each side.")
    first, second = first[: budget.releases or most], second[: budget.releases or most]
    name = Path(target).name + ("" if without is None else f" and {without.name}")
    settings: dict[str, Any] = {"confidence": budget.confidence, "plain": budget.plain}
    digests = {"with": _digest_array(first), "without": _digest_array(second)}
    facts = {"Target": f"outputs in {name}, made before"}
    with folder.open({"target": name, "claim": claim.to_dict(), **settings, **digests}, lambda: len(first)):
        result = engine.audit_outputs(first, second, claim, seed=_SEED, name=name, **settings)
        return AuditOutcome(result, facts, folder.save(result, facts))


def audit_subject(
    subject: AuditSubject,
    claim: Claim,
    budget: AuditBudget,
    inputs: AuditInputs,
    folder: AuditFolder,
    *,
    quiet: bool,
) -> AuditOutcome:
    """Audit a function or an endpoint, and resume the audit in the folder if it was stopped."""
    length = inputs.dimensions if subject.query is None else int(np.shape(subject.query)[-1])
    shape, pairs = (inputs.records, length), None
    if inputs.canaries is not None:
        pairs = neighbours.from_canaries(neighbours.random_pair(*shape, seed=0).first, inputs.canaries)
    settings = {
        "target": subject.name, "claim": claim.to_dict(), **vars(budget), "shape": list(shape),
        "query": _digest_array(subject.query), "canaries": _digest_array(inputs.canaries), **subject.settings,
    }  # fmt: skip
    made_up = f"{shape[0]:,} records of {shape[1]:,} dimensions, made up by the auditor"
    facts = {"Target": subject.name, "Collections": made_up + (", and the canaries" if pairs else "")}
    with (
        _close_after(subject), redirect_prints(),
        folder.open(settings, lambda: budget.releases or 1, subject.secret) as (log, _),
        show_progress(quiet) as (progress, count),
    ):  # fmt: skip
        if log is not None:
            log.note_repeated(_count_repeated(subject))  # while the pace was measured
        release = subject.release
        if not subject.is_bulk:
            release = count(release if log is None else log.record(release))
        result = engine.audit(
            release, claim, neighbours=pairs, releases=budget.releases, minutes=budget.time_limit,
            confidence=budget.confidence, seed=None, progress=progress, timeout=subject.timeout, name=subject.name,
            shape=shape, query=subject.query, plain=budget.plain, rows=budget.rows,
        )  # fmt: skip
        if log is not None and log.releases_before:
            begun = _describe_start(log.begun)
            facts[audit_page.RESUMED] = f"{log.releases_before:,} releases were there before; {begun}"
        if repeated := _count_repeated(subject) + (0 if log is None else log.requests_repeated):
            facts["Requests repeated"] = f"{repeated:,}"
        return AuditOutcome(result, facts, folder.save(result, facts), is_timed=budget.releases is None)


@dataclass(frozen=True)
class AuditOutcome:
    """A result, facts about the audit, the files of the report, and whether the time was the limit."""

    result: AuditResult
    facts: dict[str, str]
    files: list[str]
    is_timed: bool = False

    def show(self, as_json: bool) -> None:
        """Print the outcome. The exit code is 1 or 3 where the claim is broken, and 2 where nothing could be found."""
        if as_json:
            values = self.result.to_dict() | {"verdict": audit_page.write_verdict(self.result, self.facts)}
            typer.echo(json.dumps({"files": self.files, "facts": self.facts, **values}))
        else:
            lines = str(self.result).splitlines()
            lines += [f"{name:<17} {self.facts[name]}" for name in _PRINTED_FACTS if name in self.facts]
            lines += [f"{'Written':<17} {', '.join(self.files)}"] if self.files else []
            say("\n".join(lines))
        if self.result.broken or self.result.broken_by_rows:
            raise typer.Exit(1 if self.result.broken else ONLY_OTHER_ROWS)
        if self.result.is_inconclusive and self.is_timed:
            raise typer.Exit(TOO_FEW_OUTPUTS)


def _count_repeated(subject: AuditSubject) -> int:
    return int(getattr(subject.release, "retried", 0))


def _describe_start(moment: datetime) -> str:
    """Describe when an audit was begun, and how long ago."""
    minutes = (datetime.now(UTC) - moment).total_seconds() / 60
    units = (("days", 1440), ("hours", 60), ("minutes", 1))
    ago = next((f"{minutes / size:.0f} {unit}" for unit, size in units if minutes >= 2 * size), "less than 2 minutes")
    return f"the audit was begun at {moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC, {ago} ago"


@contextlib.contextmanager
def _close_after(subject: AuditSubject) -> Iterator[None]:
    try:
        yield
    finally:
        if isinstance(subject.release, targets.Endpoint):
            subject.release.close()


def _digest_array(array: Any) -> str | None:
    return None if array is None else hashlib.sha256(np.ascontiguousarray(array, np.float64).tobytes()).hexdigest()[:16]


# ---- Progress.


class ProgressLog:
    """One line on standard error every 45 seconds: how many outputs there are, and the bound so far."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._next = clock, clock() + EVERY
        self._outputs, self._state = 0, "trying pairs of collections"

    def count(self, release: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap a release so that its outputs are counted."""

        def wrap(inner: Callable[[Any], Any], _: Any) -> Callable[[Any], Any]:
            def call(embeddings: Any) -> Any:
                output = inner(embeddings)
                self._outputs += 1
                self._write_line()
                return output

            return call

        return targets.ReleaseWrapper(release, wrap)

    def update(self, share: float, bound: float) -> None:
        """Take the progress of the audit."""
        self._state = f"{share:.0%} of the work, epsilon at least {bound:.3f} so far"
        self._write_line()

    def _write_line(self) -> None:
        if self._clock() < self._next:
            return
        self._next = self._clock() + EVERY
        outputs = f"{self._outputs:,} outputs; " if self._outputs else ""
        print(f"scoreshield: {outputs}{self._state}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def show_progress(quiet: bool) -> Iterator[tuple[engine.AuditProgress, Callable[[Any], Any]]]:
    """Show progress within the block: a bar at a terminal, otherwise a line now and then.

    Yields:
        What the audit calls with its progress, and a function that wraps a release so that its outputs are counted.
    """
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        log = ProgressLog()
        yield log.update, log.count
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("trying pairs of collections", total=1.0)

        def update(share: float, bound: float) -> None:
            bar.update(task, description=f"epsilon at least {bound:.3f} so far", completed=share)

        yield update, lambda release: release


@contextlib.contextmanager
def redirect_prints() -> Iterator[None]:
    """Send to standard error what a target prints, from Python or not: standard output is for the outcome."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    try:
        stdout = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # one of them is closed
        stdout = None
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if stdout is not None:
            os.dup2(stdout, 1)
            os.close(stdout)
