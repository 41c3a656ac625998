"""The executor keeps a bad record to its key, retries, and leaves nothing of what failed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel import Computation, Context, JsonCoder, ListCell, Record, Timer, ValueCell, limits
from millwheel.api.frame import Frame
from millwheel.bundles import QuarantineEntry
from millwheel.errors import InvariantError
from millwheel.ids import ProducerId, SequenceNumber, SubscriptionId
from millwheel.work import InvocationOutcome
from tests.unit.api.hooks import IN, OUT, computation_of, executor_of, out, part, run, table, work


def values(outcome: Any) -> list[str]:
    return [value.decode() for value in outcome.produced[OUT].values] if OUT in outcome.produced else []


def failing(times: int, calls: list[str]) -> Any:
    """A hook that produces its value, and fails the first `times` times on values with "bad"."""

    def hook(self: Any, context: Context, record: Record[str]) -> None:
        calls.append(record.value)
        context.produce(out, record.value)
        if "bad" in record.value and calls.count(record.value) <= times:
            raise RuntimeError(f"no {record.value}")

    return hook


def test_a_hook_that_recovers_within_its_attempts_counts_once() -> None:
    calls: list[str] = []
    done = run(failing(limits.HOOK_ATTEMPTS - 1, calls), ("a=bad", 1), ("a=2", 2))
    assert calls == ["a=bad"] * limits.HOOK_ATTEMPTS + ["a=2"]
    assert (values(done), done.quarantined) == (["a=bad", "a=2"], [])


def test_a_timer_whose_hook_recovers_within_its_attempts_fires_once() -> None:
    tried: list[str] = []

    def ring(self: Any, context: Context, timer: Timer) -> None:
        tried.append(timer.tag)
        context.produce(out, timer.tag)
        if len(tried) < limits.HOOK_ATTEMPTS:
            raise RuntimeError("not yet")

    done = executor_of(computation_of(timer=ring)).run(work(timers=[Timer("a", "t", 5)]))
    assert (values(done), done.quarantined, len(tried)) == (["t"], [], limits.HOOK_ATTEMPTS)


def test_after_the_last_attempt_the_key_waits_and_others_go_on() -> None:
    calls: list[str] = []
    done = run(failing(99, calls), ("a=1", 1), ("a=bad", 2), ("b=1", 3), ("a=3", 4), hook_attempts=2)
    assert calls == ["a=1", "a=bad", "a=bad", "b=1"]
    assert values(done) == ["a=1", "b=1"]
    assert [(e.key, e.sequence, e.value, e.timestamp) for e in done.quarantined] == [
        ("a", 1, b"a=bad", 2), ("a", 3, b"a=3", 4),
    ]  # fmt: skip
    first, second = done.quarantined
    assert "RuntimeError: no a=bad" in first.error
    assert "in hook" in first.error
    assert second.error == ""


def test_the_key_stays_closed_for_later_parts_and_timers_of_the_invocation() -> None:
    calls: list[str] = []
    executor = executor_of(computation_of(failing(99, calls)))
    done = executor.run(work(part(("a=bad", 1)), part(("a=2", 2)), timers=[Timer("a", "t", 3)]))
    assert [(e.subscription, e.tag) for e in done.quarantined] == [(IN, ""), (IN, "")]
    assert done.timers == {"a": {("watermark", "t"): 3}}  # it stays pending, asleep like its key
    assert done.produced == {}


def test_a_value_that_cannot_be_decoded_is_quarantined() -> None:
    bad = msgspec.structs.replace(part(("a", 1)), values=[b"\xff"])
    done = executor_of(computation_of(failing(0, []))).run(work(bad))
    assert "CoderError" in done.quarantined[0].error


@pytest.mark.parametrize("column", ["keys", "values", "timestamps", "sequences"])
def test_a_bundle_whose_columns_differ_in_length_is_no_bundle(column: str) -> None:
    whole = part(("a", 1), ("b", 2))
    cut = msgspec.structs.replace(whole, **{column: getattr(whole, column)[:1]})
    with pytest.raises(InvariantError, match="different lengths"):
        executor_of(computation_of(failing(0, []))).run(work(cut))


def test_a_traceback_is_bounded() -> None:
    def hook(self: Any, context: Context, record: Record[str]) -> None:
        raise RuntimeError("x" * 100_000)

    assert len(run(hook, ("a", 1)).quarantined[0].error) == limits.TRACEBACK_LIMIT_CHARS


def test_of_a_long_traceback_the_end_is_kept_which_says_what_was_wrong() -> None:
    def hook(self: Any, context: Context, record: Record[str]) -> None:
        raise RuntimeError("x" * limits.TRACEBACK_LIMIT_CHARS + " and so it failed")

    done = run(hook, ("a", 1))
    assert done.quarantined[0].error.endswith("and so it failed\n")


def test_a_timer_whose_hook_fails_is_quarantined_with_its_kind() -> None:
    def ring(self: Any, context: Context, timer: Timer) -> None:
        raise RuntimeError("no")

    done = executor_of(computation_of(timer=ring)).run(work(timers=[Timer("a", "t", 7, "wall")]))
    (entry,) = done.quarantined
    assert (entry.key, entry.subscription, entry.tag, entry.kind, entry.timestamp) == ("a", -1, "t", "wall", 7)


def test_a_computation_without_the_hook_of_timers_says_what_to_define() -> None:
    done = executor_of(computation_of()).run(work(timers=[Timer("b", "t", 7)]))
    assert "It sets timers, so it must define ProcessTimer" in done.quarantined[0].error


def test_a_timer_that_an_earlier_hook_moved_or_cancelled_does_not_fire() -> None:
    fired: list[str] = []

    def ring(self: Any, context: Context, timer: Timer) -> None:
        fired.append(timer.tag)
        if timer.tag == "first":
            context.set_timer("moved", 100)
            context.cancel_timer("cancelled")

    timers = [Timer("a", tag, 5) for tag in ("first", "moved", "cancelled", "last")]
    done = executor_of(computation_of(timer=ring)).run(work(timers=timers))
    assert fired == ["first", "last"]
    assert done.timers == {"a": {("watermark", "moved"): 100, ("watermark", "cancelled"): None}}


def entry(value: str, sequence: SequenceNumber) -> QuarantineEntry:
    return QuarantineEntry(value.split("=")[0], IN, ProducerId(5), sequence, value.encode(), sequence)


def test_a_redrive_goes_on_in_order_until_one_fails() -> None:
    calls: list[str] = []
    executor = executor_of(computation_of(failing(99, calls)))
    done = executor.run(
        work(
            redrive=[
                entry("a=1", SequenceNumber(1)),
                entry("a=bad", SequenceNumber(2)),
                entry("a=3", SequenceNumber(3)),
            ]
        )
    )
    assert (done.redriven, values(done)) == ({"a": 1}, ["a=1"])
    assert (calls, done.quarantined) == (["a=1", "a=bad"], [])


def test_what_a_redriven_record_produces_has_its_time_and_not_that_of_what_ran_before() -> None:
    entries = [entry("a=1", SequenceNumber(7)), entry("b=1", SequenceNumber(9))]
    (produced,) = executor_of(computation_of(producing([]))).run(work(redrive=entries)).produced.values()
    assert produced.timestamps == [7, 9]


def test_a_redrive_runs_timers_too() -> None:
    fired: list[Timer] = []

    def ring(self: Any, context: Context, timer: Timer) -> None:
        fired.append(timer)

    timer = QuarantineEntry("a", SubscriptionId(-1), ProducerId(0), SequenceNumber(0), b"", 9, "t", "wall")
    assert executor_of(computation_of(timer=ring)).run(work(redrive=[timer])).redriven == {"a": 1}
    assert fired == [Timer("a", "t", 9, "wall")]


@pytest.mark.parametrize("way", ["at once", "tried again", "redriven"])
def test_a_record_is_late_behind_the_watermark_whichever_way_it_comes_to_its_hook(way: str) -> None:
    tried: list[str] = []
    late: dict[str, bool] = {}

    def hook(self: Any, context: Context, record: Record[str]) -> None:
        tried.append(record.key)
        if way == "tried again" and tried.count(record.key) == 1:
            raise RuntimeError("once")
        late[record.key] = record.late
        context.produce(out, record.key)

    given = work(watermark=6)
    if way == "redriven":
        given.redrive = [entry(f"{'abc'[n]}=1", SequenceNumber(5 + n)) for n in range(3)]
    else:
        given.parts = [part(("a=1", 5), ("b=1", 6), ("c=1", 7))]
    done = executor_of(computation_of(hook)).run(given)
    assert late == {"a": True, "b": False, "c": False}
    assert sorted(values(done)) == ["a", "b", "c"]


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("what", ["ProcessRecord", "ProcessTimer"])
def test_who_is_told_of_a_failure_hears_which_hook_it_was_and_whether_it_ran_again(what: str, again: bool) -> None:
    def fails(self: Any, context: Context, _: object) -> None:
        raise RuntimeError("no")

    told: list[tuple[str, str, str, bool]] = []
    executor = executor_of(computation_of(fails, fails))
    executor.on_failure = lambda hook, key, error, redriven: told.append((hook, key, str(error), redriven))
    timer = Timer("a", "t", 1)
    if what == "ProcessTimer":
        given = work(redrive=[QuarantineEntry.of_timer(timer, "")]) if again else work(timers=[timer])
    else:
        given = work(redrive=[entry("a=1", SequenceNumber(1))]) if again else work(part(("a=1", 1)))
    executor.run(given)
    assert told == [(what, "a", "no", again)]


class Heir(Computation[str]):
    """Reads what earlier records of the same invocation wrote."""

    seen = ListCell(JsonCoder(str))

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        context.produce(out, ",".join(self.seen))
        self.seen.append(record.value)


def test_a_record_sees_the_writes_of_its_key_only() -> None:
    done = executor_of(Heir).run(work(part(("a=1", 1), ("b=1", 1), ("a=2", 1), ("a=3", 1))))
    assert values(done) == ["", "", "a=1", "a=1,a=2"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_is_not_kept_back(error: type[BaseException]) -> None:
    def hook(self: Any, context: Context, record: Record[str]) -> None:
        raise error

    with pytest.raises(error):
        run(hook, ("a", 1))


# --- what is too much for one checkpoint --------------------------------------------------------------------------


def producing(calls: list[str]) -> Any:
    """A hook that produces as many values of 100 bytes as its value says."""

    def hook(self: Any, context: Context, record: Record[str]) -> None:
        calls.append(record.value)
        for _ in range(int(record.value.partition("=")[2])):
            context.produce(out, "o" * 100)

    return hook


def test_records_that_make_too_much_together_do_not_count_and_it_says_how_many_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "OUTCOME_LIMIT_BYTES", 1_000)
    calls: list[str] = []
    executor = executor_of(computation_of(producing(calls)))
    parts = [part(("a=3", 1), ("b=3", 1)), part(("c=3", 1), ("d=3", 1))]
    done = executor.run(work(*parts))
    assert (done.fits, done.produced, done.processed, calls) == (3, {}, 0, ["a=3", "b=3", "c=3"])
    done = executor.run(work(parts[0], part(("c=3", 1))))
    assert (done.fits, len(values(done)), done.processed) == (0, 9, 3)
    assert done.written_bytes == 9 * (100 + limits.WRITE_OVERHEAD_BYTES)


def test_a_call_that_makes_too_much_is_an_error_of_its_hook_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of one that would go on for ever; and what it has made does not count against others."""
    monkeypatch.setattr(limits, "CALL_LIMIT_BYTES", 1_000)
    calls: list[str] = []
    executor = executor_of(computation_of(producing(calls)), hook_attempts=2)
    done = executor.run(work(part(("a=6", 1), ("b=1000000000", 1), ("c=7", 1))))
    assert [(entry.key, "more than 1,000 bytes in one call" in entry.error) for entry in done.quarantined] == [
        ("b", True)
    ]
    assert len(values(done)) == 13
    assert done.written_bytes == 13 * (100 + limits.WRITE_OVERHEAD_BYTES)


def test_a_few_very_heavy_values_are_weighed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CALL_LIMIT_BYTES", 4_000_000)

    def hook(self: Any, context: Context, record: Record[str]) -> None:
        for _ in range(int(record.value.partition("=")[2])):
            context.produce(out, "o" * 1_000_000)

    done = executor_of(computation_of(hook)).run(work(part(("a=3", 1), ("b=4", 1))))
    assert [entry.key for entry in done.quarantined] == ["b"]


def test_rows_of_sink_tables_are_weighed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CALL_LIMIT_BYTES", 4_000)

    def hook(self: Any, context: Context, record: Record[str]) -> None:
        for number in range(int(record.value.partition("=")[2])):
            context.upsert(table, {"k": "k" * 100, "n": number})

    done = executor_of(computation_of(hook)).run(work(part(("a=3", 1), ("b=1000000000", 1))))
    assert [entry.key for entry in done.quarantined] == ["b"]
    assert len(done.sinks) == 3


class Writes(Computation[str]):
    """Writes one value again and again."""

    seen = ListCell(JsonCoder(str))

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        for _ in range(1_000):
            self.seen.clear()
            self.seen.append("x" * 100)


def test_what_is_written_over_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CALL_LIMIT_BYTES", 10_000)
    assert executor_of(Writes).run(work(part(("a=1", 1)))).quarantined == []


class CountsUp(Computation[str]):
    """Appends to a list, which writes the length over the last one each time."""

    seen = ListCell(JsonCoder(int))

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        for _ in range(1_000):
            self.seen.append(1)


def test_a_light_value_that_is_written_over_leaves_no_room_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CALL_LIMIT_BYTES", 10_000)
    (entry,) = executor_of(CountsUp, hook_attempts=1).run(work(part(("a=1", 1)))).quarantined
    assert "more than 10,000 bytes in one call" in entry.error


def test_what_an_invocation_had_made_before_it_waited_counts_once_after_that() -> None:
    frame = Frame()
    frame.start(work())
    for made in (b"x" * 100, b"y" * 50):
        frame.pending.extend((1, "a", made, 7))
    written = frame.written_bytes()
    assert written == 150 + 2 * limits.WRITE_OVERHEAD_BYTES
    column = frame.entry_column("seen")
    column.written = {"a": {"entry": b"1"}}
    suspended = frame.suspend(InvocationOutcome(), [])
    frame.start(work())
    assert (frame.written_bytes(), frame.pending, column.written) == (0, [], {})
    frame.abandon()
    frame.start(msgspec.structs.replace(work(), suspended=suspended))
    assert (frame.written_bytes(), column.written) == (written, {"a": {"entry": b"1"}})
    assert frame.pending[2::4] == [b"x" * 100, b"y" * 50]


def test_timers_for_which_there_is_no_room_fire_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OUTCOME_LIMIT_BYTES", 250)

    def ring(self: Any, context: Context, timer: Timer) -> None:
        context.produce(out, "o" * 100)

    timers = [Timer("abcd"[n], "t", n, "wall") for n in range(4)]
    done = executor_of(computation_of(timer=ring)).run(work(timers=timers))
    assert (len(values(done)), done.timers) == (2, {"c": {("wall", "t"): 2}, "d": {("wall", "t"): 3}})
    assert done.chained == -2


def test_elements_of_a_redrive_for_which_there_is_no_room_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OUTCOME_LIMIT_BYTES", 250)
    entries = [entry(f"{'abcd'[n]}=1", SequenceNumber(n)) for n in range(4)]
    done = executor_of(computation_of(producing([]))).run(work(redrive=entries))
    assert done.redriven == {"a": 1, "b": 1}


class Mixes(Computation[str]):
    """Produces and writes as its values say: p, P produce and w, W write, small and large ones; ! fails."""

    count = ValueCell(JsonCoder(str), "")
    seen = ListCell(JsonCoder(str))

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        for what in record.value:
            size = limits.HEAVY_VALUE_BYTES + 100 if what.isupper() else 100
            if what in "pP":
                context.produce(out, f"{record.key}={'o' * size}")
            elif what == "W":
                self.count.set("c" * size)
            elif what == "w":
                self.seen.append("l" * size)
            elif what == "!":
                raise RuntimeError("no")


@given(st.lists(st.text("pPwW!", max_size=8), min_size=1, max_size=12), st.integers(3, 20), st.integers(1, 20))
def test_what_hooks_make_is_weighed_as_if_each_call_were_weighed_alone(
    calls: list[str], call_kb: int, outcome_kb: int
) -> None:
    """Whatever was weighed together, and whoever failed: the same calls are too large, and as many fit."""
    rows = [(f"k{n:02}={calls[n]}", n) for n in range(len(calls))]
    most, all_of_them = call_kb * 8_000, outcome_kb * 8_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "CALL_LIMIT_BYTES", 1 << 40)
        patch.setattr(limits, "OUTCOME_LIMIT_BYTES", 1 << 40)
        alone = [executor_of(Mixes, hook_attempts=1).run(work(part(row))) for row in rows]
        sizes = [one.written_bytes for one in alone]
        patch.setattr(limits, "CALL_LIMIT_BYTES", most)
        patch.setattr(limits, "OUTCOME_LIMIT_BYTES", all_of_them)
        done = executor_of(Mixes, hook_attempts=1).run(work(*(part(row) for row in rows)))
    total = fit = 0
    failed = []
    for n, (size, one) in enumerate(zip(sizes, alone, strict=True)):
        if total > all_of_them:
            break
        fit += 1
        if one.quarantined or size > most:
            failed.append(rows[n][0].partition("=")[0])
        else:
            total += size
    assert not any(one.quarantined for n, one in enumerate(alone) if "!" not in calls[n])
    if fit < len(rows):
        assert done.fits == fit
    else:
        assert (done.fits, done.written_bytes, [entry.key for entry in done.quarantined]) == (0, total, failed)
