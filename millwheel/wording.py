"""Counts as people read them.

Lives here: which words go with a number.  Never here: what is counted.
"""

from __future__ import annotations


def counted(count: int, one: str, several: str = "") -> str:
    """A count with what is counted.

    >>> counted(1, "key"), counted(2_000, "row is", "rows are")
    ('1 key', '2,000 rows are')
    """
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def is_allowed(limit: int) -> str:
    """How many of something are allowed.

    >>> is_allowed(0), is_allowed(1)
    ('0 are allowed', '1 is allowed')
    """
    return f"{limit:,} {'is' if limit == 1 else 'are'} allowed"
