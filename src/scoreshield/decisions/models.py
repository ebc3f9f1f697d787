"""Score distributions by name and parameters, for those who know a data sheet and have no scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scipy import stats

from scoreshield.decisions.scores import Distribution
from scoreshield.errors import InvalidInput

#: name: (parameters, what makes the law)
_MODELS: dict[str, tuple[str, Callable[..., Any]]] = {
    "normal": ("mean,sd", lambda mean, sd: stats.norm(mean, sd)),
    "beta": ("a,b (stretched to [-1, 1])", lambda a, b: stats.beta(a, b, loc=-1, scale=2)),
    "t": ("nu,mean,sd", lambda nu, mean, sd: stats.t(nu, loc=mean, scale=sd * ((nu - 2) / nu) ** 0.5)),
}


def score_model(text: str) -> Distribution | None:
    """The distribution that "normal:0,0.2", "beta:5,5" or "t:10,0,0.25" names, cut to [-1, 1].

    None where the text does not begin with such a name; a refusal where it does and the parameters make no law.
    """
    name, colon, rest = text.partition(":")
    if not colon or name not in _MODELS:
        return None
    parameters, make = _MODELS[name]
    wanted = f"'{name}:' must be followed by {parameters}"
    try:
        values = [float(part) for part in rest.split(",")]
        law = make(*values)
        proper = law.std() > 0 and all(abs(value) < 1e6 for value in values)
    except (TypeError, ValueError):
        raise InvalidInput(f"The score model {wanted}. Got {text!r} instead.") from None
    if not proper:
        raise InvalidInput(f"The score model {wanted}, with a positive finite spread. Got {text!r} instead.")
    return Distribution(law)
