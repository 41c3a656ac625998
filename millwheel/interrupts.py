"""Whether a signal has told this command to end before it had a run that could be stopped.

Lives here: the note of it.  Imported by the command before anything else, so it imports nothing.  The exception that a signal
raises may be lost: in a callback, where Python ignores it, or in a library that catches everything.  The note is not.
"""

from __future__ import annotations

_came: list[int] = []


def note(number: int) -> None:
    """This signal came; called by its handler."""
    _came.append(number)


def told() -> bool:
    """Whoever begins to heed signals asks this: one has come before."""
    return bool(_came)
