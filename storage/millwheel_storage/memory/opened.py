"""What happens when a store in memory is opened: the pipeline's shape is compared with the stored one, and becomes it.

Lives here: what a new version adds, renames and drops.  Never here: what may change (`schema.evolution`), or what a combiner
gets from the time before it (`handed_over`).  Invariant: whatever is refused is refused before the first change.
"""

from __future__ import annotations

import msgspec

from millwheel.ids import SubscriptionId
from millwheel.ports import Opened, PipelineShape
from millwheel_storage.decisions import check_same, shape_digest
from millwheel_storage.decode import decode_image
from millwheel_storage.fold import fold
from millwheel_storage.memory import handed_over
from millwheel_storage.memory.contents import MemoryContents
from millwheel_storage.schema.evolution import Plan, StoredCell, first, holders, places_of, plan
from millwheel_storage.schema.handovers import watermarks
from millwheel_storage.schema.reserved import RESERVED_NAMES
from millwheel_storage.schema.shape_checks import check_shape, ranges
from millwheel_storage.schema.side_by_side import differences


def open_pipeline(contents: MemoryContents, shape: PipelineShape) -> Opened:
    """Make the store one of this shape, or raise and leave it as it was; see `Store.open_pipeline`."""
    check_shape(shape, RESERVED_NAMES)
    opened_as = shape_digest(shape)
    planned = first(shape) if contents.shape is None else _plan(contents, contents.shape, shape)
    planned.check()
    if contents.shape is not None and contents.agreements.shape not in (b"", opened_as):
        check_same(shape.name, contents.agreements.living(), differences(contents.shape, shape))
    _carry_out(contents, planned)
    for computation in sorted(shape.computations):
        _add_computation(contents, computation, shape.computations[computation])
    for name in sorted(shape.subscriptions):
        following = SubscriptionId(max(contents.subscriptions.values(), default=0) + 1)
        contents.subscriptions.setdefault(name, following)
    contents.sink_tables = {table.name: table for table in shape.sinks}
    for table in shape.sinks:
        for row in contents.sinks.setdefault(table.name, {}).values():
            row.update({column: None for column in table.columns if column not in row})
    contents.shape = planned.shape
    contents.agreements.shape = opened_as
    mine = [row for row in contents.intervals.values() if row.computation in shape.computations]
    contents.agreements.expect({row.id for row in mine}, {*shape.sources})
    if planned.moves():
        handed_over.rearrange(contents, planned)
        mine = [row for row in contents.intervals.values() if row.computation in shape.computations]
    opened = {source for source, _ in contents.sources}
    fed = {source: stream for source, stream in sorted(contents.shape.streams.items()) if source in opened}
    return Opened(
        tuple(mine),
        {name: contents.subscriptions[name] for name in shape.subscriptions},
        fed,
        places_of(contents.shape),
    )


def _plan(contents: MemoryContents, stored: PipelineShape, shape: PipelineShape) -> Plan:
    """What this shape changes, and how many keys hold the cells that it drops."""
    found = plan(stored, shape)
    old = {new: name for name, new in found.renamed.items()}
    counts: dict[StoredCell, int] = {}
    for cell in (*found.dropped, *found.missing):
        computation = old.get(cell.computation, cell.computation)
        mine = {row.id for row in contents.intervals.values() if row.computation == computation}
        logs = [
            fold(decode_image(contents.log[k].payload) for k in sorted(contents.log) if k[0] == id_) for id_ in mine
        ]
        if cell in found.dropped and any(place[0] in mine for place in contents.log):
            found.keep(cell, stored)
        state = contents.key_state.get(computation, {})
        held = [(key, entry) for key, slots in state.items() for place, entry in slots if place == cell.place]
        counts[cell] = holders(len({key for key, _ in held}), held, logs, cell.place)
    found.settle(counts)
    if found.handbacks:
        found.refusals += handed_over.refusals(contents, found.handbacks)
    return found


def _carry_out(contents: MemoryContents, planned: Plan) -> None:
    """Renames and drops; what is new is added later."""
    for name, new in planned.renamed.items():
        _rename(contents, name, new)
    for name, new in planned.subscriptions.items():
        contents.subscriptions[new] = contents.subscriptions.pop(name)
    for cell in planned.dropped:
        contents.folded.drop_cell(cell.computation, cell.place)


def _rename(contents: MemoryContents, name: str, new: str) -> None:
    for row in [row for row in contents.intervals.values() if row.computation == name]:
        contents.intervals[row.id] = msgspec.structs.replace(row, computation=new)
    for stored, now in zip(watermarks(name), watermarks(new), strict=True):
        contents.watermark.pop(now, None)
        if stored in contents.watermark:
            contents.watermark[now] = contents.watermark.pop(stored)
    contents.folded.rename(name, new)


def _add_computation(contents: MemoryContents, computation: str, splits: tuple[str, ...]) -> None:
    if any(row.computation == computation for row in contents.intervals.values()):
        return
    for low, high in ranges(splits):
        contents.add_interval(computation, low, high)
