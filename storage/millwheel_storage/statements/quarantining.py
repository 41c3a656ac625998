"""Elements in quarantine, redrives that are asked for, and marks of suspects."""

from __future__ import annotations

from typing import Final

CLEAR_QUARANTINE: Final = "DELETE FROM quarantine WHERE computation = %b AND key = ANY(%b::bytea[])"
CLEAR_REDRIVES: Final = """
DELETE FROM redrive r USING unnest(%b::bytea[], %b::bigint[], %b::bigint[]) AS w (key, sequencer, seq)
WHERE r.computation = %b AND r.key = w.key AND (r.sequencer, r.seq) < (w.sequencer, w.seq)
"""
"""A key that was released may have failed again before a request, which is kept then: whoever asks sees the log."""

APPEND_QUARANTINE: Final = """
INSERT INTO quarantine (computation, key, subscription, producer, sequence, value, timestamp, tag, kind, error)
SELECT %b, e.key, e.subscription, e.producer, e.sequence, e.value, e.timestamp, e.tag, e.kind, e.error
FROM unnest(
    %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bytea[], %b::bytea[], %b::bytea[], %b::bytea[], %b::text[]
) WITH ORDINALITY AS e (subscription, producer, sequence, timestamp, key, tag, error, value, kind, nth)
ORDER BY e.nth
"""
DROP_QUARANTINE: Final = """
DELETE FROM quarantine q USING unnest(%b::bytea[], %b::bigint[]) AS d (key, count) CROSS JOIN LATERAL (
    SELECT f.place FROM quarantine f WHERE f.computation = %b AND f.key = d.key ORDER BY f.place LIMIT d.count
) AS first
WHERE q.computation = %b AND q.key = d.key AND q.place = first.place
"""
FETCH_QUARANTINE: Final = """
SELECT f.key, f.subscription, f.producer, f.sequence, f.value, f.timestamp, f.tag, f.kind, f.error
FROM unnest(%b::bytea[]) AS wanted (key) CROSS JOIN LATERAL (
    SELECT * FROM quarantine q WHERE q.computation = %b AND q.key = wanted.key ORDER BY q.place LIMIT %b
) AS f
ORDER BY f.key, f.place LIMIT %b
"""
COUNT_QUARANTINE: Final = "SELECT key, count(*) FROM quarantine WHERE computation = %s GROUP BY key"
COUNT_KEYS: Final = """
SELECT count(*)
FROM (SELECT DISTINCT i.computation FROM interval_owner o JOIN interval i ON i.id = o.interval_id) AS placed
JOIN (SELECT DISTINCT computation, key FROM quarantine) AS keys USING (computation)
"""
"""Of the computations of the map: quarantines of one that has left the pipeline stay in the store."""

COUNT_KEYS_NAME: Final = "count_quarantine"
MAY_COUNT_KEYS: Final = """
SELECT FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = %s AND p.proname = 'count_quarantine' AND has_function_privilege(p.oid, 'EXECUTE')
"""
CALL_COUNT_KEYS: Final = "SELECT count_quarantine()"
"""`COUNT_KEYS` with the rights of workers, for a controller that has a role of its own (`schema.grants`)."""

UNFOLDED: Final = """
SELECT FROM checkpoint_log WHERE interval_id IN (SELECT interval_id FROM interval_owner)
  AND epoch <= coalesce((SELECT number FROM declared_epoch), 0) LIMIT 1
"""
READ_QUARANTINE: Final = """
SELECT key, subscription, producer, sequence, value, timestamp, tag, kind, error FROM quarantine
WHERE computation = %s AND key = %s ORDER BY place LIMIT %s
"""
READ_REDRIVES: Final = """
SELECT n.name, r.key FROM name n CROSS JOIN LATERAL (
    SELECT key FROM redrive
    WHERE computation = n.number AND key >= CASE WHEN n.name = %(name)s THEN %(key)s::bytea ELSE ''::bytea END
    ORDER BY key LIMIT %(limit)s
) AS r
WHERE n.kind = 'computation' AND n.name COLLATE "C" >= %(name)s
ORDER BY n.name COLLATE "C", r.key LIMIT %(limit)s
"""
REQUEST_REDRIVES: Final = """
INSERT INTO redrive AS r (computation, key, sequencer, seq)
SELECT %(computation)s, w.key, coalesce(l.sequencer, 0), coalesce(l.seq, 0)
FROM unnest(%(keys)s::bytea[]) AS w (key) LEFT JOIN LATERAL (
    SELECT c.sequencer, c.seq FROM interval i JOIN checkpoint_log c ON c.interval_id = i.id
    WHERE i.computation = %(computation)s AND i.low <= w.key AND (i.high IS NULL OR w.key < i.high)
    ORDER BY c.sequencer DESC, c.seq DESC LIMIT 1
) AS l ON true
ORDER BY w.key
ON CONFLICT (computation, key) DO UPDATE SET sequencer = excluded.sequencer, seq = excluded.seq
WHERE (r.sequencer, r.seq) < (excluded.sequencer, excluded.seq)
"""

# Suspicions

BEGIN_SUSPICION: Final = """
INSERT INTO suspicion AS s (interval_id, ends, mark) VALUES (%s, 1, '')
ON CONFLICT (interval_id) DO UPDATE SET ends = s.ends + 1 RETURNING s.ends - 1, s.mark
"""
MARK: Final = """
UPDATE suspicion s SET mark = w.mark, ends = coalesce(w.ends, s.ends)
FROM unnest(%b::bigint[], %b::bigint[], %b::bytea[], %b::int[]) AS w (interval_id, sequencer, mark, ends)
JOIN (
    SELECT o.interval_id, o.sequencer FROM ownership o WHERE o.interval_id = ANY(%b::bigint[])
    ORDER BY o.interval_id FOR SHARE
) AS owned USING (interval_id, sequencer)
WHERE s.interval_id = w.interval_id
RETURNING s.interval_id
"""
