"""Channels between two processes on one machine: how many records a core carries, and how long a message is on its way.

Both processes are the shipping transport over the loopback address.  One sends bundles of 4,096 records, with keys of 8 and
values of 64 bytes, and has at most `WINDOW` of them unacked; the other answers each with a receipt.  Processor time is that
of both processes together, gRPC's own threads included, because a record costs something at both ends.  The round-trip time
is that of a receipt and its answer, one at a time, with nothing else to do.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import uvloop

from benchmarks import common
from benchmarks.common import Reference, Result
from millwheel.bundles import Bundle
from millwheel.host.messages import Delivery, Message, Receipt
from millwheel.ids import IntervalId, ProducerId, SequenceNumber, Sequencer, SubscriptionId, sequence_numbers
from millwheel.transport.grpc_channels import GrpcTransport

BUNDLES: Final = common.sized("BUNDLES", 1_000)
TRIPS: Final = common.sized("TRIPS", 3_000)
ROUNDS: Final = common.sized("ROUNDS", 3)
RECORDS: Final = 4_096
VALUE_BYTES: Final = 64
WINDOW: Final = 16
TARGET: Final = 500_000
LIMIT_MS: Final = 2.0
HERE: Final = IntervalId(1)
THERE: Final = IntervalId(2)


def channels() -> Result:
    """Records a second and core; the target is ten times what a core computes and commits."""
    rounds = [_round() for _ in range(ROUNDS)]
    value = common.median([found["records"] / found["cpu_s"] for found in rounds])
    trip = common.median([found["p50_ms"] for found in rounds])
    return Result(
        "channels", value, "records/s and core",
        Reference("p50 of a round trip", trip, "ms"), None,
        f"{TARGET:,} records/s and core, p50 of a round trip {LIMIT_MS:.0f} ms", value >= TARGET and trip <= LIMIT_MS,
        {"rounds": rounds},
    )  # fmt: skip


def _round() -> dict[str, Any]:
    """Figures of two fresh processes."""
    answering = common.start("channels", role="answer")
    assert answering.stdout is not None
    try:
        address = answering.stdout.readline().decode().strip()
        found = common.call("channels", role="send", address=address, bundles=BUNDLES, trips=TRIPS)
    finally:
        answering.terminate()
        answering.communicate()
    return found


class End:
    """A host at one end; what it does with a message is told later."""

    def __init__(self, name: str) -> None:
        self.transport = GrpcTransport("127.0.0.1:0")
        self.open = asyncio.Event()
        self.on_message: Callable[[Message], None] = lambda message: None
        self.transport.attach(name, lambda _, message: self.on_message(message), lambda _: self.open.set())


async def answer() -> None:
    """Until it is killed: a receipt for every message, which says how much processor time this process has taken, us."""
    end = End("w2")

    def reply(message: Message) -> None:
        number = message.bundle.number if isinstance(message, Delivery) else 0
        end.transport.tell("w2", "w1", Receipt(THERE, HERE, number, epoch=time.process_time_ns() // 1_000))

    end.on_message = reply
    address = await end.transport.start()
    end.transport.peers({"w1": "127.0.0.1:1"})  # it is w1 that calls
    print(address, flush=True)
    await asyncio.Event().wait()


async def send(address: str, bundles: int, trips: int) -> dict[str, Any]:
    """Carry bundles, then messages one at a time."""
    end = End("w1")
    await end.transport.start()
    end.transport.peers({"w2": address})
    await end.open.wait()
    keys = [f"key{number:05d}" for number in range(RECORDS)]
    values, times = [bytes(VALUE_BYTES)] * RECORDS, list(range(RECORDS))
    acked = asyncio.Semaphore(WINDOW)
    remote: list[int] = []

    def take(message: Message) -> None:
        assert isinstance(message, Receipt)
        remote.append(message.epoch)
        acked.release()

    async def carry(count: int) -> None:
        for number in range(count):
            await acked.acquire()
            bundle = Bundle(
                subscription=SubscriptionId(1),
                sender=HERE,
                number=number,
                target=THERE,
                producer=ProducerId(1),
                frontier=SequenceNumber(0),
                sequences=sequence_numbers(range(number * RECORDS, (number + 1) * RECORDS)),
                keys=keys,
                values=values,
                timestamps=times,
            )
            end.transport.tell("w1", "w2", Delivery(bundle, Sequencer(1), False))
        for _ in range(WINDOW):
            await acked.acquire()
        for _ in range(WINDOW):
            acked.release()

    end.on_message = take
    await carry(20)
    cpu, there, began = time.process_time(), remote[-1], time.perf_counter()
    await carry(bundles)
    seconds = time.perf_counter() - began
    cpu_s = time.process_time() - cpu + (remote[-1] - there) / 1e6
    came = asyncio.Event()
    end.on_message = lambda message: came.set()
    times_s = []
    for _ in range(trips):
        came.clear()
        began = time.perf_counter()
        end.transport.tell("w1", "w2", Receipt(HERE, THERE, 3))
        await came.wait()
        times_s.append(time.perf_counter() - began)
    await end.transport.close()
    return {
        "records": bundles * RECORDS,
        "cpu_s": cpu_s,
        "seconds": seconds,
        "records_a_second": bundles * RECORDS / seconds,
        "bundles_a_second": bundles / seconds,
        "p50_ms": 1e3 * common.quantile(times_s, 0.5),
        "p99_ms": 1e3 * common.quantile(times_s, 0.99),
    }


if __name__ == "__main__":
    given = common.arguments()
    match given.pop("role"):
        case "answer":
            sys.exit(uvloop.run(answer()))
        case "send":
            common.answer(**uvloop.run(send(**given)))
        case _:
            common.answer(**_round())
