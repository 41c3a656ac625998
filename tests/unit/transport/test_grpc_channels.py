"""Channels between processes keep docs/protocol.md's promises, over real sockets, whatever the network does."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from millwheel import limits
from millwheel.errors import ChannelError, WireError
from millwheel.host.messages import Delivery, Expected, Hello, Message, Receipt
from millwheel.ids import IntervalId, ProducerId, Sequencer, SubscriptionId
from millwheel.ports import Transport
from millwheel.transport import grpc_channels
from millwheel.transport.conversations import StreamBroken
from millwheel.transport.grpc_channels import GrpcTransport, Link, _greeted
from millwheel.transport.proto import channel_pb2 as pb
from millwheel.transport.roles import CONVERSE
from millwheel.transport.wire_form import WIRE_VERSION, encoded
from tests.chaos.proxy import TcpProxy
from tests.unit.transport.network import OPENED, Node, delivery, hello, pair_of_nodes, quick, until

ROOT = Path(__file__).resolve().parents[3]

KIND: type[Transport[Message]] = GrpcTransport
"""mypy holds it to the protocol."""


def test_nothing_is_lost_or_overtaken_without_a_cut() -> None:
    async def scenario() -> None:
        async with pair_of_nodes() as (a, b, _):
            sent: list[Message] = []
            for number in range(3_000):
                sent.append(hello(number))
                if number % 10 == 0:
                    sent.append(delivery([number, number + 1]))
                if number % 1_000 == 0:  # longer than a frame, and than what gRPC takes at once
                    sent.append(delivery([*range(3)], 1_500_000))
            for message in sent:
                a.tell("b", message)
                b.tell("a", message)
            await until(lambda: len(a.messages()) == len(b.messages()) == len(sent))
            assert a.messages() == b.messages() == sent
            assert (a.heard[0], b.heard[0], a.opened, b.opened) == (("b", OPENED), ("a", OPENED), 1, 1)

    asyncio.run(scenario())


def test_hosts_of_one_process_are_told_directly_and_peers_by_their_own_channels() -> None:
    async def scenario() -> None:
        async with pair_of_nodes() as (a, b, _):
            c = Node("c", a.transport)
            a.tell("c", hello(1))
            assert c.heard == [("a", hello(1))]
            b.transport.peers({"a": a.address, "c": a.address})
            await until(lambda: c.opened and ("b", "c") in b.transport.open_channels())
            b.tell("c", hello(2))
            c.tell("b", hello(3))
            await until(lambda: len(c.heard) == 3 and b.messages())
            assert c.heard[1:] == [("b", OPENED), ("b", hello(2))]
            assert b.heard[-2:] == [("c", OPENED), ("c", hello(3))]
            assert a.transport.open_channels() == {("a", "b"), ("c", "b")}
            assert (a.opened, a.messages()) == (1, [])

    asyncio.run(scenario())


@pytest.mark.parametrize("patience_s", [10.0, 0.1])
def test_a_peer_that_ended_in_order_is_warned_of_only_when_it_stays_a_peer(
    patience_s: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    quick(monkeypatch)
    monkeypatch.setattr(limits, "CHANNEL_FAREWELL_S", patience_s)

    async def scenario() -> None:
        async with pair_of_nodes() as (a, b, _):
            await b.transport.close()
            await until(lambda: not a.transport.open_channels())
            await asyncio.sleep(0.5)

    asyncio.run(scenario())
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert bool(warnings) == (patience_s < 1), warnings


def test_what_is_told_before_a_channel_is_open_is_lost() -> None:
    async def scenario() -> None:
        a, b = Node("a"), Node("b")
        a.tell("b", hello(1))
        try:
            b.transport.peers({"a": await a.transport.start()})
            a.transport.peers({"b": await b.transport.start()})
            a.tell("b", hello(2))
            await until(lambda: a.opened and b.opened)
            a.tell("b", hello(3))
            await until(b.messages)
            assert b.heard == [("a", OPENED), ("a", hello(3))]
        finally:
            await a.transport.close()
            await b.transport.close()

    asyncio.run(scenario())


# Cuts


async def held(proxy: TcpProxy, *ways: str) -> None:
    for way in ways:
        getattr(proxy, way).hold()


async def cut(proxy: TcpProxy) -> None:
    proxy.cut()


CUTS: dict[str, Callable[[TcpProxy], Coroutine[Any, Any, None]]] = {
    "connection": cut,
    "there": lambda proxy: held(proxy, "there"),
    "back": lambda proxy: held(proxy, "back"),
    "both": lambda proxy: held(proxy, "there", "back"),
}


@pytest.mark.parametrize("name", CUTS)
def test_both_ends_hear_of_a_cut_and_nothing_from_before_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)

    async def scenario() -> None:
        async with pair_of_nodes() as (a, b, proxy):
            rounds = {"a": 1, "b": 1}

            def restart(node: Node) -> None:
                node.on_open = lambda peer: rounds.__setitem__(node.name, rounds[node.name] + 1)

            restart(a)
            restart(b)
            number = 0

            async def talk(times: int) -> None:
                nonlocal number
                for _ in range(times):
                    number += 1
                    a.tell("b", hello(number, rounds["a"]))
                    b.tell("a", hello(number, rounds["b"]))
                    await asyncio.sleep(0.001)

            for _ in range(3):
                await talk(30)
                before = (a.opened, b.opened)
                await CUTS[name](proxy)
                # Both notice within the silence that is allowed, although the network is not back.
                bound_s = (limits.CHANNEL_SILENT_BEATS + 1) * limits.CHANNEL_BEAT_S
                while name != "connection" and (a.transport.open_channels() or b.transport.open_channels()):
                    await talk(10)
                    bound_s -= 0.01
                    assert bound_s > -1.0, "silence was not noticed"
                proxy.there.heal()
                proxy.back.heal()
                while not (a.opened > before[0] and b.opened > before[1]):
                    await talk(10)
                await until(lambda: a.transport.open_channels() and b.transport.open_channels())
            await talk(30)
            last = number
            await until(lambda: hello(last, rounds["a"]) in b.messages() and hello(last, rounds["b"]) in a.messages())
            for node in (a, b):
                check_rounds(node)

    asyncio.run(scenario())


def check_rounds(node: Node) -> None:
    """Between two `opened`, what was heard was told in one round of the sender, without a gap, and in order."""
    streams: list[list[Hello]] = []
    for _, message in node.heard:
        if message == OPENED:
            streams.append([])
        else:
            assert isinstance(message, Hello)
            streams[-1].append(message)
    heard = [stream for stream in streams if stream]
    assert len(heard) > 3
    rounds = []
    for stream in heard:
        assert len({message.round for message in stream}) == 1
        numbers = [message.interval for message in stream]
        assert numbers == [*range(numbers[0], numbers[0] + len(numbers))]
        rounds.append(stream[0].round)
    assert rounds == sorted(set(rounds))


def test_what_an_old_stream_still_carries_is_not_heard_after_the_next_one() -> None:
    async def scenario() -> None:
        async with pair_of_nodes() as (a, b, proxy):
            proxy.there.hold()
            proxy.back.hold()
            a.tell("b", hello(1))
            b.tell("a", hello(1))
            await asyncio.sleep(0.05)
            carried = (proxy.there.carried, proxy.back.carried)
            a.transport.peers({"b": b.address})  # another way: b does not know yet that the old one is no more
            await until(lambda: (a.opened, b.opened) == (2, 2))
            proxy.there.heal()
            proxy.back.heal()
            await until(lambda: proxy.there.carried > carried[0])
            b.tell("a", hello(2))
            a.tell("b", hello(2))
            await until(lambda: a.messages() and b.messages())
            await asyncio.sleep(0.1)
            assert a.messages() == b.messages() == [hello(2)]

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("way", ["there", "back"])
def test_a_network_that_is_deaf_one_way_is_noticed_within_the_documented_time(way: str) -> None:
    async def scenario() -> None:
        async with pair_of_nodes() as (a, b, proxy):
            getattr(proxy, way).hold()
            loop = asyncio.get_running_loop()
            began = loop.time()
            await until(lambda: not (a.transport.open_channels() or b.transport.open_channels()))
            assert 5 < loop.time() - began < 10
            getattr(proxy, way).heal()
            await until(lambda: a.opened > 1 and b.opened > 1)

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["delay", "throttle"])
def test_a_slow_network_is_not_taken_for_a_cut(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch, 0.1)
    monkeypatch.setattr(limits, "CHANNEL_FRAME_BYTES", 32 * 1024)

    async def scenario() -> None:
        async with pair_of_nodes() as (a, b, proxy):
            for way in (proxy.there, proxy.back):
                if kind == "delay":
                    way.delay_s = 0.05
                else:
                    way.bytes_a_second = 800_000
            sent: list[Message] = [delivery([1], 2_000_000), hello(2)]
            for message in sent:
                a.tell("b", message)
            await until(lambda: len(b.messages()) == 2)
            assert b.messages() == sent
            assert (a.opened, b.opened) == (1, 1)

    asyncio.run(scenario())


def test_a_process_that_was_busy_does_not_take_its_own_silence_for_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)

    async def scenario() -> None:
        async with pair_of_nodes() as (a, b, _):
            import time

            for _ in range(3):
                time.sleep(limits.CHANNEL_BEAT_S * 10)  # as a hook would keep the event loop
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert (a.opened, b.opened) == (1, 1)

    asyncio.run(scenario())


def test_a_peer_that_does_not_read_is_cut_when_too_much_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    quick(monkeypatch, 1.0)
    monkeypatch.setattr(limits, "CHANNEL_QUEUE_LIMIT_BYTES", 1_000_000)

    async def scenario() -> None:
        async with pair_of_nodes() as (a, b, proxy):
            a.tell("b", delivery([0], 3_000_000))  # larger than all that may wait, but alone
            await until(b.messages)
            proxy.there.hold()
            for number in range(100):
                a.tell("b", delivery([number + 1], 100_000))
                await asyncio.sleep(0.001)
                if not a.transport.open_channels():
                    break
            await until(lambda: not a.transport.open_channels())
            proxy.there.heal()
            await until(lambda: a.opened == b.opened == 2)
            a.tell("b", hello(7))
            await until(lambda: hello(7) in b.messages())

    asyncio.run(scenario())
    assert "CHANNEL_QUEUE_LIMIT_BYTES" in caplog.text


# A sender and a receiver that follow the protocol


class Receiver:
    """Says hello when its channel opens, takes each sequence once, and acks."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._round = 0
        self.taken: list[int] = []
        self.seen: set[int] = set()
        self.copies = 0
        node.on_open, node.on_message = self._opened, self._message

    def _opened(self, peer: str) -> None:
        self._round += 1
        self._node.tell(peer, Hello(IntervalId(1), Sequencer(1), self._round))

    def _message(self, peer: str, message: Message) -> None:
        assert isinstance(message, Delivery)
        for sequence in message.bundle.sequences:
            if sequence in self.seen:
                self.copies += 1
            else:
                self.seen.add(sequence)
                self.taken.append(sequence)
        self._node.tell(peer, Receipt(IntervalId(1), IntervalId(2), message.bundle.number))


class Sender:
    """Sends so many records, a few unacked at a time; after a cut it waits for a hello, and sends again."""

    def __init__(self, node: Node, records: int) -> None:
        self._node = node
        self._waiting = deque(range(records))
        self._unacked: dict[int, Delivery] = {}
        self._round = 0
        self._may = False
        node.on_open, node.on_message = self._opened, self._message

    def _opened(self, peer: str) -> None:
        self._may = False

    def _message(self, peer: str, message: Message) -> None:
        if isinstance(message, Receipt):
            self._unacked.pop(message.number, None)
        elif isinstance(message, Hello) and message.round > self._round:
            self._round, self._may = message.round, True
            for unacked in self._unacked.values():
                self._node.tell(peer, unacked)
        self.send(peer)

    def send(self, peer: str) -> None:
        while self._may and self._waiting and len(self._unacked) < 20:
            first = self._waiting.popleft()
            self._unacked[first] = delivery([first], 2_000)
            self._node.tell(peer, self._unacked[first])

    @property
    def done(self) -> bool:
        return not (self._waiting or self._unacked)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_thousand_cuts_lose_and_double_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch, 0.02)
    chance = random.Random(seed)

    async def scenario() -> None:
        async with pair_of_nodes() as (a, b, proxy):
            sending, receiving = (a, b) if seed % 2 else (b, a)
            receiver, sender = Receiver(receiving), Sender(sending, 10**6)
            receiver._opened(sending.name)
            cuts = 0
            while cuts < 500:
                await asyncio.sleep(chance.uniform(0, 0.015))
                if not proxy.connections:
                    continue
                if chance.random() < 0.03:
                    way = chance.choice([proxy.there, proxy.back])
                    way.hold()
                    await asyncio.sleep(chance.uniform(0, 0.3))
                    way.heal()
                else:
                    proxy.cut()
                cuts += 1
            sender._waiting.clear()
            await until(lambda: sender.done)
            await asyncio.sleep(0.1)
            assert receiver.taken == [*range(len(receiver.taken))]
            assert len(receiver.taken) > 500
            assert min(a.opened, b.opened) > 50  # a busy machine opens a channel again less often than it is cut
            assert receiver.copies

    asyncio.run(scenario())


# Peers


def test_peers_are_added_changed_and_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)

    async def scenario() -> None:
        async with pair_of_nodes() as (a, b, _):
            b.transport.peers({})
            await until(lambda: not a.transport.open_channels())
            b.tell("a", hello(1))
            a.tell("b", hello(1))
            await asyncio.sleep(0.2)
            assert (a.opened, b.opened, a.messages(), b.messages()) == (1, 1, [], [])
            b.transport.peers({"a": a.address})
            await until(lambda: (a.opened, b.opened) == (2, 2))
            # It calls where the peer is now, and the channel begins anew.
            a.transport.peers({"b": b.address})
            await until(lambda: (a.opened, b.opened) == (3, 3))
            a.tell("b", hello(2))
            await until(b.messages)
            # What is named again is left alone.
            a.transport.peers({"b": b.address, "z": "127.0.0.1:1"})
            a.tell("b", hello(3))
            await until(lambda: b.messages() == [hello(2), hello(3)])
            assert a.opened == 3

    asyncio.run(scenario())


def test_a_process_is_heard_as_soon_as_it_is_known() -> None:
    async def scenario() -> None:
        a, b = Node("a"), Node("b")
        try:
            await a.transport.start()
            a.transport.peers({"b": await b.transport.start()})
            await asyncio.sleep(0.3)
            assert (a.opened, b.opened) == (0, 0)
            b.transport.peers({"a": "127.0.0.1:1"})  # it is a that calls
            began = asyncio.get_running_loop().time()
            await until(lambda: a.opened and b.opened)
            assert asyncio.get_running_loop().time() - began < limits.DIAL_FIRST_DELAY_S + 0.5
        finally:
            await a.transport.close()
            await b.transport.close()

    asyncio.run(scenario())


def test_another_process_at_the_address_is_not_taken_for_the_peer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    quick(monkeypatch)

    async def scenario() -> None:
        a, later = Node("a"), Node("b2")
        try:
            later.transport.peers({"a": await a.transport.start()})
            a.transport.peers({"b1": await later.transport.start()})
            await until(lambda: "b1" in caplog.text)
            assert (a.opened, later.opened) == (0, 0)
        finally:
            await a.transport.close()
            await later.transport.close()

    asyncio.run(scenario())
    assert "no host of this process is called 'b1'" in caplog.text


def has_heard(node: Node, sent: list[Message]) -> bool:
    return node.messages() == sent


def test_last_words_are_heard() -> None:
    async def scenario() -> None:
        for leaving in ("a", "b"):
            async with pair_of_nodes() as (a, b, _):
                node, other = (a, b) if leaving == "a" else (b, a)
                sent: list[Message] = [delivery([number], 10_000) for number in range(200)]
                for message in sent:
                    node.tell(other.name, message)
                await node.transport.close()
                await until(partial(has_heard, other, sent))

    asyncio.run(scenario())


CHILD = """
import asyncio, sys
from tests.unit.transport.network import Node
async def main():
    b = Node("b")
    b.on_message = lambda peer, message: b.tell(peer, message)
    print(await b.transport.start(), flush=True)
    b.transport.peers({"a": sys.stdin.readline().strip()})
    await asyncio.sleep(60)
asyncio.run(main())
"""


def test_a_process_that_is_stopped_or_killed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)

    async def scenario() -> None:
        a = Node("a")
        address = await a.transport.start()
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdin
        assert child.stdout
        try:
            there = await asyncio.to_thread(child.stdout.readline)
            child.stdin.write(address + "\n")
            child.stdin.flush()
            a.transport.peers({"b": there.strip()})
            await until(lambda: a.opened)
            a.tell("b", hello(1))
            await until(lambda: a.messages() == [hello(1)])
            child.send_signal(signal.SIGSTOP)
            await until(lambda: not a.transport.open_channels())
            a.tell("b", hello(2))
            child.send_signal(signal.SIGCONT)
            await until(lambda: a.opened == 2)
            a.tell("b", hello(3))
            await until(lambda: len(a.messages()) == 2)
            assert a.messages() == [hello(1), hello(3)]
            child.kill()
            await until(lambda: not a.transport.open_channels())
        finally:
            child.kill()
            child.communicate()
            await a.transport.close()

    asyncio.run(scenario())


# Strangers


def greeting(host: str = "a", peer: str = "b", version: int = WIRE_VERSION) -> bytes:
    form = pb.Greeting(version=version, host=host, peer=peer, process=1, attempt=10**6)
    return pb.Frame(greeting=form).SerializeToString()


STRANGERS: dict[str, tuple[list[bytes], grpc.StatusCode, str]] = {
    "no greeting": ([], grpc.StatusCode.INVALID_ARGUMENT, "begins with a greeting"),
    "another beginning": ([pb.Frame(whole=[b""]).SerializeToString()], grpc.StatusCode.INVALID_ARGUMENT, "begins with"),
    "no frame": ([b"\xff\xff"], grpc.StatusCode.INVALID_ARGUMENT, "no frame"),
    "another version": ([greeting(version=99)], grpc.StatusCode.FAILED_PRECONDITION, "the other end speaks version 99"),
    "an unknown host": ([greeting(peer="zz")], grpc.StatusCode.NOT_FOUND, "is called 'zz'"),
    "the end that is called": ([greeting(host="c")], grpc.StatusCode.INVALID_ARGUMENT, "'b' calls 'c'"),
    "an unknown peer": ([greeting(host="aa")], grpc.StatusCode.PERMISSION_DENIED, "'aa' is no member"),
    "a long frame": (
        [bytes(limits.CHANNEL_FRAME_LIMIT_BYTES + 1)],
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "larger than max",
    ),
}


async def refusal(address: str, frames: list[bytes]) -> tuple[grpc.StatusCode, str]:
    """How a stream with these frames ends."""
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        method: Any = channel.stream_stream(CONVERSE)
        call = method()
        # grpc.aio forgets the status of a stream that is refused while it writes.
        refused = asyncio.ensure_future(call.code())
        await asyncio.wait({refused}, timeout=0.1)
        try:
            for frame in frames if not refused.done() else ():
                await call.write(frame)
            await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                pass
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        return await call.code(), await call.details()


@pytest.mark.parametrize("name", STRANGERS)
def test_a_stranger_gets_a_status_and_disturbs_nobody(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    frames, code, says = STRANGERS[name]
    monkeypatch.setattr(limits, "CHANNEL_GREETING_LIMIT_S", 0.3)

    async def scenario() -> None:
        async with pair_of_nodes() as (a, b, _):
            found = await refusal(b.address, frames)
            assert found[0] == code
            assert says in found[1]
            a.tell("b", hello(1))
            await until(b.messages)
            assert (a.opened, b.opened) == (1, 1)

    asyncio.run(scenario())
    if name != "a long frame":  # it is refused before it is read
        assert says in caplog.text


MALFORMED: dict[str, tuple[list[bytes], str]] = {
    "no frame": ([b"\xff\xff"], "no frame"),
    "no message": ([pb.Frame(whole=[b"\xff"]).SerializeToString()], "no message"),
    "a second greeting": ([greeting()], "in the middle of a stream"),
    "a part and a whole": (
        [pb.Frame(whole=[encoded(hello(1))], part=b"x").SerializeToString()],
        "whole messages and a part",
    ),
    "a whole between parts": (
        [pb.Frame(part=b"x").SerializeToString(), pb.Frame(whole=[encoded(hello(1))]).SerializeToString()],
        "in the middle of another",
    ),
    "too many parts": ([pb.Frame(part=bytes(600_000)).SerializeToString()] * 2, "CHANNEL_MESSAGE_LIMIT_BYTES"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_malformed_ends_its_stream_and_says_why(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    frames, says = MALFORMED[name]
    monkeypatch.setattr(limits, "CHANNEL_MESSAGE_LIMIT_BYTES", 1_000_000)

    async def scenario() -> None:
        b = Node("b")
        address = await b.transport.start()
        b.transport.peers({"a": "127.0.0.1:1"})
        try:
            code, details = await refusal(address, [greeting(), *frames])
            assert code == grpc.StatusCode.INVALID_ARGUMENT
            assert says in details
            assert b.heard == [("a", OPENED)]
        finally:
            await b.transport.close()

    asyncio.run(scenario())
    assert says in caplog.text


def test_an_old_stream_does_not_replace_a_newer_one(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with pair_of_nodes() as (_, b, _proxy):
            link = b.transport._links["b", "a"]
            late = pb.Greeting(version=WIRE_VERSION, host="a", peer="b", process=link.process, attempt=link.attempt)
            code, details = await refusal(b.address, [pb.Frame(greeting=late).SerializeToString()])
            assert (code, details) == (grpc.StatusCode.ABORTED, "a has called again since")
            assert b.opened == 1

    asyncio.run(scenario())


def test_a_process_that_takes_the_place_of_one_that_has_called_more_often_is_heard_at_its_first_call() -> None:
    async def scenario() -> None:
        async with pair_of_nodes() as (a, b, _proxy):
            await a.transport.close()
            await until(lambda: not b.transport.open_channels())
            later = Node("a")
            try:
                await later.transport.start()
                later.transport.peers({"b": b.address})
                await until(lambda: later.opened)
                assert later.transport._attempts == 1
            finally:
                await later.transport.close()

    asyncio.run(scenario())


def test_a_process_that_may_not_act_any_more_opens_no_channel_again(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)

    async def scenario() -> None:
        async with pair_of_nodes() as (a, b, _proxy):
            b.transport.abandon()
            await until(lambda: not a.transport.open_channels())
            await asyncio.sleep(0.5)  # it is a that calls, again and again
            assert (a.opened, b.opened) == (1, 1)

    asyncio.run(scenario())


def test_streams_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with pair_of_nodes() as (a, b, _):
            monkeypatch.setattr(limits, "CHANNEL_STREAMS_LIMIT", 1)
            code, details = await refusal(b.address, [greeting()])
            assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "CHANNEL_STREAMS_LIMIT" in details
            assert (a.opened, b.opened) == (1, 1)

    asyncio.run(scenario())


def test_a_stream_that_was_refused_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHANNEL_STREAMS_LIMIT", 3)

    async def scenario() -> None:
        async with pair_of_nodes() as (_, b, _proxy):
            for _ in range(5):
                code, _ = await refusal(b.address, [b"\xff"])
                assert code == grpc.StatusCode.INVALID_ARGUMENT

    asyncio.run(scenario())


class Answering:
    """A stream whose other end answers a greeting with another one."""

    def __init__(self, answer: pb.Greeting) -> None:
        self._answer = answer

    async def write(self, frame: bytes) -> None:
        pass

    async def read(self) -> bytes:
        return pb.Frame(greeting=self._answer).SerializeToString()


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"process": 8}, "the answer is one to another call"),
        ({"attempt": 2}, "the answer is one to another call"),
        ({"host": "c"}, "'c' answers instead"),
        ({"version": 9}, "speaks version 9"),
        ({}, ""),
    ],
)
def test_an_answer_is_one_to_this_call(other: dict[str, Any], says: str) -> None:
    fields: dict[str, Any] = {"version": WIRE_VERSION, "host": "b", "peer": "a", "process": 7, "attempt": 1}
    asked = pb.Greeting(**{**fields, "host": "a", "peer": "b"})
    stream: Any = Answering(pb.Greeting(**{**fields, **other}))
    if says:
        with pytest.raises(WireError, match=says):
            asyncio.run(_greeted(stream, asked))
    else:
        asyncio.run(_greeted(stream, asked))


class Clockwork:
    """What calls of a peer know of time: sleeps are noted, and take no time."""

    def __init__(self, sleeps: int) -> None:
        self.delays: list[float] = []
        self.now = 0.0
        self._sleeps = sleeps

    async def sleep(self, delay_s: float) -> None:
        self.delays.append(delay_s)
        if len(self.delays) > self._sleeps:
            raise asyncio.CancelledError

    def get_running_loop(self) -> Clockwork:
        return self

    def time(self) -> float:
        return self.now


def test_calls_become_less_frequent_to_a_bound_until_a_stream_has_lasted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, transport = Clockwork(12), GrpcTransport("127.0.0.1:0")
    monkeypatch.setattr(limits, "DIAL_FIRST_DELAY_S", 1.0)
    monkeypatch.setattr(limits, "DIAL_LONGEST_DELAY_S", 7.0)
    monkeypatch.setattr(limits, "DIAL_STEADY_S", 3.0)
    monkeypatch.setattr(grpc_channels, "asyncio", clock)
    monkeypatch.setattr(grpc_channels, "random", SimpleNamespace(uniform=lambda low, high: (low + high) / 1.5))
    lasts = {7: 3.5, 8: 3.0}

    async def call(link: Link) -> None:
        clock.now += lasts.get(len(clock.delays), 0.0)
        raise StreamBroken("nobody is there")

    monkeypatch.setattr(transport, "_call_once", call)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(transport._call(Link("a", "b", "127.0.0.1:1")))
    assert clock.delays == [0, 1, 2, 4, 7, 7, 7, 1, 2, 4, 7, 7, 7]


def test_a_call_that_fails_leaves_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that refuses, again and again, would soon refuse all the world."""
    quick(monkeypatch)

    async def scenario() -> None:
        a, other = Node("a"), Node("c")
        try:
            link = Link("a", "b", await other.transport.start())
            await a.transport.start()
            with pytest.raises(StreamBroken, match="no host of this process is called 'b'"):
                await a.transport._call_once(link)
            await until(lambda: not a.transport._dialled, 5)
        finally:
            await a.transport.close()
            await other.transport.close()

    asyncio.run(scenario())


def test_an_unsendable_message_is_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with pair_of_nodes() as (a, _, _proxy):
            a.tell("b", delivery([2, 1]))
            await until(lambda: "do not ascend" in caplog.text)

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())


# Addresses


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.7:7000", "workers.example:7000"])
def test_without_certificates_only_this_machine_is_listened_to(listen: str) -> None:
    with pytest.raises(ChannelError, match=r"listen on 127\.0\.0\.1"):
        GrpcTransport(listen)


@pytest.mark.parametrize(
    "listen", ["", "7000", "host", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", "::1:7000", ":1"]
)
def test_what_is_no_address_is_refused(listen: str) -> None:
    with pytest.raises(ChannelError, match=r"give host:port"):
        GrpcTransport(listen)


def test_a_port_that_is_taken_is_named() -> None:
    async def scenario() -> None:
        a, b = Node("a"), Node("b")
        address = await a.transport.start()
        try:
            with pytest.raises(ChannelError, match=address):
                await Node("c", GrpcTransport(address)).transport.start()
        finally:
            await a.transport.close()
            await b.transport.close()

    asyncio.run(scenario())


def test_a_long_list_takes_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages without records count as well, by what they take."""

    async def scenario() -> None:
        async with pair_of_nodes() as (a, b, _):
            a.tell("b", Expected(tuple((SubscriptionId(number), ProducerId(number)) for number in range(100_000))))
            await until(b.messages)

    asyncio.run(scenario())
