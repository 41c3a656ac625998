"""Who sends to whom: the graph's names as the store's numbers, and the intervals behind each subscription.

Lives here: what intervals and source partitions are told of each other when a host makes their cores.  Never here:
I/O.  Invariant: `live` has every channel on which something may still come.  This includes producers of earlier processes
and of earlier versions of the pipeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from millwheel.bundles import RecoveredInterval
from millwheel.cluster import Senders
from millwheel.core.ids.dedup import Channel
from millwheel.core.interval.config import Config
from millwheel.errors import InvariantError
from millwheel.graph import Graph
from millwheel.ids import IntervalId, ProducerId, Sequencer, SubscriptionId
from millwheel.intervals import Ranges
from millwheel.ports import IntervalRow, Opened, SourcePosition

SHAPE_VERSION: Final = "1"


class Routes:
    """The routes of one graph; empty until the store has answered."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._ranges: dict[SubscriptionId, Ranges] = {}
        self._maps: dict[str, Ranges] = {}
        self._receiver = {s.name: name for name, spec in graph.computations.items() for s in spec.inputs}
        """Subscription to computation."""
        self.rows: dict[IntervalId, IntervalRow] = {}
        """All intervals of this graph's computations."""
        self.subscriptions: Mapping[str, SubscriptionId] = {}
        self.live: set[Channel] = set()
        self.left_out: Mapping[str, str] = {}
        """Sources that have begun and are not in this graph, and the streams that they feed."""

    def open(self, opened: Opened) -> list[IntervalRow]:
        """The intervals of this graph's computations; the store may have others."""
        computations = self._graph.computations
        rows = [row for row in opened.intervals if row.computation in computations]
        self.subscriptions = opened.subscriptions
        self.left_out = {name: stream for name, stream in opened.fed.items() if name not in self._graph.sources}
        self._draw(rows)
        return rows

    def _draw(self, rows: list[IntervalRow]) -> None:
        self.rows = {row.id: row for row in rows}
        computations = self._graph.computations
        self._maps = {name: Ranges((r.low, r.id) for r in rows if r.computation == name) for name in computations}
        for spec in computations.values():
            for s in spec.inputs:
                self._ranges[self.subscriptions[s.name]] = self._maps[s.computation]

    def reshape(self, intervals: Iterable[IntervalRow]) -> set[str]:
        """The intervals as they are now.  Returns the computations of which some were split or merged."""
        rows = [row for row in intervals if row.computation in self._graph.computations]
        before = {*self.rows.values()}
        changed = {row.computation for row in before ^ {*rows}}
        if changed:
            self._draw(rows)
        return changed

    def senders_to(self, receivers: Iterable[str]) -> tuple[set[str], set[int]]:
        """What sends to these computations, "source:name" included, and the numbers of their subscriptions."""
        wanted = {*receivers}
        inputs = [s for name in wanted for s in self._graph.computations[name].inputs]
        names = set[str]().union(*(self._graph.senders(name) for name in wanted))
        return names, {self.subscriptions[s.name] for s in inputs}

    def owners(self, keys: Iterable[tuple[str, str]]) -> dict[IntervalId, list[str]]:
        """Intervals of (computation, key) pairs, with their keys; computations that the graph does not have are left out."""
        found: dict[IntervalId, list[str]] = {}
        for computation, key in keys:
            if computation in self._maps:
                found.setdefault(self._maps[computation].owner(key), []).append(key)
        return found

    def of(self, streams: Iterable[str]) -> dict[SubscriptionId, Ranges]:
        """The subscriptions to `streams`, and their receivers' interval maps."""
        numbers = [self.subscriptions[s.name] for stream in streams for s in self._graph.subscriptions(stream)]
        return {number: self._ranges[number] for number in numbers}

    def config(self, row: IntervalRow, sequencer: Sequencer) -> Config:
        """What an interval is told when it is assigned."""
        spec = self._graph.computations[row.computation]
        slacks = self._graph.slacks(spec.name, self.subscriptions)
        # All routes, because durable productions go to all who subscribe, also on streams this version does not list.
        routes, outputs = self.of(self._graph.streams), frozenset(self.of(spec.outputs))
        loop = self._graph.loop_of(spec.name)
        ways = self._graph.back_subscriptions(spec.name) + self._graph.back_inputs(spec.name)
        back = frozenset(self.subscriptions[s.name] for s in ways)
        return Config(
            row.id, sequencer, spec.name, SHAPE_VERSION, spec.settings, routes, row.low, row.high, outputs, slacks,
            back, "" if loop is None else loop.name, self._crowds(),
        )  # fmt: skip

    def _crowds(self) -> dict[SubscriptionId, int]:
        """By subscription: how many intervals send to the computation that subscribes."""
        return {
            self.subscriptions[s.name]: sum(
                len(self._maps[o].ids) for o in self._graph.senders(name) if o in self._maps
            )
            for name, spec in self._graph.computations.items()
            for s in spec.inputs
        }

    def is_back(self, sender: IntervalId, receiver: IntervalId) -> bool:
        """Whether `sender` sends to `receiver` on a back edge of a loop; a partition of a source never does."""
        one, other = self.rows.get(sender), self.rows.get(receiver)
        return one is not None and other is not None and self._graph.is_back(one.computation, other.computation)

    def bounds(self) -> dict[str, set[str]]:
        """Computation to the names of what bounds its input; a source that is left out may come back, and counts."""
        found = {name: self._graph.bounds(name) for name in self._graph.computations}
        for source, stream in self.left_out.items():
            for subscription in self._graph.subscriptions(stream):
                found[subscription.computation].add(f"source:{source}")
        return found

    def expect_partitions(self, unfinished: Iterable[tuple[str, SourcePosition]]) -> None:
        """Rows of these partitions may still come: now, or in a later run that has a source that this one leaves out."""
        self.live |= self._of_partitions(unfinished)

    def _of_partitions(self, unfinished: Iterable[tuple[str, SourcePosition]]) -> set[Channel]:
        found: set[Channel] = set()
        for source, position in unfinished:
            known = self._graph.sources.get(source)
            stream = known.stream if known is not None else self.left_out.get(source)
            if stream is not None:
                found |= self.channels(position.producer, stream)
            else:  # stored by a version that did not note the stream
                found |= {(number, position.producer) for number in self.subscriptions.values()}
        return found

    def living(self, senders: Senders, unfinished: Iterable[tuple[str, SourcePosition]]) -> set[Channel]:
        """The channels on which something may still come, as the store says."""
        found = self._of_partitions(unfinished) | {*senders.productions}
        for interval, sequencer in senders.owners:
            if interval in self.rows:
                found |= self.sends_on(self.rows[interval].computation, sequencer)
        return found

    def unsettled(self, config: Config, recovered: RecoveredInterval) -> set[str]:
        """Computations that get unacked productions of the interval on streams that it no longer lists as outputs."""
        if config.outputs is None:
            raise InvariantError("there is no config.outputs")
        names = {number: name for name, number in self.subscriptions.items()}
        left = {bundle.subscription for bundle in recovered.productions} - {*config.outputs, *config.back}
        return {self._receiver[names[number]] for number in left & config.routes.keys()}

    def channels(self, producer: ProducerId, stream: str) -> set[Channel]:
        """The channels on which the producer sends when it sends on the stream."""
        return {(self.subscriptions[s.name], producer) for s in self._graph.subscriptions(stream)}

    def retire(self, producer: ProducerId) -> None:
        """Nothing that the producer has sent, or will ever send, is new."""
        self.live.difference_update([(number, producer) for number in self.subscriptions.values()])

    def ended(self, channel: Channel) -> None:
        """All that an earlier owner has sent on `channel` is acked: what still comes on it is a copy, for the next owner of
        a receiver too."""
        self.live.discard(channel)

    def expect_of(self, config: Config, recovered: RecoveredInterval) -> None:
        """Expect what an earlier owner of the interval has sent and what this owner sends."""
        self.live |= {(bundle.subscription, bundle.producer) for bundle in recovered.productions}
        self.live |= self.sends_on(config.computation, config.sequencer)

    def sends_on(self, computation: str, sequencer: Sequencer) -> set[Channel]:
        """The channels of an owner of one of a computation's intervals."""
        outputs = self._graph.computations[computation].outputs
        return {channel for output in outputs for channel in self.channels(ProducerId(sequencer), output)}
