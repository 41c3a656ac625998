"""What can go wrong in an iteration, by name. Never here: anything that runs."""

from __future__ import annotations


class IterationError(RuntimeError):
    """The iteration cannot go on; the message says where and what to do."""


class ColumnsError(ValueError):
    """Rows, keys or columns are not as they must be; the message names the key or the column."""


class CompensationError(IterationError):
    """A compensation function broke its contract; the message names the partition or the key."""


class CheckpointError(IterationError):
    """The checkpoint directory cannot be used; the message names it and what it holds."""


class SparkVersionError(IterationError):
    """A private door of Spark is not where it was in the version that this was tested against."""
