"""The cases of `benchmarks/audit_battery`: each fault breaks its claim on a known pair, and no honest case does there.

Those of `benchmarks/audit_unseen` are all in their lists and answer, and stated rates of each fault break its claim.

Counts have Clopper–Pearson bounds that are each wrong with probability 1e-9. There are about 400 of them, so all tests
together raise a false alarm with probability below 1e-6. The generator is seeded, except where a case draws its own
seeds.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def load_battery(name: str, package: str = "audit_battery") -> ModuleType:
    """Import a module of a package there without the folder in `sys.path`: other files there have common names."""
    if package not in sys.modules:
        spec = importlib.util.spec_from_file_location(package, FOLDER / package / "__init__.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[package] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[package])
    return importlib.import_module(f"{package}.{name}")


attacks, cases, faults, honest, peers = map(load_battery, ("attacks", "cases", "faults", "honest", "peers"))
unseen_faults, unseen_honest = (load_battery(name, "audit_unseen") for name in ("faults", "honest"))
OPPOSITE, ZERO, QUERY, SIGMA = attacks.OPPOSITE, attacks.ZERO, cases.QUERY, cases.SIGMA

ERROR = 1e-9
MOST_RELEASES = 80_000
#: Faults without an attack on one output, which have a test of their own.
WITHOUT_ATTACK = {"seed-with-32-bits"}
#: What the unseen releases call, and is not a release.
UNSEEN_PARTS = {"score", "round_scores", "find_topics", "clean_rows"}
UNSEEN = [*unseen_faults.FAULTS, *unseen_honest.HONEST]
ALL = [*faults.FAULTS, *honest.HONEST, *honest.FIXED, *peers.PEERS]

each_fault = pytest.mark.parametrize(
    "case", [case for case in faults.FAULTS if case.name in attacks.ATTACKS], ids=lambda case: case.name
)


def count_events(case: Any, attack: Any, releases: int) -> list[tuple[float, float]]:
    """Bound the rates of an attack's event on both collections, from releases of both."""
    cases.set_seed(7)
    return [
        attacks.bound_rate(
            sum(attack.statistic(attacks.observe(case, rows)) >= attack.cut for _ in range(releases)), releases, ERROR
        )
        for rows in (attack.first, attack.second)
    ]


@each_fault
def test_fault_breaks_its_claim(case: Any) -> None:
    """The rates of the event exceed the claim. Counts agree with the rates, and most exceed the claim by themselves."""
    attack = attacks.ATTACKS[case.name]
    assert (attack.first != attack.second).any(axis=1).sum() == 1
    assert attack.rates[0] > attacks.compute_ceiling(case.claim, attack.rates[1])
    needed = math.ceil(1.3 * attacks.count_needed(attack.rates, case.claim, 1 - 2 * ERROR))
    bounds = count_events(case, attack, min(needed, MOST_RELEASES))
    for (lower, upper), rate in zip(bounds, attack.rates, strict=True):
        # Rates of 1 and 0 leave out the chance that noise is rounded to a special value.
        assert lower - 1e-6 <= rate <= upper + 1e-6
    if needed <= MOST_RELEASES:
        assert bounds[0][0] > attacks.compute_ceiling(case.claim, bounds[1][1])
    else:  # too many releases for a test; the closed form must do
        assert attack.is_exact


def test_every_fault_has_an_attack() -> None:
    names = {case.name for case in faults.FAULTS}
    assert names == attacks.ATTACKS.keys() | WITHOUT_ATTACK
    assert len({case.name for case in ALL}) == len(ALL)


def test_long_rows_only_where_they_are_the_fault() -> None:
    for name, attack in attacks.ATTACKS.items():
        lengths = np.linalg.norm(np.concatenate([attack.first, attack.second]), axis=1)
        assert (lengths.max() > 1 + 1e-6) == (name == "skip-clamping"), name


def test_seed_of_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The output is a function of the collection and of 32 bits, and no two of some hundred outputs are equal."""
    asked = []

    def draw(bits: int) -> int:
        asked.append(bits)
        return len(asked)

    monkeypatch.setattr(faults.secrets, "randbits", draw)
    outputs = [faults.seed_with_32_bits(rows, QUERY).tobytes() for rows in OPPOSITE for _ in range(100)]
    assert asked == [32] * 200
    seeds = [faults.add_seeded_noise(cases.score(OPPOSITE[0], QUERY), seed).tobytes() for seed in range(1, 201)]
    assert outputs[:100] == seeds[:100]
    assert not set(outputs[100:]) & set(seeds)


@pytest.mark.parametrize("case", honest.FIXED, ids=lambda case: case.name)
def test_fixed_form_holds_there(case: Any) -> None:
    """The attack on the fault does not contradict its fixed form."""
    attack = attacks.ATTACKS[case.name.removesuffix("-fixed")]
    bounds = count_events(case, attack, 500)
    assert bounds[0][0] <= attacks.compute_ceiling(case.claim, bounds[1][1])
    assert bounds[1][0] <= attacks.compute_ceiling(case.claim, bounds[0][1])


def read_own(output: Any) -> float:
    return float(output[0])


def find_clean_or_high(output: Any) -> float:
    """Whether the output is the clean one of the first collection, or its first entry is above 1."""
    return float(output[0] >= 1 or np.array_equal(output, cases.score(OPPOSITE[0], QUERY)))


#: Honest cases that reach their claim on opposite records: the statistic, the cut, and the rate on the second side.
TIGHT: dict[str, tuple[Callable[[Any], float], float, float]] = {
    "add-laplace": (read_own, 1.0, 0.5 / math.e),
    "add-gaussian": (read_own, SIGMA**2 / 2, 0.5 * math.erfc((SIGMA**2 / 2 + 1) / SIGMA / math.sqrt(2))),
    "add-staircase": (read_own, 1.0, 0.5 / math.e),
    "add-geometric": (float, 1.0, 1 / (1 + math.e)),
    "flip-matches": (lambda output: float(0 in output), 1.0, 1 / (1 + math.e)),
    "count-bins": (lambda output: float(min(output[3] - 1, -output[0])), 0.0, (1 + math.exp(0.5)) ** -2),
    "add-laplace-to-mean": (float, 1 / 8, 0.5 / math.e),
    "answer-clean-with-delta": (find_clean_or_high, 1.0, (1 - honest.CLEAN_DELTA) * 0.5 / math.e),
    "publish-few-scores": (read_own, 0.5, 0.0),
}


@pytest.mark.parametrize("name", TIGHT)
def test_honest_case_is_tight(name: str) -> None:
    """The event happens exactly as often as the claim allows."""
    case = next(case for case in honest.HONEST if case.name == name)
    statistic, cut, rate = TIGHT[name]
    attack = attacks.Attack(*OPPOSITE, statistic, cut, (math.exp(case.claim.epsilon) * rate + case.claim.delta, rate))
    for (lower, upper), stated in zip(count_events(case, attack, 2_000), attack.rates, strict=True):
        assert lower <= stated + 1e-6
        assert stated - 1e-6 <= upper


@pytest.mark.parametrize("case", [*honest.HONEST, *peers.PEERS], ids=lambda case: case.name)
def test_case_answers(case: Any) -> None:
    """Releases of honest cases and of other libraries return something, but for those that fail at random."""
    outputs = [attacks.observe(case, rows) for rows in (*OPPOSITE, *ZERO)]
    errors = [output for output in outputs if isinstance(output, Exception)]
    assert not errors or case.name == "fail-at-random", errors
    assert case.is_honest == (not case.fault)


def test_leaks_of_peers() -> None:
    """The low bits of each mechanism that is said to leak do so; those of the others that return floats do not.

    Where the libraries are not installed, the list is empty.
    """
    for case in peers.PEERS:
        outputs = [[attacks.observe(case, np.tile(rows[0], (8, 1))) for _ in range(100)] for rows in ZERO]
        is_float = any(isinstance(output, np.ndarray) and (output % 1).any() for output in outputs[0])
        assert is_float or not case.known_leak, case.name
        if is_float:
            bounds = [bound_low_bits(case, rows[0], 2_000 if case.known_leak else 400) for rows in ZERO]
            is_broken = bounds[0][0] > attacks.compute_ceiling(case.claim, bounds[1][1])
            assert is_broken == bool(case.known_leak), case.name


def bound_low_bits(case: Any, record: np.ndarray, calls: int) -> tuple[float, float]:
    """Bound how often an output has bits below 2^-53. Each call has eight equal records."""
    values = [value for _ in range(calls) for value in attacks.observe(case, np.tile(record, (8, 1)))]
    return attacks.bound_rate(sum(attacks.count_low_bits([value]) >= 54 for value in values), len(values), ERROR)


@pytest.mark.parametrize(
    ("module", "group", "number"),
    [(unseen_faults, unseen_faults.FAULTS, 45), (unseen_honest, unseen_honest.HONEST, 25)],
    ids=["faults", "honest"],
)
def test_every_unseen_release_is_a_case(module: ModuleType, group: list[Any], number: int) -> None:
    functions = inspect.getmembers(module, lambda part: inspect.isfunction(part) and part.__module__ == module.__name__)
    releases = {name for name, function in functions if "embeddings" in inspect.signature(function).parameters}
    assert {case.release.__name__ for case in group} == releases - UNSEEN_PARTS
    assert len({case.name for case in group}) == len(group) == number
    assert all(case.target == f"{module.__name__}:{case.release.__name__}" for case in group)


@pytest.mark.parametrize("case", UNSEEN, ids=lambda case: case.name)
def test_unseen_case_answers(case: Any) -> None:
    """Releases answer or raise the errors that they name, and the stated rates of a fault contradict its claim."""
    has_query = "query" in inspect.signature(case.release).parameters
    assert has_query == (case.query is not None)
    for rows in (*OPPOSITE, *ZERO):
        output = attacks.observe(case, rows)
        assert not isinstance(output, Exception) or (case.name, type(output)) in {
            ("deadline", TimeoutError),
            ("flaky", ConnectionError),
        }
    assert case.is_honest == (not case.fault)
    if not case.is_honest:
        assert case.rates[0] > attacks.compute_ceiling(case.claim, case.rates[1])
        assert case.findable or case.note
