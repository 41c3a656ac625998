"""A query for `millwheel.library.LookUp`: one row of Postgres for a key.

Lives here: the connection.  Never here: a cache.  The hook waits for the answer, and so does its whole process.  So the table
needs an index, and `fresh_for` should be as long as the purpose allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.rows import dict_row


class PostgresQuery:
    """`query` has one parameter, `%s`, the key; of several rows the first one counts.  `store` is a postgresql:// URL.

    It connects at the first question, and again when the server was restarted.  It raises what psycopg raises.  A hook that
    meets such an error is tried again, and after that its key is quarantined.
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
