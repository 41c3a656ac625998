"""Weak checkpoints beside a straggler: how long the others take to be durable, with patience for it and without end.

One computation with weak productions feeds two others.  Nearly all records go to one that acks in a few milliseconds.  Every
`PERIOD` records one goes to a computation that writes a sink row, whose table another process keeps locked for a second:
its ack takes that long.  What is measured is the time from a record's scheduled arrival until the checkpoint that holds its
id is in the log, as another process sees it.  Both sides are the shipping code; one has a patience that never ends, as if
nobody waited for a straggler before its own delay (one second) is over.
"""

from __future__ import annotations

import json
import time
from typing import Any, Final

import psycopg

from benchmarks import common, flows
from benchmarks.common import Reference, Result
from benchmarks.latency import Starts
from millwheel import (
    BytesCoder,
    Computation,
    Context,
    MsgpackCoder,
    Pipeline,
    Record,
    Stream,
    Table,
    ValueCell,
    limits,
    subscribe,
)
from millwheel.bundles import decode_checkpoint
from millwheel.launch import run as run_on

RATE: Final = 200
PERIOD: Final = 500
"""Records from one straggler to the next."""
STRAGGLERS: Final = 5
WARM: Final = PERIOD
"""Records that are left out, with the first straggler."""
HOLD_S: Final = 1.0
ROUNDS: Final = common.sized("ROUNDS", 3)
LIMIT_MS: Final = 60.0
POLL_S: Final = 0.001
LEAD_S: Final = 10.0
"""Until the first record is due: Python, the schema and the source are ready by then, also on a busy machine."""
DRAIN_S: Final = 30.0
NEVER_US: Final = 10**9
SLOW: Final = Stream("slow", BytesCoder())
KEPT: Final = Table("kept", {"number": "bigint"}, ("number",))


def straggler() -> Result:
    """Benchmark 8."""
    patient: list[dict[str, Any]] = []
    hurried: list[dict[str, Any]] = []
    for turn in range(ROUNDS):
        hurried.append(_round(f"straggler_{turn}", limits.STRAGGLER_PATIENCE_US))
        patient.append(_round(f"straggler_{turn}_waits", NEVER_US))
    value = common.median([one["p99_ms"] for one in hurried])
    reference = common.median([one["p99_ms"] for one in patient])
    return Result(
        "straggler", value, "ms",
        Reference("p99 where every checkpoint waits for the straggler", reference, "ms"), value / reference,
        f"p99 of the others at most {LIMIT_MS:.0f} ms", value <= LIMIT_MS,
        {"hurried": hurried, "waits": patient, "rate": RATE},
    )  # fmt: skip


def _round(name: str, patience_us: int) -> dict[str, Any]:
    return measure(name, lambda shared: [common.start("straggler", patience_us=patience_us, **shared)])


def measure(name: str, starts: Starts) -> dict[str, Any]:
    """One round of the pipeline that `starts` starts."""
    records = PERIOD * STRAGGLERS
    with common.server(name) as url:
        begin = time.monotonic() + LEAD_S
        processes = starts({"url": url, "name": name, "begin": begin, "records": records})
        try:
            durable = _watch(url, name, begin, records)
            out, *_ = [process.communicate(timeout=DRAIN_S)[0] for process in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.communicate()
    if statuses := [process.returncode for process in processes if process.returncode]:
        raise RuntimeError(f"processes of the pipeline ended with {statuses}")
    delays = {n: (at - begin - n / RATE) * 1e3 for n, at in durable.items() if n >= WARM}
    others = [delay for n, delay in delays.items() if n % PERIOD]
    slow = [delay for n, delay in delays.items() if not n % PERIOD]
    return {
        "p50_ms": common.quantile(others, 0.5), "p99_ms": common.quantile(others, 0.99), "max_ms": max(others),
        "stragglers_ms": slow, "records": len(others), **json.loads(out.decode().strip().splitlines()[-1]),
    }  # fmt: skip


def _watch(url: str, name: str, begin: float, records: int) -> dict[int, float]:
    """When each record's id was first seen in the log; meanwhile the table is locked for every straggler."""
    seen: dict[int, float] = {}
    last, locked, straggler = 0, False, 0
    with psycopg.connect(url, autocommit=True) as log, psycopg.connect(url) as lock:
        log.execute(f"SET search_path TO {name}")
        while len(seen) < records:
            now = time.monotonic()
            due = begin + straggler * PERIOD / RATE
            if not locked and due - 0.05 <= now:
                lock.execute(f"LOCK TABLE {name}.kept IN ACCESS EXCLUSIVE MODE")
                locked = True
            elif locked and now >= due + HOLD_S:
                lock.commit()
                locked, straggler = False, straggler + 1
            if now > begin + records / RATE + DRAIN_S:
                raise AssertionError(f"only {len(seen)} of {records} records are durable")
            if now < begin - 0.5:  # its tables are not there yet
                time.sleep(0.05)
                continue
            for seq, payload in log.execute(_QUERY, (last,), prepare=True, binary=True):
                last = seq
                for ids in decode_checkpoint(payload).ids:
                    seen.update((n, time.monotonic()) for n in ids.sequences if n not in seen)
            time.sleep(POLL_S)
        lock.commit()
    return seen


_QUERY: Final = """
SELECT l.seq, l.payload FROM checkpoint_log l JOIN interval i ON i.id = l.interval_id
JOIN name n ON n.number = i.computation AND n.kind = 'computation' WHERE n.name = 'first' AND l.seq > %s ORDER BY l.seq
"""


# --- in the subprocess --------------------------------------------------------------------------------------------


class First(Computation[bytes]):
    """Counts; a straggler goes another way."""

    count = ValueCell(MsgpackCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[bytes]) -> None:
        self.count.set(self.count.get() + 1)
        context.produce(flows.COUNTED if flows.number_of(record.value) % PERIOD else SLOW, record.value)


class Keep(Computation[bytes]):
    """A sink row for each record."""

    def ProcessRecord(self, context: Context, record: Record[bytes]) -> None:
        context.upsert(KEPT, {"number": flows.number_of(record.value)})


def wired(given: dict[str, Any]) -> Pipeline:
    """The pipeline, in a process that does not fold: the log is watched."""
    limits.STRAGGLER_PATIENCE_US = given["patience_us"]  # type: ignore[misc]  # Final, but for this
    limits.FOLD_TRIGGER_CHECKPOINTS = limits.LOG_LIMIT_CHECKPOINTS = NEVER_US  # type: ignore[misc]
    begin = given["begin"]
    source = flows.Rows(
        "live",
        lambda number: (flows.value_of(number % 97, number), number * 1_000),
        given["records"],
        due=lambda number: begin + number / RATE,
    )
    pipeline = Pipeline(given["name"])
    pipeline.inject(source, into=flows.ENTERED)
    pipeline.sink(KEPT)
    both = [flows.COUNTED, SLOW]
    pipeline.add(First, [subscribe(flows.ENTERED, key=flows.key_of)], both, name="first", productions="weak")
    pipeline.add(flows.Second, [subscribe(flows.COUNTED, key=flows.key_of)], name="second")
    pipeline.add(Keep, [subscribe(SLOW, key=flows.key_of)], name="keep")
    return pipeline


def _pipeline(given: dict[str, Any]) -> None:
    progress = run_on(wired(given), given["url"])
    common.answer(checkpoints=progress.checkpoints)


if __name__ == "__main__":
    _pipeline(common.arguments())
