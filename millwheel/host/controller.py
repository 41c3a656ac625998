"""The controller: the authority on watermarks, as one process.

Lives here: when watermarks are persisted, and who is told.  Never here: the values, which `core.authority` computes.
Invariants: nobody hears of a watermark before it is durable.  It is persisted only if all intervals that it rests on have the
owners that reported (§7.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import assert_never

from millwheel import limits
from millwheel.core.authority import Authority
from millwheel.errors import InvariantError
from millwheel.host.alphabet import (
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
from millwheel.host.messages import (
    Claimed,
    Concluded,
    Credit,
    Delivery,
    Disowned,
    Drained,
    Excused,
    Expected,
    HandedOver,
    HandOver,
    Hello,
    IntervalSettled,
    MapChanged,
    Message,
    Open,
    Receipt,
    RoundAnswered,
    RoundAsked,
    RunEnded,
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


class ControllerHost:
    """One controller and the workers that it tells.  `name` is its own address."""

    def __init__(self, workers: Iterable[str], name: str = "controller") -> None:
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

    def handle(self, event: HostEvent, now: int) -> list[HostEffect]:
        """React to one event at wall time `now`, us."""
        out = self._out = []
        match event:
            case Received(_, message):
                self._hear(message)
            case Answered(token, answer):
                self._procedures.answered(token, answer)
            case Started():
                pass
            case ChannelOpened(peer):
                if self._authority is not None:
                    self._tell([peer], self._authority.values(), self._authority.inputs())
            case TurnEnded() | Rested() | Tick():
                self._persist()
            case Declined():
                raise AssertionError("a controller writes no sink rows")
            case Told() | Due() | Returned() | RowsArrived():
                raise AssertionError(f"a controller got {type(event).__name__}")
            case _:
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
        match message:
            case WatermarkReport(owner, interval, value):
                self._authority.report(owner, interval, value)
            case WorkerJoined():
                pass  # who joins again has nothing new to say about the graph
            case Claimed(intervals):
                for owner, interval, sequencer in intervals:
                    self._authority.expect(owner, interval, sequencer)
                self._hurry()
            case Unsettled(owner, interval, receivers):
                self._authority.unsettled(owner, interval, receivers)
            case IntervalSettled(interval):
                risen = self._authority.settle(interval)
                if risen:
                    self._tell(self._workers, {}, risen)
                self._hurry()
            case Excused(owner, interval):
                self._authority.excuse(owner, interval)
            case Concluded(owner, interval):
                self._authority.retire(owner, interval)
            case Open(owner, intervals):
                for interval in self._authority.intervals(owner).keys() - {*intervals}:
                    self._authority.retire(owner, interval)
            case SourceBound(source, value):
                self._authority.bound(source, value)
            case RoundAnswered():
                if self._rounds is not None:
                    self._rounds.answered(message)
            case HandedOver() | Drained():
                raise InvariantError(f"the controller of an embedded run was told {type(message).__name__}")
            case (
                Hello() | Delivery() | Receipt() | Credit() | Expected() | WatermarksRaised() | Disowned() | MapChanged()
                | HandOver() | RunEnded() | RoundAsked()
            ):  # fmt: skip
                raise AssertionError(f"a controller was told {type(message).__name__}")
            case _:
                assert_never(message)

    def _load(self, joined: WorkerJoined) -> Steps:
        # Workers join after they have taken over: nothing that an earlier owner committed is ahead of these.
        self._authority = Authority(joined.senders, (yield ReadWatermarks()), joined.loops)
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
        if self._authority is not None and self._authority.changed() and not self._persisting:
            self._persisting = True
            self._procedures.start(self._persist_all(self._authority))

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
        self._out += [Tell(worker, WatermarksRaised(dict(values), dict(inputs))) for worker in workers]
