"""When a run is over: too much has failed, or all input is consumed."""

from __future__ import annotations

from typing import Any

import pytest

from millwheel import limits
from millwheel.core.interval.counters import Counters
from millwheel.core.source.row_counts import RowCounts
from millwheel.host import alphabet as he
from millwheel.host.messages import Delivery, WatermarksRaised
from millwheel.host.over import Tolerance, too_much
from millwheel.model import MAX_TIME
from tests.unit.host.test_actors import partition
from tests.unit.host.test_worker import Hand, bundle, started


@pytest.mark.parametrize(
    ("quarantined", "rejected", "why"),
    [
        (3, 5, ""),
        (2, 5, "3 keys went into quarantine, 2 are allowed"),
        (3, 4, "5 rows are rejected, 4 are allowed"),
        (1, 5, "3 keys went into quarantine, 1 is allowed"),
        (0, 0, "3 keys went into quarantine, 0 are allowed"),
        (None, None, ""),
    ],
)
def test_a_run_stops_at_more_than_is_allowed(quarantined: int | None, rejected: int | None, why: str) -> None:
    hand, _ = started()
    ((_, core),) = hand.worker.actors.intervals()
    core.counters.quarantined = 3
    hand.worker.actors.tally.by_source["source:text"] = RowCounts(9, 5)
    assert too_much(hand.worker, Tolerance(quarantined, rejected)) == why


def test_what_cores_have_counted_that_are_gone_counts_too() -> None:
    hand, _ = started()
    hand.worker.actors.tally.by_computation["Keep"] = Counters(quarantined=1)
    hand.worker.actors.tally.by_source["source:text"] = RowCounts(1, 1)
    assert too_much(hand.worker, Tolerance(1, 1)) == ""
    assert too_much(hand.worker, Tolerance(0, None)) == "1 key went into quarantine, 0 are allowed"
    assert too_much(hand.worker, Tolerance(None, 0)) == "1 row is rejected, 0 are allowed"


def consumed() -> Hand:
    hand, _ = started()
    for ask in [*hand.waiting]:
        if isinstance(ask.wish, he.Discover):
            hand.give(he.Answered(ask.token, he.Discovery((), True, MAX_TIME, 0)))
    ends = {"source:text": MAX_TIME, "Keep": MAX_TIME}
    hand.give(he.Received("controller", WatermarksRaised(ends, {"Keep": MAX_TIME})))
    return hand


def test_a_run_is_over_when_all_of_it_is() -> None:
    assert consumed().worker.finished()


@pytest.mark.parametrize(
    "lacks", ["serving", "partitions", "watermark", "watermark of the source", "restart", "partition", "another"]
)
def test_a_run_is_not_over_while_anything_is_left(lacks: str) -> None:
    worker = consumed().worker
    match lacks:
        case "serving":
            worker.serving = False
        case "partitions":
            worker.partitions.complete = False
        case "watermark":
            worker.values["Keep"] = MAX_TIME - 1
        case "watermark of the source":
            worker.values["source:text"] = MAX_TIME - 1
        case "another":
            computations: Any = worker.graph.computations
            computations["Another"] = computations["Keep"]
        case "partition":
            other = partition(77, 1)
            other.core.quiet = lambda: False  # type: ignore[method-assign]
            worker.actors.put(other)
        case _:
            worker.restarts.under_way.add(next(iter(worker.actors.all)))
    assert not worker.finished()


def test_a_worker_that_has_something_to_record_does_not_end_yet() -> None:
    hand = consumed()
    ((actor, _),) = hand.worker.actors.intervals()
    hand.give(he.Received("worker", Delivery(bundle(actor.interval), actor.sequencer, True)))
    assert hand.worker.finished()
    rested = hand.give(he.Rested())
    assert he.Ended() not in rested
    assert he.WakeAt(hand.now + limits.END_DELAY_US) in rested, "it has another look soon"


def test_a_worker_with_nothing_left_ends() -> None:
    assert he.Ended() in consumed().give(he.Rested())
