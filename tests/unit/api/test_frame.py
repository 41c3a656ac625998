"""What hooks set under snapshots: it goes to the changes of the epoch at once, and what does not count leaves them."""

from __future__ import annotations

from typing import Any

import pytest

from millwheel import Context, JsonCoder, MapCell, Record, ValueCell, limits
from millwheel.core.keys.cache import StateCache
from millwheel.ids import Seq
from millwheel.work import Known
from tests.unit.api.hooks import computation_of, executor_of, out, part, work

CELLS = {"text": ValueCell(JsonCoder(str), ""), "map": MapCell(JsonCoder(int))}


def setting(self: Any, context: Context, record: Record[str]) -> None:
    """The record's text becomes the value; "bad" fails after that, "look" needs an entry, and "big" produces much."""
    text = record.value.split("=")[1]
    self.text.set(text)
    if text == "bad":
        raise ValueError
    if text == "look":
        self.map.get("e")
    if text == "big":
        context.produce(out, "x" * 900)


def epoch_of(**values: bytes) -> StateCache:
    cache = StateCache(10**6, by_epochs=True)
    for key, value in values.items():
        cache.insert(key, {("text", ""): value})
    return cache


def test_hooks_set_values_in_the_changes_of_the_epoch_and_see_them_in_later_invocations() -> None:
    cache, seen = epoch_of(a=b'"old"'), list[str]()

    def note(self: Any, context: Context, record: Record[str]) -> None:
        seen.append(self.text.get())
        self.text.set(record.value)

    executor = executor_of(computation_of(note, cells=CELLS))
    for text in ("a=1", "a=2"):
        done = executor.run(work(part((text, 1)), cache=cache))
        assert done.values == {}
        assert cache.write_all(done, Seq(1)) == []
    assert (seen, cache.values["text"], cache.changes) == (
        ["old", "a=1"],
        {"a": b'"old"'},
        {"text": {"a": b'"a=2"'}},
    )
    cache.cut(Seq(1))
    cache.touch({"a": 1})
    executor.run(work(part(("a=3", 1)), cache=cache))
    assert (seen[-1], cache.changes) == ("a=2", {"text": {"a": b'"a=3"'}}), (
        "an epoch that is cut does not change any more"
    )


def test_a_hook_that_raises_leaves_the_changes_of_earlier_invocations() -> None:
    cache = epoch_of()
    executor = executor_of(computation_of(setting, cells=CELLS))
    executor.run(work(part(("a=1", 1)), cache=cache))
    done = executor.run(work(part(("a=bad", 1), ("b=bad", 1), ("c=2", 1)), cache=cache))
    assert [entry.key for entry in done.quarantined] == ["a", "b"]
    assert cache.changes is not None
    assert cache.changes["text"] == {"a": b'"1"', "c": b'"2"'}


@pytest.mark.parametrize("waits", [False, True])
def test_an_invocation_that_is_put_back_leaves_the_changes_as_they_were(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OUTCOME_LIMIT_BYTES", 1_000)
    cache = epoch_of(a=b'"0"')
    executor = executor_of(computation_of(setting, cells=CELLS))
    executor.run(work(part(("a=1", 1)), cache=cache))
    before = {"a": b'"1"'}
    assert cache.changes is not None
    assert cache.changes["text"] == before
    rows = [("a=2", 1), ("b=3", 1), ("p=look" if waits else "c=big", 1), ("d=big", 1), ("p=big", 1), ("p=big", 1)]
    given = work(part(*rows), cache=cache)
    if waits:
        cache.insert("p", {}, more=True)
        cache.partial["p"] = Known(set(), set())
        assert executor.run(given).lacking == [("p", "map", "e")]
        assert cache.changes["text"] == {"a": b'"2"', "b": b'"3"', "d": b'"big"'}
        executor.run(work(part(("z=4", 1)), cache=cache))  # another interval of the computation
        before["z"] = b'"4"'
        cache.fill([("p", "map", "e")], [])
    assert executor.run(given).fits > 0
    assert cache.changes["text"] == before


def test_a_heavy_value_counts_once_however_often_its_hook_sets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CALL_LIMIT_BYTES", 100_000)
    cache = epoch_of()

    def often(self: Any, context: Context, record: Record[str]) -> None:
        for letter in "abc":
            self.text.set(letter * 40_000)

    executor = executor_of(computation_of(often, cells=CELLS))
    for _ in range(2):
        done = executor.run(work(part(("a=1", 1), ("a=2", 1)), cache=cache))
        assert (done.quarantined, done.written_bytes) == ([], 40_002 + limits.WRITE_OVERHEAD_BYTES)


def test_what_values_have_grown_by_is_weighed_by_a_sample() -> None:
    cache = epoch_of(**{f"k{n}": b'"old"' for n in range(640)})
    executor = executor_of(computation_of(setting, cells=CELLS))
    rows = [(f"k{n}=longer", 1) for n in range(640)]
    cache.write_all(executor.run(work(part(*rows), cache=cache)), Seq(1))
    assert cache.size_bytes - epoch_of(**{f"k{n}": b'"old"' for n in range(640)}).size_bytes == 640 * 3
    again = executor.run(work(part(*rows), cache=cache))
    assert again.grown_bytes == 0, "what is replaced counts"
    fresh = executor.run(work(part(*((f"n{n}=1", 1) for n in range(640))), cache=epoch_of()))
    assert fresh.grown_bytes == 640 * (3 + limits.SLOT_OVERHEAD_BYTES)
