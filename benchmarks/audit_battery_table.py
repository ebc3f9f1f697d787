"""The table of docs/audit.md: which published faults the auditor finds, how fast, and whom it accuses wrongly.

python benchmarks/audit_battery_table.py [--minutes M] [--only NAMES] [--kinds faults honest fixed peers]
    [--jobs 2] [--seeds S] [--json FILE] [--markdown FILE]

Each case of `audit_battery` is audited in a process of its own with one thread. The auditor gets the release, the claim
and the query, and nothing else. The table goes to standard output, and progress to standard error.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any, TypeVar

from audit_battery.attacks import ATTACKS, count_needed
from audit_battery.cases import Case
from audit_battery.faults import FAULTS
from audit_battery.honest import FIXED, HONEST
from audit_battery.peers import INSTALL, MISSING, PEERS
from scoreshield.audit import Claim

KINDS = {"faults": FAULTS, "honest": HONEST, "fixed": FIXED, "peers": PEERS}
#: The minutes that one audit may take beyond its budget before it is stopped, and the factor on the budget.
SLACK_MINUTES, SLACK_FACTOR = 5.0, 3.0
#: The budget of the auditor, where none is given.
DEFAULT_MINUTES = 2.0
LONGEST_REASON = 90
AnyCase = TypeVar("AnyCase", bound=Case)


@dataclass(frozen=True)
class Run:
    """One audit of one case.

    Attributes:
        name: The name of the case.
        seed: Which repetition it was.
        broken: The verdict; None where there is none.
        seconds: The time of the process.
        reason: Why, in a few words.
        details: What the result says: verdict, bound, pair and checks.
    """

    name: str
    seed: int
    broken: bool | None
    seconds: float
    reason: str
    details: dict[str, Any] = field(default_factory=dict)


def audit_case(case: Case, minutes: float | None, seed: int) -> Run:
    """Audit one case in this process."""
    from scoreshield.audit import audit

    options: dict[str, Any] = {} if minutes is None else {"minutes": minutes}
    if "seed" in inspect.signature(audit).parameters:
        options["seed"] = seed
    start = time.perf_counter()
    try:
        result = audit(case.release, case.claim, query=case.query, **options)
    except Exception as error:  # an auditor that fails has not found the fault, and the table says so
        reason = shorten_text(f"{type(error).__name__}: {error}")
        return Run(case.name, seed, None, time.perf_counter() - start, reason)
    seconds = time.perf_counter() - start
    checks = [{"name": one.name, "passed": one.passed, "detail": one.detail} for one in result.checks]
    details = {
        "verdict": result.verdict,
        "epsilon_lower": float(result.epsilon_lower),
        "neighbours": result.neighbours,
        "checks": checks,
    }
    # A fault that only rows of other lengths show is found; an honest mechanism for unit rows may show that too.
    is_found = bool(result.broken or (result.broken_by_rows and not case.is_honest))
    return Run(case.name, seed, is_found, seconds, explain_verdict(case, details), details)


def explain_verdict(case: Case, details: dict[str, Any]) -> str:
    """Say in a few words what decided: the bound, or the checks that failed."""
    failed = [check["name"] for check in details["checks"] if check["passed"] is False]
    bound = details["epsilon_lower"]
    words = [f"epsilon at least {bound:.3g}"] if bound > case.claim.epsilon or not failed else []
    return shorten_text(", ".join(words + failed))


def shorten_text(text: str) -> str:
    """Put a text on one line of the table, without the marks of columns."""
    line = " ".join(text.replace("|", "/").split())
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 1] + "…"


def run_process(case: Case, minutes: float | None, seed: int) -> Run:
    """Audit one case in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.json"
        command = [sys.executable, __file__, "--case", case.name, "--case-seed", str(seed), "--case-file", str(file)]
        start = time.perf_counter()
        try:
            done = call_with_one_thread(command, minutes)
        except subprocess.TimeoutExpired as error:
            return describe_stop(case, seed, error)
        if not file.exists():
            return describe_failure(case, seed, done, time.perf_counter() - start)
        return Run(**json.loads(file.read_text(encoding="utf-8")))


def call_with_one_thread(
    command: Sequence[str], minutes: float | None, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run an audit in a process with one thread.

    Args:
        command: The command, without the budget.
        minutes: The budget of the audit; None is the auditor's own.
        folder: The working folder.

    Raises:
        subprocess.TimeoutExpired: The process took far longer than its budget.
    """
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    limit = 60 * (SLACK_MINUTES + SLACK_FACTOR * (DEFAULT_MINUTES if minutes is None else minutes))
    budget = [] if minutes is None else ["--minutes", str(minutes)]
    environment = {**os.environ, **threads}
    return subprocess.run(
        [*command, *budget], cwd=folder, env=environment, capture_output=True, text=True, timeout=limit, check=False
    )


def describe_stop(case: Case, seed: int, error: subprocess.TimeoutExpired) -> Run:
    """Describe an audit that was stopped."""
    return Run(case.name, seed, None, error.timeout, f"stopped after {error.timeout:.0f} seconds")


def describe_failure(case: Case, seed: int, done: subprocess.CompletedProcess[str], seconds: float) -> Run:
    """Describe an audit that ended without a result, by the last line of its errors."""
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return Run(case.name, seed, None, seconds, shorten_text(lines[-1]))


def describe_claim(case: Case) -> str:
    """Describe a claim for a cell of the table."""
    delta = f", δ = {case.claim.delta:g}" if case.claim.delta else ""
    return f"ε = {case.claim.epsilon:g}{delta}" + (", whole curve" if case.claim.profile is not None else "")


def describe_outcome(case: Case, runs: Sequence[Run]) -> str:
    """Describe what the auditor said: in one word, or as a share of the repetitions."""
    broken, failed = sum(run.broken is True for run in runs), sum(run.broken is None for run in runs)
    if len(runs) == 1:
        if failed:
            return "no verdict"
        return ("accused" if broken else "passed") if case.is_honest else ("found" if broken else "missed")
    return f"{'accused' if case.is_honest else 'found'} {broken} of {len(runs)}" + (
        f", no verdict {failed}" if failed else ""
    )


def describe_fault(case: Case) -> str:
    """Describe a case for the first cell of its row."""
    return f"{case.name}: {case.fault}" if case.fault else case.name


def describe_seconds(runs: Sequence[Run]) -> str:
    """Describe the mean time of the repetitions."""
    seconds = mean(run.seconds for run in runs)
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.1f}"


def describe_needed(rates: tuple[float, float], claim: Claim) -> str:
    """Describe how many releases on each side someone needs who knows the fault, to one digit."""
    return f"{float(f'{count_needed(rates, claim):.1g}'):,.0f}"


def make_rows(cases: Iterable[Case], runs: dict[str, list[Run]]) -> list[list[str]]:
    rows = []
    for case in cases:
        own = runs.get(case.name, [])
        if own:
            reason = next((run.reason for run in own if run.broken), own[0].reason)
            cells = [describe_fault(case), case.source, describe_claim(case), describe_outcome(case, own)]
            cells += [describe_seconds(own), reason]
            attack = ATTACKS.get(case.name)
            needed = describe_needed(attack.rates, case.claim) if attack else "–"
            rows.append(cells if case.is_honest else [*cells, needed])
    return rows


def make_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"### {title}", "", f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows), ""])


def make_page(cases: Sequence[Case], runs: dict[str, list[Run]]) -> str:
    """Make the tables of faults and of honest cases, and the summary line."""
    wrong = [case for case in cases if not case.is_honest]
    right = [case for case in cases if case.is_honest]
    columns = ["source", "claim", "verdict", "seconds", "reason"]
    parts = []
    if wrong:
        parts.append(make_table("Faults", ["fault", *columns, "informed test needs"], make_rows(wrong, runs)))
    if right:
        parts.append(make_table("Honest mechanisms", ["mechanism", *columns], make_rows(right, runs)))
    return "\n".join([*parts, summarise(cases, runs)])


def summarise(cases: Sequence[Case], runs: dict[str, list[Run]]) -> str:
    """Count the audits that found a fault, missed one, accused an honest case, and gave no verdict."""

    def count(chosen: Iterable[Case], *outcomes: bool | None) -> int:
        return sum(run.broken in outcomes for case in chosen for run in runs.get(case.name, []))

    wrong = [case for case in cases if not case.is_honest]
    right = [case for case in cases if case.is_honest]
    findable = [case for case in wrong if case.findable]
    found, missed = count(wrong, True), count(wrong, False, None)
    return (
        f"Audits of faults: {found + missed}, found {found}, missed {missed} "
        f"(of {count(findable, True, False, None)} findable ones, missed {count(findable, False, None)}). "
        f"Audits of honest mechanisms: {count(right, True, False, None)}, accused {count(right, True)}. "
        f"Without a verdict: {count(cases, None)}."
    )


def choose_cases(
    groups: Mapping[str, Sequence[AnyCase]], kinds: Sequence[str], names: Sequence[str] | None
) -> list[AnyCase]:
    """Choose the cases by their names, or all cases of some kinds.

    Args:
        groups: The cases of each kind.
        kinds: The kinds that are chosen if there are no names.
        names: The names of cases.

    Raises:
        SystemExit: A name is unknown.
    """
    if not names:
        return [case for kind in kinds for case in groups[kind]]
    known = {case.name: case for cases in groups.values() for case in cases}
    if unknown := [name for name in names if name not in known]:
        near = difflib.get_close_matches(unknown[0], known, n=3, cutoff=0.3)
        raise SystemExit(f"There is no case {unknown[0]!r}. Similar names: {', '.join(near) or 'none'}.")
    return [known[name] for name in names]


def run_all(
    cases: Sequence[AnyCase],
    arguments: argparse.Namespace,
    run_one: Callable[[AnyCase, float | None, int], Run],
) -> dict[str, list[Run]]:
    """Audit all cases, some at a time, and print a line of progress for each."""
    seeds = arguments.seeds
    runs: dict[str, list[Run]] = {case.name: [] for case in cases}
    known = {case.name: case for case in cases}
    total = len(cases) * seeds
    with ThreadPoolExecutor(arguments.jobs) as pool:
        waiting = [pool.submit(run_one, case, arguments.minutes, seed) for case in cases for seed in range(seeds)]
        for number, done in enumerate(as_completed(waiting), 1):
            run = done.result()
            runs[run.name].append(run)
            outcome = describe_outcome(known[run.name], [run])
            line = f"[{number}/{total}] {run.name}: {outcome}, {run.seconds:.0f} s ({run.reason})"
            print(line, file=sys.stderr, flush=True)
    return {name: sorted(own, key=lambda run: run.seed) for name, own in runs.items()}


def make_parser(description: str | None, kinds: Iterable[str], default: Sequence[str]) -> argparse.ArgumentParser:
    """Make the parser of the options that all tables of audits share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help="the budget of one audit; the default is the auditor's")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names of cases")
    parser.add_argument("--kinds", nargs="+", choices=list(kinds), default=default)
    parser.add_argument("--jobs", type=int, default=2, help="how many audits run at a time")
    parser.add_argument("--seeds", type=int, default=1, help="how often each case is audited")
    parser.add_argument("--json", type=Path, help="write all results here")
    parser.add_argument("--markdown", type=Path, help="write the table here too")
    return parser


def write_results(page: str, cases: Sequence[Case], runs: dict[str, list[Run]], arguments: argparse.Namespace) -> None:
    """Print the page, and write the files that were asked for."""
    print(page)
    if arguments.markdown:
        arguments.markdown.write_text(page + "\n", encoding="utf-8")
    if arguments.json:
        results = [{**asdict(run), "claim": describe_claim(case)} for case in cases for run in runs[case.name]]
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = make_parser(__doc__, KINDS, ["faults", "honest", "peers"])
    for name in ("--case", "--case-seed", "--case-file"):  # how this script calls itself
        parser.add_argument(name, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        run = audit_case(choose_cases(KINDS, [], [arguments.case])[0], arguments.minutes, int(arguments.case_seed))
        Path(arguments.case_file).write_text(json.dumps(asdict(run)), encoding="utf-8")
        return
    if MISSING:
        print(f"Not installed, and left out: {', '.join(MISSING)} ({INSTALL}).", file=sys.stderr)
    cases = choose_cases(KINDS, arguments.kinds, arguments.only)
    runs = run_all(cases, arguments, run_process)
    write_results(make_page(cases, runs), cases, runs, arguments)


if __name__ == "__main__":
    main()
