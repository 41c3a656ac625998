"""A pipeline at a glance: members, map, watermarks, and what waits in each interval.

Lives here: one read, in one snapshot.  Never here: writes, or what an interval holds.  Its cost grows with the number of
intervals, and not with what is stored: every count stops at a bound.
"""

from __future__ import annotations

from typing import Any

import psycopg

from millwheel import limits
from millwheel.cluster import (
    IntervalBacklog,
    Leader,
    Member,
    MemberLease,
    Overview,
    PlacedInterval,
    PlacedSource,
    SourceBacklog,
)
from millwheel.errors import InvariantError, StoreError
from millwheel_storage.statements import advancing, opening, overseeing, placing


def overview(connection: psycopg.Connection[tuple[Any, ...]]) -> Overview:
    """Everything at one moment; `StoreError` for a store that an earlier version of millwheel has opened last."""
    with connection.transaction():
        connection.execute(opening.SNAPSHOT)
        connection.execute(overseeing.BY_INDEX)
        if not _one(connection, overseeing.KNOWS_CLUSTERS)[0]:
            raise StoreError("the store was opened last by an earlier version of millwheel: start the pipeline once")
        given = {"limit": limits.OVERVIEW_ROWS}
        version, *leader = _one(connection, placing.READ_CLUSTER)
        return Overview(
            now_us=_one(connection, overseeing.READ_NOW)[0],
            version=version,
            leader=None if leader[0] is None else Leader(*leader),
            members=tuple(
                MemberLease(Member(*row), left) for *row, left in connection.execute(overseeing.READ_LEASES).fetchall()
            ),
            intervals=tuple(_interval(*row) for row in connection.execute(overseeing.READ_BACKLOGS, given).fetchall()),
            sources=tuple(
                SourceBacklog(PlacedSource(name, owner), unfinished)
                for name, owner, unfinished in connection.execute(overseeing.READ_SOURCE_BACKLOGS, given).fetchall()
            ),
            watermarks=dict(connection.execute(advancing.READ_WATERMARKS).fetchall()),
        )


def _interval(id_: Any, name: str, low: bytes, high: bytes | None, *rest: Any) -> IntervalBacklog:
    owner, sequencer, *backlog = rest
    placed = PlacedInterval(id_, name, low.decode(), None if high is None else high.decode(), owner, sequencer)
    return IntervalBacklog(placed, *backlog)


def _one(connection: psycopg.Connection[tuple[Any, ...]], statement: str) -> tuple[Any, ...]:
    row = connection.execute(statement.encode()).fetchone()
    if row is None:
        raise InvariantError("there is no row")
    return row
