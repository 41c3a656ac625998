"""millwheel: fault-tolerant keyed stream processing on Postgres, after Google's MillWheel (VLDB 2013)."""

from millwheel.api.computation import Computation
from millwheel.api.context import Context
from millwheel.api.pipeline import Pipeline, subscribe
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
    "Coder",
    "Computation",
    "Context",
    "DroppedCell",
    "JsonCoder",
    "ListCell",
    "MapCell",
    "MillwheelError",
    "MsgpackCoder",
    "Pipeline",
    "ProtobufCoder",
    "Record",
    "RecordId",
    "Stream",
    "Table",
    "TextCoder",
    "Timer",
    "ValueCell",
    "subscribe",
]
