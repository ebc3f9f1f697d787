"""Noise laws of the caller in an experiment: a name for the grid, and a function from (epsilon, delta) to the law."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from scoreshield.bench.experiments.grid import Grid
from scoreshield.errors import InvalidInput
from scoreshield.privacy.noise import CustomNoise

#: Makes the law for a contract. A run calls it in other processes, so it must be a function of a module.
LawMaker = Callable[[float, float], CustomNoise]


def check_laws(laws: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, LawMaker]:
    """Check the names and the functions of custom laws.

    Args:
        laws: For each name a function from (epsilon, delta) to a CustomNoise.
        known: The mechanisms of the experiment, whose names are taken.
    """
    for name, make in laws.items():
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 100:
            raise InvalidInput("A custom law must have a name of 1 to 100 printable characters.")
        if name in known:
            raise InvalidInput(f"The experiment has a mechanism {name!r} already: give the custom law another name.")
        if not callable(make):
            raise InvalidInput(f"The custom law {name!r} must be a function from (epsilon, delta) to a CustomNoise.")
        try:
            pickle.dumps(make)
        except (pickle.PicklingError, AttributeError, TypeError):
            raise InvalidInput(
                f"The custom law {name!r} must be a function that is defined in a module: other processes call it."
            ) from None
    return dict(laws)


def make_custom_law(laws: Mapping[str, LawMaker], name: str, epsilon: float, delta: float) -> CustomNoise:
    """Make the law of one contract, and check that it covers it.

    Raises:
        InvalidInput: The function returns something else, or a law that has a larger delta at epsilon.
    """
    law = laws[name](epsilon, delta)
    if not isinstance(law, CustomNoise):
        raise InvalidInput(f"The custom law {name!r} must return a CustomNoise. Got a {type(law).__name__} instead.")
    if (true := law.state_profile(epsilon).delta_at(epsilon)) > delta:
        raise InvalidInput(
            f"The custom law {name!r} has delta {true:.6g} at epsilon {epsilon:g}, more than the {delta:g} of the grid."
        )
    return law


def hash_custom_laws(laws: Mapping[str, LawMaker], grid: Grid) -> dict[str, str]:
    """Compute a checksum of each law that a grid uses, over its tables for all contracts.

    A run that is resumed with another law of the same name would mix two mechanisms.
    """
    return {
        name: hashlib.sha256(
            json.dumps(
                [
                    make_custom_law(laws, name, epsilon, delta).to_dict()
                    for delta in grid.delta
                    for epsilon in grid.epsilon
                ]
            ).encode()
        ).hexdigest()
        for name in grid.mechanism
        if name in laws
    }
