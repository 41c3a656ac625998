"""What the owner of an interval has done, by the calls of its hooks: a second account (I4, I8, I9, I17).

Lives here: `Owned`, told of each call that a hook makes and of each invocation that returns, and what of that a checkpoint
must hold.  Never here: what is durable (`truth`), or what the core believes of any of it.  Invariants:

* a durable checkpoint leaves in each key that its hooks touched the timers and the hold that they left, and writes the state
  and the sink rows that they wrote;
* an invocation without a checkpoint has changed nothing;
* a hook sees the state and the hold that the hooks before it left;
* a hook has a record that comes after those which hooks of its key had from its producer, under whichever owner;
* a hook sees no earlier watermark than hooks of its key whose effects are durable, under whichever owner they ran.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from millwheel import limits
from millwheel.bundles import Checkpoint
from millwheel.core.interval.arrivals import Item
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, Sequencer, SubscriptionId
from millwheel.model import EXPIRY_KIND, MIN_TIME
from millwheel.testing.checks.truth import Durable
from millwheel.work import QUARANTINE_HOLD, Cause, InvocationOutcome, RecordCause, TimerCause, Work

Cells = dict[tuple[str, str], bytes]
"""(cell, entry) to bytes, of one key."""

Line = tuple[str, SubscriptionId, ProducerId]
"""What one producer sends to one key on one subscription."""

Fail = Callable[[str, str], Any]
"""Told what is wrong, and with which key."""


class Ran(msgspec.Struct, eq=False):
    """What one invocation has left in the keys that it touched."""

    timers: dict[str, dict[tuple[str, str], int]]
    holds: dict[str, int | None]
    writes: dict[tuple[str, str, str], bytes | None]
    sinks: int
    seen: dict[str, bool]
    """Keys, and whether its hooks saw any state of them."""
    lives: dict[str, int]
    """Keys whose state was written, and the newest event time of that write, us."""
    keys: tuple[str, ...]
    watermark: int
    """Input watermark that the hooks of these keys have seen, us."""
    label: int
    """The last barrier that its interval had passed; 0 without snapshots."""
    newest: dict[Line, SequenceNumber]
    """The newest records that these hooks had, without those that were redriven."""


class Owned(msgspec.Struct, eq=False):
    """An interval under one sequencer, as its hooks know it."""

    interval: IntervalId
    sequencer: Sequencer
    durable: Durable
    """What is durable of its computation."""
    timers: dict[str, dict[tuple[str, str], int]]
    """key to (kind, tag) to what it is set to, as hooks and durable checkpoints say; without expiries."""
    holds: dict[str, int]
    """Without those of quarantines."""
    state: dict[str, Cells] = {}
    """Of keys that hooks of this owner have seen."""
    touched: dict[str, None] = {}
    """Keys whose timers or hold the invocation that runs has changed."""
    seen: dict[str, bool] = {}
    unchanged: dict[str, tuple[dict[tuple[str, str], int], int | None]] = {}
    """Timers and hold of the keys of the invocation that runs, as they were before it."""
    ordered: bool = True
    """Copies of records do not run."""
    newest: dict[Line, SequenceNumber] = {}
    """The newest records that hooks of this owner had."""
    wrote: dict[tuple[str, str, str], bytes | None] = {}
    """Values that the invocation has set, by (key, cell, ""), as its hooks' journal says."""
    running: list[RecordCause] = []
    """Records that the invocation which runs has had, in order, without those that were redriven."""
    turns: dict[Seq, Ran] = {}
    """Of invocations that are not durable, by the seq of their checkpoint."""
    again: dict[tuple[str, str], tuple[str, int, int]] = {}
    """(key, kind) to what fired last, (tag, timestamp), and how often in a row.  The next owner counts anew."""
    waits: Item | None = None
    """What waited to run when hooks ran last."""
    timer_invocations: int = 0
    """Invocations of timers in a row while that waits."""
    full: bool = False
    """The computation had no room for records when hooks ran last."""

    def ran_next(self, work: Work, waits: Item | None) -> bool:
        """Hooks run, and `waits` is what runs next; false when timers keep it from that (I18)."""
        if waits is None or waits is not self.waits or self._waits_for_room():
            self.waits, self.timer_invocations = waits, 0
        elif work.timers and work.suspended is None:
            self.timer_invocations += 1
        return self.timer_invocations <= limits.TIMER_INVOCATIONS

    def _waits_for_room(self) -> bool:
        """Whether records wait for a wall timer, whose hook says anew whether there is room for them."""
        return self.full and any(kind == "wall" for settings in self.timers.values() for kind, _ in settings)

    # --- hooks --------------------------------------------------------------------------------------------------

    def keep(self, work: Work) -> None:
        """Remember how the keys of `work` stand before its hooks run."""
        if work.suspended is None:
            self.unchanged = {key: (dict(self.timers.get(key, {})), self.holds.get(key)) for key in keys_of(work)}

    def undo(self) -> None:
        """The invocation was put back: nothing that its hooks have called for counts."""
        for key, (timers, hold) in self.unchanged.items():
            self.timers[key] = timers
            _put(self.holds, key, hold)
        self.touched.clear()
        self.running.clear()

    def view(self, work: Work, fail: Fail) -> None:
        """Hooks are about to see what `work` has of their keys."""
        if work.suspended is not None:
            return
        for key in keys_of(work):
            reached = self.durable.reached.get(key, MIN_TIME)
            if work.watermark < reached:
                fail(f"I9: a hook of {key!r} sees the watermark {work.watermark}, and one has seen {reached}", key)
            cells = _cells(work, key)
            if key not in self.state:
                self.state[key] = dict(self.durable.state.get(key, {}))
            known = self.state[key]
            if key in work.partial:
                known = {place: value for place, value in known.items() if place in cells}
            if cells != known:
                if cells:
                    fail(
                        f"I4: a hook of {key!r} sees state that is not what hooks have left: {_apart(cells, known)}",
                        key,
                    )
                self.state[key] = {}  # it has expired: what says so is on its way, or `forgets` finds out
            self.seen[key] = bool(cells) or key in work.partial
            if work.holds.get(key) != self.holds.get(key):
                fail(
                    f"I8: a hook of {key!r} sees the hold {work.holds.get(key)}, and {self.holds.get(key)} is set", key
                )

    def returned(self, key: str, calls: Mapping[Any, int | None], cause: Cause, redriven: bool = False) -> None:
        """A hook of `key` has returned.  `calls` are those that set and cancel timers, (kind, tag), and its hold, None."""
        if self.ordered and isinstance(cause, RecordCause) and not redriven:
            self.running.append(cause)
        pending = self.timers.setdefault(key, {})
        self.touched[key] = None
        if isinstance(cause, TimerCause) and pending.get((cause.kind, cause.tag)) == cause.timestamp:
            del pending[cause.kind, cause.tag]
        for name, setting in calls.items():
            if name is None:
                _put(self.holds, key, setting)
            else:
                _put(pending, name, setting)

    def finish(self, seq: Seq, work: Work, outcome: InvocationOutcome, label: int, fail: Fail | None) -> None:
        """The invocation is over, and its checkpoint will be `seq`; under snapshots it is of the epoch after `label`.

        A zombie, which has no `fail`, may have records that its successor has had.
        """
        self.full = outcome.full
        self.touched.update((timer.key, None) for timer in work.timers)
        for element in outcome.quarantined:
            if element.is_timer:
                self._rests(element.key, (element.kind, element.tag), element.timestamp)
        writes = {(key, cell, entry): value for key, cell, entry, value in _written(outcome)} | self.wrote
        self.wrote = {}
        for (key, cell, entry), value in writes.items():
            _put(self.state.setdefault(key, {}), (cell, entry), value)
        newest, lines = newest_times(work), self._in_order(fail)
        self.turns[seq] = Ran(
            {key: dict(self.timers.get(key, {})) for key in self.touched},
            {key: self.holds.get(key) for key in self.touched},
            writes, len(outcome.sinks), self.seen,
            {key: max(work.watermark, newest.get(key, work.watermark)) for key, _, _ in writes},
            tuple(keys_of(work)), work.watermark, label, lines,
        )  # fmt: skip
        self.touched, self.seen = {}, {}

    def _in_order(self, fail: Fail | None) -> dict[Line, SequenceNumber]:
        """The records of the invocation come after those before, also those of earlier owners that are durable (I17)."""
        found: dict[Line, SequenceNumber] = {}
        for key, subscription, producer, sequence in self.running:
            line = (key, subscription, producer)
            last = max(self.newest.get(line, -1), self.durable.newest.get(line, -1))
            if sequence <= last and fail is not None:
                fail(f"I17: {sequence} of producer {producer} runs for {key!r} on {subscription} after {last}", key)
            found[line] = self.newest[line] = sequence
        self.running.clear()
        return found

    def _rests(self, key: str, name: tuple[str, str], at: int) -> None:
        """A timer went into the quarantine of its key."""
        if self.timers.get(key, {}).get(name) == at:
            del self.timers[key][name]

    # --- checkpoints --------------------------------------------------------------------------------------------

    def before(self, seq: Seq, fail: Fail) -> None:
        """Checkpoint `seq` is about to become durable: an invocation before it that has none has changed nothing."""
        for skipped in [known for known in self.turns if known < seq]:
            turn = self.turns.pop(skipped)
            if turn.writes or turn.sinks:
                fail(f"I4: what hooks wrote in #{skipped} of interval {self.interval} is in no checkpoint", "")
            self._compare(skipped, turn, fail)

    def became_durable(self, seq: Seq, image: Checkpoint, fail: Fail) -> Ran | None:
        """Checkpoint `seq` is durable, and says what its hooks did; returns the invocation that it is of."""
        turn = self.turns.pop(seq, None)
        for entry in image.quarantined:
            if entry.is_timer:
                self._rests(entry.key, (entry.kind, entry.tag), entry.timestamp)
                if turn is not None and turn.timers.get(entry.key, {}).get((entry.kind, entry.tag)) == entry.timestamp:
                    del turn.timers[entry.key][entry.kind, entry.tag]
        writes = {(key, cell, entry): value for key, cell, entry, value in image.state.rows()}
        if writes != (turn.writes if turn is not None else {}) or len(image.sinks) != (
            turn.sinks if turn is not None else 0
        ):
            fail(f"I4: #{seq} of interval {self.interval} is not what its hooks wrote", "")
        if turn is not None:
            self._compare(seq, turn, fail)
            self._reach(turn)
        return turn

    def declared(self, epoch: int, images: Sequence[Checkpoint], fail: Fail) -> list[Ran]:
        """An epoch is durable, and of this owner it has `images`: they are what hooks did before its barrier, and no more.

        Returns the invocations, in order.  Keys that have expired in the epoch are looked at elsewhere (`lifetimes`).
        """
        mine = [seq for seq, turn in self.turns.items() if turn.label < epoch]
        timers: dict[str, dict[tuple[str, str], int]] = {}
        holds: dict[str, int | None] = {}
        writes: dict[tuple[str, str, str], bytes | None] = {}
        turns = [self.turns.pop(seq) for seq in mine]
        for turn in turns:
            timers.update(turn.timers)
            holds.update(turn.holds)
            writes.update(turn.writes)
            self._reach(turn)
        logs = {(run.subscription, run.producer) for image in images for run in image.produced}
        for line in [line for line in self.durable.newest if line[1:] in logs]:
            del self.durable.newest[
                line
            ]  # the log of a loop numbers its records anew, as ones of the owner that has it
        for entry in [entry for image in images for entry in image.quarantined if entry.is_timer]:
            name = (entry.kind, entry.tag)
            self._rests(entry.key, name, entry.timestamp)
            if timers.get(entry.key, {}).get(name) == entry.timestamp:
                del timers[entry.key][name]
        expired = {key for image in images for key in image.forgotten}
        stored = {(key, cell, entry): value for image in images for key, cell, entry, value in image.state.rows()}
        sinks = sum(turn.sinks for turn in turns)
        if _without(expired, stored) != _without(expired, writes) or sum(len(image.sinks) for image in images) != sinks:
            fail(f"I4: the part of interval {self.interval} in epoch {epoch} is not what its hooks wrote", "")
        self._compare_keys(f"epoch {epoch}", timers, holds, fail)
        for key in expired.difference(self.durable.state):  # else it came back in the same epoch
            self.forgets(key, fail)
        return turns

    def _reach(self, turn: Ran) -> None:
        """What these hooks did is durable: hooks after them see no earlier watermark (I9), and no earlier record (I17)."""
        for key in turn.keys:
            self.durable.reached[key] = max(turn.watermark, self.durable.reached.get(key, MIN_TIME))
        self.durable.newest.update(turn.newest)

    def forgets(self, key: str, fail: Fail) -> None:
        """A checkpoint has become durable that drops `key`: hooks that run after it see nothing of it."""
        later = [turn for turn in self.turns.values() if key in turn.seen]
        if later and later[0].seen[key]:
            fail(f"I19: a hook of {key!r} has seen its state, which had expired", key)
        if not later and key not in self.seen:
            self.state.pop(key, None)

    def end(self, fail: Fail) -> None:
        """The run is over: whatever hooks did is durable."""
        self.before(Seq(max(self.turns, default=0) + 1), fail)

    def _compare(self, seq: Seq, turn: Ran, fail: Fail) -> None:
        self._compare_keys(f"#{seq}", turn.timers, turn.holds, fail)

    def _compare_keys(
        self, where: str, left: Mapping[str, Mapping[Any, int]], holds: Mapping[str, int | None], fail: Fail
    ) -> None:
        for key, timers in left.items():
            stored = self.durable.timers.get(key, {})
            found = {name: at for name, at in stored.items() if name[0] != EXPIRY_KIND}
            if found != timers:
                fail(f"I8: hooks left {key!r} the timers {timers} in {where}, and durable are {found}", key)
        for key, hold in holds.items():
            if self.durable.holds.get(key) != hold:
                fail(
                    f"I4: hooks left {key!r} the hold {hold} in {where}, and durable is {self.durable.holds.get(key)}",
                    key,
                )


def owned_of(
    interval: IntervalId, sequencer: Sequencer, durable: Durable, low: str, high: str | None, ordered: bool
) -> Owned:
    """The account of a new owner of the keys from `low` to before `high`, which begins with what is durable."""

    def mine(key: str) -> bool:
        return low <= key and (high is None or key < high)

    timers = {
        key: {name: at for name, at in settings.items() if name[0] != EXPIRY_KIND}
        for key, settings in durable.timers.items()
        if mine(key)
    }
    holds = {key: at for key, at in durable.holds.items() if mine(key) and not key.endswith(QUARANTINE_HOLD)}
    pending = {key: kept for key, kept in timers.items() if kept}
    return Owned(interval, sequencer, durable, pending, holds, ordered=ordered)


def keys_of(work: Work) -> Iterable[str]:
    """The keys of an invocation, each once."""
    found: dict[str, None] = {}
    for part in work.parts:
        found.update(dict.fromkeys(part.keys))
    found.update((timer.key, None) for timer in work.timers)
    found.update((entry.key, None) for entry in work.redrive)
    return found


def newest_times(work: Work) -> dict[str, int]:
    """The newest event time that an invocation has for each key, us."""
    newest: dict[str, int] = {}
    for part in work.parts:
        for key, at in zip(part.keys, part.timestamps, strict=True):
            newest[key] = max(at, newest.get(key, at))
    for timer in work.timers:
        if timer.kind == "watermark":
            newest[timer.key] = max(timer.timestamp, newest.get(timer.key, timer.timestamp))
    return newest


def _cells(work: Work, key: str) -> Cells:
    cells = {(cell, ""): column[key] for cell, column in work.values.items() if key in column}
    for cell, changed in (work.changes or {}).items():
        if key in changed:
            _put(cells, (cell, ""), changed[key])
    for cell, columns in work.entries.items():
        if key in columns:
            for entry, value in columns[key].items():
                cells[cell, entry] = value
    return cells


def _written(outcome: InvocationOutcome) -> Iterator[tuple[str, str, str, bytes | None]]:
    for cell, values in outcome.values.items():
        for key, value in values.items():
            yield key, cell, "", value
    for cell, entries in outcome.entries.items():
        for key, column in entries.items():
            for entry, value in column.items():
                yield key, cell, entry, value


def _apart(found: Cells, wanted: Cells) -> str:
    """The first places at which they differ."""
    places = sorted(place for place in {*found, *wanted} if found.get(place) != wanted.get(place))[:3]
    return ", ".join(f"{place} is {found.get(place)!r}, not {wanted.get(place)!r}" for place in places)


def _without(keys: Container[str], writes: Mapping[tuple[str, str, str], bytes | None]) -> dict[Any, bytes | None]:
    return {place: value for place, value in writes.items() if place[0] not in keys}


def _put(table: dict[Any, Any], place: object, value: object) -> None:
    if value is None:
        table.pop(place, None)
    else:
        table[place] = value
