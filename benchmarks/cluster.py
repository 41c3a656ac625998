"""A cluster on this machine: throughput beside the embedded run, latency through three processes, watermark lag, and the time
that a death costs.

Lives here: the figures of clusters.  Their processes are in `cluster_processes`.  Every process has its own interpreter,
Postgres is on the same processors, and channels are gRPC over the loopback interface.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import psycopg

from benchmarks import common, flows, latency, straggler
from benchmarks.cluster_processes import KILLED_INTERVALS, LEAD_S, Members, owned
from benchmarks.common import RAW_LIMIT_MS, Reference, Result
from millwheel import limits
from millwheel.errors import StoreError
from millwheel.overview import ClusterOffice, ClusterPicture

RECORDS: Final = common.sized("RECORDS", 400_000)
KEYS: Final = 10_000
PAIRS: Final = common.sized("ROUNDS", 3)
SHARE_OF_EMBEDDED: Final = 0.5
"""Of its records/s, on two processors; with four or more it is 1.3."""
P95_STRONG_MS: Final = 30.0
P95_WEAK_MS: Final = 10.0
LAG_S: Final = 5.0 * PAIRS
LAG_MS: Final = 50.0
HELD_KEYS: Final = common.sized("KEYS", 1_000_000)
DEATH_RATE: Final = 500
FILL_RATE: Final = 25_000
"""Keys a second that are surely filled before the steady rows begin."""
DEATH_S: Final = 60.0
"""For how long rows come while a process is dead."""
READY_S: Final = 120.0
POLL_S: Final = 0.005
EVERY_MS: Final = 1_000
"""Between two snapshots."""
BACK_S: Final = 4.0
"""From the end of a dead worker's lease until the whole pipeline, which goes back, shows rows again."""
BETWEEN_S: Final = 5.0
"""From everything owned until the kill: the load is steady by then."""


# --- throughput ---------------------------------------------------------------------------------------------------


def cluster_throughput() -> Result:
    """The two-stage keyed count over gRPC with two workers, and embedded, in turns."""
    embedded: list[dict[str, Any]] = []
    clusters: list[dict[str, Any]] = []
    for turn in range(PAIRS):
        for kind in ("embedded", "cluster") if turn % 2 == 0 else ("cluster", "embedded"):
            (embedded if kind == "embedded" else clusters).append(_count(kind))
    ratios = [
        one["records_a_second"] / other["records_a_second"] for one, other in zip(clusters, embedded, strict=True)
    ]
    value = common.median([one["records_a_second"] for one in clusters])
    beside = common.median([one["records_a_second"] for one in embedded])
    return Result(
        "cluster_throughput", value, "records/s", Reference("the embedded run", beside, "records/s"),
        common.median(ratios), f"at least {SHARE_OF_EMBEDDED} of the embedded run on 2 processors",
        common.median(ratios) >= SHARE_OF_EMBEDDED, {"cluster": clusters, "embedded": embedded, "ratios": ratios},
    )  # fmt: skip


def _count(kind: str) -> dict[str, Any]:
    """Records/s from the moment at which all rows are due until the last process has ended in order."""
    name = f"counted_{kind}"
    with common.server(name) as url:
        given: dict[str, Any] = {
            "pipeline": "counted", "url": url, "name": name, "keys": KEYS, "records": RECORDS, "reads": True,
            "begin": time.monotonic() + LEAD_S,
        }  # fmt: skip
        if kind == "embedded":
            answers = [common.call("cluster_processes", role="embedded", **given)]
        else:
            answers = _ended(Members(2, **given))
        with psycopg.connect(url) as connection:
            _check_counts(connection, name)
    seconds = max(answer["ended"] for answer in answers) - given["begin"]
    return {
        "records_a_second": RECORDS / seconds, "seconds": seconds, "cpu_s": [answer["cpu_s"] for answer in answers],
        "checkpoints": sum(answer["checkpoints"] for answer in answers),
    }  # fmt: skip


def _ended(members: Members) -> list[dict[str, Any]]:
    """What the workers answer; all must end in order."""
    try:
        found = []
        for process in members.workers_first:
            out, _ = process.communicate(timeout=LEAD_S + READY_S)
            if process.returncode != 0:
                raise RuntimeError(f"a process of a cluster ended with status {process.returncode}")
            found.append(json.loads(out.decode().strip().splitlines()[-1]))
    finally:
        members.end()
    return [answer for answer in found if answer]


def _check_counts(connection: psycopg.Connection[Any], name: str) -> None:
    """Every key was counted at both stages, and the log is folded."""
    rows = connection.execute(f"SELECT count(*) FROM {name}.key_state").fetchone()
    if rows != (2 * min(KEYS, RECORDS),):
        raise AssertionError(f"{name}: the store holds {rows} keys, of {2 * KEYS}")


# --- latency ------------------------------------------------------------------------------------------------------


def cluster_latency() -> Result:
    """1,000 records/s, source process to worker to worker, strong and exactly once."""
    found = _latency("cluster_latency")
    met = found["p50_ms"] <= 6 * found["raw_p50_ms"] and (
        found["raw_p50_ms"] >= RAW_LIMIT_MS or found["p95_ms"] <= P95_STRONG_MS
    )
    return _of_latency("cluster_latency", found, f"p50 at most 6 raw commits, p95 at most {P95_STRONG_MS:.0f} ms", met)


def cluster_latency_weak() -> Result:
    """The same, weak and without deduplication."""
    found = _latency("cluster_latency_weak", productions="weak", exactly_once=False)
    met = found["p50_ms"] <= 4 * found["raw_p50_ms"] and (
        found["raw_p50_ms"] >= RAW_LIMIT_MS or found["p95_ms"] <= P95_WEAK_MS
    )
    return _of_latency(
        "cluster_latency_weak", found, f"p50 at most 4 raw commits, p95 at most {P95_WEAK_MS:.0f} ms", met
    )


def _latency(name: str, **settings: Any) -> dict[str, Any]:
    seen: list[ClusterPicture] = []

    def starts(shared: dict[str, Any]) -> list[Any]:
        members = Members(3, pipeline="live", settings=settings, **shared)
        with office_of(members) as office:  # by hand: the leader counts what each has, and not which
            seen.append(_apart(office, time.monotonic() + READY_S))
        return members.workers_first

    found = latency.measure(name, starts, lead_s=3 * LEAD_S)
    picture = seen[0]
    found["owners"] = {thing.computation: thing.owner for thing in picture.intervals} | {
        source.name: source.owner for source in picture.sources
    }
    return found


def _apart(office: ClusterOffice, until: float) -> ClusterPicture:
    """Move both stages to where the source is not, each to a worker of its own: orders move intervals, and sources stay.

    The leader moves things too while workers join, so what it has moved meanwhile is moved again.
    """
    while True:
        picture = until_seen(office, lambda now: owned(now) and {"w1", "w2", "w3"} <= _alive(now), until)
        others = sorted({"w1", "w2", "w3"} - {picture.sources[0].owner})
        wanted = {one.id: others[one.computation == "second"] for one in picture.intervals}
        left = [one.id for one in picture.intervals if one.owner != wanted[one.id]]
        if not left:
            return picture
        office.move(left[:1], wanted[left[0]])


def _alive(picture: ClusterPicture) -> set[str]:
    return {member.name for member in picture.members if member.alive}


def _of_latency(name: str, found: dict[str, Any], target: str, met: bool) -> Result:
    raw = found["raw_p50_ms"]
    reference = Reference("p50 of a raw commit (prepared insert of 1 kB), between the rounds", raw, "ms")
    reason = "" if raw < RAW_LIMIT_MS else f"raw commit p50 is {raw:.2f} ms: absolute limits do not bind here"
    if len({*found["owners"].values()}) < 3:
        met, reason = False, f"the source and both stages are not in three processes: {found['owners']}"
    return Result(name, found["p50_ms"], "ms", reference, found["p50_ms"] / raw, target, met, found, reason)


# --- watermarks ---------------------------------------------------------------------------------------------------


def cluster_lag() -> Result:
    """The event time by which each of three stages is behind the one before, at 1,000 records/s over two workers."""
    name, records = "cluster_lag", int(LAG_S * latency.RATE)
    with common.server(name) as url:
        begin = time.monotonic() + LEAD_S
        members = Members(
            2, pipeline="chained", url=url, name=name, begin=begin, records=records, rate=latency.RATE
        )  # fmt: skip
        try:
            with office_of(members):
                lags = _watched(url, name, begin)
        finally:
            members.end()
    means = {stage: sum(values) / len(values) for stage, values in lags.items()}
    worst = max(means.values())
    return Result(
        "cluster_lag", worst, "ms", None, None, f"at most {LAG_MS:.0f} ms a stage at the mean", worst <= LAG_MS,
        {"mean_ms": means, "p95_ms": {stage: common.quantile(values, 0.95) for stage, values in lags.items()},
         "looks": len(lags["first"])},
    )  # fmt: skip


def _watched(url: str, name: str, begin: float) -> dict[str, list[float]]:
    """By stage, ms behind the one before, at each look from the second second to the last."""
    chain = ["source:live", "first", "second", "third"]
    lags: dict[str, list[float]] = {stage: [] for stage in chain[1:]}
    with psycopg.connect(url, autocommit=True) as connection:
        while (now := time.monotonic() - begin) < LAG_S - 0.5:
            rows: dict[str, int] = dict(
                connection.execute(f"SELECT name, value FROM {name}.watermark", prepare=True).fetchall()
            )
            if now > 2.0:
                for before, stage in pairwise(chain):
                    lags[stage].append((rows[before] - rows[stage]) / 1_000)
            time.sleep(POLL_S)
    return lags


# --- deaths -------------------------------------------------------------------------------------------------------


def cluster_worker_death() -> Result:
    """A worker with half of 8 intervals is killed with signal 9, and rows for its keys go on coming."""
    lease_s = limits.LEASE_US / 1e6
    gaps = [_worker_dies(f"death_{turn}") for turn in range(PAIRS)]
    worst = max(gap["gap_s"] for gap in gaps)
    return Result(
        "cluster_worker_death", common.median([gap["gap_s"] for gap in gaps]), "s", Reference("the lease", lease_s, "s"),
        common.median([gap["gap_s"] for gap in gaps]) / lease_s, f"at most {lease_s + 2:g} s, the lease and 2 s",
        worst <= lease_s + 2, {"rounds": gaps, "keys": HELD_KEYS, "worst_s": worst},
    )  # fmt: skip


def snapshots_worker_death() -> Result:
    """The same under snapshots, where all goes back, and how many rows are read again."""
    gaps = [_worker_dies(f"back_{turn}", EVERY_MS) for turn in range(PAIRS)]
    worst, lease_s = max(gap["gap_s"] for gap in gaps), limits.LEASE_US / 1e6
    value = common.median([gap["gap_s"] for gap in gaps])
    return Result(
        "snapshots_worker_death", value, "s", Reference("the lease", lease_s, "s"), value / lease_s,
        f"at most {lease_s + BACK_S:g} s, the lease and {BACK_S:g} s", worst <= lease_s + BACK_S,
        {"rounds": gaps, "keys": HELD_KEYS, "worst_s": worst, "every_ms": EVERY_MS},
    )  # fmt: skip


def _worker_dies(name: str, every_ms: int | None = None) -> dict[str, Any]:
    with common.server(name) as url:
        begin = time.monotonic() + LEAD_S + HELD_KEYS / FILL_RATE
        members = Members(
            2, pipeline="kept", url=url, name=name, keys=HELD_KEYS, rate=DEATH_RATE, begin=begin,
            records=int(DEATH_RATE * DEATH_S), every_ms=every_ms,
        )  # fmt: skip
        try:
            with office_of(members) as office:
                filled = begin + READY_S
                until_seen(office, lambda now: owned(now) and now.sources[0].rows >= HELD_KEYS, filled)
                time.sleep(max(0.0, begin - time.monotonic()) + BETWEEN_S)
                picture = until_seen(office, owned, filled)
                victim = next(name for name in ("w1", "w2") if name != picture.sources[0].owner)
                lost = {interval.low for interval in picture.intervals if interval.owner == victim}
                with psycopg.connect(url, autocommit=True) as connection:
                    gap = _gap(connection, name, lost, lambda: members.kill(victim))
        finally:
            members.end()
    due = int((gap["killed"] - begin) * DEATH_RATE)
    return {**gap, "intervals": len(lost), "due": due, "repeated": due - gap["since"]}


def _gap(connection: psycopg.Connection[Any], name: str, lost: set[str], kill: Callable[[], float]) -> dict[str, Any]:
    """Seconds from the kill until each of the lost intervals has shown a row that was not there soon after it."""
    lows = sorted({f"{HELD_KEYS * n // KILLED_INTERVALS:09d}" for n in range(1, KILLED_INTERVALS)} | {""})
    killed = kill()
    time.sleep(0.3)  # what the server has got is committed by then
    number = connection.execute(f"SELECT coalesce(max(number), 0) FROM {name}.seen").fetchone()
    newest = int(number[0]) if number is not None else 0
    back: dict[str, float] = {}
    while len(back) < len(lost):
        if time.monotonic() - killed > DEATH_S / 2:
            raise AssertionError(f"after {DEATH_S / 2:.0f} s only {len(back)} of {len(lost)} intervals go on")
        rows = connection.execute(
            f"SELECT number FROM {name}.seen WHERE number > %s ORDER BY number", (newest,), prepare=True
        ).fetchall()
        now = time.monotonic()
        for (shown,) in rows:
            key = f"{flows.spread(shown, HELD_KEYS):09d}"
            low = max(one for one in lows if one <= key)
            if low in lost:
                back.setdefault(low, now - killed)
        time.sleep(POLL_S)
    return {"gap_s": max(back.values()), "first_s": min(back.values()), "since": newest, "killed": killed}


def cluster_failover() -> Result:
    """The leading controller is killed with signal 9; how long watermarks stand still."""
    lease_s = limits.LEASE_US / 1e6
    gaps = [_leader_dies(f"failover_{turn}") for turn in range(PAIRS)]
    return Result(
        "cluster_failover", common.median(gaps), "s", Reference("the lease", lease_s, "s"), common.median(gaps) / lease_s,
        f"at most {lease_s + 1:g} s, the lease and 1 s", max(gaps) <= lease_s + 1, {"gap_s": gaps},
    )  # fmt: skip


def _leader_dies(name: str) -> float:
    with common.server(name) as url:
        begin, seconds = time.monotonic() + LEAD_S, 2 * LEAD_S + 30.0
        members = Members(
            2, 2, pipeline="chained", url=url, name=name, begin=begin, records=int(200 * seconds), rate=200
        )  # fmt: skip
        try:
            with office_of(members) as office:
                picture = until_seen(office, owned, time.monotonic() + READY_S)
                time.sleep(max(0.0, begin - time.monotonic()) + BETWEEN_S)
                picture = office.look()
                leader = next(member.name for member in picture.members if member.leads)
            with psycopg.connect(url, autocommit=True) as connection:
                killed = members.kill(leader)
                time.sleep(0.3)
                before = _third(connection, name)
                while _third(connection, name) <= before:
                    if time.monotonic() - killed > 30:
                        raise AssertionError("watermarks do not move 30 s after the leader's death")
                    time.sleep(POLL_S)
                return time.monotonic() - killed
        finally:
            members.end()


def _third(connection: psycopg.Connection[Any], name: str) -> int:
    row = connection.execute(f"SELECT value FROM {name}.watermark WHERE name = 'third'", prepare=True).fetchone()
    return int(row[0]) if row is not None else 0


# --- stragglers ---------------------------------------------------------------------------------------------------


def cluster_straggler() -> Result:
    """Weak productions beside a straggler (figure 11), sender and receivers on two workers."""
    found: dict[int, list[dict[str, Any]]] = {limits.STRAGGLER_PATIENCE_US: [], straggler.NEVER_US: []}
    for turn in range(straggler.ROUNDS):
        for patience_us, rounds in found.items():
            rounds.append(
                straggler.measure(
                    f"cluster_straggler_{turn}_{'waits' if patience_us == straggler.NEVER_US else 'hurries'}",
                    lambda shared, us=patience_us: (
                        Members(2, pipeline="straggler", patience_us=us, **shared).workers_first
                    ),  # type: ignore[misc]
                )
            )
    hurried, waits = found.values()
    value, beside = (common.median([one["p99_ms"] for one in rounds]) for rounds in (hurried, waits))
    return Result(
        "cluster_straggler", value, "ms", Reference("p99 where every checkpoint waits for the straggler", beside, "ms"),
        value / beside, f"p99 of the others at most {straggler.LIMIT_MS:.0f} ms", value <= straggler.LIMIT_MS,
        {"hurried": hurried, "waits": waits, "rate": straggler.RATE},
    )  # fmt: skip


# --- looking ------------------------------------------------------------------------------------------------------


def office_of(members: Members) -> ClusterOffice:
    """Opened as soon as a process of the cluster has made the tables."""
    until = time.monotonic() + READY_S
    while True:
        office = members.office()
        try:
            office.__enter__()
        except StoreError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            office.__exit__(None, None, None)
            return office


def until_seen(office: ClusterOffice, true: Callable[[ClusterPicture], bool], until: float) -> ClusterPicture:
    while not true(picture := office.look()):
        if time.monotonic() > until:
            raise AssertionError(f"the cluster is not ready after {READY_S:.0f} s: {picture}")
        time.sleep(0.1)
    return picture
