"""Messages between the hosts of a simulated process: when each arrives, how often, and whether at all.

Lives here: what a channel may do by its promise (docs/protocol.md).  Never here: what messages mean.  Invariants:

* a control message never overtakes another one of its channel;
* a delivery overtakes no control message, and no other delivery between the same two intervals;
* receipts come in any order, and a cut loses everything that is on its way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from millwheel.host.messages import Delivery, Message, Receipt, WatermarkReport, WatermarksRaised

if TYPE_CHECKING:
    from millwheel.testing.world.body import Body

STEPS: Final = {Delivery: "send", Receipt: "ack"}
DELAYS: Final = {Delivery: "deliver", Receipt: "ack", WatermarksRaised: "watermark", WatermarkReport: "report"}

Pair = tuple[str, str]


def step_of(message: Message) -> str:
    """Where the nemesis may strike at a message."""
    return STEPS.get(type(message), "tell")


class FaultyTransport:
    """The channels of one process, by (from, to): a `ports.Transport`."""

    def __init__(self, process: Body) -> None:
        self._process = process
        self._heard: dict[str, Callable[[str, Message], None]] = {}
        self._opened: dict[str, Callable[[str], None]] = {}
        self._control: dict[Pair, int] = {}
        """When the last control message of each channel arrives, us."""
        self._deliveries: dict[tuple[int, int], int] = {}
        """When the last bundle between two intervals arrives, us."""
        self._epochs: dict[Pair, int] = {}
        """How often each channel was cut."""
        self._cut: set[Pair] = set()
        self.queued = 0
        """Messages that were sent and have not arrived yet."""

    def attach(self, name: str, heard: Callable[[str, Message], None], opened: Callable[[str], None]) -> None:
        """See `Transport`."""
        self._heard[name], self._opened[name] = heard, opened

    def tell(self, sender: str, receiver: str, message: Message) -> None:
        """See `Transport`."""
        pair = (sender, receiver)
        kernel, nemesis = self._process.world.kernel, self._process.world.nemesis
        if pair in self._cut:
            kernel.probes["message lost in a cut"] += 1
            return
        due = kernel.now + nemesis.delay_us(DELAYS.get(type(message), "tell"))
        if isinstance(message, Delivery):
            message = msgspec.structs.replace(message, bundle=copy.copy(message.bundle))
            place = (message.bundle.sender, message.bundle.target)
            due = max(due, self._control.get(pair, 0), self._deliveries.get(place, 0))
            self._deliveries[place] = due
        elif not isinstance(message, Receipt):
            due = self._control[pair] = max(due, self._control.get(pair, 0))
        self._post(pair, message, due)

    def again(self, sender: str, receiver: str, message: Message) -> None:
        """A second copy of what was sent; of bundles and receipts it comes some time later, and not in order."""
        pair = (sender, receiver)
        process, kernel = self._process, self._process.world.kernel
        if pair in self._cut:
            return
        if not isinstance(message, Delivery | Receipt):
            kernel.probes[f"told twice: {type(message).__name__}"] += 1
            self.tell(sender, receiver, message)
            return
        late_us = process.world.nemesis.delay_us("again") * kernel.rng.choice((4, 4, 60))
        due = kernel.now
        if isinstance(message, Delivery):
            kernel.probes["bundle delivered twice"] += 1
            # Never before the original.  A third so late that the ids of the original may have been sealed, or collected.
            due = max(due, self._deliveries.get((message.bundle.sender, message.bundle.target), 0))
            message = msgspec.structs.replace(message, bundle=copy.copy(message.bundle))
        else:
            kernel.probes["ack delivered twice"] += 1
        self._post(pair, message, due + late_us)

    def peers(self, addresses: Mapping[str, str]) -> None:
        """See `Transport`; whoever is attached is reached."""

    def _post(self, pair: Pair, message: Message, due: int) -> None:
        self.queued += 1
        kernel = self._process.world.kernel
        self._process.later(due - kernel.now, self._arrive, pair, message, self._epochs.get(pair, 0))

    def _arrive(self, pair: Pair, message: Message, epoch: int) -> None:
        self.queued -= 1
        if epoch != self._epochs.get(pair, 0):
            self._process.world.kernel.probes["message lost in a cut"] += 1
            return
        self._heard[pair[1]](pair[0], message)

    def break_one(self, down_us: int) -> None:
        """Break the channel of the worker to the controller, or to itself."""
        self.cut("worker", self._process.world.kernel.rng.choice(("worker", "controller")), down_us)

    def cut(self, one: str, other: str, down_us: int) -> None:
        """Break the channels between two hosts; everything that is on its way is gone."""
        pairs = {(one, other), (other, one)}
        if pairs & self._cut:
            return
        self._process.world.kernel.trace(f"p{self._process.number} {one} and {other} are cut off")
        self._process.world.kernel.probes["channel cut"] += 1
        self._cut |= pairs
        for pair in pairs:
            self._epochs[pair] = self._epochs.get(pair, 0) + 1
        self._process.later(down_us, self._mend, one, other)

    def _mend(self, one: str, other: str) -> None:
        self._cut -= {(one, other), (other, one)}
        self._opened[one](other)
        if other != one:
            self._opened[other](one)

    @property
    def down(self) -> bool:
        """True while a channel is cut."""
        return bool(self._cut)
