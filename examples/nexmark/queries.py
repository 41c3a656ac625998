"""All queries by name."""

from __future__ import annotations

from typing import Final

from examples.nexmark import bidwise, windowed
from examples.nexmark.query import Query

QUERIES: Final[dict[str, Query]] = {
    query.name: query for query in sorted(bidwise.QUERIES + windowed.QUERIES, key=lambda query: int(query.name[1:]))
}
