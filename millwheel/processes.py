"""The processes of a cluster: a worker and a controller, each composed of a host, a store, a transport and a lease.

Lives here: the order in which a process joins, serves and leaves.  Never here: what it decides (`millwheel.host`), or which
processes there are (`millwheel.runtime.supervisor`, systemd, Kubernetes).  Invariants:

* a process listens before it joins, so that whoever reads of it can reach it;
* a process leaves as soon as it ends in order, so that others need not wait for its lease to run out;
* a process whose lease has run out sends nothing, not even what was said before.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

import uvloop

from millwheel import limits
from millwheel.api.pipeline import Pipeline
from millwheel.cluster import RunEnding
from millwheel.core.interval.events import Inherited
from millwheel.errors import ChannelError, Fenced, StoreError
from millwheel.graph import Graph
from millwheel.host.barriers import WentBack
from millwheel.host.leading import ClusterController
from millwheel.host.mapped import MappedOwnership
from millwheel.host.over import Tolerance
from millwheel.host.progress import Progress
from millwheel.host.tally import Tally
from millwheel.host.worker import WorkerHost
from millwheel.ids import IntervalId
from millwheel.launch import OnProgress, report, unhurried_collector
from millwheel.ports import ClusterStore
from millwheel.runtime import memory
from millwheel.runtime.embedded import check_sources
from millwheel.runtime.failures import OnFailure, log_failure
from millwheel.runtime.lease import KeptLease, LeaseOf
from millwheel.runtime.lease_keeper import boot_ns
from millwheel.runtime.retry import Retries
from millwheel.runtime.shell import Shell
from millwheel.runtime.signals import signals_restored, signals_stop
from millwheel.transport.addresses import host_and_port, is_loopback
from millwheel.transport.grpc_channels import GrpcTransport
from millwheel.transport.roles import Role
from millwheel_storage.postgres import PostgresStore

if TYPE_CHECKING:
    from millwheel.transport.certificates import Certificates

logger = logging.getLogger("millwheel")

WILDCARDS = ("0.0.0.0", "[::]")


class ProcessPlan(NamedTuple):
    """What a process of a cluster is given."""

    pipeline: Pipeline
    url: str
    """Of the store."""
    name: str
    """What an operator calls it."""
    listen: str = "127.0.0.1:0"
    """host:port; port 0 finds a free one."""
    advertise: str | None = None
    """host or host:port under which others reach it; without it where it listens."""
    certificates: Certificates | None = None
    lease_us: int = limits.LEASE_US
    allowed: Tolerance = Tolerance()
    """Of a controller: what the whole run may leave over, as `launch.run` has it."""
    cache_bytes: int | None = None
    """Of a worker: memory for state of keys, as `launch.run` has it."""


class Membership(NamedTuple):
    """A process that has joined."""

    incarnation: int
    store: ClusterStore
    transport: GrpcTransport
    lease: KeptLease


def run_worker(
    plan: ProcessPlan, on_progress: OnProgress | None = None, on_failure: OnFailure = log_failure
) -> tuple[Progress, bool]:
    """Serve what the map gives to this worker, until the run is over (True) or this process is told to stop (False).

    Raises `Fenced` when the lease is lost, and what `launch.run` raises.
    """
    check_sources(plan.pipeline.graph())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, unhurried_collector(), signals_restored():
        return runner.run(_worker(plan, on_progress, on_failure))


def run_controller(plan: ProcessPlan) -> RunEnding | None:
    """Lead, or stand by, until the run is over, and say how, or until this process is told to stop (None)."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, signals_restored():
        return runner.run(_controller(plan))


async def _worker(plan: ProcessPlan, on_progress: OnProgress | None, on_failure: OnFailure) -> tuple[Progress, bool]:
    graph, inherited, tally = plan.pipeline.graph(), dict[IntervalId, Inherited](), Tally()
    cache_bytes = memory.granted(plan.cache_bytes)
    while True:
        shells: list[Shell] = []
        try:
            return await _member(plan, graph, inherited, tally, on_progress, on_failure, cache_bytes, shells)
        except WentBack as back:
            inherited = back.inherited
        except Fenced as fenced:  # whoever was taken for dead begins anew, too: all has gone back
            if not graph.snapshot_every_us:
                raise
            logger.warning("%s", fenced)
            inherited = {}
        if shells and shells[0].stopped:  # told while all went back
            return shells[0].progress(), False
        logger.info("all goes back to the last declared epoch: this process joins again, as another member")


async def _member(
    plan: ProcessPlan,
    graph: Graph,
    inherited: Mapping[IntervalId, Inherited],
    tally: Tally,
    on_progress: OnProgress | None,
    on_failure: OnFailure,
    cache_bytes: int,
    shells: list[Shell],
) -> tuple[Progress, bool]:
    """One life as a member; its shell is appended to `shells`."""
    async with _joined(plan, "worker") as member:
        host = WorkerHost(
            graph=graph,
            name=f"w{member.incarnation}",
            controller=None,
            first_records=limits.FIRST_WORK_RECORDS,
            inherited=inherited,
            tally=tally,
            cache_bytes=cache_bytes,
            ownership=lambda worker: MappedOwnership(worker, member.incarnation),
        )
        shell = Shell(
            store=member.store, transport=member.transport, permit=member.lease, worker=host,
            tables=plan.pipeline.tables, on_failure=on_failure,
        )  # fmt: skip
        shells.append(shell)
        reporter = asyncio.create_task(report(shell, on_progress)) if on_progress else None
        try:
            await _served(shell)
        finally:
            host.actors.add_up()
            if reporter is not None:
                reporter.cancel()
        return shell.progress(), not shell.stopped


async def _controller(plan: ProcessPlan) -> RunEnding | None:
    async with _joined(plan, "controller") as member:
        graph = plan.pipeline.graph()
        host = ClusterController(
            member.incarnation, plan.lease_us, graph.snapshot_every_us, plan.allowed, durable=graph.durable
        )
        shell = Shell(store=member.store, transport=member.transport, permit=member.lease, others=[host])
        await _served(shell)
        return None if shell.stopped else host.ending


class _MemberStore(PostgresStore):
    """The store of a member.  Whoever leaves renews no more: its keeper would take the lease that is gone for a lost one."""

    kept: tuple[int, KeptLease] | None = None
    """The member and its lease."""

    async def leave(self, incarnation: int) -> None:
        """See `ClusterStore.leave`."""
        if self.kept is not None and self.kept[0] == incarnation:
            self.kept[1].close()
        await super().leave(incarnation)


async def _served(shell: Shell) -> None:
    with signals_stop(shell):
        await shell.serve()


@asynccontextmanager
async def _joined(plan: ProcessPlan, role: str) -> AsyncIterator[Membership]:
    store = _MemberStore(plan.url, plan.pipeline.name)
    transport = GrpcTransport(plan.listen, plan.certificates)
    try:
        address = advertised(await transport.start(), plan.advertise)
        _check_reached(plan.certificates, Role(role), address)
        await store.open_pipeline(plan.pipeline.graph().shape())
        before, key = boot_ns(), secrets.token_bytes(16)
        member = await Retries().until_answered(
            "join", lambda: store.join(plan.name, role, address, plan.lease_us, key)
        )
        logger.info("this process is member %d of the cluster, reached at %s", member.incarnation, address,
                    extra={"facts": {"host": f"{role[0]}{member.incarnation}", "address": address}})  # fmt: skip
        of = LeaseOf(plan.url, store.schema, member.incarnation, plan.lease_us)
        with KeptLease(of, before) as lease:
            store.kept = (member.incarnation, lease)
            yield Membership(member.incarnation, store, transport, lease)
            await transport.close()
            with suppress(StoreError, TimeoutError):  # then others wait for the lease to run out
                async with asyncio.timeout(limits.LAST_WORDS_LIMIT_S):
                    await store.leave(member.incarnation)
    except (Fenced, WentBack):
        transport.abandon()
        raise
    finally:
        await transport.close()
        await store.close()


def _check_reached(certificates: Certificates | None, role: Role, address: str) -> None:
    """Raises `ChannelError` for a process that nobody would reach: as a member it would be given work."""
    if certificates is not None:
        certificates.check_member(role, address)
    elif not is_loopback(host_and_port(address)[0]):
        raise ChannelError(
            f"others would call this process at {address}, and nobody calls another machine without certificates: give it "
            "some with --certs, or leave --advertise out"
        )


def advertised(listens: str, advertise: str | None) -> str:
    """The address that others are told; raises `ChannelError` when nobody could reach it.

    >>> advertised("0.0.0.0:7000", "worker-3")
    'worker-3:7000'
    """
    host, port = host_and_port(listens)
    if advertise is None:
        if host in WILDCARDS:
            raise ChannelError(f"{listens} is no address that others can call: say which one with --advertise")
        return listens
    if advertise.rpartition(":")[2].isdecimal() and ":" in advertise and not advertise.endswith("]"):
        host_and_port(advertise)
        return advertise
    host_and_port(f"{advertise}:{port}")
    return f"{advertise}:{port}"
