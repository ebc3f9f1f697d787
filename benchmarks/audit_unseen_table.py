"""The table of docs/audit-battery.md on faults that the auditor had never met.

python benchmarks/audit_unseen_table.py [--minutes M] [--only NAMES] [--kinds faults honest] [--jobs 2] [--seeds S]
    [--json FILE] [--markdown FILE]

Each case of `audit_unseen` is audited by `scoreshield audit module:function`, as a user calls it, in a process of its
own with one thread. The command gets the claim, and the queries where there are several. The table goes to standard
output, and progress to standard error.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from audit_battery_table import (
    Run,
    call_with_one_thread,
    choose_cases,
    describe_claim,
    describe_failure,
    describe_fault,
    describe_needed,
    describe_outcome,
    describe_seconds,
    describe_stop,
    make_parser,
    make_table,
    run_all,
    shorten_text,
    summarise,
    write_results,
)
from audit_unseen.cases import UnseenCase
from audit_unseen.faults import FAULTS
from audit_unseen.honest import HONEST

KINDS = {"faults": FAULTS, "honest": HONEST}
#: What the exit codes of the command say of unit rows. Code 3 is about other rows, and code 2 is no audit.
IS_BROKEN = {0: False, 1: True, 3: False}


def make_command(case: UnseenCase, folder: Path) -> list[str]:
    """Make the command of a user who knows the claim, and write the queries into a file where there are several."""
    claim = case.claim
    command = [sys.executable, "-m", "scoreshield", "audit", case.target, "--json", "--adjacency", "replace"]
    command += ["--epsilon", str(claim.epsilon), "--delta", str(claim.delta)]
    command += ["--noise", "gaussian"] if claim.profile is not None else []
    if case.query is not None and case.query.ndim == 2:
        np.save(folder / "queries.npy", case.query)
        command += ["--query", str(folder / "queries.npy")]
    return command


def run_command(case: UnseenCase, minutes: float | None, seed: int) -> Run:
    """Audit one case by the command. `seed` is the number of the repetition; the command draws its own seed."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        try:
            done = call_with_one_thread(make_command(case, Path(folder)), minutes, Path(__file__).parent)
        except subprocess.TimeoutExpired as error:
            return describe_stop(case, seed, error)
        seconds = time.perf_counter() - start
    if done.returncode not in IS_BROKEN or not done.stdout:
        return describe_failure(case, seed, done, seconds)
    details = {"exit_code": done.returncode, "verdict": json.loads(done.stdout)["verdict"]}
    return Run(case.name, seed, IS_BROKEN[done.returncode], seconds, shorten_text(details["verdict"]), details)


def make_rows(cases: Iterable[UnseenCase], runs: dict[str, list[Run]]) -> list[list[str]]:
    rows = []
    for case in cases:
        if own := runs[case.name]:
            cells = [describe_fault(case), describe_claim(case), describe_outcome(case, own), describe_seconds(own)]
            rows.append(cells if case.is_honest else [*cells, describe_needed(case.rates, case.claim)])
    return rows


def make_page(cases: Sequence[UnseenCase], runs: dict[str, list[Run]]) -> str:
    """Make the tables of faults and of honest mechanisms, and the summary line."""
    columns = ["claim", "verdict", "seconds"]
    faults = make_rows([case for case in cases if not case.is_honest], runs)
    honest = make_rows([case for case in cases if case.is_honest], runs)
    parts = [make_table("Faults", ["fault", *columns, "informed test needs"], faults)] if faults else []
    parts += [make_table("Honest mechanisms", ["mechanism", *columns], honest)] if honest else []
    return "\n".join([*parts, summarise(cases, runs)])


def main() -> None:
    arguments = make_parser(__doc__, KINDS, list(KINDS)).parse_args()
    cases = choose_cases(KINDS, arguments.kinds, arguments.only)
    runs = run_all(cases, arguments, run_command)
    write_results(make_page(cases, runs), cases, runs, arguments)


if __name__ == "__main__":
    main()
