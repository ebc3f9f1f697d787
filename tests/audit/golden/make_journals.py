"""Made the folders of audits beside it, with the code of commit c6934ea, which opened a journal by ``journal.opened``.

They stand for audits that an earlier version began, so they are never made again. The test of golden journals
resumes copies of them. ``stopped`` is an audit by the command line that a failing target stopped after 300 releases.
``result.json`` is the outcome of the same audit without the stop. ``outputs``, ``large`` and ``guaranteed`` hold each
kind of output that a journal kept then, and end with a line that was cut short. ``others`` came later, by
``journal.open_journal``, from the function ``make_other_outputs`` of the test. Kept to show what is in them:

    python tests/audit/golden/make_journals.py FOLDER
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np

import scoreshield as ss
from scoreshield import cli
from scoreshield.audit import journal

HERE = Path(__file__).parent
ROWS, OTHER_ROWS = np.eye(3, 4, dtype=np.float32), np.ones((3, 4), dtype=np.float32)
SETTINGS = {"target": "a:b", "epsilon": 1.0}
SECRET = "https://host.example/scores?key=s3cr3t"
ARGUMENTS = ["audit", "golden_target:release", "--epsilon", "1", "--adjacency", "replace", "--releases", "200"]


def make_outputs() -> list[object]:
    """Make one array of every type, of 9 numbers each."""
    rng = np.random.default_rng(1)
    return [
        rng.standard_normal((3, 3)),
        rng.standard_normal(9).astype(np.float32),
        np.arange(9),
        np.arange(9) % 2 == 0,
    ]


def make_large_outputs() -> list[object]:
    """Make outputs that a journal packs: 100 numbers each, the last one a symmetric matrix."""
    noise = np.random.default_rng(2).standard_normal((10, 10))
    return [noise, noise.astype(np.float32), noise + noise.T]


def run_command(*arguments: str) -> None:
    sys.argv = ["scoreshield", *arguments]
    try:
        cli.main()
    except SystemExit:
        return


def write_folder(path: Path, outputs: list[object], repeated: int) -> None:
    left = list(outputs)
    with journal.opened(path, SETTINGS, lambda: 7, secret=SECRET) as (kept, _):
        release = kept.recording(lambda _: left.pop(0))
        for number in range(len(outputs)):
            release(ROWS if number % 2 == 0 else OTHER_ROWS)
        kept.note_repeated(repeated)
    with (path / "releases.jsonl").open("ab") as file:
        file.write(b'{"on":"0123","array":[1.0,')


def main(folder: Path) -> None:
    shutil.copy(HERE / "golden_target.py", folder)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    import golden_target

    golden_target.stop_after = 300
    run_command(*ARGUMENTS, "--out", "stopped")
    golden_target.calls, golden_target.stop_after = 0, None
    run_command(*ARGUMENTS, "--out", "whole")
    result = json.loads(Path("whole/report.json").read_text())["result"]
    del result["seconds"]
    Path("result.json").write_text(json.dumps(result, indent=1) + "\n")
    shutil.rmtree("whole")
    write_folder(folder / "outputs", make_outputs(), 3)
    write_folder(folder / "large", make_large_outputs(), 0)
    release = ss.release_scores(ROWS, np.ones(4), epsilon=1.0, mechanism="laplace", rng=5)
    write_folder(folder / "guaranteed", [release, release, release, {0, 2}], 0)
    for lock in folder.glob("*/.lock"):
        lock.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
