"""Files that are replayed: where a read ends, what is announced, and going on from any row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.source import Ahead
from millwheel_injectors import BoundedDisorder, Exact, FileSource
from millwheel_injectors.paced import PacedTextPartition

TIMES = [0, 10, 100, 50, 101, 60, 200]
"""With a bound of 5, 50 is late behind 100, and 60 behind 101."""


def opened(path: Path, policy: Any = None, position: int = 0, state: bytes | None = None) -> PacedTextPartition:
    source = FileSource("log", path, event_time=int, watermark=policy or BoundedDisorder(5), pace=1)
    (partition,) = source.discover(())
    assert isinstance(partition, PacedTextPartition)
    partition.resume(position, partition.fingerprint() if state is None else state)
    return partition


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.write_text("".join(f"{time}\n" for time in TIMES))
    return path


def test_a_row_that_is_not_due_is_told_and_not_given(log: Path) -> None:
    partition = opened(log)
    assert partition.read_due(10, MIN_TIME) == (None, Ahead(0, 0, False))
    batch, ahead = partition.read_due(10, 99)
    assert batch is not None
    assert (batch.timestamps, batch.next_position, ahead) == ([0, 10], 2, Ahead(100, 100, False))
    assert partition.watermark() == 5, "the rows that were read ahead do not count"


def test_a_late_row_stands_where_it_stands_and_is_announced_once(log: Path) -> None:
    partition, given = opened(log), []
    while not partition.finished():
        batch, ahead = partition.read_due(10, MAX_TIME)
        given.append((batch.timestamps if batch is not None else None, ahead))
    late = [([0, 10, 100], Ahead(50, 100, True)), ([50, 101], Ahead(60, 101, True)), ([60, 200], None), (None, None)]
    assert given == late


def test_a_row_that_is_in_time_announces_no_late_one(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("0\n100\n98\n50\n")
    partition, given = opened(path), []
    for limit in (2, 9, 9):
        batch, ahead = partition.read_due(limit, MAX_TIME)
        given.append((batch.timestamps if batch is not None else None, ahead))
    assert given == [([0, 100], Ahead(98, 100, False)), ([98], Ahead(50, 100, True)), ([50], None)]


def test_without_a_promise_that_is_broken_nothing_is_late(log: Path) -> None:
    batch, ahead = opened(log, Exact()).read_due(10, MAX_TIME)
    assert batch is not None
    assert (batch.timestamps, ahead) == (TIMES, None)
    batch, _ = opened(log, BoundedDisorder(100)).read_due(10, MAX_TIME)
    assert batch is not None
    assert batch.timestamps == TIMES


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("stop", range(1, 8))
def test_it_goes_on_from_any_row_with_what_was_promised(tmp_path: Path, limit: int, stop: int) -> None:
    path = tmp_path / "log"
    path.write_text("\nx\n" + "".join(f"{time}\n\n" for time in TIMES))  # blank and malformed rows have numbers too
    partition, times, position, state = opened(path), [], 0, None
    promised = MIN_TIME
    for upto in (55, MAX_TIME):
        while not partition.finished():
            batch, ahead = partition.read_due(limit, upto)
            if batch is not None:
                times += batch.timestamps
                position, state, promised = batch.next_position, batch.state, partition.watermark()
            if len(times) >= stop or (batch is None and ahead is not None and not ahead.late):
                break
        if not partition.finished():
            partition.close()
            partition = opened(path, None, position, state)
            assert partition.watermark() == promised
    while not partition.finished():
        batch, _ = partition.read_due(limit, MAX_TIME)
        times += batch.timestamps if batch is not None else []
    assert times == TIMES


@pytest.mark.parametrize("stop", range(1, 9))
def test_a_malformed_row_counts_with_the_position_behind_it(tmp_path: Path, stop: int) -> None:
    path = tmp_path / "log"
    path.write_text("0\nx\n10\ny\n20\nz\nz\n30\n40\nx\n")
    rejected, position, state = 0, 0, None
    for upto in (stop * 5, MAX_TIME):
        partition = opened(path, None, position, state)
        while not partition.finished():
            batch, ahead = partition.read_due(1, upto)
            if batch is not None:
                rejected, position, state = rejected + batch.rejected, batch.next_position, batch.state
            elif ahead is not None:
                break
        if upto < MAX_TIME:
            partition.close()
    assert (rejected, position) == (5, 10)


def test_what_a_late_row_is_due_for_survives_a_restart(log: Path) -> None:
    partition = opened(log)
    batch, _ = partition.read_due(10, MAX_TIME)
    assert batch is not None
    again = opened(log, None, batch.next_position, batch.state)
    assert again.read_due(10, MIN_TIME) == (None, Ahead(50, 100, True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pace": 0}, "pace=0 is no rate"),
        ({"pace": -1.5}, "is no rate"),
        ({"pace": float("inf")}, "is no rate"),
        ({"pace": float("nan")}, "is no rate"),
        ({"pace": "60"}, "is no rate"),
        ({"pace": True}, "is no rate"),
        ({"pace": 60, "event_time": None}, "needs an event_time"),
        ({"pace": 60, "tail": True}, "without tail"),
        ({"pace": 60, "idle_after_us": 1}, "without tail"),
    ],
)
def test_a_pace_that_means_nothing_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FileSource("log", "log", **{"event_time": int} | options)


def test_a_row_is_given_at_its_time_and_not_a_moment_later(log: Path) -> None:
    partition = opened(log)
    batch, ahead = partition.read_due(10, 10)
    assert batch is not None
    assert (batch.timestamps, ahead) == ([0, 10], Ahead(100, 100, False))


@pytest.mark.parametrize("position", [0, 1, 5])
def test_it_goes_back_while_rows_are_held(log: Path, position: int) -> None:
    partition = opened(log)
    begun = partition.fingerprint()
    assert partition.read_due(2, MAX_TIME)[0] is not None
    partition.resume(position, begun)
    given: list[int] = []
    while not partition.finished():
        batch, _ = partition.read_due(10, MAX_TIME)
        given += batch.rows if batch is not None else []
    assert given == [*range(position, len(TIMES))]
