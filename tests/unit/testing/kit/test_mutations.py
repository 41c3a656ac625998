"""The test kit finds a hook that changes what it has read and does not set it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millwheel import Computation, JsonCoder, ListCell, MapCell, Pipeline, Stream, TextCoder, ValueCell, subscribe
from millwheel.testing import HookFailed, Stepper, simulate

texts = Stream("texts", TextCoder())

Act = Callable[[Any], None]


class Hoard(Computation[str]):
    act: Act
    value = ValueCell(JsonCoder(list[int]), default=[])
    entries = MapCell(JsonCoder(list[int]))
    listed = ListCell(JsonCoder(list[int]))

    def ProcessRecord(self, context: Any, record: Any) -> None:
        if record.value == "first":
            self.value.set([1])
            self.entries.set("e", [1])
            self.listed.append([1])
        else:
            type(self).act(self)

    def ProcessTimer(self, context: Any, timer: Any) -> None:
        type(self).act(self)


def hoarding(act: Act) -> Pipeline:
    pipeline = Pipeline("p")
    computation: Any = type("Hoard", (Hoard,), {"act": staticmethod(act)})
    pipeline.add(computation, [subscribe(texts, key=lambda _: "k")])
    return pipeline


def value_and_set(it: Any) -> None:
    changed = it.value.get()
    changed.append(2)
    it.value.set(changed)


def entry_and_set(it: Any) -> None:
    changed = it.entries.get("e", [])
    changed.append(2)
    it.entries.set("e", changed)


def only_read(it: Any) -> None:
    assert [it.value.get(), it.entries.get("e"), *it.listed] == [[1]] * 3


def cleared(it: Any) -> None:
    it.value.get().append(2)
    it.value.clear()


LOST: dict[str, Act] = {
    "cell 'value' of key 'k'": lambda it: it.value.get().append(2),
    "cell 'entries' entry 'e' of key 'k'": lambda it: it.entries.get("e").append(2),
    "cell 'entries' entry 'e' of": lambda it: it.entries.get_many(["e"])["e"].clear(),
    "cell 'entries' entry 'e'": lambda it: next(it.entries.items())[1].append(2),
    "cell 'listed' entry '0000000000000000' of key 'k'": lambda it: next(iter(it.listed)).append(2),
}

KEPT: dict[str, Act] = {
    "value set": value_and_set,
    "entry set": entry_and_set,
    "only read": only_read,
    "a copy": lambda it: [*it.value.get()].append(2),
    "a default of the caller's": lambda it: it.entries.get("other", []).append(2),
    "cleared": cleared,
}


@pytest.mark.parametrize("words", LOST)
def test_a_change_that_is_never_set_fails_the_test(words: str) -> None:
    stepper = Stepper(hoarding(LOST[words]))
    stepper.send(texts, "first", 1)
    with pytest.raises(HookFailed, match=rf"{words}.*changed after it was read, and never set"):
        stepper.send(texts, "second", 2)


def test_a_changed_default_is_found_too_and_under_faults() -> None:
    with pytest.raises(HookFailed, match="cell 'value' of key 'k'"):
        Stepper(hoarding(lambda it: it.value.get().append(1))).send(texts, "second", 1)
    with pytest.raises(HookFailed, match="cell 'value' of key 'k'"):
        simulate(hoarding(lambda it: it.value.get().append(1)), {"texts": [("first", 1), ("second", 2)]})


@pytest.mark.parametrize("name", KEPT)
def test_what_is_set_or_only_read_is_fine(name: str) -> None:
    stepper = Stepper(hoarding(KEPT[name]))
    stepper.send(texts, "first", 1)
    stepper.send(texts, "second", 2)
    stepper.send(texts, "second", 3)
