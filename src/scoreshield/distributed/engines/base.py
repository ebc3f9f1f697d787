"""The interface of engines, and the engine that needs none: this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from scoreshield.distributed.blocks import BlockFacts, BlockTask
from scoreshield.distributed.key_folder import open_key_folder, share_in_folder
from scoreshield.distributed.keys import KeyHandle, share_in_process


class Engine(ABC):
    """Runs tasks on workers. It may run a task twice, or stop it and run it elsewhere.

    Args:
        key_folder: A folder that the driver and all workers can read, and no one else, for the key of the release
            while it runs. None lets the engine give the key to its workers, where it can.
    """

    name: str

    def __init__(self, key_folder: str | Path | None = None) -> None:
        self._key_folder = None if key_folder is None else Path(key_folder)
        if self._key_folder is not None:
            open_key_folder(self._key_folder)  # here too, because nothing is charged yet

    @property
    def key_place(self) -> str:
        """The folder that workers read the key from; empty if there is none."""
        return "" if self._key_folder is None else str(self._key_folder.absolute())

    def share_key(self, release: str, secret: bytes) -> AbstractContextManager[KeyHandle]:
        """Give the key to the workers until the context ends. It must not travel with a task."""
        if self._key_folder is not None:
            return share_in_folder(self._key_folder, release, secret)
        return self._send_key(release, secret)

    @abstractmethod
    def _send_key(self, release: str, secret: bytes) -> AbstractContextManager[KeyHandle]:
        """Give the key to the workers without a folder."""

    def check_device(self, device: str) -> None:
        """Raise an error if a worker that is there now lacks this device. Each check of a block looks again."""
        del device

    @abstractmethod
    def run(self, task: BlockTask, numbers: Sequence[int]) -> Iterator[BlockFacts]:
        """Run a task for each number, and yield what each reports, in any order.

        An error of a task ends the others. An interrupt of the caller does too.
        """

    def remove_keys(self, release: str) -> None:
        """Take the key of a release that has ended from all workers, where killed drivers had given it to them."""
        del release  # most workers lose it with the context of `share_key`, or find it in a folder

    def close(self) -> None:
        """Stop what the engine started itself."""
        return

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class LocalEngine(Engine):
    """Runs the tasks in this process, one after the other."""

    name = "local"

    def _send_key(self, release: str, secret: bytes) -> AbstractContextManager[KeyHandle]:
        return share_in_process(release, secret)

    def run(self, task: BlockTask, numbers: Iterable[int]) -> Iterator[BlockFacts]:
        yield from (task.run(number) for number in numbers)
