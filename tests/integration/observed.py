"""One connection for what a test asks many times: twenty new ones a second cost a fifth of a processor."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import psycopg


class Observed:
    """What lives in a schema of a Postgres; `unobserved` closes the connection."""

    url: str

    @cached_property
    def connection(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url, autocommit=True)

    def unobserved(self) -> None:
        if "connection" in self.__dict__:
            self.connection.close()
