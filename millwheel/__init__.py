"""millwheel: fault-tolerant keyed stream processing on Postgres, after Google's MillWheel (VLDB 2013).

Each name is imported when it is first asked for.  Otherwise the command would import all of this before its entry is
reached, a quarter of a second on a busy machine, and Ctrl-C in that time would end it with a traceback.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as `typing` has it, whose import takes longer than everything else here

if TYPE_CHECKING:
    from millwheel.api.computation import Computation
    from millwheel.api.context import Context
    from millwheel.api.gathering import Gathering
    from millwheel.api.pipeline import Pipeline, subscribe
    from millwheel.api.snapshots import Checkpoints, Snapshots
    from millwheel.api.state import DroppedCell, ListCell, MapCell, ValueCell
    from millwheel.api.stream import Stream
    from millwheel.api.table import Table
    from millwheel.coders import BytesCoder, Coder, JsonCoder, MsgpackCoder, ProtobufCoder, TextCoder
    from millwheel.errors import MillwheelError
    from millwheel.model import DAY, HOUR, MAX_TIME, MIN_TIME, MINUTE, SECOND, Record, RecordId, Timer

__version__ = "0.1.0"

__all__ = [
    "DAY",
    "HOUR",
    "MAX_TIME",
    "MINUTE",
    "MIN_TIME",
    "SECOND",
    "BytesCoder",
    "Checkpoints",
    "Coder",
    "Computation",
    "Context",
    "DroppedCell",
    "Gathering",
    "JsonCoder",
    "ListCell",
    "MapCell",
    "MillwheelError",
    "MsgpackCoder",
    "Pipeline",
    "ProtobufCoder",
    "Record",
    "RecordId",
    "Snapshots",
    "Stream",
    "Table",
    "TextCoder",
    "Timer",
    "ValueCell",
    "subscribe",
]

_MODULES = {
    "millwheel.api.computation": ("Computation",),
    "millwheel.api.context": ("Context",),
    "millwheel.api.snapshots": ("Checkpoints", "Snapshots"),
    "millwheel.api.gathering": ("Gathering",),
    "millwheel.api.pipeline": ("Pipeline", "subscribe"),
    "millwheel.api.state": ("DroppedCell", "ListCell", "MapCell", "ValueCell"),
    "millwheel.api.stream": ("Stream",),
    "millwheel.api.table": ("Table",),
    "millwheel.coders": ("BytesCoder", "Coder", "JsonCoder", "MsgpackCoder", "ProtobufCoder", "TextCoder"),
    "millwheel.errors": ("MillwheelError",),
    "millwheel.model": (
        "DAY", "HOUR", "MAX_TIME", "MIN_TIME", "MINUTE", "SECOND", "Record", "RecordId", "Timer",
    ),
}  # fmt: skip


if not TYPE_CHECKING:  # to a type checker it would mean that every name is there

    def __getattr__(name: str) -> object:
        """The public name, from the module that defines it; it is looked up here once."""
        from importlib import import_module

        for module, names in _MODULES.items():
            if name in names:
                found = globals()[name] = getattr(import_module(module), name)
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
