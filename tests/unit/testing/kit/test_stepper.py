"""The user's test kit: stepping, simulating, and the documentation's examples."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millwheel.testing
from millwheel import (
    MAX_TIME,
    SECOND,
    Computation,
    Context,
    JsonCoder,
    ListCell,
    MapCell,
    Pipeline,
    Record,
    Stream,
    Table,
    TextCoder,
    Timer,
    ValueCell,
    subscribe,
)
from millwheel.errors import TimestampError, WiringError
from millwheel.testing import NO_FAULTS, Faults, HookFailed, NeverEnds, RowRejected, Stepper, Violation, simulate

ROOT = Path(__file__).resolve().parents[4]
HOUR = 3_600 * SECOND
WORDS = Stream("words", TextCoder())
COUNTS = Stream("counts", JsonCoder(tuple[str, int]))
TABLE = Table("totals", {"word": "text", "seen": "bigint"}, ("word",))


class Count(Computation[str]):
    """Counts words, tells the count at every full second, and on request breaks."""

    broken = True
    seen = ValueCell(JsonCoder(int), default=0)
    times = ListCell(JsonCoder(int))
    at = MapCell(JsonCoder(int))

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        self.seen.set(self.seen.get() + 1)
        if record.value == "bad" and Count.broken:
            raise ValueError("bad")
        self.times.append(record.timestamp)
        self.at.set(str(record.timestamp), 1)
        context.set_timer("second", (record.timestamp // SECOND + 1) * SECOND)
        context.set_timer("nap", context.wall_time + 5 * SECOND, "wall")
        context.upsert(TABLE, {"word": context.key, "seen": self.seen.get()})

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        name = context.key if timer.kind == "watermark" else f"nap of {context.key}"
        context.produce(COUNTS, (name, self.seen.get()))


class Ignore(Computation[tuple[str, int]]):
    def ProcessRecord(self, context: Context, record: Record[tuple[str, int]]) -> None:
        pass


def pipeline(**settings: Any) -> Pipeline:
    made = Pipeline("kit")
    made.sink(TABLE)
    made.add(Count, inputs=[subscribe(WORDS, key=str)], outputs=[COUNTS], **settings)
    made.add(Ignore, inputs=[subscribe(COUNTS, key=lambda count: count[0])])
    return made


def values(stepper: Any) -> list[tuple[int, tuple[str, int]]]:
    return [(out.timestamp, out.value) for out in stepper.outputs(COUNTS)]


def test_a_record_changes_state_and_its_sink_row() -> None:
    stepper = Stepper(pipeline())
    stepper.send(WORDS, "to", 7)
    stepper.send("words", "to", 9)
    assert stepper.state("Count", "to") == {"seen": 2, "times": [7, 9], "at": {"7": 1, "9": 1}}
    assert stepper.states("Count").keys() == {"to"}
    assert stepper.rows(TABLE) == [{"word": "to", "seen": 2}]
    assert stepper.outputs(COUNTS) == []


def test_the_watermark_fires_timers_and_not_before() -> None:
    stepper = Stepper(pipeline())
    stepper.send(WORDS, "to", 7)
    stepper.advance_watermark(SECOND - 1)
    assert values(stepper) == []
    stepper.advance_watermark(SECOND)
    assert values(stepper) == [(SECOND, ("to", 1))]
    assert stepper.watermark("Count") == SECOND


def test_the_clock_fires_wall_timers_and_stands_still_otherwise() -> None:
    stepper = Stepper(pipeline())
    before = stepper.clock
    stepper.send(WORDS, "to", 7)
    stepper.advance_watermark(6)
    assert stepper.clock == before
    stepper.advance_clock(5 * SECOND - 1)
    assert values(stepper) == []
    stepper.advance_clock(1)
    assert [value for _, value in values(stepper)] == [("nap of to", 1)]


def test_a_restart_keeps_what_is_committed() -> None:
    stepper = Stepper(pipeline(cache_limit_bytes=1))
    stepper.send(WORDS, "to", 7)
    stepper.restart()
    stepper.send(WORDS, "to", 8)
    assert stepper.state("Count", "to")["times"] == [7, 8]
    stepper.finish()
    assert values(stepper) == [(SECOND, ("to", 2))]


def test_a_bad_record_waits_in_quarantine_until_it_is_redriven(monkeypatch: pytest.MonkeyPatch) -> None:
    stepper = Stepper(pipeline(), quarantine=True)
    stepper.send(WORDS, "bad", 7)
    stepper.send(WORDS, "bad", 8)
    assert [(row.key, row.timestamp) for row in stepper.quarantined()] == [("bad", 7), ("bad", 8)]
    assert "ValueError" in stepper.quarantined()[0].error
    assert stepper.state("Count", "bad") == {}
    monkeypatch.setattr(Count, "broken", False)
    stepper.redrive("Count", "bad")
    assert stepper.quarantined() == []
    assert stepper.state("Count", "bad")["times"] == [7, 8]


def test_a_hook_that_fails_fails_the_test() -> None:
    stepper = Stepper(pipeline())
    with pytest.raises(HookFailed, match=r"Count failed on a record of key 'bad' at .*\n(.*\n)*ValueError: bad"):
        stepper.send(WORDS, "bad", 7)
    with pytest.raises(HookFailed, match="ValueError: bad"):
        simulate(pipeline(), {"words": [("bad", 1)]}, 1)
    waiting = simulate(pipeline(), {"words": [("bad", 1)]}, 1, quarantine=True).quarantined()
    assert [row.key for row in waiting] == ["bad"]


def test_wrong_names_are_refused() -> None:
    stepper = Stepper(pipeline())
    with pytest.raises(WiringError, match="does not come from outside"):
        stepper.send(COUNTS, ("a", 1), 1)
    with pytest.raises(WiringError, match="no computation 'Cuont'"):
        stepper.state("Cuont", "a")
    with pytest.raises(WiringError, match="no computation produces"):
        stepper.outputs(WORDS)
    with pytest.raises(WiringError, match=r"no sink table 'totls'; there are \['totals'\]"):
        stepper.rows("totls")
    with pytest.raises(WiringError, match="inputs must name exactly"):
        simulate(pipeline(), {"wrods": []})
    with pytest.raises(ValueError, match="does not go back"):
        stepper.advance_clock(-1)
    wrong: Any = 1.5
    with pytest.raises(TimestampError, match=r"record at 1.5 \(float\)"):
        stepper.send(WORDS, "a", wrong)
    stepper.send(WORDS, "a", 1)
    assert stepper.state("Count", "a")["seen"] == 1


def test_a_record_after_the_end_is_refused_and_not_lost() -> None:
    stepper = Stepper(pipeline())
    stepper.finish()
    with pytest.raises(WiringError, match=r"stream 'words' has ended: after finish\(\) nothing can be sent"):
        stepper.send(WORDS, "to", 1)


def test_wrong_arguments_are_refused() -> None:
    kit: Any = millwheel.testing
    api: Any = Stepper(pipeline())
    mistakes: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (
            lambda: kit.Stepper(pipeline),
            WiringError,
            "a test needs a Pipeline, got <function .*: call it, with brackets",
        ),
        (lambda: kit.simulate(5, {}), WiringError, "a test needs a Pipeline, got 5"),
        (lambda: api.advance_watermark("x"), TimestampError, r"watermark at 'x' \(str\)"),
        (lambda: api.advance_clock(1.5), ValueError, r"advance_clock\(1.5\): give whole microseconds"),
        (lambda: api.redrive("Nope", "to"), WiringError, "no computation 'Nope'"),
        (
            lambda: kit.simulate(pipeline(), [("to", 1)]),
            WiringError,
            "inputs must name exactly the streams from outside",
        ),
        (
            lambda: kit.simulate(pipeline(), {WORDS: []}),
            WiringError,
            "inputs must name exactly the streams from outside",
        ),
        (
            lambda: kit.simulate(pipeline(), {"words": ["to"]}),
            WiringError,
            "inputs are pairs of a value and an event time",
        ),
        (lambda: kit.simulate(pipeline(), {"words": []}, faults=5), WiringError, r"faults=5: give Faults\(...\)"),
        (lambda: kit.Faults(crash=5), ValueError, r"Faults\(crash=5\): give a chance, 0 to 1"),
        (lambda: kit.Faults(slow="x"), ValueError, r"Faults\(slow='x'\): give a chance, 0 to 1"),
    ]
    for call, kind, says in mistakes:
        with pytest.raises(kind, match=says):
            call()


def test_a_row_without_a_key_is_told() -> None:
    made = Pipeline("keyless")
    made.add(Ignore, inputs=[subscribe(COUNTS, key=lambda count: str([*count][7]))])
    with pytest.raises(RowRejected, match=r"'counts' rejects \('a', 1\): IndexError: list index out of range"):
        Stepper(made).send(COUNTS, ("a", 1), 1)


class Hold(Computation[str]):
    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        if record.value == "hold":
            context.hold(record.timestamp)
        else:
            context.release_hold()


def test_a_hold_that_is_never_released_is_the_pipeline_s_own() -> None:
    made = Pipeline("held")
    made.add(Hold, inputs=[subscribe(WORDS, key=lambda word: "all")])
    with pytest.raises(NeverEnds, match=r"Hold holds its watermark at 1970-.* for key 'all'; release it"):
        simulate(made, {"words": [("a", 1), ("hold", 2)]})
    simulate(made, {"words": [("hold", 2), ("a", 3)]})


def rows(count: int) -> list[tuple[str, int]]:
    return [(f"w{i % 7}", i * 100_000) for i in range(count)]


@pytest.mark.parametrize("seed", range(6))
def test_faults_change_nothing_that_is_committed(seed: int) -> None:
    calm = simulate(pipeline(), {"words": rows(60)}, faults=NO_FAULTS)
    rough = simulate(pipeline(), {"words": rows(60)}, seed)
    assert calm.faults == {}
    assert rough.faults
    keys = [f"w{i}" for i in range(7)]
    assert [rough.state("Count", key) for key in keys] == [calm.state("Count", key) for key in keys]
    assert rough.rows(TABLE) == calm.rows(TABLE)


def test_the_same_seed_gives_the_same_run() -> None:
    one, two = (simulate(pipeline(), {"words": rows(30)}, 5, Faults(crash=0.01)) for _ in range(2))
    assert one.trace_hash == two.trace_hash
    assert one.restarts == two.restarts > 0
    assert "w1" in one.story("w1")


def test_the_documentation_runs() -> None:
    text = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 2
    exec(compile("\n".join(blocks), "docs/testing.md", "exec"), {"__name__": "docs_testing"})


class Halve(Computation[int]):
    """Sends a number round until it is odd, and sleeps at each multiple of three."""

    halved = ListCell(JsonCoder(int))

    def ProcessRecord(self, context: Context, record: Record[int]) -> None:
        self.halved.append(record.value)
        if record.value % 2:
            return
        if record.value % 3:
            context.produce(HALVES, record.value // 2)
        else:
            context.set_timer(str(record.value // 2), record.timestamp + 5)

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        context.produce(HALVES, int(timer.tag))


NUMBERS, HALVES = (Stream(name, JsonCoder(int)) for name in ("numbers", "halves"))


def halving(**settings: Any) -> Pipeline:
    pipeline = Pipeline("halving")
    inputs = [subscribe(stream, lambda _: "all") for stream in (NUMBERS, HALVES)]
    pipeline.add(Halve, inputs, [HALVES], **settings)
    return pipeline


def test_a_loop_lets_time_pass_when_it_has_run_dry_of_what_is_older() -> None:
    stepper = Stepper(halving())
    stepper.send(NUMBERS, 24, 10)
    assert stepper.state("Halve", "all") == {"halved": [24]}
    stepper.advance_watermark(12)
    assert stepper.watermark("Halve") == 12
    stepper.advance_watermark(17)
    assert stepper.state("Halve", "all") == {"halved": [24, 12]}
    assert stepper.watermark("Halve") == 17
    stepper.restart()
    stepper.send(NUMBERS, 1, 17)
    stepper.finish()
    assert stepper.state("Halve", "all") == {"halved": [24, 12, 1, 6, 3]}
    assert stepper.watermark("Halve") == MAX_TIME


def test_a_loop_ends_as_it_must_whatever_breaks() -> None:
    rows = [(48, 10), (7, 20), (40, 30)]
    wanted = [3, 5, 6, 7, 10, 12, 20, 24, 40, 48]
    for seed in range(3):
        found = simulate(halving(), {"numbers": rows}, seed)
        assert sorted(found.state("Halve", "all")["halved"]) == wanted
    assert found.faults


def test_a_timer_before_its_cause_fails_in_a_loop() -> None:
    class Early(Halve):
        def ProcessRecord(self, context: Context, record: Record[int]) -> None:
            context.set_timer("early", record.timestamp - 1)

    pipeline = Pipeline("early")
    pipeline.add(Early, [subscribe(stream, str) for stream in (NUMBERS, HALVES)], [HALVES])
    with pytest.raises(HookFailed, match=r"is older than its cause .*, and this computation is in a loop"):
        Stepper(pipeline).send(NUMBERS, 1, 10)


def test_a_timer_of_wall_time_has_no_cause_in_a_loop_and_none_has_one_elsewhere() -> None:
    class Early(Halve):
        def ProcessRecord(self, context: Context, record: Record[int]) -> None:
            context.set_timer("early", 1, "wall")
            if context.stream == "numbers" and record.value == 2:
                context.set_timer("early", record.timestamp - 1)

        def ProcessTimer(self, context: Context, timer: Timer) -> None:
            pass

    looped, straight = Pipeline("looped"), Pipeline("straight")
    looped.add(Early, [subscribe(stream, str) for stream in (NUMBERS, HALVES)], [HALVES])
    straight.add(Early, [subscribe(NUMBERS, str)], [HALVES])
    Stepper(looped).send(NUMBERS, 1, 10)
    Stepper(straight).send(NUMBERS, 2, 10)


def test_a_hold_before_its_cause_fails_in_a_loop_and_nowhere_else() -> None:
    class Holds(Halve):
        def ProcessRecord(self, context: Context, record: Record[int]) -> None:
            context.hold(record.timestamp - 1)

    looped, straight = Pipeline("looped"), Pipeline("straight")
    looped.add(Holds, [subscribe(stream, str) for stream in (NUMBERS, HALVES)], [HALVES])
    straight.add(Holds, [subscribe(NUMBERS, str)], [HALVES])
    with pytest.raises(HookFailed, match=r"hold for key '1' at .* is older than its cause"):
        Stepper(looped).send(NUMBERS, 1, 10)
    Stepper(straight).send(NUMBERS, 1, 10)


class Later(Computation[str]):
    """Looks back when hours of wall time have passed."""

    fired = ListCell(JsonCoder(int))

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        context.set_timer("later", context.wall_time + 6 * HOUR, "wall")

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        self.fired.append(context.wall_time)


def test_hours_of_wall_time_pass() -> None:
    """After four hours and a half it had taken too many steps, and was said never to come to rest."""
    pipeline = Pipeline("later")
    pipeline.add(Later, [subscribe(WORDS, str)])
    stepper = Stepper(pipeline)
    stepper.send(WORDS, "a", 1)
    began = stepper.clock
    stepper.advance_clock(6 * HOUR - 1)
    assert stepper.state("Later", "a") == {}
    stepper.advance_clock(1)
    assert stepper.state("Later", "a") == {"fired": [began + 6 * HOUR]}


def test_how_long_it_rests_is_no_matter_of_how_many_steps_a_second_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.testing.kit.stepper.STEP_LIMIT_EVENTS", 1_000)
    stepper = Stepper(pipeline())
    stepper.send(WORDS, "a", 1)
    stepper.advance_clock(HOUR)
    assert stepper.outputs(COUNTS)


def test_what_never_comes_to_rest_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Again(Halve):
        def ProcessRecord(self, context: Context, record: Record[int]) -> None:
            context.produce(HALVES, record.value)

    monkeypatch.setattr("millwheel.testing.kit.stepper.STEP_LIMIT_EVENTS", 1_000)
    endless = Pipeline("endless")
    endless.add(Again, [subscribe(stream, lambda _: "all") for stream in (NUMBERS, HALVES)], [HALVES])
    stepper = Stepper(endless)
    with pytest.raises(Violation, match="never comes to rest"):
        stepper.send(NUMBERS, 1, 10)
