"""The pipeline: pages, which tell each other along their links from when on they are reached.

    links ──▶ LinkedPage ──▶ found ──▶ FinalTime ──▶ reached ──▶ Growth
                  ▲  │
                  └──┘ visits

`LinkedPage` sends visits to itself: the stream `visits` closes a loop.  A page is reached at the latest of the times at which
the links of a path to it have arrived, on the path for which that is earliest.  A visit carries such a time as its event
time.  So a page may hear of a better path later.  Its time is final when the watermark has passed it: nothing older is in the
loop then.

The timers that wait for this are in `FinalTime`, behind the loop.  In the loop, each of them would hold back all later ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from examples.reachability.links import ROOT_PAGE, START_US, PageLink
from millwheel import (
    Checkpoints,
    Computation,
    Context,
    JsonCoder,
    MapCell,
    Pipeline,
    Record,
    Snapshots,
    Stream,
    Table,
    TextCoder,
    Timer,
    ValueCell,
    subscribe,
)
from millwheel_injectors import IterableSource

LINKS: Final = Stream("links", JsonCoder(PageLink))
VISITS: Final = Stream("visits", TextCoder())
"""A page, and the time from when on it is reached."""
FOUND: Final = Stream("found", TextCoder())
"""A page that is reached, or reached earlier than was known."""
REACHED: Final = Stream("reached", TextCoder())
"""A page whose time is final."""
PAGES: Final = Table("pages", {"page": "text", "since": "bigint"}, ("page",))
GROWTH: Final = Table("growth", {"upto": "bigint", "pages": "bigint"}, ("upto",))
FINAL: Final = "final"
WINDOW_US: Final = 1_000_000


class LinkedPage(Computation[PageLink | str]):
    """One page: where it links to, and since when it is reached."""

    links = MapCell(JsonCoder(int))
    """Page to the time of the first link to it, us."""
    since = ValueCell(JsonCoder(int), default=0)
    """us; 0: it is not reached."""

    def ProcessRecord(self, context: Context, record: Record[PageLink | str]) -> None:
        """A link of this page has arrived, or a visit."""
        if isinstance(record.value, PageLink):
            self._linked(context, record.value.to, record.timestamp)
        else:
            self._visited(context, record.timestamp)

    def _linked(self, context: Context, to: str, at: int) -> None:
        known = self.links.get(to)
        if known is None or at < known:
            self.links.set(to, at)
            if self.since.get():
                context.produce(VISITS, to, max(at, self.since.get()))

    def _visited(self, context: Context, at: int) -> None:
        if not self.since.get() or at < self.since.get():
            self.since.set(at)
            context.produce(FOUND, context.key)
            for to, linked in self.links.items():
                context.produce(VISITS, to, max(at, linked))


class FinalTime(Computation[str]):
    """Since when a page is reached, once that is final."""

    since = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        """A path to the page, or a better one."""
        if not self.since.get() or record.timestamp < self.since.get():
            self.since.set(record.timestamp)
            context.set_timer(FINAL, record.timestamp)

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        """The watermark has passed the time: no path to this page is better."""
        context.upsert(PAGES, {"page": context.key, "since": timer.timestamp})
        context.produce(REACHED, context.key)


class Growth(Computation[str]):
    """How many pages are reached by the end of each second of event time."""

    found = MapCell(JsonCoder(int))
    """End of a second to the pages that are reached in it."""
    total = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        """One page more."""
        upto = (record.timestamp // WINDOW_US + 1) * WINDOW_US
        self.found.set(str(upto), (self.found.get(str(upto)) or 0) + 1)
        context.set_timer(str(upto), upto)

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        """A second is over: nothing of it comes any more."""
        self.total.set(self.total.get() + (self.found.get(timer.tag) or 0))
        self.found.delete(timer.tag)
        context.upsert(GROWTH, {"upto": timer.timestamp, "pages": self.total.get()})


def build(
    links: Sequence[tuple[PageLink, int]],
    name: str = "reachability",
    split_keys: Sequence[str] = (),
    snapshot_every_ms: int = 0,
) -> Pipeline:
    """The pipeline over links with their event times, us, in order; `split_keys` cut `LinkedPage` into intervals.

    It takes snapshots every `snapshot_every_ms`, or, when that is 0, a checkpoint for each bundle.
    """
    pipeline = Pipeline(name, durability=Snapshots(every_ms=snapshot_every_ms) if snapshot_every_ms else Checkpoints())
    pipeline.inject(IterableSource("links", links), into=LINKS)
    pipeline.inject(IterableSource("roots", [(ROOT_PAGE, START_US)]), into=VISITS)
    pipeline.add(
        LinkedPage,
        [subscribe(LINKS, lambda link: link.page), subscribe(VISITS, lambda page: page)],
        [VISITS, FOUND],
        split_keys=split_keys,
    )
    pipeline.add(FinalTime, [subscribe(FOUND, lambda page: page)], [REACHED], split_keys=split_keys)
    pipeline.add(Growth, [subscribe(REACHED, lambda _: "all")])
    pipeline.sink(PAGES)
    pipeline.sink(GROWTH)
    return pipeline
