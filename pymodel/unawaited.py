"""A forgotten ``await``: the call makes a coroutine, nobody runs it, and the program goes on without it.

Python only warns of that, on stderr or in a log that nobody reads, and only once per line. Here it fails the
run at once and names the line. `Core.run_ready` holds a `Watch` open while programs run.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CoroutineType, TracebackType
from typing import Any, Final, TypeAlias

_Coroutine: TypeAlias = "CoroutineType[Any, Any, Any]"
_HOOK: Final = "_warn_unawaited_coroutine"
"""What the interpreter calls in the module ``warnings`` for a coroutine that dies before its first step. No
public hook gives the coroutine without changing the program's own warning filters."""


class UnawaitedError(RuntimeError):
    """A coroutine that a program made and never awaited; the text names the call and its line."""


def is_unstarted(value: object) -> bool:
    """True for a coroutine that nobody has awaited so far."""
    return inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED


def text_of(coroutine: _Coroutine) -> str:
    """The call in words, with the line of the program where it was written as far as that is known."""
    origin = coroutine.cr_origin
    place = f"line {origin[0][1]} of {Path(origin[0][0]).name}: " if origin else ""
    return f"{place}the call of {coroutine.__qualname__} was never awaited, so it did nothing"


def kept_by(error: BaseException) -> Iterator[str]:
    """Coroutines that never ran among the variables of the functions which ``error`` went through.

    They may be the reason for the error: a comparison with a coroutine, say. They are closed, as nobody can
    await them any more.
    """
    trace = error.__traceback__
    while trace is not None:
        for value in list(trace.tb_frame.f_locals.values()):
            if is_unstarted(value) and value.cr_origin:
                yield text_of(value)
                value.close()
        trace = trace.tb_next


class Watch:
    """Context in which coroutines that die unawaited are noted in ``found``, with what ``where()`` says.

    It may be entered again and again, and nested in another one's.
    """

    __slots__ = ("_depth", "_hook", "_where", "found")

    def __init__(self, where: Callable[[], str]) -> None:
        self.found: list[str] = []
        self._where, self._depth, self._hook = where, 0, None

    def __enter__(self) -> Watch:
        self._depth, self._hook = sys.get_coroutine_origin_tracking_depth(), getattr(warnings, _HOOK)
        # one frame: the line that made the call
        sys.set_coroutine_origin_tracking_depth(max(1, self._depth))
        setattr(warnings, _HOOK, self.note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        setattr(warnings, _HOOK, self._hook)
        sys.set_coroutine_origin_tracking_depth(self._depth)

    def note(self, coroutine: _Coroutine) -> None:
        """The coroutine is none that will run any more."""
        self.found.append(f"{text_of(coroutine)} ({self._where()})")

    def check(self) -> None:
        """Raise `UnawaitedError` for the first one found."""
        if self.found:
            raise UnawaitedError(self.found[0])
