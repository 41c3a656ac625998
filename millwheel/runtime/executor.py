"""Runs user code: one tight synchronous loop per invocation.

Lives here: calling hooks and keeping a bad record to its key.  Never here: durability, order
between invocations.  This module may be compiled (ADR 0058).  Invariants:

* a hook that raised has left nothing in the outcome;
* a context that user code has kept is of no use to it: the next hook gets another one.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from sys import getrefcount
from types import MappingProxyType
from typing import Any, ClassVar

import msgspec
from mypy_extensions import mypyc_attr

from millwheel import limits
from millwheel.api.computation import Computation
from millwheel.api.context import Context, declared_tables, succeeded
from millwheel.api.frame import Frame, NotLoaded
from millwheel.api.producer import Output
from millwheel.api.returned import check_returned
from millwheel.api.table import Table
from millwheel.bundles import QuarantineEntry
from millwheel.coders import AS_IT_IS, checked, raw
from millwheel.errors import InvariantError
from millwheel.graph import ComputationSpec, Graph
from millwheel.ids import SubscriptionId
from millwheel.model import MAX_TIME, MIN_TIME, Record, Timer, TimerKind
from millwheel.runtime.chain import TimerChain
from millwheel.work import BundlePart, InvocationOutcome, RecordCause, TimerCause, Wanted, Work

Hook = Callable[[Context, Any], object]
"""As user code may be: what a hook returns is nobody's, but not all of it may be ignored (`check_returned`)."""

OnFailed = Callable[[str, str, BaseException, bool], None]
"""(hook, key, error, whether it was redriven)."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Executor:
    """One computation's user code in this process."""

    context_type: ClassVar[type[Context]] = Context
    frame_type: ClassVar[type[Frame]] = Frame
    """What hooks leave their effects in; the simulator's notes more."""

    def __init__(
        self,
        *,
        spec: ComputationSpec,
        graph: Graph,
        subscriptions: Mapping[str, SubscriptionId],
        tables: Mapping[str, Table],
        places: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.spec = spec
        self._attempts = spec.settings.hook_attempts
        outputs = outputs_of(graph, spec, subscriptions)
        self._frame = self.frame_type(places, spec.name)
        looped = graph.loop_of(spec.name) is not None
        strict = spec.settings.strict_timestamps
        self._context = self.context_type(self._frame, outputs, declared_tables(tables), strict, looped, spec.name)
        self._alone = getrefcount(self._context)
        """What is counted of references to a context that user code has not kept."""
        self._inputs: dict[SubscriptionId, tuple[Callable[[bytes], Any], str]] = {
            subscriptions[s.name]: (AS_IT_IS if spec.encoded else graph.streams[s.stream].coder.decode, s.stream)
            for s in spec.inputs
        }
        self._raw: dict[SubscriptionId, Callable[[bytes], Any]] = {
            subscriptions[s.name]: AS_IT_IS if spec.encoded else raw(graph.streams[s.stream].coder).decode
            for s in spec.inputs
        }
        self._waiting: list[QuarantineEntry | Timer] = []
        """Of the running invocation: what waits for state, and what comes after it under the same keys."""
        self._waiting_keys: set[str] = set()
        self._lacking: list[Wanted] = []
        """What it waits for."""
        self.on_failure: OnFailed | None = None
        """Told of each hook that has failed on its last attempt."""
        self.computation: Computation[Any] = spec.factory()
        self.computation.__dict__["_frame"] = self._frame
        self.computation.setup()

    @property
    def key(self) -> str | None:
        """The key for which a hook runs now; None: none runs."""
        return self._frame.key if self._frame.thread else None

    def teardown(self) -> None:
        """Orderly end."""
        self.computation.teardown()

    def run(self, work: Work) -> InvocationOutcome:
        """Run one invocation.  Errors of user code do not raise here, unless user code ends the process.

        If the outcome is `lacking` state, the invocation is not over: run `work` again once that state is in memory.
        Only the hooks that asked for it run again, from their beginning.
        """
        self._frame.start(work)
        self._waiting, self._waiting_keys, self._lacking = [], set(), []
        if work.suspended is not None:
            outcome = work.suspended.outcome
            self._go_on(work.suspended.waiting, work, outcome)
        else:
            outcome = InvocationOutcome()
            for part in work.parts:
                if not outcome.fits:
                    self._records(part, work, outcome)
            if work.timers:
                self._timers(work.timers, work, outcome)
            self._redrives(work.redrive, work, outcome)
        if outcome.fits:
            self._frame.put_back()
            work.suspended = None
            return InvocationOutcome(fits=outcome.fits)
        outcome.lacking = self._lacking
        if self._lacking:
            work.suspended = self._frame.suspend(outcome, self._waiting)
        else:
            work.suspended = None
            self._frame.finish(outcome)
            outcome.full = not self.computation.has_room()
        return outcome

    def _go_on(self, waiting: list[QuarantineEntry | Timer], work: Work, outcome: InvocationOutcome) -> None:
        """Run what had to wait."""
        if work.redrive:
            self._redrives([it for it in waiting if not isinstance(it, Timer)], work, outcome)
            return
        if work.timers:
            self._timers([it for it in waiting if isinstance(it, Timer)], work, outcome)
            return
        poisoned = {entry.key for entry in outcome.quarantined}
        for it in waiting:
            if isinstance(it, Timer):
                raise InvariantError("records and timers never run together")
            if self._full():
                outcome.fits = max(1, sum(len(part.keys) for part in work.parts) // 2)
                return
            if it.key in self._waiting_keys:
                self._waiting.append(it)
            elif it.key in poisoned:
                outcome.quarantined.append(it)
            elif not self._try_record(it, self._attempts, work, outcome):
                poisoned.add(it.key)

    def _redrives(self, entries: list[QuarantineEntry], work: Work, outcome: InvocationOutcome) -> None:
        """Run elements of quarantines.  One that fails stops the later ones of its key."""
        stopped: set[str] = set()
        for entry in entries:
            key = entry.key
            if self._full():
                break  # what is left waits for the next invocation
            if key in self._waiting_keys:
                self._waiting.append(entry)
            elif key in stopped:
                continue
            elif (error := self._attempt(self._redrive, entry, work, outcome)) is not None:
                stopped.add(key)
                self._tell("ProcessTimer" if entry.is_timer else "ProcessRecord", key, error, True)
            elif key not in self._waiting_keys:
                outcome.redriven[key] = outcome.redriven.get(key, 0) + 1

    def _full(self) -> bool:
        """Whether hooks have made so much that no other one may run in this invocation."""
        return self._frame.full()

    def _tell(self, hook: str, key: str, error: BaseException, redriven: bool = False) -> None:
        if self.on_failure is not None:
            self.on_failure(hook, key, error, redriven)

    def _waits(self, it: QuarantineEntry | Timer) -> bool:
        """Whether the hook of `it` has asked for state that is not in memory, whatever it raised after that.

        It runs when that state is in memory, and so does all that follows under its key.
        """
        if not self._frame.lacking:
            return False
        self._lacking += self._frame.lacking
        self._frame.lacking.clear()
        self._waiting.append(it)
        self._waiting_keys.add(it.key)
        return True

    def _succeed(self) -> None:
        """Later hooks get another context: user code has kept this one, or may have, in the traceback of an error."""
        self._context = succeeded(self._context)

    def _enter(self, key: str, work: Work, outcome: InvocationOutcome) -> None:
        self._frame.key = key
        self._frame.input_hold = outcome.holds[key] if key in outcome.holds else work.holds.get(key)

    def _records(self, part: BundlePart, work: Work, outcome: InvocationOutcome) -> None:
        frame, context = self._frame, self._context
        alone = getrefcount(context)
        hook: Hook = self.computation.ProcessRecord
        watermark: Any = work.watermark
        pending, journal = frame.pending, frame.journal
        decode, frame.stream = self._raw[part.subscription], self._inputs[part.subscription][1]
        closed = {entry.key for entry in outcome.quarantined} | self._waiting_keys
        # Holds are rare.  Without any, nothing has to be looked up per record.
        frame.input_hold = None
        held, holds, plain = work.holds, outcome.holds, decode is AS_IT_IS
        late = 0
        unusual = (full := self._full()) or closed
        producer, keys, values, timestamps, sequences = _columns(part)
        for key, value, timestamp, sequence in zip(keys, values, timestamps, sequences):  # noqa: B905  # they are as long
            if unusual:
                if full:
                    outcome.fits = outcome.processed + part.sequences.index(sequence)
                    return
                if key in closed:
                    entry = QuarantineEntry(key, part.subscription, producer, sequence, value, timestamp)
                    if key in self._waiting_keys:
                        self._waiting.append(entry)
                        late += timestamp < watermark
                    else:
                        outcome.quarantined.append(entry)
                    continue
            frame.key = key
            frame.cause = timestamp
            if held or holds:
                self._enter(key, work, outcome)
            began, frame.began = len(journal), len(pending)
            if frame.own_bytes:
                frame.settle()
            is_late = timestamp < watermark
            try:
                given = value if plain else decode(value)
                if (made := hook(context, Record(key, given, timestamp, is_late, producer, sequence))) is not None:
                    check_returned(made)
                if frame.effects:
                    frame.commit(outcome, RecordCause(key, part.subscription, producer, sequence))
                    full = frame.full()
                    unusual = full or closed
            except (Exception, NotLoaded) as error:
                frame.rollback(began)
                self._succeed()
                entry = QuarantineEntry(key, part.subscription, producer, sequence, value, timestamp)
                done = self._waits(entry) or self._try_record(entry, self._attempts - 1, work, outcome, error)
                if not done or key in self._waiting_keys:
                    closed.add(key)
                full, context = frame.full(), self._context
                unusual = full or closed
            if getrefcount(context) != alone:
                self._succeed()
                context = self._context
            if is_late:
                late += 1
        outcome.processed += len(part.keys)
        outcome.late += late

    def _attempt(
        self, call: Callable[[Any, Work, InvocationOutcome], None], it: Any, work: Work, outcome: InvocationOutcome
    ) -> BaseException | None:
        """Call a hook for `it`.  Returns the error if it raised, and then nothing of it is left.  None also if it waits."""
        frame = self._frame
        began = len(frame.journal)
        frame.enter()
        try:
            call(it, work, outcome)
        except (Exception, NotLoaded) as error:
            frame.rollback(began)
            self._succeed()
            return None if self._waits(it) else error
        if getrefcount(self._context) != self._alone:
            self._succeed()
        return None

    def _try_record(
        self,
        entry: QuarantineEntry,
        attempts: int,
        work: Work,
        outcome: InvocationOutcome,
        error: BaseException | None = None,
    ) -> bool:
        """Call the hook of a record, which raised `error` if it was called before.

        Returns False when its last attempt has failed, so that its key goes to quarantine.
        """
        first = error
        for _ in range(attempts):
            error = self._attempt(self._call_record, entry, work, outcome)
            if error is None:
                return True
            _unchain(error, first)
        if error is None:
            raise InvariantError("there is no error")
        self._tell("ProcessRecord", entry.key, error)
        outcome.quarantined.append(msgspec.structs.replace(entry, error=_trace(error)))
        return False

    def _call_record(self, entry: QuarantineEntry, work: Work, outcome: InvocationOutcome) -> None:
        frame = self._frame
        decode, frame.stream = self._inputs[entry.subscription]
        self._enter(entry.key, work, outcome)
        frame.cause = entry.timestamp
        late = entry.timestamp < work.watermark
        hook: Hook = self.computation.ProcessRecord
        check_returned(
            hook(
                self._context,
                Record(entry.key, decode(entry.value), entry.timestamp, late, entry.producer, entry.sequence),
            )
        )
        frame.commit(outcome, RecordCause(entry.key, entry.subscription, entry.producer, entry.sequence))

    def _timers(self, listed: list[Timer], work: Work, outcome: InvocationOutcome) -> None:
        """Fire the `listed` timers in order, and among them timers that hooks set meanwhile and that are due."""
        chain = self._frame.chain = TimerChain(listed, work, outcome)
        stalls, closed = work.stalls, chain.closed
        try:
            for timer in listed:
                while not self._full() and chain.precedes(timer) and (own := chain.next(timer)) is not None:
                    self._fire(own, chain, work, outcome)
                if timer.key in self._waiting_keys:
                    self._waiting.append(timer)
                elif (timer.kind, timer.tag) in outcome.timers.get(timer.key, ()):
                    pass  # an earlier hook of this invocation has moved or cancelled it: this setting is over
                elif timer.key in closed or self._full():
                    chain.stays(timer)
                else:
                    chain.cause = timer
                    chain.stall = stalls.get((timer.key, timer.kind, timer.tag)) if stalls else None
                    self._fire(timer, chain, work, outcome)
            while not self._full() and (own := chain.next(None)) is not None:
                self._fire(own, chain, work, outcome)
        finally:
            self._frame.chain = None
        for key, error in chain.stopped:
            self._tell("ProcessTimer", key, error)

    def _fire(self, timer: Timer, chain: TimerChain, work: Work, outcome: InvocationOutcome) -> None:
        error: BaseException | None = None
        for _ in range(self._attempts):
            error = self._attempt(self._call_timer, timer, work, outcome)
            if error is None:
                break
        if error is not None:
            entry = QuarantineEntry.of_timer(timer, _trace(error))
            self._tell("ProcessTimer", timer.key, error)
            outcome.quarantined.append(entry)
            chain.closed.add(timer.key)
        elif self._waiting_keys and timer.key in self._waiting_keys:
            chain.closed.add(timer.key)
            if (timer.kind, timer.tag) in outcome.timers.get(timer.key, ()):  # set in this invocation: so it is again
                self._waiting.pop()
                chain.stays(timer)

    def _call_timer(self, timer: Timer, work: Work, outcome: InvocationOutcome) -> None:
        frame = self._frame
        self._enter(timer.key, work, outcome)
        frame.stream = ""
        if timer.kind == "watermark":
            frame.cause = timer.timestamp
        else:  # wall time says nothing about event time: the watermark is the oldest it may speak of
            frame.cause = min(max(work.watermark, work.promised, MIN_TIME + 1), MAX_TIME - 1)
        hook: Hook = self.computation.ProcessTimer
        check_returned(hook(self._context, timer))
        frame.commit(outcome, TimerCause(timer.key, timer.kind, timer.tag, timer.timestamp))

    def _redrive(self, entry: QuarantineEntry, work: Work, outcome: InvocationOutcome) -> None:
        if not entry.is_timer:
            self._call_record(entry, work, outcome)
        else:
            kind: TimerKind = "wall" if entry.kind == "wall" else "watermark"
            self._call_timer(Timer(entry.key, entry.tag, entry.timestamp, kind), work, outcome)


def _columns(part: BundlePart) -> tuple[Any, list[str], list[bytes], list[Any], list[Any]]:
    """Producer, keys, values, times and numbers of records.  Where this is compiled, numbers that are only handed on are
    handed on faster as the objects that they are."""
    keys, values, times, numbers = part.keys, part.values, part.timestamps, part.sequences
    if not len(keys) == len(values) == len(times) == len(numbers):
        raise InvariantError("the columns of a bundle have different lengths")
    return part.producer, keys, values, times, numbers


def outputs_of(graph: Graph, spec: ComputationSpec, subscriptions: Mapping[str, SubscriptionId]) -> dict[str, Output]:
    """Encoders and routes of a computation's output streams."""
    return {stream: output_of(graph, stream, subscriptions) for stream in spec.outputs}


def output_of(graph: Graph, stream: str, subscriptions: Mapping[str, SubscriptionId]) -> Output:
    """Encoder and routes of one stream."""
    routes = tuple((subscriptions[s.name], s.key) for s in graph.subscriptions(stream))
    coder = graph.streams[stream].coder
    plain, quick, _ = raw(coder)
    return Output(checked(coder), routes, plain, quick)


def _unchain(error: BaseException, first: BaseException | None) -> None:
    """Remove the context that Python gives an error: the error before it was only an earlier attempt."""
    while error.__context__ is not None and error.__context__ is not first:
        error = error.__context__
    error.__context__ = None


def _trace(error: BaseException) -> str:
    text = "".join(traceback.format_exception(error))
    text = text.encode("utf-8", "backslashreplace").decode()  # what a message quotes may hold a lone surrogate
    return text[-limits.TRACEBACK_LIMIT_CHARS :]
