"""Members of a cluster and its leader: leases, and the sessions of those whose leases have run out.

The clock of the database judges.  It is asked by `clock_timestamp()`, and never by `now()`, which stands still in a
transaction.
"""

from __future__ import annotations

from typing import Final

JOIN: Final = """
WITH joined AS (
    INSERT INTO cluster_member AS m (incarnation, key, name, role, address)
    VALUES (nextval('incarnation'), %(key)s, %(name)s, %(role)s, %(address)s)
    ON CONFLICT (key) DO UPDATE SET key = excluded.key
    RETURNING m.incarnation, m.name, m.role, m.address, m.xmax = 0 AS fresh
), leased AS (
    INSERT INTO lease (incarnation, expires)
    SELECT incarnation, clock_timestamp() + %(lease_us)s * interval '1 microsecond' FROM joined WHERE fresh
    RETURNING expires
)
SELECT j.incarnation, j.name, j.role, j.address,
       coalesce((SELECT expires FROM leased), l.expires, 'infinity') > clock_timestamp()
FROM joined j LEFT JOIN lease l USING (incarnation)
"""
"""A process that asks twice finds the member that it is.  Its lease is then what is left of it."""

RENEW: Final = """
UPDATE lease SET expires = CASE
    WHEN expires > clock_timestamp() THEN clock_timestamp() + %(lease_us)s * interval '1 microsecond' ELSE '-infinity'
END
WHERE incarnation = %(incarnation)s RETURNING expires > clock_timestamp()
"""
"""What was found to be over is marked so.  Otherwise a database whose clock is set back would let it live again."""

STAY_LEADER: Final = """
UPDATE cluster_leader c SET expires = clock_timestamp() + %(lease_us)s * interval '1 microsecond'
FROM lease l JOIN cluster_member m USING (incarnation)
WHERE c.incarnation = %(incarnation)s AND l.incarnation = %(incarnation)s AND l.expires > clock_timestamp()
RETURNING c.epoch, m.address
"""
LOCK_LEADER: Final = "SELECT FROM cluster_leader FOR UPDATE"
READ_LEADER: Final = "SELECT incarnation, expires > clock_timestamp() FROM cluster_leader"
BECOME_LEADER: Final = """
UPDATE cluster_leader c
SET epoch = c.epoch + 1, incarnation = %(incarnation)s,
    expires = clock_timestamp() + %(lease_us)s * interval '1 microsecond'
FROM lease l JOIN cluster_member m USING (incarnation)
WHERE (c.incarnation IS NULL OR c.expires <= clock_timestamp())
  AND l.incarnation = %(incarnation)s AND l.expires > clock_timestamp()
RETURNING c.epoch, m.address
"""
FORGET_MEMBER: Final = """
WITH gone AS (DELETE FROM lease WHERE incarnation = %(incarnation)s)
DELETE FROM cluster_member WHERE incarnation = %(incarnation)s RETURNING incarnation
"""
RESIGN: Final = """
UPDATE cluster_leader SET incarnation = NULL, expires = '-infinity' WHERE incarnation = %(incarnation)s
"""

LEADS: Final = "SELECT FROM cluster_leader WHERE incarnation = %s"
NAME_SESSION: Final = "SELECT set_config('application_name', %s, false)"
SESSION_LIVES: Final = """
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s)
"""
"""Every role sees what the sessions of others are called."""

END_SESSIONS: Final = """
SELECT count(*) FILTER (WHERE pg_terminate_backend(a.pid))
FROM unnest(%(incarnations)s::bigint[], %(names)s::text[]) AS w (incarnation, name)
JOIN pg_stat_activity a ON a.application_name = w.name
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND pg_has_role(a.usesysid, 'USAGE')
  AND NOT EXISTS (SELECT FROM lease l WHERE l.incarnation = w.incarnation AND l.expires > clock_timestamp())
"""
"""Sessions of other roles are left alone: ending them would be refused, and the refusal would end this statement."""

END_WORKER_SESSIONS_NAME: Final = "end_worker_sessions"
MAY_END_WORKERS: Final = """
SELECT FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = %s AND p.proname = 'end_worker_sessions' AND has_function_privilege(p.oid, 'EXECUTE')
  AND NOT pg_has_role(p.proowner, 'USAGE')
"""
END_WORKER_SESSIONS: Final = "SELECT end_worker_sessions(%(incarnations)s::bigint[], %(names)s::text[])"
"""`END_SESSIONS` with the rights of workers, for a controller that has a role of its own (`schema.grants`)."""
