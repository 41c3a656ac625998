"""Checks of bundles between intervals: what leaves is durable where it must be, and what is acked is consumed.

Lives here: the checks of a send and of an ack, with the bundles that are on their way and the invocations whose inputs are
not acked yet.  Never here: delivery, which is the simulated process's (`process`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from millwheel.bundles import Bundle
from millwheel.host.alphabet import RunHooks
from millwheel.host.messages import Delivery, Message, Receipt
from millwheel.host.requests import CommitGroup, StoreCall
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, Sequencer, SubscriptionId
from millwheel.testing.checks.truth import Channel, Place, Truth
from millwheel.work import InvocationOutcome

ECHO: Final = -1
"""The number of a bundle that nobody waits for: its ack goes to whoever owns its sender by now."""

Numbered = tuple[Channel, int]
"""A channel and a sequence on it."""


class Invocations(msgspec.Struct, eq=False):
    """What one owner of an interval has run.  A restart of the interval begins with a new one."""

    sequencer: Sequencer
    productions: dict[SubscriptionId, int] = {}
    """Subscription to the number of productions on it: the sequence of the next one."""
    runs: dict[Numbered, list[list[Numbered]]] = {}
    """Input to the productions of each invocation that had it: one, or several where inputs are not deduplicated."""

    def add(self, run: RunHooks, outcome: InvocationOutcome) -> None:
        """An invocation has returned; its productions are numbered as the interval numbers them."""
        made: list[Numbered] = []
        for subscription, columns in outcome.produced.items():
            first = self.productions.get(subscription, 0)
            self.productions[subscription] = first + len(columns.keys)
            made += [((subscription, ProducerId(self.sequencer)), n) for n in range(first, first + len(columns.keys))]
        for part in run.work.parts:
            for sequence in part.sequences:
                self.runs.setdefault(((part.subscription, part.producer), sequence), []).append(made)


class Wire:
    """Told of every bundle and every ack before it leaves; `process` is the number of the one it leaves."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self._in_flight: dict[tuple[int, int, int, int], Bundle] = {}
        """By process, sender, number and target."""
        self._invocations: dict[tuple[int, int], Invocations] = {}
        """By process and interval, of its newest owner there."""
        self._heard: dict[Channel, set[SequenceNumber]] = {}
        """Productions whose acks have arrived."""
        self.shared = False
        """Bundles go from process to process; else each process is a world of its own."""
        self._handed: dict[tuple[int, int], list[int]] = {}
        """By interval and sequencer the checkpoints that were given to the store, and that it does not know to be durable."""

    def _place(self, process: int) -> int:
        return 0 if self.shared else process

    def asked(self, request: StoreCall) -> None:
        """A request to the store leaves."""
        for write in request.writes if isinstance(request, CommitGroup) else ():
            waiting = self._handed.setdefault((write.interval, write.sequencer), [])
            waiting += [write.seq] if write.seq not in waiting else []  # asked again after a refusal

    def told(self, interval: IntervalId, sequencer: Sequencer, seq: Seq, all_before: bool = False) -> None:
        """An interval is told that its checkpoint `seq` is durable, or all up to it."""
        waiting = self._handed.get((interval, sequencer), [])
        gone = [known for known in waiting if known == seq or (all_before and known < seq)]
        self._truth.kernel.probes["later checkpoint known first"] += bool(gone) and gone[0] != waiting[0]
        waiting[:] = [known for known in waiting if known not in gone]

    def _check_prefix(self, interval: IntervalId, place: Place | None, what: str) -> None:
        """What leaves rests on a checkpoint up to which the interval knows everything to be durable (I2, I7)."""
        if place is None or place[0] != self._truth.owner.get(interval):
            return  # of an earlier owner: this one has found it in the store
        waiting = self._handed.get((interval, place[0]), [])
        if waiting and waiting[0] <= place[1]:
            self._truth.fail(
                f"I2: interval {interval} {what} of #{place[1]}, and does not know that #{waiting[0]} is durable"
            )

    def saw_run(self, run: RunHooks, outcome: InvocationOutcome, process: int) -> None:
        """An invocation has returned, and nothing that it made has left."""
        mine = self._invocations.get((process, run.interval))
        if mine is None or mine.sequencer != run.sequencer:
            mine = self._invocations[process, run.interval] = Invocations(run.sequencer, {}, {})
        mine.add(run, outcome)

    def heard(self, message: Message, process: int) -> None:
        """A message has arrived."""
        if isinstance(message, Receipt):
            bundle = self._in_flight.get((self._place(process), message.sender, message.number, message.interval))
            if bundle is not None:
                self._heard.setdefault((bundle.subscription, bundle.producer), set()).update(bundle.sequences)

    def saw(self, message: Message, process: int) -> None:
        """A message leaves."""
        match message:
            case Delivery(bundle):
                self.saw_send(bundle.sender, bundle, process)
            case Receipt(interval, sender, number) if number != ECHO:
                self.saw_ack(interval, sender, number, process)
            case _:
                pass

    def saw_send(self, interval: IntervalId, bundle: Bundle, process: int) -> None:
        """A bundle leaves: strong productions are durable by now (I7), frontiers below everything pending (I14)."""
        truth, channel = self._truth, (bundle.subscription, bundle.producer)
        self._in_flight[self._place(process), interval, bundle.number, bundle.target] = bundle
        truth.saw_frontier(interval, bundle)
        pending = truth.pending.get(channel, {})
        if pending and bundle.frontier > min(pending) and truth.exact(bundle.subscription):
            truth.fail(
                f"I14: interval {interval} advertises frontier {bundle.frontier} for producer {bundle.producer}, "
                f"but {min(pending)} is not consumed"
            )
        name = truth.computation.get(interval)
        if name is None or truth.graph.computations[name].settings.productions == "weak":
            return
        made = truth.made_by.get(channel, {}).get(bundle.sequences[-1]) if bundle.sequences else None
        self._check_prefix(
            interval, (Sequencer(bundle.producer), made) if made is not None else None, "sends productions"
        )
        rows = truth.produced.get(channel, {})
        for sequence, *row in zip(bundle.sequences, bundle.keys, bundle.values, bundle.timestamps, strict=True):
            if rows.get(sequence) != tuple(row):
                truth.fail(f"I7: interval {interval} sends {sequence} of producer {bundle.producer}, not as committed")

    def saw_ack(self, interval: IntervalId, sender: IntervalId, number: int, process: int) -> None:
        """An ack leaves: what it acks is consumed durably (I2)."""
        truth, bundle = self._truth, self._in_flight.get((self._place(process), sender, number, interval))
        if bundle is None:
            truth.fail(f"I3: interval {interval} acks bundle {number} of {sender}, which was never sent to it")
        channel = (bundle.subscription, bundle.producer)
        self._check_productions(interval, bundle, process)
        known = truth.consumed.setdefault(channel, set())
        if not truth.exact(bundle.subscription):
            known.update(bundle.sequences)
            for sequence in bundle.sequences:
                truth.pending.get(channel, {}).pop(sequence, None)
            return
        taken = truth.taken_by.get(channel, {})
        for place in sorted({taken[sequence] for sequence in bundle.sequences if sequence in taken}):
            self._check_prefix(interval, place, "acks records")
        lost = [sequence for sequence in bundle.sequences if sequence not in known]
        if lost:
            truth.fail(f"I2: interval {interval} acks {lost} of producer {bundle.producer}, not consumed durably")

    def _check_productions(self, interval: IntervalId, bundle: Bundle, process: int) -> None:
        """Each production of an input is acked, or durable, before the input is (I7)."""
        invocations = self._invocations.get((process, interval))
        if invocations is None:
            return
        channel = (bundle.subscription, bundle.producer)
        for sequence in bundle.sequences:
            runs = invocations.runs.get((channel, sequence))
            if not runs:
                continue  # acked before, consumed by an earlier owner, or diverted to quarantine
            settled = next((place for place, made in enumerate(runs) if not any(self._pending(made))), None)
            if settled is None:
                self._truth.fail(
                    f"I7: interval {interval} acks {sequence} of producer {bundle.producer}, but of its productions "
                    f"{next(self._pending(runs[0]))} is neither acked nor durable"
                )
            self._truth.kernel.probes["input acked after its productions"] += bool(runs[settled])
            del runs[settled]  # the next ack is that of another run

    def _pending(self, made: list[Numbered]) -> Iterator[Numbered]:
        """Which of some productions nobody has, but for the process that made them."""
        for channel, sequence in made:
            if sequence not in self._heard.get(channel, ()) and sequence not in self._truth.produced.get(channel, ()):
                yield channel, sequence
