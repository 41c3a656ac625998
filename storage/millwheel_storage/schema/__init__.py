"""The shape of a store: its tables, what a pipeline's next version changes in them, and how they are opened.

Never here: the hot path.  Nothing is imported here: `shape_checks`, `reserved` and `evolution` need no psycopg.
"""
