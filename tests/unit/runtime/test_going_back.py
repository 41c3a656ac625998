"""What a run says of itself after it went back to a snapshot: what it had counted before still counts, and counts once."""

from __future__ import annotations

import asyncio

from millwheel.host.over import Tolerance
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
