"""A computation whose `split_keys` have changed: which of its intervals become one, and which are cut.

Lives here: when that is so, and the steps.  Never here: I/O, or what a step does with what lies by interval, which is what a
split or a merge on a cluster does.  Invariant: after the steps, the intervals begin where the pipeline says
(docs/adr/0045-split-keys-may-change.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from millwheel.ids import IntervalId
from millwheel.shape import PipelineShape


class Recut(msgspec.Struct, frozen=True):
    """The intervals of `computation` begin at other keys."""

    computation: str
    split_keys: tuple[str, ...]
    mixed: bool
    """Keys get other values than before, as those of a combiner with another number of shards: whatever one interval has
    been given, each of them has to know."""


class Step(msgspec.Struct, frozen=True):
    """The interval that begins at the first of `merged` takes over the others, and is then cut at `cut`."""

    merged: tuple[IntervalId, ...]
    cut: tuple[str, ...]


def recuts(stored: PipelineShape, shape: PipelineShape) -> Iterator[Recut]:
    """Those that `shape` needs; `stored` is by new names."""
    parts = {combiner.parts for combiner in (*stored.combiners.values(), *shape.combiners.values())}
    for name, split_keys in stored.computations.items():
        if shape.computations.get(name, split_keys) != split_keys:
            yield Recut(name, shape.computations[name], name in parts)


def told(recut: Recut, stored: PipelineShape) -> str:
    """What `millwheel check` says of it."""
    before, now = stored.computations[recut.computation], recut.split_keys
    if recut.mixed:
        return f"combiner {recut.computation!r} has {len(now) + 1} shards instead of {len(before) + 1}"
    return f"computation {recut.computation!r} is cut into intervals at {[*now]} instead of {[*before]}"


def steps(intervals: Sequence[tuple[str, IntervalId]], recut: Recut) -> Iterator[Step]:
    """How to get there from `intervals`, which are (low, id), by key.

    A leader may have split and merged them since the store was made.

    >>> [*steps([("", 1), ("m", 2), ("t", 3)], Recut("a", ("p", "t"), False))]
    [Step(merged=(1, 2), cut=('p',))]
    """
    lows = {low for low, _ in intervals}
    bounds = [] if recut.mixed else sorted(lows & {*recut.split_keys})
    for low, high in zip(("", *bounds), (*bounds, None), strict=True):
        merged = tuple(id_ for at, id_ in intervals if at >= low and (high is None or at < high))
        cut = tuple(key for key in recut.split_keys if key > low and (high is None or key < high))
        if len(merged) > 1 or cut:
            yield Step(merged, cut)
