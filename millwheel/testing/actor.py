"""A core and what its effects need: the unit that a simulated process drives."""

from __future__ import annotations

import msgspec

from millwheel.api.context import Output
from millwheel.core.injector import InjectorCore
from millwheel.core.interval import IntervalCore
from millwheel.ports import SourcePartition
from millwheel.runtime.executor import Executor


class Actor(msgspec.Struct, eq=False):
    """A core and what its effects need."""

    interval: int
    sequencer: int
    owner: str
    core: IntervalCore | InjectorCore
    executor: Executor | None = None
    partition: SourcePartition | None = None
    output: Output | None = None
    timers: dict[tuple[str, str, str], int | None] = {}
    """(key, kind, tag) to what it is set to, as hooks and the committed checkpoints say."""
