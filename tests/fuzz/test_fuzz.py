"""A few thousand damaged inputs, the same in every run; `make fuzz` makes a hundred thousand others."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fuzz.targets import TARGETS, Target, check

from scoreshield.errors import InvalidInput

pytest.importorskip("resource", reason="limits of memory need a POSIX system")
from fuzz import run as fuzz_run

CASES, SEED = 3000, 20_261_116
SCRIPT = Path(__file__).parent / "run.py"


@pytest.mark.parametrize("kind", TARGETS, ids=[kind.name for kind in TARGETS])
def test_damaged_inputs(kind: type[Target]) -> None:
    """In a process of its own, so that the limit of memory is its own too."""
    cases = max(20, round(CASES * kind.weight / sum(each.weight for each in TARGETS)))
    command = [sys.executable, "-W", "ignore", str(SCRIPT), "--no-keep", "--seed", str(SEED)]
    done = subprocess.run(
        [*command, "--cases", str(cases), "--target", kind.name], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert f"seed {SEED}" in done.stdout
    assert f"{cases:,} cases" in done.stdout


class Faulty(Target):
    """Readers with planted faults, which the suite must find."""

    name = "faulty"
    fault = ""

    def valid(self) -> list[bytes]:
        return [b"a valid input of some length"]

    def damaged(self, rng: random.Random, seed: bytes) -> bytes:
        return seed + rng.randbytes(2)

    def read(self, data: bytes) -> None:
        if len(data) < 30:
            return
        match self.fault:
            case "crash":
                raise KeyError("x")
            case "exit":
                sys.exit(0)
            case "two lines":
                raise InvalidInput("one\ntwo")
            case "escape":
                raise InvalidInput("\x1b[2J")
            case "unsound":
                check(False, "wrong")
            case "slow":
                while True:
                    pass
            case "good":
                raise InvalidInput("One sentence.")


@pytest.mark.parametrize("fault", ["crash", "exit", "two lines", "escape", "unsound", "slow"])
def test_the_suite_finds_planted_faults(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_run, "CORPUS", tmp_path / "corpus")
    monkeypatch.setattr(fuzz_run, "PROCESSOR_SECONDS", 0.5)
    target = Faulty(tmp_path)
    target.fault = "good"
    assert fuzz_run.run([target], 3, 1, keep=True) == []
    target.fault = fault
    found = fuzz_run.run([target], 1, 1, keep=True)
    assert len(found) == 1
    assert "seed 1, case 0" in found[0]
    assert len(fuzz_run.replay([target])) == 1
    target.fault = "good"
    assert fuzz_run.replay([target]) == []


def test_cases_depend_on_the_seed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.localtime()
    monkeypatch.setattr(time, "localtime", lambda _: now)  # of the members of .npz files
    targets = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        targets.append(TARGETS[0](tmp_path / name))
    for number in range(20):
        one, other = (target.case(random.Random(f"1:{number}")) for target in targets)
        assert one == other
