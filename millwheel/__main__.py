"""The command `millwheel`, also as `python -m millwheel`.

Lives here: the entry only.  The rest is imported inside of it, which takes most of a second on a cold disk: Ctrl-C and
SIGTERM in that time end the command in order, too.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Entry point; returns the exit status."""
    try:
        _interrupt_on_sigterm()
        from millwheel.cli.main import main as command

        return command()
    except KeyboardInterrupt:
        print("millwheel: stopped", file=sys.stderr)
        return 130


def _interrupt_on_sigterm() -> None:
    """SIGTERM is Ctrl-C to the command, unless whoever started it has it ignored."""
    import signal

    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)


if __name__ == "__main__":
    sys.exit(main())
