"""Every SQL statement of the stores, by name, a module for each subject.

Lives here: SQL text with bound parameters.  Never here: Python that runs it.  No statement names a schema
(search_path does) and none is built from user text, except sink tables, whose checked names are quoted by
`psycopg.sql`.

The fence.  A write joins rows of `ownership` that it locks FOR SHARE in interval order, in the same
statement.  Under READ COMMITTED a lock that had to wait sees the row as it is after the wait, so a
concurrent new owner makes the join, and the write, empty: *zero rows, not an error*.  FOR KEY SHARE would
not wait; reading first and writing later would race.
"""
