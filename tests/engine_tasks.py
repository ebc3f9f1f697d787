"""Tasks that go wrong on a worker. The processes of a cluster import this module."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from scoreshield.distributed.blocks import BlockFacts, BlockTask
from scoreshield.errors import FileError

#: What the text of another library could show.
ROW_TEXT = "0.0318447 of a row"


def _is_first(task: BlockTask, number: int) -> bool:
    """Whether this is the first time that block 1 is released."""
    if number != 1 or task.step != "release":
        return False
    try:
        Path(f"{task.address}.died").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@dataclass(frozen=True)
class DiesBefore(BlockTask):
    """Its process is killed before it writes block 1, the first time."""

    def run(self, number: int) -> BlockFacts:
        if _is_first(self, number):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().run(number)


@dataclass(frozen=True)
class DiesAfter(BlockTask):
    """Its process is killed after it wrote block 1, the first time."""

    def run(self, number: int) -> BlockFacts:
        facts = super().run(number)
        if _is_first(self, number):
            os.kill(os.getpid(), signal.SIGKILL)
        return facts


@dataclass(frozen=True)
class DiesAlways(BlockTask):
    """Its process is killed every time, as for lack of memory."""

    def run(self, number: int) -> BlockFacts:
        del number
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


@dataclass(frozen=True)
class Fails(BlockTask):
    """It raises an error of another library, whose text shows a row."""

    def run(self, number: int) -> BlockFacts:
        del number
        raise ZeroDivisionError(ROW_TEXT)


@dataclass(frozen=True)
class FindsDiskFull(BlockTask):
    """It raises an error of our own."""

    def run(self, number: int) -> BlockFacts:
        del number
        raise FileError("Cannot write part 1: No space left on device.")


@dataclass(frozen=True)
class CarriesKey(BlockTask):
    """A wrong design, which the search for the key must find: the key travels with the task, and is printed."""

    secret: bytes = b""

    def run(self, number: int) -> BlockFacts:
        print("key:", self.secret.hex(), flush=True)
        return super().run(number)
