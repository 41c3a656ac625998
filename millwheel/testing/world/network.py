"""The channels between simulated processes of a cluster: when each message arrives, how often, and whether at all.

Lives here: what a channel may do by its promise (docs/protocol.md), and cuts of one direction or both.  Never here: what
messages mean.  Invariants are those of `transport`, which has the channels of one process.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import msgspec

from millwheel.host.messages import Delivery, Message, Receipt
from millwheel.testing.faults.nemesis import Nemesis
from millwheel.testing.world.kernel import Kernel
from millwheel.testing.world.transport import DELAYS, Pair

if TYPE_CHECKING:
    from millwheel.testing.world.body import Body, SimulatedHost


class Network:
    """Every pair of processes, by the names of their hosts."""

    def __init__(self, kernel: Kernel, nemesis: Nemesis) -> None:
        self._kernel = kernel
        self._nemesis = nemesis
        self._hosts: dict[str, tuple[Body, SimulatedHost]] = {}
        self._control: dict[Pair, int] = {}
        """When the last control message of each channel arrives, us."""
        self._deliveries: dict[tuple[str, str, int, int], int] = {}
        """When the last bundle between two intervals arrives on a channel, us."""
        self._epochs: dict[Pair, int] = {}
        """How often each channel was cut."""
        self._cut: set[Pair] = set()

    def attach(self, process: Body, host: SimulatedHost) -> None:
        """A process begins."""
        self._hosts[host.name] = (process, host)

    def names(self) -> list[str]:
        """Hosts of processes that are not dead."""
        return [name for name, (process, _) in self._hosts.items() if not process.dead]

    def tell(self, sender: str, receiver: str, message: Message) -> None:
        """See `ports.Transport`."""
        pair = (sender, receiver)
        if pair in self._cut:
            self._kernel.probes["message lost in a cut"] += 1
            return
        due = self._kernel.now + self._nemesis.delay_us(DELAYS.get(type(message), "tell"))
        if isinstance(message, Delivery):
            message = msgspec.structs.replace(message, bundle=copy.copy(message.bundle))
            place = (*pair, message.bundle.sender, message.bundle.target)
            due = max(due, self._control.get(pair, 0), self._deliveries.get(place, 0))
            self._deliveries[place] = due
        elif not isinstance(message, Receipt):
            due = self._control[pair] = max(due, self._control.get(pair, 0))
        self._post(pair, message, due)

    def again(self, sender: str, receiver: str, message: Message) -> None:
        """A second copy; of bundles and receipts it comes some time later, and not in order."""
        pair = (sender, receiver)
        if pair in self._cut:
            return
        if not isinstance(message, Delivery | Receipt):
            self._kernel.probes[f"told twice: {type(message).__name__}"] += 1
            self.tell(sender, receiver, message)
            return
        late_us = self._nemesis.delay_us("again") * self._kernel.rng.choice((4, 4, 60))
        due = self._kernel.now
        if isinstance(message, Delivery):
            self._kernel.probes["bundle delivered twice"] += 1
            due = max(due, self._deliveries.get((*pair, message.bundle.sender, message.bundle.target), 0))
            message = msgspec.structs.replace(message, bundle=copy.copy(message.bundle))
        else:
            self._kernel.probes["ack delivered twice"] += 1
        self._post(pair, message, due + late_us)

    def _post(self, pair: Pair, message: Message, due: int) -> None:
        self._kernel.at(due, self._arrive, pair, message, self._epochs.get(pair, 0))

    def _arrive(self, pair: Pair, message: Message, epoch: int) -> None:
        if epoch != self._epochs.get(pair, 0):
            self._kernel.probes["message lost in a cut"] += 1
        elif pair[1] in self._hosts:
            process, host = self._hosts[pair[1]]
            process.later(0, process.heard, host, pair[0], message)

    def cut(self, pairs: set[Pair], down_us: int) -> None:
        """Break channels; everything that is on its way in them is gone."""
        pairs = pairs - self._cut
        if not pairs:
            return
        self._kernel.trace(f"cut off: {sorted(pairs)}")
        self._kernel.probes["channel cut"] += 1
        self._kernel.probes["channel cut one way"] += len(pairs) == 1
        self._cut |= pairs
        for pair in pairs:
            self._epochs[pair] = self._epochs.get(pair, 0) + 1
        self._kernel.at(self._kernel.now + down_us, self._mend, pairs)

    def _mend(self, pairs: set[Pair]) -> None:
        self._cut -= pairs
        for one, other in sorted({(min(pair), max(pair)) for pair in pairs}):
            for here, there in ((one, other), (other, one)) if one != other else ((one, one),):
                process, host = self._hosts[here]
                if there in self._hosts and not self._hosts[there][0].dead:
                    process.reopen(host, there)

    def break_one(self, name: str, down_us: int) -> None:
        """Break the channel of a host with another one, which the dice name, one way or both ways."""
        others = sorted(self.names())
        if not others:
            return
        other = self._kernel.rng.choice(others)
        ways = self._kernel.rng.choice(({(name, other), (other, name)}, {(name, other)}, {(other, name)}))
        self.cut(ways, down_us)


class NetworkEnd:
    """The network as one process uses it."""

    def __init__(self, network: Network, name: str) -> None:
        self._network = network
        self._name = name
        self.queued = 0
        """Events that hosts have posted to themselves."""

    @property
    def down(self) -> bool:
        """A process of a cluster does not wait for others."""
        return False

    def tell(self, sender: str, receiver: str, message: Message) -> None:
        """See `ports.Transport`."""
        self._network.tell(sender, receiver, message)

    def again(self, sender: str, receiver: str, message: Message) -> None:
        """A second copy of what was sent."""
        self._network.again(sender, receiver, message)

    def break_one(self, down_us: int) -> None:
        """Break a channel of this process."""
        self._network.break_one(self._name, down_us)
