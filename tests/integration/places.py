"""Where a test's pipeline lives in Postgres, and what it has left there."""

from __future__ import annotations

from typing import Any

import msgspec

from millwheel_storage.postgres import PostgresStore
from millwheel_storage.postgres.reader import Reader
from millwheel_storage.testing import postgres_tables
from tests.unit.runtime.drive import Cells


class Place:
    """Where one test's pipeline lives: `store()` is a new client, as after a restart."""

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.name = name

    def store(self) -> PostgresStore:
        return PostgresStore(self.url, self.name)

    def cells(self, computation: str) -> Cells:
        """Committed state of a computation."""
        found: Cells = {}
        with Reader(self.url, self.name) as reader:
            for row in reader.scan_state(computation):
                cell = f"{row.cell}[{row.entry}]" if row.entry else row.cell
                found.setdefault(row.key, {})[cell] = msgspec.json.decode(row.value)
        return found

    def lists(self, computation: str, cell: str) -> dict[str, list[Any]]:
        """Elements of a list cell by key."""
        found: dict[str, list[Any]] = {}
        with Reader(self.url, self.name) as reader:
            for row in reader.scan_state(computation):
                if row.cell == cell and row.entry:
                    found.setdefault(row.key, []).append(msgspec.json.decode(row.value))
        return found

    def rows(self, table: str) -> list[dict[str, Any]]:
        with Reader(self.url, self.name) as reader:
            return [dict(row) for row in reader.sink_rows(table)]

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        return postgres_tables(self.url, self.name)
