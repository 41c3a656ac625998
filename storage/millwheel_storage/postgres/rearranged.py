"""A new version under which something moves between intervals, to a combiner or to other key ranges, or goes.

Lives here: what is done in the transaction that opens it, in which intervals and subscriptions have got their numbers.  Never
here: when it is done (`schema.evolution`), what moves or goes (`handover`, `reshapes`,
`dropped`), or SQL text.  Invariant: nobody who knows the
earlier version writes after it.
"""

from __future__ import annotations

from millwheel.ids import IntervalId
from millwheel_storage.postgres import query
from millwheel_storage.postgres.catalogue import Catalogue
from millwheel_storage.postgres.dropped import drop
from millwheel_storage.postgres.handover import hand_back, hand_over, take_back
from millwheel_storage.postgres.prepared import Connection
from millwheel_storage.postgres.recovery import fold_log
from millwheel_storage.postgres.reshapes import recut
from millwheel_storage.schema.evolution import Plan
from millwheel_storage.statements import handing_over


async def rearrange(connection: Connection, planned: Plan) -> None:
    """Fence all and fold all logs; then move what is to be moved."""
    await connection.execute(handing_over.NO_TIMEOUT)
    await connection.execute(handing_over.FENCE_ALL)
    await connection.execute(handing_over.DISOWN_ALL)
    catalogue = Catalogue()
    for (interval,) in await query.rows(connection, handing_over.LOGGED):
        await fold_log(connection, await catalogue.place(connection, IntervalId(interval)))
    await hand_back(connection, planned.handbacks)
    await take_back(connection, planned.recalls)
    if planned.drops:
        await drop(connection, planned.drops, planned.shape)
    for it in planned.recuts:
        await recut(connection, it)
    await hand_over(connection, planned.handovers)
