"""A source that is silent for the time it declares: the watermark follows the wall clock, and only then."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from millwheel import SECOND, Computation, Context, Pipeline, Record, Stream, TextCoder, Timer, limits, subscribe
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.ports import Batch, SourcePartition
from millwheel.runtime.embedded import EmbeddedRun
from millwheel.runtime.shell import wall_clock_us
from millwheel_injectors import BoundedDisorder, FileCreation, FileSource
from millwheel_storage.memory import MemoryStore
from tests.unit.runtime.drive import Tap, TapPartition, run_until

IDLE_US = 300_000

beats = Stream("beats", TextCoder())


heard: list[tuple[str, int]] = []
"""("beat", event time) and ("dip", event time) as hooks saw them."""


class Watch(Computation[str]):
    """Notes that nothing came for a tenth of a second of event time: the dip."""

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        heard.append(("beat", record.timestamp))
        context.set_timer("dip", record.timestamp + SECOND // 10)

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        heard.append(("dip", timer.timestamp))


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    heard.clear()
    monkeypatch.setattr(limits, "DISCOVER_DELAY_US", 20_000)


def pipeline(source: FileSource) -> Pipeline:
    wired = Pipeline("beats")
    wired.inject(source, into=beats)
    wired.add(Watch, [subscribe(beats, lambda beat: "heart")])
    return wired


def beat(place: Path, behind_us: int = 0) -> int:
    now = wall_clock_us()
    with place.open("a") as file:
        file.write(f"{now - behind_us}\n")
    return now


def watermark(run: EmbeddedRun) -> int:
    return run.progress().watermarks["source:log"]


KINDS: dict[str, dict[str, Any]] = {
    "a log": {},
    "a log in disorder": {"watermark": BoundedDisorder(50_000)},
    "unordered": {"ordered": False},
    "by creation": {"watermark": FileCreation(10 * SECOND)},
}


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_dip_is_reported_during_the_silence(tmp_path: Path, kind: str, many: bool) -> None:
    place = tmp_path / "in" / "log"
    place.parent.mkdir()
    began = beat(place)
    source = FileSource(
        "log", place.parent if many else place, event_time=int, tail=True, idle_after_us=IDLE_US, **KINDS[kind]
    )
    again: list[int] = []

    def reported(run: EmbeddedRun) -> bool:
        assert watermark(run) <= wall_clock_us() - source.disorder_us
        if len(heard) == 2 and not again:
            assert wall_clock_us() >= began + IDLE_US
            again.append(beat(place))
        return len(heard) == 4

    progress = run_until(pipeline(source), MemoryStore(), reported)
    assert (progress.injected, progress.late, progress.finished) == (2, 0, False)
    dip = SECOND // 10
    assert heard == [("beat", began), ("dip", began + dip), ("beat", again[0]), ("dip", again[0] + dip)]


def held(wired: Pipeline, store: MemoryStore) -> int:
    """The source's watermark when four times the silence has passed."""
    until = wall_clock_us() + 4 * IDLE_US
    found = []

    def over(run: EmbeddedRun) -> bool:
        found.append(watermark(run))
        return wall_clock_us() > until

    run_until(wired, store, over)
    return found[-1]


def test_without_a_word_of_it_silence_holds(tmp_path: Path) -> None:
    place = tmp_path / "log"
    began = beat(place)
    assert held(pipeline(FileSource("log", place, event_time=int, tail=True)), MemoryStore()) == began


def test_a_source_that_has_no_file_yet_holds(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "log"):
        source = FileSource("log", path, event_time=int, tail=True, idle_after_us=IDLE_US)
        assert held(pipeline(source), MemoryStore()) == MIN_TIME


def test_a_file_that_waits_for_its_turn_is_not_silent(tmp_path: Path) -> None:
    """The second file is read when the first is finished, which it never is here."""
    began = beat(tmp_path / "1")
    beat(tmp_path / "2")
    source = FileSource(
        "log", tmp_path, event_time=int, tail=True, ordered=True, quiet_us=3600 * SECOND, idle_after_us=IDLE_US
    )
    assert held(pipeline(source), MemoryStore()) == began


def test_finished_files_leave_a_source_idle_and_not_finished(tmp_path: Path) -> None:
    began = beat(tmp_path / "1")
    source = FileSource("log", tmp_path, event_time=int, tail=True, quiet_us=1, idle_after_us=IDLE_US)
    store = MemoryStore()
    assert began < held(pipeline(source), store) < MAX_TIME
    again = FileSource("log", tmp_path, event_time=int, tail=True, quiet_us=1, idle_after_us=IDLE_US)
    assert began < held(pipeline(again), store) < MAX_TIME


class Meanwhile(Tap):
    """Its rows are written while it looks and finds nothing: one into what is there, then one into a new partition."""

    idle_after_us = IDLE_US

    def __init__(self) -> None:
        super().__init__("meanwhile", [("old", wall_clock_us())])
        self.parts: dict[str, Tap] = {self.name: self}

    def look(self) -> None:
        """As long as a look takes on a slow disk."""
        written = wall_clock_us()
        time.sleep(0.03)
        if len(heard) == 2 and len(self.rows) == 1:
            self.rows.append(("while it is read", written))

    def discover(self, known: Iterable[str]) -> list[SourcePartition]:
        unknown = [part for name, part in self.parts.items() if name not in known]
        written = wall_clock_us()
        time.sleep(0.03)
        if len(heard) == 4 and len(self.parts) == 1:
            self.parts["next"] = Tap("next", [("while it looks for others", written)])
        return [Looked(self, part) for part in unknown]

    def complete(self) -> bool:
        return False

    def pending_watermark(self) -> int:
        return MIN_TIME


class Looked(TapPartition):
    def __init__(self, source: Meanwhile, tap: Tap) -> None:
        super().__init__(tap)
        self.name = tap.name
        self.source = source

    def read(self, limit: int) -> Batch | None:
        batch = super().read(limit)
        if batch is None:
            self.source.look()
        return batch


def test_what_is_written_while_a_source_looks_is_not_late() -> None:
    source = Meanwhile()
    wired = Pipeline("beats")
    wired.inject(source, into=beats)
    wired.add(Watch, [subscribe(beats, lambda beat: "heart")])
    progress = run_until(wired, MemoryStore(), lambda run: len(heard) == 6)
    assert (progress.injected, progress.late) == (3, 0)
