"""The audit of ScoreShield's own releases: every mechanism and regime at three budgets, as one table.

``python -m scoreshield.audit.own`` draws from the secure sampler, the one that ships, in two processes, and exits with
1 if a claim is broken; ``--quick`` is the short form, one budget from seeded generators. Each audit is at confidence
1 - 1e-6, so that the whole table raises a false alarm less than once in five thousand runs.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache

from scoreshield._loading import describe_error
from scoreshield.audit.engine import audit, fewest
from scoreshield.audit.result import AuditResult
from scoreshield.audit.shipped import Own, own_releases

BUDGETS = (0.5, 2.0, 5.0)
QUICK_BUDGETS = (2.0,)
CONFIDENCE = 1 - 1e-6
#: Releases on each side, by pace, unless more are needed to contradict the claim at all.
_RELEASES = {"bulk": 200_000, "single": 4_000, "pure": 4_000, "slow": 1_200, "slowest": 200}
_QUICK_RELEASES = {"bulk": 20_000, "single": 800, "pure": 800, "slow": 300, "slowest": 60}
#: Most costly first, so that two processes end at about the same time.
_COSTLY = ("slowest", "slow", "pure", "single", "bulk")
_PROCESSES = 2


def run(*, quick: bool = False, progress: Callable[[int, int, str], None] | None = None) -> list[AuditResult]:
    """Audit them all.

    Parameters
    ----------
    quick : one budget, few releases and fixed seeds: the same outcome every time, within a minute or so.
    progress : called with (done, total, the name of the latest).
    """
    owned = own_releases(QUICK_BUDGETS if quick else BUDGETS)
    order = sorted(range(len(owned)), key=lambda number: _COSTLY.index(owned[number].pace))
    results: dict[int, AuditResult] = {}
    for number, result in _in_turn(owned, order) if quick else _side_by_side(order):
        results[number] = result
        if progress is not None:
            progress(len(results), len(owned), result.name)
    return [results[number] for number in range(len(owned))]


def _in_turn(owned: Sequence[Own], order: Sequence[int]) -> Iterator[tuple[int, AuditResult]]:
    for number in order:
        yield number, _audited(owned[number], _QUICK_RELEASES, number)


def _side_by_side(order: Sequence[int]) -> Iterator[tuple[int, AuditResult]]:
    # Fresh processes, so that none inherits a lock or the state of a generator.
    # An executor notices a process that was killed, where a Pool would wait for its answer forever.
    with ProcessPoolExecutor(_PROCESSES, multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(_whole, number) for number in order]):
            yield done.result()


@cache
def _listed() -> list[Own]:
    """The list, once in a process: its releases cannot be handed to another, but its numbers can."""
    return own_releases(BUDGETS)


def _whole(number: int) -> tuple[int, AuditResult]:
    return number, _audited(_listed()[number], _RELEASES, None)


def _audited(one: Own, releases: dict[str, int], seed: int | None) -> AuditResult:
    needed = math.ceil(1.1 * fewest(one.claim, CONFIDENCE))
    return audit(
        one.release,
        one.claim,
        neighbours=one.pair,
        releases=max(releases[one.pace], needed),
        confidence=CONFIDENCE,
        seed=seed,
        name=one.name,
    )


def table(results: Sequence[AuditResult]) -> str:
    """Claimed epsilon, the bound that was found, and what would have been found, one line an audit.

    "By scale" is the epsilon that the measured noise has if it is Gaussian, where Gaussian noise is claimed.
    """
    width = max(len(result.name) for result in results)
    head = f"{'release':{width}}  claimed    delta  found at least  by scale  detectable  releases  seconds  verdict"
    return "\n".join([head, *(_line(result, width) for result in results)])


def _line(result: AuditResult, width: int) -> str:
    claim = result.claim
    return (
        f"{result.name:{width}}  {claim.epsilon:7.3g}  {claim.delta:7.1g}  {result.epsilon_lower:14.3f}  "
        f"{_by_scale(result):>8}  {result.detectable:10.3f}  {result.releases:8d}  {result.seconds:7.1f}  "
        + ("BROKEN" if result.broken else "no violation found")
    )


def _by_scale(result: AuditResult) -> str:
    said = [
        check.detail.rpartition("an epsilon of at least ") for check in result.checks if check.name == "noise scale"
    ]
    return said[0][2] if said and said[0][1] else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: 1 where a claim is broken, 0 otherwise."""
    parser = argparse.ArgumentParser(prog="scoreshield.audit.own", description="Audit ScoreShield's own releases.")
    parser.add_argument("--quick", action="store_true", help="one budget, few releases, fixed seeds")
    parser.add_argument("--json", action="store_true", help="results for machines")
    given = parser.parse_args(arguments)
    results = run(quick=given.quick, progress=_shown if sys.stderr.isatty() else None)
    if given.json:
        print(json.dumps([result.to_dict() for result in results]))
    else:
        print(table(results))
        for result in results:
            if result.broken:
                print(f"\n{result}")
    return int(any(result.broken for result in results))


def _shown(done: int, total: int, name: str) -> None:
    print(f"\r{done} of {total}: {name:60}", end="" if done < total else "\n", file=sys.stderr, flush=True)


def _main() -> int:
    """The command, whose 1 says that a claim is broken and nothing else: any failure is 70."""
    try:
        return main()
    except Exception as error:
        print(f"scoreshield.audit.own: {type(error).__name__} ({describe_error(error)})", file=sys.stderr)
        return 70


if __name__ == "__main__":
    sys.exit(_main())
