"""`millwheel quarantine`: keys whose hooks have failed, and how they go on."""

from __future__ import annotations

import click

from millwheel.cli.options import KEY, KEY_HELP, Place, place
from millwheel.cli.shown_values import shown_stored
from millwheel.errors import StoreError
from millwheel.escapes import escaped, harmless
from millwheel.model import format_time
from millwheel.wording import counted


@click.group(short_help="Keys whose hooks failed: list, show, redrive.")
def quarantine() -> None:
    """Keys whose hooks failed: list them, show what failed, run them again."""


@quarantine.command("list")
@place
def list_(place: Place) -> None:
    """Every key in quarantine, and how much waits for it."""
    with place.committed() as committed:
        for computation, key, count in committed.quarantined():
            click.echo(f"{computation}\t{escaped(key)}\t{count} waiting")


@quarantine.command(
    short_help="What waits for a key, with the error.",
    help=f"What waits for a key, and the error of the first.\n\nKEY is written {KEY_HELP}.",
)
@place
@click.argument("computation")
@click.argument("key", type=KEY)
def show(place: Place, computation: str, key: str) -> None:
    """The elements of one key's queue, with the error of the first one."""
    with place.committed() as committed:
        waiting = committed.quarantine(computation, key)
        if not waiting:
            raise StoreError(f"key {key!r} of {computation!r} is not in quarantine")
        coders = committed.input_coders()
        for row in waiting:
            what = escaped(row.tag) or shown_stored(row.value, coders.get(row.subscription))
            error = "\n".join(map(harmless, row.error.split("\n")))
            click.echo(f"#{row.order} {format_time(row.timestamp)} {what}\n{error}")


@quarantine.command(
    short_help="Run what waits for a key again, or for all keys.",
    help="Run a key's queue again, in order, once the hook is mended; with --all those of every key, of COMPUTATION if it "
    f"is given.\n\nKEY is written {KEY_HELP}.",
)
@place
@click.argument("computation", required=False)
@click.argument("key", type=KEY, required=False)
@click.option("--all", "every", is_flag=True, help="Every key that is in quarantine now.")
def redrive(place: Place, computation: str | None, key: str | None, every: bool) -> None:
    """Ask for queues to be run again."""
    if every == (key is not None):
        raise click.UsageError("name a computation and a key, or add --all instead of the key")
    with place.committed() as committed:
        if computation is None or key is None:
            keys = committed.redrive_all(computation)
            what = counted(keys, "key") if keys else ""
        else:
            committed.redrive(computation, key)
            what = repr(key)
    if not what:
        click.echo("millwheel: no key is in quarantine")
        return
    click.echo(f"millwheel: {what} will be redriven by the running pipeline, or by the next run")
