"""Bugs of a host: commit groups, credit, discovery, restarts of an interval, cuts, marks, watermarks, the end of a run."""

from __future__ import annotations

from typing import Any

from millwheel.core.ids.dedup import DeliveredIds
from millwheel.core.interval import events as ev
from millwheel.core.source.pace import Pace
from millwheel.host import alphabet as he
from millwheel.host.actors import Actors
from millwheel.host.adoption import Adoption
from millwheel.host.alarms import Alarms
from millwheel.host.commits import CommitLanes, Group, Lane
from millwheel.host.controller import ControllerHost
from millwheel.host.credit import Account, CreditWindow
from millwheel.host.marks import Marks
from millwheel.host.messages import Claimed, Hello, Message, WatermarkReport, WorkerJoined
from millwheel.host.paces import Paces
from millwheel.host.partitions import Partitions
from millwheel.host.promises import Grants
from millwheel.host.receivers import Receivers
from millwheel.host.redrives import Redrives
from millwheel.host.restarts import Restarts
from millwheel.host.restated import Restated
from millwheel.host.worker import WorkerHost
from millwheel.ids import IntervalId, Sequencer
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.runtime import shell
from tests.planted import Patches, mutant, only

# --- group commit -------------------------------------------------------------------------------------------------


@only("tests/unit/host/test_commits.py")
def refusal_ignored() -> Patches:
    """What waits of an interval is committed although the database refused a row of it."""
    return {(CommitLanes, "drop"): lambda self, interval: None}


@mutant
def interval_in_two_groups() -> Patches:
    """An interval may be in two commit groups at a time."""
    original = Lane.take
    return {(Lane, "take"): lambda self, busy: original(self, frozenset())}


@only("tests/unit/host/test_commits.py")
def lane_left_early() -> Patches:
    """An interval that changes lanes leaves what waits in the old one behind."""
    return {(CommitLanes, "_change_lanes"): lambda self, interval: self._with_sinks.add(interval)}


@mutant
def group_backwards() -> Patches:
    """A group is handed over with the newest checkpoint first."""
    original = CommitLanes.ready

    def ready(self: CommitLanes) -> list[Group]:
        groups = original(self)
        for group in groups:
            group.writes.reverse()
        return groups

    return {(CommitLanes, "ready"): ready}


@mutant
def group_taken_for_refused() -> Patches:
    """When a row of one interval is refused, the whole group counts as committed."""
    original = WorkerHost._commit

    def commit(self: WorkerHost, group: Group) -> Any:
        steps = original(self, group)
        wish = next(steps)
        while True:
            try:
                answer = yield wish
            except Exception as refusal:
                try:
                    wish = steps.throw(refusal)
                except StopIteration:
                    return
                writes = [write for write in group.writes if self.actors.current(write.interval, write.sequencer)]
                answer = {(write.interval, write.seq) for write in writes}
            try:
                wish = steps.send(answer)
            except StopIteration:
                return

    return {(WorkerHost, "_commit"): commit}


# --- credit -------------------------------------------------------------------------------------------------------


@mutant
def credit_never_given_back() -> Patches:
    """A receiver promises once, and nothing more when it has worked something off."""
    original = CreditWindow.grant
    return {(CreditWindow, "grant"): lambda self, waiting: None if self.promised else original(self, waiting)}


@mutant
def credit_counted_twice() -> Patches:
    """A sender takes each bundle off its credit twice."""
    original = Partitions.sent
    return {(Partitions, "sent"): lambda self, target, size: original(self, target, 2 * size)}


@mutant
def low_for_a_moment() -> Patches:
    """A sender gets no new promise later when its receiver had no room at the time at which little was left."""
    original = Grants.due

    def due(self: Grants, interval: IntervalId, sequencer: Sequencer, waiting_bytes: int) -> Any:
        promises = original(self, interval, sequencer, waiting_bytes)
        self._low.discard(interval)
        return promises

    return {(Grants, "due"): due}


@only("tests/unit/host/test_credit.py")
def credit_without_end() -> Patches:
    """A receiver promises its limit anew, whatever waits already."""
    original = CreditWindow.grant
    return {(CreditWindow, "grant"): lambda self, waiting: original(self, 0)}


@only("tests/unit/host/test_credit.py")
def credit_ignored() -> Patches:
    """Partitions are read for receivers that take nothing."""
    return {(Account, "left"): lambda self: True}


@mutant
def credit_of_an_earlier_round() -> Patches:
    """After a cut a sender counts on, while the receiver begins anew."""
    original = Partitions.hello

    def hello(self: Partitions, hello: Hello) -> None:
        if hello.interval not in self._accounts:
            original(self, hello)

    return {(Partitions, "hello"): hello}


@mutant
def parked_for_ever() -> Patches:
    """A read that waited for credit is not tried again."""
    return {(Partitions, "_retry"): lambda self, intervals: None}


# --- discovery ----------------------------------------------------------------------------------------------------


@mutant
def partition_not_claimed() -> Patches:
    """The watermark does not wait for a partition until it has reported."""
    original = WorkerHost.inform

    def inform(self: WorkerHost, message: Message) -> None:
        if not (isinstance(message, Claimed) and all(owner.startswith("source:") for owner, *_ in message.intervals)):
            original(self, message)

    return {(WorkerHost, "inform"): inform}


@mutant
def partition_not_expected() -> Patches:
    """Receivers are not told of a partition that an earlier run had numbered: they refuse its rows."""
    return {(Partitions, "_expect"): lambda self, channels: None, (DeliveredIds, "expect"): lambda self, channels: None}


@only(
    "tests/unit/host/test_restarts.py::test_a_receiver_that_starts_anew_beside_its_sender_takes_what_the_next_owner_of_that_sends"
)
def next_owner_not_expected() -> Patches:
    """Receivers are not told of the next owner of a sender: one that starts anew beside it refuses its records."""
    return {(Restarts, "expect_from"): lambda self, actor: None}


@mutant
def bound_before_partitions() -> Patches:
    """The bound of a source is raised before the partitions that were found are open."""
    original = Partitions._discover_all

    def discover_all(self: Partitions, known: Any = None) -> Any:
        for name in self._graph.sources:
            self._owner.inform(_bound(name))
        yield from original(self, known)

    return {(Partitions, "_discover_all"): discover_all}


def _bound(name: str) -> Message:
    from millwheel.host.messages import SourceBound

    return SourceBound(f"source:{name}", MAX_TIME)


# --- restarts and cuts --------------------------------------------------------------------------------------------


@mutant
def any_owner_takes_it() -> Patches:
    """A bundle that was sent to an earlier owner of an interval reaches the next one."""

    def current(self: Actors, interval: IntervalId, sequencer: Sequencer) -> Any:
        actor = self.all.get(interval)
        return actor if actor is not None and not actor.core.halted else None

    return {(Actors, "current"): current}


@mutant
def sends_past_a_cut() -> Patches:
    """After a cut a sender goes on before the receiver has said hello: what was lost comes later."""

    return {(Receivers, "cut"): lambda self, peer: None}


@mutant
def no_hello_after_a_cut() -> Patches:
    """A receiver says nothing after a cut: what was lost is not sent again."""
    original = WorkerHost._reopened

    def reopened(self: WorkerHost, peer: str) -> None:
        if peer != self.name:
            original(self, peer)

    return {(WorkerHost, "_reopened"): reopened}


@only("tests/unit/host/test_worker.py")
def no_report_after_a_cut() -> Patches:
    """A worker does not tell the controller again what a cut has lost."""
    original = WorkerHost._reopened

    def reopened(self: WorkerHost, peer: str) -> None:
        if peer == self.name:
            original(self, peer)

    return {(WorkerHost, "_reopened"): reopened}


@mutant
def claims_what_serves() -> Patches:
    """After a cut a worker claims only what it has started to serve."""
    original = Restated.all

    def every(self: Restated) -> list[Message]:
        self._claims = {place: sequencer for place, sequencer in self._claims.items() if place in self._reports}
        return original(self)

    return {(Restated, "all"): every}


@only("tests/unit/host/test_links.py")
def old_hello_counts() -> Patches:
    """A hello that comes twice is taken for a new one."""
    original = Receivers.greet

    def greet(self: Receivers, peer: str, hello: Hello) -> bool:
        self._hellos.pop(hello.interval, None)
        return original(self, peer, hello)

    return {(Receivers, "greet"): greet}


@mutant
def restarted_without_its_watermark() -> Patches:
    """The next core of an interval is not told how far its inputs are."""
    original = WorkerHost.start

    def start(self: WorkerHost, actor: Any) -> None:
        inputs, self.heard._inputs = self.heard._inputs, {}
        original(self, actor)
        self.heard._inputs = inputs

    return {(WorkerHost, "start"): start}


@mutant
def begins_unheard() -> Patches:
    """Hooks run before their process has heard of the watermarks that hooks before them have seen."""
    return {(Adoption, "hears"): lambda self, computations, still: iter(())}


@mutant
def starts_without_productions_sent() -> Patches:
    """Who hears a hello does not send again what was not acked."""
    original = WorkerHost.handle_core

    def handle(self: WorkerHost, actor: Any, event: ev.Event) -> None:
        if not isinstance(event, ev.Resend):
            original(self, actor, event)

    return {(WorkerHost, "handle_core"): handle}


# --- marks, alarms ------------------------------------------------------------------------------------------------


@mutant
def holder_never_leaves() -> Patches:
    """A suspect whose row the database refused keeps the process for itself."""
    original = WorkerHost._set_aside

    def set_aside(self: WorkerHost, refusal: Any) -> None:
        leave, self._marks.leave = self._marks.leave, lambda actor: None  # type: ignore[method-assign]
        original(self, refusal)
        self._marks.leave = leave  # type: ignore[method-assign]

    return {(WorkerHost, "_set_aside"): set_aside}


@mutant
def waiting_suspect_forgotten() -> Patches:
    """A suspect that waited for another one is not marked when its turn comes."""

    def leave(self: Marks, actor: Any) -> None:
        kept, _ = self._alone.leave(actor)
        for other, work in kept:
            self._invoke(other, work)

    return {(Marks, "leave"): leave}


@only("tests/unit/host/test_alarms.py")
def one_alarm_a_tick() -> Patches:
    """Of the alarms that are due together one rings, and the others are forgotten."""
    original = Alarms.due
    return {(Alarms, "due"): lambda self, now: original(self, now)[:1]}


# --- watermarks ---------------------------------------------------------------------------------------------------


@mutant
def told_before_it_is_stored() -> Patches:
    """A watermark is told before it is durable."""
    original = ControllerHost._persist_all

    def persist_all(self: ControllerHost, authority: Any) -> Any:
        dirty = {*authority._dirty}
        self._tell(self._workers, {}, authority.adopt(authority.changes()))
        authority._dirty |= dirty
        yield from original(self, authority)

    return {(ControllerHost, "_persist_all"): persist_all}


@mutant
def early_reports_lost() -> Patches:
    """What workers say before the controller has read the stored watermarks is forgotten."""
    original = ControllerHost._load

    def load(self: ControllerHost, joined: WorkerJoined) -> Any:
        steps = original(self, joined)
        answer = yield next(steps)
        self._early = [message for message in self._early if not isinstance(message, WatermarkReport | Claimed)]
        try:
            steps.send(answer)
        except StopIteration:
            return

    return {(ControllerHost, "_load"): load}


# --- the end ------------------------------------------------------------------------------------------------------


@mutant
def ends_unfolded() -> Patches:
    """A run ends as soon as everything has run, with acks and log rows left."""

    def rest(self: WorkerHost) -> None:
        if self.finished():
            self._out.append(he.Ended())

    return {(WorkerHost, "_rest"): rest}


@mutant
def ends_before_positions() -> Patches:
    """A run ends before the last positions of its sources are durable."""

    def finished(self: WorkerHost) -> bool:
        values = self.values
        return (
            self.serving
            and self.partitions.complete
            and all(values.get(f"source:{name}", MIN_TIME) >= MAX_TIME for name in self.graph.sources)
        )

    return {(WorkerHost, "finished"): finished}


@only("tests/unit/host/test_worker.py")
def ends_before_redrives() -> Patches:
    """A run whose input is consumed ends without asking for redrives."""
    original = WorkerHost.finished

    def finished(self: WorkerHost) -> bool:
        before, self.redrives.read_all = self.redrives.read_all, True
        try:
            return original(self)
        finally:
            self.redrives.read_all = before

    return {(WorkerHost, "finished"): finished}


@mutant
def redrives_asked_once() -> Patches:
    """Redrives that somebody asks for while a process serves are not seen."""
    original = Redrives.steps

    def redrive(self: Redrives) -> Any:
        steps = original(self)
        wish = next(steps)
        while not isinstance(wish, he.Pause):
            wish = steps.send((yield wish))

    return {(Redrives, "steps"): redrive}


# --- replays ------------------------------------------------------------------------------------------------------


@only("tests/unit/core/source/test_pace.py")
def clock_of_the_first_partition() -> Patches:
    """The clock of a replay begins before the first row of every partition is known."""
    original = Pace.begin

    def begin(self: Pace, now: int) -> bool:
        self._gathering, self._awaited = False, set()
        return original(self, now)

    return {(Pace, "begin"): begin}


@only("tests/sim/test_paced.py")
def early_rows() -> Patches:
    """A replay gives rows up to half a minute early."""
    original = Pace.reached
    return {(Pace, "reached"): lambda self, now: original(self, now) + 30_000_000}


@only("tests/sim/test_paced.py")
def late_rows_in_time() -> Patches:
    """A replay gives late rows before the watermark has passed them."""
    return {(Paces, "_overtaken"): lambda self, actor, pace: True}


@only("tests/unit/runtime/test_shell.py::test_an_answer_that_has_come_during_a_long_turn_is_heard_in_the_next_one")
def answers_wait() -> Patches:
    """An answer of the store that has come while a hook ran waits for the next one."""
    return {(shell, "LONG_TURN_US"): 10**12}
