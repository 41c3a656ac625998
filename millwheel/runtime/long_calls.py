"""User code that does not return: nothing else runs in its process meanwhile, so a run that says nothing would look dead.

Lives here: noticing it, and saying so, from a thread of its own.  Never here: ending it, which a signal does.
"""

from __future__ import annotations

import logging
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from millwheel import limits
from millwheel.errors import HookInterrupted
from millwheel.traces import is_ours

logger = logging.getLogger("millwheel")

_LIBRARY = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))


class LongCalls:
    """Says which call of user code has run for `LONG_CALL_S`, and where it is; again after twice the time, and so on.

    `described` names a call.  It is asked in another thread while the call runs.
    """

    def __init__(self, described: Callable[[Any], str], after_s: float = limits.LONG_CALL_S) -> None:
        self.now: Any = None
        """The call that runs, or None; each call is an object of its own."""
        self._described = described
        self._after_s = after_s
        self._caller = 0
        self._over = threading.Event()
        self._watcher: threading.Thread | None = None

    def begin(self) -> None:
        """Watch the calls of this thread."""
        self._caller = threading.get_ident()
        self._over.clear()
        self._watcher = threading.Thread(target=self._watch, name="millwheel-long-calls", daemon=True)
        self._watcher.start()

    def during(self, call: object, do: Callable[[], None]) -> None:
        """`call` runs while this does `do`.  It is only interrupted after a stop, when nobody waits for what it answers."""
        self.now = call
        try:
            do()
        except HookInterrupted:
            pass
        finally:
            self.now = None

    def end(self) -> None:
        """Watch no more."""
        self._over.set()
        if self._watcher is not None:
            self._watcher.join()

    def _watch(self) -> None:
        seen, began, due_s = None, 0.0, self._after_s
        while not self._over.wait(self._after_s / 10):
            now = self.now
            if now is None or now is not seen:
                seen, began, due_s = now, time.monotonic(), self._after_s
                continue
            lasted_s = time.monotonic() - began
            if lasted_s >= due_s:
                try:
                    what = self._described(now)
                except Exception:  # the call has just ended, and with it what it is named by
                    continue
                due_s *= 2
                where = _place(sys._current_frames().get(self._caller))  # noqa: SLF001  (there is no other way)
                logger.warning(
                    "%s has run for %.0f s%s: nothing else runs in this process until it returns",
                    what, lasted_s, f", and is at {where}" if where else "",
                )  # fmt: skip


def _place(frame: FrameType | None) -> str:
    """File and line of the innermost frame that the user wrote; of a library, if there is no such frame."""
    library = ""
    while frame is not None:
        if not is_ours(frame.f_globals):
            found = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            if not frame.f_code.co_filename.startswith(("<", *_LIBRARY)):
                return found
            library = library or found
        frame = frame.f_back
    return library
