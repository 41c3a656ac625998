"""Planted bugs in cuts and logs of loops; `tests.sim.loop_cuts` is to notice them."""

from __future__ import annotations

from millwheel.bundles import Acked, Bundle, Produced
from millwheel.core.channel.alignment import Alignment
from millwheel.core.durability.durable_epochs import DurableEpochs
from millwheel.core.durability.loop_log import LoopLog
from millwheel.core.interval import events as ev
from millwheel.core.interval.arrivals import Item
from millwheel.ids import IntervalId
from millwheel.work import BundlePart
from tests.planted import Patches, cut_in_loop


@cut_in_loop
def log_ends_early() -> Patches:
    """The log of a loop ends when the head cuts."""

    def log(self: DurableEpochs, item: Item) -> None:
        return None

    return {(Alignment, "came_round"): lambda self: True, (DurableEpochs, "log"): log}


@cut_in_loop
def log_ends_at_first_barrier() -> Patches:
    """The log of a loop ends when one barrier has come round."""
    original = Alignment.barrier

    def barrier(self: Alignment, sender: IntervalId, epoch: int) -> None:
        original(self, sender, epoch)
        if epoch == self.label:
            self._awaited.clear()

    add = LoopLog.add

    def late(self: LoopLog, part: BundlePart, size_bytes: int) -> None:
        if self.seq:
            add(self, part, size_bytes)

    return {(Alignment, "barrier"): barrier, (LoopLog, "add"): late}


@cut_in_loop
def log_begins_late() -> Patches:
    """The first records that come on back edges after the cut are not in the log."""
    original = LoopLog.add

    def add(self: LoopLog, part: BundlePart, size_bytes: int) -> None:
        first, self._begun = getattr(self, "_begun", None) != self.seq, self.seq  # type: ignore[attr-defined]
        if not first:
            original(self, part, size_bytes)

    return {(LoopLog, "add"): add}


@cut_in_loop
def log_not_dropped() -> Patches:
    """A log is not dropped by the next cut."""

    def drop(self: LoopLog) -> list[Acked]:
        self._kept = []
        return []

    return {(LoopLog, "drop"): drop}


@cut_in_loop
def log_lost() -> Patches:
    """A log is not stored."""
    original = LoopLog.end

    def end(self: LoopLog) -> list[Produced]:
        original(self)
        self._kept = []
        return []

    return {(LoopLog, "end"): end}


@cut_in_loop
def log_of_held_forgotten() -> Patches:
    """What was held on back edges until the cut is forgotten."""
    original = Alignment.cut

    def cut(self: Alignment) -> list[Bundle]:
        self._held.clear()
        return original(self)

    return {(Alignment, "cut"): cut}


@cut_in_loop
def replay_acked_at_once() -> Patches:
    """A log is dropped by the first cut after a recovery, run or not."""

    def acked(self: DurableEpochs, number: int, now: int, epoch: int = 0) -> None:
        if self._outbox.ack(number):
            self._outbox.forget(number)

    return {(DurableEpochs, "acked"): acked}


@cut_in_loop
def back_edge_is_waited_for() -> Patches:
    """A barrier on a back edge counts as one on a regular edge."""
    original = Alignment.open

    def open_(self: Alignment, epoch: int, senders: frozenset[int], back: frozenset[int] = frozenset()) -> bool:
        return original(self, epoch, {*senders, *back})

    return {(Alignment, "open"): open_}


@cut_in_loop
def part_written_before_log() -> Patches:
    """An interval says that its part is written before its log is."""
    original = DurableEpochs._tell_written

    def tell(self: DurableEpochs, part: object, effects: list[ev.Effect]) -> None:
        if self._written is not None:
            self._written.waits.discard(self._loop_log.seq)
            original(self, self._written, effects)

    return {(DurableEpochs, "_tell_written"): tell}
