"""Bundles between intervals, watched: what leaves is durable where it must be, what is acked is consumed.

Lives here: the checks of a send and of an ack, with the bundles that are on their way.  Never here: delivery, which is the
simulated process's (`process`).
"""

from __future__ import annotations

from millwheel.bundles import Bundle
from millwheel.host.messages import Delivery, Message, Receipt
from millwheel.testing.truth import Truth


class Wire:
    """Told of every bundle and every ack before it leaves; `process` is the number of the one it leaves."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self._in_flight: dict[tuple[int, int, int, int], Bundle] = {}
        """By process, sender, number and target."""

    def saw(self, message: Message, process: int) -> None:
        """A message leaves."""
        match message:
            case Delivery(bundle):
                self.saw_send(bundle.sender, bundle, process)
            case Receipt(interval, sender, number):
                self.saw_ack(interval, sender, number, process)
            case _:
                pass

    def saw_send(self, interval: int, bundle: Bundle, process: int) -> None:
        """A bundle leaves: strong productions are durable by now (I7), frontiers below everything pending (I14)."""
        truth, channel = self._truth, (bundle.subscription, bundle.producer)
        self._in_flight[process, interval, bundle.number, bundle.target] = bundle
        pending = truth.pending.get(channel, {})
        if pending and bundle.frontier > min(pending) and truth.exact(bundle.subscription):
            truth.fail(
                f"I14: interval {interval} advertises frontier {bundle.frontier} for producer {bundle.producer}, "
                f"but {min(pending)} is not consumed"
            )
        name = truth.computation.get(interval)
        if name is None or truth.graph.computations[name].settings.productions == "weak":
            return
        rows = truth.produced.get(channel, {})
        for sequence, *row in zip(bundle.sequences, bundle.keys, bundle.values, bundle.timestamps, strict=True):
            if rows.get(sequence) != tuple(row):
                truth.fail(f"I7: interval {interval} sends {sequence} of producer {bundle.producer}, not as committed")

    def saw_ack(self, interval: int, sender: int, number: int, process: int) -> None:
        """An ack leaves: what it acks is consumed durably (I2)."""
        truth, bundle = self._truth, self._in_flight.get((process, sender, number, interval))
        if bundle is None:
            truth.fail(f"I3: interval {interval} acks bundle {number} of {sender}, which was never sent to it")
        channel = (bundle.subscription, bundle.producer)
        known = truth.consumed.setdefault(channel, set())
        if not truth.exact(bundle.subscription):
            known.update(bundle.sequences)
            for sequence in bundle.sequences:
                truth.pending.get(channel, {}).pop(sequence, None)
            return
        lost = [sequence for sequence in bundle.sequences if sequence not in known]
        if lost:
            truth.fail(f"I2: interval {interval} acks {lost} of producer {bundle.producer}, not consumed durably")
