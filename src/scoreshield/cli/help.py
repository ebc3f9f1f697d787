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
from scoreshield.errors import InvalidInput, InvalidParameter, InvalidRow

CommandFunction = TypeVar("CommandFunction", bound=Callable[..., Any])

_ARGUMENT = re.compile(r"\b(?P<name>[a-z_]+)='(?P<value>[\w-]+)'")
#: Settings of every command: ``-h`` is ``--help``.
CONTEXT = {"help_option_names": ["--help", "-h"]}


class ExplainedCommand(TyperCommand):
    """A command whose help ends with an example, and whose errors name the option that was given."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with _hide_epilog(self) as example:
            super().format_help(ctx, formatter)
        _write_example(formatter, example)

    def get_params(self, ctx: Any) -> list[Any]:
        return _hide_switch_values(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InvalidInput as error:
            text = name_option(error, self.params)
            if text is None:
                raise
            raise InvalidInput(text) from error


class ExplainedGroup(TyperGroup):
    """A group of commands that shows its help where no command is given."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with _hide_epilog(self) as example:
            super().format_help(ctx, formatter)
        _write_example(formatter, example)

    def get_params(self, ctx: Any) -> list[Any]:
        return _hide_switch_values(super().get_params(ctx))

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


def name_option(error: InvalidInput, params: list[Any]) -> str | None:
    """Write an error of a Python function with the names of the options that the user gave.

    Args:
        error: The error.
        params: The options and arguments of the command.

    Returns:
        None where the error names no parameter that the command has.
    """
    if isinstance(error, InvalidParameter):
        option = find_option(params, error.parameter)
        return None if option is None else f"{option} {error.problem}"
    if isinstance(error, InvalidRow):
        option = find_option(params, error.parameter)
        return None if option is None else str(error).replace(f"'{error.parameter}'", option)
    return _ARGUMENT.sub(lambda found: _name_argument(found, params), str(error))


def _name_argument(found: re.Match[str], params: list[Any]) -> str:
    """Write an argument of Python, ``norm='ball'``, as an option, ``--norm ball``, where the command has it."""
    option = find_option(params, found["name"])
    return found[0] if option is None or not option.startswith("-") else f"{option} {found['value']}"


def find_option(params: list[Any], parameter: str) -> str | None:
    """Find how a user writes a parameter of a Python function: ``--epsilon``, or the name of an argument.

    Args:
        params: The options and arguments of the command.
        parameter: The name of the parameter.

    Returns:
        None where the command has no such option.
    """
    flag = "--" + parameter.strip("_-").replace("_", "-")
    for param in params:
        if flag in param.opts or parameter == param.name:
            return str(param.opts[0] if param.param_type_name == "option" else param.metavar or param.name.upper())
    return None


def _wrap_function(name: str, function: Any, example: str | None) -> typer.Typer:
    app = CommandApp()
    app.command(name, epilog=example)(function)
    return app


def _hide_switch_values(params: list[Any]) -> list[Any]:
    for param in params:
        if isinstance(param, TyperOption) and param.is_flag:
            param.metavar = ""
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
