"""Programs push records over real sockets; each counts once, whatever breaks in between, and quotas make clients wait."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import grpc
import grpc.aio
import pytest

from millwheel import limits
from millwheel.api.snapshots import Checkpoints, Snapshots
from millwheel.errors import ChannelError, LimitError, MillwheelError, PushError, PushRefused, TimestampError, WireError
from millwheel.model import MAX_TIME, MIN_TIME, SECOND, to_us
from millwheel.push import AsyncPusher, Pusher
from millwheel.runtime.embedded import EmbeddedRun
from millwheel.transport.certificates import OwnAuthority, keep
from millwheel.transport.proto import push_pb2 as pb
from millwheel.transport.push_client import _checked_time, _Pending
from millwheel.transport.push_form import PUSH_VERSION, replies, reply_of, request_of
from millwheel.transport.push_queue import PushAccount, Pushed, PushQueue, Row
from millwheel.transport.push_server import PushServer, _Client
from millwheel.transport.roles import PUSH, Role
from millwheel_injectors import PushSource
from millwheel_injectors.pushed import PushPartition
from millwheel_storage.memory import MemoryStore
from tests.chaos.proxy import TcpProxy
from tests.unit.transport import pushing
from tests.unit.transport.network import quick, until
from tests.unit.transport.pushing import ORDERS, check_ledger, pipeline_of, record, running

LOOPBACK = "127.0.0.1:0"


def test_when_the_block_ends_everything_is_durable_once() -> None:
    async def scenario() -> None:
        store, source = MemoryStore(), PushSource(ORDERS, LOOPBACK)
        async with running(store, source), AsyncPusher(source.address, "orders") as pusher:
            for number in range(500):
                await pusher.push(*record(number))
            await pusher.flush()
            await pusher.push_many(map(record, range(400, 1_000)))  # a hundred come again
        await check_ledger(store, 1_000)

    asyncio.run(scenario())


def test_what_clients_bring_is_read_when_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks whether there is something."""
    monkeypatch.setattr("millwheel.core.source.injector.ANNOUNCED_POLL_US", 3_600 * SECOND)
    monkeypatch.setattr("millwheel_injectors.pushed.READ_LIMIT_BYTES", 1_000)  # a read leaves some

    async def scenario() -> None:
        store, source = MemoryStore(), PushSource(ORDERS, LOOPBACK)
        async with running(store, source), AsyncPusher(source.address, "orders") as pusher:
            for first in range(0, 300, 100):
                await pusher.push_many(map(record, range(first, first + 100)))
                async with asyncio.timeout(60):
                    await pusher.flush()
                await asyncio.sleep(0.02)
        await check_ledger(store, 300)

    asyncio.run(scenario())


def test_a_program_without_an_event_loop_pushes_from_any_thread() -> None:
    async def scenario() -> None:
        store, source = MemoryStore(), PushSource(ORDERS, LOOPBACK)

        def program() -> None:
            with Pusher(source.address, "orders") as pusher:
                one = threading.Thread(target=lambda: pusher.push_many(map(record, range(300))))
                one.start()
                for number in range(300, 400):
                    pusher.push(*record(number))
                one.join()
                pusher.flush()

        async with running(store, source):
            await asyncio.to_thread(program)
        await check_ledger(store, 400)

    asyncio.run(scenario())


@pytest.mark.parametrize("durability", [Checkpoints(), Snapshots(every_ms=50)], ids=["checkpoints", "snapshots"])
def test_runs_that_follow_each_other_go_on_and_clients_bring_again_what_was_not_durable(
    durability: Checkpoints | Snapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)

    async def scenario() -> None:
        store, chance = MemoryStore(), random.Random(3)
        address = ""
        done = asyncio.Event()

        async def client(at: str) -> None:
            async with AsyncPusher(at, "orders") as pusher:
                for number in range(3_000):
                    await pusher.push(*record(number))
                    if number % 20 == 0:
                        await asyncio.sleep(0.005)
            done.set()

        pushing, runs = None, 0
        while not done.is_set():
            source = PushSource(ORDERS, address or LOOPBACK)
            async with running(store, source, durability):
                runs += 1
                address = source.address
                pushing = pushing or asyncio.create_task(client(address))
                await asyncio.wait([asyncio.create_task(done.wait())], timeout=chance.uniform(0.1, 0.4))
        assert pushing is not None
        await pushing
        assert runs > 3
        await check_ledger(store, 3_000)

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", [1, 2])
def test_a_connection_that_breaks_loses_and_doubles_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch, 0.03)
    chance = random.Random(seed)

    async def scenario() -> None:
        store, source = MemoryStore(), PushSource(ORDERS, LOOPBACK)
        async with running(store, source):
            proxy = TcpProxy(source.address)
            at, cuts = await proxy.start(), 0

            async def nemesis() -> None:
                nonlocal cuts
                while True:
                    await asyncio.sleep(chance.uniform(0, 0.06))
                    cuts += proxy.connections
                    if chance.random() < 0.1:
                        way = chance.choice([proxy.there, proxy.back])
                        way.hold()
                        await asyncio.sleep(chance.uniform(0, 0.4))
                        way.heal()
                    proxy.cut()

            breaking = asyncio.create_task(nemesis())
            async with AsyncPusher(at, "orders") as pusher:
                for number in range(3_000):
                    await pusher.push(*record(number))
                    if number % 10 == 0:
                        await asyncio.sleep(0.005)
            breaking.cancel()
            assert cuts > 10
            await proxy.close()
        await check_ledger(store, 3_000)

    asyncio.run(scenario())


@pytest.mark.parametrize("way", ["there", "back"])
def test_a_network_that_is_deaf_is_noticed(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)

    async def scenario() -> None:
        store, source = MemoryStore(), PushSource(ORDERS, LOOPBACK)
        async with running(store, source):
            proxy = TcpProxy(source.address)
            async with AsyncPusher([await proxy.start(), source.address], "orders") as pusher:
                await pusher.push(*record(0))
                await pusher.flush()
                getattr(proxy, way).hold()
                await pusher.push(*record(1))
                await pusher.flush()  # over the other address
            await proxy.close()
        await check_ledger(store, 2)

    asyncio.run(scenario())


def test_a_record_that_cannot_be_taken_is_named_and_the_others_are_durable() -> None:
    async def scenario() -> None:
        store, source = MemoryStore(), PushSource(ORDERS, LOOPBACK)
        async with running(store, source) as run:
            async with AsyncPusher(source.address, "orders") as pusher:
                await pusher.push_many(
                    [record(0), ("bad", b"{", 5), record(1), ("no key", b'{"id":"x"}', 6), record(2)]
                )
                with pytest.raises(
                    PushRefused, match=r"2 records were refused; the first, b'bad': CoderError: .* cannot decode"
                ) as error:
                    await pusher.flush()
                assert [id_ for id_, _ in error.value.records] == [b"bad", b"no key"]
                assert "KeyError" in error.value.records[1][1]
                await pusher.push(*record(3))
                await pusher.flush()
                await pusher.push("worse", b"", 7)
                with pytest.raises(PushRefused, match=r"^1 record was refused; the first, b'worse': CoderError: "):
                    await pusher.flush()
            assert run.progress().rejected == 3
        await check_ledger(store, 4)

    asyncio.run(scenario())


@pytest.mark.parametrize("size", [2_000, 5_000_000])
def test_many_refusals_with_long_reasons_reach_the_client(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply that is longer than a client takes ends its stream, and all would be brought and refused again, for ever."""

    def key_of(value: dict[str, Any]) -> str:
        if value["key"] == "bad":
            raise ValueError("\ud800" + "no " * (size // 3))
        return str(value["key"])

    monkeypatch.setattr(pushing, "key_of", key_of)
    count = 10_000_000 // size + 1

    async def scenario() -> None:
        store, source = MemoryStore(), PushSource(ORDERS, LOOPBACK)
        async with running(store, source) as run:
            async with AsyncPusher(source.address, "orders", patience_s=20) as pusher:
                for number in range(count):
                    await pusher.push_many([record(number), (f"bad{number}", b'{"key":"bad"}', 5)])
                with pytest.raises(PushRefused) as error:
                    await pusher.flush()
            assert [id_ for id_, _ in error.value.records] == [b"bad%d" % number for number in range(count)]
            assert {reason[:25] for _, reason in error.value.records} == {r"ValueError: \ud800no no no"[:25]}
            assert run.progress().rejected == count
        await check_ledger(store, count)

    asyncio.run(scenario())


@pytest.mark.parametrize("quota", ["PUSH_CLIENT_RECORDS", "PUSH_CLIENT_BYTES", "PUSH_TOTAL_BYTES"])
def test_a_quota_makes_a_client_wait_and_nothing_fail(
    quota: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    quick(monkeypatch, 0.15)  # on a busy machine nobody is silent for long enough by chance
    monkeypatch.setattr(limits, quota, {"PUSH_CLIENT_RECORDS": 100}.get(quota, 100_000))
    monkeypatch.setattr(limits, "PUSH_MESSAGE_BYTES", 10_000)
    monkeypatch.setattr(limits, "PUSH_WINDOW_RECORDS", 10**6)
    monkeypatch.setattr(limits, "PUSH_WINDOW_BYTES", 10**9)

    async def scenario() -> None:
        queue = PushQueue()
        addresses: list[str] = []
        server = asyncio.create_task(PushServer(queue, "orders", LOOPBACK, id_slack_us=10**9).serve(addresses.append))
        await until(lambda: addresses)
        async with AsyncPusher(addresses[0], "orders") as pusher:
            for number in range(5_000):
                await pusher.push(str(number), bytes(1_000), 1)
            await asyncio.sleep(1.5)  # longer than the silence that is taken for a break
            held = queue.held_bytes
            assert 90_000 < held < 130_000
            taken = 0
            while taken < 5_000:
                rows = queue.read(50, 10**6)
                assert [int(row.id) for row in rows] == [*range(taken, taken + len(rows))]
                taken += len(rows)
                queue.keep(taken)
                assert queue.held_bytes < 130_000
                await asyncio.sleep(0.002)
            await pusher.flush()
        assert queue.clients == 0 or await gone(queue)
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)

    asyncio.run(scenario())
    assert caplog.messages == [], "one stream is enough, and goes on as soon as there is room"


def test_refusals_of_records_that_are_done_at_once_all_reach_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take several replies: who heard in the first of them that all is done would not look at the others."""
    monkeypatch.setattr(limits, "PUSH_MESSAGE_BYTES", 10_000)
    count = 200

    async def scenario() -> None:
        queue, addresses, rows = PushQueue(), list[str](), list[Row]()
        server = asyncio.create_task(PushServer(queue, "orders", LOOPBACK, id_slack_us=10**9).serve(addresses.append))
        await until(lambda: addresses)
        async with AsyncPusher(addresses[0], "orders") as pusher:
            await pusher.push_many([(str(number), b"", 1) for number in range(count)])
            while len(rows) < count:
                rows += queue.read(count, 10**6)
                await asyncio.sleep(0.002)
            for row in rows:
                queue.refuse(row.row, "no " * 300)
            queue.keep(count)
            with pytest.raises(PushRefused) as error:
                await pusher.flush()
        assert [id_ for id_, _ in error.value.records] == [b"%d" % number for number in range(count)]
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)

    asyncio.run(scenario())


class Hears:
    """The other end of a stream, to which a source speaks."""

    def __init__(self, heard: Callable[[pb.PushReply], None]) -> None:
        self._heard = heard
        self.told: list[pb.PushReply] = []

    def peer(self) -> str:
        return "here"

    async def write(self, data: bytes) -> None:
        self.told.append(reply_of(data))
        self._heard(self.told[-1])


def test_a_sign_of_life_says_nothing_of_what_is_done_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client would take a record for durable before it hears that it is refused."""
    monkeypatch.setattr(limits, "CHANNEL_BEAT_S", 0.0)  # one goes out with every word
    queue = PushQueue()

    def heard(reply: pb.PushReply) -> None:
        if len(hears.told) == 1:  # while the source waits until this has gone out
            queue.refuse(1, "no")
            queue.keep(2)

    async def scenario() -> None:
        client = _Client(queue, hears)
        queue.put(client._account, Pushed([b"a", b"b"], [b"", b""], [1, 1]))
        queue.read(2, 1_000)
        queue.keep(1)
        telling = asyncio.create_task(client._tell())
        await until(lambda: any(reply.refused for reply in hears.told))
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)

    hears = Hears(heard)
    asyncio.run(scenario())
    kept = 0
    for reply in hears.told:
        assert all(one.number >= kept for one in reply.refused)
        kept = reply.kept
    assert kept == 2


async def gone(queue: PushQueue) -> bool:
    await until(lambda: queue.clients == 0)
    return True


def test_what_is_brought_again_comes_in_the_order_in_which_it_was_pushed(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)

    async def scenario() -> None:
        first, second, addresses, got = PushQueue(), PushQueue(), list[str](), list[bytes]()

        def serve(queue: PushQueue, at: str) -> asyncio.Task[None]:
            return asyncio.create_task(PushServer(queue, "orders", at, id_slack_us=10**9).serve(addresses.append))

        def read(queue: PushQueue, count: int) -> bool:
            got.extend(row.id for row in queue.read(100, 10**6))
            return len(got) >= count

        server = serve(first, LOOPBACK)
        await until(lambda: addresses)
        async with AsyncPusher(addresses[0], "orders") as pusher:
            for number in range(6):
                await pusher.push(*record(number))
            await until(lambda: read(first, 6))
            got.clear()
            server.cancel()
            await asyncio.wait([server])
            server = serve(second, addresses[0])
            for number in range(6, 9):
                await pusher.push(*record(number))
            await until(lambda: read(second, 9))
            assert got == [f"r{number}".encode() for number in range(9)]
            second.keep(9)
        server.cancel()
        await asyncio.wait([server])

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("limit", "most"), [("PUSH_WINDOW_RECORDS", 10), ("PUSH_WINDOW_BYTES", 10 * (1 + limits.RECORD_OVERHEAD_BYTES))]
)
def test_a_client_waits_when_its_window_is_full(limit: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, limit, most)

    async def scenario() -> None:
        queue = PushQueue()
        addresses: list[str] = []
        server = asyncio.create_task(PushServer(queue, "orders", LOOPBACK, id_slack_us=1).serve(addresses.append))
        await until(lambda: addresses)
        async with AsyncPusher(addresses[0], "orders") as pusher:
            pushing = asyncio.create_task(pusher.push_many((f"{n:x}", b"", 1) for n in range(11)))
            await asyncio.sleep(0.2)
            assert not pushing.done()
            queue.read(100, 10**6)
            queue.keep(1)
            await pushing
            await until(lambda: [row.row for row in queue.read(100, 10**6)] == [10])
            queue.keep(11)
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)

    asyncio.run(scenario())


def test_what_waits_for_an_answer_when_a_stream_breaks_is_sent_before_what_was_never_sent() -> None:
    async def scenario() -> None:
        queue, addresses = PushQueue(), list[str]()
        server = asyncio.create_task(PushServer(queue, "orders", LOOPBACK, id_slack_us=10**9).serve(addresses.append))
        await until(lambda: addresses)
        pusher = AsyncPusher(addresses[0], "orders")
        pusher._sent.extend(_Pending(b"%d" % number, b"", 1, sent_at=0.0) for number in range(3))
        pusher._unsent.extend(_Pending(b"%d" % number, b"", 1) for number in range(3, 6))
        pusher._slack_s = None
        async with pusher:
            rows: list[bytes] = []
            while len(rows) < 6:
                rows += [row.id for row in queue.read(10, 10**6)]
                await asyncio.sleep(0.002)
            queue.keep(6)
        assert rows == [b"%d" % number for number in range(6)]
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)

    asyncio.run(scenario())


@asynccontextmanager
async def served_by(push: Callable[[Any, Any], Any]) -> AsyncIterator[str]:
    """A source that says what `push` says."""
    server = grpc.aio.server()
    _, service, method = PUSH.split("/")
    handlers: dict[str, Any] = {method: grpc.stream_stream_rpc_method_handler(push)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port(LOOPBACK)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


FINAL = [
    "FAILED_PRECONDITION",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "UNIMPLEMENTED",
]


@pytest.mark.parametrize("code", FINAL)
def test_what_every_try_would_be_answered_with_is_said_at_once(code: str) -> None:
    async def push(_: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode[code], "never")

    async def scenario() -> None:
        async with served_by(push) as address:
            with pytest.raises(PushError, match="takes no records of 'orders' from this client: never"):
                async with AsyncPusher(address, "orders", patience_s=30) as pusher:
                    await pusher.push("a", b"", 1)

    asyncio.run(scenario())


@pytest.mark.parametrize("before_s", [None, 1.0, 1_000.0])
def test_how_long_ids_are_remembered_is_what_the_last_source_says(before_s: float | None) -> None:
    """A record that is sent again counts twice, if it is the first source that is believed."""

    async def push(_: Any, context: Any) -> None:
        await context.write(pb.PushReply(id_slack_us=5_000_000).SerializeToString())
        await asyncio.sleep(60)

    async def scenario() -> None:
        async with served_by(push) as address:
            pusher = AsyncPusher(address, "orders")
            pusher._slack_s = before_s
            async with pusher:
                await until(lambda: pusher._slack_s == 5.0)

    asyncio.run(scenario())


async def refused_in_its_block(address: str, queue: PushQueue) -> None:
    async with AsyncPusher(address, "orders") as pusher:
        await pusher.push("a", b"", 1)
        await until(lambda: queue.read(1, 10**6))
        queue.refuse(0, "no")
        queue.keep(1)
        await until(lambda: not (pusher._sent or pusher._unsent))


def test_what_was_refused_is_told_at_the_end_of_the_block_though_nothing_waits_any_more() -> None:
    async def scenario() -> None:
        queue, addresses = PushQueue(), list[str]()
        server = asyncio.create_task(PushServer(queue, "orders", LOOPBACK, id_slack_us=10**9).serve(addresses.append))
        await until(lambda: addresses)
        with pytest.raises(PushRefused, match="1 record was refused; the first, b'a': no"):
            await refused_in_its_block(addresses[0], queue)
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)

    asyncio.run(scenario())


def test_a_refusal_without_a_reason_is_none_the_less_one() -> None:
    async def push(_: Any, context: Any) -> None:
        await context.write(pb.PushReply(id_slack_us=10**12).SerializeToString())
        while not pb.PushRequest.FromString(await context.read()).ids:
            pass
        await context.write(pb.PushReply(kept=1, refused=[pb.Refusal(number=0)]).SerializeToString())
        await asyncio.sleep(60)

    async def scenario() -> None:
        async with served_by(push) as address, AsyncPusher(address, "orders", patience_s=30) as pusher:
            await pusher.push("a", b"", 1)
            with pytest.raises(PushRefused, match="1 record was refused; the first, b'a': it gives no reason"):
                await pusher.flush()

    asyncio.run(scenario())


WRONG = [
    pb.PushReply(kept=2),
    pb.PushReply(kept=1, refused=[pb.Refusal(number=1, reason="not sent")]),
    pb.PushReply(refused=[pb.Refusal(number=2**63 - 1, reason="not sent")]),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_source_that_says_what_cannot_be_is_called_again_and_believed_in_nothing(
    wrong: pb.PushReply, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    quick(monkeypatch)
    streams: list[list[bytes]] = []

    async def push(_: Any, context: Any) -> None:
        streams.append([])
        await context.write(pb.PushReply(id_slack_us=10**12).SerializeToString())
        while not streams[-1]:
            streams[-1] += pb.PushRequest.FromString(await context.read()).ids
        await context.write((wrong if len(streams) == 1 else pb.PushReply(kept=1)).SerializeToString())
        await context.read()
        await asyncio.sleep(60)

    async def scenario() -> None:
        async with served_by(push) as address, AsyncPusher(address, "orders", patience_s=30) as pusher:
            await pusher.push("a", b"", 1)
            await pusher.flush()
            assert streams == [[b"a"], [b"a"]]

    asyncio.run(scenario())


def test_a_refusal_is_of_a_record_that_waits_and_not_of_one_that_is_done(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A number below those that wait would count from the end of the list, and name the newest of them."""
    quick(monkeypatch)
    streams: list[list[bytes]] = []

    async def push(_: Any, context: Any) -> None:
        streams.append([])
        await context.write(pb.PushReply(id_slack_us=10**12).SerializeToString())
        wanted = 3 if len(streams) == 1 else 2
        while len(streams[-1]) < wanted:
            streams[-1] += pb.PushRequest.FromString(await context.read()).ids
        await context.write(pb.PushReply(kept=wanted - 2).SerializeToString())
        late = (
            pb.PushReply(kept=1, refused=[pb.Refusal(number=0, reason="late")]) if wanted == 3 else pb.PushReply(kept=2)
        )
        await context.write(late.SerializeToString())
        if wanted == 3:
            await context.write(pb.PushReply(kept=3).SerializeToString())
        await asyncio.sleep(60)

    async def scenario() -> None:
        async with served_by(push) as address, AsyncPusher(address, "orders", patience_s=30) as pusher:
            await pusher.push_many((str(number), b"", 1) for number in range(3))
            await pusher.flush()
            assert streams == [[b"0", b"1", b"2"], [b"1", b"2"]]

    asyncio.run(scenario())


def test_a_client_with_nothing_to_say_shows_that_it_is_there_and_frees_what_it_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick(monkeypatch)
    joined: list[object] = []

    class Counting(PushQueue):
        def join(self, news: Callable[[], None]) -> PushAccount:
            joined.append(news)
            return super().join(news)

    async def scenario() -> None:
        queue, addresses = Counting(), list[str]()
        server = asyncio.create_task(PushServer(queue, "orders", LOOPBACK, id_slack_us=10**9).serve(addresses.append))
        await until(lambda: addresses)
        async with AsyncPusher(addresses[0], "orders") as pusher:
            await pusher.push("a", b"", 1)
            assert pusher._held_bytes > 0
            await until(lambda: queue.read(1, 10**6))
            queue.keep(1)
            await pusher.flush()
            assert pusher._held_bytes == 0
            before = len(joined)
            await asyncio.sleep(6 * limits.CHANNEL_SILENT_BEATS * limits.CHANNEL_BEAT_S)
            assert len(joined) == before
            pusher._moved_at -= 2 * limits.PUSH_PATIENCE_S  # it had nothing to push for longer than its patience
            await pusher.push("b", b"", 1)
            assert asyncio.get_running_loop().time() - pusher._moved_at < limits.PUSH_PATIENCE_S
            await until(lambda: queue.read(1, 10**6))
            queue.keep(2)
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)

    asyncio.run(scenario())


def test_every_address_of_another_machine_needs_certificates() -> None:
    with pytest.raises(ChannelError, match=r"192\.0\.2\.1:7000 is on another machine"):
        AsyncPusher(["127.0.0.1:7000", "192.0.2.1:7000"], "orders")


async def ended_by_an_error(address: str) -> None:
    async with AsyncPusher(address, "orders") as pusher:
        await pusher.push("a", b"", 1)  # nobody says that it is durable
        raise KeyError


def test_a_block_that_ends_with_an_error_waits_for_nothing() -> None:
    async def scenario() -> None:
        queue, addresses = PushQueue(), list[str]()
        server = asyncio.create_task(PushServer(queue, "orders", LOOPBACK, id_slack_us=10**9).serve(addresses.append))
        await until(lambda: addresses)
        with pytest.raises(KeyError):
            await asyncio.wait_for(ended_by_an_error(addresses[0]), 30)
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)

    asyncio.run(scenario())


@pytest.mark.parametrize("where", ["_sent", "_unsent"])
def test_the_oldest_record_is_looked_at_between_two_streams_wherever_it_waits(where: str) -> None:
    async def scenario() -> None:
        pusher = AsyncPusher("127.0.0.1:1", "orders")
        now = asyncio.get_running_loop().time()
        pusher._slack_s, pusher._moved_at = 10.0, now
        getattr(pusher, where).extend(_Pending(id_, b"", 1, sent_at=now - age) for id_, age in ((b"a", 5), (b"b", 1)))
        pusher._give_up_in_time("the source is away")
        getattr(pusher, where)[0].sent_at = now - 15
        with pytest.raises(PushError, match="longer than the source remembers ids"):
            pusher._give_up_in_time("the source is away")

    asyncio.run(scenario())


# What the source makes of it


def partition_of(source: PushSource[Any], known: set[str]) -> PushPartition[Any]:
    (found,) = source.discover(known)
    assert isinstance(found, PushPartition)
    return found


def test_a_source_that_is_given_up_and_got_again_has_another_partition() -> None:
    source = PushSource(ORDERS, LOOPBACK)
    assert not source.complete()
    first = partition_of(source, set())
    assert source.discover({first.name}) == []
    assert source.complete()
    first.close()
    assert partition_of(source, {first.name}).name != first.name


def test_a_row_that_cannot_be_taken_is_told_to_its_client_and_counted() -> None:
    source = PushSource(ORDERS, LOOPBACK)
    partition = partition_of(source, set())
    account = partition.queue.join(lambda: None)
    partition.queue.put(account, Pushed([b"a", b"b"], [b"no json", b"{}"], [1, 2]))
    read = partition.read(10)
    assert read is not None
    assert (read.rows, read.rejected, account.refused[0][0]) == ([1], 1, 0)
    source.reject("pushed-before", 1, "of an earlier process", {})
    assert len(account.refused) == 1
    assert sum(source.rejections().values()) == 2


def test_an_event_time_at_the_end_of_time_does_not_end_the_watermark() -> None:
    partition = partition_of(PushSource(ORDERS, LOOPBACK), set())
    account = partition.queue.join(lambda: None)
    partition.queue.put(account, Pushed([b"a", b"b"], [b"{}", b"{}"], [MAX_TIME, 50 * SECOND]))
    assert partition.read(10) is not None
    assert partition.watermark() == 40 * SECOND


def test_a_source_remembers_ids_for_some_time() -> None:
    with pytest.raises(ValueError, match="id_slack=0: clients bring again what got no answer"):
        PushSource(ORDERS, LOOPBACK, id_slack=0)


def test_patience_counts_from_what_became_durable_last_and_only_while_something_waits() -> None:
    async def scenario() -> None:
        queue, addresses = PushQueue(), list[str]()
        server = asyncio.create_task(PushServer(queue, "orders", LOOPBACK, id_slack_us=10**9).serve(addresses.append))
        await until(lambda: addresses)
        async with AsyncPusher(addresses[0], "orders") as pusher:
            await pusher.push_many((str(number), b"", 1) for number in range(2))
            await until(lambda: queue.read(1, 10**6))
            before = asyncio.get_running_loop().time()
            queue.keep(1)
            await until(lambda: len(pusher._sent) + len(pusher._unsent) == 1)
            assert pusher._moved_at >= before
            await until(lambda: queue.read(1, 10**6))
            queue.keep(2)
            await pusher.flush()
            pusher._moved_at -= 2 * limits.PUSH_PATIENCE_S
            pusher._give_up_in_time("the source is away")
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)

    asyncio.run(scenario())


def test_what_is_pushed_while_something_waits_is_no_reason_for_more_patience() -> None:
    async def scenario() -> None:
        async with AsyncPusher("127.0.0.1:1", "orders") as pusher:
            for number in range(3):
                await pusher.push(str(number), b"", 1)
                pusher._moved_at -= 0.4 * limits.PUSH_PATIENCE_S
            with pytest.raises(PushError, match="nothing has become durable"):
                pusher._give_up_in_time("the source is away")
            pusher._unsent.clear()

    asyncio.run(scenario())


def test_the_largest_record_is_taken_at_once() -> None:
    async def scenario() -> None:
        queue, addresses = PushQueue(), list[str]()
        server = asyncio.create_task(PushServer(queue, "orders", LOOPBACK, id_slack_us=10**9).serve(addresses.append))
        await until(lambda: addresses)
        async with AsyncPusher(addresses[0], "orders", patience_s=20) as pusher:
            await pusher.push(b"i" * limits.OUTSIDE_ID_LIMIT_BYTES, bytes(limits.VALUE_LIMIT_BYTES), 1)
            await until(lambda: len(queue.read(1, 10**9)) == 1, 20.0)
            queue.keep(1)
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)

    asyncio.run(scenario())


# What is refused


async def refusal(address: str, *messages: bytes) -> tuple[grpc.StatusCode, str]:
    async with grpc.aio.insecure_channel(address, options=[("grpc.max_send_message_length", -1)]) as channel:
        method: Any = channel.stream_stream(PUSH)
        call = method()
        try:
            for message in messages:
                await call.write(message)
            while await call.read() is not grpc.aio.EOF:
                pass
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        return await call.code(), await call.details()


def opening(stream: str = "orders", version: int = PUSH_VERSION) -> bytes:
    return pb.PushRequest(opening=pb.Opening(version=version, stream=stream)).SerializeToString()


@pytest.mark.parametrize(
    ("messages", "code", "says"),
    [
        ([b"\xff"], grpc.StatusCode.INVALID_ARGUMENT, "no message of a client"),
        ([b""], grpc.StatusCode.INVALID_ARGUMENT, "begins with an opening"),
        ([opening(version=9)], grpc.StatusCode.FAILED_PRECONDITION, "version 9"),
        ([opening(version=0)], grpc.StatusCode.FAILED_PRECONDITION, "version 0"),
        ([opening("other")], grpc.StatusCode.NOT_FOUND, "called 'orders', and not 'other'"),
        ([opening(), opening()], grpc.StatusCode.INVALID_ARGUMENT, "in the middle of a stream"),
        ([opening(), b"\xff"], grpc.StatusCode.INVALID_ARGUMENT, "no message of a client"),
        (
            [opening(), pb.PushRequest(ids=[b"a"]).SerializeToString()],
            grpc.StatusCode.INVALID_ARGUMENT,
            "the same number",
        ),
        (
            [opening(), bytes(limits.PUSH_MESSAGE_LIMIT_BYTES + 1)],
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "larger than max",
        ),
    ],
)
def test_a_malformed_client_gets_a_status_and_disturbs_nobody(
    messages: list[bytes], code: grpc.StatusCode, says: str
) -> None:
    async def scenario() -> None:
        store, source = MemoryStore(), PushSource(ORDERS, LOOPBACK)
        async with running(store, source), AsyncPusher(source.address, "orders") as pusher:
            await pusher.push(*record(0))
            found = await refusal(source.address, *messages)
            assert found[0] is code
            assert says in found[1]
            await pusher.push(*record(1))
        await check_ledger(store, 2)

    asyncio.run(scenario())


def test_whoever_opens_a_stream_and_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no client yet, and no quota bounds how many of these there are."""
    quick(monkeypatch)

    async def scenario() -> None:
        addresses = list[str]()
        serving = PushServer(PushQueue(), "orders", LOOPBACK, id_slack_us=1).serve(addresses.append)
        server = asyncio.create_task(serving)
        await until(lambda: addresses)
        code, says = await asyncio.wait_for(refusal(addresses[0]), 20)
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "no opening came" in says
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)

    asyncio.run(scenario())


def test_a_client_that_has_said_all_gets_the_rest_of_its_answers_before_its_stream_ends() -> None:
    async def kept(address: str, *messages: bytes) -> int:
        async with grpc.aio.insecure_channel(address) as channel:
            method: Any = channel.stream_stream(PUSH)
            call, told = method(), 0
            for message in messages:
                await call.write(message)
            await call.done_writing()
            while (data := await call.read()) is not grpc.aio.EOF:
                told = max(told, pb.PushReply.FromString(data).kept)
            assert await call.code() is grpc.StatusCode.OK
            return told

    async def scenario() -> None:
        store, source = MemoryStore(), PushSource(ORDERS, LOOPBACK)
        brought = [record(n) for n in range(100)]
        request = pb.PushRequest(
            ids=[str(id_).encode() for id_, _, _ in brought], values=[value for _, value, _ in brought],
            timestamps=[to_us(at) for _, _, at in brought],
        )  # fmt: skip
        async with running(store, source):
            assert await kept(source.address, opening(), request.SerializeToString()) == 100
        await check_ledger(store, 100)

    asyncio.run(scenario())


def test_an_opening_brings_no_records() -> None:
    both = pb.PushRequest(
        opening=pb.Opening(version=PUSH_VERSION, stream="orders"), ids=[b"a"], values=[b""], timestamps=[1]
    )
    with pytest.raises(WireError, match="an opening comes alone"):
        request_of(both.SerializeToString())


def test_nothing_is_said_to_be_done_before_all_that_is_refused_of_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PUSH_MESSAGE_BYTES", 2 * limits.RECORD_OVERHEAD_BYTES)
    refused = [(number, "why") for number in range(3, 9)]
    told = [reply_of(data) for data in replies(3, 9, refused)]
    assert [reply.kept for reply in told] == [3] * (len(told) - 1) + [9]
    assert len(told) > 2
    assert [(one.number, one.reason) for reply in told for one in reply.refused] == refused


@pytest.mark.parametrize("why", ["nothing is to be said", "its quota is used up", "it has said all"])
def test_a_client_that_is_silent_is_ended_unless_it_has_to_wait(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits cannot show that it is there: of a client whose quota is used up, nothing is read."""
    quick(monkeypatch)
    monkeypatch.setattr(limits, "PUSH_CLIENT_RECORDS", 10)
    many = 5 if why == "it has said all" else 10
    request = pb.PushRequest(ids=[b"%d" % n for n in range(many)], values=[b""] * many, timestamps=[1] * many)

    async def scenario() -> None:
        queue, addresses = PushQueue(), list[str]()
        server = asyncio.create_task(PushServer(queue, "orders", LOOPBACK, id_slack_us=10**9).serve(addresses.append))
        await until(lambda: addresses)
        async with grpc.aio.insecure_channel(addresses[0]) as channel:
            method: Any = channel.stream_stream(PUSH)
            call = method()
            await call.write(opening())
            if why == "nothing is to be said":
                await until(lambda: queue.clients == 1)
                await until(lambda: queue.clients == 0, 30.0)
            else:
                await call.write(request.SerializeToString())
                if why == "it has said all":
                    await call.done_writing()
                await asyncio.sleep(4 * limits.CHANNEL_SILENT_BEATS * limits.CHANNEL_BEAT_S)
                assert queue.clients == 1
                queue.keep(len(queue.read(many, 10**6)))
                told = 0
                while told < many and (data := await call.read()) is not grpc.aio.EOF:
                    told = pb.PushReply.FromString(data).kept
                assert told == many
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)

    asyncio.run(scenario())


@pytest.mark.parametrize("make", [lambda a: AsyncPusher(a, "other"), lambda a: AsyncPusher([a], "")])
def test_a_client_that_is_refused_says_so_at_once(make: Callable[[str], AsyncPusher]) -> None:
    async def scenario() -> None:
        source = PushSource(ORDERS, LOOPBACK)
        async with running(MemoryStore(), source):
            with pytest.raises(PushError, match="takes no records of"):
                async with make(source.address) as pusher:
                    await pusher.push(*record(0))

    asyncio.run(scenario())


def test_too_many_clients_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    monkeypatch.setattr(limits, "PUSH_CLIENTS_LIMIT", 1)

    async def scenario() -> None:
        store, source = MemoryStore(), PushSource(ORDERS, LOOPBACK)
        async with running(store, source):
            first = AsyncPusher(source.address, "orders")
            async with first:
                await first.push(*record(0))
                await first.flush()
                second = asyncio.create_task(push_one(source.address, 1))
                await asyncio.sleep(0.3)
                assert not second.done()
            await second
        await check_ledger(store, 2)

    asyncio.run(scenario())


def test_streams_that_are_not_opened_yet_count_among_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that come at once would be let in, however many there are."""
    monkeypatch.setattr(limits, "PUSH_CLIENTS_LIMIT", 1)

    async def scenario() -> None:
        addresses = list[str]()
        serving = PushServer(PushQueue(), "orders", LOOPBACK, id_slack_us=1).serve(addresses.append)
        server = asyncio.create_task(serving)
        await until(lambda: addresses)
        async with grpc.aio.insecure_channel(addresses[0]) as channel:
            method: Any = channel.stream_stream(PUSH)
            calls = [method() for _ in range(3)]
            await asyncio.sleep(0.3)  # all are there, and none has said anything
            refused = 0
            for call in calls:
                try:
                    await call.write(opening())
                    await asyncio.wait_for(call.read(), 20)
                except grpc.aio.AioRpcError as error:
                    refused += error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                except asyncio.InvalidStateError:
                    refused += await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert refused == 2
            for call in calls:
                call.cancel()
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)

    asyncio.run(scenario())


async def push_one(address: str, number: int) -> None:
    async with AsyncPusher(address, "orders") as pusher:
        await pusher.push(*record(number))


def test_a_source_that_is_away_is_waited_for_and_given_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)

    async def scenario() -> None:
        with pytest.raises(PushError, match=r"nothing has become durable for .*; 1 records may or may not"):
            async with AsyncPusher("127.0.0.1:1", "orders", patience_s=0.5) as pusher:
                await pusher.push(*record(0))

    asyncio.run(scenario())


def test_a_source_that_takes_nothing_is_given_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)

    async def scenario() -> None:
        addresses: list[str] = []
        server = asyncio.create_task(
            PushServer(PushQueue(), "orders", LOOPBACK, id_slack_us=10**9).serve(addresses.append)
        )
        await until(lambda: addresses)
        with pytest.raises(PushError, match="because of: the source takes nothing"):
            async with AsyncPusher(addresses[0], "orders", patience_s=0.5) as pusher:
                await pusher.push(*record(0))
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)

    asyncio.run(scenario())


@pytest.mark.parametrize("slack_us", [200_000, 0])
def test_a_record_is_not_sent_again_when_its_id_may_be_forgotten(
    slack_us: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)

    async def scenario() -> None:
        queue, addresses = PushQueue(), list[str]()
        serving = PushServer(queue, "orders", LOOPBACK, id_slack_us=slack_us).serve(addresses.append)
        server = asyncio.create_task(serving)
        await until(lambda: addresses)

        async def pushes() -> None:
            async with AsyncPusher(addresses[0], "orders", patience_s=5) as pusher:
                await pusher.push(*record(0))
                await until(lambda: queue.read(1, 1_000))
                await asyncio.sleep(0.3)
                server.cancel()

        with pytest.raises(PushError, match="would count twice"):
            await pushes()
        await asyncio.gather(server, return_exceptions=True)

    asyncio.run(scenario())


def test_a_source_that_comes_back_when_ids_may_be_forgotten_gets_no_record_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stream broke in time, and all that was tried since found nobody."""
    quick(monkeypatch)

    async def scenario() -> None:
        first, second, addresses = PushQueue(), PushQueue(), list[str]()

        def serve(queue: PushQueue, at: str) -> asyncio.Task[None]:
            return asyncio.create_task(PushServer(queue, "orders", at, id_slack_us=500_000).serve(addresses.append))

        server = serve(first, LOOPBACK)
        await until(lambda: addresses)

        async def pushes() -> None:
            nonlocal server
            async with AsyncPusher(addresses[0], "orders") as pusher:
                await pusher.push(*record(0))
                await until(lambda: first.read(1, 1_000))
                server.cancel()
                await asyncio.wait([server])
                await asyncio.sleep(0.7)
                server = serve(second, addresses[0])
                await until(lambda: len(addresses) == 2)
                await until(lambda: pusher._failure is not None or second.read(1, 1_000))
                second.keep(1)

        with pytest.raises(PushError, match="would count twice"):
            await pushes()
        assert not second.read(1, 1_000)
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)

    asyncio.run(scenario())


def test_what_another_source_takes_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first source refuses a record and is gone before all in front of it is durable; the next one can read it."""
    quick(monkeypatch)

    async def scenario() -> None:
        first, second, addresses = PushQueue(), PushQueue(), list[str]()

        def serve(queue: PushQueue, at: str) -> asyncio.Task[None]:
            return asyncio.create_task(PushServer(queue, "orders", at, id_slack_us=10**9).serve(addresses.append))

        server = serve(first, LOOPBACK)
        await until(lambda: addresses)
        async with AsyncPusher(addresses[0], "orders") as pusher:
            await pusher.push_many(map(record, range(2)))
            await until(lambda: first.read(2, 1_000))
            first.refuse(1, "an older version cannot read it")
            first.keep(0)
            (account,) = first._accounts
            account.notify()
            await until(lambda: any(pending.refusal for pending in pusher._sent))
            server.cancel()
            await asyncio.wait([server])
            server = serve(second, addresses[0])
            await until(lambda: second.read(2, 1_000))
            second.keep(2)
            await pusher.flush()
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)

    asyncio.run(scenario())


def test_the_age_of_a_record_counts_from_the_first_time_that_it_was_sent() -> None:
    async def scenario() -> None:
        pusher = AsyncPusher(LOOPBACK, "orders")
        pusher._unsent.append(_Pending(b"a", b"", 1))
        times = []
        for _ in range(3):
            assert pusher._next().ids == [b"a"]
            times.append(pusher._sent[0].sent_at)
            pusher._unsent.extendleft(reversed(pusher._sent))
            pusher._sent.clear()
            await asyncio.sleep(0.001)
        assert times == [times[0]] * 3

    asyncio.run(scenario())


def test_no_message_has_a_record_whose_id_may_be_forgotten_by_the_time_it_is_made() -> None:
    async def scenario() -> None:
        pusher, now = AsyncPusher(LOOPBACK, "orders"), asyncio.get_running_loop().time()
        pusher._slack_s = 10.0
        pusher._unsent += [_Pending(b"a", b"", 1, now - 9.0), _Pending(b"b", b"", 1)]
        assert pusher._next().ids == [b"a", b"b"]
        pusher._unsent.append(_Pending(b"c", b"", 1, now - 11.0))
        with pytest.raises(PushError, match="would count twice"):
            pusher._next()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("bad", "kind", "says"),
    [
        (("", b"", 1), LimitError, "an id has 1 to"),
        (("x" * 1_025, b"", 1), LimitError, "and this one 1025"),
        (("x", "text", 1), TypeError, "not str"),
        (("x", bytes(limits.VALUE_LIMIT_BYTES + 1), 1), LimitError, "a value has at most"),
        (("x", b"", 1.5), TimestampError, "float"),
        (("x", b"", datetime(2026, 8, 1)), TimestampError, "zone"),
        (("x", b"", 2**70), TimestampError, "is no event time: it is out of range"),
        ((5, b"", 1), TypeError, "an id is text or bytes, and not int: 5"),
    ],
)
def test_what_no_source_would_take_is_refused_where_it_is_pushed(bad: Any, kind: type[Exception], says: str) -> None:
    async def scenario() -> None:
        async with AsyncPusher("127.0.0.1:1", "orders") as pusher:
            with pytest.raises(kind, match=says):
                await pusher.push(*bad)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"addresses": 5}, "addresses=5: give host:port"),
        ({"addresses": []}, r"addresses=\[\]: give host:port"),
        ({"addresses": "localhost"}, "'localhost' is no address: give host:port"),
        ({"stream": 5}, "stream=5: give the name of the stream"),
        ({"patience_s": "x"}, "patience_s='x': give seconds, more than 0"),
        ({"patience_s": -1}, "patience_s=-1: give seconds, more than 0"),
        ({"patience_s": 0}, "patience_s=0: give seconds, more than 0"),
        ({"certificates": "certs"}, r"certificates='certs': give \(directory, name\)"),
        ({"certificates": 5}, r"certificates=5: give \(directory, name\)"),
    ],
)
def test_a_wrong_argument_of_a_client_is_refused_where_it_is_given(given: dict[str, Any], says: str) -> None:
    for made in (Pusher, AsyncPusher):
        with pytest.raises(MillwheelError, match=says):
            made(**{"addresses": "127.0.0.1:1", "stream": "orders", **given})


def test_a_message_has_as_many_records_as_go_into_one_and_one_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> list[int]:
        pusher = AsyncPusher("127.0.0.1:1", "orders")
        pusher._unsent.extend(_Pending(b"a", b"value" * (60 if n == 4 else 1), n) for n in range(9))
        monkeypatch.setattr(limits, "PUSH_MESSAGE_BYTES", 3 * pusher._unsent[0].size)
        found = []
        while pusher._unsent:
            found.append(len(pusher._next().ids))
        return found

    assert asyncio.run(scenario()) == [3, 1, 1, 3, 1], "the fifth is longer than a message"


@pytest.mark.parametrize("time", [-1, MIN_TIME, MAX_TIME, "1969-12-31T23:59:59Z"])
def test_any_event_time_may_be_pushed(time: Any) -> None:
    assert _checked_time(time) == to_us(time)


def test_a_pusher_is_used_within_its_block() -> None:
    with pytest.raises(PushError, match="within its block"):
        Pusher("127.0.0.1:1", "orders").push(*record(0))

    async def scenario() -> None:
        with pytest.raises(PushError, match="within its block"):
            await AsyncPusher("127.0.0.1:1", "orders").push(*record(0))

    asyncio.run(scenario())


async def broken_in_its_block(pusher: AsyncPusher) -> None:
    async with pusher:
        await pusher.push(*record(0))
        raise KeyError


def test_nothing_is_taken_after_the_block_for_nobody_would_send_it() -> None:
    async def scenario() -> None:
        async with asyncio.timeout(60):
            async with AsyncPusher("127.0.0.1:1", "orders") as pusher:
                pass
            with pytest.raises(PushError, match="within its block"):
                await pusher.push(*record(0))
            broken = AsyncPusher("127.0.0.1:1", "orders")
            with pytest.raises(KeyError):
                await broken_in_its_block(broken)
            with pytest.raises(PushError, match="within its block"):
                await broken.flush()

    asyncio.run(scenario())
    with Pusher("127.0.0.1:1", "orders") as blocking:
        pass
    with pytest.raises(PushError, match="within its block"):
        blocking.flush()


class Chance(float):
    """Chance that waits for nothing, and notes what it was asked to shorten."""

    noted: ClassVar[list[float]] = []

    def __rmul__(self, delay_s: float) -> float:
        self.noted.append(delay_s)
        return 0.0


def test_a_source_is_called_again_at_once_after_a_good_stream_and_later_and_later_after_bad_ones(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(random, "uniform", lambda *_: Chance(1))
    monkeypatch.setattr(Chance, "noted", [])
    monkeypatch.setattr(limits, "DIAL_STEADY_S", 0.5)
    called: list[str] = []

    class Calls(AsyncPusher):
        async def _once(self, address: str) -> tuple[grpc.StatusCode | None, str]:
            called.append(address)
            if len(called) == 8:
                await asyncio.sleep(0.6)
            elif len(called) == 10:
                await asyncio.sleep(60)
            return None, "it broke"

    async def scenario() -> None:
        async with Calls(["127.0.0.1:1", "127.0.0.1:2"], "orders"):
            await until(lambda: len(called) == 10)

    asyncio.run(scenario())
    assert Chance.noted == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 0.05, 0.1]
    assert called == ["127.0.0.1:1", "127.0.0.1:2"] * 5, "each in turn"
    said = [line for line in caplog.messages if line.startswith("pushing to ")]
    assert said == ["pushing to 127.0.0.1:1: it broke; 0 records wait"], "once, as it is the same at every try"


def test_a_port_is_waited_for_as_its_owner_may_be_about_to_leave(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        store, source = MemoryStore(), PushSource(ORDERS, LOOPBACK)
        async with running(MemoryStore(), source):
            later = PushSource(ORDERS, source.address)
            pipeline = pipeline_of(later)
            run = EmbeddedRun(pipeline.graph(), store, pipeline.tables)
            task = asyncio.create_task(run.run())
            await until(lambda: "trying for 10 s" in caplog.text)
        await until(lambda: later.address)
        async with AsyncPusher(later.address, "orders") as pusher:
            await pusher.push(*record(0))
        run.stop()
        await task
        await check_ledger(store, 1)

    asyncio.run(scenario())


def test_a_port_that_is_taken_ends_the_run_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PUSH_LISTEN_LIMIT_S", 0.3)

    async def scenario() -> None:
        source = PushSource(ORDERS, LOOPBACK)
        async with running(MemoryStore(), source):
            with pytest.raises(ChannelError, match=rf"stream orders: nothing can listen on {source.address}"):
                async with running(MemoryStore(), PushSource(ORDERS, source.address)):
                    pass

    asyncio.run(scenario())


# Certificates


def test_clients_of_other_machines_need_certificates(tmp_path: Path) -> None:
    with pytest.raises(ChannelError, match="millwheel certs"):
        PushServer(PushQueue(), "orders", "0.0.0.0:0", id_slack_us=1)
    with pytest.raises(ChannelError, match="millwheel certs"):
        AsyncPusher("192.0.2.1:7100", "orders")
    authority = OwnAuthority.kept_in(tmp_path)
    keep(tmp_path, "client", authority.issue(Role.CLIENT))
    AsyncPusher("192.0.2.1:7100", "orders", certificates=(str(tmp_path), "client"))
    source = PushSource(ORDERS, "0.0.0.0:0", certificates=(tmp_path, "client"))

    async def scenario() -> None:
        with pytest.raises(ChannelError, match="cannot listen"):
            async with running(MemoryStore(), source):
                pass

    asyncio.run(scenario())


def test_records_are_pushed_over_tls_by_roles_that_may(tmp_path: Path) -> None:
    authority = OwnAuthority.kept_in(tmp_path)
    for role in Role:
        keep(tmp_path, role, authority.issue(role, ["127.0.0.1"]))
    long_ago = datetime.now(UTC) - timedelta(days=limits.CERTIFICATE_LIFETIME_DAYS + 1)
    keep(tmp_path, "old", authority.issue(Role.CLIENT, now=long_ago))

    async def scenario() -> None:
        store, source = MemoryStore(), PushSource(ORDERS, LOOPBACK, certificates=(tmp_path, "worker"))
        async with running(store, source):
            for number, role in enumerate([Role.CLIENT, Role.INJECTOR]):
                async with AsyncPusher(source.address, "orders", certificates=(str(tmp_path), role)) as pusher:
                    await pusher.push(*record(number))
            for role in (Role.WORKER, Role.CONTROLLER):
                with pytest.raises(PushError, match=f"a certificate of the role {role} pushes nothing"):
                    async with AsyncPusher(source.address, "orders", certificates=(str(tmp_path), role)) as pusher:
                        await pusher.push(*record(9))
            with pytest.raises(ChannelError, match="is valid until"):
                AsyncPusher(source.address, "orders", certificates=(str(tmp_path), "old"))
            with pytest.raises(PushError, match="nothing has become durable"):
                async with AsyncPusher(source.address, "orders", patience_s=0.3) as pusher:
                    await pusher.push(*record(9))
        await check_ledger(store, 2)

    asyncio.run(scenario())


@pytest.mark.parametrize("missing", ["grpc", "google.protobuf"])
def test_without_the_extra_a_source_can_be_declared_and_says_what_is_missing(missing: str) -> None:
    code = f"""
import asyncio, sys
sys.modules[{missing!r}] = None
from millwheel import JsonCoder, Stream
from millwheel_injectors import PushSource
from millwheel_injectors.pushed import PushPartition
(partition,) = PushSource(Stream("orders", JsonCoder(dict)), "127.0.0.1:0").discover(())
for run in (lambda: asyncio.run(partition.serve()), lambda: __import__("millwheel.push")):
    try:
        run()
    except Exception as error:
        print(type(error).__name__, error)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    says = "is missing: pip install 'millwheel-streams[cluster]'"
    assert [line.split()[0] for line in found.splitlines() if says in line] == ["ChannelError", "ImportError"]


def test_what_reads_certificates_is_only_needed_by_who_has_some() -> None:
    """To import it takes as long as to import gRPC, in each process of a cluster."""
    code = """
import sys
sys.modules["cryptography"] = None
import millwheel.processes, millwheel.transport.push_server
from millwheel.push import Pusher
Pusher("127.0.0.1:1", "orders")
try:
    Pusher("127.0.0.1:1", "orders", certificates=("certs", "push"))
except Exception as error:
    print(type(error).__name__, error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "ChannelError cryptography is missing: pip install 'millwheel-streams[cluster]'\n"


# The queue


def test_rows_are_numbered_as_they_are_read_and_accounts_are_settled_in_order() -> None:
    queue, news = PushQueue(), list[str]()
    one, two = queue.join(lambda: news.append("one")), queue.join(lambda: news.append("two"))
    queue.put(one, Pushed([b"a", b"b", b"c"], [b"", b"", b""], [1, 2, 3]))
    queue.put(two, Pushed([b"d"], [b"x"], [4]))
    queue.put(one, Pushed([b"e"], [b""], [5]))
    queue.put(one, Pushed([], [], []))
    assert [(row.row, row.id) for row in queue.read(2, 10**6)] == [(0, b"a"), (1, b"b")]
    assert [(row.row, row.id) for row in queue.read(9, 10**6)] == [(2, b"c"), (3, b"d"), (4, b"e")]
    queue.refuse(4, "no")
    queue.refuse(1, "never")
    queue.refuse(77, "nobody's")
    assert (one.refused, two.refused) == ([(3, "no"), (1, "never")], [])
    queue.keep(1)
    assert (one.kept, two.kept, news) == (1, 0, ["one"])
    queue.leave(one)
    queue.keep(5)
    assert (one.kept, two.kept, news) == (4, 1, ["one", "two"])
    assert (queue.held_bytes, one.held_bytes, two.held_bytes, queue.clients) == (0, 0, 0, 1)


@pytest.mark.parametrize(("id_bytes", "value_bytes"), [(1, 60), (60, 1)])
def test_bytes_bound_a_read_and_what_waits(id_bytes: int, value_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PUSH_CLIENT_BYTES", 3 * limits.RECORD_OVERHEAD_BYTES + 150)
    queue = PushQueue()
    account = queue.join(lambda: None)
    pushed = Pushed([bytes(id_bytes)] * 3, [bytes(value_bytes)] * 3, [1, 2, 3])
    queue.put(account, pushed)
    assert not queue.room(account)
    assert [len(queue.read(10, 100)) for _ in range(3)] == [2, 1, 0]
    queue.keep(3)
    assert (queue.held_bytes, queue.room(account)) == (0, True)
