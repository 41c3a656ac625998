"""The tables of a pipeline's schema (docs/architecture-store.md), as SQLAlchemy Core values, and their DDL.

Lives here: tables, storage parameters, migrations.  Never here: statements of the hot path, I/O. Tables
carry no schema name: a connection's search_path chooses the pipeline.  Keys, entries and tags are `bytea`
of UTF-8: NUL is legal in them, and bytes compare as Python compares the strings (by code point).
"""

from __future__ import annotations

from datetime import datetime
from textwrap import wrap
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    PrimaryKeyConstraint,
    Sequence,
    Table,
    Text,
    UniqueConstraint,
    func,
)
from sqlalchemy import (
    text as sql,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateSequence, CreateTable

from millwheel.errors import InvariantError
from millwheel.ports import SinkTable
from millwheel_storage.schema.reserved import RESERVED_NAMES
from millwheel_storage.schema.shape_checks import STORE_FORMAT

metadata: Final = MetaData()

_HOT: Final[dict[str, Any]] = {
    "autovacuum_vacuum_scale_factor": 0,
    "autovacuum_vacuum_threshold": 20_000,
    "autovacuum_vacuum_cost_delay": 0,
    "autovacuum_analyze_scale_factor": 0,
    "autovacuum_analyze_threshold": 100_000,
    "toast.autovacuum_vacuum_scale_factor": 0,
    "toast.autovacuum_vacuum_threshold": 5_000,
}
"""For tables whose rows all come and go.  They are vacuumed by a count of rows, as a share of their size says nothing."""

_NARROW: Final[dict[str, Any]] = {
    "fillfactor": 50,
    "autovacuum_vacuum_scale_factor": 0,
    "autovacuum_vacuum_threshold": 1_000,
}
"""For tables of a few rows that are updated or locked all the time.  Room on the page keeps updates in place (HOT)."""


def _key(name: str = "key") -> Column[bytes]:
    return Column(name, LargeBinary, nullable=False)


def _number(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


def _small(name: str) -> Column[int]:
    return Column(name, Integer, nullable=False)


def _text(name: str) -> Column[str]:
    return Column(name, Text(collation="C"), nullable=False)


def _bytes(name: str) -> Column[bytes]:
    return Column(name, LargeBinary, nullable=False)


def _expires() -> Column[datetime]:
    """By the clock of the database; '-infinity' when it is over for ever."""
    return Column("expires", DateTime(timezone=True), nullable=False)


def _primary(*columns: str) -> PrimaryKeyConstraint:
    return PrimaryKeyConstraint(*columns)


sequencer = Sequence("sequencer", metadata=metadata)
interval_number = Sequence("interval_number", metadata=metadata)
incarnation = Sequence("incarnation", metadata=metadata)

migration = Table(
    "migration",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("applied", DateTime(timezone=True), nullable=False, server_default=func.now()),
)
"""One row per migration applied; the largest is the store format."""

meta = Table(
    "meta",
    metadata,
    Column("singleton", Boolean, primary_key=True, server_default="true"),
    _small("payload_format"),
    _bytes("shape"),
)
"""One row: the checkpoint format in the log, and the pipeline shape (JSON) that wrote the store last."""

name = Table("name", metadata, _text("kind"), _text("name"), _small("number"), _primary("kind", "name"))
"""Durable numbers of computations and subscriptions, stable when the pipeline's shape changes."""

interval = Table(
    "interval",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    _small("computation"),
    _key("low"),
    Column("high", LargeBinary, nullable=True),
    Column("follows", postgresql.ARRAY(BigInteger), nullable=False, server_default=sql("'{}'")),
    Index("interval_by_computation", "computation"),
)
"""`follows`: producers that have sent for keys of the interval before it was cut off.  What they sent is with another one."""

ownership = Table(
    "ownership",
    metadata,
    Column("interval_id", BigInteger, primary_key=True, autoincrement=False),
    _number("sequencer"),
    postgresql_with=_NARROW,
)
"""The fence, and nothing else: every commit locks its rows here, FOR SHARE."""

suspicion = Table(
    "suspicion",
    metadata,
    Column("interval_id", BigInteger, primary_key=True, autoincrement=False),
    _small("ends"),
    _bytes("mark"),
    postgresql_with=_NARROW,
)
"""By interval: how many of its last processes in a row have not ended in order, and what the last one ran."""

checkpoint_log = Table(
    "checkpoint_log",
    metadata,
    _number("interval_id"),
    _number("sequencer"),
    _number("seq"),
    _number("epoch"),
    _bytes("payload"),
    _primary("interval_id", "sequencer", "seq"),
    postgresql_with=_HOT,
)

key_state = Table(
    "key_state",
    metadata,
    _small("computation"),
    _key(),
    _text("cell"),
    _key("entry"),
    _bytes("value"),
    _primary("computation", "key", "cell", "entry"),
    postgresql_with={
        "fillfactor": 85,
        "autovacuum_vacuum_scale_factor": 0.05,
        "autovacuum_vacuum_threshold": 20_000,
        "autovacuum_vacuum_cost_delay": 0,
    },
)

hold = Table(
    "hold",
    metadata,
    _small("computation"),
    _key(),
    _number("timestamp"),
    _primary("computation", "key"),
    postgresql_with={"fillfactor": 85} | _HOT,
)

timer = Table(
    "timer",
    metadata,
    _small("computation"),
    _key(),
    _text("kind"),
    _key("tag"),
    _number("timestamp"),
    _primary("computation", "key", "kind", "tag"),
    Index("timer_by_time", "computation", "kind", "timestamp", "key", "tag"),
    postgresql_with={"fillfactor": 85} | _HOT,
)
"""An owner has the timers in memory that are due next, and reads on by the index (`docs/adr/0010-timers-in-pages.md`)."""

production = Table(
    "production",
    metadata,
    _number("interval_id"),
    _small("subscription"),
    _number("producer"),
    _number("sequence"),
    _key(),
    _bytes("value"),
    _number("timestamp"),
    _primary("interval_id", "subscription", "producer", "sequence"),
    postgresql_with=_HOT,
)
"""Productions not acked yet, by the interval that sends them."""

delivered = Table(
    "delivered",
    metadata,
    _number("interval_id"),
    _small("subscription"),
    _number("producer"),
    _number("first_sequence"),
    _number("last_sequence"),
    _bytes("ids"),
    Index("delivered_by_last", "interval_id", "subscription", "producer", "last_sequence"),
    postgresql_with=_HOT,
)
"""Segments of delivered ids, one per fold and (subscription, producer): inserted, never updated, deleted
whole."""

delivered_frontier = Table(
    "delivered_frontier",
    metadata,
    _number("interval_id"),
    _small("subscription"),
    _number("producer"),
    _number("frontier"),
    _primary("interval_id", "subscription", "producer"),
    postgresql_with=_NARROW,
)

opaque_bucket = Table(
    "opaque_bucket",
    metadata,
    Column("number", BigInteger, Identity(always=True), nullable=False),
    _number("interval_id"),
    _small("subscription"),
    _number("expires"),
    _number("count"),
    _primary("interval_id", "subscription", "expires"),
    postgresql_with=_NARROW,
)
"""Buckets of ids that outside clients chose, which expire together (wall time, us); `count` of them were put in."""

opaque_id = Table(
    "opaque_id",
    metadata,
    _number("bucket"),
    _bytes("id"),
    Index("opaque_id_by_bucket", "bucket", "id"),
    postgresql_with=_HOT,
)
"""Ids that outside clients chose.  They are not unique: a wall clock that was set back can bring one into its bucket twice.
A unique index doubled the cost of an insert."""

quarantine = Table(
    "quarantine",
    metadata,
    Column("place", BigInteger, Identity(always=True), nullable=False),
    _small("computation"),
    _key(),
    _small("subscription"),
    _number("producer"),
    _number("sequence"),
    _bytes("value"),
    _number("timestamp"),
    _key("tag"),
    _text("kind"),
    _bytes("error"),
    _primary("computation", "key", "place"),
)

redrive = Table(
    "redrive",
    metadata,
    _small("computation"),
    _key(),
    Column("sequencer", BigInteger, nullable=False, server_default="0"),
    Column("seq", BigInteger, nullable=False, server_default="0"),
    _primary("computation", "key"),
)
"""Requests.  `sequencer` and `seq`: the newest row that the log of the key's interval had then.  A release that is behind it
in the log answers the request."""

watermark = Table("watermark", metadata, _text("name"), _number("value"), _primary("name"), postgresql_with=_NARROW)

declared_epoch = Table(
    "declared_epoch",
    metadata,
    Column("singleton", Boolean, primary_key=True, server_default="true"),
    _number("number"),
    postgresql_with=_NARROW,
)
"""One row, or none: the last epoch that is complete.  Log rows of a later one do not count."""

source = Table(
    "source",
    metadata,
    _text("source"),
    _text("partition"),
    _number("interval_id"),
    _number("producer"),
    _number("position"),
    Column("finished", Boolean, nullable=False),
    _bytes("state"),
    Column("signed", Boolean, nullable=False, server_default="false"),
    Column("rejected", BigInteger, nullable=False, server_default="0"),
    _primary("source", "partition"),
    UniqueConstraint("interval_id"),
    postgresql_with={"fillfactor": 70} | _HOT,
)
"""`signed`: it is finished, and its signs are in `source_sign`.  `rejected`: so many of its rows below `position` were
rejected."""

Index("source_unfinished", source.c.source, source.c.partition, postgresql_where=~source.c.finished)
Index(
    "source_unsigned",
    source.c.source,
    source.c.partition,
    postgresql_where=source.c.finished & ~source.c.signed,
)
"""For the question of a start, whose cost must not grow with what is finished."""

Index("source_rejected", source.c.rejected, postgresql_where=source.c.rejected > 0)
"""For the question how many rows were rejected in all."""

source_sign = Table(
    "source_sign",
    metadata,
    _text("source"),
    _bytes("sign"),
    _number("interval_id"),
    _primary("source", "sign", "interval_id"),
)
"""Signs by which finished partitions are recognised.  A partition has several, and several partitions may share one."""

cluster = Table(
    "cluster",
    metadata,
    Column("singleton", Boolean, primary_key=True, server_default="true"),
    _number("version"),
    _bytes("decision"),
    Column("shape", LargeBinary, nullable=False, server_default=""),
    postgresql_with=_NARROW,
)
"""One row: the version of the map, a digest of the decision that made it, and one of the shape that was opened last.
Whoever decides locks it first."""

cluster_leader = Table(
    "cluster_leader",
    metadata,
    Column("singleton", Boolean, primary_key=True, server_default="true"),
    _number("epoch"),
    Column("incarnation", BigInteger, nullable=True),
    _expires(),
    postgresql_with=_NARROW,
)
"""One row: who leads, and the epoch of its writes.  A decision locks it last, so no lease waits for an interval's rows."""

cluster_member = Table(
    "cluster_member",
    metadata,
    Column("incarnation", BigInteger, primary_key=True, autoincrement=False),
    _bytes("key"),
    _text("name"),
    _text("role"),
    _text("address"),
    UniqueConstraint("key"),
)
"""Processes that have joined and not left.  `key` is a process's own, so that a join that is repeated finds its row."""

lease = Table(
    "lease",
    metadata,
    Column("incarnation", BigInteger, primary_key=True, autoincrement=False),
    _expires(),
    postgresql_with=_NARROW,
)
"""Until when each member may act.  Nothing else is in the row, because each member writes its own every second."""

interval_owner = Table(
    "interval_owner",
    metadata,
    Column("interval_id", BigInteger, primary_key=True, autoincrement=False),
    Column("owner", BigInteger, nullable=True),
    postgresql_with=_NARROW,
)
"""Who owns each interval of the pipeline's computations, as an incarnation.  Its sequencer is in `ownership`."""

source_owner = Table(
    "source_owner",
    metadata,
    _text("source"),
    Column("owner", BigInteger, nullable=True),
    _primary("source"),
    postgresql_with=_NARROW,
)
"""Who discovers and reads the partitions of each source, as an incarnation."""

map_order = Table(
    "map_order",
    metadata,
    Column("number", BigInteger, Identity(always=True), nullable=False),
    _bytes("wish"),
    Column("refusal", Text, nullable=True),
    _primary("number"),
)
"""What operators want of the map (JSON), and what became of it: '' when it was carried out, or why it was not."""

hot_key = Table(
    "hot_key",
    metadata,
    Column("incarnation", BigInteger, nullable=False),
    _bytes("keys"),
    _primary("incarnation"),
)
"""Of each worker the keys that its intervals get most of (JSON), for whoever looks."""

standstill = Table(
    "standstill",
    metadata,
    Column("incarnation", BigInteger, nullable=False),
    _bytes("found"),
    _primary("incarnation"),
)
"""Of each worker what keeps watermarks that stand (JSON), for whoever looks."""

Index("map_order_open", map_order.c.number, postgresql_where=map_order.c.refusal.is_(None))

if not metadata.tables.keys() <= RESERVED_NAMES:
    raise InvariantError("a table of the store has a name that is not reserved")

_STORAGE: Final = (
    # Compressing a checkpoint costs more time than it saves: it lives for seconds.
    "ALTER TABLE checkpoint_log ALTER COLUMN payload SET STORAGE EXTERNAL",
    "ALTER TABLE production ALTER COLUMN value SET STORAGE EXTERNAL",
)


def _compile(element: Any) -> str:
    return str(element.compile(dialect=postgresql.dialect()))  # type: ignore[no-untyped-call]


def creation() -> list[str]:
    """The statements that make an empty store of the first format."""
    sequences = [_compile(CreateSequence(sequence)) for sequence in (sequencer, interval_number, incarnation)]
    tables = [_compile(CreateTable(table)) for table in metadata.sorted_tables]
    indexes = [
        _compile(CreateIndex(index))
        for table in metadata.sorted_tables
        for index in sorted(table.indexes, key=lambda index: str(index.name))
    ]
    return [*sequences, *tables, *indexes, *_STORAGE]


_CHANNELS_BY_FRONTIER: Final = """
INSERT INTO delivered_frontier (interval_id, subscription, producer, frontier)
SELECT DISTINCT interval_id, subscription, producer, 0 FROM delivered
ON CONFLICT (interval_id, subscription, producer) DO NOTHING
"""
"""Since format 2, every channel has a frontier, also one whose sender has not advertised any."""

_OPAQUE_IDS: Final = [
    *(_compile(CreateTable(table, if_not_exists=True)) for table in (opaque_bucket, opaque_id)),
    *(_compile(CreateIndex(index, if_not_exists=True)) for index in opaque_id.indexes),
]

_TIMERS_BY_TIME: Final = """
CREATE INDEX IF NOT EXISTS timer_by_time ON timer (computation, kind, timestamp, key, tag)
"""

_SUSPICION: Final = _compile(CreateTable(suspicion, if_not_exists=True))

_SIGNS: Final = [
    "ALTER TABLE source ADD COLUMN IF NOT EXISTS signed boolean NOT NULL DEFAULT false",
    _compile(CreateTable(source_sign, if_not_exists=True)),
    *(
        _compile(CreateIndex(index, if_not_exists=True))
        for index in sorted(source.indexes, key=lambda i: str(i.name))
        if index.name != "source_rejected"
    ),
]

_REJECTED: Final = [
    "ALTER TABLE source ADD COLUMN IF NOT EXISTS rejected bigint NOT NULL DEFAULT 0",
    "CREATE INDEX IF NOT EXISTS source_rejected ON source (rejected) WHERE rejected > 0",
]

_DECLARED_EPOCH: Final = _compile(CreateTable(declared_epoch, if_not_exists=True))

_CLUSTER: Final = [
    _compile(CreateSequence(incarnation, if_not_exists=True)),
    *(
        _compile(CreateTable(table, if_not_exists=True))
        for table in (cluster, cluster_leader, cluster_member, lease, interval_owner, source_owner)
    ),
    "INSERT INTO cluster (version, decision) VALUES (0, '') ON CONFLICT DO NOTHING",
    "INSERT INTO cluster_leader (epoch, expires) VALUES (0, '-infinity') ON CONFLICT DO NOTHING",
]

_ORDERS: Final = [
    _compile(CreateTable(map_order, if_not_exists=True)),
    *(_compile(CreateIndex(index, if_not_exists=True)) for index in map_order.indexes),
]

_HOT_KEYS: Final = _compile(CreateTable(hot_key, if_not_exists=True))

_REQUESTS: Final = [
    f"ALTER TABLE redrive ADD COLUMN IF NOT EXISTS {column} bigint NOT NULL DEFAULT 0"
    for column in ("sequencer", "seq")
]

_STANDSTILLS: Final = _compile(CreateTable(standstill, if_not_exists=True))

_OPENED_SHAPE: Final = "ALTER TABLE cluster ADD COLUMN IF NOT EXISTS shape bytea NOT NULL DEFAULT ''"

_FOLLOWS: Final = "ALTER TABLE interval ADD COLUMN IF NOT EXISTS follows bigint[] NOT NULL DEFAULT '{}'"

MIGRATIONS: Final[list[list[str]]] = [
    creation(), [_CHANNELS_BY_FRONTIER], _OPAQUE_IDS, [_TIMERS_BY_TIME], [_SUSPICION], [], _SIGNS, [_DECLARED_EPOCH],
    _CLUSTER, _ORDERS, [_OPENED_SHAPE], [_HOT_KEYS], [_STANDSTILLS], _REJECTED, _REQUESTS,
    [_FOLLOWS],
]  # fmt: skip
"""MIGRATIONS[v] takes a store from format v to v + 1.  Entries are only ever appended.  A new store runs all of them.
The first one makes the tables as they are today, and the others do no harm to them.  Format 6 has the same tables as
before.  Its shape says where renamed cells are, and an earlier version would not look for that."""

if len(MIGRATIONS) != STORE_FORMAT:
    raise InvariantError("STORE_FORMAT counts the migrations")

_WRITTEN: Final = '''"""The migrations of a store as SQL, which `python scripts/ddl.py` writes from `ddl`: do not edit.

Lives here: nothing else.  A start takes them from here, because SQLAlchemy takes a quarter of a second to import.
"""

from __future__ import annotations

from typing import Final

# fmt: off
MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
{}
)
# fmt: on
"""See `ddl.MIGRATIONS`."""
'''


def written() -> str:
    """The module `migrations`."""
    return _WRITTEN.format("\n".join(_written(migration) for migration in MIGRATIONS))


def _written(migration: list[str]) -> str:
    if not migration:
        return "    (),"
    lines = ["    ("]
    for statement in migration:
        wrapped = wrap(" ".join(statement.split()), 110, break_long_words=False, break_on_hyphens=False)
        lines.append('        """' + "\n        ".join(wrapped) + '""",')
    return "\n".join([*lines, "    ),"])


_SINK_TYPES: Final[dict[str, Any]] = {
    "text": Text(),
    "bigint": BigInteger(),
    "integer": Integer(),
    "double precision": postgresql.DOUBLE_PRECISION(),
    "boolean": Boolean(),
    "timestamptz": DateTime(timezone=True),
    "date": postgresql.DATE(),
    "jsonb": postgresql.JSONB(),
    "numeric": Numeric(),
    "uuid": postgresql.UUID(),
}


def sink_creation(table: SinkTable) -> str:
    """DDL of a user's sink table; its names and types are checked by `sinks.check_table` before."""
    columns: list[Column[Any]] = [
        Column(column, _SINK_TYPES[kind], nullable=column not in table.key) for column, kind in table.columns.items()
    ]
    # An explicit constraint keeps the declared order of the key's columns, which is what its index can serve.
    made = Table(table.name, MetaData(), *columns, PrimaryKeyConstraint(*table.key))
    return _compile(CreateTable(made))
