"""One key interval of one computation: a state machine (docs/architecture.md).

Lives here: the order of things.  Never here: I/O, clocks, user code.  Invariants:

* checkpoints commit strictly in seq order; acks and strong sends wait for the whole prefix;
* a checkpoint that holds an input's id holds every production of that input that is not acked yet;
* the reported watermark is never ahead of anything that is still to be done here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from millwheel import limits
from millwheel.bundles import (
    CHECKPOINT_FORMAT,
    Bundle,
    Checkpoint,
    HoldWrites,
    KeyRows,
    LogWrite,
    Produced,
    QuarantineEntry,
    Recovered,
    StateWrites,
    TimerWrites,
    encode_checkpoint,
)
from millwheel.core import events as ev
from millwheel.core.arrivals import Arrivals, Item
from millwheel.core.cache import StateCache
from millwheel.core.committed import CommittedLog
from millwheel.core.dedup import Channel
from millwheel.core.holds import Holds
from millwheel.core.inbox import Inbox
from millwheel.core.outbox import Outbox
from millwheel.core.quarantine import Quarantine, quarantine_hold
from millwheel.core.refused import RefusedRows
from millwheel.core.suspects import Suspects
from millwheel.core.timers import TimerQueue
from millwheel.graph import Settings
from millwheel.intervals import Ranges
from millwheel.model import EXPIRY_KIND, EXPIRY_TAG, MAX_TIME, MIN_TIME, Timer
from millwheel.work import QUARANTINE_HOLD, Cause, Outcome, Part, Wanted, Work

WEAK_INFLIGHT_LIMIT: Final = 64
REDRIVE_BATCH: Final = 256


class Inflight(msgspec.Struct, gc=False):
    """A checkpoint between its invocation and its commit."""

    seq: int
    write: LogWrite | None
    image: Checkpoint | None
    acks: list[tuple[int, int]]
    sends: list[Bundle]
    waits: set[int]
    """Weak: numbers of its bundles whose acks the checkpoint waits for."""
    oldest: int
    counts: ev.Counters
    causes: list[Cause] = []
    """Of each of its sink rows."""
    redrive: bool = False
    deadline: int = 0
    submitted: bool = False
    done: bool = False


class Config(msgspec.Struct, frozen=True):
    """What an interval is told when it is assigned."""

    interval: int
    sequencer: int
    computation: str
    shape: str
    settings: Settings
    routes: Mapping[int, Ranges]
    """Subscriptions that this computation produces to, and their receivers' interval maps."""
    low: str = ""
    high: str | None = None
    slacks: Mapping[int, int] = {}
    """Subscriptions on which outside clients choose record ids, and how long these are remembered, us."""


class IntervalCore:
    """Sans-IO core of one interval: feed `handle` with events, perform the effects it returns, in order."""

    def __init__(self, config: Config, recovered: Recovered, inherited: ev.Inherited | None = None) -> None:
        self.config = config
        self.counters = inherited.counters if inherited else ev.Counters()
        self._refused = inherited.refused if inherited else RefusedRows()
        self._inherited = inherited.channels if inherited else []
        self.suspects = inherited.suspects if inherited else Suspects(recovered.ends, recovered.suspicion)
        self._trust_at = MAX_TIME
        self._weak = config.settings.productions == "weak"
        self._cache = StateCache(config.settings.cache_limit_bytes)
        self._arrivals = Arrivals(self.counters, config.settings.exactly_once, config.slacks, recovered.opaque)
        self._outbox = Outbox(config.interval, config.sequencer, config.routes)
        self._timers = TimerQueue()
        self._paging = False
        """A page of timers is on its way."""
        self._holds = Holds()
        self._quarantine = Quarantine(
            recovered.quarantined, self._refused, self.suspects, self._timers, self._holds,
            config.settings.quarantine_holds,
        )  # fmt: skip
        self._inbox = Inbox()
        self._inflight: deque[Inflight] = deque()
        self._work: tuple[Work, list[Item], dict[str, int]] | None = None
        """What runs: user code, the bundles it came with, and keys that expire, with the time at which they do."""
        self._loading: list[str] = []
        self._running: Work | None = None
        """What user code was given: `_work` without what was diverted."""
        self._wanted: list[Wanted] = []
        """State that it waits for."""
        self._work_oldest = MAX_TIME
        self._work_limit = config.settings.work_limit_records
        """Records or timers of the next invocation."""
        self._seq = 0
        self._committed = CommittedLog(self._outbox.frontier)
        self._folding = False
        self._fold_goal = 0
        """Everything up to this seq is wanted in the tables, however little it is."""
        # The inputs were there when it was persisted.
        self._watermark = max(recovered.watermark, inherited.watermark if inherited else MIN_TIME)
        self._reported = recovered.watermark
        self._alarm = MAX_TIME
        self._idle_since: int | None = None
        self._rearmed: dict[tuple[str, str, str], int] = {}
        self.halted = False
        self._recovered: Recovered | None = recovered

    # --- the door ---------------------------------------------------------------------------------------------

    def start(self, now: int, live: Collection[Channel] | None = None) -> list[ev.Effect]:
        """First effects after assignment: resend what is unacked, report the watermark.

        `live` are the channels on which something may still come, of producers numbered below this interval's own
        sequencer, when that is known; it may gain members.  All others have been retired: their ids go, late copies
        are refused.
        """
        recovered, self._recovered = self._recovered, None
        assert recovered is not None, "start() is called once"
        self._arrivals.begin(recovered.ids, live, self.config.sequencer)
        if self.suspects.watching:
            self._trust_at = now + limits.TRUST_US
        self._restore_timers(recovered)
        effects: list[ev.Effect] = []
        for bundle in recovered.productions:
            if bundle.subscription in self.config.routes:
                self._outbox_send(self._outbox.adopt(bundle), effects)
            else:
                self._outbox.abandon(bundle)  # of a stream that is no longer published
        self._outbox.retire(self._inherited)
        self._quarantine.start()
        self._after(effects, now)
        return effects

    def handle(self, event: ev.Event, now: int) -> list[ev.Effect]:
        """React to one event at wall time `now`, us."""
        if self.halted:
            return []
        effects: list[ev.Effect] = []
        match event:
            case ev.BundleArrived(bundle):
                self._enter(self._arrivals.arrive(bundle, now, effects), effects)
            case ev.Loaded(rows):
                self._loaded(rows, effects, now)
            case ev.TimersLoaded(kind, timers, more):
                self._paging = False
                self._timers.turn(kind, timers, more, self._cache.turns)
            case ev.Marked():
                assert self._running is not None, "Marked without a mark"
                effects.append(ev.Invoke(self._running))
            case ev.Invoked(outcome, elapsed_us):
                if outcome.lacking:
                    self._wanted = outcome.lacking
                    effects.append(ev.LoadSlots(self._wanted))
                else:
                    self._pace(outcome, elapsed_us)
                    self._unmark(effects)
                    self._invoked(outcome, now, effects)
            case ev.SlotsLoaded(rows):
                assert self._running is not None, "SlotsLoaded without work"
                self._cache.fill(self._wanted, rows)
                self._wanted = []
                effects.append(ev.Invoke(self._running))
            case ev.Committed(seq):
                self._commit_done(seq, effects)
            case ev.Fenced():
                self.halted = True
                return [ev.Halt(f"interval {self.config.interval} of {self.config.computation!r} was fenced")]
            case ev.Refused(seq, rows):
                self._restart(seq, rows, now, effects)
                return effects
            case ev.Resend(target):
                kept_back = [bundle.number for entry in self._inflight for bundle in entry.sends]
                self._outbox_send(self._outbox.resend(target, kept_back), effects)
            case ev.Folded(upto):
                self._fold_done(upto, now)
            case ev.IdsFound():
                self._enter(self._arrivals.found(event, now, effects), effects)
            case ev.OpaqueRead():
                self._arrivals.was_read(event)
            case ev.AckArrived(number):
                self._acked(number)
            case ev.AlarmRang():
                self._alarm = MAX_TIME
            case ev.WatermarkMoved(value):
                self._move_watermark(value)
            case ev.RedriveAsked(key):
                self._quarantine.ask(key, now)
            case ev.QuarantineFetched(key, entries):
                self._quarantine.fetched(key, entries)
            case _:
                raise AssertionError(f"an interval core got {type(event).__name__}")
        self._after(effects, now)
        return effects

    def quiet(self) -> bool:
        """True when nothing is waiting, running, uncommitted, unacked or unfolded."""
        return not (
            self._inbox or self._work or self._inflight or self._outbox.unacked or self._committed
            or self._folding or self._outbox.has_unrecorded() or self._quarantine.busy()
            or self._outbox.frontier_moved or not self._arrivals.quiet() or self._paging
        )  # fmt: skip

    def flush(self, now: int) -> list[ev.Effect]:
        """Record acks and fold everything as soon as possible (end of a run)."""
        if self.halted:
            return []
        self._fold_goal = self._seq
        self._idle_since = MIN_TIME
        effects: list[ev.Effect] = []
        self._after(effects, now)
        return effects

    @property
    def inbox_bytes(self) -> int:
        """Bytes waiting to run."""
        return self._inbox.size_bytes + self._arrivals.size_bytes()

    @property
    def watermark(self) -> int:
        """Input low watermark."""
        return self._watermark

    @property
    def reported(self) -> int:
        """Output low watermark as last reported."""
        return self._reported

    def blame(self) -> list[tuple[str, int, str]]:
        """What holds this interval's watermark: (kind, timestamp, detail), the oldest first (`explain`)."""
        found: list[tuple[str, int, str]] = [("input watermark", self._watermark, "")]
        if self._inbox:
            oldest = self._inbox.first_oldest()
            found.append(("waiting record", oldest.oldest, _first_key(oldest.part)))
        if self._work is not None:
            found.append(("running work", self._work_oldest, ""))
        if self._inflight:
            found.append(("uncommitted checkpoint", min(i.oldest for i in self._inflight), ""))
        for bundle in self._outbox.unacked.values():
            found.append(("unacked production", bundle.oldest(), f"to interval {bundle.target}"))
        timer, at = self._timers.first("watermark"), self._timers.minimum("watermark")
        if at is not None:
            found.append(("timer", at, f"key {timer[0]!r} tag {timer[1]!r}" if timer else "not in memory yet"))
        hold = self._holds.first()
        if hold is not None:
            found.append(_blamed_hold(hold, self._holds.minimum()))
        return sorted(found, key=lambda blamed: blamed[1])

    # --- arrival ----------------------------------------------------------------------------------------------

    def _enter(self, items: list[Item], effects: list[ev.Effect]) -> None:
        for item in items:
            if item.part is None and not self._inbox and self._work is None and not self._inflight:
                effects.append(ev.Ack(item.sender, item.number))
                continue
            # Nothing fresh, but the originals may not be durable yet: its ack queues up behind them.
            self._inbox.put(item)

    # --- running ----------------------------------------------------------------------------------------------

    def _after(self, effects: list[ev.Effect], now: int) -> None:
        """What every event may make possible: run, record acks, fold, alarm, report."""
        if now >= self._trust_at and not self.suspects.watching:
            self._trust_at = MAX_TIME
            effects.append(ev.Unmark(self.suspects.encoded(), trusted=True))
        self._submit(effects, now)
        while self._pump(effects, now):
            self._submit(effects, now)
        self._page_timers(effects, now)
        self._record_idle(effects, now)
        self._arrivals.read(effects)
        self._maybe_fold(effects)
        self._set_alarm(effects, now)
        self._report(effects)

    def _pump(self, effects: list[ev.Effect], now: int) -> bool:
        """Start the next invocation if there is room; true when one was finished on the spot."""
        if self._work is not None or not self._has_room():
            return False
        work, items, expired = self._take(effects, now)
        if not (work.parts or work.timers or work.redrive or items or expired or self._quarantine.released):
            return False
        self._work = (work, items, expired)
        self._work_oldest = min(
            min((item.oldest for item in items), default=MAX_TIME),
            # A wall timer may produce at the watermark it was started under.
            min((t.timestamp if t.kind == "watermark" else work.watermark for t in work.timers), default=MAX_TIME),
        )
        # To expire, a key must have no timers: when not all are in memory the store has to say.
        keys = _keys(work)
        looked_at = {key: None for key in expired if not self._timers.complete or self._kept(key)}
        self._loading = self._cache.missing(looked_at or keys)
        if self._loading:
            effects.append(ev.Load(self._loading, not self._timers.complete))
            return False
        return self._run(keys, effects, now)

    def _run(self, keys: dict[str, None], effects: list[ev.Effect], now: int) -> bool:
        """All that the next invocation, of `keys`, needs is in memory; true when it was finished on the spot."""
        assert self._work is not None, "nothing to run"
        if keys:
            self._invoke(self._work[0], keys, effects)
        else:
            self._invoked(Outcome(), now, effects)
        return not keys

    def _has_room(self) -> bool:
        limit = WEAK_INFLIGHT_LIMIT if self._weak else limits.INFLIGHT_LIMIT_CHECKPOINTS
        return (
            len(self._inflight) < limit
            and len(self._outbox.unacked) < limits.OUTBOX_LIMIT_BUNDLES
            and self._outbox.unacked_bytes < limits.UNACKED_LIMIT_BYTES
            and not self._committed.full()
            and self._cache.unfolded < limits.UNFOLDED_LIMIT_KEYS
        )

    def _take(self, effects: list[ev.Effect], now: int) -> tuple[Work, list[Item], dict[str, int]]:
        work = Work(
            [], [], self._cache.values, self._cache.entries, {}, self._watermark, now, partial=self._cache.partial
        )
        work.redrive = self._quarantine.take_fetched()
        if work.redrive:
            # A wall timer that waits here was due once, even if the clock was set back since.
            work.wall_time = max([now, *(entry.timestamp for entry in work.redrive if entry.kind == "wall")])
            return work, [], {}
        self._read_quarantine(effects)
        work.timers = self._take_timers(now)
        if work.timers:
            return work, [], {}
        expired = self._take_expired()
        if expired:
            return work, [], expired  # alone, so that no hook of this invocation sees what is being dropped
        items = self._inbox.take(self.suspects.limit(self._work_limit), self.suspects)
        work.parts = [item.part for item in items if item.part is not None and item.part.keys]
        return work, items, {}

    def _take_timers(self, now: int) -> list[Timer]:
        limit = self.suspects.limit_timers(self._work_limit)
        due = [
            Timer(key, tag, timestamp, "watermark")
            for timestamp, (key, tag) in self._timers.pop_due("watermark", self._watermark, limit)
        ]
        due += [
            Timer(key, tag, timestamp, "wall")
            for timestamp, (key, tag) in self._timers.pop_due("wall", now, limit - len(due))
        ]
        return due

    def _take_expired(self) -> dict[str, int]:
        first = self._timers.minimum("watermark")
        if first is not None and first <= self._watermark:
            return {}  # its key would be kept, until a watermark that may not come
        due = self._timers.pop_due(EXPIRY_KIND, self._expiry_time(), self.config.settings.work_limit_records)
        return {key: timestamp for timestamp, (key, _) in due}

    def _expiry_time(self) -> int:
        """Up to when keys expire.  The end of input is not the passing of time: a finished run keeps its state."""
        return self._watermark if self._watermark < MAX_TIME else MIN_TIME

    def _kept(self, key: str) -> bool:
        """True when `key` must not expire."""
        return key in self._quarantine.keys or key in self._holds.all or self._timers.pending(key)

    def _page_timers(self, effects: list[ev.Effect], now: int) -> None:
        if self._paging or self._timers.complete:
            return
        for kind, until in (("watermark", self._watermark), ("wall", now), (EXPIRY_KIND, self._expiry_time())):
            after = self._timers.wanted(kind, until)
            if after is not None:
                self._paging = True
                effects.append(ev.LoadTimers(kind, after, limits.TIMER_PAGE_ROWS))
                return

    def _invoke(self, work: Work, keys: Mapping[str, None], effects: list[ev.Effect]) -> None:
        self._cache.touch(keys)
        holds = self._holds.all
        work.holds = {key: holds[key] for key in keys if key in holds} if holds else {}
        if self._quarantine.guards():
            work = self._quarantine.divert(work)
        self._running = work
        mark = self.suspects.begin(work)
        effects.append(ev.Invoke(work) if mark is None else ev.Mark(mark, self.suspects.alone))

    def _read_quarantine(self, effects: list[ev.Effect]) -> None:
        key = self._quarantine.next()
        if key is not None:
            effects.append(ev.FetchQuarantine(key, REDRIVE_BATCH))
        elif self._quarantine.waits_for_fold():
            self._fold_goal = self._seq

    def _unmark(self, effects: list[ev.Effect]) -> None:
        mark = self.suspects.done()
        if mark is not None:
            effects.append(ev.Unmark(mark))

    def _loaded(self, rows: list[KeyRows], effects: list[ev.Effect], now: int) -> None:
        stored = {row.key for row in rows if row.cells}
        self._cache.insert_absent([key for key in self._loading if key not in stored] if stored else self._loading)
        self._loading = []
        for row in rows:
            if row.cells:
                self._cache.insert(row.key, row.cells, row.more)
            for (kind, tag), timestamp in row.timers.items():
                self._timers.recall(row.key, kind, tag, timestamp)
        assert self._work is not None, "Loaded without work"
        self._run(_keys(self._work[0]), effects, now)

    def _move_watermark(self, value: int) -> None:
        if value > self._watermark:
            self._watermark = value
            self._rearmed.clear()

    def _restore_timers(self, recovered: Recovered) -> None:
        self._timers.restore(recovered.timers, recovered.more_timers)
        for key, hold in zip(recovered.holds.keys, recovered.holds.timestamps, strict=True):
            if hold is not None:
                self._holds.set(key, hold)

    # --- checkpoint -------------------------------------------------------------------------------------------

    def _pace(self, outcome: Outcome, elapsed_us: int) -> None:
        """Slow hooks get fewer records at a time: commits, other keys and Ctrl-C wait for the one that runs."""
        assert self._work is not None, "Invoked without work"
        done = max(1, outcome.processed + len(self._work[0].timers))
        if elapsed_us > limits.INVOCATION_TARGET_US:
            self._work_limit = max(1, min(self._work_limit, done * limits.INVOCATION_TARGET_US // elapsed_us))
        else:
            self._work_limit = min(self.config.settings.work_limit_records, self._work_limit * 2)

    def _invoked(self, outcome: Outcome, now: int, effects: list[ev.Effect]) -> None:
        assert self._work is not None, "Invoked without work"
        (work, items, due), self._work, self._running = self._work, None, None
        self._work_oldest = min(self._work_oldest, self._oldest_undone(outcome))
        self._seq = seq = self._seq + 1
        image = self._image(seq, work, items, due, outcome)
        bundles = []
        for subscription, columns in outcome.produced.items():
            produced, cut = self._outbox.number(subscription, columns)
            image.produced.append(produced)
            bundles += cut
        entry = Inflight(
            seq, None, image, [(item.sender, item.number) for item in items if item.number], bundles, set(),
            self._work_oldest, self._counts(work, image.forgotten, outcome), outcome.causes, bool(work.redrive),
            now + self.config.settings.straggler_delay_us,
        )  # fmt: skip
        self._work_oldest = MAX_TIME
        self._inflight.append(entry)
        if self._weak:
            entry.waits = {bundle.number for bundle in bundles}
            entry.sends = []
            effects += [ev.Send(self._outbox.sendable(bundle)) for bundle in bundles]

    def _counts(self, work: Work, expired: list[str], outcome: Outcome) -> ev.Counters:
        return ev.Counters(
            records=outcome.processed, late=outcome.late, backdated=outcome.backdated, timers=len(work.timers),
            quarantined=self._quarantine.take_opened(), redriven=outcome.redriven, expired=len(expired),
        )  # fmt: skip

    def _image(self, seq: int, work: Work, items: list[Item], due: dict[str, int], outcome: Outcome) -> Checkpoint:
        timers, holds = TimerWrites(), HoldWrites()
        expired = self._expire(due, seq, timers)
        quarantined = outcome.quarantined + self._quarantine.take_diverted()
        quarantined += self._apply_timers(work, outcome, timers)
        self._cache.mark([*(timer.key for timer in work.timers), *outcome.timers], seq)
        self._apply_holds(outcome, holds)
        state = StateWrites(self._cache.write_all(outcome, seq))
        if self.config.settings.expire_after is not None:
            self._extend_expiries(state.keys(), self.config.settings.expire_after, timers, work)
        released = self._quarantine.take_released(holds)
        # After the releases: a key may fail again in the same checkpoint.
        self._quarantine.put(quarantined, seq, work, holds)
        redriven = self._quarantine.redriven(seq, work, outcome)
        ids, opaque = self._arrivals.checkpointed(items, work.wall_time)
        return Checkpoint(
            CHECKPOINT_FORMAT, self.config.shape, 0, ids, [], [], state, timers, holds,
            outcome.sinks, quarantined, expired, redriven, released, opaque,
        )  # fmt: skip

    def _expire(self, due: dict[str, int], seq: int, timers: TimerWrites) -> list[str]:
        """Drop keys that are due; those that must be kept are asked again later."""
        expired = [key for key in due if not self._kept(key)]
        for key in expired:
            self._cache.forget(key, seq)
        for key in [key for key in due if self._kept(key)] if len(expired) < len(due) else ():
            self._set_expiry(key, self._look_again(key), timers)
            self._cache.mark((key,), seq)
        return expired

    def _look_again(self, key: str) -> int:
        """When a key that is kept may expire: behind its next timer, or after a while."""
        pending = [at for (kind, _), at in self._timers.of(key) if kind == "watermark" and at > self._watermark]
        later = self._watermark + (self.config.settings.expire_after or 1)
        return min([later, *pending, MAX_TIME - 1])

    def _set_expiry(self, key: str, at: int, timers: TimerWrites) -> None:
        self._timers.set(key, EXPIRY_KIND, EXPIRY_TAG, at)
        _add_timer(timers, key, EXPIRY_TAG, EXPIRY_KIND, at)

    def _apply_timers(self, work: Work, outcome: Outcome, writes: TimerWrites) -> list[QuarantineEntry]:
        looping: list[QuarantineEntry] = []
        for timer in work.timers:
            if (timer.kind, timer.tag) not in outcome.timers.get(timer.key, ()):
                _add_timer(writes, timer.key, timer.tag, timer.kind, None)
        for key, changes in outcome.timers.items():
            for (kind, tag), at in changes.items():
                due = at is not None and kind == "watermark" and at <= self._watermark
                if at is not None and due and self._loops(key, kind, tag):
                    looping.append(QuarantineEntry(
                        key, -1, 0, 0, b"", at, tag, kind,
                        f"timer {tag!r} re-armed itself behind the watermark {limits.TIMER_REARM_LIMIT} times",
                    ))  # fmt: skip
                    at = None
                if at is None:
                    self._timers.remove(key, kind, tag)
                else:
                    self._timers.set(key, kind, tag, at)
                _add_timer(writes, key, tag, kind, at)
        return looping

    def _loops(self, key: str, kind: str, tag: str) -> bool:
        if key in self._quarantine.keys:
            return False  # it sleeps
        name = (key, kind, tag)
        self._rearmed[name] = self._rearmed.get(name, 0) + 1
        return self._rearmed[name] > limits.TIMER_REARM_LIMIT

    def _apply_holds(self, outcome: Outcome, writes: HoldWrites) -> None:
        for key, at in outcome.holds.items():
            if at is None:
                self._holds.remove(key)
            else:
                self._holds.set(key, at)
            writes.keys.append(key)
            writes.timestamps.append(at)

    def _extend_expiries(self, keys: Iterable[str], expire_after: int, timers: TimerWrites, work: Work) -> None:
        newest = _newest_by_key(work)
        passed = min(self._watermark, MAX_TIME - 1)
        for key in sorted(keys):
            self._extend_expiry(key, max(newest.get(key, MIN_TIME), passed), expire_after, timers)

    def _extend_expiry(self, key: str, touched: int, expire_after: int, timers: TimerWrites) -> None:
        known = self._timers.expiry(key)
        # A hot key would rewrite its expiry in every checkpoint: an eighth of slack saves almost all of that, and
        # never lets a key expire before `expire_after` has passed.
        if known is None or touched + expire_after > known:
            self._set_expiry(key, min(touched + expire_after + expire_after // 8, MAX_TIME - 1), timers)

    # --- commit -----------------------------------------------------------------------------------------------

    def _submit(self, effects: list[ev.Effect], now: int) -> None:
        """Hand over checkpoints in seq order; a weak one waits for its acks, at most the straggler delay."""
        for entry in self._inflight:
            if entry.submitted:
                continue
            if entry.waits and now < entry.deadline:
                break
            entry.submitted = True
            image = entry.image
            assert image is not None
            if self._weak:
                image.produced = self._still_unacked(entry)
                entry.waits = set()
            if _is_empty(image):
                entry.done = True
                continue
            image.acked = self._outbox.record_acks(entry.seq)
            entry.write = LogWrite(
                self.config.interval, self.config.sequencer, entry.seq, 0,
                encode_checkpoint(image), tuple(image.sinks), tuple(cause.key for cause in entry.causes),
            )  # fmt: skip
            effects.append(ev.Commit(entry.write))
        self._pop_done(effects)

    def _still_unacked(self, entry: Inflight) -> list[Produced]:
        produced = []
        for number in sorted(entry.waits):
            bundle = self._outbox.unacked[number]
            produced += _runs(bundle)
        return produced

    def _commit_done(self, seq: int, effects: list[ev.Effect]) -> None:
        for entry in self._inflight:
            if entry.seq == seq:
                entry.done = True
        self._pop_done(effects)

    def _pop_done(self, effects: list[ev.Effect]) -> None:
        while self._inflight and self._inflight[0].done:
            entry = self._inflight.popleft()
            self.counters.add(entry.counts)
            if entry.write is not None and entry.image is not None:
                self._refused.settled(entry.image.quarantined)
                self._outbox.recorded(entry.seq)
                self._committed.add(entry.seq, len(entry.write.payload), entry.image)
                self.counters.checkpoints += 1
            effects += [ev.Ack(sender, number) for sender, number in entry.acks]
            effects += [ev.Send(self._outbox.sendable(bundle)) for bundle in entry.sends]

    def _restart(self, seq: int, rows: tuple[tuple[int, str], ...], now: int, effects: list[ev.Effect]) -> None:
        """Sink rows of a checkpoint were refused: it is void, and so is what ran on its soft state after it.

        The next core diverts the culprits to quarantine and does the rest again, as after a crash.
        """
        self.halted = True
        for entry in self._inflight:
            entry.done = entry.done or entry.seq < seq
        self._pop_done(effects)
        entry = self._inflight[0]
        assert entry.seq == seq, "a checkpoint was refused that is not under way"
        for place, answer in rows:
            if entry.redrive:
                self._refused.stop_redrive(entry.causes[place], now)
            else:
                self._refused.add(entry.causes[place], answer)
        inherited = ev.Inherited(
            self._refused, self._outbox.channels(), self.counters, self.suspects.interrupted(), self._watermark
        )
        effects.append(ev.Restart(inherited))

    def _outbox_send(self, bundles: list[Bundle], effects: list[ev.Effect]) -> None:
        effects += [ev.Send(self._outbox.sendable(bundle)) for bundle in bundles]

    def _acked(self, number: int) -> None:
        for entry in self._inflight:
            if number in entry.waits:
                # Weak and not in any checkpoint: nothing durable knows this id, so nothing needs the ack.
                entry.waits.discard(number)
                self._outbox.ack(number)
                self._outbox.forget(number)
                return
        self._outbox.ack(number)

    def _record_idle(self, effects: list[ev.Effect], now: int) -> None:
        """An idle interval records acks and frontiers, and folds, by age: ids are collected, logs empty."""
        if self._inbox or self._work is not None or self._inflight:
            self._idle_since = None
            return
        recordable = self._outbox.has_unrecorded() or self._arrivals.recordable(now)
        foldable = bool(self._committed) and not self._folding
        if not (recordable or foldable or self._outbox.frontier_moved):
            self._idle_since = None
            return
        if self._idle_since is None:
            self._idle_since = now
        if now < self._idle_since + limits.IDLE_RECORD_DELAY_US:
            return
        self._idle_since = None
        if recordable:
            self._commit_records(effects, now)
        elif self._outbox.frontier_moved:
            effects += [ev.Send(note) for note in self._outbox.frontier_notes()]
        self._fold_goal = self._seq

    def _commit_records(self, effects: list[ev.Effect], now: int) -> None:
        self._seq += 1
        image = self._image(self._seq, Work([], [], {}, {}, {}, self._watermark, now), [], {}, Outcome())
        image.ids, image.opaque = self._arrivals.checkpointed([], now, idle=True)
        image.acked = self._outbox.record_acks(self._seq)
        write = LogWrite(self.config.interval, self.config.sequencer, self._seq, 0, encode_checkpoint(image))
        counts = self._counts(Work([], [], {}, {}, {}, MIN_TIME, now), [], Outcome())
        self._inflight.append(Inflight(self._seq, write, image, [], [], set(), MAX_TIME, counts, submitted=True))
        effects.append(ev.Commit(write))

    # --- fold -------------------------------------------------------------------------------------------------

    def _maybe_fold(self, effects: list[ev.Effect]) -> None:
        if self._folding:
            return
        # What is wanted is folded together, when the last of it is durable: the acks that it may carry spare rows.
        goal = 0 if self._inflight and self._inflight[0].seq <= self._fold_goal else self._fold_goal
        if self._cache.unfolded >= limits.UNFOLDED_LIMIT_KEYS:
            goal = self._seq  # user code waits for it
        if self._committed.due(goal, self._cache.over_limit()):
            self._folding = True
            upto, images, later = self._committed.prefix(goal)
            fresh = self._cache.take_absent(image.state.keys() for image in images)
            effects.append(ev.Fold(upto, images, later, fresh))

    def _fold_done(self, upto: int, now: int) -> None:
        self._folding = False
        self._quarantine.folded(upto)
        for image in self._committed.folded(upto):
            self._arrivals.folded(image.ids, image.opaque)
        self._arrivals.ids.seal(now)
        self._cache.folded(upto)
        if not self._paging:  # a page that was read before this fold may be outdated about a key that goes now
            busy = _keys(self._work[0]) | self._work[2] if self._work else {}
            suspended = self._running is not None and self._running.suspended is not None
            gone = self._cache.trim(busy, lambda key: self._timers.next_of(key, MAX_TIME), busy if suspended else ())
            if not self._loading:  # the answer is for what is near now
                self._timers.shed(gone, self._cache.turns.__contains__)

    def _oldest_undone(self, outcome: Outcome) -> int:
        """Of the timers and holds that `outcome` moves, ends or puts to sleep: a crash before it commits brings them
        back."""
        oldest = MAX_TIME
        stopped = self._quarantine.stopping(outcome.quarantined)
        for key in (*outcome.holds, *map(quarantine_hold, self._quarantine.released), *stopped):
            oldest = min(oldest, self._holds.counting(key))
        for key in stopped:
            oldest = min([oldest, *(at for (kind, _), at in self._timers.of(key) if kind == "watermark")])
        for key, changes in outcome.timers.items():
            for (kind, tag), at in self._timers.of(key):
                if kind == "watermark" and (kind, tag) in changes:
                    oldest = min(oldest, at)
        return oldest

    # --- watermark and alarms ---------------------------------------------------------------------------------

    def _oldest_work(self) -> int:
        return min(
            self._inbox.oldest(),
            self._arrivals.oldest(),
            self._work_oldest,
            min((entry.oldest for entry in self._inflight), default=MAX_TIME),
            self._outbox.oldest(),
            _or_end(self._timers.minimum("watermark")),
            self._holds.minimum(),
        )

    def _report(self, effects: list[ev.Effect]) -> None:
        if self._watermark <= self._reported:
            return
        value = min(self._watermark, self._oldest_work())
        if value > self._reported:
            self._reported = value
            effects.append(ev.ReportWatermark(value))

    def _set_alarm(self, effects: list[ev.Effect], now: int) -> None:
        at = _or_end(self._timers.minimum("wall"))
        if at <= now:
            at = MAX_TIME  # due, but user code is busy: whatever ends that runs it, an alarm now would only spin
        at = min(at, self._arrivals.opaque.next_expiry)
        if self._idle_since is not None:
            at = min(at, self._idle_since + limits.IDLE_RECORD_DELAY_US)
        for entry in self._inflight:
            if entry.waits and not entry.submitted:
                at = min(at, entry.deadline)
                break
        if at < self._alarm:
            self._alarm = at
            effects.append(ev.SetAlarm(max(at, now)))


# --- small helpers, pure ------------------------------------------------------------------------------------------


def _keys(work: Work) -> dict[str, None]:
    """Keys in order of appearance: a set's order would differ from process to process."""
    keys: dict[str, None] = {}
    for part in work.parts:
        keys.update(dict.fromkeys(part.keys))
    keys.update((timer.key, None) for timer in work.timers)
    keys.update((entry.key, None) for entry in work.redrive)
    return keys


def _newest_by_key(work: Work) -> dict[str, int]:
    newest: dict[str, int] = {}
    for part in work.parts:
        for key, timestamp in zip(part.keys, part.timestamps, strict=True):
            if timestamp > newest.get(key, MIN_TIME):
                newest[key] = timestamp
    for timer in work.timers:
        if timer.kind == "watermark" and timer.timestamp > newest.get(timer.key, MIN_TIME):
            newest[timer.key] = timer.timestamp
    return newest


def _first_key(part: Part | None) -> str:
    return f"key {part.keys[0]!r}" if part and part.keys else ""


def _or_end(timestamp: int | None) -> int:
    return MAX_TIME if timestamp is None else timestamp


def _blamed_hold(name: str, at: int) -> tuple[str, int, str]:
    key = name.removesuffix(QUARANTINE_HOLD)
    return ("hold" if key == name else "quarantine", at, f"key {key!r}")


def _add_timer(writes: TimerWrites, key: str, tag: str, kind: str, at: int | None) -> None:
    writes.keys.append(key)
    writes.tags.append(tag)
    writes.kinds.append(kind)
    writes.timestamps.append(at)


def _is_empty(image: Checkpoint) -> bool:
    return not (
        image.ids or image.produced or image.state.cells or image.timers.keys or image.holds.keys or image.sinks
        or image.quarantined or image.forgotten or image.redriven or image.released
    )  # fmt: skip


def _runs(bundle: Bundle) -> list[Produced]:
    """A bundle's productions as runs of dense sequences, the form a checkpoint stores."""
    runs: list[Produced] = []
    for i, sequence in enumerate(bundle.sequences):
        last = runs[-1] if runs else None
        if last is None or sequence != last.first + len(last.keys):
            last = Produced(bundle.subscription, bundle.producer, sequence, [], [], [])
            runs.append(last)
        last.keys.append(bundle.keys[i])
        last.values.append(bundle.values[i])
        last.timestamps.append(bundle.timestamps[i])
    return runs
