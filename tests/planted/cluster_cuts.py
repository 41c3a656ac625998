"""Planted bugs in snapshots on a cluster; `tests.sim.cluster_cuts` is to notice them."""

from __future__ import annotations

from typing import Any

from millwheel.bundles import decode_checkpoint
from millwheel.core.durability.durable_epochs import DurableEpochs
from millwheel.core.durability.worse_epochs import HaltingEpochs
from millwheel.core.interval import events as ev
from millwheel.host.barriers import Epochs
from millwheel.host.epoch_keeper import Declaring
from millwheel.host.generations import WholeMaster
from millwheel.host.leading import ClusterController
from millwheel.host.led_epochs import LedEpochs
from millwheel.host.led_watermarks import LedWatermarks
from millwheel.host.mapped import MappedOwnership
from millwheel.host.master import Assign, Dismiss, Hasten, Master, Propose, Settle, assign, refused
from millwheel.host.messages import BarriersNamed
from millwheel.host.rounds import Rounds
from millwheel.host.shared_epochs import SharedEpochs
from millwheel_storage.fold import fold
from millwheel_storage.memory import MemoryStore
from millwheel_storage.memory.twin import SoloMemoryStore
from tests.planted import Patches, only, shared_cut

AT_THE_END = WholeMaster._at_the_end
GOES_BACK = "test_when_all_goes_back_logs_are_folded_to_the_declared_epoch_and_no_further"


@only("tests/unit/storage/memory/test_sharing.py")
def later_rows_stay() -> Patches:
    """A going back leaves what the log has of an epoch that was given up"""
    return {(MemoryStore, "drop_later"): lambda self: None}


@only("tests/unit/storage/memory/test_sharing.py")
def term_not_looked_at() -> Patches:
    """A leader that was followed declares an epoch"""
    return {(MemoryStore, "declare"): SoloMemoryStore.declare}


@shared_cut
def named_too_early() -> Patches:
    """Barriers are named when the first worker has begun the epoch"""
    begun = LedEpochs.begun

    def early(self: LedEpochs, worker: str, message: Any) -> None:
        if message.epoch == self._epoch and not self._parts:
            self._tell(BarriersNamed(message.epoch, message.barriers))
        begun(self, worker, message)

    return {(LedEpochs, "begun"): early}


@shared_cut
def parts_missing() -> Patches:
    """An epoch is declared before the last interval has written its part"""

    def complete(self: LedEpochs) -> None:
        if self._opened is not None and not self._declaring and len(self._written) >= len(self._opened.owners) - 1:
            self._declaring = True
            self._begin(self._declare(self._opened))

    return {(LedEpochs, "_complete"): complete}


@shared_cut
def only_the_dead() -> Patches:
    """When a worker dies, only what it had is placed anew"""
    return {(WholeMaster, "_share_out"): lambda self, view, now: Master._adopt_orphans(self, view)}


@shared_cut
def nobody_is_dismissed() -> Patches:
    """All is placed anew, and nobody was dismissed before that"""

    def share_out(self: WholeMaster, view: Any, now: int) -> Any:
        if view.workers and any(owner not in view.workers for owner in view.owners.values()):
            every = assign({place: view.give(place) for place in view.owners})
            return Assign(every.intervals, every.sources, back=True)
        return None

    return {(WholeMaster, "_share_out"): share_out}


@shared_cut
def never_answered_again() -> Patches:
    """A worker that hears of the begin of an epoch again says nothing again"""
    begin = SharedEpochs.begin
    return {(SharedEpochs, "begin"): lambda self, epoch: begin(self, epoch) if epoch != self.begun else None}


@shared_cut
def never_said_again() -> Patches:
    """A leader says only once that an epoch begins"""
    return {(LedEpochs, "_remind"): lambda self: None}


@shared_cut
def begun_in_part() -> Patches:
    """An epoch begins at a worker that does not serve all yet that is its own"""
    return {(MappedOwnership, "_serves"): lambda self: True}


@shared_cut
def label_of_the_last() -> Patches:
    """A partition that opens while an epoch runs begins before its barrier"""
    return {(SharedEpochs, "label"): property(lambda self: self._declared if self.enabled else None)}


@shared_cut
def authority_goes_on() -> Patches:
    """What a leader knows of watermarks outlives a going back"""
    renew = LedWatermarks._renew

    def kept(self: Any, found: Any) -> None:
        before, generation = self._authority, self._generation
        renew(self, found)
        if before is not None and self._authority is None:
            self._left_over = before
        left = getattr(self, "_left_over", None)
        if left is not None and self._generation not in (None, generation):
            self._authority, self._rounds = left, Rounds(left, self._begin, self._ask_round, 0)
            self._loading = True
            self._begin_epochs(self._generation, left, found.declared, self.term)

    return {(LedWatermarks, "_renew"): kept}


@shared_cut
def label_from_zero() -> Patches:
    """The first cores after a going back have passed no barrier"""
    return {(SharedEpochs, "base"): lambda self, declared: None}


@shared_cut
def everybody_hears() -> Patches:
    """Workers that own nothing hear of watermarks, and get something when all has gone back"""
    return {(LedWatermarks, "_serving"): lambda self: self._workers()}


@shared_cut
def whole_without_sources() -> Patches:
    """A source without an owner sends nothing back"""

    share_out = WholeMaster._share_out

    def blind(self: WholeMaster, view: Any, now: int) -> Any:
        owners = {place: owner for place, owner in view.owners.items() if not isinstance(place, str)}
        if owners and all(owner in view.workers for owner in owners.values()):
            lost = [p for p, owner in view.owners.items() if owner not in view.workers]
            return assign({place: view.give(place) for place in lost}) if lost else None
        return share_out(self, view, now)

    return {(WholeMaster, "_share_out"): blind}


@only("tests/unit/host/test_led_epochs.py")
def newest_watermarks_of_a_new_leader() -> Patches:
    """A new leader stores the newest watermarks with an epoch that an earlier one has begun"""
    start = Declaring._start

    def forget(self: Declaring, epoch: int) -> None:
        start(self, epoch)
        self._stored = None

    return {(Declaring, "_start"): forget}


@only(f"tests/unit/storage/postgres/test_reshapes.py::{GOES_BACK}")
def reshaped_from_later() -> Patches:
    """A split or a merge folds what the log has of an epoch that was given up"""

    def fold_log(self: MemoryStore, row: Any) -> None:
        places = sorted(place for place in self.log if place[0] == row.id)
        self.folded.apply(row, fold(decode_checkpoint(self.log.pop(place).payload) for place in places), {})

    return {(MemoryStore, "fold_log"): fold_log}


@shared_cut
def reshaped_without_fold() -> Patches:
    """A split or a merge leaves the log as it is"""
    reshape, fold_log = MemoryStore.reshape, MemoryStore.fold_log

    async def unfolded(self: MemoryStore, reshaping: Any) -> Any:
        self._reshapes = True  # type: ignore[attr-defined]
        try:
            return await reshape(self, reshaping)
        finally:
            self._reshapes = False  # type: ignore[attr-defined]

    def skip(self: MemoryStore, row: Any) -> None:
        if not getattr(self, "_reshapes", False):
            fold_log(self, row)

    return {(MemoryStore, "reshape"): unfolded, (MemoryStore, "fold_log"): skip}


@only("tests/unit/host/test_generations.py")
def in_the_middle_of_an_epoch() -> Patches:
    """An order under snapshots is carried out at once, and what was done since the last epoch is repeated"""
    return {(WholeMaster, "_at_the_end"): lambda self, view: self._dismiss(view)}


@only("tests/unit/host/test_generations.py")
def moved_by_number() -> Patches:
    """A worker that is dismissed for a move is looked for under the number that it had"""

    def at_the_end(self: WholeMaster, view: Any) -> Any:
        decision = AT_THE_END(self, view)
        if isinstance(decision, Dismiss):
            self._targets = {number: order.to for number, order in self._orders.items() if order.kind == "move"}
        return decision

    return {(WholeMaster, "_at_the_end"): at_the_end}


@only("tests/unit/host/test_generations.py")
def moves_for_ever() -> Patches:
    """A move whose target is gone is tried again and again, and all goes back each time"""
    settle = WholeMaster._settle_order

    def forget(self: WholeMaster, view: Any) -> Any:
        self._targets.clear()
        return settle(self, view)

    return {(WholeMaster, "_settle_order"): forget}


@only("tests/unit/host/test_generations.py")
def refused_too_early() -> Patches:
    """An order that rests on one before it is refused while that is not carried out"""
    settle = WholeMaster._settle_order

    def all_of_them(self: WholeMaster, view: Any) -> Any:
        for number, order in self._orders.items():
            if refused(order, view):
                return Settle(number, refused(order, view))
        return settle(self, view)

    return {(WholeMaster, "_settle_order"): all_of_them}


@only("tests/unit/host/test_leading.py")
def epoch_not_hastened() -> Patches:
    """A change waits for an epoch that nobody hastens"""
    carry_out = ClusterController._carry_out

    def slowly(self: Any, decision: Any, found: Any, epoch: int) -> Any:
        if isinstance(decision, Hasten):
            return False
        return (yield from carry_out(self, decision, found, epoch))

    return {(ClusterController, "_carry_out"): slowly}


@only("tests/unit/host/test_led_epochs.py")
def refusal_said_once() -> Patches:
    """A leader says only once that rows of an epoch are refused"""
    restate = Declaring.restate

    def silent(self: Declaring) -> list[Any]:
        return [] if self._refusal is not None else restate(self)

    return {(Declaring, "restate"): silent}


@only("tests/sim/test_cluster_cuts.py::test_a_refused_row_goes_to_quarantine_whoever_gets_its_interval")
def refusals_of_others_forgotten() -> Patches:
    """What a worker knows of refused rows is forgotten when another one gets the interval"""
    dismissed = SharedEpochs.dismissed

    def forgetful(self: SharedEpochs) -> Any:
        self._worker.adoption.left.clear()
        return dismissed(self)

    return {(SharedEpochs, "dismissed"): forgetful}


@only("tests/unit/host/test_generations.py")
def given_back_to_another_one() -> Patches:
    """A worker that joins again gets what another one had, and has to load all of it"""
    kept = WholeMaster._kept

    def of_the_next_one(self: WholeMaster, view: Any) -> dict[Any, int]:
        wanted = kept(self, view)
        workers = sorted({*wanted.values()})
        return {place: workers[workers.index(owner) - 1] for place, owner in wanted.items()}

    return {(WholeMaster, "_kept"): of_the_next_one}


@only("tests/unit/host/test_generations.py")
def loads_between_two_epochs() -> Patches:
    """Under snapshots loads are only looked at while no epoch runs, when nobody works"""
    relieve = WholeMaster._relieve
    return {(WholeMaster, "_relieve"): lambda self, view, now: relieve(self, view, now) if self.resting else None}


@only("tests/unit/host/test_generations.py")
def moved_by_load_at_once() -> Patches:
    """An order that loads call for is not waited for under snapshots: an interval moves in the middle of an epoch"""
    decide = WholeMaster.decide

    def at_once(self: WholeMaster, found: Any, now: int) -> Any:
        decision = decide(self, found, now)
        if isinstance(decision, Propose):
            to = next(member.incarnation for member in found.members if f"w{member.incarnation}" == decision.order.to)
            return Assign(dict.fromkeys(decision.order.intervals, to), {})
        return decision

    return {(WholeMaster, "decide"): at_once}


@only(
    "tests/sim/test_baselines.py::test_what_halts_is_exact_under_every_fault_and_runs_nothing_while_an_epoch_is_written"
)
def runs_on_while_it_halts() -> Patches:
    """Synchronous snapshots: hooks run again before the epoch is declared"""
    return {(HaltingEpochs, "has_room"): DurableEpochs.has_room}


@only("tests/unit/host/test_shared_epochs.py")
def reads_on_while_it_halts() -> Patches:
    """Synchronous snapshots: sources are read again when this worker has written, though others have not"""
    return {(Epochs, "_halted"): lambda self: False}


@only("tests/unit/core/durability/test_worse_epochs.py")
def declared_before_it_has_drained() -> Patches:
    """Synchronous snapshots: an interval says that it has written before its rows are in the log"""
    cut = DurableEpochs.cut

    def early(self: DurableEpochs, epoch: int, receivers: Any, effects: Any, now: int, *, logs: bool = False) -> None:
        cut(self, epoch, receivers, effects, now, logs=logs)
        if isinstance(self, HaltingEpochs) and self._written is not None and self._written.waits:
            effects.append(ev.PartWritten(epoch, self._written.sinks))

    return {(DurableEpochs, "cut"): early}


@only("tests/sim/test_cluster_cuts.py::test_all_goes_back_when_somebody_takes_the_partitions_that_are_read")
def taken_partition_not_noticed() -> Patches:
    """A worker that reads a partition which was given up waits for ever for the end of an epoch"""
    return {(SharedEpochs, "lost"): lambda self: None}
