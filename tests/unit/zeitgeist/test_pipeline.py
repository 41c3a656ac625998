"""The computations step by step: combined rows, late ones, and windows that wait for others."""

import random
from collections import Counter, defaultdict
from typing import Any

import pytest

from examples.zeitgeist import bursty, evaluate, pipeline
from examples.zeitgeist.detector import iso_time
from examples.zeitgeist.model import HOUR_US, WINDOW_US
from examples.zeitgeist.pipeline import Request, Window
from examples.zeitgeist.silence import SLOTS
from millwheel.testing import Stepper
from millwheel_injectors import BoundedDisorder, IterableSource

NOON_US = 805_636_800_000_000
PAGE = "page /a"


@pytest.fixture
def stepper() -> Stepper:
    return Stepper(pipeline.build(IterableSource("log", [], BoundedDisorder(0)), None))


def send(stepper: Stepper, row: Request) -> None:
    stepper.send(pipeline.requests, row, row.time_us)


def closed(stepper: Stepper, key: str) -> list[Window]:
    """The windows that the counter has sent for a key, in their order."""
    sent = [out.value for out in stepper.outputs(pipeline.counts)]
    return [window for counts in sent if counts.key == key and counts.closed for window in counts.windows]


def hour(*parts: int) -> tuple[int, ...]:
    return (*parts, *(0,) * (12 - len(parts)))


def test_a_request_counts_for_its_page_and_for_the_site(stepper: Stepper) -> None:
    send(stepper, Request(NOON_US + 25_000_000, "/a"))
    send(stepper, Request(NOON_US + 26_000_000, None))
    stepper.advance_watermark(NOON_US + HOUR_US)
    assert closed(stepper, PAGE) == [Window(NOON_US, 1)]
    assert closed(stepper, "site") == [Window(NOON_US, 2, (0, 0, 2, *(0,) * (SLOTS - 3)))]


def test_combined_rows_count_for_their_page_or_for_the_site(stepper: Stepper) -> None:
    send(stepper, Request(NOON_US, "/a", hour(3, 0, 2)))
    send(stepper, Request(NOON_US + WINDOW_US, "/a", hour(0, 20, 1)))
    slots = (5, *(1,) * (SLOTS - 1))
    send(stepper, Request(NOON_US, None, slots))
    stepper.advance_watermark(NOON_US + HOUR_US)
    assert closed(stepper, PAGE) == [Window(NOON_US + at * WINDOW_US, n) for at, n in enumerate((3, 20, 3))]
    assert closed(stepper, "site") == [Window(NOON_US, SLOTS + 4, slots)]


def test_sparse_windows_wait_for_the_hours_end_or_a_busier_one(stepper: Stepper) -> None:
    send(stepper, Request(NOON_US, "/a", hour(3, 4, 0, 0, 9, 2)))
    stepper.advance_watermark(NOON_US + 4 * WINDOW_US)
    assert closed(stepper, PAGE) == []
    stepper.advance_watermark(NOON_US + 5 * WINDOW_US)
    assert [window.count for window in closed(stepper, PAGE)] == [3, 4, 9]
    stepper.advance_watermark(NOON_US + HOUR_US - 1)
    assert len(closed(stepper, PAGE)) == 3
    stepper.advance_watermark(NOON_US + HOUR_US)
    assert [window.count for window in closed(stepper, PAGE)] == [3, 4, 9, 2]
    assert stepper.state("WindowCounter", PAGE) == {"closes": 0}


def test_windows_go_on_in_their_order_also_when_the_watermark_jumps(stepper: Stepper) -> None:
    for at in range(3):
        send(stepper, Request(NOON_US + at * HOUR_US, "/a", hour(1, 20, 0, 1, 30, 1)))
    stepper.advance_watermark(NOON_US + 9 * HOUR_US)
    times = [window.start_us for window in closed(stepper, PAGE)]
    assert times == sorted(set(times))
    assert len(times) == 15


def late(stepper: Stepper) -> dict[str, Any]:
    return {row["key"]: row["count"] for row in stepper.rows("late_requests")}


def test_what_is_late_is_dropped_and_counted(stepper: Stepper) -> None:
    send(stepper, Request(NOON_US + HOUR_US, "/a", hour(1)))
    send(stepper, Request(NOON_US, "/a", hour(4, 5), True))  # found by the job that combined them
    assert late(stepper) == {PAGE: 9}
    stepper.advance_watermark(NOON_US + HOUR_US + 2 * WINDOW_US)
    send(stepper, Request(NOON_US + HOUR_US, "/a", hour(2, 3, 4)))  # two of these windows are closed by now
    assert late(stepper) == {PAGE: 14}
    send(stepper, Request(NOON_US + HOUR_US, "/a"))
    assert late(stepper) == {PAGE: 15, "site": 1}
    stepper.advance_watermark(NOON_US + 2 * HOUR_US)
    assert [(window.start_us, window.count) for window in closed(stepper, PAGE)] == [
        (NOON_US + HOUR_US, 1),
        (NOON_US + HOUR_US + 2 * WINDOW_US, 4),
    ]


def two_days(dice: random.Random) -> list[tuple[str, int, tuple[int, ...]]]:
    """(page, start of an hour, counts of its windows) of pages of every kind, with surges and silences."""
    rows = []
    for name, mean in (("/rare", 0.1), ("/sparse", 0.5), ("/some", 3.0), ("/busy", 40.0)):
        for hour_at in range(48):
            factor = dice.choice([0, 1, 1, 1, 1, 1, 6]) if hour_at > 8 else 1
            parts = tuple(bursty._poisson(dice, mean * factor) for _ in range(12))
            if any(parts):
                rows.append((name, NOON_US + hour_at * HOUR_US, parts))
    return sorted(rows, key=lambda row: row[1])


@pytest.mark.parametrize(
    ("seed", "step"),
    [
        *((0, step) for step in (1, 5, 12, 100, 10_000)),
        *((seed, step) for seed in (1, 2) for step in (12, 10_000)),
        *(pytest.param(seed, step, marks=pytest.mark.long) for seed in (1, 2) for step in (1, 5, 100)),
    ],
)
def test_results_do_not_depend_on_how_far_the_watermark_jumps(seed: int, step: int) -> None:
    """They are the oracle's, whether sparse windows wait for their hour while timers of silent keys are due, or not."""
    end_us = NOON_US + 48 * HOUR_US
    stepper = Stepper(pipeline.build(IterableSource("log", [], BoundedDisorder(0)), end_us))
    rows = two_days(random.Random(seed))
    slots: dict[str, Counter[int]] = defaultdict(Counter)
    for name, start_us, parts in rows:
        slots[name].update({start_us + at * WINDOW_US: had for at, had in enumerate(parts) if had})
    now_us = NOON_US
    for name, start_us, parts in rows:
        while now_us + step * WINDOW_US <= start_us:
            now_us += step * WINDOW_US
            stepper.advance_watermark(now_us)
        send(stepper, Request(start_us, name, parts))
    stepper.finish()
    expected = [
        (name, episode.kind, iso_time(episode.start_us), iso_time(episode.end_us), episode.observed, episode.open)
        for name, counts in slots.items()
        for episode in evaluate.episodes_of(counts, end_us, "page")
    ]
    found = [
        (r["key"], r["kind"], r["start_at"], r["end_at"], r["observed"], r["open"]) for r in stepper.rows("anomalies")
    ]
    assert len(expected) > 5
    assert sorted(found) == sorted(expected)
