"""Names and numbers: which computation an interval belongs to, and which keys it holds.

Lives here: data that never changes while an interval has an owner.  It is read once and kept.  Never here: ownership, or
anything that an owner's write can change.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millwheel.errors import StoreError
from millwheel.ids import IntervalId
from millwheel.ports import IntervalRow
from millwheel_storage.postgres import query
from millwheel_storage.postgres.prepared import Connection
from millwheel_storage.statements import opening


class IntervalPlace(msgspec.Struct, frozen=True):
    """An interval in the tables: `computation` is the durable number of the computation that `row` names."""

    computation: int
    row: IntervalRow

    def keys(self) -> dict[str, Any]:
        """Its keys, as the parameters of statements that read by range."""
        high = None if self.row.high is None else self.row.high.encode()
        return {"computation": self.computation, "low": self.row.low.encode(), "high": high}


class Catalogue:
    """Intervals as one pipeline's store has them."""

    def __init__(self) -> None:
        self._places: dict[IntervalId, IntervalPlace] = {}

    async def place(self, connection: Connection, interval: IntervalId, anew: bool = False) -> IntervalPlace:
        """Where an interval is; `StoreError` when it does not exist.

        Its computation never changes.  Its keys may, while nobody owns it, so a new owner reads them `anew`.
        """
        if anew or interval not in self._places:
            row = await query.first(connection, opening.READ_INTERVAL, (interval,))
            if row is None:
                raise StoreError(f"interval {interval} does not exist")
            computation, low, high = row
            name = next(name for name, number in (await computations(connection)).items() if number == computation)
            high = None if high is None else high.decode()
            self._places[interval] = IntervalPlace(computation, IntervalRow(interval, name, low.decode(), high))
        return self._places[interval]


async def computations(connection: Connection) -> dict[str, int]:
    """The durable numbers of all computations."""
    names = await query.rows(connection, opening.READ_NAMES)
    return {name: number for kind, name, number in names if kind == "computation"}
