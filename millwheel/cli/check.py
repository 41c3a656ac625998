"""`millwheel check`: what a new version of the code would change in the store, before it runs."""

from __future__ import annotations

import click

from millwheel.cli.options import Place, place
from millwheel.cli.status import Status
from millwheel.escapes import harmless


@click.command(short_help="What a start would change in the store; writes nothing.")
@place
def check(place: Place) -> int:
    """Compare the code with what the store holds, read all state with it, and write nothing.

    One line for each change that a start would make, for each reason to refuse it, and for each cell with values that cannot
    be read.
    """
    from millwheel import committed

    pipeline = place.pipeline()
    found = committed.check(pipeline, place.store, place.data)
    if not found.exists:
        click.echo(f"new\tthe store holds nothing of {pipeline.name!r}")
    for change in found.changes:
        click.echo(f"change\t{harmless(change)}")
    for warning in found.warnings:
        click.echo(f"warning\t{harmless(warning)}")
    for refusal in found.refusals:
        click.echo(f"refused\t{harmless(refusal)}")
    for cell in found.unreadable:
        click.echo(f"unreadable\t{cell}")
    if not (found.changes or found.warnings or found.refusals or found.unreadable) and found.exists:
        click.echo("same\tnothing changes in the store")
    return Status.FAILED if found.refusals or found.unreadable else Status.DONE
