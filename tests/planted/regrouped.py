"""Bugs of a combiner of the library that comes to a store which has run without it, or goes from one."""

from __future__ import annotations

from typing import Any

from millwheel.library import aggregate, handed_back
from millwheel_storage.memory import handed_over, regrouped
from millwheel_storage.memory.tables import MemoryTables
from tests.planted import Patches, only

EXACT = "tests/integration/test_library_combiner.py::test_each_record_counts_once_wherever_the_run_before_ends"
SENT = (
    "tests/integration/test_library_combiner.py"
    "::test_what_shards_have_sent_and_nobody_has_taken_counts_when_the_combiner_goes"
)
IN_TIME = (
    "tests/integration/test_library_combiner.py"
    "::test_what_a_shard_has_had_in_time_is_in_time_although_the_watermark_has_passed_when_the_combiner_goes"
)
ALIKE = "tests/unit/storage/postgres/test_recalled.py"


@only(EXACT)
def state_of_shards_goes() -> Patches:
    """What shards of open windows have aggregated goes with the combiner of the library."""
    original = regrouped.recall

    def recall(contents: Any, it: Any) -> None:
        contents.folded.key_state.pop(it.parts, None)
        original(contents, it)

    return {(handed_over, "recall"): recall}


@only(SENT)
def what_shards_have_sent_goes() -> Patches:
    """What shards have sent, and the second step has not taken, goes with the combiner of the library."""
    return {(regrouped, "_untaken"): lambda tables, computation, merged, new: []}


@only(ALIKE)
def what_is_taken_is_handed_back() -> Patches:
    """What the second step has taken, and a shard has no ack of, is handed back to it."""
    return {(regrouped, "_is_taken"): lambda tables, interval, channel, sequence: False}


@only(EXACT)
def ids_of_shards_are_not_told() -> Patches:
    """An aggregation is not told what shards were delivered when its combiner goes."""
    original = MemoryTables.share_ids

    def share_ids(self: MemoryTables, subscription: Any, old: Any, new: Any) -> None:
        for interval in old:
            self.delivered.pop(interval, None)
        original(self, subscription, old, new)

    return {(MemoryTables, "share_ids"): share_ids}


@only(EXACT)
def records_in_quarantine_stay() -> Patches:
    """Records that wait in the quarantine of an aggregation stay with its second step when a combiner comes."""
    return {(regrouped, "_move_records"): lambda tables, computation, combiner, numbers: None}


@only(IN_TIME)
def it_is_late_by_now() -> Patches:
    """What is handed back is late if the watermark has passed the end of its window before the operator takes it over."""
    original = handed_back.take_back

    def take_back(operator: Any, windows: Any, context: Any, timer: Any) -> None:
        import msgspec

        original(operator, windows, context, msgspec.structs.replace(timer, timestamp=context.watermark))

    return {(aggregate, "take_back"): take_back}


@only(EXACT)
def a_shard_is_too_late() -> Patches:
    """What a shard has had in time is lost when the window is over, because its key was in quarantine meanwhile."""
    return {(aggregate.WindowedAggregate, "overdue"): lambda self, context, window, value, timestamp: None}


@only(ALIKE)
def it_begins_where_the_only_step_was() -> Patches:
    """The first step begins at the watermark of the aggregation, which has seen more."""

    def begin(contents: Any, computation: str, combiner: Any, handovers: Any) -> None:
        numbers = {contents.subscriptions[it.taken] for it in handovers}
        regrouped._move_records(contents.folded, computation, combiner, numbers)
        if computation in contents.watermark:
            contents.watermark.setdefault(combiner.parts, contents.watermark[computation])

    return {(handed_over, "begin_promised"): begin}
