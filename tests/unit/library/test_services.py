"""Services outside: each value has one reply, at its own time, whatever fails and however long it takes."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from threading import Event as Signal
from threading import enumerate as threads_now
from threading import get_ident
from typing import Any

import msgspec
import pytest

from millwheel import SECOND, MsgpackCoder, Pipeline, Stream, Table, limits
from millwheel.core.source import injector
from millwheel.errors import WiringError
from millwheel.library import Flow, Reply, Service, seconds, services
from millwheel.library.services import Askers, Backlog
from millwheel.runtime.embedded import EmbeddedRun
from millwheel.testing import Results, Stepper, simulate
from millwheel_injectors import IterableSource
from millwheel_storage.memory import MemoryStore
from tests.effort import examples


class Payment(msgspec.Struct, frozen=True):
    id: str
    cents: int


class Score(msgspec.Struct, frozen=True):
    points: int


payments = Stream("payments", MsgpackCoder(Payment))
scored = Stream("scored", MsgpackCoder(Reply[Payment, Score]))

Client = Callable[[Payment], Score]


def build(
    client: Callable[[], Client], key: Callable[[Payment], str] = lambda payment: payment.id, **given: Any
) -> Pipeline:
    pipeline = Pipeline("payments")
    Flow(pipeline).read(payments).key_by(key).call(Service(client, Score, **given)).to(scored)
    return pipeline


def doubled(payment: Payment) -> Score:
    return Score(2 * payment.cents)


class Flaky:
    """Fails the first `fails` times that it is asked about a payment."""

    def __init__(self, fails: int) -> None:
        self.fails = fails
        self.asked: Counter[str] = Counter()
        self.order: list[str] = []

    def __call__(self, payment: Payment) -> Score:
        self.asked[payment.id] += 1
        self.order.append(payment.id)
        if self.asked[payment.id] <= self.fails:
            raise ConnectionError("busy")
        return doubled(payment)


def test_a_reply_has_the_time_of_its_value_and_the_watermark_waits_for_it() -> None:
    stepper = Stepper(build(lambda: Flaky(2), at_once=0, pause=seconds(10)))
    stepper.send(payments, Payment("a", 1), 5 * SECOND)
    stepper.advance_watermark(60 * SECOND)
    assert (stepper.outputs(scored), stepper.watermark("scored.call")) == ([], 5 * SECOND)
    stepper.advance_clock(10 * SECOND)
    assert stepper.outputs(scored) == []
    stepper.advance_clock(20 * SECOND)
    assert [(o.value, o.timestamp) for o in stepper.outputs(scored)] == [
        (Reply(Payment("a", 1), Score(2), "", 3), 5 * SECOND)
    ]
    assert (stepper.watermark("scored.call"), stepper.states("scored.call")) == (60 * SECOND, {})


def test_pauses_double_and_when_all_attempts_have_failed_the_reply_says_why() -> None:
    client = Flaky(100)
    stepper = Stepper(build(lambda: client, at_once=0, attempts=4, pause=seconds(10)))
    stepper.send(payments, Payment("a", 1), 5)
    tries: list[int] = []
    for second in range(75):
        tries += [second] * (client.asked["a"] - len(tries))
        stepper.advance_clock(SECOND)
    assert len(tries) == 4
    pauses = [after - before for before, after in itertools.pairwise(tries)]
    assert all(most * 0.75 <= pause <= most + 1 for most, pause in zip((10, 20, 40), pauses, strict=True)), pauses
    (only,) = stepper.outputs(scored)
    assert only.value == Reply(Payment("a", 1), None, "ConnectionError: busy", 4)
    assert stepper.states("scored.call") == {}


def test_values_of_a_key_are_asked_about_one_after_the_other_in_event_time() -> None:
    client = Flaky(1)
    stepper = Stepper(build(lambda: client, lambda payment: "all", at_once=0, pause=seconds(1)))
    for name, at in (("c", 30), ("b", 20), ("d", 40)):
        stepper.send(payments, Payment(name, at), at)
    assert stepper.watermark("scored.call") <= 20
    for _ in range(8):
        stepper.advance_clock(SECOND)
    assert [o.value.value.id for o in stepper.outputs(scored)] == ["b", "c", "d"]
    assert client.order[-1] == "d"


def test_a_restart_asks_again_and_gives_one_reply() -> None:
    client = Flaky(1)
    stepper = Stepper(build(lambda: client, at_once=0, pause=seconds(10)))
    stepper.send(payments, Payment("a", 1), 5)
    stepper.restart()
    stepper.advance_clock(10 * SECOND)
    assert [(o.value.answer, o.value.attempts) for o in stepper.outputs(scored)] == [(Score(2), 2)]


def test_a_hook_that_cannot_use_the_answer_is_quarantined_and_does_not_ask_for_ever() -> None:
    asked = []

    def wrong(payment: Payment) -> Any:
        asked.append(payment.id)
        return {"points": "many"}

    stepper = Stepper(build(lambda: wrong, at_once=0), quarantine=True)
    stepper.send(payments, Payment("a", 1), 5)
    for _ in range(20):
        stepper.advance_clock(SECOND)
    (waits,) = stepper.quarantined()
    assert (waits.key, stepper.outputs(scored), asked) == ("a", [], ["a"])


def test_each_value_has_one_reply_under_faults() -> None:
    rows = [(Payment(f"p{number}", number), number * SECOND) for number in range(30)]
    for seed in range(examples(3)):
        flaky = partial(Flaky, seed % 3)  # it fails anew in each process
        pipeline = build(flaky, lambda payment: payment.id[-1], at_once=0, attempts=50, pause=seconds(0.1))
        outcome = simulate(pipeline, {"payments": rows}, seed=seed)
        found = sorted((o.timestamp, o.value.value, o.value.answer) for o in outcome.outputs(scored))
        assert found == [(at, payment, doubled(payment)) for payment, at in rows]


def test_little_room_changes_no_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three intervals on one count of what waits: none of them waits for room that only another one could make.

    In the last two seeds records wait for room while more timers run than may otherwise go before records.
    """
    monkeypatch.setattr(services, "SERVICE_WAITING", 2)
    rows = [(Payment(f"p{number}", number), number * SECOND) for number in range(40)]
    for seed in [*range(examples(3)), 26, 29]:
        pipeline = Pipeline("payments")
        keyed = Flow(pipeline).read(payments).key_by(lambda payment: payment.id[-1], split_keys=["3", "6"])
        keyed.call(Service(partial(Flaky, seed % 3), Score, at_once=0, pause=seconds(0.1))).to(scored)
        outcome = simulate(pipeline, {"payments": rows}, seed=seed)
        found = sorted((o.timestamp, o.value.value, o.value.answer) for o in outcome.outputs(scored))
        assert found == [(at, payment, doubled(payment)) for payment, at in rows]


def test_what_waits_is_bounded_and_sources_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "SERVICE_WAITING", 40)
    monkeypatch.setattr(injector, "FIRST_READ_ROWS", 4)
    monkeypatch.setattr(injector, "READ_LIMIT_BYTES", 1_000)
    monkeypatch.setattr(limits, "INBOX_LIMIT_BYTES", 4_000)
    monkeypatch.setattr(limits, "UNACKED_LIMIT_BYTES", 4_000)
    sizes: list[int] = []
    note = Backlog.note

    def noted(self: Backlog, *given: Any) -> None:
        note(self, *given)
        sizes.append(self.size)

    monkeypatch.setattr(Backlog, "note", noted)

    def slow(payment: Payment) -> Score:
        time.sleep(0.001)
        return doubled(payment)

    pipeline = build(lambda: slow, lambda payment: payment.id[-2:], at_once=4)
    rows = [(Payment(f"p{number}", number), number) for number in range(1_000)]
    pipeline.inject(IterableSource("till", lambda: iter(rows)), into=payments)
    progress = asyncio.run(EmbeddedRun(pipeline.graph(), MemoryStore(), pipeline.tables).run())
    assert (progress.finished, progress.in_quarantine) == (True, 0)
    assert 40 <= max(sizes) < 200
    assert sizes[-1] == 0


def test_a_key_that_is_not_seen_any_more_takes_no_room() -> None:
    """It has gone to another process: nobody says so."""
    backlog = Backlog()
    backlog.note("stays", 2, 0)
    backlog.note("goes", 5, 1)
    backlog.note("stays", 3, limits.SERVICE_FORGET_US)
    assert backlog.size == 8
    backlog.note("stays", 1, limits.SERVICE_FORGET_US + 1)
    assert backlog.size == 1
    backlog.note("stays", 0, limits.SERVICE_FORGET_US + 2)
    assert (backlog.size, backlog._keys) == (0, {})


def test_threads_ask_while_other_records_go_on() -> None:
    threads: set[int] = set()

    def slow(payment: Payment) -> Score:
        threads.add(get_ident())
        time.sleep(0.1)
        return doubled(payment)

    rows = [(Payment(f"p{number}", number), number) for number in range(64)]
    pipeline = build(lambda: slow, at_once=32)
    pipeline.inject(IterableSource("till", rows), into=payments)
    table = Table("points", {"id": "text", "points": "bigint"}, ("id",))
    replies = Flow(pipeline).read(scored).key_by(lambda reply: reply.value.id)
    replies.latest_to(table, lambda r: {"id": r.value.id, "points": r.answer and r.answer.points})
    store = MemoryStore()
    began = time.monotonic()
    asyncio.run(EmbeddedRun(pipeline.graph(), store, pipeline.tables).run())
    assert time.monotonic() - began < 64 * 0.1 / 2  # one after the other takes 6.4 s
    assert len(threads) == 32
    assert get_ident() not in threads
    found = {row["id"]: row["points"] for row in Results(pipeline.graph(), store).rows(table)}
    assert found == {f"p{number}": 2 * number for number in range(64)}


def test_answers_that_nobody_fetches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.library.services.SERVICE_KEPT_ANSWERS", 4)
    askers = Askers(Service(lambda: doubled, Score, at_once=1))
    try:
        for number in range(9):
            askers.ask("k", str(number), Payment("a", number))
            while askers._tasks.qsize():
                time.sleep(0.001)
        assert len(askers._heard) <= 6
    finally:
        askers.close()


def test_an_answer_waits_for_its_hook_while_others_are_asked_for() -> None:
    """As long as there are few: a question whose answer is thrown away would be asked again, and again."""
    asked = Counter[str]()

    def client(payment: Payment) -> Score:
        asked[payment.id] += 1
        return doubled(payment)

    askers = Askers(Service(lambda: client, Score, at_once=1))
    for name in ("a", "b", "c", "a", "b"):
        askers.ask("k", name, Payment(name, 1))
        wait_for(lambda: None not in askers._heard.values())
    askers.close()
    assert asked == {"a": 1, "b": 1, "c": 1}
    assert {name: askers.outcome("k", name) for name in "abc"} == dict.fromkeys("abc", (Score(2), ""))


def test_the_end_of_a_run_does_not_wait_for_a_call_and_closes_the_client() -> None:
    goes_on, closed = Signal(), Signal()

    class Hangs:
        def __call__(self, payment: Payment) -> Score:
            goes_on.wait(limits.SERVICE_LONGEST_PAUSE_US)
            return doubled(payment)

        def close(self) -> None:
            closed.set()

    askers = Askers(Service(Hangs, Score, at_once=1))
    askers.ask("k", "0", Payment("a", 1))
    askers.close()
    assert closed.is_set()
    goes_on.set()


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


def test_an_answer_is_looked_for_when_it_may_be_there() -> None:
    """After what a call takes, which is learnt, and once for each round of calls in front of it."""
    goes_on = Signal()

    def client(payment: Payment) -> Score:
        if payment.cents:
            goes_on.wait(60)
        return doubled(payment)

    askers = Askers(Service(lambda: client, Score, at_once=2))
    guess_us = askers.wait_us()
    assert guess_us == limits.SERVICE_FIRST_GUESS_S * 1_000_000
    for number in range(80):
        askers.ask("k", str(number), Payment("a", 0))
    wait_for(lambda: None not in askers._heard.values())
    assert limits.SERVICE_SHORTEST_LOOK_US <= askers.wait_us() < guess_us / 4
    askers._usual_s = limits.SERVICE_FIRST_GUESS_S
    for number in range(2):
        askers.ask("slow", str(number), Payment("a", 1))
    wait_for(lambda: askers._tasks.qsize() == 0)
    for number in range(2, 8):
        askers.ask("slow", str(number), Payment("a", 1))
    assert askers.wait_us() == 4 * guess_us
    for number in range(8, 1_000):
        askers.ask("slow", str(number), Payment("a", 1))
    assert askers.wait_us() == limits.SERVICE_LONGEST_LOOK_US
    askers.close()
    goes_on.set()


def test_threads_end_when_a_run_does() -> None:
    before = {*threads_now()}
    askers = Askers(Service(lambda: doubled, Score, at_once=3))
    begun = {*threads_now()} - before
    assert [thread.daemon for thread in begun] == [True] * 3, "one that waits for an answer keeps no process alive"
    askers.close()
    for thread in begun:
        thread.join(60)
        assert not thread.is_alive()


def test_what_is_under_way_is_not_dropped_with_what_nobody_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.library.services.SERVICE_KEPT_ANSWERS", 2)
    goes_on, asked = Signal(), Counter[str]()

    def client(payment: Payment) -> Score:
        asked[payment.id] += 1
        goes_on.wait(60)
        return doubled(payment)

    askers = Askers(Service(lambda: client, Score, at_once=1))
    for _ in range(2):
        for number in range(6):
            askers.ask("k", str(number), Payment(str(number), 1))
    goes_on.set()
    wait_for(lambda: None not in askers._heard.values())
    assert asked == {str(number): 1 for number in range(6)}
    askers.close()


def test_nothing_is_remembered_of_what_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Askers[Any]] = []

    class Noted(Askers[Any]):
        def __init__(self, service: Service[Any]) -> None:
            super().__init__(service)
            made.append(self)

    monkeypatch.setattr("millwheel.library.services.Askers", Noted)
    stepper = Stepper(build(lambda: Flaky(1), at_once=0, pause=seconds(1)))
    for name in "ab":
        stepper.send(payments, Payment(name, 1), 5)
    stepper.advance_clock(SECOND)
    assert len(stepper.outputs(scored)) == 2
    assert [askers._heard for askers in made] == [{}] * len(made)


def test_a_pause_is_never_longer_than_a_minute() -> None:
    client = Flaky(100)
    stepper = Stepper(build(lambda: client, at_once=0, attempts=50, pause=seconds(40)))
    stepper.send(payments, Payment("a", 1), 5)
    for attempt in range(1, 8):
        assert client.asked["a"] >= attempt
        stepper.advance_clock(limits.SERVICE_LONGEST_PAUSE_US)


def test_a_value_that_comes_twice_in_a_record_is_asked_about_twice() -> None:
    pipeline = Pipeline("payments")
    chain = Flow(pipeline).read(payments)
    back = chain.map(lambda payment: Payment(payment.id, -payment.cents), MsgpackCoder(Payment))
    both = chain.filter(lambda payment: payment.cents > 0).union(back)
    both.key_by(lambda payment: payment.id).call(Service(lambda: doubled, Score, at_once=0)).to(scored)
    stepper = Stepper(pipeline)
    stepper.send(payments, Payment("a", 1), 5)
    stepper.advance_clock(SECOND)
    answers = [o.value.answer for o in stepper.outputs(scored)]
    assert sorted(answer.points for answer in answers if answer is not None) == [-2, 2]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: Service(5, Score), r"Service\(5, ...\): give a function that makes a client"),  # type: ignore[arg-type]
        (
            lambda: Service(lambda: doubled, Score, at_once=-1),
            r"Service\(at_once=-1\): give a whole number, at least 0",
        ),
        (
            lambda: Service(lambda: doubled, Score, attempts=0),
            r"Service\(attempts=0\): give a whole number, at least 1",
        ),
        (lambda: Flow(Pipeline("p")).read(payments).key_by(lambda p: p.id).call(5), "call.* needs a Service, got 5"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_are_refused(wrong: Callable[[], object], said: str) -> None:
    with pytest.raises(WiringError, match=said):
        wrong()
