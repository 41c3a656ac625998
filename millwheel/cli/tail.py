"""`millwheel tail`: the last records of a published stream, and those that come."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from millwheel.cli.options import Place, place
from millwheel.cli.shown_values import as_json, shown
from millwheel.cli.status import Status
from millwheel.model import format_time
from millwheel.wording import counted

if TYPE_CHECKING:
    from millwheel.committed import Published


@click.command(short_help="The last records of a published stream as JSON lines.")
@place
@click.argument("stream")
@click.option("-n", "count", type=click.IntRange(min=0), default=10, show_default=True, metavar="N",
              help="How many records to begin with.")  # fmt: skip
@click.option("-f", "--follow", is_flag=True, help="Go on with what is committed later, until Ctrl-C.")
def tail(place: Place, stream: str, count: int, follow: bool) -> int:
    """The last records of the published STREAM as JSON lines, oldest first."""
    if ":" in stream and ":" not in place.path:  # a stream's name holds no colon: either order will do
        place, stream = place._replace(path=stream), place.path
    try:
        with place.committed() as committed:
            for record in (committed.follow if follow else committed.tail)(stream, count):
                if record.missed:
                    click.echo(f"millwheel: missed {counted(record.missed, 'record')}, no longer kept", err=True)
                print(json_line(record), flush=follow)
    except KeyboardInterrupt:  # the way to end it
        return Status.STOPPED
    return Status.DONE


def json_line(record: Published) -> str:
    """A record on one line."""
    return as_json({"position": record.position, "time": format_time(record.timestamp), "value": shown(record.value)})
