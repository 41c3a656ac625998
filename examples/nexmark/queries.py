"""All queries by name."""

from __future__ import annotations

from typing import Final

from examples.nexmark import bidwise, closing, reports, windowed
from examples.nexmark.query import NexmarkQuery

_ALL: Final = (*bidwise.QUERIES, *windowed.QUERIES, *closing.QUERIES, *reports.QUERIES)

QUERIES: Final[dict[str, NexmarkQuery]] = {
    query.name: query for query in sorted(_ALL, key=lambda query: int(query.name[1:]))
}
