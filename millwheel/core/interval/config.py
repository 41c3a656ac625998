"""What the core of an interval is told when it begins.  Lives here: the settings.  Never here: what follows from them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from millwheel.baselines import Baseline
from millwheel.graph import Settings
from millwheel.ids import IntervalId, Sequencer, SubscriptionId
from millwheel.intervals import Ranges
from millwheel.model import MIN_TIME


class Config(msgspec.Struct, frozen=True):
    """What an interval is told when it is assigned."""

    interval: IntervalId
    sequencer: Sequencer
    computation: str
    shape: str
    settings: Settings
    routes: Mapping[SubscriptionId, Ranges]
    """Subscriptions of the pipeline, and their receivers' interval maps."""
    low: str = ""
    high: str | None = None
    outputs: Collection[SubscriptionId] | None = None
    """Subscriptions to which this version of the computation may produce; None: all."""
    slacks: Mapping[SubscriptionId, int] = {}
    """Subscriptions on which outside clients choose record ids, and how long these are remembered, us."""
    back: Collection[SubscriptionId] = ()
    """Subscriptions to which it produces on back edges of its loop, and those on which it receives on back edges."""
    loop: str = ""
    """The loop that the computation is in, if any."""
    crowds: Mapping[SubscriptionId, int] = {}
    """By subscription: how many intervals send to each of its receivers."""
    promised: int = MIN_TIME
    """The floor of the loop may have come so far, us."""
    label: int | None = None
    """It becomes durable by epochs, and this is the last one that is declared; None: by its log."""
    baseline: Baseline = Baseline.NONE
    gathers: bool = True
    """What is little waits for the commit of a little, and then runs together."""
