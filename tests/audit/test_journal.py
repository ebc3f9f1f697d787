"""The folder of an audit: no release is drawn twice, none is lost by a kill, and strangers' files are left alone."""

from __future__ import annotations

import json
import re
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


def test_what_was_released_before_comes_first_collection_by_collection(tmp_path: Path) -> None:
    target = Target()
    with journal.opened(tmp_path / "a", ASKED, lambda: 7) as (kept, releases):
        release = kept.recording(target)
        before = [release(rows).tolist() for rows in (ONE, ONE, OTHER, ONE)]
    assert releases == 7
    assert before == [[1, 0], [2, 0], [3, 1], [4, 0]]
    with journal.opened(tmp_path / "a", ASKED, lambda: 99) as (kept, releases):
        release = kept.recording(target)
        assert kept.known == 4
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
def test_arrays_numbers_and_sets_come_back_bit_for_bit(tmp_path: Path, output: Any) -> None:
    with journal.opened(tmp_path / "a", ASKED, lambda: 1) as (kept, _):
        kept.recording(Target(output))(ONE)
    with journal.opened(tmp_path / "a", ASKED, lambda: 1) as (kept, _):
        back = kept.recording(Target())(ONE)
    if isinstance(output, set | frozenset):
        assert back == output
    else:
        assert np.shape(back) == np.shape(output)
        assert np.array_equal(back, output)


@pytest.mark.parametrize("bad", [np.array([1.0, np.nan]), np.array([np.inf, 0.0]), np.ones(3), 1.0], ids=str)
def test_an_output_that_no_audit_can_use_is_handed_on_and_not_kept(tmp_path: Path, bad: Any) -> None:
    target = Target(np.array([1.0, 2.0]), bad)
    with journal.opened(tmp_path / "a", ASKED, lambda: 1) as (kept, _):
        release = kept.recording(target)
        release(ONE)
        assert release(ONE) is bad
    with journal.opened(tmp_path / "a", ASKED, lambda: 1) as (kept, _):
        assert kept.known == 1
        assert kept.recording(Target(bad, bad))(OTHER) is bad  # the width is known from before
        assert kept.added == 0
    assert (tmp_path / "a" / journal.RELEASES).read_bytes().count(b"\n") == 1


def test_a_large_output_takes_half_the_space_of_its_digits_and_a_symmetric_one_a_quarter(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).laplace(size=(100, 100))
    sizes = []
    for name, output in (("a", noise), ("b", noise + noise.T)):
        with journal.opened(tmp_path / name, ASKED, lambda: 1) as (kept, _):
            kept.recording(Target(output))(ONE)
        sizes.append((tmp_path / name / journal.RELEASES).stat().st_size / len(json.dumps(output.tolist())))
    assert sizes[0] < 0.51
    assert sizes[1] < 0.27


def test_a_release_comes_back_as_its_numbers_after_one_fresh_call_that_shows_the_guarantee(tmp_path: Path) -> None:
    made = [ss.release_scores(ONE, np.ones(4), epsilon=1.0, mechanism="laplace") for _ in range(5)]
    target = Target(*made)
    with journal.opened(tmp_path / "a", ASKED, lambda: 1) as (kept, _):
        release = kept.recording(target)
        assert [release(ONE) is one for one in made[:3]] == [True] * 3
    with journal.opened(tmp_path / "a", ASKED, lambda: 1) as (kept, _):
        release = kept.recording(target)
        assert release(ONE) is made[3]
        assert np.array_equal(release(ONE), made[1].noisy)
        assert np.array_equal(release(ONE), made[2].noisy)
        assert release(ONE) is made[4]


def test_a_line_that_a_kill_cut_short_is_taken_off(tmp_path: Path) -> None:
    with journal.opened(tmp_path / "a", ASKED, lambda: 1) as (kept, _):
        release = kept.recording(Target())
        release(ONE), release(ONE)
    path = tmp_path / "a" / journal.RELEASES
    path.write_bytes(path.read_bytes()[:-5])
    with journal.opened(tmp_path / "a", ASKED, lambda: 1) as (kept, _):
        assert kept.known == 1
        kept.recording(Target())(OTHER)
    assert [json.loads(line)["array"] for line in path.read_text().splitlines()] == [[1, 0], [1, 1]]


def test_other_settings_are_refused_by_name_and_nothing_is_touched(tmp_path: Path) -> None:
    with journal.opened(tmp_path / "a", ASKED, lambda: 1) as (kept, _):
        kept.recording(Target())(ONE)
    before = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    words = "was begun with other settings (epsilon); name another folder"
    with (
        pytest.raises(InvalidInput, match=re.escape(words)),
        journal.opened(tmp_path / "a", ASKED | {"epsilon": 2.0}, lambda: 1),
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
def test_damaged_files_are_one_sentence(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    with journal.opened(tmp_path, ASKED, lambda: 1) as (kept, _):
        kept.recording(Target())(ONE)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInput, match=words), journal.opened(tmp_path, ASKED, lambda: 1):
        pass
    assert (tmp_path / name).read_bytes() == content


def test_a_folder_of_other_files_and_a_second_audit_are_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with (
        pytest.raises(InvalidInput, match="holds other files and no audit"),
        journal.opened(tmp_path, ASKED, lambda: 1),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with (
        journal.opened(tmp_path / "a", ASKED, lambda: 1),
        pytest.raises(InvalidInput, match="Another run is writing into"),
        journal.opened(tmp_path / "a", ASKED, lambda: 1),
    ):
        pass
    with pytest.raises(FileError, match="Cannot use the folder"), journal.opened(tmp_path / "thesis.tex", ASKED, int):
        pass


def test_a_finished_audit_is_refused_unless_it_is_to_begin_afresh(tmp_path: Path) -> None:
    from scoreshield.report import audit_page

    assert journal.REPORTS == (audit_page.PAGE, audit_page.DATA)
    folder, target = tmp_path / "a", Target()
    with journal.opened(folder, ASKED, lambda: 7) as (kept, _):
        kept.recording(target)(ONE)
        (folder / "report.json").write_text("{}")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(InvalidInput, match="is finished and answers for the day"), journal.opened(folder, ASKED, int):
        pass
    with pytest.raises(InvalidInput, match="later"), journal.opened(folder, ASKED, lambda: 8, again=True):
        raise InvalidInput("later")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before  # nothing new, so nothing is lost
    other = ASKED | {"epsilon": 2.0}
    with journal.opened(folder, other, lambda: 9, again=True) as (kept, releases):
        assert releases == 9
        assert kept.recording(target)(ONE).tolist() == [2, 0]
    assert {path.name for path in folder.iterdir()} == {journal.SETTINGS, journal.RELEASES, journal.LOCK}
    with journal.opened(folder, other, lambda: 1) as (kept, _):  # it was not finished, so it goes on
        assert kept.known == 1
    with (
        journal.opened(folder, other, lambda: 1),
        pytest.raises(InvalidInput, match="Another run is writing into"),
        journal.opened(folder, other, lambda: 1, again=True),
    ):
        pass
    assert (folder / journal.RELEASES).read_bytes().count(b"\n") == 1


def test_a_secret_setting_is_compared_and_not_written_down(tmp_path: Path) -> None:
    with journal.opened(tmp_path / "a", ASKED, lambda: 1, secret="http://x/?key=s3cr3t") as (kept, _):
        kept.recording(Target())(ONE)
    with journal.opened(tmp_path / "b", ASKED, lambda: 1, secret="http://x/?key=s3cr3t") as (kept, _):
        kept.recording(Target())(ONE)
    written = [(tmp_path / name / journal.SETTINGS).read_text() for name in "ab"]
    assert "s3cr3t" not in written[0]
    digests = [json.loads(text)["address"] for text in written]
    assert digests[0] != digests[1]  # each has a salt of its own
    with journal.opened(tmp_path / "a", ASKED, lambda: 1, secret="http://x/?key=s3cr3t") as (kept, _):
        assert kept.known == 1
    for other in ("http://x/?key=other", None):
        with (
            pytest.raises(InvalidInput, match=re.escape("other settings (what follows the address)")) as caught,
            journal.opened(tmp_path / "a", ASKED, lambda: 1, secret=other),
        ):
            pass
        assert "key" not in str(caught.value)


def test_an_audit_that_is_refused_before_its_first_release_leaves_no_trace(tmp_path: Path) -> None:
    def refuse() -> int:
        raise InvalidInput("too few")

    with pytest.raises(InvalidInput, match="too few"), journal.opened(tmp_path / "a" / "b", ASKED, refuse):
        pass
    assert not (tmp_path / "a" / "b").exists()
    with pytest.raises(InvalidInput, match="later"), journal.opened(tmp_path / "b", ASKED, lambda: 1):
        raise InvalidInput("later")
    assert not (tmp_path / "b").exists()
    with pytest.raises(InvalidInput, match="later"), journal.opened(tmp_path / "c", ASKED, lambda: 1) as (kept, _):
        _release_once_and_refuse(kept)
    assert (tmp_path / "c" / journal.RELEASES).read_bytes().count(b"\n") == 1


def _release_once_and_refuse(kept: journal.Journal) -> None:
    kept.recording(Target())(ONE)
    raise InvalidInput("later")
