"""Bugs of quarantine: what waits, in which order, and what is redriven."""

from __future__ import annotations

from typing import Any

from millwheel.bundles import QuarantineEntry
from millwheel.core.faults.quarantine import Quarantine
from millwheel.core.interval.machine import IntervalCore
from millwheel.core.keys.timers import TimerQueue
from millwheel.ids import Seq, Sequencer
from millwheel.model import MAX_TIME
from millwheel.runtime.executor import Executor
from millwheel.work import QUARANTINE_HOLD
from millwheel_storage.memory.tables import MemoryTables
from tests.planted import Patches, mutant, only


@mutant
def timers_of_the_quarantined() -> Patches:
    """Timers of a quarantined key fire."""
    return {(TimerQueue, "sleep"): lambda self, key: None}


@mutant
def released_with_one_in_hand() -> Patches:
    """A quarantine is released while a record is on its way into it."""
    original = Quarantine._emptied

    def emptied(self: Quarantine, key: str) -> None:
        diverted, self._diverted = self._diverted, []
        self._redriving[key] = self._written.get(key, 0)
        original(self, key)
        self._diverted = diverted

    return {(Quarantine, "_emptied"): emptied}


@mutant
def redriven_again() -> Patches:
    """A line is read again before what was redriven of it is folded."""
    return {(Quarantine, "_in_tables"): lambda self, key: True}


@mutant
def part_for_the_whole() -> Patches:
    """A key is released after the first read of its line, however long that is."""
    original = Quarantine._plan
    return {
        (Quarantine, "_plan"): lambda self, key, entries, whole: original(self, key, entries, whole=True),
    }


@mutant
def redrive_past_a_failure() -> Patches:
    """A redrive of many keys goes on behind an element that has failed again."""

    def redrives(self: Executor, entries: list[QuarantineEntry], work: Any, outcome: Any) -> None:
        for entry in entries:
            if entry.key in self._waiting_keys:
                self._waiting.append(entry)
            elif self._attempt(self._redrive, entry, work, outcome) is None and entry.key not in self._waiting_keys:
                outcome.redriven[entry.key] = outcome.redriven.get(entry.key, 0) + 1

    return {(Executor, "_redrives"): redrives}


@mutant
def hold_of_the_first() -> Patches:
    """A quarantine holds the watermark at its first element only, though an older one came later."""
    original = Quarantine._hold

    def hold(self: Quarantine, key: str, at: int, holds: Any) -> None:
        if key + QUARANTINE_HOLD not in self._keyed.holds.all:
            original(self, key, at, holds)

    return {(Quarantine, "_hold"): hold}


@only("tests/unit/core/interval/test_machine.py")
def unfinished_redrive() -> Patches:
    """A request to redrive a key that is not in quarantine any more is forgotten."""

    def ask(self: Quarantine, keys: list[str], now: int) -> None:
        original(self, [key for key in keys if key in self.keys], now)

    original = Quarantine.ask
    return {(Quarantine, "ask"): ask}


@mutant
def later_requests_are_answered() -> Patches:
    """A fold with a release deletes what was asked for since, when the key had failed again."""
    original = MemoryTables._apply_quarantine
    end = (Sequencer(MAX_TIME), Seq(0))
    return {
        (MemoryTables, "_apply_quarantine"): lambda self, computation, folded, released: original(
            self, computation, folded, dict.fromkeys(released, end)
        ),
    }


@only("tests/sim/test_put_back.py")
def diverted_and_put_back() -> Patches:
    """Of an invocation that is put back, what was diverted to a quarantine stays there."""

    def put_back(self: IntervalCore, fits: int, effects: list[Any]) -> None:
        self._lives(effects)
        scheduled, _ = self._invocation.end()
        self._schedule.put_back(scheduled.items, fits)

    return {(IntervalCore, "_put_back"): put_back}
