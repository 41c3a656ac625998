"""The migrations of a store as SQL, which `python scripts/ddl.py` writes from `ddl`: do not edit.

Lives here: nothing else.  A start takes them from here, because SQLAlchemy takes a quarter of a second to import.
"""

from __future__ import annotations

from typing import Final

# fmt: off
MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        """CREATE SEQUENCE sequencer""",
        """CREATE SEQUENCE interval_number""",
        """CREATE SEQUENCE incarnation""",
        """CREATE TABLE checkpoint_log ( interval_id BIGINT NOT NULL, sequencer BIGINT NOT NULL, seq BIGINT NOT NULL,
        epoch BIGINT NOT NULL, payload BYTEA NOT NULL, PRIMARY KEY (interval_id, sequencer, seq) ) WITH
        (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000,
        toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 5000)""",
        """CREATE TABLE cluster ( singleton BOOLEAN DEFAULT 'true' NOT NULL, version BIGINT NOT NULL, decision BYTEA NOT
        NULL, shape BYTEA DEFAULT '' NOT NULL, PRIMARY KEY (singleton) ) WITH (fillfactor = 50,
        autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)""",
        """CREATE TABLE cluster_leader ( singleton BOOLEAN DEFAULT 'true' NOT NULL, epoch BIGINT NOT NULL, incarnation
        BIGINT, expires TIMESTAMP WITH TIME ZONE NOT NULL, PRIMARY KEY (singleton) ) WITH (fillfactor = 50,
        autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)""",
        """CREATE TABLE cluster_member ( incarnation BIGINT NOT NULL, key BYTEA NOT NULL, name TEXT COLLATE "C" NOT NULL,
        role TEXT COLLATE "C" NOT NULL, address TEXT COLLATE "C" NOT NULL, PRIMARY KEY (incarnation), UNIQUE (key) )""",
        """CREATE TABLE declared_epoch ( singleton BOOLEAN DEFAULT 'true' NOT NULL, number BIGINT NOT NULL, PRIMARY KEY
        (singleton) ) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)""",
        """CREATE TABLE delivered ( interval_id BIGINT NOT NULL, subscription INTEGER NOT NULL, producer BIGINT NOT NULL,
        first_sequence BIGINT NOT NULL, last_sequence BIGINT NOT NULL, ids BYTEA NOT NULL ) WITH
        (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000,
        toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 5000)""",
        """CREATE TABLE delivered_frontier ( interval_id BIGINT NOT NULL, subscription INTEGER NOT NULL, producer BIGINT
        NOT NULL, frontier BIGINT NOT NULL, PRIMARY KEY (interval_id, subscription, producer) ) WITH (fillfactor = 50,
        autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)""",
        """CREATE TABLE hold ( computation INTEGER NOT NULL, key BYTEA NOT NULL, timestamp BIGINT NOT NULL, PRIMARY KEY
        (computation, key) ) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold =
        20000, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold =
        100000, toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 5000)""",
        """CREATE TABLE hot_key ( incarnation BIGSERIAL NOT NULL, keys BYTEA NOT NULL, PRIMARY KEY (incarnation) )""",
        """CREATE TABLE interval ( id BIGINT NOT NULL, computation INTEGER NOT NULL, low BYTEA NOT NULL, high BYTEA,
        follows BIGINT[] DEFAULT '{}' NOT NULL, PRIMARY KEY (id) )""",
        """CREATE TABLE interval_owner ( interval_id BIGINT NOT NULL, owner BIGINT, PRIMARY KEY (interval_id) ) WITH
        (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)""",
        """CREATE TABLE key_state ( computation INTEGER NOT NULL, key BYTEA NOT NULL, cell TEXT COLLATE "C" NOT NULL,
        entry BYTEA NOT NULL, value BYTEA NOT NULL, PRIMARY KEY (computation, key, cell, entry) ) WITH (fillfactor =
        85, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay =
        0)""",
        """CREATE TABLE lease ( incarnation BIGINT NOT NULL, expires TIMESTAMP WITH TIME ZONE NOT NULL, PRIMARY KEY
        (incarnation) ) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)""",
        """CREATE TABLE map_order ( number BIGINT GENERATED ALWAYS AS IDENTITY, wish BYTEA NOT NULL, refusal TEXT,
        PRIMARY KEY (number) )""",
        """CREATE TABLE meta ( singleton BOOLEAN DEFAULT 'true' NOT NULL, payload_format INTEGER NOT NULL, shape BYTEA
        NOT NULL, PRIMARY KEY (singleton) )""",
        """CREATE TABLE migration ( version INTEGER NOT NULL, applied TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
        PRIMARY KEY (version) )""",
        """CREATE TABLE name ( kind TEXT COLLATE "C" NOT NULL, name TEXT COLLATE "C" NOT NULL, number INTEGER NOT NULL,
        PRIMARY KEY (kind, name) )""",
        """CREATE TABLE opaque_bucket ( number BIGINT GENERATED ALWAYS AS IDENTITY, interval_id BIGINT NOT NULL,
        subscription INTEGER NOT NULL, expires BIGINT NOT NULL, count BIGINT NOT NULL, PRIMARY KEY (interval_id,
        subscription, expires) ) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0,
        autovacuum_vacuum_threshold = 1000)""",
        """CREATE TABLE opaque_id ( bucket BIGINT NOT NULL, id BYTEA NOT NULL ) WITH (autovacuum_vacuum_scale_factor = 0,
        autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0,
        autovacuum_analyze_threshold = 100000, toast.autovacuum_vacuum_scale_factor = 0,
        toast.autovacuum_vacuum_threshold = 5000)""",
        """CREATE TABLE ownership ( interval_id BIGINT NOT NULL, sequencer BIGINT NOT NULL, PRIMARY KEY (interval_id) )
        WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)""",
        """CREATE TABLE production ( interval_id BIGINT NOT NULL, subscription INTEGER NOT NULL, producer BIGINT NOT
        NULL, sequence BIGINT NOT NULL, key BYTEA NOT NULL, value BYTEA NOT NULL, timestamp BIGINT NOT NULL, PRIMARY
        KEY (interval_id, subscription, producer, sequence) ) WITH (autovacuum_vacuum_scale_factor = 0,
        autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0,
        autovacuum_analyze_threshold = 100000, toast.autovacuum_vacuum_scale_factor = 0,
        toast.autovacuum_vacuum_threshold = 5000)""",
        """CREATE TABLE quarantine ( place BIGINT GENERATED ALWAYS AS IDENTITY, computation INTEGER NOT NULL, key BYTEA
        NOT NULL, subscription INTEGER NOT NULL, producer BIGINT NOT NULL, sequence BIGINT NOT NULL, value BYTEA NOT
        NULL, timestamp BIGINT NOT NULL, tag BYTEA NOT NULL, kind TEXT COLLATE "C" NOT NULL, error BYTEA NOT NULL,
        PRIMARY KEY (computation, key, place) )""",
        """CREATE TABLE redrive ( computation INTEGER NOT NULL, key BYTEA NOT NULL, sequencer BIGINT DEFAULT '0' NOT
        NULL, seq BIGINT DEFAULT '0' NOT NULL, PRIMARY KEY (computation, key) )""",
        """CREATE TABLE source ( source TEXT COLLATE "C" NOT NULL, partition TEXT COLLATE "C" NOT NULL, interval_id
        BIGINT NOT NULL, producer BIGINT NOT NULL, position BIGINT NOT NULL, finished BOOLEAN NOT NULL, state BYTEA
        NOT NULL, signed BOOLEAN DEFAULT 'false' NOT NULL, rejected BIGINT DEFAULT '0' NOT NULL, PRIMARY KEY (source,
        partition), UNIQUE (interval_id) ) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0,
        autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0,
        autovacuum_analyze_threshold = 100000, toast.autovacuum_vacuum_scale_factor = 0,
        toast.autovacuum_vacuum_threshold = 5000)""",
        """CREATE TABLE source_owner ( source TEXT COLLATE "C" NOT NULL, owner BIGINT, PRIMARY KEY (source) ) WITH
        (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)""",
        """CREATE TABLE source_sign ( source TEXT COLLATE "C" NOT NULL, sign BYTEA NOT NULL, interval_id BIGINT NOT NULL,
        PRIMARY KEY (source, sign, interval_id) )""",
        """CREATE TABLE standstill ( incarnation BIGSERIAL NOT NULL, found BYTEA NOT NULL, PRIMARY KEY (incarnation) )""",
        """CREATE TABLE suspicion ( interval_id BIGINT NOT NULL, ends INTEGER NOT NULL, mark BYTEA NOT NULL, PRIMARY KEY
        (interval_id) ) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)""",
        """CREATE TABLE timer ( computation INTEGER NOT NULL, key BYTEA NOT NULL, kind TEXT COLLATE "C" NOT NULL, tag
        BYTEA NOT NULL, timestamp BIGINT NOT NULL, PRIMARY KEY (computation, key, kind, tag) ) WITH (fillfactor = 85,
        autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000,
        toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 5000)""",
        """CREATE TABLE watermark ( name TEXT COLLATE "C" NOT NULL, value BIGINT NOT NULL, PRIMARY KEY (name) ) WITH
        (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)""",
        """CREATE INDEX delivered_by_last ON delivered (interval_id, subscription, producer, last_sequence)""",
        """CREATE INDEX interval_by_computation ON interval (computation)""",
        """CREATE INDEX map_order_open ON map_order (number) WHERE refusal IS NULL""",
        """CREATE INDEX opaque_id_by_bucket ON opaque_id (bucket, id)""",
        """CREATE INDEX source_rejected ON source (rejected) WHERE rejected > 0""",
        """CREATE INDEX source_unfinished ON source (source, partition) WHERE NOT finished""",
        """CREATE INDEX source_unsigned ON source (source, partition) WHERE finished AND NOT signed""",
        """CREATE INDEX timer_by_time ON timer (computation, kind, timestamp, key, tag)""",
        """ALTER TABLE checkpoint_log ALTER COLUMN payload SET STORAGE EXTERNAL""",
        """ALTER TABLE production ALTER COLUMN value SET STORAGE EXTERNAL""",
    ),
    (
        """INSERT INTO delivered_frontier (interval_id, subscription, producer, frontier) SELECT DISTINCT interval_id,
        subscription, producer, 0 FROM delivered ON CONFLICT (interval_id, subscription, producer) DO NOTHING""",
    ),
    (
        """CREATE TABLE IF NOT EXISTS opaque_bucket ( number BIGINT GENERATED ALWAYS AS IDENTITY, interval_id BIGINT NOT
        NULL, subscription INTEGER NOT NULL, expires BIGINT NOT NULL, count BIGINT NOT NULL, PRIMARY KEY (interval_id,
        subscription, expires) ) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0,
        autovacuum_vacuum_threshold = 1000)""",
        """CREATE TABLE IF NOT EXISTS opaque_id ( bucket BIGINT NOT NULL, id BYTEA NOT NULL ) WITH
        (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000,
        toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 5000)""",
        """CREATE INDEX IF NOT EXISTS opaque_id_by_bucket ON opaque_id (bucket, id)""",
    ),
    (
        """CREATE INDEX IF NOT EXISTS timer_by_time ON timer (computation, kind, timestamp, key, tag)""",
    ),
    (
        """CREATE TABLE IF NOT EXISTS suspicion ( interval_id BIGINT NOT NULL, ends INTEGER NOT NULL, mark BYTEA NOT
        NULL, PRIMARY KEY (interval_id) ) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0,
        autovacuum_vacuum_threshold = 1000)""",
    ),
    (),
    (
        """ALTER TABLE source ADD COLUMN IF NOT EXISTS signed boolean NOT NULL DEFAULT false""",
        """CREATE TABLE IF NOT EXISTS source_sign ( source TEXT COLLATE "C" NOT NULL, sign BYTEA NOT NULL, interval_id
        BIGINT NOT NULL, PRIMARY KEY (source, sign, interval_id) )""",
        """CREATE INDEX IF NOT EXISTS source_unfinished ON source (source, partition) WHERE NOT finished""",
        """CREATE INDEX IF NOT EXISTS source_unsigned ON source (source, partition) WHERE finished AND NOT signed""",
    ),
    (
        """CREATE TABLE IF NOT EXISTS declared_epoch ( singleton BOOLEAN DEFAULT 'true' NOT NULL, number BIGINT NOT NULL,
        PRIMARY KEY (singleton) ) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0,
        autovacuum_vacuum_threshold = 1000)""",
    ),
    (
        """CREATE SEQUENCE IF NOT EXISTS incarnation""",
        """CREATE TABLE IF NOT EXISTS cluster ( singleton BOOLEAN DEFAULT 'true' NOT NULL, version BIGINT NOT NULL,
        decision BYTEA NOT NULL, shape BYTEA DEFAULT '' NOT NULL, PRIMARY KEY (singleton) ) WITH (fillfactor = 50,
        autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)""",
        """CREATE TABLE IF NOT EXISTS cluster_leader ( singleton BOOLEAN DEFAULT 'true' NOT NULL, epoch BIGINT NOT NULL,
        incarnation BIGINT, expires TIMESTAMP WITH TIME ZONE NOT NULL, PRIMARY KEY (singleton) ) WITH (fillfactor =
        50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)""",
        """CREATE TABLE IF NOT EXISTS cluster_member ( incarnation BIGINT NOT NULL, key BYTEA NOT NULL, name TEXT COLLATE
        "C" NOT NULL, role TEXT COLLATE "C" NOT NULL, address TEXT COLLATE "C" NOT NULL, PRIMARY KEY (incarnation),
        UNIQUE (key) )""",
        """CREATE TABLE IF NOT EXISTS lease ( incarnation BIGINT NOT NULL, expires TIMESTAMP WITH TIME ZONE NOT NULL,
        PRIMARY KEY (incarnation) ) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0,
        autovacuum_vacuum_threshold = 1000)""",
        """CREATE TABLE IF NOT EXISTS interval_owner ( interval_id BIGINT NOT NULL, owner BIGINT, PRIMARY KEY
        (interval_id) ) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)""",
        """CREATE TABLE IF NOT EXISTS source_owner ( source TEXT COLLATE "C" NOT NULL, owner BIGINT, PRIMARY KEY (source)
        ) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)""",
        """INSERT INTO cluster (version, decision) VALUES (0, '') ON CONFLICT DO NOTHING""",
        """INSERT INTO cluster_leader (epoch, expires) VALUES (0, '-infinity') ON CONFLICT DO NOTHING""",
    ),
    (
        """CREATE TABLE IF NOT EXISTS map_order ( number BIGINT GENERATED ALWAYS AS IDENTITY, wish BYTEA NOT NULL,
        refusal TEXT, PRIMARY KEY (number) )""",
        """CREATE INDEX IF NOT EXISTS map_order_open ON map_order (number) WHERE refusal IS NULL""",
    ),
    (
        """ALTER TABLE cluster ADD COLUMN IF NOT EXISTS shape bytea NOT NULL DEFAULT ''""",
    ),
    (
        """CREATE TABLE IF NOT EXISTS hot_key ( incarnation BIGSERIAL NOT NULL, keys BYTEA NOT NULL, PRIMARY KEY
        (incarnation) )""",
    ),
    (
        """CREATE TABLE IF NOT EXISTS standstill ( incarnation BIGSERIAL NOT NULL, found BYTEA NOT NULL, PRIMARY KEY
        (incarnation) )""",
    ),
    (
        """ALTER TABLE source ADD COLUMN IF NOT EXISTS rejected bigint NOT NULL DEFAULT 0""",
        """CREATE INDEX IF NOT EXISTS source_rejected ON source (rejected) WHERE rejected > 0""",
    ),
    (
        """ALTER TABLE redrive ADD COLUMN IF NOT EXISTS sequencer bigint NOT NULL DEFAULT 0""",
        """ALTER TABLE redrive ADD COLUMN IF NOT EXISTS seq bigint NOT NULL DEFAULT 0""",
    ),
    (
        """ALTER TABLE interval ADD COLUMN IF NOT EXISTS follows bigint[] NOT NULL DEFAULT '{}'""",
    ),
)
# fmt: on
"""See `ddl.MIGRATIONS`."""
