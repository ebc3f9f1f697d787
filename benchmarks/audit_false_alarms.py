"""How often the auditor accuses honest mechanisms, at its default confidence.

python benchmarks/audit_false_alarms.py [--audits N] [--releases N] [--jobs 2] [--only NAMES]

Every honest mechanism of `audit_battery`, its fixed faults included, is audited many times with fresh noise and other
seeds. The choice of pairs, of statistics and of the time to stop is part of every audit. The table has the number of
false alarms of each mechanism. The last line has their share, and the largest share that agrees with it at 99 %
confidence (Clopper & Pearson 1934).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed

from audit_battery.cases import Case
from audit_battery.honest import FIXED, HONEST
from audit_battery.peers import PEERS

from scoreshield.audit import audit
from scoreshield.audit.bounds import clopper_pearson

CASES: dict[str, Case] = {case.name: case for case in (*HONEST, *FIXED, *PEERS) if case.is_honest}


def count_alarms(name: str, audits: int, releases: int, start: int) -> tuple[str, int, int, float]:
    """Audit one mechanism several times.

    Returns:
        Its name, the false alarms, the audits, and the seconds of one.
    """
    case, alarms, begin = CASES[name], 0, time.perf_counter()
    for seed in range(start, start + audits):
        alarms += audit(case.release, case.claim, query=case.query, releases=releases, seed=seed).broken
    return name, alarms, audits, (time.perf_counter() - begin) / audits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--audits", type=int, default=20, help="audits of each mechanism")
    parser.add_argument("--releases", type=int, default=2_000, help="releases on each side of a pair")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=sorted(CASES), help="names of mechanisms")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    total, alarms = 0, 0
    with ProcessPoolExecutor(given.jobs) as pool:
        jobs = [pool.submit(count_alarms, name, given.audits, given.releases, given.start) for name in given.only]
        for job in as_completed(jobs):
            name, found, audits, seconds = job.result()
            total, alarms = total + audits, alarms + found
            print(f"{name:<40} {found:>3} of {audits}  {seconds:6.2f} s per audit", flush=True)
            print(f"{total} audits, {alarms} false alarms", file=sys.stderr, flush=True)
    most = clopper_pearson(alarms, total, 0.99, side="upper")[1]
    print(f"{alarms} false alarms in {total} audits: {alarms / total:.2%}, at most {most:.2%}")


if __name__ == "__main__":
    main()
