"""The map of a cluster: who owns which interval and which source.

Every decision locks the row of `cluster` first.  Rows of `source_owner`, `interval_owner` and `ownership` come after it.
Those of `ownership` are locked in the order of their ids, as commits lock them.  The row of `cluster_leader` comes last.  So
a decision that waits for an interval keeps nobody from renewing the lease of a leader, or from becoming one.
"""

from __future__ import annotations

from typing import Final

LOCK_CLUSTER: Final = "SELECT FROM cluster FOR UPDATE"
LOCK_EPOCH: Final = """
SELECT c.version, c.decision FROM cluster c WHERE EXISTS (SELECT FROM cluster_leader l WHERE l.epoch = %s) FOR UPDATE OF c
"""
DECIDED: Final = """
WITH led AS MATERIALIZED (SELECT epoch FROM cluster_leader WHERE epoch = %s FOR SHARE)
UPDATE cluster SET version = version + 1, decision = %s FROM led RETURNING version
"""
"""The last statement of a decision; no row when another leader came meanwhile."""

COUNT_ALIVE: Final = "SELECT count(*) FROM lease WHERE incarnation = ANY(%s::bigint[]) AND expires > clock_timestamp()"
PLACE_SOURCES: Final = """
UPDATE source_owner s SET owner = w.owner FROM unnest(%s::text[], %s::bigint[]) AS w (source, owner)
WHERE s.source = w.source RETURNING s.source
"""
PLACE_INTERVALS: Final = """
UPDATE interval_owner i SET owner = w.owner FROM unnest(%s::bigint[], %s::bigint[]) AS w (interval_id, owner)
WHERE i.interval_id = w.interval_id RETURNING i.interval_id
"""
FENCE_OWNERS: Final = """
WITH locked AS MATERIALIZED (
    SELECT interval_id FROM ownership WHERE interval_id = ANY(ARRAY(
        SELECT unnest(%(intervals)s::bigint[])
        UNION ALL SELECT s.interval_id FROM source s WHERE s.source = ANY(%(sources)s::text[]) AND NOT s.finished
    )) ORDER BY interval_id FOR UPDATE
), numbered AS MATERIALIZED (
    SELECT interval_id, nextval('sequencer') AS sequencer FROM locked
)
UPDATE ownership o SET sequencer = n.sequencer FROM numbered n WHERE o.interval_id = n.interval_id
RETURNING o.interval_id, o.sequencer
"""
"""A new sequencer for each interval, and for the unfinished partitions of each source."""

DISOWN_SOURCES: Final = "UPDATE source_owner SET owner = NULL WHERE owner = %s RETURNING source"
DISOWN_INTERVALS: Final = "UPDATE interval_owner SET owner = NULL WHERE owner = %s RETURNING interval_id"
TAKEN_OUTSIDE: Final = """
WITH taken AS (
    UPDATE interval_owner SET owner = NULL WHERE interval_id = ANY(%s::bigint[]) AND owner IS NOT NULL RETURNING 1
)
UPDATE cluster SET version = version + 1 WHERE EXISTS (SELECT FROM taken)
"""
"""Whoever is no member takes intervals from the members that own them."""

OWNS_SOURCE: Final = "SELECT FROM source_owner WHERE source = %s AND owner = %s FOR SHARE"
FENCE_PARTITIONS: Final = """
WITH locked AS MATERIALIZED (
    SELECT o.interval_id FROM ownership o JOIN source s USING (interval_id)
    WHERE o.interval_id = ANY(%s::bigint[]) AND s.source = %s ORDER BY o.interval_id FOR UPDATE OF o
), numbered AS MATERIALIZED (
    SELECT interval_id, nextval('sequencer') AS sequencer FROM locked
)
UPDATE ownership o SET sequencer = n.sequencer FROM numbered n WHERE o.interval_id = n.interval_id
RETURNING o.interval_id, o.sequencer
"""

READ_CLUSTER: Final = """
SELECT v.version, m.incarnation, c.epoch, m.address
FROM cluster v CROSS JOIN cluster_leader c
LEFT JOIN cluster_member m ON m.incarnation = c.incarnation AND c.expires > clock_timestamp()
"""
READ_SHAPE: Final = "SELECT shape FROM cluster"
HOLD_SHAPE: Final = "SELECT shape FROM cluster FOR SHARE"
SET_SHAPE: Final = "UPDATE cluster SET shape = %s"
LIVING_MEMBERS: Final = """
SELECT m.incarnation, m.name, m.role, m.address, (extract(epoch FROM l.expires) * 1000000)::bigint
FROM cluster_member m JOIN lease l USING (incarnation) WHERE l.expires > clock_timestamp() ORDER BY m.incarnation
"""
READ_MEMBERS: Final = """
SELECT m.incarnation, m.name, m.role, m.address, l.expires > clock_timestamp()
FROM cluster_member m JOIN lease l USING (incarnation) ORDER BY m.incarnation
"""
READ_PLACED: Final = """
SELECT i.id, n.name, i.low, i.high, p.owner, o.sequencer
FROM interval_owner p JOIN interval i ON i.id = p.interval_id JOIN ownership o ON o.interval_id = p.interval_id
JOIN name n ON n.kind = 'computation' AND n.number = i.computation ORDER BY i.id
"""
READ_PLACED_SOURCES: Final = "SELECT source, owner FROM source_owner ORDER BY source"

KNOWN_INTERVALS: Final = "SELECT interval_id FROM interval_owner"
ADD_TO_MAP: Final = """
WITH added AS (INSERT INTO interval_owner (interval_id) SELECT unnest(%(intervals)s::bigint[]) ON CONFLICT DO NOTHING)
INSERT INTO source_owner (source) SELECT unnest(%(sources)s::text[]) ON CONFLICT DO NOTHING
"""
DROP_FROM_MAP: Final = """
WITH gone AS (DELETE FROM interval_owner WHERE interval_id = ANY(%(intervals)s::bigint[]))
DELETE FROM source_owner WHERE source = ANY(%(sources)s::text[])
"""
MAP_CHANGED: Final = "UPDATE cluster SET version = version + 1"
