"""Waiting until the watermark says that no partner can come: the base of all joins.

Lives here: the two steps of a timer whose result gets the event time `stamp`, and the buffer of values.  Never here: which
values are partners.  Invariant: a result with the time `stamp` is emitted when no record at or before `stamp` can come any
more, late ones included.  The watermark of the join is not beyond `stamp` then.

The timer is set to `stamp`, because a production may not be older than its cause.  When it fires, the watermark is
mostly well beyond.  If it is not, or if late records are allowed, the timer is set again behind a hold that keeps the
watermark back.
"""

from __future__ import annotations

from bisect import insort
from typing import Any, TypeVar

from millwheel.api.context import Context
from millwheel.api.state import MapCell, ValueCell
from millwheel.coders import Coder, JsonCoder, MsgpackCoder
from millwheel.library.matches import Kept, KeptCoder
from millwheel.library.wiring import Operator, Wiring, meant
from millwheel.limits import WAITING_SPANS
from millwheel.model import MAX_TIME, Timer

R = TypeVar("R")


class WaitingOperator(Operator[R]):
    """`lateness`, us: how far behind the watermark a record still counts.

    A key may have as many timers that wait as it has records within the lateness.  So their stamps lie in spans of a
    sixty-fourth of that, and to add or to remove one costs by its span.
    """

    waiting = MapCell[int](JsonCoder(int))
    """Timers that had to be set again, and the event times of what they will emit."""
    stamps = MapCell[list[int]](MsgpackCoder(list[int]))
    """By span: these times, in order."""
    oldest = ValueCell[dict[str, int]](MsgpackCoder(dict[str, int]), default={})
    """By span: the first of them."""

    def __init__(self, wiring: Wiring[R], lateness: int) -> None:
        super().__init__(wiring)
        self.lateness = lateness
        self._span_us = max(1, lateness // WAITING_SPANS)

    def sure(self, stamp: int) -> int:
        """The watermark at which no record at or before `stamp` can come any more: at the latest, the end of the input."""
        return min(stamp + self.lateness + 1, MAX_TIME - 1)

    def due(self, context: Context, timer: Timer, stamp: int) -> bool:
        """Whether it is sure now; if not, the timer fires again when it is."""
        if context.watermark < self.sure(stamp):
            self._leave(timer.tag)
            self._enter(timer.tag, stamp)
            self._hold(context)
            context.set_timer(timer.tag, self.sure(stamp))
            return False
        self.no_longer(context, timer.tag)
        return True

    def no_longer(self, context: Context, tag: str) -> None:
        """The timer `tag` has fired, or is not needed."""
        if self._leave(tag):
            self._hold(context)

    def waits_before(self, time: int) -> list[int]:
        """Stamps before `time` that wait, in order."""
        spans = sorted((first, span) for span, first in self.oldest.get().items() if first < time)
        return [stamp for _, span in spans for stamp in self.stamps.get(span, []) if stamp < time]

    def _enter(self, tag: str, stamp: int) -> None:
        span, oldest = str(stamp // self._span_us), self.oldest.get()
        stamps = self.stamps.get(span, [])
        insort(stamps, stamp)
        self.waiting.set(tag, stamp)
        self.stamps.set(span, stamps)
        oldest[span] = stamps[0]
        self.oldest.set(oldest)

    def _leave(self, tag: str) -> bool:
        """False for a timer that does not wait."""
        stamp = self.waiting.get(tag)
        if stamp is None:
            return False
        self.waiting.delete(tag)
        span, oldest = str(stamp // self._span_us), self.oldest.get()
        stamps = self.stamps.get(span, [])
        stamps.remove(stamp)
        if stamps:
            self.stamps.set(span, stamps)
            oldest[span] = stamps[0]
        else:
            self.stamps.delete(span)
            del oldest[span]
        if oldest:
            self.oldest.set(oldest)
        else:
            self.oldest.clear()
        return True

    def _hold(self, context: Context) -> None:
        oldest = self.oldest.get()
        if oldest:
            context.hold(min(oldest.values()))
        else:
            context.release_hold()


class BufferingOperator(WaitingOperator[R]):
    """Keeps values of several inputs in buckets, and reads a bucket without touching the others.

    `counts` has the number of values that a bucket ever got; value n of bucket b is the entry `b/n` of its input's cell.
    """

    counts = MapCell[int](JsonCoder(int))

    def __init__(self, wiring: Wiring[R], lateness: int, sides: int) -> None:
        super().__init__(wiring, lateness)
        self.sides = range(sides)
        self._cells = [f"side{side}" for side in self.sides]

    def count(self, side: int, bucket: int) -> int:
        """How many values of an input the bucket has got."""
        return self.counts.get(f"{side}.{bucket}", 0)

    def keep(self, side: int, bucket: int, kept: Kept, count: int) -> str:
        """Add a value to a bucket that has `count`; its entry."""
        entry = f"{bucket}/{count}"
        getattr(self, self._cells[side]).set(entry, kept)
        self.counts.set(f"{side}.{bucket}", count + 1)
        return entry

    def kept(self, side: int, bucket: int) -> dict[str, Kept]:
        """All values of an input in a bucket, by their entries."""
        entries = [f"{bucket}/{place}" for place in range(self.count(side, bucket))]
        found: dict[str, Kept] = getattr(self, self._cells[side]).get_many(entries) if entries else {}
        return found

    def forget(self, side: int, bucket: int) -> None:
        """Nothing of the bucket is left."""
        for place in range(self.count(side, bucket)):
            getattr(self, self._cells[side]).delete(f"{bucket}/{place}")
        self.counts.delete(f"{side}.{bucket}")


def buffers(coders: list[Coder[Any]], meaning: str) -> dict[str, MapCell[Any]]:
    """The cells of a `BufferingOperator`'s inputs."""
    return {f"side{side}": MapCell(meant(KeptCoder(coder), meaning)) for side, coder in enumerate(coders)}
