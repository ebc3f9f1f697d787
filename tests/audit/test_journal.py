"""The folder of an audit: no release is drawn twice, none is lost by a kill, and strangers' files are left alone."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import IntEnum, StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import scoreshield as ss
from scoreshield import _loading
from scoreshield.audit import journal, output_lines
from scoreshield.audit.encoding import Failure, OutputReader, prepare_output, take_apart, to_numbers
from scoreshield.audit.targets import Endpoint, TargetError
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
        np.array([1.0, np.nan, np.inf, -0.0]),
        np.full(200, np.nan),
        np.empty((0, 3)),
        [0.1, 1 / 3, -2.5],
        (1, 2, 3),
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
        assert type(back) is type(output)
        assert np.shape(back) == np.shape(output)
        assert np.array_equal(back, output, equal_nan=True)


# ---- Outputs of any kind read after a replay as they read before.

Point = namedtuple("Point", "x y")


class Level(IntEnum):
    HIGH = 3


class Color(StrEnum):
    RED, BLUE = "red 1", "blue"


class Opaque:
    __slots__ = ()

    def __repr__(self) -> str:
        return "Opaque(2.5)"


class Slots:
    __slots__ = ("score",)

    def __init__(self, score: float) -> None:
        self.score = score


class Tensor:
    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        return np.array([[1.5, np.nan]])


@dataclass(frozen=True)
class Hit:
    id: Any
    score: Any


def nest(value: Any, times: int) -> Any:
    """Put a value into lists within lists."""
    for _ in range(times):
        value = [value]
    return value


def restore(output: Any) -> Any:
    """Write an output as a line and read it back."""
    encoded = output_lines.encode_output(output, 4)
    assert encoded is not None
    return output_lines.decode_output(_loading.parse_json(json.dumps(encoded, allow_nan=False)))


def check_reads_alike(output: Any) -> None:
    """Compare everything that an audit reads of an output with what it reads of the restored one.

    Numbers are compared by their representation, since NaN must stay NaN.
    """
    restored = restore(output)
    for one, other in ((output, restored), ([output, output], [restored, output])):  # sessions put outputs into a list
        for records in (1, 4):
            assert repr(take_apart(other, records)) == repr(take_apart(one, records))
        assert repr(to_numbers(other)) == repr(to_numbers(one))
    reader = OutputReader([output, "something else", None], 4)
    assert np.array_equal(reader.read([output]), reader.read([restored]), equal_nan=True)
    reader = OutputReader([output, output], 4)
    assert np.array_equal(reader.read([output]), reader.read([restored]), equal_nan=True)


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**20, max_value=10**400)
    | st.integers(min_value=0, max_value=3)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["id", "index", "2.5 of 3", "nan", "1e999", "\ud800", b"bytes", 1 + 2j, Decimal("2.5"), Opaque()])
    | st.sampled_from([date(2026, 1, 2), Failure("ValueError", "row 3 is 0.5"), Tensor(), range(3)])
    | arrays.from_dtype(np.dtype(np.float32))
    | arrays.from_dtype(np.dtype(np.int8))
    | arrays.from_dtype(np.dtype(np.bool_))
)
_KEYS = st.text(max_size=4) | st.integers(-2, 9) | st.booleans() | st.none() | st.tuples(st.integers(0, 3))
_ARRAYS = st.one_of(
    arrays.arrays(np.float64, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9)),
    arrays.arrays(np.float32, st.integers(0, 90)),
    arrays.arrays(np.uint8, (3, 3)),
    arrays.arrays(np.bool_, 4),
    arrays.arrays(np.dtype("U3"), arrays.array_shapes(min_dims=0, max_dims=2, max_side=3)),
    arrays.arrays(object, 3, elements=_SCALARS),
    arrays.arrays(np.complex128, 2),
)
_FLOATS = st.lists(st.floats(), min_size=60, max_size=70)
_OUTPUTS = st.recursive(
    _SCALARS | _ARRAYS | _FLOATS | _FLOATS.map(tuple),
    lambda values: st.one_of(
        st.lists(values, max_size=4),
        st.lists(values, max_size=4).map(tuple),
        st.dictionaries(_KEYS, values, max_size=4),
        st.sets(_KEYS | st.floats(allow_nan=False), max_size=4),
        st.lists(st.tuples(_KEYS, values), max_size=3),
        st.builds(Hit, values, values),
        st.builds(Point, values, values),
        st.lists(st.builds(lambda id_, score: {"id": id_, "score": score}, _KEYS, values), max_size=3),
    ),
    max_leaves=12,
)


@given(_OUTPUTS)
def test_restored_outputs_read_alike(output: Any) -> None:
    """Whatever a release returns, an audit reads the same numbers, forms, ids and orders after a replay."""
    check_reads_alike(output)


def test_restored_enumerations_read_alike() -> None:
    """Members of enumerations that are numbers or texts read as these."""
    for output in (Level.HIGH, Color.RED, [Level.HIGH, 0], [Color.RED, Color.BLUE], {Color.RED: Level.HIGH}):
        check_reads_alike(output)


NESTED = (
    1.5, np.nan, "a 1.5", (1, 2.5), {"a": 1.5}, {1, 2}, [1, "a"], [1.5, 2.5], Hit(1, [2]), Hit(Hit(1, 2), {"x": [3]}),
    Point(1, 2), Counter("aab"), {"id": 2, "score": 1.5}, np.array([1.0, np.inf]), np.array([1.5], np.float32),
    np.array(["a"]), np.array([Hit(1, 2)], dtype=object), Opaque(), Tensor(),
)  # fmt: skip


@pytest.mark.parametrize("times", range(9))
@pytest.mark.parametrize("value", NESTED, ids=lambda value: type(value).__name__)
def test_nested_outputs_read_alike(value: Any, times: int) -> None:
    """The same holds at every depth, also where an audit reads a nested output as a text."""
    check_reads_alike(nest(value, times))


def test_other_kinds_read_alike() -> None:
    """Objects, exceptions, large outputs and objects that cannot be read are restored as they were read."""
    frames, tensors = pytest.importorskip("pandas"), pytest.importorskip("torch")
    cycle: list[Any] = [1.5]
    cycle.append(cycle)
    outputs: list[Any] = [
        Failure("E", "x", {"record": 3, "cause": Failure("F", "y")}), ValueError("a 1.5", 2), Slots(0.5), b"a\xff",
        np.ma.array([1.0, 2.0], mask=[True, False]), np.array([(1, "a")], dtype=[("x", int), ("y", "U1")]),
        frames.DataFrame({"a": [1.5], "b": ["x"]}), frames.Series([1.5, 2.5]), tensors.ones(2, 2), cycle, {(1, 2): 3},
        np.float64(-0.0), np.array([[1.0, -0.0], [0.0, 1.0]] * 40), np.diag(np.full(70, -0.0)), print, {}.keys(),
    ]  # fmt: skip
    for output in outputs:
        check_reads_alike(output)
    restored = restore(number for number in (1.5, 2.5))
    assert take_apart(restored, 4) == take_apart((number for number in (1.5, 2.5)), 4)


@pytest.mark.parametrize(
    "output",
    [
        range(10**6), "ab " * 10**5, np.arange(10**5), [0.5] * 10**5, list("ab") * 10**4, bytes(10**5), {*range(10**4)},
        {number: "x" for number in range(10**4)}, np.array(["a"] * 10**4), np.ones(10**4) * 1j, {"a": "x" * 10**6},
    ],
    ids=lambda output: type(output).__name__,
)  # fmt: skip
def test_large_outputs_read_alike(output: Any) -> None:
    """Of large outputs a part is kept, which is the same as read of the output at once, and its line is short."""
    restored = restore(output)
    assert repr(take_apart(restored, 4)) == repr(take_apart(output, 4))
    assert len(json.dumps(output_lines.encode_output(output, 4))) < 10**6
    read = [prepare_output(one, 4) for one in (output, restored)]
    for examples in (read, [*read, None]):
        rows = OutputReader(examples, 4).read(read)
        assert np.array_equal(rows[0], rows[1], equal_nan=True)


def test_large_releases_are_kept_whole() -> None:
    """The numbers of a ScoreShield release are all read, before and after a replay."""
    numbers = np.random.default_rng(0).normal(size=70_000)
    restored = output_lines.decode_output({"numbers": output_lines._encode_array(numbers)})
    for output in (numbers, prepare_output(restored, 4)):
        reader = OutputReader([numbers, output], 4)
        assert reader.is_plain
        assert np.array_equal(reader.read([output])[0], [*numbers, 0.0])


def test_signs_of_zeros_are_restored() -> None:
    """The halves of a matrix can differ in the signs of zeros alone."""
    matrix = np.zeros((9, 9))
    matrix[0, 1] = -0.0
    assert np.array_equal(np.signbit(restore(matrix)), np.signbit(matrix))


@pytest.mark.parametrize(
    ("line", "output"),
    [
        ({"group": ["set", "{1}", [1]]}, {1}),
        ({"mapping": ["OrderedDict", "x", [["a", 1.5]]]}, {"a": 1.5}),
        ({"sequence": ["Point", "x", True, [1, 2.5]]}, Point(1, 2.5)),
        ({"vector": ["range", "range(0, 3)", [0, 1, 2]]}, None),
        ({"fields": ["Hit", "x", {"id": 1, "score": [0.5]}]}, Hit(1, [0.5])),
        ({"text": ["Decimal", "Decimal('2.5')"]}, Decimal("2.5")),
        ({"text": ["bytes", "b'a5'"]}, b"a5"),
        ({"text": ["date", "datetime.date(2026, 1, 2)"]}, date(2026, 1, 2)),
        ({"text": ["complex", "(1+2j)"]}, 1 + 2j),
        ({"dict": [[{"key": ["tuple", "(1,)", "(1,)"]}, 2]]}, {(1,): 2}),
        ({"elements": ["ndarray", "x", [1, 2], ["a", None]]}, np.array([["a", None]], dtype=object)),
        ({"failure": ["ValueError", "row 3"]}, Failure("ValueError", "row 3")),
    ],
    ids=str,
)
def test_lines_of_earlier_versions(line: dict[str, Any], output: Any) -> None:
    """Kinds of lines that are written no more are read as the outputs that they were written for."""
    restored = output_lines.decode_output(line)
    assert to_numbers(restored) is None or to_numbers(restored).size
    if output is not None:
        assert repr(take_apart(restored, 4)) == repr(take_apart(output, 4))
        assert repr(to_numbers(restored)) == repr(to_numbers(output))


def test_session_of_replays(tmp_path: Path) -> None:
    """Objects of unknown classes read alike before and after a replay, also at the end of the depth of reading."""
    made = nest(Hit(Hit(1, Hit(2, [3])), {"a": Opaque()}), 3)
    read = []
    for outputs in ([made], []):
        with journal.open_journal(tmp_path / "a", ASKED, lambda: 1) as (kept, _):
            read.append(take_apart([kept.record(Target(*outputs))(ONE)] * 2, 4))
    assert repr(read[0]) == repr(read[1])


@pytest.mark.parametrize("error", [ValueError("row 3\nis \x1b[2J"), SystemExit(1), KeyboardInterrupt(), MemoryError()])
def test_exceptions_are_outputs(tmp_path: Path, error: BaseException) -> None:
    """An exception is an output, and is replayed."""
    calls = []

    def fail(_: np.ndarray) -> None:
        calls.append(1)
        raise error

    for _ in range(2):
        with journal.open_journal(tmp_path / "a", ASKED, lambda: 1) as (kept, _), ThreadPoolExecutor(1) as pool:
            found = pool.submit(kept.record(fail), ONE).result()  # in a thread, where no user's interrupt can come
        message = "row 3" if isinstance(error, ValueError) else str(error) or type(error).__name__
        assert found == Failure(type(error).__name__, message)
    assert len(calls) == 1


def test_errors_that_end_the_audit(tmp_path: Path) -> None:
    """A target that cannot be reached, and a user's interrupt, are no outputs."""
    for error in (TargetError("the endpoint is gone"), KeyboardInterrupt()):

        def fail(_: np.ndarray, error: BaseException = error) -> None:
            raise error

        with journal.open_journal(tmp_path / "a", ASKED, lambda: 1) as (kept, _):
            with pytest.raises(type(error)):
                kept.record(fail)(ONE)
            assert kept.releases_added == 0


def test_full_disk_ends_the_audit(tmp_path: Path) -> None:
    """A release that cannot be written down is no output: the error passes an audit as that of a target does."""
    if not Path("/dev/full").exists():
        pytest.skip("needs a full device")
    with journal.open_journal(tmp_path / "a", ASKED, lambda: 1) as (kept, _):
        release = kept.record(Target(np.arange(10_000.0)))
        kept._file.close()
        kept._file = Path("/dev/full").open("ab", buffering=0)  # noqa: SIM115
        with pytest.raises(TargetError, match=r"Cannot write .*releases\.jsonl: No space left on device") as caught:
            release(ONE)
        assert isinstance(caught.value, FileError)


def test_output_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An output that could not be read back is returned and not written."""
    monkeypatch.setattr(output_lines, "LARGEST", 800)
    large = np.arange(101.0)
    with journal.open_journal(tmp_path / "a", ASKED, lambda: 1) as (kept, _):
        release = kept.record(Target(large, [1.5, large.tolist()], np.arange(100.0)))
        assert release(ONE) is large
        assert release(ONE)[1] == large.tolist()
        assert kept.releases_added == 0
        release(ONE)
        assert kept.releases_added == 1
        monkeypatch.setattr(journal, "_LONGEST", 1000)
        assert kept.record(Target("x" * 1000))(ONE) == "x" * 1000
        assert kept.releases_added == 1
    with journal.open_journal(tmp_path / "a", ASKED, lambda: 1) as (kept, _):
        assert kept.releases_before == 1


def test_other_query(tmp_path: Path) -> None:
    """Outputs of another query are kept apart, and a release without a query has no such method."""
    calls = []

    def ask(embeddings: np.ndarray, query: np.ndarray) -> list[float]:
        calls.append(query)
        return [float(len(calls)), *(embeddings @ query).tolist()]

    seen = []
    for _ in range(2):
        with journal.open_journal(tmp_path / "a", ASKED, lambda: 1) as (kept, _):
            first = kept.record(partial(ask, query=np.eye(4)[0]))
            second = first.with_query(np.eye(4)[1])
            third = second.with_query(np.eye(4)[2])
            seen.append([release(ONE) for release in (second, first, third, second)])
    assert seen[0] == seen[1] == [[1, 0, 1, 0], [2, 1, 0, 0], [3, 0, 0, 1], [4, 0, 1, 0]]
    assert len(calls) == 4
    with journal.open_journal(tmp_path / "b", ASKED, lambda: 1) as (kept, _):
        assert not hasattr(kept.record(Target()), "with_query")


def test_resumed_endpoint_has_answered(tmp_path: Path) -> None:
    """An endpoint that answered in an earlier run may reject a collection in this one."""
    for is_resumed in (False, True):
        with journal.open_journal(tmp_path / "a", ASKED, lambda: 1) as (kept, _):
            endpoint = Endpoint("http://127.0.0.1:9/")
            kept.record(endpoint)
            assert endpoint.has_answered is is_resumed
            kept.record(Target())(ONE)


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


def test_settings_of_earlier_versions(tmp_path: Path) -> None:
    """A folder of an earlier version is resumed where its settings say the same in other words."""
    now = {"target": "a:b", "confidence": 0.95, "rows": "any"}
    earlier = {"target": "a:b", "confidence": 0.95, "statistic": "auto"}
    with journal.open_journal(tmp_path / "a", earlier, lambda: 5) as (kept, _):
        kept.record(Target())(ONE)
    with journal.open_journal(tmp_path / "a", now, lambda: 9) as (kept, releases):
        assert (kept.releases_before, releases) == (1, 5)
    with journal.open_journal(tmp_path / "a", {"target": "a:b", "confidence": 0.95}, int) as (kept, _):  # of files
        assert kept.releases_before == 1
    for changed, name in (
        (now | {"rows": "unit"}, "rows"),
        (now | {"confidence": 0.99}, "confidence"),
        (now | {"plain": True}, "plain"),
        ({"target": "a:b", "rows": "any"}, "confidence"),
    ):
        with (
            pytest.raises(InvalidInput, match=rf"other settings \({name}\)"),
            journal.open_journal(tmp_path / "a", changed, lambda: 9),
        ):
            pass
    with journal.open_journal(tmp_path / "b", earlier | {"statistic": "lowbits"}, lambda: 5) as (kept, _):
        kept.record(Target())(ONE)
    with (
        pytest.raises(InvalidInput, match=r"other settings \(statistic\)"),
        journal.open_journal(tmp_path / "b", now, lambda: 9),
    ):
        pass


@pytest.mark.parametrize(
    ("output", "early"),
    [
        (1.5, {"array": 1.5}),
        (3, {"array": 3}),
        (True, {"array": True}),
        (np.float32(0.5), {"array": 0.5}),
        ([0.5, 1.5], {"numbers": [0.5, 1.5]}),
        ((1, 2), {"numbers": [1.0, 2.0]}),
        ([[1, 2], [3, 4]], {"numbers": [1.0, 2.0, 3.0, 4.0]}),
        (np.array([1, 2], np.uint8), {"array": [1, 2]}),
        (np.array([[0.5, 1.5]], np.float32), {"array": [[0.5, 1.5]]}),
        ({1, 2}, {"set": [1, 2]}),
    ],
    ids=str,
)
def test_new_outputs_read_like_early_ones(tmp_path: Path, output: Any, early: dict[str, Any]) -> None:
    """In a folder that an early version began, which saved all numbers as arrays, no output shows which version it is.

    Otherwise the form of an output would tell the collections apart as soon as one of them has no early output left.
    """
    settings = {"target": "a:b", "statistic": "auto"}
    with journal.open_journal(tmp_path / "a", settings, lambda: 5) as (kept, _):
        kept.record(Target(1.0))(ONE)
    lines = [{"on": journal._digest_rows(ONE, None)} | early] * 2
    (tmp_path / "a" / journal.RELEASES).write_text("".join(json.dumps(line) + "\n" for line in lines))
    with journal.open_journal(tmp_path / "a", {"target": "a:b", "rows": "any"}, lambda: 5) as (kept, _):
        release = kept.record(Target(*[output] * 9))
        release(ONE)  # the numbers of an early version are used after a fresh output
        replayed, new = release(ONE), release(ONE)
    with journal.open_journal(tmp_path / "a", {"target": "a:b", "rows": "any"}, lambda: 5) as (kept, _):
        release = kept.record(Target())
        again = [release(ONE) for _ in range(3)][-1]
    for other in (new, again):
        assert repr(take_apart(other, 4)) == repr(take_apart(replayed, 4))
        for reader in (OutputReader([replayed], 4), OutputReader([replayed, None], 4)):
            assert np.array_equal(reader.read([replayed]), reader.read([other]), equal_nan=True)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (journal.RELEASES, b"not json\n", "is damaged: a line holds no release"),
        (journal.RELEASES, b'{"on": "x"}\n', "is damaged: a line holds no release"),
        (journal.RELEASES, b'{"on": "x", "array": ["a"]}\n', "is damaged: a line holds no release"),
        (journal.RELEASES, b'{"on": "x", "array": [NaN]}\n', "is damaged: a line holds no release"),
        (journal.RELEASES, b'{"on": "x", "numbers": [1, Infinity]}\n', "is damaged: a line holds no release"),
        (journal.RELEASES, b'{"on": "x", "array": []}\n', "is damaged: a line holds no release"),
        (journal.RELEASES, b'{"on": "x", "array": [1], "set": [1]}\n', "is damaged: a line holds no release"),
        (journal.RELEASES, b'{"array": [1]}\n', "is damaged: a line holds no release"),
        (journal.RELEASES, b"[1]\n", "is damaged: a line holds no release"),
        (journal.RELEASES, b'{"on": "x", "lists": [1]}\n', "is damaged: a line holds no release"),
        (journal.RELEASES, b'{"on": "x", "set": [[1]]}\n', "is damaged: a line holds no release"),
        (journal.RELEASES, b'{"on": "x", "dict": [[1]]}\n', "is damaged: a line holds no release"),
        (journal.RELEASES, b'{"on": "x", "float": "7"}\n', "is damaged: a line holds no release"),
        (journal.RELEASES, b'{"on": "x", "int": "x"}\n', "is damaged: a line holds no release"),
        (journal.RELEASES, b'{"on": "x", "scalar": ["<U9", "x"]}\n', "is damaged: a line holds no release"),
        (journal.RELEASES, b'{"on": "x", "scalar": ["|u1", 1.5e300]}\n', "is damaged: a line holds no release"),
        (journal.RELEASES, b'{"on": "x", "elements": ["a", "x", [3], [1]]}\n', "is damaged: a line holds no release"),
        (journal.RELEASES, b'{"on": "x", "fields": ["\\u0000", "x", {}]}\n', "is damaged: a line holds no release"),
        (journal.RELEASES, b'{"on": "x", "fields": ["Hit", "x", []]}\n', "is damaged: a line holds no release"),
        (journal.RELEASES, b'{"on": "x", "sequence": [3, "x", true, []]}\n', "is damaged: a line holds no release"),
        (journal.RELEASES, b'{"on": "x", "failure": ["ValueError"]}\n', "is damaged: a line holds no release"),
        (journal.RELEASES, b'{"on": "x", "value": ' + b"[" * 700 + b"]" * 700 + b"}\n", "is damaged: a line holds"),
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
    with (
        pytest.raises(InvalidInput, match="later"),
        journal.open_journal(folder, ASKED, lambda: 8, again=True) as (kept, _),
    ):
        _fail_once_and_refuse(kept)
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


def _fail_once_and_refuse(kept: journal.Journal) -> None:
    assert isinstance(kept.record(lambda _: 1 / 0)(ONE), Failure)
    raise InvalidInput("later")


def test_a_full_file_takes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fast releases would fill a disk in minutes; what is not written is drawn again when the audit is resumed."""
    monkeypatch.setattr(journal, "MOST_BYTES", 300)
    with journal.open_journal(tmp_path, ASKED, lambda: 1) as (kept, _):
        release = kept.record(Target())
        for _ in range(100):
            release(ONE)
        assert 1 < kept.releases_added < 100
        full = kept.record(Target(nest(Hit(1, Opaque()), 2)))(ONE)
        assert type(full[0][0]) is not Hit  # read as if it had been written, like those before
        kept.note_repeated(3)
    assert (tmp_path / journal.RELEASES).stat().st_size < 500
    with journal.open_journal(tmp_path, ASKED, lambda: 1) as (again, _):
        assert again.releases_before == kept.releases_added
        assert again.requests_repeated == 3
