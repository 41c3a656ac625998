"""A computation that is declared to go, or an input of one that stays: what of the store goes with it.

Lives here: which computations and subscriptions these are.  Never here: I/O, or how their rows are deleted.  Invariant: what
is not declared to go is never among them (docs/adr/0046-what-goes-is-declared.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from millwheel.shape import PipelineShape

CELL_PREFIX = "cell:"


class Drop(msgspec.Struct, frozen=True):
    """`computation` goes with all of its `subscriptions`; when it is not `whole`, only these go."""

    computation: str
    subscriptions: tuple[str, ...]
    whole: bool = True


def drops(stored: PipelineShape, shape: PipelineShape) -> Iterator[Drop]:
    """Those that `shape` declares and `stored` has, which is by new names.  A combiner goes with its computation."""
    merged = {combiner.merged for combiner in stored.combiners.values()}
    named: set[str] = set()
    for name in sorted(shape.gone):
        computation, _, stream = name.partition("<")
        if stream:
            found = tuple(
                sub
                for sub in sorted(stored.subscriptions)
                if sub.partition("#")[0] == name and sub not in shape.subscriptions and stream not in merged
            )
            if found:
                yield Drop(computation, found, whole=False)
            continue
        combiner = stored.combiners.get(computation)
        for gone in (computation, *([] if combiner is None else [combiner.parts])):
            if gone in named or gone not in stored.computations or gone in shape.computations:
                continue
            if not _is_combiner(gone, shape, stored):
                named.add(gone)
                yield Drop(gone, tuple(sub for sub in sorted(stored.subscriptions) if sub.partition("<")[0] == gone))


def _is_combiner(name: str, shape: PipelineShape, stored: PipelineShape) -> bool:
    """Of a computation that stays: it holds values that the computation has not got yet."""
    return any(combiner.parts == name and of in shape.computations for of, combiner in stored.combiners.items())


def without(stored: PipelineShape, gone: Iterable[Drop]) -> PipelineShape:
    """What the store knows when they are gone."""
    gone = [*gone]
    computations = {drop.computation for drop in gone if drop.whole}
    subscriptions = {name for drop in gone for name in drop.subscriptions}

    def stays(path: str) -> bool:
        return path.removeprefix(CELL_PREFIX).rpartition(".")[0] not in computations

    return msgspec.structs.replace(
        stored,
        computations={name: it for name, it in stored.computations.items() if name not in computations},
        subscriptions={name: it for name, it in stored.subscriptions.items() if name not in subscriptions},
        coders={name: it for name, it in stored.coders.items() if not name.startswith(CELL_PREFIX) or stays(name)},
        schemas={name: it for name, it in stored.schemas.items() if not name.startswith(CELL_PREFIX) or stays(name)},
        places={path: place for path, place in stored.places.items() if stays(path)},
        retired=tuple(path for path in stored.retired if stays(path)),
        combiners={name: it for name, it in stored.combiners.items() if name not in computations},
        key_versions={name: it for name, it in stored.key_versions.items() if name not in subscriptions},
    )


def told(gone: Iterable[Drop]) -> Iterator[str]:
    """What `millwheel check` says of them."""
    for drop in gone:
        if drop.whole:
            yield f"computation {drop.computation!r} is dropped, with its state, its timers and what is on its way to it"
        else:
            for name in drop.subscriptions:
                yield f"input {name!r} is dropped, with what is on its way to it"


def heir(subscription: str, shape: PipelineShape) -> str | None:
    """Which computation goes on with what one that goes has sent on `subscription`; None when nobody has it any more.

    >>> heir("b<s", PipelineShape("p", {"b": ()}, {"b<s": "s"}, {}, (), ()))
    'b'
    """
    return subscription.partition("<")[0] if subscription in shape.subscriptions else None
