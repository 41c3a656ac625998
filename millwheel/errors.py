"""Errors a user can meet.  Every message says what, where, and what to do.

Lives here: exception classes only.  Never here: logic.
"""

from __future__ import annotations

from millwheel.ids import IntervalId, Seq


class MillwheelError(Exception):
    """Base of every error that millwheel raises on purpose."""


class InvariantError(AssertionError):
    """A rule of millwheel's own is broken: a mistake in millwheel, and nothing that a user could mend.

    Raised where others write `assert`, which `python -O` leaves out.
    """


class WiringError(MillwheelError):
    """The pipeline's graph is wrong: unknown stream, duplicate name, a loop that nothing enters, coder mismatch."""


class PipelineFailed(WiringError):
    """User code raised outside of a hook: while its pipeline was imported or made, or in a source.

    `trace` is the traceback, shortened to its frames.
    """

    def __init__(self, message: str, trace: str) -> None:
        super().__init__(message)
        self.trace = trace


class CoderError(MillwheelError):
    """A value could not be encoded, or bytes could not be decoded, by the declared coder."""


class TimestampError(MillwheelError):
    """A production is older than the record, timer or hold it comes from, or out of range."""


class LimitError(MillwheelError):
    """A key, value, tag or row is larger than `millwheel.limits` allows."""


class LateCall(MillwheelError):
    """A context or a cell was used outside the hook that it serves: what it did would count for another key."""


class HooksFail(MillwheelError):
    """A hook has failed for every key that it was called for: its code is wrong, and the run was stopped."""


class HookExited(MillwheelError):
    """A hook has called `sys.exit`, or raised what is no `Exception`.  Its process ends as after a crash, and nothing of the
    hook is kept."""


class HookInterrupted(KeyboardInterrupt):
    """Raised in a hook that still runs a while after the run was stopped.  What it has done is not kept."""


class SourceError(MillwheelError):
    """An injector's source changed under it, or cannot be read."""


class StoreError(MillwheelError):
    """The store refused an operation for good."""


class IncompatibleStore(StoreError):
    """What the store holds was written by an incompatible format, coder or pipeline shape."""


class StoreInUse(StoreError):
    """Live members of a cluster use the store, so nobody else may own intervals, or change the pipeline's shape."""


class RowError(MillwheelError):
    """A row does not fit the columns of its sink table."""


class RowRefused(StoreError):
    """The database refused sink rows of the checkpoint `seq` of `interval`, for example by a constraint.

    `rows` are (place among the checkpoint's sink rows, the database's answer).  Nothing of this checkpoint is durable.
    """

    def __init__(self, message: str, interval: IntervalId, seq: Seq, rows: tuple[tuple[int, str], ...] = ()) -> None:
        super().__init__(message)
        self.interval = interval
        self.seq = seq
        self.rows = rows


class CommitUnknown(MillwheelError):
    """The reply of a commit was lost: it may or may not have been applied; commit the same rows again."""


class Fenced(MillwheelError):
    """Another owner took the interval over: everything this process still holds of it is void."""


class StoreUnavailable(StoreError):
    """The store cannot be reached, or was too busy; nothing was applied that a retry would apply twice.  Retry."""


class WireError(MillwheelError):
    """Bytes from another process are no message, or a message has no wire form."""


class PushError(MillwheelError):
    """A client cannot push any more: it was refused, or nothing has become durable for too long."""


class PushRefused(PushError):
    """The source cannot take some records, and would not if they came again; the others are durable.

    `records` are (id, reason).
    """

    def __init__(self, message: str, records: list[tuple[bytes, str]]) -> None:
        super().__init__(message)
        self.records = records


class ChannelError(MillwheelError):
    """A process cannot open its end of the channels: a bad address, a port that is taken, certificates that do not fit."""
