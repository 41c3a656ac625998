"""`millwheel status`: the processes of a cluster, what each owns, and how far it is."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from millwheel.cli.options import Place, place
from millwheel.cli.status import Status
from millwheel.escapes import escaped, harmless, harmless_json
from millwheel.limits import STATUS_EVERY_S
from millwheel.model import SECOND, format_time
from millwheel.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Group

    from millwheel.overview import ClusterPicture


@click.command(short_help="The processes of a cluster, what each owns, and how far it is.")
@place
@click.option("-f", "--follow", is_flag=True, help="Look again every second until Ctrl-C; on a terminal in place.")
@click.option("--json", "as_json", is_flag=True, help="JSON, one object a look.")
def status(place: Place, follow: bool, as_json: bool) -> int:
    """Members, intervals, sources and watermarks of a pipeline's cluster, as its store has them.

    A backlog is the number of checkpoints that are not folded into the tables yet.
    """
    earlier: ClusterPicture | None = None
    with place.office() as office:
        try:
            if follow and not as_json and sys.stdout.isatty():
                _live(office.look)
            while True:
                found = office.look()
                print("\n".join([json_line(found, earlier)] if as_json else lines(found, earlier)), flush=True)
                if not follow:
                    return Status.DONE
                earlier = found
                time.sleep(STATUS_EVERY_S)
        except KeyboardInterrupt:  # the way to end it
            return Status.STOPPED


def lines(found: ClusterPicture, earlier: ClusterPicture | None = None) -> list[str]:
    """One line for each thing, its columns separated by tabs."""
    rates = found.rows_a_second(earlier)
    said = [
        f"member\t{harmless(m.name)}\t{m.host}\t{m.role}{' (leads)' if m.leads else ''}\t{m.address}"
        f"\t{'alive' if m.alive else 'dead'}"
        for m in found.members
    ]
    said += [
        f"interval\t{i.id}\t{i.computation}\t{keys(i.low, i.high)}\t{owner(found, i.owner)}\tbacklog {i.backlog:,}"
        for i in found.intervals
    ]
    said += [
        f"hot key\t{i.id}\t{i.computation}\t{escaped(h.key)}\t{h.share:.0%}" for i in found.intervals for h in i.hot
    ]
    said += [
        f"source\t{s.name}\t{owner(found, s.owner)}\t{s.open_partitions:,} open, {counted(s.rows, 'row')}"
        + (f", {rates[s.name]:,.0f} rows/s" if s.name in rates else "")
        for s in found.sources
    ]
    said += [f"paused\t{s.name}\t{s.paused}" for s in found.sources if s.paused]
    said += [f"watermark\t{name}\t{format_time(value)}" for name, value in sorted(found.watermarks.items())]
    return [*said, f"lag\t{lag(found)}"]


def json_line(found: ClusterPicture, earlier: ClusterPicture | None = None) -> str:
    """The same as one JSON object; times are us."""
    import msgspec

    whole = {**msgspec.to_builtins(found), "lag_us": found.lag_us, "rows_a_second": found.rows_a_second(earlier)}
    del whole["seen_at"], whole["origins"]
    return harmless_json(msgspec.json.encode(whole).decode())


def keys(low: str, high: str | None) -> str:
    """The keys of an interval, as they are given to `interval split`."""
    return f"{escaped(low) or 'the first key'} to {'the last key' if high is None else 'before ' + escaped(high)}"


def owner(found: ClusterPicture, name: str | None) -> str:
    """Who owns something."""
    if name is None:
        return "an embedded run" if found.embedded else "nobody"
    return harmless(name)


def lag(found: ClusterPicture) -> str:
    """Event time between the sources and the slowest computation."""
    return "-" if found.lag_us is None else f"{max(0, found.lag_us) / SECOND:,.1f} s"


def _live(look: Callable[[], ClusterPicture]) -> None:
    """Draw it again and again, until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    earlier: ClusterPicture | None = None
    with Live(console=Console(), auto_refresh=False) as live:
        while True:
            found = look()
            live.update(drawn(found, earlier), refresh=True)
            earlier = found
            time.sleep(STATUS_EVERY_S)


def drawn(found: ClusterPicture, earlier: ClusterPicture | None) -> Group:
    """The same as tables."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    def table(*columns: str) -> Table:
        made = Table(box=None, pad_edge=False, header_style="dim")
        for column in columns:
            made.add_column(column, overflow="ellipsis", no_wrap=True)
        return made

    rates = found.rows_a_second(earlier)
    members = table("process", "host", "role", "address", "")
    for m in found.members:
        state = Text("alive", "green") if m.alive else Text("dead", "bold red")
        members.add_row(Text(harmless(m.name)), m.host, m.role + (" (leads)" if m.leads else ""), m.address, state)
    intervals = table("interval", "computation", "keys", "owner", "backlog", "low watermark")
    for i in found.intervals:
        watermark = format_time(found.watermarks[i.computation]) if i.computation in found.watermarks else "-"
        who = Text(owner(found, i.owner), "bold red" if i.owner is None and not found.embedded else "")
        intervals.add_row(str(i.id), i.computation, Text(keys(i.low, i.high)), who, f"{i.backlog:,}", watermark)
    hot = table("hot key", "interval", "computation", "share of its records")
    for i in found.intervals:
        for h in i.hot:
            hot.add_row(Text(escaped(h.key), "bold yellow"), str(i.id), i.computation, f"{h.share:.0%}")
    sources = table("source", "owner", "open", "rows", "rows/s", "watermark")
    for s in found.sources:
        watermark = format_time(found.watermarks[f"source:{s.name}"]) if f"source:{s.name}" in found.watermarks else "-"
        rate = f"{rates[s.name]:,.0f}" if s.name in rates else "-"
        open_now = f"{s.open_partitions:,}" + (", paused" if s.paused else "")
        sources.add_row(s.name, owner(found, s.owner), open_now, f"{s.rows:,}", rate, watermark)
    head = Text(f"map {found.version}, lag {lag(found)}", "bold")
    return Group(head, members, intervals, *([hot] if hot.row_count else []), sources)
