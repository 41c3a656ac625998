"""The injector core against a model: any order of reads, acks, alarms and answers of the store."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from millwheel import limits
from millwheel.bundles import Bundle
from millwheel.core.interval import events as ev
from millwheel.core.source.injector import InjectorCore
from millwheel.ids import IntervalId, ProducerId, SubscriptionId, sequence_numbers
from millwheel.intervals import Ranges
from millwheel.limits import ADVANCE_DELAY_US
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.ports import SourcePosition
from millwheel.work import Columns
from tests.effort import examples

SUB = SubscriptionId(1)


class Place(msgspec.Struct, frozen=True):
    """Where a partition is read on from, as the store has it."""

    position: int
    state: bytes
    rejected: int


class Model:
    """A partition, its receivers and the store, which are in no hurry."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = 0
        start = Place(random.randrange(5), b"start", random.randrange(3))
        position = SourcePosition("p", IntervalId(9), ProducerId(7), start.position, False, start.state, start.rejected)
        routes = {SUB: Ranges([("", IntervalId(1)), ("m", IntervalId(2))])}
        self.announces = random.random() < 0.5
        self.core = InjectorCore(IntervalId(9), position, routes, announces=self.announces)
        self.announced = False
        """The partition has said that it has rows, and no read was asked for since."""
        self.read_to = self.acked = self.durable = start
        self.reads: list[tuple[Place, set[int], int]] = []
        """Reads that are not acked, or behind one: where each has ended, its bundles that are not, its oldest event time."""
        self.notes: set[int] = set()
        self.asked_to_read = self.at_end = self.finished = False
        self.writing: tuple[Place, bool] | None = None
        self.promised = self.reported = MIN_TIME
        self.left = random.randrange(6)
        """Reads until the end."""
        self.took(self.core.start(0))

    def took(self, effects: list[ev.Effect], came: Place | None = None) -> None:
        """Check what the core wants; `came` is where the read has ended that has just come."""
        sent: dict[int, int] = {}
        """Oldest event times of bundles, by number."""
        for effect in effects:
            match effect:
                case ev.Read():
                    assert (self.asked_to_read, self.at_end) == (False, False)
                    self.asked_to_read, self.announced = True, False
                case ev.Send(bundle) if bundle.sequences:
                    sent[bundle.number] = bundle.oldest()
                case ev.Send(bundle):
                    assert self.finished
                    self.notes.add(bundle.number)
        if came is not None:
            self.reads.append((came, {*sent}, min(sent.values(), default=MAX_TIME)))
        self.settle_acks()
        for effect in effects:
            match effect:
                case ev.Advance(position, state, finished, rejected):
                    assert self.writing is None
                    assert Place(position, state, rejected) == self.acked, "the store gets what is acked"
                    assert finished == (self.at_end and not self.reads)
                    self.writing = (self.acked, finished)
                case ev.ReportWatermark(value):
                    assert value > self.reported
                    assert value == (MAX_TIME if self.finished else min(self.promised, self.oldest()))
                    self.reported = value
        assert self.asked_to_read or self.at_end or not self.announced, "rows wait, and nobody reads them"
        written = self.durable == self.acked and self.writing is None and not self.notes
        assert self.core.settled() == (written and not self.reads)
        assert self.core.quiet() == (written and not self.reads and not self.asked_to_read)

    def settle_acks(self) -> None:
        while self.reads and not self.reads[0][1]:
            self.acked = self.reads.pop(0)[0]

    def oldest(self) -> int:
        return min((oldest for _, _, oldest in self.reads), default=MAX_TIME)

    def read(self) -> None:
        """What was asked for comes: rows, nothing now, or nothing any more."""
        if not self.asked_to_read:
            return
        self.asked_to_read = False
        if self.left and self.random.random() < 0.7:
            self.left -= 1
            self.rows()
            return
        self.at_end = not self.left
        self.took(self.core.handle(ev.RowsRead({}, 0, 0, b"", self.promise(), self.at_end, False), self.now))

    def announce(self) -> None:
        self.announced = self.announces
        if self.announces:
            self.took(self.core.handle(ev.RowsAnnounced(), self.now))

    def promise(self) -> int:
        watermark = self.random.randrange(100)
        self.promised = max(self.promised, watermark)
        return watermark

    def rows(self) -> None:
        random = self.random
        count, rejected, first = random.randrange(4), random.randrange(2), self.read_to.position
        columns = Columns(
            [random.choice("az") for _ in range(count)], [b"v"] * count, random.choices(range(99), k=count)
        )
        self.read_to = Place(
            first + count + rejected, b"%d" % random.randrange(10**6), self.read_to.rejected + rejected
        )
        read = ev.RowsRead(
            {SUB: (sequence_numbers(list(range(first, first + count))), columns)},
            count,
            self.read_to.position,
            self.read_to.state,
            self.promise(),
            False,
            True,
            rejected,
            full=random.random() < 0.3,
        )
        self.took(self.core.handle(read, self.now), self.read_to)

    def ack(self) -> None:
        waiting = [*self.notes, *(number for _, sent, _ in self.reads for number in sent)]
        if waiting:
            number = self.random.choice(waiting)
            self.notes.discard(number)
            for _, sent, _ in self.reads:
                sent.discard(number)
            self.took(self.core.handle(ev.AckArrived(number), self.now))

    def write(self) -> None:
        if self.writing is not None:
            (self.durable, self.finished), self.writing = self.writing, None
            self.took(self.core.handle(ev.Advanced(self.durable.position, self.finished), self.now))

    def ring(self) -> None:
        self.now += ADVANCE_DELAY_US
        self.took(self.core.handle(ev.AlarmRang(), self.now))

    def is_over(self) -> bool:
        return self.finished and self.core.quiet()


@pytest.mark.parametrize("part", range(4))
def test_whatever_comes_first_the_store_and_the_watermark_know_what_is_acked_and_no_more(part: int) -> None:
    for seed in range(part, examples(400), 4):
        random = Random(seed)
        model = Model(random)
        steps = [model.read, model.ack, model.write, model.ring, model.announce]
        for _ in range(30):
            random.choice(steps)()
        for _ in range(200):
            for step in steps:
                step()
        assert model.is_over(), f"seed {seed}"
        assert (model.durable, model.reported) == (model.read_to, MAX_TIME)


def made(label: int | None = None) -> InjectorCore:
    start = SourcePosition("p", IntervalId(9), ProducerId(7), 0, False, b"")
    return InjectorCore(IntervalId(9), start, {SUB: Ranges([("", IntervalId(1))])}, label=label)


def rows(first: int, count: int = 1, size: int = 1) -> ev.RowsRead:
    columns = Columns(["k"] * count, [b"v" * size] * count, [1] * count)
    numbers = sequence_numbers(list(range(first, first + count)))
    return ev.RowsRead({SUB: (numbers, columns)}, count, first + count, b"s", 0, False, True)


END = ev.RowsRead({}, 0, 0, b"", 0, True, False)


def sent(effects: list[ev.Effect]) -> list[Bundle]:
    return [effect.bundle for effect in effects if isinstance(effect, ev.Send)]


def reads(effects: list[ev.Effect]) -> bool:
    return any(isinstance(effect, ev.Read) for effect in effects)


def test_an_epoch_is_wanted_for_what_none_has_and_for_the_end_and_what_follows_a_barrier_is_of_the_next() -> None:
    injector = made(label=3)
    injector.start(0)
    assert (injector.wants_epoch, injector.at_end) == (False, False)
    assert [bundle.epoch for bundle in sent(injector.handle(rows(0, 2), 0))] == [3]
    assert injector.wants_epoch
    injector.handle(ev.BarrierAsked(4), 0)
    assert [bundle.epoch for bundle in sent(injector.handle(rows(2, 3), 0))] == [4]
    injector.handle(ev.Advanced(2, False), 0)
    assert injector.wants_epoch, "rows have come behind the barrier"
    injector.handle(ev.BarrierAsked(5), 0)
    injector.handle(ev.Advanced(5, False), 0)
    assert (injector.wants_epoch, injector.at_end) == (False, False)
    injector.handle(END, 0)
    assert (injector.wants_epoch, injector.at_end) == (True, True)
    injector.handle(ev.BarrierAsked(6), 0)
    injector.handle(ev.Advanced(5, True), 0)
    assert (injector.wants_epoch, injector.at_end) == (False, False)


def test_under_snapshots_no_position_is_written_by_itself() -> None:
    injector = made(label=3)
    injector.start(0)
    (bundle,) = sent(injector.handle(rows(0), 0))
    effects = injector.handle(ev.AckArrived(bundle.number), 0)
    for time in range(4):
        effects += injector.handle(ev.AlarmRang(), time * ADVANCE_DELAY_US)
    effects += injector.handle(END, 4 * ADVANCE_DELAY_US)
    assert not [effect for effect in effects if isinstance(effect, ev.Advance)]


def test_how_many_rows_are_asked_for_is_learnt_from_how_long_they_were() -> None:
    injector = made()
    injector.start(0)
    asked = []
    for first, size in enumerate((limits.READ_LIMIT_BYTES, limits.READ_LIMIT_BYTES, 100, 100)):
        (bundle,) = sent(effects := injector.handle(rows(first, size=size), 0))
        injector.handle(ev.AckArrived(bundle.number), 0)
        asked += [effect.limit for effect in effects if isinstance(effect, ev.Read)]
    assert asked == [1, 1, 4, 16]


@pytest.mark.parametrize(("fenced", "given"), [(False, 2), (True, 0)])
def test_rows_count_for_good_with_their_epoch_unless_another_process_has_the_partition(
    fenced: bool, given: int
) -> None:
    injector = made(label=3)
    injector.start(0)
    injector.handle(rows(0, 2), 0)
    injector.handle(ev.BarrierAsked(4), 0)
    injector.handle(rows(2, 3), 0)
    injector.handle(ev.WriteFenced() if fenced else ev.Advanced(2, False), 0)
    assert injector.rows.end().given == given


def test_rows_whose_position_is_refused_do_not_count() -> None:
    injector = made()
    injector.start(0)
    (bundle,) = sent(injector.handle(rows(0, 2), 0))
    injector.handle(ev.AckArrived(bundle.number), 0)
    injector.handle(ev.AlarmRang(), ADVANCE_DELAY_US)  # the position is on its way
    injector.handle(ev.WriteFenced(), ADVANCE_DELAY_US)
    assert injector.rows.end().given == 0


def test_reading_pauses_while_too_many_bytes_are_unacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UNACKED_LIMIT_BYTES", 3_000)
    injector = made()
    injector.start(0)
    (first,) = sent(effects := injector.handle(rows(0, size=2_000), 0))
    assert reads(effects)
    (second,) = sent(effects := injector.handle(rows(1, size=2_000), 0))
    assert not reads(effects)
    assert reads(injector.handle(ev.AckArrived(first.number), 0))
    assert not reads(injector.handle(rows(2, size=2_000), 0))
    assert reads(injector.handle(ev.AckArrived(second.number), 0))


def test_a_partition_that_is_paused_is_not_read_until_it_is_not() -> None:
    injector = made()
    injector.paused = True
    assert not reads(injector.start(0))
    injector.paused = False
    assert reads(injector.handle(ev.AlarmRang(), 0))


def test_of_what_is_told_of_the_end_again_and_again_the_last_ack_is_enough() -> None:
    injector = made()
    injector.start(0)
    injector.handle(END, 0)
    injector.handle(ev.Advanced(0, True), 0)
    for _ in range(3):
        (note,) = sent(injector.handle(ev.Resend(IntervalId(1)), 0))
    assert not injector.quiet()
    injector.handle(ev.AckArrived(note.number), 0)
    assert injector.quiet()
