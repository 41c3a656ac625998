"""Snapshots of much state: how large the image of an epoch is, how long an epoch takes, and how soon a killed run goes on.

Two stages that keep a count for each key, filled with every key once.  Then rows come at a steady rate, each for another key.
Python is killed with signal 9, and Postgres stays.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import psycopg

from benchmarks import common, flows
from benchmarks.common import Reference, Result
from millwheel import Computation, Context, MsgpackCoder, Pipeline, Record, Snapshots, ValueCell, subscribe
from millwheel.host import controller
from millwheel.host.epoch_keeper import Declaring
from millwheel.host.messages import EpochDeclared, EpochStarted, Message
from millwheel.launch import run as run_on
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.source import Batch, Source, SourcePartition

KEYS: Final = common.sized("KEYS", 1_000_000)
ROUNDS: Final = common.sized("ROUNDS", 3)
STEADY_S: Final = common.sized("STEADY_S", 20)
EVERY_MS: Final = 1_000
CHANGED: Final = max(1, KEYS // 100)
"""Keys that change in an epoch, which is a second."""
FLOOD_S: Final = 5.0
"""For how long the peak rate is measured."""
WARM_S: Final = 3.0
"""From the last key of the fill, or from a change of the rate, until what is measured begins: folds of the fill are over."""
GROWTH: Final = 1.5
EPOCH_MS: Final = 150.0
RESTART_RATE: Final = 1_000
WAITING: Final = 3 * RESTART_RATE
RESTART_S: Final = 4.0
LIMIT_S: Final = 1_200.0
POLL_S: Final = 0.005
STEP_US: Final = 1_000


def snapshot_image() -> Result:
    """Bytes that an epoch writes when 1% of the keys change, beside a state of just so many keys that all change."""
    found: dict[str, list[float]] = {}
    with common.server("snapshot_image") as url:
        for keys in (KEYS, CHANGED):
            found[f"{keys:,} keys"] = _images(url, f"images_{keys}", keys)
    value, beside = map(common.median, found.values())
    return Result(
        "snapshot_image", value, "bytes", Reference(f"the same of a state of {CHANGED:,} keys", beside, "bytes"),
        value / beside, f"at most {GROWTH} times", value <= GROWTH * beside, {**found, "changed": CHANGED},
    )  # fmt: skip


def _images(url: str, name: str, keys: int) -> list[float]:
    """Bytes of the images of each epoch of the steady phase."""
    process = _start(url, name, keys=keys, rate=CHANGED)
    with psycopg.connect(url, autocommit=True) as connection:
        _until(process, lambda: _there(connection, f"{name}.checkpoint_log"))
        connection.execute(
            f"CREATE TABLE {name}.image (epoch bigint, size bigint, at timestamptz);"
            f"CREATE FUNCTION {name}.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO {name}.image "
            "VALUES (new.epoch, octet_length(new.payload), clock_timestamp()); RETURN new; END $$;"
            f"CREATE TRIGGER image AFTER INSERT ON {name}.checkpoint_log FOR EACH ROW EXECUTE FUNCTION {name}.note()"
        )
        answer = _ended(process)
        rows = connection.execute(
            f"SELECT sum(size)::float8 FROM {name}.image GROUP BY epoch HAVING min(at) > to_timestamp(%s) "
            "AND max(at) < to_timestamp(%s) ORDER BY epoch",
            (answer["steady_from"], answer["steady_until"]),
        ).fetchall()
    return [size for (size,) in rows]


def snapshot_epoch() -> Result:
    """From the begin of an epoch until it is declared, at half of the rate at which rows are taken without a bound."""
    with common.server("snapshot_epoch") as url:
        answer = _ended(_start(url, "epochs", keys=KEYS, rate=0))
    took = answer["epochs_ms"]
    p50 = common.median(took)
    return Result(
        "snapshot_epoch", p50, "ms", Reference("p95", common.quantile(took, 0.95), "ms"), None,
        f"p50 at most {EPOCH_MS:.0f} ms at half the peak rate, {KEYS:,} keys", p50 <= EPOCH_MS,
        {"epochs_ms": took, "peak": answer["peak"], "rate": answer["rate"], "keys": KEYS, "fill_s": answer["fill_s"]},
    )  # fmt: skip


def snapshot_restart() -> Result:
    """From the start of a process after `kill -9` until a row is seen that was not there before."""
    firsts: list[float] = []
    with common.server("snapshot_restart") as url, psycopg.connect(url, autocommit=True) as connection:
        process = _start(url, "killed", keys=KEYS, rate=RESTART_RATE, shown=True, steady_s=LIMIT_S)
        try:
            _until(process, lambda: _there(connection, "killed.seen") and _newest(connection) > RESTART_RATE)
            for _ in range(ROUNDS):
                time.sleep(WARM_S)
                process.kill()
                process.communicate()
                before, began = _newest(connection), time.monotonic()
                process = _start(url, "killed", keys=KEYS, rate=RESTART_RATE, shown=True, steady_s=LIMIT_S)
                _until(process, lambda seen=before: _newest(connection) > seen)  # type: ignore[misc]
                firsts.append(time.monotonic() - began)
        finally:
            process.kill()
            process.communicate()
    value = common.median(firsts)
    return Result(
        "snapshot_restart", value, "s", Reference("the slowest", max(firsts), "s"), None,
        f"first new output within {RESTART_S:g} s, {KEYS:,} keys", max(firsts) <= RESTART_S,
        {"first_s": firsts, "keys": KEYS, "every_ms": EVERY_MS},
    )  # fmt: skip


def _start(url: str, name: str, **given: Any) -> subprocess.Popen[bytes]:
    return common.start("snapshots_state", url=url, name=name, **{"shown": False, "steady_s": STEADY_S, **given})


def _ended(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    out, _ = process.communicate(timeout=LIMIT_S)
    if process.returncode != 0:
        raise RuntimeError(f"a measured process ended with status {process.returncode}")
    answer: dict[str, Any] = json.loads(out.decode().strip().splitlines()[-1])
    return answer


def _until(process: subprocess.Popen[bytes], true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not true():
        if process.poll() is not None:
            raise RuntimeError(f"a measured process ended with status {process.returncode}")
        if time.monotonic() > deadline:
            raise TimeoutError("a measured process did not get there in time")
        time.sleep(POLL_S)


def _there(connection: psycopg.Connection[Any], table: str) -> bool:
    row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()
    return row is not None and bool(row[0])


def _newest(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT coalesce(max(number), -1) FROM killed.seen").fetchone()
    return row[0] if row else -1


# --- in the subprocess --------------------------------------------------------------------------------------------


class Held(Computation[bytes]):
    """Counts, and shows what comes after the fill, if that is wanted."""

    count = ValueCell(MsgpackCoder(int), default=0)

    def __init__(self, shown: bool) -> None:
        self._shown = shown

    def ProcessRecord(self, context: Context, record: Record[bytes]) -> None:
        count, number = self.count.get() + 1, flows.number_of(record.value)
        self.count.set(count)
        if self._shown and number >= 0:
            context.upsert(flows.SEEN, {"number": number, "count": count})


class Phases(Source):
    """Every key once, without a bound; then, without a rate, more of that for a while; then a steady rate, and the end."""

    name = "phases"

    def __init__(self, keys: int, rate: float, steady_s: float) -> None:
        self.keys = keys
        self.rate = rate
        self.steady_s = steady_s
        self.peak = 0.0
        self.first = time.monotonic()
        self.filled_at = 0.0
        """When the last key was read."""
        self.flooded_at = 0.0
        """When rows without a bound ended, if there were any."""
        self.steady: tuple[float, int] | None = None
        """When the steady rate began, monotonic clock, s, and with which row."""
        self.next = 0
        self.waiting = 0
        """Rows that have come while the process was dead."""

    def discover(self, known: Iterable[str]) -> list[SourcePartition]:
        return [] if "rows" in set(known) else [_PhasedPartition(self)]

    def complete(self) -> bool:
        return True

    def pending_watermark(self) -> int:
        return MAX_TIME

    def until(self) -> int:
        """The first row that cannot be read now."""
        now = time.monotonic()
        if self.next < self.keys:
            return self.keys
        self.filled_at = self.filled_at or now
        if self.rate == 0.0:
            flooded = now - self.filled_at - WARM_S
            if flooded < 0 or not self.peak:
                self.peak = float(self.next) if flooded >= 0 else 0.0
            elif flooded >= FLOOD_S:
                self.peak = (self.next - self.peak) / flooded
                self.rate, self.flooded_at = self.peak / 2, now
            return self.next + (1 << 30)
        if not self.steady and self.flooded_at and not any(at > self.flooded_at for at, _ in ClockedEpochs.took):
            return self.next  # until an epoch that has begun since is declared: all that was read before has run then
        self.steady = self.steady or (now, self.next + self.waiting)
        return self.steady[1] + int((now - self.steady[0]) * self.rate)

    def over(self) -> bool:
        """Whether nothing more comes."""
        return self.steady is not None and time.monotonic() > self.steady[0] + self.steady_s


class _PhasedPartition:
    name = "rows"

    def __init__(self, source: Phases) -> None:
        self._source = source

    def fingerprint(self) -> bytes:
        return b""

    def resume(self, position: int, state: bytes) -> None:
        self._source.next = position
        self._source.waiting = WAITING if position > self._source.keys else 0

    def read(self, limit: int) -> Batch | None:
        source, first = self._source, self._source.next
        end = first if source.over() else min(first + limit, source.until())
        if end <= first:
            return None
        source.next, rows, keys = end, range(first, end), source.keys
        values = [flows.value_of(n if n < keys else flows.spread(n, keys), n - keys) for n in rows]
        return Batch([*rows], values, [n * STEP_US for n in rows], end, b"")

    def finished(self) -> bool:
        return self._source.over()

    def watermark(self) -> int:
        return MAX_TIME if self.finished() else self._source.next * STEP_US if self._source.next else MIN_TIME

    def close(self) -> None:
        pass


class ClockedEpochs(Declaring):
    """Notes when each epoch began, monotonic clock, s, and how long it took, ms."""

    took: Final[list[tuple[float, float]]] = []

    def __init__(self, *, tell: Callable[[Message], None], **given: Any) -> None:
        began: dict[int, float] = {}

        def told(message: Message) -> None:
            if isinstance(message, EpochStarted):
                began[message.epoch] = time.monotonic()
            if isinstance(message, EpochDeclared) and message.epoch in began:
                since = began.pop(message.epoch)
                self.took.append((since, 1_000 * (time.monotonic() - since)))
            tell(message)

        super().__init__(tell=told, **given)


def _main(given: dict[str, Any]) -> None:
    vars(controller)["Declaring"] = ClockedEpochs
    source = Phases(given["keys"], float(given["rate"]), given["steady_s"])
    pipeline = Pipeline(given["name"], durability=Snapshots(EVERY_MS))
    pipeline.inject(source, into=flows.ENTERED)
    pipeline.add(flows.First, [subscribe(flows.ENTERED, key=flows.key_of)], [flows.COUNTED], name="first")
    pipeline.add(lambda: Held(given["shown"]), [subscribe(flows.COUNTED, key=flows.key_of)], name="held")
    if given["shown"]:
        pipeline.sink(flows.SEEN)
    with contextlib.suppress(KeyboardInterrupt):
        run_on(pipeline, given["url"])
    steady = source.steady[0] if source.steady else time.monotonic()
    wall = time.time() - time.monotonic()
    epochs = [ms for at, ms in ClockedEpochs.took if steady + WARM_S <= at <= steady + given["steady_s"]]
    common.answer(
        epochs_ms=epochs, peak=source.peak, rate=source.rate, fill_s=source.filled_at - source.first,
        steady_from=wall + steady + WARM_S, steady_until=wall + steady + given["steady_s"],
    )  # fmt: skip


if __name__ == "__main__":
    _main(common.arguments())
