"""Keyed ledgers: computations that know how often they saw what.

Every computation is a `Ledger`: it keeps, per key, a counter *and* the set of token ids it has seen (so that one extra
and one missing cannot cancel), checks the order of tokens from each producing key, opens windows with timers, and sends
tokens on whose ids depend on nothing but the token's own.  So the end is known exactly whatever the interleaving was.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from millwheel import (
    Computation,
    Context,
    JsonCoder,
    MapCell,
    Record,
    Stream,
    Table,
    Timer,
    ValueCell,
    limits,
)
from millwheel.api.computation import cells_of
from millwheel.api.given import evolution_of
from millwheel.graph import ComputationSpec
from millwheel.testing.world.calls import Crash
from tests.sim import ticks

WINDOW_US = 200_000
KEYS = ["", "a", "b", "é", "hot", "m", "n\x01", "zz", "\U0001f600"]
COLUMNS = {"stage": "text", "key": "text", "count": "bigint", "total": "bigint", "note": "text"}
KILLS_LIMIT = 16
"""Processes that one token may end under one key: the first unmarked, then until the window of marks is wide enough, then
alone; and redrives that come too early, and zombies."""
SINK = Table("ledger", COLUMNS, ("stage", "key"))


class Token(msgspec.Struct):
    """One record: its key for each of two extractors, who sent it and as which of his for that key."""

    id: str
    n: int
    left: str
    right: str
    origin: str
    left_order: int = 0
    right_order: int = 0
    bad: str = ""
    """What its hook does: fail until mended ("raise"), fail once ("flaky"), send an oversized key ("key")."""
    members: list[str] = []
    pad: str = ""
    brief: str = ""
    """What it does to a key of the mayfly."""
    outside: bool = False
    """Its source has a client that gives ids, and may send it again."""


class World:
    """What user code shares with its checker; it survives crashes, as nature does."""

    def __init__(self) -> None:
        self.mended = False
        self.breaches: list[str] = []
        self.tried: set[tuple[str, str]] = set()
        self.late = 0
        self.refused_of = 0
        """The database refuses the sink row of about one token or timer in so many; 0: of none."""
        self.rows_mended = False
        self.tries: Counter[str] = Counter()
        """Of tokens that fail a few times."""
        self.killed: Counter[tuple[str, str]] = Counter()
        self.salt = 0
        self.kills_of = 0
        """About one token or timer in so many ends the process that runs it; 0: none."""

    def fails(self, id_: str, more: int = 0) -> bool:
        """Whether a token fails that does so on all attempts, and on `more` after them."""
        self.tries[id_] += 1
        return self.tries[id_] <= limits.HOOK_ATTEMPTS + more

    def kills(self, id_: str, key: str) -> bool:
        """Whether running this token or timer ends the process, for each key under which a stage gets it."""
        if not self.kills_of or self.mended or zlib.crc32(f"{self.salt} {id_}".encode()) % self.kills_of:
            return False
        self.killed[id_, key] += 1
        if self.killed[id_, key] > KILLS_LIMIT:
            self.breaches.append(f"I16: {id_!r} of {key!r} has killed {self.killed[id_, key]} processes")
        return True

    def refuses(self, id_: str) -> bool:
        """Whether the database has something against the row that this token or timer makes a hook write."""
        return bool(self.refused_of) and not self.rows_mended and not zlib.crc32(id_.encode()) % self.refused_of

    def loops(self, key: str) -> bool:
        """Whether a wall timer of this key sets itself to its own time, for ever."""
        return self.kills_of > 0 and not zlib.crc32(f"loop {self.salt} {key}".encode()) % 4

    def constraint(self, table: str, row: Mapping[str, Any]) -> str | None:
        """What the database says of a row."""
        return f"{row.get('note')!r} violates a check" if row.get("note") and not self.rows_mended else None


class StageSpec(msgspec.Struct, kw_only=True):
    """One computation of a workload."""

    name: str
    inputs: list[tuple[str, str]]
    """(stream, "left" or "right")."""
    output: str | None = None
    sink: bool = False
    rows_from: int = 0
    """Count of a key from which on it has a row: an interval then changes commit lanes in the midst of its work."""
    windows: bool = False
    holds: bool = False
    wall: bool = False
    settings: dict[str, Any] = {}
    exact: bool = True
    """Exactly-once holds here: this stage and everything above it is strong and deduplicated."""
    honest: bool = True
    """No record is late here by our own doing, and none by the user's; its watermark is never ahead of its work."""
    churn: bool = False
    """Its keys set and remove entries all the time."""
    redrives: bool = False
    """Its own quarantine may make records late here."""
    ticks: bool = False
    """Its timers set, cancel and move timers, which may be due already (`ticks`)."""


class Ledger(Computation[Token]):
    """See the module."""

    count = ValueCell(JsonCoder(int), default=0)
    total = ValueCell(JsonCoder(int), default=0)
    ids = MapCell(JsonCoder(int), formerly="known")
    members = MapCell(JsonCoder(int))
    last = MapCell(JsonCoder(int))
    breaks = MapCell(JsonCoder(str))
    sent = MapCell(JsonCoder(int))
    open = MapCell(JsonCoder(list[str]))
    fired = MapCell(JsonCoder(int))
    churned = MapCell(JsonCoder(int))
    order = ValueCell(JsonCoder(list[int]), default=[0, 0])
    held = ValueCell(JsonCoder(int), default=0)
    touched = ValueCell(JsonCoder(int), default=0)

    def __init__(self, spec: StageSpec, world: World, stream: Stream | None) -> None:
        self.spec = spec
        self.world = world
        self.stream = stream

    def ProcessRecord(self, context: Context, record: Record[Token]) -> None:
        token = record.value
        if self.world.kills(f"{self.spec.name} {token.id}", context.key):
            raise Crash
        if record.late:
            self.world.late += 1
            if self.spec.honest and not self.spec.redrives:
                # In the state, not in `breaches`: a zombie asks the store about ids that its successor has collected.
                self.breaks.set(f"late {token.id}", f"at {context.watermark}")
        self._note(token, record)
        if token.bad == "flaky" and (self.spec.name, token.id) not in self.world.tried:
            self._emit(context, token.id, token.n, [])
            context.set_timer("never", record.timestamp)
            self.world.tried.add((self.spec.name, token.id))
            raise RuntimeError("fails once, after it has written")
        if token.bad == "raise" and not self.world.mended:
            raise RuntimeError("poison")
        if self.spec.windows:
            self._window(context, token, record.timestamp)
        elif self.spec.output is not None:
            self._emit(context, token.id, token.n, [], token.bad)
        self._rest(context, record)

    def _note(self, token: Token, record: Record[Token]) -> None:
        self.count.set(self.count.get() + 1)
        self.total.set(self.total.get() + token.n)
        if self.spec.churn:
            self._churn(self.count.get())
        self.ids.set(token.id, (self.ids.get(token.id) or 0) + 1)
        for member in token.members:
            self.members.set(member, (self.members.get(member) or 0) + 1)
        side = "left" if record.key == token.left else "right"
        order = token.left_order if side == "left" else token.right_order
        origin = f"{token.origin}/{side}"
        expected = (self.last.get(origin) or 0) + 1
        if order and order != expected and self.spec.exact:
            self.breaks.set(token.id, f"{origin}: {order}, not {expected}")
        self.last.set(origin, max(order, expected - 1))

    def _churn(self, count: int) -> None:
        """Of four entries each is set, and two records later removed."""
        new, old = str(count % 4), str((count + 2) % 4)
        found, expected = (self.churned.get(new), self.churned.get(old)), (None, count - 2 if count > 2 else None)
        if found != expected:
            self.breaks.set(f"churn {count}", f"{found}, not {expected}")
        self.churned.set(new, count)
        self.churned.delete(old)

    def _window(self, context: Context, token: Token, timestamp: int) -> None:
        end = (timestamp // WINDOW_US + 1) * WINDOW_US
        waiting = self.open.get(str(end)) or []
        self.open.set(str(end), [*waiting, token.id])
        context.set_timer(f"w{end}", end)
        if self.spec.holds:
            self.held.set(min(timestamp, self.held.get() or timestamp))
            context.hold(self.held.get())

    def _rest(self, context: Context, record: Record[Token]) -> None:
        if self.spec.wall:
            self.touched.set(1)
            context.set_timer("flush", context.wall_time + 30_000, "wall")
        if self.spec.sink:
            # With the stream: what came over both branches of a diamond is two records, and each may be refused once.
            self._upsert(context, f"{record.value.id} {context.stream}")

    def _upsert(self, context: Context, cause: str) -> None:
        key, count = {"stage": self.spec.name, "key": context.key}, self.count.get()
        if count < self.spec.rows_from:
            return
        note = cause if self.world.refuses(cause) else ""
        if count % 3 == 0:
            context.delete(SINK, key)  # what is written after it stays
        context.upsert(SINK, {**key, "count": count, "total": self.total.get(), "note": note})
        if absent(count) and not note:
            context.delete(SINK, key)

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        if timer.kind == "watermark" and self.world.kills(f"{self.spec.name} {timer.key} {timer.tag}", timer.key):
            raise Crash
        if timer.kind == "wall":
            if context.wall_time < timer.timestamp:
                self.world.breaches.append(f"I8: wall timer of {timer.key!r} rang early")
            self.touched.set(0)
            if self.spec.sink:
                self._upsert(context, f"{timer.key} {timer.timestamp}")
            if self.spec.ticks:
                self._wall_tick(context, timer)
            return
        if context.watermark < timer.timestamp:
            self.world.breaches.append(f"I8: {timer.tag!r} of {timer.key!r} fired early")
        if self.spec.ticks:
            self._tick(context, timer)
            if timer.tag[0] != "w":
                return
        end = timer.tag[1:]
        waiting = self.open.get(end)
        if waiting is None:
            # In the state, not in `breaches`: a zombie that loads what its successor wrote may see this, and is fenced.
            self.breaks.set(f"timer {timer.tag}", "fired without a setting")
            return
        times = (self.fired.get(end) or 0) + 1
        self.fired.set(end, times)
        self.open.delete(end)
        if self.spec.sink:
            self._upsert(context, f"{timer.key} {timer.tag}")
        if self.spec.output is not None:
            self._emit(context, f"{self.spec.name}/{timer.key}/{end}/{times}", len(waiting), waiting)
        if self.spec.holds and not len(self.open):
            self.held.clear()
            context.release_hold()

    def _tick(self, context: Context, timer: Timer) -> None:
        """Note the firing, and follow the plan."""
        self.order.set(ticks.digest(self.order.get(), timer.tag, timer.timestamp))
        for tag, at in ticks.plan(timer.key, timer.tag, timer.timestamp):
            if at is None:
                context.cancel_timer(tag)
            else:
                context.set_timer(tag, at)
        if self.spec.sink and timer.tag[0] != "w":
            self._upsert(context, f"{timer.key} {timer.tag}")

    def _wall_tick(self, context: Context, timer: Timer) -> None:
        """Wall timers that may be due already, and one that is cancelled or moved by another."""
        loops = timer.tag == "loop" or (timer.tag == "flush" and self.world.loops(timer.key))
        if loops and not self.world.mended:
            context.set_timer("loop", timer.timestamp, "wall")
        if timer.tag == "flush":
            for tag, delay_us in (("x1", 10_000), ("x2", 4_000), ("x4", 9_000)):
                context.set_timer(tag, timer.timestamp + delay_us, "wall")
        elif timer.tag == "x2":
            context.set_timer("x3", timer.timestamp, "wall")
            context.cancel_timer("x4", "wall")
            context.set_timer("x1", timer.timestamp + 2_000, "wall")

    def _emit(self, context: Context, id_: str, n: int, members: list[str], bad: str = "") -> None:
        left, right = route(id_, self.spec.name)
        if self.stream is None:
            return
        token = Token(id_, n, left, right, f"{self.spec.name}:{context.key}", members=members)
        token.left_order = (self.sent.get("l" + left) or 0) + 1
        token.right_order = (self.sent.get("r" + right) or 0) + 1
        self.sent.set("l" + left, token.left_order)
        self.sent.set("r" + right, token.right_order)
        if bad == "key" and not self.world.mended:
            token.left = "x" * (limits.KEY_LIMIT_BYTES + 1)
        context.produce(self.stream, token)


class RenamedLedger(Ledger):
    """Another version of it, in which a cell has another name."""

    known = MapCell(JsonCoder(int), formerly="ids")

    @property
    def ids(self) -> Any:  # type: ignore[override]
        """As hooks call it."""
        return self.known


def renamed(spec: ComputationSpec) -> ComputationSpec:
    """A stage in that version."""

    def factory() -> Ledger:
        made: Ledger = spec.factory()
        made.__class__ = RenamedLedger
        return made

    cells = {cell: declared.fingerprint for cell, declared in cells_of(RenamedLedger).items()}
    evolution = evolution_of(RenamedLedger, spec.name, None)
    return msgspec.structs.replace(spec, factory=factory, cells=cells, evolution=evolution)


def route(id_: str, stage: str) -> tuple[str, str]:
    """Keys under which a token goes on: from its id, so that every run sends it to the same ones."""
    number = zlib.crc32(f"{id_}@{stage}".encode())
    left = KEYS[number % len(KEYS)] if number % 3 else "hot"
    return "l" + left, "r" + KEYS[(number >> 8) % len(KEYS)]


def absent(count: int) -> bool:
    """Whether a stage with a sink deletes its row when it counts this many."""
    return count % 5 == 4
