"""The command `millwheel`, also as `python -m millwheel`.

Lives here: the entry only.  The rest is imported inside of it, which takes most of a second on a cold disk: Ctrl-C in
that time ends the command in order, too.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Entry point; returns the exit status."""
    try:
        from millwheel.cli.main import main as command

        return command()
    except KeyboardInterrupt:
        print("millwheel: stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
