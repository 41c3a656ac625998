"""`millwheel sql`: psql on the store of a pipeline, also on an embedded one, which listens to nobody else."""

from __future__ import annotations

import os
import signal
import subprocess

import click

from millwheel.cli.options import Place, place


@click.command(short_help="psql on the store.", context_settings={"ignore_unknown_options": True})
@place
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENT]...")
def sql(place: Place, arguments: tuple[str, ...]) -> int:
    """Start psql, with ARGUMENTs of its own, on the store of PIPELINE: its tables need no schema in front.

    An embedded Postgres is made if there is none, and runs until psql ends.  The status is that of psql.
    """
    from millwheel_storage.programs import psql
    from millwheel_storage.schema.shape_checks import schema_name

    program, schema = psql(), schema_name(place.pipeline().name)
    options = f'{os.environ.get("PGOPTIONS", "")} -c search_path="{schema}",public'
    with place.opened() as url:
        signal.signal(signal.SIGINT, lambda number, frame: None)  # it is for psql, which ends a query by it
        return subprocess.run([program, "-d", url, *arguments], env={**os.environ, "PGOPTIONS": options}).returncode
