"""What has happened and is not handled yet, and what will ring by the clock.

Lives here: the order of events.  Never here: what they mean.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque

from millwheel.core import events as ev
from millwheel.runtime.actor import Actor
from millwheel.work import Work


class Mailbox:
    """Events of all actors, in the order in which they are handled."""

    def __init__(self) -> None:
        self.events: deque[tuple[Actor, ev.Event | Work]] = deque()
        """The loop's own code appends to it; what runs beside the loop must `post`."""
        self.wake = asyncio.Event()
        """Set to end the loop's sleep."""
        self._alarms: list[tuple[int, int, Actor]] = []
        self._alarm_count = 0

    def post(self, actor: Actor, event: ev.Event) -> None:
        """Append an event, and wake the loop."""
        self.events.append((actor, event))
        self.wake.set()

    def set_alarm(self, at: int, actor: Actor) -> None:
        """Ring at wall time `at`, us."""
        self._alarm_count += 1
        heapq.heappush(self._alarms, (at, self._alarm_count, actor))

    def next_alarm(self) -> int | None:
        """Wall time of the next one, us."""
        return self._alarms[0][0] if self._alarms else None

    def ring(self, now: int) -> None:
        """Every alarm that is due is an event."""
        while self._alarms and self._alarms[0][0] <= now:
            _, _, actor = heapq.heappop(self._alarms)
            self.events.append((actor, ev.AlarmRang()))
