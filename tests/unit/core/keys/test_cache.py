"""The state cache: what is dirty stays, what is clean may go, sizes add up."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millwheel import limits
from millwheel.bundles import StateWrites
from millwheel.core.keys.cache import StateCache
from millwheel.core.keys.eviction import NEVER
from millwheel.ids import Seq
from millwheel.limits import ENTRY_OVERHEAD_BYTES, EVICTION_SAMPLE_KEYS, SLOT_OVERHEAD_BYTES
from millwheel.work import InvocationOutcome, Slot, Wanted


@pytest.fixture(autouse=True, scope="module")
def large() -> Iterator[None]:
    """A cut merges nothing, as with many keys in memory."""
    with patch.object(limits, "ADOPTED_AT_CUT", 0):
        yield


def wrote(key: str, value: bytes | None) -> InvocationOutcome:
    return InvocationOutcome({"c": {key: value}})


def never(keys: Sequence[str]) -> list[float]:
    """No key has a timer."""
    return [NEVER] * len(keys)


def cache_of(**cells: bytes) -> StateCache:
    cache = StateCache(10_000)
    for key, value in cells.items():
        cache.insert(key, {("c", ""): value})
    return cache


def exact_size(cache: StateCache) -> int:
    """What the sizes must add up to: as if every key had just been loaded."""
    twin = StateCache(0)
    for key in cache.last_read:
        twin.insert(key, cache.cells(key))
    return twin.size_bytes


def test_only_what_is_not_here_must_be_loaded() -> None:
    cache = cache_of(a=b"1")
    assert cache.missing({"a": None, "b": None}) == ["b"]
    assert cache.missing({"a": None}) == []
    assert cache.values == {"c": {"a": b"1"}}


@pytest.mark.parametrize("limit_bytes", [0, 10_000], ids=["full", "with room"])
def test_keys_are_noted_as_read_when_all_are_here_and_none_that_is_not(limit_bytes: int) -> None:
    cache = cache_of(a=b"1", b=b"2")
    cache.limit_bytes = limit_bytes
    for number, new in enumerate(("c", "d", "", "e", "", ""), 1):
        wanted = dict.fromkeys(("a", *new), number)
        missing = cache.read(wanted)
        assert missing == [*new]
        assert cache.last_read.keys() == {*"abcde"[: len(cache.last_read)]}, "what is missing is not here yet"
        if missing:
            cache.insert(new, {})
            cache.touch(wanted)
        assert {cache.last_read[key] for key in wanted} == {number}
    assert cache.last_read["b"] == 0
    assert ("a" in cache._before) == (limit_bytes == 0), (
        "how long ago it was read is noted where keys may have to leave"
    )
    assert sorted(cache.read(dict.fromkeys("xayb", 9))) == ["x", "y"]


def test_what_the_last_epoch_has_of_keys_is_there_when_they_are_read() -> None:
    cache = epochs_of(a=b"1", b=b"2", c=b"3")
    cache.read({"a": 1})
    assert cache.changes is not None
    cache.changes["c"] = {"a": b"4", "b": b"5"}
    cache.cut(Seq(1))
    with patch.object(limits, "ADOPTED_PER_KEY", 0):
        assert cache.read({"a": 2}) == []
    assert cache.values["c"] == {"a": b"4", "b": b"2", "c": b"3"}


def test_writes_are_seen_at_once_and_logged_as_columns() -> None:
    cache = cache_of(a=b"1", b=b"2")
    entries: dict[str, dict[str, dict[str, bytes | None]]] = {"d": {"b": {"e": b"3", "f": None}}}
    log = cache.write_all(InvocationOutcome({"c": {"b": None, "a": b"4"}}, entries), Seq(1))
    assert (cache.cells("a"), cache.cells("b")) == ({("c", ""): b"4"}, {("d", "e"): b"3"})
    assert [*StateWrites(log).rows()] == [
        ("b", "c", "", None), ("a", "c", "", b"4"), ("b", "d", "e", b"3"), ("b", "d", "f", None),
    ]  # fmt: skip
    assert cache.size_bytes == exact_size(cache)


def epochs_of(**cells: bytes) -> StateCache:
    cache = StateCache(10_000, by_epochs=True)
    for key, value in cells.items():
        cache.insert(key, {("c", ""): value})
    return cache


def test_what_was_set_in_an_epoch_is_applied_and_logged_when_it_is_cut() -> None:
    cache = epochs_of(a=b"1", b=b"2")
    assert cache.changes is not None
    cache.changes.setdefault("c", {}).update({"b": None, "a": b"345"})
    grown = InvocationOutcome(grown_bytes=7)
    assert cache.write_all(grown, Seq(1)) == cache.write_all(grown, Seq(2)) == []
    assert (cache.values["c"], cache.changed, cache.unfolded) == ({"a": b"1", "b": b"2"}, 2, 0)
    assert cache.size_bytes == exact_size(cache) + 14, "until the cut it is an estimate"
    cut = cache.cut(Seq(2))
    assert [*StateWrites(cut).rows()] == [("b", "c", "", None), ("a", "c", "", b"345")]
    assert (cache.values["c"], cache.changed, cache.unfolded) == ({"a": b"1", "b": b"2"}, 0, 2)
    cache.touch({"a": 1})
    assert (cache.values["c"], cache.unfolded) == ({"a": b"345"}, 2)
    assert cache.cut(Seq(3)) == []
    assert cache.size_bytes == exact_size(cache)
    cache.folded(Seq(2))
    assert cache.unfolded == 0


def test_what_nobody_has_read_of_an_epoch_is_still_there_when_the_next_one_is_cut_before_its_fold() -> None:
    cache = epochs_of(a=b"1", b=b"2")
    for number, writes in enumerate(({"a": b"333"}, {"b": b"4"}), 1):
        assert cache.changes is not None
        cache.changes["c"] = dict[str, bytes | None](writes)
        cache.write_all(InvocationOutcome(grown_bytes=2), Seq(number))
        cache.cut(Seq(number))
    cache.read({"a": 3, "b": 3})
    assert cache.values["c"] == {"a": b"333", "b": b"4"}
    cache.folded(Seq(2))
    assert cache.size_bytes == exact_size(cache)


def test_what_the_last_epoch_has_of_a_forgotten_key_does_not_come_back() -> None:
    cache = epochs_of(a=b"1", b=b"2")
    assert cache.changes is not None
    cache.changes["c"] = {"a": b"3", "b": b"4"}
    cache.cut(Seq(1))
    cache.forget(["a"], Seq(2))
    cache.read({"a": 3, "b": 3})
    assert cache.values["c"] == {"b": b"4"}


def test_with_few_keys_in_memory_the_cut_merges_its_epoch() -> None:
    cache = epochs_of(a=b"1", b=b"2")
    for limit, merged in ((1, {"a": b"1", "b": b"2"}), (2, {"a": b"345"})):
        assert cache.changes is not None
        cache.changes["c"] = {"b": None, "a": b"345"}
        cache.write_all(InvocationOutcome(grown_bytes=9), Seq(limit))
        with patch.object(limits, "ADOPTED_AT_CUT", limit):
            assert [*StateWrites(cache.cut(Seq(limit))).rows()] == [("b", "c", "", None), ("a", "c", "", b"345")]
        assert cache.values["c"] == merged
    assert cache.size_bytes == exact_size(cache)


@patch.object(limits, "ADOPTED_AT_ONCE", 1)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["read", "set", "set", "set", "cut", "fold", "evict"]), st.sampled_from("abcd"),
            st.sampled_from("de"), st.one_of(st.none(), st.binary(max_size=20)), st.sampled_from((0, 0, 1)),
        ),
        max_size=60,
    )
)  # fmt: skip
def test_a_hook_finds_what_was_set_in_this_epoch_and_in_those_before(
    steps: list[tuple[str, str, str, bytes | None, int]],
) -> None:
    """A model: what is not in memory must be what is folded, and each image must have what was set in its epoch."""
    cache, truth = StateCache(0, by_epochs=True), dict[tuple[str, str], bytes]()
    epoch = dict[tuple[str, str], bytes | None]()
    folded = dict(truth)
    cut: tuple[Seq, dict[tuple[str, str], bytes]] | None = None
    for number, (step, key, cell, value, per_key) in enumerate(steps, 1):
        changes = cache.changes
        assert changes is not None
        if step in ("read", "set"):
            if cache.missing({key: number}):
                cache.insert(key, {(name, ""): data for (name, of), data in folded.items() if of == key})
            with patch.object(limits, "ADOPTED_PER_KEY", per_key):
                cache.touch({key: number})
            for name in "de":
                found = changes.get(name, {}).get(key, cache.values.get(name, {}).get(key))
                assert found == truth.get((name, key)) or changes.get(name, {}).get(key, b"") is None
        if step == "set":
            changes.setdefault(cell, {})[key] = epoch[cell, key] = value
            truth.pop((cell, key), None)
            truth |= {} if value is None else {(cell, key): value}
        elif step == "cut" and cut is None:
            rows = StateWrites(cache.cut(Seq(number))).rows()
            assert {(name, of): data for of, name, _, data in rows} == epoch
            cut, epoch = (Seq(number), dict(truth)), {}
        elif step == "fold" and cut is not None:
            upto, folded = cut
            cache.folded(upto)
            cut = None
        elif step == "evict":
            assert not {*cache.evict((), never)} & {key for _, key in epoch}
    cache.cut(Seq(len(steps) + 1))
    cache.folded(Seq(len(steps) + 1))
    assert cache.size_bytes == exact_size(cache)
    assert all(cache.values[cell].get(key) == value for (cell, key), value in truth.items() if key in cache.last_read)


def test_before_a_key_is_thinned_what_the_last_epoch_has_of_it_is_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STATE_PAGE_SLOTS", 1)
    cache = StateCache(0, by_epochs=True)
    cache.insert("a", {("d", "x"): b"1", ("d", "y"): b"1"})
    assert cache.changes is not None
    cache.changes["c"] = {"a": b"2"}
    cache.cut(Seq(1))
    cache.trim((), never)
    assert cache.values["c"] == {"a": b"2"}
    assert cache.partial["a"].absent == set(), "what is here is not known to be absent"


def test_without_epochs_nothing_is_cut() -> None:
    cache = cache_of(a=b"1")
    cache.write_all(wrote("a", b"3"), Seq(1))
    assert cache.cut(Seq(1)) == []
    assert (cache.changes, cache.changed) == (None, 0)


def test_a_key_that_was_set_since_the_last_cut_does_not_leave() -> None:
    cache = epochs_of(a=b"1", b=b"2")
    cache.forget(["d"], Seq(1))
    cache.limit_bytes = 0
    assert cache.changes is not None
    cache.changes["c"] = {"a": b"3", "d": b"4"}
    cache.folded(Seq(1))
    assert cache.trim((), never) == ["b"]
    cache.cut(Seq(2))
    assert cache.evict((), never) == []
    cache.folded(Seq(2))
    assert sorted(cache.evict((), never)) == ["a", "d"]


def test_what_was_set_for_a_key_before_it_is_forgotten_goes_with_it() -> None:
    cache = epochs_of(a=b"1", b=b"2")
    assert cache.changes is not None
    cache.changes["c"] = {"a": b"3", "b": b"4"}
    cache.forget(["a"], Seq(1))
    assert cache.changes == {"c": {"b": b"4"}}
    assert [*StateWrites(cache.cut(Seq(1))).rows()] == [("b", "c", "", b"4")]
    assert cache.cells("a") == {}


def test_a_dirty_key_is_never_evicted() -> None:
    cache = cache_of(a=b"1", b=b"2")
    cache.limit_bytes = 0
    cache.write_all(wrote("a", b"3"), Seq(1))
    cache.write_all(wrote("a", b"4"), Seq(2))
    assert cache.evict((), never) == ["b"]
    cache.folded(Seq(1))  # the write of checkpoint 2 is not in the tables yet
    assert cache.evict((), never) == []
    cache.folded(Seq(2))
    assert cache.evict({"a"}, never) == []  # it is about to be read
    assert cache.evict((), never) == ["a"]
    assert cache.size_bytes == 0


def test_a_forgotten_key_is_empty_and_dirty_until_folded() -> None:
    cache = cache_of(a=b"1")
    cache.limit_bytes = 0
    cache.forget(["a", "never loaded"], Seq(3))
    assert (cache.cells("a"), cache.cells("never loaded")) == ({}, {})
    assert cache.missing({"a": None, "never loaded": None}) == []
    assert cache.trim((), never) == []
    cache.folded(Seq(3))
    assert cache.trim((), never) == ["a", "never loaded"]


def test_an_empty_key_leaves_when_its_end_is_folded_unless_it_came_back() -> None:
    cache = cache_of(a=b"1", b=b"2", c=b"3", d=b"4")
    cache.forget(["a", "b", "d"], Seq(1))
    cache.write_all(wrote("b", b"3"), Seq(2))
    cache.mark({"d"}, Seq(2))  # a timer, say
    assert cache.trim((), never) == []
    cache.folded(Seq(1))
    assert cache.trim((), never) == ["a"]
    cache.folded(Seq(2))
    assert cache.trim((), never) == []
    assert [*cache.last_read] == ["b", "c", "d"]
    cache.limit_bytes = cache.size_bytes
    assert not cache.trim((), never)
    cache.limit_bytes -= 1
    assert cache.trim((), never)
    assert cache.size_bytes <= cache.limit_bytes * 7 // 8


def load_absent(cache: StateCache, *keys: str) -> None:
    cache.expect_absent(keys)
    cache.touch(dict.fromkeys(keys, cache.next_invocation()))


def test_a_key_that_was_absent_is_so_until_the_fold_of_the_checkpoint_that_it_was_loaded_for() -> None:
    cache = cache_of(a=b"1")
    load_absent(cache, "b", "c")
    assert cache.size_bytes == exact_size(cache)
    assert cache.missing({"b": None, "c": None}) == []
    assert cache.take_absent(Seq(1)) == set(), "no checkpoint has them"
    cache.write_all(wrote("b", b"2"), Seq(1))
    load_absent(cache, "d")
    cache.write_all(wrote("d", b"2"), Seq(2))
    cache.write_all(wrote("a", b"2"), Seq(3))
    assert cache.take_absent(Seq(1)) == {"b", "c"}
    assert cache.take_absent(Seq(1)) == set()
    cache.folded(Seq(1))
    cache.limit_bytes = 0
    assert cache.evict((), never) == ["b", "c"]
    assert cache.take_absent(Seq(3)) == {"d"}
    assert cache.take_absent(Seq(3)) == set()


def test_an_eviction_looks_at_a_bounded_number_of_keys_and_goes_on_behind_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVICTION_SCAN", EVICTION_SAMPLE_KEYS)
    cache = StateCache(0)
    for i in range(2 * EVICTION_SAMPLE_KEYS):
        cache.insert(f"{i:03}", {})
    cache.write_all(InvocationOutcome({"c": dict.fromkeys(list(cache.last_read)[:EVICTION_SAMPLE_KEYS], b"1")}), Seq(1))
    first = cache.evict((), never)
    assert len(first) == EVICTION_SAMPLE_KEYS // 2  # a sample is from all over, and half of these are dirty
    assert sorted([*first, *cache.evict((), never)]) == [
        f"{i:03}" for i in range(EVICTION_SAMPLE_KEYS, 2 * EVICTION_SAMPLE_KEYS)
    ]


def windows(count: int, room: int) -> StateCache:
    """A cache with `count` windows, read once each, one a turn, that is to have `room` for so many."""
    cache = StateCache(10**9)
    for i in range(count):
        cache.next_invocation()
        cache.insert(f"w{i:04}", {})
    cache.limit_bytes = ENTRY_OVERHEAD_BYTES * room * 8 // 7
    cache.by_records = False
    return cache


def evicted(cache: StateCache, due: Callable[[str], float]) -> set[str]:
    """What goes until there is room; `due` says in how many turns a timer is."""
    gone: set[str] = set()
    while cache.over_limit():
        gone |= set(cache.evict((), lambda keys: [*map(due, keys)]))
    return gone


def test_windows_that_fire_next_stay_and_those_that_fire_last_go() -> None:
    """The oldest are due next: a least-recently-used cache evicts every one of them, and keeps those that are due last."""
    cache = windows(1_000, 500)
    gone = evicted(cache, lambda key: float(key[1:]))
    assert len(gone & {f"w{i:04}" for i in range(200)}) == 0
    assert len(gone & {f"w{i:04}" for i in range(800, 1_000)}) > 150


def test_a_key_that_is_read_every_few_turns_stays_though_its_timer_moves_away_each_time() -> None:
    """Sessions: those that are read often are due last."""
    cache = windows(1_000, 500)
    cache.by_records = True
    hot = {f"w{i:04}": 0 for i in range(0, 1_000, 5)}
    cache.limit_bytes, limit = 1, cache.limit_bytes  # nearly full: the gaps are noted
    for _ in range(3):
        for _ in range(10):
            turn = cache.next_invocation()
        cache.touch(dict.fromkeys(hot, turn))
    cache.limit_bytes = limit
    assert not evicted(cache, lambda key: 9_999.0 if key in hot else 500.0) & hot.keys()


def test_a_key_whose_records_have_ended_is_read_when_its_timer_is_due() -> None:
    cache = windows(600, 500)
    cache.by_records = True
    read = {f"w{i:04}": 0 for i in random.Random(7).sample(range(600), 300)}
    cache.limit_bytes, limit = 1, cache.limit_bytes
    for _ in range(2):
        cache.touch(dict.fromkeys(read, cache.next_invocation()))
    for _ in range(100):
        cache.next_invocation()
    cache.limit_bytes = limit
    gone = evicted(cache, lambda key: 9_999.0 if key in read else 5.0)
    assert gone <= read.keys()


def test_where_records_bring_keys_back_what_was_read_longest_ago_goes_unless_it_is_due() -> None:
    cache = windows(1_000, 870)
    cache.by_records = True
    gone = evicted(cache, lambda key: 0.0 if key < "w0100" else 9_999.0)
    assert not {key for key in gone if key < "w0100" or key >= "w0700"}


def test_without_timers_what_was_read_longest_ago_goes() -> None:
    gone = evicted(windows(1_000, 500), lambda key: NEVER)
    assert not gone & {f"w{i:04}" for i in range(800, 1_000)}


SLOTS = st.sampled_from([("c", ""), ("c", ""), ("d", "e"), ("d", "f")])
STEPS = ["insert", "absent", "write", "forget", "fold", "evict", "trim"]


@given(
    st.lists(
        st.tuples(st.sampled_from(STEPS), st.sampled_from("abc"), SLOTS, st.one_of(st.none(), st.binary(max_size=20))),
        max_size=60,
    )
)
def test_sizes_add_up_and_nothing_unfolded_is_lost(steps: list[tuple[str, str, Slot, bytes | None]]) -> None:
    """A model of the store: what the cache dropped must be what the folded tables say."""
    cache, truth, folded = StateCache(300), dict[str, dict[Slot, bytes]](), dict[str, dict[Slot, bytes]]()
    for seq, (step, key, slot, value) in enumerate(steps, 1):
        if step in ("insert", "write") and cache.missing({key: None}):
            cache.insert(key, folded.get(key, {}))
        if step == "absent" and cache.missing({key: None}) and not folded.get(key):
            load_absent(cache, key)
        elif step == "write":
            cell, entry = slot
            keys = {key} if entry else {key, min(cache.last_read)}
            plain: dict[str, dict[str, bytes | None]] = {} if entry else {cell: dict.fromkeys(keys, value)}
            cache.write_all(InvocationOutcome(plain, {cell: {key: {entry: value}}} if entry else {}), Seq(seq))
            for written in keys:
                truth.setdefault(written, {}).pop(slot, None)
                if value is not None:
                    truth[written][slot] = value
        elif step == "forget":
            cache.forget(key, Seq(seq))
            truth[key] = {}
        elif step == "fold":
            assert not any(folded.get(absent) for absent in cache.take_absent(Seq(seq)))
            cache.folded(Seq(seq))
            folded = {key: dict(cells) for key, cells in truth.items()}
        elif step == "evict":
            cache.evict((), never if value else None)
        elif step == "trim":
            gone = cache.trim(("a",), None)
            assert len({*gone}) == len(gone)
        assert cache.size_bytes == exact_size(cache)
        for here in cache.last_read:
            assert cache.cells(here) == truth.get(here, {})
        for gone_key in truth.keys() - cache.last_read.keys():
            assert folded.get(gone_key, {}) == truth[gone_key]


PARTS = ["load", "ask", "fill", "write", "write", "fold", "evict", "forget", "thin"]
ALL_SLOTS: list[Slot] = [("c", ""), ("d", ""), ("d", "x"), ("d", "y"), ("d", "z"), ("e", "x")]
REMOVED_WHILE_ASKED: list[tuple[str, str, Slot, bytes | None]] = [
    (step, "a", ("d", "x"), None if removes else b"1")
    for step, removes in (
        ("load", 0), ("write", 0), ("fold", 0), ("evict", 0), ("load", 0), ("ask", 0), ("write", 1), ("fill", 0),
    )
]  # fmt: skip
"""The store still has a slot when it is asked, and a hook removes it before the answer comes."""
FORGOTTEN_AND_LONG_AGAIN: list[tuple[str, str, Slot, bytes | None]] = [
    (step, "a", ("d", entry), b"1")
    for step, entry in (
        ("load", ""), ("write", "x"), ("fold", ""), ("forget", ""), ("write", "y"), ("write", "z"), ("thin", ""),
    )
]  # fmt: skip
"""The tables still have what was forgotten when a key that has many entries again is too large for memory."""


@patch.object(limits, "STATE_PAGE_SLOTS", 1)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(PARTS), st.sampled_from("ab"), st.sampled_from(ALL_SLOTS),
            st.one_of(st.none(), st.binary(max_size=20)),
        ),
        max_size=60,
    )
)  # fmt: skip
@example(REMOVED_WHILE_ASKED)
@example(FORGOTTEN_AND_LONG_AGAIN)
def test_what_is_known_of_a_key_that_is_here_in_part_is_right(
    steps: list[tuple[str, str, Slot, bytes | None]],
) -> None:
    """What the store answers may be older than what was written meanwhile, and is never taken for newer.

    About what is neither here nor known to be absent, the tables are right.
    """
    cache, truth, folded = StateCache(10_000), dict[str, dict[Slot, bytes]](), dict[str, dict[Slot, bytes]]()
    asked: dict[str, tuple[list[Wanted], list[tuple[str, str, str, bytes | None]]]] = {}
    for seq, (step, key, (cell, entry), value) in enumerate(steps, 1):
        if step == "load" and cache.missing({key: None}):
            cells = folded.get(key, {})
            cache.insert(key, {slot: cells[slot] for slot in cells if slot != (cell, entry)}, more=True)
        elif step == "ask" and key in cache.partial:
            wanted: list[Wanted] = [(key, cell, None if value is None else entry)]
            rows = [(key, *slot, found) for slot, found in folded.get(key, {}).items() if slot[0] == cell]
            asked[key] = wanted, [row for row in rows if value is None or row[2] == entry]
        elif step == "fill" and key in asked and key in cache.partial:
            lacking, answer = asked.pop(key)
            cache.fill(lacking, answer)
            partial = cache.partial[key]
            assert not [one for one in lacking if partial.lacks(*one[1:]) and one[1:] not in cache.cells(key)], (
                "it would be asked for again and again"
            )
        elif step == "write" and not cache.missing({key: None}):
            plain: dict[str, dict[str, bytes | None]] = {} if entry else {cell: {key: value}}
            cache.write_all(InvocationOutcome(plain, {cell: {key: {entry: value}}} if entry else {}), Seq(seq))
            truth.setdefault(key, {}).pop((cell, entry), None)
            if value is not None:
                truth[key][cell, entry] = value
        elif step == "fold":
            cache.folded(Seq(seq))
            folded = {key: dict(cells) for key, cells in truth.items()}
        elif step == "evict":
            with patch.object(cache, "limit_bytes", 0 if value else cache.limit_bytes):  # else two keys never leave it
                for gone in cache.trim((), never):
                    asked.pop(gone, None)
        elif step == "forget" and not cache.missing({key: None}):
            cache.forget([key], Seq(seq))
            asked.pop(key, None)
            truth[key] = {}
        elif step == "thin":  # all keys are in use, and take too much memory
            with patch.object(cache, "limit_bytes", 0):
                cache.trim({*cache.last_read}, never)
        notes = sum(len(known.absent) for known in cache.partial.values())
        assert cache.size_bytes == exact_size(cache) + SLOT_OVERHEAD_BYTES * notes
        assert all(column for columns in cache.entries.values() for column in columns.values()), (
            "no empty ones are left"
        )
        for here in cache.last_read:
            known, cells = cache.partial.get(here), cache.cells(here)
            for slot in ALL_SLOTS:
                lacks = known is not None and slot not in cells and known.lacks(*slot)
                found = folded.get(here, {}).get(slot) if lacks else cells.get(slot)
                assert found == truth.get(here, {}).get(slot), (here, slot)


def test_of_a_hot_key_with_many_entries_what_is_not_folded_stays_and_the_rest_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "STATE_PAGE_SLOTS", 1)
    cache = StateCache(1)
    cache.insert("a", {("d", "old"): b"1", ("d", "older"): b"2", ("c", ""): b"3"})
    cache.write_all(InvocationOutcome({}, {"d": {"a": {"new": b"4", "older": None}}}), Seq(1))
    cache.trim(("a",), None)
    assert cache.entries == {"d": {"a": {"new": b"4"}}}
    assert cache.cells("a") == {("c", ""): b"3", ("d", "new"): b"4"}
    known = cache.partial["a"]
    assert [known.lacks("d", entry) for entry in ("old", "older")] == [True, False], (
        "the store has the one, and had the other"
    )
