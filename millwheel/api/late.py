"""What becomes of a call that is made outside the hook that it belongs to.

Lives here: the error, and what stands in for a key when no hook runs.  Never here: finding out that a call is late (`frame`
for cells, the executor for contexts).
"""

from __future__ import annotations

import inspect
from typing import Self

from millwheel.errors import LateCall


def late_call(computation: str, called: str = "") -> LateCall:
    """The error for whoever has `called` a method of a context or a cell.  Without a name it is found on the stack, where
    what is compiled does not stand."""
    frame = None if called else inspect.currentframe()
    called = called or "a cell"
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("millwheel.api."):
        whose = frame.f_locals.get("self")
        if (cell := getattr(whose, "_cell", None)) is not None:
            called = f"cell {cell!r}.{frame.f_code.co_name}"
        frame = frame.f_back
    return LateCall(
        f"computation {computation!r}: {called} is called outside its hook, later or in another thread, and would count for "
        "another key.  Call it in the hook, on the hook's own thread, and do not keep `context`.  For what comes later, set "
        "a timer or send a record"
    )


class NoKey(str):
    """The key between two invocations: looking for its state raises."""

    __slots__ = ("_computation",)

    _computation: str

    def __new__(cls, computation: str) -> Self:
        """The key of no hook of `computation`."""
        key = super().__new__(cls, "")
        key._computation = computation
        return key

    def __hash__(self) -> int:
        raise late_call(self._computation)
