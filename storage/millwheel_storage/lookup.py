"""A query for `millwheel.library.LookUp`: one row of Postgres for a key.

Lives here: the connection.  Never here: a cache.  The hook waits for the answer, and with it its process: keep the table
indexed, and `fresh_for` as long as the purpose allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.rows import dict_row


class PostgresQuery:
    """`query` has one parameter, `%s`, the key; of several rows the first one counts.  `store` is a postgresql:// URL.

    It connects when it is asked first, and once more when the server has been started again since.  Raises what psycopg
    raises: a hook that meets it is tried again, and its key then waits in quarantine.
    """

    def __init__(self, store: str, query: str) -> None:
        self._store = store
        self._query = query.encode()
        self._connection: psycopg.Connection[dict[str, Any]] | None = None

    def __call__(self, key: str, /) -> Mapping[str, Any] | None:
        """The row of a key, as column to value."""
        if self._connection is not None:
            try:
                return self._fetch(self._connection, key)
            except psycopg.OperationalError:
                self.close()
        self._connection = psycopg.connect(self._store, autocommit=True, row_factory=dict_row)
        return self._fetch(self._connection, key)

    def _fetch(self, connection: psycopg.Connection[dict[str, Any]], key: str) -> dict[str, Any] | None:
        return connection.execute(self._query, (key,)).fetchone()

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
