"""The base class of user code (§4.2, §5.1)."""

from __future__ import annotations

from typing import Any, Generic

from typing_extensions import TypeVar

from millwheel.api.context import Context
from millwheel.api.state import Cell, DroppedCell
from millwheel.errors import WiringError
from millwheel.model import Record, Timer

V = TypeVar("V", default=Any)


class Computation(Generic[V]):
    """Subclass it, declare state cells, write `ProcessRecord` and, if timers are set, `ProcessTimer`.

    A hook runs in the context of one key, and hooks of one key never run at the same time.  A hook must depend on its inputs
    and `context.wall_time` only, and touch the world only through the context, because a crash may run it again.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute that is not a state cell.  A state cell is set with its method `set`."""
        if isinstance(getattr(type(self), name, None), Cell):
            raise WiringError(
                f"{type(self).__name__}.{name} is a state cell: write self.{name}.set(...), not an assignment"
            )
        object.__setattr__(self, name, value)

    def setup(self) -> None:
        """Called before the first hook of this object: open models, clients."""

    def teardown(self) -> None:
        """Called after its last hook, when that is in an orderly way; a crash skips it."""

    def has_room(self) -> bool:
        """Whether records may come.  If not, timers run alone, while one of wall time is set."""
        return True

    def ProcessRecord(self, context: Context, record: Record[V]) -> None:
        """Handle one record of `record.key`."""
        raise NotImplementedError(f"{type(self).__name__} must define ProcessRecord")

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        """Handle one timer of `timer.key` that is due."""
        raise NotImplementedError(f"{type(self).__name__} sets timers, so it must define ProcessTimer")


def cells_of(computation: type[Computation[Any]]) -> dict[str, Cell]:
    """Declared cells by name, inherited ones included."""
    return {name: cell for name, cell in _declared(computation).items() if isinstance(cell, Cell)}


def dropped_of(computation: type[Computation[Any]]) -> tuple[str, ...]:
    """Names of the cells that are declared to go."""
    return tuple(name for name, cell in _declared(computation).items() if isinstance(cell, DroppedCell))


def _declared(computation: type[Computation[Any]]) -> dict[str, Cell | DroppedCell]:
    found: dict[str, Cell | DroppedCell] = {}
    for base in reversed(computation.__mro__):
        for name, declared in vars(base).items():
            if isinstance(declared, Cell | DroppedCell):
                found[name] = declared
            else:
                found.pop(name, None)
    return found
