"""The tables that the log is folded into, as dicts: one half of `MemoryStore`.

Lives here: the tables, what a fold does to them, and what a recovery reads of them.  Never here: the log, ownership or
refusals; the caller has checked those.  Invariant: `apply` leaves the same rows as the statements of `writes` in Postgres.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import nsmallest
from typing import Any, TypeVar

import msgspec

from millwheel import limits
from millwheel.bundles import (
    BEFORE_TIMERS,
    Bundle,
    Delivered,
    HoldWrites,
    OutsideBucket,
    QuarantineEntry,
    RecoveredInterval,
    TimerPlace,
    expired_rows,
)
from millwheel.ids import IntervalId, ProducerId, SequenceNumber, SubscriptionId
from millwheel.limits import WORK_LIMIT_RECORDS
from millwheel.model import MAX_TIME, TIMER_KINDS
from millwheel.ports import IntervalRow
from millwheel.shape import BEFORE_KEY, GATHERED_TIME, CombinedBy
from millwheel_storage.decode import TimerRow, timer_writes
from millwheel_storage.fold import Channel, Folded, Payload
from millwheel_storage.productions import bundles
from millwheel_storage.releases import LogPlace, Releases
from millwheel_storage.schema.shape_checks import holds_key

V = TypeVar("V")


class MemoryTables:
    """By computation or interval, then by key or channel; decoded and unpacked, unlike those of Postgres."""

    def __init__(self) -> None:
        self.key_state: dict[str, dict[str, dict[tuple[str, str], bytes]]] = {}
        self.timers: dict[str, dict[str, dict[tuple[str, str], int]]] = {}
        self.holds: dict[str, dict[str, int]] = {}
        self.follows: dict[IntervalId, set[ProducerId]] = {}
        self.productions: dict[IntervalId, dict[Channel, dict[SequenceNumber, Payload]]] = {}
        self.delivered: dict[IntervalId, dict[Channel, set[SequenceNumber]]] = {}
        self.frontiers: dict[IntervalId, dict[Channel, SequenceNumber]] = {}
        self.outside: dict[tuple[IntervalId, SubscriptionId, int], set[bytes]] = {}
        """(interval, subscription, expires) to ids."""
        self.outside_counts: dict[tuple[IntervalId, SubscriptionId, int], int] = {}
        self.quarantine: dict[tuple[str, str], list[QuarantineEntry]] = {}
        self.redrives: dict[tuple[str, str], LogPlace] = {}
        """(computation, key) to the end that the log of the key's interval had when somebody asked."""
        self.blank = True
        """No key of any computation has ever had state or timers."""

    def rename(self, name: str, new: str) -> None:
        """A computation goes on under another name."""
        tables: tuple[dict[str, Any], ...] = (self.key_state, self.timers, self.holds)
        for table in tables:
            if name in table:
                table[new] = table.pop(name)
        self.quarantine = {(new if c == name else c, key): fifo for (c, key), fifo in self.quarantine.items()}
        self.redrives = {(new if c == name else c, key): end for (c, key), end in self.redrives.items()}

    def drop_cell(self, computation: str, place: str) -> None:
        """Delete a cell's values, of all keys."""
        state = self.key_state.get(computation, {})
        for key, slots in list(state.items()):
            kept = {slot: value for slot, value in slots.items() if slot[0] != place}
            if kept:
                state[key] = kept
            else:
                del state[key]

    def apply(self, row: IntervalRow, folded: Folded, released: Releases) -> None:
        """What a fold of an interval's log changes; `released` has the keys that it releases."""
        self._apply_keys(row.computation, folded)
        self._apply_productions(row.id, folded)
        self._apply_ids(row.id, folded)
        self._apply_outside_ids(row.id, folded)
        self._apply_quarantine(row.computation, folded, released)

    def _apply_keys(self, computation: str, folded: Folded) -> None:
        state = self.key_state.setdefault(computation, {})
        timers = self.timers.setdefault(computation, {})
        holds = self.holds.setdefault(computation, {})
        for key in folded.forgotten:
            state.pop(key, None)
            timers.pop(key, None)
            holds.pop(key, None)
        for key in folded.state_keys():
            _overlay(state, {key: folded.cells_of(key)})
        _overlay(timers, folded.timers)
        self.blank = self.blank and not (state or timers)
        for key, timestamp in folded.holds.items():
            _put(holds, key, timestamp)

    def _apply_productions(self, interval: IntervalId, folded: Folded) -> None:
        stored = self.productions.setdefault(interval, {})
        for channel, sequences in folded.acked.items():
            for sequence in sequences:
                stored.get(channel, {}).pop(sequence, None)
        for channel, rows in folded.productions.items():
            stored.setdefault(channel, {}).update(rows)

    def _apply_ids(self, interval: IntervalId, folded: Folded) -> None:
        delivered = self.delivered.setdefault(interval, {})
        frontiers = self.frontiers.setdefault(interval, {})
        for channel, frontier in folded.frontiers.items():
            frontiers[channel] = max(frontier, frontiers.get(channel, frontier))
            known = {*delivered.pop(channel, ()), *folded.ids.get(channel, ())}
            kept = {sequence for sequence in known if sequence >= frontiers[channel]}
            if kept:
                delivered[channel] = kept
            if frontiers[channel] >= MAX_TIME:  # retired: nobody will be asked about it again
                del frontiers[channel]

    def _apply_outside_ids(self, interval: IntervalId, folded: Folded) -> None:
        for bucket, ids in folded.outside.items():
            place = (interval, *bucket)
            self.outside.setdefault(place, set()).update(ids)
            self.outside_counts[place] = self.outside_counts.get(place, 0) + len(ids)
        for subscription, now in folded.expired.items():
            mine = (p for p in self.outside_counts if p[:2] == (interval, subscription) and p[2] <= now)
            rows = expired_rows(sum(len(ids) for (of, _), ids in folded.outside.items() if of == subscription))
            for place in sorted(mine):
                gone = sorted(self.outside[place])[:rows]
                rows -= len(gone)
                self.outside[place].difference_update(gone)
                if not self.outside[place]:
                    del self.outside[place], self.outside_counts[place]

    def _apply_quarantine(self, computation: str, folded: Folded, released: Releases) -> None:
        for key, fifo in folded.quarantine.items():
            place = (computation, key)
            stored = [] if fifo.cleared else self.quarantine.get(place, [])
            rows = [*stored, *fifo.appended][fifo.dropped :]
            if rows:
                self.quarantine[place] = rows
            else:
                self.quarantine.pop(place, None)
            end = released.get(key)
            if end is not None and self.redrives.get(place, end) < end:
                del self.redrives[place]

    def copy_ids(self, interval: IntervalId, new: Iterable[IntervalId]) -> None:
        """Whatever was delivered to an interval was delivered to each of the `new` ones too."""
        for other in new:
            self.follows[other] = self.follows.get(interval, set()) | self._sent_by(interval)
            self.delivered[other] = {channel: set(ids) for channel, ids in self.delivered.get(interval, {}).items()}
            self.frontiers[other] = dict(self.frontiers.get(interval, {}))
            for place in [place for place in self.outside if place[0] == interval]:
                self.outside[(other, *place[1:])] = set(self.outside[place])
                self.outside_counts[(other, *place[1:])] = self.outside_counts[place]

    def _sent_by(self, interval: IntervalId) -> set[ProducerId]:
        """Producers of what the interval has sent and is not acked."""
        return {producer for (_, producer), rows in self.productions.get(interval, {}).items() if rows}

    def behind(self, interval: IntervalId, siblings: Iterable[IntervalId]) -> bool:
        """Whether one of the `siblings` keeps what was sent of keys of the interval."""
        follows = self.follows.get(interval, set())
        return any(follows & self._sent_by(other) for other in siblings if other != interval)

    def unite(self, interval: IntervalId, others: Iterable[IntervalId]) -> None:
        """What was delivered to the `others`, and what they sent, is the interval's."""
        for other in others:
            self.follows.pop(other, None)
            delivered, frontiers = self.delivered.setdefault(interval, {}), self.frontiers.setdefault(interval, {})
            for channel, frontier in self.frontiers.pop(other, {}).items():
                frontiers[channel] = max(frontier, frontiers.get(channel, frontier))
            for channel, ids in self.delivered.pop(other, {}).items():
                delivered.setdefault(channel, set()).update(ids)
            productions = self.productions.setdefault(interval, {})
            for channel, rows in self.productions.pop(other, {}).items():
                productions.setdefault(channel, {}).update(rows)
            for place in [place for place in self.outside if place[0] == other]:
                mine = (interval, *place[1:])
                self.outside.setdefault(mine, set()).update(self.outside.pop(place))
                self.outside_counts[mine] = len(self.outside[mine])
                del self.outside_counts[place]
        for channel, frontier in self.frontiers.get(interval, {}).items():
            ids = self.delivered[interval].get(channel, set())
            ids.difference_update([sequence for sequence in ids if sequence < frontier])
            if not ids:
                self.delivered[interval].pop(channel, None)

    def hand_over(
        self, subscription: SubscriptionId, old: Collection[IntervalId], new: Sequence[IntervalId], combiner: CombinedBy
    ) -> None:
        """A subscription was that of the `old` intervals, and is that of the `new` ones, which are of `combiner`."""
        before, behind = combiner.prefix, combiner.suffix
        for channels in self.productions.values():
            for channel in [channel for channel in channels if channel[0] == subscription]:
                rows = channels[channel].items()
                channels[channel] = {
                    sequence: (before + key + behind, value, at) for sequence, (key, value, at) in rows
                }
        for interval in old:
            self.productions.setdefault(new[0], {}).update(_taken(self.productions, interval, subscription))
        self.share_ids(subscription, old, new)

    def producers(self, subscription: SubscriptionId) -> set[ProducerId]:
        """Who has sent on a subscription, as far as that is known."""
        tables: tuple[Mapping[IntervalId, Mapping[Channel, Any]], ...] = (self.productions, self.frontiers)
        found = (channel for table in tables for channels in table.values() for channel in channels)
        return {producer for number, producer in found if number == subscription}

    def hand_back(
        self, subscription: SubscriptionId, merged: SubscriptionId, old: Sequence[IntervalId], new: Sequence[IntervalId]
    ) -> None:
        """A subscription was that of the `old` intervals, a combiner's, and is that of the `new` ones, which had `merged`."""
        for channels in self.productions.values():
            for channel in [channel for channel in channels if channel[0] == subscription]:
                rows = channels[channel].items()
                channels[channel] = {
                    sequence: (key.partition(BEFORE_KEY)[2], value, at) for sequence, (key, value, at) in rows
                }
        for interval in [*self.productions]:
            taken = _taken(self.productions, interval, merged)
            self.productions.setdefault(new[0], {}).update(_relabelled(taken, subscription))
        self.share_ids(subscription, old, new)
        self.count_outside(subscription, new)
        for interval in new:
            tables: tuple[dict[IntervalId, dict[Channel, Any]], ...] = (self.frontiers, self.delivered)
            for table in tables:
                table[interval].update(_relabelled(_taken(table, interval, merged), subscription))

    def _known(
        self, subscription: SubscriptionId, old: Iterable[IntervalId]
    ) -> tuple[dict[Channel, SequenceNumber], dict[Channel, set[SequenceNumber]]]:
        """What intervals have been delivered on a subscription, which they have no longer: frontiers, and ids from there."""
        frontiers: dict[Channel, SequenceNumber] = {}
        delivered: dict[Channel, set[SequenceNumber]] = {}
        for interval in old:
            for channel, frontier in _taken(self.frontiers, interval, subscription).items():
                frontiers[channel] = max(frontier, frontiers.get(channel, frontier))
            for channel, ids in _taken(self.delivered, interval, subscription).items():
                delivered.setdefault(channel, set()).update(ids)
        kept = {channel: {id_ for id_ in ids if id_ >= frontiers[channel]} for channel, ids in delivered.items()}
        return frontiers, {channel: ids for channel, ids in kept.items() if ids}

    def give_gathered(self, parts: str, first: IntervalId, channel: Channel) -> None:
        """What a combiner has gathered is on its way, on `channel`."""
        gathered = (
            (key, entry, value)
            for key, slots in self.key_state.get(parts, {}).items()
            for (_, entry), value in slots.items()
        )
        rows = {
            SequenceNumber(number): (
                key.partition(BEFORE_KEY)[2], value[GATHERED_TIME.size :], GATHERED_TIME.unpack_from(value)[0]
            )
            for number, (key, entry, value) in enumerate(sorted(gathered))
        }  # fmt: skip
        if rows:
            self.productions.setdefault(first, {})[channel] = rows

    def share_ids(self, subscription: SubscriptionId, old: Collection[IntervalId], new: Collection[IntervalId]) -> None:
        """What was delivered to any of the `old` intervals on a subscription was delivered to each of the `new` ones."""
        frontiers, delivered = self._known(subscription, old)
        for interval in new:
            self.frontiers.setdefault(interval, {}).update(frontiers)
            self.delivered.setdefault(interval, {}).update({channel: set(ids) for channel, ids in delivered.items()})
        self._hand_over_outside_ids(subscription, old, new)

    def count_outside(self, subscription: SubscriptionId, new: Collection[IntervalId]) -> None:
        """Intervals that were cut from one another have had the same ids of clients: what has been united is counted."""
        for place in [place for place in self.outside if place[0] in new and place[1] == subscription]:
            self.outside_counts[place] = len(self.outside[place])

    def move_elements(self, parts: str, computation: str) -> None:
        """What waits in the quarantine of a combiner waits in that of its computation."""
        for _, key in [place for place in self.quarantine if place[0] == parts]:
            whole = key.partition(BEFORE_KEY)[2]
            fifo = [msgspec.structs.replace(entry, key=whole) for entry in self.quarantine.pop((parts, key))]
            self.quarantine.setdefault((computation, whole), []).extend(fifo)

    def _hand_over_outside_ids(
        self, subscription: SubscriptionId, old: Collection[IntervalId], new: Collection[IntervalId]
    ) -> None:
        for place in [place for place in self.outside if place[0] in old and place[1] == subscription]:
            ids, count = self.outside.pop(place), self.outside_counts.pop(place)
            for interval in new:
                other = (interval, *place[1:])
                self.outside.setdefault(other, set()).update(ids)
                self.outside_counts[other] = self.outside_counts.get(other, 0) + count

    def drop_subscriptions(self, gone: Collection[SubscriptionId]) -> None:
        """Nobody has these any more: what is on its way, and what is known of ids."""
        for table in (self.productions, self.delivered, self.frontiers):
            for channels in table.values():
                for channel in [channel for channel in channels if channel[0] in gone]:
                    del channels[channel]
        self._forget_outside([place for place in self.outside_counts if place[1] in gone])

    def drop_elements(self, computation: str, gone: Collection[SubscriptionId]) -> None:
        """What waits in the quarantine of a computation and came over these; the first that is left says why it waits."""
        for place in [place for place in self.quarantine if place[0] == computation]:
            first, *_ = fifo = self.quarantine[place]
            left = [entry for entry in fifo if entry.subscription not in gone]
            if left and first.subscription in gone and not left[0].error:
                left[0] = msgspec.structs.replace(left[0], error=first.error)
            if left:
                self.quarantine[place] = left
            else:
                del self.quarantine[place]
                self.redrives.pop(place, None)

    def orphans(self, old: Iterable[IntervalId]) -> list[SubscriptionId]:
        """The subscriptions on which something is on its way that these intervals have sent."""
        return sorted({channel[0] for id_ in old for channel, rows in self.productions.get(id_, {}).items() if rows})

    def adopt(self, subscription: SubscriptionId, old: Iterable[IntervalId], first: IntervalId) -> None:
        """An interval goes on with what the `old` ones have sent on a subscription."""
        for interval in old:
            self.productions.setdefault(first, {}).update(_taken(self.productions, interval, subscription))

    def drop_computation(self, computation: str, old: Collection[IntervalId]) -> None:
        """A computation goes with all that is kept by key, and by interval."""
        by_key: tuple[dict[str, Any], ...] = (self.key_state, self.timers, self.holds)
        for table in by_key:
            table.pop(computation, None)
        for place in [place for place in self.quarantine if place[0] == computation]:
            del self.quarantine[place]
        for place in [place for place in self.redrives if place[0] == computation]:
            del self.redrives[place]
        by_interval: tuple[dict[IntervalId, Any], ...] = (self.productions, self.delivered, self.frontiers)
        for of in by_interval:
            for interval in old:
                of.pop(interval, None)
        self._forget_outside([place for place in self.outside_counts if place[0] in old])

    def _forget_outside(self, places: Iterable[tuple[IntervalId, SubscriptionId, int]]) -> None:
        for place in places:
            self.outside.pop(place, None)
            del self.outside_counts[place]

    def requalify(self, computation: str, subscription: SubscriptionId, other: SubscriptionId) -> None:
        """What waits in the quarantine of a computation came over the `other` subscription."""
        for place in [place for place in self.quarantine if place[0] == computation]:
            self.quarantine[place] = [
                msgspec.structs.replace(entry, subscription=other) if entry.subscription == subscription else entry
                for entry in self.quarantine[place]
            ]

    def recovered(self, row: IntervalRow, watermark: int, ends: int, suspicion: bytes) -> RecoveredInterval:
        """What an owner of an interval needs to serve."""
        stored = self.productions.get(row.id, {})
        pages = {kind: self.timer_page(row, kind, BEFORE_TIMERS, limits.TIMER_PAGE_ROWS) for kind in TIMER_KINDS}
        return RecoveredInterval(
            ids=self._ids(row.id),
            productions=[bundle for channel in sorted(stored) for bundle in _bundles(channel, stored[channel])],
            timers=timer_writes([timer for page in pages.values() for timer in page]),
            holds=self._holds(row),
            quarantined=sorted(k for c, k in self.quarantine if c == row.computation and holds_key(row, k)),
            watermark=watermark,
            outside=[
                OutsideBucket(*p[1:], count) for p, count in sorted(self.outside_counts.items()) if p[0] == row.id
            ],
            more_timers=[kind for kind, page in pages.items() if len(page) >= limits.TIMER_PAGE_ROWS],
            ends=ends,
            suspicion=suspicion,
            blank=self.blank,
        )

    def _ids(self, interval: IntervalId) -> list[Delivered]:
        delivered, frontiers = self.delivered.get(interval, {}), self.frontiers.get(interval, {})
        return [
            Delivered(*c, frontiers[c], max(delivered.get(c, ()), default=SequenceNumber(-1)))
            for c in sorted(frontiers)
        ]

    def timer_page(self, row: IntervalRow, kind: str, after: TimerPlace, limit: int) -> list[TimerRow]:
        """The next `limit` timers of a kind after (timestamp, (key, tag)), in that order."""
        rows = (
            (timestamp, key, tag, kind)
            for key, timers in self.timers.get(row.computation, {}).items()
            for (other, tag), timestamp in timers.items()
            if other == kind and holds_key(row, key) and (timestamp, (key, tag)) > after
        )
        return nsmallest(limit, rows)

    def _holds(self, row: IntervalRow) -> HoldWrites:
        holds = self.holds.get(row.computation, {})
        keys = sorted(key for key in holds if holds_key(row, key))
        return HoldWrites(keys, [holds[key] for key in keys])

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """See `MemoryStore.tables`."""
        return {
            "key_state": sorted(
                (computation, key, cell, entry, value)
                for computation, keys in self.key_state.items()
                for key, cells in keys.items()
                for (cell, entry), value in cells.items()
            ),
            "timer": sorted(
                (computation, key, kind, tag, timestamp)
                for computation, keys in self.timers.items()
                for key, rows in keys.items()
                for (kind, tag), timestamp in rows.items()
            ),
            "hold": sorted((c, key, timestamp) for c, keys in self.holds.items() for key, timestamp in keys.items()),
            "production": sorted(
                (interval, *channel, sequence, *row)
                for interval, channels in self.productions.items()
                for channel, rows in channels.items()
                for sequence, row in rows.items()
            ),
            "delivered": sorted(
                (interval, *channel, sequence)
                for interval, channels in self.delivered.items()
                for channel, sequences in channels.items()
                for sequence in sequences
            ),
            "delivered_frontier": sorted(
                (interval, *channel, frontier)
                for interval, channels in self.frontiers.items()
                for channel, frontier in channels.items()
            ),
            "opaque_id": sorted((*place, id_) for place, ids in self.outside.items() for id_ in ids),
            "opaque_bucket": sorted((*place, count) for place, count in self.outside_counts.items()),
            "quarantine": [
                (*place, index, entry.subscription, entry.producer, entry.sequence, entry.value)
                for place in sorted(self.quarantine)
                for index, entry in enumerate(self.quarantine[place])
            ],
            "redrive": sorted((*place, *end) for place, end in self.redrives.items()),
        }


def _taken(
    table: dict[IntervalId, dict[Channel, V]], interval: IntervalId, subscription: SubscriptionId
) -> dict[Channel, V]:
    """What an interval has of a subscription, which it has no longer."""
    mine = table.get(interval, {})
    return {channel: mine.pop(channel) for channel in [*mine] if channel[0] == subscription}


def _relabelled(channels: Mapping[Channel, V], subscription: SubscriptionId) -> dict[Channel, V]:
    return {(subscription, producer): value for (_, producer), value in channels.items()}


def _bundles(channel: Channel, rows: dict[SequenceNumber, Payload]) -> list[Bundle]:
    return bundles(((*channel, sequence, *rows[sequence]) for sequence in sorted(rows)), WORK_LIMIT_RECORDS)


def _put(table: dict[Any, Any], place: object, value: object) -> None:
    if value is None:
        table.pop(place, None)
    else:
        table[place] = value


def _overlay(table: dict[str, dict[Any, Any]], writes: Mapping[str, Mapping[Any, Any]]) -> None:
    for key, entries in writes.items():
        stored = table.setdefault(key, {})
        for place, value in entries.items():
            _put(stored, place, value)
        if not stored:
            del table[key]
