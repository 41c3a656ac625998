"""MinHeap against a dict."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millwheel.core.keys.minheap import MinHeap

names = st.sampled_from("abcdefgh")
times = st.integers(-5, 5)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("set"), names, times),
        st.tuples(st.just("remove"), names, st.just(0)),
        st.tuples(st.just("pop"), st.just(""), times),
    ),
    max_size=60,
)


@given(operations, st.integers(1, 4))
def test_a_heap_is_a_dict_with_a_minimum(steps: list[tuple[str, str, int]], limit: int) -> None:
    heap, model = MinHeap[str](), dict[str, int]()
    for step, name, time in steps:
        if step == "set":
            heap.set(name, time)
            model[name] = time
        elif step == "remove":
            heap.remove(name)
            model.pop(name, None)
        else:
            due = sorted((t, n) for n, t in model.items() if t <= time)[:limit]
            assert heap.pop_due(time, limit) == due
            for _, popped in due:
                del model[popped]
        assert heap.items == model
        assert len(heap) == len(model)
        least = min(((t, n) for n, t in model.items()), default=None)
        assert heap.minimum() == (least[0] if least else None)
        assert heap.first() == (least[1] if least else None)


@given(st.dictionaries(names, times, min_size=1), names, times, st.sets(names))
def test_what_comes_after_the_end_is_not_due(entries: dict[str, int], name: str, time: int, gone: set[str]) -> None:
    heap = MinHeap[str]()
    for one, at in entries.items():
        heap.set(one, at)
    heap.remove_all(gone)
    rows = sorted((at, one) for one, at in entries.items() if one not in gone)
    assert heap.due(2, (time, name)) == any(row[0] <= 2 and row <= (time, name) for row in rows)
    assert heap.pop_due(2, 9, (time, name)) == [row for row in rows if row[0] <= 2 and row <= (time, name)]
    assert heap.pop_due(9, 9) == [row for row in rows if row[0] > 2 or row > (time, name)]


def test_memory_follows_what_is_pending() -> None:
    heap = MinHeap[str]()
    for time in range(10_000):
        heap.set("hot", time)
    assert len(heap._heap) <= 65


def test_names_that_are_removed_together_take_no_memory() -> None:
    heap = MinHeap[str]()
    for time in range(1_000):
        heap.set(f"k{time}", time)
    heap.remove_all([f"k{time}" for time in range(1, 1_000)])
    assert (heap.items, heap._heap) == ({"k0": 0}, [(0, "k0")])
