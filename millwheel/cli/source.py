"""`millwheel source`: what was opened of each source, and giving up what does not come back."""

from __future__ import annotations

import click

from millwheel.cli.options import KEY, Place, place
from millwheel.escapes import escaped


@click.group(short_help="Partitions (files) of sources: list, drop.")
def source() -> None:
    """Partitions (files) of sources: list them, give up those that do not come back."""


@source.command("list")
@place
def list_(place: Place) -> None:
    """Every partition that was ever opened, and how far it was read."""
    with place.committed() as committed:
        for name, partition, row, finished in committed.sources():
            click.echo(f"{name}\t{escaped(partition)}\t{'finished' if finished else f'read to row {row}'}")


@source.command(short_help="Give up a source, or a partition of one, that does not come back.")
@place
@click.argument("source")
@click.argument("partition", type=KEY, default="")
def drop(place: Place, source: str, partition: str) -> None:
    """Give up what SOURCE, or one PARTITION of it as the list shows it, was not read to the end of.

    Nothing waits for it any more, and should it come back it is not read. There is no way back.
    """
    with place.committed() as committed:
        dropped = committed.drop_source(source, partition)
        for given_up in dropped:
            click.echo(f"millwheel: {escaped(given_up)} of source {source} is given up")
        if not dropped:
            click.echo(f"millwheel: source {source} was read to its end, and nothing waits for it any more")
