"""How long a split of a hot interval silences its output.

Lives here: the figure, and the order that is given meanwhile.  The processes are those of `cluster_processes`.  Each of two
stages is one interval.  Rows come at `RATE`, and each is visible as a row of a sink table behind the second stage.  An
operator splits the interval of the first stage at its middle key.  What counts is the longest time in which no row of a half
became visible, from the order until both halves have gone on for a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import psycopg

from benchmarks import common, flows
from benchmarks.cluster import PAIRS, POLL_S, READY_S, office_of, until_seen
from benchmarks.cluster_processes import LEAD_S, Members, owned
from benchmarks.common import Reference, Result

RATE: Final = 1_000
KEYS: Final = common.sized("SPLIT_KEYS", 100_000)
STEADY_S: Final = 4.0
"""From the first row until the order, and from the end of the split until the end."""
LIMIT_MS: Final = 500.0


def cluster_split_gap() -> Result:
    """The longest silence of either half of an interval with all keys, when it is split under load."""
    rounds = [_split(f"split_{turn}") for turn in range(PAIRS)]
    worst = max(one["gap_ms"] for one in rounds)
    beside = common.median([one["before_ms"] for one in rounds])
    return Result(
        "cluster_split_gap", common.median([one["gap_ms"] for one in rounds]), "ms",
        Reference("the longest silence before the order", beside, "ms"),
        common.median([one["gap_ms"] for one in rounds]) / beside, f"no gap longer than {LIMIT_MS:.0f} ms",
        worst <= LIMIT_MS, {"rounds": rounds, "worst_ms": worst, "keys": KEYS, "rate": RATE},
    )  # fmt: skip


def _split(name: str) -> dict[str, Any]:
    with common.server(name) as url:
        begin = time.monotonic() + LEAD_S + KEYS / 25_000
        members = Members(
            2, pipeline="whole", url=url, name=name, keys=KEYS, rate=RATE, begin=begin, records=RATE * 120
        )  # fmt: skip
        try:
            with office_of(members) as office, psycopg.connect(url, autocommit=True) as connection:
                until_seen(office, lambda now: owned(now) and now.sources[0].rows >= KEYS, begin + READY_S)
                (whole,) = [one for one in office.look().intervals if one.computation == "first"]
                time.sleep(max(0.0, begin - time.monotonic()) + STEADY_S)
                with ThreadPoolExecutor(1) as pool:
                    watch = _Watch(connection, name)
                    before = watch.longest(lambda: watch.seconds >= STEADY_S)
                    order = pool.submit(_ordered, office, whole.id)
                    gap = watch.longest(lambda: order.done() and watch.seconds >= order.result() + STEADY_S)
                owners = sorted({one.owner or "" for one in office.look().intervals})
        finally:
            members.end()
    return {"gap_ms": gap * 1e3, "before_ms": before * 1e3, "split_s": order.result(), "owners": owners}


def _ordered(office: Any, interval: int) -> float:
    """Split it, and wait until each half has an owner; how long that took, s."""
    began = time.monotonic()
    office.split(interval, [f"{KEYS // 2:09d}"])
    until_seen(office, lambda now: owned(now) and len(now.intervals) == 3, began + READY_S)
    return time.monotonic() - began


class _Watch:
    """Looks at the sink.  `seconds` is for how long the present look lasts."""

    def __init__(self, connection: psycopg.Connection[Any], name: str) -> None:
        self._connection = connection
        self._query = f"SELECT number FROM {name}.seen WHERE number > %s"
        row = connection.execute(f"SELECT coalesce(max(number), 0) FROM {name}.seen").fetchone()
        self._from = int(row[0]) if row is not None else 0
        self.seconds = 0.0

    def longest(self, over: Callable[[], bool]) -> float:
        """The longest time, s, in which no new row of a half was seen, until it is `over`."""
        began = time.monotonic()
        last, gaps, seen = [began, began], [0.0, 0.0], set[int]()
        self.seconds = 0.0
        while not over():
            rows = self._connection.execute(self._query, (self._from,), prepare=True).fetchall()
            now = time.monotonic()
            fresh = {int(number) for (number,) in rows} - seen
            seen |= fresh
            for half in {flows.spread(number, KEYS) >= KEYS // 2 for number in fresh}:
                gaps[half] = max(gaps[half], now - last[half])
                last[half] = now
            while self._from + 1 in seen:
                self._from += 1
                seen.discard(self._from)
            self.seconds = now - began
            time.sleep(POLL_S)
        return max(*gaps, *(time.monotonic() - at for at in last))
