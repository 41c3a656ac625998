"""Zeitgeist (MillWheel paper, §2 and §4): one stream of requests, counted per page and for the whole site.

    requests ──(per page, whole site)──▶ WindowCounter ──counts──▶ AnomalyDetector ──▶ table anomalies
                                              └────────partials───────▲       └─────▶ table alerts (early)

A row of the stream may stand for many requests that a job before has combined.  What it may combine is said at `Request`.

Rows of `anomalies` depend on nothing but each key's counts per closed window, so they are a pure function of the
input.  `alerts` come before the watermark and are a courtesy: they may differ from run to run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from operator import add
from typing import Final

import msgspec

from examples.zeitgeist import detector, model
from examples.zeitgeist.detector import KeyState, Scope
from examples.zeitgeist.evidence import ALARM, FACTORS
from examples.zeitgeist.model import HOUR_US, WINDOW_US, Rhythm
from examples.zeitgeist.silence import SLOT_US
from millwheel import (
    MINUTE,
    Checkpoints,
    Computation,
    Context,
    JsonCoder,
    MapCell,
    MsgpackCoder,
    Pipeline,
    Record,
    Snapshots,
    Stream,
    Table,
    Timer,
    ValueCell,
    subscribe,
)
from millwheel.library import Aggregation, Fixed, Flow, Operation, Operator
from millwheel.source import Source

DISORDER_US: Final = MINUTE
"""How far apart from their order in the log requests may be stamped: servers log a request when it ends."""

SITE_KEY: Final = "site"
PAGE_PREFIX: Final = "page "
PARTIAL_FROM: Final = 32

SPARSE: Final = math.ceil(ALARM / FACTORS["spike"][1])
"""Requests below which no window can raise an alarm by itself."""


class Request(msgspec.Struct, frozen=True, gc=False):
    """One request, or several that were combined: those of a page in one hour, or those of the site in one window."""

    time_us: int
    """When it was; of several, the time of the first, in whose place the row stands."""
    page: str | None
    """None: for the site only."""
    parts: tuple[int, ...] = ()
    """Empty: one request, for the site and for its page.  Else how many there were in each of the hour's windows, for
    the page only; or, without a page, in each of the window's slots."""
    late: bool = False
    """Whether they came after their window was over by more than the declared disorder: dropped, and counted."""


class Window(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Requests in the window that starts at `start_us`, and in each of its slots (of the site only)."""

    start_us: int
    count: int
    slots: tuple[int, ...] = ()


class WindowCounts(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Windows of one key in their order; `closed` when no more requests can come to them."""

    key: str
    closed: bool
    windows: tuple[Window, ...]


requests = Stream("requests", MsgpackCoder(Request))
counts = Stream("counts", MsgpackCoder(WindowCounts))

anomalies = Table(
    "anomalies",
    {
        "scope": "text", "key": "text", "kind": "text", "start_at": "text", "end_at": "text",
        "observed": "bigint", "expected": "double precision", "score": "double precision", "open": "boolean",
    },
    ("start_at", "scope", "key", "kind"),
)  # fmt: skip
alerts = Table(
    "alerts",
    {
        "scope": "text", "key": "text", "start_at": "text", "observed": "bigint", "expected": "double precision",
        "score": "double precision",
    },
    ("start_at", "scope", "key"),
)  # fmt: skip
dropped = Table("late_requests", {"key": "text", "count": "bigint"}, ("key",))


def page_key(request: Request) -> str | None:
    """Per page; requests that count for no page are not for this subscription."""
    return None if request.page is None else PAGE_PREFIX + request.page[:900]


def site_key(request: Request) -> str | None:
    """The whole site; what was combined for a page is in a row of the site as well."""
    return None if request.parts and request.page is not None else SITE_KEY


def split_key(key: str) -> tuple[Scope, str]:
    """Scope and name of a key."""
    return ("site", "") if key == SITE_KEY else ("page", key.removeprefix(PAGE_PREFIX))


class RequestCounts(Aggregation[Request, list[int], list[int]]):
    """Requests in each slice of a window.  `windows` are what the accumulators are of; a slice is what is counted apart."""

    def __init__(self, windows: Fixed, slices: Fixed) -> None:
        self.name = f"requests in slices of {slices.size}"
        self.accumulator = JsonCoder(list[int])
        self.results = list[int]
        self.windows, self.slices = windows, slices
        self._number = windows.size // slices.size

    def zero(self) -> list[int]:
        """No row in any slot."""
        return [0] * self._number

    def of_row(self, row: Request, timestamp: int) -> list[int]:
        """What one row adds."""
        counts = [*row.parts, *(0,) * (self._number - len(row.parts))]
        if not row.parts:
            (start,) = self.windows.starts(timestamp)
            counts[(timestamp - start) // self.slices.size] = 1
        return counts

    def add_at(self, accumulator: list[int], value: Request, timestamp: int) -> list[int]:
        """One row more."""
        return self.merge(accumulator, self.of_row(value, timestamp))

    def merge(self, left: list[int], right: list[int]) -> list[int]:
        """The sum, slot by slot."""
        return list(map(add, left, right))

    def result(self, accumulator: list[int]) -> list[int]:
        """The counts as they are."""
        return accumulator


COUNTED: Final = Fixed(WINDOW_US)
"""The windows of which the detector judges one at a time."""

OF_SITE: Final = RequestCounts(COUNTED, Fixed(SLOT_US))
OF_PAGE: Final = RequestCounts(Fixed(HOUR_US), COUNTED)
"""What is stored together: a window of the site by slots, an hour of a page by windows."""


class WindowCounter(Operator[WindowCounts]):
    """Counts requests per key and window; a window's count goes on when the low watermark has closed it.

    It is an operator of the example's own, made of the library's windows and accumulators.  The library's `aggregate` gives a
    pane for each window.  Windows of a page with few requests cannot raise an alarm.  Here they wait until the hour ends, and
    all that are closed by then go on together (ADR 0027).
    """

    counts = MapCell(OF_PAGE.accumulator)
    """By the start of what is stored together."""
    closes = ValueCell(JsonCoder(int), default=0)
    """When the timer is due; 0 while there is none."""
    late = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[Request]) -> None:
        """Count the requests; those that come after their window was closed are dropped, and counted."""
        of = OF_SITE if record.key == SITE_KEY else OF_PAGE
        (start_us,) = of.windows.starts(record.timestamp)
        more = of.of_row(record.value, record.timestamp)
        if record.value.late or COUNTED.end(start_us) <= context.watermark:
            more = self._drop(context, of, start_us, more, record.value.late)
        if not any(more):
            return
        entry = str(start_us)
        before = self.counts.get(entry)
        after = more if before is None else of.merge(before, more)
        self.counts.set(entry, after)
        close_us, armed_us = closing(of, start_us, after), self.closes.get()
        if not armed_us or close_us < armed_us:
            self._wait(context, close_us)
        if sum(after) >= PARTIAL_FROM:
            self._show(context, of, start_us, more, after)

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        """At least one window is closed: send all that are."""
        of, closed, closes_us = OF_SITE if timer.key == SITE_KEY else OF_PAGE, [], 0
        for entry, had in self.counts.items():
            start_us, left = int(entry), had
            if COUNTED.end(start_us) <= context.watermark:
                closed += closed_windows(of, context.watermark, start_us, had)
                left = open_slices(of, context.watermark, start_us, had)
                if not any(left):
                    self.counts.delete(entry)
                    continue
                self.counts.set(entry, left)
            close_us = closing(of, start_us, left)
            closes_us = min(close_us, closes_us or close_us)
        self._wait(context, closes_us)
        self.emit(context, WindowCounts(timer.key, True, tuple(closed)), None)

    def _wait(self, context: Context, closes_us: int) -> None:
        self.closes.set(closes_us)
        if closes_us:
            context.set_timer("close", closes_us)

    def _drop(self, context: Context, of: RequestCounts, start_us: int, more: list[int], late: bool) -> list[int]:
        """Counts what is late; the slices that are not."""
        left = of.zero() if late else open_slices(of, context.watermark, start_us, more)
        dropped_now = sum(more) - sum(left)
        if dropped_now:
            self.late.set(self.late.get() + dropped_now)
            context.upsert(dropped, {"key": context.key, "count": self.late.get()})
        return left

    def _show(
        self, context: Context, of: RequestCounts, start_us: int, more: Sequence[int], after: Sequence[int]
    ) -> None:
        """At each doubling the detector may see a spike coming without waiting for the watermark."""
        if of is OF_SITE:
            more, after = [sum(more)], [sum(after)]
        for at, (new, has) in enumerate(zip(more, after, strict=True)):
            if has >= PARTIAL_FROM and has.bit_length() > (has - new).bit_length():
                window = Window(start_us + at * WINDOW_US, has)
                self.emit(context, WindowCounts(context.key, False, (window,)), None)


def closing(of: RequestCounts, start_us: int, had: Sequence[int]) -> int:
    """When some of the counts that begin at `start_us` can go on.  Those of the site go on when their window is closed, those
    of a page when `SPARSE` requests are, or the hour is."""
    if of is OF_PAGE and sum(had) >= SPARSE:
        at = next(at for at, number in enumerate(accumulate(had)) if number >= SPARSE)
        return COUNTED.end(start_us + at * WINDOW_US)
    return of.windows.end(start_us)


def closed_windows(of: RequestCounts, watermark: int, start_us: int, had: Sequence[int]) -> list[Window]:
    """The windows that are closed at `watermark` and had requests."""
    if of is OF_SITE:
        return [Window(start_us, sum(had), tuple(had))]
    closed = range(min((watermark - start_us) // WINDOW_US, len(had)))
    return [Window(start_us + at * WINDOW_US, had[at]) for at in closed if had[at]]


def open_slices(of: RequestCounts, watermark: int, start_us: int, had: Sequence[int]) -> list[int]:
    """The counts with nothing in windows that are closed at `watermark`."""
    closed = len(had) if of is OF_SITE else min((watermark - start_us) // WINDOW_US, len(had))
    return [0] * closed + list(had[closed:])


class AnomalyDetector(Computation[WindowCounts]):
    """A key's model of expected traffic and its evidence for spikes and dips (`model`, `detector`).

    `end_us` is the end of the input: silence after it is the end of the log, not of the traffic. The rhythm has a cell
    of its own: it is the larger part of what is known, and changes once an hour.
    """

    state = ValueCell[KeyState | None](MsgpackCoder(KeyState | None), default=None)
    rhythm = ValueCell[Rhythm | None](MsgpackCoder(Rhythm | None), default=None)

    def __init__(self, end_us: int | None = None, offset_s: int = 0) -> None:
        self._end_us = end_us
        self._offset_s = offset_s

    def ProcessRecord(self, context: Context, record: Record[WindowCounts]) -> None:
        """Step the key through closed windows, or look at an open one early."""
        if record.value.closed:
            self._step(context, record.value.windows)
        else:
            self._look_early(context, record.value.windows[0])

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        """The window that was due has passed without traffic for the key."""
        due_us = timer.timestamp - WINDOW_US - 1
        if self._end_us is None or due_us + WINDOW_US <= self._end_us:
            self._step(context, (Window(due_us, 0),))
            return
        state, rhythm = self.state.get(), self.rhythm.get() or model.UNKNOWN
        self.state.clear()
        self.rhythm.clear()
        self._report(context, detector.finish(state, rhythm, self._end_us))

    def _step(self, context: Context, windows: Sequence[Window]) -> None:
        before, known = self.state.get(), self.rhythm.get() or model.UNKNOWN
        state, rhythm = before, known
        for window in windows:
            step = detector.advance(state, rhythm, window.start_us, window.count, window.slots, self._end_us)
            state, rhythm = step.state, step.rhythm
            if step.anomalies:
                self._report(context, step.anomalies)
        if state is None:
            self.state.clear()
            self.rhythm.clear()
            context.cancel_timer("due")
            return
        self.state.set(state)
        if rhythm is not known:
            self.rhythm.set(rhythm)
        if before is None or before.due_us != state.due_us:
            # One microsecond after the window: its count, if there is one, is stamped with its hour's end at the latest.
            context.set_timer("due", state.due_us + WINDOW_US + 1)

    def _report(self, context: Context, episodes: tuple[detector.Episode, ...]) -> None:
        scope, name = split_key(context.key)
        for episode in episodes:
            row = detector.name_anomaly(scope, name, episode, self._offset_s)
            context.upsert(
                anomalies,
                {
                    "scope": row.scope, "key": row.key, "kind": row.kind, "start_at": row.start, "end_at": row.end,
                    "observed": row.observed, "expected": row.expected, "score": row.score, "open": row.open,
                },
            )  # fmt: skip

    def _look_early(self, context: Context, window: Window) -> None:
        rhythm = self.rhythm.get() or model.UNKNOWN
        alert = detector.early_alert(self.state.get(), rhythm, window.start_us, window.count)
        if alert is None:
            return
        scope, name = split_key(context.key)
        context.upsert(
            alerts,
            {
                "scope": scope, "key": name, "start_at": detector.iso_time(alert.start_us, self._offset_s),
                "observed": alert.observed, "expected": alert.expected, "score": alert.score,
            },
        )  # fmt: skip


def build(
    source: Source,
    end_us: int | None = None,
    offset_s: int = 0,
    split_keys: tuple[str, ...] = ("page /images/",),
    name: str = "zeitgeist",
    durability: Checkpoints | Snapshots | None = None,
) -> Pipeline:
    """The pipeline on `source`, which injects `Request` values.  Its anomalies are the same under either durability."""
    pipeline = Pipeline(name, durability=durability)
    flow = Flow(pipeline)
    rows = flow.inject(source, into=requests)
    counter: Operation[WindowCounts] = Operation(
        kind="windows", make=WindowCounter, output=counts.coder, tables=(dropped,), settings={"split_keys": split_keys}
    )
    both = [*rows.key_by(page_key).ports(), *rows.key_by(site_key).ports()]
    flow.apply(counter, both, "WindowCounter").to(counts)
    pipeline.add(
        lambda: AnomalyDetector(end_us, offset_s),
        inputs=[subscribe(counts, lambda window: window.key)],
        split_keys=split_keys,
    )
    for table in (anomalies, alerts):
        pipeline.sink(table)
    return pipeline
