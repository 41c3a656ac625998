"""Decisions of a leader and orders of an operator, as both stores judge them.

Lives here: how a decision that is asked for again is recognised, which key ranges a reshaping makes, and who keeps
others out.  Never here: I/O, or rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise

import msgspec

from millwheel.cluster import MapOrder, Member, Placement, Reshaping
from millwheel.errors import IncompatibleStore, StoreError, StoreInUse
from millwheel.ports import IntervalRow, PipelineShape


def digest(decision: Placement | Reshaping) -> bytes:
    """A short name of a decision.  It holds the version of the map, so two decisions never have the same.

    >>> one, other = Placement(1, 7, {2: 5, 1: 5}, {}), Placement(1, 7, {1: 5, 2: 5}, {})
    >>> digest(one) == digest(other)
    True
    """
    what: tuple[object, ...]
    if isinstance(decision, Placement):
        what = ("place", sorted(decision.intervals.items()), sorted(decision.sources.items()), decision.back)
    else:
        what = ("reshape", [*decision.intervals], [*decision.split_keys], decision.back)
    return hashlib.sha256(msgspec.msgpack.encode((decision.epoch, decision.version, *what))).digest()


def check_named(reshaping: Reshaping) -> None:
    """Raises `StoreError` for a decision that is neither a split nor a merge, whatever the intervals are."""
    named, keys = reshaping.intervals, reshaping.split_keys
    if len(set(named)) != len(named) or not named or (len(named) == 1) != bool(keys):
        raise StoreError(
            f"a split names one interval and keys, a merge names several and no keys; not {[*named]} and {[*keys]}"
        )


def reshaped(rows: Sequence[IntervalRow], split_keys: Sequence[str]) -> list[tuple[str, str | None]]:
    """The key ranges that `rows`, in the order in which a decision named them, are turned into.

    Raises `StoreError` when the keys are not inside and ascending, and when `rows` are not neighbours.

    >>> reshaped([IntervalRow(1, "a", "", "m"), IntervalRow(2, "a", "m", None)], ())
    [('', None)]
    """
    low, high = rows[0].low, rows[-1].high
    for left, right in pairwise(rows):
        if left.computation != right.computation or left.high != right.low:
            raise StoreError(f"intervals {left.id} and {right.id} are not neighbours in this order")
    if any(before >= key for before, key in pairwise((low, *split_keys))) or (
        high is not None and split_keys and split_keys[-1] >= high
    ):
        raise StoreError(
            f"split keys {[*split_keys]} are not ascending and inside of interval {rows[0].id}, {low!r} to {high!r}"
        )
    return list(zip((low, *split_keys), (*split_keys, high), strict=True))


class Alive(msgspec.Struct, frozen=True):
    """A member whose lease is valid `until`, us since 1970."""

    member: Member
    until: int


def check_unused(pipeline: str, alive: Sequence[Alive]) -> None:
    """Raises `StoreInUse` for somebody who is no member and wants to own intervals."""
    if alive:
        it, its = ("it", "its lease has") if len(alive) == 1 else ("them", "their leases have")
        raise StoreInUse(
            f"{_described(pipeline, alive)}; stop {it}, or wait until {its} run out, or start a worker of the cluster instead"
        )


def check_same(pipeline: str, alive: Sequence[Alive], differences: Sequence[str]) -> None:
    """Raises `StoreInUse` for a process whose version cannot run beside that of the members who use the store."""
    if alive and differences:
        raise StoreInUse(
            f"this version cannot run beside the one that runs ({'; '.join(differences)}), and "
            f"{_described(pipeline, alive)}; stop all processes of the earlier version, "
            "then start those of this one"
        )


def _described(pipeline: str, alive: Sequence[Alive]) -> str:
    many = len(alive) > 1
    shown = ", ".join(
        f"{one.member.role} {one.member.name!r} ({one.member.incarnation}) at {one.member.address}" for one in alive[:3]
    )
    more = f" and {len(alive) - 3} more" if len(alive) > 3 else ""
    last = datetime.fromtimestamp(max(one.until for one in alive) // 1_000_000, UTC)
    return (
        f"{len(alive)} live member{'s' if many else ''} of a cluster use{'' if many else 's'} the store of {pipeline!r}: "
        f"{shown}{more}, whose lease{'s' if many else ''} last{'' if many else 's'} until {last:%Y-%m-%d %H:%M:%S} UTC"
    )


def check_opened(stored: tuple[bytes] | None, opened_as: bytes) -> None:
    """Raises `IncompatibleStore` when the store was opened in another shape than this process has opened it in.

    Both are digests.  That of a process is empty when it has opened nothing.
    """
    if opened_as and stored != (opened_as,):
        raise IncompatibleStore("the pipeline was opened in another version meanwhile; start this process again")


def shape_digest(shape: PipelineShape) -> bytes:
    """A short name of what a pipeline declares."""
    return hashlib.sha256(msgspec.json.encode(shape, order="deterministic")).digest()


ORDERS = ("move", "split", "merge")


def check_order(order: MapOrder) -> None:
    """Raises `StoreError` for an order that no leader would know."""
    if order.kind not in ORDERS:
        raise StoreError(f"an order is one of {', '.join(ORDERS)}, not {order.kind!r}")
