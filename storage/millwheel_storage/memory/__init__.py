"""The twin of the store on Postgres, in memory.  It needs no psycopg."""

from __future__ import annotations

from millwheel_storage.memory.sharing import MemoryStore

__all__ = ["MemoryStore"]
