"""Other split keys: what is planned, and that the steps lead there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel import subscribe
from millwheel.errors import WiringError
from millwheel.ids import IntervalId
from millwheel_storage.schema.evolution import plan
from millwheel_storage.schema.recuts import Recut, steps
from millwheel_storage.schema.side_by_side import differences
from tests.unit.storage.samples import gathering, sales, shops

keys = st.sets(st.sampled_from("abcdefgh")).map(sorted)


@given(keys, keys, st.booleans())
def test_intervals_begin_where_the_pipeline_says(now: list[str], wanted: list[str], mixed: bool) -> None:
    """Whatever a leader has made of them meanwhile."""
    lows = {low: IntervalId(number) for number, low in enumerate(("", *now), 1)}
    found = {*lows}
    for step in steps([*lows.items()], Recut("a", tuple(wanted), mixed)):
        merged = [low for low, id_ in lows.items() if id_ in step.merged]
        assert [lows[low] for low in merged] == [*step.merged], "by key, and neighbours"
        assert len(step.merged) > 1 or step.cut
        found -= {*merged[1:]}
        assert not found & {*step.cut}
        found |= {*step.cut}
    assert sorted(found) == ["", *wanted]


@given(keys, keys)
def test_intervals_that_stay_are_left_alone(now: list[str], wanted: list[str]) -> None:
    lows = {low: IntervalId(number) for number, low in enumerate(("", *now), 1)}
    ends = dict(zip(lows, (*now, None), strict=True))
    goals = dict(zip(("", *wanted), (*wanted, None), strict=True))
    touched = {id_ for step in steps([*lows.items()], Recut("a", tuple(wanted), False)) for id_ in step.merged}
    assert touched.isdisjoint(lows[low] for low in lows if low in goals and ends[low] == goals[low])


def test_all_of_a_combiner_know_what_each_has_been_given() -> None:
    intervals = [("", IntervalId(1)), ("001#", IntervalId(2))]
    (step,) = steps(intervals, Recut("a.parts", ("001#", "002#"), True))
    assert (step.merged, step.cut) == ((1, 2), ("001#", "002#"))


def test_other_split_keys_are_planned() -> None:
    found = plan(shops(), shops(split_keys=["a", "m"]))
    found.check()
    assert found.changes == ["computation 'Total' is cut into intervals at ['a', 'm'] instead of ['m']"]
    assert found.recuts == [Recut("Total", ("a", "m"), False)]
    assert found.moves()
    assert not plan(found.shape, shops(split_keys=["a", "m"])).moves()


@given(keys, keys)
def test_whatever_is_cut_otherwise_is_told_and_done(now: list[str], wanted: list[str]) -> None:
    """Also into as many intervals as there were."""
    found = plan(shops(split_keys=now), shops(split_keys=wanted))
    told = [f"computation 'Total' is cut into intervals at {wanted} instead of {now}"]
    assert found.changes == (told if now != wanted else [])
    assert found.recuts == ([Recut("Total", tuple(wanted), False)] if now != wanted else [])


def test_of_a_computation_with_another_name_too() -> None:
    found = plan(shops(), shops(name="Sum", formerly="Total", split_keys=()))
    found.check()
    assert found.recuts == [Recut("Sum", (), False)]


def test_other_shards_are_planned() -> None:
    found = plan(shops(combiner=gathering()), shops(combiner=gathering(5)))
    found.check()
    assert found.changes == ["combiner 'Total.parts' has 5 shards instead of 3"]
    assert found.recuts == [Recut("Total.parts", ("001#", "002#", "003#", "004#"), True)]


def test_a_computation_that_gets_a_combiner_may_be_cut_otherwise_at_once() -> None:
    found = plan(shops(), shops(combiner=gathering(), split_keys=["q"]))
    found.check()
    assert [it.computation for it in found.handovers] == ["Total"]
    assert found.recuts == [Recut("Total", ("q",), False)]


def test_other_keys_are_planned_for_several_intervals() -> None:
    found = plan(shops(), shops(inputs=[subscribe(sales, str, key_version="2")]))
    found.check()
    assert found.changes == ["input 'Total<sales' has keys of version '2' instead of ''"]
    assert found.recuts == [Recut("Total", ("m",), True)]
    assert not plan(found.shape, shops(inputs=[subscribe(sales, str, key_version="2")])).moves()
    (back,) = plan(found.shape, shops(name="Sum", formerly="Total")).recuts
    assert back == Recut("Sum", ("m",), True)


def test_two_versions_of_keys_do_not_run_side_by_side() -> None:
    new = shops(inputs=[subscribe(sales, str, key_version="2")])
    assert differences(shops(), new) == ["version of the keys of 'Total<sales' is new"]
    assert differences(new, new) == []


def test_a_combiner_reads_under_the_version_of_its_computation() -> None:
    new = shops(combiner=gathering(), inputs=[subscribe(sales, str, key_version="2")])
    assert new.key_versions == {"Total.parts<sales": "2"}


@pytest.mark.parametrize("version", [2, None, "x" * 101])
def test_a_version_of_keys_is_a_short_text(version: object) -> None:
    with pytest.raises(WiringError, match=r"subscription to 'sales': key_version is .*up to 100 bytes"):
        subscribe(sales, str, key_version=version)  # type: ignore[arg-type]
