"""Mutation testing of the privacy core with mutmut. See docs/mutation.md.

    python tools/mutate.py run [PATTERN ...]     test the mutants that have no result yet
    python tools/mutate.py again [PATTERN ...]   test those that were not killed, with every test that reaches them
    python tools/mutate.py report                figures per module, and the survivors that no reason is given for

A pattern names mutants, such as ``*.calibration.*``. ``--sample 300`` takes at most so many of each module, by lot.

mutmut makes the mutants, chooses the tests that reach each one and keeps the results in ``mutants/``. This file adds
what its settings cannot say: texts for people are not mutated, and a mutant first meets the tests of its own module.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import random
import shutil
import tomllib
from collections import Counter
from collections.abc import Iterable
from math import ceil
from pathlib import Path
from typing import Any

import libcst as cst
import mutmut.__main__ as tool
import pytest
from mutmut.configuration import config
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.mutation.file_mutation import MutationVisitor
from mutmut.runners.harness import PytestRunner
from mutmut.state import state
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import walk_mutatable_files
from mutmut.workers.isolation import ForkServerRunner

REASONS = Path(__file__).with_name("mutation_survivors.toml")
ERRORS = {"BudgetExceeded", "InvalidCalibration", "InvalidInput", "LedgerError", "ScoreShieldError"}

# The test files that a mutant of a module meets first. Without a line: the tests of the module's own name.
OWN_TESTS = {
    "_contract": ["releases", "ledgered_releases"],
    "_index_plan": ["indexing"],
    "certificate": ["guarantee"],
    "channel_cuts": ["channels"],
    "channel_profile": ["channels"],
    "channel_program": ["channels"],
    "exact": ["exact", "pinned"],
    "filters": ["accounting", "ledger"],
    "histograms": ["mechanism"],
    "laws": ["profile", "pinned", "guarantee"],
    "ledger_books": ["ledger"],
    "ledger_entry": ["ledger"],
    "ledger_store": ["ledger"],
    "losses": ["accounting"],
    "noise": ["noise", "adjacency_edges"],
    "sampling": ["sampling", "pinned"],
    "selection": ["mechanism"],
    "sphere": ["privunit", "pinned"],
    "stream": ["stream", "sampling"],
}
# Seconds of tests per mutant in the first pass; `again` has no such limit.
OWN_SECONDS = 6.0
OTHER_SECONDS = 2.0


def quickest(tests: Iterable[str], mutant: str | None) -> list[str]:
    """Return the tests, the quickest first; for a mutant, those of its own module and some others."""
    durations = state().duration_by_test
    ordered = sorted(tests, key=durations.__getitem__)
    if mutant is None:
        return ordered
    module = mutant.rpartition(".x")[0].rpartition(".")[2]
    names = tuple(f"test_{name}" for name in OWN_TESTS.get(module, [module]))
    left = {True: OWN_SECONDS, False: OTHER_SECONDS}
    chosen = []
    for test in ordered:
        own = Path(test.partition("::")[0]).stem.startswith(names)
        left[own] -= durations[test]
        if left[own] >= 0:
            chosen.append(test)
    return chosen or ordered[:1]


class Runner(ForkServerRunner):
    """Test a mutant with the tests that reach it, the quickest first; with ``quick``, only with some of them."""

    quick = True

    def submit(self, mutant_name: str, tests: list[str], cpu_time_limit: int, estimated_time: float) -> None:
        tests = quickest(tests, mutant_name if self.quick else None)
        estimated_time = sum(state().duration_by_test[test] for test in tests)
        cpu_time_limit = ceil((estimated_time + config().timeout_constant) * config().timeout_multiplier * 2)
        super().submit(mutant_name, tests, cpu_time_limit, estimated_time)


class WarmTests(PytestRunner):
    """Tests in a process that has already imported what the package imports when it is first needed."""

    def warm_up(self) -> None:
        super().warm_up()
        for name in ("dp_accounting", "scipy.optimize", "scipy.sparse.linalg", "scipy.stats", "sklearn"):
            importlib.import_module(name)
        gc.collect()
        gc.freeze()  # else pytest's own collections of garbage cost each mutant more than its tests


def is_text_for_people(node: cst.CSTNode) -> bool:
    """Tell whether a node is a text for people: an error, a warning, prose, or the names that an error will give."""
    if isinstance(node, cst.Assign):
        target = node.targets[0].target
        return isinstance(target, cst.Name) and target.value in ("function", "must")
    if isinstance(node, cst.SimpleString):
        return " " in node.value
    return isinstance(node, cst.Raise) or (isinstance(node, cst.Call) and _called(node) in ERRORS | {"warn", "reject"})


def is_strict(node: cst.CSTNode) -> bool:
    """Tell whether a node is the ``strict=True`` of a zip, which guards against faults that are not there."""
    return isinstance(node, cst.Call) and _called(node) == "zip"


def is_check(node: cst.CSTNode) -> bool:
    """Tell whether a node calls an argument check, whose own arguments are mostly words for the error."""
    return (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and isinstance(node.func.value, cst.Name)
        and node.func.value.value == "_checks"
    )


def _called(node: cst.Call) -> str:
    name = node.func.attr if isinstance(node.func, cst.Attribute) else node.func
    return name.value if isinstance(name, cst.Name) else ""


def leave_texts_alone() -> None:
    """Make mutmut skip texts for people, and the words that an argument check takes."""
    skip, mutate = MutationVisitor._skip_node_and_children, MutationVisitor._create_mutations
    words: set[cst.CSTNode] = set()

    def skips(self: MutationVisitor, node: cst.CSTNode) -> bool:
        return is_text_for_people(node) or node in words or skip(self, node)

    def mutates(self: MutationVisitor, node: cst.CSTNode) -> None:
        if is_check(node):
            words.update(arg for arg in node.args[1:] if arg.keyword is None)
        elif is_strict(node):
            words.update(arg for arg in node.args if arg.keyword is not None)
        else:
            mutate(self, node)

    MutationVisitor._skip_node_and_children, MutationVisitor._create_mutations = skips, mutates


def results() -> dict[str, dict[str, str]]:
    """Return the state of each mutant, per module."""
    found = {}
    for path in walk_mutatable_files():
        data = SourceFileMutationData(path=path)
        data.load()
        found[path.stem] = {name: status_by_exit_code[code] for name, code in data.exit_code_by_key.items()}
    return found


def change(mutant: str) -> str:
    """Return the mutant as one line: its function, the line before and the line after."""
    lines = get_diff_for_mutant(mutant).splitlines()[3:]
    old = " ".join(line[1:].strip() for line in lines if line.startswith("-"))
    new = " ".join(line[1:].strip() for line in lines if line.startswith("+"))
    module, _, function = mutant.rpartition("__mutmut_")[0].rpartition(".")
    name = function.removeprefix("x_").removeprefix("xǁ").replace("ǁ", ".")
    return f"{module.rpartition('.')[2]}.{name}: {old} → {new}"


def report() -> None:
    reasons = tomllib.loads(REASONS.read_text("utf-8")).get("survivors", []) if REASONS.exists() else []
    explained = {line: group["reason"] for group in reasons for line in group["mutants"]}
    print("| module | mutants | killed | equivalent | survived | score |\n|---|---|---|---|---|---|")
    total: Counter[str] = Counter()
    unexplained: list[str] = []
    for module, mutants in sorted(results().items()):
        counts: Counter[str] = Counter(mutants=0, killed=0, equivalent=0, survived=0)
        for name, status in mutants.items():
            if status == "not checked":
                counts["unchecked"] += 1
                continue
            counts["mutants"] += 1
            if status in ("killed", "timeout", "segfault", "caught by type check"):
                counts["killed"] += 1
                continue
            line = change(name)
            counts["equivalent" if line in explained else "survived"] += 1
            if line not in explained:
                unexplained.append(f"{name} ({status})\n    {line}")
        print(_row(module, counts))
        total += counts
    print(_row("all", total))
    print("\n" + "\n".join(unexplained))


def _row(name: str, counts: Counter[str]) -> str:
    real = counts["mutants"] - counts["equivalent"]
    score = f"{100 * counts['killed'] / real:.1f} %" if real else "–"
    rest = f" ({counts['unchecked']} not run)" if counts["unchecked"] else ""
    figures = " | ".join(str(counts[key]) for key in ("mutants", "killed", "equivalent", "survived"))
    return f"| {name}{rest} | {figures} | {score} |"


def choose(mutants: list[Any], *, again: bool, sample: int | None) -> list[Any]:
    """Return the mutants to test now: those without a result, or with ``again`` those that were not killed.

    The sample of a module is drawn with a fixed seed from all of its mutants, so that a second run goes on with it.
    """
    if sample is not None:
        names = {}
        for data, name, _ in mutants:
            names.setdefault(data.path, []).append(name)
        drawn = {name for path, each in names.items() for name in draw(str(path), each, sample)}
        mutants = [mutant for mutant in mutants if mutant[1] in drawn]
    if again:
        return [mutant for mutant in mutants if status_by_exit_code[mutant[2]] not in ("killed", "not checked")]
    return [mutant for mutant in mutants if mutant[2] is None]


def draw(module: str, names: list[str], sample: int) -> list[str]:
    return random.Random(module).sample(sorted(names), min(sample, len(names)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["run", "again", "report"])
    parser.add_argument("patterns", nargs="*", default=["*"], help="names of mutants, with * for any text")
    parser.add_argument("--sample", type=int, help="the most mutants to take of each module")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # loading them would take longer than most tests
    # mutmut 3.8 reads an attribute that pytest 9.2 has under another name.
    pytest.Item._nodeid = property(lambda item: item.nodeid)
    leave_texts_alone()
    if options.command == "report":
        report()
        return
    again = options.command == "again"
    collect = tool.collect_source_file_mutation_data

    def collect_chosen(*, mutant_names: list[str]) -> tuple[list[Any], dict[str, SourceFileMutationData]]:
        mutants, files = collect(mutant_names=mutant_names)
        return choose(mutants, again=again, sample=options.sample), files

    tool.collect_source_file_mutation_data = collect_chosen
    shutil.rmtree("mutants/tests", ignore_errors=True)  # mutmut would keep tests that are gone
    Runner.quick = not again
    tool.get_mutant_runner = lambda processes=1: Runner(processes, WarmTests, {}, config().debug)
    tool._run(options.patterns, options.processes)


if __name__ == "__main__":
    main()
