"""What user code keeps beyond its hook: a context, a cell, or something that uses them.  Each later call raises."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millwheel import Context, JsonCoder, ListCell, MapCell, Record, Timer, ValueCell
from millwheel.errors import LateCall
from millwheel.runtime.executor import Executor
from millwheel.work import InvocationOutcome
from tests.unit.api.hooks import computation_of, executor_of, out, part, table, work

CELLS = {"one": ValueCell(JsonCoder(int), 0), "many": ListCell(JsonCoder(int)), "named": MapCell(JsonCoder(int))}

CALLS: dict[str, Callable[[Context], object]] = {
    "key": lambda c: c.key,
    "stream": lambda c: c.stream,
    "watermark": lambda c: c.watermark,
    "wall_time": lambda c: c.wall_time,
    "produce": lambda c: c.produce(out, "late"),
    "set_timer": lambda c: c.set_timer("late", 9),
    "cancel_timer": lambda c: c.cancel_timer("late"),
    "hold": lambda c: c.hold(3),
    "release_hold": lambda c: c.release_hold(),
    "upsert": lambda c: c.upsert(table, {"k": "late", "n": 1}),
    "delete": lambda c: c.delete(table, {"k": "late"}),
}

CELL_CALLS: dict[str, Callable[[Any], object]] = {
    "one.get": lambda it: it.one.get(),
    "one.set": lambda it: it.one.set(7),
    "one.clear": lambda it: it.one.clear(),
    "many.append": lambda it: it.many.append(7),
    "many.__iter__": lambda it: next(iter(it.many), None),
    "many.__len__": lambda it: len(it.many),
    "many.clear": lambda it: it.many.clear(),
    "named.get": lambda it: it.named.get("x"),
    "named.get_many": lambda it: it.named.get_many(["x"]),
    "named.set": lambda it: it.named.set("x", 7),
    "named.delete": lambda it: it.named.delete("x"),
    "named.clear": lambda it: it.named.clear(),
    "named.items": lambda it: next(it.named.items(), None),
    "named.__len__": lambda it: len(it.named),
}


def test_every_method_is_tried() -> None:
    assert {*CALLS} == {name for name in dir(Context) if not name.startswith("_")}
    for name, cell in CELLS.items():
        bound = type(executor_of(computation_of(cells=CELLS)).computation.__getattribute__(name))
        public = {f"{name}.{method}" for method in vars(bound) if not method.startswith("_")}
        public |= {f"{name}.{method}" for method in ("__iter__", "__len__") if method in vars(bound)}
        assert {call for call in CELL_CALLS if call.startswith(f"{name}.")} == public, cell.kind


def in_thread(call: Callable[[], object]) -> None:
    """Call it in another thread, and raise what it raises."""
    raised: list[BaseException] = []

    def body() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def untouched(done: InvocationOutcome) -> None:
    assert (done.produced, done.timers, done.holds, done.sinks, done.values, done.entries) == ({}, {}, {}, [], {}, {})


def keeper(how: str, kept: list[Any], call: Callable[[Context], object]) -> Any:
    """A hook that keeps its context for the key "a", in one of several ways, and does nothing else."""

    def hook(self: Any, context: Context, record: Record[str] | Timer) -> None:
        if record.key.startswith("a"):
            match how:
                case "object":
                    kept.append(lambda kept=context: call(kept))
                case "closure":
                    kept.append(lambda: call(context))
                case "generator":

                    def later() -> Iterator[None]:
                        yield
                        call(context)

                    generator = later()
                    next(generator)
                    kept.append(lambda: next(generator, None))
                case "failure":
                    kept.append(lambda: call(context))
                    raise ValueError("fails")

    return hook


WAYS = ("object", "closure", "generator", "failure")


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("name", CALLS)
def test_a_context_that_was_kept_raises_between_invocations(name: str, how: str) -> None:
    kept: list[Callable[[], object]] = []
    executor = executor_of(computation_of(keeper(how, kept, CALLS[name])))
    executor.run(work(part(("a", 1))))
    for call in kept:
        with pytest.raises(LateCall, match=rf"computation 'it': context\.{name} "):
            call()
    untouched(executor.run(work(part(("b", 2)))))


@pytest.mark.parametrize("name", CALLS)
def test_a_bound_method_that_was_kept_raises(name: str) -> None:
    kept: list[Any] = []
    executor = executor_of(computation_of(lambda self, context, record: kept.append(getattr(context, name))))
    executor.run(work(part(("a", 1))))
    if callable(kept[0]):

        class Bound:
            pass

        proxy = Bound()
        setattr(proxy, name, kept[0])
        with pytest.raises(LateCall, match=rf"computation 'it': context\.{name} "):
            CALLS[name](proxy)  # type: ignore[arg-type]
    untouched(executor.run(work(part(("b", 2)))))


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("place", ["here", "thread"])
def test_a_context_that_was_kept_raises_in_a_later_hook(name: str, how: str, place: str) -> None:
    """It is another key's hook, in the same invocation and in the next one."""
    kept: list[Callable[[], object]] = []
    raised: list[BaseException] = []
    keep = keeper(how, kept, CALLS[name])

    def hook(self: Any, context: Context, record: Record[str]) -> None:
        keep(self, context, record)
        for call in kept if record.key.startswith("b") else ():
            try:
                call() if place == "here" else in_thread(call)
            except LateCall as error:
                raised.append(error)

    executor = executor_of(computation_of(hook), hook_attempts=1)
    done = executor.run(work(part(("a", 1), ("b", 2))))
    assert len(raised) == 1
    untouched(done)
    raised.clear()
    executor = executor_of(computation_of(hook), hook_attempts=2)
    kept.clear()
    executor.run(work(part(("a", 1))))
    untouched(executor.run(work(part(("b", 2)))))
    assert len(raised) == len(kept) > 0


@pytest.mark.parametrize("how", WAYS)
def test_a_context_of_a_timer_that_was_kept_raises(how: str) -> None:
    kept: list[Callable[[], object]] = []
    executor = executor_of(computation_of(timer=keeper(how, kept, CALLS["set_timer"])))
    executor.run(work(timers=[Timer("a", "t", 1, "watermark")], watermark=5))
    for call in kept:
        with pytest.raises(LateCall, match=r"computation 'it': context\.set_timer "):
            call()
    assert kept
    untouched(executor.run(work(part(("b", 2)))))


def test_a_context_of_a_redrive_that_was_kept_raises() -> None:
    kept: list[Callable[[], object]] = []
    executor = executor_of(computation_of(keeper("closure", kept, CALLS["produce"])))
    failed = executor_of(computation_of(keeper("failure", [], CALLS["produce"]))).run(work(part(("a", 1))))
    executor.run(work(redrive=failed.quarantined))
    (call,) = kept
    with pytest.raises(LateCall):
        call()


@pytest.mark.parametrize("name", CELL_CALLS)
def test_a_cell_raises_between_invocations(name: str) -> None:
    executor = executor_of(computation_of(cells=CELLS))
    executor.run(work(part(("a", 1))))
    with pytest.raises(LateCall, match=rf"computation 'it': cell '{name.replace('.', chr(39) + '.')} "):
        CELL_CALLS[name](executor.computation)
    untouched(executor.run(work(part(("b", 2)))))


@pytest.mark.parametrize("name", [name for name in CELL_CALLS if name != "one.get"])
def test_a_cell_raises_in_another_thread_than_its_hook(name: str) -> None:
    """For all that a cell knows, the hook of that thread is over.

    Asking for the thread costs too much for `get` of a `ValueCell`, which may only read what another key has.
    """
    raised: list[BaseException] = []

    def hook(self: Any, context: Context, record: Record[str]) -> None:
        try:
            in_thread(lambda: CELL_CALLS[name](self))
        except LateCall as error:
            raised.append(error)

    done = executor_of(computation_of(hook, cells=CELLS)).run(work(part(("b", 2))))
    untouched(done)
    assert len(raised) == 1


@pytest.mark.parametrize("name", ["many.__iter__", "named.items"])
def test_an_iterator_that_was_kept_raises_under_another_key(name: str) -> None:
    kept: list[Iterator[Any]] = []

    def hook(self: Any, context: Context, record: Record[str]) -> None:
        for at in range(3):
            self.many.append(at)
            self.named.set(str(at), at)
        if not kept:
            kept.append(iter(self.many) if name == "many.__iter__" else self.named.items())
            next(kept[0])
        else:
            with pytest.raises(LateCall, match="computation 'it': cell '"):
                next(kept[0])

    done = executor_of(computation_of(hook, cells=CELLS)).run(work(part(("a", 1), ("b", 2))))
    assert done.quarantined == []


@pytest.mark.parametrize("name", CELL_CALLS)
@pytest.mark.parametrize("hook", ["setup", "teardown"])
def test_a_cell_raises_in_setup_and_teardown(name: str, hook: str) -> None:
    made = computation_of(cells={**CELLS, hook: CELL_CALLS[name]})
    with pytest.raises(LateCall):
        executor_of(made).teardown()


def test_a_context_that_nobody_keeps_serves_all_calls() -> None:
    """Else each record would cost another context."""

    def of(executor: Executor) -> int:
        return id(executor._context)

    executor = executor_of(
        computation_of(
            lambda self, context, record: context.produce(out, "x"), lambda self, context, timer: None, CELLS
        )
    )
    before = of(executor)
    for _ in range(3):
        executor.run(work(part(("a", 1), ("b", 2))))
        executor.run(work(timers=[Timer("a", "t", 1, "watermark")], watermark=5))
    assert of(executor) == before
