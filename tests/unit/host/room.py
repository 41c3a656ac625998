"""Controllers of a cluster on a store in memory, for tests that go one step at a time."""

from __future__ import annotations

from typing import Any

from millwheel.cluster import Member, PlacedInterval
from millwheel.host import alphabet as he
from millwheel.host.leading import ClusterController
from millwheel.host.messages import (
    Claimed,
    Drained,
    Message,
    WorkerJoined,
)
from millwheel.host.over import Tolerance
from millwheel.host.requests import StoreCall
from millwheel.ids import IntervalId
from millwheel.model import SECOND
from millwheel.ports import PipelineShape
from millwheel.testing.world.calls import run
from millwheel_storage.memory import MemoryStore

LEASE_US = 5 * SECOND


class Room:
    """A store, its clock, and controllers that hear each other at once; what is said to workers is kept."""

    tolerance = Tolerance()

    def __init__(self, snapshot_every_us: int = 0) -> None:
        self.now = 0
        self.snapshot_every_us = snapshot_every_us
        self.store = MemoryStore(lambda: self.now)
        self.members: dict[str, Member] = {}
        self.controllers: dict[str, ClusterController] = {}
        self.cut: set[str] = set()
        """Controllers that hear nothing, and whose time stands still."""
        self.dies_after: type[StoreCall] | None = None
        """Whoever makes such a call is cut before it hears the answer."""
        self.pauses: list[tuple[int, ClusterController, int]] = []
        self.told: list[tuple[str, str, Message]] = []
        self.ended: list[str] = []
        self.noted: list[tuple[str, str]] = []

    def join(self, role: str) -> str:
        name = f"{role} {len(self.members)}"
        member = run(self.store.join(name, role, "here:1", 3_600 * SECOND, name.encode()))
        host = f"{role[0]}{member.incarnation}"
        self.members[host] = member
        if role == "controller":
            self.controllers[host] = ClusterController(
                member.incarnation, LEASE_US, self.snapshot_every_us, self.tolerance
            )
            self.give(host, he.Started())
        return host

    def give(self, host: str, event: he.HostEvent) -> None:
        if host in self.ended or host in self.cut:
            return
        controller = self.controllers[host]
        for effect in controller.handle(event, self.now):
            match effect:
                case he.Ask(token, he.Pause(delay_us)):
                    self.pauses.append((self.now + delay_us, controller, token))
                case he.Ask(token, StoreCall() as call):
                    answer: Any = run(call.call(self.store))
                    if self.dies_after is not None and isinstance(call, self.dies_after):
                        self.cut.add(host)
                    self.give(host, he.Answered(token, answer))
                case he.Tell(peer, message):
                    self.told.append((host, peer, message))
                    if peer in self.controllers:
                        self.give(peer, he.Received(host, message))
                case he.Notice(text):
                    self.noted.append((host, text))
                case he.Ended():
                    self.ended.append(host)
                case _:
                    pass

    def let_pass(self, seconds: float) -> None:
        until = self.now + round(seconds * SECOND)
        while self.now < until:
            self.now += 100_000
            due = [pause for pause in self.pauses if pause[0] <= self.now and pause[1].name not in self.cut]
            for pause in due:
                self.pauses.remove(pause)
                self.give(pause[1].name, he.Answered(pause[2], None))

    def drain(self, leader: str, worker: str, quarantined: dict[IntervalId, int] | None = None) -> None:
        """Say again and again, as a worker does, that all that it has is done."""
        for _ in range(3):
            found, number = run(self.store.cluster_map()), self.members[worker].incarnation
            self.give(leader, he.Received(worker, Drained(number, found.version, quarantined or {})))

    def leave(self, host: str) -> None:
        run(self.store.leave(self.members[host].incarnation))

    def leaders(self) -> list[str]:
        return [host for host, controller in self.controllers.items() if controller.leads]


def heard_by(room: Room, worker: str, kind: type[Any]) -> list[Any]:
    """What a worker was told, of one kind."""
    return [message for _, peer, message in room.told if peer == worker and isinstance(message, kind)]


def placed_one(room: Room) -> tuple[str, str, PlacedInterval]:
    """A leader, and a worker that has got the only interval."""
    run(room.store.open_pipeline(PipelineShape("p", {"count": ()}, {}, {}, (), ())))
    leader, worker = room.join("controller"), room.join("worker")
    room.let_pass(2)
    (placed,) = run(room.store.cluster_map()).intervals
    assert placed.owner == room.members[worker].incarnation
    return leader, worker, placed


def led(room: Room) -> tuple[str, str, PlacedInterval]:
    """A leader that knows who sends to whom, and the owner of the only interval."""
    leader, worker, placed = placed_one(room)
    for message in (WorkerJoined({"count": ()}), Claimed((("count", placed.id, placed.sequencer),))):
        room.give(leader, he.Received(worker, message))
    return leader, worker, placed


def noting(done: list[str], name: str, call: Any) -> Any:
    async def noted(*given: Any) -> Any:
        done.append(name)
        return await call(*given)

    return noted
