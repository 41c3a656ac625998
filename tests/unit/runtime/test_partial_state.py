"""Keys with more state than is read at once: hooks wait for what they ask for, and nobody can tell from the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millwheel import Computation, Context, JsonCoder, ListCell, MapCell, Record, Timer, ValueCell, limits
from millwheel.bundles import CellWrites, QuarantineEntry
from millwheel.core.keys.cache import StateCache
from millwheel.core.keys.eviction import NEVER
from millwheel.ids import ProducerId, Seq, SequenceNumber
from millwheel.runtime.executor import Executor
from millwheel.work import InvocationOutcome, Wanted, Work
from tests.unit.api.hooks import IN, OUT, computation_of, executor_of, out, part, work

Rows = dict[tuple[str, str, str], bytes]
"""The folded tables: (key, cell, entry) to bytes."""


class Machine:
    """A cache over folded tables, and an executor: what an interval does, without the interval."""

    def __init__(
        self, executor: Executor, rows: Rows | None = None, limit_bytes: int = 0, by_epochs: bool = False
    ) -> None:
        self.executor = executor
        self.cache = StateCache(limit_bytes, by_epochs)
        self.tables: Rows = rows or {}
        self.log: list[tuple[int, InvocationOutcome]] = []
        self.seq = 0
        self.asked: list[list[Wanted]] = []
        self.image: list[CellWrites] = []
        """Of an epoch that was cut and is not folded."""

    def load(self, *keys: str) -> None:
        for key in self.cache.missing(dict.fromkeys(keys)):
            cells = {slot[1:]: value for slot, value in sorted(self.tables.items()) if slot[0] == key}
            first = dict([*cells.items()][: limits.STATE_PAGE_SLOTS + 1])
            self.cache.insert(key, first, len(cells) > limits.STATE_PAGE_SLOTS)
        self.cache.touch(dict.fromkeys(keys, self.cache.invocation))

    def go(self, given: Work) -> InvocationOutcome:
        """An invocation to its end."""
        done = self.executor.run(given)
        while done.lacking:
            assert len(self.asked) < 1_000, "it asks for ever"
            self.asked.append(done.lacking)
            found = [
                (*slot, value)
                for slot, value in self.tables.items()
                if any(slot[:2] == want[:2] and want[2] in (None, slot[2]) for want in done.lacking)
            ]
            self.cache.fill(done.lacking, found)
            done = self.executor.run(given)
        self.seq += 1
        self.cache.write_all(done, Seq(self.seq))
        self.log.append((self.seq, done))
        return done

    def fold(self, lag: int) -> None:
        """All but the last `lag` checkpoints.  With epochs all when it is 0, and 1 only cuts.  Then too much is in memory."""
        upto = self.seq - lag
        if self.cache.changes is not None:
            upto = 0 if lag else self.seq
            if lag == 0 or (lag == 1 and not self.image):
                self.image += self.cache.cut(Seq(self.seq))
            for writes in self.image if upto else []:
                places = [(key, writes.cell, "") for key in writes.keys]
                self._put(dict(zip(places, writes.values, strict=True)))
            self.image = [] if upto else self.image
        while self.log and self.log[0][0] <= upto:
            _, done = self.log.pop(0)
            for cell, values in done.values.items():
                self._put({(key, cell, ""): value for key, value in values.items()})
            for cell, by_key in done.entries.items():
                self._put({(key, cell, entry): v for key, values in by_key.items() for entry, v in values.items()})
        if upto:
            self.cache.folded(Seq(upto))
        self.cache.trim((), lambda keys: [NEVER] * len(keys))

    def _put(self, written: dict[tuple[str, str, str], bytes | None]) -> None:
        for slot, value in written.items():
            if value is None:
                self.tables.pop(slot, None)
            else:
                self.tables[slot] = value


class Keeper(Computation[str]):
    """Does what a record says, "key=step number place", and compares with the model at that place."""

    value = ValueCell(JsonCoder(int), default=-1)
    items = ListCell(JsonCoder(int))
    map = MapCell(JsonCoder(int))

    def __init__(self, models: list[tuple[int, list[int], dict[str, int]]]) -> None:
        self.models = models

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        step, number, place = record.value.split("=")[1].split()
        value, items, entries = self.models[int(place)]
        n, entry = int(number), f"e{number}"
        match step:
            case "set":
                self.value.set(n)
            case "clear":
                self.value.clear()
            case "append":
                self.items.append(n)
            case "empty":
                self.items.clear()
            case "put":
                self.map.set(entry, n)
            case "delete":
                self.map.delete(entry)
            case "look":
                assert (self.value.get(), len(self.items), self.map.get(entry)) == (
                    value,
                    len(items),
                    entries.get(entry),
                )
            case "list":
                assert [*self.items] == items
            case "many":
                assert self.map.get_many(f"e{i}" for i in range(10)) == entries
            case "map":
                assert ([*self.map.items()], len(self.map)) == (sorted(entries.items()), len(entries))


def applied(model: tuple[int, list[int], dict[str, int]], step: str, n: int) -> tuple[int, list[int], dict[str, int]]:
    value, items, entries = model[0], [*model[1]], dict(model[2])
    match step:
        case "set":
            value = n
        case "clear":
            value = -1
        case "append":
            items.append(n)
        case "empty":
            items.clear()
        case "put":
            entries[f"e{n}"] = n
        case "delete":
            entries.pop(f"e{n}", None)
    return value, items, entries


STEPS = [
    "set",
    "clear",
    "append",
    "append",
    "empty",
    "put",
    "put",
    "put",
    "delete",
    "look",
    "look",
    "list",
    "many",
    "map",
]
scripts = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 9), st.sampled_from("ab")), min_size=1, max_size=8)


@given(st.lists(st.tuples(scripts, st.integers(0, 3)), max_size=10), st.sampled_from([0, 300, 10_000]), st.booleans())
def test_state_in_part_is_the_state(invocations: list[tuple[Any, int]], limit_bytes: int, by_epochs: bool) -> None:
    models: list[tuple[int, list[int], dict[str, int]]] = []
    newest: dict[str, tuple[int, list[int], dict[str, int]]] = {"a": (-1, [], {}), "b": (-1, [], {})}
    machine = Machine(executor_of(lambda: Keeper(models)), limit_bytes=limit_bytes, by_epochs=by_epochs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "STATE_PAGE_SLOTS", 2)
        patch.setattr(limits, "ADOPTED_AT_CUT", 0)
        patch.setattr(limits, "ADOPTED_PER_KEY", 0)
        for script, lag in invocations:
            rows = []
            for step, number, key in script:
                newest[key] = applied(newest[key], step, number)
                rows.append((f"{key}={step} {number} {len(models)}", 1))
                models.append(newest[key])
            machine.load(*(key for _, _, key in script))
            done = machine.go(work(part(*rows), cache=machine.cache))
            assert [entry.error for entry in done.quarantined] == []
            assert done.processed == len(rows)
            machine.fold(lag)
            if not (machine.cache.changed or machine.image):  # their size is an estimate
                assert machine.cache.size_bytes == exact_size(machine.cache)


def exact_size(cache: StateCache) -> int:
    """What the sizes must add up to: as if every key had just been loaded, and asked for what it has not."""
    twin = StateCache(0)
    for key in cache.last_read:
        known = cache.partial.get(key)
        twin.insert(key, cache.cells(key), known is not None)
        twin.fill([(key, *slot) for slot in known.absent] if known else [], [])
    lost = sum(1 for key, known in cache.partial.items() for slot in known.absent if slot in cache.cells(key))
    return twin.size_bytes + 64 * lost


BIG: Rows = {("a", "map", f"e{i}"): b"%d" % i for i in range(9)}


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STATE_PAGE_SLOTS", 2)


CELLS = {"value": ValueCell(JsonCoder(int), 0), "items": ListCell(JsonCoder(int)), "map": MapCell(JsonCoder(int))}


def machine_of(hook: Any, rows: Rows = BIG, **settings: Any) -> Machine:
    machine = Machine(executor_of(computation_of(hook, hook, CELLS), **settings), dict(rows))
    machine.load("a", "b")
    return machine


def produced(done: InvocationOutcome) -> list[str]:
    return [value.decode() for value in done.produced[OUT].values]


def test_only_what_is_asked_for_is_read_and_others_do_not_wait_for_it() -> None:
    ran: list[str] = []

    def hook(it: Any, context: Context, record: Record[str]) -> None:
        ran.append(record.value)
        it.map.set("new", 1)
        context.produce(out, f"{record.value} {it.map.get('e7')}")

    machine = machine_of(hook)
    done = machine.go(work(part(("a=1", 1), ("b=1", 1), ("a=2", 1)), cache=machine.cache))
    assert machine.asked == [[("a", "map", "e7")]]
    assert ran == ["a=1", "b=1", "a=1", "a=2"]
    assert produced(done) == ["b=1 None", "a=1 7", "a=2 7"]
    assert done.entries == {"map": {"a": {"new": b"1"}, "b": {"new": b"1"}}}


def test_a_key_goes_on_in_order_across_parts_and_its_late_records_count_once() -> None:
    def hook(it: Any, context: Context, record: Record[str]) -> None:
        it.map.get(f"e{record.value[-1]}")
        it.items.append(1)
        context.produce(out, f"{record.value} {len(it.items)}")

    machine = machine_of(hook)
    given = work(part(("a=5", 1), ("a=1", 9)), part(("a=7", 1), ("b=1", 1)), cache=machine.cache, watermark=5)
    done = machine.go(given)
    assert produced(done) == ["b=1 1", "a=5 1", "a=1 2", "a=7 3"]
    assert (done.processed, done.late) == (4, 3)
    assert [len(wanted) for wanted in machine.asked] == [1, 1, 1]


def test_appending_to_a_long_list_reads_nothing_of_it() -> None:
    rows = {("a", "items", f"{i:016x}"): b"%d" % i for i in range(9)} | {("a", "items", ""): b"9"}

    def hook(it: Any, context: Context, record: Record[str]) -> None:
        it.items.append(len(it.items))

    machine = machine_of(hook, rows)
    done = machine.go(work(part(("a", 1)), cache=machine.cache))
    assert machine.asked == []
    assert done.entries == {"items": {"a": {f"{9:016x}": b"9"}}}


@pytest.mark.parametrize("how", ["let it pass", "swallow", "raise another"])
def test_no_except_clause_of_a_hook_goes_on_without_its_state(how: str) -> None:
    def hook(it: Any, context: Context, record: Record[str]) -> None:
        found: Any = None
        try:
            found = it.map.get("e8")
        except BaseException as error:
            match how:
                case "raise another":
                    raise RuntimeError("because of that") from error
                case "let it pass":
                    raise
        context.produce(out, str(found))

    machine = machine_of(hook, hook_attempts=1)
    done = machine.go(work(part(("b", 1), ("a", 1), ("c", 1)), cache=machine.cache))
    assert (produced(done), done.quarantined) == (["None", "None", "8"], [])


def test_many_entries_are_waited_for_once() -> None:
    def hook(it: Any, context: Context, record: Record[str]) -> None:
        it.map.set("e5", 55)
        it.map.delete("e6")
        context.produce(out, str(it.map.get_many(f"e{i}" for i in range(4, 12))))

    machine = machine_of(hook)
    done = machine.go(work(part(("a", 1)), cache=machine.cache))
    assert produced(done) == ["{'e4': 4, 'e5': 55, 'e7': 7, 'e8': 8}"]
    assert machine.asked == [[("a", "map", f"e{i}") for i in (4, 7, 8, 9, 10, 11)]]


def test_a_record_that_fails_after_it_has_waited_closes_its_key() -> None:
    tried: list[str] = []

    def hook(it: Any, context: Context, record: Record[str]) -> None:
        tried.append(record.value)
        if it.map.get("e8") and record.value == "a=bad":
            raise RuntimeError("no")

    machine = machine_of(hook, hook_attempts=2)
    done = machine.go(work(part(("a=bad", 1), ("a=2", 1), ("b=1", 1)), cache=machine.cache))
    assert [(entry.value, "RuntimeError: no" in entry.error) for entry in done.quarantined] == [
        (b"a=bad", True), (b"a=2", False),
    ]  # fmt: skip
    assert tried == ["a=bad", "b=1", "a=bad", "a=bad"]


def test_a_retry_may_wait_too() -> None:
    tried: list[str] = []

    def hook(it: Any, context: Context, record: Record[str]) -> None:
        tried.append(record.value)
        if tried.count(record.value) == 1:
            raise RuntimeError("once")
        it.map.get("e8")

    machine = machine_of(hook)
    done = machine.go(work(part(("a=1", 1), ("a=2", 1)), cache=machine.cache))
    assert (done.quarantined, tried) == ([], ["a=1", "a=1", "a=1", "a=2", "a=2"])


def test_timers_wait_in_order_and_see_what_earlier_ones_did() -> None:
    fired: list[tuple[str, str]] = []

    def hook(it: Any, context: Context, timer: Timer) -> None:
        it.map.get("e8")
        fired.append((timer.key, timer.tag))
        if timer.tag == "first":
            context.cancel_timer("cancelled")

    machine = machine_of(hook)
    timers = [Timer("a", "first", 5), Timer("a", "cancelled", 6), Timer("b", "t", 7), Timer("a", "last", 8)]
    done = machine.go(work(timers=timers, cache=machine.cache))
    assert fired == [("b", "t"), ("a", "first"), ("a", "last")]
    assert done.timers == {"a": {("watermark", "cancelled"): None}}


TAGS = "pqrstu"
timer_scripts = st.lists(
    st.tuples(
        st.booleans(),
        st.lists(st.tuples(st.integers(1, len(TAGS)), st.one_of(st.none(), st.integers(0, 9))), max_size=2),
    ),
    min_size=len(TAGS), max_size=len(TAGS),
)  # fmt: skip
"""By place of the tag: whether the hook asks for state, and which later tags it sets (to a time after its own) or cancels."""


@given(
    timer_scripts,
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(TAGS), st.integers(1, 20)), min_size=1, max_size=6),
)
@example(
    script=[(False, [(2, 2)]), (True, []), *[(False, list[tuple[int, int | None]]())] * 4],
    listed=[("a", "p", 4), ("a", "q", 5), ("a", "s", 8)],
)
def test_whether_hooks_wait_for_state_changes_nothing_about_which_timers_of_a_key_fire_and_in_which_order(
    script: list[tuple[bool, list[tuple[int, int | None]]]], listed: list[tuple[str, str, int]]
) -> None:
    timers = {(key, tag): Timer(key, tag, at) for key, tag, at in listed}
    due = sorted(timers.values(), key=lambda timer: (timer.timestamp, timer.key, timer.tag))

    def fired_by_key(rows: Rows) -> dict[str, list[tuple[str, int]]]:
        fired: dict[str, list[tuple[str, int]]] = {}

        def hook(it: Any, context: Context, timer: Timer) -> None:
            place = TAGS.index(timer.tag)
            waits, changes = script[place]
            if waits:
                it.map.get(f"e{8 - place}")  # the first ones are in memory
            for step, after in changes:
                if place + step < len(TAGS):
                    if after is None:
                        context.cancel_timer(TAGS[place + step])
                    else:
                        context.set_timer(TAGS[place + step], timer.timestamp + after)
            fired.setdefault(timer.key, []).append((timer.tag, timer.timestamp))

        machine = machine_of(hook, rows)
        asked = work(timers=[*due], cache=machine.cache, watermark=100)
        asked.chain, asked.reach = 100, {"watermark": (101, ("", "")), "wall": (101, ("", ""))}
        done = machine.go(asked)
        assert not done.quarantined
        assert not [at for changes in done.timers.values() for at in changes.values() if at is not None]
        return fired

    in_part: Rows = {(key, "map", f"e{i}"): b"1" for key in "ab" for i in range(9)}
    assert fired_by_key(in_part) == fired_by_key({}), "without rows, all is in memory"


def test_a_redrive_waits_where_it_is() -> None:
    ran: list[str] = []

    def hook(it: Any, context: Context, record: Record[str]) -> None:
        it.map.get(f"e{record.value[-1]}")
        ran.append(record.value)

    entries = [QuarantineEntry("a", IN, ProducerId(5), SequenceNumber(i), f"a={i}".encode(), i) for i in (1, 7, 8)]
    machine = machine_of(hook)
    done = machine.go(work(redrive=entries, cache=machine.cache))
    assert (ran, done.redriven) == (["a=1", "a=7", "a=8"], {"a": 3})


def test_intervals_that_share_an_executor_do_not_mix() -> None:
    """One waits for state while the other runs."""

    def hook(it: Any, context: Context, record: Record[str]) -> None:
        it.value.set(it.value.get() + 1)
        context.produce(out, f"{record.value} {it.value.get()} {it.map.get('e8')}")

    machine = machine_of(hook)
    other = Machine(machine.executor)
    other.load("c")
    first = work(part(("b=1", 1), ("a=1", 1)), cache=machine.cache)
    assert machine.executor.run(first).lacking
    assert produced(other.go(work(part(("c=1", 1)), cache=other.cache))) == ["c=1 1 None"]
    machine.cache.fill([("a", "map", "e8"), ("a", "value", "")], [("a", "map", "e8", b"8")])
    done = machine.executor.run(first)
    assert (done.lacking, produced(done)) == ([], ["b=1 1 None", "a=1 1 8"])
    assert done.values == {"value": {"b": b"1", "a": b"1"}}


def grown(steps: Callable[[int], tuple[str, int]]) -> Machine:
    """A hot key: one of its checkpoints is never folded yet."""
    models = [(-1, list[int](), dict[str, int]())] * 200
    machine = Machine(executor_of(lambda: Keeper(models)), limit_bytes=1)
    machine.load("a")
    for i in range(200):
        step, number = steps(i)
        machine.go(work(part((f"a={step} {number} 0", 1)), cache=machine.cache))
        machine.fold(1)
    return machine


def test_a_hot_key_does_not_keep_all_that_was_ever_written() -> None:
    machine = grown(lambda i: ("append", i))
    assert len(machine.tables) > 190
    assert machine.cache.size_bytes < 2_000
    assert machine.asked == []
    machine = grown(lambda i: ("put" if i % 2 else "delete", i // 2))
    assert machine.cache.size_bytes < 2_000
