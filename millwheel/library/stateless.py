"""Stateless steps that end in a stream without a keyed step before them: a computation of their own.

Lives here: that computation, and the key that spreads its records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

from millwheel.api.context import Context
from millwheel.api.stream import Stream
from millwheel.library.steps import Steps, many
from millwheel.library.wiring import Operator, Wiring
from millwheel.limits import STATELESS_KEYS
from millwheel.model import Record


class Stateless(Operator[Any]):
    """Puts every value through the steps of its stream."""

    def __init__(self, wiring: Wiring[Any], steps: dict[str, list[Steps]]) -> None:
        super().__init__(wiring)
        self._steps = steps

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        """Produce what the steps make of it."""
        for steps in self._steps[context.stream]:
            for value in many(steps, record.value):
                self.emit(context, value, None)


def spread(stream: Stream[Any]) -> Callable[[Any], str]:
    """A key that has no meaning and is always the same for equal values."""
    encode = stream.coder.encode

    def key(value: Any) -> str:
        return f"{crc32(encode(value)) % STATELESS_KEYS:02x}"

    return key
