"""Copies of bundles that come long after their records are durable, from a sender that does not know it was superseded.

Lives here: which ones.  Never here: their way (`process`).  Invariant: an echo holds nothing but what its receiver has
consumed durably, so that it must change nothing, whoever is the owner by now, and whether or not its producer may still send.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from typing import Final

import msgspec

from millwheel.bundles import Bundle
from millwheel.host.messages import Delivery, Message
from millwheel.host.worker import WorkerHost
from millwheel.testing.checks.truth import Truth
from millwheel.testing.checks.wire import ECHO

KEPT_BUNDLES: Final = 200
LOOKS: Final = 8


class Echoes:
    """Of all processes of a run; one comes every `every_us` of virtual time."""

    def __init__(self, truth: Truth, rng: random.Random, every_us: int) -> None:
        self.every_us = every_us
        self._truth = truth
        self._rng = rng
        self._first: list[Bundle] = []
        self._last: deque[Bundle] = deque(maxlen=KEPT_BUNDLES)

    def note(self, message: Message) -> None:
        """A message leaves."""
        if isinstance(message, Delivery) and message.bundle.sequences:
            kept = self._first if len(self._first) < KEPT_BUNDLES else self._last
            kept.append(copy.copy(message.bundle))

    def next(self, worker: WorkerHost) -> Delivery | None:
        """One for an interval of `worker`; None when none of those that were looked at is done."""
        for _ in range(LOOKS):
            kept = self._rng.choice((self._first, self._last))
            bundle = self._rng.choice(kept) if kept else None
            if bundle is None or not self._is_done(bundle):
                continue
            actor = worker.actors.all.get(bundle.target)
            if actor is None or actor.core.halted:
                continue
            row = worker.routes.rows[actor.interval]
            if any(key < row.low or (row.high is not None and key >= row.high) for key in bundle.keys):
                continue  # it was split since: whoever still sends to it by the old map hears that, and sends nothing
            retired = (bundle.subscription, bundle.producer) not in worker.routes.live
            self._truth.kernel.probes["late copy of a retired producer's bundle"] += retired
            self._truth.kernel.probes["late copy of a bundle"] += 1
            return Delivery(msgspec.structs.replace(bundle, number=ECHO), actor.sequencer, metered=False)
        return None

    def _is_done(self, bundle: Bundle) -> bool:
        known = self._truth.consumed.get((bundle.subscription, bundle.producer), set())
        return self._truth.exact(bundle.subscription) and known.issuperset(bundle.sequences)
