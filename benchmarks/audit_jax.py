"""The bounds of this library's auditor and of jax-privacy's, on equal terms: the same pair, the same outputs.

python benchmarks/audit_jax.py --python jaxvenv/bin/python [--only NAMES] [--releases 2000 10000] [--seeds 10]
    [--confidence 0.99] [--markdown FILE]

Both get outputs of the worst pair of each fault, which someone who knows the fault chose (`audit_battery.attacks`).
jax-privacy takes one number per output, so it gets the statistic of that attack. We take the same numbers, and in
another column the whole outputs. Of jax-privacy's methods the best in hindsight counts: Clopper–Pearson bounds, one-
and two-sided, with each of its three ways to choose a threshold, and the one-run bound where delta is positive.

jax-privacy is large, so it has a virtual environment of its own. The numbers reach it through a file:

    python -m venv jaxvenv && jaxvenv/bin/pip install jax-privacy
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

INSTALL = "python -m venv jaxvenv && jaxvenv/bin/pip install jax-privacy"
#: Honest cases that are compared too: no bound may exceed their claim more often than the confidence allows.
CONTROLS = ("add-laplace", "add-gaussian")


@dataclass(frozen=True)
class Sample:
    """Outputs of both sides of one case, as numbers.

    Attributes:
        name: The name of the case.
        epsilon: The claimed epsilon.
        delta: The claimed delta.
        releases: How many outputs there are on each side.
        seed: The seed of the generator.
    """

    name: str
    epsilon: float
    delta: float
    releases: int
    seed: int

    @property
    def key(self) -> str:
        return f"{self.name}/{self.releases}/{self.seed}"


# ---- In the environment of jax-privacy, where this package need not be installed.


def compute_jax_bounds(file: Path, confidence: float) -> dict[str, dict[str, float]]:
    """Compute the bounds of all methods of jax-privacy on all samples of a file."""
    from jax_privacy import auditing

    significance = 1 - confidence
    bounds: dict[str, dict[str, float]] = {}
    with np.load(file) as arrays:
        samples = [Sample(**fields) for fields in json.loads(str(arrays["samples"]))]
        for number, sample in enumerate(samples, 1):
            auditor = auditing.CanaryScoreAuditor(arrays[f"{sample.key}/first"], arrays[f"{sample.key}/second"])
            strategies = {
                "Bonferroni": auditing.Bonferroni(),
                "Split": auditing.Split(seed=sample.seed),
                "MultiSplit": auditing.MultiSplit(seed=sample.seed),
            }
            found = bounds[sample.key] = {}
            for name, strategy in strategies.items():
                for is_one_sided in (True, False):
                    sides = "one-sided" if is_one_sided else "two-sided"
                    found[f"Clopper–Pearson {sides}, {name}"] = float(
                        auditor.epsilon_clopper_pearson(
                            significance, sample.delta, one_sided=is_one_sided, threshold_strategy=strategy
                        )
                    )
                if sample.delta > 0:
                    found[f"one run, {name}"] = float(
                        auditor.epsilon_one_run(significance, sample.delta, threshold_strategy=strategy)
                    )
            print(f"[{number}/{len(samples)}] jax-privacy: {sample.key}", file=sys.stderr, flush=True)
    return bounds


def call_jax(python: str, file: Path, confidence: float) -> dict[str, dict[str, float]]:
    """Compute the bounds of jax-privacy in its own environment.

    Raises:
        SystemExit: jax-privacy is not installed there.
    """
    if python == sys.executable:
        return compute_jax_bounds(file, confidence)
    output = file.with_suffix(".json")
    command = [python, __file__, "--bounds", str(file), "--confidence", str(confidence), "--output", str(output)]
    if subprocess.run(command, check=False).returncode:
        raise SystemExit(f"The comparison in {python} failed. Is jax-privacy installed there? {INSTALL}")
    return json.loads(output.read_text(encoding="utf-8"))


def has_jax_privacy(python: str) -> bool:
    """Whether an interpreter has jax-privacy."""
    if python == sys.executable:
        return importlib.util.find_spec("jax_privacy") is not None
    question = "import importlib.util as u; raise SystemExit(u.find_spec('jax_privacy') is None)"
    try:
        return subprocess.run([python, "-c", question], check=False).returncode == 0
    except OSError:
        return False


# ---- In the environment of this package.


def draw_outputs(name: str, releases: int, seed: int) -> tuple[Any, list[list[Any]], list[list[float]]]:
    """Draw outputs of both sides of a case, and compute their statistics.

    Returns:
        The case, the outputs of both sides, and the statistics of both sides.
    """
    from audit_battery.attacks import ATTACKS, OPPOSITE, observe
    from audit_battery.cases import set_seed
    from audit_battery.faults import FAULTS
    from audit_battery.honest import HONEST

    case = next(case for case in [*FAULTS, *HONEST] if case.name == name)
    set_seed(seed)
    if name in CONTROLS:  # the entry of the record that differs
        pair, statistic = OPPOSITE, lambda output: float(output[0])
    else:
        attack = ATTACKS[name]
        pair, statistic = (attack.first, attack.second), attack.statistic
    sides = [[observe(case, rows) for _ in range(releases)] for rows in pair]
    return case, sides, [[statistic(output) for output in side] for side in sides]


def stack_outputs(sides: Sequence[Sequence[Any]]) -> list[np.ndarray] | None:
    """Stack whole outputs as rows of numbers; None where they are not numbers of one shape."""
    try:
        stacked = [np.array([np.asarray(output, dtype=np.float64).ravel() for output in side]) for side in sides]
    except (TypeError, ValueError):  # text, errors, None, or rows of several lengths
        return None
    is_table = all(rows.ndim == 2 and np.isfinite(rows).all() for rows in stacked)
    return stacked if is_table and stacked[0].shape == stacked[1].shape else None


def bound_ours(sides: Sequence[Any] | None, claim: Any, confidence: float) -> float:
    """Compute our bound; NaN where the auditor takes no such outputs."""
    from scoreshield.audit import audit_outputs
    from scoreshield.errors import ScoreShieldError

    if sides is None:
        return float("nan")
    try:
        return float(audit_outputs(sides[0], sides[1], claim, confidence=confidence).epsilon_lower)
    except ScoreShieldError as error:
        print(f"    no bound: {error}", file=sys.stderr)
        return float("nan")


def describe_bounds(values: Iterable[float], claimed: float) -> str:
    """Describe bounds over the seeds: their mean, their spread, and how many exceed the claim."""
    kept = np.array([value for value in values if not np.isnan(value)])
    if not len(kept):
        return "–"
    return f"{kept.mean():.2f} ± {kept.std():.2f} ({(kept > claimed).sum()} of {len(kept)})"


def compare(names: Sequence[str], sizes: Sequence[int], seeds: int, confidence: float, python: str) -> str:
    """Draw all outputs, compute all bounds, and make the table."""
    samples: list[Sample] = []
    arrays: dict[str, Any] = {}
    ours: dict[str, tuple[float, float]] = {}
    for name in names:
        for seed in range(seeds):
            case, outputs, numbers = draw_outputs(name, max(sizes), seed)
            for size in sizes:
                sample = Sample(name, case.claim.epsilon, case.claim.delta, size, seed)
                columns = [np.array(side[:size]) for side in numbers]
                whole = stack_outputs([side[:size] for side in outputs])
                ours[sample.key] = (
                    bound_ours(columns, case.claim, confidence),
                    bound_ours(whole, case.claim, confidence),
                )
                arrays |= {f"{sample.key}/first": columns[0], f"{sample.key}/second": columns[1]}
                samples.append(sample)
            print(f"ours: {name}, seed {seed}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "samples.npz"
        np.savez(file, samples=json.dumps([vars(sample) for sample in samples]), **arrays)
        theirs = call_jax(python, file, confidence)
    return make_table(samples, ours, theirs)


def make_table(
    samples: Sequence[Sample], ours: dict[str, tuple[float, float]], theirs: dict[str, dict[str, float]]
) -> str:
    header = ["case", "claim", "releases", "jax-privacy, its best method", "the method"]
    header += ["ours, the same number", "ours, the whole output"]
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for name, size in dict.fromkeys((sample.name, sample.releases) for sample in samples):
        own = [sample for sample in samples if (sample.name, sample.releases) == (name, size)]
        methods = theirs[own[0].key]
        best = max(methods, key=lambda method: np.mean([theirs[sample.key][method] for sample in own]))
        claimed = own[0].epsilon
        cells = [
            describe_bounds((theirs[sample.key][best] for sample in own), claimed),
            best,
            *(describe_bounds((ours[sample.key][column] for sample in own), claimed) for column in (0, 1)),
        ]
        claim = f"ε = {claimed:g}" + (f", δ = {own[0].delta:g}" if own[0].delta else "")
        lines.append(f"| {name} | {claim} | {size:,} | {' | '.join(cells)} |")
    lines += ["", "Lower bounds on epsilon: mean ± standard deviation over the seeds, and how many exceed the claim."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the interpreter of an environment with jax-privacy")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names of cases")
    parser.add_argument("--releases", nargs="+", type=int, default=[2_000, 10_000], help="outputs on each side")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--confidence", type=float, default=0.99)
    parser.add_argument("--markdown", type=Path, help="write the table here too")
    for name in ("--bounds", "--output"):  # how this script calls itself
        parser.add_argument(name, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bounds:
        bounds = compute_jax_bounds(arguments.bounds, arguments.confidence)
        arguments.output.write_text(json.dumps(bounds), encoding="utf-8")
        return
    if not has_jax_privacy(arguments.python):
        raise SystemExit(f"{arguments.python} has no jax-privacy. Install it, and name it by --python: {INSTALL}")
    from audit_battery.attacks import ATTACKS

    known = [*ATTACKS, *CONTROLS]
    names = arguments.only or known
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"There is no comparison of {unknown[0]!r}.")
    table = compare(names, arguments.releases, arguments.seeds, arguments.confidence, arguments.python)
    print(table)
    if arguments.markdown:
        arguments.markdown.write_text(table + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
