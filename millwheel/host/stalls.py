"""Sources whose low watermark stands still, and why.  The operator is told once for each source of a run.

Lives here: how long is too long, and the text.  Never here: the computation of watermarks.
"""

from __future__ import annotations

from millwheel.limits import STALL_DELAY_US
from millwheel.model import MAX_TIME, SECOND, format_time
from millwheel.source import Source


class Stalls:
    """The sources of a worker."""

    def __init__(self) -> None:
        self._stood: dict[str, tuple[int, int]] = {}
        """By source: its watermark, and since when it is that, us."""
        self._said: set[str] = set()

    def stands(self, source: str, watermark: int, now: int) -> bool:
        """Whether the watermark of `source` has stood so long that somebody should be told."""
        value, since = self._stood.get(source, (None, now))
        if value != watermark:
            self._stood[source] = (watermark, now)
            return False
        return source not in self._said and watermark < MAX_TIME and now - since >= STALL_DELAY_US

    def text(self, source: str, watermark: int, why: str) -> str:
        """What to tell; it is not told again."""
        self._said.add(source)
        return f"source {source}: its watermark has stood at {format_time(watermark)} for {STALL_DELAY_US // SECOND} s: {why}"


def why_it_waits(source: Source, partition: str = "") -> str:
    """Why the watermark of `source` waits: for a partition, or, without one, for those that are not there yet."""
    what = partition or "a partition that is not there yet"
    text = f"{what} may still give a row as old as that"
    if not source.grows:
        return text
    if source.idle_after_us is not None:
        text += f"; after {source.idle_after_us / SECOND:g} s of silence it goes on (idle_after_us)"
        if partition:
            return text
        return f"{text}; where rows keep coming, say how old those of later ones are (later_files_not_before of a FileSource)"
    other = "" if partition else ", or how old the rows of later ones are (later_files_not_before of a FileSource)"
    return f"{text}; set idle_after_us, to say how long silence may last{other}"


NOTHING_YET = "there has been no partition yet, for example no file; it goes on when there is one"
"""Why a source waits that has never had anything."""
