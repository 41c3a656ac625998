"""Finds values that a hook has read, changed and not set.  Such a change is lost in silence, because only `set` changes
state.

Lives here: bound cells of the test kit that remember what they gave out, and the check after each hook.  Production does not
use them, because reads must cost nothing more there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from millwheel.api.bound import BoundValue
from millwheel.api.computation import cells_of
from millwheel.api.state import BoundList, BoundMap, ListCell, MapCell, ValueCell
from millwheel.runtime.executor import Executor

T = TypeVar("T")

_IMMUTABLE: Final = (type(None), bool, int, float, str, bytes)

Read = tuple[str, str, Any, bytes, Callable[[Any], bytes]]
"""Cell, entry, value, its encoding when it was read, and how it is encoded."""


class ChangedValue(AssertionError):
    """A hook changed a value that it had read, and did not set it: the next hook would not see the change."""


class Watch:
    """What one computation's hooks have read since the last one began."""

    def __init__(self) -> None:
        self._reads: list[Read] = []

    def begin(self) -> None:
        """A hook begins."""
        self._reads.clear()

    def wrote(self, cell: str, entry: str | None = None) -> None:
        """A hook set, or removed, an entry or all of a cell: what it read before is settled."""
        self._reads = [read for read in self._reads if read[0] != cell or entry not in (None, read[1])]

    def saw(self, cell: str, entry: str, value: T, encode: Callable[[Any], bytes]) -> T:
        """A hook got `value`."""
        if type(value) not in _IMMUTABLE:
            data = _encoded(encode, value)
            if data is not None:
                self._reads.append((cell, entry, value, data, encode))
        return value

    def check(self, key: str) -> None:
        """A hook has returned; raises `ChangedValue`."""
        for cell, entry, value, data, encode in self._reads:
            if _encoded(encode, value) != data:
                where = f"cell {cell!r}" + (f" entry {entry!r}" if entry else "") + f" of key {key!r}"
                raise ChangedValue(f"{where}: its value was changed after it was read, and never set; call set(...)")


def _encoded(encode: Callable[[Any], bytes], value: Any) -> bytes | None:
    try:
        return encode(value)
    except Exception:  # such a value cannot be compared, nor set
        return None


class _WatchedValue(BoundValue[T]):
    watch: Watch

    def get(self) -> T:
        return self.watch.saw(self._cell, "", super().get(), self._encode)

    def set(self, value: T) -> None:
        super().set(value)
        self.watch.wrote(self._cell)

    def clear(self) -> None:
        super().clear()
        self.watch.wrote(self._cell)


class _WatchedMap(BoundMap[T]):
    watch: Watch

    def _saw(self, entry: str, value: Any) -> Any:
        return self.watch.saw(self._cell, entry, value, self._encode)

    def set(self, entry: str, value: T) -> None:
        super().set(entry, value)
        self.watch.wrote(self._cell, entry)

    def delete(self, entry: str) -> None:
        super().delete(entry)
        self.watch.wrote(self._cell, entry)

    def get(self, entry: str, default: Any = None) -> Any:
        value = super().get(entry, default)
        return value if value is default else self._saw(entry, value)

    def get_many(self, entries: Any) -> dict[str, T]:
        return {entry: self._saw(entry, value) for entry, value in super().get_many(entries).items()}

    def items(self) -> Iterator[tuple[str, T]]:
        for entry, value in super().items():
            yield entry, self._saw(entry, value)


class _WatchedList(BoundList[T]):
    watch: Watch

    def __iter__(self) -> Iterator[T]:
        for place, value in enumerate(super().__iter__()):
            yield self.watch.saw(self._cell, f"{place:016x}", value, self._encode)

    def clear(self) -> None:
        super().clear()
        self.watch.wrote(self._cell)


def watch_values(executor: Executor) -> None:
    """Have the hooks of `executor` fail when they change a value that they have read and do not set it."""
    computation, watch = executor.computation, Watch()
    frame = computation.__dict__["_frame"]
    for name, cell in cells_of(type(computation)).items():
        bound: Any = None
        match cell:
            case ValueCell():
                bound = _WatchedValue(frame, name, cell.coder, cell.default)
            case MapCell():
                bound = _WatchedMap(frame, name, cell.coder)
            case ListCell():
                bound = _WatchedList(frame, name, cell.coder)
            case _:
                continue
        bound.watch = watch
        computation.__dict__[name] = bound
    for hook in ("ProcessRecord", "ProcessTimer"):
        computation.__dict__[hook] = _checked(getattr(computation, hook), watch)


def _checked(hook: Callable[[Any, Any], object], watch: Watch) -> Callable[[Any, Any], object]:
    def checked(context: Any, given: Any) -> object:
        watch.begin()
        made = hook(context, given)
        watch.check(given.key)
        return made

    return checked
