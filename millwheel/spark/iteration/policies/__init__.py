"""The recovery policies: what the user chooses, and what each of them does in a run.

Three terms are those of Guo et al., 2020. A *blocking* checkpoint stands between two supersteps. A *tail* checkpoint is
written in the pass that produces a state, and a *head* checkpoint in the pass that reads it. *Optimistic* recovery is that of
Schelter et al., CIKM 2013. It writes nothing, and asks the user's function for consistent content in place of what was lost.
"""

from typing import TypeAlias

from millwheel.spark.iteration.policies.checkpointed import Blocking, Head, Tail
from millwheel.spark.iteration.policies.optimistic import Compensate, Loss, Optimistic, Repair
from millwheel.spark.iteration.policies.policy import PolicyRun, Restart

Recovery: TypeAlias = Restart | Blocking | Tail | Head | Optimistic

__all__ = [
    "Blocking",
    "Compensate",
    "Head",
    "Loss",
    "Optimistic",
    "PolicyRun",
    "Recovery",
    "Repair",
    "Restart",
    "Tail",
]
