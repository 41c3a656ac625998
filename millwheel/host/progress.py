"""What a run says of itself."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millwheel.cluster import HotKey, RunEnding
from millwheel.core.interval.counters import Counters
from millwheel.core.interval.machine import IntervalCore
from millwheel.core.source.row_counts import RowCounts
from millwheel.errors import InvariantError
from millwheel.host.lags import Origins, lag_us, origins_of
from millwheel.host.skews import too_far_ahead
from millwheel.host.worker import WorkerHost
from millwheel.model import MAX_TIME, MIN_TIME, format_time
from millwheel.shape import PUBLISH_PREFIX


class PartProgress(msgspec.Struct, frozen=True):
    """Counts of one computation."""

    records: int = 0
    timers: int = 0
    waiting_bytes: int = 0
    """What has arrived at its intervals of this worker and has not run."""


class Progress(msgspec.Struct, frozen=True):
    """A picture of the run: counts since the start of this process, watermarks by computation and source, us.

    Counts of a worker of a cluster are of what it has done itself, for intervals that it has given away too.

    `duplicates` counts records that were delivered again, and `repeated` rows with an outside id that was taken before.  Both
    are dropped, and are counted for each subscription on which they came.
    """

    records: int
    injected: int
    rejected: int
    late: int
    duplicates: int
    repeated: int
    quarantined: int
    backdated: int
    checkpoints: int
    watermarks: Mapping[str, int]
    finished: bool
    in_quarantine: int = 0
    """Keys that are in quarantine now, those of earlier runs included."""
    rejections: Mapping[str, Mapping[str, int]] = {}
    """By source, kinds of rejected rows and how many."""
    stopped: str = ""
    """Why the run stopped before its end, unless it was told to."""
    redriven: int = 0
    """Quarantined elements that a redrive has run."""
    hot_keys: tuple[HotKey, ...] = ()
    """Keys that the intervals of a worker of a cluster get most of."""
    paused: tuple[str, ...] = ()
    """Sources that have run too far ahead of a watermark, as sentences (`Pipeline.inject`, max_ahead)."""
    waits_for: str = ""
    """Why the run does not end although all input is read: the hold or quarantine that keeps the watermark."""
    computations: Mapping[str, PartProgress] = {}
    """By name, those behind published streams apart."""
    rows: Mapping[str, int] = {}
    """By source: rows that it gave."""
    commits: int = 0
    """Transactions that made checkpoints durable."""
    commit_us: int = 0
    """How long they took together, us."""
    cache_bytes: int = 0
    """State of keys in memory, roughly."""
    cache_limit_bytes: int = 0
    """What intervals without a limit of their own may have of it together."""
    ending: RunEnding | None = None
    """How the run of a cluster has ended, of all workers together."""
    origins: Origins = {}
    """By computation: the sources whose records come to it."""
    store_wait_s: float = 0.0
    """How long the oldest call to the store that has no answer yet has waited, s."""

    @property
    def lag_us(self) -> int | None:
        """Event time, us, by which the slowest computation is behind the promises of its sources.

        None while either of them is at the beginning or the end of time.
        """
        return lag_us(self.watermarks, self.origins)


def progress_of(worker: WorkerHost) -> Progress:
    """What a worker knows of the run now."""
    cores, by_source = [core for _, core in worker.actors.intervals()], worker.actors.rows_by_source()
    rows = sum(by_source.values(), RowCounts())
    # A published stream's records are delivered once more, to be kept: they are nobody's hooks.
    of_hooks, of_all, by_name = Counters(), Counters(), dict[str, Counters]()
    for computation, counters in worker.actors.counted():
        of_all.add(counters)
        if not computation.startswith(PUBLISH_PREFIX):
            of_hooks.add(counters)
            by_name.setdefault(computation, Counters()).add(counters)
    ending = worker.ownership.ending()
    names = [*worker.graph.computations, *(f"source:{name}" for name in worker.graph.sources)]
    return Progress(
        records=of_hooks.records,
        injected=rows.given,
        rejected=rows.rejected,
        late=of_hooks.late,
        duplicates=of_hooks.duplicates,
        repeated=of_hooks.repeated,
        quarantined=of_all.quarantined,
        backdated=of_all.backdated,
        checkpoints=of_all.checkpoints,
        watermarks={name: worker.values.get(name, MIN_TIME) for name in names},
        finished=worker.finished(),
        in_quarantine=ending.quarantined if ending else sum(core.quarantined_keys for core in cores),
        rejections={owner.removeprefix("source:"): dict(of.kinds) for owner, of in by_source.items() if of.kinds},
        stopped=worker.stopped,
        redriven=of_all.redriven,
        hot_keys=worker.ownership.hot_keys(),
        paused=tuple(too_far_ahead(worker.graph, worker.values).values()),
        waits_for=_waits_for(worker),
        computations=_parts(worker, by_name),
        rows={owner.removeprefix("source:"): of.given for owner, of in by_source.items()},
        commits=worker.actors.tally.commits,
        commit_us=worker.actors.tally.commit_us,
        cache_bytes=worker.shares.used_bytes,
        cache_limit_bytes=worker.shares.whole_bytes,
        ending=ending,
        origins=origins_of(worker.graph),
    )


def _parts(worker: WorkerHost, counted: Mapping[str, Counters]) -> dict[str, PartProgress]:
    waiting = dict.fromkeys(counted, 0)
    for actor, core in worker.actors.intervals():
        if actor.owner in waiting:
            waiting[actor.owner] += core.inbox_bytes
    return {name: PartProgress(it.records, it.timers, waiting[name]) for name, it in counted.items()}


def _waits_for(worker: WorkerHost) -> str:
    """What holds the first computation that is not done and on which nobody works.

    All of its inputs are at the end of time, except sources that are left out.
    """
    senders = worker.routes.bounds()
    for name in worker.graph.order():
        if worker.heard.input_of(name) < MAX_TIME:
            behind = {sender for sender in senders.get(name, ()) if worker.values.get(sender, MIN_TIME) < MAX_TIME}
            left_out = behind & {f"source:{source}" for source in worker.routes.left_out}
            # None is behind where only what an earlier version has left on its way is waited for.
            if not behind or behind != left_out:
                return ""
            return f"the {min(left_out).replace(':', ' ')}, which is left out"
        if worker.values.get(name, MIN_TIME) < MAX_TIME:
            held = [blamed for blamed in explain(worker, name) if blamed[1] in ("hold", "quarantine")]
            return f"the {held[0][1]} of {held[0][3]} in {name} at {format_time(held[0][2])}" if held else ""
    return ""


def explain(worker: WorkerHost, computation: str) -> list[tuple[str, str, int, str]]:
    """(who, what, timestamp us, detail) of everything that holds `computation`'s watermark, oldest first."""
    found = []
    for actor in worker.actors.of(computation):
        if not isinstance(actor.core, IntervalCore):
            raise InvariantError("actor.core is no IntervalCore")
        found += [(f"interval {actor.interval}", *blamed) for blamed in actor.core.blame()]
    senders = sorted(worker.routes.bounds()[computation])
    found += [(sender, "input", worker.values.get(sender, MIN_TIME), "") for sender in senders]
    return sorted(found, key=lambda blamed: blamed[2])
