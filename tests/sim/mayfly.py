"""A computation whose keys come and go: beside a ledger, on its input, with nothing that comes of it.

Its state expires soon, and what its hooks do is drawn from each token's id: they write, hold, set timers and cancel them,
fail a few times and then no more, and in some invocations set a timer and do nothing else.  Nobody knows its end beforehand:
what must be true of it the simulator knows by itself (I8, I19), from the calls of its hooks.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable
from typing import Any

from millwheel import Computation, Context, JsonCoder, MapCell, Record, Table, Timer, ValueCell
from millwheel.testing.kit.scripted import Script

NAME = "mayfly"
KEYS = 10
SINK = Table("mayflies", {"key": "text", "at": "bigint"}, ("key",))
STEP_US = 30_000
FAILS = 15
REDRIVE_US = (40_000, 600_000)
"""How often somebody asks for the redrive of whatever is in quarantine."""
HOLDS = (8, 1)
OUTLASTING = (32, 4)
"""Rows from the first hold to the last end of one, and how many holds begin one after the other: a hold that begins and ends
in one read is seldom there when its key might expire."""
BARE = 4
"""Timers in a row that set the next one, and nothing else."""


def draw(rng: random.Random, poisoned: bool) -> dict[str, Any] | None:
    """The settings of a seed's mayfly; None: it has none."""
    chance, settings = rng.random(), _settings(rng)
    return settings if chance < (0.6 if poisoned else 0.3) else None


def _settings(rng: random.Random) -> dict[str, Any]:
    return {
        "expire_after": rng.choice([STEP_US, 100_000, 500_000]),
        "productions": rng.choice(["strong", "weak", "weak"]),
        "exactly_once": rng.random() < 0.6,
        "quarantine_holds": rng.random() < 0.5,
        "work_limit_records": rng.choice([1, 3, 10]),
        "cache_limit_bytes": rng.choice([1, 2_000, 10**8]),
    }


def key_of(token: Any) -> str:
    """Few keys, so that they come back, and now and then do not for a while.  One of them has all that fails, and is hot, so
    that it fails again as soon as it is released."""
    number = zlib.crc32(token.id.encode()) // 7
    if token.brief:
        return str(token.brief).split(" ")[1]
    return f"m{number % 3}" if _kind(token.id) == FAILS or number % 3 == 0 else f"m{number % KEYS}"


def pair(rng: random.Random, scripts: Iterable[Script], outlasting: bool) -> None:
    """Some keys have a hold without any timer: a later row of the same partition ends it, if `outlasting` after a life."""
    apart, holds = OUTLASTING if outlasting else HOLDS
    for script in scripts:
        script.together = apart
        for first in range(0, len(script.rows) - apart + 1, apart):
            for begin in range(first, first + holds):
                if rng.random() < 0.3:
                    key = f"h{rng.randrange(3)}{script.name}"
                    script.rows[begin][0].brief = f"hold {key}"
                    script.rows[begin + apart - holds][0].brief = f"release {key}"


def _kind(id_: str) -> int:
    """What the hook of a token does."""
    return zlib.crc32(f"mayfly {id_}".encode()) % 16


class Mayfly(Computation[Any]):
    """See the module."""

    count = ValueCell(JsonCoder(int), default=0)
    entries = MapCell(JsonCoder(int))

    def __init__(self, fails: Callable[[str, int], bool] | None) -> None:
        self._fails = fails
        """Whether a token fails that does so on all attempts, and on so many more; None: none fails."""

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        kind = _kind(record.value.id)
        at = record.timestamp
        if record.value.brief:
            self.count.set(self.count.get() + 1)
            if record.value.brief.startswith("hold"):
                context.hold(at)
            else:
                context.release_hold()
        elif kind < 5 or kind in (13, 14):
            if kind != 4:  # else it writes nothing but an entry
                self.count.set(self.count.get() + 1)
            self.entries.set(str(kind), self.count.get())
        elif kind == 5:  # a hold until a timer ends it
            context.hold(at)
            context.set_timer("release", at + 2 * STEP_US)
        elif kind == 6:
            context.set_timer("b0", at + STEP_US)
        elif kind == 7:
            context.set_timer("w0", context.wall_time + STEP_US, "wall")
        elif kind == 8:  # one that another one cancels
            context.set_timer("victim", at + 3 * STEP_US)
            context.set_timer("cancel", at + STEP_US)
        elif kind == 9:  # the same, of wall time, and in one hook
            context.set_timer("victim", context.wall_time + 3 * STEP_US, "wall")
            context.cancel_timer("victim")
        elif kind == 10:
            context.cancel_timer("victim")
            context.cancel_timer("victim", "wall")
            self.count.set(self.count.get() + 1)
        elif kind == 11:  # nothing of its state is left, and yet it was written
            self.count.clear()
            for name, _ in list(self.entries.items()):
                self.entries.delete(name)
        elif kind == 12:  # set and cancelled again, of one that may be set
            context.set_timer("victim", at + STEP_US)
            context.cancel_timer("victim")
        elif self._fails is not None:
            id_ = record.value.id
            self.count.set(self.count.get() + 1)
            if self._fails(id_, zlib.crc32(f"again {id_}".encode()) % 4 == 0):
                raise RuntimeError("not yet")

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        if timer.tag == "release":
            context.release_hold()
        elif timer.tag == "cancel":
            context.cancel_timer("victim")
        elif timer.tag[0] in "bw":
            step = int(timer.tag[1:]) + 1
            if step == BARE and timer.kind == "wall":
                context.upsert(SINK, {"key": context.key, "at": timer.timestamp})
            elif step < BARE:
                context.set_timer(f"{timer.tag[0]}{step}", timer.timestamp + STEP_US, timer.kind)
            else:
                self.count.set(self.count.get() + 1)
