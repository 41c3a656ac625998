"""Windows, aggregations and the rest of daily work, on the public API only.  Begin with `Flow`."""

from millwheel.library.aggregations import (
    Aggregation,
    aggregation,
    collect,
    count,
    distinct,
    first,
    last,
    maximum,
    mean,
    minimum,
    sum_of,
    top,
)
from millwheel.library.calendars import Calendar
from millwheel.library.combining import Combiner
from millwheel.library.daily import Addressed
from millwheel.library.durations import days, hours, minutes, seconds
from millwheel.library.flow import Chain, Flow
from millwheel.library.interval_join import Interval
from millwheel.library.keyed import KeyedChain, WindowedChain
from millwheel.library.lookups import Enriched, LookUp
from millwheel.library.matches import Joined, Match
from millwheel.library.panes import Pane
from millwheel.library.running import Running
from millwheel.library.services import Reply, Service
from millwheel.library.triggers import AtWatermark, EveryRecords, EveryWall, Once, Repeat
from millwheel.library.windows import Fixed, Global, Sessions, Sliding, Validity, Wall, Window
from millwheel.library.wiring import Operation, Operator, Wiring

__all__ = [
    "Addressed",
    "Aggregation",
    "AtWatermark",
    "Calendar",
    "Chain",
    "Combiner",
    "Enriched",
    "EveryRecords",
    "EveryWall",
    "Fixed",
    "Flow",
    "Global",
    "Interval",
    "Joined",
    "KeyedChain",
    "LookUp",
    "Match",
    "Once",
    "Operation",
    "Operator",
    "Pane",
    "Repeat",
    "Reply",
    "Running",
    "Service",
    "Sessions",
    "Sliding",
    "Validity",
    "Wall",
    "Window",
    "WindowedChain",
    "Wiring",
    "aggregation",
    "collect",
    "count",
    "days",
    "distinct",
    "first",
    "hours",
    "last",
    "maximum",
    "mean",
    "minimum",
    "minutes",
    "seconds",
    "sum_of",
    "top",
]
