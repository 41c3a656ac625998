"""A computation that gets a combiner on a store that has run without: what was on its way to it goes to the combiner.

Lives here: when that is so, and what is refused of combiners.  Never here: I/O.  Invariant: the subscription of the
computation becomes that of its combiner and keeps its number, so every id on it is the id of the same record afterwards
(docs/adr/0043-a-combiner-that-comes-later.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from millwheel.loops import LOOP_PREFIX
from millwheel.shape import CombinedBy, PipelineShape


class Handover(msgspec.Struct, frozen=True):
    """From `computation` to its combiner."""

    computation: str
    combiner: CombinedBy
    stored: str
    """The subscription as the store calls it."""
    taken: str
    """The same subscription, now the combiner's."""
    merged: str
    """The subscription by which the computation reads what the combiner makes."""


def handovers(stored: PipelineShape, shape: PipelineShape, renamed: Mapping[str, str]) -> Iterator[Handover]:
    """Those that `shape` needs, one for each input; `renamed` has computations by old name."""
    old_names = {new: old for old, new in renamed.items()}
    for name, combiner in sorted(shape.combiners.items()):
        old = old_names.get(name, name)
        if old not in stored.computations or combiner.parts in stored.computations:
            continue
        found = {sub: combiner.parts + sub[len(old) :] for sub in stored.subscriptions if sub.partition("<")[0] == old}
        if found and {*found.values()} <= shape.subscriptions.keys():
            for sub, taken in sorted(found.items()):
                yield Handover(name, combiner, sub, taken, f"{name}<{combiner.merged}")


def watermarks(computation: str) -> tuple[str, str]:
    """The names under which its watermark is stored, and that of a loop which begins at it."""
    return computation, LOOP_PREFIX + computation


def why_gone(what: str, name: str, stored: PipelineShape, shape: PipelineShape) -> str:
    """Why a computation or a subscription that is no longer there is refused; `stored` is by new names."""
    of = {combiner.parts: computation for computation, combiner in stored.combiners.items()}
    if what == "computation" and name in of:
        return (
            f"the store holds work of computation {name!r}, the combiner of {of[name]!r}, which the pipeline no longer has: "
            "put it back, or take it away in a version in which the computation keeps its name and the stream that it reads"
        )
    refusal = f"the store holds work of {what} {name!r}, which the pipeline no longer has: put it back"
    if what == "computation":
        refusal += (
            f", or add the one that takes its place with formerly={name!r}, or, as a step of a chain, name={name!r}; "
            f"or drop it with all that the store holds of it: pipeline.drop({name!r})"
        )
    else:
        computation, _, stream = name.partition("#")[0].partition("<")
        refusal += (
            ", with a key function that gives None for what is not to be read any more; or drop it with what is on its way: "
            f"pipeline.drop({computation!r}, input={stream!r})"
        )
    refusal += "; or reset the store"
    parts = name.partition("<")[0] + ".parts"
    if what == "subscription" and parts in shape.computations and parts not in stored.computations:
        refusal += f", or leave out {parts!r}: only a combiner that reads all inputs of its computation can come later"
    if what == "computation" and f"{name.removesuffix('.parts')}<{name}.out" in stored.subscriptions:
        refusal += (
            "; or, if it is the first of the two steps of a Combiner, run the version with the Combiner once more by this "
            "millwheel, and take it out then"
        )
    return refusal
