"""What becomes of a call that is made outside the hook that it belongs to.

Lives here: the error, and what stands in for a key, or for the frame of a context, when no hook runs.  Never here: finding
out that a call is late (`frame` for cells, the executor for contexts).
"""

from __future__ import annotations

import inspect
from typing import Any, NoReturn

from millwheel.errors import LateCall


def late_call(computation: str) -> LateCall:
    """The error for whoever has called a method of a context or a cell, which is found on the stack."""
    frame, called = inspect.currentframe(), "a context or a cell"
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("millwheel.api."):
        whose = frame.f_locals.get("self")
        cell = None if isinstance(whose, Gone | NoKey) else getattr(whose, "_cell", None)
        called = f"{'context' if cell is None else f'cell {cell!r}'}.{frame.f_code.co_name}"
        frame = frame.f_back
    return LateCall(
        f"computation {computation!r}: {called} is called outside its hook, later or in another thread, and would count for "
        "another key.  Call it in the hook, on the hook's own thread, and do not keep `context`.  For what comes later, set "
        "a timer or send a record"
    )


class NoKey:
    """The key between two invocations: looking for its state raises."""

    __slots__ = ("_computation",)

    def __init__(self, computation: str) -> None:
        self._computation = computation

    def __hash__(self) -> int:
        raise late_call(self._computation)


class Gone:
    """In the place of the frame of a context that was kept: every use raises."""

    __slots__ = ("_computation",)

    def __init__(self, computation: str) -> None:
        object.__setattr__(self, "_computation", computation)

    def __getattr__(self, name: str) -> NoReturn:
        raise late_call(self._computation)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise late_call(self._computation)
