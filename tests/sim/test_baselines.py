"""What snapshots are compared with does what it says, over a whole run."""

from __future__ import annotations

from unittest.mock import patch

import msgspec

from millwheel import Pipeline, Record
from millwheel.api.context import Context
from millwheel.api.snapshots import Forgotten
from millwheel.baselines import Baseline
from millwheel.core.durability.inflight import Uncommitted
from millwheel.core.durability.worse_epochs import HaltingEpochs
from millwheel.core.interval import events as ev
from millwheel.model import SECOND
from millwheel.testing.faults.nemesis import Seeded
from millwheel.testing.world.kernel import Kernel
from millwheel_injectors import IterableSource
from millwheel_storage.memory import MemoryStore
from tests.sim.cuts import START_US, Stage, run_stage
from tests.sim.harness import faults_of
from tests.unit.runtime.drive import (
    Count,
    Split,
    Word,
    expected_counts,
    lines,
    run_to_end,
    subscribe,
    text_lines,
    words,
)

ran: list[int] = []
put = HaltingEpochs.put


def watched(epochs: HaltingEpochs, entry: Uncommitted, effects: list[ev.Effect], now: int) -> None:
    """Nothing has run since the cut whose epoch is not declared."""
    ran.append(epochs.epoch)
    assert epochs._written is None, f"it ran in epoch {epochs.epoch}, while {epochs._written.epoch} was written"
    put(epochs, entry, effects, now)


def test_what_halts_is_exact_under_every_fault_and_runs_nothing_while_an_epoch_is_written() -> None:
    seed = 6
    ran.clear()
    kernel, stage = Kernel(seed, start_us=START_US), Stage(seed, every_ms=50)
    stage.graph = msgspec.structs.replace(stage.graph, baseline=Baseline.HALTS)
    faults = msgspec.structs.replace(faults_of(seed), clock_step=0)
    with patch.object(HaltingEpochs, "put", watched):
        run_stage(stage, kernel, Seeded(faults, kernel.rng), 5 * SECOND)
    assert kernel.probes["epoch declared"] > 3
    assert len({*ran}) > 3


class Told(Count):
    """Tells the test what it has counted."""

    last: dict[str, int] = {}  # noqa: RUF012 - one run at a time

    def ProcessRecord(self, context: Context, record: Record[Word]) -> None:
        super().ProcessRecord(context, record)
        self.last[record.value.text] = self.count.get()


def forgetting(name: str, rows: int) -> tuple[Pipeline, int, dict[str, int]]:
    """A word count, how many records it will have taken, and its last counts."""
    given = text_lines(rows, seed=5)
    pipeline = Pipeline(name, durability=Forgotten())
    pipeline.inject(IterableSource("text", given), into=lines)
    pipeline.add(Split, [subscribe(lines, lambda line: line.name)], [words], cache_limit_bytes=1)
    pipeline.add(Told, [subscribe(words, lambda word: word.text)], name="Count", cache_limit_bytes=1)
    by_word = expected_counts(given)[1]
    return pipeline, rows + sum(len(line.words) for line, _ in given), {w: c["count"] for w, c in by_word.items()}


def test_what_forgets_runs_to_its_end_and_leaves_nothing_so_the_next_run_begins_anew() -> None:
    store = MemoryStore()
    for _ in range(2):
        Told.last.clear()
        pipeline, records, counts = forgetting("forgets", 300)
        assert run_to_end(pipeline, store).records == records
        assert Told.last == counts, "state stays in memory, whatever the cache may hold"
        left = [store.log, store.watermark, store.declared, *store.key_state.values()]
        assert not any(left)
        assert {(position.position, position.finished) for position in store.sources.values()} == {(0, False)}
