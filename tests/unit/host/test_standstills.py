"""What keeps a watermark at a worker is told once it has stood, and told once."""

from __future__ import annotations

import pytest

from millwheel import limits
from millwheel.cluster import Standstill
from millwheel.core.interval import events as ev
from millwheel.host.actors import Actor, Actors
from millwheel.host.stalls import why_it_waits
from millwheel.host.standstills import Standstills, held_by, standstill
from millwheel.ids import IntervalId, Sequencer
from millwheel.model import MAX_TIME
from millwheel_injectors import FileSource, TextLines
from tests.unit.core.bench import Bench, recovered

HOLD = Standstill("Count", IntervalId(1), "hold", 40, "key 'h'")
TIMER = Standstill("Count", IntervalId(2), "timer", 40, "key 't' tag ''")


def test_what_moves_is_not_told_and_what_stands_is_told_once_with_its_beginning() -> None:
    stands = Standstills()
    assert not stands.look([HOLD], 1_000)
    assert not stands.look([HOLD, TIMER], 1_000 + limits.STANDSTILL_US - 1)
    assert list(stands.told) == []
    assert stands.look([HOLD, TIMER], 1_000 + limits.STANDSTILL_US)
    (told,) = stands.told
    assert (told.detail, told.since_us) == (HOLD.detail, 1_000)
    assert not stands.look([HOLD], 1_000 + limits.STANDSTILL_US + 1)
    assert stands.look([], 1_000 + limits.STANDSTILL_US + 2), "that it is over is told too"
    assert list(stands.told) == []


def test_what_comes_back_stands_from_then_on() -> None:
    stands = Standstills()
    stands.look([HOLD], 0)
    stands.look([], 1)
    stands.look([HOLD], 2)
    assert not stands.look([HOLD], limits.STANDSTILL_US)
    assert stands.look([HOLD], 2 + limits.STANDSTILL_US)
    assert stands.told[0].since_us == 2


def actor_of(bench: Bench, interval: int, watermark: int) -> Actor:
    bench(ev.WatermarkMoved(watermark))
    return Actor(interval=IntervalId(interval), sequencer=Sequencer(1), owner="Count", core=bench.core)


def test_only_an_interval_that_keeps_the_published_watermark_is_named() -> None:
    start = recovered()
    start.holds.add("h", 40)
    later = recovered()
    later.holds.add("l", 45)
    actors = Actors()
    actors.put(actor_of(Bench(start), 1, 50))
    actors.put(actor_of(Bench(later), 2, 50))
    actors.put(actor_of(Bench(), 3, 50))
    assert held_by(actors, "Count", 40) == [HOLD]
    assert [one.interval for one in held_by(actors, "Count", 45)] == [1, 2]
    assert held_by(actors, "Count", 39) == [], "another worker has what keeps it there"
    assert [one.interval for one in held_by(actors, "Count", 50)] == [1, 2], (
        "one that waits for its input keeps nothing"
    )
    assert held_by(actors, "Count", MAX_TIME) == []
    assert held_by(actors, "Other", 40) == []


def test_a_worker_looks_into_a_few_intervals_only_and_tells_a_part_of_a_long_key() -> None:
    actors = Actors()
    for number in range(2 * limits.STANDSTILL_INTERVALS):
        start = recovered()
        start.holds.add("h" * 1_500, 40)
        actors.put(actor_of(Bench(start), number + 1, 50))
    found = held_by(actors, "Count", 40)
    assert [one.interval for one in found] == [*range(1, limits.STANDSTILL_INTERVALS + 1)]
    assert {len(one.detail) for one in found} == {limits.STANDSTILL_TEXT}
    assert {one.detail[-2:] for one in found} == {"h…"}
    assert standstill("x", IntervalId(0), "source", 1, "why").detail == "why"
    exact = "w" * limits.STANDSTILL_TEXT
    assert standstill("x", IntervalId(0), "source", 1, exact).detail == exact


@pytest.mark.parametrize("idle_after_us", [None, 10_500_000])
@pytest.mark.parametrize("partition", ["", "logs/" + "a" * 255])
def test_why_a_source_waits_is_told_whole_with_the_setting_that_lets_it_go_on(
    idle_after_us: int | None, partition: str
) -> None:
    source = FileSource("s", "*", TextLines(), event_time=lambda _: 0, tail=True, idle_after_us=idle_after_us)
    why = why_it_waits(source, partition)
    assert standstill("source:s", IntervalId(0), "source", 1, why).detail == why
