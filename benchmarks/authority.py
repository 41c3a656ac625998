"""The authority's cost of a report, with few intervals and with many.

Each report is of the interval that holds the minimum, and raises it to a random value.  So each moves the minimum, which
costs most.  All intervals have reported before the clock starts.  A controller looks for what has risen once in a turn, here
after `TURN` reports.  Numbers of intervals are made just before, as they come out of a message.  Time is processor time; no
message is decoded, and nothing is stored.
"""

from __future__ import annotations

import random
import time
from heapq import heapify, heapreplace
from typing import Final

from benchmarks import common
from benchmarks.common import Reference, Result
from millwheel.core.authority import Authority
from millwheel.ids import IntervalId, Sequencer

FEW: Final = 1_000
MANY: Final = common.sized("INTERVALS", 500_000)
REPORTS: Final = common.sized("REPORTS", 200_000)
ROUNDS: Final = common.sized("ROUNDS", 5)
TURN: Final = 100
AHEAD_US: Final = 1_000_000
TARGET: Final = 1.2


def authority() -> Result:
    """Microseconds a report; the target is at most 1.2 times that with 1,000 intervals."""
    few, many = [], []
    for at in range(ROUNDS):
        few.append(_round(FEW, at))
        many.append(_round(MANY, at))
    value, beside = common.median(many), common.median(few)
    return Result(
        "authority", value, "us of processor time a report",
        Reference(f"with {FEW:,} intervals", beside, "us"), value / beside,
        f"at most {TARGET} times as with {FEW:,} intervals", value <= TARGET * beside,
        {"intervals": MANY, "many": many, "few": few},
    )  # fmt: skip


def _round(intervals: int, seed: int) -> float:
    """Microseconds of a report."""
    dice = random.Random(seed)
    known = Authority({"two": ["one"]}, {})
    first = [(dice.randrange(AHEAD_US), interval) for interval in range(1, intervals + 1)]
    for value, interval in first:
        known.expect("one", IntervalId(interval), Sequencer(1))
        known.report("one", IntervalId(interval), value)
    reports = _reports(first, dice)
    known.adopt(known.changes())
    took = 0.0
    for at in range(0, REPORTS, TURN):
        turn = [(IntervalId(int(str(interval))), value) for interval, value in reports[at : at + TURN]]
        began = time.process_time()
        for interval, value in turn:
            known.report("one", interval, value)
        known.adopt(known.changes())
        took += time.process_time() - began
    if known.value("one") < reports[-1][1] - 2 * AHEAD_US:
        raise RuntimeError("the watermark has not followed the reports")
    return took / REPORTS * 1e6


def _reports(values: list[tuple[int, int]], dice: random.Random) -> list[tuple[IntervalId, int]]:
    """The interval with the least value, and its next one, again and again."""
    heapify(values)
    found = []
    for _ in range(REPORTS):
        value, interval = values[0]
        then = value + dice.randrange(1, 2 * AHEAD_US)
        heapreplace(values, (then, interval))
        found.append((IntervalId(interval), then))
    return found
