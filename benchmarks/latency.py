"""Time from a record's scheduled arrival to its output of stage two in another process's hands: open loop.

A live source makes 1,000 records due each second; a record is late from its *scheduled* arrival on, whatever the
pipeline is doing then.  Stage two upserts one sink row per record.  The consumer is a process with a connection of its
own.  It clocks one record in `SAMPLED`: it asks for rows that it has not seen from when that one may be there, pauses
`POLL_S`, and asks again until it is.  So up to one pause and one query (about 0.2 ms) of every figure are its own.  Between
two such records it takes nothing from what it looks at.  After each `ON_S` seconds of load come `OFF_S` without, in which
the consumer measures raw commits on the same server: interleaved, and not slowed down by the load.
"""

from __future__ import annotations

import struct
import subprocess
import time
from collections.abc import Callable
from typing import Any, Final

import psycopg

from benchmarks import common, flows
from benchmarks.common import RAW_LIMIT_MS, RawCommit, Reference, Result
from millwheel.launch import run as run_on

RATE: Final = 1_000
KEYS: Final = 1_000
ON_S: Final = 4.0
OFF_S: Final = 1.0
IN_ROUND: Final = int(RATE * ON_S)
ROUNDS: Final = common.sized("ROUNDS", 6)
WARM_ROUNDS: Final = 1
"""Left out of the figures: plans, caches, the first fold."""
SAMPLED: Final = 10
SOONEST_S: Final = 0.0005
"""From when a record is due until the first look for it: none is that fast."""
POLL_S: Final = 0.0003
LEAD_S: Final = 3.0
"""From the consumer's start to the first record: the pipeline is open by then."""
DRAIN_S: Final = 60.0

QUERY: Final = "SELECT number FROM {}.seen WHERE number > $1 ORDER BY number"
BIGINT: Final = 20
NUMBER: Final = struct.Struct(">q")


def latency() -> Result:
    """Benchmark 3: strong productions, exactly once."""
    found = _measure("latency")
    raw, p50, p99 = found["raw_p50_ms"], found["p50_ms"], found["p99_ms"]
    absolute = raw >= RAW_LIMIT_MS or (p50 <= 8 and p99 <= 40)
    return _result(
        "latency", found, "p50 at most 6 raw commits and 8 ms, p99 at most 40 ms", p50 <= 6 * raw and absolute
    )


def latency_weak() -> Result:
    """Benchmark 4: weak productions, no deduplication."""
    found = _measure("latency_weak", productions="weak", exactly_once=False)
    raw, p50 = found["raw_p50_ms"], found["p50_ms"]
    met = p50 <= 3 and raw < RAW_LIMIT_MS
    return _result("latency_weak", found, "p50 at most 3 ms (where a raw commit takes less than 1.5 ms)", met)


def _result(name: str, found: dict[str, Any], target: str, met: bool) -> Result:
    raw = found["raw_p50_ms"]
    reference = Reference("p50 of a raw commit (prepared insert of 1 kB), between the rounds", raw, "ms")
    reason = "" if raw < RAW_LIMIT_MS else f"raw commit p50 is {raw:.2f} ms: absolute limits do not bind here"
    return Result(name, found["p50_ms"], "ms", reference, found["p50_ms"] / raw, target, met, found, reason)


Starts = Callable[[dict[str, Any]], list["subprocess.Popen[bytes]"]]
"""Starts what is measured, from what all its processes are told; the first one answers."""


def _measure(name: str, **settings: Any) -> dict[str, Any]:
    return measure(name, lambda shared: [common.start("latency", role="pipeline", settings=settings, **shared)])


def measure(name: str, starts: Starts, lead_s: float = LEAD_S) -> dict[str, Any]:
    """The figures of the pipeline that `starts` starts, `lead_s` before its first record is due."""
    records = IN_ROUND * ROUNDS
    with common.server(name) as url:
        raw = RawCommit(url)
        for _ in range(50):
            raw.once()
        raw.close()
        begin = time.monotonic() + lead_s + 1.0
        shared: dict[str, Any] = {"url": url, "name": name, "begin": begin, "records": records}
        processes = [common.start("latency", role="consumer", **shared), *starts(shared)]
        try:
            seen, progress, *_ = [_answer(process) for process in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.communicate()
        with psycopg.connect(url) as connection:
            row = connection.execute(f"SELECT count(*), sum(count) FROM {name}.seen").fetchone()
        each = records // KEYS
        if row != (records, KEYS * each * (each + 1) // 2):
            raise AssertionError(f"{name}: the sink has {row}, of {records} records")
    delays = [delay * 1e3 for delay in seen["delays"]]
    clocked = IN_ROUND // SAMPLED
    kept, raws = delays[clocked * WARM_ROUNDS :], [one * 1e3 for one in seen["raw"]]
    per_round = [kept[i : i + clocked] for i in range(0, len(kept), clocked)]
    return {
        "p50_ms": common.quantile(kept, 0.5), "p90_ms": common.quantile(kept, 0.9), "p95_ms": common.quantile(kept, 0.95),
        "p99_ms": common.quantile(kept, 0.99), "max_ms": max(kept), "records": len(kept),
        "p50_by_round_ms": [common.quantile(part, 0.5) for part in per_round],
        "p99_by_round_ms": [common.quantile(part, 0.99) for part in per_round],
        "histogram_ms": [common.quantile(kept, share / 100) for share in range(1, 101)],
        "raw_p50_ms": common.quantile(raws, 0.5), "raw_p99_ms": common.quantile(raws, 0.99), "raw_commits": len(raws),
        "polls": seen["polls"], "poll_ms": seen["poll_ms"], "checkpoints": progress["checkpoints"],
        "pipeline_cpu_s": progress["cpu_s"],
    }  # fmt: skip


def _answer(process: Any) -> dict[str, Any]:
    import json

    out, _ = process.communicate(timeout=10 * LEAD_S + ROUNDS * (ON_S + OFF_S) + 2 * DRAIN_S)
    if process.returncode != 0:
        raise RuntimeError(f"a helper of the latency benchmark ended with status {process.returncode}")
    found: dict[str, Any] = json.loads(out.decode().strip().splitlines()[-1])
    return found


def due_at(begin: float, number: int) -> float:
    """The scheduled arrival of record `number`, monotonic clock, s."""
    turn, place = divmod(number, IN_ROUND)
    return begin + turn * (ON_S + OFF_S) + place / RATE


# --- in the subprocesses ------------------------------------------------------------------------------------------


def live_rows(given: dict[str, Any]) -> flows.Rows:
    """The source: one row a millisecond, but for the pauses."""
    begin = given["begin"]
    return flows.Rows(
        "live",
        lambda number: (flows.value_of(flows.spread(number, KEYS), number), number * 1_000),
        given["records"],
        due=lambda number: due_at(begin, number),
        announces=True,
    )


def _pipeline(given: dict[str, Any]) -> None:
    pipeline = flows.two_stages(given["name"], live_rows(given), shown=True, **given["settings"])
    progress = run_on(pipeline, given["url"])
    common.answer(checkpoints=progress.checkpoints, records=progress.records, cpu_s=time.process_time())


def _consumer(given: dict[str, Any]) -> None:
    begin, records = given["begin"], given["records"]
    raw = RawCommit(given["url"])
    # On libpq itself: what looks on should take as little as it can from what it looks at.
    connection = psycopg.pq.PGconn.connect(given["url"].encode())
    query = QUERY.format(given["name"]).encode()
    while connection.prepare(b"new", query, [BIGINT]).status != psycopg.pq.ExecStatus.COMMAND_OK:
        time.sleep(0.01)  # its table is not there yet
    delays: list[float] = []
    raws: list[float] = []
    spent: list[float] = []
    last = -1
    until = begin + ROUNDS * (ON_S + OFF_S) + DRAIN_S
    while last + 1 < records:
        asked = time.monotonic()
        answer = connection.exec_prepared(b"new", [NUMBER.pack(last)], [1], 1)
        now = time.monotonic()
        if answer.status != psycopg.pq.ExecStatus.TUPLES_OK:
            raise RuntimeError(f"the consumer's query failed: {answer.error_message.decode()}")
        spent.append(now - asked)
        rows = [answer.get_value(row, 0) for row in range(answer.ntuples)]
        for value in rows:
            (number,) = NUMBER.unpack(value or b"")  # the column has no NULL
            if number != last + 1:
                raise AssertionError(f"record {number} is visible before {last + 1}")
            last = number
            if number % SAMPLED == 0:
                delays.append(now - due_at(begin, number))
        if now > until:
            raise AssertionError(f"only {last + 1} of {records} records came out")
        if last >= 0 and _idle(begin, last, now):
            raws.append(raw.once())
            time.sleep(0.01)
        else:
            time.sleep(max(POLL_S, due_at(begin, _clocked(last)) + SOONEST_S - now))
    while len(raws) < 50 * ROUNDS:  # the last round's pause
        raws.append(raw.once())
        time.sleep(0.01)
    common.answer(delays=delays, raw=raws, polls=len(spent), poll_ms=common.median(spent) * 1e3)


def _clocked(last: int) -> int:
    """The next record after `last` that is looked for: one that is clocked, or the last one of its round."""
    following = last + 1
    return min(-(-following // SAMPLED) * SAMPLED, following - following % IN_ROUND + IN_ROUND - 1)


def _idle(begin: float, last: int, now: float) -> bool:
    """All that is due is out, and nothing will be due for a while."""
    return due_at(begin, last + 1) - now > 0.1


if __name__ == "__main__":
    _given = common.arguments()
    (_pipeline if _given["role"] == "pipeline" else _consumer)(_given)
