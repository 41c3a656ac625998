"""Stores for millwheel: Postgres, and its twin in memory.  Nothing is imported here: `memory` needs no
psycopg."""
