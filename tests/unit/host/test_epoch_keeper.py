"""When the controller starts an epoch, when it declares it, and which watermarks are stored with it."""

from __future__ import annotations

from typing import Any

from millwheel.errors import RowRefused
from millwheel.host.epoch_keeper import Declaring
from millwheel.host.messages import (
    Disowned,
    EpochDeclared,
    EpochOpened,
    EpochRefused,
    EpochStarted,
    EpochWanted,
    ImageWritten,
    Message,
)
from millwheel.host.procedures import Procedures
from millwheel.host.requests import DeclareEpoch
from millwheel.ids import IntervalId, Seq, Sequencer
from millwheel.ports import PositionWrite

ONE, TWO = IntervalId(1), IntervalId(2)
OWNERS = {ONE: Sequencer(11), TWO: Sequencer(12)}
POSITION = PositionWrite(IntervalId(3), Sequencer(13), 40, False, b"s")


class Controller:
    """The epochs of a run, whose procedures wait in `asks`."""

    def __init__(self, every_us: int = 1_000_000, *, durable: bool = True) -> None:
        self.asks: list[Any] = []
        self.told: list[Message] = []
        self.values = {"a": 5}
        self.procedures = Procedures(self.asks.append)
        self.epochs = Declaring(
            every_us=every_us, begin=self.procedures.start, tell=self.told.append, values=lambda: self.values,
            durable=durable,
        )  # fmt: skip

    def wait(self, now: int) -> None:
        """Time passes: the pause of the loop is over."""
        self.epochs.now = now
        self.procedures.answered(self.asks.pop(0).token, None)

    def begun(self) -> Controller:
        """With the first epoch under way."""
        self.epochs.based(4)
        self.wait(2_000_000)
        assert self.told == [EpochStarted(5)]
        self.told.clear()
        return self

    def written(self, interval: IntervalId, sinks: int = 0, epoch: int = 5, sequencer: int = 0) -> None:
        self.epochs.written(ImageWritten(epoch, interval, Sequencer(sequencer or OWNERS[interval]), sinks))

    def declaration(self) -> Any:
        asked = [ask.wish for ask in self.asks if isinstance(ask.wish, DeclareEpoch)]
        return asked[0].declaration if asked else None

    def answer(self, answer: bool) -> None:
        token = next(ask.token for ask in self.asks if isinstance(ask.wish, DeclareEpoch))
        self.asks[:] = [ask for ask in self.asks if ask.token != token]
        self.procedures.answered(token, answer)


def test_an_epoch_begins_when_its_time_has_come() -> None:
    controller = Controller()
    controller.epochs.based(4)
    controller.wait(999_999)
    assert controller.told == []
    controller.wait(1_000_000)
    assert controller.told == [EpochStarted(5)]
    assert controller.epochs.restate() == [EpochDeclared(4), EpochStarted(5)]


def test_the_time_to_the_next_epoch_counts_from_the_begin_of_the_last_one() -> None:
    controller = Controller()
    controller.epochs.based(4)
    controller.wait(1_500_000)
    controller.epochs.opened(EpochOpened(5, {}, (), {}))
    controller.answer(True)
    controller.wait(2_499_999)
    assert controller.told == [EpochStarted(5), EpochDeclared(5)]
    controller.wait(2_500_000)
    assert controller.told[2:] == [EpochStarted(6)]


def test_an_epoch_that_is_wanted_begins_at_once_and_once() -> None:
    controller = Controller()
    controller.epochs.based(4)
    controller.epochs.wanted(EpochWanted(3))  # a copy of an old wish
    controller.wait(20_000)
    assert controller.told == []
    controller.epochs.wanted(EpochWanted(4))
    controller.wait(40_000)
    assert controller.told == [EpochStarted(5)]
    controller.epochs.wanted(EpochWanted(4))  # the one that runs is the one
    controller.epochs.opened(EpochOpened(5, {}, (), {}))
    controller.answer(True)
    controller.wait(60_000)
    assert controller.told == [EpochStarted(5), EpochDeclared(5)]


def test_it_is_declared_when_it_was_opened_and_every_interval_has_written() -> None:
    controller = Controller().begun()
    controller.written(ONE, sinks=7)
    controller.written(TWO, epoch=4)
    controller.epochs.opened(EpochOpened(5, OWNERS, (POSITION,)))
    assert controller.declaration() is None
    controller.written(TWO)
    declaration = controller.declaration()
    assert (declaration.epoch, declaration.owners, declaration.sinks) == (5, OWNERS, [(ONE, Seq(7))])
    assert (declaration.positions, declaration.watermarks) == ((POSITION,), {"a": 5})
    controller.written(TWO)  # said again after a cut
    controller.answer(True)
    assert controller.told == [EpochDeclared(5)]
    assert controller.declaration() is None


def test_what_is_said_of_another_epoch_does_not_count() -> None:
    controller = Controller().begun()
    for epoch in (4, 6):
        controller.epochs.opened(EpochOpened(epoch, {}, ()))
        assert controller.declaration() is None
        for interval in (ONE, TWO):
            controller.written(interval, epoch=epoch)
    controller.epochs.opened(EpochOpened(5, OWNERS, (POSITION,)))
    assert controller.declaration() is None
    controller.epochs.opened(EpochOpened(5, {}, ()))  # the first word counts
    assert controller.declaration() is None
    for interval in (ONE, TWO):
        controller.written(interval)
    assert controller.declaration().positions == (POSITION,)


def test_nothing_of_an_epoch_is_left_for_the_next_one() -> None:
    controller = Controller().begun()
    controller.epochs.reported(5)
    controller.epochs.opened(EpochOpened(5, OWNERS, (POSITION,)))
    controller.written(ONE, sinks=7)
    controller.written(TWO)
    controller.answer(True)
    controller.values = {"a": 9}
    controller.wait(4_000_000)
    assert controller.told == [EpochDeclared(5), EpochStarted(6)]
    controller.epochs.opened(EpochOpened(6, OWNERS, ()))
    assert controller.declaration() is None
    controller.written(ONE, epoch=6)
    assert controller.declaration() is None
    controller.written(TWO, epoch=6)
    declaration = controller.declaration()
    assert (declaration.epoch, declaration.sinks, declaration.watermarks) == (6, [], {"a": 9})


def test_a_part_of_an_earlier_owner_does_not_count() -> None:
    controller = Controller().begun()
    controller.epochs.opened(EpochOpened(5, OWNERS, ()))
    controller.written(ONE)
    controller.written(TWO, sequencer=9)
    assert controller.declaration() is None


def test_what_was_reported_after_the_barrier_is_not_stored_with_its_epoch() -> None:
    controller = Controller().begun()
    assert not controller.epochs.reported(4)
    assert controller.epochs.reported(5)
    controller.values = {"a": 99}
    assert not controller.epochs.reported(5)
    controller.epochs.opened(EpochOpened(5, OWNERS, ()))
    controller.written(ONE)
    controller.written(TWO)
    assert controller.declaration().watermarks == {"a": 5}


def test_what_an_earlier_leader_has_told_in_front_of_the_barrier_is_stored_with_its_epoch() -> None:
    """The next leader had heard a report from behind the barrier first.  When all went back, hooks saw earlier watermarks."""
    controller = Controller().begun()
    controller.values = {"a": 3, "b": 8}
    controller.epochs.opened(EpochOpened(5, OWNERS, ()))
    for interval, reached in zip(OWNERS, ({"a": 7}, {"a": 5, "b": 8, "c": 1}), strict=True):
        controller.epochs.written(ImageWritten(5, interval, OWNERS[interval], 0, reached))
    assert controller.declaration().watermarks == {"a": 7, "b": 8, "c": 1}


def test_a_run_that_was_superseded_asks_its_workers_and_tries_again() -> None:
    controller = Controller().begun()
    controller.epochs.opened(EpochOpened(5, OWNERS, (POSITION,)))
    controller.written(ONE)
    controller.written(TWO)
    controller.answer(False)
    # A partition too: a process that was stopped while it started may take it from its successor.
    owners = ((ONE, Sequencer(11)), (TWO, Sequencer(12)), (POSITION.interval, POSITION.sequencer))
    assert controller.told == [Disowned(owners)]


def test_refused_rows_end_the_epochs_of_the_run() -> None:
    controller = Controller().begun()
    controller.epochs.opened(EpochOpened(5, OWNERS, ()))
    controller.written(ONE, sinks=7)
    controller.written(TWO)
    token = next(ask.token for ask in controller.asks if isinstance(ask.wish, DeclareEpoch))
    controller.procedures.declined(token, RowRefused("no", ONE, Seq(7), ((0, "no"),)))
    assert controller.told == [EpochRefused(5, ONE, Seq(7), ((0, "no"),))]
    controller.epochs.wanted(EpochWanted(5))
    controller.asks = [ask for ask in controller.asks if ask.token != token]
    controller.wait(9_000_000)
    assert len(controller.told) == 1


def test_without_durability_the_store_never_hears_of_an_epoch() -> None:
    controller = Controller(durable=False).begun()
    controller.epochs.opened(EpochOpened(5, OWNERS, (POSITION,)))
    controller.written(ONE)
    assert controller.told == []
    controller.written(TWO)
    assert controller.declaration() is None
    assert controller.told == [EpochDeclared(5)]


def test_what_was_reported_after_the_first_barrier_of_all_is_not_stored_with_its_epoch() -> None:
    controller = Controller()
    controller.epochs.based(0)
    controller.wait(2_000_000)
    assert controller.told == [EpochStarted(1)]
    assert controller.epochs.reported(1)
    controller.values = {"a": 99}
    controller.epochs.opened(EpochOpened(1, OWNERS, ()))
    for interval in OWNERS:
        controller.written(interval, epoch=1)
    assert controller.declaration().watermarks == {"a": 5}
