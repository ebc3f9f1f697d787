"""Audits of releases that leak everything in outputs of an unusual kind, and of the same outputs without a leak.

Every case makes an output from a secret (whether the first record is on the side of the query) and a generator. The
audit must break the claim where the secret is passed on, and must not where a fair coin replaces it. A coin is exactly
0-private, so a broken claim would be a false alarm; at the confidence used here its rate is below one in a million.
"""

from __future__ import annotations

import enum
import json
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from scoreshield.audit import Claim, audit
from scoreshield.audit.encoding import OutputReader
from scoreshield.audit.neighbours import worst_pairs
from scoreshield.audit.outputs import Source

Q = np.eye(4)[0]
PAIR = worst_pairs(3, 4, "scores", Q)[0]
Rng = np.random.Generator
Maker = Callable[[bool, Rng], Any]
Point = namedtuple("Point", "x y")
WORDS = [f"word{letter}{other}" for letter in "abcdefghij" for other in "abcdefghij"]


class Color(enum.Enum):
    RED, BLUE = object(), object()


@dataclass(slots=True)
class SlotHit:
    score: float
    rank: Any

    def __repr__(self) -> str:
        return "SlotHit"


class RecordError(Exception):
    def __init__(self, message: str, record: Any) -> None:
        super().__init__(message)
        self.record = record


def write_text(rng: Rng, *words: str, most: int = 30) -> str:
    """Put words at random places of a random text."""
    text = [*rng.choice(WORDS, rng.integers(10, most)), *words]
    return " ".join(rng.permutation(text).tolist())


def make_entries(secret: bool, rng: Rng, entries: int, place: int) -> list[float]:
    values = rng.normal(size=entries)
    values[place] += 8.0 if secret else -8.0
    return values.tolist()


def fail(error: BaseException) -> Any:
    raise error


def make_structured(secret: bool, rng: Rng) -> np.ndarray:
    return np.array([(rng.normal(), "x" if secret else "y")], dtype=[("score", float), ("label", "U1")])


def make_frame(library: str) -> Maker:
    def make(secret: bool, rng: Rng) -> Any:
        frames = pytest.importorskip(library)
        return frames.DataFrame({"score": rng.normal(size=3), "label": ["a", "b", "c" if secret else "d"]})

    return make


def make_tensor(secret: bool, rng: Rng) -> Any:
    torch = pytest.importorskip("torch")
    return {"scores": torch.tensor(make_entries(secret, rng, 5, 3)), "model": f"m{rng.random()}"}


LEAKS: dict[str, Maker] = {
    # ---- Texts.
    "a word anywhere in a random text": lambda s, rng: write_text(rng, "yes" if s else "no"),
    "a word that is there or not": lambda s, rng: write_text(rng, *["secret"] * s),
    "how often a word is there": lambda s, rng: write_text(rng, "echo", *["echo"] * s),
    "a pair of key and value": lambda s, rng: write_text(rng, f"a={s}", f"b={not s}"),
    "a number after a word": lambda s, rng: write_text(
        rng, *(f"x{rng.normal():.3f}" for _ in range(rng.integers(9))), f"score:{rng.normal() + 8 * s:.3f}"
    ),
    "JSON in a text": lambda s, rng: json.dumps(
        {"noise": rng.normal(size=rng.integers(1, 9)).tolist(), "more": {"score": rng.normal() + 8 * s}}
    ),
    "one letter of a random text": lambda s, rng: "".join(rng.choice(list("abcdef"), 7)) + "uv"[s] + "x" * 3,
    "a line of a list of random texts": lambda s, rng: [write_text(rng), write_text(rng, "uv"[s]), write_text(rng)],
    # ---- Objects.
    "generator": lambda s, rng: (value for value in make_entries(s, rng, 6, 4)),
    "iterator of texts": lambda s, rng: iter([write_text(rng), "uv"[s]]),
    "slots": lambda s, rng: SlotHit(rng.normal(), int(s)),
    "attributes": lambda s, rng: SimpleNamespace(text=write_text(rng), score=rng.normal() + 8 * s),
    "named tuple": lambda s, rng: Point(write_text(rng), s),
    "pandas": make_frame("pandas"),
    "polars": make_frame("polars"),
    "tensor": make_tensor,
    "set": lambda s, rng: {*rng.choice(1000, 5).tolist(), 5000 + s},
    "set of numbers": lambda s, rng: {rng.normal(), 10.0 * s + rng.normal()},
    "nested dicts": lambda s, rng: {
        "a": {f"k{number}": rng.normal() for number in range(rng.integers(1, 9))},
        "b": {"k0": rng.normal() + 8 * s},
    },
    "bytes": lambda s, rng: rng.bytes(6) + (b"u" if s else b"v"),
    "datetime": lambda s, rng: [
        datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=300 * s, seconds=int(rng.integers(9999)))
    ],
    "decimal": lambda s, rng: Decimal(str(round(rng.normal() + 8 * s, 6))),
    "fraction": lambda s, rng: Fraction(int(rng.integers(99)) + 1000 * s, 7),
    "complex": lambda s, rng: complex(rng.normal(), rng.normal() + 8 * s),
    "array of complex numbers": lambda s, rng: rng.normal(size=3) + 1j * (rng.normal(size=3) + 8 * s),
    "enumeration": lambda s, rng: [rng.normal(), Color.RED if s else Color.BLUE],
    "structured array": make_structured,
    "masked array": lambda s, rng: np.ma.array(rng.normal(size=3), mask=[False, s, not s]),
    "iterable without a length": lambda s, rng: {"a": rng.normal(), "b": 1, "c": s}.values(),
    # ---- Signs, types and exceptions.
    "sign of zero": lambda s, rng: np.array([rng.normal(), 0.0 if s else -0.0]),
    "sign of zero beside other zeros": lambda s, rng: np.array([*np.rint(rng.normal(size=9)), 0.0 if s else -0.0]),
    "sign of zero in a dict": lambda s, rng: {"a": 0.0 if s else -0.0, "b": write_text(rng)},
    "int or float": lambda s, _: 1 if s else 1.0,
    "int or float in a list": lambda s, rng: [rng.normal(), 1 if s else 1.0],
    "int or float after random texts": lambda s, rng: [write_text(rng), 1 if s else 1.0],
    "bool or int": lambda s, rng: {"a": True if s else 1, "b": rng.normal()},
    "dtype": lambda s, rng: np.array([1.0, float(rng.integers(9))], dtype=np.float32 if s else np.float64),
    "NaN or a number": lambda s, rng: np.array([rng.normal(), np.nan if s else rng.normal()]),
    "raised attribute": lambda s, rng: fail(RecordError("failed", int(s))) if rng.random() < 0.9 else 0.5,
    "raised message": lambda s, rng: fail(ValueError(write_text(rng, "uv"[s]))) if rng.random() < 0.9 else 0.5,
    "second line of a message": lambda s, rng: fail(ValueError(f"no\n{s}")) if rng.random() < 0.9 else 0.5,
    "returned exception": lambda s, rng: ValueError(write_text(rng, "uv"[s])),
    "returned attribute": lambda s, rng: RecordError(write_text(rng), int(s)),
    # ---- Many records.
    "a late entry of a dict": lambda s, rng: dict(zip(WORDS, make_entries(s, rng, 100, 97), strict=True)),
    "a late entry of shuffled pairs": lambda s, rng: [
        [(name, value) for name, value in zip(WORDS, make_entries(s, rng, 100, 97), strict=True)][place]
        for place in rng.permutation(100)
    ],
    "a late entry of a list with texts": lambda s, rng: [write_text(rng), *make_entries(s, rng, 900, 850)],
    "a late word of a list": lambda s, rng: [*rng.choice(WORDS, 200).tolist(), "uv"[s], "x"],
}


def make_release(make: Maker, *, leaks: bool) -> Callable[[np.ndarray, Rng], Any]:
    def release(rows: np.ndarray, rng: Rng) -> Any:
        return make(bool(rows[0] @ Q > 0 if leaks else rng.random() < 0.5), rng)

    return release


def run(release: Callable[..., Any], releases: int = 400) -> Any:
    return audit(release, Claim(1.0), neighbours=PAIR, releases=releases, confidence=1 - 1e-6, seed=3)


@pytest.mark.filterwarnings("ignore:Degrees of freedom")
@pytest.mark.parametrize("name", LEAKS)
def test_leaks_are_found(name: str) -> None:
    assert run(make_release(LEAKS[name], leaks=True)).broken


@pytest.mark.parametrize("name", LEAKS)
def test_coins_are_no_leaks(name: str) -> None:
    assert not run(make_release(LEAKS[name], leaks=False), 200).broken


# ---- Outputs of megabytes.

LARGE = 10**6
NOISE = np.random.default_rng(0).normal(size=LARGE)
LONG_LIST: list[float] = NOISE.tolist()
LONG_TEXT = " ".join(np.random.default_rng(0).choice(WORDS, LARGE).tolist())


def change_list(secret: bool, rng: Rng, shift: float) -> list[float]:
    values = LONG_LIST.copy()
    values[int(rng.integers(LARGE))] += shift * secret + rng.normal()
    return values


LARGE_LEAKS: dict[str, Maker] = {
    "sum of a list": lambda s, rng: change_list(s, rng, 1e4),
    "length of a list": lambda s, rng: change_list(False, rng, 0.0)[s:],
    "sum of an array": lambda s, rng: NOISE + rng.normal() + 10 * s,
    "largest of an array": lambda s, rng: np.minimum(NOISE + rng.normal(), 2 + s),
    "length of a text": lambda s, rng: LONG_TEXT[int(rng.integers(1000)) + 5000 * s :],
    "end of a text": lambda s, rng: LONG_TEXT[int(rng.integers(1000)) :] + " uv"[1 + s],
    "middle of a text": lambda s, _: f"{LONG_TEXT[:LARGE]} {s} {LONG_TEXT[LARGE:]}",
    "bytes": lambda s, rng: bytes(LARGE + s) + rng.bytes(3),
    "texts": lambda s, _: [*WORDS * 300, "uv"[s]],
}


@pytest.mark.parametrize("name", LARGE_LEAKS)
def test_large_outputs(name: str) -> None:
    """A leak in the whole of a large output is found, and the output has few columns and costs little time."""
    rng = np.random.default_rng(5)
    make = make_release(LARGE_LEAKS[name], leaks=True)
    source = Source(lambda rows: make(rows, rng), seed=None, timeout=None)
    outputs = source.draw(PAIR.first, 2) + source.draw(PAIR.second, 2)
    reader = OutputReader(outputs, 3)
    assert len(reader.is_number) < 8_000
    made = [make(rows, rng) for rows in (PAIR.first, PAIR.second) * 3]
    sources = Source(lambda _: made.pop(), seed=None, timeout=None)
    start = time.process_time()
    reader.read(sources.draw(PAIR.first, 6))
    assert (time.process_time() - start) / 6 < 0.25  # about ten times what it takes here
    assert run(make, 100).broken


# ---- Objects that cannot be read.


class FailingIteration:
    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError


class FailingText:
    __slots__ = ()

    def __repr__(self) -> str:
        raise RuntimeError

    __str__ = __repr__


class FailingComparison:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    def __hash__(self) -> int:
        raise RuntimeError

    def __len__(self) -> int:
        raise RuntimeError

    def __bool__(self) -> bool:
        raise RuntimeError


class FailingAttributes:
    def __getattribute__(self, name: str) -> Any:
        raise SystemExit(3)


class FailingArray:
    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise RuntimeError


class FailingSlot:
    __slots__ = ("missing",)


def make_cycle() -> list[Any]:
    cycle: list[Any] = [1.0]
    cycle.append({"again": cycle, "twice": [cycle, cycle]})
    return cycle


def make_web() -> list[Any]:
    """Make lists within lists that name 2^40 numbers."""
    web: list[Any] = [0.5, "x"]
    for _ in range(40):
        web = [web, web]
    return web


def iterate_forever() -> Iterator[int]:
    while True:
        yield 1


def fail_late() -> Iterator[int]:
    yield 1
    raise RuntimeError


def make_deep() -> list[Any]:
    deep: list[Any] = []
    for _ in range(2_000):
        deep = [deep]
    return deep


UNREADABLE: list[Callable[[], Any]] = [
    FailingIteration, FailingText, FailingComparison, FailingAttributes, FailingArray, FailingSlot, make_cycle,
    make_web, iterate_forever, fail_late, make_deep,
]  # fmt: skip


@pytest.mark.parametrize("make", UNREADABLE, ids=lambda make: make.__name__)
def test_unreadable_outputs(make: Callable[[], Any]) -> None:
    """They have a form like all others: an audit reads on, and finds out where only one side has them."""
    wraps = [lambda value: value, lambda value: [value, 0.5], lambda value: {"a": value}]
    for wrap in wraps[: 1 if make is make_web else 3]:
        assert run(lambda rows, wrap=wrap: wrap(make()) if rows[0] @ Q > 0 else wrap("other"), 100).broken
    assert not run(lambda _: make(), 100).broken
