"""1,000,000 keys that are written once and expire: nothing of them may be left, and memory must stay flat."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Final

import psycopg

from benchmarks import common, flows
from benchmarks.common import Reference, Result
from millwheel import DAY, MINUTE, Computation, Context, MsgpackCoder, Pipeline, Record, ValueCell, subscribe
from millwheel.launch import run as run_on

KEYS: Final = common.sized("KEYS", 1_000_000)
STEP_US: Final = 10_000
"""Event time between two keys: about 7,000 are alive at a time."""
TICKS: Final = 4
"""Records of a key without state, days later, that move the watermark past every expiry."""
TICK: Final = 10**9 - 1
DRAIN_S: Final = 60.0
FLAT: Final = 1.15
"""Peak of the last quarter to peak of the second: the first one warms up."""
PER_KEY_TABLES: Final = ("key_state", "timer", "hold", "quarantine", "production")
NAME: Final = "expiry"


def expiry() -> Result:
    """Benchmark 6."""
    at: list[float] = []
    resident: list[float] = []
    with common.server(NAME) as url:
        process = common.start("expiry", url=url)
        began = time.monotonic()
        while process.poll() is None:
            at.append(time.monotonic() - began)
            resident.append(common.resident_mb(process.pid))
            time.sleep(0.25)
        if process.returncode != 0:
            raise RuntimeError(f"the pipeline ended with status {process.returncode}")
        process.communicate()
        with psycopg.connect(url) as connection:
            left = {table: _count(connection, table) for table in PER_KEY_TABLES}
            size = connection.execute(f"SELECT pg_total_relation_size('{NAME}.key_state')").fetchone()
    resident = [one for one in resident if one]
    quarter = max(1, len(resident) // 4)
    early, late = max(resident[quarter : 2 * quarter], default=0.0), max(resident[-quarter:])
    rows = sum(left.values())
    ratio = late / early if early else float("nan")
    return Result(
        NAME, rows, "rows left",
        Reference("resident memory, peak of the second quarter of the run", early, "MB"), ratio,
        "no row left in any per-key table; memory of the last quarter at most 1.15 times the second's",
        rows == 0 and ratio <= FLAT and KEYS >= 1_000_000,
        {"left": left, "key_state_mb": (size[0] if size else 0) / 2**20, "peak_mb": max(resident), "late_mb": late,
         "at_s": at[: len(resident)], "resident_mb": resident, "keys": KEYS},
        "" if KEYS >= 1_000_000 else f"only {KEYS:,} keys",
    )  # fmt: skip


def _count(connection: psycopg.Connection[Any], table: str) -> int:
    row = connection.execute(f"SELECT count(*) FROM {NAME}.{table}").fetchone()
    return row[0] if row else -1


# --- in the subprocess --------------------------------------------------------------------------------------------


class Once(Computation[bytes]):
    """Remembers every key it meets, except the ticks'."""

    count = ValueCell(MsgpackCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[bytes]) -> None:
        if record.key != f"{TICK:09d}":
            self.count.set(self.count.get() + 1)


def _pipeline(given: dict[str, Any]) -> None:
    read_at = float("inf")
    empty = threading.Event()

    def row(number: int) -> flows.Row:
        nonlocal read_at
        if number == KEYS - 1:
            read_at = time.monotonic()
        if number < KEYS:
            return flows.value_of(number, number), number * STEP_US
        return flows.value_of(TICK, number), KEYS * STEP_US + (number - KEYS + 1) * DAY

    def due(number: int) -> float:
        return 0.0 if number < KEYS else read_at + (number - KEYS + 1)  # not in one bundle with the last keys

    def watch() -> None:
        """The end of input is not the passing of time: the source stays open until the keys are gone."""
        with psycopg.connect(given["url"], autocommit=True) as connection:
            while time.monotonic() < read_at + DRAIN_S and not empty.is_set():
                time.sleep(0.5)
                if time.monotonic() > read_at + TICKS:
                    with contextlib.suppress(psycopg.Error):
                        if not any(_count(connection, table) for table in PER_KEY_TABLES):
                            empty.set()
        empty.set()  # too late: what is left is counted

    pipeline = Pipeline(NAME)
    pipeline.inject(flows.Rows("rows", row, KEYS + TICKS, due, ended=empty.is_set), into=flows.ENTERED)
    pipeline.add(Once, [subscribe(flows.ENTERED, key=flows.key_of)], name="once", expire_after=MINUTE)
    threading.Thread(target=watch, daemon=True).start()
    progress = run_on(pipeline, given["url"])
    if progress.records != KEYS + TICKS:
        raise AssertionError(f"{progress.records} of {KEYS + TICKS} records ran")
    common.answer(records=progress.records)


if __name__ == "__main__":
    _pipeline(common.arguments())
