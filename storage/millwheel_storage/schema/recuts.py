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
    """A value may get another key than before, as with another number of shards: whatever one interval has been given, each
    of them has to know."""


class RecutStep(msgspec.Struct, frozen=True):
    """The interval that begins at the first of `merged` takes over the others, and is then cut at `cut`."""

    merged: tuple[IntervalId, ...]
    cut: tuple[str, ...]


def recuts(stored: PipelineShape, shape: PipelineShape) -> Iterator[Recut]:
    """Those that `shape` needs; `stored` is by new names."""
    parts = {it.parts for it in (*stored.combiners.values(), *shape.combiners.values()) if it.prefix}
    rekeyed = {name.partition("<")[0] for name in _rekeyed(stored, shape)}
    for name, split_keys in stored.computations.items():
        now = shape.computations.get(name, split_keys)
        if now != split_keys or name in rekeyed:  # a leader may have cut what has no split keys
            yield Recut(name, now, name in rekeyed or (name in parts and now != split_keys))


def _rekeyed(stored: PipelineShape, shape: PipelineShape) -> Iterator[str]:
    """Subscriptions whose key extractor has another version."""
    for name in stored.subscriptions:
        if name in shape.subscriptions and stored.key_versions.get(name, "") != shape.key_versions.get(name, ""):
            yield name


def told(stored: PipelineShape, shape: PipelineShape) -> Iterator[str]:
    """What `millwheel check` says of them."""
    parts = {combiner.parts for combiner in shape.combiners.values() if combiner.prefix}
    for name, before in stored.computations.items():
        now = shape.computations.get(name, before)
        if now != before and name in parts:
            yield f"combiner {name!r} has {len(now) + 1} shards instead of {len(before) + 1}"
        elif now != before:
            yield f"computation {name!r} is cut into intervals at {[*now]} instead of {[*before]}"
    for name in _rekeyed(stored, shape):
        then, version = (known.key_versions.get(name, "") for known in (stored, shape))
        yield f"input {name!r} has keys of version {version!r} instead of {then!r}"


def steps(intervals: Sequence[tuple[str, IntervalId]], recut: Recut) -> Iterator[RecutStep]:
    """How to get there from `intervals`, which are (low, id), by key.

    A leader may have split and merged them since the store was made.

    >>> [*steps([("", 1), ("m", 2), ("t", 3)], Recut("a", ("p", "t"), False))]
    [RecutStep(merged=(1, 2), cut=('p',))]
    """
    lows = {low for low, _ in intervals}
    bounds = [] if recut.mixed else sorted(lows & {*recut.split_keys})
    for low, high in zip(("", *bounds), (*bounds, None), strict=True):
        merged = tuple(id_ for at, id_ in intervals if at >= low and (high is None or at < high))
        cut = tuple(key for key in recut.split_keys if key > low and (high is None or key < high))
        if len(merged) > 1 or cut:
            yield RecutStep(merged, cut)
