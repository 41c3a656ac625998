"""How far the low watermark lags behind in a loop: `python -m benchmarks.loop_lag` (docs/adr/0033).

A live source gives a row every 5 ms.  Behind the computation that is measured, another one sets a timer at the time of each
row.  The lag of a row is from when it was due until this timer fires: its way, its commits, and the watermark's way.  Without
a loop, the watermark is that of the source.  With one, it also waits for rounds.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, Final

from benchmarks import common, flows
from millwheel import Computation, Context, JsonCoder, Pipeline, Record, Stream, Timer, subscribe
from millwheel.launch import run

EVERY_S: Final = 0.005
ROWS: Final = common.sized("ROWS", 3_000)
LEAD_S: Final = 3.0
WARM: Final = 200
START_US: Final = 1_700_000_000_000_000

Hopping = tuple[int, int]
"""The number of a row, and its hops to come."""

ENTERED: Final = Stream("entered", JsonCoder(Hopping))
ROUND: Final = Stream("round", JsonCoder(Hopping))
DONE: Final = Stream("done", JsonCoder(Hopping))


class Hops(Computation[Hopping]):
    """Sends a row round until its hops are over."""

    def ProcessRecord(self, context: Context, record: Record[Hopping]) -> None:
        """One hop."""
        number, left = record.value
        if left:
            context.produce(ROUND, (number, left - 1))
        else:
            context.produce(DONE, (number, 0))


class Lags(Computation[Hopping]):
    """Notes when the timer of each row fires."""

    def __init__(self, fired: dict[int, float]) -> None:
        self._fired = fired

    def ProcessRecord(self, context: Context, record: Record[Hopping]) -> None:
        """A timer at the row's time."""
        context.set_timer(str(record.value[0]), record.timestamp)

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        """The watermark is there."""
        self._fired[int(timer.tag)] = time.monotonic()


def key_of(value: Any) -> str:
    """A hundred keys."""
    return f"k{value[0] % 100}"


def measure(name: str, url: str, hops: int | None) -> dict[str, float]:
    """Lags in ms: without a loop (None), or with one that each row passes so often."""
    begin = time.monotonic() + LEAD_S
    fired: dict[int, float] = {}
    source = flows.Rows(
        "rows",
        lambda number: ((number, hops or 0), START_US + number * int(EVERY_S * 1e6)),  # type: ignore[arg-type, return-value]
        ROWS,
        due=lambda number: begin + number * EVERY_S,
    )
    pipeline = Pipeline(name)
    pipeline.inject(source, into=ENTERED)
    back = [] if hops is None else [subscribe(ROUND, key_of)]
    pipeline.add(Hops, [subscribe(ENTERED, key_of), *back], [ROUND, DONE])
    pipeline.add(lambda: Lags(fired), [subscribe(DONE, key_of)], name="Lags")
    run(pipeline, url)
    # The last rows fire at the end of the input.
    lags = sorted((fired[i] - begin - i * EVERY_S) * 1e3 for i in range(WARM, ROWS - WARM))
    return {"p50_ms": statistics.median(lags), "p99_ms": lags[len(lags) * 99 // 100]}


def main() -> None:
    """All of them, in turn, twice."""
    cases = {"no loop": None, "a loop that is empty": 0, "3 hops": 3, "10 hops": 10}
    with common.server("loop_lag") as url:
        for turn in range(2):
            for number, (name, hops) in enumerate(cases.items()):
                found = measure(f"lag{turn}{number}", url, hops)
                print(f"{name:22} p50 {found['p50_ms']:6.1f} ms  p99 {found['p99_ms']:6.1f} ms", flush=True)


if __name__ == "__main__":
    main()
