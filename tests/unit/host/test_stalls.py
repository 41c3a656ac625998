"""A watermark that stands still is told of once, with what it waits for."""

from __future__ import annotations

import pytest

from millwheel.host.stalls import Stalls, why_it_waits
from millwheel.limits import STALL_DELAY_US
from millwheel.model import MAX_TIME, SECOND
from millwheel_injectors import IterableSource


def test_it_is_told_after_the_delay_and_once() -> None:
    stalls = Stalls()
    assert not stalls.stands("s", 5, 100)
    assert not stalls.stands("s", 5, 100 + STALL_DELAY_US - 1)
    assert stalls.stands("s", 5, 100 + STALL_DELAY_US)
    assert "source s" in stalls.text("s", 5, "why")
    assert not stalls.stands("s", 5, 100 + 3 * STALL_DELAY_US)


def test_a_watermark_that_moves_begins_anew() -> None:
    stalls = Stalls()
    stalls.stands("s", 5, 0)
    assert not stalls.stands("s", 6, STALL_DELAY_US)
    assert not stalls.stands("s", 6, 2 * STALL_DELAY_US - 1)
    assert stalls.stands("s", 6, 2 * STALL_DELAY_US)


def test_sources_stand_by_themselves_and_a_finished_one_does_not_stand() -> None:
    stalls = Stalls()
    for source, watermark in (("a", 1), ("b", MAX_TIME)):
        assert not stalls.stands(source, watermark, 0)
    assert stalls.stands("a", 1, STALL_DELAY_US)
    assert not stalls.stands("b", MAX_TIME, STALL_DELAY_US)


@pytest.mark.parametrize(
    ("idle", "partition", "says"),
    [
        (None, "x.log", "x.log may still give a row"),
        (None, "x.log", "set idle_after_us"),
        (None, "", "later_files_not_before"),
        (3 * SECOND, "x.log", "after 3 s of silence"),
        (3 * SECOND, "", "where rows keep coming, say how old those of later ones are (later_files_not_before"),
    ],
)
def test_why_a_source_waits(idle: int | None, partition: str, says: str) -> None:
    source = IterableSource("s", [])
    source.idle_after_us, source.grows = idle, True
    assert says in why_it_waits(source, partition)
