"""Reports of watermarks that wait for a moment."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millwheel.host.messages import WatermarkReport
from millwheel.host.reports import Reports
from millwheel.ids import IntervalId, Sequencer

REST_US = 5_000


def report(interval: int, value: int, label: int = 0) -> WatermarkReport:
    return WatermarkReport("keep", IntervalId(interval), value, Sequencer(7), label)


def test_the_first_report_goes_at_once_and_the_next_ones_together_after_the_rest() -> None:
    reports = Reports(REST_US)
    assert reports.add(report(1, 10)) == []
    assert reports.due(1_000) == [report(1, 10)]
    assert reports.next() is None
    for value in (11, 12, 13):
        assert reports.add(report(1, value)) == []
    assert reports.add(report(2, 5)) == []
    assert reports.due(1_000 + REST_US - 1) == []
    assert reports.next() == 1_000 + REST_US
    assert reports.due(1_000 + REST_US) == [report(1, 13), report(2, 5)]
    assert reports.due(1_000 + 2 * REST_US) == []


def test_what_was_reached_under_a_label_is_told_before_anything_of_the_next_one() -> None:
    reports = Reports(REST_US)
    reports.add(report(1, 10, label=3))
    reports.add(report(2, 20, label=3))
    assert reports.add(report(1, 11, label=4)) == [report(1, 10, label=3), report(2, 20, label=3)]
    assert reports.all() == [report(1, 11, label=4)]


def test_nothing_is_told_of_what_was_forgotten() -> None:
    reports = Reports(REST_US)
    for interval in (1, 2):
        reports.add(report(interval, 10))
    reports.forget("keep", IntervalId(1))
    reports.forget("keep", IntervalId(9))
    assert reports.all() == [report(2, 10)]
    reports.add(report(1, 10))
    reports.forget_owner("other")
    assert reports.next() is not None
    reports.forget_owner("keep")
    assert reports.next() is None


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2), st.booleans()), max_size=40))
def test_of_each_interval_and_label_the_newest_report_is_told_and_labels_never_go_back(
    steps: list[tuple[int, int, bool]],
) -> None:
    reports, told, newest = Reports(REST_US), list[WatermarkReport](), dict[tuple[int, int], int]()
    label = {1: 0, 2: 0, 3: 0}
    for now, (interval, passed, look) in enumerate(steps):
        label[interval] += passed == 2
        newest[interval, label[interval]] = now
        told += reports.add(report(interval, now, label[interval]))
        if look:
            told += reports.due(now * 2_000)
    told += reports.all()
    for interval in label:
        mine = [(one.label, one.value) for one in told if one.interval == interval]
        assert mine == sorted(set(mine))
        assert dict(mine) == {of: value for (i, of), value in newest.items() if i == interval}
