"""Results as rows of a table, when later results take rows back.

Lives here: that operator, which the library does not have: which rows a result takes back depends on the question.
Results that stay end in `upsert_to`.  Invariant: when a window is over, nothing of it is stored but its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from millwheel import Context, JsonCoder, MapCell, Record, Table, Timer
from millwheel.library import KeyedChain, Operation, Operator, Wiring

T = TypeVar("T")

Row = dict[str, Any]
RowsOf = Callable[[T], Iterable[Row]]
Key = list[int | str]


class Replacing(Operator[None], Generic[T]):
    """Each value's rows, in the place of those of earlier values of this key that it takes back.

    `over` is the event time, us, from which no value takes a row back any more; `takes_back` tells of an earlier row's
    primary key whether a value does.
    """

    written = MapCell[Key](JsonCoder[Key](Key))

    def __init__(
        self, wiring: Wiring[None], table: Table, rows: RowsOf[T], over: Callable[[T], int],
        takes_back: Callable[[T, Key], bool],
    ) -> None:  # fmt: skip
        super().__init__(wiring)
        self.table, self.rows, self.over, self.takes_back = table, rows, over, takes_back

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        """Write them, and delete those that no longer hold."""
        for _, value in self.inputs.take(context.stream, record.key, record.value):
            self._replace(context, value)

    def _replace(self, context: Context, value: T) -> None:
        new = {}
        for row in self.rows(value):
            key = [row[column] for column in self.table.key]
            new["/".join(map(str, key))] = key
            context.upsert(self.table, row)
        for tag, key in list(self.written.items()):
            if tag not in new and self.takes_back(value, key):
                context.delete(self.table, dict(zip(self.table.key, key, strict=True)))
                self.written.delete(tag)
                context.cancel_timer(tag)
        for tag, key in new.items():
            if self.over(value) > context.watermark:
                self.written.set(tag, key)
                context.set_timer(tag, self.over(value))

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        """The row is final."""
        self.written.delete(timer.tag)


def replace(
    keyed: KeyedChain[T],
    table: Table,
    rows: RowsOf[T],
    over: Callable[[T], int],
    takes_back: Callable[[T, Key], bool] = lambda value, key: True,
) -> None:
    """Write the rows of each value to `table`, and delete those that it takes back, by default all of its key."""
    operation: Operation[None] = Operation(
        kind="rows",
        make=lambda wiring: Replacing(wiring, table, rows, over, takes_back),
        output=None,
        tables=(table,),
    )
    keyed.flow.end(operation, keyed.ports(), f"{table.name}.rows")
