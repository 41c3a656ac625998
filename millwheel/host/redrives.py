"""Requests to redrive: which of them are read next, and which intervals hear of them.

Lives here: which page of requests is read next, and when.  Never here: what becomes of a request (`core.faults.quarantine`).
Invariant: every request that is still there is told again and again, a bounded number at a time, because the owner that was
told of it may have died.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from millwheel import limits
from millwheel.core.interval import events as ev
from millwheel.host.actors import Actor, Actors
from millwheel.host.alphabet import Pause
from millwheel.host.procedures import Steps
from millwheel.host.requests import ListRedrives
from millwheel.host.routes import Routes
from millwheel.ids import IntervalId

_FIRST: Final = ("", "")


class Redrives:
    """Requests in pages, in order of (computation, key), round and round; `tell` gives one of `actors` an event."""

    def __init__(self, routes: Routes, actors: Actors, tell: Callable[[Actor, ev.Event], None]) -> None:
        self._routes = routes
        self._actors = actors
        self._tell = tell
        self.start = _FIRST
        """From where on to read `limits.REDRIVE_REQUESTS` of them."""
        self.read_all = False
        """All requests that were there at the start are known.  A run does not end before that."""

    def steps(self) -> Steps:
        """Tell intervals of redrives that somebody has asked for, round and round."""
        while True:
            found = yield ListRedrives(self.start, limits.REDRIVE_REQUESTS)
            for interval, keys in self.read(found).items():
                if interval in self._actors.all:  # else another worker has it
                    self._tell(self._actors.all[interval], ev.RedriveAsked(keys))
            self.read_all = self.read_all or not self.more
            if self.read_all:
                yield Pause(limits.REDRIVE_DELAY_US)

    def read(self, found: Sequence[tuple[str, str]]) -> dict[IntervalId, list[str]]:
        """Take a page of requests.  Returns the keys by interval, and moves `start` on, or back to the beginning."""
        computation, key = found[-1] if len(found) >= limits.REDRIVE_REQUESTS else _FIRST
        self.start = (computation, key + "\0") if computation else _FIRST  # the least key that comes after it
        return self._routes.owners(found)

    @property
    def more(self) -> bool:
        """Whether the last page was not the last of its round."""
        return self.start != _FIRST
