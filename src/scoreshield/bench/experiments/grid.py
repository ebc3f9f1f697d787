"""What an experiment runs through: a YAML file of budgets, neighbours, mechanisms, projections and repeats.

A file names only what differs from the grid that ships with the experiment; its ``quick`` part differs once more, for
two minutes instead of an evening. Every value is checked here, so that a typo stops a run before it starts.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scoreshield import _loading
from scoreshield.errors import InvalidInput

#: How the replacement of one whole record is written where a number would be a Gram radius.
RECORD = "record"
_AT_LEAST_TWO = ("scores_per_side", "pairs", "users")
#: An advantage this near to nothing, or to what delta alone gives, leaves no epsilon to spend.
_LEAST_ADVANTAGE = 1e-9
#: Of a grid: characters in all and of one value, and levels of nesting. The longest that ships has 2,000, 40 and 5.
_LONGEST, _LONGEST_WORD, _DEEPEST = 2**16, 1000, 16


@dataclass(frozen=True)
class Grid:
    """All settings of one run.

    Attributes
    ----------
    datasets, mechanism, projection, metrics : by name; which there are, the experiment says.
    epsilon, delta : the contracts, all pairs of them.
    adjacency : Gram radii, and None for one whole record.
    advantage : for the comparison at equal attack: the most a membership test may gain.
    repeats, seed : how often each setting is run, and where the seeds start.
    options : the experiment's own.
    """

    experiment: str
    datasets: tuple[str, ...]
    epsilon: tuple[float, ...]
    delta: tuple[float, ...]
    adjacency: tuple[float | None, ...]
    advantage: tuple[float, ...]
    mechanism: tuple[str, ...]
    projection: tuple[str, ...]
    metrics: tuple[str, ...]
    repeats: int
    seed: int
    options: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in the file: what a run folder remembers."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        plain["adjacency"] = [RECORD if radius is None else radius for radius in self.adjacency]
        return plain


@dataclass(frozen=True)
class Choices:
    """What an experiment knows: the names a grid may use."""

    datasets: Sequence[str]
    mechanism: Sequence[str]
    projection: Sequence[str]
    metrics: Sequence[str]
    options: Mapping[str, Any]


def read_yaml(path: str | Path) -> dict[str, Any]:
    """One mapping from a YAML file, or one sentence about what is wrong with it."""
    with _loading.open_regular_file(path) as file:
        content = file.read(_LONGEST + 1)
    try:
        return parse_yaml(content.decode("utf-8"), str(path))
    except UnicodeDecodeError:
        raise InvalidInput(f"The grid {path} is not a text file.") from None


def parse_yaml(text: str, source: str) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise InvalidInput("Experiments need the 'bench' extra: pip install 'scoreshield[bench]'.") from None
    if len(text) > _LONGEST:
        raise InvalidInput(f"The grid {source} is longer than {_LONGEST:,} characters, which no grid is.")
    try:
        _check_events(yaml, text)
        found = yaml.safe_load(text)
    except RecursionError:
        raise InvalidInput(f"The grid {source} is nested too deeply.") from None
    except ValueError as error:
        raise InvalidInput(f"The grid {source} is not valid YAML: {_loading.describe_error(error)}.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise InvalidInput(f"The grid {source}{where} is not valid YAML: {_problem(error)}.") from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise InvalidInput(f"The grid {source} must be a list of 'name: value' lines.")
    return found


def _check_events(yaml: Any, text: str) -> None:
    """Raise a YAMLError where the text uses what no grid needs: aliases, tags, deep nesting, long words.

    A few aliases of aliases name billions of values, and a number of a million digits takes minutes to read.
    """
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        problem = None
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            problem = "anchors and aliases (& and *) are not read"
        elif getattr(event, "tag", None) is not None:
            problem = "tags (!) are not read"
        elif isinstance(event, yaml.ScalarEvent) and len(event.value) > _LONGEST_WORD:
            problem = f"a value is longer than {_LONGEST_WORD} characters"
        elif isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            problem = f"it is nested more than {_DEEPEST} deep" if depth > _DEEPEST else None
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if problem is not None:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def make_grid(
    base: Mapping[str, Any], changes: Mapping[str, Any], *, quick: bool, choices: Choices, source: str
) -> Grid:
    """The shipped grid ``base``, then a file's changes; each with its quick part, if asked for."""
    merged: dict[str, Any] = {}
    for part in (dict(base), dict(changes)):  # what a file says outweighs what ships, its quick part included
        shortened = _part(part.pop("quick", {}), source)
        for name, value in [*part.items(), *(shortened.items() if quick else ())]:
            if name == "options":
                value = _over(merged.get("options", {}), _part(value, source))
            merged[name] = value
    _known(merged, [*Grid.__dataclass_fields__], "setting", source)
    if merged["experiment"] != base["experiment"]:
        raise InvalidInput(f"The grid {source} is for {_shown(merged['experiment'])}, not for {base['experiment']!r}.")
    _known(merged["options"], choices.options, "option", source)
    found = Grid(
        experiment=str(merged["experiment"]),
        datasets=_names(merged, "datasets", choices.datasets, source),
        epsilon=_numbers(merged, "epsilon", 1e-9, 1e9, source),
        delta=_numbers(merged, "delta", 0.0, 1.0, source, open_ends=True),
        adjacency=_radii(merged, source),
        advantage=_numbers(merged, "advantage", _LEAST_ADVANTAGE, 1.0, source, open_ends=True),
        mechanism=_names(merged, "mechanism", choices.mechanism, source),
        projection=_names(merged, "projection", choices.projection, source),
        metrics=_names(merged, "metrics", choices.metrics, source),
        repeats=_whole(merged, "repeats", 1, source),
        seed=_whole(merged, "seed", 0, source),
        options={
            name: _option(name, value, choices.options[name], source) for name, value in merged["options"].items()
        },
    )
    _advantages_leave_something(found, source)
    return found


def _over(before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says over what it leaves out, in groups within groups too."""
    return {
        **before,
        **{
            name: _over(before[name], value)
            if isinstance(value, dict) and isinstance(before.get(name), dict)
            else value
            for name, value in changes.items()
        },
    }


def _advantages_leave_something(grid: Grid, source: str) -> None:
    """At equal attack Gaussian noise has the grid's first delta, which by itself gives an attacker as much."""
    if not grid.advantage or not any(name.startswith("gaussian") for name in grid.mechanism):
        return
    if not grid.delta:
        raise InvalidInput(f"The grid {source}: advantage needs at least one delta, for Gaussian noise. Got none.")
    if min(grid.advantage) - grid.delta[0] < _LEAST_ADVANTAGE:
        raise InvalidInput(
            f"The grid {source}: advantage must be above the first delta, {grid.delta[0]:g}, which alone gives an "
            f"attacker as much under Gaussian noise. Got {min(grid.advantage):g}."
        )


def _part(value: Any, source: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(
            f"The grid {source}: 'quick' and 'options' must hold 'name: value' lines. Got {_shown(value)}."
        )
    return value


def _known(given: Iterable[str], known: Iterable[str], kind: str, source: str) -> None:
    names = list(known)
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(str(name), names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names) or 'none'}."
            raise InvalidInput(f"The grid {source} has an unknown {kind} {_shown(name)}{hint}")


def _names(merged: Mapping[str, Any], name: str, known: Sequence[str], source: str) -> tuple[str, ...]:
    values = _items(merged, name)
    _known([str(value) for value in values], known, {"metrics": "metric"}.get(name, name.rstrip("s")), source)
    return tuple(dict.fromkeys(str(value) for value in values))


def _items(merged: Mapping[str, Any], name: str) -> list[Any]:
    value = merged[name]
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


def _number(value: Any, name: str, source: str) -> float:
    # YAML 1.1 reads 1e-8, without a point, as text.
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InvalidInput(f"The grid {source}: {name} must hold numbers. Got {_shown(value)}.")
    return number


def _numbers(
    merged: Mapping[str, Any], name: str, low: float, high: float, source: str, *, open_ends: bool = False
) -> tuple[float, ...]:
    values = tuple(dict.fromkeys(_number(value, name, source) for value in _items(merged, name)))
    for value in values:
        if not (low < value < high if open_ends else low <= value <= high):
            ends = f"strictly between {low:g} and {high:g}" if open_ends else f"from {low:g} to {high:g}"
            raise InvalidInput(f"The grid {source}: {name} must be {ends}. Got {value:g}.")
    return values


def _radii(merged: Mapping[str, Any], source: str) -> tuple[float | None, ...]:
    radii: list[float | None] = []
    for value in _items(merged, "adjacency"):
        radius = None if value == RECORD else _number(value, f"adjacency ({RECORD!r} or a Gram radius)", source)
        if radius is not None and radius <= 0:
            raise InvalidInput(f"The grid {source}: a Gram radius must be positive. Got {_shown(value)}.")
        radii.append(radius)
    return tuple(dict.fromkeys(radii))


def _whole(merged: Mapping[str, Any], name: str, least: int, source: str) -> int:
    value = merged[name]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
        raise InvalidInput(f"The grid {source}: {name} must be a whole number, at least {least}. Got {_shown(value)}.")
    return value


def _option(name: str, value: Any, like: Any, source: str) -> Any:
    """The value in the kind of the shipped one: a whole number, a number, a device, or public knowledge of scores."""
    if isinstance(like, dict):
        return _public(name, value, like, source)
    if isinstance(like, int):
        return _whole({name: value}, name, 2 if name in _AT_LEAST_TWO else 1, source)
    if isinstance(like, float):
        number = _number(value, name, source)
        if number <= 0:
            raise InvalidInput(f"The grid {source}: {name} must be positive. Got {_shown(value)}.")
        return number
    if not isinstance(value, str) or not re.fullmatch(r"cpu|torch|cuda(:\d+)?", value):
        raise InvalidInput(
            f"The grid {source}: {name} must be cpu, torch, cuda or a GPU as cuda:1. Got {_shown(value)}."
        )
    return value


def _public(name: str, value: Any, like: Any, source: str) -> Any:
    """What is public of scores: thresholds and ranges, perhaps by data set, in the shape of the shipped ones."""
    if isinstance(like, dict):
        if not isinstance(value, dict):
            raise InvalidInput(f"The grid {source}: {name} must hold 'name: value' lines. Got {_shown(value)}.")
        _known(value, like, f"entry of {name}", source)
        return {key: _public(f"{name}.{key}", inner, like[key], source) for key, inner in value.items()}
    if not isinstance(like, list):
        threshold = _number(value, name, source)
        if not -1 < threshold < 1:
            raise InvalidInput(f"The grid {source}: {name} must be strictly between -1 and 1. Got {threshold:g}.")
        return threshold
    ends = [_number(end, name, source) for end in value] if isinstance(value, list) else []
    if len(ends) != 2 or not -1 <= ends[0] < ends[1] <= 1:
        raise InvalidInput(f"The grid {source}: {name} must be [a, b] with -1 <= a < b <= 1. Got {_shown(value)}.")
    return ends


def _problem(error: Exception) -> str:
    return " ".join(str(getattr(error, "problem", None) or "it cannot be read").split())


def _shown(value: Any) -> str:
    return repr(value)[:80]
