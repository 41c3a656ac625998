"""Requests to redrive: which of them are read next, and which intervals hear of them.

Lives here: which page of requests is read next.  Never here: I/O; what becomes of a request (`core.faults.quarantine`).
Invariant: every request that is still there is told again and again, a bounded number at a time, because the owner that was
told of it may have died.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millwheel import limits
from millwheel.host.routes import Routes
from millwheel.ids import IntervalId

_FIRST: Final = ("", "")


class Redrives:
    """Requests in pages, in order of (computation, key), round and round."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self.start = _FIRST
        """From where on to read `limits.REDRIVE_REQUESTS` of them."""

    def read(self, found: Sequence[tuple[str, str]]) -> dict[IntervalId, list[str]]:
        """Take a page of requests.  Returns the keys by interval, and moves `start` on, or back to the beginning."""
        computation, key = found[-1] if len(found) >= limits.REDRIVE_REQUESTS else _FIRST
        self.start = (computation, key + "\0") if computation else _FIRST  # the least key that comes after it
        return self._routes.owners(found)

    @property
    def more(self) -> bool:
        """Whether the last page was not the last of its round."""
        return self.start != _FIRST
