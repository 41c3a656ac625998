"""One process that runs some of the queries: `python -m examples.nexmark.job '{"url": …}'`.

Lives here: the pipeline of some queries over generated events, and its arguments.  The events come of the seed, so a
process that takes over after a kill has the same ones.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from examples.nexmark.generator import EVENTS_PER_SECOND, START_US, arrivals, events
from examples.nexmark.model import DISORDER_US, EVENTS, Event
from examples.nexmark.queries import QUERIES
from millwheel import Pipeline
from millwheel.launch import run
from millwheel.library import Flow
from millwheel.source import Batch, SourcePartition
from millwheel_injectors import BoundedDisorder, IterableSource

CUTS: Sequence[str] = ("1020", "1040", "11", "1200", "1300", "14")
"""Where the key space is cut: most keys are ids from 1000 on."""


class NexmarkJob(msgspec.Struct, frozen=True, kw_only=True):
    """What to run.

    `order` is that of `arrivals`, by chance of `arrival_seed`.  `intervals`, 1 to 7, of every computation.  `batch`: events
    that the source gives at once at most; the watermark moves between them, so with small ones there are late events.
    `rate`: events/s that it gives at most, from `begin_s` on if that is given, a time of the clock; None: as fast as they
    are taken.  `per_second` events lie in a second of event
    time, from `start_us` on.
    """

    url: str
    pipeline: str
    queries: list[str]
    events: int
    seed: int = 1
    order: str = "late"
    arrival_seed: int = 1
    intervals: int = 1
    batch: int = 4_096
    rate: float | None = None
    begin_s: float | None = None
    per_second: int = EVENTS_PER_SECOND
    start_us: int = START_US

    def made(self) -> list[Event]:
        """Every event once, by event time."""
        return list(events(self.events, self.seed, self.per_second, self.start_us))

    def build(self) -> Pipeline:
        """The pipeline: one source, all of the queries."""
        pipeline = _Cut(self.pipeline, CUTS[: self.intervals - 1])
        rows = [(event, event.time) for event in arrivals(self.made(), self.order, self.arrival_seed)]
        source = Paced(rows, self, self.order == "doubled")
        chain = Flow(pipeline).inject(source, into=EVENTS)
        for name in self.queries:
            QUERIES[name].build(chain)
        return pipeline


class Done(msgspec.Struct, frozen=True):
    """What the process says at its end."""

    seconds: float
    """From the start of the run to its end, with the opening of the store."""
    cpu_s: float
    injected: int
    late: int
    repeated: int
    quarantined: int
    finished: bool


class _Cut(Pipeline):
    """Every computation has the same split keys."""

    def __init__(self, name: str, cuts: Sequence[str]) -> None:
        super().__init__(name)
        self._cuts = cuts

    def add(self, *arguments: Any, **settings: Any) -> None:
        """As a pipeline does."""
        super().add(*arguments, **{**settings, "split_keys": self._cuts})


class Paced(IterableSource[Event]):
    """Rows in memory, of which only so many can be read at once, and a second, as a job says."""

    def __init__(self, rows: list[tuple[Event, int]], job: NexmarkJob, doubled: bool) -> None:
        identity = (lambda event: str(event.number)) if doubled else None
        super().__init__("site", rows, BoundedDisorder(DISORDER_US), record_id=identity)
        self._job = job

    def discover(self, known: Any) -> list[Any]:
        """The one partition, held back."""
        return [_Slowly(partition, self._job) for partition in super().discover(known)]


class _Slowly:
    """A partition that gives no more than is due."""

    def __init__(self, partition: SourcePartition[Event], job: NexmarkJob) -> None:
        self._partition, self._batch, self._rate = partition, job.batch, job.rate
        self._begin = job.begin_s
        self._given = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._partition, name)

    def read(self, limit: int) -> Batch[Event] | None:
        """Rows that are due."""
        limit = min(limit, self._batch)
        if self._rate is not None:
            now = time.time()
            if self._begin is None:
                self._begin = now
            limit = min(limit, int((now - self._begin) * self._rate) - self._given)
        if limit <= 0:
            return None
        batch = self._partition.read(limit)
        self._given += 0 if batch is None else len(batch.values)
        return batch


def main() -> None:
    """Run to the end, and print what was done."""
    job = msgspec.json.decode(sys.argv[1], type=NexmarkJob)
    pipeline = job.build()
    begin, cpu = time.monotonic(), time.process_time()
    progress = run(pipeline, job.url)
    done = Done(
        time.monotonic() - begin, time.process_time() - cpu, progress.injected, progress.late, progress.repeated,
        progress.quarantined, progress.finished,
    )  # fmt: skip
    print(msgspec.json.encode(done).decode())


if __name__ == "__main__":
    main()
