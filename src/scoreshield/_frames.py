"""Clear the frames of an exception, because their variables hold clean scores and error trackers collect them.

A Python exception keeps every frame that it passed through, and a frame keeps its variables: embeddings, clean scores,
a release that no ledger has charged. `clear_frames_on_error` wraps each public function that makes a release, or reads
a store for one. It does not wrap functions that analyse clean scores for the curator (decisions, plans). The exception
stays the same object with the same message and the same lines of code. Only the frames inside the library are empty.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


def clear_frames_on_error(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that no exception which leaves it, not even an interrupt, keeps its variables.

    This holds for every exception of the chain (causes, contexts, the members of a group). A constructor that fails
    also leaves an empty object behind. The caller's own frames are not cleared. Python cannot protect the very start of
    the call: an interrupt there, before anything is computed, keeps the arguments, as the caller's frame does.

    Args:
        function: A function, a method or a coroutine function.

    Returns:
        The same function, with its name, signature and docstring.
    """
    constructs = function.__name__ == "__init__"

    @functools.wraps(function)
    def call_and_clear(*args: P.args, **kwargs: P.kwargs) -> R:
        callers = None
        try:
            callers = sys.exception()
            return _call(function, args, kwargs)
        except BaseException as error:
            built = vars(args[0]) if constructs else {}
            del args, kwargs
            try:
                clear_frames(error, callers)
                built.clear()
            finally:  # once more, in case an interrupt came during the first time
                clear_frames(error, callers)
                built.clear()
            raise

    @functools.wraps(function)
    async def await_and_clear(*args: P.args, **kwargs: P.kwargs) -> Any:
        callers = None
        try:
            callers = sys.exception()
            return await _call_coroutine(function, args, kwargs)
        except BaseException as error:
            del args, kwargs
            try:
                clear_frames(error, callers)
            finally:
                clear_frames(error, callers)
            raise

    return cast("Callable[P, R]", await_and_clear) if inspect.iscoroutinefunction(function) else call_and_clear


def _call(function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
    """Call the function one frame deeper than needed: if the stack is full there, the caller can still clear frames."""
    return function(*args, **kwargs)


async def _call_coroutine(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return await function(*args, **kwargs)


def clear_frames(error: BaseException, callers: BaseException | None = None) -> None:
    """Clear the variables of every finished frame that an exception, its causes and its contexts passed through.

    This function calls no other Python function, because a RecursionError may leave room for only one frame.

    Args:
        error: The exception.
        callers: The exception that the caller was handling before the call, if any. It is not changed, and neither are
            its causes.
    """
    found: dict[int, BaseException] = {}
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in found or (one is callers and one is not error):
            continue
        found[id(one)] = one
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
        if isinstance(one, AttributeError):
            one.obj = None  # the object that lacks the attribute, which may be an array
        elif isinstance(one, UnicodeDecodeError):
            one.object, one.args = b"", (one.encoding, b"", one.start, one.end, one.reason)
        elif isinstance(one, UnicodeEncodeError | UnicodeTranslateError):
            one.object, one.args = "", (*one.args[:-4], "", *one.args[-3:])  # a text that could not be encoded
        step = one.__traceback__
        while step is not None:
            try:  # noqa: SIM105 (contextlib.suppress is a Python function)
                step.tb_frame.clear()
            except RuntimeError:
                pass  # still running: the caller's
            step = step.tb_next
