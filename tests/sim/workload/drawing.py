"""Workloads drawn from a seed: the ledgers, their sources, and what is special about them."""

from __future__ import annotations

import contextlib
import random
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from millwheel import (
    JsonCoder,
    Pipeline,
    Stream,
    Table,
    limits,
    subscribe,
)
from millwheel.graph import Graph
from millwheel.model import SECOND
from millwheel.testing.kit.scripted import Script, ScriptedSource
from tests.sim import mayfly
from tests.sim.workload.last import NEVER, WHEN, When
from tests.sim.workload.ledger import (
    KEYS,
    SINK,
    WINDOW_US,
    Ledger,
    StageSpec,
    Token,
    World,
)

DISORDER_US = 500_000
START_US = 1_000 * SECOND
"""Wall time at which a run begins."""
SILENT_US = 2 * SECOND
"""When those that fall silent are, us after the begin of a run."""
AWAKE_US = 4 * SECOND
"""When they come back, us after the begin of a run."""
FEEDS = {
    5: "idle", 14: "idle", 23: "idle", 10: "idle", 21: "idle", 16: "ordered", 19: "ordered and missing", 25: "missing",
    4: "left out", 12: "left out", 22: "left out", 7: "rewired", 24: "rewired", 18: "last", 26: "last",
}  # fmt: skip
"""What is special about the sources of a seed, by its remainder."""
LAST_ROWS = 12
"""Of a partition that comes last."""
ROLLED = (10, 21)
"""Seeds, by their remainder, in which processes are superseded while they go on, also when they are idle."""


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
    every process's pipeline ("left out"); or the first computation is at times not fed, and lists no output ("rewired"); or
    one more partition comes when all others have ended ("last")."""

    last: Script | None = None
    """That one."""
    last_when: When = "read"
    """And when it comes."""
    brief: bool = False
    """There is a `mayfly`."""
    brief_is_honest: bool = False
    redrive_us: int = 0
    """How often somebody asks for the redrive of whatever is in quarantine; 0: now and then."""

    @property
    def honest(self) -> frozenset[str]:
        """Computations whose watermark is checked exactly."""
        names = [stage.name for stage in self.stages if stage.honest]
        return frozenset([*names, mayfly.NAME] if self.brief_is_honest else names)

    @property
    def fed_again(self) -> frozenset[str]:
        """Computations that are honest and get records late, from one that was not fed for a time."""
        return frozenset([self.stages[1].name] if self.feed == "rewired" else ())

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


def nagle(seed: int) -> int:
    """How little waits for a commit.

    In the first two hundred seeds nothing does, so that many checkpoints are under way at once.  These are the seeds in which
    planted bugs are looked for.
    """
    return 0 if seed < 200 else random.Random(f"nagle {seed}").choice((0, 3, limits.NAGLE_RECORDS))


def silent_poll_us(seed: int) -> int:
    """How long a silent partition rests at most.

    In the first three hundred seeds it is looked at all the time, so that much happens in little virtual time.
    """
    return limits.POLL_DELAY_US if seed < 300 else limits.SILENT_POLL_US


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
    late = late if feed != "last" else seed // 27 % 4 == 3
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
    if feed not in ("", "idle", "last") or (feed == "idle" and stages[0].windows and len(stages) == 2 and slots == 256):
        count = count * 3 // 2  # what waits, or is not there, makes no events, and a window makes one of what is in it
    if feed == "last":
        count = count * 3 // 4  # there is one more partition, and more time passes
    if nagle(seed):
        count *= 3  # bundles that run together are one event, too
    scripts = {name: _scripts(rng, name, count, poisoned, late, 2 if feed == "left out" else 1) for name in names}
    last = _add_last(random.Random(f"last {seed}"), scripts, poisoned, late) if feed == "last" else None
    exotic: dict[str, float] = {
        "FOLD_TRIGGER_CHECKPOINTS": rng.choice([3, 10, 256]),
        "IDLE_RECORD_DELAY_US": rng.choice([50_000, SECOND]),
    }
    # A log that is much longer than what starts a fold is folded although its productions are not acked.
    exotic["LOG_LIMIT_CHECKPOINTS"] = exotic["FOLD_TRIGGER_CHECKPOINTS"] * (1 + seed % 4)
    exotic["UNFOLDED_LIMIT_KEYS"] = (1, 3, 131_072)[seed % 3]
    exotic["STATE_PAGE_SLOTS"] = slots
    exotic |= {"NAGLE_RECORDS": nagle(seed), "SILENT_POLL_US": silent_poll_us(seed)}
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
    brief = mayfly.draw(random.Random(f"mayfly {seed}"), poisoned) if feed not in ("left out", "rewired") else None
    taken_once = brief is not None and brief["exactly_once"]
    if taken_once and not any(token.outside for script in scripts["in0"] for token, _ in script.rows):
        mayfly.pair(random.Random(f"pairs {seed}"), scripts["in0"], outlasting=seed % 7 == 4)
    pipeline = build(stages, scripts, world, feed == "left out", brief, poisoned)
    workload = Workload(pipeline.graph(), pipeline.tables, stages, scripts, world, poisoned, exotic, feed)
    if last is not None:
        workload.last, workload.last_when = last, "over" if last.late else WHEN[seed // 27 % len(WHEN)]
    if brief is not None:
        held = brief["quarantine_holds"] or not poisoned
        workload.brief_is_honest = brief["exactly_once"] and held and not late
        workload.brief = True
        if poisoned:
            workload.redrive_us = exotic["REDRIVE_DELAY_US"] = mayfly.REDRIVE_US[seed % 2]
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
        if workload.feed == "last" and workload.last_when != "over" and rng.random() < 0.3:
            source.foresees, source.disorder_us = False, DISORDER_US
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
    bursts = (at if at < SECOND else AWAKE_US + (at - SECOND) // 5 for at in script.arrivals)
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
        number_tokens(tokens, f"{name}.{part}")
        times, behind = _times(rng, count, late)
        arrivals = sorted(rng.randrange(0, 6 * SECOND) for _ in range(count))
        rows = list(zip(tokens, times, strict=True))
        scripts.append(Script(f"{name}.{part}", rows, arrivals, behind, rng.choice([0, 0, 700_000])))
    return scripts


def _add_last(rng: random.Random, scripts: dict[str, list[Script]], poisoned: bool, late: bool) -> Script:
    """One more partition for the first stream, younger than the others or of their age; those arrive in half of the time.

    When rows may be `late`, no promise is made of it: its rows come when watermarks are at the end of time.
    """
    for parts in scripts.values():
        for script in parts:
            script.arrivals = [at // 2 for at in script.arrivals]
    name, others = next(iter(scripts.items()))
    tokens = [_token(rng, f"{name}.last.{i}", poisoned) for i in range(LAST_ROWS)]
    number_tokens(tokens, f"{name}.last")
    times = [time for script in others for _, time in script.rows]
    oldest = max(times) if rng.random() < 0.6 else min(times)
    rows = [(token, oldest + i * 20_000) for i, token in enumerate(tokens)]
    last = Script(f"{name}.last", rows, [NEVER] * LAST_ROWS, frozenset(range(LAST_ROWS) if late else ()), NEVER)
    others.append(last)
    return last


def _token(rng: random.Random, id_: str, poisoned: bool) -> Token:
    left, right = ("l" + ("hot" if rng.random() < 0.3 else rng.choice(KEYS)) for _ in range(2))
    bad = ""
    if poisoned and rng.random() < 0.02:
        bad = rng.choice(["raise", "key"])
    elif rng.random() < 0.02:
        bad = "flaky"
    pad = "p" * rng.choice([0, 0, 0, 10, 3_000])
    return Token(id_, rng.randrange(0, 100), left, "r" + right[1:], "", bad=bad, pad=pad)


def number_tokens(tokens: list[Token], origin: str) -> None:
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
        number_tokens(list({token.id: token for token, _ in script.rows if token.origin}.values()), script.name)
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
    stages: list[StageSpec],
    scripts: dict[str, list[Script]],
    world: World,
    two_sources: bool = False,
    brief: dict[str, Any] | None = None,
    poisoned: bool = False,
) -> Pipeline:
    """The pipeline of these stages; with `two_sources` the first partition of each stream has a source of its own; with a
    mayfly of these settings, if any."""
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
    if brief is not None:
        inputs = [subscribe(streams["in0"], key=mayfly.key_of)]
        fails = world.fails if poisoned else None
        pipeline.sink(mayfly.SINK)
        pipeline.add(lambda: mayfly.Mayfly(fails), inputs, name=mayfly.NAME, **brief)
    return pipeline


def _extract(side: str) -> Any:
    return (lambda token: token.left) if side == "left" else (lambda token: token.right)
