"""What is learnt from earlier outputs: from nothing else, fitted on some of them and counted on others.

Tests with chance use fixed seeds and state their false-alarm rate, or are exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scoreshield.audit import engine
from scoreshield.audit.betting import STYLES, BetAccount, Hypotheses, open_accounts
from scoreshield.audit.claims import Claim
from scoreshield.audit.encoding import OutputReader
from scoreshield.audit.learning import FEWEST, OnColumns, OutputHistory, learn_accounts
from scoreshield.audit.neighbours import worst_pairs
from scoreshield.audit.statistics import fit_linear
from scoreshield.privacy.noise import GaussianNoise, LaplaceNoise

HYPOTHESES = Hypotheses(np.array([0.0, 0.5, 1.0]), np.zeros(3))
PAIR = worst_pairs(3, 4, "scores")[0]


def make_history(first: np.ndarray, second: np.ndarray) -> OutputHistory:
    """Make a history of plain numbers, with a column for their form."""
    reader = OutputReader([first[0], second[0]], 3)
    history = OutputHistory(reader.is_number)
    rows = reader.read(np.concatenate([first, second]))
    history.add(rows, np.arange(len(rows)) < len(first))
    return history


def draw_laplace(rows: int, entries: int, move: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw outputs of both sides, of which the first entry moves."""
    rng = np.random.default_rng(seed)
    first, second = rng.laplace(0, 1.0, (2, rows, entries))
    first[:, 0] += move
    return first, second


def get(accounts: list[BetAccount], name: str) -> list[BetAccount]:
    return [account for account in accounts if account.statistic.name == name]


def is_same(one: list[BetAccount], other: list[BetAccount], rows: np.ndarray) -> bool:
    """Whether accounts have the same statistics, cuts and stakes."""
    return [account.key for account in one] == [account.key for account in other] and all(
        np.array_equal(a.statistic(rows), b.statistic(rows))
        and np.array_equal(a.edges, b.edges)
        and np.array_equal(a.stakes.log_first, b.stakes.log_first)
        and np.array_equal(a.stakes.log_second, b.stakes.log_second)
        for a, b in zip(one, other, strict=True)
    )


# ---- From the history alone.


def test_later_outputs_change_nothing() -> None:
    """Accounts that were opened stay as they are when outputs are added, and equal histories teach the same."""
    first, second = draw_laplace(300, 3, 1.0)
    rows = OutputReader(list(first), 3).read(np.concatenate([first, second]))
    for later in (draw_laplace(500, 3, 0.0, seed=1), draw_laplace(500, 3, 9.0, seed=2)):
        history = make_history(first, second)
        before = learn_accounts(history, HYPOTHESES)
        kept = [(account.statistic(rows), account.stakes.log_first.copy()) for account in before]
        added = np.column_stack([np.concatenate(later), np.zeros(1_000)])
        history.add(added, np.arange(1_000) < 500)
        after = learn_accounts(history, HYPOTHESES)
        for account, (values, stakes) in zip(before, kept, strict=True):
            assert np.array_equal(account.statistic(rows), values)
            assert np.array_equal(account.stakes.log_first, stakes)
        assert is_same(before, learn_accounts(make_history(first, second), HYPOTHESES), rows)
        assert not is_same(before, after, rows)


def test_no_output_is_played_by_what_it_taught(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an audit, an account is opened before the outputs that it is played on are drawn; all outputs differ here."""
    taught: dict[int, set[float]] = {}
    kept: list[BetAccount] = []
    played = 0

    def learn(history: OutputHistory, *given: Any, **options: Any) -> list[BetAccount]:
        accounts = learn_accounts(history, *given, **options)
        seen = set(np.concatenate(history.join())[:, 0].tolist())
        taught.update({id(account): seen for account in accounts})
        kept.extend(accounts)  # so that no number is used again
        return accounts

    def play(account: BetAccount, rows: np.ndarray, sides: np.ndarray) -> np.ndarray:
        nonlocal played
        played += len(rows)
        assert not taught[id(account)] & set(rows[:, 0].tolist())
        return original(account, rows, sides)

    def release(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return rows[0, :2] + rng.laplace(0, 2.0, 2)

    original = BetAccount.play
    monkeypatch.setattr(engine, "learn_accounts", learn)
    monkeypatch.setattr(BetAccount, "play", play)
    engine.audit(release, Claim(1.0), neighbours=[PAIR, PAIR.swap()], releases=1_000, confidence=0.999)
    assert played > 10_000
    # The near miss: accounts that are played on the outputs which taught them would be noticed.
    history = make_history(*draw_laplace(50, 2, 1.0))
    account = learn(history, HYPOTHESES)[0]
    with pytest.raises(AssertionError):
        play(account, np.concatenate(history.join()), np.arange(100) < 50)


def test_few_outputs_teach_nothing() -> None:
    first, second = draw_laplace(FEWEST, 2, 1.0)
    assert learn_accounts(make_history(first, second[: FEWEST - 1]), HYPOTHESES) == []
    assert learn_accounts(make_history(first, second), HYPOTHESES) != []


def test_history_keeps_sides() -> None:
    """Blocks are joined in their order, and once joined they stay."""
    history = OutputHistory(np.array([True]))
    history.add(np.array([[0.0], [1.0], [2.0]]), np.array([True, False, True]))
    history.add(np.array([[3.0], [4.0]]), np.array([False, True]))
    for _ in range(2):
        first, second = history.join()
        assert first[:, 0].tolist() == [0, 2, 4]
        assert second[:, 0].tolist() == [1, 3]


# ---- Fitted on the first part, counted on the rest.


def replace_rows(rows: np.ndarray, part: slice) -> np.ndarray:
    changed = rows.copy()
    changed[part] = np.random.default_rng(99).laplace(3.0, 2.0, changed[part].shape)
    return changed


def test_statistics_are_fitted_on_the_first_part() -> None:
    """Other outputs in the last 60 % change what is counted and no statistic; earlier ones change statistics.

    There are fewer than 100 outputs per entry. What remembers outputs remembers them all.
    """
    first, second = draw_laplace(200, 4, 1.0)
    rows = np.column_stack([np.concatenate([first, second]), np.zeros(400)])
    accounts = learn_accounts(make_history(first, second), HYPOTHESES)
    counted = learn_accounts(make_history(replace_rows(first, slice(80, None)), second), HYPOTHESES)
    fitted = learn_accounts(make_history(replace_rows(first, slice(0, 80)), second), HYPOTHESES)
    names = {account.statistic.name for account in accounts} - {"outputs that came before"}
    assert {"linear", "table", "summaries"} <= names
    for name in names:
        one, other, moved = (get(each, name) for each in (accounts, counted, fitted))
        assert np.array_equal(one[0].statistic(rows), other[0].statistic(rows)), name
        assert not all(
            np.array_equal(a.stakes.log_first, b.stakes.log_first) for a, b in zip(one, other, strict=True)
        ), name
        if name in ("linear", "table", "summaries"):
            assert not np.array_equal(one[0].statistic(rows), moved[0].statistic(rows)), name
    assert {account.outputs for account in accounts} == {240}


@pytest.mark.parametrize(("rows", "is_all"), [(399, False), (400, True)])
def test_directions_are_counted_on_all_outputs(rows: int, is_all: bool) -> None:
    """From 100 outputs per entry on, directions and likelihoods use all outputs twice; tables never do."""
    first, second = draw_laplace(rows, 4, 1.0)
    accounts = learn_accounts(make_history(first, second), HYPOTHESES, law=LaplaceNoise(1.0), law_entries=4)
    part = 2 * (rows - int(0.4 * rows))
    for name in ("linear", "likelihood"):
        assert {account.outputs for account in get(accounts, name)} == {2 * rows if is_all else part}
    for name in ("table", "summaries"):
        assert {account.outputs for account in get(accounts, name)} == {part}


def test_nothing_is_promised_by_chance() -> None:
    """60 equal entries and 150 outputs: a direction that is counted where it was fitted promises much, ours little.

    In 2,000 other histories the growth is 11.7 and 0.41 on average, with standard deviations of 3.5 and 0.64. So the
    sums of ten are six and ten standard deviations from their limits: the false-alarm rate is below 1e-6.
    """
    cheating, ours = 0.0, 0.0
    for seed in range(10):
        first, second = draw_laplace(150, 60, 0.0, seed)
        linear = fit_linear(first, second)
        assert linear is not None
        cheating += max(a.stakes.growth[1] for a in open_accounts(linear, "", first, second, HYPOTHESES))
        accounts = learn_accounts(make_history(first, second), HYPOTHESES)
        ours += max(account.stakes.growth[1] for account in get(accounts, "linear"))
    assert cheating > 50
    assert ours < 25


def test_repeats_remember_all_outputs() -> None:
    """Outputs repeat from a bank of 40: chances come from the last part, and what is remembered from all of it."""
    rng = np.random.default_rng(0)
    bank = rng.standard_normal((2, 40, 2))
    first, second = bank[0][rng.integers(0, 40, 200)], bank[1][rng.integers(0, 40, 200)]
    first[-1] = [7.0, 7.0]  # seen at the very end
    accounts = get(learn_accounts(make_history(first, second), HYPOTHESES), "outputs that came before")
    assert {account.kind for account in accounts} == {"fresh noise"}
    probes = np.array([[7.0, 7.0, 0.0], [*second[0], 0.0], [8.0, 8.0, 0.0]])
    for account in accounts:
        assert account.statistic(probes).tolist() == [1, -1, 0]
    assert max(account.stakes.growth[0] for account in accounts) > 50


# ---- Which statistics there are.


def test_kinds_of_accounts() -> None:
    """Each kind of fault has its own accounts, one of each style for every statistic."""
    rng = np.random.default_rng(1)
    noise = rng.laplace(0, 1.0, (400, 1))
    rows = np.column_stack([noise, noise, rng.random((400, 2)), rng.integers(0, 2, 400)])
    rows[:200, 0] += 1.0
    rows[100:120] = rows[:20]  # what came before is looked for only where outputs recur
    history = OutputHistory(np.array([True, True, True, True, False]))
    history.add(rows, np.arange(400) < 200)
    accounts = learn_accounts(history, HYPOTHESES)
    kinds: dict[str, set[str]] = {}
    for account in accounts:
        kinds.setdefault(account.kind, set()).add(account.statistic.name)
    assert kinds.keys() == {
        "amount of noise", "low bits", "noise in every direction", "form of the output", "fresh noise"
    }  # fmt: skip
    assert kinds["form of the output"] == {"form"}
    assert {"linear", "table", "summaries"} <= kinds["amount of noise"]
    assert "noiseless" in kinds["noise in every direction"]
    for name in {account.statistic.name for account in accounts}:
        assert [account.style for account in get(accounts, name)] == list(STYLES)
    # Tokens are no numbers: only the form and what came before look at them.
    other = rows.copy()
    other[:, 4] = 1e6
    for account in accounts:
        if account.kind not in ("form of the output", "fresh noise"):
            assert np.array_equal(account.statistic(rows), account.statistic(other))


def test_trees_only_where_asked() -> None:
    """Trees are fitted where they are asked for, there are 400 outputs of each side to fit, and several entries."""
    for rows, entries, with_trees, is_there in (
        (1_000, 3, True, True),
        (1_000, 3, False, False),
        (990, 3, True, False),
        (1_000, 1, True, False),
    ):
        history = make_history(*draw_laplace(rows, entries, 1.0))
        found = get(learn_accounts(history, HYPOTHESES, with_trees=with_trees), "classifier")
        assert bool(found) is is_there
    history = make_history(*draw_laplace(1_000, 3, 1.0))
    one, other = (get(learn_accounts(history, HYPOTHESES, with_trees=True, seed=4), "classifier") for _ in range(2))
    probes = np.column_stack([np.random.default_rng(0).random((50, 3)), np.zeros(50)])
    assert np.array_equal(one[0].statistic(probes), other[0].statistic(probes))


def test_likelihood_needs_a_law() -> None:
    """The likelihood is used where the law is known, on the entries that carry it."""
    first, second = draw_laplace(300, 3, 1.0)
    history = make_history(first, second)
    assert not get(learn_accounts(history, HYPOTHESES), "likelihood")
    assert not get(learn_accounts(history, HYPOTHESES, law=LaplaceNoise(1.0), law_entries=0), "likelihood")
    found = get(learn_accounts(history, HYPOTHESES, law=LaplaceNoise(1.0), law_entries=1), "likelihood")
    assert len(found) == len(STYLES)
    probes = np.zeros((3, 4))
    probes[:, 0] = [-5.0, 0.5, 6.0]
    values = found[0].statistic(probes)
    assert values[0] == pytest.approx(-1, abs=0.3)  # the move over the scale
    assert values[2] == pytest.approx(1, abs=0.3)
    probes[:, 1:] = 99.0
    assert np.array_equal(found[0].statistic(probes), values)


def test_large_outputs_use_entries_that_move() -> None:
    """Of 600 entries the 256 that move most are used, and others change no statistic of values."""
    first, second = draw_laplace(200, 600, 0.0)
    first[:, 590] += 2.0
    first[:, 3] += 1.0
    history = make_history(first, second)
    accounts = learn_accounts(history, HYPOTHESES, law=GaussianNoise(1.4), law_entries=400)
    inner = [a.statistic for a in accounts if isinstance(a.statistic, OnColumns) and a.kind != "form of the output"]
    used = {tuple(statistic.columns.tolist()) for statistic in inner}
    assert len(used) == 1
    columns = list(used.pop())
    assert len(columns) == 256
    assert columns == sorted(columns)
    assert {3, 590} <= set(columns)
    rows = np.column_stack([np.concatenate([first, second]), np.zeros(400)])
    others = np.setdiff1d(np.arange(600), columns)
    changed = rows.copy()
    changed[:, others] = 5.0
    for statistic in inner:
        assert np.array_equal(statistic(rows), statistic(changed)), statistic.name
    # Moves are measured on the part that fits, so that what is counted is not chosen by itself.
    assert set(columns) == set(np.argsort(-measure_simply(first[:80], second[:80]), kind="stable")[:256].tolist())
    # The law belongs to the leading entries, wherever those are among the chosen ones.
    changed = rows.copy()
    changed[:, 400:600] = 0.0
    likelihood = get(accounts, "likelihood")[0].statistic
    assert np.array_equal(likelihood(rows), likelihood(changed))
    changed[:, 3] += 1.0
    assert not np.array_equal(likelihood(rows), likelihood(changed))
    # All entries of smaller outputs are used.
    small = learn_accounts(make_history(first[:, :256], second[:, :256]), HYPOTHESES)
    assert all(len(a.statistic.columns) == 256 for a in get(small, "linear"))


def measure_simply(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.abs(first.mean(axis=0) - second.mean(axis=0)) / np.sqrt((first.var(axis=0) + second.var(axis=0)) / 2)


def test_columns_of_a_statistic() -> None:
    """A statistic of some columns has the name of the inner one, and does not see others."""
    inner = fit_linear(np.array([[1.0], [1.1]]), np.array([[0.0], [0.1]]))
    assert inner is not None
    statistic = OnColumns(inner, np.array([2]))
    assert statistic.name == "linear"
    rows = np.arange(9.0).reshape(3, 3)
    assert np.array_equal(statistic(rows), inner(rows[:, 2:]))
