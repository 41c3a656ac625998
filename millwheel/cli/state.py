"""`millwheel state`: committed state of keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from millwheel.cli.options import KEY, KEY_HELP, Place, place
from millwheel.errors import StoreError
from millwheel.escapes import escaped, harmless

if TYPE_CHECKING:
    from millwheel_storage.postgres.overlays import StateRow


@click.group()
def state() -> None:
    """Committed state: of one key, or of many."""


@state.command(
    short_help="The state of one key.", help=f"The state of one key of a computation.\n\nKEY is written {KEY_HELP}."
)
@place
@click.argument("computation")
@click.argument("key", type=KEY)
def get(place: Place, computation: str, key: str) -> None:
    """Key, cell and value of one key."""
    with place.committed() as committed:
        committed.check_computation(computation)
        rows = [*committed.reader.get_state(computation, key)]
        if not rows:
            raise StoreError(f"key '{escaped(key)}' of {computation!r} has no state: see millwheel state scan")
        _show(rows)


@state.command(
    short_help="The state of all keys, or of those with a prefix.",
    help=f"The state of all keys of a computation, or of those that begin with PREFIX.\n\nPREFIX is written {KEY_HELP}.",
)
@place
@click.argument("computation")
@click.argument("prefix", type=KEY, default="")
def scan(place: Place, computation: str, prefix: str) -> None:
    """Key, cell and value of many keys."""
    with place.committed() as committed:
        committed.check_computation(computation)
        _show(committed.reader.scan_state(computation, prefix))


def _show(rows: Iterable[StateRow]) -> None:
    for row in rows:
        entry = f"[{escaped(row.entry)}]" if row.entry else ""
        value = harmless(row.value.decode(errors="backslashreplace"))
        click.echo(f"{escaped(row.key)}\t{row.cell}{entry}\t{value}")
