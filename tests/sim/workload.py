"""Keyed-ledger workloads drawn from a seed, and what must be true of them at the end.

Every computation is a `Ledger`: it keeps, per key, a counter *and* the set of token ids it has seen (so that one extra
and one missing cannot cancel), checks the order of tokens from each producing key, opens windows with timers, and sends
tokens on whose ids depend on nothing but the token's own.  So the end is known exactly whatever the interleaving was.
"""

from __future__ import annotations

import contextlib
import random
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from millwheel import (
    Computation,
    Context,
    JsonCoder,
    MapCell,
    Pipeline,
    Record,
    Stream,
    Table,
    Timer,
    ValueCell,
    limits,
    subscribe,
)
from millwheel.api.computation import cells_of
from millwheel.api.given import evolution_of
from millwheel.bundles import Checkpoint
from millwheel.graph import ComputationSpec, Graph
from millwheel.model import SECOND
from millwheel.testing.kit.scripted import Script, ScriptedSource
from millwheel.testing.world.calls import Crash
from millwheel.testing.world.kernel import Violation
from tests.sim import ticks

WINDOW_US = 200_000
DISORDER_US = 500_000
KEYS = ["", "a", "b", "é", "hot", "m", "n\x01", "zz", "\U0001f600"]
COLUMNS = {"stage": "text", "key": "text", "count": "bigint", "total": "bigint", "note": "text"}
START_US = 1_000 * SECOND
"""Wall time at which a run begins."""
FEEDS = {
    5: "idle", 14: "idle", 23: "idle", 10: "idle", 21: "idle", 16: "ordered", 19: "ordered and missing", 25: "missing",
    4: "left out", 12: "left out", 22: "left out", 7: "rewired", 24: "rewired",
}  # fmt: skip
"""What is special about the sources of a seed, by its remainder."""
ROLLED = (10, 21)
"""Seeds, by their remainder, in which processes are superseded while they go on, also when they are idle."""
KILLS_LIMIT = 16
"""Processes that one token may end: the first unmarked, then until the window of marks is wide enough, then alone; and
redrives that come too early, and zombies."""
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
        self.killed: Counter[str] = Counter()
        self.salt = 0
        self.kills_of = 0
        """About one token or timer in so many ends the process that runs it; 0: none."""

    def kills(self, id_: str) -> bool:
        """Whether running this token or timer ends the process."""
        if not self.kills_of or self.mended or zlib.crc32(f"{self.salt} {id_}".encode()) % self.kills_of:
            return False
        self.killed[id_] += 1
        if self.killed[id_] > KILLS_LIMIT:
            self.breaches.append(f"I16: {id_!r} has killed {self.killed[id_]} processes")
        return True

    def refuses(self, id_: str) -> bool:
        """Whether the database has something against the row that this token or timer makes a hook write."""
        return bool(self.refused_of) and not self.rows_mended and not zlib.crc32(id_.encode()) % self.refused_of

    def loops(self, key: str) -> bool:
        """Whether a wall timer of this key sets itself to its own time, for ever."""
        return self.kills_of > 0 and not zlib.crc32(f"loop {self.salt} {key}".encode()) % 4

    def constraint(self, table: str, row: Mapping[str, Any]) -> str | None:
        """What the database says of a row."""
        return f"{row['note']!r} violates a check" if row["note"] and not self.rows_mended else None


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
        if self.world.kills(f"{self.spec.name} {token.id}"):
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
        if timer.kind == "watermark" and self.world.kills(f"{self.spec.name} {timer.key} {timer.tag}"):
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


class Workload(msgspec.Struct):
    """A pipeline with its sources, its world and its expectations."""

    graph: Graph
    tables: dict[str, Table]
    stages: list[StageSpec]
    scripts: dict[str, list[Script]]
    world: World
    poisoned: bool
    exotic: dict[str, float]
    """Limits to shrink while it runs."""
    feed: str = ""
    """Its sources fall silent ("idle"), have an order ("ordered"), lose partitions for a while ("missing"), or are not in
    every process's pipeline ("left out"); or the first computation is at times not fed, and lists no output ("rewired")."""

    @property
    def honest(self) -> frozenset[str]:
        """Computations whose watermark is checked exactly."""
        return frozenset(stage.name for stage in self.stages if stage.honest)

    def watermarks_jump(self, by_us: int) -> None:
        """What sources promise is rounded down to multiples of this."""
        for spec in self.graph.sources.values():
            assert isinstance(spec.source, ScriptedSource)
            spec.source.jump_us = by_us


@contextlib.contextmanager
def shrunk(values: dict[str, float]) -> Iterator[None]:
    """Limits that a long run would meet, met in a short one."""
    before = {name: getattr(limits, name) for name in values}
    try:
        for name, value in values.items():
            setattr(limits, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(limits, name, value)


# --- drawing -------------------------------------------------------------------------------------------------------


def topology(rng: random.Random) -> list[StageSpec]:
    """Two or three stages, a diamond, or a stage that subscribes twice."""
    kind = rng.choice(["two", "three", "diamond", "twice", "twosources"])
    a = StageSpec(name="a", inputs=[("in0", "left")], output="sa")
    if kind == "two":
        return [a, StageSpec(name="b", inputs=[("sa", "left")], sink=True)]
    if kind == "three":
        b = StageSpec(name="b", inputs=[("sa", "left")], output="sb")
        return [a, b, StageSpec(name="c", inputs=[("sb", "right")], sink=True)]
    if kind == "diamond":
        b = StageSpec(name="b", inputs=[("sa", "left")], output="sb")
        c = StageSpec(name="c", inputs=[("sa", "right")], output="sc")
        return [a, b, c, StageSpec(name="d", inputs=[("sb", "left"), ("sc", "left")], sink=True)]
    if kind == "twice":
        return [a, StageSpec(name="b", inputs=[("sa", "left"), ("sa", "right")], sink=True)]
    a.inputs.append(("in1", "right"))
    return [a, StageSpec(name="b", inputs=[("sa", "right")], sink=True)]


def rewirable() -> list[StageSpec]:
    """The second stage is fed without the first, too, so that it may lose it."""
    return [
        StageSpec(name="a", inputs=[("in0", "left")], output="sa"),
        StageSpec(name="b", inputs=[("sa", "left"), ("in1", "left")], output="sb"),
        StageSpec(name="c", inputs=[("sb", "right")], sink=True),
    ]


def draw(seed: int) -> Workload:
    """The workload of a seed."""
    rng = random.Random(f"workload {seed}")
    feed = FEEDS.get(seed % 27, "")
    stages = topology(rng) if feed != "rewired" else rewirable()
    poisoned = rng.random() < 0.3 and feed != "rewired"
    late = rng.random() < 0.2 and feed != "rewired"
    rows = random.Random(f"rows {seed}")
    for stage in stages:
        _settings(rng, stage, poisoned)
        stage.sink = stage.sink or (stage.output is not None and rows.random() < 0.4)
        stage.rows_from = rows.choice((0, 0, 2, 4))
    _taint(stages, poisoned, late)
    if feed == "rewired":
        # What the first stage sends when it is fed again may be older than what the others have had meanwhile.
        stages[1].redrives = True
        stages[2].honest = False
        for stage in stages:
            stage.windows = stage.holds = False
    names = sorted({stream for stage in stages for stream, _ in stage.inputs if stream.startswith("in")})
    # Stages that take many records at a time, or make one of many, make few events of them: they get more records.
    one_by_one = any(stage.settings["work_limit_records"] <= 3 for stage in stages)
    count = 400 if one_by_one and not any(stage.windows for stage in stages) else 600
    slots = random.Random(f"slots {seed}").choice([3, 20, 256, 256])
    for stage in stages:
        stage.churn = slots < 256
    if slots < 256:
        count = count * 2 // 3  # hooks that wait for state are events too
    if feed not in ("", "idle") or (feed == "idle" and stages[0].windows and len(stages) == 2 and slots == 256):
        count = count * 3 // 2  # what waits, or is not there, makes no events, and a window makes one of what is in it
    scripts = {name: _scripts(rng, name, count, poisoned, late, 2 if feed == "left out" else 1) for name in names}
    exotic: dict[str, float] = {
        "FOLD_TRIGGER_CHECKPOINTS": rng.choice([3, 10, 256]),
        "IDLE_RECORD_DELAY_US": rng.choice([50_000, SECOND]),
    }
    # A log that is much longer than what starts a fold is folded although its productions are not acked.
    exotic["LOG_LIMIT_CHECKPOINTS"] = exotic["FOLD_TRIGGER_CHECKPOINTS"] * (1 + seed % 4)
    exotic["UNFOLDED_LIMIT_KEYS"] = (1, 3, 131_072)[seed % 3]
    exotic["STATE_PAGE_SLOTS"] = slots
    ids = random.Random(f"ids {seed}")  # a stream of its own: the workloads of old seeds stay what they were
    if ids.random() < 0.7:
        exotic |= {
            "ID_BUCKET_US": ids.choice([1, 20_000, SECOND]),
            "ID_FILTER_ERROR_RATE": ids.choice([0.01, 0.5, 0.9]),
        }
    if ids.random() < 0.4:
        # A slack far longer than a run: an id that expired could be counted twice, and rightly so.
        exotic |= {
            "OUTSIDE_BUCKETS": ids.choice([1, 4, 1_000]),
            "OUTSIDE_FILTER_IDS": ids.choice([1, 50]),
            "OUTSIDE_FILTER_BITS": ids.choice([1, 2, 16]),
            "OUTSIDE_READ_IDS": ids.choice([1, 20, 4_096]),
        }
        for parts in scripts.values() if feed in ("", "missing") else ():
            _repeat(ids, parts)
    # Timers in pages of a few, most of them not in memory.
    exotic |= {"TIMER_PAGE_ROWS": (1, 2, 5, 16_384)[seed % 4], "TIMERS_IN_MEMORY": (0, 0, 20)[seed % 3]}
    a_key = (1, 4)[seed % 2]
    exotic |= {
        "SEEN_FIRST_KEYS": (8, 64, 1 << 20)[seed % 3] // a_key,
        "SEEN_PAGES": 1 + seed % 3,
        "SEEN_BITS_A_KEY": a_key,
    }
    jumps_us = _ticks(random.Random(f"ticks {seed}"), stages, exotic)
    if rng.random() < 0.3:
        exotic |= {"INFLIGHT_LIMIT_CHECKPOINTS": rng.choice([1, 2, 8]), "OUTBOX_LIMIT_BUNDLES": rng.choice([3, 256])}
    world = World()
    if poisoned:
        world.refused_of = rows.choice([0, 10, 30, 100])
    kills = random.Random(f"kills {seed}")
    # Many invocations of one record each would outlast the time that a run has.
    invocations, records = kills.choice([(4, 1), (16, 3), (64, 64)])
    exotic |= {"REDRIVE_ELEMENTS": (256, 1, 3)[seed // 4 % 3], "REDRIVE_KEYS": (256, 2)[seed % 2]}
    exotic["STRAGGLER_PATIENCE_US"] = (10_000, 0, SECOND)[seed % 3]
    exotic["REDRIVE_REQUESTS"] = (8_192, 1, 2)[seed // 2 % 3]
    exotic["INBOX_LIMIT_BYTES"] = (33_554_432, 1_000, 4_000)[seed % 3]
    exotic |= {"MARKED_INVOCATIONS": invocations, "MARKED_RECORDS": records}
    if poisoned:
        world.kills_of, world.salt = kills.choice([0, 100, 300, 1_000]), seed
    pipeline = build(stages, scripts, world, feed == "left out")
    workload = Workload(pipeline.graph(), pipeline.tables, stages, scripts, world, poisoned, exotic, feed)
    _feed(random.Random(f"feed {seed}"), workload)
    workload.watermarks_jump(jumps_us)
    return workload


def _ticks(rng: random.Random, stages: list[StageSpec], exotic: dict[str, float]) -> int:
    """Timers that set timers, in some stages; returns how far watermarks jump at least, us."""
    for stage in stages:
        stage.ticks = stage.windows and rng.random() < 0.6
    if not any(stage.ticks for stage in stages):
        return 1
    exotic |= {
        "TIMER_CHAIN": rng.choice([0, 1, 3, 1_024]),
        "TIMER_STALLED_CHAIN": rng.choice([0, 1, 64]),
        "TIMER_REARM_LIMIT": 30,
        "TIMER_INVOCATIONS": rng.choice([1, 2, 16]),
    }
    return rng.choice([1, 1, SECOND, 1_000 * SECOND])


def _feed(rng: random.Random, workload: Workload) -> None:
    """Sources that fall silent, that have an order, or that are not there for a while."""
    for spec in workload.graph.sources.values():
        source = spec.source
        assert isinstance(source, ScriptedSource)
        if "missing" in workload.feed:
            source.missing_us = SECOND // 2
        if "ordered" in workload.feed:
            source.ordered, source.foresees, source.disorder_us = True, False, DISORDER_US
            _in_order(source.scripts)
        if workload.feed == "idle":
            source.foresees = False
            source.idle_after_us = rng.choice([20_000, 300_000])
            source.disorder_us = rng.choice([0, 50_000, DISORDER_US])
            for number, script in enumerate(source.scripts):
                appears_at = rng.choice([0, 3_500_000, 3_500_000]) if number else 0
                _in_bursts(rng, script, appears_at, source.disorder_us)


def _in_order(scripts: list[Script]) -> None:
    """Each partition is younger than the ones before it, and appears no sooner."""
    newest = appears_at = 0
    for script in scripts:
        oldest = min(time for _, time in script.rows)
        script.rows = [
            (token, time if i in script.late else time - oldest + newest) for i, (token, time) in enumerate(script.rows)
        ]
        newest = max(time for _, time in script.rows)
        appears_at = script.appears_at = max(appears_at, script.appears_at)


def _in_bursts(rng: random.Random, script: Script, appears_at: int, disorder_us: int) -> None:
    """Rows are written in two bursts, with a silence between them; events are as old as the source says."""
    script.appears_at = appears_at
    bursts = (at if at < SECOND else 4 * SECOND + (at - SECOND) // 5 for at in script.arrivals)
    script.arrivals = [max(at, appears_at) for at in bursts]
    script.rows = [
        (token, time if i in script.late else START_US + at - rng.randrange(disorder_us + 1))
        for i, ((token, time), at) in enumerate(zip(script.rows, script.arrivals, strict=True))
    ]


def _settings(rng: random.Random, stage: StageSpec, poisoned: bool) -> None:
    stage.windows = stage.output is not None and rng.random() < 0.4
    stage.holds = stage.windows and rng.random() < 0.5
    stage.wall = rng.random() < 0.3
    settings = stage.settings = {
        "work_limit_records": rng.choice([1, 3, 10, 4096]),
        "straggler_delay_us": rng.choice([5_000, 100_000, SECOND]),
        "quarantine_holds": rng.random() < 0.5,
        "cache_limit_bytes": rng.choice([1, 2_000, 20_000, 10**8]),
    }
    prefix = stage.inputs[0][1][0]
    settings["split_keys"] = rng.choice([(), (prefix + "hot",), (prefix + "b", prefix + "n", prefix + "zz")])
    if stage.output is not None and rng.random() < 0.25:
        settings["productions"] = "weak"
    if not stage.windows and rng.random() < 0.15:
        settings["exactly_once"] = False
    if stage.sink and rng.random() < 0.15:
        stage.sink = False
        settings["expire_after"] = rng.choice([WINDOW_US, 5 * WINDOW_US])


def _taint(stages: list[StageSpec], poisoned: bool, late: bool) -> None:
    """Weak or not deduplicated means at-least-once from there on; late rows, and poison that does not hold the
    watermark, make lateness legal."""
    for stage in stages:
        above = [s for s in stages if s.output in {stream for stream, _ in stage.inputs}]
        deduplicated = stage.settings.get("exactly_once", True)
        weak = any(s.settings.get("productions") == "weak" for s in above)
        stage.exact = deduplicated and not weak and all(s.exact for s in above)
        stage.redrives = poisoned
        held = stage.settings["quarantine_holds"] or not poisoned
        stage.honest = not late and held and deduplicated and all(s.honest for s in above)


def _scripts(rng: random.Random, name: str, total: int, poisoned: bool, late: bool, least: int = 1) -> list[Script]:
    scripts = []
    parts = max(least, rng.choice([1, 1, 2, 3]))
    for part in range(parts):
        count = total // parts
        tokens = [_token(rng, f"{name}.{part}.{i}", poisoned) for i in range(count)]
        _number(tokens, f"{name}.{part}")
        times, behind = _times(rng, count, late)
        arrivals = sorted(rng.randrange(0, 6 * SECOND) for _ in range(count))
        rows = list(zip(tokens, times, strict=True))
        scripts.append(Script(f"{name}.{part}", rows, arrivals, behind, rng.choice([0, 0, 700_000])))
    return scripts


def _token(rng: random.Random, id_: str, poisoned: bool) -> Token:
    left, right = ("l" + ("hot" if rng.random() < 0.3 else rng.choice(KEYS)) for _ in range(2))
    bad = ""
    if poisoned and rng.random() < 0.02:
        bad = rng.choice(["raise", "key"])
    elif rng.random() < 0.02:
        bad = "flaky"
    pad = "p" * rng.choice([0, 0, 0, 10, 3_000])
    return Token(id_, rng.randrange(0, 100), left, "r" + right[1:], "", bad=bad, pad=pad)


def _number(tokens: list[Token], origin: str) -> None:
    left: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for token in tokens:
        left[token.left] += 1
        right[token.right] += 1
        token.origin, token.left_order, token.right_order = origin, left[token.left], right[token.right]


def _repeat(rng: random.Random, scripts: list[Script]) -> None:
    """Clients send some rows again, after the first in the same partition or anywhere in another one."""
    again: dict[str, list[tuple[int, tuple[Token, int], bool]]] = {script.name: [] for script in scripts}
    for script in scripts:
        for i, (token, time) in enumerate(script.rows):
            token.outside = True
            for _ in range(rng.choice([1, 1, 2]) if rng.random() < 0.1 else 0):
                other = rng.choice(scripts)
                first = i + 1 if other is script else 0
                token.origin = token.origin if other is script else ""  # which comes first is open: so is its order
                again[other.name].append((rng.randint(first, len(other.rows)), (token, time), i in script.late))
    for script in scripts:
        rows = [(i, row, i in script.late) for i, row in enumerate(script.rows)]
        rows = sorted(rows + again[script.name], key=lambda place: place[0])
        script.rows = [row for _, row, _ in rows]
        script.late = frozenset(i for i, (_, _, late) in enumerate(rows) if late)
        script.arrivals = sorted([*script.arrivals, *(rng.randrange(6 * SECOND) for _ in again[script.name])])
        _number(list({token.id: token for token, _ in script.rows if token.origin}.values()), script.name)
    for script in scripts:
        for token, _ in script.rows:
            if not token.origin:
                token.left_order = token.right_order = 0


def _outside(token: Token) -> str | bytes:
    """The id that the client gave: short, binary, or long."""
    number = zlib.crc32(token.id.encode()) % 3
    return token.id if number == 0 else b"\0" + token.id.encode() if number == 1 else token.id * 20


def _times(rng: random.Random, count: int, late: bool) -> tuple[list[int], frozenset[int]]:
    times, now = [], SECOND
    behind = set()
    disorder = rng.choice([0, 50_000, DISORDER_US])
    for i in range(count):
        now += rng.choice([0, 0, 1_000, 20_000])
        times.append(max(0, now - rng.randrange(disorder + 1)))
        if late and rng.random() < 0.05:
            times[-1] = rng.randrange(0, now + 1)
            behind.add(i)
    return times, frozenset(behind)


def build(
    stages: list[StageSpec], scripts: dict[str, list[Script]], world: World, two_sources: bool = False
) -> Pipeline:
    """The pipeline of these stages; with `two_sources` the first partition of each stream has a source of its own."""
    pipeline = Pipeline("ledger")
    names = [*scripts, *(stage.output for stage in stages if stage.output is not None)]
    streams = {name: Stream(name, JsonCoder(Token)) for name in names}
    pipeline.sink(SINK)
    for name, parts in scripts.items():
        outside = any(token.outside for script in parts for token, _ in script.rows)
        for number, some in enumerate([parts[:1], parts[1:]] if two_sources else [parts]):
            source = ScriptedSource(f"src-{name}" + "+" * number, some, _outside if outside else None, 100_000 * SECOND)
            pipeline.inject(source, into=streams[name])
    for stage in stages:
        out = streams[stage.output] if stage.output is not None else None
        inputs = [subscribe(streams[name], key=_extract(side)) for name, side in stage.inputs]
        pipeline.add(
            lambda stage=stage, out=out: Ledger(stage, world, out),
            inputs, [out] if out else [], name=stage.name, **stage.settings,
        )  # fmt: skip
    return pipeline


def _extract(side: str) -> Any:
    return (lambda token: token.left) if side == "left" else (lambda token: token.right)


# --- expecting -----------------------------------------------------------------------------------------------------


class Seen(msgspec.Struct):
    """What one key of one stage must have seen: token id to times, and the sum of n."""

    ids: Counter[str]
    members: Counter[str]
    total: int = 0
    ends: set[int] = set()
    """Of its windows."""


def expected(workload: Workload) -> dict[str, dict[str, Seen]]:
    """Stage to key to what it must have seen.  Windows with late rows may fire in several parts: ids then differ, and
    only members and totals are exact."""
    streams: dict[str, list[tuple[Token, int]]] = {
        name: [*{row[0].id: row for script in parts for row in script.rows}.values()]
        for name, parts in workload.scripts.items()
    }
    found: dict[str, dict[str, Seen]] = {}
    for stage in workload.stages:
        keys = found[stage.name] = {}
        windows: dict[tuple[str, int], list[str]] = {}
        out: list[tuple[Token, int]] = []
        for name, side in stage.inputs:
            for token, time in streams[name]:
                key = token.left if side == "left" else token.right
                seen = keys.setdefault(key, Seen(Counter(), Counter()))
                seen.ids[token.id] += 1
                seen.members.update(token.members)
                seen.total += token.n
                if stage.windows:
                    end = (time // WINDOW_US + 1) * WINDOW_US
                    windows.setdefault((key, end), []).append(token.id)
                    seen.ends.add(end)
                else:
                    out.append((_onward(token.id, token.n, [], stage.name), time))
        for (key, end), ids in windows.items():
            out.append((_onward(f"{stage.name}/{key}/{end}/1", len(ids), ids, stage.name), end))
        if stage.output is not None:
            streams[stage.output] = out
    return found


def _onward(id_: str, n: int, members: list[str], stage: str) -> Token:
    left, right = route(id_, stage)
    return Token(id_, n, left, right, "", members=members)


def split_windows(workload: Workload) -> bool:
    """Windows may fire in several parts, so that ids below them are not known beforehand."""
    return any(stage.windows and not stage.honest for stage in workload.stages)


def absent(count: int) -> bool:
    """Whether a stage with a sink deletes its row when it counts this many."""
    return count % 5 == 4


def check_commit(workload: Workload) -> Any:
    """A hook for `WatchedStore`: sink rows equal the state that commits with them, after a refused commit too (I4)."""
    sinks = {stage.name: stage for stage in workload.stages if stage.sink}

    def check(store: Any, computation: str, image: Checkpoint) -> None:
        if workload.world.breaches:
            store.truth.fail(workload.world.breaches[0])
        for entry in image.quarantined:
            if "a loop" in entry.error and entry.tag != "loop":
                store.truth.fail(f"I16: timer {entry.tag!r} of {entry.key!r} gets further, and is taken for a loop")
        if computation not in sinks:
            return
        state = store.truth.durable[computation].state
        for key in sorted(image.state.keys()):
            row = store.inner.sinks["ledger"].get((computation, key), {})
            cells = state.get(key, {})
            count, total = (int(cells.get((cell, ""), b"0")) for cell in ("count", "total"))
            gone = count < sinks[computation].rows_from or (absent(count) and not row.get("note"))
            if gone:
                store.truth.kernel.probes["sink row deleted"] += 1
            if bool(row) if gone else (row.get("count", 0), row.get("total", 0)) != (count, total):
                store.truth.fail(f"I4: sink row of {key!r} is {row}, its state counts {count}, {total}")

    return check


def check_state(
    workload: Workload, key_state: dict[str, dict[str, dict[tuple[str, str], bytes]]], quarantined: bool
) -> None:
    """The end: every key has seen each token once, in order, and nothing else (I1, I2, I3, I8, I17).

    Where something was `quarantined` though nothing is poisoned, kills from outside have hit the same record, alone, three
    times: it waits, and the watermark for it only if the stage says so.
    """
    model = expected(workload)
    inexact_ids = split_windows(workload)
    for stage in workload.stages:
        if "expire_after" in stage.settings:
            continue
        stored = key_state.get(stage.name, {})
        for key in sorted({*model[stage.name], *stored}):
            seen = model[stage.name].get(key, Seen(Counter(), Counter()))
            where = f"{stage.name}[{key!r}]"
            cells = stored.get(key, {})
            if quarantined and not workload.poisoned:
                cells = {place: value for place, value in cells.items() if not _late(place)}
            _check_key(where, stage, key, seen, cells, inexact_ids, quarantined)


def _late(place: tuple[str, str]) -> bool:
    return place[0] == "breaks" and place[1].startswith("late ")


def _check_key(
    where: str,
    stage: StageSpec,
    key: str,
    seen: Seen,
    cells: dict[tuple[str, str], bytes],
    inexact_ids: bool,
    quarantined: bool,
) -> None:
    def entries(cell: str) -> Counter[str]:
        return Counter({entry: int(value) for (name, entry), value in cells.items() if name == cell and entry})

    breaks = [(entry, value) for (name, entry), value in cells.items() if name == "breaks"]
    if breaks:
        law = {"timer": "I8", "late": "I11"}.get(breaks[0][0].split(" ")[0], "I17")
        raise Violation(f"{law}: {where} {breaks[0]!r}")
    if inexact_ids:
        # Tokens of partial windows have other ids and so other keys: `check_members` looks at them all together.
        return
    _compare(f"I1: {where} ids", entries("ids"), seen.ids, stage.exact)
    _compare(f"I1: {where} members", entries("members"), seen.members, stage.exact)
    if any(name == "open" for name, _ in cells):
        raise Violation(f"I8: {where} has windows that never fired")
    if not quarantined and stage.ticks and stage.exact and stage.honest and not stage.redrives:
        order = msgspec.json.decode(cells.get(("order", ""), b"[0,0]"))
        if order != ticks.digest_of(key, seen.ends):
            raise Violation(f"I8: timers of {where} did not fire in the order that their times say")
    if stage.exact and stage.windows and any(times != 1 for times in entries("fired").values()):
        raise Violation(f"I8: {where} fired {entries('fired')}")
    if stage.exact:
        numbers = {cell: int(cells.get((cell, ""), b"0")) for cell in ("count", "total")}
        if numbers != {"count": seen.ids.total(), "total": seen.total}:
            raise Violation(f"I1: {where} counts {numbers}, expected {seen.ids.total()}, {seen.total}")


def _compare(where: str, found: Counter[str], wanted: Counter[str], exact: bool) -> None:
    missing = wanted - found
    extra = found - wanted if exact else Counter({key: n for key, n in found.items() if key not in wanted})
    if missing:
        raise Violation(f"{where}: missing {dict(missing)}")
    if extra:
        raise Violation(f"{where}: too much {dict(extra)}")
