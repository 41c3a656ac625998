"""`millwheel check`: what a new version of the code would change in the store, before it runs."""

from __future__ import annotations

import click

from millwheel.cli.options import Place, place
from millwheel.cli.status import Status
from millwheel.escapes import harmless


@click.command(short_help="What a start would change in the store; writes nothing.")
@place
def check(place: Place) -> int:
    """Compare the code with what the store holds, and write nothing.

    One line for each change that a start would make, and one for each reason to refuse it.
    """
    from millwheel import committed

    pipeline = place.pipeline()
    found = committed.check(pipeline, place.store, place.data)
    if not found.exists:
        click.echo(f"new\tthe store holds nothing of {pipeline.name!r}")
    for change in found.changes:
        click.echo(f"change\t{harmless(change)}")
    for refusal in found.refusals:
        click.echo(f"refused\t{harmless(refusal)}")
    if not (found.changes or found.refusals) and found.exists:
        click.echo("same\tnothing changes")
    return Status.FAILED if found.refusals else Status.DONE
