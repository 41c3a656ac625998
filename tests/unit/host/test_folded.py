"""Questions of a core to the folded tables: each one is put to the store as it was asked, and ends in one event."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from millwheel.bundles import BEFORE_TIMERS, KeyRows, QuarantineEntry, TimerWrites
from millwheel.core.interval import events as ev
from millwheel.host.actors import Actor
from millwheel.host.folded import TableEffect, steps
from millwheel.host.requests import (
    FindIds,
    FoldLog,
    LoadCells,
    LoadState,
    LoadTimerPage,
    ReadBucket,
    ReadQuarantine,
    StoreCall,
)
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, Sequencer, SubscriptionId, sequence_numbers
from millwheel.ports import FoldWrite
from tests.unit.core.bench import Bench
from tests.unit.core.bench import timer_writes as timers

ONE, OWNER = IntervalId(1), Sequencer(7)


def asked(effect: TableEffect, answer: Any) -> tuple[StoreCall, ev.Event]:
    """What the store is asked, and what the core is told."""
    actor, told = Actor(interval=ONE, sequencer=OWNER, owner="c", core=Bench().core), list[ev.Event]()

    def tell(to: Actor, event: ev.Event) -> None:
        assert to is actor
        told.append(event)

    procedure = steps(actor, effect, tell)
    wish = next(procedure)
    assert isinstance(wish, StoreCall)
    assert told == []
    with suppress(StopIteration):
        raise AssertionError(f"it asks again: {procedure.send(answer)}")
    (event,) = told
    return wish, event


def entries(count: int) -> list[QuarantineEntry]:
    return [
        QuarantineEntry("k", SubscriptionId(1), ProducerId(2), SequenceNumber(n), b"", 0) for n in range(count)
    ]  # fmt: skip


def test_state_is_loaded() -> None:
    load, rows = ev.Load(["k"], True), [KeyRows("k", {("c", ""): b"1"})]
    assert asked(load, rows) == (LoadState(ONE, load), ev.Loaded(rows))


def test_single_cells_are_loaded() -> None:
    load = ev.LoadSlots([("k", "c", None)])
    assert asked(load, [("k", "c", "", b"1")]) == (LoadCells(ONE, load), ev.SlotsLoaded([("k", "c", "", b"1")]))


@pytest.mark.parametrize(("limit", "more"), [(2, True), (1, True), (3, False)])
def test_a_page_of_timers_that_is_full_is_not_the_last(limit: int, more: bool) -> None:
    load, page = ev.LoadTimers("wall", BEFORE_TIMERS, limit), timers(("a", "t", "wall", 1), ("b", "t", "wall", 2))
    assert asked(load, page) == (LoadTimerPage(ONE, OWNER, load), ev.TimersLoaded("wall", page, more))


def test_an_empty_page_is_the_last() -> None:
    load = ev.LoadTimers("wall", BEFORE_TIMERS, 2)
    assert asked(load, TimerWrites())[1] == ev.TimersLoaded("wall", TimerWrites(), False)


@pytest.mark.parametrize(
    ("effect", "answer"),
    [
        (ev.LoadTimers("wall", BEFORE_TIMERS, 2), None),
        (ev.Fold(Seq(3), [], [], set(), 0), False),
    ],
)
def test_who_is_fenced_is_told_so(effect: TableEffect, answer: Any) -> None:
    assert asked(effect, answer)[1] == ev.WriteFenced()


def test_ids_are_looked_up_for_their_sender() -> None:
    lookup = ev.LookupIds(IntervalId(9), SubscriptionId(1), ProducerId(2), sequence_numbers([3, 4]), [b"x"], 5)
    assert asked(lookup, ({3}, {b"x"})) == (
        FindIds(ONE, lookup),
        ev.IdsFound(IntervalId(9), {SequenceNumber(3)}, {b"x"}),
    )


def test_ids_of_outside_clients_are_read_bucket_by_bucket() -> None:
    read = ev.ReadOutsideIds(SubscriptionId(1), 50, b"", 10)
    assert asked(read, [b"x"]) == (ReadBucket(ONE, read), ev.OutsideIdsRead(SubscriptionId(1), 50, [b"x"]))


def test_a_fold_is_written_as_it_was_asked_for() -> None:
    wish, event = asked(ev.Fold(Seq(3), [], [], {"k"}, 4), True)
    assert wish == FoldLog(FoldWrite(ONE, OWNER, Seq(3), [], [], {"k"}, 4))
    assert event == ev.FoldDone(Seq(3))


@pytest.mark.parametrize(("limit", "more"), [(2, True), (3, False)])
def test_of_quarantines_there_may_be_more_when_as_many_came_as_were_asked_for(limit: int, more: bool) -> None:
    fetch = ev.FetchQuarantine(["k"], limit)
    assert asked(fetch, entries(2)) == (ReadQuarantine(ONE, fetch), ev.QuarantineFetched(entries(2), more))
