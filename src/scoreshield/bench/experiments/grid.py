"""The grid of an experiment: a YAML file of budgets, neighbours, mechanisms, projections and repeats.

A file states only the differences from the grid that ships with the experiment. Its ``quick`` part states further
differences, for a run of two minutes instead of hours. Every value is checked here, so that a typo stops a run before
it starts.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo, create_model

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
class Choices:
    """The names that a grid of one experiment may use, and the options that ship with it."""

    datasets: Sequence[str]
    mechanism: Sequence[str]
    projection: Sequence[str]
    metrics: Sequence[str]
    options: Mapping[str, Any]


# ---- Kinds of values. Each check takes what YAML gave, and raises a ValueError that says what the value must be.


def _declare(check: Callable[[Any], Any]) -> BeforeValidator:
    return BeforeValidator(check)


def _declare_list(check: Callable[[Any], Any]) -> BeforeValidator:
    """Declare a list without repetitions, of which each item passes the check; one item needs no brackets."""
    return BeforeValidator(lambda value: tuple(dict.fromkeys(check(item) for item in _as_list(value))))


def _declare_names() -> BeforeValidator:
    """Declare a list of names that the experiment knows."""

    def check(value: Any, info: ValidationInfo) -> tuple[str, ...]:
        assert info.field_name is not None
        names = tuple(dict.fromkeys(str(item) for item in _as_list(value)))
        kind = {"metrics": "metric"}.get(info.field_name, info.field_name.rstrip("s"))
        choices: Choices = (info.context or {})["choices"]
        _check_known(names, getattr(choices, info.field_name), kind)
        return names

    return BeforeValidator(check)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


def _number(value: Any) -> float:
    # YAML 1.1 reads 1e-8, without a point, as text.
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"must hold numbers. Got {_shorten(value)}.")
    return number


def _number_between(low: float, high: float, *, has_ends: bool) -> Callable[[Any], float]:
    def check(value: Any) -> float:
        number = _number(value)
        if not (low <= number <= high if has_ends else low < number < high):
            ends = f"from {low:g} to {high:g}" if has_ends else f"strictly between {low:g} and {high:g}"
            raise ValueError(f"must be {ends}. Got {number:g}.")
        return number

    return check


def _positive(value: Any) -> float:
    number = _number(value)
    if number <= 0:
        raise ValueError(f"must be positive. Got {_shorten(value)}.")
    return number


def _radius(value: Any) -> float | None:
    try:
        return None if value == RECORD else _positive(value)
    except ValueError:
        raise ValueError(f"must hold {RECORD!r} or Gram radii, positive numbers. Got {_shorten(value)}.") from None


def _whole_from(least: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
            raise ValueError(f"must be a whole number, at least {least}. Got {_shorten(value)}.")
        return value

    return check


def _device(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"cpu|torch|cuda(:\d+)?", value):
        raise ValueError(f"must be cpu, torch, cuda or a GPU as cuda:1. Got {_shorten(value)}.")
    return value


def _score_range(value: Any) -> list[float]:
    ends = [_number(end) for end in value] if isinstance(value, list) else []
    if len(ends) != 2 or not -1 <= ends[0] < ends[1] <= 1:
        raise ValueError(f"must be [a, b] with -1 <= a < b <= 1. Got {_shorten(value)}.")
    return ends


# ---- Models.


class Grid(BaseModel):
    """All settings of one run.

    Attributes:
        experiment: The name of the experiment.
        datasets: Names of data sets; the experiment says which there are.
        epsilon: The epsilons of the contracts.
        delta: The deltas of the contracts; every pair of an epsilon and a delta is one contract.
        adjacency: Gram radii, and None for one whole record.
        advantage: For the comparison at equal attack: the most that a membership test may gain.
        mechanism: Names of mechanisms.
        projection: Names of projections.
        metrics: Names of metrics; all where there are none.
        repeats: How often each setting is run.
        seed: Where the seeds start.
        options: The experiment's own settings.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    experiment: Annotated[str, _declare(str)]
    datasets: Annotated[tuple[str, ...], _declare_names()]
    epsilon: Annotated[tuple[float, ...], _declare_list(_number_between(1e-9, 1e9, has_ends=True))]
    delta: Annotated[tuple[float, ...], _declare_list(_number_between(0.0, 1.0, has_ends=False))]
    adjacency: Annotated[tuple[float | None, ...], _declare_list(_radius)]
    advantage: Annotated[tuple[float, ...], _declare_list(_number_between(_LEAST_ADVANTAGE, 1.0, has_ends=False))]
    mechanism: Annotated[tuple[str, ...], _declare_names()]
    projection: Annotated[tuple[str, ...], _declare_names()]
    metrics: Annotated[tuple[str, ...], _declare_names()]
    repeats: Annotated[int, _declare(_whole_from(1))]
    seed: Annotated[int, _declare(_whole_from(0))]
    options: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as in the file: what a run folder remembers."""
        plain = self.model_dump(mode="json")
        plain["adjacency"] = [RECORD if radius is None else radius for radius in self.adjacency]
        return plain


def _make_options_model(name: str, shipped: Mapping[str, Any]) -> type[BaseModel]:
    """Make a model of options from those that ship: each has the kind of the shipped value, and none is required."""
    fields: dict[str, Any] = {key: (_option_kind(key, value), None) for key, value in shipped.items()}
    return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)


def _option_kind(name: str, shipped: Any) -> Any:
    """Choose the kind of an option: a whole number, a number, a device, or what is public of scores."""
    if isinstance(shipped, dict):
        return _make_public_model(name, shipped)
    if isinstance(shipped, int):
        return Annotated[int, _declare(_whole_from(2 if name in _AT_LEAST_TWO else 1))]
    return Annotated[float, _declare(_positive)] if isinstance(shipped, float) else Annotated[str, _declare(_device)]


def _make_public_model(name: str, shipped: Mapping[str, Any]) -> type[BaseModel]:
    """Make a model of public knowledge of scores: ranges and thresholds, perhaps by data set."""
    threshold = Annotated[float, _declare(_number_between(-1, 1, has_ends=False))]
    fields: dict[str, Any] = {}
    for key, value in shipped.items():
        kind: Any = Annotated[list[float], _declare(_score_range)] if isinstance(value, list) else threshold
        fields[key] = (_make_public_model(key, value) if isinstance(value, dict) else kind, None)
    return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read one mapping from a YAML file."""
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
    """Make a grid of the shipped one, ``base``, and a file's changes.

    Args:
        base: The grid that ships with the experiment.
        changes: What a file changes.
        quick: Whether the quick parts of both count.
        choices: The names that the grid may use.
        source: The file, for error messages.

    Raises:
        InvalidInput: A setting is unknown or out of its range. The message names the file and the setting.
    """
    merged: dict[str, Any] = {}
    for part in (dict(base), dict(changes)):  # what a file says outweighs what ships, its quick part included
        shortened = _check_part(part.pop("quick", {}), "quick", source)
        for name, value in [*part.items(), *(shortened.items() if quick else ())]:
            if name == "options":
                value = _overlay(merged.get("options", {}), _check_part(value, "options", source))
            merged[name] = value
    if merged["experiment"] != base["experiment"]:
        given = _shorten(merged["experiment"])
        raise InvalidInput(f"The grid {source} is for {given}, not for {base['experiment']!r}.")
    try:
        _check_known(merged, Grid.model_fields, "setting")
        _check_known(merged["options"], choices.options, "option")
        options = _make_options_model("options", choices.options).model_validate(merged["options"])
        merged["options"] = options.model_dump(exclude_unset=True)
        grid = Grid.model_validate(merged, context={"choices": choices})
        _check_advantages(grid)
    except ValidationError as error:
        raise InvalidInput(f"The grid {source}: {_describe_problem(error, choices.options)}") from None
    except ValueError as error:
        raise InvalidInput(f"The grid {source}: {error}") from None
    return grid


def _describe_problem(error: ValidationError, options: Mapping[str, Any]) -> str:
    """Describe the first problem in one sentence that names the setting."""
    first = error.errors(include_url=False, include_input=False)[0]
    path = [str(part) for part in first["loc"]]
    cause = first.get("ctx", {}).get("error")
    if first["type"] == "extra_forbidden":
        known: Any = options
        for name in path[:-1]:
            known = known[name]
        try:
            _check_known(path[-1:], known, f"entry of {'.'.join(path[:-1])}")
        except ValueError as unknown:
            return str(unknown)
    if first["type"] == "model_type":
        return f"{'.'.join(path)} must hold 'name: value' lines."
    problem = str(cause) if cause is not None else f"is not valid: {first['msg']}."
    return problem if problem.startswith("unknown ") else f"{'.'.join(path)} {problem}"


def _overlay(before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Lay the changes over what was there, in groups within groups too."""
    return {
        **before,
        **{
            name: _overlay(before[name], value)
            if isinstance(value, dict) and isinstance(before.get(name), dict)
            else value
            for name, value in changes.items()
        },
    }


def _check_advantages(grid: Grid) -> None:
    """Check that an advantage leaves an epsilon to spend: Gaussian noise has the grid's first delta."""
    if not grid.advantage or not any(name.startswith("gaussian") for name in grid.mechanism):
        return
    if not grid.delta:
        raise ValueError("advantage needs at least one delta, for Gaussian noise. Got none.")
    if min(grid.advantage) - grid.delta[0] < _LEAST_ADVANTAGE:
        raise ValueError(
            f"advantage must be above the first delta, {grid.delta[0]:g}, which alone gives an attacker as much under "
            f"Gaussian noise. Got {min(grid.advantage):g}."
        )


def _check_part(value: Any, name: str, source: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(f"The grid {source}: {name} must hold 'name: value' lines. Got {_shorten(value)}.")
    return value


def _check_known(given: Iterable[str], known: Iterable[str], kind: str) -> None:
    names = list(known)
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(str(name), names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names) or 'none'}."
            raise ValueError(f"unknown {kind} {_shorten(name)}{hint}")


def _problem(error: Exception) -> str:
    return " ".join(str(getattr(error, "problem", None) or "it cannot be read").split())


def _shorten(value: Any) -> str:
    return repr(value)[:80]
