"""The command `millwheel`, also as `python -m millwheel`.

Lives here: the entry only.  The rest is imported inside of it, which takes most of a second on a cold disk: Ctrl-C,
SIGTERM and SIGHUP in that time end the command in order, too.
"""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any


def main() -> int:
    """Entry point; returns the exit status."""
    try:
        _interrupt_on_signals()
        from millwheel.cli.main import main as command

        return command()
    except KeyboardInterrupt:
        print("millwheel: stopped", file=sys.stderr)
        return 130


def _interrupt_on_signals() -> None:
    """SIGTERM and a closed terminal are Ctrl-C to the command, unless whoever started it has them ignored."""
    import signal

    from millwheel import interrupts
    from millwheel.terminal import let_go_of_closed_terminal

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupts.note(number)
        if number == signal.SIGHUP:
            let_go_of_closed_terminal()
        raise KeyboardInterrupt(number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, interrupt)
    _lose_no_interrupt(signal.SIGINT)


def _lose_no_interrupt(ordinary: int) -> None:
    """Send a signal again when the exception that it raised was lost.

    Python ignores what is raised in the callback of a weak reference and in `__del__`.  Each import calls some, so a command
    that was told to stop while it started went on.
    """
    import threading  # not when it is needed: an import may be what runs then

    from millwheel.limits import SIGNAL_AGAIN_S

    before = sys.unraisablehook

    def heed(lost: Any) -> None:
        if type(lost.exc_value) is not KeyboardInterrupt:  # a hook is interrupted by a class of its own, and again
            before(lost)
            return
        (number,) = lost.exc_value.args or (ordinary,)
        later = threading.Timer(SIGNAL_AGAIN_S, os.kill, (os.getpid(), number))
        later.daemon = True
        later.start()

    sys.unraisablehook = heed


if __name__ == "__main__":
    sys.exit(main())
