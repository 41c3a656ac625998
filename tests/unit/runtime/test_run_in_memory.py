"""Whole runs on the memory store: fast enough to try many settings; the Postgres twin is tested in integration."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millwheel import (
    SECOND,
    Computation,
    Context,
    JsonCoder,
    MapCell,
    Pipeline,
    Record,
    Stream,
    TextCoder,
    Timer,
    limits,
)
from millwheel.core.source import injector
from millwheel.errors import WiringError
from millwheel.host.progress import Progress
from millwheel.launch import import_pipeline
from millwheel.model import MAX_TIME
from millwheel.ports import WatermarkWrite
from millwheel_injectors import FileSource, IterableSource
from millwheel_storage.memory import MemoryStore
from tests.unit.runtime.drive import (
    Cells,
    expected_counts,
    run_cancelled,
    run_to_end,
    subscribe,
    text_lines,
    word_count,
)

ROWS = text_lines(1_000, seed=2)


def cells(store: MemoryStore, computation: str) -> Cells:
    return {
        key: {f"{c}[{e}]" if e else c: msgspec.json.decode(v) for (c, e), v in found.items()}
        for key, found in store.key_state[computation].items()
    }


@pytest.mark.parametrize("read", [1, 13, 4_096])
@pytest.mark.parametrize("work_limit", [1, 17, 4_096])
@pytest.mark.parametrize("productions", ["strong", "weak"])
def test_counts_do_not_depend_on_how_work_is_divided(
    monkeypatch: pytest.MonkeyPatch, read: int, work_limit: int, productions: str
) -> None:
    monkeypatch.setattr(injector, "READ_LIMIT_ROWS", read)
    rows = ROWS[: 20 * min(read, 20 * work_limit)]
    store = MemoryStore()
    common: dict[str, Any] = {"work_limit_records": work_limit, "cache_limit_bytes": 1, "split_keys": ("m", "or")}
    run_to_end(word_count("p", rows, {**common, "productions": productions}, common), store)
    by_line, by_word = expected_counts(rows)
    assert (cells(store, "Split"), cells(store, "Count")) == (by_line, by_word)
    tables = store.tables()
    assert {t: tables[t] for t in ("checkpoint_log", "production", "delivered")} == {
        "checkpoint_log": [], "production": [], "delivered": [],
    }  # fmt: skip


def test_cancelled_runs_resume_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(injector, "READ_LIMIT_ROWS", 50)
    store = MemoryStore()
    cancelled = sum(run_cancelled(word_count("p", ROWS), store, 0.01 + 0.004 * i) is None for i in range(12))
    run_to_end(word_count("p", ROWS), store)
    assert cancelled
    assert (cells(store, "Split"), cells(store, "Count")) == expected_counts(ROWS)


@pytest.mark.timeout(240)
def test_a_run_whose_every_turn_takes_longer_than_its_pause_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    # As on a busy machine with hundreds of intervals, whose last acks and folds take longer to ask for than the pause after.
    monkeypatch.setattr(limits, "END_DELAY_US", 0)
    store = MemoryStore()
    run_to_end(word_count("p", ROWS), store)
    assert (cells(store, "Split"), cells(store, "Count")) == expected_counts(ROWS)


texts = Stream("texts", TextCoder())


class Order(Computation[str]):
    """Notes when things happen."""

    def __init__(self, seen: list[tuple[str, int]]) -> None:
        self.seen = seen

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        self.seen.append(("record", record.timestamp))
        context.set_timer(f"{record.timestamp}", record.timestamp + 5 * SECOND)

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        self.seen.append(("timer", timer.timestamp))
        assert timer.timestamp <= context.watermark


def test_timers_fire_in_order_and_none_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(injector, "READ_LIMIT_ROWS", 7)
    seen: list[tuple[str, int]] = []
    pipeline = Pipeline("p")
    pipeline.inject(IterableSource("text", [("k", i * SECOND) for i in range(200)]), into=texts)
    pipeline.add(lambda: Order(seen), [subscribe(texts, str)])
    run_to_end(pipeline, MemoryStore())
    assert [at for what, at in seen if what == "timer"] == [(i + 5) * SECOND for i in range(200)]
    assert [at for what, at in seen if what == "record"] == [i * SECOND for i in range(200)]


def test_rows_without_a_usable_key_or_time_are_rejected_and_counted() -> None:
    rows = [("a", 1), ("x" * 2_000, 2), ("b", 2**62), ("c", 3)]
    pipeline = Pipeline("p")
    pipeline.inject(IterableSource("text", rows), into=texts)
    pipeline.add(lambda: Order([]), [subscribe(texts, str)])
    progress = run_to_end(pipeline, MemoryStore())
    assert (progress.records, progress.rejected) == (2, 2)


@pytest.mark.parametrize("path", ["", "module", ":pipeline", "module:"])
def test_a_pipeline_path_needs_both_halves(path: str) -> None:
    with pytest.raises(WiringError, match="module:attribute"):
        import_pipeline(path)


class Keep(Computation[str]):
    """How often each line of a key was seen."""

    seen = MapCell(JsonCoder(int))

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        self.seen.set(record.value, (self.seen.get(record.value) or 0) + 1)


def test_a_row_that_a_client_sends_again_is_counted_once_across_partitions_and_runs(tmp_path: Path) -> None:
    def run(store: MemoryStore) -> Progress:
        source = FileSource("text", tmp_path, record_id=lambda line: line.split()[0], event_time=lambda line: 1)
        pipeline = Pipeline("ids")
        stream = Stream("lines", TextCoder())
        pipeline.inject(source, into=stream)
        pipeline.add(Keep, [subscribe(stream, lambda line: line.split()[1])], split_keys=["m"])
        return run_to_end(pipeline, store)

    store = MemoryStore()
    (tmp_path / "1.log").write_text("i1 apple\ni2 zoo\ni1 apple\n")
    (tmp_path / "2.log").write_text("i2 zoo\ni3 apple\n")
    progress = run(store)
    assert (progress.injected, progress.records, progress.repeated, progress.duplicates) == (5, 3, 2, 0)
    (tmp_path / "3.log").write_text("i3 apple\ni4 apple\n")
    progress = run(store)
    assert (progress.injected, progress.records, progress.repeated) == (2, 1, 1)
    assert cells(store, "Keep") == {
        "apple": {"seen[i1 apple]": 1, "seen[i3 apple]": 1, "seen[i4 apple]": 1},
        "zoo": {"seen[i2 zoo]": 1},
    }
    assert len(store.tables()["opaque_id"]) == 4


class Slow(MemoryStore):
    """Watermarks become durable some turns later than anything else."""

    async def persist_watermarks(self, writes: Sequence[WatermarkWrite]) -> set[str]:
        await asyncio.sleep(0.1)
        return await super().persist_watermarks(writes)


def test_a_source_that_comes_after_the_end_of_time_is_at_its_end_when_the_run_is() -> None:
    """Otherwise a run without it takes it for one that may still come back, and waits."""
    words = Stream("words", TextCoder())

    def of(source: str) -> Pipeline:
        pipeline = Pipeline("p")
        pipeline.inject(IterableSource(source, [("to", 1), ("be", 2)]), into=words)
        pipeline.add(Keep, inputs=[subscribe(words, key=str)])
        return pipeline

    store = Slow()
    for source in ("first", "second"):
        run_to_end(of(source), store)
        assert store.watermark[f"source:{source}"] == MAX_TIME
