"""A combiner of the library comes to a store in memory, or goes.

That both stores do the same to all of their tables is in `tests/unit/storage/postgres/test_recalled.py`.
"""

from __future__ import annotations

from millwheel.library import Combiner
from millwheel_storage.memory import MemoryStore
from tests.unit.storage.memory.stepping import run
from tests.unit.storage.schema.test_handovers import views


def test_state_that_nobody_has_taken_over_is_not_overwritten_by_the_next_recall() -> None:
    store = MemoryStore(lambda: 7)
    for _ in range(2):
        run(store.open_pipeline(views(Combiner(3))))
        store.key_state["views.parts"] = {"a#1": {("accumulators", "0"): b"1"}}
        run(store.open_pipeline(views(None)))
    first, second = sorted(entry for _, entry in store.key_state["views"]["a"])
    assert first.partition("/")[0] == second.partition("/")[0] == "0#1"
    assert list(store.folded.timers["views"]["a"]) == [("watermark", "#")]
