"""`scoreshield public`: settings that are fitted to public data, and a codebook that is tried on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield.cli import options

DIMENSION = 16


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(4)
    topics = rng.standard_normal((20, DIMENSION))
    texts = topics[rng.integers(20, size=700)] + 0.4 * rng.standard_normal((700, DIMENSION))
    unit = texts / np.linalg.norm(texts, axis=1, keepdims=True)
    np.save(tmp_path / "scores.npy", unit[:4] @ unit[4:404].T)
    np.save(tmp_path / "records.npy", texts[4:404])
    np.save(tmp_path / "queries.npy", texts[:4])
    np.save(tmp_path / "codebook.npy", texts[404:504])
    np.save(tmp_path / "past.npy", texts[504:604])
    np.save(tmp_path / "far.npy", rng.standard_normal((50, DIMENSION)))
    np.save(tmp_path / "equal.npy", np.full((3, 400), 0.2))
    monkeypatch.chdir(tmp_path)
    return tmp_path


TAIL = ("public", "fit-tail", "scores.npy", "--source", "our pages", "--output", "tail.json", "--k", 3)
LEVELS = ("public", "fit-levels", "scores.npy", "--source", "our pages", "--output", "levels.json")


@pytest.mark.usefixtures("folder")
def test_tail_that_a_release_reads(run: Any) -> None:
    """The file holds the shape of `TailShape.fit`, and a release states it."""
    code, out, err = run(*TAIL, "--dimension", DIMENSION)
    assert (code, err) == (0, "")
    shape = ss.TailShape.load("tail.json")
    assert shape == ss.TailShape.fit(np.load("scores.npy"), 3, origin="our pages", dimension=DIMENSION)
    assert f"{shape.settings[0].recall:.3f}" in out
    # The printed shares are at increasing budgets: ln(n / k) minus the excess.
    rows = [line.split() for line in out.splitlines() if line.strip()[:1].isdigit()]
    assert [float(row[0]) for row in rows] == pytest.approx(
        [np.log(400 / 3) - setting.excess for setting in reversed(shape.settings)], abs=0.006
    )
    code, _, err = run(
        "release", "scores", "records.npy", "--query", "queries.npy", "--epsilon", 9, "--mechanism", "anchored",
        "--tail", "tail.json", "--output", "r.npz",
    )  # fmt: skip
    assert code == 2  # four queries, and anchored windows take one
    np.save("q.npy", np.load("queries.npy")[0])
    code, _, err = run(
        "release", "scores", "records.npy", "--query", "q.npy", "--epsilon", 9, "--mechanism", "anchored",
        "--tail", "tail.json", "--output", "r.npz",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert ss.load("r.npz").guarantee.details["tail_shape"] == "our pages"


@pytest.mark.usefixtures("folder")
def test_scores_of_records_and_queries(run: Any) -> None:
    """Records and queries give the same file as their scores, and state the dimension."""
    assert run(*LEVELS)[0] == 0
    assert run(*LEVELS[:2], "records.npy", "--queries", "queries.npy", *LEVELS[3:-1], "other.json")[0] == 0
    one, two = ss.PublicLevels.load("levels.json"), ss.PublicLevels.load("other.json")
    assert one == ss.PublicLevels.fit(np.load("scores.npy"), source="our pages")
    assert (two.records, two.source) == (one.records, one.source)
    assert (two.tenth, two.fiftieth) == pytest.approx((one.tenth, one.fiftieth), abs=1e-6)
    code, out, _ = run("public", "fit-tail", "records.npy", "--queries", "queries.npy", *TAIL[3:], "--json")
    assert code == 0
    assert json.loads(out)["dimension"] == DIMENSION
    assert json.loads(out)["settings"] == json.loads(Path("tail.json").read_text())["settings"]


@pytest.mark.usefixtures("folder")
def test_levels_that_a_batch_reads(run: Any) -> None:
    """A batch places its levels by the file."""
    code, out, _ = run(*LEVELS, "--json")
    assert code == 0
    assert json.loads(out)["records"] == 400
    batch = ("release", "batch", "records.npy", "--queries", "queries.npy", "--k", 3, "--epsilon", 9)
    assert run(*batch, "--levels", "levels.json", "--output", "b.npz")[0] == 0
    details = ss.load("b.npz").guarantee.details
    expected = ss.release_batch(
        np.load("records.npy"), np.load("queries.npy"), epsilon=9, k=3, levels=ss.PublicLevels.load("levels.json")
    ).guarantee.details
    assert (details["cuts"], details["cuts_from"]) == (expected["cuts"], "our pages")
    code, _, err = run(*batch, "--levels", "levels.json", "--level", 0.5, "--output", "c.npz")
    assert code == 2
    assert "Give --level or --levels, not both" in err


@pytest.mark.usefixtures("folder")
def test_codebook_of_the_domain_and_of_another(run: Any) -> None:
    """The verdict of each epsilon is printed, and the figures are those of `try_on`."""
    command = ("--queries", "past.npy", "--records", "records.npy", "--epsilon", 8, "--epsilon", 0.1)
    code, out, err = run("public", "try-codebook", "codebook.npy", *command)
    assert (code, err) == (0, "")
    assert "At epsilon 8: The codebook serves this domain." in out
    assert "At epsilon 0.1: The codebook is USELESS here" in out
    book = ss.PublicCodebook(np.load("codebook.npy"))
    trials = [book.try_on(np.load("past.npy"), np.load("records.npy"), epsilon=epsilon) for epsilon in (8, 0.1)]
    assert all(f"{trial.recall:.3f} ± {trial.error:.3f}" in out for trial in trials)
    code, out, _ = run("public", "try-codebook", "codebook.npy", *command, "--json")
    found = json.loads(out)
    assert [one["recall"] for one in found] == [trial.recall for trial in trials]
    assert [one["is_useful"] for one in found] == [True, False]
    book.save("saved.npz")
    code, out, _ = run("public", "try-codebook", "saved.npz", *command, "--json")
    assert json.loads(out) == found
    code, out, _ = run("public", "try-codebook", "far.npy", *command[:-2], "--code-size", 1, "--repeats", 1)
    assert code == 0
    assert "USELESS" in out


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ((*TAIL[:2], "missing.npy", *TAIL[3:]), "There is no file missing.npy"),
        ((*TAIL[:2], "equal.npy", *TAIL[3:]), "no spread"),
        ((*LEVELS[:2], "equal.npy", *LEVELS[3:]), "no spread"),
        ((*TAIL[:2], "queries.npy", *TAIL[3:]), "in [-1, 1]"),
        ((*TAIL[:-1], 100), "give public scores of at least 1,020 records"),
        ((*TAIL, "--queries", "missing.npy"), "There is no file missing.npy"),
        ((*TAIL, "--queries", "queries.npy"), "as long as the embeddings are"),
        ((*TAIL[:2], "records.npy", *TAIL[3:], "--queries", "past.npy", "--dimension", 3), "--dimension is 3"),
        ((*TAIL[:4], "", *TAIL[5:]), "a line of 1 to 200 characters"),
        ((*LEVELS[:4], "", *LEVELS[5:]), "one line of text"),
        ((*TAIL[:-3], "scores.npy", "--force"), "is the same file as the input"),
        ((*TAIL[:-3], "none/tail.json"), "There is no folder none"),
        ((*TAIL[:-3], "codebook.npy"), "exists already"),
        (("public", "try-codebook", "equal.npy", "--queries", "past.npy", "--epsilon", 8), "direction of another one"),
        (("public", "try-codebook", "codebook.npy", "--queries", "scores.npy", "--epsilon", 8), "vector of 16"),
        (("public", "try-codebook", "codebook.npy", "--queries", "past.npy", "--epsilon", -1), "epsilon"),
        (("public", "try-codebook", "codebook.npy", "--queries", "past.npy"), "--epsilon"),
    ],
)
def test_bad_input(folder: Path, command: tuple[object, ...], words: str, run: Any) -> None:
    """One sentence, and no file."""
    before = set(folder.iterdir())
    code, out, err = run(*command)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert set(folder.iterdir()) == before


@pytest.mark.parametrize(
    "content",
    ["{}", "[]", "3", "{", '{"kind": "tail shape"}', '{"kind": "public levels", "tenth": 0.3, "fiftieth": 0.2}',
     '{"kind": "public levels", "tenth": 0.3, "fiftieth": 0.4, "records": 100, "source": "x"}',
     '{"kind": "public levels", "tenth": 0.3, "fiftieth": 0.2, "records": 100, "source": "x", "more": 1}'],
)  # fmt: skip
def test_damaged_levels(folder: Path, content: str, run: Any) -> None:
    """A file that is no file of levels gives one sentence."""
    (folder / "levels.json").write_text(content)
    code, out, err = run(
        "release", "batch", "records.npy", "--queries", "queries.npy", "--k", 3, "--epsilon", 9, "--levels",
        "levels.json", "--output", "b.npz",
    )  # fmt: skip
    assert (code, out) == (2, "")
    assert "levels.json" in err
    assert err.count("\n") == 1


@pytest.mark.usefixtures("folder")
def test_lines_of_progress_without_a_terminal(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work of more than ten seconds prints lines to standard error."""
    monkeypatch.setattr(options, "_LINE_SECONDS", 0.0)
    code, _, err = run(*TAIL)
    assert code == 0
    assert err.splitlines() == [f"fitting: {done} of 9" for done in range(1, 10)]
