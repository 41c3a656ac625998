"""A pipeline under snapshots in the simulator, of which every cut is known beforehand.

`Split` makes words of lines, `Count` counts them, and `Meet` has both lines and words, so that two ways of different length
meet in it.  `Window` fires a timer for each word and minute, which writes a sink row.  After each declared epoch the state of
all of them must be what the rows before the stored positions make, each row once (I22), and sink rows must be those of the
timers that the state says have fired (I24).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from millwheel import (
    SECOND,
    Computation,
    Context,
    JsonCoder,
    MapCell,
    MsgpackCoder,
    Pipeline,
    Record,
    Snapshots,
    Stream,
    Table,
    Timer,
    ValueCell,
    limits,
    subscribe,
)
from millwheel.model import MAX_TIME
from millwheel.testing.checks.cuts import CutStore
from millwheel.testing.checks.ending import check_accounts
from millwheel.testing.faults.nemesis import Faults, Nemesis, Seeded
from millwheel.testing.kit.scripted import Script, ScriptedSource
from millwheel.testing.world.kernel import Kernel, Violation
from millwheel.testing.world.simulator import Simulation
from millwheel_storage.memory import MemoryStore
from tests.sim.harness import faults_of
from tests.sim.workload.drawing import silent_poll_us
from tests.sim.workload.last import NEVER, WHEN, let_it_come

START_US = 1_700_000_000 * SECOND
WINDOW_US = 60 * SECOND
LAST_EVERY, LAST_OF, LAST_LINES = 9, 5, 8
"""In one of so many seeds one more partition comes last, and how many lines it has."""
WORDS = ("to", "be", "or", "not", "that", "is")


class Said(msgspec.Struct, frozen=True):
    """A line: who says it, its place among the lines of its partition, and its words."""

    who: str
    place: int
    words: tuple[str, ...]


class Word(msgspec.Struct, frozen=True):
    """A word of a line."""

    text: str
    who: str
    place: int


said = Stream("said", MsgpackCoder(Said))
words = Stream("words", MsgpackCoder(Word))
shown = Table("shown", {"word": "text", "window": "bigint", "number": "bigint"}, ("word", "window"))


class Split(Computation[Said]):
    """Lines to words."""

    lines = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[Said]) -> None:
        self.lines.set(self.lines.get() + 1)
        for text in record.value.words:
            context.produce(words, Word(text, record.value.who, record.value.place))


class Count(Computation[Word]):
    """By word: how often each speaker's line had it, and whether places ever went back."""

    seen = MapCell(JsonCoder(int))
    newest = MapCell(JsonCoder(int))
    disorder = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[Word]) -> None:
        word = record.value
        entry = f"{word.who}.{word.place}"
        self.seen.set(entry, self.seen.get(entry, 0) + 1)
        if word.place < self.newest.get(word.who, 0):
            self.disorder.set(self.disorder.get() + 1)
        self.newest.set(word.who, word.place)


class Meet(Computation[Any]):
    """By speaker: lines, and words that have come the long way."""

    lines = ValueCell(JsonCoder(int), default=0)
    words = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        cell = self.lines if isinstance(record.value, Said) else self.words
        cell.set(cell.get() + 1)


class Window(Computation[Word]):
    """By word: words of the open windows, and how often the timer of each closed one has fired."""

    open = MapCell(JsonCoder(int))
    fired = MapCell(JsonCoder(int))
    late = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[Word]) -> None:
        window = str(record.timestamp // WINDOW_US)
        self.open.set(window, self.open.get(window, 0) + 1)
        if record.late:
            self.late.set(self.late.get() + 1)
        context.set_timer(window, (record.timestamp // WINDOW_US + 1) * WINDOW_US)

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        number = self.open.get(timer.tag, 0)
        self.open.delete(timer.tag)
        self.fired.set(timer.tag, self.fired.get(timer.tag, 0) + 1)
        context.upsert(shown, {"word": timer.key, "window": int(timer.tag), "number": number})


class Stage:
    """The pipeline of a seed, its rows, and what of it is to be seen when."""

    def __init__(self, seed: int, lines: int = 0, every_ms: int = 0) -> None:
        """How many lines a partition has, and how often there is a snapshot, is drawn unless it is given."""
        rng = random.Random(f"cuts {seed}")
        self.scripts = [self._script(rng, n, lines) for n in range(rng.randrange(1, 5))]
        self.last: Script | None = None
        """A partition that is discovered when the others have ended."""
        self._last_when = WHEN[seed // LAST_EVERY % len(WHEN)]
        if seed % LAST_EVERY == LAST_OF and not lines:
            self.last = self._last_script(random.Random(f"last {seed}"))
            self.scripts.append(self.last)
        self.source = ScriptedSource("lines", self.scripts)
        drawn_ms = rng.choice([10, 50, 200, 1_000])
        self.pipeline = Pipeline("cuts", durability=Snapshots(every_ms=every_ms or drawn_ms))
        self.pipeline.inject(self.source, into=said)
        self.pipeline.sink(shown)

        def settings(*splits: str) -> dict[str, Any]:
            return {
                "split_keys": splits if rng.random() < 0.5 else (),
                "work_limit_records": rng.choice([1, 3, 4_096]),
                "cache_limit_bytes": rng.choice([1, 10**8]),
                "productions": rng.choice(["strong", "weak"]),
            }

        self.pipeline.add(Split, [subscribe(said, lambda line: line.who)], [words], **settings("p1", "p2"))
        by_word = [subscribe(words, lambda word: word.text)]
        self.pipeline.add(self.counting(), by_word, name="Count", **settings("is", "or"))
        by_speaker = [subscribe(said, lambda line: line.who), subscribe(words, lambda word: word.who)]
        self.pipeline.add(Meet, by_speaker, **settings("p2"))
        self.pipeline.add(Window, [subscribe(words, lambda word: word.text)], **settings("not"))
        self.graph = self.pipeline.graph()
        self.store: CutStore
        self.refused = ""
        """A word whose sink rows the database refuses: its windows are in quarantine, with what follows."""

    def counting(self) -> Callable[[], Computation[Word]]:
        """What makes a `Count`."""
        return Count

    def constraint(self, table: str, row: Mapping[str, Any]) -> str | None:
        """What the database says to a sink row."""
        return "it is refused" if row["word"] == self.refused else None

    def _script(self, rng: random.Random, number: int, lines: int) -> Script:
        count = lines or rng.randrange(20, 120)
        rows, arrivals, at = [], [], 0
        for place in range(count):
            texts = tuple(rng.choice(WORDS) for _ in range(rng.randrange(0, 4)))
            # Each line has a word of its own, so that a row without any does not go unnoticed.
            rows.append((Said(f"p{number}", place, (*texts, "that")), START_US + place * 3 * SECOND))
            at += rng.choice([0, 0, 1_000, 60_000])
            arrivals.append(START_US + at)
        return Script(f"part {number}", rows, arrivals, appears_at=START_US + rng.choice([0, 0, 300_000]))

    def _last_script(self, rng: random.Random) -> Script:
        """Its lines are younger than all others, or as old."""
        first = rng.choice((0, max(len(script.rows) for script in self.scripts)))
        lines = [Said("last", first + place, (rng.choice(WORDS), "that")) for place in range(LAST_LINES)]
        rows = [(line, START_US + line.place * 3 * SECOND) for line in lines]
        return Script("last", rows, [NEVER] * LAST_LINES, appears_at=NEVER)

    def let_last_come(self) -> None:
        """The partition that comes last, if there is one, waits until all others have ended."""
        if self.last is not None:
            let_it_come(self.store, self.last, self.scripts[:-1], self._last_when)

    # --- what must be true ----------------------------------------------------------------------------------------

    def before(self) -> Iterator[Said]:
        """The rows before the stored positions."""
        for position in self.store.inner.sources.values():
            script = next(script for script in self.scripts if script.name == position.partition)
            yield from (line for line, _ in script.rows[: position.position])

    def check_cut(self) -> None:
        """What can be seen is what the rows before the positions make, each once."""
        fail, lines = self.store.truth.fail, [*self.before()]
        spoken = Counter(line.who for line in lines)
        if {who: cells["lines", ""] for who, cells in self.cells("Split").items()} != spoken:
            fail("I22: the lines that Split has are not those before the positions")
        self.check_count(lines)
        places = (("lines", ""), ("words", ""))
        meeting = {who: tuple(cells.get(p, 0) for p in places) for who, cells in self.cells("Meet").items()}
        numbers = Counter(line.who for line in lines for _ in line.words)
        if meeting != {who: (number, numbers[who]) for who, number in spoken.items()}:
            fail("I22: what meets in Meet is not one cut")
        self._check_windows(lines)
        self.store.check_watermarks()

    def check_count(self, lines: list[Said]) -> None:
        """What `Count` has is what these lines make."""
        fail = self.store.truth.fail
        seen = Counter((text, line.who, line.place) for line in lines for text in line.words)
        found = {
            (text, *entry.split(".")): number
            for text, cells in self.cells("Count").items()
            for (cell, entry), number in cells.items()
            if cell == "seen" and entry
        }
        if found != {(text, who, str(place)): number for (text, who, place), number in seen.items()}:
            fail("I22: the words that Count has are not those of the lines before the positions")
        if any(("disorder", "") in cells for cells in self.cells("Count").values()):
            fail("I17: words of a speaker came out of order")

    def _check_windows(self, lines: list[Said]) -> None:
        fail, windows = self.store.truth.fail, Counter[tuple[str, int]]()
        for line in lines:
            window = (START_US + line.place * 3 * SECOND) // WINDOW_US
            windows.update((text, window) for text in line.words)
        fired: dict[tuple[str, int], int] = {}
        open_ = Counter[tuple[str, int]]()
        for word, cells in self.cells("Window").items():
            for (cell, entry), number in cells.items():
                if cell == "late":
                    fail("I11: a word is late, and its source keeps its promise")
                if cell == "open" and entry:
                    open_[word, int(entry)] = number
                if cell == "fired" and entry:
                    fired[word, int(entry)] = number
        if any(number != 1 for number in fired.values()):
            fail("I8: a timer has fired twice")
        if self.refused and any(word == self.refused for word, _ in fired):
            fail("I24: a timer whose sink row is refused has fired")
        for refused in [place for place in {*windows, *open_} if place[0] == self.refused]:
            windows.pop(refused, None)
            open_.pop(refused, None)
        rows = {key: row["number"] for key, row in self.store.inner.sinks["shown"].items()}
        if rows.keys() != fired.keys():
            fail("I24: the sink rows that can be seen are not those of the timers that have fired")
        if open_ + Counter(rows) != windows:
            fail("I22: the words in windows are not those of the lines before the positions")

    def cells(self, computation: str) -> dict[str, dict[tuple[str, str], int]]:
        """The declared state of a computation, by key."""
        state = self.store.truth.durable[computation].state
        return {
            key: {place: msgspec.json.decode(value) for place, value in cells.items()} for key, cells in state.items()
        }

    def check_end(self) -> None:
        """All rows are in, all windows are closed, and nothing is left to be folded."""
        fail, inner = self.store.truth.fail, self.store.inner
        if any(not position.finished for position in inner.sources.values()) or len(inner.sources) != len(self.scripts):
            fail("I2: a partition is not finished at the end")
        self.check_cut()
        windows = [cells for word, cells in self.cells("Window").items() if word != self.refused]
        if any(cell == "open" and entry for cells in windows for cell, entry in cells):
            fail("I8: a window is open at the end")
        if inner.log or any(inner.folded.delivered.values()) or any(inner.folded.productions.values()):
            fail("I15: something is not folded at the end")
        check_accounts(self.store)
        if {inner.watermark[name] for name in self.graph.computations} != {MAX_TIME}:
            fail("I22: a watermark that was reached is not stored at the end")


def run_stage(
    stage: Stage,
    kernel: Kernel,
    nemesis: Nemesis,
    until_us: int,
    prepare: Callable[[Simulation], None] = lambda simulation: None,
) -> Kernel:
    """Run it to its end, under a nemesis."""
    stage.store = CutStore(MemoryStore(), stage.graph, kernel)
    stage.store.on_cut = stage.check_cut
    stage.store.inner.constraint = stage.constraint
    simulation = Simulation(
        graph=stage.graph, tables=stage.pipeline.tables, kernel=kernel, nemesis=nemesis, store=stage.store,
        faults_until_us=until_us,
    )  # fmt: skip
    prepare(simulation)
    stage.let_last_come()
    try:
        simulation.run()
    except Violation:
        raise
    except Exception as error:
        raise Violation(f"{type(error).__name__}: {error}", kernel.story()) from error
    stage.check_end()
    return kernel


@contextmanager
def small_epochs(seed: int) -> Iterator[None]:
    """In some seeds epochs are full all the time, so that sources wait for their end.  In most an epoch is not merged
    when it is cut, and in some of these an invocation merges its own keys only, and the rest waits for the fold."""
    with (
        patch.object(limits, "EPOCH_LIMIT_WRITES", 12 if seed % 4 == 1 else limits.EPOCH_LIMIT_WRITES),
        patch.object(limits, "ADOPTED_AT_CUT", limits.ADOPTED_AT_CUT if seed % 5 == 4 else 0),
        patch.object(limits, "ADOPTED_PER_KEY", limits.ADOPTED_PER_KEY if seed % 3 == 1 else 0),
        patch.object(limits, "SILENT_POLL_US", silent_poll_us(seed)),
    ):
        yield


def simulate_cuts(seed: int) -> Kernel:
    """One seed; raises `Violation` with the story when an invariant breaks."""
    kernel = Kernel(seed, start_us=START_US)
    faults: Faults = msgspec.structs.replace(faults_of(seed), clock_step=0)
    with small_epochs(seed):
        return run_stage(Stage(seed), kernel, Seeded(faults, kernel.rng), 5 * SECOND)
