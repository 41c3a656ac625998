"""Productions of hooks: what the hottest call of user code does (§4.2).

Lives here: `Context.produce`, and where what it is given goes.  Never here: the other calls of a hook (`context`).  This
module may be compiled (ADR 0058), so what user code gives has no type here that the compiler would check in its own words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mypy_extensions import mypyc_attr

from millwheel import limits
from millwheel.api.frame import Frame
from millwheel.api.late import late_call
from millwheel.coders import AS_IT_IS
from millwheel.errors import CoderError, LimitError, TimestampError, WiringError
from millwheel.limits import HEAVY_VALUE_BYTES, VALUE_LIMIT_BYTES
from millwheel.model import MAX_TIME, MIN_TIME, format_time, whole_time

Route = tuple[Any, Callable[[Any], Any]]
"""A subscription's number, as an object, and its key extractor, which is user code: what it returns is checked."""


class Output:
    """Where a produced value goes: its encoder and every subscription of the stream."""

    __slots__ = ("encode", "plain", "quick", "routes")

    def __init__(
        self,
        encode: Callable[[Any], Any],
        routes: tuple[Route, ...],
        plain: type | None = None,
        quick: Callable[[Any], Any] = AS_IT_IS,
    ) -> None:
        self.encode = encode
        self.routes = routes
        self.plain = plain
        self.quick = quick
        """What `encode` does with a value of exactly the type `plain`; for what it refuses, ask `encode` for the reason."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Producer:
    """The part of a context that produces."""

    __slots__ = ("_computation", "_frame", "_outputs", "_strict")

    def __init__(self, frame: Frame, outputs: dict[str, Output], strict: bool, computation: str) -> None:
        self._frame: Frame | None = frame
        """None: its hook is over, and another context serves the next one."""
        self._outputs = outputs
        self._strict = strict
        self._computation = computation

    def produce(self, stream: Any, value: Any, timestamp: Any = None) -> None:
        """Emit `value` on `stream`, at the time of the current record or timer unless `timestamp` (us) is given.

        Raises `TimestampError` for a time before its cause (the record, timer or an earlier hold), `WiringError` for
        a stream that was not declared in `outputs`, `CoderError` for a value the stream's coder refuses.
        """
        frame = self._frame
        if frame is None:
            raise late_call(self._computation, "context.produce")
        try:
            name = stream.name
            output = self._outputs[name]
        except KeyError:
            raise WiringError(f"stream {name!r} is not among this computation's outputs {[*self._outputs]}") from None
        except AttributeError:
            raise WiringError(_no_stream(stream)) from None
        if timestamp is None:
            timestamp = frame.cause
        else:
            if type(timestamp) is not int:
                timestamp = whole_time(timestamp, f"production on {name!r}")
            if timestamp < frame.cause or timestamp >= MAX_TIME:
                self._check_time(frame, name, timestamp)
        data: bytes
        if type(value) is output.plain:
            try:
                data = value if output.quick is AS_IT_IS else output.quick(value)  # type: ignore[assignment]  # it is bytes then
            except Exception:
                data = output.encode(value)  # raises again, with a name and a reason
        else:
            data = output.encode(value)
        if len(data) > HEAVY_VALUE_BYTES:
            if len(data) > VALUE_LIMIT_BYTES:
                raise LimitError(f"value of {len(data)} bytes on {name!r}; limit {VALUE_LIMIT_BYTES}")
            frame.light = 0
        for subscription, extract in output.routes:
            key = extract(value)
            if key is not None:
                if type(key) is not str or len(key) > 256 or not key.isascii():
                    check_key(key, name)
                pending = frame.pending
                pending.append(subscription)  # four appends take less time than one `extend` by a tuple
                pending.append(key)
                pending.append(data)
                pending.append(timestamp)
                if len(pending) > frame.light:
                    frame.weigh()

    def _live(self, called: str) -> Frame:
        """The frame of the running hook; raises `LateCall` for a context that was kept."""
        frame = self._frame
        if frame is None:
            raise late_call(self._computation, f"context.{called}")
        return frame

    def _check_time(self, frame: Frame, stream: str, timestamp: int) -> None:
        bound = frame.bound()
        if not MIN_TIME < timestamp < MAX_TIME:
            raise TimestampError(f"production on {stream!r} for key {frame.key!r}: timestamp {timestamp} out of range")
        if timestamp >= bound:
            return
        if self._strict:
            raise TimestampError(
                f"production on {stream!r} for key {frame.key!r} at {format_time(timestamp)} is older than its cause "
                f"at {format_time(bound)}: set a hold before, or produce at the cause's time or later"
            )
        frame.effects = True
        frame.produced_late += 1


def check_key(key: Any, stream: str = "") -> None:
    """Check a key: a str of at most `limits.KEY_LIMIT_BYTES` bytes of UTF-8.  A lone surrogate has no UTF-8."""
    on = stream and f" on {stream!r}"
    if not isinstance(key, str):
        raise WiringError(f"key extractor{on} returned {type(key).__name__}, not str: {key!r:.80}")
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise CoderError(f"key{on} is not valid Unicode: {key[:50]!r}: {error.reason}") from error
    if size > limits.KEY_LIMIT_BYTES:
        raise LimitError(f"key of {size} bytes{on}: {key[:50]!r}…; limit {limits.KEY_LIMIT_BYTES}")


def _no_stream(given: object) -> str:
    return f"produce({given!r:.60}, …): the first argument is a Stream, not {type(given).__name__}"
