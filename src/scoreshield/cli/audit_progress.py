"""What an audit says while it runs: a bar to a person at a terminal, a line now and then to a log."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from scoreshield.audit import engine

#: Seconds between two lines in a log.
EVERY = 45.0


class Lines:
    """One line on standard error every 45 seconds: how many outputs there are, and the bound so far."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._next = clock, clock() + EVERY
        self._outputs, self._state = 0, "choosing neighbours"

    def counting(self, release: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The same release, which is counted."""

        def call(embeddings: Any) -> Any:
            output = release(embeddings)
            self._outputs += 1
            self._tell()
            return output

        return call

    def progress(self, done: int, total: int, bound: float) -> None:
        """Hear from the audit how far it is."""
        self._state = f"{done:,} of {total:,} releases on each side, epsilon at least {bound:.3f} so far"
        self._tell()

    def _tell(self) -> None:
        if self._clock() < self._next:
            return
        self._next = self._clock() + EVERY
        outputs = f"{self._outputs:,} outputs; " if self._outputs else ""
        print(f"scoreshield: {outputs}{self._state}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def shown(quiet: bool) -> Iterator[tuple[engine.Progress, Callable[[Any], Any]]]:
    """What to tell of progress, and what to wrap a release in so that it is counted."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        lines = Lines()
        yield lines.progress, lines.counting
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("choosing neighbours", total=None)

        def update(done: int, total: int, bound: float) -> None:
            bar.update(task, description=f"epsilon at least {bound:.3f}", completed=done, total=total)

        yield update, lambda release: release


@contextlib.contextmanager
def prints_aside() -> Iterator[None]:
    """Send to standard error what a target prints, by Python or past it: standard output is for the outcome."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    try:
        kept = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # one of them is closed
        kept = None
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)
