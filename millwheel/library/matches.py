"""What comes out of a join: rows of values that met, and how values that wait for a partner are stored.

Lives here: `Match`, `Joined`, and the coders of both and of state.  Never here: when values meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

import msgspec

from millwheel.coders import Coder, schema_of
from millwheel.errors import CoderError, WiringError
from millwheel.library.windows import Window
from millwheel.schemas import together

L = TypeVar("L")
R = TypeVar("R")
V = TypeVar("V")

RowOf = Callable[[str, Sequence[Any], Window], R]
"""Makes a row of a key, one value or None of each input, and the window."""

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
        self.schema = schema_of(inner)  # what changes is the user's value

    def encode(self, value: Kept, /) -> bytes:
        """Its time, whether it was matched, and the bytes of its value."""
        return msgspec.msgpack.encode((value.time, value.matched, self._inner.encode(value.value)))

    def decode(self, data: bytes, /) -> Kept:
        """As it was stored."""
        time, matched, value = _parts(data, tuple[int, bool, bytes])
        return Kept(time, matched, self._inner.decode(value))


class FieldsCoder:
    """A struct that is stored as an array; the fields in `coders` are the user's values, whose coders these are."""

    def __init__(self, type_: type[msgspec.Struct], coders: dict[str, Coder[Any]]) -> None:
        self._type: Any = type_
        self._sides = [coders.get(name) for name in type_.__struct_fields__]
        names = ",".join(f"{name}={coder.fingerprint}" for name, coder in coders.items())
        self.fingerprint = f"{type_.__name__.lower()}/1:{names}"
        self.schema = together({name: schema_of(coder) for name, coder in coders.items()})

    def encode(self, value: Any, /) -> bytes:
        """The bytes of each of the user's values; nothing for None."""
        fields = [getattr(value, name) for name in self._type.__struct_fields__]
        return msgspec.msgpack.encode(
            [
                each if each is None or side is None else side.encode(each)
                for side, each in zip(self._sides, fields, strict=True)
            ]
        )

    def decode(self, data: bytes, /) -> Any:
        """The struct."""
        fields = zip(self._sides, _parts(data, list[Any]), strict=True)
        return self._type(*(each if each is None or side is None else side.decode(each) for side, each in fields))


def match_coder(left: Coder[Any], right: Coder[Any]) -> FieldsCoder:
    """Of `Match`, for results that have no stream of the user's: the coders of both inputs are those of the values."""
    return FieldsCoder(Match, {"left": left, "right": right})


class JoinedCoder:
    """The same for `Joined`, whose values are the user's."""

    def __init__(self, sides: Sequence[Coder[Any]]) -> None:
        self._sides = tuple(sides)
        self.fingerprint = f"joined/1:{','.join(side.fingerprint for side in sides)}"
        self.schema = together({f"values[{place}]": schema_of(side) for place, side in enumerate(sides)})

    def encode(self, value: Joined[Any], /) -> bytes:
        """The bytes of each side; nothing for None."""
        pairs = zip(self._sides, value.values, strict=True)
        values = [None if each is None else side.encode(each) for side, each in pairs]
        return msgspec.msgpack.encode((value.key, values, value.start, value.end))

    def decode(self, data: bytes, /) -> Joined[Any]:
        """The row."""
        key, parts, start, end = _parts(data, tuple[str, list[bytes | None], int, int])
        pairs = zip(self._sides, parts, strict=True)
        return Joined(key, tuple(None if part is None else side.decode(part) for side, part in pairs), start, end)


def _parts(data: bytes, type_: Any) -> Any:
    try:
        return msgspec.msgpack.decode(data, type=type_)
    except msgspec.MsgspecError as error:
        raise CoderError(f"a row of a join cannot be decoded, {data!r:.80}: {error}") from error
