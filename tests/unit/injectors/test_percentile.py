"""A watermark at a percentile of how far rows come behind: most rows are in time, and it does not wait for the rest."""

from __future__ import annotations

import random
from math import ceil

import pytest

from millwheel.model import MIN_TIME, SECOND
from millwheel_injectors import IterableSource, Percentile
from millwheel_injectors.watermarks import BoundedDisorder, Delays, Gauge


def disordered(rows: int, seed: int = 5) -> list[int]:
    """Event times of rows: most are up to a second behind, one in 200 up to an hour."""
    dice = random.Random(seed)
    behind = [
        dice.randrange(3_600 if dice.random() < 0.005 else 1) * SECOND + dice.randrange(SECOND) for _ in range(rows)
    ]
    return [10_000 * SECOND + n * SECOND // 100 - late for n, late in enumerate(behind)]


def late_of(times: list[int], policy: Percentile | BoundedDisorder, step: int = 50) -> tuple[int, int]:
    """How many rows are behind the promise before their read, and how far the last promise is behind the newest row."""
    gauge, late = Gauge(policy), 0
    for first in range(0, len(times), step):
        promise, some = gauge.value(first), times[first : first + step]
        late += sum(time < promise for time in some)
        gauge.saw(some)
        assert gauge.value(first + step) >= promise, "it never goes back"
    assert gauge.seen is not None
    return late, gauge.seen - gauge.value(len(times))


@pytest.mark.parametrize("share", [0.9, 0.99])
def test_about_so_many_rows_are_late_as_the_share_allows_and_the_promise_is_close(share: float) -> None:
    times = disordered(40_000)
    late, behind = late_of(times, Percentile(share))
    assert late <= (1 - share) * len(times) * 1.2
    assert behind <= 2 * SECOND
    _, exact = late_of(times, BoundedDisorder(3_601 * SECOND))
    assert behind < exact / 1_000


def test_nothing_is_promised_of_too_few_rows() -> None:
    gauge = Gauge(Percentile(0.99))
    gauge.saw(range(99))
    assert gauge.value(99) == MIN_TIME
    gauge.saw([99])
    assert gauge.value(100) == 99


def test_what_was_long_ago_fades() -> None:
    delays = Delays(1_000)
    delays.saw([10**9] + [0] * 500)
    assert delays.at(0.9) >= 10**9
    for _ in range(20):
        delays.saw([10**9] * 500)
    assert delays.at(0.99) == 0
    assert delays.rows <= 2_000


@pytest.mark.parametrize("seed", range(20))
def test_a_share_is_at_most_an_eighth_too_large_and_never_too_small(seed: int) -> None:
    dice = random.Random(seed)
    times = [dice.randrange(10**9) for _ in range(500)]
    delays, newest, behind = Delays(1_000), times[0], []
    for time in times:
        behind.append(max(0, newest - time))
        newest = max(newest, time)
    delays.saw(times[:200])
    delays.saw(times[200:], max(times[:200]))
    behind.sort()
    for share in (0.5, 0.9, 0.99, 1.0):
        exact = behind[ceil(share * len(behind)) - 1]
        assert exact <= delays.at(share) <= exact * 1.125 + 1


@pytest.mark.parametrize(("share", "window"), [(0.4, 10_000), (1.0, 10_000), (0.999, 500)])
def test_what_is_no_percentile_is_refused(share: float, window: int) -> None:
    with pytest.raises(ValueError, match="Percentile"):
        Percentile(share, window)


@pytest.mark.parametrize(("share", "least"), [(0.5, 2), (0.9, 10), (0.99, 100), (0.999, 1_000), (0.95, 20)])
def test_a_window_has_at_least_one_row_that_may_be_late(share: float, least: int) -> None:
    assert Percentile(share, least).window == least
    with pytest.raises(ValueError, match=f"a window of {least - 1} rows is too short, take {least} or more"):
        Percentile(share, least - 1)


def test_a_source_takes_it() -> None:
    rows = [(str(n), n) for n in range(1_000)]
    source = IterableSource("rows", lambda: rows, watermark=Percentile(0.9))
    (partition,) = source.discover([])
    partition.resume(0, partition.fingerprint())
    partition.read(500)
    assert partition.watermark() == 499


def test_a_share_that_is_no_whole_number_of_rows_is_rounded_up() -> None:
    delays = Delays(1_000)
    delays.saw([10, 10, 0])
    assert [delays.at(share) for share in (0.6, 0.7)] == [0, 10]
