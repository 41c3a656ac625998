"""A worker of a cluster by hand, for tests: what the store and others say, and what it asks and tells."""

from __future__ import annotations

from functools import partial
from typing import Any

from millwheel import Computation, Context, Pipeline, Record, Stream, TextCoder, limits, subscribe
from millwheel.bundles import Bundle
from millwheel.cluster import Leader, Placement
from millwheel.host import alphabet as he
from millwheel.host.mapped import MappedOwnership
from millwheel.host.messages import (
    Delivery,
    MapChanged,
    Message,
)
from millwheel.host.requests import StoreCall
from millwheel.host.worker import WorkerHost
from millwheel.ids import IntervalId, ProducerId, SequenceNumber, sequence_numbers
from millwheel.testing.world.calls import run
from millwheel.work import InvocationOutcome
from millwheel_injectors import IterableSource
from millwheel_storage.memory import MemoryStore

LEASE_US = 3_600_000_000
ONE, TWO, SENDER = IntervalId(1), IntervalId(2), IntervalId(99)
words = Stream("words", TextCoder())


class Keep(Computation[str]):
    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        pass


def one_computation() -> Pipeline:
    """Two intervals, which a source feeds."""
    pipeline = Pipeline("hand")
    pipeline.inject(IterableSource("text", []), into=words)
    pipeline.add(Keep, [subscribe(words, lambda word: word)], name="keep", split_keys=("m",))
    return pipeline


def members(store: MemoryStore, pipeline: Pipeline) -> tuple[int, int, Leader]:
    """Two workers and a leader join the cluster of a new pipeline."""
    mine, other = (
        run(store.join(name, "worker", f"here:{name}", LEASE_US, name.encode())).incarnation
        for name in ("mine", "other")
    )
    leader = run(store.join("leader", "controller", "here:3", LEASE_US, b"3")).incarnation
    run(store.open_pipeline(pipeline.graph().shape()))
    led = run(store.lead(leader, LEASE_US))
    assert led is not None
    return mine, other, led


class ClusterHand:
    """One worker, a leader that this test plays, and another member.  All intervals and sources are nobody's."""

    def __init__(self, pipeline: Pipeline | None = None) -> None:
        pipeline = pipeline or one_computation()
        self.now = 1_000
        self.store = MemoryStore(lambda: self.now)
        self.mine, self.other, led = members(self.store, pipeline)
        self.leader = f"c{led.incarnation}"
        self.led = led
        self.epoch = led.epoch
        ownership = partial(MappedOwnership, incarnation=self.mine)
        self.worker = WorkerHost(graph=pipeline.graph(), name=f"w{self.mine}", controller=None, ownership=ownership)
        self.told: list[tuple[str, Message]] = []
        self.noted: list[str] = []
        self.asked: list[StoreCall] = []
        self.held: type[StoreCall] | None = None
        """Calls that are not answered yet."""
        self.waiting: list[he.Ask] = []
        self.pauses: list[he.Ask] = []
        self.wakes: list[int] = []
        self.ran: list[IntervalId] = []
        self.reached: dict[str, str] = {}
        """The hosts to which messages may go, and their addresses."""
        self.over = False
        """The worker has ended."""
        self.keep_running = False
        """Hooks do not return."""

    def give(self, event: he.HostEvent) -> None:
        for effect in self.worker.handle(event, self.now):
            match effect:
                case he.Tell(peer, message):
                    self.told.append((peer, message))
                case he.Ask(_, StoreCall() as request):
                    self.asked.append(request)
                    if self.held is not None and isinstance(request, self.held):
                        self.waiting.append(effect)
                    else:
                        self.answer(effect)
                case he.Ask(token, he.Prepare()):
                    self.give(he.Answered(token, None))
                case he.Ask():
                    self.pauses.append(effect)
                case he.WakeAt(at):
                    self.wakes.append(at)
                case he.Notice(text):
                    self.noted.append(text)
                case he.Reach(addresses):
                    self.reached = {**addresses}
                case he.Ended():
                    self.over = True
                case he.Post(posted):
                    self.give(posted)
                case he.RunHooks() if self.keep_running:
                    pass
                case he.RunHooks(_, interval, sequencer, _):
                    self.ran.append(interval)
                    self.give(he.Returned(interval, sequencer, InvocationOutcome(processed=1), 0))
                case _:
                    pass

    def answer(self, ask: he.Ask) -> None:
        assert isinstance(ask.wish, StoreCall)
        self.give(he.Answered(ask.token, run(ask.wish.call(self.store))))

    def place(self, *intervals: IntervalId, owner: int | None) -> None:
        self.give(he.Received(self.leader, MapChanged(self.decide(*intervals, owner=owner))))

    def decide(self, *intervals: IntervalId, owner: int | None) -> int:
        """Place intervals without a word to the worker.  Returns the version of the map."""
        found = run(self.store.cluster_map())
        version: int | None = run(
            self.store.place(Placement(self.epoch, found.version, dict.fromkeys(intervals, owner), {}))
        )
        assert version is not None
        return version

    def pass_time(self) -> None:
        """So long that a worker looks again whether something has ended that it waits for."""
        self.now += limits.HAND_OVER_LOOK_US
        for ask in [*self.pauses]:
            self.pauses.remove(ask)
            self.give(he.Answered(ask.token, None))
        self.give(he.TurnEnded())

    def of(self, kind: type[Any]) -> list[Any]:
        found = [message for _, message in self.told if isinstance(message, kind)]
        self.told = [(peer, message) for peer, message in self.told if not isinstance(message, kind)]
        return found

    def owned(self) -> set[IntervalId]:
        return {actor.interval for actor, _ in self.worker.actors.intervals()}

    def deliver(self, producer: int, peer: str, sequence: int = 0) -> None:
        actor = self.worker.actors.all[ONE]
        (number,) = self.worker.routes.subscriptions.values()
        records = Bundle(
            number, SENDER, (producer << 32) + 1 + sequence, ONE, ProducerId(producer), SequenceNumber(0),
            sequence_numbers([sequence]), ["k"], [b"v"], [1],
        )  # fmt: skip
        self.give(he.Received(peer, Delivery(records, actor.sequencer, False)))
