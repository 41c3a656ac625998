"""Rejected rows by kind: a line for the first of each, and a count, not a line for each row.

Lives here: what counts as one kind, and when a line is logged.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Final

from millwheel.escapes import harmless
from millwheel.limits import REJECT_KINDS

logger = logging.getLogger("millwheel.injectors")

OTHERS: Final = "of other kinds"
_VARYING: Final = re.compile(r"b?'[^']*'|b?\"[^\"]*\"|\d+(?:\.\d+)?")
"""What differs between two reasons of one kind: quoted text, and numbers."""


def kind_of(reason: str) -> str:
    """A reason without what belongs to one row only.

    >>> kind_of("ValueError: invalid literal for int() with base 10: 'a lot'")
    'ValueError: invalid literal for int() with base …: …'
    """
    return " ".join(_VARYING.sub("…", reason[:400]).split())[:200]


class Kinds:
    """The rejected rows of one source."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.counts: dict[str, int] = {}
        """Rows by kind."""

    def add(self, partition: str, row: int, reason: str, raw: Any) -> None:
        """Count a row.  The first of its kind is logged, and then the 10th, the 100th and so on, with that number."""
        kind = self.count(reason)
        count = self.counts[kind]
        if count == 1:
            why = harmless(reason[:2_000])  # a reason may be as long as its row, and hold what a terminal obeys
            logger.warning("source %s: rejected row %d of %s: %s: %.200r", self._source, row, partition, why, raw)
        elif count >= 10 and set(str(count)[1:]) == {"0"} and str(count)[0] == "1":
            logger.warning("source %s: rejected %s rows so far: %s", self._source, f"{count:,}", harmless(kind))

    def count(self, reason: str) -> str:
        """Count a row without a line; its kind."""
        kind = kind_of(reason)
        if kind not in self.counts and len(self.counts) >= REJECT_KINDS:
            kind = OTHERS
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return kind
