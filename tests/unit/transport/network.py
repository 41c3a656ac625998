"""Hosts of several processes in one event loop, with real sockets and a proxy between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from millwheel import limits
from millwheel.bundles import Bundle
from millwheel.host.messages import Delivery, Hello, Message
from millwheel.ids import IntervalId, ProducerId, SequenceNumber, Sequencer, SubscriptionId, sequence_numbers
from millwheel.transport.grpc_channels import GrpcTransport
from tests.chaos.proxy import TcpProxy

OPENED = "opened"

Heard = list[tuple[str, Message | str]]
"""(peer, what it has told, or that its channel is open)."""


class Node:
    """A host that notes everything, in a transport of its own."""

    def __init__(self, name: str, transport: GrpcTransport | None = None) -> None:
        self.name = name
        self.transport = transport or GrpcTransport("127.0.0.1:0")
        self.heard: Heard = []
        self.opened = 0
        self.on_open: Callable[[str], None] = lambda peer: None
        self.on_message: Callable[[str, Message], None] = lambda peer, message: None
        self.address = ""
        self.transport.attach(name, self._heard, self._opened)

    def _heard(self, peer: str, message: Message) -> None:
        self.heard.append((peer, message))
        self.on_message(peer, message)

    def _opened(self, peer: str) -> None:
        self.opened += 1
        self.heard.append((peer, OPENED))
        self.on_open(peer)

    def messages(self) -> list[Message]:
        return [message for _, message in self.heard if not isinstance(message, str)]

    def tell(self, peer: str, message: Message) -> None:
        self.transport.tell(self.name, peer, message)


async def until(true: Callable[[], object], limit_s: float = 120.0) -> None:
    async with asyncio.timeout(limit_s):
        while not true():
            await asyncio.sleep(0.002)


@asynccontextmanager
async def pair_of_nodes() -> AsyncIterator[tuple[Node, Node, TcpProxy]]:
    """Hosts "a" and "b": a calls b, through the proxy; their channel is open."""
    a, b = Node("a"), Node("b")
    b.address = await b.transport.start()
    a.address = await a.transport.start()
    proxy = TcpProxy(b.address)
    at = await proxy.start()
    try:
        a.transport.peers({"b": at})
        b.transport.peers({"a": a.address})
        await until(lambda: a.opened and b.opened)
        yield a, b, proxy
    finally:
        await a.transport.close()
        await b.transport.close()
        await proxy.close()


def hello(number: int, round: int = 0) -> Hello:
    return Hello(IntervalId(number), Sequencer(0), round)


def delivery(sequences: list[int], size: int = 10) -> Delivery:
    keys = [str(number) for number in sequences]
    values = [bytes(size)] * len(sequences)
    return Delivery(
        Bundle(
            SubscriptionId(1),
            IntervalId(2),
            sequences[0],
            IntervalId(4),
            ProducerId(5),
            SequenceNumber(0),
            sequence_numbers(sequences),
            keys,
            values,
            sequences,
        ),
        Sequencer(6),
        False,
    )


def quick(monkeypatch: pytest.MonkeyPatch, beat_s: float = 0.05) -> None:
    """Silence and calls take a twentieth of their time."""
    monkeypatch.setattr(limits, "CHANNEL_BEAT_S", beat_s)
    monkeypatch.setattr(limits, "DIAL_FIRST_DELAY_S", 0.002)
    monkeypatch.setattr(limits, "DIAL_LONGEST_DELAY_S", 0.02)
    monkeypatch.setattr(limits, "CHANNEL_GREETING_LIMIT_S", 0.5)
