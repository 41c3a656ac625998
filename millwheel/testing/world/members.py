"""Processes of a simulated cluster: each has one host, a place in the network, and a lease.

Lives here: the keeper of the lease, which renews it beside the host, and what a process does that finds its lease run out.
Never here: decisions, which are the hosts'.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, Protocol

from millwheel.cluster import Member
from millwheel.core.interval.events import Inherited
from millwheel.errors import Fenced
from millwheel.graph import Graph
from millwheel.host.leading import ClusterController
from millwheel.host.mapped import MappedOwnership
from millwheel.ids import IntervalId
from millwheel.testing.checks.replies import WatchedWorker
from millwheel.testing.checks.shared import SharedWatchedStore
from millwheel.testing.world.body import Body, SimulatedHost, World
from millwheel.testing.world.calls import run
from millwheel.testing.world.network import Network, NetworkEnd
from millwheel.testing.world.process import CodeBody

Left = Mapping[IntervalId, Inherited]
RENEWALS: Final = 5
"""Renewals of a lease in its time."""


class ClusterWorld(World, Protocol):
    """What a member needs of the simulation around it."""

    network: Network
    store: SharedWatchedStore
    lease_us: int
    strict: bool
    """A process whose lease has run out finds that at once, as it should; else it goes on until something tells it."""


class Lease:
    """The keeper of one member's lease.  It is a process of its own, which a stop of the other may leave running."""

    def __init__(self, world: ClusterWorld, process: Body, member: Member) -> None:
        self._world = world
        self._process = process
        self._incarnation = member.incarnation
        self.confirmed_at = world.kernel.now
        """When the last renewal that the store confirmed was asked for, us."""
        self.stops_with_process = world.kernel.rng.random() < 0.7
        self._again()

    def _again(self) -> None:
        self._world.kernel.at(self._world.kernel.now + self._world.lease_us // RENEWALS, self._ask)

    def _ask(self) -> None:
        kernel, nemesis, process = self._world.kernel, self._world.nemesis, self._process
        if process.dead:
            return
        if self.stops_with_process and process.frozen_until > kernel.now:
            kernel.at(process.frozen_until, self._ask)
            return
        kernel.at(kernel.now + nemesis.delay_us("renew"), self._renew, kernel.now)
        self._again()

    def _renew(self, asked_at: int) -> None:
        if self._process.dead or self._world.nemesis.strike("renew") in ("refused", "absent"):
            return
        if run(self._world.store.renew(self._incarnation, self._world.lease_us)):
            self.confirmed_at = max(self.confirmed_at, asked_at)

    def check(self) -> None:
        """Raises `Fenced` when the lease may have run out."""
        if self._world.strict and self._world.kernel.now - self.confirmed_at > self._world.lease_us:
            self._world.kernel.probes["process ended by its own lease"] += 1
            raise Fenced("the lease has run out")


class WorkerMember(CodeBody):
    """A worker of the cluster."""

    def __init__(self, world: ClusterWorld, number: int, graph: Graph, member: Member, *, left: Left) -> None:
        """`left` is what it knows from its last membership."""
        ownership = partial(MappedOwnership, incarnation=member.incarnation)
        worker = WatchedWorker(
            graph=graph, name=f"w{member.incarnation}", controller=None, ownership=ownership, inherited=left
        )
        super().__init__(world, number, worker)
        self.member = member
        self.hosts: tuple[SimulatedHost, ...] = (worker,)
        self.transport = NetworkEnd(world.network, worker.name)
        world.network.attach(self, worker)
        self._lease = Lease(world, self, member)

    def check_alive(self) -> None:
        """See `Body`."""
        self._lease.check()

    def reach(self, addresses: Mapping[str, str]) -> None:
        """See `Body`: the network reaches everybody."""


class ControllerMember(Body):
    """A controller of the cluster."""

    def __init__(self, world: ClusterWorld, number: int, member: Member) -> None:
        super().__init__(world, number)
        self.controller = ClusterController(
            member.incarnation, world.lease_us, world.graph.snapshot_every_us, durable=world.graph.durable
        )
        self.member = member
        self.hosts = (self.controller,)
        # Controllers do little: that one is followed just when it decides is what there is to see.
        self.weights = {"place": 300, "persist": 30, "map": 3}
        self.transport = NetworkEnd(world.network, self.controller.name)
        world.network.attach(self, self.controller)
        self._lease = Lease(world, self, member)

    def check_alive(self) -> None:
        """See `Body`."""
        self._lease.check()

    def reach(self, addresses: Mapping[str, str]) -> None:
        """See `Body`: the network reaches everybody."""
