"""Whatever the order of arrival within the lateness, the bundles and the steps of the watermark: the same final panes."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel import SECOND
from millwheel.bundles import decode_checkpoint
from millwheel.core.interval.schedule import Schedule
from millwheel.library import (
    Aggregation,
    AtWatermark,
    Calendar,
    Combiner,
    EveryRecords,
    EveryWall,
    Fixed,
    Once,
    Pane,
    Repeat,
    Sessions,
    Sliding,
    Window,
    collect,
    seconds,
    sum_of,
)
from millwheel.library.triggers import Trigger
from millwheel.testing import Stepper
from millwheel_storage.fold import fold
from millwheel_storage.postgres.overlays import overlay_timers
from tests.effort import examples
from tests.unit.library.pipelines import Score, dropped, left, many, panes, scores, windowed

DISORDER = 20
WINDOWS: dict[str, Any] = {
    "fixed": Fixed(seconds=10),
    "shifted": Fixed(seconds=7, offset=seconds(3)),
    "sliding": Sliding(seconds=12, every=seconds(4)),
    "uneven": Sliding(seconds=10, every=seconds(4)),
    "askew": Sliding(seconds=10, every=seconds(4), offset=seconds(3)),
    "sessions": Sessions(seconds=5),
    "per key": Sessions(lambda player: seconds(3 if player == "ann" else 9)),
    "days": Calendar("day"),
}
TRIGGERS: list[Trigger] = [
    AtWatermark(),
    AtWatermark(early=EveryRecords(2)),
    AtWatermark(early=EveryRecords(1), late=EveryRecords(3)),
    AtWatermark(early=EveryWall(seconds=5), late=EveryWall(seconds=9)),
    Repeat(EveryRecords(2)),
]
Row = tuple[str, int]
"""A player, and the second, by which the score is known as well."""

ROWS = many(st.tuples(st.sampled_from(["ann", "bob"]), st.integers(0, 90), st.integers(0, DISORDER)), 25).map(
    lambda drawn: [(player, second) for player, second, late in sorted(drawn, key=lambda row: row[1] + row[2])]
)
"""Rows in an order of arrival in which none comes behind one that is more than `DISORDER` newer."""


def expected(windows: Any, rows: list[Row]) -> dict[tuple[str, Window], list[int]]:
    """Every window's seconds, found all at once."""
    found: dict[tuple[str, Window], list[int]] = defaultdict(list)
    for player, second in sorted(rows, key=lambda row: row[1]):
        if isinstance(windows, Sessions):
            own = Window(second * SECOND, second * SECOND + windows.gap(player))
            before = [key for key in found if key[0] == player and key[1].end > own.start]
            seen = found.pop(before[0]) if before else []
            found[player, Window(before[0][1].start if before else own.start, own.end)] = [*seen, second]
        else:
            for window in windows.of(second * SECOND):
                found[player, window].append(second)
    return dict(found)


class Run:
    """One pipeline that is fed bundle by bundle."""

    def __init__(self, windows: Any, aggregation: Any = None, **settings: Any) -> None:
        self.name = "panes.sum" if aggregation else "panes.collect"
        of = aggregation or collect(int, lambda score: score.points)
        self.stepper = Stepper(windowed(windows, aggregation=of, **settings))
        self.promised = -1

    def bundle(self, rows: list[Row]) -> None:
        """All in one."""
        source = self.stepper._sources["scores"]
        source.rows += [(Score(player, second), second * SECOND) for player, second in rows]
        self.stepper.advance_clock(3 * SECOND)

    def feed(self, rows: list[Row], cuts: list[int], lags: list[int], step: int = 1_000) -> None:
        """Bundles of the sizes `cuts`; behind each the watermark follows the newest row by so many seconds,
        in steps of at most `step`."""
        newest, place = 0, 0
        while place < len(rows):
            size, lag = cuts[place % len(cuts)], lags[place % len(lags)]
            self.bundle(rows[place : place + size])
            newest = max([newest, *(second for _, second in rows[place : place + size])])
            self.promise(newest - lag, step)
            place += size
        self.promise(newest + 3 * DISORDER, step)
        self.stepper.finish()
        self.stepper.advance_clock(60 * SECOND)

    def feed_before_timers(self, rows: list[Row], cuts: list[int], lags: list[int]) -> None:
        """Each bundle runs before the timers that are due, which may be so: there is no order between the two."""
        newest, place = 0, 0
        while place < len(rows):
            size, lag = cuts[place % len(cuts)], lags[place % len(lags)]
            if (
                newest - lag > self.promised
            ):  # some windows are at their last instant, where their timers have fired once
                self.stepper.advance_watermark((newest - lag) * SECOND - 1)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Schedule, "_take_timers", lambda *_: [])
                self.promise(newest - lag, 1_000)
                self.bundle(rows[place : place + size])
            newest = max([newest, *(second for _, second in rows[place : place + size])])
            place += size
        self.promise(newest + 3 * DISORDER, 1_000)
        self.stepper.finish()
        self.stepper.advance_clock(60 * SECOND)

    def promise(self, second: int, step: int) -> None:
        """Move the watermark to `second`."""
        while self.promised < second:
            self.promised = min(self.promised + step, second)
            self.stepper.advance_watermark(self.promised * SECOND)

    def panes(self) -> dict[tuple[str, Window], list[Pane[list[int]]]]:
        """Panes of each window, in order; nothing is left behind them."""
        assert left(self.stepper, [self.name]) == {}
        found: dict[tuple[str, Window], list[Pane[list[int]]]] = defaultdict(list)
        for out in self.stepper.outputs(panes):
            found[out.value.key, out.value.window].append(out.value)
        for of_window in found.values():
            assert [pane.number for pane in of_window] == [*range(len(of_window))]
            order = [("early", "on time", "late").index(pane.timing) for pane in of_window]
            assert order == sorted(order)
            assert order.count(1) <= 1
        return dict(found)


CUTS = st.lists(st.integers(1, 5), min_size=1, max_size=5)
LAGS = st.lists(st.integers(0, DISORDER), min_size=1, max_size=5)


@pytest.mark.parametrize("name", WINDOWS)
@settings(max_examples=examples(6))
@given(ROWS, CUTS, LAGS, st.sampled_from(TRIGGERS))
def test_the_last_pane_of_each_window_has_all_of_it(
    name: str, rows: list[Row], cuts: list[int], lags: list[int], trigger: Trigger
) -> None:
    run = Run(WINDOWS[name], trigger=trigger, lateness=seconds(DISORDER))
    run.feed(rows, cuts, lags)
    found, whole = run.panes(), expected(WINDOWS[name], rows)
    assert {window: found[window][-1].value for window in whole} == whole
    if not isinstance(WINDOWS[name], Sessions):  # of these, shorter forms had panes too
        assert found.keys() == whole.keys()


@pytest.mark.parametrize("name", [name for name in WINDOWS if not isinstance(WINDOWS[name], Sessions)])
@settings(max_examples=examples(6))
@given(ROWS, CUTS, LAGS, st.sampled_from(TRIGGERS))
def test_discarded_panes_hold_each_record_once(
    name: str, rows: list[Row], cuts: list[int], lags: list[int], trigger: Trigger
) -> None:
    run = Run(WINDOWS[name], trigger=trigger, lateness=seconds(DISORDER), panes="discarding")
    run.feed(rows, cuts, lags)
    gathered = {window: sorted(s for pane in of for s in pane.value) for window, of in run.panes().items()}
    assert gathered == expected(WINDOWS[name], rows)


@settings(max_examples=examples(6))
@given(ROWS, CUTS, LAGS)
def test_sliding_windows_by_slices_are_those_by_windows(rows: list[Row], cuts: list[int], lags: list[int]) -> None:
    found = []
    # The second trigger counts records, to a number that never comes: then each window has its own accumulator.
    for trigger in (AtWatermark(), AtWatermark(early=EveryRecords(1_000))):
        run = Run(WINDOWS["uneven"], trigger=trigger, lateness=seconds(DISORDER))
        run.feed(rows, cuts, lags)
        found.append(run.panes())
    assert found[0] == found[1]


@settings(max_examples=examples(13))
@given(ROWS, CUTS, LAGS, st.sampled_from(["sliding", "uneven"]), st.sampled_from([0, 6, DISORDER]))
def test_a_running_sum_is_that_of_the_slices(
    rows: list[Row], cuts: list[int], lags: list[int], name: str, lateness: int
) -> None:
    found = []
    for trigger in (AtWatermark(), AtWatermark(early=EveryRecords(1_000))):
        points: Aggregation[Score, Any, int] = sum_of(lambda score: score.points)
        run = Run(WINDOWS[name], aggregation=points, trigger=trigger, lateness=seconds(lateness))
        run.feed(rows, cuts, lags)
        found.append(run.panes())
    assert found[0] == found[1]


@pytest.mark.parametrize("name", WINDOWS)
@settings(max_examples=examples(6))
@given(
    ROWS,
    CUTS,
    LAGS,
    st.sampled_from([AtWatermark(), AtWatermark(late=EveryRecords(3))]),
    st.sampled_from([0, DISORDER]),
)
def test_how_far_the_watermark_jumps_does_not_matter(
    name: str, rows: list[Row], cuts: list[int], lags: list[int], trigger: Trigger, lateness: int
) -> None:
    found = []
    for step in (1, 1_000):
        run = Run(WINDOWS[name], trigger=trigger, lateness=seconds(lateness))
        run.feed(rows, cuts, lags, step)
        found.append(run.panes())
    assert found[0] == found[1]


@pytest.mark.parametrize("name", [name for name in WINDOWS if not isinstance(WINDOWS[name], Sessions)])
@settings(max_examples=examples(6))
@given(ROWS, CUTS, LAGS, st.sampled_from([*TRIGGERS, AtWatermark(late=None), Once(EveryRecords(3))]))
def test_a_record_is_in_a_pane_or_dropped_once(
    name: str, rows: list[Row], cuts: list[int], lags: list[int], trigger: Trigger
) -> None:
    run = Run(WINDOWS[name], trigger=trigger, lateness=seconds(3), dropped=dropped)
    run.feed(rows, cuts, [0, *lags])
    gathered = {(key, second) for (key, _), of in run.panes().items() for pane in of for second in pane.value}
    late = [(out.value.player, out.value.points) for out in run.stepper.outputs(dropped)]
    assert gathered | {*late} == {*rows}
    if len({*rows}) == len(rows):
        assert len(late) == len({*late} - gathered)


SHUFFLED: list[Row] = [(player, s) for s in (1, 4, 2, 11, 9, 12, 3, 21, 8, 19, 33, 30) for player in ("ann", "bob")]


@pytest.mark.parametrize("mode", ["accumulating", "discarding"])
@pytest.mark.parametrize("name", WINDOWS)
def test_records_may_run_before_timers_that_are_due(name: str, mode: str) -> None:
    """Then the pane at the watermark has the late ones too: each record is new in one pane, and no late pane comes first."""
    for trigger, lags in zip(TRIGGERS, ([0], [1], [0, 2], [2, 0], [1, 0]), strict=True):
        run = Run(WINDOWS[name], trigger=trigger, lateness=seconds(DISORDER), panes=mode)
        run.feed_before_timers(SHUFFLED, [2], lags)
        given = run.panes()
        for place, numbers in {} if isinstance(WINDOWS[name], Sessions) else expected(WINDOWS[name], SHUFFLED).items():
            of = given[place]
            values = of[-1].value if mode == "accumulating" else [n for pane in of for n in pane.value]
            assert sorted(values) == sorted(numbers), (trigger, place, of)


@pytest.mark.parametrize("name", ["fixed", "shifted", "sliding", "uneven", "askew"])
@settings(max_examples=examples(6))
@given(
    ROWS,
    CUTS,
    LAGS,
    st.sampled_from([AtWatermark(), AtWatermark(late=None), AtWatermark(late=EveryRecords(2))]),
    st.sampled_from([0, 3, DISORDER]),
)
def test_a_combiner_changes_neither_panes_at_the_watermark_nor_what_is_dropped(
    name: str, rows: list[Row], cuts: list[int], lags: list[int], trigger: Trigger, lateness: int
) -> None:
    found = []
    shards: list[dict[str, Any]] = [{}, {"combiner": Combiner(3), "name": "panes.collect"}]
    for more in shards:
        run = Run(WINDOWS[name], trigger=trigger, lateness=seconds(lateness), dropped=dropped, **more)
        run.feed(rows, cuts, [0, *lags])
        late = sorted((out.value.player, out.value.points) for out in run.stepper.outputs(dropped))
        whole = {key: [p.value for p in of if p.timing == "on time"] for key, of in run.panes().items()}
        found.append((whole, {key: of[-1].value for key, of in run.panes().items()}, late))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["fixed", "shifted", "sliding", "uneven"])
@settings(max_examples=examples(6))
@given(ROWS, CUTS, LAGS, st.sampled_from(TRIGGERS[1:4]), st.sampled_from([0, 3, DISORDER]), st.integers(1, 3))
def test_early_panes_of_a_combiner_leave_the_rest_to_the_pane_at_the_watermark(
    name: str, rows: list[Row], cuts: list[int], lags: list[int], trigger: Trigger, lateness: int, shards: int
) -> None:
    """Those that discard hold each record once.  With all records in one shard they are those without a combiner."""
    combiner = Combiner(3, by=lambda score: score.points % shards)
    for kind in ("accumulating", "discarding"):
        found: list[dict[tuple[str, Window], list[Pane[list[int]]]]] = []
        both: list[dict[str, Any]] = [{}, {"combiner": combiner, "name": "panes.collect"}]
        for more in both:
            run = Run(WINDOWS[name], trigger=trigger, lateness=seconds(lateness), panes=kind, **more)
            run.feed(rows, cuts, [0, *lags])
            found.append(run.panes())
        if shards == 1 and not isinstance(WINDOWS[name], Sliding):
            assert found[1] == found[0]
        parts = [
            {
                place: [[p.value for p in of if p.timing == "on time"], [p.value for p in of][-1:]]
                if kind == "accumulating"
                else sorted(second for pane in of for second in pane.value)
                for place, of in run.items()
            }
            for run in found
        ]
        assert parts[1] == parts[0]


class Noted(Run):
    """It notes the times of rows that were not late when they came, by key and window."""

    def __init__(self, windows: Any, **settings: Any) -> None:
        super().__init__(windows, **settings)
        self.times: dict[tuple[str, Window], list[int]] = defaultdict(list)
        self._windows = windows

    def bundle(self, rows: list[Row]) -> None:
        for player, second in rows:
            if second >= self.promised:
                for window in self._windows.of(second * SECOND):
                    self.times[player, window].append(second * SECOND)
        super().bundle(rows)


@pytest.mark.parametrize("name", ["fixed", "shifted"])
@pytest.mark.parametrize(("time", "of"), [("earliest", min), ("latest", max)])
@settings(max_examples=examples(6))
@given(ROWS, CUTS, LAGS)
def test_a_pane_has_the_time_of_its_records_that_were_not_late(
    name: str, time: str, of: Any, rows: list[Row], cuts: list[int], lags: list[int]
) -> None:
    """A record at the watermark is not late."""
    run = Noted(WINDOWS[name], time=time, lateness=seconds(DISORDER))
    run.feed(rows, cuts, [0, *lags])
    found = {
        (o.value.key, o.value.window): o.timestamp for o in run.stepper.outputs(panes) if o.value.timing == "on time"
    }
    assert found == {place: of(run.times[place], default=place[1].last) for place in found}


@pytest.mark.parametrize(("time", "of"), [("earliest", min), ("latest", max)])
@settings(max_examples=examples(13))
@given(ROWS, CUTS, st.sampled_from([AtWatermark(), AtWatermark(early=EveryWall(seconds=1_000))]))
def test_a_session_has_the_time_of_its_rows(
    time: str, of: Any, rows: list[Row], cuts: list[int], trigger: Trigger
) -> None:
    """However it has grown together; none of them is late."""
    run = Run(WINDOWS["sessions"], time=time, trigger=trigger)
    run.feed(rows, cuts, [DISORDER])
    found = {(o.value.key, o.value.window): o.timestamp for o in run.stepper.outputs(panes)}
    assert found == {place: of(of_window) * SECOND for place, of_window in expected(WINDOWS["sessions"], rows).items()}


EARLY, LATE = 4, 7
"""Seconds of wall time."""


class Timed(Run):
    """Rows come one by one.  It knows when the pane of each is due, if wall time makes it, and which rows no pane has had."""

    def __init__(self, windows: Any, trigger: Any, periods: tuple[int, int] | None, panes: str) -> None:
        super().__init__(windows, trigger=trigger, lateness=seconds(4 * DISORDER), panes=panes)
        self.waiting: dict[Row, int] = {}
        self._windows = windows
        self._periods = periods
        self._seen = 0

    def send(self, row: Row) -> None:
        """One row, now."""
        player, second = row
        late = (
            not isinstance(self._windows, Sessions)
            and self._windows.of(second * SECOND)[0].end <= self.promised * SECOND
        )
        period = self._periods[late] if self._periods else EARLY
        self.waiting[row] = self.stepper.clock + period * SECOND
        self.stepper.send(scores, Score(player, second), second * SECOND)

    def look(self) -> None:
        """A pane that wall time has made is due because of its oldest row, and no row waits longer than that."""
        now = self.stepper.clock
        came = self.stepper.outputs(panes)[self._seen :]
        self._seen += len(came)
        for pane in (out.value for out in came):
            due = [self.waiting.pop((pane.key, s)) for s in pane.value if (pane.key, s) in self.waiting]
            assert pane.timing == "on time" or pane.last or min(due, default=None) == now, (pane, due, now)
        assert not self._periods or all(at > now for at in self.waiting.values()), (self.waiting, now)


def timers_left(stepper: Stepper) -> dict[Any, int]:
    """Timers that are set."""
    store = stepper.store.inner
    stored = store.folded.timers.values()
    found = {(key, *name): at for of in stored for key, timers in of.items() for name, at in timers.items()}
    for interval in store.intervals:
        images = [decode_checkpoint(store.log[place].payload) for place in sorted(store.log) if place[0] == interval]
        overlay_timers(found, fold(images))
    return found


@pytest.mark.parametrize("name", ["fixed", "sessions"])
@pytest.mark.parametrize("kind", ["at", "repeat", "late"])
def test_no_row_waits_longer_than_a_trigger_of_wall_time_says(name: str, kind: str) -> None:
    """Nor does a pane come sooner, or with nothing new.  Sessions that become one take the earlier of two times."""
    early, late = EveryWall(seconds=EARLY), EveryWall(seconds=LATE if name == "fixed" else EARLY)
    triggers: dict[str, Trigger] = {
        "at": AtWatermark(early=early, late=late),
        "repeat": Repeat(early),
        "late": AtWatermark(
            late=early
        ),  # a session may be late, and open again: then its pane is that at the watermark
    }
    periods = {"at": (EARLY, LATE if name == "fixed" else EARLY), "repeat": (EARLY, EARLY)}
    for seed in range(examples(12 if (name, kind) == ("sessions", "late") else 5)):
        dice, promised, sent = random.Random(seed), 0, set[Row]()
        run = Timed(WINDOWS[name], triggers[kind], periods.get(kind), dice.choice(["accumulating", "discarding"]))
        for step in dice.choices(["row", "clock", "watermark"], [5, 4, 1], k=60):
            row = ("ann" if dice.random() < 0.8 else "bob", max(0, promised + dice.randint(-9, 9)))
            if step == "row" and row not in sent:
                sent.add(row)
                run.send(row)
            elif step == "clock":
                run.stepper.advance_clock(SECOND)
            elif step == "watermark":
                promised += dice.randint(1, 9)
                run.promise(promised, 1_000)
            run.look()
        run.stepper.finish()
        run.look()
        assert not run.waiting
        assert run.panes()
        assert timers_left(run.stepper) == {}
