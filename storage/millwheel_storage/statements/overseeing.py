"""What an operator wants to see of a whole pipeline.  Every count is bounded, and walks an index."""

from __future__ import annotations

from typing import Final

BY_INDEX: Final = """
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
       set_config('enable_sort', 'off', true), set_config('enable_bitmapscan', 'off', true)
"""
"""For the transaction.  A plan by figures from when a table was small could read all of it."""

KNOWS_CLUSTERS: Final = "SELECT to_regclass('interval_owner') IS NOT NULL"
READ_NOW: Final = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
READ_LEASES: Final = """
SELECT m.incarnation, m.name, m.role, m.address, l.expires > c.now,
       CASE WHEN l.expires = '-infinity' THEN NULL ELSE (extract(epoch FROM l.expires - c.now) * 1000000)::bigint END
FROM cluster_member m JOIN lease l USING (incarnation) CROSS JOIN (SELECT clock_timestamp() AS now) AS c
ORDER BY m.incarnation
"""
READ_BACKLOGS: Final = """
SELECT i.id, n.name, i.low, i.high, p.owner, o.sequencer, l.rows, l.bytes, u.rows
FROM interval_owner p JOIN interval i ON i.id = p.interval_id JOIN ownership o ON o.interval_id = p.interval_id
JOIN name n ON n.kind = 'computation' AND n.number = i.computation
CROSS JOIN LATERAL (
    SELECT count(*) AS rows, coalesce(sum(octet_length(c.payload)), 0)::bigint AS bytes FROM (
        SELECT payload FROM checkpoint_log WHERE interval_id = p.interval_id ORDER BY sequencer, seq LIMIT %(limit)s
    ) AS c
) AS l
CROSS JOIN LATERAL (
    SELECT count(*) AS rows FROM (
        SELECT FROM production WHERE interval_id = p.interval_id
        ORDER BY subscription, producer, sequence LIMIT %(limit)s
    ) AS c
) AS u
ORDER BY i.id
"""
"""The length of a payload is known without reading it."""

READ_SOURCE_BACKLOGS: Final = """
SELECT s.source, s.owner, u.rows FROM source_owner s CROSS JOIN LATERAL (
    SELECT count(*) AS rows FROM (
        SELECT FROM source p WHERE p.source = s.source AND NOT p.finished ORDER BY p.partition LIMIT %(limit)s
    ) AS c
) AS u
ORDER BY s.source
"""
