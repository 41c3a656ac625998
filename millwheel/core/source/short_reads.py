"""Whether a source partition that gave fewer rows than it was asked for is read again at once.

Lives here: what earlier reads have shown.  A live source, or a file that was read to its end, has nothing more.  A
source that reads in pieces of its own, such as row groups or pages, has more.
"""

from __future__ import annotations

from millwheel.limits import PROBE_READS


class ShortReads:
    """One partition.

    >>> reads = ShortReads()
    >>> [reads.waits(10, 3), reads.waits(10, 0), reads.waits(10, 2)]
    [False, False, True]
    """

    def __init__(self) -> None:
        self._dry = False
        """The last read at once after a short one brought nothing."""
        self._at_once = False
        self._short = 0

    def waits(self, asked: int, rows: int) -> bool:
        """A read of at most `asked` rows brought `rows`.  Returns true when the next read should come a little later."""
        if self._at_once:
            self._dry = rows == 0
        short = 0 < rows < asked
        self._short += short
        waits = short and self._dry and self._short % PROBE_READS != 0
        self._at_once = short and not waits
        return waits
