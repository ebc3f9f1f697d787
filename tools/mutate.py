"""Mutation testing of the privacy core with mutmut. See docs/mutation.md.

    python tools/mutate.py run [PATTERN ...]     test the mutants that have no result yet
    python tools/mutate.py again [PATTERN ...]   test those that were not killed, with every test that reaches them
    python tools/mutate.py report                figures per module, and the survivors that no reason is given for

A pattern names mutants, such as ``*.calibration.*``. ``--sample 300`` takes at most so many per module.

mutmut makes the mutants, chooses the tests that reach each one and keeps the results in ``mutants/``. This file adds
what its settings cannot say: texts for people are not mutated, decorated functions are, the tests are collected once
for all mutants, and a mutant first meets the tests of its own module.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import importlib
import os
import re
import shutil
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable
from math import ceil
from pathlib import Path
from typing import Any

import libcst as cst
import mutmut.__main__ as tool
import numpy as np
import pytest
from _pytest.config import _prepareconfig
from mutmut.configuration import config
from mutmut.mutation import file_mutation
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.mutation.file_mutation import MutationVisitor
from mutmut.runners.harness import PytestRunner
from mutmut.state import state
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import change_cwd, walk_mutatable_files
from mutmut.workers import isolation
from mutmut.workers.isolation import ForkServerRunner
from mutmut.workers.timeout import register_timeout
from scipy.stats import beta

REASONS = Path(__file__).with_name("mutation_survivors.toml")
ERRORS = {"BudgetExceeded", "InvalidCalibration", "InvalidInput", "LedgerError", "ScoreShieldError"}

SUSPICIOUS = 35  # mutmut's number for a mutant whose tests did not run as they should

# The test files that a mutant of a module meets first. Without a line: the tests of the module's own name.
OWN_TESTS = {
    "accounts": ["ledger"],
    "books": ["ledger"],
    "batch": ["batch", "mechanism_registry"],
    "certificate": ["guarantee"],
    "consistency": ["consistency", "guarantee"],
    "custom": ["custom_noise", "mechanism_registry"],
    "cuts": ["tables"],
    "database": ["ledger"],
    "discrete": ["discrete", "pinned"],
    "embeddings": ["embeddings", "releases"],
    "entries": ["ledger"],
    "filters": ["filters", "composition"],
    "gaussian": ["noise", "gaussian", "pinned", "adjacency_edges", "guarantee_edges"],
    "gram": ["releases", "ledgered_releases"],
    "guarantee": ["guarantee", "consistency"],
    "histogram": ["mechanism"],
    "index": ["indexing"],
    "index_plan": ["indexing", "index_center"],
    "intervals": ["intervals", "guarantee_edges"],
    "laplace": ["profiles", "pinned", "guarantee"],
    "laws": ["profiles", "pinned", "guarantee"],
    "losses": ["composition"],
    "matches": ["mechanism"],
    "mechanisms": ["consistency", "guarantee"],
    "names": ["ledger"],
    "pipeline": ["pipeline", "releases", "ledgered_releases", "mechanism_registry"],
    "postgres": ["ledger"],
    "privunit": ["privunit", "guarantee_edges"],
    "profile": ["tables"],
    "program": ["tables"],
    "row": ["releases", "ledgered_releases"],
    "scores": ["releases", "ledgered_releases"],
    "sphere": ["privunit", "pinned", "guarantee_edges"],
    "sqlite": ["ledger"],
    "staircase": ["profiles", "pinned", "guarantee"],
    "stream": ["stream", "gaussian", "guarantee_edges"],
    "top_k": ["mechanism"],
    "units": ["ledger"],
}
# Seconds of tests per mutant in the first pass; `again` has no such limit.
OWN_SECONDS = 3.0
OTHER_SECONDS = 0.7


def is_own(test: str, mutant: str) -> bool:
    """Tell whether a test is in a file of the tests of the mutant's module."""
    module = mutant.rpartition(".x")[0].rpartition(".")[2]
    return Path(test.partition("::")[0]).stem.startswith(
        tuple(f"test_{name}" for name in OWN_TESTS.get(module, [module]))
    )


def quickest(tests: Iterable[str], mutant: str) -> list[str]:
    """Return the quickest tests of the mutant's own module, and the quickest others, within the time for each."""
    left = {True: OWN_SECONDS, False: OTHER_SECONDS}
    chosen = []
    for test in tests:
        own = is_own(test, mutant)
        left[own] -= state().duration_by_test[test]
        if left[own] >= 0:
            chosen.append(test)
    return chosen


class Runner(ForkServerRunner):
    """Test a mutant with the tests that reach it, the quickest first; with ``quick``, only with some of them."""

    quick = True
    tested = False

    def collect_stats(self, tests: Iterable[str] | None) -> int:
        Runner.tested = Runner.tested or not tests
        return super().collect_stats(tests)

    def run_clean_tests(self, tests: Iterable[str]) -> int:
        """Run the tests on the original, unless they have just passed while their times were taken."""
        return 0 if self.tested else super().run_clean_tests(tests)

    def submit(self, mutant_name: str, tests: list[str], cpu_time_limit: int, estimated_time: float) -> None:
        tests = sorted(tests, key=state().duration_by_test.__getitem__)
        if self.quick:
            tests = quickest(tests, mutant_name) or tests[:1]
        estimated_time = sum(state().duration_by_test[test] for test in tests)
        cpu_time_limit = ceil((estimated_time + config().timeout_constant) * config().timeout_multiplier)
        super().submit(mutant_name, tests, cpu_time_limit, estimated_time)


class WarmTests(PytestRunner):
    """Tests in a process that has imported and collected everything: a mutant costs a fork and its tests."""

    def warm_up(self) -> None:
        arguments = [
            "--rootdir=.",
            "--tb=native",
            "-x",
            "-q",
            "--capture=no",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:faulthandler",
        ]
        with change_cwd("mutants"):
            pytest_config = _prepareconfig(arguments + self._pytest_add_cli_args_test_selection)
            pytest_config._do_configure()
            self.session = pytest.Session.from_config(pytest_config)
            pytest_config.hook.pytest_sessionstart(session=self.session)
            pytest_config.hook.pytest_collection(session=self.session)
        self.items = {item.nodeid: item for item in self.session.items}
        for name in ("dp_accounting", "scipy.optimize", "scipy.sparse.linalg", "scipy.stats", "sklearn"):
            importlib.import_module(name)
        gc.collect()
        gc.freeze()  # else pytest's own collections of garbage cost each mutant more than its tests

    def run_tests(self, *, mutant_name: str | None, tests: Iterable[str]) -> int:
        if mutant_name is None:
            return super().run_tests(mutant_name=None, tests=tests)
        if not all(test in self.items for test in tests):
            return SUSPICIOUS
        # The module's own tests first: they are the likeliest to notice.
        chosen = sorted(tests, key=lambda test: not is_own(test, mutant_name))
        self.session.items = [self.items[test] for test in chosen]
        with tempfile.TemporaryDirectory() as folder, change_cwd("mutants"):
            self.session.config._tmp_path_factory._basetemp = Path(folder).resolve()
            with contextlib.suppress(pytest.Session.Failed):
                self.session.config.hook.pytest_runtestloop(session=self.session)
        return int(self.session.testsfailed > 0)


def is_text_for_people(node: cst.CSTNode) -> bool:
    """Tell whether a node is a text for people: an error, a warning, prose, or the names that an error will give."""
    if isinstance(node, cst.Assign):
        target = node.targets[0].target
        return isinstance(target, cst.Name) and target.value in ("function", "must")
    if isinstance(node, cst.SimpleString):
        return " " in node.value
    return isinstance(node, cst.Raise) or (isinstance(node, cst.Call) and _called(node) in ERRORS | {"warn", "reject"})


def needs_a_server(node: cst.CSTNode) -> bool:
    """Tell whether a node is the store on PostgreSQL: its tests start a server, which is too slow for each mutant."""
    return isinstance(node, cst.ClassDef) and node.name.value == "PostgresDatabase"


def is_strict(node: cst.CSTNode) -> bool:
    """Tell whether a node is the ``strict=True`` of a zip, which guards against faults that are not there."""
    return isinstance(node, cst.Call) and _called(node) == "zip"


def is_check(node: cst.CSTNode) -> bool:
    """Tell whether a node calls an argument check, whose own arguments are mostly words for the error."""
    return (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and isinstance(node.func.value, cst.Name)
        and node.func.value.value == "_validation"
    )


def _called(node: cst.Call) -> str:
    name = node.func.attr if isinstance(node.func, cst.Attribute) else node.func
    return name.value if isinstance(name, cst.Name) else ""


def leave_texts_alone() -> None:
    """Make mutmut skip texts for people, and the words that an argument check takes."""
    skip, mutate = MutationVisitor._skip_node_and_children, MutationVisitor._create_mutations
    words: set[cst.CSTNode] = set()

    def skips(self: MutationVisitor, node: cst.CSTNode) -> bool:
        return is_text_for_people(node) or needs_a_server(node) or node in words or skip(self, node)

    def mutates(self: MutationVisitor, node: cst.CSTNode) -> None:
        if is_check(node):
            words.update(arg for arg in node.args[1:] if arg.keyword is None)
        elif is_strict(node):
            words.update(arg for arg in node.args if arg.keyword is not None)
        else:
            mutate(self, node)

    MutationVisitor._skip_node_and_children, MutationVisitor._create_mutations = skips, mutates


def is_mutated(function: cst.FunctionDef) -> bool:
    """Tell whether a decorated function can be mutated: a setter cannot, since it has the name of its property."""
    decorators = [each.decorator for each in function.decorators]
    return not any(isinstance(each, cst.Attribute) and each.attr.value == "setter" for each in decorators)


def mutate_decorated_functions() -> None:
    """Make mutmut mutate decorated functions too: the decorators stay around its switch, the mutants have none."""
    skip, arrange = MutationVisitor._skip_node_and_children, file_mutation.function_trampoline_arrangement

    def skips(self: MutationVisitor, node: cst.CSTNode) -> bool:
        return not is_mutated(node) if isinstance(node, cst.FunctionDef) and node.decorators else skip(self, node)

    def arranges(function: cst.FunctionDef, mutants: Any, class_name: str | None) -> Any:
        bare = function.with_changes(decorators=[])
        before, (switch, *copies), after, names = arrange(bare, mutants, class_name)
        switch = switch.with_changes(decorators=[*function.decorators, *switch.decorators])
        return before, [switch, *copies], after, names

    MutationVisitor._skip_node_and_children = skips
    file_mutation.function_trampoline_arrangement = arranges


def results() -> dict[str, dict[str, str]]:
    """Return the state of each mutant, per module."""
    found = {}
    for path in walk_mutatable_files():
        data = SourceFileMutationData(path=path)
        data.load()
        module = ".".join(Path(path).with_suffix("").parts[2:])
        found[module] = {name: status_by_exit_code[code] for name, code in data.exit_code_by_key.items()}
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
    """Print the figures of each module, and the survivors that no reason is given for."""
    reasons = tomllib.loads(REASONS.read_text("utf-8"))["survivors"]
    explained = re.compile("|".join(_pattern(line) for group in reasons for line in group["mutants"]))
    print("| module | mutants | tried | killed | equivalent | survived | score |\n|---|---|---|---|---|---|---|")
    total: Counter[str] = Counter()
    unexplained: list[str] = []
    for module, mutants in sorted(results().items()):
        counts: Counter[str] = Counter({"all": len(mutants)})
        for name in by_lot(mutants):
            status = mutants[name]
            if status == "not checked":
                break
            kind, line = status, ""
            if status in ("timeout", "segfault"):
                kind = "killed"
            elif status != "killed":
                line = change(name)
                kind = "equivalent" if explained.match(line) else "survived"
            counts[kind] += 1
            if kind == "survived":
                unexplained.append(f"{name} ({status})\n    {line}")
        print(_row(module, counts))
        total += counts
    print(_row("all", total))
    print("\n" + "\n".join(unexplained))


def _pattern(line: str) -> str:
    """Return the expression for a line of the list: the beginning of a mutant, with … for any text."""
    return ".*".join(re.escape(part) for part in line.split("…"))


def _row(name: str, counts: Counter[str]) -> str:
    real = counts["killed"] + counts["survived"]
    tried = real + counts["equivalent"]
    score = f"{100 * counts['killed'] / real:.1f} %" if real else "–"
    if real and tried < counts["all"]:  # Clopper and Pearson's interval for all mutants of the module, from the sample
        low, high = beta.ppf(
            [0.025, 0.975], [counts["killed"], counts["killed"] + 1], [counts["survived"] + 1, counts["survived"]]
        )
        score += f" ({100 * np.nan_to_num(low):.1f} to {100 * np.nan_to_num(high, nan=1.0):.1f} %)"
    return (
        f"| {name} | {counts['all']} | {tried} | {counts['killed']} | {counts['equivalent']} | {counts['survived']} | "
        f"{score} |"
    )


def by_lot(names: Iterable[str]) -> list[str]:
    """Return names in an order that looks random and is always the same: the first ones are a fair sample."""
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())


def choose(mutants: list[Any], *, again: bool, sample: int | None) -> list[Any]:
    """Return the mutants to test now: those without a result, or with ``again`` those that were not killed.

    The modules take turns and each one's mutants come by lot: wherever a run stops, what it has done is a fair sample.
    """
    names: dict[Path, list[str]] = {}
    for data, name, _ in mutants:
        names.setdefault(data.path, []).append(name)
    turn = {name: place for each in names.values() for place, name in enumerate(by_lot(each))}
    wanted = ("not checked",) if not again else ("survived", "no tests", "timeout", "suspicious")
    chosen = [mutant for mutant in mutants if status_by_exit_code[mutant[2]] in wanted]
    if sample is not None:
        chosen = [mutant for mutant in chosen if turn[mutant[1]] < sample]
    return sorted(chosen, key=lambda mutant: turn[mutant[1]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["run", "again", "report"])
    parser.add_argument("patterns", nargs="*", default=["*"], help="names of mutants, with * for any text")
    parser.add_argument("--sample", type=int, help="the most mutants to take of each module")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--tested", action="store_true", help="do not run the tests on the original first: they pass")
    options = parser.parse_args()
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # loading them would take longer than most tests
    # mutmut 3.8 reads an attribute that pytest 9.2 has under another name.
    pytest.Item._nodeid = property(lambda item: item.nodeid)
    mutate_decorated_functions()
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
    tool.estimated_worst_case_time = lambda _: 0.0  # else mutmut would sort them by time
    shutil.rmtree("mutants/tests", ignore_errors=True)  # mutmut would keep tests that are gone
    Runner.quick, Runner.tested = not again, options.tested
    # mutmut stops a mutant after half its processor time on the clock; on a busy machine that would stop honest ones.
    isolation.register_timeout = lambda pid, seconds: register_timeout(pid, 20 * seconds)
    tool.get_mutant_runner = lambda processes=1: Runner(processes, WarmTests, {}, config().debug)
    tool._run(options.patterns, options.processes)


if __name__ == "__main__":
    main()
