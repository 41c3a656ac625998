"""`millwheel savepoint`: keep what is stored now under a name, and go back to it."""

from __future__ import annotations

import click

from millwheel.cli.options import Place, place
from millwheel.model import format_time


@click.group(short_help="Named copies of what is stored: create, list, restore, drop.")
def savepoint() -> None:
    """Keep what is stored now under a name, and go back to it.

    A savepoint is a copy that Postgres makes.  It has state, timers, positions of sources and rows of sink tables.
    """


@savepoint.command(short_help="Make one; the pipeline may run.")
@place
@click.argument("name")
def create(place: Place, name: str) -> None:
    """Copy all that the store holds now under NAME.  The pipeline may run meanwhile, and waits for nothing."""
    from millwheel import savepoints

    made = savepoints.create(place.pipeline(), name, place.store, place.data)
    click.echo(f"millwheel: savepoint {name!r} has {made.size_bytes:,} bytes, as of {format_time(made.made_us)}")


@savepoint.command("list", short_help="Show them.")
@place
def list_(place: Place) -> None:
    """Every savepoint of the pipeline, when it was made, and its size."""
    from millwheel import savepoints

    for one in savepoints.found(place.pipeline(), place.store, place.data):
        click.echo(f"{one.name}\t{format_time(one.made_us)}\t{one.size_bytes:,} bytes")


@savepoint.command(short_help="Put one back in the place of what is stored.")
@place
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do it: what was stored after the savepoint is gone.")
def restore(place: Place, name: str, yes: bool) -> None:
    """Put NAME back in the place of what is stored.  The pipeline must not run; the next run goes on from there."""
    from millwheel import savepoints

    pipeline = place.pipeline()
    if not yes:
        raise click.UsageError(
            f"restore drops all that {pipeline.name!r} has stored since savepoint {name!r}: add --yes."
        )
    back = savepoints.restore(pipeline, name, place.store, place.data)
    click.echo(f"millwheel: {pipeline.name!r} is as it was at {format_time(back.made_us)}")


@savepoint.command(short_help="Remove one.")
@place
@click.argument("name")
def drop(place: Place, name: str) -> None:
    """Remove the savepoint NAME.  The pipeline keeps what it has."""
    from millwheel import savepoints

    savepoints.drop(place.pipeline(), name, place.store, place.data)
    click.echo(f"millwheel: savepoint {name!r} is gone")
