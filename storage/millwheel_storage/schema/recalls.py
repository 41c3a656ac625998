"""An aggregation of the library that has had a combiner and has none any more: what its shards have goes back to it.

Lives here: when that is so, and what becomes of what a shard has aggregated or sent.  Never here: I/O.  Invariants: each
subscription of the first step becomes one of the only step and keeps its number; what shards have aggregated lies in the
state of the only step afterwards, under the key that the shards were of, until the operator takes it over
(docs/adr/0048-a-combiner-of-the-library-comes-and-goes.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from millwheel.ids import ProducerId, SequenceNumber
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.shape import ACCUMULATORS, BEFORE_SHARD, HANDED_BACK, PipelineShape
from millwheel_storage.schema.drops import Drop


class Recall(msgspec.Struct, frozen=True):
    """From `parts`, the first step, to `computation`, which has been the second."""

    computation: str
    parts: str
    subscriptions: Mapping[str, str]
    """Those of the first step as the store calls them, and what they are called as those of the only one."""
    merged: str
    """The subscription by which the second step has read, and which goes."""
    place: str
    """Where the computation has its accumulators."""
    place_of_parts: str
    """Where the first step has them."""

    def drops(self) -> tuple[Drop, ...]:
        """What is left when all has been taken over."""
        return Drop(self.parts, ()), Drop(self.computation, (self.merged,), whole=False)


class Recalled(msgspec.Struct, frozen=True):
    """What a shard has sent, and the second step has not taken: what there is of one key and window."""

    key: str
    entry: str
    value: bytes


def recalls(stored: PipelineShape, shape: PipelineShape) -> Iterator[Recall]:
    """Those that `shape` needs.  A computation keeps its name and its inputs."""
    for name, combiner in sorted(stored.combiners.items()):
        parts, merged = combiner.parts, f"{name}<{combiner.merged}"
        if not combiner.suffix or parts in shape.computations or name not in shape.computations:
            continue
        taken = {sub: name + sub[len(parts) :] for sub in stored.subscriptions if sub.partition("<")[0] == parts}
        if {merged} == {sub for sub in stored.subscriptions if sub.partition("<")[0] == name} and (
            taken and {*taken.values()} <= shape.subscriptions.keys()
        ):
            places = (stored.places.get(f"{of}.{ACCUMULATORS}", ACCUMULATORS) for of in (name, parts))
            yield Recall(name, parts, taken, merged, *places)


def whole_key(key: str) -> str:
    """Of which key it is one of the shards.

    >>> whole_key("a#b#3")
    'a#b'
    """
    return key.rpartition(BEFORE_SHARD)[0]


def gathered(entry: str, key: str, number: int) -> str:
    """What the entry of a window in the state of a shard, `key`, is called in that of the only step.  No other handing back
    has the `number`.

    >>> gathered("1000", "a#3", 7)
    '1000#3/7'
    """
    return f"{entry}{HANDED_BACK}{key.rpartition(BEFORE_SHARD)[2]}/{number}"


def sent(key: str, value: bytes, producer: ProducerId, sequence: SequenceNumber) -> Recalled:
    """What a pane says that a shard has sent."""
    _, start, _, data, *_ = panes.decode(value)
    return Recalled(key, f"{start}{HANDED_BACK}{producer}.{sequence}", data)


panes: msgspec.msgpack.Decoder[list[Any]] = msgspec.msgpack.Decoder(list[Any])
"""As `millwheel.library.Pane` is encoded: key, start, end, value, and more."""


def taken_at(watermark: int) -> int:
    """When the timer fires by which the operator takes over what was handed back; the shards have promised `watermark`.

    What they have is of windows that end later, or is late for those that do not, as it was for the second step.
    """
    return max(MIN_TIME + 1, min(watermark, MAX_TIME - 1))
