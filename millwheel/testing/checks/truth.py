"""A second copy of what is durable, kept by other means than the store's.

Lives here: `Truth`, which hears of every checkpoint that becomes durable, and the checks of a single checkpoint: what it
consumes, produces, acks, takes and puts in quarantine.  Never here: the store, whose answers it does not trust
(`watched`), or what a workload expects.  Numbers in messages, such as I1, are those of the list of invariants in
`docs/reliability.md`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import msgspec

from millwheel.bundles import Bundle, Checkpoint, Produced, QuarantineEntry
from millwheel.graph import Graph, SubscriptionSpec
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, Sequencer, SubscriptionId, sequence_numbers
from millwheel.model import MAX_TIME
from millwheel.ports import Opened
from millwheel.testing.kit.scripted import Script, ScriptedSource
from millwheel.testing.world.kernel import Kernel, Violation
from millwheel.work import QUARANTINE_HOLD, Slot

Channel = tuple[SubscriptionId, ProducerId]
Payload = tuple[str, bytes, int]
Place = tuple[Sequencer, Seq]
"""A checkpoint: the sequencer of its owner, and its seq."""

Element = tuple[int, int, int, str, str, int]
"""What waits in a quarantine: subscription, producer, sequence, kind, tag, timestamp."""


class Durable(msgspec.Struct):
    """What is durable of one computation, by key."""

    state: dict[str, dict[Slot, bytes]] = {}
    timers: dict[str, dict[tuple[str, str], int]] = {}
    holds: dict[str, int] = {}
    fifo: dict[str, list[Element]] = {}
    """key to its quarantine, in order."""
    reached: dict[str, int] = {}
    """key to the highest input watermark that hooks have seen whose effects are durable, us."""
    newest: dict[tuple[str, SubscriptionId, ProducerId], SequenceNumber] = {}
    """(key, subscription, producer) to the newest record that hooks had whose effects are durable, without redriven ones."""
    bounds: frozenset[str] = frozenset()
    """What bounds the input of the computation, in the version of the pipeline that ran last."""

    def bounded_by(self, names: set[str]) -> None:
        """A version runs in which these bound the input.  If one is new, the input has only what that has promised."""
        if not names <= self.bounds:
            self.reached = {}
        self.bounds = frozenset(names)


class Truth:
    """The effects of all durable checkpoints, and what is still to be done."""

    def __init__(self, graph: Graph, kernel: Kernel) -> None:
        self.graph = graph
        self.kernel = kernel
        self.durable: dict[str, Durable] = {name: Durable() for name in graph.computations}
        self.consumed: dict[Channel, set[SequenceNumber]] = {}
        self.taken_by: dict[Channel, dict[SequenceNumber, Place]] = {}
        """Id to the checkpoint that consumed it."""
        self.made_by: dict[Channel, dict[SequenceNumber, Seq]] = {}
        """Production to the seq of its checkpoint; the sequencer is its producer."""
        self.unrecorded: dict[Channel, dict[SequenceNumber, None]] = {}
        """Productions, ascending, whose acks are not durable."""
        self.advertised: dict[Channel, SequenceNumber] = {}
        """The highest frontier that was sent on a channel."""
        self.positions: dict[ProducerId, int] = {}
        """Producer of a source to its durable position; one that is finished is at the end of time."""
        self.produced: dict[Channel, dict[SequenceNumber, Payload]] = {}
        self.pending: dict[Channel, dict[SequenceNumber, int]] = {}
        """Durable and not durably consumed: sequence to timestamp."""
        self.scripts: dict[Channel, Script] = {}
        """Of each source partition, by whom it feeds."""
        self.outside: dict[tuple[IntervalId, SubscriptionId], dict[bytes, int]] = {}
        """(interval, subscription) to the ids that outside clients chose, and when they expire."""
        self.owner: dict[IntervalId, Sequencer] = {}
        """Interval to the sequencer that was taken last."""
        self.left: set[Sequencer] = set()
        """Sequencers of workers that have left in order since the last placement."""
        self.maker: dict[int, str] = {}
        """Producer to computation, or "source:name"."""
        self.subscriptions: dict[SubscriptionId, SubscriptionSpec] = {}
        self.computation: dict[IntervalId, str] = {}
        """Interval to computation; a source partition's interval is not in it."""
        self.redriven = 0
        """Elements that were taken out of quarantine."""
        self.asked: set[tuple[str, str]] = set()
        """(computation, key) of redrives that somebody asked for when the key was in quarantine, and it is still."""
        self.failures: list[tuple[str, QuarantineEntry]] = []
        """(computation, element) of every hook that failed to the last attempt, in order."""

    def fail(self, message: str, word: str = "") -> NoReturn:
        """An invariant broke."""
        raise Violation(message, self.kernel.story(word))

    def opened(self, opened: Opened) -> None:
        """Durable numbers are known."""
        specs = {s.name: s for c in self.graph.computations.values() for s in c.inputs}
        self.subscriptions = {number: specs[name] for name, number in opened.subscriptions.items()}
        self.computation = {row.id: row.computation for row in opened.intervals}

    def reshaped(self, first: IntervalId, new: Iterable[IntervalId], gone: Iterable[IntervalId]) -> None:
        """An interval was split into itself and `new` ones, or united with those that are `gone`."""
        for interval, subscription in [place for place in self.outside if place[0] == first]:
            for other in new:
                self.outside[other, subscription] = dict(self.outside[interval, subscription])
        for interval, subscription in [place for place in self.outside if place[0] in {*gone}]:
            taken = self.outside.pop((interval, subscription))
            known = self.outside.setdefault((first, subscription), {})
            for id_, expires in taken.items():
                known[id_] = max(expires, known.get(id_, expires))
        for interval in gone:
            self.owner.pop(interval, None)

    def script(self, source: str, partition: str, producer: ProducerId) -> None:
        """All rows of a source partition are pending from the start."""
        spec = self.graph.sources[source]
        if not isinstance(spec.source, ScriptedSource):
            return
        script = next(s for s in spec.source.scripts if s.name == partition)
        encode = self.graph.streams[spec.stream].coder.encode
        for number, subscription in self.subscriptions.items():
            if subscription.stream != spec.stream:
                continue
            rows = zip(sequence_numbers(range(len(script.rows))), script.rows, strict=True)
            keyed = {i: (k, encode(v), t) for i, (v, t) in rows if (k := subscription.key(v)) is not None}
            self.produced[number, producer] = keyed
            self.pending[number, producer] = {i: t for i, (_, _, t) in keyed.items()}
            self.scripts[number, producer] = script

    def scripts_delayed(self) -> None:
        """Rows that nobody has read have the times that their scripts say now."""
        for channel, script in self.scripts.items():
            for row, (key, value, _) in self.produced[channel].items():
                if row >= script.read_to:
                    time = script.rows[row][1]
                    self.produced[channel][row] = key, value, time
                    self.pending[channel][row] = time

    def scripts_ended(self) -> None:
        """Rows behind the ends that scripts have now will never be read."""
        for channel, script in self.scripts.items():
            for row in [row for row in self.produced[channel] if row >= len(script.rows)]:
                del self.produced[channel][row]
                self.pending[channel].pop(row)

    def apply(self, interval: IntervalId, place: Place, image: Checkpoint) -> None:
        """A checkpoint of an interval became durable."""
        name = self.computation[interval]
        self.apply_records(interval, place, image)
        self.apply_productions(interval, place, image)
        apply_keys(self.durable[name], image)
        self.kernel.probes["key expired"] += len(image.forgotten)
        self._apply_fifo(name, image)

    def apply_records(self, interval: IntervalId, place: Place, image: Checkpoint) -> None:
        """What a checkpoint says of the records that it has consumed."""
        self._apply_ids(self.computation[interval], place, image)
        self._apply_outside_ids(interval, image)

    def _apply_ids(self, name: str, place: Place, image: Checkpoint) -> None:
        for ids in image.ids:
            channel = (ids.subscription, ids.producer)
            spec = self.subscriptions[ids.subscription]
            if spec.computation != name:
                self.fail(f"I3: {name} consumed ids of subscription {spec.name!r}")
            known = self.consumed.setdefault(channel, set())
            again = known.intersection(ids.sequences)
            if again:
                self.fail(f"I1: {name} consumed {sorted(again)} of {spec.name!r} from producer {ids.producer} twice")
            known.update(ids.sequences)
            self.taken_by.setdefault(channel, {}).update(dict.fromkeys(ids.sequences, place))
            pending = self.pending.get(channel, {})
            for sequence in ids.sequences:
                pending.pop(sequence, None)
            if pending and min(pending) < ids.frontier:
                self.fail(
                    f"I14: {name} may collect ids of {spec.name!r} from producer {ids.producer} below {ids.frontier}, "
                    f"but {min(pending)} is not consumed"
                )

    def _apply_outside_ids(self, interval: IntervalId, image: Checkpoint) -> None:
        for outside in image.outside:
            if not outside.ids:
                self.kernel.probes["outside ids expired"] += 1
            taken = self.outside.setdefault((interval, outside.subscription), {})
            for id_ in outside.ids:
                if taken.get(id_, 0) >= outside.expires - 1:
                    self.fail(f"I1: interval {interval} takes the outside id {id_!r} twice within its slack")
                taken[id_] = outside.expires

    def apply_productions(self, interval: IntervalId, place: Place, image: Checkpoint) -> None:
        """What a checkpoint says of records that its interval has sent, or is about to."""
        for produced in image.produced:
            channel = (produced.subscription, produced.producer)
            rows = self.produced.setdefault(channel, {})
            pending = self.pending.setdefault(channel, {})
            columns = zip(produced.keys, produced.values, produced.timestamps, strict=True)
            self._check_advertised(interval, produced)
            sequences = sequence_numbers(range(produced.first, produced.first + len(produced.keys)))
            self.made_by.setdefault(channel, {}).update(dict.fromkeys(sequences, place[1]))
            self.unrecorded.setdefault(channel, {}).update(dict.fromkeys(sequences))
            for sequence, row in zip(sequences, columns, strict=True):
                if rows.setdefault(sequence, row) != row:
                    self.fail(f"I3: production {sequence} of producer {produced.producer} changed")
                if sequence not in self.consumed.get(channel, ()):
                    pending[sequence] = row[2]
        for acked in image.acked:
            channel = (acked.subscription, acked.producer)
            for sequence in acked.sequences:
                self.unrecorded.get(channel, {}).pop(sequence, None)
            if not self.exact(acked.subscription):
                continue
            lost = set(acked.sequences) - self.consumed.get(channel, set())
            if lost:
                self.fail(f"I2: interval {interval} records acks of {sorted(lost)}, which nobody consumed")

    def _check_advertised(self, interval: IntervalId, produced: Produced) -> None:
        frontier = self.advertised.get((produced.subscription, produced.producer), 0)
        if produced.first < frontier:
            self.fail(
                f"I14: interval {interval} stores production {produced.first} of producer {produced.producer}, and has "
                f"advertised the frontier {frontier}"
            )

    def saw_frontier(self, interval: IntervalId, bundle: Bundle) -> None:
        """A frontier leaves: everything below it is recorded as acked, durably (I14)."""
        channel, frontier = (bundle.subscription, bundle.producer), bundle.frontier
        self.advertised[channel] = max(frontier, self.advertised.get(channel, frontier))
        waits = next(iter(self.unrecorded.get(channel, ())), None)
        if waits is not None and waits < frontier:
            self.fail(
                f"I14: interval {interval} advertises frontier {frontier} for producer {bundle.producer}, and the ack of "
                f"{waits} is not durable"
            )
        if bundle.producer in self.positions and frontier > self.positions[bundle.producer]:
            self.fail(
                f"I14: interval {interval} advertises frontier {frontier} for producer {bundle.producer}, whose position "
                f"{self.positions[bundle.producer]} is durable"
            )

    def apply_line(self, name: str, image: Checkpoint) -> None:
        """What the image of an epoch does to quarantines.  It does not count what was redriven of a line that has ended."""
        fifo = self.durable[name].fifo
        for key in image.released:
            self.redriven += len(fifo.pop(key, ()))
        self._apply_fifo(name, image)

    def _apply_fifo(self, name: str, image: Checkpoint) -> None:
        fifo = self.durable[name].fifo
        for key, count in image.redriven:
            if count > len(fifo.get(key, ())):
                self.fail(
                    f"I1: {name} has redriven {count} elements of {key!r}, of which {len(fifo.get(key, ()))} wait"
                )
            del fifo[key][:count]
            self.redriven += count
        for key in image.released:
            self.kernel.probes["quarantine redriven"] += 1
            self.asked.discard((name, key))
            if fifo.pop(key, []):
                self.fail(f"I2: {name} released the quarantine of {key!r} with elements in it")
        for entry in image.quarantined:
            fifo.setdefault(entry.key, []).append(element_of(entry))
            self.kernel.probes["record quarantined"] += 1
            self.kernel.probes["released and quarantined at once"] += entry.key in image.released
            self.kernel.probes["timers were a loop"] += "a loop" in entry.error
            if entry.error:
                self.failures.append((name, entry))

    def saw_fifos(self, interval: IntervalId, sequencer: Sequencer, entries: Iterable[QuarantineEntry]) -> None:
        """The owner of an interval has read FIFOs of it, to redrive them: what waits first, each once (I1, I17)."""
        if self.owner[interval] != sequencer:
            return  # what a zombie reads has no effect
        name, read = self.computation[interval], dict[str, list[Element]]()
        for entry in entries:
            read.setdefault(entry.key, []).append(element_of(entry))
        self.kernel.probes["several keys redriven at once"] += len(read) > 1
        for key, found in read.items():
            waits = self.durable[name].fifo.get(key, [])[: len(found)]
            if found != waits:
                self.fail(f"I17: {name} is about to redrive {found} of {key!r}, and {waits} waits first", key)

    def exact(self, subscription: SubscriptionId) -> bool:
        """Whether a subscription is delivered exactly once, so that an ack means durable consumption."""
        spec = self.graph.computations[self.subscriptions[subscription].computation]
        return spec.settings.exactly_once

    def work_of(self, name: str) -> list[tuple[str, int]]:
        """(what, oldest timestamp us) of everything durable that `name` still has to do or to deliver."""
        durable = self.durable[name]
        waits = self.graph.computations[name].settings.quarantine_holds
        found = [
            (f"timer {tag!r} of {key!r}", at)
            for key, timers in durable.timers.items()
            for (kind, tag), at in timers.items()
            if kind == "watermark" and (waits or not durable.fifo.get(key))
        ]
        holds = [(key, at) for key, at in durable.holds.items() if not _in_vain(key, at)]
        found += [(f"hold of {key!r}", at) for key, at in holds if waits or not durable.fifo.get(key)]
        for (subscription, producer), rows in self.pending.items():
            spec = self.subscriptions[subscription]
            if rows and (spec.computation == name or self.maker.get(producer) == name):
                found.append((f"a record on {spec.name!r} from producer {producer}", min(rows.values())))
        if waits:
            for key, entries in durable.fifo.items():
                times = [entry[-1] for entry in entries if entry[0] >= 0 or entry[3] == "watermark"]
                found += [(f"quarantine of {key!r}", min(times))] if times else []
        return found


def _in_vain(hold: str, at: int) -> bool:
    """An interval may be at the end of time already when a wall timer of it goes into quarantine; it takes nothing back."""
    return hold.endswith(QUARANTINE_HOLD) and at >= MAX_TIME - 1


def element_of(entry: QuarantineEntry) -> Element:
    """What of an element says which one it is."""
    return entry.subscription, entry.producer, entry.sequence, entry.kind, entry.tag, entry.timestamp


def apply_keys(durable: Durable, image: Checkpoint) -> None:
    """What one checkpoint does to the state, the timers and the holds of keys."""
    for key in image.forgotten:
        durable.state.pop(key, None)
        durable.timers.pop(key, None)
        durable.holds.pop(key, None)
    for key, cell, entry, value in image.state.rows():
        _put(durable.state, key, (cell, entry), value)
    timers = image.timers
    for key, kind, tag, at in zip(timers.keys, timers.kinds, timers.tags, timers.timestamps, strict=True):
        _put(durable.timers, key, (kind, tag), at)
    for key, at in zip(image.holds.keys, image.holds.timestamps, strict=True):
        if at is None:
            durable.holds.pop(key, None)
        else:
            durable.holds[key] = at


def _put(table: dict[str, dict[Any, Any]], key: str, place: object, value: object) -> None:
    entries = table.setdefault(key, {})
    if value is None:
        entries.pop(place, None)
        if not entries:
            del table[key]
    else:
        entries[place] = value
