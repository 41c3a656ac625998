"""User code under observation: each firing of a timer is checked against what the hooks of its key have set (I8).

Lives here: an executor that checks a timer before its hook runs, and notes what each hook that returned has set.  Never
here: what is durable (`truth`), or what the core believes is pending.  Invariants:

* a timer fires once for each time it is set, at the time for which it is set;
* its hook finds that this time has come, by the watermark or by the clock, also when it is redriven;
* it fires before every timer of its key and kind that comes later in (timestamp, tag) order;
* a timer that is set to the same time again and again does not fire for ever (I16).
"""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import partial
from typing import Any, Final

from millwheel import limits
from millwheel.api.context import Context
from millwheel.api.frame import Frame
from millwheel.bundles import QuarantineEntry
from millwheel.errors import InvariantError
from millwheel.host.alphabet import RunHooks
from millwheel.model import TIMER_KINDS, Record, Timer, TimerKind
from millwheel.runtime.executor import Executor
from millwheel.runtime.usercode import UserCode
from millwheel.testing.checks.accounts import Owned
from millwheel.testing.checks.truth import Truth
from millwheel.testing.world.kernel import Kernel
from millwheel.work import Cause, InvocationOutcome, Work

NEVER: Final = ("", 0, 0)
"""What no timer of a key has fired last, as `Owned.again` has it."""

Calls = dict[Any, int | None]
"""What a hook has called for: (kind, tag) of a timer, or None for its hold, to the time that was set, or None."""

Watch = Callable[[str, Calls, Cause], None]


def _ignore(key: str, calls: Calls, cause: Cause) -> None:
    """Nobody watches yet."""


class WatchedFrame(Frame):
    """A frame that tells what a hook has called for, once the hook has returned: its calls, not what became of them."""

    __slots__ = ("calls", "watch", "wrote")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.watch: Watch = _ignore
        self.calls: Calls = {}
        self.wrote: dict[tuple[str, str, str], bytes | None] = {}
        """Values that the last invocation has set, by (key, cell, "")."""

    def finish(self, outcome: InvocationOutcome) -> None:
        """The invocation is over: what it has set is what its journal names."""
        cells = {id(column.written): cell for cell, column in self._columns.items()}
        self.wrote = {
            (name, cells[id(written)], ""): written[name]
            for written, name in zip(self.journal[::3], self.journal[1::3], strict=True)
            if id(written) in cells
        }
        super().finish(outcome)

    def commit(self, outcome: InvocationOutcome, cause: Cause) -> None:
        """A hook has returned: its calls are told."""
        super().commit(outcome, cause)
        calls, self.calls = self.calls, {}
        self.watch(self.key, calls, cause)

    def rollback(self, journal: int) -> None:
        """A hook has raised: it has called for nothing."""
        super().rollback(journal)
        self.calls = {}


class WatchedContext(Context):
    """A context that notes the calls of a hook."""

    __slots__ = ()

    def _note(self, name: Any, setting: int | None) -> None:
        frame = self._frame
        if not isinstance(frame, WatchedFrame):
            raise InvariantError("a watched context has a watched frame")
        frame.calls[name] = setting

    def set_timer(self, tag: str, timestamp: int, kind: TimerKind = "watermark") -> None:
        """See `Context`."""
        super().set_timer(tag, timestamp, kind)
        self._note((kind, tag), timestamp if type(timestamp) is int else self._live("set_timer").timers[kind, tag])

    def cancel_timer(self, tag: str, kind: TimerKind = "watermark") -> None:
        """See `Context`."""
        super().cancel_timer(tag, kind)
        self._note((kind, tag), None)

    def hold(self, timestamp: int) -> None:
        """See `Context`."""
        super().hold(timestamp)
        self._note(None, timestamp if type(timestamp) is int else self._live("hold").hold)

    def release_hold(self) -> None:
        """See `Context`."""
        super().release_hold()
        self._note(None, None)


class WatchedExecutor(Executor):
    """An executor that runs the hooks of one simulated process; `begin` says whose invocation is next."""

    context_type = WatchedContext
    frame_type = WatchedFrame

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        if not isinstance(self._frame, WatchedFrame):
            raise InvariantError("self._frame is no WatchedFrame")
        self._frame.watch = self._returned
        self._redriving = False
        self._given: Work | None = None
        """What runs."""
        self._breach = ""
        """What a hook has seen amiss; raised in it, user code could catch it."""
        self.computation.__dict__["ProcessRecord"] = partial(self._process_record, self.computation.ProcessRecord)

    def _process_record(self, hook: Callable[[Context, Any], object], context: Context, record: Record[Any]) -> object:
        """User code sees the watermark that its interval has, and late is what is older (I9, I11)."""
        work = self._given
        seen = (context.watermark, context.wall_time)
        if work is None or seen != (work.watermark, work.wall_time):
            self._breach = f"I9: a hook of {record.key!r} sees another time than its interval has: {seen}"
        if record.late != (record.timestamp < context.watermark):
            late = "late" if record.late else "in time"
            self._breach = f"I11: a record of {record.timestamp} is {late} at {context.watermark} for {record.key!r}"
        return hook(context, record)

    def begin(self, process: int, truth: Truth, restored: Container[tuple[str, str]], owned: Owned) -> None:
        """The next invocation is one of `owned`; `restored` are (key, tag) of timers that were there at a start."""
        self._process, self._truth, self._restored, self._owned = process, truth, restored, owned
        self._kernel: Kernel = truth.kernel

    def run(self, work: Work) -> InvocationOutcome:
        """See `Executor`."""
        self._given = work
        outcome = super().run(work)
        if not outcome.fits and not outcome.lacking and isinstance(self._frame, WatchedFrame):
            self._owned.wrote = self._frame.wrote
        if self._breach:
            self._truth.fail(self._breach)
        self._kernel.probes["timer fired in the invocation that set it"] += max(0, outcome.chained)
        self._kernel.probes["due timer went back to the queue"] += outcome.chained < 0
        return outcome

    def _attempt(
        self, call: Callable[[Any, Work, InvocationOutcome], None], it: Any, work: Work, outcome: InvocationOutcome
    ) -> BaseException | None:
        # This is not raised in the hook, which may catch exceptions.
        if isinstance(it, QuarantineEntry) and it.is_timer:
            self._has_come(it, work)
        if not isinstance(it, Timer):
            return super()._attempt(call, it, work, outcome)
        again, name, waiting = self._owned.again, (it.key, it.kind), len(self._lacking)
        before = again.get(name, NEVER)
        self._fires(it)
        self._has_come(it, work)
        error = super()._attempt(call, it, work, outcome)
        if len(self._lacking) > waiting:  # it waits for state, and then runs as if it had not run
            again[name] = before
        return error

    def _redrive(self, entry: QuarantineEntry, work: Work, outcome: InvocationOutcome) -> None:
        for kind in TIMER_KINDS:
            self._owned.again.pop((entry.key, kind), None)
        self._redriving = True
        try:
            super()._redrive(entry, work, outcome)
        finally:
            self._redriving = False

    def _has_come(self, it: Timer | QuarantineEntry, work: Work) -> None:
        time = work.watermark if it.kind == "watermark" else work.wall_time
        if time < it.timestamp:
            name = f"{it.kind} timer {it.tag!r} of {it.key!r}"
            self._truth.fail(f"I8: {name} fires early: it is set to {it.timestamp}, and it is {time}", it.key)

    def _is_no_loop(self, timer: Timer) -> None:
        again = self._owned.again
        tag, at, times = again.get((timer.key, timer.kind), NEVER)
        times = times + 1 if (tag, at) == (timer.tag, timer.timestamp) else 1
        again[timer.key, timer.kind] = (timer.tag, timer.timestamp, times)
        if times > limits.TIMER_REARM_LIMIT + limits.HOOK_ATTEMPTS + 1:
            self._truth.fail(f"I16: {timer} has fired {times} times in a row: a loop", timer.key)

    def _fires(self, timer: Timer) -> None:
        self._is_no_loop(timer)
        owned, kernel = self._owned, self._kernel
        name = f"{timer.kind} timer {timer.tag!r} of {timer.key!r}"
        kernel.trace(f"p{self._process} i{owned.interval} fires {timer.key!r} {timer.tag!r} {timer.timestamp}")
        kernel.probes[f"{timer.kind} timer fired"] += 1
        kernel.probes["timer fired after restart"] += (timer.key, timer.tag) in self._restored
        if self._truth.owner[owned.interval] != owned.sequencer:
            return  # a zombie may have loaded what its successor has set
        pending = owned.timers.get(timer.key, {})
        at = pending.get((timer.kind, timer.tag))
        if at != timer.timestamp:
            self._truth.fail(f"I8: {name} fires for {timer.timestamp}, and is set to {at}", timer.key)
        first = min((at, tag) for (kind, tag), at in pending.items() if kind == timer.kind)
        if first < (timer.timestamp, timer.tag):
            self._truth.fail(
                f"I8: {name} fires for {timer.timestamp} before {first[1]!r}, set to {first[0]}", timer.key
            )

    def _returned(self, key: str, calls: Calls, cause: Cause) -> None:
        self._owned.returned(key, calls, cause, self._redriving)


class WatchedUserCode(UserCode):
    """The user code of one simulated process."""

    executor_type = WatchedExecutor

    def begin(
        self, run: RunHooks, process: int, truth: Truth, restored: Container[tuple[str, str]], owned: Owned
    ) -> None:
        """What `run` wants is next; see `WatchedExecutor`."""
        executor = self._executors[run.computation]
        if not isinstance(executor, WatchedExecutor):
            raise InvariantError("executor is no WatchedExecutor")
        executor.begin(process, truth, restored, owned)
