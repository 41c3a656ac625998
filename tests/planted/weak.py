"""Bugs of weak productions: a sender hears that its record is done, and its productions are nowhere but in memory."""

from __future__ import annotations

from millwheel.core.durability.inflight import Inflight, Uncommitted
from millwheel.core.interval import events as ev
from millwheel.core.interval.machine import IntervalCore
from millwheel.host.actors import Actor
from millwheel.host.messages import Hello
from millwheel.host.worker import WorkerHost
from millwheel.ids import IntervalId
from tests.planted import Patches, clustered, mutant


@mutant
def acked_before_downstream() -> Patches:
    """A weak interval without deduplication acks its inputs when its productions are sent."""
    original = Inflight.put

    def put(self: Inflight, entry: Uncommitted, effects: list[ev.Effect], now: int) -> None:
        original(self, entry, effects, now)
        if self._weak and not entry.image.ids:
            effects += [ev.Ack(sender, number) for sender, number in entry.acks]
            entry.acks = []

    return {(Inflight, "put"): put}


@clustered
def not_sent_again_elsewhere() -> Patches:
    """A weak interval sends nothing again to a receiver that another worker has by now."""
    greeted, handle = WorkerHost._greeted, WorkerHost.handle_core
    moved: dict[int, IntervalId] = {}

    def hears(self: WorkerHost, peer: str, hello: Hello) -> None:
        known = self.links.receivers._hellos.get(hello.interval)
        if known is not None and known[0] != peer:
            moved[id(self)] = hello.interval
        greeted(self, peer, hello)
        moved.pop(id(self), None)

    def handle_core(self: WorkerHost, actor: Actor, event: ev.Event) -> None:
        weak = isinstance(actor.core, IntervalCore) and actor.core.config.settings.productions == "weak"
        if not (weak and isinstance(event, ev.Resend) and moved.get(id(self)) == event.target):
            handle(self, actor, event)

    return {(WorkerHost, "_greeted"): hears, (WorkerHost, "handle_core"): handle_core}
