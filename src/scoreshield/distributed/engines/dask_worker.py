"""What a Dask worker of this machine does first. Dask loads this module in each process that it starts."""

import signal
from typing import Any


def dask_setup(worker: Any) -> None:
    """Ignore Ctrl-C: a terminal sends it to all processes, and the driver alone answers it and ends its workers."""
    del worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
