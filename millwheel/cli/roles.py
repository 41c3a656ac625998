"""`millwheel roles`: database roles with no more rights than they need."""

from __future__ import annotations

import click


@click.command(short_help="SQL that makes database roles with few rights.")
@click.argument("pipeline")
def roles(pipeline: str) -> None:
    """Print SQL that makes database roles with no more rights than they need.

    Run it as the owner of the pipeline's schema, after the pipeline was opened, and again after each new version.  Nothing is
    asked of the store, and nothing is changed in it.
    """
    from millwheel.launch import import_pipeline
    from millwheel_storage.schema.grants import roles_script

    graph = import_pipeline(pipeline).graph()
    click.echo(roles_script(graph.name, snapshots=graph.snapshot_every_us > 0), nl=False)
