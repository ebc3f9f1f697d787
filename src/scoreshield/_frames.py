"""Clear the frames of an exception, because their variables hold clean scores and error trackers collect them.

A Python exception keeps every frame that it passed through, and a frame keeps its variables: embeddings, clean scores,
a release that no ledger has charged. Each public function that reads private data is wrapped by
:func:`clear_frames_on_error`. The exception that leaves it is the same object with the same message and the same lines
of code, and the frames inside the library are empty.
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


def clear_frames_on_error(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that no exception which leaves it, not even an interrupt, keeps its variables.

    It holds for every exception of the chain (causes, contexts, the members of a group). A constructor that fails
    also leaves an empty object behind. The caller's own frames are the caller's and stay as they are. Python offers no
    way to guard the very instant of the call: an interrupt there, before anything is computed, keeps the arguments, as
    the caller's frame does.

    Args:
        function: A function, a method or a coroutine function.

    Returns:
        The same function, with its name, signature and docstring.
    """
    constructs = function.__name__ == "__init__"

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            built = vars(args[0]) if constructs else {}
            del args, kwargs
            try:
                clear_frames(error)
                built.clear()
            finally:  # once more, in case an interrupt came during the first time
                clear_frames(error)
                built.clear()
            raise

    @functools.wraps(function)
    async def guarded_coroutine(*args: P.args, **kwargs: P.kwargs) -> Any:
        try:
            return await cast(Any, function)(*args, **kwargs)
        except BaseException as error:
            del args, kwargs
            try:
                clear_frames(error)
            finally:
                clear_frames(error)
            raise

    return cast("Callable[P, R]", guarded_coroutine) if inspect.iscoroutinefunction(function) else guarded


def clear_frames(error: BaseException) -> None:
    """Clear the variables of every finished frame that an exception, its causes and its contexts passed through."""
    for one in _chain(error):
        traceback.clear_frames(one.__traceback__)
        if isinstance(one, AttributeError):
            one.obj = None  # the object that lacks the attribute, which may be an array


def _chain(error: BaseException) -> Iterator[BaseException]:
    found: dict[int, BaseException] = {}
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in found:
            continue
        found[id(one)] = one
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
    return iter(found.values())
