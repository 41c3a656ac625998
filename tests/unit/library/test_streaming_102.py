"""The figures of Akidau's *Streaming 101* and *102*: nine scores of one team, thirteen ways to sum them.

The scores, their times and the panes are those of the articles, and of chapters 2 and 4 of *Streaming Systems*, as the
tests of the code that its author published have them (github.com/takidau/streamingbook, `BeamModelTest`): the name of
each setting is the name of that test.  Clock and watermark stand where these tests put them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from millwheel import DAY, SECOND
from millwheel.library import (
    AtWatermark,
    EveryRecords,
    EveryWall,
    Fixed,
    Global,
    Repeat,
    Sessions,
    Validity,
    days,
    minutes,
)
from millwheel.testing import Stepper
from tests.unit.library.pipelines import Score, panes, scores, windowed

NOON: Final = 1_451_649_600 * SECOND
EARLY_MINUTE = AtWatermark(early=EveryWall(minutes=1))
TWO_MINUTES = Fixed(minutes=2)


def at(clock: str) -> int:
    """Minutes and seconds after noon."""
    minute, second = clock.split(":")
    return NOON + (int(minute) * 60 + int(second)) * SECOND


def shown(time: int) -> str:
    """The reverse; the beginning and the end of time have no clock."""
    seconds = (time - NOON) // SECOND
    return f"{seconds // 60}:{seconds % 60:02d}" if 0 <= time - NOON < DAY else "…"


Event = tuple[str, str, Any]
"""(wall time, "score" or "watermark", (points, event time) or the watermark)."""

BATCH: Final[list[Event]] = [
    ("4:59", "score", (5, "0:26")),
    ("5:39", "score", (7, "2:26")),
    ("6:13", "score", (3, "3:39")),
    ("6:39", "score", (4, "4:19")),
    ("7:06", "score", (8, "3:06")),
    ("7:19", "score", (3, "6:39")),
    ("8:19", "score", (9, "1:26")),
    ("8:39", "score", (8, "7:26")),
    ("9:00", "score", (1, "7:46")),
]
PERFECT: Final[list[Event]] = [
    ("8:39", "watermark", "2:00"), ("9:00", "watermark", "4:00"),
    ("9:10", "watermark", "6:00"), ("9:20", "watermark", "8:00"),
]  # fmt: skip
HEURISTIC: Final[list[Event]] = [
    ("6:00", "watermark", "2:00"), ("7:30", "watermark", "4:00"),
    ("7:40", "watermark", "6:00"), ("9:30", "watermark", "8:00"),
]  # fmt: skip


def stream(watermarks: list[Event], *more: Event) -> list[Event]:
    """The scores with a watermark; two event times are a little earlier there, so that sessions connect."""
    moved = {"2:26": "2:24", "1:26": "1:25"}
    events = [(clock, kind, (what[0], moved.get(what[1], what[1]))) for clock, kind, what in [*BATCH, *more]]
    # At one time of the clock the score 8 of 7:26 comes behind the watermark, and the score 1 of 7:46 before it.
    return sorted([*events, *watermarks], key=lambda event: (at(event[0]), event[:2] == ("8:39", "score")))


def played(
    events: list[Event], windows: Any, end: str = "10:00", **settings: Any
) -> list[tuple[str, str, int, str, int]]:
    """(start, end, sum, timing, number) of each pane, in order of start and number; the input ends at `end`."""
    stepper = Stepper(windowed(windows, **settings), wall_time_us=NOON)
    for clock, kind, what in events:
        stepper.advance_clock(at(clock) - stepper.clock)
        if kind == "score":
            stepper.send(scores, Score("TeamX", what[0]), at(what[1]))
        else:
            stepper.advance_watermark(at(what))
    stepper.advance_clock(at(end) - stepper.clock)
    stepper.finish()
    (name,) = [name for name in stepper.graph.computations if "tap" not in name]
    assert stepper.states(name) == {}
    assert all(out.timestamp == out.value.end - 1 for out in stepper.outputs(panes))
    found = sorted((out.value for out in stepper.outputs(panes)), key=lambda pane: (pane.start, pane.end, pane.number))
    return [(shown(pane.start), shown(pane.end), pane.value, pane.timing, pane.number) for pane in found]


def table(text: str) -> Iterator[tuple[str, str, int, str, int]]:
    """Lines of "start end sum timing"; panes of one window are numbered as they stand."""
    numbers: dict[tuple[str, str], int] = {}
    for line in text.split("\n"):
        if line.strip():
            start, end, value, timing = line.split(maxsplit=3)
            number = numbers[start, end] = numbers.get((start, end), -1) + 1
            yield start, end, int(value), timing, number


FIGURES: dict[str, tuple[list[Event], dict[str, Any], str]] = {
    "2_1 classic batch": (BATCH, {"windows": Global()}, "… … 48 on time"),
    "2_2 windowed batch": (
        BATCH, {"windows": TWO_MINUTES},
        """
        0:00 2:00 14 on time
        2:00 4:00 18 on time
        4:00 6:00 4 on time
        6:00 8:00 12 on time
        """,
    ),
    "2_3 per record": (
        BATCH, {"windows": TWO_MINUTES, "trigger": Repeat(EveryRecords(1)), "lateness": days(1000)},
        """
        0:00 2:00 5 early
        0:00 2:00 14 early
        2:00 4:00 7 early
        2:00 4:00 10 early
        2:00 4:00 18 early
        4:00 6:00 4 early
        6:00 8:00 3 early
        6:00 8:00 11 early
        6:00 8:00 12 early
        """,
    ),
    # The panes of the figure.  The published test has others, of which its author says that they differ from the book's.
    "2_4 aligned delay": (
        BATCH, {"windows": TWO_MINUTES, "trigger": AtWatermark(early=EveryWall(minutes=2, aligned=True))},
        """
        0:00 2:00 5 early
        0:00 2:00 14 early
        0:00 2:00 14 on time
        2:00 4:00 7 early
        2:00 4:00 18 early
        2:00 4:00 18 on time
        4:00 6:00 4 early
        4:00 6:00 4 on time
        6:00 8:00 3 early
        6:00 8:00 12 early
        6:00 8:00 12 on time
        """,
    ),
    "2_5 unaligned delay": (
        BATCH, {"windows": TWO_MINUTES, "trigger": AtWatermark(early=EveryWall(minutes=2))},
        """
        0:00 2:00 5 early
        0:00 2:00 14 on time
        2:00 4:00 18 early
        2:00 4:00 18 on time
        4:00 6:00 4 early
        4:00 6:00 4 on time
        6:00 8:00 12 early
        6:00 8:00 12 on time
        """,
    ),
    "2_6 perfect watermark": (
        stream(PERFECT), {"windows": TWO_MINUTES},
        """
        0:00 2:00 14 on time
        2:00 4:00 18 on time
        4:00 6:00 4 on time
        6:00 8:00 12 on time
        """,
    ),
    "2_6 heuristic watermark": (
        stream(HEURISTIC), {"windows": TWO_MINUTES},
        """
        0:00 2:00 5 on time
        2:00 4:00 18 on time
        4:00 6:00 4 on time
        6:00 8:00 12 on time
        """,
    ),
    "2_7 early, on time, late with a perfect watermark": (
        stream(PERFECT), {"windows": TWO_MINUTES, "trigger": EARLY_MINUTE, "lateness": days(1000)},
        """
        0:00 2:00 5 early
        0:00 2:00 14 on time
        2:00 4:00 10 early
        2:00 4:00 18 early
        2:00 4:00 18 on time
        4:00 6:00 4 early
        4:00 6:00 4 on time
        6:00 8:00 3 early
        6:00 8:00 12 on time
        """,
    ),
    "2_7 early, on time, late with a heuristic watermark": (
        stream(HEURISTIC), {"windows": TWO_MINUTES, "trigger": EARLY_MINUTE, "lateness": days(1000)},
        """
        0:00 2:00 5 early
        0:00 2:00 5 on time
        0:00 2:00 14 late
        2:00 4:00 10 early
        2:00 4:00 18 on time
        4:00 6:00 4 early
        4:00 6:00 4 on time
        6:00 8:00 3 early
        6:00 8:00 12 on time
        """,
    ),
    "2_8 allowed lateness": (
        stream(HEURISTIC, ("6:39", "score", (6, "0:53"))),
        {"windows": TWO_MINUTES, "trigger": EARLY_MINUTE, "lateness": minutes(2)},
        """
        0:00 2:00 5 early
        0:00 2:00 5 on time
        0:00 2:00 11 late
        2:00 4:00 10 early
        2:00 4:00 18 on time
        4:00 6:00 4 early
        4:00 6:00 4 on time
        6:00 8:00 3 early
        6:00 8:00 12 on time
        """,
    ),
    "2_9 discarding": (
        stream(HEURISTIC), {"windows": TWO_MINUTES, "trigger": EARLY_MINUTE, "lateness": days(1000), "panes": "discarding"},
        """
        0:00 2:00 5 early
        0:00 2:00 0 on time
        0:00 2:00 9 late
        2:00 4:00 10 early
        2:00 4:00 8 on time
        4:00 6:00 4 early
        4:00 6:00 0 on time
        6:00 8:00 3 early
        6:00 8:00 9 on time
        """,
    ),
    "4_3 sessions": (
        stream(HEURISTIC), {"windows": Sessions(minutes=1), "trigger": EARLY_MINUTE, "lateness": days(1000)},
        """
        0:26 1:26 5 early
        0:26 1:26 5 on time
        0:26 5:19 36 late
        2:24 3:24 7 early
        2:24 5:19 22 early
        2:24 5:19 22 on time
        6:39 7:39 3 early
        6:39 8:46 12 on time
        """,
    ),
    "validity windows": (
        stream(PERFECT), {"windows": Validity()},
        """
        0:26 1:25 5 on time
        1:25 2:24 9 on time
        2:24 3:06 7 on time
        3:06 3:39 8 on time
        3:39 4:19 3 on time
        4:19 6:39 4 on time
        6:39 7:26 3 on time
        7:26 7:46 8 on time
        7:46 … 1 on time
        """,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_has_the_panes_that_were_published(name: str) -> None:
    events, settings, expected = FIGURES[name]
    end = "10:00" if events is BATCH else "9:30"
    assert played(events, **settings, end=end) == list(table(expected))


def test_there_are_thirteen() -> None:
    assert len(FIGURES) == 13
