"""A new version of a pipeline on Postgres: what an earlier one has made durable reaches whoever subscribes."""

from __future__ import annotations

import time

import pytest

from millwheel import SECOND, Computation, Context, JsonCoder, MapCell, Pipeline, Record, Stream, ValueCell, subscribe
from millwheel.errors import IncompatibleStore, WiringError
from millwheel_injectors import IterableSource
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres import PostgresStore
from tests.unit.runtime.drive import run_to_end, run_until

pytestmark = pytest.mark.postgres

ROWS = 300

texts = Stream("texts", JsonCoder(str))
copies = Stream("copies", JsonCoder(str))


class Copy(Computation[str]):
    """Sends what it gets, if it has an output."""

    def __init__(self, sends: bool) -> None:
        self.sends = sends

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        if self.sends:
            context.produce(copies, record.value)


class Slow(Computation[str]):
    """Takes its time; keeps what it has seen, and how much of it late."""

    seen = MapCell(JsonCoder(int))
    late = ValueCell(JsonCoder(int), default=0)

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        time.sleep(self.delay_s)
        self.seen.set(record.value, (self.seen.get(record.value) or 0) + 1)
        self.late.set(self.late.get() + record.late)


def version(name: str, sends: bool, delay_s: float = 0.0, other: bool = True, subscribed: bool = True) -> Pipeline:
    pipeline = Pipeline(name)
    pipeline.inject(IterableSource("text", [(f"row {i}", i * SECOND) for i in range(ROWS)]), into=texts)
    pipeline.add(lambda: Copy(sends), [subscribe(texts, str)], [copies] if sends else [], name="Copy")
    if other:
        pipeline.inject(IterableSource("other", [("other", 10_000 * SECOND)]), into=copies)
    if subscribed:
        inputs = [subscribe(copies, lambda text: "all")]
        pipeline.add(lambda: Slow(delay_s), inputs, name="Slow", work_limit_records=1)
    return pipeline


@pytest.fixture
def stopped(postgres: EmbeddedPostgres, pipeline: str) -> tuple[str, str]:
    """(URL, pipeline) of a store in which a run was stopped when most copies were on their way."""
    first = version(pipeline, sends=True, delay_s=0.02)
    run_until(first, PostgresStore(postgres.url, pipeline), lambda run: run.progress().records > ROWS + 2)
    return postgres.url, pipeline


def test_productions_of_a_stream_that_is_no_longer_an_output_reach_its_subscriber(stopped: tuple[str, str]) -> None:
    # 300 of 300 were recorded as acked, and the run ended as finished.
    from millwheel.committed import Committed

    url, name = stopped
    second = version(name, sends=False)
    assert run_to_end(second, PostgresStore(url, name)).finished
    with Committed(second, url) as committed:
        state = committed.state("Slow", "all")
    assert state["seen"] == {"other": 1, **{f"row {i}": 1 for i in range(ROWS)}}
    assert state.get("late", 0) == 0


def test_a_new_version_that_cannot_deliver_what_is_durable_is_refused_with_names(stopped: tuple[str, str]) -> None:
    url, name = stopped
    with pytest.raises(WiringError, match="'Slow' subscribes to stream 'copies', which no injector and no computation"):
        version(name, sends=False, other=False).graph()
    with pytest.raises(IncompatibleStore, match=r"the store holds work of .*Slow"):
        run_to_end(version(name, sends=True, other=False, subscribed=False), PostgresStore(url, name))
