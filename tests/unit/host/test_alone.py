from __future__ import annotations

import msgspec

from millwheel.host.alone import Alone
from millwheel.work import Work


class Void(msgspec.Struct):
    halted: bool = False


class Runner(msgspec.Struct, eq=False):
    name: str
    core: Void


def runners(names: str) -> list[Runner]:
    return [Runner(name, Void()) for name in names]


def work() -> Work:
    return Work([], [], {}, {}, {}, 0, 0)


def test_everything_else_waits_until_the_suspects_are_done_one_after_the_other() -> None:
    alone: Alone[Runner] = Alone()
    a, b, c = runners("abc")
    first, other = work(), work()
    assert not alone.keeps(c, work())
    assert alone.enter(a, b"1")
    assert not alone.enter(b, b"2")
    assert not alone.keeps(a, first)
    assert alone.keeps(b, first)
    assert alone.keeps(c, other)
    assert alone.leave(c) == ([], None), "not its turn"
    assert alone.leave(a) == ([], (b, b"2"))
    assert alone.keeps(a, work())
    kept, after = alone.leave(b)
    assert [actor.name for actor, _ in kept] == ["b", "c", "a"]
    assert after is None
    assert not alone.keeps(c, work())


def test_who_became_void_while_it_waited_is_passed_over() -> None:
    alone: Alone[Runner] = Alone()
    a, b, c, d = runners("abcd")
    assert [alone.enter(actor, actor.name.encode()) for actor in (a, b, c, d)] == [True, False, False, False]
    assert alone.keeps(b, work())
    b.core.halted = True
    assert alone.leave(a) == ([], (c, b"c"))
    assert alone.leave(b) == ([], None), "it never held"
    d.core.halted = True
    kept, after = alone.leave(c)
    assert [actor.name for actor, _ in kept] == ["b"]
    assert after is None
    assert alone.enter(a, b"a")
