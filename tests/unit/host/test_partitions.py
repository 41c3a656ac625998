"""Partitions of a worker by hand: what is missing, what is opened, and who reads."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import msgspec
import pytest

from millwheel import limits
from millwheel.core.authority import Authority
from millwheel.core.interval import events as ev
from millwheel.core.source.row_counts import RowCounts
from millwheel.errors import SourceError
from millwheel.host import alphabet as he
from millwheel.host import partitions
from millwheel.host.messages import (
    Claimed,
    Concluded,
    Credit,
    Delivery,
    Excused,
    Expected,
    Hello,
    Receipt,
    SourceBound,
    WatermarkReport,
    WatermarksRaised,
)
from millwheel.host.requests import AdvancePositions, OpenPartitions
from millwheel.host.skews import Skews
from millwheel.ids import IntervalId, Sequencer, SubscriptionId, sequence_numbers
from millwheel.limits import ANNOUNCED_REST_US, POLL_DELAY_US
from millwheel.model import MAX_TIME, MIN_TIME, SECOND
from millwheel.ports import PositionWrite, SourcePosition
from millwheel.source import Ahead
from millwheel.testing.world.calls import run
from millwheel.work import Columns
from millwheel_injectors import IterableSource
from tests.unit.host.test_worker import Hand


def begun(*names: str) -> Hand:
    """A worker whose source was begun in an earlier run, with these partitions."""
    hand = Hand()
    run(hand.store.open_pipeline(hand.worker.graph.shape()))
    run(hand.store.open_source("text", dict.fromkeys(names, b"")))
    return hand


def answer(hand: Hand, kind: type[Any], with_: Any) -> Any:
    """Answer the one wish of this kind."""
    (ask,) = [ask for ask in hand.waiting if isinstance(ask.wish, kind)]
    hand.waiting.remove(ask)
    hand.give(he.Answered(ask.token, with_))
    return ask.wish


def found(*names: str, complete: bool = True, pending: int = MAX_TIME) -> he.Discovery:
    return he.Discovery(tuple((name, b"") for name in names), complete, pending, 0)


def read_to_its_end(hand: Hand, name: str) -> None:
    """Another process has taken a partition over, and is done with it."""
    (position,) = [p for p in run(hand.store.source_partitions("text")) if p.partition == name]
    sequencer = run(hand.store.acquire([position.interval]))[position.interval]
    write = PositionWrite(position.interval, sequencer, 7, True, b"", [b"sign"])
    assert run(hand.store.advance([write])) == {position.interval}


def opened(hand: Hand) -> dict[str, SourcePosition]:
    """Partitions that were resumed, by name; each of them promises nothing."""
    positions = {}
    while resumes := [ask for ask in hand.waiting if isinstance(ask.wish, he.Resume)]:
        for ask in resumes:
            assert isinstance(ask.wish, he.Resume)
            positions[ask.wish.partition] = ask.wish.position
            hand.waiting.remove(ask)
            hand.give(he.Answered(ask.token, MIN_TIME))
    return positions


def reads(effects: list[he.HostEffect]) -> list[he.ReadRows]:
    return [effect for effect in effects if isinstance(effect, he.ReadRows)]


def test_a_partition_that_was_begun_and_is_gone_for_good_is_an_error() -> None:
    hand = begun("a", "b")
    hand.give(he.Started())
    with pytest.raises(
        SourceError, match=r"source text: .* was read to row 0, not to its end, and is gone; restore it"
    ):
        answer(hand, he.Discover, found("b"))


def test_a_partition_that_another_process_has_finished_meanwhile_is_not_missing() -> None:
    """A process that was superseded while it started saw a partition that was begun, and looked for it after its end."""
    hand = begun("a", "b")
    hand.give(he.Started())
    read_to_its_end(hand, "a")
    wish = answer(hand, he.Discover, found("b"))
    assert [position.partition for position in wish.earlier] == ["a", "b"]
    assert [*opened(hand)] == ["b"]


@pytest.mark.parametrize("count", range(9))
def test_all_partitions_that_are_found_are_opened_once_each_however_many_are_opened_together(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OPEN_PARTITIONS", 3)
    names = [f"p{number}" for number in range(count)]
    hand = begun(*names[:2])
    hand.give(he.Started())
    answer(hand, he.Discover, found(*names))
    together, resumed = list[int](), list[str]()
    while now := [ask.wish for ask in hand.waiting if isinstance(ask.wish, he.Resume)]:
        together.append(len(now))
        resumed += opened(hand)
    assert sorted(resumed) == names
    assert max(together, default=0) <= 3
    stored = {p.partition: p.interval for p in run(hand.store.source_partitions("text"))}
    assert stored.keys() == {*names}
    claimed = {i for claim in hand.of(Claimed) for owner, i, _ in claim.intervals if owner == "source:text"}
    assert claimed == {*stored.values()}


def test_while_more_partitions_may_come_the_missing_one_is_waited_for() -> None:
    hand = begun("a", "b")
    hand.give(he.Started())
    answer(hand, he.Discover, found("b", complete=False, pending=50))
    assert [*opened(hand)] == ["b"]
    assert hand.of(SourceBound) == [SourceBound("source:text", 50)]
    claimed = [
        interval for claim in hand.of(Claimed) for owner, interval, _ in claim.intervals if owner == "source:text"
    ]
    assert {*claimed} == {p.interval for p in run(hand.store.source_partitions("text"))}, "the watermark waits for both"


def test_a_partition_that_is_finished_is_told_of_and_not_read() -> None:
    """Its last owner ended it after this process had begun to look."""
    hand = begun("a")
    hand.give(he.Started())
    read_to_its_end(hand, "a")
    answer(hand, he.Discover, found("a"))
    assert opened(hand) == {}


def test_a_partition_that_was_finished_by_a_version_without_signs_gets_those_that_it_has_now() -> None:
    """Else its file would be read again under another name."""
    hand = begun("a", "b")
    place = ("text", "a")
    hand.store.sources[place] = msgspec.structs.replace(hand.store.sources[place], finished=True)
    source: Any = hand.worker.graph.sources["text"].source
    source.signs = lambda position: [b"of " + position.partition.encode()]
    hand.give(he.Started())
    assert run(hand.store.unknown_signs("text", [b"of a", b"of b"])) == {b"of b"}, "that one has not ended"


def test_the_authority_hears_of_a_partition_that_was_finished_before_anybody_was_told_to_expect_it() -> None:
    hand = begun("a", "b")
    interval = {p.partition: p.interval for p in run(hand.store.source_partitions("text"))}["a"]
    read_to_its_end(hand, "a")
    hand.give(he.Started())
    answer(hand, he.Discover, found("a", "b"))
    assert [*opened(hand)] == ["b"]
    assert hand.of(Concluded) == [Concluded("source:text", interval)], "somebody may have claimed it, and waits for it"


def test_a_partition_that_was_finished_is_forgotten_when_its_receivers_have_heard_of_it() -> None:
    hand = begun("a")
    hand.posts = True
    hand.give(he.Started())
    interval = {p.partition: p.interval for p in run(hand.store.source_partitions("text"))}["a"]
    read_to_its_end(hand, "a")
    answer(hand, he.Discover, found("a"))
    for hello in hand.of(Hello):
        hand.give(he.Received("worker", hello))
    hand.give(he.TurnEnded())
    (told,) = [delivery for delivery in hand.of(Delivery) if delivery.bundle.sender == interval]
    assert interval in hand.worker.actors.all, "its receivers have not heard of it"
    hand.give(he.Received("worker", Receipt(told.bundle.target, interval, told.bundle.number)))
    hand.give(he.TurnEnded())
    assert interval not in hand.worker.actors.all
    assert hand.of(Concluded) == [Concluded("source:text", interval)]


def serving() -> tuple[Hand, SourcePosition, list[he.HostEffect]]:
    """A worker with one partition that is open, and what it did last."""
    hand = begun("a")
    hand.give(he.Started())
    answer(hand, he.Discover, found("a"))
    (position,) = opened(hand).values()
    greeted = [effect for hello in hand.of(Hello) for effect in hand.give(he.Received("worker", hello))]
    assert reads(greeted) == []
    effects = [effect for credit in hand.of(Credit) for effect in hand.give(he.Received("worker", credit))]
    return hand, position, effects


def rows(position: SourcePosition, *times: int, finished: bool = False) -> ev.RowsRead:
    count = len(times)
    columns = Columns([f"k{n}" for n in range(count)], [b"v"] * count, [*times])
    keyed = {SubscriptionId(1): (sequence_numbers(range(count)), columns)} if count else {}
    return ev.RowsRead(keyed, count, count, b"s", max(times, default=MIN_TIME), finished, count > 0)


def read_by(hand: Hand, read: he.ReadRows, rows: ev.RowsRead) -> list[he.ReadRows]:
    """What is read next when this has come."""
    return reads(hand.give(he.RowsArrived(read.interval, read.sequencer, rows, hand.now)))


def test_one_that_says_when_it_has_rows_is_read_then_but_not_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes within the rest after a read goes together."""
    monkeypatch.setattr(IterableSource, "announces", True)
    hand, position, effects = serving()
    (read,) = reads(effects)
    assert read_by(hand, read, rows(position, 5)) == []
    hand.now += ANNOUNCED_REST_US - 100
    assert reads(hand.give(he.Announced(read.interval))) == []
    (pause,) = [ask for ask in hand.waiting if isinstance(ask.wish, he.Pause) and ask.wish.delay_us < ANNOUNCED_REST_US]
    assert pause.wish == he.Pause(100)
    hand.waiting.remove(pause)
    hand.now += 100
    (read,) = reads(hand.give(he.Answered(pause.token, None)))
    assert read_by(hand, read, rows(position)) == []
    assert reads(hand.give(he.Announced(read.interval))), "nothing was there, so there is nothing to rest from"


@pytest.mark.parametrize(
    ("announces", "reading", "times"),
    [(a, r, t) for a in (False, True) for r in (False, True) for t in ((), (5,)) if a or r or not t],
)
def test_a_source_that_goes_to_another_worker_is_read_no_further(
    announces: bool, reading: bool, times: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither after the read that is under way, nor after the rest or the pause that it waits for."""
    monkeypatch.setattr(IterableSource, "announces", announces, raising=False)

    def goes_on(source: str) -> bool:
        hand, position, effects = serving()
        (read,) = reads(effects)
        if reading:
            hand.worker.partitions.pause(source)
        found = read_by(hand, read, rows(position, *times))
        if not reading:
            assert found == []
            hand.worker.partitions.pause(source)
        for _ in range(3):
            hand.now += POLL_DELAY_US
            for rest in [ask for ask in hand.waiting if isinstance(ask.wish, he.Pause)]:
                hand.waiting.remove(rest)
                found += reads(hand.give(he.Answered(rest.token, None)))
            found += reads(hand.give(he.Tick()))
            found += reads(hand.give(he.Announced(position.interval)))
        return bool(found)

    assert not goes_on("text")
    assert goes_on("another")


def test_one_that_says_when_it_has_rows_goes_on_while_there_are_as_many_as_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(IterableSource, "announces", True)
    hand, position, effects = serving()
    (read,) = reads(effects)
    (read,) = read_by(hand, read, msgspec.structs.replace(rows(position, 5), full=True))


def test_a_rest_is_no_longer_when_the_clock_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IterableSource, "announces", True)
    hand, position, effects = serving()
    (read,) = reads(effects)
    read_by(hand, read, rows(position, 5))
    hand.now -= 3_600 * SECOND
    hand.give(he.Announced(read.interval))
    assert he.Pause(ANNOUNCED_REST_US) in [ask.wish for ask in hand.waiting]


def test_whoever_announces_rows_and_is_not_open_or_over_is_nobody() -> None:
    hand, _, _ = serving()
    assert hand.give(he.Announced(IntervalId(99))) == []


def test_those_to_come_are_bounded_by_the_clock_before_the_search_began_while_all_that_are_there_are_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What came while somebody searched may not have been seen: its rows are written later than the search began."""
    hand = begun("a")
    source = hand.worker.graph.sources["text"].source
    for name, value in (("idle_after_us", 1), ("disorder_us", 0)):
        monkeypatch.setattr(source, name, value, raising=False)
    hand.give(he.Started())
    answer(hand, he.Discover, found("a", complete=False, pending=5))
    (position,) = opened(hand).values()
    for hello in hand.of(Hello):
        hand.give(he.Received("worker", hello))
    for credit in hand.of(Credit):
        given = hand.give(he.Received("worker", credit))
    for _ in range(2):  # the first look begins the silence
        (read,) = reads(given)
        hand.give(he.RowsArrived(read.interval, read.sequencer, rows(position), hand.now))
        hand.now += POLL_DELAY_US
        given = hand.give(he.Tick())
    for pause in [ask for ask in hand.waiting if isinstance(ask.wish, he.Pause)]:
        hand.waiting.remove(pause)
        hand.give(he.Answered(pause.token, None))
    hand.told.clear()
    began = hand.now
    hand.now += 70_000
    answer(hand, he.Discover, he.Discovery((), False, 5, began))
    assert hand.of(SourceBound) == [SourceBound("source:text", began)]


def test_nothing_is_read_before_a_receiver_gives_credit() -> None:
    _, position, effects = serving()
    (read,) = reads(effects)
    assert (read.interval, read.upto) == (position.interval, None)


@pytest.mark.parametrize("words", [*permutations(("hello", "credit", "old hello", "old credit"))])
def test_only_credit_of_the_newest_hello_counts_and_none_before_it(words: tuple[str, ...]) -> None:
    hand = begun("a")
    hand.give(he.Started())
    answer(hand, he.Discover, found("a"))
    opened(hand)
    (hello,) = hand.of(Hello)
    (credit,) = hand.of(Credit) or [Credit(hello.interval, hello.sequencer, hello.round, 1_000)]
    said: dict[str, Any] = {
        "hello": hello, "credit": credit,
        "old hello": msgspec.structs.replace(hello, round=hello.round - 1),
        "old credit": msgspec.structs.replace(credit, round=hello.round - 1),
    }  # fmt: skip
    counts = ""
    for word in words:
        read = reads(hand.give(he.Received("worker", said[word])))
        hand.waiting.clear()
        if word == "hello" or (word == "old hello" and not counts):  # of a hello that was overtaken nothing is kept
            counts = word.replace("hello", "credit")
        if read:
            assert word == counts
            return
        assert word != counts, "credit that counts lets the partition be read"


def test_what_is_sent_again_after_a_hello_counts_against_the_credit_that_begins_with_it() -> None:
    """The receiver counts it, too: a sender that did not would send more than was promised."""
    hand, position, effects = serving()
    (read,) = reads(effects)
    (read,) = reads(hand.give(he.RowsArrived(read.interval, read.sequencer, rows(position, 5, 6), 0)))
    (sent,) = hand.of(Delivery)
    ((actor, _),) = hand.worker.actors.intervals()
    hand.give(he.Received("worker", Hello(actor.interval, actor.sequencer, 1)))
    assert [delivery.bundle for delivery in hand.of(Delivery)] == [sent.bundle]
    size = sent.bundle.size()
    credit = Credit(actor.interval, actor.sequencer, 1, size)
    hand.give(he.Received("worker", credit))
    hand.give(he.RowsArrived(read.interval, read.sequencer, rows(position), 0))
    hand.now += POLL_DELAY_US
    assert not reads(hand.give(he.Tick())), "all that was promised is sent"
    assert reads(hand.give(he.Received("worker", msgspec.structs.replace(credit, upto_bytes=size + 1))))


def test_a_partition_is_forgotten_when_its_end_is_durable_and_everybody_has_acked_it() -> None:
    hand, position, effects = serving()
    hand.posts = True
    source: Any = hand.worker.graph.sources["text"].source
    source.signs = lambda end: [b"%r of %r" % (end.finished, end.partition.encode())]
    (read,) = reads(effects)
    hand.give(he.RowsArrived(read.interval, read.sequencer, rows(position, finished=True), 0))
    hand.give(he.TurnEnded())
    (stored,) = run(hand.store.find_partitions("text", [], ["a"]))
    assert stored.finished
    assert run(hand.store.unknown_signs("text", [b"True of b'a'", b"False of b'a'"])) == {b"False of b'a'"}
    (told,) = hand.of(Delivery)
    for _ in range(2):
        hand.give(he.TurnEnded())
    assert position.interval in hand.worker.actors.all, "its receivers have not heard of it"
    assert hand.of(Concluded) == []
    hand.give(he.Received("worker", Receipt(told.bundle.target, position.interval, told.bundle.number)))
    hand.give(he.TurnEnded())
    assert position.interval not in hand.worker.actors.all
    assert hand.of(Concluded) == [Concluded("source:text", position.interval)]


HEARD: Any = (Claimed, Excused, WatermarkReport, SourceBound)


def watermarks(hand: Hand, authority: Authority) -> dict[str, int]:
    """What the authority makes of all that the worker has said since the last call."""
    for message in hand.of(HEARD):
        match message:
            case Claimed(intervals):
                for owner, interval, sequencer in intervals:
                    authority.expect(owner, interval, sequencer)
            case Excused(owner, interval):
                authority.excuse(owner, interval)
            case WatermarkReport(owner, interval, value):
                authority.report(owner, interval, value)
            case SourceBound(source, value):
                authority.bound(source, value)
    return {name: value for name, value in authority.changes().items() if name.startswith("source:")}


def test_the_watermark_of_an_ordered_source_follows_the_partition_whose_turn_it_is() -> None:
    hand, authority = begun("a", "b"), Authority({"Keep": ["source:text"]}, {})
    hand.worker.graph.sources["text"].source.ordered = True
    hand.give(he.Started())
    answer(hand, he.Discover, found("a", "b"))
    first, second = opened(hand).values()
    assert watermarks(hand, authority) == {}
    quiet = ev.RowsRead({}, 0, 0, b"", 50, False, False)
    for message in [*hand.of(Hello), *hand.of(Credit)]:
        for read in reads(hand.give(he.Received("worker", message))):
            assert read.interval == first.interval, "the other one waits for its turn"
            hand.give(he.RowsArrived(read.interval, read.sequencer, quiet, 0))
    assert watermarks(hand, authority) == {"source:text": 50}
    (kept,) = hand.worker.partitions.held_by("text")
    assert kept.interval == first.interval, "and not that whose turn has not come"
    assert hand.worker.partitions._why("text").startswith("a may still give a row")
    actor = hand.worker.actors.all[first.interval]
    hand.worker.partitions.read(actor, 10)
    given = hand.give(he.RowsArrived(first.interval, actor.sequencer, rows(first, finished=True), 0))
    assert not getattr(hand.worker.actors.all[second.interval].core, "paused", True)
    claimed = [interval for claim in hand.of(Claimed) for _, interval, _ in claim.intervals]
    assert claimed == [second.interval], "from now on the watermark waits for it"
    told = [post.event for post in given if isinstance(post, he.Post)]
    following = [read.interval for event in told for read in reads(hand.give(event))]
    assert following == [second.interval], "at once, and not at the next look"


def test_rows_of_another_owner_are_not_taken() -> None:
    hand, position, effects = serving()
    (read,) = reads(effects)
    late = he.RowsArrived(read.interval, Sequencer(read.sequencer + 1), rows(position, 5), 0)
    assert hand.give(late) == []
    assert hand.worker.actors.rows() == RowCounts()


def test_what_keeps_a_source_is_a_row_that_nobody_has_acked_or_a_partition_that_may_give_an_old_one() -> None:
    hand, position, effects = serving()
    parts, place = hand.worker.partitions, position.interval
    (kept,) = parts.held_by("text")
    assert (kept.name, kept.interval, kept.kind, kept.timestamp) == ("source:text", place, "partition", MIN_TIME)
    assert "a may still give a row as old as that" in kept.detail
    (read,) = reads(effects)
    hand.give(he.RowsArrived(read.interval, read.sequencer, rows(position, 9, 5), 0))
    hand.worker.values["source:text"] = 5
    (kept,) = parts.held_by("text")
    assert (kept.interval, kept.kind, kept.timestamp) == (place, "unacked row", 5)
    assert kept.detail.startswith("of a: key 'k1' to interval ")
    hand.worker.values["source:text"] = MAX_TIME
    assert parts.held_by("text") == []


def test_a_partition_that_is_gone_keeps_its_source() -> None:
    hand = begun("a", "b")
    hand.give(he.Started())
    answer(hand, he.Discover, found("b", complete=False, pending=50))
    (kept,) = hand.worker.partitions.held_by("text")
    assert (kept.kind, kept.detail) == ("partition", "a is gone")


@pytest.mark.parametrize("there", [(), ("a",), ("b",), ("a", "c"), ("a", "b", "c")], ids="".join)
def test_just_what_a_search_has_not_found_is_said_to_be_gone_while_more_may_come(there: tuple[str, ...]) -> None:
    hand = begun("a", "b", "c")
    hand.give(he.Started())
    answer(hand, he.Discover, found(*there, complete=False, pending=50))
    gone = [name for name in ("a", "b", "c") if name not in there]
    assert {*opened(hand)} == {*there}
    assert [text.split(": ")[1].split(" was ")[0] for text in hand.noted] == gone
    kept = hand.worker.partitions.held_by("text")
    assert [one.detail for one in kept if one.detail.endswith("is gone")] == [f"{name} is gone" for name in gone[:1]]


def test_a_partition_that_the_watermark_has_passed_does_not_keep_its_source() -> None:
    """Only a share of the partitions counts."""
    hand = begun("a", "b")
    hand.give(he.Started())
    answer(hand, he.Discover, found("a", "b"))
    behind, kept = opened(hand).values()
    quiet = ev.RowsRead({}, 0, 0, b"", 50, False, False)
    actor = hand.worker.actors.all[kept.interval]
    hand.worker.perform(actor, actor.core.handle(quiet, 0))
    hand.worker.values["source:text"] = MIN_TIME
    assert [one.interval for one in hand.worker.partitions.held_by("text")] == [behind.interval]
    hand.worker.values["source:text"] = 50
    assert [one.interval for one in hand.worker.partitions.held_by("text")] == [kept.interval]


def test_a_partition_that_is_too_far_ahead_is_looked_at_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watermark that it waits for may stand: then time alone lets it go on (`Skews`)."""

    def looked_at() -> list[he.ReadRows]:
        (patience,) = [ask for ask in hand.waiting if ask.wish == he.Pause(limits.SKEW_PATIENCE_US)]
        hand.waiting.remove(patience)
        return reads(hand.give(he.Answered(patience.token, None)))

    with monkeypatch.context() as ahead:
        ahead.setattr(Skews, "room", lambda *given: 0)
        hand, _, effects = serving()
        assert reads(effects) == []
        assert [looked_at(), looked_at()] == [[], []]
    assert len(looked_at()) == 1


def test_a_partition_that_is_just_at_the_watermark_is_said_to_hold_it() -> None:
    hand, position, _ = serving()
    ((_, core),) = hand.worker.actors.partitions()
    hand.worker.values["source:text"] = core.reported
    assert hand.worker.partitions._why("text").startswith(f"{position.partition} may still give a row")


def waiting_partition() -> tuple[Hand, list[he.HostEffect]]:
    """A worker that is pressed, with a partition that could be read otherwise."""
    hand = begun("a")
    hand.give(he.Started())
    answer(hand, he.Discover, found("a"))
    opened(hand)
    hand.worker.epochs.pressed = True
    for kind in (Hello, Credit):
        for message in hand.of(kind):
            assert not reads(hand.give(he.Received("worker", message)))
    return hand, hand.worker._out


def test_what_had_to_wait_for_the_end_of_an_epoch_is_read_after_it() -> None:
    hand, _ = waiting_partition()
    hand.worker.epochs.pressed = False
    hand.worker.partitions.go_on()
    assert len(reads(hand.worker._out)) == 1


@pytest.mark.parametrize("bound", [False, True])
def test_what_was_too_far_ahead_is_read_as_soon_as_a_watermark_rises(
    bound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a bound nothing waits for that, and nothing is looked at."""
    monkeypatch.setattr(Skews, "any", lambda self: bound)
    hand, _ = waiting_partition()
    hand.worker.epochs.pressed = False
    raised = WatermarksRaised({"Keep": 5}, {})
    assert len(reads(hand.give(he.Received("controller", raised)))) == bound


def test_positions_are_written_one_batch_after_the_other() -> None:
    """Two at once could come in either order, and the older one would stay."""
    hand, _, _ = serving()
    hand._later = AdvancePositions
    ((actor, _),) = hand.worker.actors.partitions()
    for position in (5, 6, 7):
        hand.worker.partitions.advance(actor, ev.Advance(position, b"", False))
        hand.give(he.TurnEnded())
    for positions in ([5], [6, 7]):
        batch = answer(hand, AdvancePositions, {actor.interval})
        assert [write.position for write in batch.writes] == positions


def test_receivers_expect_a_partition_that_was_begun_earlier_and_that_they_have_not_heard_of() -> None:
    """Else they would take its rows for copies."""
    hand = begun("a")
    hand.give(he.Started())
    hand.worker.routes.live.clear()
    answer(hand, he.Discover, found("a", "b"))
    stored = run(hand.store.source_partitions("text"))
    (number,) = hand.worker.routes.subscriptions.values()
    channels = {(number, position.producer) for position in stored}
    assert len(channels) == 2
    assert hand.worker.routes.live == channels
    assert [told.channels for told in hand.of(Expected)] == [(channel,) for channel in sorted(channels)]


def test_a_replay_begins_when_its_first_search_is_over_if_its_rows_are_known_by_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing else would try again what has waited for the clock."""
    monkeypatch.setattr(limits, "OPEN_PARTITIONS", 1)
    monkeypatch.setattr(IterableSource, "pace", 10)
    hand = begun("a", "b")
    hand.give(he.Started())
    read_to_its_end(hand, "b")
    hand._later = OpenPartitions
    answer(hand, he.Discover, found("a", "b"))

    def open_next() -> None:
        (ask,) = [ask for ask in hand.waiting if isinstance(ask.wish, OpenPartitions)]
        assert isinstance(ask.wish, OpenPartitions)
        answer(hand, OpenPartitions, run(ask.wish.call(hand.store)))

    open_next()
    (position,) = opened(hand).values()
    for hello in hand.of(Hello):
        hand.give(he.Received("worker", hello))
    (read,) = [read for credit in hand.of(Credit) for read in reads(hand.give(he.Received("worker", credit)))]
    first_row = msgspec.structs.replace(rows(position), ahead=Ahead(50, 50, False))
    assert read_by(hand, read, first_row) == []
    hand.now += POLL_DELAY_US
    assert reads(hand.give(he.Tick())) == []
    asked, perform = list[he.ReadRows](), hand.worker.read

    def note(effect: he.ReadRows) -> None:
        asked.append(effect)
        perform(effect)

    monkeypatch.setattr(hand.worker, "read", note)
    open_next()
    assert [(read.interval, read.upto) for read in asked] == [(position.interval, 50)]


@pytest.mark.parametrize("skewed", [False, True])
def test_how_far_rows_go_is_measured_at_each_read(skewed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a source with a bound: else one read could go far beyond it."""
    measured: list[tuple[int, int]] = []
    monkeypatch.setattr(Skews, "arrived", lambda self, actor, before, count: measured.append((before, count)))
    monkeypatch.setattr(Skews, "promise", lambda self, actor: 7 if skewed else MIN_TIME)
    hand, position, effects = serving()
    (read,) = reads(effects)
    read_by(hand, read, msgspec.structs.replace(rows(position, 5, 6), rejected=1))
    assert measured == [(7 if skewed else MIN_TIME, 3)]


@pytest.mark.parametrize("paused", [False, True])
def test_a_source_that_is_paused_as_a_whole_is_not_said_to_wait_for_a_partition_of_its_own(
    paused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand, position, _ = serving()
    monkeypatch.setattr(Skews, "waits", lambda self, actor, now: paused)
    monkeypatch.setattr(partitions, "too_far_ahead", lambda graph, values: {"text": "it is paused"})
    why = hand.worker.partitions._why("text")
    assert why == "it is paused" if paused else why.startswith(f"{position.partition} may still give a row")


def test_what_keeps_a_source_may_be_a_partition_that_is_not_there_yet() -> None:
    """Those that are there have promised more than the search has."""
    hand = begun("a")
    hand.give(he.Started())
    answer(hand, he.Discover, found("a", complete=False, pending=5))
    opened(hand)
    ((actor, core),) = hand.worker.actors.partitions()
    hand.worker.values["source:text"] = 5
    for promised, keeps in ((5, actor.interval), (50, 0)):
        hand.worker.perform(actor, core.handle(ev.RowsRead({}, 0, 0, b"", promised, False, False), 0))
        (kept,) = hand.worker.partitions.held_by("text")
        assert (kept.interval, kept.kind) == (keeps, "partition" if keeps else "source")
        assert hand.worker.partitions._why("text").startswith("a may" if keeps else "a partition that is not there yet")


def test_a_source_that_stands_because_a_partition_is_gone_says_which_one() -> None:
    hand = begun("a", "b")
    hand.give(he.Started())
    answer(hand, he.Discover, found("b", complete=False, pending=50))
    assert hand.worker.partitions._why("text") == "a is gone"


@pytest.mark.parametrize("took_us", [0, 60_000_000])
def test_sources_are_searched_again_after_a_while_and_after_a_longer_one_if_it_takes_long(took_us: int) -> None:
    """Without a rest, one search would follow the other."""
    hand = begun("a")
    hand.give(he.Started())
    answer(hand, he.Discover, found("a", complete=False, pending=5))
    opened(hand)
    for rest in (limits.DISCOVER_DELAY_US, max(limits.DISCOVER_DELAY_US, limits.DISCOVER_REST * took_us)):
        assert not [ask for ask in hand.waiting if isinstance(ask.wish, he.Discover)]
        over = [ask for ask in hand.waiting if ask.wish == he.Pause(rest)]
        hand.now += rest
        for pause in over:
            hand.waiting.remove(pause)
            hand.give(he.Answered(pause.token, None))
        hand.now += took_us
        answer(hand, he.Discover, found(complete=False, pending=5))
