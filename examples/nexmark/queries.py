"""All queries by name."""

from __future__ import annotations

from typing import Final

from examples.nexmark import bidwise, closing, reports, windowed
from examples.nexmark.query import Query

_ALL: Final = (*bidwise.QUERIES, *windowed.QUERIES, *closing.QUERIES, *reports.QUERIES)

QUERIES: Final[dict[str, Query]] = {query.name: query for query in sorted(_ALL, key=lambda query: int(query.name[1:]))}
