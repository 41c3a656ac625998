"""What an operator wants of the map, and who may still send."""

from __future__ import annotations

from typing import Final

ADD_ORDER: Final = """
INSERT INTO map_order (wish) SELECT %(wish)s::bytea
WHERE NOT EXISTS (SELECT FROM map_order WHERE refusal IS NULL AND wish = %(wish)s::bytea)
"""
FIND_ORDER: Final = "SELECT max(number) FROM map_order WHERE wish = %s"
READ_ORDERS: Final = "SELECT number, wish FROM map_order WHERE refusal IS NULL ORDER BY number"
SETTLE_ORDER: Final = """
WITH led AS MATERIALIZED (
    SELECT epoch FROM cluster_leader WHERE epoch = %(epoch)s FOR SHARE
), settled AS (
    UPDATE map_order SET refusal = %(refusal)s
    WHERE number = %(number)s AND refusal IS NULL AND EXISTS (SELECT FROM led)
), pruned AS (
    DELETE FROM map_order WHERE number <= %(oldest)s AND refusal IS NOT NULL AND EXISTS (SELECT FROM led)
)
SELECT FROM led
"""
"""What was settled long before goes; what is open stays, however old it is."""
FORGET_HOT_KEYS: Final = """
DELETE FROM hot_key h WHERE NOT EXISTS (SELECT FROM cluster_member m WHERE m.incarnation = h.incarnation)
"""
NOTE_HOT_KEYS: Final = """
INSERT INTO hot_key (incarnation, keys)
SELECT m.incarnation, %(keys)s::bytea FROM cluster_member m WHERE m.incarnation = %(incarnation)s
ON CONFLICT (incarnation) DO UPDATE SET keys = excluded.keys
"""
READ_HOT_KEYS: Final = "SELECT h.keys FROM hot_key h JOIN cluster_member m USING (incarnation) ORDER BY h.incarnation"
FORGET_STANDSTILLS: Final = """
DELETE FROM standstill s WHERE NOT EXISTS (SELECT FROM cluster_member m WHERE m.incarnation = s.incarnation)
"""
NOTE_STANDSTILLS: Final = """
INSERT INTO standstill (incarnation, found)
SELECT m.incarnation, %(found)s::bytea FROM cluster_member m WHERE m.incarnation = %(incarnation)s
ON CONFLICT (incarnation) DO UPDATE SET found = excluded.found
"""
READ_STANDSTILLS: Final = """
SELECT m.name, s.found FROM standstill s JOIN cluster_member m USING (incarnation) JOIN lease l USING (incarnation)
WHERE l.expires > clock_timestamp() ORDER BY s.incarnation
"""
READ_REFUSAL: Final = "SELECT refusal FROM map_order WHERE number = %s"

SENDING_OWNERS: Final = """
WITH RECURSIVE logged AS (
    (SELECT interval_id, sequencer FROM checkpoint_log ORDER BY interval_id, sequencer LIMIT 1)
    UNION ALL
    SELECT n.interval_id, n.sequencer FROM logged g CROSS JOIN LATERAL (
        SELECT c.interval_id, c.sequencer FROM checkpoint_log c
        WHERE (c.interval_id, c.sequencer) > (g.interval_id, g.sequencer) ORDER BY c.interval_id, c.sequencer LIMIT 1
    ) AS n
)
SELECT interval_id, sequencer FROM logged
UNION SELECT o.interval_id, o.sequencer FROM interval_owner p JOIN ownership o USING (interval_id)
"""
"""A step down the index for each owner in the log, however many rows each has."""

SENDING_CHANNELS: Final = """
WITH RECURSIVE stored AS (
    (
        SELECT interval_id, subscription, producer FROM production
        ORDER BY interval_id, subscription, producer LIMIT 1
    )
    UNION ALL
    SELECT n.interval_id, n.subscription, n.producer FROM stored s CROSS JOIN LATERAL (
        SELECT p.interval_id, p.subscription, p.producer FROM production p
        WHERE (p.interval_id, p.subscription, p.producer) > (s.interval_id, s.subscription, s.producer)
        ORDER BY p.interval_id, p.subscription, p.producer LIMIT 1
    ) AS n
)
SELECT DISTINCT subscription, producer FROM stored
"""
