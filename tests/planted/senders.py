"""Bugs of a sender: what is numbered, kept, sent and sent again."""

from __future__ import annotations

from typing import Any

import msgspec

from millwheel.core.channel.outbox import Outbox
from millwheel.core.durability.inflight import Inflight
from millwheel.core.interval import events as ev
from millwheel.core.interval.machine import IntervalCore
from millwheel.core.source.injector import InjectorCore
from millwheel.host.routes import Routes
from millwheel.ids import ProducerId, SubscriptionId
from millwheel.model import MAX_TIME
from millwheel_storage.memory import MemoryStore
from tests.planted import Patches, mutant, only
from tests.planted.durability import newest


@mutant
def frontier_from_acks() -> Patches:
    """Frontier advertised from acks that are not durable."""

    def frontier(self: Outbox, subscription: SubscriptionId, producer: ProducerId) -> int:
        live = [
            b.sequences[0] for b in self.unacked.values() if (b.subscription, b.producer) == (subscription, producer)
        ]
        top = self._next_sequence.get(subscription, 0) + 1 if producer == self._producer else MAX_TIME
        return min(live, default=top)

    return {(Outbox, "frontier"): frontier}


@mutant
def strong_send_early() -> Patches:
    """Strong productions sent before their checkpoint is durable."""
    original = IntervalCore._invoked

    def invoked(self: IntervalCore, outcome: Any, now: int, effects: list[ev.Effect]) -> None:
        original(self, outcome, now, effects)
        entry = newest(self)
        effects += [ev.Send(self._outbox.sendable(bundle)) for bundle in entry.sends]
        entry.sends = []

    return {(IntervalCore, "_invoked"): invoked}


@mutant
def no_productions() -> Patches:
    """Checkpoint with an input's id but without its unacked productions."""
    original = Inflight._still_unacked
    return {(Inflight, "_still_unacked"): lambda self, entry: original(self, entry)[:0]}


@mutant
def reused_ids() -> Patches:
    """Sequencer, and with it record ids, used again after a restart."""

    def next_sequencer(self: MemoryStore) -> int:
        self._sequencer += 1
        return 1 + self._sequencer % 40

    return {(MemoryStore, "next_sequencer"): next_sequencer}


@mutant
def forgets_to_resend() -> Patches:
    """Unacked productions are not sent again after a restart."""
    original = IntervalCore.start

    def start(self: IntervalCore, now: int, live: Any = None, *told: int) -> list[ev.Effect]:
        assert self._recovered is not None
        self._recovered = msgspec.structs.replace(self._recovered, productions=[])
        return original(self, now, live, *told)

    return {(IntervalCore, "start"): start}


@mutant
def sent_before_durable_again() -> Patches:
    """What is sent again to an interval that restarts includes what is not durable yet."""
    original = Outbox.resend
    return {(Outbox, "resend"): lambda self, target, kept_back: original(self, target, ())}


@mutant
def injector_position_ahead() -> Patches:
    """An injector's position counts rows that are read, not rows that are acked."""

    def pop(self: InjectorCore) -> None:
        if self._reads:
            self._acked_position = (self._reads[-1].next_position, self._reads[-1].state)
        while self._reads and not self._reads[0].waiting:
            self._reads.popleft()

    return {(InjectorCore, "_pop_acked"): pop}


@only("tests/unit/host/test_worker.py")
def ended_still_expected() -> Patches:
    """The next owner of a receiver still expects what an earlier owner of a sender has sent, all of which is acked."""
    return {(Routes, "ended"): lambda self, channel: None}


@only("tests/unit/core/channel/test_outbox.py")
def retired_in_silence() -> Patches:
    """Receivers are not told by themselves that producers of earlier owners have ended."""
    original = Outbox.retire

    def retire(self: Outbox, channels: Any) -> None:
        moved = self.frontier_moved
        original(self, channels)
        self.frontier_moved = moved

    return {(Outbox, "retire"): retire}
