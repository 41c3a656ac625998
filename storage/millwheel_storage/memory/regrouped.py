"""What moves in a store in memory when a combiner of the library comes or goes, beside what does for every combiner.

Lives here: what waits in quarantine, what shards have aggregated and sent, and the watermark that the first step begins at.
Never here: when that is so (`schema.handovers`, `schema.recalls`), or ids and what is on its way (`tables`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from millwheel.bundles import OF_TIMER, QuarantineEntry
from millwheel.ids import IntervalId, ProducerId, SequenceNumber, SubscriptionId
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.shape import HANDED_BACK, CombinedBy
from millwheel_storage.memory.contents import MemoryContents
from millwheel_storage.memory.tables import MemoryTables
from millwheel_storage.schema.handovers import Handover
from millwheel_storage.schema.recalls import Recall, Recalled, gathered, sent, taken_at, whole_key


def begin_promised(
    contents: MemoryContents, computation: str, combiner: CombinedBy, handovers: Sequence[Handover]
) -> None:
    """The first step begins with what waits in quarantine, and at the watermark that the only step may have seen."""
    numbers = {contents.subscriptions[it.taken] for it in handovers}
    _move_records(contents.folded, computation, combiner, numbers)
    seen = min((contents.watermark.get(sender, MIN_TIME) for sender in combiner.senders), default=MIN_TIME)
    value = max(contents.watermark.get(computation, MIN_TIME), min(seen, _oldest(contents, combiner, numbers)))
    if value > MIN_TIME:
        contents.watermark.setdefault(combiner.parts, value)


def _oldest(contents: MemoryContents, combiner: CombinedBy, numbers: Collection[SubscriptionId]) -> int:
    """The oldest of what is on its way on subscriptions, and for which no sender has promised anything.

    What a sender has sent before its own promise is late.
    """
    found = (
        rows
        for interval, channels in contents.folded.productions.items()
        for (subscription, _), rows in channels.items()
        if subscription in numbers and contents.row(interval).computation not in combiner.senders
    )
    return min((at for rows in found for _, _, at in rows.values()), default=MAX_TIME)


def _move_records(
    tables: MemoryTables, computation: str, combiner: CombinedBy, numbers: Collection[SubscriptionId]
) -> None:
    """Records in quarantine go to the first step, and timers stay."""
    for place in [place for place in tables.quarantine if place[0] == computation]:
        fifo = tables.quarantine.pop(place)
        key = place[1] + combiner.suffix
        moved = [msgspec.structs.replace(entry, key=key) for entry in fifo if entry.subscription in numbers]
        stays = [entry for entry in fifo if entry.subscription not in numbers]
        if moved:
            tables.quarantine[combiner.parts, key] = _with_error(moved, fifo)
        if stays:
            tables.quarantine[place] = _with_error(stays, fifo)
        else:
            tables.redrives.pop(place, None)


def _with_error(elements: list[QuarantineEntry], fifo: Sequence[QuarantineEntry]) -> list[QuarantineEntry]:
    """The first of the elements says why they wait."""
    first, *others = elements
    return [first if first.error else msgspec.structs.replace(first, error=fifo[0].error), *others]


def recall(contents: MemoryContents, it: Recall) -> None:
    """What the shards of a combiner have goes to the computation that has none any more."""
    tables, merged = contents.folded, contents.subscriptions[it.merged]
    old, new = ([id_ for _, id_ in contents.by_low(name)] for name in (it.parts, it.computation))
    at = taken_at(contents.watermark.get(it.parts, MIN_TIME))
    parts = _untaken(tables, it.computation, merged, new)
    for taken in it.subscriptions.values():
        subscription = contents.subscriptions[taken]
        for channels in tables.productions.values():
            for channel in [channel for channel in channels if channel[0] == subscription]:
                rows = channels[channel].items()
                channels[channel] = {sequence: (whole_key(key), value, at) for sequence, (key, value, at) in rows}
        tables.share_ids(subscription, old, new)
        tables.count_outside(subscription, new)
    number = contents.next_sequencer()
    for key, slots in tables.key_state.get(it.parts, {}).items():
        for (cell, entry), value in slots.items():
            if cell == it.place_of_parts:
                parts.append(Recalled(whole_key(key), gathered(entry, key, number), value))
    for one in parts:
        tables.key_state.setdefault(it.computation, {}).setdefault(one.key, {})[it.place, one.entry] = one.value
        timers = tables.timers.setdefault(it.computation, {}).setdefault(one.key, {})
        timers.setdefault(("watermark", HANDED_BACK), at)
    tables.drop_elements(it.parts, {OF_TIMER})
    for _, key in sorted(place for place in tables.quarantine if place[0] == it.parts):
        fifo = tables.quarantine.pop((it.parts, key))
        moved = [msgspec.structs.replace(entry, key=whole_key(key)) for entry in fifo]
        tables.quarantine.setdefault((it.computation, whole_key(key)), []).extend(moved)


def _untaken(
    tables: MemoryTables, computation: str, merged: SubscriptionId, new: Sequence[IntervalId]
) -> list[Recalled]:
    """What shards have sent and the computation has not run: on its way, or in quarantine."""
    found = []
    for channels in tables.productions.values():
        for channel in [channel for channel in channels if channel[0] == merged]:
            for sequence, (key, value, _) in channels[channel].items():
                if not any(_is_taken(tables, interval, channel, sequence) for interval in new):
                    found.append(sent(key, value, channel[1], sequence))
    for (of, key), fifo in tables.quarantine.items():
        waiting = (entry for entry in fifo if of == computation and entry.subscription == merged)
        found += [sent(key, entry.value, entry.producer, entry.sequence) for entry in waiting]
    return found


def _is_taken(
    tables: MemoryTables, interval: IntervalId, channel: tuple[SubscriptionId, ProducerId], sequence: SequenceNumber
) -> bool:
    if sequence < tables.frontiers.get(interval, {}).get(channel, 0):
        return True
    return sequence in tables.delivered.get(interval, {}).get(channel, ())
