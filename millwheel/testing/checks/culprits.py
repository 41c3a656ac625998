"""Checks of culprits: each stops only its own key, and does not run again once it is known (I16).

Lives here: the checks of a refused sink row and of a hook that ends its process.  Never here: the decision what runs
(`core.faults.suspects`, `core.faults.refused`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from millwheel import limits
from millwheel.bundles import Checkpoint, LogWrite, decode_checkpoint
from millwheel.core.faults.suspects import Suspicion, Unit, read_mark
from millwheel.errors import RowRefused
from millwheel.ids import IntervalId, ProducerId, Seq, Sequencer
from millwheel.ports import MarkWrite
from millwheel.testing.checks.truth import Truth


class Culprits:
    """Refusals and kills of every interval."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self._refused: dict[int, dict[bytes, tuple[tuple[int, int], set[int]]]] = {}
        """Interval to refused row to (sequencer, seq) of its checkpoint, and the weak producers of what ran then."""
        self._marks: dict[IntervalId, tuple[int, Suspicion]] = {}
        """Interval to its mark, and the sequencer under which it was written."""
        self._kills: dict[IntervalId, Counter[Unit]] = {}
        """Interval to what has killed a process while it ran alone, and how many since the last orderly end."""

    def taken(self, interval: IntervalId) -> None:
        """Another process has the interval: it does not know what was refused."""
        self._refused.pop(interval, None)

    def marked(self, write: MarkWrite) -> None:
        """A mark is stored."""
        self._marks[write.interval] = (write.sequencer, read_mark(write.mark))
        if write.ends == 0:
            self._kills.pop(write.interval, None)

    def check_refusal(self, refusal: RowRefused, kept: set[tuple[IntervalId, Seq]], writes: Sequence[LogWrite]) -> None:
        """Nothing is durable from a refused checkpoint on; what wrote its row runs again if it is redriven (I16)."""
        truth = self._truth
        if any(interval == refusal.interval and seq >= refusal.seq for interval, seq in kept):
            truth.fail(f"I16: interval {refusal.interval} has committed past #{refusal.seq}, which was refused")
        write = next(w for w in writes if (w.interval, w.seq) == (refusal.interval, refusal.seq))
        image = decode_checkpoint(write.payload)
        truth.kernel.probes["redrive refused"] += bool(image.redriven)
        if image.redriven or image.outside:
            return  # of the rows with one id of an outside client, another one may run now, and write the same
        known, place = self._refused.setdefault(write.interval, {}), (write.sequencer, write.seq)
        made = self._weak_producers(image)
        for row in (write.sinks[row].values for row, _ in refusal.rows):
            before, makers = known.get(row, (place, made))
            # The same one may be tried again, for its reply was lost; and the next owner of a sender of weak productions
            # makes those again that were not durable, under other ids: this is another record.
            if before != place and made <= makers:
                truth.fail(f"I16: interval {write.interval} has run again what wrote the refused row {row!r}")
            truth.kernel.probes["refused row of a record that was made again"] += before != place
            known[row] = place, makers | made

    def _weak_producers(self, image: Checkpoint) -> set[ProducerId]:
        """Sequencers, or nothing where inputs are not deduplicated: there a checkpoint does not say who made them."""
        truth, found = self._truth, set[ProducerId]()
        for ids in image.ids:
            maker = truth.graph.computations.get(truth.maker.get(ids.producer, ""))
            if ids.sequences and maker is not None and maker.settings.productions == "weak":
                found.add(ids.producer)
        return found

    def saw_kill(self, interval: IntervalId, sequencer: Sequencer, running: list[Unit]) -> None:
        """A hook ended the process that ran it; `running` was marked before, if anything was (I16)."""
        truth = self._truth
        if truth.owner[interval] != sequencer:
            return
        owner, mark = self._marks.get(interval, (0, Suspicion()))
        if running and (owner != sequencer or mark.running != running):
            truth.fail(f"I16: interval {interval} ran {running}, which kills, and the store does not know")
        condemned = {(key, digest) for key, digest, deaths in mark.deaths if deaths >= limits.DEATHS_LIMIT}
        if not condemned.isdisjoint(running):
            truth.fail(f"I16: interval {interval} runs {running}, of which some has killed often enough")
        for other, (marker, suspicion) in self._marks.items():
            if other != interval and truth.owner[other] == marker and suspicion.alone:
                truth.fail(f"I16: interval {interval} killed while interval {other} ran {suspicion.running} alone")
        if running and mark.alone:
            kills = self._kills.setdefault(interval, Counter())
            kills[running[0]] += 1
            if kills[running[0]] > limits.DEATHS_LIMIT:
                truth.fail(f"I16: interval {interval} runs {running} again, which has killed {kills} processes alone")
