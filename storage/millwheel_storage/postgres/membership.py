"""Members of a cluster: joining, leases, the leader, and the sessions of the dead.

Lives here: the calls of `ClusterStore` about processes.  Never here: who owns what (`placements`), or a clock: only the
database judges a lease.  Invariant: at any moment of the database's clock at most one leader has a valid lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg.types.numeric import Int8

from millwheel.cluster import Leader, Member
from millwheel.errors import InvariantError
from millwheel_storage.decisions import check_opened
from millwheel_storage.postgres import query
from millwheel_storage.postgres.prepared import Connection
from millwheel_storage.statements import joining, placing


def session_name(schema: str, incarnation: int) -> str:
    """What the sessions of a member are called in `pg_stat_activity`; less than the 63 bytes that Postgres keeps.

    >>> session_name("demo", 7)
    'millwheel demo 7'
    """
    return f"millwheel {schema} {incarnation}"


def session_name_of_a_run(schema: str) -> str:
    """The same of an embedded run, which is no member of a cluster.

    >>> session_name_of_a_run("demo")
    'millwheel demo embedded'
    """
    return f"millwheel {schema} embedded"


async def join(connection: Connection, member: Member, key: bytes, lease_us: int, shape: bytes) -> Member:
    """See `ClusterStore.join`; the incarnation of `member` is not known yet.

    `shape` is the digest of what this process has opened, empty when it has not.  `IncompatibleStore` is raised when somebody
    has opened another one since.
    """
    given = {"key": key, "name": member.name, "role": member.role, "address": member.address, "lease_us": lease_us}
    async with connection.transaction():
        check_opened(await query.first(connection, placing.HOLD_SHAPE), shape)
        row = await query.first(connection, joining.JOIN, given)
    if row is None:
        raise InvariantError("there is no row")
    return Member(*row)


async def renew(connection: Connection, incarnation: int, lease_us: int) -> bool:
    """See `ClusterStore.renew`."""
    row = await query.first(connection, joining.RENEW, {"incarnation": incarnation, "lease_us": lease_us})
    return row == (True,)


async def lead(connection: Connection, schema: str, incarnation: int, lease_us: int) -> Leader | None:
    """See `ClusterStore.lead`.  A leader that was stopped may have a decision open, so its sessions are ended first."""
    given = {"incarnation": incarnation, "lease_us": lease_us}
    kept = await query.first(connection, joining.STAY_LEADER, given)
    if kept is not None:
        return Leader(incarnation, *kept)
    found = await query.first(connection, joining.READ_LEADER)
    if found is None:
        raise InvariantError("there is no row")
    earlier, valid = found
    if valid and earlier != incarnation:
        return None
    if earlier not in (None, incarnation):
        await expel(connection, schema, [earlier])
    return await _take_over(connection, incarnation, given)


async def _take_over(connection: Connection, incarnation: int, given: dict[str, Any]) -> Leader | None:
    async with connection.transaction():
        await connection.execute(joining.LOCK_LEADER)
        for statement in (joining.STAY_LEADER, joining.BECOME_LEADER):  # another call for it may have been first
            row = await query.first(connection, statement, given)
            if row is not None:
                return Leader(incarnation, *row)
    return None


async def leave(connection: Connection, incarnation: int) -> None:
    """See `ClusterStore.leave`."""
    async with connection.transaction():
        await connection.execute(placing.LOCK_CLUSTER)
        if await query.first(connection, joining.FORGET_MEMBER, {"incarnation": incarnation}) is None:
            return
        sources = await query.rows(connection, placing.DISOWN_SOURCES, (incarnation,))
        intervals = await query.rows(connection, placing.DISOWN_INTERVALS, (incarnation,))
        owned = {"intervals": [Int8(id_) for (id_,) in intervals], "sources": [source for (source,) in sources]}
        await connection.execute(placing.FENCE_OWNERS, owned)
        await connection.execute(placing.MAP_CHANGED)
        if await query.first(connection, joining.LEADS, (incarnation,)) is not None:
            await connection.execute(joining.RESIGN, {"incarnation": incarnation})


async def expel(connection: Connection, schema: str, incarnations: Sequence[int]) -> int:
    """See `ClusterStore.expel`; only sessions of roles whose rights this one has, and of workers for a controller."""
    given = {
        "incarnations": [Int8(incarnation) for incarnation in incarnations],
        "names": [session_name(schema, incarnation) for incarnation in incarnations],
    }
    statements = [joining.END_SESSIONS]
    if await query.first(connection, joining.MAY_END_WORKERS, (schema,)) is not None:
        statements.append(joining.END_WORKER_SESSIONS)
    ended = [await query.first(connection, statement, given) for statement in statements]
    return sum(int(row[0]) for row in ended if row is not None)
