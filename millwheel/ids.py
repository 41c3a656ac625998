"""Types of the numbers that name things: for a type checker they are different, and when the code runs they are ints.

Lives here: the types alone.  Never here: values, behaviour.  A number becomes an id once, where it enters: when the store
gives it out, when a message is decoded, or when its owner counts on.  A call costs about 50 ns, so loops over records take
columns that have the type already (`sequence_numbers`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NewType, cast

IntervalId = NewType("IntervalId", int)
"""Names an interval: a range of the keys of one computation, or a source partition."""

Sequencer = NewType("Sequencer", int)
"""Names one ownership of an interval.  A larger one fences all smaller ones."""

SubscriptionId = NewType("SubscriptionId", int)
"""Names a subscription of the pipeline."""

ProducerId = NewType("ProducerId", int)
"""Names what gave ids to records: the sequencer under which they were produced, or the number of a source partition."""

SequenceNumber = NewType("SequenceNumber", int)
"""The number of a record among those of one producer on one subscription; also a frontier, below which all are acked."""

Seq = NewType("Seq", int)
"""The number of a checkpoint within its interval."""


def sequence_numbers(numbers: Iterable[int]) -> list[SequenceNumber]:
    """A column of sequence numbers, at the cost of the list.

    >>> sequence_numbers(range(3, 5))
    [3, 4]
    """
    return cast("list[SequenceNumber]", list(numbers))
