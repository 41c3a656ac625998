"""The display of a run on a terminal, by rich: a table that is drawn again in place.

Lives here: what stands where.  Whatever else is printed meanwhile goes above it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millwheel.cli.shown_progress import awaited, lag, noted
from millwheel.model import format_time
from millwheel.shape import PUBLISH_PREFIX
from millwheel.wording import counted

if TYPE_CHECKING:
    from millwheel.host.progress import Progress

BAD = frozenset({"late", "rejected", "quarantined keys"})


class Display:
    """Drawn with each report, and left as it stands at the end."""

    def __init__(self, verbose: bool = False, console: Console | None = None) -> None:
        self._verbose = verbose
        self._live = Live(
            console=console or Console(),
            auto_refresh=False,
            transient=True,
            redirect_stderr=sys.stderr.isatty(),  # elsewhere it stays where it was sent
        )
        self._live.start()

    def show(self, progress: Progress, rate: float) -> None:
        """Draw a report; `rate` in rows a second."""
        self._live.update(drawn(progress, rate), refresh=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._live.stop()


def _bold(phrase: str) -> tuple[tuple[str, str], str]:
    """A count in bold, and what is counted."""
    number, _, what = phrase.partition(" ")
    return (number, "bold"), f" {what}"


def drawn(progress: Progress, rate: float) -> Group:
    """The head line, a line of what is to be noted, and the watermark of each source and computation."""
    head = Text.assemble(
        *_bold(counted(progress.injected, "row")), " in, ", (f"{rate:,.0f}/s", "bold cyan"), ", ",
        *_bold(counted(progress.records, "record")), ", lag ", (lag(progress), "bold"),
    )  # fmt: skip
    told = [
        Text(f"{name} {count:,}", "bold red" if name in BAD else "") for name, count in noted(progress).items() if count
    ]
    told += [Text(waits, "bold red")] if (waits := awaited(progress)) else []
    counts = Text(", ").join(told)
    table = Table(box=None, pad_edge=False, show_header=True, header_style="dim")
    table.add_column("source or computation", overflow="ellipsis", no_wrap=True)
    table.add_column("low watermark", no_wrap=True)
    for name, watermark in sorted(progress.watermarks.items(), key=lambda pair: not pair[0].startswith("source:")):
        if not name.startswith(PUBLISH_PREFIX):
            table.add_row(Text(name), Text(format_time(watermark)))
    return Group(head, counts, table) if counts else Group(head, table)
