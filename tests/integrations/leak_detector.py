"""Finds clean scores and entries of clean vectors in whatever a caller, a handler, a log or an error can see."""

from __future__ import annotations

import math
import numbers
import re
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

#: A number with six decimals or more that is not the seconds of a time.
_NUMBER = re.compile(r"(?<!\d\d:\d\d:)(?<!\d)\d*\.\d{6,}(?:e-?\d+)?")
_HERE = str(Path(__file__).parent)


class LeakDetector:
    """Knows the clean scores of one query and the clean vectors, in all forms that frameworks give them.

    Args:
        rows: The clean vectors.
        query: The query.
        tolerance: How near a number is to a clean one that it is taken for. Cosines in single precision are within
            6e-7. Numbers that are released without a seed need a smaller one, so that none is taken by chance.
        skips: Types that are not looked into.
    """

    def __init__(
        self, rows: np.ndarray, query: np.ndarray, *, tolerance: float = 6e-7, skips: tuple[type, ...] = ()
    ) -> None:
        lengths = np.linalg.norm(rows, axis=1)
        cosines = rows @ query / lengths / np.linalg.norm(query)
        scores = [cosines, (1 + cosines) / 2, 1 - cosines, 2 - 2 * cosines]
        forms = np.concatenate([*scores, rows.ravel(), (rows / lengths[:, None]).ravel()])
        self._secrets = np.sort(np.abs(np.concatenate([forms, forms.astype(np.float32).astype(np.float64)])))
        self._tolerance = tolerance
        self._skips = (type, types.ModuleType, *skips)

    def find(self, *things: Any, depth: int = 16) -> list[str]:
        """Find clean numbers in these, through their items, texts and public attributes."""
        return list(self._walk(things, depth, set(), looks_inside=True))

    def find_in_error(self, error: BaseException | None) -> list[str]:
        """Find clean numbers in the texts of an error and its causes, and in the frames outside of the tests.

        A function of a test that stands for a user's source of documents is called ``source_...``.
        """
        found: list[str] = []
        while error is not None:
            found += self.find(str(error), repr(error.args))
            step = error.__traceback__
            while step is not None:
                code = step.tb_frame.f_code
                if not code.co_filename.startswith(_HERE) or code.co_name.startswith("source_"):
                    values = list(step.tb_frame.f_locals.values())
                    found += self._walk(values, 16, set(), looks_inside=False)
                step = step.tb_next
            found += self.find_in_error(error.__cause__)
            error = error.__context__
        return found

    def _is_secret(self, number: float, tolerance: float) -> bool:
        """Round numbers do not count: clean scores of some tests are such."""
        place = int(np.searchsorted(self._secrets, abs(number)))
        distance = np.abs(self._secrets[max(0, place - 1) : place + 1] - abs(number)).min()
        return bool(distance <= tolerance and abs(number * 1000 - round(number * 1000)) > 1e-6)

    def _is_printed_secret(self, number: str) -> bool:
        digits = len(number.partition("e")[0].partition(".")[2])
        return self._is_secret(float(number), max(self._tolerance, min(6e-7, 0.5 * 10.0**-digits + 1e-12)))

    def _walk(self, thing: Any, depth: int, seen: set[int], *, looks_inside: bool) -> Iterator[str]:
        if isinstance(thing, str | bytes):
            text = thing if isinstance(thing, str) else thing.decode("latin-1")
            yield from filter(self._is_printed_secret, _NUMBER.findall(text))
        elif isinstance(thing, numbers.Real):
            is_whole = isinstance(thing, numbers.Integral)
            if not is_whole and math.isfinite(thing) and self._is_secret(float(thing), self._tolerance):
                yield str(thing)
        elif depth and id(thing) not in seen and not isinstance(thing, self._skips):
            seen.add(id(thing))
            for part in _list_parts(thing, looks_inside=looks_inside):
                yield from self._walk(part, depth - 1, seen, looks_inside=looks_inside)


def _list_parts(thing: Any, *, looks_inside: bool) -> Iterator[Any]:
    if isinstance(thing, np.ndarray):
        yield from thing.ravel().tolist()
    elif isinstance(thing, Mapping):
        yield from list(thing.keys())
        yield from list(thing.values())
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from list(thing)
    elif not looks_inside:  # an object in a frame: what an error tracker shows of it
        yield _show(thing)
        yield vars(thing).get("embedding") if hasattr(thing, "__dict__") else None
    elif not callable(thing) or hasattr(thing, "invoke"):
        for name in dir(thing):
            if not name.startswith("_") and not name.startswith("model_"):
                try:
                    value = getattr(thing, name)
                except Exception:  # a property that does not apply
                    continue
                if not callable(value) or hasattr(value, "invoke"):
                    yield value


def _show(thing: Any) -> str:
    try:
        return repr(thing)
    except Exception as error:  # of an object whose constructor failed
        return repr(error)


def catch(work: Callable[[], Any]) -> BaseException:
    """Return the exception that the work raises."""
    try:
        work()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")
