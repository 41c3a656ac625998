"""State cells against plain Python values."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from millwheel import (
    Computation,
    Context,
    JsonCoder,
    ListCell,
    MapCell,
    ProtobufCoder,
    Record,
    TextCoder,
    ValueCell,
    limits,
)
from millwheel.api.computation import cells_of
from millwheel.api.state import decoded_state
from millwheel.core.keys.cache import StateCache
from millwheel.errors import LimitError, WiringError
from millwheel.ids import Seq
from tests.unit.api.hooks import executor_of, part, work


class Keeper(Computation[str]):
    """Does what the test's script says, one step per record, and compares with a model after each."""

    value = ValueCell(JsonCoder(int), default=-1)
    items = ListCell(JsonCoder(int))
    map = MapCell(JsonCoder(int))

    def __init__(self, script: list[tuple[str, int]]) -> None:
        self.script = iter(script)
        self.model: tuple[list[int], list[int], dict[str, int]] = ([], [], {})

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        step, number = next(self.script)
        value, items, entries = self.model
        entry = f"e{number % 5}"
        match step:
            case "set":
                self.value.set(number)
                value[:] = [number]
            case "clear":
                self.value.clear()
                value.clear()
            case "append":
                self.items.append(number)
                items.append(number)
            case "empty":
                self.items.clear()
                items.clear()
            case "put":
                self.map.set(entry, number)
                entries[entry] = number
            case "delete":
                self.map.delete(entry)
                entries.pop(entry, None)
            case "wipe":
                self.map.clear()
                entries.clear()
        self.check()

    def check(self) -> None:
        value, items, entries = self.model
        assert self.value.get() == (value[0] if value else -1)
        assert (list(self.items), len(self.items)) == (items, len(items))
        assert (list(self.map.items()), len(self.map)) == (sorted(entries.items()), len(entries))
        assert [self.map.get(f"e{i}") for i in range(5)] == [entries.get(f"e{i}") for i in range(5)]


steps = st.tuples(st.sampled_from(["set", "clear", "append", "empty", "put", "delete", "wipe"]), st.integers(0, 99))


@given(st.lists(st.lists(steps, min_size=1, max_size=6), max_size=6), st.sampled_from([None, 1, 2, 9]))
def test_cells_are_plain_values_over_any_division_into_checkpoints_and_epochs(
    invocations: list[list[tuple[str, int]]], cut_every: int | None
) -> None:
    keeper = Keeper([step for script in invocations for step in script])
    executor = executor_of(lambda: keeper)
    cache = StateCache(0, by_epochs=cut_every is not None)
    cache.insert("k", {})
    for seq, script in enumerate(invocations, 1):
        cache.touch({"k": seq})
        done = executor.run(work(part(*(("k", 1) for _ in script)), cache=cache))
        assert done.quarantined == []
        cache.write_all(done, Seq(seq))
        if cut_every is not None and seq % cut_every == 0:
            cache.cut(Seq(seq))


def outcome_of(hook: Any) -> Any:
    class It(Computation[str]):
        value = ValueCell(JsonCoder(int), default=0)
        text = ValueCell(JsonCoder(str), default="")
        items = ListCell(JsonCoder(int))
        map = MapCell(JsonCoder(int))

        def ProcessRecord(self, context: Context, record: Record[str]) -> None:
            hook(self)

    return executor_of(It).run(work(part(("k", 1))))


def test_a_map_entry_that_is_not_there_has_the_default() -> None:
    got: list[int | None] = []
    outcome_of(lambda it: got.extend([it.map.get("a"), it.map.get("a", 3), it.map.set("a", 4), it.map.get("a", 3)]))
    assert got == [None, 3, None, 4]


def test_appending_never_rewrites_the_rest() -> None:
    done = outcome_of(lambda it: [it.items.append(i) for i in range(3)])
    assert [*done.entries["items"]["k"]] == ["0000000000000000", "0000000000000001", "0000000000000002"]
    assert done.values == {"items": {"k": b"3"}}


def test_clearing_a_map_deletes_what_is_there() -> None:
    done = outcome_of(lambda it: [it.map.set("a", 1), it.map.delete("b"), it.map.clear()])
    assert done.entries["map"]["k"] == {"a": None, "b": None}


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (ValueCell, ("get()", "set(value)", "clear()")),
        (ListCell, ("append(value)", "len", "clear()")),
        (
            MapCell,
            ("get(entry, default=None)", "get_many(entries)", "set(entry, value)", "delete(entry)", "items()", "len"),
        ),
    ],
)
def test_the_help_of_a_cell_names_what_a_hook_may_do_with_it(cell: type, words: tuple[str, ...]) -> None:
    assert all(f"`{word}`" in (cell.__doc__ or "") for word in words)


def test_reading_writes_nothing() -> None:
    done = outcome_of(lambda it: (it.value.get(), list(it.items), it.map.get("e")))
    assert (done.values, done.entries) == ({}, {})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda it: it.text.set("x" * limits.VALUE_LIMIT_BYTES), "cell 'text' of key 'k'"),
        (lambda it: it.map.set("", 1), "map entry ''"),
        (lambda it: it.map.set("x" * (limits.KEY_LIMIT_BYTES + 1), 1), "map entry 'xxx"),
        (lambda it: it.map.set("é" * (limits.KEY_LIMIT_BYTES // 2 + 1), 1), "map entry 'ééé"),
    ],
)
def test_limits_are_errors_that_name_the_cell(call: Any, words: str) -> None:
    raised: list[str] = []

    def hook(it: Any) -> None:
        with pytest.raises(LimitError) as caught:
            call(it)
        raised.append(str(caught.value))

    outcome_of(hook)
    assert words in raised[0]


def test_a_cell_outside_a_hook_says_so() -> None:
    with pytest.raises(WiringError, match="'value' can only be used inside"):
        Keeper([]).value.get()


def test_inherited_cells_count_and_may_be_replaced() -> None:
    class Child(Keeper):
        value = ValueCell(JsonCoder(int), default=5)
        more = ListCell(JsonCoder(str))

    assert set(cells_of(Child)) == {"value", "items", "map", "more"}
    assert cells_of(Child)["value"] is Child.value
    assert len({cell.fingerprint for cell in cells_of(Child).values()}) == 4


def test_a_default_that_a_hook_changes_is_nobody_else_s() -> None:
    class Collect(Computation[str]):
        found = ValueCell(JsonCoder(list[str]), default=[])
        at = ValueCell(ProtobufCoder(Timestamp), default=Timestamp(seconds=1))

        def ProcessRecord(self, context: Context, record: Record[str]) -> None:
            found, at = self.found.get(), self.at.get()
            found.append(record.value)
            at.seconds += 1
            self.found.set(found)
            self.at.set(at)

    done = executor_of(Collect).run(work(part(("a", 1), ("b", 2), ("a=2", 3))))
    assert done.quarantined == []
    assert done.values["found"] == {"a": b'["a","a=2"]', "b": b'["b"]'}
    assert {key: Timestamp.FromString(data or b"").seconds for key, data in done.values["at"].items()} == {
        "a": 3,
        "b": 2,
    }


def test_an_empty_value_is_a_value_and_an_entry_may_be_as_long_as_a_key() -> None:
    long = "e" * limits.KEY_LIMIT_BYTES

    class Empties(Computation[str]):
        texts = MapCell(TextCoder())

        def ProcessRecord(self, context: Context, record: Record[str]) -> None:
            self.texts.set("empty", "")
            self.texts.set(long, "x")
            assert self.texts.get_many(["empty", long, "other"]) == {"empty": "", long: "x"}
            assert (self.texts.get("empty"), [*self.texts.items()]) == ("", [(long, "x"), ("empty", "")])

    assert executor_of(Empties).run(work(part(("a", 1)))).quarantined == []


def test_stored_cells_are_shown_in_their_order_and_those_that_are_empty_are_not() -> None:
    declared = {"items": ListCell(TextCoder()), "map": MapCell(TextCoder()), "none": MapCell(TextCoder())}
    for name, cell in declared.items():
        cell.name = name
    stored = {("items", f"{place:016x}"): str(place).encode() for place in (11, 2, 1)}
    stored |= {("items", ""): b"3", ("map", "b"): b"1", ("map", "a"): b"2"}
    found = decoded_state(declared, stored)
    assert found == {"items": ["1", "2", "11"], "map": {"a": "2", "b": "1"}}
    assert [*found["map"]] == ["a", "b"]
