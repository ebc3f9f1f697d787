"""The folder of an audit: no release is drawn twice, none is lost by a kill, and strangers' files are left alone."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield.audit import journal
from scoreshield.errors import FileError, InvalidInput

ONE, OTHER = np.eye(3, 4, dtype=np.float32), np.ones((3, 4), dtype=np.float32)
ASKED = {"target": "a:b", "epsilon": 1.0}
PACKED = b'{"on": "x", "array": {"type": "<f8", "shape": [2], "half": false, "packed": "%s"}}\n'


class Target:
    """Numbers its calls, so that it shows which output came from where."""

    def __init__(self, *outputs: Any) -> None:
        self.outputs, self.calls = list(outputs), 0

    def __call__(self, embeddings: np.ndarray) -> Any:
        self.calls += 1
        return self.outputs.pop(0) if self.outputs else np.array([float(self.calls), float(embeddings[0, 1])])


def test_replay_by_collection(tmp_path: Path) -> None:
    """Earlier releases of a collection come first, in their order."""
    target = Target()
    with journal.open_journal(tmp_path / "a", ASKED, lambda: 7) as (kept, releases):
        release = kept.record(target)
        before = [release(rows).tolist() for rows in (ONE, ONE, OTHER, ONE)]
    assert releases == 7
    assert before == [[1, 0], [2, 0], [3, 1], [4, 0]]
    with journal.open_journal(tmp_path / "a", ASKED, lambda: 99) as (kept, releases):
        release = kept.record(target)
        assert kept.releases_before == 4
        again = [release(rows).tolist() for rows in (OTHER, ONE, ONE, ONE, ONE, OTHER)]
    assert releases == 7  # the plan is made once
    assert again == [[3, 1], [1, 0], [2, 0], [4, 0], [5, 0], [6, 1]]
    assert target.calls == 6


@pytest.mark.parametrize(
    "output",
    [
        np.array([0.1, 1e-300, -1 / 3, 2.0**-53]),
        np.array([[1, 2], [3, 4]]),
        np.array([0.1, 0.2], dtype=np.float32),
        np.array([True, False]),
        0.1,
        3,
        {0, 2},
        frozenset(),
        np.random.default_rng(1).standard_normal((7, 30)),
        np.random.default_rng(1).standard_normal(200).astype(np.float32),
        np.arange(200).reshape(2, 50, 2) - 7,
        np.arange(200) % 3 == 0,
        np.arange(200).astype(">f8") / 3,
        np.cov(np.random.default_rng(1).standard_normal((20, 30))),  # symmetric
        np.linspace(0, 1, 100, dtype=np.longdouble).astype(np.float64).astype(np.longdouble),
    ],
    ids=lambda output: f"{np.shape(output)} {getattr(output, 'dtype', output)}",
)
def test_outputs_restored_exactly(tmp_path: Path, output: Any) -> None:
    """Arrays, numbers and sets are restored bit for bit."""
    with journal.open_journal(tmp_path / "a", ASKED, lambda: 1) as (kept, _):
        kept.record(Target(output))(ONE)
    with journal.open_journal(tmp_path / "a", ASKED, lambda: 1) as (kept, _):
        back = kept.record(Target())(ONE)
    if isinstance(output, set | frozenset):
        assert back == output
    else:
        assert np.shape(back) == np.shape(output)
        assert np.array_equal(back, output)


@pytest.mark.parametrize("bad", [np.array([1.0, np.nan]), np.array([np.inf, 0.0]), np.ones(3), 1.0], ids=str)
def test_unusable_output_not_written(tmp_path: Path, bad: Any) -> None:
    """An output that no audit can use is returned and not written."""
    target = Target(np.array([1.0, 2.0]), bad)
    with journal.open_journal(tmp_path / "a", ASKED, lambda: 1) as (kept, _):
        release = kept.record(target)
        release(ONE)
        assert release(ONE) is bad
    with journal.open_journal(tmp_path / "a", ASKED, lambda: 1) as (kept, _):
        assert kept.releases_before == 1
        assert kept.record(Target(bad, bad))(OTHER) is bad  # the width is known from before
        assert kept.releases_added == 0
    assert (tmp_path / "a" / journal.RELEASES).read_bytes().count(b"\n") == 1


def test_packed_size(tmp_path: Path) -> None:
    """A large output takes half the space of its digits, and a symmetric one a quarter."""
    noise = np.random.default_rng(1).laplace(size=(100, 100))
    sizes = []
    for name, output in (("a", noise), ("b", noise + noise.T)):
        with journal.open_journal(tmp_path / name, ASKED, lambda: 1) as (kept, _):
            kept.record(Target(output))(ONE)
        sizes.append((tmp_path / name / journal.RELEASES).stat().st_size / len(json.dumps(output.tolist())))
    assert sizes[0] < 0.51
    assert sizes[1] < 0.27


def test_replay_of_release(tmp_path: Path) -> None:
    """A ScoreShield release is restored as its numbers, after one fresh call that shows the guarantee."""
    made = [ss.release_scores(ONE, np.ones(4), epsilon=1.0, mechanism="laplace") for _ in range(5)]
    target = Target(*made)
    with journal.open_journal(tmp_path / "a", ASKED, lambda: 1) as (kept, _):
        release = kept.record(target)
        assert [release(ONE) is one for one in made[:3]] == [True] * 3
    with journal.open_journal(tmp_path / "a", ASKED, lambda: 1) as (kept, _):
        release = kept.record(target)
        assert release(ONE) is made[3]
        assert np.array_equal(release(ONE), made[1].noisy)
        assert np.array_equal(release(ONE), made[2].noisy)
        assert release(ONE) is made[4]


def test_short_line_removed(tmp_path: Path) -> None:
    """A line that a kill cut short is removed."""
    with journal.open_journal(tmp_path / "a", ASKED, lambda: 1) as (kept, _):
        release = kept.record(Target())
        release(ONE), release(ONE)
    path = tmp_path / "a" / journal.RELEASES
    path.write_bytes(path.read_bytes()[:-5])
    with journal.open_journal(tmp_path / "a", ASKED, lambda: 1) as (kept, _):
        assert kept.releases_before == 1
        kept.record(Target())(OTHER)
    assert [json.loads(line)["array"] for line in path.read_text().splitlines()] == [[1, 0], [1, 1]]


def test_other_settings(tmp_path: Path) -> None:
    """Other settings raise an error that names the setting, and nothing is changed."""
    with journal.open_journal(tmp_path / "a", ASKED, lambda: 1) as (kept, _):
        kept.record(Target())(ONE)
    before = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    words = "was begun with other settings (epsilon); name another folder"
    with (
        pytest.raises(InvalidInput, match=re.escape(words)),
        journal.open_journal(tmp_path / "a", ASKED | {"epsilon": 2.0}, lambda: 1),
    ):
        pass
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == before


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (journal.RELEASES, b"not json\n", "is damaged: a line holds no release"),
        (journal.RELEASES, b'{"on": "x"}\n', "is damaged: a line holds no release"),
        (journal.RELEASES, b'{"on": "x", "array": ["a"]}\n', "is damaged: a line holds no release"),
        (journal.RELEASES, b'{"on": "x", "array": [NaN]}\n', "is damaged: a line holds no release"),
        (journal.RELEASES, b'{"on": "x", "numbers": [1, Infinity]}\n', "is damaged: a line holds no release"),
        (journal.RELEASES, b'{"on": "x", "array": []}\n', "is damaged: a line holds no release"),
        (journal.RELEASES, b'{"on": "x", "array": [1]}\n{"on": "x", "array": [1, 2]}\n', "is damaged: a line holds"),
        (journal.RELEASES, PACKED % b"AAAA", "is damaged: a line holds no release"),
        (journal.RELEASES, PACKED % b"?", "is damaged: a line holds no release"),
        (journal.SETTINGS, b"{", "was begun with other settings"),
        (journal.SETTINGS, b"[]", "was begun with other settings"),
    ],
)
def test_damaged_files(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    """Damaged files raise an error in one sentence."""
    with journal.open_journal(tmp_path, ASKED, lambda: 1) as (kept, _):
        kept.record(Target())(ONE)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInput, match=words), journal.open_journal(tmp_path, ASKED, lambda: 1):
        pass
    assert (tmp_path / name).read_bytes() == content


def test_foreign_folder_and_second_audit(tmp_path: Path) -> None:
    """A folder of other files, and a second audit, raise an error."""
    (tmp_path / "thesis.tex").write_text("mine")
    with (
        pytest.raises(InvalidInput, match="holds other files and no audit"),
        journal.open_journal(tmp_path, ASKED, lambda: 1),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with (
        journal.open_journal(tmp_path / "a", ASKED, lambda: 1),
        pytest.raises(InvalidInput, match="Another run is writing into"),
        journal.open_journal(tmp_path / "a", ASKED, lambda: 1),
    ):
        pass
    with (
        pytest.raises(FileError, match="Cannot use the folder"),
        journal.open_journal(tmp_path / "thesis.tex", ASKED, int),
    ):
        pass


def test_finished_audit(tmp_path: Path) -> None:
    """A finished audit raises an error, unless it is to start again."""
    from scoreshield.report import audit_page

    assert journal.REPORTS == (audit_page.PAGE, audit_page.DATA)
    folder, target = tmp_path / "a", Target()
    with journal.open_journal(folder, ASKED, lambda: 7) as (kept, _):
        kept.record(target)(ONE)
        (folder / "report.json").write_text("{}")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with (
        pytest.raises(InvalidInput, match="is finished, and its report is about the target"),
        journal.open_journal(folder, ASKED, int),
    ):
        pass
    with pytest.raises(InvalidInput, match="later"), journal.open_journal(folder, ASKED, lambda: 8, again=True):
        raise InvalidInput("later")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before  # nothing new, so nothing is lost
    other = ASKED | {"epsilon": 2.0}
    with journal.open_journal(folder, other, lambda: 9, again=True) as (kept, releases):
        assert releases == 9
        assert kept.record(target)(ONE).tolist() == [2, 0]
    assert {path.name for path in folder.iterdir()} == {journal.SETTINGS, journal.RELEASES, journal.LOCK}
    with journal.open_journal(folder, other, lambda: 1) as (kept, _):  # it was not finished, so it goes on
        assert kept.releases_before == 1
    with (
        journal.open_journal(folder, other, lambda: 1),
        pytest.raises(InvalidInput, match="Another run is writing into"),
        journal.open_journal(folder, other, lambda: 1, again=True),
    ):
        pass
    assert (folder / journal.RELEASES).read_bytes().count(b"\n") == 1


def test_secret_setting(tmp_path: Path) -> None:
    """A secret setting is compared, and not written down."""
    with journal.open_journal(tmp_path / "a", ASKED, lambda: 1, secret="http://x/?key=s3cr3t") as (kept, _):
        kept.record(Target())(ONE)
    with journal.open_journal(tmp_path / "b", ASKED, lambda: 1, secret="http://x/?key=s3cr3t") as (kept, _):
        kept.record(Target())(ONE)
    written = [(tmp_path / name / journal.SETTINGS).read_text() for name in "ab"]
    assert "s3cr3t" not in written[0]
    digests = [json.loads(text)["address"] for text in written]
    assert digests[0] != digests[1]  # each has a salt of its own
    with journal.open_journal(tmp_path / "a", ASKED, lambda: 1, secret="http://x/?key=s3cr3t") as (kept, _):
        assert kept.releases_before == 1
    for other in ("http://x/?key=other", None):
        with (
            pytest.raises(InvalidInput, match=re.escape("other settings (what follows the address)")) as caught,
            journal.open_journal(tmp_path / "a", ASKED, lambda: 1, secret=other),
        ):
            pass
        assert "key" not in str(caught.value)


def test_without_filelock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without filelock the error names the extra, and no folder is left."""
    monkeypatch.setitem(sys.modules, "filelock", None)
    words = re.escape("pip install 'scoreshield[audit]'")
    with pytest.raises(InvalidInput, match=words), journal.open_journal(tmp_path / "a", ASKED, lambda: 1):
        pass
    assert not (tmp_path / "a").exists()


def test_no_trace_before_first_release(tmp_path: Path) -> None:
    """An audit that fails before its first release leaves no trace."""

    def refuse() -> int:
        raise InvalidInput("too few")

    with pytest.raises(InvalidInput, match="too few"), journal.open_journal(tmp_path / "a" / "b", ASKED, refuse):
        pass
    assert not (tmp_path / "a" / "b").exists()
    with pytest.raises(InvalidInput, match="later"), journal.open_journal(tmp_path / "b", ASKED, lambda: 1):
        raise InvalidInput("later")
    assert not (tmp_path / "b").exists()
    with (
        pytest.raises(InvalidInput, match="later"),
        journal.open_journal(tmp_path / "c", ASKED, lambda: 1) as (kept, _),
    ):
        _release_once_and_refuse(kept)
    assert (tmp_path / "c" / journal.RELEASES).read_bytes().count(b"\n") == 1


def _release_once_and_refuse(kept: journal.Journal) -> None:
    kept.record(Target())(ONE)
    raise InvalidInput("later")
