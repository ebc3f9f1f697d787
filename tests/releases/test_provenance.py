"""What a certificate says about its owner: the collection, who, why, and the ledger entry."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import scoreshield as ss
from scoreshield import cli
from scoreshield.cli import release as release_commands
from scoreshield.privacy.provenance import Provenance
from scoreshield.search import PrivateSearch

ROWS = np.random.default_rng(5).standard_normal((20, 6))
TEXTS = {"dataset": "patient letters", "who": "ada", "why": "pilot of the search"}
#: Texts that could move the cursor, hide other text or begin a new line.
BAD = ["a\nWARNING: none", "a\tb", "\x1b[2J", "\u202eevil", "a\u200bb", "\u2028", "\ud800", "x" * 1001, b"a", 3, ["a"]]


@pytest.fixture
def release() -> ss.ScoreRelease:
    return ss.release_scores(ROWS, ROWS[0], epsilon=1, delta=1e-6)


@pytest.fixture
def ledger(tmp_path: Path) -> ss.Ledger:
    return ss.Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=50, delta=1e-5)


def list_lines(guarantee: ss.Guarantee) -> list[str]:
    lines = str(guarantee).split("\n")
    start = next(place for place, line in enumerate(lines) if line.startswith("Released"))
    end = next(place for place, line in enumerate(lines) if line.startswith("Promise"))
    return lines[start + 1 : end]


class TestTexts:
    def test_a_release_without_texts_states_none(self, release: ss.ScoreRelease) -> None:
        assert release.guarantee.provenance is None
        assert "provenance" not in release.guarantee.to_dict()
        assert "Dataset" not in str(release.guarantee)
        assert "Ledger entry" not in str(release.guarantee)

    def test_the_certificate_and_the_file_state_them(self, release: ss.ScoreRelease, tmp_path: Path) -> None:
        noted = release.annotate(**TEXTS)
        assert list_lines(noted.guarantee) == [
            "Dataset        patient letters",
            "Who            ada",
            "Why            pilot of the search",
            "Ledger entry   None: no ledger was charged.",
        ]
        assert noted.guarantee.to_dict()["provenance"] == TEXTS
        noted.save(tmp_path / "r.npz")
        loaded = ss.load(tmp_path / "r.npz")
        assert loaded.guarantee.provenance == Provenance(**TEXTS)
        assert str(loaded.guarantee) == str(noted.guarantee)

    def test_texts_change_nothing_else(self, release: ss.ScoreRelease) -> None:
        """The numbers and the promise stay, and so does the release that was given."""
        noted = release.annotate(**TEXTS)
        assert np.array_equal(noted.noisy, release.noisy)
        assert noted.guarantee == release.guarantee
        assert noted.guarantee.drop_provenance().to_dict() == release.guarantee.to_dict()
        assert release.guarantee.provenance is None
        assert type(noted) is ss.ScoreRelease

    def test_texts_are_kept_changed_and_removed(self, release: ss.ScoreRelease) -> None:
        noted = release.annotate(**TEXTS).annotate(who="grace")
        assert noted.guarantee.provenance == Provenance("patient letters", "grace", "pilot of the search")
        assert noted.annotate(dataset="", who="", why="").guarantee.provenance is None

    @pytest.mark.parametrize("name", TEXTS)
    def test_bad_texts(self, release: ss.ScoreRelease, name: str) -> None:
        for bad in BAD:
            with pytest.raises(ss.InvalidInput) as caught:
                release.annotate(**{name: bad})  # type: ignore[arg-type]
            message = str(caught.value)
            assert message.startswith(f"The '{name}' parameter of ScoreRelease.annotate must be text of 0 to 1000")
            assert message.isprintable()
            assert len(message) < 250
        assert release.annotate(**{name: "x" * 1000}).guarantee.provenance is not None

    def test_no_text_begins_a_line(self, release: ss.ScoreRelease) -> None:
        """A text cannot imitate a line of the certificate, however long it is."""
        words = "WARNING: Verdict Promise <script>alert(1)</script> [bold] " * 17
        noted = release.annotate(dataset=words, who=words, why="-" * 1000)
        before, after = (set(str(one.guarantee).split("\n")) for one in (release, noted))
        starts = ("Dataset        ", "Who            ", "Why            ", "Ledger entry   ", " " * 15)
        assert all(line.startswith(starts) for line in after - before)
        assert max(map(len, after)) <= 79
        json.loads(json.dumps(noted.guarantee.to_dict()))

    @pytest.mark.parametrize(
        "forged",
        [
            {"owner": "ada"},
            {"who": 3},
            {"who": "a\nb"},
            {"entry": "1"},
            {"entry": "1:" + "g" * 64},
            {"entry": "1:" + "a" * 64 + "\n"},
            {"entry": None},
            [],
            None,
            "ada",
        ],
    )
    def test_a_file_with_another_provenance_is_rejected(self, release: ss.ScoreRelease, forged: Any) -> None:
        with pytest.raises(ss.InvalidInput):
            ss.Guarantee.from_dict({**release.guarantee.to_dict(), "provenance": forged})


class TestLedger:
    def test_the_certificate_names_its_entry(self, ledger: ss.Ledger) -> None:
        account = ledger.account("patient letters", who="ada", why="pilot of the search")
        release = ss.release_scores(ROWS, ROWS[0], epsilon=1, delta=1e-6, ledger=account)
        (entry,) = ledger.entries()
        assert list_lines(release.guarantee)[:4] == [
            "Dataset        patient letters",
            "Who            ada",
            "Why            pilot of the search",
            "Ledger entry   Number 1, with the hash",
        ]
        assert list_lines(release.guarantee)[4].strip() == entry.hash
        assert release.guarantee.provenance is not None
        address = release.guarantee.provenance.entry
        assert ledger.verify(head=address)
        changed = address[:-1] + ("0" if address[-1] != "0" else "1")
        assert not ledger.verify(head=changed)  # another entry than the one of the ledger

    def test_the_machine_is_not_named(self, ledger: ss.Ledger) -> None:
        """The ledger names the user and the host where nobody is named; a certificate that is published does not."""
        release = ss.release_top_k(ROWS, ROWS[0], 2, epsilon=1, ledger=ledger.account("letters"))
        (entry,) = ledger.entries()
        assert "@" in entry.who or entry.who == "unknown"
        assert entry.who not in str(release.guarantee)
        assert release.guarantee.provenance == Provenance("letters", entry=f"1:{entry.hash}")

    def test_a_charged_release_keeps_its_dataset(self, ledger: ss.Ledger) -> None:
        release = ss.release_matches(ROWS, ROWS[0], 0.2, epsilon=1, ledger=ledger.account("letters"))
        with pytest.raises(ss.InvalidInput, match="charged to 'letters'"):
            release.annotate(dataset="others")
        with pytest.raises(ss.InvalidInput, match="charged to 'letters'"):
            release.annotate(dataset="")
        noted = release.annotate(dataset="letters", why="a pilot").guarantee.provenance
        assert noted is not None
        assert (noted.why, noted.entry[:2]) == ("a pilot", "1:")

    def test_a_ledger_keeps_the_promise_alone(self, release: ss.ScoreRelease, ledger: ss.Ledger) -> None:
        entry = ledger.spend(release.annotate(**TEXTS), dataset="letters")
        assert "provenance" not in json.loads(entry.guarantee)

    def test_each_version_names_its_own_entry(self, ledger: ss.Ledger) -> None:
        account = ledger.account("letters", who="ada")
        first = ss.release_index(ROWS, epsilon=1, changes="public", ids=range(20), ledger=account)
        second = first.update(changed={3: ROWS[0]}, ledger=account)
        third = second.update(removed=[4], ledger=account)
        for version, number in ((first, 1), (second, 2), (third, 2)):
            provenance = version.guarantee.provenance
            assert provenance == Provenance("letters", "ada", "", f"{number}:{ledger.entries()[number - 1].hash}")

    def test_an_account_of_another_kind_names_no_entry(self) -> None:
        """What is charged elsewhere returns entries of its own."""

        class Book:
            dataset = "letters"

            def reserve(self, items: Any, **_: Any) -> Any:
                del items
                return self

            def commit(self) -> list[str]:
                return ["charged"]

        release = ss.release_scores(ROWS, ROWS[0], epsilon=1, delta=1e-6, ledger=Book())
        assert release.guarantee.provenance is None


class TestSearch:
    @pytest.mark.parametrize("mode", ["index", "hits"])
    def test_a_search_names_its_entry(self, mode: Any, ledger: ss.Ledger, tmp_path: Path) -> None:
        """Also when it is opened again from its file, without a second charge."""
        account = ledger.account("letters", who="ada", why="pilot")
        for _ in range(2):
            search = PrivateSearch(ROWS, mode=mode, epsilon=2, ledger=account, file=tmp_path / "search.npz")
            (entry,) = ledger.entries()
            assert search.guarantee.provenance == Provenance("letters", "ada", "pilot", f"1:{entry.hash}")

    def test_each_query_names_its_own_entry(self, ledger: ss.Ledger) -> None:
        search = PrivateSearch(ROWS, mode="query", epsilon=2, delta=0, mechanism="laplace", ledger=ledger.account("a"))
        found = search.search_batch(ROWS[:3], k=2)
        entries = [hits.guarantee.provenance.entry for hits in found if hits.guarantee and hits.guarantee.provenance]
        assert entries == [f"{entry.id}:{entry.hash}" for entry in ledger.entries()]
        assert len(entries) == 3


class TestCommands:
    @pytest.fixture
    def run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
        monkeypatch.chdir(tmp_path)
        np.save("rows.npy", ROWS)
        np.save("query.npy", ROWS[0])

        def call(*more: str) -> tuple[int, str, str]:
            command = ["release", "scores", "rows.npy", "--query", "query.npy", "--epsilon", "1", "--delta", "1e-6"]
            monkeypatch.setattr(sys, "argv", ["scoreshield", *command, "--output", "out.npz", *more])
            with pytest.raises(SystemExit) as stopped:
                cli.main()
            printed = capsys.readouterr()
            return int(stopped.value.code or 0), printed.out, printed.err

        return call

    def test_every_release_takes_them(self) -> None:
        for command in typer.main.get_command(release_commands.app).commands.values():  # type: ignore[attr-defined]
            options = {name for parameter in command.params for name in parameter.opts}
            assert {"--dataset", "--who", "--why"} <= options, command.name

    def test_without_a_ledger(self, run: Any) -> None:
        code, out, err = run("--dataset", "[bold]letters", "--who", "ada", "--why", "pilot")
        assert code == 0
        assert "Dataset        [bold]letters\nWho            ada\nWhy            pilot\nLedger entry   None" in out
        assert err.count("\n") == 1
        facts = json.loads(Path("out.json").read_text())
        assert facts["guarantee"]["provenance"] == {"dataset": "[bold]letters", "who": "ada", "why": "pilot"}
        assert "Who            ada\n" in Path("out.txt").read_text()
        loaded = ss.load("out.npz").guarantee.provenance
        assert loaded == Provenance("[bold]letters", "ada", "pilot")
        code, _, err = run("--who", "ada", "--force")  # which names no collection that could be charged
        assert (code, err) == (0, "")

    @pytest.mark.usefixtures("ledger")
    def test_with_a_ledger(self, run: Any, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path / 'ledger.db'}"
        code, out, err = run("--ledger", url, "--dataset", "letters", "--who", "ada", "--why", "pilot")
        assert (code, err) == (0, "")
        (entry,) = ss.Ledger.open(url).entries()
        assert (entry.dataset, entry.who, entry.why) == ("letters", "ada", "pilot")
        assert f"Ledger entry   Number 1, with the hash\n               {entry.hash}\n" in out

    @pytest.mark.parametrize("option", ["--dataset", "--who", "--why"])
    @pytest.mark.usefixtures("ledger")
    def test_bad_texts_cost_nothing(self, run: Any, option: str, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path / 'ledger.db'}"
        for charge in ([], ["--ledger", url, "--dataset", "letters"]):
            for bad in ("a\nb", "\x1b[2J", "x" * 1001):
                code, out, err = run(*charge, option, bad)
                assert (code, out) == (2, "")
                assert err.count("\n") == 1
                assert f"scoreshield: {option} must be" in err
                assert "printable characters" in err
                assert not Path("out.npz").exists()
        assert ss.Ledger.open(url).entries() == []

    def test_json_has_the_verdict(self, run: Any) -> None:
        code, out, _ = run("--json")
        facts = json.loads(out)
        guarantee = ss.load("out.npz").guarantee
        assert code == 0
        assert facts["verdict"] == guarantee.verdict == "strong"
        assert facts["right_at_most"] == (1 + guarantee.attack_advantage) / 2
        assert facts["warnings"] == []
        saved = json.loads(Path("out.json").read_text())
        assert {name: saved[name] for name in ("verdict", "right_at_most", "warnings")} == {
            name: facts[name] for name in ("verdict", "right_at_most", "warnings")
        }
        code, out, _ = run("--json", "--force", "--seed", "1")
        assert json.loads(out)["verdict"] == "hides practically nothing"
        assert "NOT PRIVATE" in json.loads(out)["warnings"][0]


def test_two_guarantees_with_one_promise_are_equal(release: ss.ScoreRelease) -> None:
    other = replace(release.guarantee, provenance=Provenance(who="ada"))
    assert other == release.guarantee
    assert replace(release.guarantee, epsilon=2.0) != release.guarantee
