"""When keys may expire, by an account of their own (I19).

Lives here: `Lifetimes`, told of every write to a key's state, and the checks of a checkpoint that drops keys.  Never here:
when the core believes that a key is due.  Invariants, for computations whose state expires:

* a key lives for the declared time after the last write to its state, counted from the newest of the input watermark and the
  event times of its invocation, and its stored expiry says so;
* a key with a timer, a hold or a quarantine does not expire, and the end of the input expires nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from millwheel.bundles import Checkpoint
from millwheel.model import EXPIRY_KIND, EXPIRY_TAG, MAX_TIME, MIN_TIME
from millwheel.testing.checks.truth import Truth


class Lifetimes:
    """The keys of all computations."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        specs = truth.graph.computations
        self._after = {name: spec.settings.expire_after for name, spec in specs.items() if spec.settings.expire_after}
        self._until: dict[str, dict[str, int]] = {name: {} for name in self._after}
        """Computation and key to the event time, us, up to which it lives."""
        self._passed: dict[str, int] = dict.fromkeys(self._after, MIN_TIME)
        """Computation to the latest input watermark before the end of time, us."""

    def persisted(self, name: str, value: int) -> None:
        """The input watermark that an owner of the computation knows is at most `value`."""
        if name in self._passed and value < MAX_TIME:
            self._passed[name] = max(value, self._passed[name])

    def names(self) -> list[str]:
        """Computations whose state expires."""
        return [*self._after]

    def drops(self, name: str, image: Checkpoint) -> None:
        """A checkpoint that drops keys is about to become durable."""
        durable, truth = self._truth.durable[name], self._truth
        for key in image.forgotten:
            if name not in self._after:
                truth.fail(f"I19: {key!r} of {name} expires, whose state is kept for ever", key)
            timers = [place for place in durable.timers.get(key, ()) if place[0] != EXPIRY_KIND]
            what = f"the timers {timers}" if timers else "a hold" if key in durable.holds else "a quarantine"
            if timers or key in durable.holds or durable.fifo.get(key):
                truth.fail(f"I19: {key!r} of {name} expires, and has {what}", key)
            until = self._until[name].pop(key, MIN_TIME)
            if until > self._passed[name]:
                truth.fail(f"I19: {key!r} of {name} expires at {self._passed[name]}, and lives until {until}", key)

    def wrote(self, name: str, lives: Mapping[str, int]) -> None:
        """A checkpoint is durable that wrote state of these keys, at these event times."""
        after, durable = self._after.get(name), self._truth.durable[name]
        if after is None:
            return
        probes = self._truth.kernel.probes
        for key, at in lives.items():
            before = self._until[name].get(key, MIN_TIME)
            until = self._until[name][key] = max(before, min(at + after, MAX_TIME - 1))
            probes["write extended a life"] += until > before > MIN_TIME
            expires = durable.timers.get(key, {}).get((EXPIRY_KIND, EXPIRY_TAG))
            if key in durable.state and (expires is None or expires < until):
                self._truth.fail(f"I19: {key!r} of {name} lives until {until}, and its expiry is at {expires}", key)
