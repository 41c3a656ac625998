"""Deduplicate, throttle, distinct until changed, branch, fan out, look up: one test each of what they let through."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel import SECOND, JsonCoder, MsgpackCoder, Pipeline, Stream, TextCoder, limits
from millwheel.errors import WiringError
from millwheel.library import Addressed, Chain, Enriched, Flow, LookUp, seconds
from millwheel.library.lookups import Answers
from millwheel.testing import Faults, Stepper, simulate
from tests.effort import examples
from tests.unit.library.pipelines import many


class Event(msgspec.Struct, frozen=True):
    key: str
    number: int


events = Stream("events", MsgpackCoder(Event))
out = Stream("out", MsgpackCoder(Event))
rest = Stream("rest", MsgpackCoder(Event))
texts = Stream("texts", TextCoder())


def begin() -> tuple[Pipeline, Chain[Event]]:
    pipeline = Pipeline("daily")
    return pipeline, Flow(pipeline).read(events)


def key(event: Event) -> str:
    return event.key


def numbers(results: Any, stream: Stream[Event] = out) -> list[int]:
    return [each.value.number for each in results.outputs(stream)]


def test_a_record_whose_id_was_there_within_the_time_is_left_out() -> None:
    pipeline, chain = begin()
    chain.key_by(key).deduplicate(seconds(10), lambda event: str(event.number)).to(out)
    stepper = Stepper(pipeline)
    for number, second in ((1, 20), (2, 20), (1, 25), (1, 11), (1, 29), (1, 30), (1, 5), (2, 31), (2, 10)):
        stepper.send(events, Event("a", number), second * SECOND)
    stepper.send(events, Event("b", 1), 20 * SECOND)
    assert [(o.value.key, o.value.number, o.timestamp // SECOND) for o in stepper.outputs(out)] == [
        ("a", 1, 20), ("a", 2, 20), ("a", 1, 30), ("a", 1, 5), ("a", 2, 31), ("a", 2, 10), ("b", 1, 20),
    ]  # fmt: skip
    stepper.advance_watermark(40 * SECOND)
    assert stepper.states("out.deduplicate") == {"a": {"seen": {"=2": 31 * SECOND}}}
    stepper.advance_watermark(41 * SECOND)
    assert stepper.states("out.deduplicate") == {}


@settings(max_examples=examples(40))
@given(many(st.tuples(st.integers(0, 40), st.integers(0, 30), st.booleans()), 25))
def test_no_two_that_are_let_through_are_nearer_than_the_time(rows: list[tuple[int, int, bool]]) -> None:
    pipeline, chain = begin()
    chain.key_by(key).deduplicate(timedelta(microseconds=10)).to(out)
    stepper = Stepper(pipeline)
    kept: list[int] = []
    watermark = 0
    for time, step, moves in rows:
        stepper.send(events, Event("a", time), time)
        if all(abs(time - other) >= 10 for other in kept if other + 10 > watermark):
            kept.append(time)
        if moves:
            watermark = max(watermark, time + step - 20)
            stepper.advance_watermark(watermark)
    assert numbers(stepper) == kept
    stepper.finish()
    assert stepper.states("out.deduplicate") == {}


def test_however_many_are_let_through_each_looks_at_a_few() -> None:
    pipeline, chain = begin()
    chain.key_by(key).deduplicate(timedelta(microseconds=10)).to(out)
    stepper = Stepper(pipeline)
    for time in range(0, 400, 10):
        stepper.send(events, Event("a", time), time)
    kept = stepper.state("out.deduplicate", "a")
    assert kept == {"seen": {"=one": 390}, "older": {f"{time // 10}=one": time for time in range(0, 390, 10)}}
    stepper.advance_watermark(200)
    assert min(stepper.state("out.deduplicate", "a")["older"].values()) == 200
    stepper.finish()
    assert stepper.states("out.deduplicate") == {}


def test_without_an_id_the_key_is_one_and_long_ids_are_fine() -> None:
    pipeline, chain = begin()
    chain.key_by(key).deduplicate(seconds(10)).to(out)
    chain.key_by(lambda e: "all").deduplicate(seconds(10), lambda e: e.key * 500 if e.number < 9 else "").to(rest)
    stepper = Stepper(pipeline)
    for number, name in enumerate("aabba"):
        stepper.send(events, Event(name, number), number)
    stepper.send(events, Event("a", 9), 9)
    stepper.send(events, Event("b", 10), 10)
    assert numbers(stepper) == [0, 2]
    assert numbers(stepper, rest) == [0, 2, 9]
    stepper.finish()
    assert stepper.states("rest.deduplicate") == stepper.states("out.deduplicate") == {}


def test_a_span_lets_so_many_through_and_forgets_its_count() -> None:
    pipeline, chain = begin()
    chain.key_by(key).throttle(2, seconds(10), dropped=rest).to(out)
    stepper = Stepper(pipeline)
    for number, second in enumerate((1, 2, 3, 9, 10, 11, 12)):
        stepper.send(events, Event("a", number), second * SECOND)
    stepper.send(events, Event("b", 7), 3 * SECOND)
    stepper.advance_watermark(20 * SECOND)
    assert stepper.states("out.throttle") == {}
    stepper.send(events, Event("a", 8), 4 * SECOND)
    assert numbers(stepper) == [0, 1, 4, 5, 7]
    assert numbers(stepper, rest) == [2, 3, 6, 8]


def test_one_record_a_span_may_be_all() -> None:
    pipeline, chain = begin()
    chain.key_by(key).throttle(1, seconds(10)).to(out)
    stepper = Stepper(pipeline)
    for number, second in enumerate((0, 9, 10, 11, 1)):
        stepper.send(events, Event("a", number), second * SECOND)
    assert numbers(stepper) == [0, 2]


def test_a_span_is_over_when_the_watermark_is_at_its_end() -> None:
    pipeline, chain = begin()
    chain.key_by(key).throttle(2, seconds(10), dropped=rest).to(out)
    stepper = Stepper(pipeline)
    stepper.advance_watermark(10 * SECOND - 1)
    stepper.send(events, Event("a", 0), 4 * SECOND)
    stepper.advance_watermark(10 * SECOND)
    stepper.send(events, Event("a", 1), 5 * SECOND)
    assert (numbers(stepper), numbers(stepper, rest)) == ([0], [1])


@settings(max_examples=20)
@given(many(st.sampled_from([0, 1, 2, 10]), 20))
def test_only_changes_are_let_through(given_numbers: list[int]) -> None:
    pipeline, chain = begin()
    chain.key_by(key).distinct_until_changed(lambda event: event.number % 10, JsonCoder(int)).to(out)
    stepper = Stepper(pipeline)
    for place, number in enumerate(given_numbers):
        stepper.send(events, Event("a", number), place)
    before = [None, *(number % 10 for number in given_numbers)]
    assert numbers(stepper) == [n for n, b in zip(given_numbers, before, strict=False) if n % 10 != b]


def test_none_is_a_value_and_a_key_may_be_forgotten() -> None:
    pipeline, chain = begin()
    keyed = chain.key_by(key)
    keyed.distinct_until_changed(
        lambda e: e.number or None, JsonCoder(int | None), forget_after=10 * SECOND, name="of"
    ).to(out)
    keyed.distinct_until_changed().to(rest)
    stepper = Stepper(pipeline)
    for second, number in enumerate([0, 0, 1, 0]):
        stepper.send(events, Event("a", number), second * SECOND)
    assert numbers(stepper) == numbers(stepper, rest) == [0, 1, 0]
    stepper.advance_watermark(60 * SECOND)
    stepper.send(events, Event("a", 0), 61 * SECOND)
    assert numbers(stepper) == [0, 1, 0, 0]
    assert numbers(stepper, rest) == [0, 1, 0]


def test_a_value_that_does_not_change_is_not_forgotten_while_it_comes() -> None:
    pipeline, chain = begin()
    chain.key_by(key).distinct_until_changed(forget_after=80 * SECOND).to(out)
    stepper = Stepper(pipeline)
    for second in (*range(300), 379):
        stepper.send(events, Event("a", 1), second * SECOND)
        stepper.advance_watermark(second * SECOND)
    assert numbers(stepper) == [1]
    stepper.advance_watermark(500 * SECOND)
    assert stepper.states("out.distinct") == {}


def test_a_branch_has_what_the_other_has_not() -> None:
    pipeline, chain = begin()
    even, odd = chain.branch(lambda event: event.number % 2 == 0)
    even.to(out)
    odd.publish(rest, keep=2)
    stepper = Stepper(pipeline)
    for number in range(5):
        stepper.send(events, Event("a", number), number)
    assert numbers(stepper) == [0, 2, 4]
    assert numbers(stepper, rest) == [1, 3]
    assert [row["position"] for row in stepper.rows("millwheel_published")] == [2, 1]


def test_a_value_goes_to_each_of_its_keys_once() -> None:
    pipeline, chain = begin()
    sent = chain.fan_out(lambda event: event.key, "letters")
    sent.deduplicate(seconds(10)).map(lambda a: f"{a.key}{a.value.number}").to(texts)
    stepper = Stepper(pipeline)
    for number, name in enumerate(("aab", "bc")):
        stepper.send(events, Event(name, number), number)
    assert sorted(o.value for o in stepper.outputs(texts)) == ["a0", "b0", "c1"]
    assert stepper.outputs("letters.out")[0].value == Addressed("a", Event("aab", 0))


def test_what_cannot_be_meant_is_refused() -> None:
    _, chain = begin()
    keyed = chain.key_by(key)
    with pytest.raises(WiringError, match="within"):
        keyed.deduplicate(0)
    for records, per in ((0, 5), (1, 0)):
        with pytest.raises(WiringError, match=r"throttle|length"):
            keyed.throttle(records, per)
    unknown = chain.map(key).key_by(str)
    unknown.deduplicate(seconds(5)).to(texts)  # stores no values, so it needs no coder
    with pytest.raises(WiringError, match="coder"):
        unknown.distinct_until_changed()
    with pytest.raises(WiringError, match="coder"):
        unknown.deduplicate(seconds(5), name="d").key_by(str)
    with pytest.raises(WiringError, match="coder"):
        chain.map(key).fan_out(list, "f")


class City(msgspec.Struct, frozen=True):
    city: str


class Towns:
    """A query that counts how often it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.closed = False
        self.rows: dict[str, Mapping[str, Any]] = {"a": {"city": "Bern"}}

    def __call__(self, name: str, /) -> Mapping[str, Any] | None:
        self.asked.append(name)
        return self.rows.get(name)

    def close(self) -> None:
        self.closed = True


def test_a_look_up_asks_again_when_its_answer_is_too_old_and_says_how_old_it_is() -> None:
    towns = Towns()
    pipeline, chain = begin()
    enriched = Stream("enriched", MsgpackCoder(Enriched[Event, City | None]))
    looked = chain.key_by(key).look_up(LookUp(lambda: towns, City, fresh_for=seconds(10)), name="city")
    looked.key_by(lambda e: e.value.key).deduplicate(
        timedelta(microseconds=1), lambda e: str(e.value.number), name="d"
    ).to(enriched)
    stepper = Stepper(pipeline)
    stepper.send(events, Event("a", 1), 1)
    stepper.send(events, Event("b", 2), 2)
    stepper.advance_clock(10 * SECOND)
    towns.rows["a"] = {"city": "Chur"}
    stepper.send(events, Event("a", 3), 3)
    stepper.advance_clock(1)
    stepper.send(events, Event("a", 4), 4)
    stepper.send(events, Event("b", 5), 5)
    found = [o.value for o in stepper.outputs(enriched)]
    assert [(e.value.number, e.row and e.row.city) for e in found] == [
        (1, "Bern"), (2, None), (3, "Bern"), (4, "Chur"), (5, None),
    ]  # fmt: skip
    assert [e.age_us for e in found] == [0, 0, 10 * SECOND, 0, 0]
    assert towns.asked == ["a", "b", "a", "b"]


def test_an_answer_that_a_clock_which_was_set_back_has_not_reached_is_not_used() -> None:
    towns = Towns()
    answers = Answers(LookUp(lambda: towns, City, fresh_for=timedelta(microseconds=100)))
    assert [answers.get("a", now) for now in (50, 49, 149, 150)] == [(City("Bern"), age) for age in (0, 0, 100, 0)]
    assert towns.asked == ["a"] * 3


def test_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOOKUP_CACHE_ROWS", 2)
    towns = Towns()
    answers = Answers(LookUp(lambda: towns, City, fresh_for=timedelta(microseconds=100)))
    for name in ("a", "b", "a", "c", "a", "b"):
        answers.get(name, 0)
    assert towns.asked == ["a", "b", "c", "b"]
    answers.close()
    assert towns.closed


@pytest.mark.parametrize("seed", range(4))
def test_under_faults_nothing_is_let_through_twice(seed: int) -> None:
    pipeline, chain = begin()
    keyed = chain.key_by(key)
    keyed.deduplicate(seconds(1000), lambda event: str(event.number // 2)).to(out)
    keyed.throttle(3, seconds(1000)).to(rest)
    rows = [(Event("ab"[n % 2], n), n) for n in range(40)]
    outcome = simulate(pipeline, {"events": rows}, seed=seed, faults=Faults(crash=0.005))
    ids = [(o.value.key, o.value.number // 2) for o in outcome.outputs(out)]
    assert len(ids) == len(set(ids)) == 40
    assert sorted(o.value.key for o in outcome.outputs(rest)) == ["a"] * 3 + ["b"] * 3
    assert outcome.states("out.deduplicate") == outcome.states("rest.throttle") == {}
