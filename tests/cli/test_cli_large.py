"""Commands on large files: an interrupt leaves nothing half-written, and Parquet gives what .npy gives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import scoreshield as ss

ROWS, COLUMNS = 1_500_000, 64


def write_sparse(path: Path) -> None:
    """Write a file of zeros that takes no room on the disk."""
    with path.open("wb") as file:
        shape = {"descr": "<f4", "fortran_order": False, "shape": (ROWS, COLUMNS)}
        np.lib.format.write_array_header_1_0(file, shape)
        file.truncate(file.tell() + 4 * ROWS * COLUMNS)


def size_or_zero(path: Path) -> int:
    """The size of a file that another process may remove at any moment, as it does with the probe of the folder."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 100
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize("moment", ["drawing", "writing"])
def test_an_interrupt_leaves_nothing_half_written(moment: str, tmp_path: Path) -> None:
    """Neither while two threads draw, after the charge, nor while the file is written. The old index stays."""
    write_sparse(tmp_path / "rows.npy")
    (tmp_path / "index.npz").write_bytes(b"the index of yesterday")
    address = f"sqlite:///{tmp_path}/ledger.db"
    ledger = ss.Ledger.create(address, epsilon=50, delta=1e-5)
    command = [sys.executable, "-W", "ignore", "-m", "scoreshield.cli", "release", "index", "rows.npy"]
    command += ["--epsilon", "20", "--use", "pairs", "--components", str(COLUMNS), "--output", "index.npz", "--force"]
    command += ["--ledger", address, "--dataset", "people"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"SCORESHIELD_THREADS": "2"},
    )
    if moment == "drawing":
        wait_for(lambda: len(list(ledger.entries())) == 1, process)
        time.sleep(0.1)
        assert not list(tmp_path.glob(".*.part"))
    else:
        wait_for(lambda: any(size_or_zero(path) > 10**6 for path in tmp_path.glob(".index.npz.*.part")), process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 130, err
    assert out == ""
    assert (tmp_path / "index.npz").read_bytes() == b"the index of yesterday"
    left = {path.name for path in tmp_path.iterdir()} - {"rows.npy", "index.npz"}
    assert all(name.startswith("ledger.db") for name in left)
    assert len(list(ledger.entries())) == 1  # it was charged before the first random bit


def test_parquet_and_npy_give_the_same_index(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    rows = np.random.default_rng(2).standard_normal((3000, 16)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    parquet.write_table(pa.table({"embedding": list(rows)}), tmp_path / "rows.parquet", row_group_size=700)
    for name in ("npy", "parquet"):
        for what, options in (
            ("index", ["--use", "pairs", "--epsilon", "20"]),
            ("scores", ["--query", "query.npy", "--epsilon", "1", "--delta", "1e-6"]),
        ):
            np.save(tmp_path / "query.npy", rows[0])
            command = [sys.executable, "-W", "ignore", "-m", "scoreshield.cli", "release", what, f"rows.{name}"]
            command += [*options, "--seed", "4", "--output", f"{what}-{name}.npz"]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
            assert done.returncode == 0, done.stderr
    assert np.array_equal(
        ss.load(tmp_path / "index-npy.npz").vectors,  # type: ignore[union-attr]
        ss.load(tmp_path / "index-parquet.npz").vectors,  # type: ignore[union-attr]
    )
    assert np.array_equal(
        ss.load(tmp_path / "scores-npy.npz").noisy,  # type: ignore[union-attr]
        ss.load(tmp_path / "scores-parquet.npz").noisy,  # type: ignore[union-attr]
    )
