"""`millwheel state`: committed state of keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click

from millwheel.cli.options import KEY, KEY_HELP, Place, place
from millwheel.cli.shown_values import shown_stored
from millwheel.errors import StoreError
from millwheel.escapes import escaped

if TYPE_CHECKING:
    from millwheel.api.state import Cell
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
        cells = committed.cells(computation)
        rows = [*committed.reader.get_state(computation, key)]
        if not rows:
            raise StoreError(f"key '{escaped(key)}' of {computation!r} has no state: see millwheel state scan")
        _show(rows, cells)


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
        cells = committed.cells(computation)
        _show(committed.reader.scan_state(computation, prefix), cells)


def _show(rows: Iterable[StateRow], cells: Mapping[str, Cell]) -> None:
    for row in rows:
        entry = f"[{escaped(row.entry)}]" if row.entry else ""
        click.echo(f"{escaped(row.key)}\t{row.cell}{entry}\t{shown_state(row, cells.get(row.cell))}")


def shown_state(row: StateRow, cell: Cell | None) -> str:
    """As it is stored where that is text; else as the coder of its cell decodes it, in JSON."""
    counts = cell is not None and cell.kind == "list" and not row.entry
    return shown_stored(row.value, None if cell is None or counts else cell.coder)
