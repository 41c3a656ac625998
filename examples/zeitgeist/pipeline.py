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
from itertools import accumulate, zip_longest
from typing import Final

import msgspec

from examples.zeitgeist import detector, model
from examples.zeitgeist.detector import KeyState, Scope
from examples.zeitgeist.evidence import ALARM, FACTORS
from examples.zeitgeist.model import HOUR_US, WINDOW_US, Rhythm
from examples.zeitgeist.silence import SLOT_US
from millwheel import (
    MINUTE,
    Computation,
    Context,
    JsonCoder,
    MapCell,
    MsgpackCoder,
    Pipeline,
    Record,
    Stream,
    Table,
    Timer,
    ValueCell,
    subscribe,
)
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


class WindowCounter(Computation[Request]):
    """Counts requests per key and window; a window's count goes on when the low watermark has closed it.

    Counts lie in blocks: a window of the site by slots, an hour of a page by windows.  Windows of a page with so few
    requests that they cannot raise an alarm wait for others until the hour ends, and go on together.
    """

    blocks = MapCell(JsonCoder(list[int]))
    closes = ValueCell(JsonCoder(int), default=0)
    """When the timer is due; 0 while there is none."""
    late = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[Request]) -> None:
        """Count the requests; those that come after their window was closed are dropped, and counted."""
        row, is_site = record.value, record.key == SITE_KEY
        block_us, part_us = (WINDOW_US, SLOT_US) if is_site else (HOUR_US, WINDOW_US)
        start_us = record.timestamp - record.timestamp % block_us
        at = (record.timestamp - start_us) // part_us
        parts: Sequence[int] = row.parts or (*(0,) * at, 1)
        if row.late or start_us + WINDOW_US <= context.watermark:
            parts = self._drop(context, start_us, parts, row.late)
        if not any(parts):
            return
        entry = str(start_us)
        before = self.blocks.get(entry) or [0] * (block_us // part_us)
        after = [had + more for had, more in zip_longest(before, parts, fillvalue=0)]
        self.blocks.set(entry, after)
        close_us = closing(start_us, after, is_site)
        armed_us = self.closes.get()
        if not armed_us or close_us < armed_us:
            self.closes.set(close_us)
            context.set_timer("close", close_us)
        if sum(after) >= PARTIAL_FROM:
            self._show(context, start_us, before, after)

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        """At least one window is closed: send all that are."""
        is_site, closed, closes_us = timer.key == SITE_KEY, [], 0
        for entry, parts in self.blocks.items():
            start_us = int(entry)
            if start_us + WINDOW_US <= context.watermark:
                closed += windows_until(context.watermark, start_us, parts, is_site)
                parts = open_parts(context.watermark, start_us, parts, is_site)
                if not any(parts):
                    self.blocks.delete(entry)
                    continue
                self.blocks.set(entry, parts)
            close_us = closing(start_us, parts, is_site)
            closes_us = min(close_us, closes_us or close_us)
        self.closes.set(closes_us)
        if closes_us:
            context.set_timer("close", closes_us)
        context.produce(counts, WindowCounts(timer.key, True, tuple(closed)))

    def _drop(self, context: Context, start_us: int, parts: Sequence[int], late: bool) -> Sequence[int]:
        """Counts what is late; the parts that are not."""
        is_site = context.key == SITE_KEY
        left = [0] * len(parts) if late else open_parts(context.watermark, start_us, parts, is_site)
        dropped_now = sum(parts) - sum(left)
        if dropped_now:
            self.late.set(self.late.get() + dropped_now)
            context.upsert(dropped, {"key": context.key, "count": self.late.get()})
        return left

    def _show(self, context: Context, start_us: int, before: list[int], after: list[int]) -> None:
        """At each doubling the detector may see a spike coming without waiting for the watermark."""
        if context.key == SITE_KEY:
            before, after = [sum(before)], [sum(after)]
        for at, (had, has) in enumerate(zip(before, after, strict=True)):
            if has >= PARTIAL_FROM and has.bit_length() > had.bit_length():
                window = Window(start_us + at * WINDOW_US, has)
                context.produce(counts, WindowCounts(context.key, False, (window,)))


def closing(start_us: int, parts: Sequence[int], is_site: bool) -> int:
    """When the block that starts at `start_us` has something to send: a window of the site; of a page, `SPARSE` requests
    or the end of the hour."""
    if is_site or sum(parts) < SPARSE:
        return start_us + (WINDOW_US if is_site else HOUR_US)
    at = next(at for at, had in enumerate(accumulate(parts)) if had >= SPARSE)
    return start_us + (at + 1) * WINDOW_US


def windows_until(watermark: int, start_us: int, parts: Sequence[int], is_site: bool) -> list[Window]:
    """The windows of a block that are closed at `watermark` and had requests."""
    if is_site:
        return [Window(start_us, sum(parts), tuple(parts))]
    closed = range(min((watermark - start_us) // WINDOW_US, len(parts)))
    return [Window(start_us + at * WINDOW_US, parts[at]) for at in closed if parts[at]]


def open_parts(watermark: int, start_us: int, parts: Sequence[int], is_site: bool) -> list[int]:
    """A block's parts with nothing in those that are closed at `watermark`."""
    closed = len(parts) if is_site else min((watermark - start_us) // WINDOW_US, len(parts))
    return [0] * closed + list(parts[closed:])


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
) -> Pipeline:
    """The pipeline on `source`, which injects `Request` values."""
    pipeline = Pipeline(name)
    pipeline.inject(source, into=requests)
    pipeline.add(
        WindowCounter,
        inputs=[subscribe(requests, page_key), subscribe(requests, site_key)],
        outputs=[counts],
        split_keys=split_keys,
    )
    pipeline.add(
        lambda: AnomalyDetector(end_us, offset_s),
        inputs=[subscribe(counts, lambda window: window.key)],
        split_keys=split_keys,
    )
    for table in (anomalies, alerts, dropped):
        pipeline.sink(table)
    return pipeline
