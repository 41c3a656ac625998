"""The store on Postgres."""

from __future__ import annotations

from millwheel_storage.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
