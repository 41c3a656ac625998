"""A terminal that was closed: what is written to it fails, and nobody reads it.

Lives here: letting go of it.  Imported by the command before anything else, so it imports little.
"""

from __future__ import annotations

import os
import stat


def let_go_of_closed_terminal() -> bool:
    """Point what led to a terminal that is gone to /dev/null, so that the command ends in order and with its own status.

    Returns true if anything did.
    """
    nowhere, found = os.open(os.devnull, os.O_RDWR), False
    for number in (0, 1, 2):
        try:
            if stat.S_ISCHR(os.fstat(number).st_mode) and not os.isatty(number):
                found = os.dup2(nowhere, number) == number
        except OSError:  # it was closed when we were started
            continue
    os.close(nowhere)
    return found
