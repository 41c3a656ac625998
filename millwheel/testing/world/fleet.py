"""A deterministic simulation of a cluster under faults: workers and controllers on one store.

Lives here: processes that die and are replaced, phase 1 (faults) and phase 2 (heal and converge), and what operators order
meanwhile.  `simulator` is the same for one embedded process.  Never here: what a process does.  One thread, one seed, virtual
time: the same seed gives the same run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from millwheel.api.table import Table
from millwheel.cluster import MapOrder
from millwheel.graph import Graph
from millwheel.ids import IntervalId
from millwheel.model import SECOND
from millwheel.testing.checks.shared import SharedWatchedStore
from millwheel.testing.faults.nemesis import Nemesis
from millwheel.testing.kit.scripted import ScriptedSource
from millwheel.testing.world.calls import run
from millwheel.testing.world.echoes import Echoes
from millwheel.testing.world.kernel import Kernel, Violation
from millwheel.testing.world.members import ControllerMember, Left, WorkerMember
from millwheel.testing.world.network import Network
from millwheel.testing.world.simulator import CONVERGE_LIMIT_US, Unending

Roles = Mapping[str, int]
"""How many workers and controllers there are meant to be."""

JOIN_RETRY_US: Final = 100_000
LEAVES: Final = 0.7
"""The share of deaths that were stops."""
LEAVE_US: Final = (0, 1_000, 10_000, 100_000)
"""How long after its last word a process leaves."""


class ClusterSimulation:
    """One run of a cluster: so many members of each role, as long as it goes on."""

    def __init__(
        self,
        *,
        graph: Graph,
        tables: Mapping[str, Table],
        kernel: Kernel,
        nemesis: Nemesis,
        store: SharedWatchedStore,
        roles: Roles,
        faults_until_us: int = 10 * SECOND,
        mend_us: int | None = None,
        lease_us: int = 2 * SECOND,
        strict: bool = True,
    ) -> None:
        self.graph = graph
        self.tables = tables
        self.watches_values = False
        self.kernel = kernel
        self.nemesis = nemesis
        self.store = store
        self.network = Network(kernel, nemesis)
        self.lease_us = lease_us
        self.strict = strict
        self.echoes: Echoes | None = None
        self.members: list[WorkerMember | ControllerMember] = []
        self.on_mend: Callable[[], None] = lambda: None
        """Called `mend_us` after the start, and every second from then on."""
        self.hold_open: Callable[[], bool] = lambda: False
        """While true a cluster that is done is started again (redrives are waiting)."""
        self.anonymous = False
        """Nobody joins again under the name that it had."""
        self.leaves: random.Random | None = None
        """Dice for processes that were told to stop: they leave the cluster, and do not wait for the end of their lease."""
        self._roles = roles
        self._until = kernel.now + faults_until_us
        self._mend_at = self._until if mend_us is None else kernel.now + mend_us
        self._ending = False
        """A member has ended in order: the run is over, and nobody is replaced."""
        self._finished = False
        store.wire.shared = True
        for spec in graph.sources.values():
            if isinstance(spec.source, ScriptedSource):
                spec.source.clock = lambda: self.kernel.now
                spec.source.chunk = lambda: self.kernel.rng.choice((1, 2, 4))

    def run(self) -> None:
        """To the end; raises `Violation` when an invariant breaks or the run does not converge."""
        self.kernel.at(self._until, self._heal)
        self.kernel.at(self._mend_at, self._mend)
        self._launch_all()
        while not self._finished:
            if self.kernel.now > self._until + 2 * CONVERGE_LIMIT_US:
                raise Unending("I21: the run does not end after its faults did", self.kernel.story())
            if not self.kernel.step():
                raise Unending("I21: nothing is scheduled any more", self.kernel.story())

    # --- members ----------------------------------------------------------------------------------------------

    def _launch_all(self) -> None:
        self._ending = False
        for role, count in self._roles.items():
            for _ in range(count):
                self.kernel.at(self.kernel.now + self.nemesis.delay_us("restart"), self.launch, role)

    def launch(self, role: str, name: str = "", left: Left | None = None) -> None:
        """Another process joins, or one that is called as that in whose place it is.

        `left` is what the same process knows from its last membership.
        """
        if self._ending:
            return
        number = len(self.members) + 1
        member = run(
            self.store.join(name or f"{role} {number}", role, f"here:{number}", self.lease_us, str(number).encode())
        )
        process: WorkerMember | ControllerMember
        if role == "worker":
            process = WorkerMember(self, number, self.graph, member, left=left or {})
        else:
            process = ControllerMember(self, number, member)
        self.members.append(process)
        self.kernel.trace(f"p{number} joins as {process.hosts[0].name}")
        process.start()

    def live(self, role: str) -> list[Any]:
        """Processes of a role that are not dead."""
        return [member for member in self.members if member.member.role == role and not member.dead]

    def crashed(self, process: WorkerMember | ControllerMember) -> None:
        """Somebody starts another process in its place."""
        self.kernel.probes[f"{process.member.role} died"] += 1
        if self.leaves is not None and self.leaves.random() < LEAVES:
            self.kernel.at(self.kernel.now + self.leaves.choice(LEAVE_US), self._leave, process.member.incarnation)
        if not self._ending:
            delay = self.nemesis.delay_us("restart")
            # Under another name it is given, under snapshots, what is left when those have theirs whose names are known.
            name = "" if self.anonymous or len(self.members) % 2 == 0 else process.member.name
            self.kernel.at(self.kernel.now + delay, self.launch, process.member.role, name, process.left)
        self._look_at_end()

    def _leave(self, incarnation: int) -> None:
        self.kernel.trace(f"member {incarnation} leaves")
        self.kernel.probes["member left"] += 1
        run(self.store.leave(incarnation))

    def overtaken(self, process: WorkerMember | ControllerMember) -> None:
        """It is frozen; others find out when its lease has run out."""
        self.kernel.trace(f"p{process.number} is frozen")
        self.kernel.probes[f"{process.member.role} frozen"] += 1

    def ended(self, process: WorkerMember | ControllerMember) -> None:
        """It has left in order: the run is over."""
        self.kernel.trace(f"p{process.number} is done")
        process.dead = True
        self._ending = True
        self._look_at_end()

    def _look_at_end(self) -> None:
        if not self._ending or any(not member.dead for member in self.members):
            return
        if self.hold_open():
            self.kernel.at(self._mend_at, self._launch_all)
        else:
            self._finished = True

    # --- phases -----------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        self.kernel.trace("heal")
        self.nemesis.heal()

    def _mend(self) -> None:
        self.on_mend()
        self.kernel.at(self.kernel.now + SECOND, self._mend)

    # --- orders -----------------------------------------------------------------------------------------------

    def order_something(self, keys: list[str]) -> None:
        """An operator orders a move, a split at one of `keys` or a merge, as the dice say."""
        rng, store = self.kernel.rng, self.store.inner
        rows = sorted(store.intervals.values(), key=lambda row: (row.computation, row.low))
        workers = self.live("worker")
        if not rows or not workers:
            return
        row = rng.choice(rows)
        kind = rng.choice(("move", "split", "merge"))
        member = rng.choice(workers).member
        order = MapOrder("move", (row.id,), to=rng.choice((f"w{member.incarnation}", member.name)))
        if kind == "split":
            order = MapOrder("split", (row.id,), split_keys=(rng.choice(keys),))
        elif kind == "merge":
            after = [other for other in rows if other.computation == row.computation and other.low == row.high]
            order = MapOrder("merge", (row.id, *(other.id for other in after)))
        self.kernel.trace(f"orders {order}")
        self.kernel.probes[f"ordered: {kind}"] += 1
        run(self.store.order(order))


def owned_by(simulation: ClusterSimulation, interval: IntervalId) -> str:
    """Who owns an interval, for a story."""
    owners = [m for m in simulation.live("worker") if interval in m.worker.actors.all]
    return ", ".join(member.hosts[0].name for member in owners) or "nobody"


__all__ = ["ClusterSimulation", "Violation", "owned_by"]
