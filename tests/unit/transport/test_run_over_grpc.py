"""A whole run whose worker and controller talk through sockets that break."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping

import pytest

from millwheel.core.source import injector
from millwheel.host.messages import Message
from millwheel.runtime.embedded import EmbeddedRun
from millwheel.transport.grpc_channels import GrpcTransport
from millwheel_storage.memory import MemoryStore
from tests.chaos.proxy import TcpProxy
from tests.unit.runtime.drive import expected_counts, text_lines, word_count
from tests.unit.transport.network import quick, until
from tests.unit.transport.test_local import cells


class OneEach:
    """A transport of its own for each host, as in two processes."""

    def __init__(self) -> None:
        self.of: dict[str, GrpcTransport] = {}

    def attach(self, name: str, heard: Callable[[str, Message], None], opened: Callable[[str], None]) -> None:
        self.of[name] = GrpcTransport("127.0.0.1:0")
        self.of[name].attach(name, heard, opened)

    def tell(self, sender: str, receiver: str, message: Message) -> None:
        self.of[sender].tell(sender, receiver, message)

    def peers(self, addresses: Mapping[str, str]) -> None:
        for transport in self.of.values():
            transport.peers(addresses)


@pytest.mark.parametrize("gap_s", [0.01, 0.05])
def test_a_run_over_grpc_whose_connection_breaks_counts_each_word_once(
    gap_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    monkeypatch.setattr(injector, "READ_LIMIT_ROWS", 20)
    rows = text_lines(int(600_000 * gap_s), seed=7)  # so many that it is cut often, however fast the machine
    pipeline = word_count("grpc", rows, {"work_limit_records": 20}, {"split_keys": ("m",)})
    store, transport = MemoryStore(), OneEach()
    run = EmbeddedRun(pipeline.graph(), store, pipeline.tables, transport=transport)
    cuts = 0

    async def cut_again_and_again(proxy: TcpProxy) -> None:
        nonlocal cuts
        chance = random.Random(gap_s)
        while True:
            await asyncio.sleep(chance.uniform(0, 2 * gap_s))
            cuts += proxy.connections
            proxy.cut()

    async def scenario() -> bool:
        addresses = {name: await one.start() for name, one in transport.of.items()}
        proxy = TcpProxy(addresses["worker"])
        transport.peers({**addresses, "worker": await proxy.start()})
        await until(lambda: transport.of["worker"].open_channels())
        nemesis = asyncio.create_task(cut_again_and_again(proxy))
        try:
            return (await run.run()).finished
        finally:
            nemesis.cancel()
            for one in transport.of.values():
                await one.close()
            await proxy.close()

    assert asyncio.run(scenario())
    assert cuts > 2
    assert (cells(store, "Split"), cells(store, "Count")) == expected_counts(rows)
