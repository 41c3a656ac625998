"""How old a production may be, and what a context hands on to the one that follows it."""

from __future__ import annotations

from typing import Any

import pytest

from millwheel import Context, Record, TextCoder
from millwheel.api.context import declared_tables, succeeded
from millwheel.api.frame import Frame
from millwheel.api.producer import Output
from millwheel.errors import LateCall
from tests.unit.api.hooks import OUT, computation_of, executor_of, out, part, table, work


@pytest.mark.parametrize(
    ("hold", "timestamp", "may"),
    [
        (None, 50, True), (None, 49, False), (80, 50, True), (80, 49, False), (50, 50, True), (20, 20, True), (20, 19, False),
        (20, 60, True),
    ],
)  # fmt: skip
def test_a_production_is_as_old_as_its_cause_or_an_earlier_hold(hold: int | None, timestamp: int, may: bool) -> None:
    def produces(self: Any, context: Context, record: Record[str]) -> None:
        context.produce(out, "x", timestamp)

    holds = {} if hold is None else {"a": hold}
    done = executor_of(computation_of(produces), hook_attempts=1).run(work(part(("a=1", 50)), holds=holds))
    assert [columns.timestamps for columns in done.produced.values()] == ([[timestamp]] if may else [])
    assert ["is older than its cause" in entry.error for entry in done.quarantined] == ([] if may else [True])


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("looped", [False, True])
def test_the_context_that_follows_knows_what_the_one_before_knew(strict: bool, looped: bool) -> None:
    outputs = {"out": Output(TextCoder().encode, ((OUT, str),))}
    tables, frame = declared_tables({"rows": table}), Frame({}, "it")
    before = Context(frame, outputs, tables, strict, looped, "it")
    after = succeeded(before)
    assert (after._outputs, after._tables, after._frame) == (outputs, tables, frame)
    assert (after._strict, after._looped, after._computation) == (strict, looped, "it")
    with pytest.raises(LateCall, match=r"computation 'it': context\.produce "):
        before.produce(out, "x")
