"""The lines of quarantined keys against plain lists: what waits runs once and in its order, and a release leaves nothing."""

from __future__ import annotations

import random

import pytest

from millwheel.bundles import HoldWrites, QuarantineEntry
from millwheel.ids import Seq
from millwheel.work import InvocationOutcome, Work
from tests.unit.core.faults.test_quarantine import Interval, element, work

KEYS = ["a", "b"]
Change = tuple[str, str, QuarantineEntry | int]
"""What a checkpoint does to a line: ("in", key, element), ("out", key, how many), or ("end", key, 0)."""


class Lines:
    """An interval whose hooks fail now and then, and the tables, which know what is folded."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.parts = Interval()
        self.truth: dict[str, list[QuarantineEntry]] = {key: [] for key in KEYS}
        self.tables: dict[str, list[QuarantineEntry]] = {key: [] for key in KEYS}
        self.log: list[tuple[Seq, list[Change]]] = []
        self.seq, self.made = 0, 0
        self.running: tuple[Work, list[QuarantineEntry]] | None = None
        self.answer: tuple[list[QuarantineEntry], bool] | None = None
        self.failing = True

    def begin(self) -> None:
        """The next invocation: what is redriven, or a record."""
        quarantine = self.parts.quarantine
        redrive = quarantine.take_fetched()
        for key in KEYS:
            mine = [entry for entry in redrive if entry.key == key]
            assert mine == self.truth[key][: len(mine)], "what waits first, in its order"
        key, self.made = self.dice.choice(KEYS), self.made + 1
        arrives = self.failing and not redrive  # in the end nothing new comes
        asked = work(key) if arrives else work(redrive=(*redrive,))
        if arrives:
            asked.parts[0].sequences[0] = element(key, self.made).sequence
        kept = quarantine.divert(asked)
        ran = [element(key, self.made)] if arrives and kept.parts[0].keys else []
        assert not (ran and self.truth[key]), "nobody overtakes what waits"
        self.running = kept, redrive or ran

    def end(self) -> None:
        """It is over; some of its hooks have failed."""
        assert self.running is not None
        (ran, entries), self.running = self.running, None
        quarantine, self.seq = self.parts.quarantine, self.seq + 1
        outcome, changes = InvocationOutcome(), list[Change]()
        if ran.redrive:
            for key in sorted({entry.key for entry in entries}):
                given = sum(entry.key == key for entry in entries)
                done = self.dice.randrange(given + 1) if self.failing else given
                outcome.redriven |= {key: done} if done else {}
                changes.append(("out", key, done))
        elif entries and self.failing and self.dice.random() < 0.3:
            outcome.quarantined += entries
        seq, holds = Seq(self.seq), HoldWrites([], [])
        into = outcome.quarantined + quarantine.take_diverted()
        quarantine.redriven(seq, ran, outcome)
        changes += [("end", key, 0) for key in quarantine.take_released(seq, holds)]
        quarantine.put(into, seq, ran, holds)
        changes += [("in", entry.key, entry) for entry in into]
        apply(self.truth, changes)
        self.log.append((seq, changes))

    def ask(self) -> None:
        self.parts.quarantine.ask(self.dice.sample(KEYS, self.dice.randrange(1, 3)), 0)

    def look(self) -> None:
        """The store reads the lines, or its answer comes."""
        quarantine = self.parts.quarantine
        if self.answer is not None:
            quarantine.fetched(*self.answer)
            self.answer = None
        elif keys := quarantine.next():
            limit = self.dice.randrange(1, 5)
            rows = [entry for key in keys for entry in self.tables[key]][:limit]
            self.answer = rows, len(rows) >= limit

    def fold(self) -> None:
        count = self.dice.randrange(len(self.log) + 1)
        for _, changes in self.log[:count]:
            apply(self.tables, changes)
        if count:
            self.parts.quarantine.folded(self.log[count - 1][0])
        del self.log[:count]

    def drain(self) -> None:
        for _ in range(300):
            self.end() if self.running is not None else self.begin()
            self.look()
            self.fold()


def apply(lines: dict[str, list[QuarantineEntry]], changes: list[Change]) -> None:
    for what, key, change in changes:
        match what, change:
            case "in", QuarantineEntry():
                lines[key].append(change)
            case "out", int():
                del lines[key][:change]
            case _:
                assert lines[key] == [], "a key is released when nothing of it waits"


@pytest.mark.parametrize("seed", range(50))
def test_what_waits_runs_once_and_in_its_order(seed: int) -> None:
    lines = Lines(seed)
    for _ in range(400):
        step = lines.dice.choice([lines.begin, lines.end, lines.ask, lines.look, lines.look, lines.fold])
        if step in (lines.begin, lines.end) and (lines.running is None) == (step == lines.end):
            continue
        step()
        assert {key for key in KEYS if lines.truth[key]} <= lines.parts.quarantine.keys
    lines.failing = False
    lines.drain()
    lines.parts.quarantine.ask(KEYS, 0)  # once: whoever is asked for goes on until nothing waits
    lines.drain()
    assert lines.truth == {key: [] for key in KEYS}
    assert not lines.parts.quarantine.keys
