"""Who is missing in a cluster: a process that waits for another one says so, for it would look dead otherwise.

Lives here: when it is said, and what.  Never here: who is there, which the map says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millwheel import limits

NO_LEADER: Final = (
    "no controller leads this pipeline: workers are given nothing, and watermarks stand still, until one is started "
    "(millwheel controller)"
)
NO_WORKER: Final = "no worker is there: nothing of this pipeline runs until one is started (millwheel worker)"


class Missing:
    """Says `text` when somebody has been missing for `MISSING_US`, again after twice the time, and so on."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._since: int | None = None
        self._wait_us = limits.MISSING_US

    def look(self, missing: bool, now: int, say: Callable[[str], None]) -> None:
        """As of wall time `now`, us."""
        if not missing or self._since is None or now < self._since:
            self._since, self._wait_us = now if missing else None, limits.MISSING_US
        elif now - self._since >= self._wait_us:
            self._wait_us *= 2
            say(self._text)
