"""When keys may expire, by an account of their own (I19).

Lives here: `Lifetimes`, told of every write to a key's state, and the checks of a checkpoint that drops keys.  Never here:
when the core believes that a key is due.  Invariants, for computations whose state expires:

* a key lives for the declared time after the last write to its state, counted from the newest of the input watermark and the
  event times of its invocation, and its stored expiry says so;
* a key with a timer, a hold or a quarantine does not expire, and the end of the input expires nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from millwheel.bundles import Checkpoint
from millwheel.model import EXPIRY_KIND, EXPIRY_TAG, MAX_TIME, MIN_TIME
from millwheel.testing.checks.accounts import Ran
from millwheel.testing.checks.truth import Durable, Truth


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

    def told(self, inputs: Mapping[str, int]) -> None:
        """A process has heard the input watermarks of computations, which need not be persisted under snapshots."""
        for name, value in inputs.items():
            self.persisted(name, value)

    def names(self) -> list[str]:
        """Computations whose state expires."""
        return [*self._after]

    def drops(self, name: str, image: Checkpoint) -> None:
        """A checkpoint that drops keys is about to become durable."""
        durable = self._truth.durable[name]
        for key in image.forgotten:
            self._may_go(name, key, durable)
            self._has_lived(name, key, self._until[name].pop(key, MIN_TIME), MAX_TIME)

    def epoch(self, name: str, before: Durable, turns: Sequence[Ran], expired: Iterable[str]) -> None:
        """An epoch is durable in which these invocations ran, and `expired` keys were dropped; `before` is of these keys.

        State that a hook did not see any more must have expired before it, and what is left at the end is what the last ones
        left, unless that has expired after them.
        """
        durable, truth = self._truth.durable[name], self._truth
        lives: dict[str, int] = {}
        for turn in turns:
            for key, at in turn.lives.items():
                lives[key] = max(at, lives.get(key, at))
        for key in expired:
            truth.kernel.probes["key expired"] += 1
            mine = [turn for turn in turns if key in turn.seen or key in turn.lives]
            if not mine:
                self._may_go(name, key, before)
            state, until = dict(before.state.get(key, {})), self._until.get(name, {}).pop(key, MIN_TIME)
            for turn in mine:
                if state and not turn.seen.get(key, True):
                    truth.kernel.probes["key expired within an epoch"] += 1
                    self._has_lived(name, key, until, turn.watermark)
                    state, until = {}, MIN_TIME
                for (of, *place), value in turn.writes.items():
                    if of == key:
                        _put(state, (place[0], place[1]), value)
                if key in turn.lives:
                    until = max(until, min(turn.lives[key] + self._after.get(name, 0), MAX_TIME - 1))
            left = durable.state.get(key, {})
            if left and left != state:
                truth.fail(f"I4: {key!r} of {name} has expired, and has {sorted(left)}, not {sorted(state)}", key)
            if state and not left:
                self._may_go(name, key, durable)
                self._has_lived(name, key, until, self._passed.get(name, MIN_TIME))
                lives.pop(key, None)
        self.wrote(name, lives)

    def _may_go(self, name: str, key: str, durable: Durable) -> None:
        """The key has nothing that keeps it."""
        timers = [place for place in durable.timers.get(key, ()) if place[0] != EXPIRY_KIND]
        what = f"the timers {timers}" if timers else "a hold" if key in durable.holds else "a quarantine"
        if name not in self._after:
            self._truth.fail(f"I19: {key!r} of {name} expires, whose state is kept for ever", key)
        if timers or key in durable.holds or durable.fifo.get(key):
            self._truth.fail(f"I19: {key!r} of {name} expires, and has {what}", key)

    def _has_lived(self, name: str, key: str, until: int, watermark: int) -> None:
        passed = watermark if watermark < MAX_TIME else self._passed[name]
        if until > passed:
            self._truth.fail(f"I19: {key!r} of {name} expires at {passed}, and lives until {until}", key)

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


def _put(state: dict[tuple[str, str], bytes], place: tuple[str, str], value: bytes | None) -> None:
    if value is None:
        state.pop(place, None)
    else:
        state[place] = value
