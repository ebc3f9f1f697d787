"""Releases in parts that an earlier version wrote: they are read as they are, and a begun one is not continued."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

import scoreshield as ss
import scoreshield.distributed as sd
from scoreshield.distributed import storage
from scoreshield.errors import InvalidInput

GOLDEN = Path(__file__).parents[1] / "golden" / "parts"
SCORES = [1.29954879, 0.13707449, -1.12908737, -0.11541171, 1.09959228, 1.21584798]
SCORES += [-0.15287022, -0.78978899, -0.0494075, 0.42015418, -0.11249559, 1.1282739]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN, tmp_path / "parts")
    (tmp_path / "parts" / "ledger.db").chmod(0o600)
    return tmp_path / "parts"


def test_values(folder: Path) -> None:
    scores = sd.open_release(folder / "scores")
    assert scores.scores() == pytest.approx(SCORES, abs=1e-8)
    assert scores.top_k(2).indices.tolist() == [0, 5]
    histogram = sd.open_release(folder / "histogram")
    assert isinstance(histogram, sd.DistributedHistogram)
    assert histogram.to_histogram().counts.tolist() == [3, 9, 3, 3]
    for release in (scores, histogram):
        release.check_parts()
        assert release.manifest.format == 1
        assert (
            storage.compute_digest(release.manifest.to_bytes())
            == json.loads((Path(release.address) / "release.json").read_bytes())["manifest"]
        )


def test_charge(folder: Path) -> None:
    """The ledger has the digest of the manifest, and not yet that of the last file."""
    ledger = ss.Ledger.open(f"sqlite:///{folder / 'ledger.db'}")
    assert sd.open_release(folder / "scores").check_charge(ledger) is False
    other = ss.Ledger.create(f"sqlite:///{folder / 'other.db'}", epsilon=1.0, delta=0.0)
    with pytest.raises(InvalidInput, match="charged for no such release"):
        sd.open_release(folder / "scores").check_charge(other)


def test_begun_release(folder: Path) -> None:
    """Its other parts would be drawn in another way, so that it does not go on."""
    address = f"sqlite:///{folder / 'ledger.db'}"
    (folder / "scores" / "release.json").unlink()
    with sqlite3.connect(folder / "ledger.db") as database:
        place = "UPDATE scoreshield_release_keys SET folder = ?, secret = ? WHERE folder LIKE '%scores'"
        database.execute(place, (str(folder / "scores"), "ab" * 32))
    account = ss.Ledger.open(address).account("people")
    options = {"epsilon": 2.0, "mechanism": "staircase", "ledger": account}
    with pytest.raises(InvalidInput, match="begun by an earlier version of scoreshield"):
        sd.release_scores(folder / "vectors.npy", np.array([1.0, -2.0, 0.5, 3.0]), to=folder / "scores", **options)
    assert len(account.entries()) == 2
