"""One key interval of one computation: a state machine (docs/architecture-interval.md).

Lives here: the order of steps, what an event makes possible, and which part does it.  Never here: I/O, clocks or user
code.  Each part decides one question by itself: what is new (`arrivals`), what runs next (`schedule`), what hooks need
(`invocation`), what they have changed (`checkpoint`), when that is durable and folded (`durability`), and how far
time has come (`watermark`).  Invariants:

* there is one invocation at a time, and it runs on the soft state that the last one left;
* after every event, everything that it may have made possible is tried in one order.  So no part has to wake another;
* a core that was fenced or refused is void: it takes no event and has no effect any more.
"""

from __future__ import annotations

from collections.abc import Collection, Set

from millwheel import limits
from millwheel.bundles import Bundle, Checkpoint, RecoveredInterval
from millwheel.core.channel.alignment import Alignment
from millwheel.core.channel.outbox import Outbox
from millwheel.core.durability.checkpoint import Checkpointer
from millwheel.core.durability.durability import Durability
from millwheel.core.durability.durable_epochs import DurableEpochs
from millwheel.core.durability.inflight import Uncommitted
from millwheel.core.durability.log import DurableLog
from millwheel.core.durability.worse_epochs import EPOCHS
from millwheel.core.faults.quarantine import Quarantine
from millwheel.core.faults.refused import RefusedRows
from millwheel.core.faults.suspects import Suspects
from millwheel.core.ids.dedup import Channel
from millwheel.core.ids.seen import SeenKeys
from millwheel.core.interval import events as ev
from millwheel.core.interval.arrivals import Arrivals, Item
from millwheel.core.interval.config import Config
from millwheel.core.interval.held import HeldWork
from millwheel.core.interval.inbox import Inbox
from millwheel.core.interval.invocation import Invocation
from millwheel.core.interval.schedule import Schedule
from millwheel.core.interval.watermark import LowWatermark
from millwheel.core.keys.expiry import Expiry
from millwheel.core.keys.keyed_state import KeyedState
from millwheel.errors import InvariantError
from millwheel.ids import IntervalId, ProducerId, Seq, SubscriptionId
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.work import InvocationOutcome, Work


class IntervalCore:
    """The core of one interval.  Give events to `handle`, and perform the effects that it returns, in order."""

    def __init__(self, config: Config, recovered: RecoveredInterval, inherited: ev.Inherited | None = None) -> None:
        settings = config.settings
        self.config = config
        self.counters = inherited.counters if inherited else ev.Counters()
        if inherited is not None and inherited.declared == config.label:
            self._refused = inherited.refused
        else:
            self._refused = RefusedRows(renumbered=config.label is not None)
        self._inherited = inherited.channels if inherited else []
        self.suspects = inherited.suspects if inherited else Suspects(recovered.ends, recovered.suspicion)
        self._trust_at = MAX_TIME
        # What comes in.
        self._arrivals = Arrivals(
            self.counters, settings.exactly_once, config.slacks, recovered.outside, durable_ids=config.label is None
        )
        self._alignment = Alignment(config.label or 0)
        self._inbox = Inbox()
        # What there is of keys.
        by_epochs = config.label is not None and settings.expire_after is None
        self._keyed = KeyedState(settings.cache_limit_bytes or limits.CACHE_LEAST_BYTES, by_epochs)
        self._quarantine = Quarantine(
            keys=recovered.quarantined,
            refused=self._refused,
            suspects=self.suspects,
            keyed=self._keyed,
            keeps_hold=settings.quarantine_holds,
        )
        self._expiry = Expiry(settings.expire_after, self._keyed, self._quarantine)
        # What runs, and what it changes.
        self._schedule = Schedule(
            limit=settings.work_limit_records,
            inbox=self._inbox, keyed=self._keyed, expiry=self._expiry,
            quarantine=self._quarantine, suspects=self.suspects,
        )  # fmt: skip
        self._invocation = Invocation(
            keyed=self._keyed, expiry=self._expiry,
            quarantine=self._quarantine, suspects=self.suspects, seen=SeenKeys(recovered.blank),
        )  # fmt: skip
        self._checkpointer = Checkpointer(
            shape=config.shape,
            keyed=self._keyed,
            arrivals=self._arrivals,
            expiry=self._expiry,
            quarantine=self._quarantine,
        )
        # What becomes durable, and goes out.
        self._outbox = Outbox(
            config.interval, ProducerId(config.sequencer), config.routes, config.back,
            crowds=None if config.label is None else config.crowds,
        )  # fmt: skip
        self._unsettled: set[int] = set()
        """Unacked bundles on streams that only earlier versions of the computation list."""
        self._barriers_to = {
            target for number, ranges in config.routes.items() if self._produces(number) for target in ranges.ids
        }
        """Intervals to which this one sends: they wait for its barriers."""
        self._durability: Durability
        self._epochs: DurableEpochs | None = None
        """The durability, under snapshots."""
        if config.label is not None:
            self._durability = self._epochs = EPOCHS[config.baseline](
                interval=config.interval, sequencer=config.sequencer, outbox=self._outbox, arrivals=self._arrivals,
                keyed=self._keyed, refused=self._refused, counters=self.counters, records=self._records,
                label=config.label,
            )  # fmt: skip
        else:
            self._durability = DurableLog(
                interval=config.interval, sequencer=config.sequencer,
                weak=settings.productions == "weak" and bool(self._barriers_to),
                outbox=self._outbox, arrivals=self._arrivals, keyed=self._keyed, refused=self._refused,
                counters=self.counters, records=self._records,
            )  # fmt: skip
        self._watermark = LowWatermark(
            # The inputs had reached at least what was persisted of this computation.
            input_watermark=max(recovered.watermark, inherited.watermark if inherited else MIN_TIME),
            reported=recovered.watermark,
            arrivals=self._arrivals, inbox=self._inbox, invocation=self._invocation, durability=self._durability,
            outbox=self._outbox, keyed=self._keyed, alignment=self._alignment,
        )  # fmt: skip
        self._held = HeldWork(config.promised) if config.loop else None
        """For the rounds of its loop."""
        self._alarm = MAX_TIME
        self._weak = settings.productions == "weak"
        self.halted = False
        self._closed = False
        self._recovered: RecoveredInterval | None = recovered

    # --- the door ---------------------------------------------------------------------------------------------

    def start(
        self, now: int, live: Collection[Channel] | None = None, input_watermark: int = MIN_TIME
    ) -> list[ev.Effect]:
        """First effects after assignment: resend what is unacked, report the watermark.

        `live`: channels on which something may still come from producers numbered below its own sequencer, if known;
        `ChannelsExpected` adds to them.  Others are retired: their ids are deleted, and late copies refused.  Earlier hooks
        saw at most `input_watermark`, us.
        """
        recovered, self._recovered = self._recovered, None
        if recovered is None:
            raise InvariantError("start() is called once")
        self._watermark.move(input_watermark)
        self._arrivals.begin(recovered.ids, live, self.config.sequencer)
        if self.suspects.watching:
            self._trust_at = now + limits.TRUST_US
        self._keyed.restore(recovered)
        effects: list[ev.Effect] = []
        for bundle in recovered.productions:
            if bundle.subscription in self.config.routes:
                # They are durable, so they are sent also on a stream that this version does not list any more.
                bundles = self._outbox.adopt(bundle)
                self._barriers_to |= {b.target for b in bundles}
                listed = self._produces(bundle.subscription) or bundle.subscription in self.config.back
                self._unsettled |= {b.number for b in bundles} if not listed else set()
                self._send(bundles, effects)
            else:
                self._outbox.abandon(bundle)  # of a stream that is no longer published
        self._outbox.retire(self._inherited)
        self._quarantine.start()
        self._after(effects, now)
        return effects

    def _produces(self, subscription: SubscriptionId) -> bool:
        return self.config.outputs is None or subscription in self.config.outputs

    def handle(self, event: ev.Event, now: int) -> list[ev.Effect]:
        """React to one event at wall time `now`, us."""
        if self.halted:
            return []
        effects: list[ev.Effect] = []
        if type(event) is ev.BundleArrived:
            self._arrive(event.bundle, now, effects)
            if self._must_wait() and not event.bundle.barrier:
                return effects
        elif type(event) is ev.AckArrived:
            self._durability.acked(event.number, now, event.epoch)
            self._settle(event.number, effects)
            if self._must_wait() and not self._weak:
                self._watermark.report(effects)
                return effects
        elif type(event) is ev.Invoked:
            self._ran(event.outcome, event.elapsed_us, now, effects)
        elif type(event) is ev.CommitDone:
            self._durability.committed(event.seq, effects)
        elif type(event) is ev.WatermarkMoved:
            self._watermark.move(event.value, event.label)
        elif type(event) is ev.WriteFenced:
            self.halted = True
            return [ev.Halt(f"interval {self.config.interval} of {self.config.computation!r} was fenced")]
        elif type(event) is ev.Refused:
            self._restart(event.seq, event.rows, now, effects)
            return effects
        else:
            self._handle_rare(event, now, effects)
        self._after(effects, now)
        return effects

    def _handle_rare(self, event: ev.Event, now: int, effects: list[ev.Effect]) -> None:
        match event:
            case ev.EpochBegun() | ev.EpochEnded():
                self._hear_of_epoch(event)
            case ev.Loaded(rows):
                if self._invocation.loaded(rows, effects):
                    self._invoked(InvocationOutcome(), now, effects)
            case ev.TimersLoaded():
                self._schedule.page_arrived(event)
            case ev.Marked():
                self._invocation.marked(effects)
            case ev.SlotsLoaded(rows):
                self._invocation.filled(rows, effects)
            case ev.Resend(target):
                self._send(self._outbox.resend(target, self._durability.kept_back()), effects)
            case ev.FoldDone(upto):
                self._fold_done(upto, now)
            case ev.IdsFound():
                self._enter(self._arrivals.found(event, now, effects), effects)
            case ev.OutsideIdsRead():
                self._arrivals.was_read(event)
            case ev.AlarmRang():
                self._alarm = MAX_TIME
            case ev.RoundBegan(round_, bound):
                self._answer(round_, bound, effects)
            case ev.ChannelsExpected() | ev.ChannelsEnded():
                self._arrivals.hear_of_channels(event)
            case ev.RedriveAsked() | ev.QuarantineFetched():
                self._hear_of_quarantine(event, now)
            case _:
                raise AssertionError(f"an interval core got {type(event).__name__}")

    def _answer(self, round_: int, bound: int, effects: list[ev.Effect]) -> None:
        if self._held is None:
            raise InvariantError(f"interval {self.config.interval} is in no loop")
        minimum = self._held.answer(round_, bound, self._watermark.oldest_work())
        if minimum is not None:
            effects.append(ev.AnswerRound(round_, minimum))

    def _settle(self, number: int, effects: list[ev.Effect]) -> None:
        if number in self._unsettled:
            self._unsettled.discard(number)
            effects += [] if self._unsettled else [ev.Settled()]

    def quiet(self) -> bool:
        """True when nothing is waiting, running, uncommitted, unacked or unfolded."""
        return not (
            self._inbox or self._invocation or not self._durability.quiet() or self._quarantine.busy()
            or not self._arrivals.quiet() or self._schedule.paging or self._alignment.busy()
        )  # fmt: skip

    def settled(self, acked: bool = False) -> bool:
        """True when nothing waits, runs, is uncommitted or is unfolded: another owner would find an empty log.

        `acked`: and no production is unacked, nor its ack unrecorded.
        """
        waits = self._inbox or self._arrivals.asking or self._schedule.paging
        return not (self._invocation or (waits and not self._closed) or not self._durability.settled(acked))

    def close(self) -> None:
        """Another owner comes: begin no invocation.  Senders keep what waits.

        A loop goes on, where an interval may wait for itself, and so do snapshots, where barriers wait.
        """
        self._closed = self._epochs is None and not self.config.loop

    def give_up(self) -> ev.Inherited:
        """The core is void from now on.  Returns what the next one in this process begins with.

        Under snapshots the whole graph goes back, watermarks too, and nobody has anything of this core.
        """
        self.halted = True
        channels, watermark, declared = self._outbox.channels(), self.watermark, None
        if self._epochs is not None:
            channels, watermark, declared = [], MIN_TIME, self._epochs.last_declared
        return ev.Inherited(
            refused=self._refused, channels=channels, counters=self.counters, suspects=self.suspects.interrupted(),
            watermark=watermark, declared=declared,
        )  # fmt: skip

    def doubts(self, bundle: Bundle) -> bool:
        """Whether it would take a bundle for a copy, because nobody has told it of the sender."""
        return self._arrivals.doubts((bundle.subscription, bundle.producer))

    def channels(self) -> list[Channel]:
        """The channels on which it has sent, also in the names of earlier owners, and may send again."""
        return self._outbox.channels()

    def heard(self) -> list[Channel]:
        """The channels on which it has consumed ids that it still keeps."""
        return self._arrivals.ids.channels()

    def flush(self, now: int) -> list[ev.Effect]:
        """Record acks and fold everything as soon as possible (end of a run)."""
        if self.halted:
            return []
        self._durability.end()
        effects: list[ev.Effect] = []
        self._after(effects, now)
        return effects

    def allow(self, cache_bytes: int) -> None:
        """Bound state in memory."""
        if self._keyed.allow(cache_bytes):
            self._trim()

    @property
    def cache_bytes(self) -> int:
        """State in memory."""
        return self._keyed.size_bytes

    @property
    def inbox_bytes(self) -> int:
        """Bytes waiting to run."""
        return self._inbox.size_bytes + self._arrivals.size_bytes() + self._alignment.size_bytes

    @property
    def label(self) -> int:
        """The last barrier that was passed."""
        return self._alignment.label

    @property
    def sends_to(self) -> Set[IntervalId]:
        """Intervals that wait for a barrier of this one."""
        return self._barriers_to

    @property
    def pressed(self) -> bool:
        """Whether sources must wait for an epoch to end."""
        return self._epochs is not None and self._epochs.pressed()

    @property
    def wants_epoch(self) -> bool:
        """Whether anything is left that only an epoch makes durable."""
        return self._epochs is not None and (self._epochs.pending() or not self._arrivals.quiet())

    @property
    def waits(self) -> Item | None:
        """The records that run next, or None when none wait."""
        return self._inbox.first()

    @property
    def newest_seq(self) -> Seq:
        """The seq of the newest checkpoint."""
        return self._durability.seq

    @property
    def watermark(self) -> int:
        """Input low watermark."""
        return self._watermark.input

    @property
    def reported(self) -> int:
        """Output low watermark as last reported."""
        return self._watermark.reported

    def begin_slowly(self, records: int) -> None:
        """The next invocation has at most so many records: nobody knows yet whether hooks are slow."""
        self._schedule.begin_slowly(records)

    @property
    def quarantined_keys(self) -> int:
        """Keys in quarantine now."""
        return len(self._quarantine.keys)

    def blame(self) -> list[tuple[str, int, str]]:
        """What holds this interval's watermark: (kind, timestamp, detail), the oldest first (`explain`)."""
        return self._watermark.blame()

    # --- arrival ----------------------------------------------------------------------------------------------

    def _arrive(self, bundle: Bundle, now: int, effects: list[ev.Effect]) -> None:
        if bundle.barrier:
            effects.append(ev.Ack(bundle.sender, bundle.number))
            self._alignment.barrier(bundle.sender, bundle.barrier)
        elif not bundle.sequences or not self._alignment.parks(bundle):  # a frontier alone waits for nothing
            self._enter(self._arrivals.arrive(bundle, now, effects), effects)

    def _enter(self, items: list[Item], effects: list[ev.Effect]) -> None:
        if self._held is not None:
            self._held.note(min([self._arrivals.oldest(), *(item.oldest for item in items)]))
        for item in items:
            if self._epochs is not None and item.epoch < self._alignment.label:
                self._epochs.log(item)
            if item.part is None and not (self._inbox or self._invocation or self._durability):
                effects.append(ev.Ack(item.sender, item.number, self._durability.epoch))
                continue
            # If nothing is fresh, the originals may not be durable yet.  The ack waits behind them.
            self._inbox.put(item)

    # --- running ----------------------------------------------------------------------------------------------

    def _after(self, effects: list[ev.Effect], now: int) -> None:
        """Try everything that an event may make possible."""
        if now >= self._trust_at and not self.suspects.watching:
            self._trust_at = MAX_TIME
            effects.append(ev.Unmark(self.suspects.encoded(), trusted=True))
        self._durability.submit(effects, now)
        while self._cut(effects, now) or self._pump(effects, now):
            self._durability.submit(effects, now)
        if self._epochs is not None and self._alignment.came_round() and not self._arrivals.waiting:
            self._epochs.logged(effects)
        self._schedule.page_timers(effects, self._watermark.input, now)
        waits = self._inbox and not self._closed
        self._durability.rest(bool(waits or self._invocation), effects, now)
        self._arrivals.read(effects)
        self._durability.fold(effects)
        self._set_alarm(effects, now)
        self._watermark.report(effects)

    def _hear_of_quarantine(self, event: ev.RedriveAsked | ev.QuarantineFetched, now: int) -> None:
        if isinstance(event, ev.RedriveAsked):
            self._quarantine.ask(event.keys, now)
        else:
            self._quarantine.fetched(event.entries, event.more)

    def _hear_of_epoch(self, event: ev.EpochBegun | ev.EpochEnded) -> None:
        if isinstance(event, ev.EpochBegun):
            if event.back is None and self.config.loop:
                raise InvariantError(f"nobody has said which barriers go round the loop of {self.config.computation!r}")
            self._alignment.open(event.epoch, event.senders, event.back or ())
        else:
            self._under_snapshots().declared(event.epoch)

    def _under_snapshots(self) -> DurableEpochs:
        if self._epochs is None:
            raise InvariantError("an interval without snapshots was told of an epoch")
        return self._epochs

    def _cut(self, effects: list[ev.Effect], now: int) -> bool:
        """End an epoch when all of it has run.  True when it has: what waited behind barriers comes in."""
        if (
            self._epochs is None
            or not self._alignment.complete()
            or self._inbox
            or self._invocation
            or self._arrivals.waiting
        ):
            return False
        self._epochs.cut(self._alignment.opened, self._barriers_to, effects, now, logs=self._alignment.heads)
        for bundle in self._alignment.cut():
            self._arrive(bundle, now, effects)
        self._watermark.passed()
        return True

    def _pump(self, effects: list[ev.Effect], now: int) -> bool:
        """Start the next invocation if there is room; true when one was finished on the spot."""
        if self._closed or self._must_wait() or self._schedule.nothing(self._watermark.input, now):
            return False
        if not self._durability.has_room():
            return False
        self._read_quarantine(effects)
        promised = MIN_TIME if self._held is None else self._held.promised
        scheduled = self._schedule.take(self._watermark.input, now, promised)
        if scheduled is None or not self._invocation.begin(scheduled, effects):
            return False
        self._invoked(InvocationOutcome(), now, effects)
        return True

    def _must_wait(self) -> bool:
        """Whether hooks run, or the little that has come waits for the little that commits: more comes meanwhile, and runs
        with it.  A strong ack, or a bundle, makes nothing possible then but a report."""
        if self._invocation:
            return True
        if not self._inbox or not self.config.gathers:
            return False
        most = min(limits.NAGLE_RECORDS, self._schedule.limit)
        return self._inbox.records < most and self._durability.commits_less_than(most)

    def _read_quarantine(self, effects: list[ev.Effect]) -> None:
        keys = self._quarantine.next()
        if keys:
            effects.append(ev.FetchQuarantine(keys, limits.REDRIVE_ELEMENTS))
        elif self._quarantine.waits_for_fold():
            self._durability.want()

    def _ran(self, outcome: InvocationOutcome, elapsed_us: int, now: int, effects: list[ev.Effect]) -> None:
        """User code has returned: the process lives."""
        if outcome.fits:
            self._put_back(outcome.fits, effects)
        elif outcome.lacking:
            self._invocation.want(outcome.lacking, effects)
        else:
            self._schedule.pace(self._invocation.work, outcome, elapsed_us)
            self._schedule.full = outcome.full
            self._lives(effects)
            self._invoked(outcome, now, effects)

    def _lives(self, effects: list[ev.Effect]) -> None:
        mark = self.suspects.done()
        if mark is not None:
            effects.append(ev.Unmark(mark))

    def _put_back(self, fits: int, effects: list[ev.Effect]) -> None:
        """The records of an invocation made too much for one checkpoint: nothing of it counts, and fewer of them run."""
        self._lives(effects)
        scheduled, _ = self._invocation.end()
        self._quarantine.take_diverted()
        self._schedule.put_back(scheduled.items, fits)

    def _invoked(self, outcome: InvocationOutcome, now: int, effects: list[ev.Effect]) -> None:
        """Make a checkpoint of an invocation.  Its productions are numbered, and kept until they are acked."""
        scheduled, oldest = self._invocation.end()
        oldest = min(oldest, self._checkpointer.oldest_undone(scheduled.work, outcome))
        if self._held is not None:
            self._held.note(min(oldest, outcome.oldest()))
        seq = self._durability.next_seq()
        image = self._checkpointer.image(seq, scheduled, outcome, self._watermark.input)
        bundles = []
        for subscription, columns in outcome.produced.items():
            produced, cut = self._outbox.number(subscription, columns)
            image.produced.append(produced)
            bundles += cut
        acks = [(item.sender, item.number) for item in scheduled.items if item.number]
        counts = self._counts(scheduled.work, image.forgotten, outcome)
        entry = Uncommitted(
            seq, image, acks, bundles, oldest, counts, outcome.causes, bool(scheduled.work.redrive),
            now + self.config.settings.straggler_delay_us,
        )  # fmt: skip
        self._durability.put(entry, effects, now)

    def _counts(self, work: Work, expired: list[str], outcome: InvocationOutcome) -> ev.Counters:
        return ev.Counters(
            records=outcome.processed, late=outcome.late, backdated=outcome.backdated,
            timers=len(work.timers) + outcome.chained, quarantined=self._quarantine.take_opened(),
            redriven=sum(outcome.redriven.values()), expired=len(expired),
        )  # fmt: skip

    # --- commit -----------------------------------------------------------------------------------------------

    def _restart(self, seq: Seq, rows: tuple[tuple[int, str], ...], now: int, effects: list[ev.Effect]) -> None:
        """Sink rows of checkpoint `seq` were refused.  It is void, and so is everything that ran on its soft state.

        The next core diverts the culprits to quarantine and does the rest again, as after a crash.
        """
        self.halted = True
        causes = self._durability.refused(seq, effects)
        for place, answer in rows:
            cause, redrive = causes[place]
            if redrive:
                self._refused.stop_redrive(cause, now)
            else:
                self._refused.add(cause, answer)
        effects.append(ev.RestartInterval(self.give_up()))

    def _send(self, bundles: list[Bundle], effects: list[ev.Effect]) -> None:
        effects += [ev.Send(self._outbox.sendable(bundle)) for bundle in bundles]

    def _records(self, seq: Seq, now: int) -> tuple[Checkpoint, ev.Counters]:
        """A checkpoint of acks and frontiers."""
        image = self._checkpointer.records(seq, self._watermark.input, now)
        return image, self._counts(Work([], [], {}, {}, {}, MIN_TIME, now), [], InvocationOutcome())

    # --- fold -------------------------------------------------------------------------------------------------

    def _fold_done(self, upto: Seq, now: int) -> None:
        self._quarantine.folded(upto)
        self._arrivals.folded(self._durability.folded(upto))
        self._arrivals.ids.seal(now)
        self._keyed.folded(upto)
        self._trim()

    def _trim(self) -> None:
        if not self._schedule.paging:  # a page from before this fold may be outdated about keys that leave
            self._invocation.trim(self._watermark.input)

    # --- alarms -----------------------------------------------------------------------------------------------

    def _set_alarm(self, effects: list[ev.Effect], now: int) -> None:
        at = self._durability.alarm()
        timer = self._keyed.timers.minimum("wall")
        if timer is not None and now < timer < at:  # one that is due runs when user code is not busy any more
            at = timer
        at = min(at, self._arrivals.outside.expire(now))
        if at < self._alarm:
            self._alarm = at
            effects.append(ev.SetAlarm(max(at, now)))
