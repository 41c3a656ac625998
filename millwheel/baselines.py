"""What snapshots are compared with in benchmarks: worse ways to be durable, which no user can choose.

Lives here: their names.  Never here: what they do (`core.durability`, `host.barriers`, `host.epoch_keeper`).
docs/adr/0040-baselines-of-snapshots.md has the reasons.
"""

from __future__ import annotations

from enum import Enum


class Baseline(Enum):
    """How epochs differ from those of snapshots."""

    NONE = "none"
    """In nothing."""
    HALTS = "halts"
    """All stops while an epoch is written, as in Naiad: sources from its begin, and each interval from its cut."""
    FORGETS = "forgets"
    """Nothing is written, so a failure loses all."""
