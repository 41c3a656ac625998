"""A computation that has had a combiner and has none any more: what the combiner has goes back to it.

Lives here: when that is so.  Never here: I/O.  Invariant: the subscription of the combiner becomes that of its computation
and keeps its number, so every id on it is the id of the same record afterwards (docs/adr/0047-a-combiner-that-goes.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from millwheel.shape import PipelineShape
from millwheel_storage.schema.drops import Drop
from millwheel_storage.schema.recalls import Recall


class Handback(msgspec.Struct, frozen=True):
    """From `parts`, the combiner, to `computation`."""

    computation: str
    parts: str
    stored: str
    """The combiner's subscription as the store calls it."""
    taken: str
    """The same subscription, now the computation's."""
    merged: str
    """The subscription by which the computation has read what the combiner made, and which goes."""

    def drops(self) -> tuple[Drop, ...]:
        """What is left when all has been handed back."""
        return Drop(self.parts, ()), Drop(self.computation, (self.merged,), whole=False)


def handbacks(stored: PipelineShape, shape: PipelineShape) -> Iterator[Handback]:
    """Those that `shape` needs.  A computation keeps its name and the stream that it has read by its combiner."""
    for name, combiner in sorted(stored.combiners.items()):
        parts, merged = combiner.parts, f"{name}<{combiner.merged}"
        if combiner.suffix or parts in shape.computations:
            continue
        if parts not in stored.computations or merged not in stored.subscriptions:
            continue
        for sub, stream in stored.subscriptions.items():
            taken = f"{name}<{stream}"
            if sub.partition("<")[0] == parts and taken in shape.subscriptions and taken not in stored.subscriptions:
                yield Handback(name, parts, sub, taken, merged)


def told(found: Iterable[Handback | Recall]) -> Iterator[str]:
    """What `millwheel check` says of them."""
    for it in found:
        yield f"computation {it.computation!r} has no combiner any more, and takes over what {it.parts!r} has"


def refusal(it: Handback) -> str:
    """Why it cannot be done now: one producer has numbered records on both subscriptions, as the head of a loop does."""
    return (
        f"computation {it.computation!r} has lost its combiner {it.parts!r} while records were on their way round a loop: "
        "run the version with the combiner once more with Checkpoints(), stop it in order, and start this one then"
    )
