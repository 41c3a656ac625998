"""Tracebacks of user code, without the frames of millwheel.

Lives here: which frames are shown.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Final

OURS: Final = frozenset({"millwheel", "millwheel_storage", "millwheel_injectors", "importlib", "_frozen_importlib"})
"""Packages whose frames say nothing to a user."""


def shortened(error: BaseException) -> str:
    """The traceback of `error` and its causes without our frames; whole where it has no others."""
    shown = traceback.TracebackException.from_exception(error)
    _shorten(shown, error)
    text = "".join(shown.format())
    return text.encode("utf-8", "backslashreplace").decode()  # what a message quotes may hold a lone surrogate


def place(error: BaseException) -> str:
    """File and line where user code raised `error`, or let it through: "orders.py:12"; empty when it was not there."""
    frames = [frame for frame in traceback.walk_tb(error.__traceback__) if not is_ours(frame[0].f_globals)]
    return f"{frames[-1][0].f_code.co_filename}:{frames[-1][1]}" if frames else ""


def ending(error: BaseException) -> str:
    """What user code has raised, on one line; of `sys.exit` also where it was called."""
    if not isinstance(error, SystemExit):
        return f"{type(error).__name__}: {error}"
    where = place(error)
    return f"it calls sys.exit({error.code!r})" + (f" at {where}" if where else "")


def _shorten(shown: traceback.TracebackException, error: BaseException) -> None:
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    kept = [line for line, frame in zip(shown.stack, frames, strict=False) if not is_ours(frame.f_globals)]
    if kept or isinstance(error, SyntaxError):
        shown.stack[:] = kept
    if shown.__cause__ is not None and error.__cause__ is not None:
        _shorten(shown.__cause__, error.__cause__)
    if shown.__context__ is not None and error.__context__ is not None:
        _shorten(shown.__context__, error.__context__)


def is_ours(names: Mapping[str, object]) -> bool:
    """Whether a frame with these globals is millwheel's, or Python's import."""
    return str(names.get("__name__", "")).partition(".")[0] in OURS
