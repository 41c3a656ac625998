"""Planted bugs in barriers, images and the declaration of epochs; `tests.sim.cuts` is to notice them."""

from __future__ import annotations

from typing import Any

import msgspec

from millwheel.bundles import Bundle, TimerWrites
from millwheel.core.channel.alignment import Alignment
from millwheel.core.channel.outbox import Outbox
from millwheel.core.durability.durable_epochs import DurableEpochs
from millwheel.core.durability.epoch_image import EpochImage
from millwheel.core.interval import events as ev
from millwheel.core.interval.machine import IntervalCore
from millwheel.core.interval.watermark import LowWatermark
from millwheel.core.keys.key_columns import KeyColumns
from millwheel.core.keys.last_cut import LastCut
from millwheel.core.source.injector import InjectorCore
from millwheel.host.epoch_keeper import Declaring
from millwheel.host.restated import Restated
from millwheel.host.routes import Routes
from millwheel.ids import IntervalId, Seq
from millwheel.ports import Declaration
from millwheel_storage.memory import MemoryStore
from millwheel_storage.postgres import epochs
from tests.planted import Patches, cut, only


@cut
def one_input_forgotten() -> Patches:
    """Alignment forgets one input."""

    def complete(self: Alignment) -> bool:
        missing = self._senders - self._barriers.get(self._opened, set())
        return self._opened > 0 and len(missing) <= (len(self._senders) > 1)

    return {(Alignment, "complete"): complete}


@cut
def nothing_held_back() -> Patches:
    """What comes behind a barrier is not held back."""
    return {(Alignment, "parks"): lambda self, bundle: False}


@cut
def parked_dropped() -> Patches:
    """What was held back behind a barrier is forgotten when the barrier is passed."""
    original = Alignment.cut

    def cut_(self: Alignment) -> list[Bundle]:
        original(self)
        return []

    return {(Alignment, "cut"): cut_}


@cut
def cut_too_early() -> Patches:
    """An epoch is cut while something of it waits to run."""

    def cut_(self: IntervalCore, effects: list[ev.Effect], now: int) -> bool:
        if not self._alignment.complete() or self._invocation:
            return False
        self._under_snapshots().cut(self._alignment.opened, self._barriers_to, effects, now)
        for bundle in self._alignment.cut():
            self._arrive(bundle, now, effects)
        self._watermark.passed()
        return True

    return {(IntervalCore, "_cut"): cut_}


def noted(by: int) -> Patches:
    original = InjectorCore._pass_barrier

    def passes(self: InjectorCore, epoch: int, effects: list[ev.Effect]) -> None:
        original(self, epoch, effects)
        for place, effect in enumerate(effects):
            if isinstance(effect, ev.PositionNoted) and effect.position > 1 and not effect.finished:
                effects[place] = msgspec.structs.replace(effect, position=effect.position + by)

    return {(InjectorCore, "_pass_barrier"): passes}


@cut
def position_too_far() -> Patches:
    """A source goes back one row too few."""
    return noted(1)


@cut
def position_too_near() -> Patches:
    """A source goes back one row too many."""
    return noted(-1)


@cut
def image_forgets_timers() -> Patches:
    """The image of an epoch has no timers."""
    return {(EpochImage, "_timer_writes"): lambda self: TimerWrites()}


@cut
def declared_without_all() -> Patches:
    """An epoch is declared when all images but one are written."""

    def complete(self: Declaring) -> None:
        opened = self._opened
        if opened is not None and not self._declaring and len(self._written) >= len(opened.owners) - 1:
            self._declaring = True
            self._begin(self._declare(opened))

    return {(Declaring, "_complete"): complete}


@cut
def declared_unfenced() -> Patches:
    """Whoever was superseded may declare an epoch."""
    original = MemoryStore.declare

    async def declare(self: MemoryStore, declaration: Declaration) -> bool:
        current = {interval: self.ownership[interval] for interval in declaration.owners}
        positions = [msgspec.structs.replace(p, sequencer=self.ownership[p.interval]) for p in declaration.positions]
        places = [(IntervalId(interval), Seq(seq)) for interval, seq in declaration.sinks]
        sinks = [(interval, seq) for interval, seq in places if (interval, current[interval], seq) in self.log]
        free = msgspec.structs.replace(declaration, owners=current, positions=positions, sinks=sinks)
        return await original(self, free)

    return {(MemoryStore, "declare"): declare}


@cut
def recovery_takes_all() -> Patches:
    """A recovery folds images of an epoch that was not declared."""
    original = MemoryStore.recover

    async def recover(self: MemoryStore, interval: IntervalId, sequencer: Any) -> Any:
        declared, self.declared = self.declared, 10**9
        try:
            return await original(self, interval, sequencer)
        finally:
            self.declared = declared

    async def rewind(self: MemoryStore, owners: Any) -> Any:
        return self.declared if len(await self.still_owned(owners)) == len(owners) else None

    return {(MemoryStore, "recover"): recover, (MemoryStore, "rewind"): rewind}


@cut
def folded_undeclared() -> Patches:
    """An image is folded as soon as it is written."""
    original = DurableEpochs.committed

    def committed(self: DurableEpochs, seq: Any, effects: list[ev.Effect]) -> None:
        part = self._written
        original(self, seq, effects)
        for row in part.rows if part is not None and not part.waits else ():
            self._committed.add(row.seq, row.size_bytes, row.image)
        if part is not None and not part.waits:
            part.rows = []
            self.want()

    return {(DurableEpochs, "committed"): committed}


@only("tests/unit/core/interval/test_watermark.py")
def later_watermark_applied() -> Patches:
    """A watermark that rests on reports of the next epoch is applied at once."""
    original = LowWatermark.move
    return {(LowWatermark, "move"): lambda self, value, label=0: original(self, value, 0)}


@cut
def newest_watermarks_stored() -> Patches:
    """The watermarks that are stored with an epoch are the newest ones."""
    original = Declaring.reported

    def reported(self: Declaring, label: int) -> bool:
        first = original(self, label)
        self._stored = None
        return first

    return {(Declaring, "reported"): reported}


@cut
def sink_rows_lost() -> Patches:
    """Sink rows of an epoch are not written."""
    return {(MemoryStore, "_epoch_sinks"): lambda self, declaration: []}


@cut
def positions_lost() -> Patches:
    """Positions of an epoch are not stored."""
    original = MemoryStore.declare

    async def declare(self: MemoryStore, declaration: Declaration) -> bool:
        kept = [write for write in declaration.positions if write.finished]
        return await original(self, msgspec.structs.replace(declaration, positions=kept))

    return {(MemoryStore, "declare"): declare}


@cut
def barrier_not_sent_again() -> Patches:
    """A barrier that was lost in a cut of the channel is not sent again."""
    original = Outbox.resend
    return {
        (Outbox, "resend"): lambda self, target, kept_back: [
            bundle for bundle in original(self, target, kept_back) if not bundle.barrier
        ]
    }


@cut
def images_not_restated() -> Patches:
    """After a cut the controller does not hear again which images are written."""
    original = Restated.all

    def restated(self: Restated) -> Any:
        self._images.clear()
        return original(self)

    return {(Restated, "all"): restated}


@cut
def core_without_label() -> Patches:
    """A core that goes on from an epoch begins without its label."""
    original = IntervalCore.__init__

    def begin(self: IntervalCore, config: Any, recovered: Any, inherited: Any = None) -> None:
        label = None if config.label is None else 0
        original(self, msgspec.structs.replace(config, label=label), recovered, inherited)

    return {(IntervalCore, "__init__"): begin}


@cut
def image_without_memory() -> Patches:
    """The image of an epoch has what hooks have set, and memory does not."""
    return {(KeyColumns, "merge"): lambda self, cell, writes: None}


@cut
def reads_before_it_merges() -> Patches:
    """A hook finds what its key had before the last epoch, because that epoch is not merged yet."""
    merge = LastCut.merge
    return {(LastCut, "merge"): lambda self, keys, others=0: merge(self, (), others)}


@cut
def never_merged() -> Patches:
    """What invocations have left of an epoch is never merged into memory."""
    return {(LastCut, "merge_all"): lambda self: None}


@only(
    "tests/unit/runtime/test_back_pressure.py::test_what_is_parked_behind_a_late_barrier_is_bounded_for_all_senders_together"
)
def room_not_shared() -> Patches:
    """Each of the intervals that are ahead of a late barrier fills the whole room of a receiver"""
    return {(Routes, "_crowds"): lambda self: {}}


@only("tests/unit/core/durability/test_durable_epochs.py")
def declared_by_another() -> Patches:
    """The declaration of another epoch counts for the one that is written"""
    declared = DurableEpochs.declared

    def any_(self: DurableEpochs, epoch: int) -> None:
        part = self._written
        declared(self, epoch if part is None else part.epoch)

    return {(DurableEpochs, "declared"): any_}


@only("tests/unit/core/durability/test_durable_epochs.py")
def logged_though_stored() -> Patches:
    """The log of a loop has what an earlier owner has left in the tables once more"""
    log = DurableEpochs.log

    def all_of_it(self: DurableEpochs, item: Any) -> None:
        log(self, msgspec.structs.replace(item, inherited=False))

    return {(DurableEpochs, "log"): all_of_it}


@only("tests/unit/storage/postgres/test_epochs.py")
def declared_unjudged() -> Patches:
    """What a declaration has asked all at once stays, whatever the answers are."""

    async def judge(held: Any, declared: Any, owners: Any) -> None:
        pass

    return {(epochs, "_judge"): judge}
