"""What a charge, `.spent` and `headroom` take, by the number of entries that the ledger holds already.

    python benchmarks/ledger.py [--million] [--folder FOLDER]

Each ledger is filled through `spend_all`, then charged once at a time. "one kind" always charges the same guarantee;
"all distinct" charges Gaussian noise of a scale that no other entry has, to twenty accounts in turn. A charge waits
for the disk three times (journal, database, folder), most of its time on a real disk; by default the ledger lies in
memory (/dev/shm), where the time is the processor's.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scoreshield as ss
from scoreshield.privacy.profiles import GaussianProfile, Profile

BATCH = 5000
CHARGES = 100
#: Seconds on a charge of one account before accounts had sums, on the machine of the review that asked for them.
BEFORE = {120: 0.0024, 1_020: 0.0061, 3_020: 0.016, 6_020: 0.027}


@dataclass(frozen=True)
class Promise:
    """What a ledger reads of a guarantee."""

    profile: Profile
    sampler: str = "exact"
    adjacency: ss.Adjacency = ss.Replacement()  # noqa: RUF009

    def to_dict(self) -> dict[str, Any]:
        return {"profile": self.profile.to_dict(), "sampler": self.sampler, "adjacency": self.adjacency.to_dict()}


def promises(distinct: bool) -> Iterator[Promise]:
    if not distinct:
        return itertools.repeat(Promise(GaussianProfile(1e-4)))
    return (Promise(GaussianProfile(1e-4 + 1e-12 * place)) for place in itertools.count())


def measure(folder: Path, entries: int, distinct: bool) -> tuple[float, float, float]:
    """Seconds for one charge, one `.spent` of an account and one `headroom`."""
    ledger = ss.Ledger.create(f"sqlite:///{folder}/{entries}-{distinct}.db", epsilon=1e6, delta=1e-6)
    names = [f"people {number}" for number in range(20)] if distinct else ["people"]
    source, left = promises(distinct), entries
    for name in itertools.cycle(names):
        batch = min(BATCH, left, max(1, entries // len(names)))
        ledger.spend_all(itertools.islice(source, batch), dataset=name, who="benchmark")
        left -= batch
        if not left:
            break
    accounts = [ledger.account(name, who="benchmark") for name in names]
    turns = list(itertools.islice(itertools.cycle(accounts), CHARGES))
    return (
        timed(lambda: [account.spend(next(source)) for account in turns]) / CHARGES,
        timed(lambda: [account.spent for account in turns]) / CHARGES,
        timed(lambda: [account.headroom for account in turns[:20]]) / 20,
    )


def timed(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--million", action="store_true", help="also a ledger of a million entries (minutes to fill)")
    parser.add_argument("--folder", type=Path, help="where to put the ledgers; in memory unless told otherwise")
    options = parser.parse_args()
    parent = options.folder or (Path("/dev/shm") if Path("/dev/shm").is_dir() else None)
    sizes = [10, 100, 1_000, 10_000, 100_000, *([1_000_000] if options.million else [])]
    print("before, one kind:   " + ", ".join(f"{1000 * s:.1f} ms at {n:,}" for n, s in BEFORE.items()))
    print(f"{'entries':>9}  {'':<12} {'charge':>9} {'per second':>11} {'spent':>9} {'room':>9}")
    for distinct in (False, True):
        for entries in sizes:
            with tempfile.TemporaryDirectory(dir=parent) as folder:
                charge, spent, room = measure(Path(folder), entries, distinct)
            kind = "all distinct" if distinct else "one kind"
            print(
                f"{entries:>9,}  {kind:<12} {1000 * charge:>6.2f} ms {1 / charge:>11,.0f} {1000 * spent:>6.2f} ms "
                f"{1000 * room:>6.2f} ms",
                flush=True,
            )


if __name__ == "__main__":
    main()
