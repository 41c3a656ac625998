"""Bugs of a cluster: leaders, leases, the map, hand-over, splits, words between workers, and the end."""

from __future__ import annotations

from typing import Any

import msgspec

from millwheel.cluster import ClusterMap, Reshaping
from millwheel.core.ids.dedup import Channel
from millwheel.core.interval import events as ev
from millwheel.core.source.injector import InjectorCore
from millwheel.host import alphabet as he
from millwheel.host.actors import Actor
from millwheel.host.led_watermarks import LedWatermarks
from millwheel.host.left_overs import LeftOvers
from millwheel.host.mapped import MappedOwnership
from millwheel.host.master import Assign, Finish, LetGo, MapView, Master
from millwheel.host.messages import Message
from millwheel.host.origins import Origins
from millwheel.host.receivers import Receivers
from millwheel.host.reports import Reports
from millwheel.host.restarts import Restarts
from millwheel.host.routes import Routes
from millwheel.host.standing import Standing
from millwheel.host.still_sending import StillSending
from millwheel.host.voice import Voice
from millwheel.host.worker import WorkerHost
from millwheel.ids import IntervalId
from millwheel_storage.memory import MemoryStore
from millwheel_storage.memory.agreements import MemoryAgreements
from tests.planted import Patches, clustered, only

# --- leaders and leases -------------------------------------------------------------------------------------------


@clustered
def earlier_leader_decides() -> Patches:
    """The epoch is not looked at: a leader that was followed places intervals."""
    return {(MemoryAgreements, "current"): lambda self, decision: decision.version == self.version}


@clustered
def earlier_leader_persists() -> Patches:
    """The epoch is not looked at: a leader that was followed persists watermarks."""

    async def persist(self: MemoryStore, epoch: int, writes: Any) -> Any:
        return await self.persist_watermarks(writes)

    return {(MemoryStore, "persist_led_watermarks"): persist}


@clustered
def lease_never_runs_out() -> Patches:
    """A lease is judged by the clock of whoever has it: that of a dead member never runs out."""
    return {(MemoryAgreements, "alive"): lambda self, incarnation: incarnation in self._leases}


@clustered
def leader_for_ever() -> Patches:
    """Whoever leads once leads until it leaves, also when it is dead."""
    return {
        (MemoryAgreements, "lead"): lambda self, incarnation, lease_us: (
            _lead(self, incarnation) if self._leader in (None, incarnation) else None
        )
    }


def _lead(agreed: Any, incarnation: int) -> Any:
    from millwheel.cluster import Leader

    if agreed._leader != incarnation:
        agreed._leader, agreed.epoch = incarnation, agreed.epoch + 1
    agreed._leads_until = 2**62
    return Leader(incarnation, agreed.epoch, agreed.members[incarnation].address)


@clustered
def new_leader_knows_nothing() -> Patches:
    """Nobody tells a new leader what the last one was told."""

    def obey(self: WorkerHost, controller: str | None) -> None:
        said, self._said_once = getattr(self, "_said_once", False), True  # type: ignore[attr-defined]
        original(self, controller) if not said or controller is None else setattr(self, "_controller", controller)

    original = WorkerHost.obey
    return {(WorkerHost, "obey"): obey}


# --- who owns what ------------------------------------------------------------------------------------------------


@clustered
def dead_workers_keep_theirs() -> Patches:
    """What a dead worker owns is not given to another one."""
    original = Master._adopt_orphans

    def adopt(self: Master, view: MapView) -> Any:
        found = original(self, view)
        owned = {place: owner for place, owner in view.owners.items() if owner is not None}
        if not isinstance(found, Assign):
            return found
        kept = {i: o for i, o in found.intervals.items() if i not in owned}
        sources = {s: o for s, o in found.sources.items() if s not in owned}
        return Assign(kept, sources) if kept or sources else None

    return {(Master, "_adopt_orphans"): adopt, (Master, "_bury"): lambda self, view: None}


@clustered
def placed_under_the_old_sequencer() -> Patches:
    """A placement changes the owner and not the sequencer: the last owner is not fenced."""

    async def place(self: MemoryStore, placement: Any) -> int | None:
        placed = self.agreements.place(placement)
        if placed is not None:
            self.fence({interval for interval in placed[1].intervals if self.ownership[interval] == 0})
        return None if placed is None else placed[0]

    return {(MemoryStore, "place"): place}


@only("tests/unit/host/test_mapped.py")  # the next look at the map mends it
def lost_interval_is_restarted_for_ever() -> Patches:
    """Whoever loses an interval does not look at the map, and does not let go of it."""
    return {(MappedOwnership, "lost"): lambda self, actor: None}


@clustered
def source_is_not_given_up() -> Patches:
    """A worker goes on with a source that was given to another one, under new sequencers."""

    async def take(self: MemoryStore, source: str, incarnation: int, intervals: Any) -> Any:
        return self.fence(set(intervals))

    return {(MemoryStore, "take_partitions"): take, (MappedOwnership, "_drop_source"): lambda self, name: None}


# --- words between workers ----------------------------------------------------------------------------------------


@clustered
def receipts_stay_at_home() -> Patches:
    """Receipts go to the worker that had the sender first."""

    def note(self: Origins, peer: str, bundle: Any) -> None:
        self._of.setdefault(bundle.sender, (bundle.number >> 32, peer))

    return {(Origins, "note"): note}


@clustered
def new_worker_is_not_greeted() -> Patches:
    """Nobody says hello to a worker that joins later: its intervals send nothing."""

    def meet(self: WorkerHost, peer: str) -> None:
        self._peers = (*self._peers, peer)

    return {(WorkerHost, "meet"): meet}


@clustered
def stranger_is_not_heard() -> Patches:
    """The hello of a worker that is not known yet is forgotten."""
    original = WorkerHost.meet

    def meet(self: WorkerHost, peer: str) -> None:
        self.links.strangers.known(peer)
        original(self, peer)

    return {(WorkerHost, "meet"): meet}


@clustered
def senders_not_asked_for() -> Patches:
    """A core starts without asking who may still send: ids of other workers' producers are forgotten."""

    def expecting(self: MappedOwnership) -> Any:
        yield from ()

    return {(MappedOwnership, "expecting"): expecting}


@clustered
def unacked_productions_do_not_count() -> Patches:
    """Who has nothing but unacked productions of an earlier owner left is no sender: its ids are forgotten."""
    original = Routes.living

    def living(self: Routes, senders: Any, unfinished: Any) -> set[Channel]:
        return original(self, senders, unfinished) - {*senders.productions}

    return {(Routes, "living"): living}


@clustered
def never_swept() -> Patches:
    """Ids of producers that are gone are kept for ever."""
    return {(StillSending, "_retire"): lambda self, actor, channel: None}


@only("tests/unit/host/test_receivers.py")
def any_hello_of_another_worker_counts() -> Patches:
    """The late hello of an earlier owner takes the place of the newer one."""

    def greet(self: Receivers, peer: str, hello: Any) -> bool:
        self._hellos[hello.interval] = (peer, hello)
        self.unreached.discard(hello.interval)
        return True

    return {(Receivers, "greet"): greet}


# --- splits, merges, hand-over ------------------------------------------------------------------------------------


@clustered
def order_settled_apart() -> Patches:
    """A split or a merge leaves its order open: the next leader refuses what the last one has done."""
    original = MemoryStore.reshape

    async def reshape(self: MemoryStore, reshaping: Reshaping) -> Any:
        return await original(self, msgspec.structs.replace(reshaping, order=0))

    return {(MemoryStore, "reshape"): reshape}


@only("tests/unit/host/test_left_overs.py")
def left_over_by_whoever_said_it() -> Patches:
    """Keys in quarantine count for each worker that has ever had their interval."""

    def keys(self: LeftOvers, found: ClusterMap) -> int:
        return sum(count for said in self._said.values() for count in said.values())

    return {(LeftOvers, "keys"): keys}


@only("tests/unit/core/source/test_injector.py")
def rejected_before_their_position() -> Patches:
    """Rejected rows are stored with the next position, whatever it is: a row that is read again is counted again."""
    original = InjectorCore._advance

    def advance(self: InjectorCore, effects: list[ev.Effect], now: int) -> None:
        self._rejected = self._read_to[2]
        original(self, effects, now)

    return {(InjectorCore, "_advance"): advance}


@only("tests/unit/host/test_receivers.py")
def keys_of_a_hello_ignored() -> Patches:
    """Whoever knows an interval with other keys than it is served for sends to it."""

    def place(self: Receivers, row: Any) -> Any:
        known = self._hellos.get(row.id)
        return None if known is None or row.id in self.unreached else (known[0], known[1].sequencer)

    return {(Receivers, "place"): place}


@only("tests/unit/host/test_leading.py")
def asked_to_let_go_once() -> Patches:
    """A worker is asked once to let go of an interval, also when its channel was cut meanwhile."""
    return {(Master, "reached"): lambda self, owner: False}


@clustered
def split_is_lost() -> Patches:
    """Workers do not hear of splits and merges."""
    return {(MappedOwnership, "_reroute"): lambda self, found: None}


@clustered
def senders_go_on_after_a_split() -> Patches:
    """Cores that send to an interval that was split keep what is unacked for it as it is."""
    return {(Restarts, "give_up"): lambda self, actor: None}


@only("tests/unit/host/test_master.py")
def split_without_acks() -> Patches:
    """An interval is split before receivers have acked what it sent: the two halves send out of order."""
    original = Master._finish_moves

    def finish(self: Master, view: MapView, now: int) -> Any:
        found = original(self, view, now)
        return LetGo(found.owner, found.intervals, found.sources, acked=False) if isinstance(found, LetGo) else found

    return {(Master, "_finish_moves"): finish}


# --- watermarks ---------------------------------------------------------------------------------------------------


@clustered
def moved_interval_does_not_count() -> Patches:
    """The watermark of an interval with another owner is forgotten, and nobody waits for the new owner's."""
    original = LedWatermarks._adjust

    def adjust(self: LedWatermarks, authority: Any, found: Any) -> None:
        original(self, authority, found)
        for placed in found.intervals:
            if authority.intervals(placed.computation).get(placed.id, 0) < -(2**61):
                authority.excuse(placed.computation, placed.id)

    return {(LedWatermarks, "_adjust"): adjust}


@clustered
def gathered_reports_are_lost() -> Patches:
    """Reports of watermarks that wait for others are forgotten when something else is told."""

    def answer(self: Voice, message: Message) -> None:
        if self._reports is not None:
            self._reports.all()
        original(self, message)

    original = Voice.answer
    return {(Voice, "answer"): answer}


@only("tests/unit/host/test_voice.py")
def reports_behind_other_words() -> Patches:
    """Reports go on waiting while something else is told, which speaks of what came later."""

    def answer(self: Voice, message: Message) -> None:
        if self._controller is not None:
            self._out.append(he.Tell(self._controller, message))

    return {(Voice, "answer"): answer}


@only("tests/unit/host/test_reports.py")
def newer_label_takes_the_place() -> Patches:
    """A report under one label is left out for a newer one under the next: what an epoch has reached is not stored."""

    def add(self: Reports, report: Any) -> list[Any]:
        self._waiting[report.owner, report.interval] = report
        return []

    return {(Reports, "add"): add}


@only("tests/unit/host/test_standing.py")
def anybody_speaks() -> Patches:
    """A leader heeds whoever says anything about an interval, under any sequencer."""

    def admit(self: Standing, peer: str, message: Message) -> Message:
        return message

    return {(Standing, "admit"): admit}


@only("tests/unit/host/test_standing.py")
def heard_while_it_is_placed() -> Patches:
    """The last owner is heeded about what is just being given to another one."""
    return {(Standing, "suspend"): lambda self, intervals, sources: None}


@only("tests/unit/host/test_standing.py")
def heard_in_the_middle() -> Patches:
    """The next owner of a source is heard before it has said which partitions are open."""
    return {(Standing, "_speaks"): lambda self, peer, owner, interval: _speaks(self, peer, owner, interval)}


def _speaks(standing: Standing, peer: str, owner: str, interval: Any) -> bool:
    if owner.startswith("source:"):
        return standing._owns(peer, owner)
    return interval not in standing._moving and standing._owners.get(interval) == peer


# --- the end ------------------------------------------------------------------------------------------------------


@only("tests/unit/host/test_over.py")
def drained_too_early() -> Patches:
    """A worker says that it is drained as soon as all input is consumed, with acks and log rows left."""

    def rest(self: WorkerHost) -> None:
        if self.finished():
            self.ownership.rested()

    return {(WorkerHost, "_rest"): rest}


@only("tests/unit/host/test_master.py")
def ended_at_the_first_word() -> Patches:
    """The run ends when all have said once that nothing is left: frontiers are still on their way."""

    def finish(self: Master, view: MapView) -> Any:
        over = not self._moves and not self._orders and self._is_over(view)
        return Finish() if over else None

    return {(Master, "_finish"): finish}


@only("tests/unit/host/test_master.py")
def drained_of_any_map() -> Patches:
    """What a worker has said of an earlier map counts for this one: a run ends while an interval has just moved."""

    def drained(self: Master, worker: int, version: int) -> None:
        self._drained[worker] = self._drained.get(worker, 0) or version
        self._confirmed.add(worker)

    def is_over(self: Master, view: MapView) -> bool:
        return all(worker in self._drained for worker in view.workers)

    return {(Master, "drained"): drained, (Master, "_is_over"): is_over}


@only("tests/unit/host/test_mapped.py")
def let_go_by_an_old_map() -> Patches:
    """A worker says that it has let go of what the map has given to it since it was read, and takes it then"""

    def by_what_is_known(self: MappedOwnership, order: Any) -> Any:
        yield from ()

    return {(MappedOwnership, "_hear_of_own"): by_what_is_known}


@only("tests/unit/host/test_mapped.py")
def handed_over_after_all_that_waits() -> Patches:
    """An interval runs all that waits before it is handed over: one that is hot can never be split"""

    def nothing(self: MappedOwnership, intervals: list[IntervalId]) -> None:
        pass

    return {(MappedOwnership, "_close"): nothing}


@only("tests/unit/host/test_mapped.py")
def open_while_it_is_handed_over() -> Patches:
    """A core that starts while its interval is handed over takes in what comes: under load it is not let go"""
    start = WorkerHost.start

    def opened(self: WorkerHost, actor: Actor) -> None:
        self.closed.discard(actor.interval)
        start(self, actor)

    return {(WorkerHost, "start"): opened}


@only("tests/unit/host/test_mapped.py")
def partition_given_up_not_found_out() -> Patches:
    """A worker that does not own a partition any more looks at the map only, which says nothing of it"""

    def nothing(self: MappedOwnership, owners: Any) -> Any:
        yield from ()

    return {(MappedOwnership, "_find_out"): nothing}
