"""Make an engine of what a caller names: an engine, its name, or a connection to a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scoreshield import _validation
from scoreshield.distributed.engines.base import Engine, LocalEngine
from scoreshield.errors import InvalidInput

ENGINES = ("local", "dask", "spark", "ray")


def choose_engine(engine: Any, *, scheduler: str | None = None, key_folder: str | Path | None = None) -> Engine:
    """Open an engine.

    Args:
        engine: None or ``"local"`` for this process; ``"dask"``, ``"spark"`` or ``"ray"``; a `distributed.Client`; a
            `SparkSession`; or an `Engine`, which is used as it is.
        scheduler: The address of a cluster; None starts one on this machine.
        key_folder: As for `Engine`.
    """
    if isinstance(engine, Engine):
        return engine
    if engine is None or engine == "local":
        if scheduler is not None:
            raise InvalidInput("The local engine takes no scheduler: leave it out, or name dask, spark or ray.")
        return LocalEngine(key_folder)
    name, client = (engine, None) if isinstance(engine, str) else (type(engine).__module__.partition(".")[0], engine)
    if name in ("dask", "distributed"):
        from scoreshield.distributed.engines.dask import DaskEngine

        return DaskEngine(client, scheduler=scheduler, key_folder=key_folder)
    if name in ("spark", "pyspark"):
        from scoreshield.distributed.engines.spark import SparkEngine

        return SparkEngine(client, master=scheduler, key_folder=key_folder)
    if engine == "ray":
        from scoreshield.distributed.engines.ray import RayEngine

        return RayEngine(address=scheduler, key_folder=key_folder)
    return _validation.reject("engine", f"one of {', '.join(ENGINES)}, a Dask Client or a SparkSession", engine)
