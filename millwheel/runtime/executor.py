"""Runs user code: one tight synchronous loop per invocation (design section 4, step 4).

Lives here: calling hooks and keeping a bad record to its key (design section 9).  Never here: durability, order
between invocations.  Invariant: a hook that raised has left nothing in the outcome.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any

from millwheel import limits
from millwheel.api.computation import Computation
from millwheel.api.context import Context, Output, Table
from millwheel.bundles import QuarantineEntry
from millwheel.graph import ComputationSpec, Graph
from millwheel.model import MAX_TIME, MIN_TIME, Record, Timer, TimerKind
from millwheel.work import VOID_KIND, Outcome, Part, Work


class Executor:
    """One computation's user code in this process."""

    def __init__(
        self, spec: ComputationSpec, graph: Graph, subscriptions: Mapping[str, int], tables: Mapping[str, Table]
    ) -> None:
        self.spec = spec
        self._attempts = spec.settings.hook_attempts
        self._context = Context(outputs_of(graph, spec, subscriptions), tables, spec.settings.strict_timestamps)
        self._inputs: dict[int, tuple[Callable[[bytes], Any], str]] = {
            subscriptions[s.name]: (graph.streams[s.stream].coder.decode, s.stream) for s in spec.inputs
        }
        self.computation: Computation[Any] = spec.factory()
        self.computation.__dict__["_context"] = self._context
        self.computation.setup()

    def teardown(self) -> None:
        """Orderly end."""
        self.computation.teardown()

    def run(self, work: Work) -> Outcome:
        """Run one invocation; never raises for what user code does, short of ending the process."""
        outcome = Outcome({}, {}, {}, {}, [], [])
        context = self._context
        context._watermark, context._wall = work.watermark, work.wall_time
        for part in work.parts:
            self._records(part, work, outcome)
        for timer in work.timers:
            self._timer(timer, work, outcome)
        for entry in work.redrive:
            if not self._redrive(entry, work, outcome):
                break
            outcome.redriven += 1
        context._finish(outcome)
        outcome.state = {key: writes for key, writes in outcome.state.items() if writes}
        return outcome

    def _enter(self, key: str, work: Work, outcome: Outcome) -> None:
        context = self._context
        context.key = key
        writes = outcome.state.get(key)
        if writes is None:
            writes = outcome.state[key] = {}
        context._writes = writes
        context._base = work.cells[key]
        context._input_hold = self._hold(key, work, outcome)
        context._begin()

    @staticmethod
    def _hold(key: str, work: Work, outcome: Outcome) -> int | None:
        return outcome.holds[key] if key in outcome.holds else work.holds.get(key)

    def _records(self, part: Part, work: Work, outcome: Outcome) -> None:
        context, hook = self._context, self.computation.ProcessRecord
        producer, watermark = part.producer, work.watermark
        pending, journal, state, cells = context._pending, context._journal, outcome.state, work.cells
        decode, context.stream = self._inputs[part.subscription]
        poisoned = {entry.key for entry in outcome.quarantined}
        late = 0
        for key, value, timestamp, sequence in zip(
            part.keys, part.values, part.timestamps, part.sequences, strict=True
        ):
            if key in poisoned:
                outcome.quarantined.append(
                    QuarantineEntry(key, part.subscription, producer, sequence, value, timestamp)
                )
                continue
            # `_enter` and `_begin`, spelled out: this loop is the hot path.
            context.key = key
            writes = state.get(key)
            if writes is None:
                writes = state[key] = {}
            context._writes = writes
            context._base = cells[key]
            context._input_hold = self._hold(key, work, outcome) if work.holds or outcome.holds else None
            context._journal_mark = len(journal)
            context._pending_mark = len(pending)
            context._cause = timestamp
            try:
                hook(context, Record(key, decode(value), timestamp, timestamp < watermark, producer, sequence))
                if context._effects:
                    context._commit(outcome)
            except Exception as error:
                entry = QuarantineEntry(key, part.subscription, producer, sequence, value, timestamp)
                if not self._again(entry, error, work, outcome):
                    poisoned.add(key)
            if timestamp < watermark:
                late += 1
        outcome.processed += len(part.keys)
        outcome.late += late

    def _again(self, entry: QuarantineEntry, error: Exception, work: Work, outcome: Outcome) -> bool:
        """Retry a record whose hook failed; after the last attempt it opens the key's quarantine."""
        self._context._rollback()
        for _ in range(self._attempts - 1):
            try:
                self._call_record(entry, work, outcome)
                return True
            except Exception as again:
                self._context._rollback()
                error = again
        entry.error = _trace(error)
        outcome.quarantined.append(entry)
        return False

    def _call_record(self, entry: QuarantineEntry, work: Work, outcome: Outcome) -> None:
        context = self._context
        decode, context.stream = self._inputs[entry.subscription]
        self._enter(entry.key, work, outcome)
        context._cause = entry.timestamp
        late = entry.timestamp < work.watermark
        self.computation.ProcessRecord(
            context,
            Record(entry.key, decode(entry.value), entry.timestamp, late, entry.producer, entry.sequence),
        )
        context._commit(outcome)

    def _timer(self, timer: Timer, work: Work, outcome: Outcome) -> None:
        # An earlier hook of this invocation moved or cancelled it: then this setting is over.
        if (timer.kind, timer.tag) in outcome.timers.get(timer.key, ()):
            return
        if outcome.quarantined and any(entry.key == timer.key for entry in outcome.quarantined):
            outcome.quarantined.append(_timer_entry(timer))
            return
        error: Exception | None = None
        for _ in range(self._attempts):
            try:
                self._call_timer(timer, work, outcome)
                return
            except Exception as raised:
                self._context._rollback()
                error = raised
        entry = _timer_entry(timer)
        entry.error = _trace(error)
        outcome.quarantined.append(entry)

    def _call_timer(self, timer: Timer, work: Work, outcome: Outcome) -> None:
        context = self._context
        self._enter(timer.key, work, outcome)
        context.stream = ""
        if timer.kind == "watermark":
            context._cause = timer.timestamp
        else:  # wall time says nothing about event time: the watermark is the oldest it may speak of
            context._cause = min(max(work.watermark, MIN_TIME + 1), MAX_TIME - 1)
        self.computation.ProcessTimer(context, timer)
        context._commit(outcome)

    def _redrive(self, entry: QuarantineEntry, work: Work, outcome: Outcome) -> bool:
        try:
            if entry.subscription < 0:
                if entry.kind == VOID_KIND or (entry.kind, entry.tag) in outcome.timers.get(entry.key, ()):
                    return True  # a record redriven before it has moved or cancelled it
                kind: TimerKind = "wall" if entry.kind == "wall" else "watermark"
                self._call_timer(Timer(entry.key, entry.tag, entry.timestamp, kind), work, outcome)
            else:
                self._call_record(entry, work, outcome)
        except Exception:
            self._context._rollback()
            return False
        return True


def outputs_of(graph: Graph, spec: ComputationSpec, subscriptions: Mapping[str, int]) -> dict[str, Output]:
    """Encoders and routes of a computation's output streams."""
    return {stream: output_of(graph, stream, subscriptions) for stream in spec.outputs}


def output_of(graph: Graph, stream: str, subscriptions: Mapping[str, int]) -> Output:
    """Encoder and routes of one stream."""
    routes = tuple((subscriptions[s.name], s.key) for s in graph.subscriptions(stream))
    return Output(graph.streams[stream].coder.encode, routes)


def _timer_entry(timer: Timer) -> QuarantineEntry:
    return QuarantineEntry(timer.key, -1, 0, 0, b"", timer.timestamp, timer.tag, timer.kind)


def _trace(error: Exception | None) -> str:
    text = "".join(traceback.format_exception(error)) if error else ""
    return text[-limits.TRACEBACK_LIMIT_CHARS :]
