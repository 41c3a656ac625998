"""`millwheel interval`: orders to the leader of a cluster: split, move and merge key intervals."""

from __future__ import annotations

import click

from millwheel.cli.options import KEY, Place, place


@click.group(short_help="Key intervals of a cluster: split, move, merge.")
def interval() -> None:
    """Change the key intervals of a cluster that runs.  `millwheel status` shows them with their numbers."""


@interval.command(short_help="Cut an interval in pieces.")
@place
@click.argument("number", type=int)
@click.argument("keys", type=KEY, nargs=-1, required=True)
def split(place: Place, number: int, keys: tuple[str, ...]) -> None:
    """Cut the interval NUMBER in pieces: each of KEYS begins one.

    The pieces go to the workers that have least.  Keys are given as they are shown.
    """
    with place.office() as office:
        office.split(number, keys)
    click.echo(f"millwheel: interval {number} is split")


@interval.command(short_help="Give intervals to another worker.")
@place
@click.argument("numbers", type=int, nargs=-1, required=True)
@click.option("--to", required=True, metavar="NAME", help="The worker, as status calls it.")
def move(place: Place, numbers: tuple[int, ...], to: str) -> None:
    """Give the intervals NUMBERS to the worker NAME.

    They may move again, when that makes the numbers of intervals of the workers more equal.
    """
    with place.office() as office:
        office.move(numbers, to)
    click.echo(f"millwheel: {', '.join(map(str, numbers))} moved to {to}")


@interval.command(short_help="Make one interval of neighbours.")
@place
@click.argument("numbers", type=int, nargs=-1, required=True)
def merge(place: Place, numbers: tuple[int, ...]) -> None:
    """Make one interval of NUMBERS: two or more neighbours of one computation, in the order of their keys."""
    with place.office() as office:
        office.merge(numbers)
    click.echo(f"millwheel: {', '.join(map(str, numbers))} are one interval now")
