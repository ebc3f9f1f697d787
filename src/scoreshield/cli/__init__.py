"""The command line: one module for each command or group of commands.

A bad input prints one line on standard error and exits with code 2, without a traceback. An interrupted command exits
with 130; while Python is still loading the package, Python itself handles the interrupt. Neither leaves a half-written
file. An unforeseen failure also prints one line and exits with code 70. Where a reader stops, as ``| head`` does, the
command says nothing and exits with 141. Code 1 means that an audit broke a claim, or that `verify` found a file that is
not in order. With SCORESHIELD_DEBUG=1 in the environment the traceback comes first. Progress goes to standard error: a
bar on a terminal, and elsewhere a line every ten seconds.

A command's module is imported when the command is called. ``scoreshield --version`` and ``scoreshield --help`` import
neither Typer nor NumPy: `benchmarks/startup.py` measures them.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # see scoreshield/__init__.py
if TYPE_CHECKING:
    from typing import Any

    from scoreshield.cli.application import app as app

#: A shell that asks for completions sets it.
COMPLETION = "_SCORESHIELD_COMPLETE"


def main() -> None:
    """Run the command line. Every expected failure and every warning prints one line."""
    arguments = sys.argv[1:] or ["--help"]
    if len(arguments) > 1 or arguments[0] not in ("--version", "--help", "-h") or COMPLETION in os.environ:
        from scoreshield.cli.running import run

        run(arguments)
    from scoreshield.cli.root_help import format_root_help, format_version

    text = format_version() if arguments == ["--version"] else format_root_help()
    try:
        print(text, flush=True)
    except OSError as error:
        from scoreshield.cli.running import stop_printing

        stop_printing(error)
    sys.exit(0)


def __getattr__(name: str) -> Any:
    if name == "app":
        from scoreshield.cli.application import app

        return app
    raise AttributeError(f"module 'scoreshield.cli' has no attribute {name!r}")
