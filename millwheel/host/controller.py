"""The controller: the authority on watermarks, as one process.

Lives here: when watermarks are persisted, and who is told.  Never here: the values, which `core.authority` computes.
Invariants: nobody hears of a watermark before it is durable, except under snapshots, where nothing durable rests on it before
its epoch does.  It is persisted only if all intervals that it rests on have the owners that reported (§7.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import assert_never

from millwheel import limits
from millwheel.core.authority import Authority
from millwheel.errors import InvariantError
from millwheel.host.alphabet import (
    Announced,
    Answered,
    Ask,
    ChannelOpened,
    Declined,
    Due,
    HostEffect,
    HostEvent,
    Pause,
    Received,
    Rested,
    Returned,
    RowsArrived,
    Started,
    Tell,
    Tick,
    Told,
    TurnEnded,
)
from millwheel.host.epoch_keeper import Declaring
from millwheel.host.messages import (
    Claimed,
    Concluded,
    Disowned,
    EpochBased,
    EpochOpened,
    EpochWanted,
    Excused,
    ImageWritten,
    IntervalSettled,
    Message,
    Open,
    RoundAnswered,
    RoundAsked,
    SourceBound,
    Unsettled,
    WatermarkReport,
    WatermarksRaised,
    WorkerJoined,
)
from millwheel.host.procedures import Procedures, Steps
from millwheel.host.requests import PersistWatermarks, ReadWatermarks
from millwheel.host.rounds import Rounds
from millwheel.ports import WatermarkWrite


def heed(authority: Authority, message: Message) -> dict[str, int]:
    """What a worker's words change.  Returns the computations whose input watermark rose by that."""
    match message:
        case WatermarkReport(owner, interval, value):
            authority.report(owner, interval, value)
        case WorkerJoined():
            pass  # who joins again has nothing new to say about the graph
        case Claimed(intervals):
            for owner, interval, sequencer in intervals:
                authority.expect(owner, interval, sequencer)
        case Unsettled(owner, interval, receivers):
            authority.unsettled(owner, interval, receivers)
        case IntervalSettled(interval):
            return authority.settle(interval)
        case Excused(owner, interval):
            authority.excuse(owner, interval)
        case Concluded(owner, interval):
            authority.retire(owner, interval)
        case Open(owner, intervals):
            for interval in authority.intervals(owner).keys() - {*intervals}:
                authority.retire(owner, interval)
            for interval in intervals:
                authority.expect(owner, interval)
        case SourceBound(source, value):
            authority.bound(source, value)
        case _:
            raise AssertionError(f"a controller was told {type(message).__name__}")
    return {}


class ControllerHost:
    """One controller and the workers that it tells.  `name` is its own address."""

    def __init__(
        self, workers: Iterable[str], name: str = "controller", snapshot_every_us: int = 0, *, durable: bool = True
    ) -> None:
        """Under snapshots there is one every `snapshot_every_us`, and the store hears of it if it is `durable`."""
        self.name = name
        self._workers = tuple(workers)
        self._authority: Authority | None = None
        self._rounds: Rounds | None = None
        """Once there is an authority."""
        self._early: list[Message] = []
        """What workers have said before the persisted watermarks were read."""
        self._loading = False
        self._persisting = False
        self._out: list[HostEffect] = []
        self._procedures = Procedures(self._asked)
        self._epochs: Declaring | None = None
        """Under snapshots."""
        if snapshot_every_us:
            self._epochs = Declaring(
                every_us=snapshot_every_us, begin=self._procedures.start, tell=self._say, values=self._told,
                durable=durable,
            )  # fmt: skip

    def handle(self, event: HostEvent, now: int) -> list[HostEffect]:
        """React to one event at wall time `now`, us."""
        out = self._out = []
        if self._epochs is not None:
            self._epochs.now = now
        if type(event) is TurnEnded or type(event) is Rested or type(event) is Tick:
            self._persist()
        elif type(event) is Received:
            self._hear(event.message)
        elif type(event) is Answered:
            self._procedures.answered(event.token, event.answer)
        elif type(event) is Started:
            pass
        elif type(event) is ChannelOpened:
            if self._authority is not None:
                self._tell([event.peer], self._authority.values(), self._authority.inputs())
            if self._epochs is not None:
                self._out += [Tell(event.peer, message) for message in self._epochs.restate()]
        elif type(event) is Declined:
            self._procedures.declined(event.token, event.refusal)
        elif (
            type(event) is Told or type(event) is Due or type(event) is Returned or type(event) is RowsArrived
            or type(event) is Announced
        ):  # fmt: skip
            raise AssertionError(f"a controller got {type(event).__name__}")
        else:
            assert_never(event)
        return out

    def idle(self) -> bool:
        """True when everybody has heard of everything."""
        return not self._persisting and not (self._authority and self._authority.changed())

    def _asked(self, ask: Ask) -> None:
        self._out.append(ask)

    def _hear(self, message: Message) -> None:
        if self._authority is None:
            self._early.append(message)
            if isinstance(message, WorkerJoined) and not self._loading:
                self._loading = True
                self._procedures.start(self._load(message))
            return
        if type(message) is WatermarkReport and self._epochs is None:
            heed(self._authority, message)  # nearly always
            return
        if isinstance(message, WatermarkReport | RoundAnswered) and self._epochs is not None:
            self._passed(self._authority, message.label, self._epochs)
        if isinstance(message, RoundAnswered):
            if self._rounds is not None:
                self._rounds.answered(message)
            return
        if isinstance(message, EpochBased | EpochOpened | ImageWritten | EpochWanted):
            self._hear_of_epochs(message)
            return
        risen = heed(self._authority, message)
        if risen:
            self._tell(self._workers, {}, risen)
        if isinstance(message, Claimed | IntervalSettled):
            self._hurry()
        elif isinstance(message, WorkerJoined) and self._rounds is not None:
            self._rounds.again()  # a cut has lost questions, or answers

    def _passed(self, authority: Authority, label: int, epochs: Declaring) -> None:
        """What is heard comes from behind the barrier `label`: what was reached before is told, and stored with its epoch."""
        if label > epochs.label:
            self._tell_changes(authority)
            epochs.reported(label)

    def _hear_of_epochs(self, message: EpochBased | EpochOpened | ImageWritten | EpochWanted) -> None:
        if self._epochs is None:
            raise InvariantError(f"a controller without snapshots was told {type(message).__name__}")
        match message:
            case EpochBased(declared):
                self._epochs.based(declared)
            case EpochOpened():
                self._epochs.opened(message)
            case ImageWritten():
                self._epochs.written(message)
            case EpochWanted():
                self._epochs.wanted(message)

    def _load(self, joined: WorkerJoined) -> Steps:
        # Workers join after they have taken over: nothing that an earlier owner committed is ahead of these.
        self._authority = Authority(joined.senders, (yield ReadWatermarks()), joined.loops, joined.shares)
        self._rounds = Rounds(self._authority, self._procedures.start, self._ask_all)
        early, self._early = self._early, []
        for message in early:
            self._hear(message)
        self._tell(self._workers, self._authority.values(), self._authority.inputs())
        self._hurry()

    def _ask_all(self, question: RoundAsked) -> None:
        self._out += [Tell(worker, question) for worker in self._workers]

    def _hurry(self) -> None:
        if self._rounds is not None:
            self._rounds.hurry()

    def _persist(self) -> None:
        if self._authority is not None and self._epochs is not None:
            self._tell_changes(self._authority)
        elif self._authority is not None and self._authority.changed() and not self._persisting:
            self._persisting = True
            self._procedures.start(self._persist_all(self._authority))

    def _tell_changes(self, authority: Authority) -> None:
        """Under snapshots a watermark is told when it is reached, and stored with an epoch."""
        changed = authority.changes()
        if changed:
            self._tell(self._workers, changed, authority.adopt(changed))
            self._hurry()

    def _told(self) -> dict[str, int]:
        return {} if self._authority is None else self._authority.values()

    def _say(self, message: Message) -> None:
        self._out += [Tell(worker, message) for worker in self._workers]

    def _persist_all(self, authority: Authority) -> Steps:
        while authority.changed():
            changed = authority.changes()
            if changed:
                writes = [WatermarkWrite(name, value, authority.owners(name)) for name, value in changed.items()]
                kept = yield PersistWatermarks(writes)
                for write in writes:
                    if write.name not in kept:
                        self._refused(authority, write)
                durable = {name: value for name, value in changed.items() if name in kept}
                self._tell(self._workers, durable, authority.adopt(durable))
                self._hurry()
                yield Pause(limits.PERSIST_DELAY_US)
        self._persisting = False

    def _refused(self, authority: Authority, write: WatermarkWrite) -> None:
        """A watermark was refused.  Workers know whether an interval is just getting another sequencer, so it is retried."""
        authority.refused(write.name)
        self._out += [Tell(worker, Disowned(tuple(sorted(write.owners.items())))) for worker in self._workers]

    def _tell(self, workers: Iterable[str], values: Mapping[str, int], inputs: Mapping[str, int]) -> None:
        label = 0 if self._epochs is None else self._epochs.label
        self._out += [Tell(worker, WatermarksRaised(dict(values), dict(inputs), label)) for worker in workers]
