"""An index whose changes are public: what an update draws, keeps, states, charges and rejects."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield.errors import BudgetExceeded, InvalidInput, InvalidParameter, LedgerError
from scoreshield.privacy import draws
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.profiles import PureProfile
from scoreshield.releases import versions
from scoreshield.releases.versions import IndexVersion

ROWS = np.random.default_rng(5).normal(size=(6, 4))
IDS = ["a", "b", "c", "d", "e", "f"]
EPSILON = 3.0


def release(**options: Any) -> IndexVersion:
    arguments = {"epsilon": EPSILON, "changes": "public", "ids": IDS} | options
    index = ss.release_index(ROWS, **arguments)
    assert isinstance(index, IndexVersion)
    return index


def open_account(folder: Path, epsilon: float = 100.0, delta: float = 0.0) -> Any:
    return ss.Ledger.create(f"sqlite:///{folder / 'ledger.db'}", epsilon=epsilon, delta=delta).account("records")


class TestUpdate:
    def test_only_new_and_changed_rows_are_drawn(self) -> None:
        first = release()
        second = first.update(changed={"b": ROWS[0], "e": ROWS[1]}, added={"g": ROWS[2]}, removed=["a", "d"])
        assert second.ids.tolist() == ["b", "c", "e", "f", "g"]
        assert second.draws.tolist() == [2, 1, 2, 1, 1]
        assert dict(zip(second.past_ids.tolist(), second.past_draws.tolist(), strict=True)) == {"a": 1, "d": 1}
        np.testing.assert_array_equal(second.vectors[[1, 3]], first.vectors[[2, 5]])
        assert (second.vectors[[0, 2]] != first.vectors[[1, 4]]).any(axis=1).all()
        assert second.is_intact()
        assert (second.version, second.history) == (2, first.history)
        assert second.guarantee.epsilon == 2 * EPSILON

    def test_an_id_that_comes_back_continues_its_count(self) -> None:
        index = release().update(removed=["a"]).update(added={"a": ROWS[0]})
        assert index.counts.counts["a"] == 2
        assert index.past_ids.tolist() == []
        assert index.guarantee.epsilon == 2 * EPSILON

    def test_the_guarantee_states_the_most_drawn_record(self) -> None:
        index = release()
        for number in range(3):
            index = index.update(changed={"c": ROWS[number]})
        assert index.largest_draws == 4
        assert index.guarantee.epsilon == 4 * EPSILON
        assert index.guarantee.delta_at(4 * EPSILON) == 0
        assert index.guarantee.profile == PureProfile(4 * EPSILON)
        index = index.update(changed={"d": ROWS[0]}, removed=["c"])  # what was released of it stays spent
        assert index.guarantee.epsilon == 4 * EPSILON

    def test_a_projection_stays(self) -> None:
        first = release(components=2)
        second = first.update(changed={"a": ROWS[0]})
        np.testing.assert_array_equal(first.projection, second.projection)
        assert second.guarantee.details["reduction"] == "random"
        assert second.search(ROWS[0], 2).indices.shape == (2,)

    def test_a_public_center_stays(self) -> None:
        first = release(center=np.full(4, 0.1), components=3)
        second = first.update(changed={"a": ROWS[0]})
        np.testing.assert_array_equal(first.center, second.center)
        assert second.is_intact()
        assert Guarantee.from_dict(second.guarantee.to_dict()) == second.guarantee

    def test_codebook(self, tmp_path: Path) -> None:
        """An index over a codebook is updated in the same way, by its own mechanism."""
        codebook = ss.PublicCodebook(np.random.default_rng(6).normal(size=(9, 4)), source="test", code_size=2)
        account = open_account(tmp_path)
        first = ss.release_index(ROWS, epsilon=EPSILON, codebook=codebook, changes="public", ids=IDS, ledger=account)
        second = first.update(changed={"b": ROWS[0]}, removed=["a"], added={"g": ROWS[1]}, ledger=account)
        assert isinstance(second, ss.CodebookVersion)
        np.testing.assert_array_equal(second.codes[1:5], first.codes[2:6])
        assert second.guarantee.epsilon == account.spent == 2 * EPSILON
        assert second.search(ROWS[0], 3).indices.shape == (3,)
        second.save(tmp_path / "index.npz")
        assert ss.load(tmp_path / "index.npz") == second
        plain = second.guarantee.to_dict()
        for edit in ({"epsilon": EPSILON}, {"details": plain["details"] | {"largest_draws": 1}}):
            with pytest.raises(InvalidInput, match="guarantee in the file"):
                Guarantee.from_dict(plain | edit)
        assert "the codebook, the ids of the records" in " ".join(str(second.guarantee).split())

    def test_the_order_of_rows_and_pairs(self) -> None:
        """Changed rows keep their places in any order of the argument; rows can be given as a pair."""
        index = ss.release_index(np.eye(4), epsilon=200.0, changes="public", ids=range(4))
        assert isinstance(index, IndexVersion)
        index = index.update(changed=([3, 0], np.eye(4)[[1, 2]]), removed=[1])
        assert index.ids.tolist() == [0, 2, 3]
        assert index.search(np.eye(4)[1], 1).indices.tolist() == [2]
        assert sorted(index.search(np.eye(4)[2], 2).indices.tolist()) == [0, 1]

    def test_research_mode(self) -> None:
        index = release(rng=1)
        np.testing.assert_array_equal(
            index.update(changed={"a": ROWS[0]}, rng=2).vectors, index.update(changed={"a": ROWS[0]}, rng=2).vectors
        )
        with pytest.raises(InvalidInput, match="by the research sampler"):
            index.update(changed={"a": ROWS[0]})

    def test_a_version_is_updated_once_without_a_ledger(self) -> None:
        first = release()
        smaller = first.update(removed=["f"])  # draws nothing, and keeps the counts
        first.update(changed={"a": ROWS[0]})
        for index in (first, smaller):
            with pytest.raises(InvalidInput, match="was updated before"):
                index.update(changed={"a": ROWS[0]})

    def test_threads_update_a_version_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The second thread comes while the first one draws."""
        first, plain, messages = release(), IndexVersion._make_next, []

        def update_again(*arguments: Any) -> Any:
            thread = threading.Thread(target=catch)
            thread.start()
            thread.join()
            return plain(*arguments)

        def catch() -> None:
            with pytest.raises(InvalidInput) as error:
                first.update(changed={"a": ROWS[0]})
            messages.append(str(error.value))

        monkeypatch.setattr(IndexVersion, "_make_next", update_again)
        assert first.update(changed={"a": ROWS[0]}).largest_draws == 2
        assert ["was updated before" in message for message in messages] == [True]

    def test_a_failed_update_can_be_repeated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing was shown, so nothing counts."""
        first = release()

        def fail(*_: Any) -> Any:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(IndexVersion, "_make_next", fail)
            with pytest.raises(KeyboardInterrupt):
                first.update(changed={"a": ROWS[0]})
        assert first.update(changed={"a": ROWS[0]}).largest_draws == 2

    @pytest.mark.parametrize("name", ["cap_height", "shrinkage", "epsilon_per_record"])
    def test_a_draw_is_the_one_that_the_version_states(self, name: str) -> None:
        index = release(components=2)
        details = index.guarantee.details | {name: index.guarantee.details[name] * (1 + 1e-12)}
        edited = dataclasses.replace(index, guarantee=dataclasses.replace(index.guarantee, details=details))
        with pytest.raises(InvalidInput, match="release a new one"):
            edited.update(changed={"a": ROWS[0]})


class TestFiles:
    def test_round_trip(self, tmp_path: Path) -> None:
        for ids in (IDS, list(range(6)), np.array(IDS), np.arange(6, dtype=np.int32)):
            index = release(ids=ids).update(changed={ids[0]: ROWS[0]}, removed=[ids[1]])
            index.save(tmp_path / "index.npz")
            again = ss.load(tmp_path / "index.npz")
            assert again == index
            again.update(removed=[ids[2]])

    def test_old_files_load(self, tmp_path: Path) -> None:
        index = ss.release_index(ROWS, epsilon=EPSILON)
        assert type(index) is ss.IndexRelease
        index.save(tmp_path / "index.npz")
        assert ss.load(tmp_path / "index.npz") == index

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("draws", np.array([1, 1, 1, 1, 1, 1])),
            ("draws", np.array([3, 1, 1, 1, 1, 1])),
            ("draws", np.array([2, 0, 1, 1, 1, 1])),
            ("draws", np.array([2, 1, 1, 1, 1])),
            ("ids", np.array(["a", "a", "c", "d", "e", "f"])),
            ("ids", np.arange(6)),
            ("past_ids", np.array(["a"])),
            ("past_draws", np.array([1])),
            ("history", "0"),
            ("version", 0),
            ("is_charged", 1),
        ],
    )
    def test_an_edited_file_is_rejected(self, field: str, value: Any, tmp_path: Path) -> None:
        index = release().update(changed={"a": ROWS[0]})
        dataclasses.replace(index, **{field: value}).save(tmp_path / "index.npz")
        with pytest.raises(InvalidInput, match="does not hold together"):
            ss.load(tmp_path / "index.npz")

    def test_an_edited_guarantee_is_rejected(self) -> None:
        index = release()
        index = index.update(changed={"a": ROWS[0]}).update(changed={"a": ROWS[0]})
        plain = index.guarantee.to_dict()
        assert Guarantee.from_dict(plain) == index.guarantee
        edits: list[dict[str, Any]] = [
            {"epsilon": plain["epsilon"] * 2 / 3},
            {"profile": release().guarantee.profile.to_dict()},
            {"profile": ss.release_index(ROWS, epsilon=3 * EPSILON).guarantee.profile.to_dict()},
            {"delta": 1e-6},
            {"details": plain["details"] | {"largest_draws": 2}},
            {"details": plain["details"] | {"largest_draws": 4}},
            {"details": plain["details"] | {"largest_draws": 0}},
            {"details": plain["details"] | {"epsilon_per_draw": EPSILON / 2}},
            {"details": plain["details"] | {"changes": "private"}},
            {"sensitivity": 1.0, "grid_sensitivity": 1.1},
            {"adjacency": {"kind": "identity", "centroids": False, "identities": 3, "largest": 2}},
        ]
        for edit in edits:
            with pytest.raises(InvalidInput, match="guarantee in the file"):
                Guarantee.from_dict(plain | edit)

    def test_counts_of_another_length_are_not_intact(self) -> None:
        for field in ("draws", "past_draws"):
            assert not dataclasses.replace(release(), **{field: np.ones(2, dtype=np.int64)}).is_intact()

    def test_the_certificate_says_what_is_public(self) -> None:
        text = " ".join(str(release().guarantee).split())
        assert "the ids of the records, when each was added, changed or removed, and how often" in text
        assert "everything that one id ever held, in all versions" in text
        assert "Changes: public." in text
        assert "Changes" not in str(ss.release_index(ROWS, epsilon=1.0).guarantee)


class TestBadInput:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({}, "added, changed or removed; got none"),
            ({"added": {"a": ROWS[0]}}, "is in the index: give it as changed"),
            ({"changed": {"z": ROWS[0]}}, "is not in the index: give it as added"),
            ({"removed": ["z"]}, "cannot be removed"),
            ({"changed": {"a": ROWS[0]}, "removed": ["a"]}, "both changed and removed"),
            ({"added": {7: ROWS[0]}}, "same type"),
            ({"added": {"z": ROWS[0][:2]}}, "vectors of 4 dimensions"),
            ({"added": {"z": ROWS[0].astype(str)}}, "vectors of 4 dimensions"),
            ({"added": (["y", "z"], ROWS[:1])}, "2 ids for 1 rows"),
            ({"added": (["z", "z"], ROWS[:2])}, "is given 2 times"),
            ({"added": ROWS}, "a pair"),
            ({"added": {"z": ROWS[0] * np.nan}}, "finite"),
            ({"removed": "a"}, "different ids"),
            ({"removed": ROWS[0]}, "Got <class 'float'>"),
            ({"added": (ROWS[0], ["z"])}, "Got <class 'float'>"),
            ({"added": (["z"], float(ROWS[0, 0]))}, "Got <class 'float'>"),
            ({"removed": IDS}, "at least one record"),
        ],
    )
    def test_nothing_is_charged(self, change: dict[str, Any], message: str, tmp_path: Path) -> None:
        account = open_account(tmp_path)
        index = release(ledger=account)
        with pytest.raises(InvalidInput, match=message):
            index.update(**change, ledger=account)
        assert len(account.ledger.entries()) == 1

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"ids": None}, "6 different ids"),
            ({"ids": IDS[:5]}, "5 ids in .ids. for 6 records"),
            ({"changes": "open"}, "'changes' parameter"),
            ({"changes": "private"}, "left out unless"),
            ({"adjacency": ss.Identity([0, 0, 1, 1, 2, 2])}, "leave the adjacency"),
            ({"reduction": "pca", "components": 2, "delta": 1e-6}, "reads all records"),
            ({"center": "private", "delta": 1e-6}, "reads all records"),
            ({"mechanism": "gaussian", "delta": 1e-6}, "private without delta"),
        ],
    )
    def test_first_version(self, options: dict[str, Any], message: str, tmp_path: Path) -> None:
        account = open_account(tmp_path, delta=1e-5)
        with pytest.raises(InvalidInput, match=message):
            release(**options, ledger=account)
        assert account.ledger.entries() == []

    def test_one_function_name(self) -> None:
        with pytest.raises(InvalidParameter, match=r"'added' parameter of IndexVersion.update"):
            release().update(added=3)  # type: ignore[arg-type]


class TestLedger:
    def test_the_largest_total_of_any_record(self, tmp_path: Path) -> None:
        """Seven updates, and the total follows the most drawn record exactly."""
        account = open_account(tmp_path)
        index = release(ledger=account)
        spent = [account.spent]
        for one in ("a", "b", "c", "a", "d", "b", "b"):
            index = index.update(changed={one: ROWS[0]}, ledger=account)
            spent.append(account.spent)
            assert account.spent == index.largest_draws * EPSILON
        assert [round(value / EPSILON) for value in spent] == [1, 2, 2, 2, 3, 3, 3, 4]
        assert account.ledger.verify()
        kinds = [entry.kind for entry in account.ledger.entries()]
        assert kinds == ["draw", "draw", "free-draw", "free-draw", "draw", "free-draw", "free-draw", "draw"]

    def test_removal_writes_no_entry(self, tmp_path: Path) -> None:
        account = open_account(tmp_path)
        release(ledger=account).update(removed=["a"], ledger=account)
        assert len(account.ledger.entries()) == 1

    def test_removal_states_the_newest_total(self, tmp_path: Path) -> None:
        """A removal from an old version counts the draws of the versions after it, which only the ledger knows."""
        account = open_account(tmp_path)
        first = release(ledger=account)
        first.update(changed={"b": ROWS[0]}, ledger=account).update(changed={"b": ROWS[0]}, ledger=account)
        with pytest.raises(InvalidInput, match="charge its updates to the same account"):
            first.update(removed=["a"])
        smaller = first.update(removed=["a"], ledger=account)
        assert smaller.largest_draws == 3
        assert smaller.guarantee.epsilon == account.spent == 3 * EPSILON
        assert smaller.draws[smaller.ids.tolist().index("b")] == 3
        assert smaller.is_intact()
        assert smaller.update(changed={"b": ROWS[0]}, ledger=account).largest_draws == 4

    def test_removal_from_an_old_version_without_a_ledger(self) -> None:
        first = release()
        first.update(changed={"b": ROWS[0]})
        with pytest.raises(InvalidInput, match="was updated before"):
            first.update(removed=["a"])

    @pytest.mark.parametrize("given", ["postgresql://user:secret@host/db", "the ledger"])
    def test_an_error_about_the_ledger_names_what_was_given(self, tmp_path: Path, given: Any) -> None:
        """Whatever was given in place of an account: one sentence, which shows no address and so no password."""
        account = open_account(tmp_path)
        wrong: Any = account.ledger if given == "the ledger" else given
        charged, free = release(ledger=account), release()
        calls: list[Callable[[], Any]] = [
            lambda: release(ledger=wrong),
            lambda: ss.release_index(ROWS, epsilon=EPSILON, ledger=wrong),
            *(lambda index=index: index.update(changed={"a": ROWS[0]}, ledger=wrong) for index in (charged, free)),
            *(lambda index=index: index.update(removed=["a"], ledger=wrong) for index in (charged, free)),
        ]
        for call in calls:
            with pytest.raises(InvalidInput) as error:
                call()
            assert "'ledger'" in str(error.value)
            assert "must be ledger.account(name)" in str(error.value)
            assert "secret" not in str(error.value)
            assert "_DrawAccount" not in str(error.value)

    def test_an_update_reads_all_counts_few_times(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The counts of all records are hashed once before the draw and once after it, however small the update is."""
        account, sizes = open_account(tmp_path), []
        index = release(ledger=account)
        plain = draws.json.dumps

        def count(value: Any, **options: Any) -> str:
            if isinstance(value, list):
                sizes.append(len(value))
            return plain(value, **options)

        monkeypatch.setattr(draws.json, "dumps", count)
        index.update(changed={"a": ROWS[0]}, ledger=account)
        assert sizes.count(len(IDS)) <= 2

    def test_an_error_about_a_vector_names_its_id(self) -> None:
        bad = np.where(np.arange(ROWS.shape[1]) == 1, np.nan, ROWS[0])
        for name, options in {
            "c": {"changed": {"a": ROWS[0], "c": bad}, "added": {"g": ROWS[0]}},
            "h": {"changed": {"a": ROWS[0]}, "added": {"g": ROWS[0], "h": np.full(4, np.inf)}},
        }.items():
            with pytest.raises(
                InvalidInput, match=f"The id '{name}' has a vector in '(added|changed)' that is not finite"
            ):
                release().update(**options)

    def test_a_lost_version_stays_counted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A failure between the charge and the draw: nothing is drawn for free, and the next update continues."""
        account = open_account(tmp_path)
        index = release(ledger=account)

        def fail(*_: Any) -> Any:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(versions.IndexVersion, "_make_next", fail)
            with pytest.raises(KeyboardInterrupt):
                index.update(changed={"a": ROWS[0]}, ledger=account)
        assert account.spent == 2 * EPSILON
        after = index.update(changed={"b": ROWS[1]}, ledger=account)
        assert account.spent == 2 * EPSILON  # b is now at 2, as a is
        assert after.counts.counts == {"a": 2, "b": 2, "c": 1, "d": 1, "e": 1, "f": 1}
        assert after.guarantee.epsilon == 2 * EPSILON
        after = after.update(changed={"a": ROWS[1]}, ledger=account)
        assert account.spent == 3 * EPSILON == after.guarantee.epsilon
        assert account.ledger.verify()

    def test_a_killed_process_leaves_the_counts(self, tmp_path: Path) -> None:
        """A process that dies after the charge, before it can save, has drawn at most what the ledger counts."""
        account = open_account(tmp_path)
        index = release(ledger=account)
        child = os.fork()
        if child == 0:  # pragma: no cover
            try:
                index.update(changed={"a": ROWS[0]}, ledger=account)
            finally:
                os._exit(9)
        os.waitpid(child, 0)
        after = index.update(changed={"a": ROWS[0]}, ledger=account)
        assert after.counts.counts["a"] == 3
        assert account.spent == 3 * EPSILON
        assert account.ledger.verify()

    def test_two_updates_of_one_version_are_both_counted(self, tmp_path: Path) -> None:
        account = open_account(tmp_path)
        first = release(ledger=account)
        one = first.update(changed={"a": ROWS[0]}, added={"x": ROWS[0]}, ledger=account)
        other = first.update(changed={"a": ROWS[0]}, ledger=account)
        assert other.counts.counts["a"] == 3
        assert "x" in other.past_ids.tolist()
        again = one.update(changed={"a": ROWS[0]}, ledger=account)
        assert again.counts.counts["a"] == 4
        assert account.spent == 4 * EPSILON

    def test_a_race_charges_nothing(self, tmp_path: Path) -> None:
        account = open_account(tmp_path)
        index = release(ledger=account)

        class Late:
            """An account whose counts were read before another process updated the index."""

            dataset = account.dataset
            reserve_draws = account.reserve_draws
            reserve = account.reserve

            def read_draws(self, history: str, counts: Any) -> Any:
                found = account.read_draws(history, counts)
                index.update(changed={"b": ROWS[0]}, ledger=account)
                return found

        with pytest.raises(LedgerError, match="Another process"):
            index.update(changed={"a": ROWS[0]}, ledger=Late())
        assert len(account.ledger.entries()) == 2

    def test_the_budget_holds(self, tmp_path: Path) -> None:
        account = open_account(tmp_path, epsilon=2 * EPSILON)
        index = release(ledger=account).update(changed={"a": ROWS[0]}, ledger=account)
        for one in IDS[1:]:  # each reaches the largest count, and none passes it
            index = index.update(changed={one: ROWS[0]}, ledger=account)
        with pytest.raises(BudgetExceeded):
            index.update(changed={"a": ROWS[0]}, ledger=account)
        assert account.spent == 2 * EPSILON
        index.update(added={"g": ROWS[0]}, removed=["a"], ledger=account)

    def test_other_accounts_and_edited_counts_are_rejected(self, tmp_path: Path) -> None:
        account = open_account(tmp_path)
        index = release(ledger=account).update(changed={"a": ROWS[0]}, ledger=account)
        fewer = dataclasses.replace(index, draws=np.array([1, 2, 1, 1, 1, 1]))
        for other, target in ((index, account.ledger.account("others")), (fewer, account), (release(), account)):
            with pytest.raises(InvalidInput, match="no charge for this version"):
                other.update(changed={"a": ROWS[0]}, ledger=target)
        assert len(account.ledger.entries()) == 2

    @pytest.mark.parametrize("epsilon", [100.0, EPSILON * (1 + 1e-12)])
    def test_a_draw_of_another_epsilon_is_rejected(self, epsilon: float, tmp_path: Path) -> None:
        """The name of a history in an index of another epsilon buys no draw at that epsilon."""
        account = open_account(tmp_path)
        cheap = release(ledger=account)
        dear = dataclasses.replace(release(epsilon=epsilon), history=cheap.history, is_charged=True)
        dear.save(tmp_path / "index.npz")
        for change in ({"added": {"g": ROWS[0]}}, {"changed": {"a": ROWS[0]}}):
            with pytest.raises(InvalidInput, match="another epsilon"):
                ss.load(tmp_path / "index.npz").update(**change, ledger=account)
        assert len(account.ledger.entries()) == 1
        cheap.update(added={"g": ROWS[0]}, ledger=account)

    def test_a_ledger_counts_all_updates_or_none(self, tmp_path: Path) -> None:
        account = open_account(tmp_path)
        first = release(ledger=account)
        second = first.update(changed={"a": ROWS[0]}, ledger=account)
        second.save(tmp_path / "index.npz")
        for index in (first, second, ss.load(tmp_path / "index.npz")):
            with pytest.raises(InvalidInput, match="charge its updates to the same account"):
                index.update(changed={"a": ROWS[0]})
        with pytest.raises(InvalidInput, match="no charge for this version"):
            release().update(changed={"a": ROWS[0]}, ledger=account)
        assert len(account.ledger.entries()) == 2

    def test_an_account_without_counts_updates_a_version_once(self, tmp_path: Path) -> None:
        """It adds up what it is charged, but no version would state both draws."""
        account = open_account(tmp_path)

        class Plain:
            dataset = account.dataset
            reserve = account.reserve

        first = release(ledger=account)
        first.update(changed={"a": ROWS[0]}, ledger=account)
        with pytest.raises(InvalidInput, match="was updated before"):
            first.update(changed={"a": ROWS[0]}, ledger=Plain())
        other = release(ledger=account)
        other.update(changed={"a": ROWS[0]}, ledger=Plain())
        with pytest.raises(InvalidInput, match="was updated before"):
            other.update(changed={"a": ROWS[0]}, ledger=account)
        assert len(account.ledger.entries()) == 4

    def test_a_plain_account_is_charged_each_draw(self) -> None:
        """An account that keeps no counts is charged one draw for each update."""

        class Plain:
            dataset = "records"
            charges: list[float] = []  # noqa: RUF012

            def reserve(self, items: Any, **_: Any) -> Any:
                self.items = items
                return self

            def commit(self) -> list[Any]:
                self.charges.extend(item.epsilon for item in self.items)
                return []

        account = Plain()
        index = release(ledger=account)
        index.update(changed={"a": ROWS[0]}, ledger=account).update(changed={"b": ROWS[0]}, ledger=account)
        assert account.charges == [EPSILON] * 3


def test_errors_say_what_is_wrong_with_ids() -> None:
    with pytest.raises(ss.InvalidInput, match="The id 'b' is given 2 times in 'ids'"):
        ss.release_index(np.eye(3), epsilon=1.0, changes="public", ids=["a", "b", "b"])
    with pytest.raises(ss.InvalidInput, match="There are 2 ids in 'ids' for 3 records"):
        ss.release_index(np.eye(3), epsilon=1.0, changes="public", ids=["a", "b"])
    index = ss.release_index(np.eye(3), epsilon=1.0, changes="public", ids=["a", "b", "c"])
    with pytest.raises(ss.InvalidInput, match="There are 1 ids for 2 rows in 'added'"):
        index.update(added=(["d"], np.eye(3)[:2]))


def test_an_index_without_public_changes_says_how_to_get_updates() -> None:
    with pytest.raises(ss.InvalidInput, match="release it with changes='public' and ids"):
        ss.release_index(np.eye(3), epsilon=1.0).update(removed=[1])


@pytest.mark.parametrize("edit", ["pca", "random", "x", [], {}, 5, None])
def test_an_edited_reduction_is_found(edit: Any) -> None:
    index = release()
    assert index.is_intact()
    details = {**index.guarantee.details, "reduction": edit}
    assert not dataclasses.replace(index, guarantee=dataclasses.replace(index.guarantee, details=details)).is_intact()
