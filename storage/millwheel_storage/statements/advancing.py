"""Watermarks, and how far sources and their partitions are."""

from __future__ import annotations

from typing import Final

PERSIST_WATERMARKS: Final = """
WITH claim AS MATERIALIZED (
    SELECT c.name, c.sequencer IS NOT DISTINCT FROM o.sequencer AS held
    FROM unnest(%b::text[], %b::bigint[], %b::bigint[]) AS c (name, interval_id, sequencer)
    LEFT JOIN LATERAL (
        SELECT w.sequencer FROM ownership w WHERE w.interval_id = c.interval_id FOR SHARE
    ) AS o ON true
)
INSERT INTO watermark AS m (name, value)
SELECT w.name, w.value FROM unnest(%b::text[], %b::bigint[]) AS w (name, value)
WHERE NOT EXISTS (SELECT FROM claim c WHERE c.name = w.name AND NOT c.held) ORDER BY w.name
ON CONFLICT (name) DO UPDATE SET value = greatest(m.value, excluded.value)
RETURNING name
"""
"""Fenced by all that a value rests on.  Rows of `ownership` are locked one by one, in the order in which they are given."""

PERSIST_LED_WATERMARKS: Final = """
WITH claim AS MATERIALIZED (
    SELECT c.name, c.sequencer IS NOT DISTINCT FROM o.sequencer AS held
    FROM unnest(%b::text[], %b::bigint[], %b::bigint[]) AS c (name, interval_id, sequencer)
    LEFT JOIN LATERAL (
        SELECT w.sequencer FROM ownership w WHERE w.interval_id = c.interval_id FOR SHARE
    ) AS o ON true
), led AS MATERIALIZED (
    SELECT epoch FROM cluster_leader WHERE epoch = %b AND (SELECT count(*) FROM claim) >= 0 FOR SHARE
), kept AS (
    INSERT INTO watermark AS m (name, value)
    SELECT w.name, w.value FROM unnest(%b::text[], %b::bigint[]) AS w (name, value)
    WHERE (SELECT epoch FROM led) IS NOT NULL
      AND NOT EXISTS (SELECT FROM claim c WHERE c.name = w.name AND NOT c.held) ORDER BY w.name
    ON CONFLICT (name) DO UPDATE SET value = greatest(m.value, excluded.value)
    RETURNING name
)
SELECT name FROM kept UNION ALL SELECT NULL FROM led
"""
"""`PERSIST_WATERMARKS`, and the row of the leader is locked after those of the intervals, which counting them ensures.  A row
without a name says that the epoch is current."""

READ_WATERMARKS: Final = "SELECT name, value FROM watermark"
READ_UNFINISHED: Final = """
SELECT source, partition, interval_id, producer, position, finished, state, rejected FROM source
WHERE NOT finished ORDER BY source, partition
"""
OPENED_SOURCES: Final = """
SELECT w.name FROM unnest(%s::text[]) AS w (name) WHERE EXISTS (SELECT FROM source s WHERE s.source = w.name)
"""
"""One index probe for each name, however many partitions a source has."""

TAKE_UNFINISHED: Final = """
UPDATE ownership o SET sequencer = nextval('sequencer')
FROM (
    SELECT o.interval_id FROM ownership o JOIN source s USING (interval_id)
    WHERE s.source = %(source)s AND NOT s.finished
      AND (%(partitions)s::text[] IS NULL OR s.partition = ANY(%(partitions)s::text[]))
    ORDER BY o.interval_id FOR UPDATE OF o
) AS unfinished WHERE o.interval_id = unfinished.interval_id RETURNING o.interval_id
"""
END_PARTITIONS: Final = """
UPDATE source SET finished = true WHERE interval_id = ANY(%s) RETURNING partition
"""
END_SOURCE: Final = """
INSERT INTO watermark AS m (name, value) VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""

READ_OPEN_SOURCES: Final = """
SELECT partition, interval_id, producer, position, finished, state, rejected FROM source
WHERE source = %(source)s AND NOT finished
UNION ALL
SELECT partition, interval_id, producer, position, finished, state, rejected FROM source
WHERE source = %(source)s AND finished AND NOT signed
ORDER BY partition
"""
"""Two indexes, which hold nothing of what is finished and signed."""

READ_ALL_SOURCES: Final = """
SELECT partition, interval_id, producer, position, finished, state, rejected FROM source
WHERE source = %(source)s ORDER BY partition
"""
HAS_OPENED: Final = "SELECT EXISTS (SELECT 1 FROM source WHERE source = %(source)s)"
ROWS_READ: Final = "SELECT source, sum(position)::bigint FROM source GROUP BY source"

UNKNOWN_SIGNS: Final = """
SELECT w.sign FROM unnest(%b::bytea[]) AS w (sign)
LEFT JOIN LATERAL (SELECT true AS known FROM source_sign s WHERE s.source = %s AND s.sign = w.sign LIMIT 1) AS f ON true
WHERE f.known IS NULL
"""
"""A probe for each sign, whatever the planner thinks of reading the whole table instead."""

FIND_SOURCES: Final = """
WITH found AS (
    SELECT g.interval_id FROM unnest(%(signs)b::bytea[]) AS w (sign)
    CROSS JOIN LATERAL (
        SELECT s.interval_id FROM source_sign s WHERE s.source = %(source)s AND s.sign = w.sign OFFSET 0
    ) AS g
    UNION
    SELECT g.interval_id FROM unnest(%(names)b::text[]) AS w (name)
    CROSS JOIN LATERAL (
        SELECT s.interval_id FROM source s WHERE s.source = %(source)s AND s.partition = w.name OFFSET 0
    ) AS g
)
SELECT p.partition, p.interval_id, p.producer, p.position, p.finished, p.state, p.rejected FROM found
CROSS JOIN LATERAL (SELECT * FROM source s WHERE s.interval_id = found.interval_id OFFSET 0) AS p
ORDER BY p.partition
"""
ADD_SIGNS: Final = """
INSERT INTO source_sign (source, sign, interval_id)
SELECT s.source, w.sign, s.interval_id
FROM unnest(%b::bytea[], %b::bigint[]) AS w (sign, interval_id) JOIN source s USING (interval_id)
WHERE s.finished ORDER BY s.source, w.sign, s.interval_id
ON CONFLICT DO NOTHING
"""
SIGN_SOURCES: Final = (
    "UPDATE source SET signed = true WHERE interval_id = ANY(%b::bigint[]) AND finished AND NOT signed"
)

ADD_SOURCES: Final = """
WITH numbered AS (
    SELECT p.partition, p.state, nextval('interval_number') AS interval_id, nextval('sequencer') AS producer
    FROM (
        SELECT * FROM unnest(%(names)b::text[], %(states)b::bytea[]) WITH ORDINALITY AS w (partition, state, place)
        ORDER BY w.place OFFSET 0
    ) AS p
), made AS (
    INSERT INTO interval (id, computation, low, high) SELECT interval_id, %(computation)s, ''::bytea, NULL FROM numbered
), owned AS (
    INSERT INTO ownership (interval_id, sequencer) SELECT interval_id, 0 FROM numbered
)
INSERT INTO source (source, partition, interval_id, producer, position, finished, state)
SELECT %(source)s, partition, interval_id, producer, 0, false, state FROM numbered
"""
ADVANCE: Final = """
UPDATE source s SET position = w.position, finished = w.finished, state = w.state, rejected = w.rejected
FROM unnest(%b::bigint[], %b::bigint[], %b::bigint[], %b::boolean[], %b::bytea[], %b::bigint[])
     AS w (interval_id, sequencer, position, finished, state, rejected)
JOIN (
    SELECT o.interval_id, o.sequencer FROM ownership o WHERE o.interval_id = ANY(%b::bigint[])
    ORDER BY o.interval_id FOR SHARE
) AS owned USING (interval_id, sequencer)
WHERE s.interval_id = w.interval_id
RETURNING s.interval_id
"""
COUNT_REJECTED: Final = "SELECT coalesce(sum(rejected), 0)::bigint FROM source WHERE rejected > 0"
"""Of all sources since the pipeline began; the index has only partitions that have rejected something."""
