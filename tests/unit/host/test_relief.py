"""What is moved or split when loads differ for long."""

from __future__ import annotations

import pytest

from millwheel import limits
from millwheel.cluster import MapOrder, PlacedInterval
from millwheel.host.messages import IntervalLoad
from millwheel.host.relief import Relief
from millwheel.ids import IntervalId, Sequencer


class Cluster:
    """Two workers: the loads of their intervals, in thousandths of a core."""

    def __init__(self, **loads: dict[int, int]) -> None:
        self.relief = Relief()
        self.loads = {int(name[1:]): of for name, of in loads.items()}
        self.intervals = {
            IntervalId(i): PlacedInterval(IntervalId(i), "c", "", None, worker, Sequencer(1))
            for worker, of in self.loads.items()
            for i in of
        }
        self.report()  # the first one of a worker is compared with nobody

    def report(self, median: str = "") -> None:
        for worker, of in self.loads.items():
            self.relief.loaded(worker, [IntervalLoad(IntervalId(i), load, median) for i, load in of.items()])

    def propose(self, now: int = 0) -> MapOrder | None:
        return self.relief.propose(self.loads, self.intervals, now)


def test_one_report_moves_nothing_and_several_move_what_brings_most() -> None:
    cluster = Cluster(w1={1: 500, 2: 300, 3: 100}, w2={4: 50})
    for _ in range(limits.LOAD_REPORTS - 1):
        cluster.report()
        assert cluster.propose() is None
    cluster.report()
    assert cluster.propose() == MapOrder("move", (IntervalId(1),), to="w2")


def test_a_burst_between_calm_reports_moves_nothing() -> None:
    cluster = Cluster(w1={1: 500, 2: 300}, w2={4: 50})
    calm = Cluster(w1={1: 300, 2: 0}, w2={4: 250})
    for _ in range(limits.LOAD_REPORTS):
        cluster.report()
        calm.relief = cluster.relief
        calm.report()
    assert cluster.propose() is None


def test_after_an_order_there_is_a_rest() -> None:
    cluster = Cluster(w1={1: 500, 2: 300}, w2={4: 50})
    for _ in range(limits.LOAD_REPORTS):
        cluster.report()
    assert cluster.propose() is not None
    for _ in range(limits.LOAD_REPORTS):
        cluster.report()
    assert cluster.propose(limits.LOAD_REST_US - 1) is None
    assert cluster.propose(limits.LOAD_REST_US) is not None


def test_loads_that_were_reported_before_an_order_give_no_other_one() -> None:
    cluster = Cluster(w1={1: 500, 2: 300}, w2={4: 50})
    for _ in range(limits.LOAD_REPORTS):
        cluster.report()
    assert cluster.propose() is not None
    for reports in range(limits.LOAD_REPORTS):
        assert cluster.propose(limits.LOAD_REST_US + reports) is None, "the order may have changed the loads"
        cluster.report()
    assert cluster.propose(2 * limits.LOAD_REST_US) is not None


def test_one_interval_that_is_all_of_the_load_is_split_at_its_median() -> None:
    cluster = Cluster(w1={1: 950}, w2={4: 50})
    for _ in range(limits.LOAD_REPORTS):
        cluster.report("m")
    assert cluster.propose() == MapOrder("split", (IntervalId(1),), split_keys=("m",))


def test_an_interval_whose_median_nobody_knows_is_left_as_it_is() -> None:
    cluster = Cluster(w1={1: 950}, w2={4: 50})
    for _ in range(limits.LOAD_REPORTS):
        cluster.report()
    assert cluster.propose() is None


def test_a_move_that_would_only_turn_the_loads_around_becomes_a_split() -> None:
    cluster = Cluster(w1={1: 900, 2: 10}, w2={4: 50})
    for _ in range(limits.LOAD_REPORTS):
        cluster.report("m")
    assert cluster.propose() == MapOrder("split", (IntervalId(1),), split_keys=("m",))


def test_nothing_is_done_before_every_worker_has_reported() -> None:
    cluster = Cluster(w1={1: 500, 2: 300}, w2={4: 50})
    for _ in range(limits.LOAD_REPORTS):
        cluster.report()
    cluster.loads[3] = {}
    assert cluster.propose() is None


def test_what_has_another_owner_by_now_is_left_alone() -> None:
    cluster = Cluster(w1={1: 900}, w2={4: 50})
    for _ in range(limits.LOAD_REPORTS):
        cluster.report("m")
    cluster.intervals = {}
    assert cluster.propose() is None


def test_an_interval_is_split_for_a_worker_that_has_none() -> None:
    cluster = Cluster(w1={1: 700}, w2={})
    for _ in range(limits.LOAD_REPORTS):
        cluster.report(median="m")
    assert cluster.propose() == MapOrder("split", (IntervalId(1),), split_keys=("m",))


def test_what_is_moved_halves_what_lies_between_two_workers_and_not_their_sum() -> None:
    cluster = Cluster(w1={1: 700, 2: 200}, w2={4: 500})
    for _ in range(limits.LOAD_REPORTS):
        cluster.report()
    assert cluster.propose() == MapOrder("move", (IntervalId(2),), to="w2")


@pytest.mark.parametrize("median", ["b", "g", "m"])
def test_an_interval_is_not_split_at_a_key_that_it_does_not_have_any_more(median: str) -> None:
    """The report may be of the time before it was split: the order would be refused, and others would wait for it."""
    cluster = Cluster(w1={1: 950}, w2={4: 50})
    one = IntervalId(1)
    cluster.intervals[one] = PlacedInterval(one, "c", "b", "g", 1, Sequencer(2))
    for _ in range(limits.LOAD_REPORTS):
        cluster.report(median)
    assert cluster.propose() is None
    for _ in range(limits.LOAD_REPORTS):
        cluster.report("d")
    assert cluster.propose(limits.LOAD_REST_US) == MapOrder("split", (one,), split_keys=("d",))
