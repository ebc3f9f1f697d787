"""Noise on one score at the same advantage of the best attacker, and what that attacker gains at the same epsilon.

python benchmarks/equal_attack.py
"""

from __future__ import annotations

import scoreshield as ss
from scoreshield.privacy.privunit import PrivUnit
from scoreshield.privacy.profiles import LaplaceProfile, PureProfile
from scoreshield.plan.candidates import make_staircase_profile


def main() -> None:
    print("standard deviation at the same attack advantage, sensitivity 2 (epsilon in brackets)")
    for advantage in (0.1, 0.2, 0.5, 0.8, 0.9, 0.95, 0.99, 0.999):
        contract = ss.plan.make_contract(delta=1e-6, max_advantage=advantage)
        assert contract is not None
        laplace = contract.find_pure_epsilon(LaplaceProfile)
        staircase = contract.find_pure_epsilon(make_staircase_profile)
        print(
            f"{advantage:5g}: Gaussian {2 / contract.mu:7.4f}   "
            f"Laplace {ss.LaplaceNoise.calibrate(laplace, 2.0).std:7.4f} "
            f"({laplace:.2f})   staircase {ss.StaircaseNoise.calibrate(staircase, 2.0).std:7.4f} ({staircase:.2f})"
        )
    print("\nadvantage (AUC) of the best attacker at the same epsilon; Gaussian at delta 1e-6")
    for epsilon in (1.0, 5.0, 10.0, 20.0):
        profiles = {
            "Gaussian": ss.release_scores([[1.0, 0.0]], [1.0, 0.0], epsilon=epsilon, delta=1e-6).guarantee.profile,
            "Laplace": LaplaceProfile(epsilon),
            "staircase": make_staircase_profile(epsilon),
            "PrivUnit, d = 384": PrivUnit.calibrate(384, epsilon).profile,
            "any pure": PureProfile(epsilon),
        }
        print(f"{epsilon:3g}: " + "   ".join(f"{name} {p.advantage:.4f} ({p.auc:.4f})" for name, p in profiles.items()))


if __name__ == "__main__":
    main()
