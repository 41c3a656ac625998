"""A worker keeps nothing of a source partition that has ended: there may be hundreds of thousands of them in a long run."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import pytest

from millwheel import Checkpoints, Computation, Context, Pipeline, Record, Snapshots, Stream, TextCoder
from millwheel.host.actors import Actor
from millwheel.runtime.embedded import EmbeddedRun
from millwheel_injectors import BoundedDisorder, FileSource, IterableSource
from millwheel_storage.memory import MemoryStore
from tests.unit.runtime.drive import subscribe

lines = Stream("lines", TextCoder())
FIRST_INTERVAL = 7_000_000
"""So large that no other number is one of an interval."""

PAUSES = {"worker.partitions._patient", "worker.partitions._resting", "worker._alarms._heap[]"}
"""What the end of a pause or an alarm forgets, which may come after the end of a partition."""


class Keep(Computation[str]):
    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        pass


def mentions(root: Any, interval: int) -> Iterator[str]:
    """Where in the parts of `root` an interval is a key, a member, or what an actor is of."""
    seen, ahead = set[int](), deque([("worker", root)])
    while ahead:
        place, one = ahead.popleft()
        if id(one) in seen or isinstance(one, type | FunctionType | str | bytes | int | float):
            continue
        seen.add(id(one))
        if isinstance(one, MethodType):
            ahead.append((place, one.__self__))
        elif isinstance(one, dict):
            if interval in one:
                yield place
            ahead += [(f"{place}[{key!r:.20}]", value) for key, value in one.items()]
        elif isinstance(one, list | tuple | set | frozenset | deque):
            if interval in one:
                yield place
            ahead += [(f"{place}[]", value) for value in one]
        elif isinstance(one, Actor) and one.interval == interval:
            yield place
        elif type(one).__module__.startswith("millwheel."):
            names = [*getattr(one, "__dict__", ()), *getattr(one, "__struct_fields__", ())]
            ahead += [(f"{place}.{name}", getattr(one, name)) for name in names]


@pytest.mark.parametrize("durability", [Checkpoints(), Snapshots(every_ms=10)], ids=["checkpoints", "snapshots"])
def test_nothing_in_a_worker_knows_a_partition_that_has_ended(
    durability: Checkpoints | Snapshots, tmp_path: Path
) -> None:
    (tmp_path / "rows").write_text("".join(f"{n}\n" for n in range(20)))
    paced = FileSource("paced", tmp_path / "rows", event_time=int, watermark=BoundedDisorder(5), pace=1)
    ahead = IterableSource("ahead", [(str(n), n) for n in range(20)])
    store = MemoryStore()
    store._last_interval = FIRST_INTERVAL
    pipeline = Pipeline("p", durability=durability)
    pipeline.inject(paced, into=lines)
    pipeline.inject(ahead, into=lines, max_ahead=1, of=Keep)
    pipeline.add(Keep, [subscribe(lines, str)])
    run = EmbeddedRun(pipeline.graph(), store, pipeline.tables)
    assert asyncio.run(run.run()).finished
    ended = [position.interval for position in store.sources.values() if position.finished]
    assert len(ended) == 2
    assert [*mentions(run.worker, FIRST_INTERVAL + 1)], "the interval of the computation is found"
    assert {place for interval in ended for place in mentions(run.worker, interval)} <= PAUSES
