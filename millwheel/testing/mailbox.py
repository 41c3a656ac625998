"""Events on their way to the cores of a simulated process: when each arrives, and in which order.

Lives here: deliveries, late second copies, alarms.  Never here: what events mean.  Invariant: events of one channel
arrive in the order in which they were posted.
"""

from __future__ import annotations

import copy
import heapq
from typing import TYPE_CHECKING

from millwheel.core import events as ev
from millwheel.testing.actor import Actor
from millwheel.work import Work

if TYPE_CHECKING:
    from millwheel.testing.process import Process


class Mailbox:
    """Events of all actors of a process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._channels: dict[tuple[object, ...], int] = {}
        """When the last event of each channel arrives, us."""
        self._alarms: list[tuple[int, int, Actor]] = []
        self._alarm_count = 0
        self.queued = 0
        """Events that were posted and are not handled yet."""

    def post(self, actor: Actor, event: ev.Event | Work, step: str, channel: tuple[object, ...] = ()) -> None:
        """Deliver an event later; events of one channel arrive in order."""
        kernel = self._process.world.kernel
        due = kernel.now + self._process.world.nemesis.delay_us(step)
        if channel:
            due = self._channels[channel] = max(due, self._channels.get(channel, 0))
        self.queued += 1
        self._process.later(due - kernel.now, self._deliver, actor, event)

    def _deliver(self, actor: Actor, event: ev.Event | Work) -> None:
        self.queued -= 1
        self._process.handle(actor, event)

    def again(self, effect: ev.Effect) -> None:
        """The second copy of what was sent comes some time later, and not in order."""
        process, kernel = self._process, self._process.world.kernel
        match effect:
            case ev.Send(bundle):
                kernel.probes["bundle delivered twice"] += 1
                event: ev.Event = ev.BundleArrived(copy.copy(bundle))
                actor = process.actors[bundle.target]
            case ev.Ack(sender, number):
                kernel.probes["ack delivered twice"] += 1
                event, actor = ev.AckArrived(number), process.actors[sender]
            case _:
                return
        # Never before the original: only copies that come late are possible on a channel in order.
        channel = (
            self._channels.get(("send", effect.bundle.sender, actor.interval), 0) if type(effect) is ev.Send else 0
        )
        # A third of them so late that the ids of the original may have been sealed, or collected.
        late_us = process.world.nemesis.delay_us("again") * kernel.rng.choice((4, 4, 60))
        process.later(max(0, channel - kernel.now) + late_us, process.handle, actor, event)

    def set_alarm(self, at: int, actor: Actor) -> None:
        """Ring when the wall clock of the process is at `at`, us."""
        self._alarm_count += 1
        heapq.heappush(self._alarms, (at, self._alarm_count, actor))
        self._process.later(max(0, at - self._process.clock()), self.ring)

    def ring(self) -> None:
        """Every alarm that is due is handled now."""
        process, now = self._process, self._process.clock()
        while self._alarms and self._alarms[0][0] <= now:
            _, _, actor = heapq.heappop(self._alarms)
            process.handle(actor, ev.AlarmRang())
        if self._alarms and self._alarms[0][0] - now > 0 and process.offset_us:
            self._ring_again(self._alarms[0][0] - now)

    def _ring_again(self, delay_us: int) -> None:
        """After a step of the clock the alarm's virtual time is another one."""
        due = self._process.world.kernel.now + delay_us
        if self._channels.get(("ring",), 0) != due:
            self._channels[("ring",)] = due
            self._process.later(delay_us, self.ring)
