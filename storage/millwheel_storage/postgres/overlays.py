"""What the unfolded log does to rows of the tables, so that together they show what is committed.

Lives here: rows as a reader of the store sees them, and the log laid over them.  Never here: SQL (`reader`), or how a log is
folded (`fold`).  Whoever calls this has read tables and log in one snapshot.  Otherwise a fold in between could hide a
log row and its effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from millwheel.ids import IntervalId, ProducerId, SequenceNumber, SubscriptionId
from millwheel_storage.fold import Cells, Folded


class StateRow(msgspec.Struct, frozen=True):
    """One cell, or one entry of a list or map cell, as bytes behind the cell's coder."""

    key: str
    cell: str
    entry: str
    value: bytes


class TimerRow(msgspec.Struct, frozen=True):
    """A timer that is set; `timestamp` in us, event time for kind "watermark"."""

    key: str
    kind: str
    tag: str
    timestamp: int


class Oldest(msgspec.Struct, frozen=True):
    """What is oldest of one kind in one interval; the inputs of `explain`."""

    interval: IntervalId
    computation: str
    kind: str
    key: str
    timestamp: int


def united(parts: Sequence[Folded], prefix: str) -> tuple[dict[str, Cells], set[str]]:
    """What the unfolded logs of a computation's intervals wrote under keys with `prefix`, and the keys they forgot."""
    written: dict[str, Cells] = {}
    forgotten: set[str] = set()
    for part in parts:
        forgotten |= part.forgotten
        for key, cell, entry, value in part.state_rows():
            if key.startswith(prefix):
                written.setdefault(key, {})[cell, entry] = value
    return written, forgotten


def with_log(key: str, stored: list[StateRow], written: Cells) -> list[StateRow]:
    """The cells of one key: what is stored, and what the log has `written` since."""
    cells: Cells = {(row.cell, row.entry): row.value for row in stored}
    cells |= written
    return [StateRow(key, *place, value) for place, value in sorted(cells.items()) if value is not None]


def named(names: Mapping[str, str], rows: list[StateRow]) -> list[StateRow]:
    """Rows with the `names` of their cells, by the places under which these are stored."""
    if not names:
        return rows
    return [StateRow(row.key, names.get(row.cell, row.cell), row.entry, row.value) for row in rows]


def overlay_timers(found: dict[tuple[str, str, str], int], part: Folded) -> None:
    """Timers that are `found`, by (key, kind, tag), as one log leaves them."""
    for place in [place for place in found if place[0] in part.forgotten]:
        del found[place]
    for key, timers in part.timers.items():
        for (kind, tag), time in timers.items():
            if time is None:
                found.pop((key, kind, tag), None)
            else:
                found[key, kind, tag] = time


def overlay_holds(found: dict[str, int], part: Folded) -> None:
    """Holds that are `found`, by key, as one log leaves them."""
    for key in part.forgotten:
        found.pop(key, None)
    for key, time in part.holds.items():
        if time is None:
            found.pop(key, None)
        else:
            found[key] = time


def overlay_productions(
    pending: dict[tuple[SubscriptionId, ProducerId, SequenceNumber], tuple[int, str]], part: Folded
) -> None:
    """Times and keys of productions that wait for acks, by channel and sequence number, as one log leaves them."""
    for channel, sequences in part.acked.items():
        for sequence in sequences:
            pending.pop((*channel, sequence), None)
    for channel, produced in part.productions.items():
        for sequence, (key, _, time) in produced.items():
            pending[*channel, sequence] = (time, key)


def overlay_fifos(counts: dict[str, int], part: Folded) -> None:
    """Lengths of quarantine FIFOs, by key, as one log leaves them."""
    for key, fifo in part.quarantine.items():
        stored = 0 if fifo.cleared else counts.get(key, 0)
        counts[key] = stored + len(fifo.appended) - fifo.dropped
