"""A core and what its effects need: the unit that the embedded run drives."""

from __future__ import annotations

from typing import Protocol

import msgspec

from millwheel.api.context import Output
from millwheel.core import events as ev
from millwheel.ports import SourcePartition
from millwheel.runtime.executor import Executor


class Core(Protocol):
    """What the driver needs of a core."""

    halted: bool

    def handle(self, event: ev.Event, now: int) -> list[ev.Effect]:
        """React to one event."""
        ...

    def quiet(self) -> bool:
        """Nothing is under way."""
        ...


class Actor(msgspec.Struct, eq=False):
    """A core with what its effects need: the sequencer it writes under, user code or a source partition."""

    interval: int
    sequencer: int
    owner: str
    core: Core
    executor: Executor | None = None
    partition: SourcePartition | None = None
    output: Output | None = None
    receivers: frozenset[int] = frozenset()
    """Intervals that a source partition feeds."""
