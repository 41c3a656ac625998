"""Epochs: what is complete, and the way back to it."""

from __future__ import annotations

from typing import Final

HELD: Final = """
SELECT count(*) FROM unnest(%b::bigint[], %b::bigint[]) AS w (interval_id, sequencer)
JOIN (
    SELECT o.interval_id, o.sequencer FROM ownership o WHERE o.interval_id = ANY(%b::bigint[])
    ORDER BY o.interval_id FOR SHARE
) AS owned USING (interval_id, sequencer)
"""
"""How many of these are current.  They stay so until the transaction ends."""

DECLARE: Final = """
INSERT INTO declared_epoch AS e (number) VALUES (%b)
ON CONFLICT (singleton) DO UPDATE SET number = excluded.number WHERE e.number < excluded.number
RETURNING number
"""
READ_DECLARED: Final = "SELECT number FROM declared_epoch"
READ_SINKS: Final = """
SELECT l.interval_id, l.sequencer, l.seq, l.payload
FROM unnest(%b::bigint[], %b::bigint[], %b::bigint[]) AS w (interval_id, sequencer, seq)
JOIN checkpoint_log l USING (interval_id, sequencer, seq) WHERE l.epoch = %b
"""
RAISE_WATERMARKS: Final = """
INSERT INTO watermark AS m (name, value)
SELECT w.name, w.value FROM unnest(%b::text[], %b::bigint[]) AS w (name, value) ORDER BY w.name
ON CONFLICT (name) DO UPDATE SET value = greatest(m.value, excluded.value)
"""
FENCE_OTHERS: Final = """
UPDATE ownership o SET sequencer = nextval('sequencer')
FROM (
    SELECT o.interval_id FROM ownership o JOIN interval i ON i.id = o.interval_id
    JOIN name n ON n.kind = 'computation' AND n.number = i.computation
    WHERE NOT starts_with(n.name, %s) AND NOT i.id = ANY(%s::bigint[])
    ORDER BY o.interval_id FOR UPDATE OF o
) AS others WHERE o.interval_id = others.interval_id
"""
DROP_LATER: Final = "DELETE FROM checkpoint_log WHERE epoch > %s"
DROP_UNDECLARED: Final = "DELETE FROM checkpoint_log WHERE epoch > coalesce((SELECT number FROM declared_epoch), 0)"
HOLD_TERM: Final = "SELECT FROM cluster_leader WHERE epoch = %b FOR SHARE"
"""No row when another one leads.  It comes last: whoever waits for an interval keeps nobody from leading."""
