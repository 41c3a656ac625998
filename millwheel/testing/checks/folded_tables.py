"""The folded tables, kept a second time: each image by itself and in order, without the merge that stores share (I4).

Lives here: `FoldedTables`, told of every log row that a store folds, and the comparison with the tables that it then has.
Never here: the log, or what is durable but not folded (`truth`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from millwheel.bundles import Acked, Checkpoint, KeyRows, QuarantineEntry, RecoveredInterval
from millwheel.graph import Graph
from millwheel.ids import IntervalId, SequenceNumber, sequence_numbers
from millwheel.model import MAX_TIME
from millwheel.ports import IntervalRow
from millwheel.testing.checks.truth import Channel, Durable, Payload, apply_keys, element_of
from millwheel_storage.memory import MemoryStore

Fail = Callable[..., NoReturn]


class FoldedTables:
    """What the tables must hold: keys by computation, the rest by interval."""

    def __init__(self, graph: Graph, fail: Fail) -> None:
        self.keys = {name: Durable({}, {}, {}, {}) for name in graph.computations}
        self._fail = fail
        self._produced: dict[IntervalId, dict[Channel, dict[SequenceNumber, Payload]]] = {}
        """Of each interval, what is folded and whose acks are not."""
        self._delivered: dict[IntervalId, dict[Channel, set[SequenceNumber]]] = {}
        self._frontiers: dict[IntervalId, dict[Channel, SequenceNumber]] = {}

    def folded(
        self, store: MemoryStore, row: IntervalRow, images: Sequence[Checkpoint], later: Iterable[Acked] = ()
    ) -> None:
        """`images` are in the tables now; `later` acks are in the log, and what they name may be missing already."""
        touched: set[str] = set()
        for image in images:
            touched.update(image.state.keys(), image.timers.keys, image.holds.keys, image.forgotten)
            touched.update((key for key, _ in image.redriven), image.released, (e.key for e in image.quarantined))
        self.take(row, images)
        self._check_keys(store, row.computation, touched)
        self._check_productions(store, row.id, {(a.subscription, a.producer, n) for a in later for n in a.sequences})
        self._check_ids(store, row.id, {(ids.subscription, ids.producer) for image in images for ids in image.ids})

    def take(self, row: IntervalRow, images: Iterable[Checkpoint]) -> None:
        """`images` come into the tables, with something else that is not done yet."""
        keys = self.keys[row.computation]
        for image in images:
            apply_keys(keys, image)
            _apply_fifo(keys, image)
            self._apply_channels(row.id, image)

    def _apply_channels(self, interval: IntervalId, image: Checkpoint) -> None:
        produced = self._produced.setdefault(interval, {})
        for made in image.produced:
            numbers = sequence_numbers(range(made.first, made.first + len(made.keys)))
            rows = zip(made.keys, made.values, made.timestamps, strict=True)
            produced.setdefault((made.subscription, made.producer), {}).update(zip(numbers, rows, strict=True))
        for acked in image.acked:
            for sequence in acked.sequences:
                produced.get((acked.subscription, acked.producer), {}).pop(sequence, None)
        delivered, frontiers = self._delivered.setdefault(interval, {}), self._frontiers.setdefault(interval, {})
        for ids in image.ids:
            channel = (ids.subscription, ids.producer)
            frontiers[channel] = max(ids.frontier, frontiers.get(channel, ids.frontier))
            delivered.setdefault(channel, set()).update(ids.sequences)

    def reshaped(self, first: IntervalId, new: Iterable[IntervalId], gone: Iterable[IntervalId]) -> None:
        """An interval was split into itself and `new` ones, or united with those that are `gone`."""
        delivered, frontiers = self._delivered.setdefault(first, {}), self._frontiers.setdefault(first, {})
        for other in new:
            self._delivered[other] = {channel: set(ids) for channel, ids in delivered.items()}
            self._frontiers[other] = dict(frontiers)
        produced = self._produced.setdefault(first, {})
        for other in gone:
            for channel, frontier in self._frontiers.pop(other, {}).items():
                frontiers[channel] = max(frontier, frontiers.get(channel, frontier))
            for channel, ids in self._delivered.pop(other, {}).items():
                delivered.setdefault(channel, set()).update(ids)
            for channel, rows in self._produced.pop(other, {}).items():
                produced.setdefault(channel, {}).update(rows)

    # --- what a store has -----------------------------------------------------------------------------------------

    def _check_keys(self, store: MemoryStore, name: str, touched: Iterable[str]) -> None:
        keys, folded = self.keys[name], store.folded
        tables: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = [
            ("state", keys.state, folded.key_state.get(name, {})),
            ("timers", keys.timers, folded.timers.get(name, {})),
            ("hold", keys.holds, folded.holds.get(name, {})),
        ]
        for key in touched:
            for what, wanted, found in tables:
                if wanted.get(key) != found.get(key):
                    is_ = f"is {found.get(key)} in the tables, not {wanted.get(key)}"
                    self._fail(f"I4: the {what} of {key!r} in {name} {is_}")
            line = [element_of(entry) for entry in store.quarantine.get((name, key), ())]
            if line != keys.fifo.get(key, []):
                self._fail(f"I4: the quarantine of {key!r} in {name} is {line} in the tables, not {keys.fifo.get(key)}")

    def _check_productions(self, store: MemoryStore, interval: IntervalId, later: set[tuple[int, int, int]]) -> None:
        found, wanted = store.folded.productions.get(interval, {}), self._produced.get(interval, {})
        for channel, rows in wanted.items():
            stored = found.get(channel, {})
            for sequence in [sequence for sequence in rows if sequence not in stored]:
                if (*channel, sequence) not in later:
                    self._fail(f"I2: production {sequence} on {channel} of interval {interval} is gone, and not acked")
                del rows[sequence]  # its ack is in the log
        for channel, stored in found.items():
            if stored != wanted.get(channel, {}):
                extra = sorted(stored.keys() - wanted.get(channel, {}).keys())
                self._fail(
                    f"I4: interval {interval} keeps productions {extra} on {channel}, which are acked or changed"
                )

    def _check_ids(self, store: MemoryStore, interval: IntervalId, touched: Iterable[Channel]) -> None:
        delivered, frontiers = self._delivered.get(interval, {}), self._frontiers.get(interval, {})
        for channel in touched:
            frontier = frontiers[channel]
            kept = delivered[channel] = {sequence for sequence in delivered[channel] if sequence >= frontier}
            found = store.folded.delivered.get(interval, {}).get(channel, set())
            if found != kept:
                self._fail(
                    f"I14: interval {interval} keeps ids {sorted(found)[:9]} on {channel}, not {sorted(kept)[:9]}"
                )
            known = store.folded.frontiers.get(interval, {}).get(channel)
            if known != (frontier if frontier < MAX_TIME else None):
                self._fail(f"I14: interval {interval} keeps the frontier {known} on {channel}, and was told {frontier}")
            if frontier >= MAX_TIME:
                del delivered[channel], frontiers[channel]

    # --- what a store answers -------------------------------------------------------------------------------------

    def recovered(self, row: IntervalRow, answer: RecoveredInterval) -> None:
        """An owner begins with this."""
        keys = self.keys[row.computation]
        stored = {(b.subscription, b.producer, n) for b in answer.productions for n in b.sequences}
        wanted = {(*channel, n) for channel, rows in self._produced.get(row.id, {}).items() for n in rows}
        if stored != wanted:
            wrong = sorted(stored ^ wanted)[:9]
            self._fail(f"I2: the owner of interval {row.id} is given productions {wrong} too many or few")
        check_given(keys, row, answer, self._fail)

    def lines(self, name: str, keys: Sequence[str], limit: int, entries: Sequence[QuarantineEntry]) -> None:
        """Quarantines were read, `limit` elements of them at most."""
        wanted = [(key, element) for key in keys for element in self.keys[name].fifo.get(key, [])]
        found = [(entry.key, element_of(entry)) for entry in entries]
        if found != wanted[:limit]:
            self._fail(f"I17: {found[:3]} is read of the quarantines of {name}, and {wanted[:3]} waits there")

    def loaded(self, row: IntervalRow, keys: Sequence[str], rows: Iterable[KeyRows]) -> None:
        """State was read."""
        stored = self.keys[row.computation].state
        found = {loaded.key: loaded for loaded in rows}
        for key in keys:
            wanted = stored.get(key, {})
            cells = found[key].cells if key in found else {}
            if key in found and found[key].more:
                wanted = {place: value for place, value in wanted.items() if place in cells}
            if cells != wanted:
                self._fail(f"I4: of {key!r} in {row.computation} {cells} is read, and {wanted} was folded")


def check_given(keys: Durable, row: IntervalRow, answer: RecoveredInterval, fail: Fail) -> None:
    """A new owner is given the holds, the quarantines and the timers that are durable."""

    def mine(key: str) -> bool:
        return row.low <= key and (row.high is None or key < row.high)

    holds = dict(zip(answer.holds.keys, answer.holds.timestamps, strict=True))
    if holds != {key: at for key, at in keys.holds.items() if mine(key)}:
        fail(f"I4: the owner of interval {row.id} is given the holds {holds}")
    if [*answer.quarantined] != sorted(key for key, line in keys.fifo.items() if line and mine(key)):
        fail(f"I4: the owner of interval {row.id} is given the quarantines {answer.quarantined}")
    timers = answer.timers
    given = {*zip(timers.kinds, timers.timestamps, timers.keys, timers.tags, strict=True)}
    wanted_timers = {
        (kind, at, key, tag) for key, all_ in keys.timers.items() if mine(key) for (kind, tag), at in all_.items()
    }
    missing = {timer for timer in wanted_timers - given if timer[0] not in answer.more_timers}
    if missing or not given <= wanted_timers:
        found = sorted(missing or given - wanted_timers)[:3]
        fail(f"I8: the owner of interval {row.id} is given timers without, or with, {found}")


def _apply_fifo(keys: Durable, image: Checkpoint) -> None:
    """Elements that were redriven leave first, then a line ends, then others wait: one image is one moment."""
    for key, count in image.redriven:
        del keys.fifo.get(key, [])[:count]
    for key in image.released:
        keys.fifo.pop(key, None)
    for entry in image.quarantined:
        keys.fifo.setdefault(entry.key, []).append(element_of(entry))
    for key in [key for key, _ in image.redriven if not keys.fifo.get(key, True)]:
        keys.fifo.pop(key)
