"""A privacy contract in the words its owner has: (epsilon, delta), or the most that an attacker may achieve.

Gaussian noise on a quantity of sensitivity D is described by mu = D / sigma alone. The best membership test reaches an
advantage of 2 Phi(mu / 2) - 1, and a true-positive rate of Phi(Phi^-1(fpr) + mu): both have closed forms for mu.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from scipy.special import erfinv, ndtr, ndtri

from scoreshield import _validation
from scoreshield._formatting import format_number
from scoreshield.errors import InvalidInput
from scoreshield.privacy import calibration as gaussian


@dataclass(frozen=True)
class Contract:
    """What was promised, as the ratio mu of sensitivity to noise, and what that is in every other currency.

    Attributes
    ----------
    mu : sensitivity over standard deviation.
    epsilon, delta : the pair that holds.
    stated : the promise in the words it was given in.
    calibration : the rule that set mu, or "attack" where an attack bound did.
    """

    mu: float
    epsilon: float
    delta: float
    stated: str
    calibration: str

    def scale(self, sensitivity: float) -> float:
        """The standard deviation for a quantity of this sensitivity, rounded up."""
        return sensitivity / self.mu * (1 + 2**-48)

    @property
    def attack_auc(self) -> float:
        return gaussian.attack_auc(self.mu)

    @property
    def attack_advantage(self) -> float:
        return gaussian.attack_advantage(self.mu)

    def tpr_at(self, fpr: Any) -> Any:
        """The most true positives any membership test reaches at a false-positive rate."""
        return ndtr(ndtri(fpr) + self.mu)

    def to_dict(self) -> dict[str, Any]:
        return {
            "stated": self.stated,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "mu": self.mu,
            "calibration": self.calibration,
            "attack": {
                "auc": self.attack_auc,
                "advantage": self.attack_advantage,
                "tpr_at_fpr_0.01": float(self.tpr_at(0.01)),
            },
        }


def contract(
    *,
    delta: float,
    epsilon: float | None = None,
    max_advantage: float | None = None,
    max_tpr: float | None = None,
    at_fpr: float | None = None,
    calibration: str = "analytic",
) -> Contract | None:
    """A contract from an epsilon, from an advantage, or from a true-positive rate at a false-positive rate.

    None where none of the three is given: the caller then looks for the least epsilon that serves.
    """
    delta = _validation.check_probability(delta, "delta", zero=False)
    calibration = _validation.check_option(calibration, "calibration", gaussian.METHODS)
    given = [name for name, value in (("epsilon", epsilon), ("max_advantage", max_advantage)) if value is not None]
    if max_tpr is not None or at_fpr is not None:
        if max_tpr is None or at_fpr is None:
            raise InvalidInput(
                "Give max_tpr and at_fpr together: the most true positives at a rate of false positives."
            )
        given.append("max_tpr at at_fpr")
    if len(given) > 1:
        raise InvalidInput(f"Give one contract, not several: got {' and '.join(given)}.")
    if epsilon is not None:
        epsilon = _validation.check_epsilon(epsilon)
        mu = 1 / gaussian.calibrate(epsilon, delta, 1.0, calibration)
        return Contract(
            mu, epsilon, delta, f"epsilon {format_number(epsilon)}, delta {format_number(delta)}", calibration
        )
    if given and calibration != "analytic":
        raise InvalidInput(f"An attack bound sets the noise by itself: leave the {calibration} calibration out.")
    if max_advantage is not None:
        advantage = _validation.check_probability(max_advantage, "max_advantage", zero=False)
        mu = 2 * math.sqrt(2) * float(erfinv(advantage))
        stated = f"an attacker's advantage of at most {advantage:g}"
    elif max_tpr is not None and at_fpr is not None:
        tpr = _validation.check_probability(max_tpr, "max_tpr", zero=False)
        fpr = _validation.check_probability(at_fpr, "at_fpr", zero=False)
        if not tpr - fpr > 1e-12:
            raise InvalidInput(f"max_tpr ({tpr:g}) must exceed at_fpr ({fpr:g}): guessing reaches that much.")
        mu = float(ndtri(tpr) - ndtri(fpr))
        stated = f"at most {tpr:g} true positives at {fpr:g} false positives"
    else:
        return None
    mu *= 1 - 1e-12  # the quantile functions' rounding, to the safe side
    if not 1e-12 <= mu <= 30:
        raise InvalidInput(
            f"{stated[0].upper()}{stated[1:]} is out of reach: choose a bound that noise can make a difference to."
        )
    return Contract(mu, gaussian.find_epsilon(delta, mu), delta, stated, "attack")
