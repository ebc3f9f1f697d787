"""Run a command: the one line that each failure prints, each warning, and the exit codes."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
import warnings
from typing import Any, NoReturn, cast

import typer

from scoreshield._formatting import speak_commands
from scoreshield._loading import describe_error, make_printable
from scoreshield.cli import COMPLETION
from scoreshield.cli.application import app
from scoreshield.errors import ScoreShieldError

_UNFORESEEN = 70  # EX_SOFTWARE in sysexits.h
_INTERRUPTED = 130  # the code of Typer
_CLOSED = 141  # of a program that a closed pipe ends
#: What a value must be, by the types of pydantic's errors.
_TYPES = {
    "float_parsing": "a number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
}
_COMPLETION_OPTIONS = ("--install-completion", "--show-completion")  # Typer calls sys.exit() for these too


def run(arguments: list[str]) -> NoReturn:
    """Run a command and exit. Every expected failure and every warning prints one line."""
    with speak_commands(), warnings.catch_warnings():  # which restores how warnings are shown
        warnings.showwarning = _show_warning  # type: ignore[assignment]
        _run(arguments)


def _run(arguments: list[str]) -> NoReturn:
    try:
        code = typer.main.get_command(app).main(arguments, prog_name="scoreshield", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        message = _describe_usage(error)
        context = getattr(error, "ctx", None)
        _stop(f"{message.rstrip('.')} (see '{context.command_path if context else 'scoreshield'} --help').")
    except ScoreShieldError as error:
        _stop(_read_message(error))
    except OSError as error:
        stop_printing(error)
    except MemoryError:
        _stop("Not enough memory for a release of this size; nothing was written.")
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except BaseException as error:  # a fault of ours, or a foreign sys.exit(): code 1 would mean a broken claim
        if isinstance(error, SystemExit) and (COMPLETION in os.environ or arguments[0] in _COMPLETION_OPTIONS):
            raise
        if isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError):  # of Typer and Rich
            stop_printing(error.__context__)
        if os.environ.get("SCORESHIELD_DEBUG") == "1":
            traceback.print_exc()
        _stop(
            f"Unforeseen {type(error).__name__} ({describe_error(error)}); SCORESHIELD_DEBUG=1 shows where.",
            _UNFORESEEN,
        )
    if code == _INTERRUPTED:
        _stop("Interrupted; no file was left half-written.", code)
    sys.exit(code if isinstance(code, int) else 0)


def _describe_usage(error: typer.TyperException) -> str:
    """Say in one sentence what is wrong with the options. A value that was not understood is named with its option."""
    param, cause = getattr(error, "param", None), cast("Any", error.__cause__)
    if param is None or not hasattr(cause, "errors"):
        return error.format_message() if hasattr(error, "format_message") else str(error)
    option = param.opts[0] if param.param_type_name == "option" else param.metavar or param.name.upper()
    problem = cause.errors()[0]
    facts = problem.get("ctx", {})
    must = _TYPES.get(problem["type"], "").format(**facts)
    if must:
        return f"{option} must be {must}. Got {str(problem['input'])[:40]!r}"
    return f"{option}: {facts.get('error', problem['msg'])}"


def _show_warning(message: Warning | str, category: type[Warning], *_: Any) -> None:
    """Print a warning as one line on standard error, without the line of code that gave it."""
    text = " ".join(str(message).split())
    with contextlib.suppress(OSError, ValueError):
        print(f"{category.__name__}: {make_printable(text)}", file=sys.stderr, flush=True)


def stop_printing(error: OSError) -> NoReturn:
    """Stop because standard output is full, or closed by a reader that has enough, such as ``| head``."""
    with contextlib.suppress(OSError):  # so that the interpreter does not write again when it ends
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
    if isinstance(error, BrokenPipeError):
        sys.exit(_CLOSED)
    _stop(f"Cannot print the answer: {error.strerror}.")


def _stop(message: str, code: int = 2) -> NoReturn:
    with contextlib.suppress(OSError, ValueError):  # standard error may be full or closed
        print("scoreshield: " + make_printable(" ".join(message.split())), file=sys.stderr, flush=True)
    sys.exit(code)


def _read_message(error: BaseException) -> str:
    """Read the message of one of our errors. A foreign subclass may fail to give one."""
    try:
        return str(error)
    except BaseException:
        return type(error).__name__
