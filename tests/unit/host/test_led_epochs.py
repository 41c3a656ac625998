"""The epochs of a cluster at the leader: whom an epoch waits for, and what is said again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millwheel import limits
from millwheel.errors import RowRefused
from millwheel.host.led_epochs import LedEpochs
from millwheel.host.messages import (
    BarriersNamed,
    EpochDeclared,
    EpochOpened,
    EpochRefused,
    EpochStarted,
    ImageWritten,
    Message,
)
from millwheel.host.procedures import Procedures
from millwheel.host.requests import DeclareEpoch
from millwheel.ids import IntervalId, Seq, Sequencer
from millwheel.ports import PositionWrite

ONE, TWO, PART = IntervalId(1), IntervalId(2), IntervalId(3)
OWNERS = {ONE: Sequencer(11), TWO: Sequencer(12)}
POSITION = PositionWrite(PART, Sequencer(13), 40, False, b"s")
FIRST = EpochOpened(5, {ONE: Sequencer(11)}, (POSITION,), {PART: (ONE, TWO)})
SECOND = EpochOpened(5, {TWO: Sequencer(12)}, (), {})


class Leader:
    """A leader with the workers w1 and w2, whose fifth epoch runs."""

    def __init__(self) -> None:
        self.asks: list[Any] = []
        self.told: list[Message] = []
        self.values = {"a": 5}
        self.procedures = Procedures(self.asks.append)
        self.epochs = LedEpochs(
            workers=("w1", "w2"), owners=OWNERS, term=7, every_us=1_000_000, begin=self.procedures.start,
            tell=lambda message: self.told.append(message), values=lambda: self.values,
        )  # fmt: skip
        self.epochs.based(4)
        self.wait(2_000_000)
        assert self.of(EpochStarted) == [EpochStarted(5)]

    def wait(self, now: int) -> None:
        self.epochs.now = now
        self.procedures.answered(self.asks.pop(0).token, None)

    def of(self, kind: type[Any]) -> list[Any]:
        found = [message for message in self.told if isinstance(message, kind)]
        self.told = [message for message in self.told if not isinstance(message, kind)]
        return found

    def write(self, *intervals: IntervalId) -> None:
        for interval in intervals:
            self.epochs.written(ImageWritten(5, interval, OWNERS[interval], 0))

    def declared(self) -> list[Any]:
        return [ask.wish.declaration for ask in self.asks if isinstance(ask.wish, DeclareEpoch)]


def test_barriers_are_named_when_all_workers_have_begun() -> None:
    leader = Leader()
    leader.epochs.begun("w1", FIRST)
    leader.epochs.begun("w1", FIRST)
    assert leader.of(BarriersNamed) == []
    leader.epochs.begun("w3", SECOND)  # it owns nothing
    assert leader.of(BarriersNamed) == []
    leader.epochs.begun("w2", SECOND)
    assert leader.of(BarriersNamed) == [BarriersNamed(5, {PART: (ONE, TWO)})]


def test_a_worker_that_owns_nothing_but_a_source_is_waited_for_too() -> None:
    """Its positions are of the epoch, and the others own all intervals."""
    leader = Leader()
    leader.epochs.begun("w1", EpochOpened(5, OWNERS, (), {}))
    assert leader.of(BarriersNamed) == []
    leader.epochs.begun("w2", EpochOpened(5, {}, (POSITION,), {PART: (ONE, TWO)}))
    assert leader.of(BarriersNamed) == [BarriersNamed(5, {PART: (ONE, TWO)})]
    leader.write(ONE, TWO)
    (declaration,) = leader.declared()
    assert [*declaration.positions] == [POSITION]


def test_an_epoch_is_declared_with_all_parts_and_the_leaders_term() -> None:
    leader = Leader()
    leader.write(ONE, TWO)
    leader.epochs.begun("w1", FIRST)
    assert leader.declared() == []
    leader.epochs.begun("w2", SECOND)
    (declaration,) = leader.declared()
    assert (declaration.epoch, declaration.term, declaration.owners) == (5, 7, OWNERS)
    assert declaration.positions == (POSITION,)


def test_an_image_of_an_earlier_owner_does_not_count() -> None:
    leader = Leader()
    leader.epochs.begun("w1", FIRST)
    leader.epochs.begun("w2", SECOND)
    leader.write(ONE)
    leader.epochs.written(ImageWritten(5, TWO, Sequencer(2), 0))
    assert leader.declared() == []
    leader.write(TWO)
    assert len(leader.declared()) == 1


def test_what_an_earlier_owner_says_late_does_not_undo_an_image() -> None:
    leader = Leader()
    leader.epochs.begun("w1", FIRST)
    leader.epochs.begun("w2", SECOND)
    leader.write(ONE)
    leader.epochs.written(ImageWritten(5, ONE, Sequencer(10), 0))
    leader.write(TWO)
    assert [declaration.owners for declaration in leader.declared()] == [OWNERS]


def test_owners_that_are_not_those_of_the_map_declare_nothing() -> None:
    leader = Leader()
    leader.epochs.begun("w1", FIRST)
    leader.epochs.begun("w2", EpochOpened(5, {TWO: Sequencer(2)}, (), {}))
    leader.write(ONE, TWO)
    assert leader.of(BarriersNamed) == []
    assert leader.declared() == []


def test_what_may_be_lost_is_said_again_until_the_epoch_ends() -> None:
    leader = Leader()
    leader.epochs.begun("w1", FIRST)
    leader.epochs.begun("w2", SECOND)
    leader.told.clear()
    leader.wait(2_000_000 + limits.EPOCH_LOOK_US)
    assert leader.told == []
    leader.wait(2_000_000 + limits.CLUSTER_LOOK_US)
    assert leader.told == [EpochDeclared(4), EpochStarted(5), BarriersNamed(5, {PART: (ONE, TWO)})]


def test_what_is_said_again_is_of_the_epoch_that_runs_and_of_none_between_two() -> None:
    leader = Leader()
    begun, named = [EpochDeclared(4), EpochStarted(5)], BarriersNamed(5, {PART: (ONE, TWO)})
    assert leader.epochs.restate() == begun
    leader.epochs.begun("w1", FIRST)
    assert leader.epochs.restate() == begun
    leader.epochs.begun("w2", SECOND)
    assert leader.epochs.restate() == [*begun, named]
    leader.write(ONE, TWO)
    assert leader.epochs.restate() == [*begun, named], "it is not declared yet"
    (ask,) = [ask for ask in leader.asks if isinstance(ask.wish, DeclareEpoch)]
    leader.asks.remove(ask)
    leader.procedures.answered(ask.token, True)
    assert leader.epochs.restate() == [EpochDeclared(5)]
    leader.wait(2 * 2_000_000)
    assert leader.epochs.restate() == [EpochDeclared(5), EpochStarted(6)]


def test_what_may_be_lost_is_said_again_now_and_then_and_not_at_every_look() -> None:
    leader = Leader()
    said = 0
    for look in range(1, 3 * limits.CLUSTER_LOOK_US // limits.EPOCH_LOOK_US):
        leader.wait(2_000_000 + look * limits.EPOCH_LOOK_US)
        said += len(leader.of(EpochStarted))
    assert said == 2


def test_nothing_is_begun_or_declared_after_the_owners_have_changed() -> None:
    leader = Leader()
    leader.epochs.begun("w1", FIRST)
    leader.epochs.begun("w2", SECOND)
    leader.epochs.end()
    leader.write(ONE, TWO)
    assert leader.declared() == []
    leader.told.clear()
    leader.wait(9_000_000)
    assert leader.told == []


@pytest.mark.parametrize("answer", [False, True])
def test_a_declaration_that_is_answered_after_the_end_changes_nothing(answer: bool) -> None:
    leader = Leader()
    leader.epochs.begun("w1", FIRST)
    leader.epochs.begun("w2", SECOND)
    leader.write(ONE, TWO)
    leader.epochs.end()
    leader.told.clear()
    (ask,) = [ask for ask in leader.asks if isinstance(ask.wish, DeclareEpoch)]
    leader.procedures.answered(ask.token, answer)
    assert leader.told == []
    assert leader.epochs.declared == 4


def test_watermarks_from_behind_a_barrier_that_an_earlier_leader_began_are_not_stored() -> None:
    leader = Leader()
    later = LedEpochs(
        workers=("w1", "w2"), owners=OWNERS, term=8, every_us=1_000_000, begin=leader.procedures.start,
        tell=lambda message: leader.told.append(message), values=lambda: leader.values,
    )  # fmt: skip
    leader.asks.clear()
    later.based(4)
    leader.epochs = later
    assert later.reported(5)  # a worker says again what it said after its barrier
    leader.values = {"a": 9}
    leader.wait(4_000_000)
    later.begun("w1", FIRST)
    later.begun("w2", SECOND)
    leader.write(ONE, TWO)
    (declaration,) = leader.declared()
    assert declaration.watermarks == {"a": 5}


def refused(leader: Leader, late: bool = False) -> EpochRefused:
    """The database refuses a row of the epoch that runs; `late`: all goes back before it says so."""
    leader.epochs.begun("w1", FIRST)
    leader.epochs.begun("w2", SECOND)
    leader.write(ONE, TWO)
    token = next(ask.token for ask in leader.asks if isinstance(ask.wish, DeclareEpoch))
    leader.asks[:] = [ask for ask in leader.asks if ask.token != token]
    if late:
        leader.epochs.end()
    leader.procedures.declined(token, RowRefused("no", TWO, Seq(7), ((0, "no"),)))
    return EpochRefused(5, TWO, Seq(7), ((0, "no"),))


def test_a_refusal_is_said_again_until_all_has_gone_back() -> None:
    # It may be lost in a cut.  Then nothing was ever declared again.
    leader = Leader()
    told = refused(leader)
    assert leader.of(EpochRefused) == [told]
    assert leader.epochs.restate() == [told]
    leader.wait(2_000_000 + limits.CLUSTER_LOOK_US)
    assert leader.of(EpochRefused) == [told]
    leader.epochs.end()
    assert told not in leader.epochs.restate()
    leader.wait(9_000_000)
    assert leader.of(EpochRefused) == []


def test_a_refusal_that_comes_when_all_has_gone_back_is_told_to_nobody() -> None:
    leader = Leader()
    refused(leader, late=True)
    assert leader.of(EpochRefused) == []


def test_what_workers_have_said_of_an_epoch_is_not_taken_for_their_word_on_the_next_one() -> None:
    """Its positions would be those of the epoch before: rows behind them would come twice."""
    leader = Leader()
    leader.epochs.begun("w1", FIRST)
    leader.epochs.begun("w2", SECOND)
    leader.write(ONE, TWO)
    (token,) = [ask.token for ask in leader.asks if isinstance(ask.wish, DeclareEpoch)]
    leader.procedures.answered(token, True)
    leader.asks[:] = [ask for ask in leader.asks if ask.token != token]
    leader.wait(4_000_000)
    assert leader.of(EpochStarted) == [EpochStarted(6)]
    leader.of(BarriersNamed)
    leader.epochs.begun("w2", msgspec.structs.replace(SECOND, epoch=6))
    assert leader.of(BarriersNamed) == []
    leader.epochs.begun("w1", msgspec.structs.replace(FIRST, epoch=6))
    assert leader.of(BarriersNamed) == [BarriersNamed(6, {PART: (ONE, TWO)})]
