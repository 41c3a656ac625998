"""`millwheel explain` and `millwheel rows`: what a computation waits for, and what a sink table holds."""

from __future__ import annotations

import click
import msgspec

from millwheel.cli.options import Place, place
from millwheel.escapes import harmless_json


@click.command(short_help="What holds a computation's low watermark.")
@place
@click.argument("computation")
def explain(place: Place, computation: str) -> None:
    """What holds the low watermark of COMPUTATION: what it waits for, oldest first."""
    with place.committed() as committed:
        for held in committed.explain(computation):
            click.echo(str(held))


@click.command(short_help="Rows of a sink table as JSON lines.")
@place
@click.argument("table")
def rows(place: Place, table: str) -> None:
    """Rows of the sink table TABLE as JSON lines, by primary key."""
    with place.committed() as committed:
        for row in committed.rows(table):
            click.echo(harmless_json(msgspec.json.encode(row).decode()))
