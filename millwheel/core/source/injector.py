"""One source partition as a sender: ids from row numbers, acks, durable position (§5.2).

Lives here: what an injector must remember between reading and acks.  Invariants: the position never passes a row whose
delivery is not durable; the watermark never passes a row that was read and is not acked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

import msgspec

from millwheel import limits
from millwheel.bundles import Bundle
from millwheel.core.channel.outbox import NO_SUBSCRIPTION, UNKNOWN
from millwheel.core.interval import events as ev
from millwheel.core.source.row_counts import RowCounter, RowCounts
from millwheel.ids import IntervalId, SequenceNumber, Sequencer, SubscriptionId
from millwheel.intervals import Ranges
from millwheel.limits import (
    ADVANCE_DELAY_US,
    ANNOUNCED_POLL_US,
    FIRST_READ_ROWS,
    POLL_DELAY_US,
    READ_LIMIT_BYTES,
    READ_LIMIT_ROWS,
    SILENCE_SHARE,
    UNACKED_LIMIT_READS,
)
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.ports import SourcePosition
from millwheel.work import Columns


class ReadEntry(msgspec.Struct, gc=False):
    """One read: where to continue after it, its bundles that are not acked, its oldest row."""

    next_position: int
    state: bytes
    waiting: set[int]
    oldest: int
    rejected: int
    """Rows that were rejected, up to its end."""
    rows: RowCounts = RowCounts()
    """All that had been read at its end."""


NO_OWNER: Final = Sequencer(0)
"""Of a partition that no process owns yet."""


class InjectorCore:
    """Sans-IO core of one source partition."""

    def __init__(
        self,
        interval: IntervalId,
        start: SourcePosition,
        routes: Mapping[SubscriptionId, Ranges],
        sequencer: Sequencer = NO_OWNER,
        *,
        label: int | None = None,
        answers: bool = False,
        announces: bool = False,
    ) -> None:
        """`answers`: whoever brought the rows is told which of them are durable (`ev.RowsKept`).  `announces`: the partition
        says when it has rows (`ev.RowsAnnounced`)."""
        self._interval = interval
        self.producer = start.producer
        self._routes = routes
        self._durable = start.position
        self._state = start.state
        self._snapshots = label is not None
        self.label = label or 0
        """The last barrier that was sent; a partition that opens later begins behind it."""
        self._read_to: tuple[int, bytes, int] = (start.position, start.state, start.rejected)
        """What was read, and sent: the position, the state, and how many of the rows were rejected."""
        self._noted: int | None = start.position
        """The position that was noted last, under snapshots."""
        self._end_noted = False
        self._reads: deque[ReadEntry] = deque()
        self._by_number: dict[int, tuple[ReadEntry, Bundle]] = {}
        """Bundles that are not acked, and what they were read with."""
        self._notes: dict[int, Bundle] = {}
        """Bundles that tell receivers of the end, and that are not acked."""
        # Never the number of a bundle of an earlier owner: acks of those bundles may still arrive.
        self._number = sequencer << 32
        self._unacked_bytes = 0
        self._read_limit = FIRST_READ_ROWS
        self._rejected = start.rejected
        """Of the rows whose delivery is durable."""
        self._acked_position: tuple[int, bytes] | None = None
        self._acked_rows = RowCounts()
        self._answers = answers
        self._kept = self._told = start.position
        """Rows below are durable, and those of which that was told."""
        self._advancing = False
        self._advance_due: int | None = None
        self._announces = announces
        self._announced = False
        """It has said so since the last read was asked for."""
        self._reading = False
        self._poll_at: int | None = None
        self._silent_since: int | None = None
        """When a read found nothing, after the last one that found rows, us."""
        self._source_watermark = MIN_TIME
        self._reported = MIN_TIME
        self._exhausted = False
        self.finished = start.finished
        self.halted = False
        self.rows = RowCounter(self._snapshots)
        self.paused = False

    def start(self, now: int, watermark: int = MIN_TIME, expected: bool = False) -> list[ev.Effect]:
        """First effects: read, or report the end when the partition was finished in an earlier run.

        `watermark` bounds the event time of what the partition still holds, us.  `expected` says that receivers were
        told that rows of it may come.  If it is finished, its last owner ended it after this process had begun.
        """
        effects: list[ev.Effect] = []
        self._promise(watermark)
        if self.finished:
            self._reported = self._durable = MAX_TIME
            effects.append(ev.ReportWatermark(MAX_TIME))
            effects += map(ev.Send, self._notes_to_all() if expected else [])
        self._after(effects, now)
        return effects

    def handle(self, event: ev.Event, now: int) -> list[ev.Effect]:
        """React to one event at wall time `now`, us."""
        effects: list[ev.Effect] = []
        if self.halted:
            return effects
        match event:
            case ev.RowsRead():
                self._read(event, effects, now)
            case ev.AlarmRang():
                pass
            case ev.RowsAnnounced():
                self._announced, self._poll_at = True, None
            case ev.AckArrived(number):
                self._acked(number)
            case ev.Resend(target):
                again = [bundle for _, bundle in self._by_number.values()]
                effects += [ev.Send(bundle) for bundle in again if bundle.target == target]
                effects += map(ev.Send, self._notes_to(target) if self.finished else [])
            case ev.BarrierAsked(epoch):
                self._pass_barrier(epoch, effects)
            case ev.Advanced(position, finished):
                self._advanced(position, finished, effects)
            case ev.WriteFenced():
                self.halted = True
                self.rows.refuse()
                return [ev.Halt(f"source partition of interval {self._interval} was fenced")]
            case _:
                raise AssertionError(f"an injector core got {type(event).__name__}")
        self._after(effects, now)
        return effects

    def quiet(self) -> bool:
        """True when nothing it has read is unacked or unrecorded, and every receiver knows of its end."""
        if self._notes or self._reads or self._reading or self._by_number:  # barriers are no reads
            return False
        return not self.wants_epoch if self._snapshots else not (self._acked_position or self._advancing)

    def settled(self) -> bool:
        """True when all that it has read is acked, and the position is durable."""
        return not (self._notes or self._reads or self._acked_position or self._advancing)

    @property
    def under_way(self) -> bool:
        """True when a row that was read is not acked."""
        return bool(self._reads)

    def blame(self) -> tuple[str, int, str]:
        """What holds its watermark: (kind, timestamp, detail): a row that is not acked, or what it has promised."""
        entry = min(self._reads, key=lambda read: read.oldest, default=None)
        if entry is None or entry.oldest > self._source_watermark:
            return "partition", self._source_watermark, ""
        waiting = entry.waiting or self._reads[0].waiting  # a read that is acked waits for those before it
        bundle = min((self._by_number[number][1] for number in waiting), key=Bundle.oldest)
        return "unacked row", bundle.oldest(), f"key {bundle.oldest_key()!r} to interval {bundle.target}"

    @property
    def promised(self) -> int:
        """No row that it still reads is expected to be older, us."""
        return self._source_watermark

    @property
    def reported(self) -> int:
        """Low watermark as last reported, us."""
        return self._reported

    def _read(self, event: ev.RowsRead, effects: list[ev.Effect], now: int) -> None:
        self._reading = False
        self._promise(event.watermark)
        self._exhausted = event.finished and not event.progressed
        self._poll_at = self._next_poll(event, now)
        if not event.progressed:
            return
        self.rows.add(RowCounts(event.count, event.rejected, event.kinds))
        size = 0
        rejected = self._read_to[2] + event.rejected
        entry = ReadEntry(event.next_position, event.state, set(), MAX_TIME, rejected, self.rows.read)
        self._read_to = (event.next_position, event.state, rejected)
        for subscription, (sequences, columns) in event.columns.items():
            for bundle in self._bundles(subscription, sequences, columns):
                entry.waiting.add(bundle.number)
                entry.oldest = min(entry.oldest, bundle.oldest())
                self._by_number[bundle.number] = (entry, bundle)
                size += bundle.size()
                effects.append(ev.Send(bundle))
        self._reads.append(entry)
        self._unacked_bytes += size
        # A source counts rows and not bytes.  How many rows make a full read is learnt from the last one.
        self._read_limit = min(4 * self._read_limit, READ_LIMIT_BYTES * max(1, event.count) // max(1, size))
        self._pop_acked()

    def _next_poll(self, event: ev.RowsRead, now: int) -> int | None:
        """When to read again, us; None: as soon as there is room."""
        if self._announces:
            return None if self._announced or event.full or event.finished else now + ANNOUNCED_POLL_US
        if event.progressed:
            self._silent_since = None
            return None
        if self._silent_since is None:
            self._silent_since = now
        rest_us = (now - self._silent_since) // SILENCE_SHARE
        return now + max(POLL_DELAY_US, min(rest_us, limits.SILENT_POLL_US))

    def _pass_barrier(self, epoch: int, effects: list[ev.Effect]) -> None:
        """Everything that was read is of the epoch: note it, and tell all receivers.

        Barriers are kept among the bundles, so they keep their place when all is sent again.
        """
        position, state, rejected = self._read_to
        finished = self._exhausted and not self.finished and not self._end_noted
        self._end_noted = self._end_noted or finished
        if finished or position != self._noted:
            self._noted = position
            self.rows.note(self.rows.read)
            effects.append(ev.PositionNoted(position, state, finished, rejected))
        for target in sorted({target for ranges in self._routes.values() for target in ranges.ids}):
            self._number += 1
            barrier = Bundle(
                NO_SUBSCRIPTION, self._interval, self._number, target, self.producer, UNKNOWN, [], [], [], [],
                self.label, barrier=epoch,
            )  # fmt: skip
            self._by_number[barrier.number] = (ReadEntry(position, state, set(), MAX_TIME, rejected), barrier)
            effects.append(ev.Send(barrier))
        self.label = epoch

    @property
    def wants_epoch(self) -> bool:
        """Whether something was read that no declared epoch has, or the end of the partition waits for one."""
        return self._snapshots and not self.finished and (self._exhausted or self._read_to[0] != self._durable)

    @property
    def at_end(self) -> bool:
        """Whether only an epoch is missing to its end."""
        return self._snapshots and self._exhausted and not self.finished

    def _promise(self, watermark: int) -> None:
        # At its end a partition says MAX_TIME.  That is no event time.  The end counts when it is durable (`finished`).
        if watermark < MAX_TIME:
            self._source_watermark = max(self._source_watermark, watermark)

    def _bundles(self, subscription: SubscriptionId, sequences: list[SequenceNumber], columns: Columns) -> list[Bundle]:
        ranges = self._routes[subscription]
        if len(ranges.ids) == 1:
            return [self._bundle(subscription, ranges.ids[0], sequences, columns)] if sequences else []
        bundles = []
        for target, at in ranges.group(columns.keys).items():
            cut = Columns(
                [columns.keys[i] for i in at], [columns.values[i] for i in at], [columns.timestamps[i] for i in at],
                [columns.outside[i] for i in at] if columns.outside else [],
            )  # fmt: skip
            bundles.append(self._bundle(subscription, target, [sequences[i] for i in at], cut))
        return bundles

    def _bundle(
        self, subscription: SubscriptionId, target: IntervalId, sequences: list[SequenceNumber], columns: Columns
    ) -> Bundle:
        self._number += 1
        return Bundle(
            subscription, self._interval, self._number, target, self.producer, SequenceNumber(self._durable),
            sequences, columns.keys, columns.values, columns.timestamps, self.label, columns.outside,
        )  # fmt: skip

    def _acked(self, number: int) -> None:
        self._notes.pop(number, None)
        sent = self._by_number.pop(number, None)
        if sent is not None:
            sent[0].waiting.discard(number)
            self._unacked_bytes -= sent[1].size()
            self._pop_acked()

    def _pop_acked(self) -> None:
        while self._reads and not self._reads[0].waiting:
            entry = self._reads.popleft()
            self._acked_position = (entry.next_position, entry.state)
            self._acked_rows = entry.rows
            self._kept = entry.next_position
            self._state = entry.state
            self._rejected = entry.rejected

    def _advanced(self, position: int, finished: bool, effects: list[ev.Effect]) -> None:
        self._advancing = False
        self._durable = position
        self.rows.declare()
        if finished:
            self.finished = True
            # Nothing of this partition will ever be sent again: receivers may collect all its ids.
            self._durable = MAX_TIME
            effects += map(ev.Send, self._notes_to_all())

    def _notes_to_all(self) -> list[Bundle]:
        targets = {target for ranges in self._routes.values() for target in ranges.ids}
        return [note for target in sorted(targets) for note in self._notes_to(target)]

    def _notes_to(self, target: IntervalId) -> list[Bundle]:
        """Tell a receiver of the end, until it acks that: it may be another core by now."""
        self._notes = {number: note for number, note in self._notes.items() if note.target != target}
        subs = [sub for sub, ranges in self._routes.items() if target in ranges.ids]
        notes = [self._bundle(sub, target, [], Columns([], [], [])) for sub in subs]
        self._notes.update((note.number, note) for note in notes)
        return notes

    def _after(self, effects: list[ev.Effect], now: int) -> None:
        if self._poll_at is not None and now >= self._poll_at:
            self._poll_at = None
        kept = self._durable if self._snapshots else self._kept  # acks say nothing of what is durable under snapshots
        if self._answers and self._told < kept:
            self._told = kept
            effects.append(ev.RowsKept(kept))
        if self._may_read():
            self._reading, self._announced = True, False
            self._read_limit = max(1, min(self._read_limit, READ_LIMIT_ROWS))
            effects.append(ev.Read(self._read_limit))
        elif self._poll_at is not None:
            effects.append(ev.SetAlarm(self._poll_at))
        self._advance(effects, now)
        self._report(effects)

    def _may_read(self) -> bool:
        return not (
            self._reading or self._exhausted or self.finished or self.paused or self._poll_at is not None
            or len(self._reads) >= UNACKED_LIMIT_READS or self._unacked_bytes >= limits.UNACKED_LIMIT_BYTES
        )  # fmt: skip

    def _advance(self, effects: list[ev.Effect], now: int) -> None:
        if self._snapshots or self._advancing:
            return  # under snapshots, positions are of epochs
        last = self._exhausted and not self._reads and not self.finished
        if not (self._acked_position or last):
            return
        if self._advance_due is None:
            self._advance_due = now + ADVANCE_DELAY_US
            effects.append(ev.SetAlarm(self._advance_due))
        if now < self._advance_due and not last:
            return
        position, state = self._acked_position or (self._durable, self._state)
        self._acked_position, self._advance_due, self._advancing = None, None, True
        self.rows.note(self._acked_rows)
        effects.append(ev.Advance(position, state, last, self._rejected))

    def _report(self, effects: list[ev.Effect]) -> None:
        # The end is written only after all records of the partition are acked.
        bound = MAX_TIME if self.finished else self._source_watermark
        if bound <= self._reported:
            return
        value = min(bound, min((entry.oldest for entry in self._reads), default=MAX_TIME))
        if value > self._reported:
            self._reported = value
            effects.append(ev.ReportWatermark(value))
