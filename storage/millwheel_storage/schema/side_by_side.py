"""Whether two versions of a pipeline may run at once on one store, while processes are restarted one by one.

Lives here: `differences`, the reasons why they may not.  Never here: what one version may change when it starts alone, which
`evolution` decides.  Invariant: two versions without a difference can each take over what the other one has written, and
read what it sends.  So nobody has to know which of them a process runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from millwheel.schemas import Unreadable, changes
from millwheel.shape import PipelineShape
from millwheel_storage.schema.evolution import CELL


def differences(running: PipelineShape, shape: PipelineShape) -> list[str]:
    """What another version, `running`, could not do with what a process of `shape` writes, or the other way round."""
    found = [
        *_named("computation", running.computations, shape.computations),
        *_named("subscription", running.subscriptions, shape.subscriptions),
        *_named("version of the keys of", running.key_versions, shape.key_versions),
        *_named("source", dict.fromkeys(running.sources), dict.fromkeys(shape.sources)),
        *_named("kind of source", *_of_both(running.kinds, shape.kinds)),
        *_named("sink table", {one.name: one for one in running.sinks}, {one.name: one for one in shape.sinks}),
    ]
    for name in sorted({*running.coders, *shape.coders}):
        found += _coder(name, running, shape)
    if running.snapshots != shape.snapshots:
        here, there = _durability(shape), _durability(running)
        found.append(f"this version has {here}, and the running version {there}")
    return found


def _of_both(one: Mapping[str, str], other: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """What both of them say: an earlier version of millwheel said nothing."""
    names = one.keys() & other.keys()
    return {name: one[name] for name in names}, {name: other[name] for name in names}


def _durability(shape: PipelineShape) -> str:
    return "Snapshots(...)" if shape.snapshots else "Checkpoints()"


def _named(what: str, running: Mapping[str, Any], shape: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*running, *shape}):
        if name not in running:
            yield f"{what} {name!r} is new"
        elif name not in shape:
            yield f"{what} {name!r} is gone"
        elif running[name] != shape[name]:
            yield f"{what} {name!r} has changed"


def _coder(name: str, running: PipelineShape, shape: PipelineShape) -> Iterator[str]:
    if name not in running.coders:
        yield f"{_path(name)} is new"
    elif name not in shape.coders:
        if name.startswith(CELL):  # a store remembers streams that nobody reads any more
            yield f"{_path(name)} is gone"
    elif name in running.schemas and name in shape.schemas:
        before, after = running.schemas[name], shape.schemas[name]
        try:
            new = changes(before, after)
        except Unreadable as reason:
            yield f"{_path(name)} cannot be read by this version: {reason}"
            return
        try:
            changes(after, before)
        except Unreadable as reason:  # which tells it the other way round, unless nothing else can be told
            yield f"{_path(name)} cannot be read by the running version: {'; '.join(new) or reason}"
    elif running.coders[name] != shape.coders[name]:
        yield f"{_path(name)} has coder {shape.coders[name]!r}, and {running.coders[name]!r} in the running version"


def _path(name: str) -> str:
    kind, _, path = name.partition(":")
    return f"{kind} {path!r}"
