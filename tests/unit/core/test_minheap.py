"""MinHeap against a dict, and timers against a list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millwheel.core.minheap import MinHeap
from millwheel.core.timers import TimerQueue

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


def test_memory_follows_what_is_pending() -> None:
    heap = MinHeap[str]()
    for time in range(10_000):
        heap.set("hot", time)
    assert len(heap._heap) <= 65


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from(["watermark", "wall"]), names, times), max_size=40))
def test_each_timer_comes_out_once_in_order_and_never_early(sets: list[tuple[str, str, str, int]]) -> None:
    queue = TimerQueue(("watermark", "wall"))
    model: dict[tuple[str, str, str], int] = {}
    for key, kind, tag, time in sets:
        queue.set(key, kind, tag, time)
        model[kind, key, tag] = time
    assert len(queue) == len(model)
    for kind in ("watermark", "wall"):
        expected = sorted((t, (key, tag)) for (k, key, tag), t in model.items() if k == kind)
        assert queue.pop_due(kind, 0, 100) == [row for row in expected if row[0] <= 0]
        assert queue.minimum(kind) == min((t for t, _ in expected if t > 0), default=None)
        assert queue.pop_due(kind, 5, 100) == [row for row in expected if row[0] > 0]
    assert not any(queue.pending(key) for key in "xyz")
    assert len(queue) == 0


def test_timers_of_a_key() -> None:
    queue = TimerQueue(("watermark", "wall"))
    queue.set("k", "watermark", "a", 7)
    queue.set("k", "wall", "a", 3)
    queue.set("other", "wall", "a", 1)
    assert dict(queue.of("k")) == {("watermark", "a"): 7, ("wall", "a"): 3}
    assert queue.next_of("k", 99) == 3
    queue.remove("k", "wall", "a")
    queue.remove("k", "wall", "never set")
    assert queue.next_of("k", 99) == 7
    assert queue.next_of("nobody", 99) == 99
    assert queue.first("watermark") == ("k", "a")
