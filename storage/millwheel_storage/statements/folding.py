"""The statements of a fold.  Each takes columns as arrays, so a table takes one statement for any number of rows."""

from __future__ import annotations

from typing import Final

FOLD_LOG: Final = """
DELETE FROM checkpoint_log WHERE interval_id = %b AND sequencer = %b AND seq <= %b
"""
READ_SEQS: Final = """
SELECT seq FROM checkpoint_log WHERE interval_id = %b AND sequencer = %b AND seq <= %b ORDER BY seq
"""
FORGET_STATE: Final = "DELETE FROM key_state WHERE computation = %b AND key = ANY(%b::bytea[])"
FORGET_TIMERS: Final = """
DELETE FROM timer WHERE ctid = ANY (ARRAY(
    SELECT s.place FROM unnest(%b::bytea[]) AS w (key) CROSS JOIN LATERAL (
        SELECT t.ctid AS place FROM timer t
        WHERE t.computation = %b AND t.key BETWEEN w.key AND w.key ORDER BY t.key, t.kind, t.tag OFFSET 0
    ) AS s
))
"""
"""By the primary key, as `LOAD_KEY_TIMERS`."""

FORGET_HOLDS: Final = "DELETE FROM hold WHERE computation = %b AND key = ANY(%b::bytea[])"
ADD_VALUES: Final = """
INSERT INTO key_state (computation, key, cell, entry, value)
SELECT %b, w.key, %b, '', w.value FROM unnest(%b::bytea[], %b::bytea[]) AS w (key, value)
"""
ADD_ENTRIES: Final = """
INSERT INTO key_state (computation, key, cell, entry, value)
SELECT %b, w.key, %b, w.entry, w.value
FROM unnest(%b::bytea[], %b::bytea[], %b::bytea[]) AS w (key, value, entry)
"""
_OR_SET: Final = "ON CONFLICT (computation, key, cell, entry) DO UPDATE SET value = excluded.value\n"
SET_VALUES: Final = ADD_VALUES + _OR_SET
SET_ENTRIES: Final = ADD_ENTRIES + _OR_SET
CLEAR_STATE: Final = """
DELETE FROM key_state WHERE ctid = ANY (ARRAY(
    SELECT s.place FROM unnest(%b::bytea[], %b::bytea[]) AS w (key, entry)
    CROSS JOIN LATERAL (
        SELECT k.ctid AS place FROM key_state k
        WHERE k.computation = %b AND k.key = w.key AND k.cell = %b AND k.entry = w.entry OFFSET 0
    ) AS s
))
"""
"""OFFSET 0 fixes the plan: one index probe for each given row.  The planner, whose figures may be from when
the table was empty, could else walk the whole computation for each of them.  The fence keeps the rows
where they were found."""

FOLD_TIMERS: Final = """
INSERT INTO timer (computation, key, kind, tag, timestamp)
SELECT %b, w.key, w.kind, w.tag, w.timestamp
FROM unnest(%b::bytea[], %b::text[], %b::bytea[], %b::bigint[]) AS w (key, kind, tag, timestamp)
ON CONFLICT (computation, key, kind, tag) DO UPDATE SET timestamp = excluded.timestamp
"""
CLEAR_TIMERS: Final = """
DELETE FROM timer WHERE ctid = ANY (ARRAY(
    SELECT s.place FROM unnest(%b::bytea[], %b::text[], %b::bytea[]) AS w (key, kind, tag)
    CROSS JOIN LATERAL (
        SELECT t.ctid AS place FROM timer t
        WHERE t.computation = %b AND t.key BETWEEN w.key AND w.key AND t.kind = w.kind AND t.tag = w.tag
        ORDER BY t.key OFFSET 0
    ) AS s
))
"""
"""It uses the primary key, as `LOAD_KEY_TIMERS` does.  By the other index, each deletion would walk all timers of a kind."""

FOLD_HOLDS: Final = """
INSERT INTO hold (computation, key, timestamp)
SELECT %b, w.key, w.timestamp FROM unnest(%b::bytea[], %b::bigint[]) AS w (key, timestamp)
ON CONFLICT (computation, key) DO UPDATE SET timestamp = excluded.timestamp
"""
FOLD_PRODUCTIONS: Final = """
INSERT INTO production (interval_id, subscription, producer, sequence, key, value, timestamp)
SELECT %b, %b, %b, w.sequence, w.key, w.value, w.timestamp
FROM unnest(%b::bigint[], %b::bytea[], %b::bytea[], %b::bigint[]) AS w (sequence, key, value, timestamp)
"""
FOLD_ACKS: Final = """
DELETE FROM production WHERE ctid = ANY (ARRAY(
    SELECT s.place FROM unnest(%b::bigint[], %b::bigint[]) AS w (low, high)
    CROSS JOIN LATERAL (
        SELECT p.ctid AS place FROM production p
        WHERE p.interval_id = %b AND p.subscription = %b AND p.producer = %b AND p.sequence BETWEEN w.low AND w.high
        OFFSET 0
    ) AS s
))
"""
"""By runs of consecutive sequences: most acked productions were acked before a fold could store them, so most runs
find nothing."""
FOLD_IDS: Final = """
INSERT INTO delivered (interval_id, subscription, producer, first_sequence, last_sequence, ids)
SELECT %b, w.subscription, w.producer, w.first_sequence, w.last_sequence, w.ids
FROM unnest(%b::int[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bytea[])
     AS w (subscription, producer, first_sequence, last_sequence, ids)
"""
FOLD_FRONTIERS: Final = """
INSERT INTO delivered_frontier AS f (interval_id, subscription, producer, frontier)
SELECT %b, w.subscription, w.producer, w.frontier
FROM unnest(%b::int[], %b::bigint[], %b::bigint[]) AS w (subscription, producer, frontier)
ON CONFLICT (interval_id, subscription, producer) DO UPDATE SET frontier = excluded.frontier
WHERE f.frontier < excluded.frontier
"""
DROP_FRONTIERS: Final = """
DELETE FROM delivered_frontier WHERE ctid = ANY (ARRAY(
    SELECT s.place FROM unnest(%b::int[], %b::bigint[]) AS w (subscription, producer) CROSS JOIN LATERAL (
        SELECT f.ctid AS place FROM delivered_frontier f
        WHERE f.interval_id = %b AND f.subscription = w.subscription AND f.producer = w.producer OFFSET 0
    ) AS s
))
"""
"""For producers that are retired: nobody will be asked about them again."""

COLLECT_IDS: Final = """
DELETE FROM delivered WHERE ctid = ANY (ARRAY(
    SELECT s.place FROM unnest(%b::int[], %b::bigint[], %b::bigint[]) AS w (subscription, producer, frontier)
    CROSS JOIN LATERAL (
        SELECT d.ctid AS place FROM delivered d
        WHERE d.interval_id = %b AND d.subscription = w.subscription AND d.producer = w.producer
          AND d.last_sequence < w.frontier OFFSET 0
    ) AS s
))
"""
"""A plain join, planned while the table was small, walks all ids of the interval."""
