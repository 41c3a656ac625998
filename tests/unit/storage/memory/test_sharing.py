"""What `ClusterStore` adds to the memory store is tested with its twin; here it is one, and needs no loop."""

from __future__ import annotations

import pytest

from millwheel.cluster import MapOrder, Senders
from millwheel.errors import StoreError
from millwheel.ids import IntervalId, Sequencer
from millwheel.ports import ClusterStore, PipelineShape
from millwheel_storage.memory import MemoryStore
from tests.unit.storage.memory.stepping import run


def test_it_is_the_store_of_a_cluster() -> None:
    store: ClusterStore = MemoryStore(lambda: 7)
    run(store.open_pipeline(PipelineShape("demo", {"a": ("m",)}, {}, {}, (), ())))
    assert run(store.senders()) == Senders(((IntervalId(1), Sequencer(0)), (IntervalId(2), Sequencer(0))), ())
    assert run(store.expel([1])) == 0


def test_an_order_that_no_leader_would_know_is_refused() -> None:
    with pytest.raises(StoreError, match="an order is one of move, split, merge, not 'stop'"):
        run(MemoryStore().order(MapOrder("stop", (IntervalId(1),))))
