from __future__ import annotations

from millwheel.runtime.alone import Alone
from millwheel.work import Work


def work() -> Work:
    return Work([], [], {}, {}, {}, 0, 0)


def test_everything_else_waits_until_the_suspects_are_done_one_after_the_other() -> None:
    alone: Alone[str] = Alone()
    first, other = work(), work()
    assert not alone.keeps("c", work())
    assert alone.enter("a", b"1")
    assert not alone.enter("b", b"2")
    assert not alone.keeps("a", first)
    assert alone.keeps("b", first)
    assert alone.keeps("c", other)
    assert alone.leave("c") == ([], None), "not its turn"
    assert alone.leave("a") == ([], ("b", b"2"))
    assert alone.keeps("a", work())
    kept, after = alone.leave("b")
    assert [actor for actor, _ in kept] == ["b", "c", "a"]
    assert after is None
    assert not alone.keeps("c", work())
