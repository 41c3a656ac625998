"""The nemesis of a simulation decides what goes wrong, and when.

Lives here: which fault strikes at which step.  Never here: what a fault does, which is the process's part.  A step is an
effect of a core or a call to the store, and the answer is an `Action`.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Final, Literal, Protocol

import msgspec

Action = Literal["", "crash before", "crash after", "duplicate", "refused", "lost", "absent"]
"""`lost`: applied, but the reply never arrives.  `absent`: not applied, and nobody knows.  "": no fault."""

STORE_STEPS: Final = frozenset({"commit", "declare", "fold", "advance", "persist"})
EFFECT_STEPS: Final = frozenset({"send", "ack", "tell"})


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """The chance of each fault, per step unless stated otherwise.  All faults are drawn from the simulation's seed.

    >>> Faults(crash=0.01).crash
    0.01
    """

    crash: float = 0.0
    """The process dies right before or after an effect or a store call; another one takes over."""
    zombie: float = 0.0
    """Per effect: a new process takes over while this one goes on, frozen for a while (SIGSTOP, SIGCONT)."""
    refused: float = 0.0
    """A store call fails and is known not to be applied."""
    unknown: float = 0.0
    """The reply of a store call is lost; it was applied in half of the cases."""
    duplicate: float = 0.0
    """A message between hosts arrives twice."""
    slow: float = 0.0
    """A delivery or a store call takes up to two seconds."""
    clock_step: float = 0.0
    """Per effect: the process's wall clock jumps by up to ten seconds, forward or back."""
    cut: float = 0.0
    """Per effect: the channels between two hosts break for up to a second; what is on its way is lost."""
    restarts_limit: int = 12
    """Crashes and zombies of one run."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__[:-1]:
            chance = getattr(self, name)
            if not isinstance(chance, int | float) or not 0 <= chance <= 1:
                raise ValueError(f"Faults({name}={chance!r:.80}): give a chance, 0 to 1")


NO_FAULTS: Final = Faults()
ROUGH: Final = Faults(
    crash=0.003, zombie=0.001, refused=0.02, unknown=0.03, duplicate=0.05, slow=0.01, clock_step=0.001, cut=0.001
)
"""A mix of everything; the default of `simulate`."""


class Nemesis(Protocol):
    """Decides at every step."""

    struck: Counter[str]
    """Faults that took effect, by kind."""
    calm: bool
    """From now on no process freezes, no clock jumps and no channel is cut."""

    def strike(self, step: str) -> Action:
        """The fault at this step: the name of an effect or of a store call, in lower case."""
        ...

    def delay_us(self, step: str) -> int:
        """How long this step takes."""
        ...

    def rest_us(self, wanted_us: int) -> int:
        """How long a host pauses that wants to pause so long."""
        ...

    def zombie_us(self, weight: int = 1) -> int:
        """How long the process freezes now, 0 for not at all; `weight` times as likely as usual."""
        ...

    def clock_step_us(self) -> int:
        """How far the wall clock jumps now."""
        ...

    def cut_us(self) -> int:
        """How long channels are cut now, 0 for not at all."""
        ...

    def orphan(self) -> bool:
        """Whether a request that was on its way when its process died is still applied."""
        ...

    def heal(self) -> None:
        """No faults from now on."""
        ...


def below(rng: random.Random, limit: int) -> int:
    """What `rng.randrange(limit)` draws, in a third of the time: a simulation draws one for each of its events.

    >>> below(random.Random(4), 3_000) == random.Random(4).randrange(3_000)
    True
    """
    bits = limit.bit_length()
    drawn = rng.getrandbits(bits)
    while drawn >= limit:
        drawn = rng.getrandbits(bits)
    return drawn


class Seeded:
    """Faults drawn from a random generator."""

    def __init__(self, faults: Faults, rng: random.Random) -> None:
        self.faults = faults
        self.struck: Counter[str] = Counter()
        self.calm = not (faults.zombie or faults.clock_step or faults.cut)
        self._rng = rng
        self._restarts = 0

    def heal(self) -> None:
        """No faults from now on; delays stay."""
        self.faults, self.calm = NO_FAULTS, True

    def strike(self, step: str) -> Action:
        """Draw one fault, or none."""
        dice = self._rng.random()
        faults = self.faults
        if dice < faults.crash:
            return self._crash(dice * 2 < faults.crash)
        if step in EFFECT_STEPS:
            return self._note("duplicate", step) if dice < faults.crash + faults.duplicate else ""
        if step in ("read", "alarm", "report", "invoke", "submit"):
            return ""
        dice -= faults.crash
        if dice < faults.refused:
            return self._note("refused", step)
        if step != "restart" and dice < faults.refused + faults.unknown:  # the store itself tries that one again
            return self._note("lost" if self._rng.random() < 0.5 else "absent", step)
        return ""

    def _crash(self, before: bool) -> Action:
        if self._restarts >= self.faults.restarts_limit:
            return ""
        self._restarts += 1
        return self._note("crash before" if before else "crash after", "")

    def _note(self, action: Action, step: str) -> Action:
        self.struck[f"{action} {step}".strip()] += 1
        return action

    def delay_us(self, step: str) -> int:
        """Short, and at times very long."""
        rng = self._rng
        # Long enough for all that could overtake it.
        if step == "page" or (step == "lookup reply" and rng.random() < 0.25):
            return below(rng, 100_000)
        if step != "start" and self.faults.slow and rng.random() < self.faults.slow:
            return 10_000 + below(rng, 1_990_000)
        return below(rng, 3_000 if rng.random() < 0.9 else 60_000)

    def rest_us(self, wanted_us: int) -> int:
        """A little longer."""
        return wanted_us + self.delay_us("rest")

    def zombie_us(self, weight: int = 1) -> int:
        """Up to three seconds."""
        faults = self.faults
        if not faults.zombie or self._restarts >= faults.restarts_limit or self._rng.random() >= faults.zombie * weight:
            return 0
        self._restarts += 1
        self.struck["zombie"] += 1
        return self._rng.choice([1, 1_000, 200_000, 3_000_000])

    def clock_step_us(self) -> int:
        """Up to ten seconds either way."""
        if not self.faults.clock_step or self._rng.random() >= self.faults.clock_step:
            return 0
        self.struck["clock step"] += 1
        return self._rng.randrange(-10_000_000, 10_000_000)

    def cut_us(self) -> int:
        """Up to a second."""
        if not self.faults.cut or self._rng.random() >= self.faults.cut:
            return 0
        self.struck["cut"] += 1
        return self._rng.choice([1, 1_000, 50_000, 1_000_000])

    def orphan(self) -> bool:
        """Half of the requests on their way arrive."""
        return self._rng.random() < 0.5


class Planned:
    """One fault, at the n-th step of the kinds that matter; nothing else ever goes wrong."""

    def __init__(self, at: int = -1, action: Action = "") -> None:
        self.at = at
        self.action: Action = action
        self.calm = True
        self.steps: list[str] = []
        """The numbered steps, as far as the run has come."""
        self.struck: Counter[str] = Counter()

    def strike(self, step: str) -> Action:
        """The planned fault when its step has come."""
        if step not in STORE_STEPS and step not in EFFECT_STEPS:
            return ""
        self.steps.append(step)
        if len(self.steps) - 1 != self.at:
            return ""
        self.struck[self.action] += 1
        return self.action

    def delay_us(self, step: str) -> int:
        """Always the same; a page of timers takes longer than what could overtake it."""
        if step == "page":
            return 3_000
        return 200 if step in STORE_STEPS else 50

    def rest_us(self, wanted_us: int) -> int:
        """Just as long."""
        return wanted_us

    def zombie_us(self, weight: int = 1) -> int:
        """Never."""
        return 0

    def clock_step_us(self) -> int:
        """Never."""
        return 0

    def cut_us(self) -> int:
        """Never."""
        return 0

    def orphan(self) -> bool:
        """Never."""
        return False

    def heal(self) -> None:
        """The plan has one fault only."""
