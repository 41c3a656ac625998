"""Cells as a hook has them: bound to the frame of its computation, and through that to its key (§4.2).

Lives here: what all bound cells share, and the hottest of them.  Never here: declarations (`state`).  This module may be
compiled: see `docs/adr/0058-hooks-can-be-compiled.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from threading import get_ident
from typing import Any, Final, Generic, TypeVar

from mypy_extensions import mypyc_attr

from millwheel import limits
from millwheel.api.frame import MISSING, EntryColumn, Frame
from millwheel.coders import Coder, checked, raw
from millwheel.errors import LateCall, LimitError
from millwheel.limits import HEAVY_VALUE_BYTES

T = TypeVar("T")

_IMMUTABLE: Final = (type(None), bool, int, float, str, bytes)
"""A default of these types needs no copy."""


@mypyc_attr(allow_interpreted_subclasses=True)
class BoundCell:
    """A cell bound to the computation's reused frame."""

    __slots__ = ("_cell", "_decode", "_encode", "_frame")

    def __init__(self, frame: Frame, cell: str, coder: Coder[Any]) -> None:
        self._frame = frame
        self._cell = cell
        self._encode = checked(coder)
        self._decode = coder.decode

    def _data(self, value: Any) -> bytes:
        data = self._encode(value)
        if len(data) > limits.VALUE_LIMIT_BYTES:
            raise LimitError(
                f"cell {self._cell!r} of key {self._frame.key!r}: {len(data)} bytes; limit {limits.VALUE_LIMIT_BYTES}"
            )
        return data

    def _names(self, column: EntryColumn) -> Iterator[str]:
        """Entries of the current key, for an iterator, which is of no use to the hook of another one."""
        key = self._frame.key
        for name in column.names():
            if self._frame.key is not key:
                raise self._frame.late()
            yield name


@mypyc_attr(allow_interpreted_subclasses=True)
class BoundValue(BoundCell, Generic[T]):
    """One value per key."""

    __slots__ = ("_column", "_default", "_default_is_shared", "_plain", "_raw_decode", "_raw_encode")

    def __init__(self, frame: Frame, cell: str, coder: Coder[T], default: T) -> None:
        super().__init__(frame, cell, coder)
        self._plain, self._raw_encode, self._raw_decode = raw(coder)
        self._column = frame.column(cell)
        self._default = default
        self._default_is_shared = type(default) in _IMMUTABLE

    # Inlines the column's `read` and `write`: two calls fewer per record on the hottest cell.

    def get(self) -> T:
        """The value, or the declared default."""
        column, frame = self._column, self._frame
        key = frame.key
        try:
            data = column.written.get(key, MISSING)
        except LateCall:  # between invocations the key's hash raises: the hottest call asks for no more
            raise frame.late(f"cell {self._cell!r}.get") from None
        if data is MISSING:
            data = column.base.get(key)
            if data is None and key in frame.partial:
                frame.want(self._cell, "")
        if data is None:
            return self._default if self._default_is_shared else deepcopy(self._default)
        try:
            value: T = self._raw_decode(data)
        except Exception:
            value = self._decode(data)  # raises again, with a name and a reason
        return value

    def set(self, value: T) -> None:
        """Replace the value."""
        data: bytes
        if type(value) is self._plain:
            try:
                data = self._raw_encode(value)
            except Exception:
                data = self._encode(value)  # raises again, with a name and a reason
        else:
            data = self._encode(value)
        frame, written = self._frame, self._column.written
        if get_ident() != frame.thread:
            raise frame.late(f"cell {self._cell!r}.set")
        key = frame.key
        old = written.get(key, MISSING)
        if len(data) > HEAVY_VALUE_BYTES:
            if len(data) > limits.VALUE_LIMIT_BYTES:
                data = self._data(value)  # raises, with a name
            frame.grow_over(frame.own(written, key, old), data, HEAVY_VALUE_BYTES)
        journal = frame.journal  # three appends take half of the time of one `extend` by a tuple
        journal.append(written)
        journal.append(key)
        journal.append(old)
        written[key] = data

    def clear(self) -> None:
        """Remove the value; `get` gives the default again."""
        if get_ident() != self._frame.thread:
            raise self._frame.late(f"cell {self._cell!r}.clear")
        self._column.write(None)
