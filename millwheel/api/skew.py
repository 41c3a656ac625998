"""Skew control: how far a source may run ahead of a chosen low watermark (§8.4).

Lives here: what a user gives to `Pipeline.inject`, as a value.  Never here: the pausing (`host.skews`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from millwheel.api.computation import Computation
from millwheel.api.stream import Stream
from millwheel.errors import WiringError
from millwheel.graph import Skew
from millwheel.model import whole_time
from millwheel.source import Source


def skew_of(source: str, max_ahead: timedelta | int | None, of: Any) -> Skew | None:
    """The bound of a source; None when nothing was given."""
    if max_ahead is None and of is None:
        return None
    if max_ahead is None or of is None:
        raise WiringError(
            f"source {source!r}: give both max_ahead=... and of=..., how far it may run ahead and of whose watermark"
        )
    microsecond = timedelta(microseconds=1)
    ahead_us = max_ahead // microsecond if isinstance(max_ahead, timedelta) else whole_time(max_ahead, "max_ahead")
    if ahead_us < 0:
        raise WiringError(f"source {source!r}: max_ahead is {max_ahead!r}: a length of time is not negative")
    return Skew(ahead_us, _named(source, of))


def _named(source: str, of: Any) -> str:
    if isinstance(of, Stream):
        return f"stream:{of.name}"
    if isinstance(of, str):
        return f"computation:{of}"
    if isinstance(of, type) and issubclass(of, Computation):
        return f"computation:{of.__name__}"
    if Source in type(of).__mro__:
        return f"source:{of.name}"
    raise WiringError(
        f"source {source!r}: of={of!r:.80} has no watermark; give a computation or its name, a stream, or another source"
    )
