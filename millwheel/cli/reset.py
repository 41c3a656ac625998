"""`millwheel reset`: start over."""

from __future__ import annotations

import click

from millwheel.cli.options import Place, place


@click.command(short_help="Drop everything the store holds of a pipeline.")
@place
@click.option("--yes", is_flag=True, help="Do it: there is no way back.")
def reset(place: Place, yes: bool) -> None:
    """Drop everything the store holds of a pipeline, its sink tables too."""
    from millwheel import committed

    pipeline = place.pipeline()
    if not yes:
        raise click.UsageError(f"reset drops all state, timers and rows of {pipeline.name!r}: add --yes.")
    found = committed.reset(pipeline, place.store, place.data)
    click.echo(f"millwheel: {pipeline.name!r} " + ("is gone" if found else "was not there"))
