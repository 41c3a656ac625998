"""What a query is: its table, its pipeline and the same in SQL.  Never here: any one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from examples.nexmark.model import Event
from millwheel import Table
from millwheel.library import Chain

AT: Final = "at"
"""The column of a result's event time, us.  Latency is counted from it; where several events make a row, it depends on
their order, so it is not compared."""


class NexmarkQuery(msgspec.Struct, frozen=True):
    """One query.

    `build` adds its steps, which end in `table`; `sql` selects the columns of `table` but `at` from `person`, `auction`,
    `bid` and `side_input`, times in us.  `found`: what is compared with it, if that is not the table as it is.
    """

    table: Table
    build: Callable[[Chain[Event]], None]
    sql: str
    found: str | None = None

    @property
    def written(self) -> str:
        """SQL for what is compared of the table."""
        return self.found or f"SELECT {', '.join(self.columns)} FROM {self.name}"

    @property
    def name(self) -> str:
        """As Nexmark names it."""
        return self.table.name

    @property
    def columns(self) -> list[str]:
        """Those that are compared."""
        return [column for column in self.table.spec().columns if column != AT]


def table(name: str, columns: Mapping[str, str], key: tuple[str, ...]) -> Table:
    """A table of results."""
    return Table(name, {**columns, AT: "bigint"}, key)
