"""Zeitgeist (MillWheel paper, §2 and §4): one stream of requests, counted per page and for the whole site.

    requests ──(per page, whole site)──▶ WindowCounter ──counts──▶ AnomalyDetector ──▶ table anomalies
                                              └────────partials───────▲       └─────▶ table alerts (early)

Rows of `anomalies` depend on nothing but each key's counts per closed window, so they are a pure function of the
input.  `alerts` come before the watermark and are a courtesy: they may differ from run to run.
"""

from __future__ import annotations

from typing import Final

import msgspec

from examples.zeitgeist import detector
from examples.zeitgeist.detector import KeyState, Scope
from examples.zeitgeist.model import WINDOW_US
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


class Request(msgspec.Struct, frozen=True, gc=False):
    """One request: its time, us, and its page (None: it counts for the site only)."""

    time_us: int
    page: str | None


class WindowCount(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Requests of one key in the window that starts at `start_us`; `closed` when no more can come."""

    key: str
    start_us: int
    count: int
    closed: bool


requests = Stream("requests", MsgpackCoder(Request))
counts = Stream("counts", MsgpackCoder(WindowCount))

anomalies = Table(
    "anomalies",
    {
        "scope": "text", "key": "text", "kind": "text", "start_at": "text", "end_at": "text",
        "observed": "bigint", "expected": "double precision", "score": "double precision",
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


def site_key(_: Request) -> str:
    """The whole site."""
    return SITE_KEY


def split_key(key: str) -> tuple[Scope, str]:
    """Scope and name of a key."""
    return ("site", "") if key == SITE_KEY else ("page", key.removeprefix(PAGE_PREFIX))


class WindowCounter(Computation[Request]):
    """Counts requests per key and window; a window's count goes on when the low watermark closes it."""

    windows = MapCell(JsonCoder(int))
    late = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[Request]) -> None:
        """Count one request; one that comes after its window was closed is dropped, and counted."""
        start_us = record.timestamp - record.timestamp % WINDOW_US
        if start_us + WINDOW_US <= context.watermark:
            self.late.set(self.late.get() + 1)
            context.upsert(dropped, {"key": record.key, "count": self.late.get()})
            return
        entry = str(start_us)
        count = self.windows.get(entry, 0) + 1
        self.windows.set(entry, count)
        if count == 1:
            context.set_timer(entry, start_us + WINDOW_US)
        elif count >= PARTIAL_FROM and count & (count - 1) == 0:
            # At each doubling the detector may see a spike coming without waiting for the watermark.
            context.produce(counts, WindowCount(record.key, start_us, count, False))

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        """The window named by the tag is closed."""
        count = self.windows.get(timer.tag, 0)
        self.windows.delete(timer.tag)
        context.produce(counts, WindowCount(timer.key, int(timer.tag), count, True))


class AnomalyDetector(Computation[WindowCount]):
    """A key's model of expected traffic and its evidence for spikes and dips (`model`, `detector`).

    `end_us` is the end of the input's last window: silence after it is the end of the log, not of the traffic.
    """

    state = ValueCell[KeyState | None](MsgpackCoder(KeyState | None), default=None)

    def __init__(self, end_us: int | None = None, offset_s: int = 0) -> None:
        self._end_us = end_us
        self._offset_s = offset_s

    def ProcessRecord(self, context: Context, record: Record[WindowCount]) -> None:
        """Step the key through a closed window, or look at an open one early."""
        window = record.value
        if not window.closed:
            self._look_early(context, window)
            return
        self._step(context, detector.advance(self.state.get(), window.start_us, window.count))

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        """A window passed without traffic for the key."""
        state = self.state.get()
        due_us = timer.timestamp - WINDOW_US - 1
        if self._end_us is None or due_us < self._end_us:
            self._step(context, detector.advance(state, due_us, 0))
            return
        self.state.clear()
        self._report(context, detector.finish(state, self._end_us))

    def _step(self, context: Context, step: detector.Step) -> None:
        if step.state is None:
            self.state.clear()
            context.cancel_timer("due")
        else:
            self.state.set(step.state)
            # One microsecond after the window: its count, if there is one, is stamped with its end.
            context.set_timer("due", step.due_us + WINDOW_US + 1)
        self._report(context, step.anomalies)

    def _report(self, context: Context, episodes: tuple[detector.Episode, ...]) -> None:
        scope, name = split_key(context.key)
        for episode in episodes:
            row = detector.name_anomaly(scope, name, episode, self._offset_s)
            context.upsert(
                anomalies,
                {
                    "scope": row.scope, "key": row.key, "kind": row.kind, "start_at": row.start, "end_at": row.end,
                    "observed": row.observed, "expected": row.expected, "score": row.score,
                },
            )  # fmt: skip

    def _look_early(self, context: Context, window: WindowCount) -> None:
        alert = detector.early_alert(self.state.get(), window.start_us, window.count)
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
