"""The context: what a hook may do, what is refused, and that a hook that raises leaves no trace."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from millwheel import MAX_TIME, MIN_TIME, Context, JsonCoder, ListCell, MapCell, Record, Timer, ValueCell, limits
from millwheel.bundles import SinkRow
from millwheel.errors import CoderError, LimitError, MillwheelError, RowError, TimestampError, WiringError
from millwheel.work import Columns
from tests.unit.api.hooks import OUT, computation_of, executor_of, out, part, run, table, undeclared, work


def test_every_effect_ends_in_the_outcome() -> None:
    def hook(self: Any, context: Context, record: Record[str]) -> None:
        assert (context.key, context.stream, context.watermark, context.wall_time) == ("a", "texts", 0, 1_000)
        assert (record.key, record.value, record.timestamp, record.late, record.id) == ("a", "a", 7, False, (5, 0))
        context.produce(out, "x")
        context.produce(out, "y", 9)
        context.produce(out, "nobody")
        context.set_timer("t", 8)
        context.set_timer("w", 9, "wall")
        context.cancel_timer("u")
        context.hold(3)
        context.upsert(table, {"k": "a", "n": 1})

    done = run(hook, ("a", 7))
    assert done.quarantined == []
    assert done.produced == {OUT: Columns(["x", "y"], [b"x", b"y"], [7, 9])}
    assert done.timers == {"a": {("watermark", "t"): 8, ("wall", "w"): 9, ("watermark", "u"): None}}
    assert done.holds == {"a": 3}
    assert done.sinks == [SinkRow("rows", b'{"k":"a","n":1}')]
    assert (done.processed, done.late, done.values, done.entries) == (1, 0, {}, {})


ALONE: dict[str, tuple[Any, str, Any]] = {
    "set_timer": (lambda c: c.set_timer("t", 8), "timers", {"a": {("watermark", "t"): 8}}),
    "cancel_timer": (lambda c: c.cancel_timer("t"), "timers", {"a": {("watermark", "t"): None}}),
    "hold": (lambda c: c.hold(3), "holds", {"a": 3}),
    "release_hold": (lambda c: c.release_hold(), "holds", {"a": None}),
    "upsert": (lambda c: c.upsert(table, {"k": "a", "n": 1}), "sinks", [SinkRow("rows", b'{"k":"a","n":1}')]),
    "delete": (lambda c: c.delete(table, {"k": "a"}), "sinks", [SinkRow("rows", b'{"k":"a"}', deleted=True)]),
}


@pytest.mark.parametrize("name", ALONE)
def test_an_effect_that_is_the_only_one_of_its_hook_is_kept_and_is_not_that_of_the_next_hook(name: str) -> None:
    call, where, found = ALONE[name]

    def hook(self: Any, context: Context, record: Record[str]) -> None:
        if record.key == "a":
            call(context)
        else:
            context.cancel_timer("other")

    assert getattr(run(hook, ("a", 7)), where) == found
    done = run(hook, ("a", 7), ("b", 7))
    expected = {**found, "b": {("watermark", "other"): None}} if where == "timers" else found
    assert getattr(done, where) == expected


def refusals() -> dict[str, tuple[Any, type[MillwheelError], str]]:
    row = {"k": "a", "n": 1}
    long = "x" * (limits.KEY_LIMIT_BYTES + 1)
    big = "x" * (limits.VALUE_LIMIT_BYTES + 1)
    return {
        "undeclared stream": (
            lambda c: c.produce(undeclared, "x"), WiringError, r"'undeclared' is not among this .* outputs \['out'\]",
        ),
        "value of another type": (lambda c: c.produce(out, 7), CoderError, "text coder"),
        "older than its cause": (lambda c: c.produce(out, "x", 6), TimestampError, "'out' for key 'a'"),
        "end of time": (lambda c: c.produce(out, "x", MAX_TIME), TimestampError, "out of range"),
        "beginning of time": (lambda c: c.produce(out, "x", MIN_TIME), TimestampError, "out of range"),
        "long key": (lambda c: c.produce(out, long), LimitError, f"key of {len(long)} bytes"),
        "long value": (lambda c: c.produce(out, big), LimitError, f"value of {len(big)} bytes"),
        "timer out of range": (lambda c: c.set_timer("t", MAX_TIME), TimestampError, "timer 't'"),
        "timer kind": (lambda c: c.set_timer("t", 1, "lunar"), WiringError, "'lunar'"),
        "long tag": (lambda c: c.set_timer("t" * 257, 1), LimitError, "timer tag"),
        "long tag in bytes": (lambda c: c.set_timer("é" * 129, 1), LimitError, "timer tag"),
        "long key in bytes": (lambda c: c.produce(out, "é" * 513), LimitError, "key of 1026 bytes on 'out'"),
        "timer at the beginning of time": (lambda c: c.set_timer("t", MIN_TIME), TimestampError, "timer 't'"),
        "NUL in tag": (lambda c: c.cancel_timer("\0expire"), LimitError, "NUL"),
        "hold out of range": (lambda c: c.hold(MIN_TIME), TimestampError, "hold at"),
        "hold at the end of time": (lambda c: c.hold(MAX_TIME), TimestampError, "hold at"),
        "key that is null": (lambda c: c.delete(table, {"k": None}), RowError, "key of a row of table 'rows'"),
        "row that is null": (lambda c: c.upsert(table, {"k": None, "n": 1}), RowError, "row for table 'rows'"),
        "undeclared table": (
            lambda c: c.upsert(msgspec.structs.replace(table, name="t"), row), WiringError, "pipeline.sink",
        ),
        "bytes for text": (lambda c: c.upsert(table, {"k": b"a", "n": 1}), RowError, r"column 'k' \(text\): not text"),
        "other columns": (lambda c: c.upsert(table, {"k": "a"}), WiringError, r"\['k'\], declared are \['k', 'n'\]"),
    }  # fmt: skip


@pytest.mark.parametrize("name", refusals())
def test_what_is_refused_says_why_and_leaves_nothing(name: str) -> None:
    call, error, words = refusals()[name]
    caught: list[BaseException] = []

    def hook(self: Any, context: Context, record: Record[str]) -> None:
        with pytest.raises(error, match=words) as raised:
            call(context)
        caught.append(raised.value)

    done = run(hook, ("a", 7))
    assert len(caught) == 1, done.quarantined
    assert (done.produced, done.timers, done.holds, done.sinks) == ({}, {}, {}, [])


def test_what_is_as_large_as_its_limit_is_fine() -> None:
    value, tag = "v" * limits.VALUE_LIMIT_BYTES, "é" * (limits.TAG_LIMIT_BYTES // 2)
    key = "é" * (limits.KEY_LIMIT_BYTES // 2)

    def hook(self: Any, context: Context, record: Record[str]) -> None:
        context.produce(out, key)
        context.produce(out, value)  # its key is its begin
        context.set_timer(tag, MIN_TIME + 1)
        context.set_timer("t", MAX_TIME - 1)
        context.hold(MIN_TIME + 1)

    done = run(hook, ("a", 7))
    assert done.quarantined == []
    assert done.produced[OUT].keys == [key, "v" * 9]
    assert done.timers == {"a": {("watermark", tag): MIN_TIME + 1, ("watermark", "t"): MAX_TIME - 1}}
    assert done.holds == {"a": MIN_TIME + 1}


@pytest.mark.parametrize("call", [lambda c: c.hold(3), lambda c: c.release_hold()])
def test_a_key_that_is_named_like_the_hold_of_a_quarantine_cannot_have_one(call: Any) -> None:
    executor = executor_of(computation_of(lambda self, context, record: call(context)))
    done = executor.run(work(part(("k\0quarantine", 7))))
    assert done.holds == {}
    assert "cannot have a hold" in done.quarantined[0].error


def test_a_hold_allows_older_productions_until_it_is_released() -> None:
    def hook(self: Any, context: Context, record: Record[str]) -> None:
        context.produce(out, "old", 3)
        with pytest.raises(TimestampError):
            context.produce(out, "older", 2)
        context.release_hold()

    executor = executor_of(computation_of(hook))
    done = executor.run(work(part(("a", 7)), holds={"a": 3}))
    assert (done.produced[OUT].timestamps, done.holds) == ([3], {"a": None})
    done = executor.run(work(part(("a", 7), ("a", 7)), holds={"a": 3}))
    assert done.produced[OUT].timestamps == [3]  # released by the first record
    assert [entry.sequence for entry in done.quarantined] == [1]


def test_what_one_record_holds_the_next_ones_of_its_key_may_produce() -> None:
    def hook(self: Any, context: Context, record: Record[str]) -> None:
        if record.timestamp == 3:
            context.hold(3)
        else:
            context.produce(out, record.key, 3)

    done = executor_of(computation_of(hook)).run(work(part(("a", 3), ("a", 7), ("b", 7))))
    assert done.produced[OUT].keys == ["a"]
    assert [entry.key for entry in done.quarantined] == ["b"]


@pytest.mark.parametrize(
    ("watermark", "promised", "at"),
    [
        (5, MIN_TIME, 5), (5, 9, 9), (9, 5, 9), (MIN_TIME, MIN_TIME, MIN_TIME + 1), (MAX_TIME, MIN_TIME, MAX_TIME - 1),
    ],
)  # fmt: skip
def test_what_a_wall_timer_produces_is_at_what_was_promised_at_least(watermark: int, promised: int, at: int) -> None:
    """Else it would be late for whoever was told of the promise.  It has a time also after the last watermark."""

    def ring(self: Any, context: Context, timer: Timer) -> None:
        with pytest.raises(TimestampError):
            context.produce(out, "older", at - 1)
        context.produce(out, "x")

    given = work(timers=[Timer("a", "t", 1, "wall")], watermark=watermark)
    given.promised = promised
    assert executor_of(computation_of(timer=ring)).run(given).produced[OUT].timestamps == [at]


def test_a_timer_comes_from_no_stream_whatever_ran_before_it() -> None:
    streams: list[str] = []

    def note(self: Any, context: Context, _: object) -> None:
        streams.append(context.stream)

    executor = executor_of(computation_of(note, note))
    executor.run(work(part(("a", 1))))
    executor.run(work(timers=[Timer("a", "t", 1)]))
    assert streams == ["texts", ""]


def test_unstrict_timestamps_are_counted_not_refused() -> None:
    def hook(self: Any, context: Context, record: Record[str]) -> None:
        context.produce(out, "x", 1)

    done = run(hook, ("a", 7), strict_timestamps=False)
    assert (done.produced[OUT].timestamps, done.backdated, done.quarantined) == ([1], 1, [])


def test_each_unstrict_production_is_counted_once_and_those_of_a_hook_that_raised_are_not() -> None:
    raised: list[str] = []

    def hook(self: Any, context: Context, record: Record[str]) -> None:
        context.produce(out, "x", 1)
        if record.key == "b" and not raised:
            raised.append(record.key)
            raise RuntimeError("once")

    executor = executor_of(computation_of(hook), strict_timestamps=False, hook_attempts=2)
    done = executor.run(work(part(("a", 7), ("b", 7), ("c", 7))))
    assert (done.backdated, done.quarantined, raised) == (3, [], ["b"])


def test_a_record_behind_the_watermark_is_late() -> None:
    seen: list[bool] = []

    def hook(self: Any, context: Context, record: Record[str]) -> None:
        seen.append(record.late)

    done = executor_of(computation_of(hook)).run(work(part(("a", 9), ("b", 10)), watermark=10))
    assert (seen, done.late) == ([True, False], 1)


def test_in_a_timer_the_cause_is_the_timer() -> None:
    def ring(self: Any, context: Context, timer: Timer) -> None:
        assert (context.key, context.stream) == ("a", "")
        context.produce(out, timer.kind)

    timers = [Timer("a", "t", 7), Timer("a", "w", 500, "wall")]
    done = executor_of(computation_of(timer=ring)).run(work(timers=timers, watermark=9))
    assert done.produced == {OUT: Columns(["watermark", "wall"], [b"watermark", b"wall"], [7, 9])}


CELLS = {"value": ValueCell(JsonCoder(int), 0), "items": ListCell(JsonCoder(int)), "map": MapCell(JsonCoder(int))}


def test_a_hook_that_raises_leaves_no_trace_whatever_it_did() -> None:
    """Random hooks, some of which raise half way: as if those had never been called."""

    def hook(self: Any, context: Context, record: Record[str]) -> None:
        dice = random.Random(record.value)
        raises = record.value.endswith("!")
        for _ in range(dice.randrange(1, 9)):
            act(self, context, dice)
        if raises:
            raise RuntimeError(record.value)

    cells = {name: type(cell)(*args) for name, cell, args in cell_arguments()}
    for seed in range(60):
        dice = random.Random(seed)
        texts = [f"{dice.choice('abc')}={i}{dice.choice(['', '', '!'])}" for i in range(12)]
        first = {text.split("=")[0]: i for i, text in reversed([*enumerate(texts)]) if text.endswith("!")}
        good = [t for i, t in enumerate(texts) if i < first.get(t.split("=")[0], len(texts))]
        done = executor_of(computation_of(hook, cells=cells)).run(work(part(*((t, 7) for t in texts))))
        clean = executor_of(computation_of(hook, cells=cells)).run(work(part(*((t, 7) for t in good))))
        assert len(done.quarantined) == len(texts) - len(good)
        for effects in ("values", "entries", "timers", "holds", "produced", "sinks"):
            assert getattr(done, effects) == getattr(clean, effects), (seed, effects)


def cell_arguments() -> list[tuple[str, Any, tuple[Any, ...]]]:
    coder: JsonCoder[int] = JsonCoder(int)
    return [("value", CELLS["value"], (coder, 0)), ("items", CELLS["items"], (coder,)), ("map", CELLS["map"], (coder,))]


def act(self: Any, context: Context, dice: random.Random) -> None:
    """One effect, drawn by `dice`."""
    number = dice.randrange(100)
    match dice.randrange(10):
        case 0:
            self.value.set(self.value.get() + number)
        case 1:
            self.value.clear()
        case 2:
            self.items.append(number)
        case 3:
            self.items.clear()
        case 4:
            self.map.set(f"e{number % 4}", number)
        case 5:
            self.map.delete(f"e{number % 4}")
        case 6:
            context.produce(out, str(number))
        case 7:
            context.set_timer("t", number)
        case 8:
            context.upsert(table, {"k": context.key, "n": number})
        case 9:
            context.hold(number)
