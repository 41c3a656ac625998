"""Durable per-key state: declared cells (§4.2, §6.1.2).

Declare cells as class attributes; in a hook they are bound to the current key.  Only what is set is logged.

    class Count(Computation[str]):
        seen = ValueCell(JsonCoder(int), default=0)

        def ProcessRecord(self, context, record):
            self.seen.set(self.seen.get() + 1)

Values are stored encoded, so changing a value that was read has no effect until it is set again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from millwheel import limits
from millwheel.api.bound import BoundCell, BoundValue
from millwheel.coders import Coder, no_coder
from millwheel.errors import CoderError, InvariantError, LimitError, WiringError
from millwheel.work import Slot

if TYPE_CHECKING:
    from millwheel.api.computation import Computation
    from millwheel.api.frame import Frame

T = TypeVar("T")


class BoundList(BoundCell, Generic[T]):
    """A list per key whose elements are stored one by one: appending never rewrites the rest."""

    __slots__ = ("_elements", "_tail")

    def __init__(self, frame: Frame, cell: str, coder: Coder[T]) -> None:
        super().__init__(frame, cell, coder)
        self._elements = frame.entry_column(cell)
        self._tail = frame.column(cell)

    def append(self, value: T) -> None:
        """Add one element at the end."""
        data = self._data(value)
        count = int(self._tail.read() or b"0")
        self._elements.write(f"{count:016x}", data)
        self._tail.write(b"%d" % (count + 1))

    def __iter__(self) -> Iterator[T]:
        for name in self._names(self._elements):
            data = self._elements.read(name)
            if data is None:
                raise InvariantError("there is no data")
            yield self._decode(data)

    def __len__(self) -> int:
        return int(self._tail.read() or b"0")

    def clear(self) -> None:
        """Remove every element."""
        for place in range(len(self)):
            self._elements.write(f"{place:016x}", None)
        self._tail.write(None)


class BoundMap(BoundCell, Generic[T]):
    """A map from str to values per key, stored entry by entry."""

    __slots__ = ("_entries",)

    def __init__(self, frame: Frame, cell: str, coder: Coder[T]) -> None:
        super().__init__(frame, cell, coder)
        self._entries = frame.entry_column(cell)

    @overload
    def get(self, entry: str) -> T | None: ...

    @overload
    def get(self, entry: str, default: T) -> T: ...

    def get(self, entry: str, default: T | None = None) -> T | None:
        """The value of `entry`, or the default."""
        data = self._entries.read(_entry(entry))
        return default if data is None else self._decode(data)

    def get_many(self, entries: Iterable[str]) -> dict[str, T]:
        """Those of `entries` that are there, and their values.

        For a key with very much state, this reads all of them at once.  As many calls of `get` would wait one by one.
        """
        if isinstance(entries, str):
            raise WiringError(
                f"get_many({entries!r:.60}): give a list of entries, because a text is one for each letter"
            )
        names = [_entry(entry) for entry in entries]
        self._entries.need(names)
        found = ((name, self._entries.read(name)) for name in names)
        return {name: self._decode(data) for name, data in found if data is not None}

    def set(self, entry: str, value: T) -> None:
        """Set one entry."""
        self._entries.write(_entry(entry), self._data(value))

    def delete(self, entry: str) -> None:
        """Remove one entry; one that is not there is fine."""
        self._entries.write(_entry(entry), None)

    def clear(self) -> None:
        """Remove every entry; this reads all of them."""
        for name in self._entries.names():
            self._entries.write(name, None)

    def items(self) -> Iterator[tuple[str, T]]:
        """(entry, value) in entry order."""
        for name in self._names(self._entries):
            data = self._entries.read(name)
            if data is None:
                raise InvariantError("there is no data")
            yield name, self._decode(data)

    def __len__(self) -> int:
        return len(self._entries.names())


def _entry(entry: str) -> str:
    if not isinstance(entry, str):
        raise WiringError(f"map entry {entry!r:.60} is {type(entry).__name__}: entries are text; for example str(...)")
    try:
        size = len(entry.encode())
    except UnicodeEncodeError as error:
        raise CoderError(f"map entry {entry!r:.60} is not valid Unicode: {error.reason}") from None
    if not 1 <= size <= limits.KEY_LIMIT_BYTES:
        raise LimitError(f"map entry {entry!r:.60}: 1 to {limits.KEY_LIMIT_BYTES} bytes")
    return entry


class Cell:
    """Base of declared cells: a descriptor that binds itself to the computation's frame."""

    kind = ""

    def __init__(self, coder: Coder[Any], formerly: str | None = None) -> None:
        if isinstance(coder, type) or not isinstance(coder, Coder):
            raise WiringError(f"a state cell needs a coder, got {no_coder(coder)}")
        if formerly is not None and (not isinstance(formerly, str) or not formerly.isidentifier()):
            raise WiringError(f"formerly={formerly!r:.80} is no name that a cell can have had")
        self.coder = coder
        self.name = ""
        self.formerly = formerly
        """The name that the cell had in an earlier version of the code."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @property
    def fingerprint(self) -> str:
        """What the store remembers of the cell."""
        return f"{self.kind}:{self.coder.fingerprint}"

    def _frame(self, computation: Computation[Any]) -> Frame:
        frame: Frame | None = computation.__dict__.get("_frame")
        if frame is None:
            raise WiringError(f"state cell {self.name!r} can only be used inside ProcessRecord and ProcessTimer")
        return frame


class DroppedCell:
    """Declares that a cell of this name is not needed any more.  The next start deletes its values of all keys.

    After that start the declaration may be removed or stay.
    """

    def __get__(self, computation: Computation[Any] | None, owner: type) -> Self:
        """The declaration; a hook has nothing to read here."""
        if computation is not None:
            raise WiringError(f"a cell of {owner.__name__} that is dropped has no values")
        return self


class ValueCell(Cell, Generic[T]):
    """Declares one value per key, with a default for keys that have none; each `get` of it gives a copy.

    A hook has `get()`, `set(value)` and `clear()`.
    """

    kind = "value"

    def __init__(self, coder: Coder[T], default: T, *, formerly: str | None = None) -> None:
        super().__init__(coder, formerly)
        self.default = default

    @overload
    def __get__(self, computation: None, owner: type) -> Self: ...
    @overload
    def __get__(self, computation: Computation[Any], owner: type) -> BoundValue[T]: ...
    def __get__(self, computation: Computation[Any] | None, owner: type) -> Self | BoundValue[T]:
        """The declaration on the class, the bound cell on an instance."""
        if computation is None:
            return self
        frame = self._frame(computation)
        bound = BoundValue(frame, frame.place(self.name), self.coder, self.default)
        computation.__dict__[self.name] = bound  # a non-data descriptor: the next access finds it directly
        return bound


class ListCell(Cell, Generic[T]):
    """Declares a list per key, whose elements are stored one by one.

    A hook has `append(value)`, `clear()`, `len` and iteration.
    """

    kind = "list"

    def __init__(self, coder: Coder[T], *, formerly: str | None = None) -> None:
        super().__init__(coder, formerly)

    @overload
    def __get__(self, computation: None, owner: type) -> Self: ...
    @overload
    def __get__(self, computation: Computation[Any], owner: type) -> BoundList[T]: ...
    def __get__(self, computation: Computation[Any] | None, owner: type) -> Self | BoundList[T]:
        """The declaration on the class, the bound cell on an instance."""
        if computation is None:
            return self
        frame = self._frame(computation)
        bound: BoundList[T] = BoundList(frame, frame.place(self.name), self.coder)
        computation.__dict__[self.name] = bound
        return bound


class MapCell(Cell, Generic[T]):
    """Declares a map from str to values per key, which is stored entry by entry.

    A hook has `get(entry, default=None)`, `get_many(entries)`, `set(entry, value)`, `delete(entry)`, `clear()`, `len`, and
    `items()` in the order of entries.
    """

    kind = "map"

    def __init__(self, coder: Coder[T], *, formerly: str | None = None) -> None:
        super().__init__(coder, formerly)

    @overload
    def __get__(self, computation: None, owner: type) -> Self: ...
    @overload
    def __get__(self, computation: Computation[Any], owner: type) -> BoundMap[T]: ...
    def __get__(self, computation: Computation[Any] | None, owner: type) -> Self | BoundMap[T]:
        """The declaration on the class, the bound cell on an instance."""
        if computation is None:
            return self
        frame = self._frame(computation)
        bound: BoundMap[T] = BoundMap(frame, frame.place(self.name), self.coder)
        computation.__dict__[self.name] = bound
        return bound


def decoded_state(declared: Mapping[str, Cell], cells: Mapping[Slot, bytes]) -> dict[str, Any]:
    """Stored `cells` of one key as cell name to value: the value, a list or a dict; cells not set are absent."""
    found = {name: _decoded(cell, cells) for name, cell in declared.items()}
    return {name: value for name, value in found.items() if value is not None}


def _decoded(cell: Cell, cells: Mapping[Slot, bytes]) -> Any:
    decode = cell.coder.decode
    entries = {entry: value for (name, entry), value in sorted(cells.items()) if name == cell.name}
    whole = entries.pop("", None)
    if cell.kind == "value":
        return None if whole is None else decode(whole)
    if cell.kind == "list":
        return [decode(value) for value in entries.values()] or None
    return {entry: decode(value) for entry, value in entries.items()} or None
