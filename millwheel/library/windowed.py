"""Which computation aggregates which windows.

Lives here: the choice, and nothing else.
"""

from __future__ import annotations

from typing import Any, TypeVar

from millwheel.api.state import MapCell
from millwheel.api.stream import Stream
from millwheel.coders import MsgpackCoder
from millwheel.library.aggregate import AlignedAggregate, WindowedAggregate, cells
from millwheel.library.aggregations import Aggregation
from millwheel.library.firing import Firing
from millwheel.library.panes import Pane
from millwheel.library.sessions import SessionAggregate
from millwheel.library.slices import SlicedAggregate
from millwheel.library.stacks import StackedAggregate
from millwheel.library.validity import ValidityAggregate
from millwheel.library.wall import WallAggregate
from millwheel.library.windows import Sessions, Sliding, Validity, Wall, Windows
from millwheel.library.wiring import Operation, Wiring
from millwheel.limits import SLICES_OF_A_WINDOW

R = TypeVar("R")


def meaning_of(windows: Windows, firing: Firing) -> str:
    """What is stored of them."""
    return f"slices of {windows.meaning}" if is_sliced(windows, firing) else windows.meaning


def is_sliced(windows: Windows, firing: Firing) -> bool:
    """Whether there is an accumulator for each slice, and none for each window."""
    if not isinstance(windows, Sliding) or not firing.one_by_one:
        return False
    return windows.size // windows.slice_us <= SLICES_OF_A_WINDOW


def aggregate(
    windows: Windows, firing: Firing, aggregation: Aggregation[Any, Any, R], dropped: Stream[Any] | None = None
) -> Operation[Pane[R]]:
    """The operation that aggregates `windows` as `firing` says; what comes too late goes to `dropped`."""
    base: type[WindowedAggregate[Any]] = AlignedAggregate
    if isinstance(windows, Sessions):
        base = SessionAggregate
    elif isinstance(windows, Validity):
        base = ValidityAggregate
    elif isinstance(windows, Wall):
        base = WallAggregate
    elif is_sliced(windows, firing):
        base = StackedAggregate if aggregation.bounded and not aggregation.subtracts else SlicedAggregate
    declared = cells(aggregation, meaning_of(windows, firing))
    if issubclass(base, SlicedAggregate):
        declared["running"] = MapCell(declared["accumulators"].coder)
    made: Any = type(base.__name__, (base,), dict(declared))

    def make(wiring: Wiring[Pane[R]]) -> WindowedAggregate[R]:
        operator: WindowedAggregate[R] = made(wiring, firing, aggregation, dropped, windows)
        return operator

    return Operation(
        kind=aggregation.name.partition(" ")[0],
        make=make,
        output=MsgpackCoder[Pane[R]](Pane[aggregation.results]),  # type: ignore[name-defined]
        side_outputs=() if dropped is None else (dropped,),
        strict_timestamps=not firing.backdates,
        waits=not isinstance(windows, Wall),
    )
