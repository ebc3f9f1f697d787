"""What a budget buys a face matcher: plans on the LFW pair scores.

python benchmarks/plan_lfw.py --data-dir DIR     (a folder with lfw_scores.npz: faceres_centred_impostor, ..._genuine)
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import scoreshield as ss

DELTA, TARGET = 1e-6, 1e-2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    with np.load(parser.parse_args().data_dir / "lfw_scores.npz") as file:
        impostor, genuine = file["faceres_centred_impostor"], file["faceres_centred_genuine"]
    print(f"\nLFW, {len(impostor):,} pairs a side, FMR {TARGET:g}, delta {DELTA:g}; [-1, 1] | [0, 0.6]")
    for epsilon in (1, 5, 10, 20, 40, 100, 200, 400):
        cells = []
        for within in ((-1.0, 1.0), (0.0, 0.6)):
            plan = ss.plan.verification(
                impostor,
                genuine,
                target_fmr=TARGET,
                epsilon=epsilon,
                delta=DELTA,
                score_range=within,
                source="public",
                compare_ranges=(),
            )
            clipped = ss.decisions.recalibrate(plan.impostor, TARGET, plan.scale, upper=within[1])
            reach = "" if clipped.feasible else " (clipped: out of reach)"
            cells.append(
                f"sd {plan.scale:.3f}, threshold {plan.recalibration.threshold:6.3f}, TAR {plan.tar:.3f}, "
                f"FMR if kept {plan.recalibration.rate_before:.3f}{reach}"
            )
        print(f"eps {epsilon:>4}, attack advantage {plan.contract.attack_advantage:.3f}: " + " | ".join(cells))
    for tar in (0.5, 0.9):
        least = [
            ss.plan.verification(
                impostor, genuine, target_fmr=TARGET, target_tar=tar, delta=DELTA, score_range=within, source="public"
            ).least_epsilon
            for within in ((-1.0, 1.0), (0.0, 0.6))
        ]
        print(f"least epsilon for TAR {tar:g}: {least[0]:.1f} | {least[1]:.1f}")


if __name__ == "__main__":
    main()
