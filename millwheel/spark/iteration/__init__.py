"""Iterative computing on Spark that survives the loss of executors, after Guo et al., Chinese J. Computers 43(11), 2020.

`iterate` and `iterate_delta` run a step until it converges; `recovery=` chooses what a loss costs. See
`docs/guide-iteration.md`. Only PySpark and numpy are needed beside Python: `pip install 'millwheel-streams[spark]'`.
"""

try:
    import numpy as _numpy  # noqa: F401
    import pyspark as _pyspark  # noqa: F401
except ModuleNotFoundError as missing:
    raise ImportError(
        f"{missing.name} is missing: pip install 'millwheel-streams[spark]'", name=missing.name
    ) from missing

from millwheel.spark.iteration.columns import Part, Rows, combined, partition_of
from millwheel.spark.iteration.endings import Converged, Steps
from millwheel.spark.iteration.engine import iterate, iterate_delta
from millwheel.spark.iteration.errors import (
    CheckpointError,
    ColumnsError,
    CompensationError,
    IterationError,
    SparkVersionError,
)
from millwheel.spark.iteration.partitioned import (
    Changes,
    Messages,
    Partitioned,
    from_columns,
    from_elements,
    from_rows,
)
from millwheel.spark.iteration.policies import Blocking, Head, Loss, Optimistic, Recovery, Repair, Restart, Tail
from millwheel.spark.iteration.progress import Outcome, Recovered, Superstep, show

__all__ = [
    "Blocking",
    "Changes",
    "CheckpointError",
    "ColumnsError",
    "CompensationError",
    "Converged",
    "Head",
    "IterationError",
    "Loss",
    "Messages",
    "Optimistic",
    "Outcome",
    "Part",
    "Partitioned",
    "Recovered",
    "Recovery",
    "Repair",
    "Restart",
    "Rows",
    "SparkVersionError",
    "Steps",
    "Superstep",
    "Tail",
    "combined",
    "from_columns",
    "from_elements",
    "from_rows",
    "iterate",
    "iterate_delta",
    "partition_of",
    "show",
]
