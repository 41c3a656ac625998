"""What a run says of itself after it went back to a snapshot: what it had counted before still counts, and counts once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millwheel import processes
from millwheel.errors import StoreError
from millwheel.host.barriers import WentBack
from millwheel.host.over import Tolerance
from millwheel.host.progress import Progress
from millwheel.processes import ProcessPlan
from millwheel.runtime.embedded import EmbeddedRun
from millwheel_storage.memory import MemoryStore
from tests.unit.runtime.drive import text_lines, word_count
from tests.unit.runtime.going_back import EARLY, LATE, LATER, WRONG, GoingBack


def test_rows_are_counted_once_and_those_of_partitions_that_had_ended_stay() -> None:
    going = GoingBack()
    asyncio.run(going())
    progress = going.run.progress()
    assert going.back > 0
    assert progress.finished
    assert progress.quarantined == 1
    assert progress.injected == EARLY + LATE + 2 + LATER
    assert progress.rejected == WRONG + 1
    by_source = {source: sum(kinds.values()) for source, kinds in progress.rejections.items()}
    assert by_source == {"early": WRONG, going.tap.name: 1}


def test_rows_that_were_rejected_before_count_for_what_is_allowed() -> None:
    going = GoingBack(rejected=WRONG - 1)
    going.run.worker._tolerance = Tolerance()  # it is only looked at after the going back
    asyncio.run(going())
    assert going.run.progress().stopped == "3 rows are rejected, 2 are allowed"


async def fed(going: GoingBack) -> Progress:
    """Its run to the end, with something to do all the time."""
    running = asyncio.ensure_future(going.run.run())
    while not running.done():
        going.feed()
        await asyncio.sleep(0.002)
    return await running


def test_a_store_that_is_lost_while_all_goes_back_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    going = GoingBack()
    begin = going.run._begin

    def lost_meanwhile(inherited: Any) -> None:
        going.run.fail(StoreError("the store is gone"))
        going.run.fail(StoreError("and so is what came of it"))
        begin(inherited)

    monkeypatch.setattr(going.run, "_begin", lost_meanwhile)
    with pytest.raises(StoreError, match="the store is gone"):
        asyncio.run(fed(going))


def test_a_run_that_is_told_to_stop_while_all_goes_back_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    going = GoingBack()
    begin = going.run._begin

    def stopped_meanwhile(inherited: Any) -> None:
        going.run.stop()
        begin(inherited)

    monkeypatch.setattr(going.run, "_begin", stopped_meanwhile)
    assert not asyncio.run(asyncio.wait_for(fed(going), 60)).finished
    assert going.back > 0


def test_a_worker_that_is_told_to_stop_while_all_goes_back_does_not_join_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lives = 0

    async def told_while_it_goes_back(*given: Any) -> None:
        nonlocal lives
        lives += 1
        assert lives == 1, "it has joined again"
        shells = given[-1]
        shells.append(EmbeddedRun(pipeline.graph(), MemoryStore(), pipeline.tables))
        shells[0].stop()
        raise WentBack({})

    pipeline = word_count("p", text_lines(1, seed=1))
    monkeypatch.setattr(processes, "_member", told_while_it_goes_back)
    _, over = asyncio.run(processes._worker(ProcessPlan(pipeline, "", "worker-1"), None, print))
    assert not over
