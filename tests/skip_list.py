"""The end of a test run: what was skipped, and the command that would enable it.

In CI (the environment variable ``CI`` is set) a skip fails the run, unless ``tests/skips.toml`` says why it is allowed.
`tests/conftest.py` imports the two hooks. Worker processes of pytest-xdist send their reports to the main process, so
both hooks read them there.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

RULES = Path(__file__).with_name("skips.toml")
UNKNOWN = "no command is known: add one to tests/skips.toml"
_MISSING_MODULE = re.compile(r"could not import '([\w.]+)'")


@dataclass(frozen=True)
class SkipRule:
    """What ``tests/skips.toml`` says about one reason.

    Attributes:
        reason: A regular expression for the text of the skip.
        enable: The command, or the sentence, that enables the test.
        allowed: Why CI may skip it; None where it may not.
    """

    reason: str
    enable: str
    allowed: str | None = None


@dataclass(frozen=True)
class SkippedGroup:
    """All tests that were skipped for one reason."""

    reason: str
    count: int
    enable: str
    allowed: str | None


def load_rules(path: Path = RULES) -> tuple[list[SkipRule], dict[str, str]]:
    """Load the rules for reasons, and the requirement that installs each module."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return [SkipRule(**entry) for entry in table["skip"]], table["modules"]


def group_skips(reasons: Iterable[str], rules: Iterable[SkipRule], modules: Mapping[str, str]) -> list[SkippedGroup]:
    """Group skips by their reason, the most frequent first, with what would enable each."""
    rules = list(rules)
    groups = []
    for reason, count in sorted(Counter(reasons).items(), key=lambda item: (-item[1], item[0])):
        rule = next((rule for rule in rules if re.search(rule.reason, reason)), None)
        module = _MISSING_MODULE.search(reason)
        if rule is None and module is not None:
            requirement = modules.get(module[1], modules.get(module[1].split(".")[0]))
            enable = UNKNOWN if requirement is None else f"pip install '{requirement}'"
            rule = SkipRule(reason, enable)
        rule = rule or SkipRule(reason, UNKNOWN)
        groups.append(SkippedGroup(reason, count, rule.enable, rule.allowed))
    return groups


def is_ci(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the tests run in CI, where a skip needs a reason."""
    return environment.get("CI", "").lower() not in ("", "0", "false")


def _list_skips(config: pytest.Config) -> list[SkippedGroup]:
    reporter: Any = config.pluginmanager.getplugin("terminalreporter")
    if reporter is None:  # a worker process
        return []
    reasons = [
        report.longrepr[2].removeprefix("Skipped: ")
        for report in reporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    ]
    return group_skips(reasons, *load_rules())


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run in CI that skipped something without a stated reason."""
    has_passed = session.exitstatus == pytest.ExitCode.OK
    if has_passed and is_ci() and any(group.allowed is None for group in _list_skips(session.config)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Write what was skipped, and how to enable it."""
    groups = _list_skips(config)
    if not groups:
        return
    terminalreporter.section("skipped, and the command that would enable it")
    for group in groups:
        terminalreporter.line(f"{group.count:4} × {group.reason}")
        terminalreporter.line(f"       {group.enable}")
    unexplained = [group for group in groups if group.allowed is None]
    if is_ci() and unexplained:
        terminalreporter.section("skipped without a reason that CI allows", red=True)
        for group in unexplained:
            terminalreporter.line(f"{group.count:4} × {group.reason}")
        terminalreporter.line("Enable these tests, or state in tests/skips.toml why CI may skip them.")
