"""`millwheel explain` on a cluster of processes names what keeps a watermark, wherever it is, and since when."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millwheel import Pipeline
from millwheel.committed import Committed, Held
from millwheel.errors import StoreError
from millwheel.model import SECOND
from millwheel.overview import ClusterOffice
from millwheel_storage.embedded import EmbeddedPostgres
from tests.integration.test_cluster_run import Place, until
from tests.patience import LEASE_S

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(900)]

HELD = """
import os
from datetime import timedelta
from millwheel import Computation, Pipeline, Stream, TextCoder, subscribe
from millwheel_injectors import IterableSource

jobs, done = Stream("jobs", TextCoder()), Stream("done", TextCoder())

class Open(Computation[str]):
    def ProcessRecord(self, context, record):
        if record.value == "printer":
            context.hold(record.timestamp)
        context.produce(done, record.value)

class Log(Computation[str]):
    def ProcessRecord(self, context, record):
        pass

pipeline = Pipeline(os.environ["PIPELINE"])
pipeline.inject(IterableSource("jobs", [("door", 50_000_000), ("printer", 60_000_000)]), into=jobs)
pipeline.add(Open, [subscribe(jobs, str)], [done], split_keys=("m",))
pipeline.add(Log, [subscribe(done, str)])

class Tick(Log):
    pass

ticks = Stream("ticks", TextCoder())
fast = IterableSource("fast", [("tick", second * 1_000_000) for second in range(20_000)])
pipeline.inject(fast, into=ticks, max_ahead=timedelta(seconds=10), of=Log)
pipeline.add(Tick, [subscribe(ticks, str)])
"""


@pytest.fixture
def place(postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, postgres.url, pipeline)
    (tmp_path / "held.py").write_text(HELD)
    yield made
    made.close()


def pipeline_of(place: Place) -> Pipeline:
    """The pipeline of the processes."""
    namespace: dict[str, Any] = {}
    exec((place.directory / "held.py").read_text(), namespace)
    found: Pipeline = namespace["pipeline"]
    return found


def explained(place: Place) -> list[Held]:
    """What is said of the computation after the one that holds; nothing before the pipeline runs."""
    with Committed(pipeline_of(place), place.url) as committed:
        try:
            return committed.explain("Log")
        except StoreError:
            return []


def test_the_hold_of_a_key_upstream_is_named_with_its_interval_worker_and_beginning(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIPELINE", place.name)
    place.command("controller", "held:pipeline", "--name", "c", "--lease", f"{LEASE_S:g}")
    worker = place.command("worker", "held:pipeline", "--name", "w1", "--lease", f"{LEASE_S:g}")
    until(
        lambda: [held.kind for held in explained(place)[:1] if held.since is not None] == ["hold"]
    )  # its worker says so
    held = explained(place)[0]
    assert held.timestamp == 60 * SECOND
    assert held.what.startswith("key 'printer' in interval ")
    assert held.what.endswith(" of Open, at w1")
    assert held.since is not None
    assert abs(time.time() * SECOND - held.since) < 120 * SECOND
    assert Held("watermark", 60 * SECOND, "Log") in explained(place)
    until(lambda: "paused" in {held.kind for held in explained(place)})
    (paused,) = [held for held in explained(place) if held.kind == "paused"]
    assert paused.what == "source fast is paused: it is more than 10 s ahead of Log at 1970-01-01T00:01:00+00:00"
    assert 70 * SECOND < paused.timestamp < 20_000 * SECOND
    with ClusterOffice(pipeline_of(place), place.url) as office:
        assert [(source.name, source.paused) for source in office.look().sources] == [
            ("fast", paused.what),
            ("jobs", ""),
        ]
    worker.kill()
    until(lambda: explained(place)[0].kind == "unserved")
    assert "of Open, which no live worker has" in explained(place)[0].what
