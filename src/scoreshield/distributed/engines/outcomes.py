"""What Spark and Ray have in common: how a task reports its block or its error, and how their workers find the key.

A task of these engines never raises an error. Both engines write the text of an error into logs and event files, and
the text of another library could show rows. So a task returns its error as a value: our own sentence, or the name of
the class and the line of code.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from scoreshield.distributed.blocks import BlockFacts, BlockTask
from scoreshield.distributed.engines.base import Engine
from scoreshield.distributed.key_folder import open_key_folder, share_in_folder
from scoreshield.distributed.keys import KeyHandle
from scoreshield.errors import FileError, InvalidInput, ScoreShieldError

#: A folder whose files Linux keeps in memory.
_MEMORY = Path("/dev/shm")


class Outcome(NamedTuple):
    """What a task returns; all of it is public.

    Attributes:
        number: The number of the block.
        size: The bytes of its file.
        digest: The SHA-256 of its file.
        error: The name of the class of the error; empty if there was none.
        sentence: Our message of the error, or the line of code that raised it.
    """

    number: int
    size: int = 0
    digest: str = ""
    error: str = ""
    sentence: str = ""

    def read_facts(self) -> BlockFacts:
        """Return what the task reports of its block.

        Raises:
            ScoreShieldError: The task could not do its work.
        """
        if not self.error:
            return BlockFacts(int(self.number), int(self.size), str(self.digest))
        if self.error == "ImportError":
            raise InvalidInput("A worker cannot import scoreshield: install the same version on every worker.")
        raise (FileError if self.error == "FileError" else InvalidInput)(self.sentence)


def make_runner(task: BlockTask, numbers: Sequence[int]) -> Callable[[Iterable[int]], dict[str, list[Any]]]:
    """Return what a worker calls with places in ``numbers``: it runs their blocks, and returns columns of outcomes.

    Both engines send a nested function as code, and a function of a module by its name. This one is nested and imports
    what it needs when it is called, so that a worker without this package can say so.
    """
    content, names = pickle.dumps(task), Outcome._fields

    def run_places(places: Iterable[int]) -> dict[str, list[Any]]:
        import pickle

        chosen = [numbers[int(place)] for place in places]
        outcomes: list[tuple[Any, ...]]
        try:
            from scoreshield.distributed.engines.outcomes import run_block

            task = pickle.loads(content)
        except (ImportError, AttributeError):
            outcomes = [(number, 0, "", "ImportError", "") for number in chosen]
        else:
            outcomes = [tuple(run_block(task, number)) for number in chosen]
        return {name: list(values) for name, values in zip(names, zip(*outcomes, strict=True), strict=True)}

    return run_places


def run_block(task: BlockTask, number: int) -> Outcome:
    """Run the task of one block on a worker, and return its error as a value."""
    try:
        return Outcome(*task.run(number))
    except ScoreShieldError as error:
        return Outcome(
            number, error="FileError" if isinstance(error, FileError) else "InvalidInput", sentence=str(error)
        )
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        kind, where = type(error).__name__, f"{Path(last.filename).name}, line {last.lineno}"
        advice = "give the workers more memory, and " if isinstance(error, MemoryError) else ""
        sentence = f"A task failed on a worker with {kind} ({where}); {advice}start the release again to go on."
        return Outcome(number, error=kind, sentence=sentence)


class FolderEngine(Engine):
    """An engine whose workers read the key from a folder, because all that the engine itself sends lies in files.

    Args:
        key_folder: As for `Engine`. None takes a folder of this machine, and is possible if all workers are on it.
        is_local: Whether all workers are on this machine.
    """

    def __init__(self, key_folder: str | Path | None, is_local: bool) -> None:
        super().__init__(key_folder)
        if key_folder is None and not is_local:
            raise InvalidInput(
                f"The workers of this cluster of {self.name.capitalize()} may be on other machines: name a folder for "
                "the key (key_folder) that the driver and all workers can read, and no one else."
            )
        if key_folder is None:
            find_local_folder()  # here too, because nothing is charged yet

    @property
    def key_place(self) -> str:
        return super().key_place or str(find_local_folder())

    def _send_key(self, release: str, secret: bytes) -> AbstractContextManager[KeyHandle]:
        return share_in_folder(find_local_folder(), release, secret)


def find_local_folder() -> Path:
    """Return this user's folder of keys on this machine, in memory where the system has such a place.

    It is always the same, so that a driver that goes on with a release removes what a killed one left.

    Raises:
        InvalidInput: The folder belongs to another user.
        FileError: It cannot be made.
    """
    parent = _MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
    user = os.getuid() if os.name == "posix" else "user"
    folder = parent / f"scoreshield-keys-{user}"
    open_key_folder(folder)
    if os.name == "posix" and (folder.is_symlink() or folder.stat().st_uid != user):
        raise InvalidInput(f"The folder of keys {folder} belongs to another user: name a folder (key_folder).")
    return folder
