"""The join that aggregates equals the nested loop, and the join with one value meets whatever comes first."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel import SECOND, MsgpackCoder, Pipeline, Stream
from millwheel.errors import WiringError
from millwheel.library import Flow, Interval, Match, collect, seconds
from millwheel.limits import JOIN_BUCKET_US
from millwheel.testing import Faults, Stepper, simulate
from tests.effort import examples
from tests.unit.library.pipelines import left as state_left
from tests.unit.library.test_joins import (
    CUTS,
    DISORDER,
    LAGS,
    ROWS,
    Row,
    Seen,
    driven,
    late_lefts,
    late_rights,
    lefts,
    rights,
    send,
    user,
)

gathered = Stream("matches", MsgpackCoder(Match[Seen, list[int]]))
met = Stream("matches", MsgpackCoder(Match[Seen, Seen]))

Found = Counter[tuple[int, tuple[int, ...], int]]
"""Number of the left one, those of its partners, and the row's time, us."""


def reach(seen: Seen) -> int:
    """Each value has a span of its own."""
    return seconds(seen.number % 5)


SPANS: list[Any] = [Interval(before=seconds(2), after=seconds(4)), Interval(after=seconds(3)), reach]


def gathering(within: Any, how: Any = "inner", lateness: int = 0, single: bool = False) -> Pipeline:
    pipeline = Pipeline("joins")
    flow = Flow(pipeline)
    others = flow.read(rights).key_by(user)
    flow.read(lefts).key_by(user).join_aggregate(
        others, within, collect(int, lambda seen: seen.number), how, single=single, lateness=lateness,
        dropped=late_lefts, other_dropped=late_rights,
    ).to(gathered)  # fmt: skip
    return pipeline


def found(results: Any) -> Found:
    for out in results.outputs(gathered):
        assert out.value.end == out.timestamp + 1, "behind the last of its partners"
    return Counter((out.value.left.number, tuple(out.value.right), out.timestamp) for out in results.outputs(gathered))


def nested_loop(rows: list[Row], within: Any, how: str) -> Found:
    numbered = [(side, name, second * SECOND, number) for number, (side, name, second) in enumerate(rows)]
    result: Found = Counter()
    for _, name, time, number in (row for row in numbered if row[0] == 0):
        before = within.before if isinstance(within, Interval) else 0
        after = within.after if isinstance(within, Interval) else reach(Seen(name, number))
        near = [
            (other, partner)
            for side, of, other, partner in numbered
            if side == 1 and of == name and time - before <= other <= time + after
        ]
        if near or how == "left":
            # Of one time in the order of their encoding, which is that of small numbers.
            result[number, tuple(partner for _, partner in sorted(near)), time + after] += 1
    return result


@settings(max_examples=examples(40, gate=20))
@given(ROWS, CUTS, LAGS, st.sampled_from(SPANS), st.sampled_from(["inner", "left"]))
def test_the_nested_loop(rows: list[Row], cuts: list[int], lags: list[int], within: Any, how: str) -> None:
    stepper = driven(gathering(within, how, seconds(DISORDER)), rows, cuts, lags)
    assert found(stepper) == nested_loop(rows, within, how)
    assert state_left(stepper, ["matches.join"]) == {}
    assert stepper.outputs(late_lefts) == stepper.outputs(late_rights) == []


@settings(max_examples=examples(30, gate=15))
@given(ROWS, CUTS, LAGS, st.sampled_from(SPANS))
def test_of_one_value_a_key_nothing_else_is_stored(
    rows: list[Row], cuts: list[int], lags: list[int], within: Any
) -> None:
    firsts = [rows.index(row) for row in {row[1]: row for row in reversed(rows) if row[0] == 0}.values()]
    unique = [row for place, row in enumerate(rows) if row[0] == 1 or place in firsts]
    stepper = driven(gathering(within, "left", seconds(DISORDER), single=True), unique, cuts, lags)
    assert found(stepper) == nested_loop(unique, within, "left")
    assert state_left(stepper, ["matches.join"]) == {}


def inputs() -> tuple[list[Row], dict[str, Any]]:
    rows = [(n % 3 % 2, "ab"[n % 2], n // 2) for n in range(60)]
    return rows, {
        name: [(Seen(u, n), s * SECOND) for n, (side, u, s) in enumerate(rows) if side == number]
        for number, name in enumerate(("lefts", "rights"))
    }


@pytest.mark.parametrize("seed", range(4))
def test_faults_change_nothing(seed: int) -> None:
    rows, given_ = inputs()
    within = SPANS[seed % 3]
    outcome = simulate(gathering(within, "left"), given_, seed=seed, faults=Faults(crash=0.01))
    assert outcome.faults
    assert found(outcome) == nested_loop(rows, within, "left")
    assert state_left(outcome, ["matches.join"]) == {}


def test_a_partner_goes_when_no_value_can_come_that_it_is_near() -> None:
    stepper = Stepper(gathering(Interval(after=seconds(60))))
    for second in range(30):
        send(stepper, rights, second, second)
    stepper.advance_watermark(29 * SECOND)
    assert len(stepper.state("matches.join", "a")["side1"]) <= 2
    send(stepper, lefts, 100, 30)
    stepper.advance_watermark(32 * SECOND)
    assert "side1" not in stepper.state("matches.join", "a")


@pytest.mark.parametrize("older", [0, 2 * SECOND])
@pytest.mark.parametrize("lateness", [0, 3 * SECOND])
@pytest.mark.parametrize("gone", [False, True])
def test_a_partner_is_kept_until_the_last_value_of_its_bucket_can_come(older: int, lateness: int, gone: bool) -> None:
    """To the microsecond: the last time of the bucket is that of one partner, the first that of another one."""
    width = max(older + lateness, JOIN_BUCKET_US)
    stepper = Stepper(gathering(Interval(before=older), lateness=lateness))
    for number, time in ((1, 3 * width), (2, 4 * width - 1)):
        stepper.send(rights, Seen("a", number), time)
    newest = 4 * width - 1 + older
    stepper.advance_watermark(newest + lateness + gone)
    assert len(stepper.states("matches.join").get("a", {}).get("side1", {})) == (0 if gone else 2)
    stepper.send(lefts, Seen("a", 3), newest)
    assert len(stepper.outputs(late_lefts)) == gone
    stepper.finish()
    partners = (1, 2) if 3 * width >= newest - older else (2,)
    assert found(stepper) == ({} if gone else {(3, partners, newest): 1})
    assert state_left(stepper, ["matches.join"]) == {}


@pytest.mark.parametrize("single", [False, True])
def test_a_partner_that_comes_after_the_one_value_of_its_key_is_not_stored(single: bool) -> None:
    stepper = Stepper(gathering(Interval(before=5 * SECOND, after=5 * SECOND), single=single))
    send(stepper, rights, 1, 9)
    send(stepper, lefts, 2, 10)
    send(stepper, rights, 3, 11)
    send(stepper, rights, 4, 30)
    state = stepper.state("matches.join", "a")
    assert [kept.value.number for kept in state["side1"].values()] == ([1] if single else [1, 3, 4])
    stepper.finish()
    assert found(stepper) == {(2, (1, 3), 15 * SECOND): 1}
    assert state_left(stepper, ["matches.join"]) == {}


def test_values_are_numbered_from_0_again_when_all_have_had_their_rows() -> None:
    stepper = Stepper(gathering(Interval(after=SECOND), "left"))
    for second in (0, 0, 1, 10):
        stepper.advance_watermark(second * SECOND - 1)
        send(stepper, lefts, second, second)
    assert stepper.state("matches.join", "a")["side0"].keys() == {"0"}
    assert stepper.state("matches.join", "a")["numbers"] == 1


def test_what_is_too_late_goes_to_the_streams_for_it() -> None:
    stepper = Stepper(gathering(Interval(after=seconds(5)), lateness=seconds(5)))
    send(stepper, lefts, 1, 30)
    stepper.advance_watermark(30 * SECOND)
    send(stepper, lefts, 2, 9)
    send(stepper, rights, 3, 8)
    send(stepper, rights, 4, 31)
    stepper.finish()
    assert found(stepper) == {(1, (4,), 35 * SECOND): 1}
    assert [out.value.number for out in stepper.outputs(late_lefts)] == [2]
    assert [out.value.number for out in stepper.outputs(late_rights)] == [3]


def test_what_is_stored_for_one_interval_is_never_read_for_another_one() -> None:
    cells = [gathering(within).declared()[1]["matches.join"].cells for within in SPANS]
    for name in ("side0", "side1", "accumulators"):
        assert len({of[name] for of in cells}) == len(SPANS)


def test_a_join_that_aggregates_has_no_other_kinds() -> None:
    with pytest.raises(WiringError, match="'inner' or 'left'"):
        gathering(Interval(), "outer")


# --- with the one value of a key -------------------------------------------------------------------------------


def of_one(forget_after: int | None = None) -> Pipeline:
    pipeline = Pipeline("joins")
    flow = Flow(pipeline)
    ones = flow.read(rights).key_by(user)
    flow.read(lefts).key_by(user).join_one(ones, forget_after=forget_after).to(met)
    return pipeline


def pairs(results: Any) -> list[tuple[int, int, int]]:
    return [(out.value.left.number, out.value.right.number, out.timestamp // SECOND) for out in results.outputs(met)]


def test_whichever_comes_first() -> None:
    stepper = Stepper(of_one())
    send(stepper, lefts, 1, 10)
    send(stepper, lefts, 2, 30)
    send(stepper, rights, 3, 20)
    send(stepper, lefts, 4, 5)
    send(stepper, lefts, 5, 25, "b")
    assert sorted(pairs(stepper)) == [(1, 3, 20), (2, 3, 30), (4, 3, 20)]
    assert stepper.state("matches.join", "a").keys() == {"one"}


def test_a_second_one_counts_from_its_arrival_on() -> None:
    stepper = Stepper(of_one())
    send(stepper, rights, 1, 10)
    send(stepper, lefts, 2, 11)
    send(stepper, rights, 3, 9)
    send(stepper, lefts, 4, 12)
    assert pairs(stepper) == [(2, 1, 11), (4, 3, 12)]


def test_a_key_is_forgotten() -> None:
    stepper = Stepper(of_one(forget_after=seconds(10)))
    send(stepper, rights, 1, 10)
    send(stepper, lefts, 2, 11, "b")
    stepper.advance_watermark(30 * SECOND)
    assert stepper.states("matches.join") == {}


def test_a_key_is_kept_as_long_as_its_records_come() -> None:
    stepper = Stepper(of_one(forget_after=seconds(80)))
    send(stepper, rights, 1, 10)
    for second in (*range(10, 300), 380):
        send(stepper, lefts, second, second)
        stepper.advance_watermark(second * SECOND)
    assert [left for left, _, _ in pairs(stepper)] == [*range(10, 300), 380]
    stepper.advance_watermark(500 * SECOND)
    assert stepper.states("matches.join") == {}


@pytest.mark.parametrize("newest", [0, 5, 10, 11, 79])
def test_a_key_is_kept_for_its_time_after_its_newest_record_and_little_longer(newest: int) -> None:
    stepper = Stepper(of_one(forget_after=seconds(80)))
    for second in sorted({0, newest}):
        stepper.advance_watermark(second * SECOND)
        send(stepper, rights if second == 0 else lefts, second, second)
    stepper.advance_watermark((newest + 80) * SECOND - 1)
    assert stepper.states("matches.join").keys() == {"a"}
    stepper.advance_watermark((newest + 80 * 81 // 64 + 1) * SECOND)  # an eighth more, and the slack of an expiry
    assert stepper.states("matches.join") == {}


def test_few_records_of_a_key_that_is_forgotten_are_written_down() -> None:
    stepper = Stepper(of_one(forget_after=seconds(80)))
    written = set()
    for second in (*range(30), *range(20, 0, -1)):
        send(stepper, rights, second, second)
        written.add(stepper.state("matches.join", "a")["newest"] // SECOND)
    assert written == {0, 11, 22}


@pytest.mark.parametrize("seed", range(3))
def test_faults_lose_no_pair(seed: int) -> None:
    rows, given_ = inputs()
    given_["rights"] = [(Seen(name, 100), 7 * SECOND) for name in "ab"]
    outcome = simulate(of_one(), given_, seed=seed, faults=Faults(crash=0.004))
    assert sorted(pairs(outcome)) == [(n, 100, max(s, 7)) for n, (side, _, s) in enumerate(rows) if side == 0]
