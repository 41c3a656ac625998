"""What a run says of itself."""

from __future__ import annotations

import asyncio

import pytest

from millwheel import Computation, Context, MsgpackCoder, Pipeline, Record, Stream, Timer, ValueCell, subscribe
from millwheel.cluster import RunEnding
from millwheel.host import alphabet as he
from millwheel.host.messages import Led, RunEnded, WatermarksRaised
from millwheel.host.progress import PartProgress, Progress, progress_of
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.runtime.embedded import EmbeddedRun
from millwheel_injectors import IterableSource
from millwheel_storage.memory import MemoryStore
from tests.unit.host.cluster_hand import ONE, ClusterHand
from tests.unit.host.test_worker import started


@pytest.mark.parametrize(
    ("source", "computation", "lag"),
    [(100, 40, 60), (100, MIN_TIME, None), (MAX_TIME, 40, None), (MIN_TIME, MIN_TIME, None)],
)
def test_the_lag_is_what_the_slowest_computation_is_behind_its_slowest_source(
    source: int, computation: int, lag: int | None
) -> None:
    watermarks = {"source:a": source, "source:b": MAX_TIME, "first": MAX_TIME, "last": computation}
    assert Progress(0, 0, 0, 0, 0, 0, 0, 0, 0, watermarks, False).lag_us == lag


numbers = Stream("numbers", MsgpackCoder(int))
doubled = Stream("doubled", MsgpackCoder(int))


class Double(Computation[int]):
    def ProcessRecord(self, context: Context, record: Record[int]) -> None:
        context.produce(doubled, 2 * record.value)


class Late(Computation[int]):
    seen = ValueCell(MsgpackCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[int]) -> None:
        if record.value % 4:
            return
        self.seen.set(record.value)
        context.set_timer("later", record.timestamp + 1)

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        pass


def test_each_computation_and_source_has_counts_of_its_own() -> None:
    """One interval of a cell each, and one published stream, which is nobody's hooks."""
    pipeline = Pipeline("p")
    pipeline.inject(IterableSource("some", [(number, number) for number in range(6)]), into=numbers)
    pipeline.inject(IterableSource("more", [(number, number) for number in range(4)]), into=numbers)
    pipeline.add(Double, [subscribe(numbers, str)], [doubled], split_keys=["3"])
    pipeline.add(Late, [subscribe(doubled, str)])
    pipeline.publish(doubled)
    run = EmbeddedRun(pipeline.graph(), MemoryStore(), pipeline.tables)
    asyncio.run(run.run())
    found = run.progress()
    assert found.rows == {"some": 6, "more": 4}
    assert found.computations == {"Double": PartProgress(records=10), "Late": PartProgress(records=10, timers=3)}
    assert (found.records, found.injected) == (20, 10)
    assert 0 < found.commits <= found.checkpoints
    assert found.commit_us > 0


def test_what_waits_for_hooks_is_told_while_it_waits() -> None:
    waiting: list[int] = []

    class Slow(Computation[int]):
        def ProcessRecord(self, context: Context, record: Record[int]) -> None:
            waiting.append(run.progress().computations["Slow"].waiting_bytes)

    pipeline = Pipeline("p")
    pipeline.inject(IterableSource("some", [(number, number) for number in range(6)]), into=numbers)
    pipeline.add(Slow, [subscribe(numbers, str)], work_limit_records=1)
    run = EmbeddedRun(pipeline.graph(), MemoryStore(), pipeline.tables)
    asyncio.run(run.run())
    assert max(waiting) > 0
    assert run.progress().computations["Slow"].waiting_bytes == 0


def test_a_worker_that_has_heard_how_the_run_ended_tells_of_the_whole_pipeline() -> None:
    """Its own intervals have less in quarantine, or are gone."""
    hand = ClusterHand()
    hand.give(he.Started())
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    hand.place(ONE, owner=hand.mine)
    before = progress_of(hand.worker)
    assert (before.ending, before.in_quarantine) == (None, 0)
    for ending in (RunEnding(quarantined=3, rejected=2), RunEnding(quarantined=9)):  # the first one counts
        hand.give(he.Received(hand.leader, RunEnded(ending)))
    after = progress_of(hand.worker)
    assert (after.ending, after.in_quarantine) == (RunEnding(quarantined=3, rejected=2), 3)


def test_a_source_that_is_left_out_is_named_when_nothing_else_is_waited_for() -> None:
    hand, _ = started()
    hand.worker.routes.left_out = {"old": "words", "older": "words"}
    values = hand.worker.values
    for text, old, older, said in (
        (5, 5, 5, ""),  # there is something to read
        (MAX_TIME, 5, 5, "the source old, which is left out"),
        (MAX_TIME, MAX_TIME, 5, "the source older, which is left out"),
        (MAX_TIME, MAX_TIME, MAX_TIME, ""),  # an earlier version has left something on its way; it was an error
    ):
        values.update({"source:text": text, "source:old": old, "source:older": older})
        assert progress_of(hand.worker).waits_for == said


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("hold", "the hold of key 'k' in Keep at 1970-01-01T00:00:05"),
        ("quarantine", "the quarantine of"),
        ("timer", ""),
    ],
)
def test_what_holds_a_computation_whose_inputs_have_ended_is_named_if_nobody_works_on_it(
    kind: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand, _ = started()
    hand.give(he.Received("controller", WatermarksRaised({"source:text": MAX_TIME}, {"Keep": MAX_TIME})))
    ((_, core),) = hand.worker.actors.intervals()
    monkeypatch.setattr(core, "blame", lambda: [(kind, 5_000_000, "key 'k'")])
    assert progress_of(hand.worker).waits_for.startswith(said)
    assert bool(progress_of(hand.worker).waits_for) == bool(said)
    hand.worker.values["Keep"] = MAX_TIME
    assert progress_of(hand.worker).waits_for == ""
