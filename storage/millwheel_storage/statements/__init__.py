"""Every SQL statement of the stores, by name, a module for each subject.

Lives here: SQL text with bound parameters.  Never here: Python that runs it.  No statement names a schema, which search_path
does.  None is built from user text, except those on sink tables, whose checked names `psycopg.sql` quotes.

The fence: a write joins rows of `ownership`, and locks them FOR SHARE in interval order in the same statement.  Under READ
COMMITTED, a lock that had to wait sees the row as it is after the wait.  So a concurrent new owner makes the join empty, and
with it the write: *zero rows, not an error*.  FOR KEY SHARE would not wait.  Reading first and writing later would race.
"""
