"""What snapshots are compared with: epochs that halt, and epochs that write nothing."""

from __future__ import annotations

import pytest

from millwheel import limits
from millwheel.baselines import Baseline
from millwheel.core.durability.durable_epochs import DurableEpochs
from millwheel.core.durability.worse_epochs import EPOCHS
from millwheel.core.interval import events as ev
from millwheel.core.keys.keyed_state import KeyedState
from millwheel.errors import InvariantError
from tests.unit.core.durability.test_durable_epochs import TARGET, Part


def part_of(baseline: Baseline) -> Part:
    return Part(EPOCHS[baseline])


@pytest.mark.parametrize("baseline", [Baseline.NONE, Baseline.HALTS])
def test_an_interval_that_halts_runs_nothing_from_its_cut_until_its_epoch_is_declared(baseline: Baseline) -> None:
    part = part_of(baseline)
    part.put()
    assert part.epochs.has_room()
    (write,) = part.cut(4)
    halts = baseline is Baseline.HALTS
    assert not any(isinstance(effect, ev.PartWritten) for effect in part.effects), "its rows are not in the log"
    assert part.epochs.has_room() is not halts
    part.epochs.committed(write.seq, part.effects)
    assert part.epochs.has_room() is not halts, "it is written, but others may not be"
    part.epochs.declared(4)
    assert part.epochs.has_room()


def test_an_interval_that_forgets_passes_on_what_it_does_and_writes_nothing() -> None:
    part = part_of(Baseline.FORGETS)
    part.receivers.append(TARGET)
    part.put(sinks=1)
    assert [type(effect) for effect in part.effects] == [ev.Send, ev.Ack]
    assert part.counters.records == 1
    assert not part.epochs.pending()
    assert part.cut(4) == []
    (barrier,) = [effect.bundle for effect in part.effects if isinstance(effect, ev.Send)]
    assert (barrier.barrier, barrier.target) == (4, TARGET)
    assert part.effects[-1] == ev.PartWritten(4, 0)
    part.epochs.declared(4)
    part.put("b")
    assert part.epochs.epoch == 4
    assert part.epochs.has_room()
    part.effects.clear()
    part.epochs.want()
    part.epochs.fold(part.effects)
    assert part.effects == []


def test_what_forgets_has_no_log_of_a_loop() -> None:
    part = part_of(Baseline.FORGETS)
    with pytest.raises(InvariantError, match="in a loop"):
        part.epochs.cut(4, [], part.effects, 0, logs=True)


def test_without_a_baseline_epochs_are_those_of_snapshots() -> None:
    assert EPOCHS[Baseline.NONE] is DurableEpochs
    assert EPOCHS.keys() == set(Baseline)


def test_what_forgets_counts_what_hooks_have_set_since_its_last_cut_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sources would stop for good when it has counted as much as one epoch may change."""
    monkeypatch.setattr(limits, "EPOCH_LIMIT_WRITES", 2)
    part = part_of(Baseline.FORGETS)
    keyed = part.epochs._keyed = KeyedState(10**9, by_epochs=True)
    for epoch in (4, 5, 6):
        assert not part.epochs.pressed()
        assert keyed._cache.changes is not None
        keyed._cache.changes["c"] = {f"a{epoch}": b"1", f"b{epoch}": b"1"}
        assert part.epochs.pressed()
        part.cut(epoch)
