"""Database roles with no more rights than their processes need, as a script for the owner of a pipeline's schema.

Lives here: who may do what to which table.  Never here: I/O.  Whoever has opened the pipeline owns its schema, and changes
its tables.  The three roles may log in, and have no password until somebody gives them one.

A *worker* reads and writes what it processes, and joins.  It can neither lead nor change tables.  A *controller* decides, and
sees no key, no value and no state.  Under snapshots it makes epochs visible: it writes their sink rows, drops what is not
declared, and folds logs before it splits or merges.  So it has the rights of a worker then, too.  A *reader* reads.
"""

from __future__ import annotations

from typing import Final

from millwheel_storage.schema.reserved import RESERVED_NAMES
from millwheel_storage.schema.shape_checks import schema_name
from millwheel_storage.statements import joining, quarantining

CHANGE: Final = "SELECT, INSERT, UPDATE, DELETE"

WORKER: Final[dict[str, str]] = {
    "INSERT": "interval, name, ownership, source, source_sign, watermark",
    "UPDATE": "cluster, interval_owner, ownership, source, source_owner, watermark",
    CHANGE: "checkpoint_log, cluster_member, declared_epoch, delivered, delivered_frontier, hold, hot_key, key_state, lease, "
    "opaque_bucket, opaque_id, production, quarantine, redrive, standstill, suspicion, timer",
}
"""Rights to tables of the store, besides reading all of them.  A worker that leaves says that nobody owns what it owned, so
it may change owners."""

CONTROLLER: Final[dict[str, str]] = {
    "SELECT": "cluster, cluster_leader, declared_epoch, meta, migration, name, source, source_owner, watermark",
    "INSERT": "watermark",
    "UPDATE": "cluster, cluster_leader, source_owner, watermark",
    "UPDATE, DELETE": "map_order",
    "SELECT (interval_id, sequencer, seq, epoch)": "checkpoint_log",
    "SELECT (interval_id, subscription, producer, sequence)": "production",
    "UPDATE (interval_id)": "production",
    CHANGE: "cluster_member, delivered, delivered_frontier, interval, interval_owner, lease, opaque_bucket, opaque_id, "
    "ownership, suspicion",
}
"""What members, leaders, placements, splits and merges need.  Of checkpoints and productions it sees numbers only."""

OPERATIONS: Final[dict[str, str]] = {"SELECT, INSERT": "map_order"}
"""Of a controller, in the name of an operator."""

_SCRIPT: Final = """\
-- Roles of the pipeline in schema {schema}.
-- Run it as a superuser, or as the schema's owner, if that may create roles: psql -v ON_ERROR_STOP=1 -f roles.sql
-- Run it after the pipeline was opened, and again after each new version of millwheel or of the pipeline.
BEGIN;
DO $$
DECLARE role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['{schema}_worker', '{schema}_controller', '{schema}_reader'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) THEN
            EXECUTE format('CREATE ROLE %I LOGIN', role);
        END IF;
    END LOOP;
END $$;
REVOKE ALL ON SCHEMA "{schema}" FROM PUBLIC, "{schema}_worker", "{schema}_controller", "{schema}_reader";
REVOKE ALL ON ALL TABLES IN SCHEMA "{schema}" FROM PUBLIC, "{schema}_worker", "{schema}_controller", "{schema}_reader";
GRANT USAGE ON SCHEMA "{schema}" TO "{schema}_worker", "{schema}_controller", "{schema}_reader";
GRANT SELECT ON ALL TABLES IN SCHEMA "{schema}" TO {sees_all};
GRANT USAGE ON ALL SEQUENCES IN SCHEMA "{schema}" TO "{schema}_worker", "{schema}_controller";
{grants}
-- Sink tables: whatever is not a table of the store.
DO $$
DECLARE sink text;
BEGIN
    FOR sink IN SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = '{schema}' AND c.relkind IN ('r', 'p') AND c.relname <> ALL (ARRAY[{reserved}])
    LOOP
        EXECUTE format('GRANT {change} ON "{schema}".%I TO {sinks_to}', sink);
    END LOOP;
END $$;
-- A controller ends the sessions of dead workers, which only their own role may do.
CREATE OR REPLACE FUNCTION "{schema}".{function}(incarnations bigint[], names text[]) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = "{schema}", pg_temp AS $${end_sessions}$$;
REVOKE ALL ON FUNCTION "{schema}".{function}(bigint[], text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION "{schema}".{function}(bigint[], text[]) TO "{schema}_controller";
-- It counts keys in quarantine, and sees none.
CREATE OR REPLACE FUNCTION "{schema}".{counts}() RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = "{schema}", pg_temp AS $${count_keys}$$;
REVOKE ALL ON FUNCTION "{schema}".{counts}() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION "{schema}".{counts}() TO "{schema}_controller";
GRANT CREATE ON SCHEMA "{schema}" TO "{schema}_worker";
ALTER FUNCTION "{schema}".{counts}() OWNER TO "{schema}_worker";
ALTER FUNCTION "{schema}".{function}(bigint[], text[]) OWNER TO "{schema}_worker";
REVOKE CREATE ON SCHEMA "{schema}" FROM "{schema}_worker";
COMMIT;
"""


def roles_script(pipeline: str, snapshots: bool = False) -> str:
    """SQL that makes the roles of a pipeline, or sets their rights anew; it may be run again at any time.

    `snapshots`: the pipeline runs under them.
    """
    schema = schema_name(pipeline)
    worker, controller, reader = (f'"{schema}_{role}"' for role in ("worker", "controller", "reader"))
    processing = [("worker", WORKER), ("controller", WORKER)] if snapshots else [("worker", WORKER)]
    grants = [
        f'GRANT {rights} ON {", ".join(_in(schema, table) for table in tables.split(", "))} TO "{schema}_{role}";'
        for role, table_rights in (*processing, ("controller", CONTROLLER), ("controller", OPERATIONS))
        for rights, tables in table_rights.items()
    ]
    statement = joining.END_SESSIONS.replace("%(incarnations)s", "incarnations").replace("%(names)s", "names")
    return _SCRIPT.format(
        schema=schema,
        grants="\n".join(grants),
        reserved=", ".join(f"'{name}'" for name in sorted(RESERVED_NAMES)),
        change=CHANGE,
        sees_all=f"{worker}, {controller}, {reader}" if snapshots else f"{worker}, {reader}",
        sinks_to=f"{worker}, {controller}" if snapshots else worker,
        function=joining.END_WORKER_SESSIONS_NAME,
        end_sessions=statement,
        counts=quarantining.COUNT_KEYS_NAME,
        count_keys=quarantining.COUNT_KEYS,
    )


def _in(schema: str, table: str) -> str:
    return f'"{schema}".{table}'
