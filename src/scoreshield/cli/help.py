"""How commands present themselves: their help, the option that an error names, and loading when they are called.

Help names no value for a switch. Examples stand on lines of their own and are never wrapped, so that they can be
pasted. A group without a command shows its help.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, TypeVar, cast

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from scoreshield.cli.commands import GROUPS
from scoreshield.errors import InvalidArrayFile, InvalidInput, InvalidParameter, InvalidRow

CommandFunction = TypeVar("CommandFunction", bound=Callable[..., Any])

_ARGUMENT = re.compile(r"\b(?P<name>[a-z_]+)='(?P<value>[\w-]+)'")
#: A parameter that a sentence names in brackets: ``name a folder (key_folder)``.
_BRACKETS = re.compile(r"\((?P<name>[a-z]+_[a-z_]+)\)")
_LINE_END = re.compile(r"(?<!\n)\n(?!\n)")
#: Options that have another name than the parameter that they set, such as one that is given once per value.
_OTHER_NAMES = {
    "cuts": ("--cut",),
    "k": ("--best", "--top-k"),
    "levels": ("--level",),
    "rng": ("--seed", "--research-seed"),
    "vectors": ("--codebook", "codebook"),
}
#: Settings of every command: ``-h`` is ``--help``.
CONTEXT = {"help_option_names": ["--help", "-h"]}


class ExplainedCommand(TyperCommand):
    """A command whose help ends with an example, and whose errors name the option that was given.

    Without its arguments it shows its help.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.help = _LINE_END.sub(" ", self.help or "")  # Rich keeps line ends inside all paragraphs but the first

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        has_required = any(param.required for param in self.params)
        return super().parse_args(ctx, args or (["--help"] if has_required and not ctx.resilient_parsing else []))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with _hide_epilog(self) as example:
            super().format_help(ctx, formatter)
        _write_example(formatter, example)

    def get_params(self, ctx: Any) -> list[Any]:
        return _simplify_values(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InvalidInput as error:
            raise InvalidInput(name_option(error, self.params, ctx.params)) from error


class ExplainedGroup(TyperGroup):
    """A group of commands that shows its help where no command is given."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with _hide_epilog(self) as example:
            super().format_help(ctx, formatter)
        _write_example(formatter, example)

    def get_params(self, ctx: Any) -> list[Any]:
        return _simplify_values(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or (["--help"] if not ctx.resilient_parsing else []))


class RootGroup(ExplainedGroup):
    """The whole command line. The module of a command is imported when the command is looked up."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = cast("Any", CommandTable())

    def list_commands(self, _ctx: Any) -> list[str]:
        return list(self.commands)


class CommandTable(Mapping[str, Any]):
    """All commands by their names, each made when it is read."""

    def __init__(self) -> None:
        self._entries = {name: entry for group in GROUPS.values() for name, entry in group.items()}
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            module, attribute, summary = self._entries[name]
            found = getattr(import_module(f"scoreshield.cli.{module}"), attribute)
            example = getattr(import_module(f"scoreshield.cli.{module}"), "EXAMPLE", None)
            command = typer.main.get_command(
                found if isinstance(found, typer.Typer) else _wrap_function(name, found, example)
            )
            command.name, command.short_help = name, summary
            self._made[name] = command
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class CommandApp(typer.Typer):
    """A group of commands, each with the help of `ExplainedCommand`."""

    def __init__(self, **settings: Any) -> None:
        defaults: dict[str, Any] = {
            "cls": ExplainedGroup,
            "context_settings": CONTEXT,
            "rich_markup_mode": "rich",
            "pretty_exceptions_enable": False,
            "add_completion": False,
        }
        super().__init__(**{**defaults, **settings})

    def command(self, *args: Any, **settings: Any) -> Callable[[CommandFunction], CommandFunction]:
        """Register a command, as `typer.Typer.command` does."""
        return super().command(*args, **{"cls": ExplainedCommand, "context_settings": CONTEXT, **settings})


def name_option(error: InvalidInput, params: list[Any], values: Mapping[str, Any]) -> str:
    """Write an error of a Python function with the names of the options that the user gave.

    A parameter that the command has no option for is named in words, without its function.

    Args:
        error: The error.
        params: The options and arguments of the command.
        values: What the user gave for each of them.
    """
    if isinstance(error, InvalidArrayFile):
        return _name_file(error, params, values)
    text = str(error)
    if isinstance(error, InvalidParameter | InvalidRow):
        option = find_option(params, error.parameter) or f"the {error.parameter.strip('_').replace('_', ' ')}"
        if isinstance(error, InvalidRow):
            text = text.replace(f"'{error.parameter}'", option)
        else:
            text = f"{option[:1].upper()}{option[1:]} {error.problem}"
    text = _BRACKETS.sub(lambda found: f"({find_option(params, found['name']) or found['name']})", text)
    return _ARGUMENT.sub(lambda found: _name_argument(found, params), text)


def _name_file(error: InvalidArrayFile, params: list[Any], values: Mapping[str, Any]) -> str:
    """Name the option whose file has a problem, and how the user names an array of that file."""
    given = next((param for param in params if str(values.get(param.name)) == error.path), None)
    if given is None:
        return str(error)
    start = f"{_write_option(given)}: {error.path} {error.problem}"
    if not error.is_ambiguous:
        return f"{start}."
    array = find_option(params, f"{given.name}_array" if isinstance(given, TyperOption) else "array")
    if array is not None:
        return f"{start}; say which one with {array}."
    if isinstance(values[given.name], str):  # which takes FILE:NAME
        return f"{start}; say which one, as {error.path}:NAME."
    return f"{start}; give a file with one."


def _write_option(param: Any) -> str:
    """Write an option or an argument as its user does."""
    return str(param.opts[0] if isinstance(param, TyperOption) else param.metavar or param.name.upper())


def _name_argument(found: re.Match[str], params: list[Any]) -> str:
    """Write an argument of Python, ``norm='ball'``, as an option, ``--norm ball``, where the command has it."""
    param = _find_param(params, found["name"])
    return f"{_write_option(param)} {found['value']}" if isinstance(param, TyperOption) else found[0]


def find_option(params: list[Any], parameter: str) -> str | None:
    """Find how a user writes a parameter of a Python function: ``--epsilon``, or the name of an argument.

    Args:
        params: The options and arguments of the command.
        parameter: The name of the parameter.

    Returns:
        None where the command has no such option.
    """
    param = _find_param(params, parameter)
    return None if param is None else _write_option(param)


def _find_param(params: list[Any], parameter: str) -> Any | None:
    flags = {"--" + parameter.strip("_-").replace("_", "-"), *_OTHER_NAMES.get(parameter, ())}
    return next((param for param in params if flags & set(param.opts) or parameter == param.name), None)


def _wrap_function(name: str, function: Any, example: str | None) -> typer.Typer:
    app = CommandApp()
    app.command(name, epilog=example)(function)
    return app


def _simplify_values(params: list[Any]) -> list[Any]:
    """Name no value for a switch, and one value for an option that is given once per value."""
    for param in params:
        if isinstance(param, TyperOption) and param.is_flag:
            param.metavar = ""
        elif isinstance(param, TyperOption) and param.multiple and param.metavar is None:
            param.metavar = "<float>" if "float" in str(param.type_descriptor.annotation) else None
    return params


@contextlib.contextmanager
def _hide_epilog(command: Any) -> Iterator[str | None]:
    """Keep an epilog out of the help that Typer formats, which would wrap it."""
    epilog: str | None = command.epilog
    command.epilog = None
    try:
        yield epilog
    finally:
        command.epilog = epilog


def _write_example(formatter: Any, example: str | None) -> None:
    if not example:
        return
    lines = example.split("\n")
    formatter.write("\n".join([f" Example{'s' if len(lines) > 1 else ''}:", *(f"   {line}" for line in lines), ""]))
