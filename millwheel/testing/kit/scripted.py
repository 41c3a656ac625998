"""Sources whose rows are known beforehand, for simulations and the stepper.

Lives here: `ScriptedSource` (rows that arrive at given virtual times) and `ManualSource` (rows that a test hands over).
Invariant: a partition gives the same row under the same number in every process that reads it.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from millwheel import limits
from millwheel.graph import Graph
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.source import Batch, RecordId, Source, SourcePartition, SourcePosition


class Script(msgspec.Struct, gc=False):
    """One partition: `rows` of (value, event time us), each with its arrival; `late` rows break the promise.

    `appears_at` is the virtual time, us, from which the partition can be discovered.
    """

    name: str
    rows: list[tuple[Any, int]]
    arrivals: list[int]
    late: frozenset[int] = frozenset()
    appears_at: int = 0
    read_to: int = 0
    """Rows that some process has read."""
    together: int = 1
    """So many rows, counted from the first, come all or not at all."""

    def end(self) -> None:
        """No rows come any more but those that some process has read."""
        del self.rows[-(-self.read_to // self.together) * self.together :]

    def delay(self, until_us: int) -> None:
        """Rows that nobody has read come at that virtual time at the earliest, and are as much younger."""
        for row in range(self.read_to, len(self.rows)):
            (value, time), at = self.rows[row], self.arrivals[row]
            if at < until_us:
                self.rows[row] = value, time if row in self.late else time + until_us - at
                self.arrivals[row] = until_us

    def promise(self) -> int:
        """The smallest event time among the rows that are not late."""
        return min((t for i, (_, t) in enumerate(self.rows) if i not in self.late), default=MAX_TIME)


class ScriptedPartition:
    """A reader of one `Script`, with a position of its own."""

    def __init__(
        self,
        script: Script,
        clock: Callable[[], int],
        chunk: Callable[[], int],
        disorder_us: int | None = None,
        jump_us: int = 1,
    ) -> None:
        self.name = script.name
        self._script = script
        self._clock = clock
        self._chunk = chunk
        self._disorder_us = disorder_us
        self._jump_us = jump_us
        self._newest = MIN_TIME
        self._position = 0
        self._promises = _promises(script)

    def fingerprint(self) -> bytes:
        """Its name."""
        return self.name.encode()

    def resume(self, position: int, state: bytes) -> None:
        """Continue at row `position`."""
        self._position = position

    def read(self, limit: int) -> Batch | None:
        """Rows that have arrived, a chunk of them."""
        script, first = self._script, self._position
        last = min(first + min(limit, self._chunk()), len(script.rows))
        while last > first and script.arrivals[last - 1] > self._clock():
            last -= 1
        if last == first:
            return None
        self._position = last
        script.read_to = max(script.read_to, last)
        rows = script.rows[first:last]
        self._newest = max(self._newest, *(time for _, time in rows))
        return Batch(
            list(range(first, last)), [value for value, _ in rows], [time for _, time in rows], last, b"s%d" % last
        )

    def finished(self) -> bool:
        """All rows are read."""
        return self._position >= len(self._script.rows)

    def watermark(self) -> int:
        """The promise about the rows that are left, or what a reader can know of them that only knows the disorder."""
        known = self._promises[self._position]
        if self._disorder_us is not None and not self.finished():
            known = min(known, max(MIN_TIME, self._newest - self._disorder_us))
        return known if known in (MIN_TIME, MAX_TIME) else known - known % self._jump_us

    def close(self) -> None:
        """Nothing to release."""


def _promises(script: Script) -> list[int]:
    promises = [MAX_TIME]
    for index in range(len(script.rows) - 1, -1, -1):
        time = MAX_TIME if index in script.late else script.rows[index][1]
        promises.append(min(promises[-1], time))
    return promises[::-1]


class ScriptedSource(Source):
    """Partitions that appear and rows that arrive in virtual time; `record_id` and `id_slack` as other sources have."""

    def __init__(
        self,
        name: str,
        scripts: Sequence[Script],
        record_id: RecordId | None = None,
        id_slack: int = limits.OUTSIDE_SLACK_US,
    ) -> None:
        self.name = name
        self.scripts = list(scripts)
        self.record_id = record_id
        self.id_slack = id_slack
        self.foresees = True
        """Its promises are the scripts'; false: it knows no more than what was read and how disordered that may be."""
        self.jump_us = 1
        """What its partitions promise is rounded down to multiples of this, us, so that watermarks come in jumps."""
        self.missing_us = 0
        """For so long after a start every other one of those that were begun earlier is not there."""
        self._starts = itertools.count(1)
        self._gone: dict[str, int] = {}
        self._looked_at = MIN_TIME
        """Virtual time of the last look, of which `complete` and `pending_watermark` speak."""
        self.clock: Callable[[], int] = lambda: 0
        self.chunk: Callable[[], int] = lambda: 1_000
        """How many rows the next read may give."""

    def discover(self, known: Iterable[str]) -> list[SourcePartition]:
        """The partitions that have appeared."""
        seen = set(known)
        self._looked_at = self.clock()
        found = [s for s in self.scripts if s.name not in seen and self._is_there(s)]
        disorder_us = None if self.foresees else self.disorder_us
        return [
            ScriptedPartition(s, lambda: self.clock(), lambda: self.chunk(), disorder_us, self.jump_us) for s in found
        ]

    def recall(self, positions: Iterable[SourcePosition]) -> None:
        """Some of what was begun and not finished goes missing for a while, others at every start."""
        begun = [position.partition for position in positions if not position.finished]
        self._gone = {name: self.clock() + self.missing_us for name in begun[next(self._starts) % 2 :: 2]}

    def of_a_process(self) -> ScriptedSource:
        """The same rows and starts, with a look of its own: what one process sees says nothing of another's last look."""
        return copy.copy(self)

    def _is_there(self, script: Script) -> bool:
        """Whether the last look met it."""
        return max(script.appears_at, self._gone.get(script.name, 0)) <= self._looked_at

    def complete(self) -> bool:
        """All had appeared at the last look, and none was missing."""
        return all(map(self._is_there, self.scripts))

    def reject(self, partition: str, row: int, reason: str, value: Any) -> None:
        """As if it were in a file: a row is read again after each crash."""

    def pending_watermark(self) -> int:
        """The promise of those that had not appeared; what is missing was begun, and is waited for anyway."""
        to_come = [script for script in self.scripts if script.appears_at > self._looked_at]
        if to_come and not (self.foresees or self.ordered):
            return MIN_TIME
        return min((script.promise() for script in to_come), default=MAX_TIME)


class ManualSource(Source):
    """One partition that is fed by hand and never ends."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: list[tuple[Any, int]] = []
        self.promise = MIN_TIME
        self.rejected: list[str] = []
        """Reasons, of the rows that had no key or could not be encoded."""

    def reject(self, partition: str, row: int, reason: str, value: Any) -> None:
        """Note the reason."""
        self.rejected.append(f"{value!r:.80}: {reason}")

    def discover(self, known: Iterable[str]) -> list[SourcePartition]:
        """The one partition."""
        return [] if "manual" in set(known) else [_Manual(self)]

    def complete(self) -> bool:
        """True: there is no other."""
        return True

    def pending_watermark(self) -> int:
        """Nothing is pending."""
        return MAX_TIME


class _Manual:
    """The reader of a `ManualSource`: a read without rows still says how far the watermark is."""

    name = "manual"

    def __init__(self, source: ManualSource) -> None:
        self._source = source
        self._position = 0
        self._told = MIN_TIME

    def fingerprint(self) -> bytes:
        return b""

    def resume(self, position: int, state: bytes) -> None:
        self._position = position

    def news(self) -> bool:
        """There are rows, or a promise, that were not read yet."""
        return self._position < len(self._source.rows) or self._told < self._source.promise

    def read(self, limit: int) -> Batch | None:
        first, rows = self._position, self._source.rows[self._position : self._position + limit]
        self._position = first + len(rows)
        if not rows:
            self._told = self._source.promise
            if self.finished():
                return None
        return Batch(
            list(range(first, self._position)), [v for v, _ in rows], [t for _, t in rows], self._position, b""
        )

    def finished(self) -> bool:
        return self._source.promise >= MAX_TIME and self._position >= len(self._source.rows)

    def watermark(self) -> int:
        return self._source.promise if self._position >= len(self._source.rows) else MIN_TIME

    def close(self) -> None:
        pass


def with_own_sources(graph: Graph) -> Graph:
    """The pipeline of one process.  Two processes that live at a time look at the same rows and not at the same moment."""
    sources = {
        name: msgspec.structs.replace(spec, source=spec.source.of_a_process())
        if isinstance(spec.source, ScriptedSource)
        else spec
        for name, spec in graph.sources.items()
    }
    return msgspec.structs.replace(graph, sources=sources)
