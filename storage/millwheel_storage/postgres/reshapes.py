"""Splits and merges of intervals: each decision in one transaction, or all that a new version wants in the one that opens it.

Lives here: `ClusterStore.reshape`, and what other `split_keys` need.  Never here: which key ranges a decision makes
(`decisions`, `schema.recuts`), or SQL text.  Invariant: what a producer has sent and is not acked stays with one interval.
The frontier that a sender tells rests on all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import psycopg
from psycopg.types.numeric import Int8

from millwheel.cluster import Reshaping
from millwheel.core.faults.suspects import unite_marks
from millwheel.errors import StoreError
from millwheel.ids import IntervalId
from millwheel.ports import IntervalRow
from millwheel_storage.decisions import check_named, digest, reshaped
from millwheel_storage.postgres import orders, query
from millwheel_storage.postgres.catalogue import IntervalPlace
from millwheel_storage.postgres.prepared import Connection
from millwheel_storage.postgres.recovery import fold_log
from millwheel_storage.schema.creation import add_interval
from millwheel_storage.schema.recuts import Recut, steps
from millwheel_storage.statements import opening, placing, reshaping

Made = tuple[int, tuple[IntervalId, ...]]
"""A version of the map, and the intervals that are there now, by key."""


async def reshape(connection: Connection, decision: Reshaping) -> Made | None:
    """See `ClusterStore.reshape`; a decision whose reply was lost is known again, as by `place`."""
    check_named(decision)
    made: Made | None = None
    async with connection.transaction() as transaction:
        found = await query.first(connection, placing.LOCK_EPOCH, (decision.epoch,))
        if found == (decision.version + 1, digest(decision)):
            behind = (decision.intervals[0], len(decision.split_keys) + 1)
            rows = await query.rows(connection, reshaping.READ_SIBLINGS, behind)
            return decision.version + 1, tuple(IntervalId(id_) for (id_,) in rows)
        if found is None or found[0] != decision.version:
            return None
        ids = await _changed(connection, decision)
        await connection.execute(placing.FENCE_OWNERS, {"intervals": [Int8(id_) for id_ in ids], "sources": []})
        row = await query.first(connection, placing.DECIDED, (decision.epoch, digest(decision)))
        if row is None:  # a new leader came meanwhile
            raise psycopg.Rollback(transaction)
        if decision.order:
            await orders.settle(connection, decision.epoch, decision.order, "")
        made = int(row[0]), ids
    return made


async def _changed(connection: Connection, decision: Reshaping) -> tuple[IntervalId, ...]:
    named = [Int8(id_) for id_ in decision.intervals]
    await connection.execute(reshaping.LOCK_INTERVALS, (named,))
    rows, computation = await _named(connection, decision)
    if decision.back:
        for row in rows:
            await fold_log(connection, IntervalPlace(computation, row))
    logged = await query.first(connection, reshaping.LOGGED, (named,))
    if logged is not None:
        raise StoreError(f"the log of interval {logged[0]} is not empty: its owner has to fold all of it")
    return await _cut(connection, computation, rows, decision.split_keys)


async def recut(connection: Connection, wanted: Recut) -> None:
    """Let the intervals of a computation begin at other keys; nobody owns them, and their logs are folded."""
    names = {(kind, name): number for kind, name, number in await query.rows(connection, opening.READ_NAMES)}
    computation = names["computation", wanted.computation]
    known = [
        IntervalRow(id_, wanted.computation, low.decode(), None if high is None else high.decode())
        for id_, _, low, high in await query.rows(connection, opening.READ_INTERVALS, ([computation],))
    ]
    rows = {row.id: row for row in sorted(known, key=lambda row: row.low)}
    for step in steps([(row.low, row.id) for row in rows.values()], wanted):
        merged = [rows[id_] for id_ in step.merged]
        if len(merged) > 1:
            await _cut(connection, computation, merged, ())
        if step.cut:
            whole = msgspec.structs.replace(merged[0], high=merged[-1].high)
            await _cut(connection, computation, [whole], step.cut)


async def _cut(
    connection: Connection, computation: int, rows: Sequence[IntervalRow], split_keys: Sequence[str]
) -> tuple[IntervalId, ...]:
    """One interval becomes several, or several become one; the answer is by key."""
    ranges = reshaped(rows, split_keys)
    first, high = rows[0].id, ranges[0][1]
    await connection.execute(reshaping.END_AT, (None if high is None else high.encode(), first))
    new = [IntervalId(await add_interval(connection, computation, low, high)) for low, high in ranges[1:]]
    if new:
        for statement in reshaping.COPY:
            await connection.execute(statement, {"interval": first, "new": [Int8(id_) for id_ in new]})
    else:
        await _unite(connection, first, [row.id for row in rows[1:]])
    return first, *new


async def _named(connection: Connection, decision: Reshaping) -> tuple[list[IntervalRow], int]:
    """The intervals in the order of the decision, and the number of a computation of theirs."""
    named = [Int8(id_) for id_ in decision.intervals]
    found = {id_: rest for id_, *rest in await query.rows(connection, reshaping.READ_NAMED, (named,))}
    rows = []
    for interval in decision.intervals:
        if interval not in found:
            raise StoreError(f"interval {interval} is no interval of the map")
        name, low, high, computation, owner = found[interval]
        if owner is not None:
            raise StoreError(f"interval {interval} is owned by member {owner}")
        rows.append(IntervalRow(interval, name, low.decode(), None if high is None else high.decode()))
    return rows, computation


async def _unite(connection: Connection, first: IntervalId, others: Sequence[IntervalId]) -> None:
    given = [Int8(id_) for id_ in (first, *others)]
    suspicions = await query.rows(connection, reshaping.READ_SUSPICIONS, (given,))
    for statement in reshaping.UNITE:
        await connection.execute(statement, {"interval": first, "others": given[1:]})
    if suspicions:
        mark = unite_marks(mark for _, mark in suspicions)
        await connection.execute(reshaping.SET_SUSPICION, (first, max(ends for ends, _ in suspicions), mark))
