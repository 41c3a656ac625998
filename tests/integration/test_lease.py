"""Leases of processes: kept by a child through hooks that keep the interpreter, lost by a process that was stopped."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from millwheel import Computation, Context, JsonCoder, Pipeline, Record, Stream, subscribe
from millwheel.cluster import RunEnding
from millwheel.errors import Fenced
from millwheel.host.progress import Progress
from millwheel.limits import LEASE_LOOK_S, LEASE_RENEW_S
from millwheel.processes import ProcessPlan, _controller, _worker
from millwheel.runtime.failures import log_failure
from millwheel.runtime.lease import KeptLease, LeaseOf
from millwheel.runtime.lease_keeper import RENEWED, boot_ns, is_stopped
from millwheel_injectors import IterableSource
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres import PostgresStore
from tests.patience import WAIT_S

pytestmark = pytest.mark.postgres

LEASE_US = 3_000_000
SENDER_LEASE_US = 10_000_000
"""Of a process that needs seconds to start on a busy machine."""
rows = Stream("rows", JsonCoder(int))


class Pass(Computation[int]):
    def ProcessRecord(self, context: Context, record: Record[int]) -> None:
        pass


def piped(name: str) -> Pipeline:
    wired = Pipeline(name)
    wired.inject(IterableSource("numbers", [(1, 1)]), into=rows)
    wired.add(Pass, [subscribe(rows, str)])
    return wired


def joined(url: str, name: str, lease_us: int = LEASE_US) -> tuple[LeaseOf, int]:
    """A new member of a new pipeline's cluster, and when it had not joined yet."""

    async def join() -> int:
        wired = piped(name)
        store = PostgresStore(url, name)
        try:
            await store.open_pipeline(wired.graph().shape())
            return (await store.join("one", "worker", "127.0.0.1:1", lease_us, secrets.token_bytes(16))).incarnation
        finally:
            await store.close()

    before = boot_ns()
    return LeaseOf(url, name, asyncio.run(join()), lease_us), before


def alive(of: LeaseOf) -> bool:
    """What the database says of the lease."""

    async def ask() -> bool:
        store = PostgresStore(of.url, of.schema)
        try:
            return next(m.alive for m in (await store.cluster_map()).members if m.incarnation == of.incarnation)
        finally:
            await store.close()

    return asyncio.run(ask())


def exists(process: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def until(true: Callable[[], bool], limit_s: float = WAIT_S) -> float:
    """Wait for something; how long it took, s."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < limit_s
        time.sleep(0.01)
    return time.monotonic() - began


def test_a_hook_that_keeps_the_interpreter_for_four_seconds_loses_no_lease(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    of, before = joined(postgres.url, pipeline)
    with KeptLease(of, before) as lease:
        ctypes.PyDLL(None).sleep(4)  # unlike `time.sleep`, it keeps other threads from running
        lease.check()
        assert alive(of)
    time.sleep(LEASE_US / 1e6 + 0.1)
    assert not alive(of)
    with pytest.raises(Fenced, match=r"run out .* 3 s are allowed.*start it again"):
        lease.check()


def test_a_keeper_that_is_killed_is_replaced(
    postgres: EmbeddedPostgres, pipeline: str, caplog: pytest.LogCaptureFixture
) -> None:
    of, before = joined(postgres.url, pipeline)
    with KeptLease(of, before) as lease:
        first = lease.keeper
        os.kill(first, signal.SIGKILL)
        until(lambda: _checked(lease).keeper != first, 20)
        began = time.monotonic()
        while time.monotonic() - began < LEASE_US / 1e6 + 1:
            lease.check()
            time.sleep(0.05)
        assert alive(of)
        last = lease.keeper
    assert not exists(first)
    assert not exists(last)
    assert "the lease keeper died; starting another" in caplog.messages


def _checked(lease: KeptLease) -> KeptLease:
    lease.check()
    return lease


def test_a_store_that_is_away_for_longer_than_the_lease_ends_it(
    postgres: EmbeddedPostgres, pipeline: str, caplog: pytest.LogCaptureFixture
) -> None:
    of, before = joined(postgres.url, pipeline, 1_000_000)
    nowhere = LeaseOf("postgresql://postgres@127.0.0.1:1/postgres", of.schema, of.incarnation, of.lease_us)

    def lost() -> bool:
        try:
            lease.check()
        except Fenced:
            return True
        return False

    with KeptLease(nowhere, before) as lease:
        until(lost, 60)
        assert boot_ns() - before > 1e9
        with pytest.raises(Fenced):  # it stays lost
            lease.check()
        until(lambda: lost() and "the lease was not renewed" in caplog.text, 60)


def test_a_lease_that_the_database_has_ended_is_lost_at_once_and_for_good(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    of, before = joined(postgres.url, pipeline, 600_000_000)

    async def leave() -> None:
        store = PostgresStore(of.url, of.schema)
        try:
            await store.leave(of.incarnation)
        finally:
            await store.close()

    def lost() -> bool:
        try:
            lease.check()
        except Fenced:
            return True
        return False

    with KeptLease(of, before) as lease:
        assert not lost()
        asyncio.run(leave())
        until(lost, 30)
        began = time.monotonic()
        while time.monotonic() - began < 2 * LEASE_LOOK_S:
            assert lost(), "whatever the clock says of the last renewal"
            time.sleep(0.01)


SLOW_KEEPER = """
import sys, time
from millwheel.runtime import lease_keeper
from millwheel_storage.lease_session import LeaseSession

renew = LeaseSession.renew

def renew_slowly(self, incarnation, lease_us):
    kept = renew(self, incarnation, lease_us)
    time.sleep(1)
    return kept

LeaseSession.renew = renew_slowly
sys.exit(lease_keeper.main())
"""
"""A keeper that hears the database a second late."""


def test_a_renewal_counts_from_when_it_was_asked_for_and_not_from_when_it_was_heard(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    """Else a process would act for a while after the database has let its lease end."""
    of, _ = joined(postgres.url, pipeline, 600_000_000)
    given = json.dumps({**msgspec.structs.asdict(of), "parent": os.getpid()})
    command = [sys.executable, "-c", SLOW_KEEPER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        keeper.stdin.write(given.encode() + b"\n")
        keeper.stdin.flush()
        kind, _, asked_ns = keeper.stdout.readline().decode().partition(" ")
        heard_ns = boot_ns()
        keeper.kill()
    assert kind == RENEWED
    assert heard_ns - int(asked_ns) >= 1e9


SENDER = """
import asyncio, sys
from millwheel.cluster import RunEnding
from millwheel.errors import Fenced
from millwheel.host import alphabet as he
from millwheel.host.messages import Receipt
from millwheel.runtime.lease import KeptLease, LeaseOf
from millwheel.runtime.shell import Shell
from millwheel.transport.local import LocalTransport
from millwheel_storage.memory import MemoryStore

url, schema, incarnation, lease_us, before = sys.argv[1:]

class Talker:
    name = "talker"

    def handle(self, event, now):
        if isinstance(event, he.Started | he.Tick):
            return [he.Tell("peer", Receipt(1, 2, 3)), he.WakeAt(now + 5_000)]
        return []

class Wire(LocalTransport):
    def tell(self, sender, receiver, message):
        print("sent", flush=True)

with KeptLease(LeaseOf(url, schema, int(incarnation), int(lease_us)), int(before)) as lease:
    print("keeper", lease.keeper, flush=True)
    try:
        asyncio.run(Shell(store=MemoryStore(), transport=Wire(), others=[Talker()], permit=lease).serve())
    except Fenced:
        print("fenced", flush=True)
"""
"""A process that says something every five milliseconds."""


class Sender:
    """That process, with a lease, and what it has said."""

    def __init__(self, of: LeaseOf, before: int, said: Path) -> None:
        given = [of.url, of.schema, str(of.incarnation), str(of.lease_us), str(before)]
        self.of = of
        self.said = said
        with said.open("wb") as out:
            self.process = subprocess.Popen([sys.executable, "-c", SENDER, *given], stdout=out)
        until(lambda: self.count() > 20 or self.process.poll() is not None)
        assert self.process.poll() is None, self.lines()
        self.keeper = int(self.lines()[0].split()[1])

    def lines(self) -> list[str]:
        return self.said.read_text().splitlines()

    def count(self) -> int:
        return self.lines().count("sent")

    def stop(self, *others: int) -> None:
        """Send SIGSTOP, and wait until it has stopped."""
        for process in (*others, self.process.pid):
            os.kill(process, signal.SIGSTOP)
            until(lambda process=process: is_stopped(process))  # type: ignore[misc]


@pytest.fixture
def sender(postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path) -> Iterator[Sender]:
    of, before = joined(postgres.url, pipeline, SENDER_LEASE_US)
    made = Sender(of, before, tmp_path / "said")
    yield made
    made.process.kill()
    made.process.wait()


@pytest.mark.parametrize("whole_group", [False, True], ids=["the process", "its keeper too"])
def test_a_process_that_was_stopped_for_longer_than_its_lease_sends_nothing(sender: Sender, whole_group: bool) -> None:
    sender.stop(*([sender.keeper] if whole_group else []))
    said = sender.count()
    until(lambda: not alive(sender.of))  # the keeper does not renew for a process that is stopped
    time.sleep(0.5)
    os.kill(sender.process.pid, signal.SIGCONT)
    if whole_group:
        os.kill(sender.keeper, signal.SIGCONT)
    assert sender.process.wait(WAIT_S) == 0
    assert sender.lines()[-1] == "fenced"
    assert sender.count() == said


def test_a_process_that_was_stopped_for_a_moment_goes_on(sender: Sender) -> None:
    sender.stop()
    said = sender.count()
    time.sleep(LEASE_US / 1e6)
    os.kill(sender.process.pid, signal.SIGCONT)
    until(lambda: sender.count() > said + 20)
    time.sleep(SENDER_LEASE_US / 1e6)
    assert sender.process.poll() is None
    assert "fenced" not in sender.lines()


def test_the_keeper_of_a_process_that_was_killed_ends_within_a_second(sender: Sender) -> None:
    assert exists(sender.keeper)
    sender.process.kill()
    assert until(lambda: not exists(sender.keeper)) < 1


def test_ctrl_c_does_not_end_the_keeper_before_its_parent(sender: Sender) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(sender.keeper, number)
    time.sleep(0.3)
    assert exists(sender.keeper)


def test_a_process_that_leaves_in_order_has_not_lost_its_lease(
    monkeypatch: pytest.MonkeyPatch, postgres: EmbeddedPostgres, pipeline: str
) -> None:
    """The store takes the lease away, and its answer takes longer than the time between two renewals."""
    leave = PostgresStore.leave

    async def slow_leave(self: PostgresStore, incarnation: int) -> None:
        await leave(self, incarnation)
        await asyncio.sleep(2 * LEASE_RENEW_S)

    monkeypatch.setattr(PostgresStore, "leave", slow_leave)
    worker = _worker(ProcessPlan(piped(pipeline), postgres.url, "w", lease_us=SENDER_LEASE_US), None, log_failure)
    controller = _controller(ProcessPlan(piped(pipeline), postgres.url, "c", lease_us=SENDER_LEASE_US))

    async def both() -> tuple[tuple[Progress, bool], RunEnding | None]:
        async with asyncio.timeout(WAIT_S):
            return await asyncio.gather(worker, controller)

    (progress, over), ending = asyncio.run(both())
    assert (progress.injected, over, ending is not None) == (1, True, True)
