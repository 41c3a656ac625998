"""The command `millwheel`, also as `python -m millwheel`.

Lives here: the entry only.  The rest is imported inside of it, which takes most of a second on a cold disk: Ctrl-C,
SIGTERM and SIGHUP in that time end the command in order, too.
"""

from __future__ import annotations

import sys
from types import FrameType


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

    from millwheel.terminal import let_go_of_closed_terminal

    def hang_up(number: int, frame: FrameType | None) -> None:
        let_go_of_closed_terminal()
        raise KeyboardInterrupt

    for number, handler in ((signal.SIGTERM, signal.default_int_handler), (signal.SIGHUP, hang_up)):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
