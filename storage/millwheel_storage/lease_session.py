"""The lease of one member of a cluster, renewed over one plain connection.

Lives here: what `millwheel.runtime.lease_keeper`, a process of its own, needs of Postgres.  Never here: a clock, or waiting;
whoever calls bounds the time of a call.  This module imports little, because that process has to be quick to start.
"""

from __future__ import annotations

from math import ceil

import psycopg

from millwheel.errors import StoreUnavailable
from millwheel.limits import LEASE_ATTEMPT_S
from millwheel_storage.statements import joining


class LeaseSession:
    """One connection, opened when it is needed, and again after an error."""

    def __init__(self, url: str, schema: str) -> None:
        self._url = url
        self._schema = schema
        self._connection: psycopg.Connection | None = None

    def renew(self, incarnation: int, lease_us: int) -> bool:
        """See `ClusterStore.renew`.  Raises `StoreUnavailable` when nobody knows whether it was renewed: ask again."""
        try:
            row = (
                self._connected().execute(joining.RENEW, {"incarnation": incarnation, "lease_us": lease_us}).fetchone()
            )
        except psycopg.Error as error:
            self.close()
            raise StoreUnavailable(f"the lease was not renewed: {' '.join(str(error).split())}") from error
        except BaseException:  # cut off by whoever calls: what the connection is in the middle of is unknown
            self.close()
            raise
        return row == (True,)

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self) -> psycopg.Connection:
        if self._connection is None:
            self._connection = psycopg.connect(
                self._url, autocommit=True, connect_timeout=ceil(LEASE_ATTEMPT_S), application_name="millwheel lease"
            )
            self._connection.execute("SELECT set_config('search_path', %s, false)", (f'"{self._schema}"',))
        return self._connection
