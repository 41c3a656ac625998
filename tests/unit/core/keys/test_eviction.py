"""When a key is read next: by its timer, by its records, or nobody knows."""

from __future__ import annotations

import pytest

from millwheel import limits
from millwheel.core.keys.eviction import NEVER, Samples, WatermarkPace, invocations_until_records
from millwheel.limits import EVICTION_SAMPLE_KEYS
from millwheel.model import MAX_TIME


def paced(*watermarks: int) -> WatermarkPace:
    pace = WatermarkPace()
    for number, watermark in enumerate(watermarks, 1):
        pace.note(watermark, number)
    return pace


def test_a_timer_is_as_many_invocations_away_as_the_watermark_takes() -> None:
    assert paced(0, 10, 20).invocations_until([20, 25, 40, MAX_TIME]) == [0, 0.5, 2, NEVER]


def test_the_newest_step_of_the_watermark_weighs_half() -> None:
    assert paced(0, 10, 40).invocations_until([80]) == [2], "10, then 30: 20 for each"


def test_an_unknown_pace_keeps_the_order() -> None:
    until = paced(100).invocations_until([300, 200, 100])
    assert until == sorted(until, reverse=True)
    assert until[-1] == 0


def test_the_end_of_time_says_nothing_of_the_pace() -> None:
    pace = paced(0, 10)
    pace.note(MAX_TIME, 3)
    pace.note(MAX_TIME, 4)
    assert pace._rate == 10


def test_what_keys_are_read_by_is_what_they_were_read_by_lately() -> None:
    pace = WatermarkPace()
    found = [pace.by_records]
    pace.read(returned=8, fired=1)
    found.append(pace.by_records)
    for number in range(1, 5):
        pace.note(number, number)
        pace.read(returned=0, fired=4)
    assert [*found, pace.by_records] == [False, True, False]


def test_many_reads_of_long_ago_weigh_less_than_a_few_new_ones() -> None:
    pace = WatermarkPace()
    pace.read(returned=1_000, fired=0)
    for number in range(1, 10):
        pace.note(number, number)
    assert pace.by_records
    pace.read(returned=0, fired=2)
    assert not pace.by_records


@pytest.mark.parametrize(
    ("age", "before", "until"),
    [
        (2, None, 2),  # read once: as long again as it was not read
        (2, 92, 4),  # gap 6, read 2 ago
        (6, 88, 0),  # gap 6: now
        (9, 85, 0),  # late, and not yet given up
        (13, 81, 13),  # twice the gap has passed
    ],
)
def test_a_key_that_was_read_twice_comes_after_the_same_gap(age: int, before: int | None, until: int) -> None:
    assert invocations_until_records(100, [age], [before]) == [until]


def test_a_large_cache_is_not_listed_for_each_eviction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVICTION_SCAN", EVICTION_SAMPLE_KEYS)
    there, samples = dict.fromkeys(range(4 * EVICTION_SAMPLE_KEYS), 0), Samples()
    keys = {f"{i:04}": 0 for i in there}
    first = next(samples.of(keys))
    seen = [*first]
    keys["new"] = 0
    for _ in range(3):
        found = next(samples.of(keys))
        assert len(found) == EVICTION_SAMPLE_KEYS
        seen += found
    assert "new" not in seen, "the list is of before it came"
    assert len({*seen}) == len(seen) == 4 * EVICTION_SAMPLE_KEYS
    for _ in range(5):
        seen += next(samples.of(keys))
    assert {*seen} == {*keys}, "what came since has its turn when the list is at its end"


def test_a_sample_is_from_all_over() -> None:
    keys = {f"{i:05}": 0 for i in range(4 * EVICTION_SAMPLE_KEYS)}
    found = next(Samples().of(keys))
    assert (int(found[-1]) - int(found[0])) > 3 * EVICTION_SAMPLE_KEYS


def test_a_small_cache_is_looked_at_as_it_is() -> None:
    samples, keys = Samples(), {"a": 0}
    next(samples.of(keys))
    keys["b"] = 0
    assert sorted(next(samples.of(keys))) == ["a", "b"]
