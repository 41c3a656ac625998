"""The unfolded log, laid over rows of the tables: what a reader shows is what a fold would leave."""

from __future__ import annotations

import pytest

from millwheel.bundles import QuarantineEntry
from millwheel.ids import ProducerId, SequenceNumber, SubscriptionId
from millwheel_storage.fold import Fifo, Folded
from millwheel_storage.postgres.overlays import (
    StateRow,
    named,
    overlay_fifos,
    overlay_holds,
    overlay_productions,
    overlay_timers,
    united,
    with_log,
)

CHANNEL = (SubscriptionId(1), ProducerId(2))


def test_a_key_that_the_log_forgot_has_what_was_written_since_and_nothing_else() -> None:
    timers = {("gone", "wall", "t"): 1, ("kept", "wall", "t"): 2, ("kept", "wall", "u"): 3}
    holds = {"gone": 1, "kept": 2, "freed": 3}
    log = Folded(
        forgotten={"gone"},
        timers={"gone": {("wall", "new"): 9}, "kept": {("wall", "t"): None, ("wall", "u"): 4}},
        holds={"kept": 5, "freed": None},
    )
    overlay_timers(timers, log)
    overlay_holds(holds, log)
    assert timers == {("gone", "wall", "new"): 9, ("kept", "wall", "u"): 4}
    assert holds == {"kept": 5}


def test_a_production_waits_that_was_made_and_not_acked() -> None:
    first, second, third = map(SequenceNumber, range(3))
    pending = {(*CHANNEL, first): (10, "k"), (*CHANNEL, second): (11, "k")}
    overlay_productions(pending, Folded(acked={CHANNEL: [first]}, productions={CHANNEL: {third: ("l", b"v", 12)}}))
    assert pending == {(*CHANNEL, second): (11, "k"), (*CHANNEL, third): (12, "l")}


@pytest.mark.parametrize(("cleared", "left"), [(False, 4), (True, 1)])
def test_a_line_is_what_is_stored_and_appended_without_what_was_redriven(cleared: bool, left: int) -> None:
    counts = {"k": 3}
    entry = QuarantineEntry("k", *CHANNEL, SequenceNumber(0), b"v", 5)
    overlay_fifos(counts, Folded(quarantine={"k": Fifo(cleared, [entry, entry], 1), "new": Fifo(appended=[entry])}))
    assert counts == {"k": left, "new": 1}


def test_cells_of_the_log_come_before_those_that_are_stored_and_deleted_ones_are_not_there() -> None:
    parts = [Folded(values={"a": {"k1": b"new", "other": b"x"}}, forgotten={"k2"}), Folded(values={"b": {"k1": None}})]
    written, forgotten = united(parts, "k")
    assert forgotten == {"k2"}
    assert written == {"k1": {("a", ""): b"new", ("b", ""): None}}
    stored = [StateRow("k1", cell, "", b"old") for cell in "abc"]
    shown = with_log("k1", stored, written["k1"])
    assert shown == [StateRow("k1", "a", "", b"new"), StateRow("k1", "c", "", b"old")]
    assert [row.cell for row in named({"c": "renamed"}, shown)] == ["a", "renamed"]
