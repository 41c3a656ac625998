"""When what hooks did becomes durable: a choice for the whole pipeline.

Lives here: the two choices as a user writes them, and two more that only benchmarks import.  Never here: what they do
(`core.durability`).
"""

from __future__ import annotations

import msgspec

from millwheel.baselines import Baseline
from millwheel.errors import WiringError
from millwheel.limits import NO_EPOCH_US, SNAPSHOT_LEAST_MS


class Checkpoints(msgspec.Struct, frozen=True):
    """What hooks did with a bundle becomes durable by itself, within milliseconds; the default (paper 6.1.2)."""


class Snapshots(msgspec.Struct, frozen=True):
    """All that the pipeline did becomes durable, and visible, together: once every `every_ms` milliseconds.

    After a crash, the whole pipeline goes back to the last time.  Raises `WiringError` for an interval below 10 ms.

    >>> Snapshots(every_ms=500)
    Snapshots(every_ms=500)
    """

    every_ms: int = 1_000

    def __post_init__(self) -> None:
        if not isinstance(self.every_ms, int) or isinstance(self.every_ms, bool) or self.every_ms < SNAPSHOT_LEAST_MS:
            raise WiringError(
                f"Snapshots(every_ms={self.every_ms!r}): use a whole number of at least {SNAPSHOT_LEAST_MS}"
            )


class HaltingSnapshots(Snapshots, frozen=True):
    """For benchmarks only: all stops while a snapshot is written, as in Naiad."""


class Forgotten(msgspec.Struct, frozen=True):
    """For benchmarks only: nothing becomes durable, and a failure loses all."""


def baseline_of(durability: Checkpoints | Snapshots | Forgotten) -> Baseline:
    """Which worse way it is, if it is one."""
    if isinstance(durability, Forgotten):
        return Baseline.FORGETS
    return Baseline.HALTS if isinstance(durability, HaltingSnapshots) else Baseline.NONE


def snapshot_every_us(durability: Checkpoints | Snapshots | Forgotten) -> int:
    """How often an epoch begins, us; 0 for checkpoints."""
    if isinstance(durability, Forgotten):
        return NO_EPOCH_US
    if isinstance(durability, Snapshots):
        return durability.every_ms * 1_000
    if not isinstance(durability, Checkpoints):
        raise WiringError(f"durability={durability!r:.80}: use Checkpoints() or Snapshots(every_ms=...)")
    return 0
