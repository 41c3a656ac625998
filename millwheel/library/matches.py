"""What comes out of a join: rows of values that met, and how values that wait for a partner are stored.

Lives here: `Match`, `Joined`, and the coders of both and of state.  Never here: when values meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

import msgspec

from millwheel.coders import Coder
from millwheel.errors import CoderError, WiringError

L = TypeVar("L")
R = TypeVar("R")
V = TypeVar("V")

How = Literal["inner", "left", "right", "outer"]
"""Which rows there are besides those of values that met: none, the left ones alone, the right ones alone, both alone."""


_REQUIRED: Final[dict[How, frozenset[int]]] = {
    "inner": frozenset({0, 1}),
    "left": frozenset({0}),
    "right": frozenset({1}),
    "outer": frozenset(),
}


def required(how: How) -> frozenset[int]:
    """The inputs, 0 is the left one, without whose value there is no row; raises `WiringError` for another word."""
    if how not in _REQUIRED:
        raise WiringError(f"how={how!r}: use one of {[*_REQUIRED]}")
    return _REQUIRED[how]


class Match(msgspec.Struct, Generic[L, R], frozen=True, array_like=True):
    """One row of a join of two streams; a side without a partner has None beside it."""

    key: str
    left: L
    right: R
    start: int | None = None
    """The window [start, end) in which they met, us; None where there are no windows."""
    end: int | None = None


class Joined(msgspec.Struct, Generic[V], frozen=True, array_like=True):
    """One row of a join of several streams in the window [start, end), us: `values` has one of each, in their order."""

    key: str
    values: V
    start: int
    end: int


class Kept(NamedTuple):
    """A value that may still find a partner."""

    time: int
    matched: bool
    value: Any


class KeptCoder:
    """`Kept`, whose value has a coder of its own."""

    def __init__(self, inner: Coder[Any]) -> None:
        self._inner = inner
        self.fingerprint = f"kept/1:{inner.fingerprint}"

    def encode(self, value: Kept, /) -> bytes:
        """Its time, whether it was matched, and the bytes of its value."""
        return msgspec.msgpack.encode((value.time, value.matched, self._inner.encode(value.value)))

    def decode(self, data: bytes, /) -> Kept:
        """As it was stored."""
        time, matched, value = _parts(data, tuple[int, bool, bytes])
        return Kept(time, matched, self._inner.decode(value))


class MatchCoder:
    """`Match`, for results that have no stream of the user's: the coders of both inputs are those of the values."""

    def __init__(self, left: Coder[Any], right: Coder[Any]) -> None:
        self._sides = (left, right)
        self.fingerprint = f"match/1:{left.fingerprint},{right.fingerprint}"

    def encode(self, value: Match[Any, Any], /) -> bytes:
        """The bytes of both sides; nothing for None."""
        return _row_encoded(value.key, (value.left, value.right), self._sides, (value.start, value.end))

    def decode(self, data: bytes, /) -> Match[Any, Any]:
        """The row."""
        key, (left, right), (start, end) = _row_decoded(data, self._sides)
        return Match(key, left, right, start, end)


class JoinedCoder:
    """The same for `Joined`."""

    def __init__(self, sides: Sequence[Coder[Any]]) -> None:
        self._sides = tuple(sides)
        self.fingerprint = f"joined/1:{','.join(side.fingerprint for side in sides)}"

    def encode(self, value: Joined[Any], /) -> bytes:
        """The bytes of each side; nothing for None."""
        return _row_encoded(value.key, value.values, self._sides, (value.start, value.end))

    def decode(self, data: bytes, /) -> Joined[Any]:
        """The row."""
        key, values, (start, end) = _row_decoded(data, self._sides)
        return Joined(key, values, start or 0, end or 0)


Span = tuple[int | None, int | None]


def _row_encoded(key: str, values: Sequence[Any], sides: Sequence[Coder[Any]], span: Span) -> bytes:
    parts = [None if value is None else side.encode(value) for side, value in zip(sides, values, strict=True)]
    return msgspec.msgpack.encode((key, parts, span))


def _row_decoded(data: bytes, sides: Sequence[Coder[Any]]) -> tuple[str, tuple[Any, ...], Span]:
    key, parts, span = _parts(data, tuple[str, list[bytes | None], Span])
    values = (None if part is None else side.decode(part) for side, part in zip(sides, parts, strict=True))
    return key, tuple(values), span


def _parts(data: bytes, type_: Any) -> Any:
    try:
        return msgspec.msgpack.decode(data, type=type_)
    except msgspec.MsgspecError as error:
        raise CoderError(f"a row of a join cannot be decoded, {data!r:.80}: {error}") from error
