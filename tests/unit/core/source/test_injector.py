"""The injector core: event in, effects out; the position never passes a row that is not durable."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import pytest

from millwheel.core.interval import events as ev
from millwheel.core.source.injector import InjectorCore
from millwheel.ids import IntervalId, ProducerId, Seq, Sequencer, SubscriptionId, sequence_numbers
from millwheel.intervals import Ranges
from millwheel.limits import ADVANCE_DELAY_US, ANNOUNCED_POLL_US, POLL_DELAY_US, SILENT_POLL_US, UNACKED_LIMIT_READS
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.ports import SourcePosition
from millwheel.work import Columns

T = TypeVar("T")

SUB, INTERVAL, PRODUCER = SubscriptionId(1), IntervalId(9), ProducerId(33)
LATER = 10 * ADVANCE_DELAY_US


def core(
    position: int = 0, finished: bool = False, lows: tuple[str, ...] = ("",), announces: bool = False
) -> InjectorCore:
    start = SourcePosition("p", INTERVAL, PRODUCER, position, finished, b"")
    ranges = Ranges([(low, IntervalId(i + 1)) for i, low in enumerate(lows)])
    return InjectorCore(INTERVAL, start, {SUB: ranges}, announces=announces)


def rows(first: int, times: list[int], watermark: int, keys: str = "") -> ev.RowsRead:
    count = len(times)
    columns = Columns([*(keys or "k" * count)], [b"v"] * count, times)
    numbers = list(range(first, first + count))
    return ev.RowsRead(
        {SUB: (sequence_numbers(numbers), columns)},
        count,
        first + count,
        b"s%d" % (first + count),
        watermark,
        False,
        True,
    )


def nothing(watermark: int, finished: bool) -> ev.RowsRead:
    return ev.RowsRead({}, 0, 0, b"", watermark, finished, False)


def of(effects: list[ev.Effect], kind: type[T]) -> list[T]:
    return [effect for effect in effects if isinstance(effect, kind)]


def numbers(effects: list[ev.Effect]) -> list[int]:
    return [send.bundle.number for send in of(effects, ev.Send)]


def reports(effects: list[ev.Effect]) -> list[int]:
    return [report.value for report in of(effects, ev.ReportWatermark)]


def test_ids_are_row_numbers_of_the_partitions_producer() -> None:
    injector = core(lows=("", "m"))
    assert of(injector.start(0), ev.Read)
    bundles = [s.bundle for s in of(injector.handle(rows(5, [1, 2, 3], 0, "azb"), 0), ev.Send)]
    assert [(b.target, b.producer, b.sequences) for b in bundles] == [(1, PRODUCER, [5, 7]), (2, PRODUCER, [6])]


def test_no_bundle_has_the_number_of_one_of_an_earlier_owner_whose_ack_may_still_come() -> None:
    start = SourcePosition("p", INTERVAL, PRODUCER, 0, False, b"")
    before, after = (InjectorCore(INTERVAL, start, {SUB: Ranges([("", IntervalId(1))])}, Sequencer(n)) for n in (4, 5))
    for injector in (before, after):
        injector.start(0)
    (old,) = numbers(before.handle(rows(0, [1], 0), 0))
    (new,) = numbers(after.handle(rows(0, [1], 0), 0))
    advanced = []
    for number in (old, new):
        after.handle(ev.AckArrived(number), LATER)
        advanced.append(of(after.handle(ev.AlarmRang(), 2 * LATER), ev.Advance) != [])
    assert advanced == [False, True]


def test_whoever_brought_rows_hears_at_once_that_they_and_all_before_are_durable() -> None:
    start = SourcePosition("p", INTERVAL, PRODUCER, 0, False, b"")
    ranges = Ranges([("", IntervalId(1)), ("m", IntervalId(2))])
    injector = InjectorCore(INTERVAL, start, {SUB: ranges}, answers=True)
    injector.start(0)
    one, other = numbers(injector.handle(rows(0, [1, 2], 0, "az"), 0))
    (third,) = numbers(injector.handle(rows(2, [3], 0, "a"), 0))
    empty = ev.RowsRead({}, 1, 4, b"s4", 0, False, True, 1)  # all of it is rejected
    for event in (empty, ev.AckArrived(third), ev.AckArrived(one), ev.AlarmRang()):
        assert not of(injector.handle(event, 0), ev.RowsKept)
    assert of(injector.handle(ev.AckArrived(other), 0), ev.RowsKept) == [ev.RowsKept(4)]
    assert not of(injector.handle(ev.AckArrived(other), LATER), ev.RowsKept)


def test_under_snapshots_rows_are_durable_with_their_epoch_and_a_position_is_noted_once() -> None:
    start = SourcePosition("p", INTERVAL, PRODUCER, 0, False, b"")
    injector = InjectorCore(INTERVAL, start, {SUB: Ranges([("", IntervalId(1))])}, answers=True, label=3)
    injector.start(0)
    (number,) = numbers(injector.handle(rows(0, [1, 2], 0), 0))
    assert not of(injector.handle(ev.AckArrived(number), 0), ev.RowsKept)
    assert of(injector.handle(ev.BarrierAsked(4), 0), ev.PositionNoted) == [ev.PositionNoted(2, b"s2", False, 0)]
    assert of(injector.handle(ev.Advanced(2, False), 0), ev.RowsKept) == [ev.RowsKept(2)]
    assert not of(injector.handle(ev.BarrierAsked(5), 0), ev.PositionNoted)
    injector.handle(ev.RowsRead({}, 0, 2, b"s2", 0, True, False), 0)
    ended = ev.PositionNoted(2, b"s2", True, 0)
    assert of(injector.handle(ev.BarrierAsked(6), 0), ev.PositionNoted) == [ended], (
        "no row has come since, and it is over"
    )
    assert not of(injector.handle(ev.BarrierAsked(7), 0), ev.PositionNoted)


def test_under_snapshots_a_partition_that_has_ended_stays_until_its_barriers_are_acked() -> None:
    """The next epoch had begun.  Its barrier was lost in a channel that was cut, and nobody was there to send it again."""
    start, receiver = SourcePosition("p", INTERVAL, PRODUCER, 0, False, b""), IntervalId(1)
    injector = InjectorCore(INTERVAL, start, {SUB: Ranges([("", receiver)])}, label=3)
    injector.start(0)
    (number,) = numbers(injector.handle(rows(0, [1, 2], 0), 0))
    injector.handle(ev.AckArrived(number), 0)
    injector.handle(ev.RowsRead({}, 0, 2, b"s2", 0, True, False), 0)
    (first,) = numbers(injector.handle(ev.BarrierAsked(4), 0))
    injector.handle(ev.AckArrived(first), 0)
    (end,) = numbers(injector.handle(ev.Advanced(2, True), 0))
    (second,) = numbers(injector.handle(ev.BarrierAsked(5), 0))
    injector.handle(ev.AckArrived(end), 0)
    assert not injector.quiet()
    again = numbers(injector.handle(ev.Resend(receiver), 0))
    assert second in again
    for number in again:
        injector.handle(ev.AckArrived(number), 0)
    assert injector.quiet()


def test_nobody_is_told_of_rows_that_can_be_read_again() -> None:
    injector = core()
    injector.start(0)
    (number,) = numbers(injector.handle(rows(0, [1], 0), 0))
    assert not of(injector.handle(ev.AckArrived(number), 0), ev.RowsKept)


def test_the_position_waits_for_every_earlier_read() -> None:
    injector = core()
    injector.start(0)
    (first,) = numbers(injector.handle(rows(0, [1], 0), 0))
    (second,) = numbers(injector.handle(rows(1, [2], 0), 0))
    assert not of(injector.handle(ev.AckArrived(second), LATER), ev.Advance)
    assert not injector.quiet()
    effects = injector.handle(ev.AckArrived(first), LATER)
    assert not of(effects, ev.Advance)  # written at most every ADVANCE_DELAY_US
    (advance,) = of(injector.handle(ev.AlarmRang(), 2 * LATER), ev.Advance)
    assert (advance.position, advance.state, advance.finished) == (2, b"s2", False)
    injector.handle(ev.Advanced(2, False), 2 * LATER)
    assert of(injector.handle(rows(2, [3], 0), 2 * LATER), ev.Send)[0].bundle.frontier == 2


def test_the_watermark_never_passes_an_unacked_row() -> None:
    injector = core()
    assert reports(injector.start(0, 3)) == [3]
    effects = injector.handle(rows(0, [5, 9], 8), 0)
    assert reports(effects) == [5]
    assert reports(injector.handle(ev.AckArrived(numbers(effects)[0]), 0)) == [8]


def test_what_holds_the_watermark_is_the_oldest_row_that_is_not_acked() -> None:
    injector = core()
    assert injector.blame() == ("partition", MIN_TIME, "")
    injector.start(0)
    reads = (rows(0, [7, 5], 7, "ab"), rows(2, [3, 9], 9, "cd"), rows(4, [8], 9, "e"))
    first, second, third = (numbers(injector.handle(read, 0))[0] for read in reads)
    assert injector.blame() == ("unacked row", 3, "key 'c' to interval 1")
    injector.handle(ev.AckArrived(second), 0)
    assert injector.blame() == ("unacked row", 5, "key 'b' to interval 1")
    for number in (first, third):
        injector.handle(ev.AckArrived(number), 0)
    assert injector.blame() == ("partition", 9, ""), "it has promised no more"


def test_reading_pauses_while_too_much_is_unacked() -> None:
    injector = core()
    effects, sent, first = injector.start(0), list[int](), 0
    while of(effects, ev.Read):
        effects = injector.handle(rows(first, [first], 0), 0)
        sent += numbers(effects)
        first += 1
    assert len(sent) == UNACKED_LIMIT_READS
    assert of(injector.handle(ev.AckArrived(sent[0]), 0), ev.Read)


def test_what_a_receiver_has_lost_is_sent_again_in_order() -> None:
    injector = core(lows=("", "m"))
    injector.start(0)
    first = [s.bundle for s in of(injector.handle(rows(0, [1, 2, 3], 0, "azb"), 0), ev.Send)]
    second = [s.bundle for s in of(injector.handle(rows(3, [4, 5], 0, "cc"), 0), ev.Send)]
    injector.handle(ev.AckArrived(first[0].number), 0)
    assert [s.bundle for s in of(injector.handle(ev.Resend(IntervalId(1)), 0), ev.Send)] == second
    assert [s.bundle for s in of(injector.handle(ev.Resend(IntervalId(2)), 0), ev.Send)] == [first[1]]
    assert of(injector.handle(ev.Resend(IntervalId(3)), 0), ev.Send) == []


def test_a_receiver_that_has_lost_it_is_told_again_that_nothing_more_comes() -> None:
    injector = core(finished=True, lows=("", "m"))
    injector.start(0)
    (note,) = [s.bundle for s in of(injector.handle(ev.Resend(IntervalId(2)), 0), ev.Send)]
    assert (note.target, note.frontier, note.sequences) == (2, MAX_TIME, [])


def test_an_empty_read_polls_again_later() -> None:
    injector = core()
    injector.start(0)
    (alarm,) = of(injector.handle(nothing(0, False), 0), ev.SetAlarm)
    assert not of(injector.handle(ev.AlarmRang(), alarm.at - 1), ev.Read)
    assert of(injector.handle(ev.AlarmRang(), alarm.at), ev.Read)


def test_what_is_silent_for_long_is_read_less_often_until_something_comes() -> None:
    injector = core()
    injector.start(0)

    def rest(begin: int, silence_us: int) -> int:
        """After a read that finds nothing so long after the first one that did not."""
        (alarm,) = of(injector.handle(nothing(0, False), begin + silence_us), ev.SetAlarm)
        assert of(injector.handle(ev.AlarmRang(), alarm.at), ev.Read)
        return alarm.at - begin - silence_us

    short, long = 64 * POLL_DELAY_US, 64 * SILENT_POLL_US
    for first, begin in ((0, 500), (7, 20 * long)):
        rests = [rest(begin, silence) for silence in (0, 1, short, short + 64)]
        assert rests == [POLL_DELAY_US] * 3 + [POLL_DELAY_US + 1]
        rests = [rest(begin, silence) for silence in (long - 64, long, long + 64, 9 * long)]
        assert rests == [SILENT_POLL_US - 1] + [SILENT_POLL_US] * 3
        assert rest(begin, -5) == POLL_DELAY_US, "the clock was set back"
        assert of(injector.handle(rows(first, [5], 5), begin), ev.Read)


@pytest.mark.parametrize("came", ["nothing", "rows"])
def test_one_that_says_when_it_has_rows_is_read_then_and_now_and_then(came: str) -> None:
    injector = core(announces=True)
    injector.start(0)
    read = nothing(0, False) if came == "nothing" else rows(0, [5], 5)
    effects = injector.handle(read, 100)
    assert not of(effects, ev.Read)
    assert [alarm.at for alarm in of(effects, ev.SetAlarm)] == [100 + ANNOUNCED_POLL_US]
    assert of(injector.handle(ev.RowsAnnounced(), 101), ev.Read)
    injector.handle(nothing(0, False), 200)
    assert not of(injector.handle(ev.AlarmRang(), 199 + ANNOUNCED_POLL_US), ev.Read)
    assert of(injector.handle(ev.AlarmRang(), 200 + ANNOUNCED_POLL_US), ev.Read)


def test_one_that_gave_all_that_it_was_asked_for_or_is_at_its_end_is_read_again_at_once() -> None:
    for read in (
        msgspec.structs.replace(rows(0, [5], 5), full=True),
        msgspec.structs.replace(rows(0, [5], 5), finished=True),
    ):
        injector = core(announces=True)
        injector.start(0)
        assert of(injector.handle(read, 100), ev.Read)


def test_the_end_counts_when_it_is_durable_and_is_no_event_time_before() -> None:
    """Were the watermark near the end of time before, every key's state would expire with its input."""
    injector = core()
    injector.start(0)
    (number,) = numbers(injector.handle(rows(0, [5], 5), 0))
    assert reports(injector.handle(nothing(MAX_TIME, True), 0)) == []
    effects = injector.handle(ev.AckArrived(number), 0)
    assert reports(effects) == []
    (advance,) = of(effects, ev.Advance)
    assert (advance.position, advance.finished) == (1, True)
    effects = injector.handle(ev.Advanced(1, True), 0)
    assert reports(effects) == [MAX_TIME]
    assert [s.bundle.frontier for s in of(effects, ev.Send)] == [MAX_TIME]  # receivers may collect its ids
    assert not injector.quiet()  # until they say that they know
    (again,) = of(injector.handle(ev.Resend(of(effects, ev.Send)[0].bundle.target), 0), ev.Send)
    injector.handle(ev.AckArrived(of(effects, ev.Send)[0].bundle.number), 0)
    assert not injector.quiet()
    injector.handle(ev.AckArrived(again.bundle.number), 0)
    assert injector.quiet()


def test_a_partition_ends_with_the_state_of_its_last_row_when_that_is_durable_already() -> None:
    """By that state the partition is known again: a file by what it was."""
    injector = core()
    injector.start(0)
    (number,) = numbers(injector.handle(rows(0, [5], 5), 0))
    injector.handle(ev.AckArrived(number), 0)
    (first,) = of(injector.handle(ev.AlarmRang(), LATER), ev.Advance)
    injector.handle(ev.Advanced(first.position, False), LATER)
    (last,) = of(injector.handle(nothing(MAX_TIME, True), LATER), ev.Advance)
    assert (last.position, last.state, last.finished) == (1, b"s1", True)


def test_a_partition_at_its_end_is_not_quiet_while_a_row_is_not_acked() -> None:
    injector = core()
    injector.start(0)
    (number,) = numbers(injector.handle(rows(0, [5], 5), 0))
    injector.handle(nothing(MAX_TIME, True), 0)
    assert not injector.quiet()
    assert injector.under_way
    injector.handle(ev.AckArrived(number), 0)
    assert not injector.under_way


def test_an_empty_partition_ends_without_a_promise() -> None:
    injector = core()
    assert reports(injector.start(0, MAX_TIME)) == []
    (advance,) = of(injector.handle(nothing(MAX_TIME, True), 0), ev.Advance)
    assert (advance.position, advance.finished) == (0, True)


def test_a_partition_finished_earlier_is_not_read() -> None:
    effects = core(7, True).start(0)
    assert not of(effects, ev.Read)
    assert reports(effects) == [MAX_TIME]


def test_fenced_it_halts_for_good() -> None:
    injector = core()
    injector.start(0)
    assert of(injector.handle(ev.WriteFenced(), 0), ev.Halt)
    assert injector.handle(rows(0, [1], 0), 0) == []


def test_a_foreign_event_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="FoldDone"):
        core().handle(ev.FoldDone(Seq(1)), 0)


def test_a_partition_that_its_last_owner_has_ended_during_this_start_says_so_to_who_expects_it() -> None:
    # Receivers kept its ids for ever: they were told that rows of it may come, and never that it had ended.
    ended = SourcePosition("p", IntervalId(9), ProducerId(7), 3, True, b"")
    routes = {SUB: Ranges([("", IntervalId(4))])}
    assert not [e for e in InjectorCore(IntervalId(9), ended, routes).start(0) if isinstance(e, ev.Send)]
    (sent,) = [e for e in InjectorCore(IntervalId(9), ended, routes).start(0, expected=True) if isinstance(e, ev.Send)]
    assert (sent.bundle.target, sent.bundle.producer, sent.bundle.frontier) == (4, 7, MAX_TIME)


def test_rejected_rows_are_counted_with_the_position_behind_them_and_with_no_earlier_one() -> None:
    start = SourcePosition("p", INTERVAL, PRODUCER, 10, False, b"", 3)
    injector = InjectorCore(INTERVAL, start, {SUB: Ranges([("", IntervalId(1))])})
    injector.start(0)
    (first,) = numbers(injector.handle(msgspec.structs.replace(rows(10, [1], 0, "a"), rejected=1), 0))
    (second,) = numbers(injector.handle(msgspec.structs.replace(rows(12, [2], 0, "a"), rejected=2), 0))
    injector.handle(ev.AckArrived(first), 0)
    (one,) = of(injector.handle(ev.AlarmRang(), LATER), ev.Advance)
    assert one.rejected == 4
    injector.handle(ev.Advanced(one.position, False), LATER)
    injector.handle(ev.AckArrived(second), LATER)
    (other,) = of(injector.handle(ev.AlarmRang(), 2 * LATER), ev.Advance)
    assert other.rejected == 6, "also of rows that were read before the first were acked"


def test_rows_count_for_good_when_their_position_is_durable() -> None:
    """When the partition is taken again, before that, the others are read again and count then."""
    injector = core()
    injector.start(0)
    (first,) = numbers(injector.handle(rows(0, [1, 2], 0), 0))
    injector.handle(rows(2, [3, 4, 5], 0), 0)
    injector.handle(ev.AckArrived(first), 0)
    (advance,) = of(injector.handle(ev.AlarmRang(), LATER), ev.Advance)
    injector.handle(ev.Advanced(advance.position, finished=False), LATER)
    assert (injector.rows.read.given, injector.rows.end().given) == (5, 2)


def test_all_rows_count_at_the_end_of_a_partition() -> None:
    injector = core()
    injector.start(0)
    (first,) = numbers(injector.handle(rows(0, [1, 2], 0), 0))
    injector.handle(nothing(MAX_TIME, True), 0)
    (advance,) = of(injector.handle(ev.AckArrived(first), LATER), ev.Advance)
    injector.handle(ev.Advanced(advance.position, finished=True), LATER)
    assert injector.rows.end().given == 2
