"""A file that is replayed at a pace, on Postgres and by the real clock: stopped half-way, it goes on from where it stood."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from millwheel import SECOND, Computation, Context, JsonCoder, Pipeline, Record, Stream, ValueCell, subscribe
from millwheel.committed import Committed
from millwheel_injectors import BoundedDisorder, FileSource, JsonLines
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres import PostgresStore
from tests.unit.runtime.drive import run_to_end, run_until

pytestmark = pytest.mark.postgres

RATE = 60
BOUND_S = 30
TIMES_S = [0, 20, 60, 10, 70, 120, 80, 100, 240]
"""Behind 60, 10 is late; behind 120, 80 is, and 100 is not."""
LATE = 2

rows = Stream("rows", JsonCoder(int))
came: list[tuple[int, float]] = []
"""Second of the row, and when it was read."""


class Count(Computation[int]):
    """Rows, and how many were late."""

    seen = ValueCell(JsonCoder(int), default=0)
    late = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[int]) -> None:
        self.seen.set(self.seen.get() + 1)
        self.late.set(self.late.get() + record.late)


def replay(name: str, path: Path) -> Pipeline:
    pipeline = Pipeline(name)
    source = FileSource(
        "log", path, JsonLines(int), event_time=lambda second: second * SECOND,
        watermark=BoundedDisorder(BOUND_S * SECOND), pace=RATE,
    )  # fmt: skip
    pipeline.inject(source, into=rows)
    pipeline.add(Count, [subscribe(rows, key=key_of)])
    return pipeline


def key_of(second: int) -> str:
    came.append((second, time.monotonic()))
    return "all"


def check(first: int, started: float) -> None:
    """No row was read before its time, in a run whose clock cannot have begun before `started`, at second `first`."""
    newest = first
    for second, at in came:
        newest = max(newest, second)
        assert at - started >= (newest - first) / RATE - 0.01, (second, came)
    came.clear()


def test_late_rows_are_late_and_a_stop_does_not_make_it_hurry(
    postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"{second}\n" for second in TIMES_S))
    came.clear()
    started = time.monotonic()
    run_until(replay(pipeline, path), PostgresStore(postgres.url, pipeline), lambda run: run.progress().records >= 5)
    assert [second for second, _ in came][:5] == TIMES_S[:5]
    check(0, started)
    time.sleep(1)  # the replay does not play what would have come meanwhile
    started = time.monotonic()
    run_to_end(replay(pipeline, path), PostgresStore(postgres.url, pipeline))
    stood = TIMES_S.index(came[0][0])  # what was not durable is read again
    assert [second for second, _ in came] == TIMES_S[stood:]
    check(max(TIMES_S[: stood + 1]), started)
    with Committed(replay(pipeline, path), postgres.url) as committed:
        assert committed.state("Count", "all") == {"seen": len(TIMES_S), "late": LATE}
