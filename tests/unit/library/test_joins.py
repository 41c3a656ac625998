"""Joins equal the nested loop, whatever the order of arrival within the lateness, and leave nothing behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import permutations, product
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel import SECOND, JsonCoder, MsgpackCoder, Pipeline, Stream, TextCoder
from millwheel.errors import WiringError
from millwheel.library import (
    Calendar,
    Chain,
    Fixed,
    Flow,
    Global,
    Interval,
    Joined,
    Match,
    Sessions,
    Sliding,
    Validity,
    Wall,
    seconds,
)
from millwheel.limits import WAITING_SPANS
from millwheel.testing import Faults, Stepper, simulate
from tests.effort import examples, share
from tests.unit.library.pipelines import left as state_left
from tests.unit.library.pipelines import many


class Seen(msgspec.Struct, frozen=True):
    user: str
    number: int


lefts = Stream("lefts", MsgpackCoder(Seen))
rights = Stream("rights", MsgpackCoder(Seen))
thirds = Stream("thirds", MsgpackCoder(Seen))
matches = Stream("matches", MsgpackCoder(Match[Seen | None, Seen | None]))
texts = Stream("texts", TextCoder())
late_lefts = Stream("late_lefts", MsgpackCoder(Seen))
late_rights = Stream("late_rights", MsgpackCoder(Seen))

How = Literal["inner", "left", "right", "outer"]
HOWS: list[How] = ["inner", "left", "right", "outer"]
DISORDER = 6
Row = tuple[int, str, int]
"""Side, user, second."""
Found = tuple[int | None, int | None, int]
"""Numbers of the left and the right one, and the row's time, us."""
SessionRow = tuple[int | None, int | None, int, int]
"""Numbers of both, start and end of the session, us."""


def user(seen: Seen) -> str:
    return seen.user


def joined(within: Any, how: Any = "inner", lateness: int = 0) -> Pipeline:
    pipeline = Pipeline("joins")
    flow = Flow(pipeline)
    chain: Chain[Any] = (
        flow.read(lefts)
        .key_by(user)
        .join(
            flow.read(rights).key_by(user),
            within,
            how,
            lateness=lateness,
            dropped=late_lefts,
            other_dropped=late_rights,
        )
    )
    chain.to(matches)
    return pipeline


def as_of(how: Any = "inner", lateness: int = 0) -> Pipeline:
    pipeline = Pipeline("joins")
    flow = Flow(pipeline)
    chain: Chain[Any] = (
        flow.read(lefts)
        .key_by(user)
        .join_as_of(flow.read(rights).key_by(user), how, lateness=lateness, dropped=late_lefts)
    )
    chain.to(matches)
    return pipeline


def number_of(seen: Seen | None) -> int | None:
    return None if seen is None else seen.number


def found(results: Any) -> Counter[Found]:
    return Counter(
        (number_of(out.value.left), number_of(out.value.right), out.timestamp) for out in results.outputs(matches)
    )


# --- the nested loop -------------------------------------------------------------------------------------------


def nested_loop(
    rows: list[Row], how: How, near: Callable[[int, int], list[int]], alone: Callable[[int, int], list[int]]
) -> Counter[Found]:
    """`near`: for each row of two values, how much later than the later one it is; `alone`: times of a side's rows."""
    numbered = [(side, name, second * SECOND, number) for number, (side, name, second) in enumerate(rows)]
    result: Counter[Found] = Counter()
    for _, name, time, number in (row for row in numbered if row[0] == 0):
        for _, other, other_time, partner in (row for row in numbered if row[0] == 1):
            if name == other:
                result.update((number, partner, max(time, other_time)) for _ in near(time, other_time))
    for side, name, time, number in numbered:
        if how == "outer" or how == ("left", "right")[side]:
            others = [row[2] for row in numbered if row[0] != side and row[1] == name]
            met = {window for other in others for window in near(*((time, other) if side == 0 else (other, time)))}
            pair = (number, None) if side == 0 else (None, number)
            result.update((*pair, stamp) for stamp in alone(side, time) if stamp not in met and not (met & {-1}))
    return result


def by_windows(rows: list[Row], windows: Any, how: How) -> Counter[Found]:
    def lasts(time: int) -> list[int]:
        return [window.last for window in windows.of(time)]

    return nested_loop(rows, how, lambda a, b: [w for w in lasts(a) if w in lasts(b)], lambda _, time: lasts(time))


def by_interval(rows: list[Row], interval: Interval, how: How) -> Counter[Found]:
    def near(a: int, b: int) -> list[int]:
        return [-1] if a - interval.before <= b <= a + interval.after else []

    return nested_loop(rows, how, near, lambda side, time: [time + interval.reach(side)])


def by_version(rows: list[Row], how: How) -> Counter[Found]:
    numbered = [(side, name, second * SECOND, number) for number, (side, name, second) in enumerate(rows)]
    result: Counter[Found] = Counter()
    for _, name, time, number in (row for row in numbered if row[0] == 0):
        older = [row for row in numbered if row[0] == 1 and row[1] == name and row[2] <= time]
        version = max(older, key=lambda row: row[2])[3] if older else None
        if older or how == "left":
            result[number, version, time] += 1
    return result


# --- runs ------------------------------------------------------------------------------------------------------

ROWS = many(st.tuples(st.integers(0, 1), st.sampled_from("aab"), st.integers(0, 25), st.integers(0, DISORDER)), 24).map(
    lambda drawn: [row[:3] for row in sorted(drawn, key=lambda row: row[2] + row[3])]
)
"""Rows in an order of arrival in which none comes behind one that is more than `DISORDER` newer."""
CUTS = st.lists(st.integers(1, 5), min_size=1, max_size=4)
LAGS = st.lists(st.integers(0, DISORDER), min_size=1, max_size=4)


def driven(pipeline: Pipeline, rows: list[Row], cuts: list[int], lags: list[int]) -> Stepper:
    """Bundles of the sizes `cuts`; behind each the watermark follows the newest row by so many seconds."""
    stepper = Stepper(pipeline)
    newest, place, promised = 0, 0, -1
    numbered = [(side, Seen(name, number), second) for number, (side, name, second) in enumerate(rows)]
    while place < len(rows):
        size, lag = cuts[place % len(cuts)], lags[place % len(lags)]
        for side, seen, second in numbered[place : place + size]:
            stepper._sources[("lefts", "rights")[side]].rows.append((seen, second * SECOND))
            newest = max(newest, second)
        stepper.advance_clock(SECOND)
        for step in range(promised + 1, newest - lag + 1):
            stepper.advance_watermark(step * SECOND)
        promised = max(promised, newest - lag)
        place += size
    stepper.finish()
    return stepper


def run(pipeline: Pipeline, rows: list[Row], cuts: list[int], lags: list[int]) -> Counter[Found]:
    stepper = driven(pipeline, rows, cuts, lags)
    assert state_left(stepper, ["matches.join"]) == {}
    assert stepper.outputs(late_lefts) == []
    return found(stepper)


WINDOWS: list[Any] = [
    Fixed(seconds=10),
    Sliding(seconds=12, every=seconds(4)),
    Fixed(seconds=7, offset=seconds(3)),
    Calendar("day"),
]
INTERVALS = [
    Interval(before=seconds(5)),
    Interval(after=seconds(3)),
    Interval(before=seconds(2), after=seconds(4)),
    Interval(),
]


@settings(max_examples=examples(30, gate=15))
@given(ROWS, CUTS, LAGS, st.sampled_from(WINDOWS), st.sampled_from(HOWS))
def test_a_join_in_windows_is_the_nested_loop(
    rows: list[Row], cuts: list[int], lags: list[int], windows: Any, how: How
) -> None:
    assert run(joined(windows, how, seconds(DISORDER)), rows, cuts, lags) == by_windows(rows, windows, how)


@settings(max_examples=examples(40, gate=20))
@given(ROWS, CUTS, LAGS, st.sampled_from(INTERVALS), st.sampled_from(HOWS))
def test_a_join_in_an_interval_is_the_nested_loop(
    rows: list[Row], cuts: list[int], lags: list[int], interval: Interval, how: How
) -> None:
    assert run(joined(interval, how, seconds(DISORDER)), rows, cuts, lags) == by_interval(rows, interval, how)


def by_sessions(rows: list[Row], gap: int, how: How) -> Counter[SessionRow]:
    result: Counter[SessionRow] = Counter()
    numbered = [(name, second, side, number) for number, (side, name, second) in enumerate(rows)]
    for user_name in "ab":
        burst: tuple[list[int | None], list[int | None]] = ([], [])
        start = end = 0
        for _, second, side, number in [*sorted(row for row in numbered if row[0] == user_name), ("", 10**6, 0, -1)]:
            if second >= end:
                lone: list[int | None] = [None] if any(burst) else []
                lefts_of, rights_of = burst
                if how in ("left", "outer"):
                    rights_of = rights_of or lone
                if how in ("right", "outer"):
                    lefts_of = lefts_of or lone
                result.update((a, b, start * SECOND, end * SECOND) for a, b in product(lefts_of, rights_of))
                burst = ([], [])
                start = second
            burst[side].append(number)
            end = second + gap
    return result


def session_rows(results: Any) -> Counter[SessionRow]:
    outputs = results.outputs(matches)
    assert all(out.timestamp == out.value.end - 1 for out in outputs)
    return Counter(
        (number_of(out.value.left), number_of(out.value.right), out.value.start, out.value.end) for out in outputs
    )


@settings(max_examples=examples(75, gate=30))
@given(ROWS, CUTS, LAGS, st.integers(1, 7), st.sampled_from(HOWS), st.booleans())
def test_a_join_in_sessions_is_the_nested_loop(
    rows: list[Row], cuts: list[int], lags: list[int], gap: int, how: How, late: bool
) -> None:
    pipeline = joined(Sessions(seconds=gap), how, seconds(DISORDER) if late else 0)
    stepper = driven(pipeline, rows, cuts, lags if late else [DISORDER])
    assert session_rows(stepper) == by_sessions(rows, gap, how)
    assert state_left(stepper, ["matches.join"]) == {}
    assert stepper.outputs(late_lefts) == []


def test_a_session_that_began_earlier_than_its_first_arrival_says_so() -> None:
    """Two sessions arrive newest first; a row between them makes one of both, and one before them lets it begin earlier."""
    stepper = Stepper(joined(Sessions(seconds=10), "inner", seconds(60)))
    for stream, name, second in ((lefts, 1, 20), (rights, 2, 5), (lefts, 3, 12), (rights, 4, 1)):
        send(stepper, stream, name, second)
    stepper.finish()
    assert found(stepper) == dict.fromkeys([(a, b, 30 * SECOND - 1) for a in (1, 3) for b in (2, 4)], 1)
    assert {(out.value.start, out.value.end) for out in stepper.outputs(matches)} == {(SECOND, 30 * SECOND)}
    assert state_left(stepper, ["matches.join"]) == {}


@pytest.mark.parametrize("order", [*permutations((1, 11, 21))])
@pytest.mark.parametrize("nearer", [0, 1])
def test_values_that_are_a_whole_gap_apart_are_of_two_sessions(order: tuple[int, ...], nearer: int) -> None:
    """Whichever comes first; a microsecond nearer, the one in the middle makes one session of all."""
    times = {second: second * SECOND + nearer * (0 if second == 11 else 1 if second < 11 else -1) for second in order}
    stepper = Stepper(joined(Sessions(seconds=10), "outer"))
    for second in order:
        stepper.send(rights if second == 11 else lefts, Seen("a", second), times[second])
    stepper.finish()
    met = {(left, right) for left, right, _, _ in session_rows(stepper)}
    assert met == ({(1, 11), (21, 11)} if nearer else {(1, None), (None, 11), (21, None)})


def test_sessions_that_wait_for_late_values_may_still_become_one() -> None:
    """Both have had their end, and hold the watermark; of the second one nothing waits when it is a part of the first."""
    stepper = Stepper(joined(Sessions(seconds=10), "inner", seconds(60)))
    send(stepper, lefts, 1, 1)
    send(stepper, rights, 2, 15)
    stepper.advance_watermark(30 * SECOND)
    assert stepper.watermark("matches.join") == 11 * SECOND - 1
    send(stepper, lefts, 3, 8)
    stepper.advance_watermark(85 * SECOND - 1)
    assert found(stepper) == {}
    stepper.advance_watermark(85 * SECOND)
    assert found(stepper) == {(1, 2, 25 * SECOND - 1): 1, (3, 2, 25 * SECOND - 1): 1}
    assert state_left(stepper, ["matches.join"]) == {}
    assert stepper.watermark("matches.join") == 85 * SECOND


@pytest.mark.parametrize(("watermark", "kept"), [(15 * SECOND - 1, True), (15 * SECOND, False)])
def test_a_value_counts_until_its_own_window_and_the_lateness_are_over(watermark: int, kept: bool) -> None:
    """Its window of 10 s ends at 13 s; what has a session at the watermark extends nothing any more."""
    stepper = Stepper(joined(Sessions(seconds=10), "inner", seconds(2)))
    send(stepper, lefts, 1, 9)
    stepper.advance_watermark(watermark)
    send(stepper, rights, 2, 3)
    assert [out.value.number for out in stepper.outputs(late_rights)] == ([] if kept else [2])
    stepper.finish()
    assert found(stepper) == ({(1, 2, 19 * SECOND - 1): 1} if kept else {})


def test_a_session_of_both_streams_is_one_and_its_rows_say_so() -> None:
    stepper = Stepper(joined(Sessions(lambda key: seconds(10)), "left", seconds(5)))
    send(stepper, lefts, 1, 1)
    send(stepper, rights, 2, 18)
    stepper.advance_watermark(12 * SECOND)
    assert found(stepper) == {}
    send(stepper, lefts, 3, 9)  # closes the gap, within the lateness
    stepper.advance_watermark(33 * SECOND - 1)
    assert found(stepper) == {}
    send(stepper, rights, 4, 17)  # its own window ends at 27 s, and the lateness with 32 s: dropped
    assert [out.value.number for out in stepper.outputs(late_rights)] == [4]
    stepper.advance_watermark(33 * SECOND)
    assert found(stepper) == {(1, 2, 28 * SECOND - 1): 1, (3, 2, 28 * SECOND - 1): 1}
    assert {(out.value.start, out.value.end) for out in stepper.outputs(matches)} == {(SECOND, 28 * SECOND)}
    assert state_left(stepper, ["matches.join"]) == {}
    assert stepper.watermark("matches.join") == 33 * SECOND


@settings(max_examples=examples(30, gate=15))
@given(ROWS, CUTS, LAGS, st.sampled_from(["inner", "left"]))
def test_a_temporal_join_is_the_nested_loop(rows: list[Row], cuts: list[int], lags: list[int], how: How) -> None:
    seen: set[tuple[str, int]] = set()
    unique = []
    for side, name, second in rows:  # of two versions of one time the one that arrives later counts: not here
        if side == 0 or (name, second) not in seen:
            unique.append((side, name, second))
        if side == 1:
            seen.add((name, second))
    assert run(as_of(how, seconds(DISORDER)), unique, cuts, lags) == by_version(unique, how)


@settings(max_examples=examples(13))
@given(ROWS, CUTS, st.sampled_from(HOWS), st.booleans())
def test_without_lateness_the_watermark_alone_is_waited_for(
    rows: list[Row], cuts: list[int], how: How, in_windows: bool
) -> None:
    within: Any = Fixed(seconds=10) if in_windows else Interval(before=seconds(2), after=seconds(4))
    expected = (by_windows if in_windows else by_interval)(rows, within, how)
    assert run(joined(within, how), rows, cuts, [DISORDER]) == expected


@pytest.mark.parametrize("seed", share(range(6), 2))
def test_joins_under_faults_give_what_they_give_without(seed: int) -> None:
    rows = [(n % 3 % 2, "ab"[n % 2], n // 2) for n in range(60)]
    inputs = {
        name: [(Seen(u, n), s * SECOND) for n, (side, u, s) in enumerate(rows) if side == number]
        for number, name in enumerate(("lefts", "rights"))
    }
    interval = Interval(before=seconds(2), after=seconds(4))
    how = HOWS[seed % 4]
    outcome = simulate(joined(interval, how), inputs, seed=seed, faults=Faults(crash=0.004))
    assert found(outcome) == by_interval(rows, interval, how)
    assert state_left(outcome, ["matches.join"]) == {}
    outcome = simulate(joined(WINDOWS[1], how), inputs, seed=seed, faults=Faults(crash=0.004))
    assert found(outcome) == by_windows(rows, WINDOWS[1], how)
    assert state_left(outcome, ["matches.join"]) == {}
    bursts: list[Row] = [(side, name, second // 5 * 9 + second % 5) for side, name, second in rows]
    for name, number in (("lefts", 0), ("rights", 1)):
        rows_of = [(Seen(u, n), s * SECOND) for n, (side, u, s) in enumerate(bursts) if side == number]
        inputs[name] = rows_of
    outcome = simulate(joined(Sessions(seconds=3), how), inputs, seed=seed, faults=Faults(crash=0.004))
    assert session_rows(outcome) == by_sessions(bursts, 3, how)
    assert state_left(outcome, ["matches.join"]) == {}
    inputs = {
        name: [(Seen(u, n), s * SECOND) for n, (side, u, s) in enumerate(rows) if side == number]
        for number, name in enumerate(("lefts", "rights"))
    }
    outcome = simulate(as_of("left"), inputs, seed=seed, faults=Faults(crash=0.004))
    assert found(outcome) == by_version(rows, "left")
    assert state_left(outcome, ["matches.join"]) == {}


# --- one thing each --------------------------------------------------------------------------------------------


def send(stepper: Stepper, stream: Stream[Seen], number: int, second: float, name: str = "a") -> None:
    stepper.send(stream, Seen(name, number), int(second * SECOND))


def test_a_match_comes_at_once_and_a_row_without_partner_when_the_watermark_says_so() -> None:
    stepper = Stepper(joined(Interval(after=seconds(5)), "outer"))
    send(stepper, lefts, 1, 10)
    send(stepper, rights, 2, 12)
    send(stepper, lefts, 3, 13)
    send(stepper, rights, 4, 19)
    assert found(stepper) == {(1, 2, 12 * SECOND): 1}
    stepper.advance_watermark(18 * SECOND)
    assert len(found(stepper)) == 1  # a record of second 18 may still come
    stepper.advance_watermark(18 * SECOND + 1)
    assert found(stepper)[3, None, 18 * SECOND] == 1
    stepper.advance_watermark(19 * SECOND + 1)
    assert found(stepper)[None, 4, 19 * SECOND] == 1
    stepper.finish()
    assert stepper.states("matches.join") == {}


def test_rows_without_a_partner_keep_the_watermark_until_they_are_out() -> None:
    stepper = Stepper(joined(Fixed(seconds=10), "left", seconds(5)))
    send(stepper, lefts, 1, 3)
    stepper.advance_watermark(12 * SECOND)
    assert stepper.watermark("matches.join") == 10 * SECOND - 1
    send(stepper, rights, 2, 4)
    stepper.advance_watermark(16 * SECOND)
    assert found(stepper) == {(1, 2, 4 * SECOND): 1}
    assert stepper.watermark("matches.join") == 16 * SECOND


@pytest.mark.parametrize("within", [Fixed(seconds=10), Interval(after=seconds(5))])
def test_where_no_row_comes_without_a_partner_nothing_keeps_the_watermark(within: Any) -> None:
    stepper = Stepper(joined(within, "inner", seconds(5)))
    send(stepper, lefts, 1, 3)
    for second in range(4, 18):
        stepper.advance_watermark(second * SECOND)
        assert stepper.watermark("matches.join") == second * SECOND
    assert state_left(stepper, ["matches.join"]) == {}


def test_what_comes_after_the_lateness_goes_to_the_stream_for_it() -> None:
    for within in (Fixed(seconds=10), Interval(after=seconds(5))):
        stepper = Stepper(joined(within, "inner", seconds(5)))
        send(stepper, lefts, 1, 30)
        stepper.advance_watermark(30 * SECOND)
        send(stepper, lefts, 2, 9)
        send(stepper, rights, 3, 8)
        assert [out.value.number for out in stepper.outputs(late_lefts)] == [2]
        assert [out.value.number for out in stepper.outputs(late_rights)] == [3]
    stepper = Stepper(as_of("left"))
    stepper.advance_watermark(30 * SECOND)
    send(stepper, lefts, 2, 9)
    assert [out.value.number for out in stepper.outputs(late_lefts)] == [2]


@pytest.mark.parametrize(
    ("make", "beyond"),
    [
        (lambda: joined(Interval(after=seconds(5)), "left", seconds(2)), 5 * SECOND + 1),
        (lambda: joined(Fixed(seconds=10), "left", seconds(2)), 12 * SECOND),
        (lambda: as_of("left", seconds(2)), 5 * SECOND + 1),
    ],
)
@pytest.mark.parametrize("too_late", [False, True])
def test_a_value_counts_as_long_as_one_of_its_time_or_window_may_come(
    make: Callable[[], Pipeline], beyond: int, too_late: bool
) -> None:
    """To the microsecond: what is late and counts would come out behind the watermark."""
    stepper = Stepper(make())
    stepper.advance_watermark(beyond if too_late else beyond - 1)
    send(stepper, lefts, 1, 3)
    assert len(stepper.outputs(late_lefts)) == too_late
    stepper.finish()
    assert len(found(stepper)) == (not too_late)


def test_a_value_that_finds_a_late_partner_holds_nothing_back_any_more() -> None:
    stepper = Stepper(joined(Interval(after=5 * SECOND), "left", 20 * SECOND))
    send(stepper, lefts, 1, 10)
    stepper.advance_watermark(18 * SECOND)
    assert stepper.watermark("matches.join") == 15 * SECOND, "it may find none"
    send(stepper, rights, 2, 11)
    assert stepper.watermark("matches.join") == 18 * SECOND


@pytest.mark.parametrize(("partner", "holds"), [(15.2, 15), (9.7, 15.5), (12, None)])
def test_of_several_that_wait_in_one_span_only_those_with_a_partner_hold_nothing_back(
    partner: float, holds: float | None
) -> None:
    """Two values wait with stamps of 15 s and 15.5 s, in one span of a second, and one in the span before."""
    stepper = Stepper(joined(Interval(before=SECOND // 2, after=5 * SECOND), "left", seconds(WAITING_SPANS)))
    for number, second in ((1, 10), (2, 10.5), (3, 9.4)):
        send(stepper, lefts, number, second)
    stepper.advance_watermark(18 * SECOND)
    assert stepper.watermark("matches.join") == 14.4 * SECOND
    send(stepper, rights, 4, 9)
    assert stepper.watermark("matches.join") == 15 * SECOND
    send(stepper, rights, 5, partner)
    assert stepper.watermark("matches.join") == (18 if holds is None else holds) * SECOND
    stepper.finish()
    assert state_left(stepper, ["matches.join"]) == {}


def test_a_key_keeps_one_version_and_no_record() -> None:
    stepper = Stepper(as_of())
    for second in range(10):
        send(stepper, rights, second, second)
        send(stepper, lefts, 100 + second, second)
    stepper.advance_watermark(9 * SECOND + 1)
    state = stepper.state("matches.join", "a")
    assert state["times"] == [9 * SECOND]
    assert list(state["side1"]) == [str(9 * SECOND)]
    assert state.keys() == {"times", "side1"}
    assert sorted(found(stepper)) == [(100 + n, n, n * SECOND) for n in range(10)]


def test_a_late_version_counts_for_those_that_come() -> None:
    stepper = Stepper(as_of("left"))
    stepper.advance_watermark(20 * SECOND)
    send(stepper, lefts, 1, 25)
    send(stepper, rights, 2, 5)
    send(stepper, rights, 3, 4)
    stepper.advance_watermark(30 * SECOND)
    send(stepper, rights, 4, 3)
    send(stepper, lefts, 5, 31)
    stepper.finish()
    assert found(stepper) == {(1, 2, 25 * SECOND): 1, (5, 2, 31 * SECOND): 1}


def test_a_version_that_no_record_can_need_any_more_is_not_kept() -> None:
    stepper = Stepper(as_of())
    send(stepper, rights, 2, 5)
    stepper.advance_watermark(20 * SECOND)
    send(stepper, rights, 3, 4)
    assert stepper.state("matches.join", "a")["times"] == [5 * SECOND]
    assert [*stepper.state("matches.join", "a")["side1"]] == [str(5 * SECOND)]


def test_a_value_that_met_its_partners_when_it_came_is_not_stored_again_for_those_that_come() -> None:
    stepper = Stepper(joined(Interval(before=10 * SECOND), "outer"))
    send(stepper, lefts, 1, 10)
    send(stepper, rights, 2, 9)
    kept = stepper.state("matches.join", "a")
    assert [it.matched for side in ("side0", "side1") for it in kept[side].values()] == [True, True]


def test_of_two_versions_of_one_time_the_one_that_comes_later_counts_also_when_it_is_late() -> None:
    stepper = Stepper(as_of())
    send(stepper, rights, 2, 5)
    stepper.advance_watermark(20 * SECOND)
    send(stepper, rights, 3, 5)
    send(stepper, lefts, 1, 25)
    stepper.finish()
    assert found(stepper) == {(1, 3, 25 * SECOND): 1}


def test_three_streams_meet_in_one_window() -> None:
    def pipeline(outer: bool) -> Pipeline:
        pipeline = Pipeline("three")
        flow = Flow(pipeline)
        a, b, c = (flow.read(stream).key_by(user) for stream in (lefts, rights, thirds))
        if outer:
            flow.join_all((a, b, c), Fixed(seconds=10), outer=True).map(
                lambda row: ",".join(str(seen and seen.number) for seen in row.values)
            ).to(texts)
        else:
            flow.join_all((a, b, c), Fixed(seconds=10)).map(
                lambda row: ",".join(str(seen.number) for seen in row.values)
            ).to(texts)
        return pipeline

    for outer, expected in ((False, ["1,2,3", "1,2,4"]), (True, ["1,2,3", "1,2,4", "5,6,None", "None,8,None"])):
        stepper = Stepper(pipeline(outer))
        for stream, number, second in (
            (lefts, 1, 1), (thirds, 3, 2), (rights, 2, 3), (thirds, 4, 4), (rights, 6, 11), (lefts, 5, 12), (rights, 8, 30),
        ):  # fmt: skip
            send(stepper, stream, number, second)
        stepper.finish()
        assert sorted(out.value for out in stepper.outputs(texts)) == expected
        assert stepper.states("texts.join") == {}


THREE = many(st.tuples(st.integers(0, 2), st.sampled_from("ab"), st.integers(0, 25)), 12)


@settings(max_examples=examples(20))
@given(THREE, st.booleans())
def test_a_join_of_three_is_the_nested_loop_in_any_order(rows: list[Row], outer: bool) -> None:
    pipeline = Pipeline("three")
    flow = Flow(pipeline)
    chains = [flow.read(stream).key_by(user) for stream in (lefts, rights, thirds)]
    together = flow.join_all(chains, Fixed(seconds=10), outer=outer)
    together.map(lambda row: f"{row.start}{row.key}{[seen and seen.number for seen in row.values]}").to(texts)
    stepper = Stepper(pipeline)
    groups: dict[tuple[str, int], list[list[int | None]]] = {}
    for number, (side, name, second) in enumerate(rows):
        send(stepper, (lefts, rights, thirds)[side], number, second, name)
        groups.setdefault((name, second // 10 * 10 * SECOND), [[], [], []])[side].append(number)
    stepper.finish()
    expected = [
        f"{start}{name}{[*row]}"
        for (name, start), sides in groups.items()
        for row in product(*(side or ([None] if outer else []) for side in sides))
    ]
    assert sorted(out.value for out in stepper.outputs(texts)) == sorted(expected)
    assert stepper.states("texts.join") == {}


def test_results_go_on_to_another_step_with_the_coders_of_the_inputs() -> None:
    pipeline = Pipeline("p")
    flow = Flow(pipeline)
    numbers = flow.read(lefts).map(lambda seen: seen.number, JsonCoder(int)).key_by(lambda n: "all")
    both = numbers.join(flow.read(rights).key_by(lambda seen: "all"), Interval(after=seconds(5)), "left", name="both")
    again = both.key_by(lambda row: row.key).join(
        flow.read(thirds).key_by(lambda seen: "all"), Interval(before=seconds(99)), name="again"
    )
    again.map(lambda row: f"{row.left.left} {row.left.right} {row.right.number}").to(texts)
    three = flow.join_all([numbers, numbers, numbers], Fixed(seconds=10), name="three")
    three.key_by(lambda row: row.key).join(numbers, Fixed(seconds=10)).map(lambda row: f"{row.left.values}").to(
        Stream("more", TextCoder())
    )
    stepper = Stepper(pipeline)
    send(stepper, thirds, 3, 0)
    send(stepper, lefts, 1, 10)
    stepper.finish()
    assert [out.value for out in stepper.outputs(texts)] == ["1 None 3"]
    assert [out.value for out in stepper.outputs("more")] == ["(1, 1, 1)"]


@pytest.mark.parametrize("how", HOWS)
def test_a_lateness_does_not_reach_beyond_the_end_of_the_input(how: How) -> None:
    """The one window of all time is over when the input has ended, however late a record may be."""
    stepper = Stepper(joined(Global(), how, 5 * SECOND))
    stepper.send(lefts, Seen("ann", 1), SECOND)
    stepper.send(rights, Seen("bob", 2), 2 * SECOND)
    stepper.send(lefts, Seen("cat", 3), 3 * SECOND)
    stepper.send(rights, Seen("cat", 4), 4 * SECOND)
    stepper.finish()
    alone = [row for row in ((1, None), (None, 2)) if how in (("left", "outer") if row[0] else ("right", "outer"))]
    found = [
        (it.value.left and it.value.left.number, it.value.right and it.value.right.number)
        for it in stepper.outputs(matches)
    ]
    assert sorted(map(str, found)) == sorted(map(str, [(3, 4), *alone]))
    assert stepper.states("matches.join") == {}


def test_what_a_join_cannot_store_or_does_not_know_is_refused() -> None:
    flow = Flow(Pipeline("p"))
    seen = flow.read(lefts).key_by(user)
    with pytest.raises(WiringError, match="coder"):
        flow.read(lefts).map(user).key_by(str).join(seen, Fixed(seconds=1))
    for how in ("full", "cross"):
        for within in (Fixed(seconds=1), Interval()):
            with pytest.raises(WiringError, match="how="):
                seen.join(seen, within, how)  # type: ignore[call-overload]
    for windows in (Validity(), Wall(seconds=1)):
        with pytest.raises(WiringError, match="cannot be joined"):
            seen.join(seen, windows)  # type: ignore[call-overload]
    with pytest.raises(WiringError, match="temporal"):
        seen.join_as_of(seen, "outer")  # type: ignore[call-overload]


def test_the_stored_rows_are_those_of_the_coders() -> None:
    from millwheel.errors import CoderError
    from millwheel.library.matches import JoinedCoder, Kept, KeptCoder, match_coder

    inner = MsgpackCoder(Seen)
    row: Match[Any, Any] = Match("k", Seen("a", 1), None, 1, 2)
    assert match_coder(inner, inner).decode(match_coder(inner, inner).encode(row)) == row
    several: Joined[Any] = Joined("k", (Seen("a", 1), None, 5), 1, 2)
    coder = JoinedCoder([inner, inner, JsonCoder(int)])
    assert coder.decode(coder.encode(several)) == several
    kept = Kept(3, True, Seen("a", 1))
    assert KeptCoder(inner).decode(KeptCoder(inner).encode(kept)) == kept
    stored: list[tuple[Any, Any]] = [(match_coder(inner, inner), row), (coder, several), (KeptCoder(inner), kept)]
    for each, value in stored:
        data = each.encode(value)
        for wrong in (b"", b"\xc1", data[:-1], data + b"\0", data + data):
            with pytest.raises(CoderError, match="cannot be decoded"):
                each.decode(wrong)
