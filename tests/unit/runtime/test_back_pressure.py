"""A fast source before a slow computation: what is in memory is bounded in bytes, whatever the number of records."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from millwheel import BytesCoder, Computation, Context, Pipeline, Record, Snapshots, Stream, limits, subscribe
from millwheel.bundles import KeyRows
from millwheel.core.interval import events as ev
from millwheel.core.interval.machine import IntervalCore
from millwheel.core.source import injector
from millwheel.core.source.injector import InjectorCore
from millwheel.host.alphabet import ReadRows, RowsArrived
from millwheel.host.routes import Routes
from millwheel.ids import IntervalId
from millwheel.runtime.embedded import EmbeddedRun
from millwheel.runtime.usercode import UserCode
from millwheel_injectors import IterableSource
from millwheel_storage.memory import MemoryStore

KIB = 1024
ROW_BYTES = 10 * KIB
ROWS = 2_000
LIMIT_BYTES = 400 * KIB

blobs = Stream("blobs", BytesCoder())
copies = Stream("copies", BytesCoder())


def rows() -> Iterator[tuple[bytes, int]]:
    return ((b"x" * ROW_BYTES, i) for i in range(ROWS))


class Peaks:
    """The most bytes that were seen at a time: read and not acked, waiting at an interval, sent and not acked."""

    def __init__(self) -> None:
        self.run: EmbeddedRun | None = None
        self.unread = self.waiting = self.sent = 0

    def look(self) -> None:
        assert self.run is not None
        cores = [actor.core for actor in self.run.worker.actors.all.values()]
        intervals = [core for core in cores if isinstance(core, IntervalCore)]
        sources = [core for core in cores if isinstance(core, InjectorCore)]
        self.unread = max([self.unread, *(core._unacked_bytes for core in sources)])
        self.waiting = max([self.waiting, *(core.inbox_bytes for core in intervals)])
        self.sent = max([self.sent, *(core._outbox.unacked_bytes for core in intervals)])


class Copy(Computation[bytes]):
    """Sends each value on, ten times."""

    def ProcessRecord(self, context: Context, record: Record[bytes]) -> None:
        for _ in range(10):
            context.produce(copies, record.value)


class Look(Computation[bytes]):
    """The slow one, as far as the peaks are concerned: every record is one invocation and one commit."""

    def __init__(self, peaks: Peaks) -> None:
        self.peaks = peaks

    def ProcessRecord(self, context: Context, record: Record[bytes]) -> None:
        self.peaks.look()


def peaks_of(sources: int, copied: bool = False) -> Peaks:
    peaks = Peaks()
    pipeline = Pipeline("p")
    for number in range(sources):
        pipeline.inject(IterableSource(f"source {number}".replace(" ", "-"), rows), into=blobs)
    if copied:
        pipeline.add(Copy, [subscribe(blobs, lambda _: "k")], [copies], work_limit_records=5)
    stream = copies if copied else blobs
    pipeline.add(lambda: Look(peaks), [subscribe(stream, lambda _: "k")], name="Look", work_limit_records=1)
    peaks.run = EmbeddedRun(pipeline.graph(), MemoryStore(), {})
    progress = asyncio.run(peaks.run.run())
    assert progress.injected == sources * ROWS
    return peaks


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(injector, "FIRST_READ_ROWS", 4)
    monkeypatch.setattr(injector, "READ_LIMIT_BYTES", 50 * KIB)
    monkeypatch.setattr(limits, "INBOX_LIMIT_BYTES", LIMIT_BYTES)
    monkeypatch.setattr(limits, "UNACKED_LIMIT_BYTES", LIMIT_BYTES)


ONE_READ = 5 * (ROW_BYTES + limits.RECORD_OVERHEAD_BYTES)


def test_one_source_stops_at_its_unacked_bytes() -> None:
    peaks = peaks_of(1)
    assert LIMIT_BYTES // 2 < peaks.unread < LIMIT_BYTES + ONE_READ


def test_many_sources_stop_at_what_waits_before_the_computation() -> None:
    peaks = peaks_of(6)
    # Each source may have one read on its way to the computation and one more that nobody has looked at.
    assert LIMIT_BYTES // 2 < peaks.waiting < LIMIT_BYTES + 6 * 2 * ONE_READ


def test_without_the_bound_there_would_be_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "INBOX_LIMIT_BYTES", 10**9)
    assert peaks_of(6).waiting > 3 * LIMIT_BYTES


def test_an_interval_stops_at_its_unacked_productions() -> None:
    peaks = peaks_of(1, copied=True)
    assert LIMIT_BYTES // 2 < peaks.sent < LIMIT_BYTES + 2 * 10 * ONE_READ


def test_how_many_rows_are_a_reads_worth_is_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    original = UserCode.read

    def read(self: UserCode, wanted: ReadRows) -> RowsArrived:
        asked.append(wanted.limit)
        return original(self, wanted)

    monkeypatch.setattr(UserCode, "read", read)
    peaks_of(1)
    assert asked[0] == 4
    assert set(asked[2:]) == {50 * KIB // (ROW_BYTES + limits.RECORD_OVERHEAD_BYTES)}


# --- behind a barrier -----------------------------------------------------------------------------------------------------

BEHIND_S = 0.5
FAST = 4
"""Intervals that are ahead of the slow one."""

late_rows, late_copies = Stream("late-rows", BytesCoder()), Stream("late-copies", BytesCoder())


class SlowOnce(MemoryStore):
    """One key takes its time."""

    async def load(self, interval: IntervalId, keys: Sequence[str], timers: bool = False) -> list[KeyRows]:
        if "late" in keys:
            await asyncio.sleep(BEHIND_S)
        return await super().load(interval, keys, timers)


class Late(Computation[bytes]):
    def ProcessRecord(self, context: Context, record: Record[bytes]) -> None:
        context.produce(late_copies, record.value)


class Once(Computation[bytes]):
    def ProcessRecord(self, context: Context, record: Record[bytes]) -> None:
        context.produce(copies, record.value)


class Meet(Computation[bytes]):
    def ProcessRecord(self, context: Context, record: Record[bytes]) -> None:
        """What has come is forgotten."""


def first(value: bytes) -> str:
    return value[:4].decode()


def parked_while_one_input_is_late(monkeypatch: pytest.MonkeyPatch) -> int:
    """The most bytes that were held back behind barriers."""
    peak = 0
    handle = IntervalCore.handle

    def watched(self: IntervalCore, event: ev.Event, now: int) -> list[ev.Effect]:
        nonlocal peak
        effects = handle(self, event, now)
        peak = max(peak, self._alignment.size_bytes)
        return effects

    monkeypatch.setattr(IntervalCore, "handle", watched)
    slow = [(b"%04d" % (n % 10) if n != 200 else b"late", n) for n in range(600)]
    fast = ((b"%04d" % (n % 40) + b"x" * ROW_BYTES, n) for n in range(ROWS))
    pipeline = Pipeline("p", durability=Snapshots(every_ms=20))
    pipeline.inject(IterableSource("slow", slow), into=late_rows)
    pipeline.inject(IterableSource("fast", lambda: fast), into=blobs)
    pipeline.add(Late, [subscribe(late_rows, first)], [late_copies], work_limit_records=1)
    splits = [f"{40 * n // FAST:04d}" for n in range(1, FAST)]
    pipeline.add(Once, [subscribe(blobs, first)], [copies], work_limit_records=1, split_keys=splits)
    pipeline.add(Meet, [subscribe(late_copies, lambda _: "k"), subscribe(copies, lambda _: "k")])
    run = EmbeddedRun(pipeline.graph(), SlowOnce(), {})
    assert asyncio.run(run.run()).injected == len(slow) + ROWS
    return peak


def test_what_is_parked_behind_a_late_barrier_is_bounded_for_all_senders_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "UNACKED_LIMIT_BYTES", 2 * LIMIT_BYTES)
    # Each sender may pass its share by one invocation's productions, which is one record here.
    parked = parked_while_one_input_is_late(monkeypatch)
    assert LIMIT_BYTES < parked < 2 * LIMIT_BYTES + FAST * (ROW_BYTES + limits.RECORD_OVERHEAD_BYTES)


def test_if_senders_shared_no_room_more_would_be_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UNACKED_LIMIT_BYTES", 2 * LIMIT_BYTES)
    monkeypatch.setattr(Routes, "_crowds", lambda self: {})
    assert parked_while_one_input_is_late(monkeypatch) > 4 * LIMIT_BYTES
