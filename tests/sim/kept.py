"""Savepoints in the simulator: a copy of all that a store has at one moment, with the account of it, and how it is put back.

It is what `copies` does on Postgres: the rows are those of the copy, nobody gets an old sequencer, and numbers that were
given out since stay used.  Never here: when that is done.
"""

from __future__ import annotations

import copy
from typing import Any

import msgspec

from millwheel.testing.checks.either import EitherStore
from millwheel.testing.checks.truth import Channel
from millwheel.testing.kit.scripted import Script

ROWS = (
    "shape", "intervals", "log", "folded", "suspicions", "watermark", "declared", "sources", "signs", "_signed", "sinks",
    "subscriptions", "sink_tables",
)  # fmt: skip
"""Tables of a store that a savepoint has."""
ACCOUNT = (
    "durable", "consumed", "taken_by", "made_by", "unrecorded", "advertised", "positions", "produced", "pending", "outside",
    "asked", "computation",
)  # fmt: skip
"""What `Truth` says of them."""
TABLES = ("keys", "_produced", "_delivered", "_frontiers")
"""And the account of what is folded."""
LIVES = ("_until",)
"""And until when keys live."""


class Kept(msgspec.Struct):
    """One savepoint."""

    rows: dict[str, Any]
    account: dict[str, Any]
    tables: dict[str, Any]
    lives: dict[str, Any]
    scripts: dict[Channel, Script]
    """Of the partitions that it has: another line, made since, knows them by other numbers."""
    declared: int


def keep(store: EitherStore) -> Kept:
    """Copy what is stored now."""
    return Kept(
        _copied(store.inner, ROWS), _copied(store.truth, ACCOUNT), _copied(store.tables, TABLES),
        _copied(store.lifetimes, LIVES), dict(store.truth.scripts), store.newest_declared,
    )  # fmt: skip


def put_back(store: EitherStore, kept: Kept) -> None:
    """All is as it was when `kept` was made, and whoever owned anything is fenced."""
    for place, values in (
        (store.inner, kept.rows), (store.truth, kept.account), (store.tables, kept.tables), (store.lifetimes, kept.lives),
    ):  # fmt: skip
        for name, value in copy.deepcopy(values).items():
            setattr(place, name, value)
    store.newest_declared = kept.declared
    inner, truth = store.inner, store.truth
    gone = inner.ownership.keys() - inner.intervals.keys()
    inner.fence({*inner.intervals})
    for interval in gone:
        del inner.ownership[interval]
        truth.owner.pop(interval, None)
    truth.owner.update(inner.ownership)
    truth.scripts = dict(kept.scripts)
    truth.scripts_ended()
    truth.scripts_delayed()


def _copied(place: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: copy.deepcopy(getattr(place, name)) for name in names}
