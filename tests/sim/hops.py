"""Tokens that hop round loops: pipelines with cycles, whose end is known whatever the interleaving was.

A token hops a number of times, on edges and under keys that its id and its count say.  On some hops it waits for a timer of
event time, or for one of wall time behind a hold.  On some it becomes two.  Each key counts how often it has seen each hop of
each token, so that one extra and one missing cannot cancel.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from millwheel import Computation, Context, JsonCoder, MapCell, Pipeline, Record, Stream, Timer, subscribe
from millwheel.graph import Graph
from millwheel.model import SECOND
from millwheel.testing.checks.ending import check_end
from millwheel.testing.checks.watched import WatchedStore
from millwheel.testing.faults.nemesis import Nemesis, Seeded
from millwheel.testing.kit.scripted import Script, ScriptedSource
from millwheel.testing.world.echoes import Echoes
from millwheel.testing.world.kernel import Kernel, Violation
from millwheel.testing.world.simulator import Simulation
from millwheel_storage.memory import MemoryStore
from tests.sim.harness import Runs, Verdict, ask_redrives, faults_of, run_shrunk
from tests.sim.workload.drawing import START_US, nagle, silent_poll_us

KEYS = 7
STEP_US = 40_000
WAYS = 16
WALL_US = 3 * SECOND
"""Until then, by the clock, timers of wall time make tokens.  Sources have rows up to a later time."""

EDGES: dict[str, dict[str, list[str]]] = {
    "itself": {"a": ["a"]},
    "two": {"a": ["b"], "b": ["a"]},
    "two heads": {"a": ["b", "c"], "b": ["a", "d"], "c": ["a"], "d": ["b"]},
    "nested": {"a": ["b"], "b": ["c", "b"], "c": ["a", "b"]},
    "two loops": {"a": ["a", "b"], "b": ["c"], "c": ["b"]},
}
"""Stage to the stages between which it chooses."""


class Hopper(msgspec.Struct):
    """A token: `left` hops are to come."""

    id: str
    left: int
    to: str
    """The stage that takes it next."""
    pad: str = ""


def _draw(token: Hopper, what: str, among: int) -> int:
    """Chance, the same in every run."""
    return zlib.crc32(f"{what} {token.id} {token.left}".encode()) % among


def key_of(token: Hopper) -> str:
    """The key under which a stage sees a token."""
    return f"k{_draw(token, 'key', KEYS)}"


def next_of(token: Hopper, stage: str, edges: dict[str, list[str]], fans: bool) -> list[Hopper]:
    """What a token becomes: itself with a hop less, seldom two of it, or nothing when it has hopped enough."""
    if not token.left:
        return [Hopper(token.id, -1, "end")]
    to = edges[stage][_draw(token, "to", len(edges[stage]))]
    if fans and _draw(token, "fan", 5) == 0:
        return [Hopper(f"{token.id}.{i}", token.left - 1, to, token.pad) for i in range(2)]
    return [Hopper(token.id, token.left - 1, to, token.pad)]


class Hop(Computation[Hopper]):
    """One stage of a loop."""

    seen = MapCell(JsonCoder(int))
    waits = MapCell(JsonCoder(Hopper))
    held = MapCell(JsonCoder(int))
    """Of those that wait behind a hold: their times."""
    breaks = MapCell(JsonCoder(str))

    def __init__(self, stage: str, workload: Hops, out: Stream[Hopper], end: Stream[Hopper]) -> None:
        self._stage, self._edges, self._out, self._end = stage, workload.edges, out, end
        self._fans, self._clocked, self._sparse = workload.fans, workload.clocked, workload.sparse

    def ProcessRecord(self, context: Context, record: Record[Hopper]) -> None:
        token = record.value
        name = f"{token.id} {token.left}"
        self.seen.set(name, (self.seen.get(name) or 0) + 1)
        if record.late:
            self.breaks.set(f"late {name}", f"{record.timestamp} at {context.watermark}")
        way = WAYS if self._sparse else _draw(token, "way", WAYS)
        if token.id[0] == "w":
            self._go_on(context, token, record.timestamp)
        elif way == 0:  # a timer of event time would wait for the hold, which is in its own loop
            self.held.set(name, record.timestamp)
            context.hold(min(at for _, at in self.held.items()))
            self.waits.set(name, token)
            context.set_timer(name, context.wall_time + STEP_US, "wall")
        elif (
            way == 1 and self._clocked
        ):  # out of nothing, by the clock alone: a run does not wait for it, so nobody may count on it
            context.set_timer("w" + name, context.wall_time + STEP_US, "wall")
            self._go_on(context, token, record.timestamp)
        elif 1 < way < 4:
            self.waits.set(name, token)
            context.set_timer(name, record.timestamp + (way - 2) * STEP_US)
        else:
            self._go_on(context, token, record.timestamp + (0, 0, 1_000)[way % 3])

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        if timer.tag[0] == "w":
            if context.wall_time < START_US + WALL_US:
                self._go_on(context, Hopper(timer.tag.replace(" ", "-"), 3, ""), None)
            return
        token = self.waits.get(timer.tag)
        if token is None:
            self.breaks.set(f"timer {timer.tag}", "fired without a setting")
            return
        self.waits.delete(timer.tag)
        at = self.held.get(timer.tag)
        self._go_on(context, token, timer.timestamp if timer.kind == "watermark" else at)
        if at is not None:
            self.held.delete(timer.tag)
            if len(self.held):
                context.hold(min(at for _, at in self.held.items()))
            else:
                context.release_hold()

    def _go_on(self, context: Context, token: Hopper, timestamp: int | None) -> None:
        for one in next_of(token, self._stage, self._edges, self._fans):
            context.produce(self._end if one.to == "end" else self._out, one, timestamp)


class End(Computation[Hopper]):
    """Where tokens leave the loop."""

    seen = MapCell(JsonCoder(int))
    breaks = MapCell(JsonCoder(str))

    def ProcessRecord(self, context: Context, record: Record[Hopper]) -> None:
        name = f"{record.value.id} {record.value.left}"
        self.seen.set(name, (self.seen.get(name) or 0) + 1)
        if record.late:
            self.breaks.set(f"late {name}", f"{record.timestamp} at {context.watermark}")


class Hops(msgspec.Struct):
    """A pipeline with loops, its sources, and limits to shrink while it runs."""

    edges: dict[str, list[str]]
    scripts: dict[str, list[Script]]
    fans: bool
    clocked: bool
    """Timers of wall time make tokens out of nothing, and the clock does not jump."""
    sparse: bool
    """Few tokens hop, long and without waiting, so that one of them is the oldest that there is."""
    exotic: dict[str, float]
    graph: Graph | None = None


def draw_hops(seed: int) -> Hops:
    """The workload of a seed."""
    rng = random.Random(f"hops {seed}")
    edges = EDGES[[*EDGES][seed % len(EDGES)]]
    sparse = seed % 4 == 3
    fans = rng.random() < 0.4 and not sparse
    entries = ["a"] if rng.random() < 0.6 else sorted({"a", max(edges)})
    hops = (0, 0, 0, 0, 0, 60) if sparse else (0, 1, 3, 8, 15)
    scripts = {stage: _scripts(rng, stage, 90 // len(entries) // (2 if fans else 1), hops) for stage in entries}
    exotic: dict[str, float] = {
        "FOLD_TRIGGER_CHECKPOINTS": rng.choice([3, 10, 256]),
        "IDLE_RECORD_DELAY_US": rng.choice([50_000, SECOND]),
        "OUTBOX_LIMIT_BUNDLES": rng.choice([1, 3, 256]),
        "INBOX_LIMIT_BYTES": rng.choice([1_000, 33_554_432]),
        "INFLIGHT_LIMIT_CHECKPOINTS": rng.choice([1, 8]),
        "ID_BUCKET_US": rng.choice([1, 20_000, SECOND]),
        "TIMER_PAGE_ROWS": rng.choice([1, 3, 16_384]),
        "TIMERS_IN_MEMORY": rng.choice([0, 20]),
        "STATE_PAGE_SLOTS": rng.choice([2, 256]),
        "NAGLE_RECORDS": nagle(seed),
        "SILENT_POLL_US": silent_poll_us(seed),
    }
    exotic["LOG_LIMIT_CHECKPOINTS"] = exotic["FOLD_TRIGGER_CHECKPOINTS"] * rng.choice([1, 4])
    workload = Hops(edges, scripts, fans, seed % 2 == 1, sparse, exotic)
    workload.graph = build_hops(workload, rng).graph()
    return workload


def _scripts(rng: random.Random, stage: str, total: int, hops: Sequence[int]) -> list[Script]:
    scripts, parts = [], rng.choice([1, 1, 2])
    for part in range(parts):
        count, now, times = total // parts, SECOND, []
        for _ in range(count):
            now += rng.choice([0, 1_000, 20_000])
            times.append(now - rng.choice([0, 0, 50_000]))
        tokens = [
            Hopper(f"{stage}{part}.{i}", rng.choice(hops), stage, "p" * rng.choice([0, 0, 0, 500]))
            for i in range(count)
        ]
        arrivals = sorted([*(rng.randrange(0, 5 * SECOND) for _ in range(count - 1)), 5 * SECOND])
        scripts.append(Script(f"{stage}.{part}", list(zip(tokens, times, strict=True)), arrivals))
    return scripts


def build_hops(workload: Hops, rng: random.Random) -> Pipeline:
    """One stream out of each stage, read by all that it may choose; each takes what is meant for it."""
    pipeline, edges, scripts = Pipeline("hops"), workload.edges, workload.scripts
    streams = {stage: Stream(f"s{stage}", JsonCoder(Hopper)) for stage in edges}
    starts = {stage: Stream(f"in{stage}", JsonCoder(Hopper)) for stage in scripts}
    end = Stream("end", JsonCoder(Hopper))
    for stage, parts in scripts.items():
        pipeline.inject(ScriptedSource(f"src-{stage}", parts), into=starts[stage])
    for stage in edges:
        inputs = [streams[sender] for sender, to in edges.items() if stage in to]
        inputs += [starts[stage]] if stage in starts else []
        pipeline.add(
            lambda stage=stage: Hop(stage, workload, streams[stage], end),
            [subscribe(stream, key=_taker(stage)) for stream in inputs], [streams[stage], end], name=stage,
            split_keys=rng.choice([(), ("k3",), ("k2", "k5")]), work_limit_records=rng.choice([1, 3, 4096]),
            cache_limit_bytes=rng.choice([1, 2_000, 10**8]), quarantine_holds=True,
        )  # fmt: skip
    pipeline.add(End, [subscribe(end, key=key_of)], name="end", quarantine_holds=True)
    return pipeline


def _taker(stage: str) -> Any:
    return lambda token: key_of(token) if token.to == stage else None


def expected_hops(workload: Hops) -> dict[str, dict[str, Counter[str]]]:
    """Stage to key to what it must have seen, by name and times."""
    found: dict[str, dict[str, Counter[str]]] = {}
    todo = [token for scripts in workload.scripts.values() for script in scripts for token, _ in script.rows]
    while todo:
        token = todo.pop()
        found.setdefault(token.to, {}).setdefault(key_of(token), Counter())[f"{token.id} {token.left}"] += 1
        if token.to != "end":
            todo += next_of(token, token.to, workload.edges, workload.fans)
    return found


def check_hops(workload: Hops, key_state: dict[str, dict[str, dict[tuple[str, str], bytes]]]) -> None:
    """The end: every key has seen each hop of each token once, in time, and nothing waits."""
    model = expected_hops(workload)
    for stage in (*workload.edges, "end"):
        for key in sorted({*model.get(stage, {}), *key_state.get(stage, {})}):
            cells = key_state.get(stage, {}).get(key, {})
            seen = Counter(
                {
                    entry: int(value)
                    for (cell, entry), value in cells.items()
                    if cell == "seen" and entry and (entry[0] != "w" or int(value) > 1)
                }
            )
            breaks = [(entry, value) for (cell, entry), value in cells.items() if cell == "breaks"]
            waits = [entry for cell, entry in cells if cell in ("waits", "held") and entry]
            where = f"{stage}[{key!r}]"
            if breaks:
                raise Violation(f"{'I11' if breaks[0][0].startswith('late') else 'I8'}: {where} {breaks[0]!r}")
            if waits:
                raise Violation(f"I8: {where} has {waits}, whose timers never fired")
            if seen != model.get(stage, {}).get(key, Counter()):
                wanted = model.get(stage, {}).get(key, Counter())
                raise Violation(f"I1: {where}: missing {dict(wanted - seen)}, too much {dict(seen - wanted)}")


def simulate_hops(seed: int) -> Verdict:
    """Run a seed with a loop; raises `Violation` with the story when an invariant breaks."""
    workload, kernel = draw_hops(seed), Kernel(seed, start_us=START_US)
    faults = msgspec.structs.replace(faults_of(seed), clock_step=0) if workload.clocked else faults_of(seed)
    return run_hops(seed, workload, kernel, Seeded(faults, kernel.rng), 8 * SECOND)


def run_hops(seed: int, workload: Hops, kernel: Kernel, nemesis: Nemesis, until_us: int) -> Verdict:
    """Run a workload with a loop under a nemesis, to its verdict."""
    for parts in workload.scripts.values():
        for script in parts:
            script.arrivals = [at + kernel.now for at in script.arrivals]
    assert workload.graph is not None
    store = WatchedStore(MemoryStore(), workload.graph, kernel, frozenset(workload.graph.computations))
    simulation = Simulation(
        graph=workload.graph, tables={}, kernel=kernel, nemesis=nemesis, store=store, faults_until_us=until_us
    )
    # Kills from outside may hit one record three times while it runs alone: it waits until somebody asks for it.
    simulation.on_mend = lambda: ask_redrives(store)
    simulation.hold_open = lambda: any(durable.fifo for durable in store.truth.durable.values())
    if seed % 3 == 0 and isinstance(nemesis, Seeded):
        simulation.echoes = Echoes(store.truth, random.Random(f"echoes {seed}"), 100_000)
    return judged(seed, workload, simulation, store, nemesis)


def judged(seed: int, workload: Hops, simulation: Runs, store: WatchedStore, nemesis: Nemesis) -> Verdict:
    """Run to the end and compare it with what it must be."""
    kernel = store.truth.kernel
    run_shrunk(simulation, workload.exotic)
    check_end(store)
    check_hops(workload, store.inner.key_state)
    return Verdict(
        seed, kernel.events, dict(sorted(nemesis.struck.items())), dict(sorted(kernel.probes.items())),
        kernel.trace_hash(), kernel.now, 0, 0,
    )  # fmt: skip


def few_hops(shape: str) -> Hops:
    """A fresh small workload: a token that waits for a timer, and one that waits behind a hold."""
    edges = EDGES[shape]
    hoppers = [Hopper(f"t{i}", 2, "a") for i in range(1_000)]
    tokens = [next(token for token in hoppers if _draw(token, "way", WAYS) == way) for way in (2, 0)]
    given = [(token, SECOND + 70_000 * i) for i, token in enumerate(tokens)]
    scripts = {"a": [Script("a.0", given, [4_000 * i for i in range(len(given))])]}
    exotic: dict[str, float] = {
        "FOLD_TRIGGER_CHECKPOINTS": 2, "LOG_LIMIT_CHECKPOINTS": 4, "IDLE_RECORD_DELAY_US": 20_000,
        "OUTBOX_LIMIT_BUNDLES": 1, "TIMER_PAGE_ROWS": 2, "TIMERS_IN_MEMORY": 2,
    }  # fmt: skip
    workload = Hops(edges, scripts, False, False, False, exotic)
    workload.graph = build_hops(workload, random.Random(f"few {shape}")).graph()
    return workload
