"""A connection pooler between millwheel and Postgres that gives a session to somebody else after each transaction.

Lives here: how it is found out.  Never here: connecting.  Such a pooler (pgbouncer with `pool_mode = transaction`) carries
`search_path` from one client to the next.  Then a pipeline may write into the tables of another one, whose numbers look like
its own.  Invariant: a direct connection, and a pooler in session mode, are never refused.
"""

from __future__ import annotations

import secrets

from millwheel.errors import InvariantError, StoreError
from millwheel.limits import STORE_POOLER_LOOKS
from millwheel_storage.postgres import query
from millwheel_storage.postgres.connection import SessionPool
from millwheel_storage.postgres.prepared import Connection
from millwheel_storage.statements import opening

REFUSAL = (
    "a connection pooler gives the sessions of this store to others after each transaction, and with them the schema that "
    "is written to: connect to Postgres itself, or to a pool in session mode (pgbouncer: pool_mode = session)"
)


async def refuse_shared_sessions(one: SessionPool, other: SessionPool) -> None:
    """Raise `StoreError` when what `one` sets reaches `other`, or is gone when it looks again."""
    for _ in range(STORE_POOLER_LOOKS):
        mark = secrets.token_hex(8)
        if not await one.run(lambda connection, mark=mark: _mark(connection, mark)):  # type: ignore[misc]
            return
        if await other.run(_marked) == mark or await one.run(_marked) != mark:
            raise StoreError(REFUSAL)


async def _mark(connection: Connection, mark: str) -> bool:
    """Mark the session; whether it is another one than Postgres has told the client."""
    found = await query.first(connection, opening.MARK_SESSION, (mark,))
    if found is None:
        raise InvariantError("there is no row")
    return bool(found[0] != connection.info.backend_pid)


async def _marked(connection: Connection) -> str | None:
    found = await query.first(connection, opening.READ_MARK)
    return None if found is None else found[0]
