"""Probes of a simulated process: counts of rare events, and the lines of a trace.

Lives here: observation.  Never here: anything that changes what happens.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from millwheel.bundles import LogWrite, decode_checkpoint
from millwheel.core.interval import events as ev
from millwheel.core.interval.machine import IntervalCore
from millwheel.core.source.injector import InjectorCore
from millwheel.errors import InvariantError
from millwheel.host import alphabet as he
from millwheel.host.messages import Delivery, Excused, Message, Receipt, SourceBound, Unsettled
from millwheel.host.requests import (
    AdvancePositions,
    CommitGroup,
    FindIds,
    FoldLog,
    ListRedrives,
    LoadState,
    LoadTimerPage,
    PersistWatermarks,
    Reacquire,
    ReadQuarantine,
    Recover,
    StillOwned,
    StoreCall,
    WriteMarks,
)
from millwheel.host.worker import WorkerHost
from millwheel.ids import IntervalId, SequenceNumber
from millwheel.model import MIN_TIME
from millwheel.testing.checks.truth import Truth


class Probes:
    """Counts for `truth`; `worker` is the one that is watched."""

    def __init__(self, truth: Truth, worker: WorkerHost) -> None:
        self._found = truth.kernel.probes
        self._truth = truth
        self._worker = worker
        self._loaded: dict[IntervalId, set[str]] = {}
        """Keys that each interval has loaded before."""
        self._committing = 0
        self._promised = 0
        """Of the partition whose rows arrive: what it and the read had promised before, us."""
        self._pending: dict[str, int] = {}
        self._found["invocation waits for a suspect"] += 0  # it is asked after each event

    def asked(self, request: StoreCall) -> None:
        """A question to the store leaves."""
        found = self._found
        match request:
            case LoadState(interval, load):
                loaded = self._loaded.setdefault(interval, set())
                found["key evicted"] += len(loaded.intersection(load.keys))
                loaded.update(load.keys)
            case LoadTimerPage():
                found["page of timers read"] += 1
            case FoldLog(fold):
                found["fold"] += 1
                found["fold used later acks"] += bool(fold.acked)
                found["fold of a fresh key"] += bool(fold.fresh)
            case CommitGroup(writes):
                found["two groups commit"] += self._committing > 0
                self._committing += 1
                for write in writes:
                    self._checkpoint(write)
            case WriteMarks(marks):
                self._marked(sum(bool(mark.mark) for mark in marks))
            case _:
                pass

    def _marked(self, count: int) -> None:
        alone = self._worker._marks._alone
        self._found["invocation marked"] += count
        self._found["suspect runs alone"] += alone._holder is not None
        self._found["suspect waits for another one"] += bool(alone._waiting)

    def _checkpoint(self, write: LogWrite) -> None:
        actor = self._worker.actors.all.get(write.interval)
        core = actor.core if actor is not None else None
        if not isinstance(core, IntervalCore) or core.config.settings.productions != "weak":
            return
        if decode_checkpoint(write.payload).produced:
            self._found["weak straggler checkpointed"] += 1

    def answered(self, request: StoreCall, answer: Any) -> None:
        """The store has answered."""
        found = self._found
        match request:
            case CommitGroup(writes):
                self._committing -= 1
                for write in writes:
                    if (write.interval, write.seq) not in answer:
                        found["fenced commit refused"] += 1
            case FoldLog() if not answer:
                found["fenced fold refused"] += 1
            case AdvancePositions(writes):
                found["fenced position refused"] += sum(write.interval not in answer for write in writes)
            case PersistWatermarks(writes):
                found["fenced watermark refused"] += sum(write.name not in answer for write in writes)
            case StillOwned(owners):
                found["process asked, and found itself superseded"] += len(answer) < len(owners)
            case FindIds(interval, asked):
                self._looked_up(interval, asked, *answer)
            case ReadQuarantine(interval):
                actor = self._worker.actors.all.get(interval)
                if actor is not None:
                    self._truth.saw_fifos(interval, actor.sequencer, answer)
            case ListRedrives(_, limit):
                found["more redrives than are read at once"] += len(answer) >= limit
            case Reacquire() if answer is None:
                found["fenced during a restart"] += 1
            case Reacquire():
                found["interval restarted"] += 1
            case Recover():
                self._recovered(answer)
            case _:
                pass

    def declined(self) -> None:
        """The database has refused a row."""
        self._committing -= 1
        self._found["sink row refused"] += 1

    def _recovered(self, answer: Any) -> None:
        if answer is None:
            self._found["fenced during recovery"] += 1
            return
        self._found["productions resent after restart"] += bool(answer.productions)
        self._found["timers restored after restart"] += bool(answer.timers.keys)

    def _looked_up(
        self, interval: IntervalId, asked: ev.LookupIds, found: set[SequenceNumber], outside: set[bytes]
    ) -> None:
        actor = self._worker.actors.all.get(interval)
        if actor is None:
            return  # it was lost meanwhile
        core = actor.core
        if not isinstance(core, IntervalCore):
            raise InvariantError("core is no IntervalCore")
        restored = core._arrivals.ids.restored(asked.subscription, asked.producer)
        for sequence in asked.sequences:
            who = "earlier owner's id" if sequence <= restored else "Bloom hit"
            self._found[f"{who} found {'present' if sequence in found else 'absent'}"] += 1
        unread = any(bucket.unread for bucket in core._arrivals.outside._buckets.values())
        for id_ in asked.outside:
            who = "outside id" if unread else "outside id in a filter"
            self._found[f"{who} found {'present' if id_ in outside else 'absent'}"] += 1

    def given(self, event: he.HostEvent) -> None:
        """The worker gets an event that reaches a core."""
        found, worker = self._found, self._worker
        match event:
            case he.Received(_, message):
                self._hears(message)
            case he.Told(interval, sequencer, told):
                if worker.actors.current(interval, sequencer) is None:
                    found["event for a void core dropped"] += 1
                elif isinstance(told, ev.WriteFenced):
                    found["process halted by a fence"] += 1
            case he.RowsArrived(interval, _, rows):
                self._promised = max(rows.watermark, self._promise_of(interval))
            case _:
                pass

    def _hears(self, message: Message) -> None:
        actors = self._worker.actors
        match message:
            case Delivery(bundle, sequencer):
                if actors.current(bundle.target, sequencer) is None:
                    self._found["bundle for an earlier owner dropped"] += 1
            case Receipt(_, sender, number):
                if sender in actors.all and number >> 32 not in (0, actors.all[sender].sequencer):
                    self._found["ack of a bundle that a void core had sent"] += 1
            case _:
                pass

    def gave(self, event: he.HostEvent) -> None:
        """The worker has had an event."""
        if type(event) is he.RowsArrived:
            self._found["silent partition follows the clock"] += self._promise_of(event.interval) > self._promised
        if self._worker._marks._alone._kept:
            self._found["invocation waits for a suspect"] += 1

    def _promise_of(self, interval: IntervalId) -> int:
        """Up to where a partition says that it will give nothing older, us."""
        actor = self._worker.actors.all.get(interval)
        return actor.core._source_watermark if actor is not None and isinstance(actor.core, InjectorCore) else MIN_TIME

    def discovered(self, source: str, discovery: he.Discovery) -> None:
        """A source has said what it has."""
        self._pending[f"source:{source}"] = discovery.pending

    def effect(self, effect: he.HostEffect) -> None:
        """A host wants something."""
        if type(effect) is he.Tell:
            self._said(effect.message)
        elif type(effect) is he.Notice:
            self._found["partition missing after restart"] += "the watermark waits for it" in effect.text

    def _said(self, message: Message) -> None:
        match message:
            case Unsettled():
                self._found["productions of an earlier version"] += 1
            case Excused():
                self._found["partition waits for its turn"] += 1
            case SourceBound(source, value):
                self._found["idle source follows the clock"] += value > self._pending.get(source, value)
            case _:
                pass

    def ended(self) -> None:
        """The process is over: what its cores have counted."""
        for _, core in self._worker.actors.intervals():
            self._found["duplicate dropped"] += core.counters.duplicates
            self._found["bundle queued behind a lookup"] += core.counters.queued
            self._found["outside id repeated"] += core.counters.repeated


def describe(event: he.HostEvent) -> str:
    """What a trace says of an event."""
    match event:
        case he.Received(peer, Delivery(b, sequencer)):
            ids = f"s{b.subscription} p{b.producer} {b.sequences} f{b.frontier}"
            return f"i{b.target} q{sequencer} bundle from i{b.sender} n{b.number} {ids} {b.keys}"
        case he.Received(peer, message):
            return f"hears from {peer} {message}"
        case he.Returned(interval, _, outcome):
            if outcome.fits:
                return f"i{interval} is put back, {outcome.fits} fit"
            if outcome.lacking:
                return f"i{interval} waits for {outcome.lacking}"
            cells = sorted({*outcome.values, *outcome.entries})
            return f"i{interval} invoked {outcome.processed} {cells} timers {outcome.timers} holds {outcome.holds}"
        case he.RowsArrived(interval, _, rows):
            return f"i{interval} read {rows.count} to {rows.next_position} w{rows.watermark}"
        case he.Told(interval, _, told):
            return f"i{interval} {_core_event(told)}"
        case he.Due(interval):
            return f"i{interval} is due"
        case he.Answered(token):
            return f"answer {token}"
        case _:
            return type(event).__name__


def _core_event(event: ev.Event) -> str:
    match event:
        case ev.IdsFound(sender, found, outside):
            return f"ids found for i{sender} {sorted(found)} {sorted(outside)}"
        case ev.Loaded(rows):
            return f"loaded {[row.key for row in rows]}"
        case ev.SlotsLoaded(rows):
            return f"loaded {[row[:3] for row in rows]}"
        case ev.QuarantineFetched(entries, more):
            return f"fetched {dict(Counter(entry.key for entry in entries))}{' and more' if more else ''}"
        case _:
            return repr(event)
