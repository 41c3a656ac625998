"""Planted bugs in snapshots of loops on a cluster; `tests.sim.loop_cut_fleets` is to notice them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from millwheel.core.durability.durable_epochs import DurableEpochs
from millwheel.core.interval import events as ev
from millwheel.core.interval.arrivals import Item
from millwheel.core.interval.machine import IntervalCore
from millwheel.host.barriers import Epochs
from millwheel.host.led_watermarks import LedWatermarks
from millwheel.host.messages import RoundAnswered, RoundAsked
from millwheel.host.rounds import Rounds
from millwheel.host.routes import Routes
from millwheel.ids import IntervalId
from tests.planted import Patches, only, shared_cut_in_loop


@shared_cut_in_loop
def label_of_an_answer_not_heard() -> Patches:
    """A leader takes an answer to a round from behind a barrier for one from before it"""
    heed = LedWatermarks._heed

    def deaf(self: LedWatermarks, authority: Any, peer: str, message: Any) -> None:
        if isinstance(message, RoundAnswered):
            message = RoundAnswered(message.interval, message.sequencer, message.round, message.minimum)
        heed(self, authority, peer, message)

    return {(LedWatermarks, "_heed"): deaf}


@shared_cut_in_loop
def rounds_outlive_their_generation() -> Patches:
    """Rounds of the owners before are asked after all has gone back"""
    return {(Rounds, "end"): lambda self: None}


@shared_cut_in_loop
def everybody_is_asked() -> Patches:
    """Workers that own nothing hear of rounds, and get something when all has gone back"""

    def ask(self: LedWatermarks, question: RoundAsked) -> None:
        self._tell(self._workers(), question)

    return {(LedWatermarks, "_ask_round"): ask}


@shared_cut_in_loop
def rounds_from_zero() -> Patches:
    """Each leader counts the rounds of a loop from zero"""
    init = Rounds.__init__

    def anew(self: Rounds, authority: Any, begin: Any, ask: Any, last: int = 0) -> None:
        init(self, authority, begin, ask)

    return {(Rounds, "__init__"): anew}


@shared_cut_in_loop
def only_own_barriers_come_round() -> Patches:
    """The log of a loop does not wait for barriers that come round from other workers"""
    open_ = Epochs._open

    def opened(self: Epochs, epoch: int, barriers: Mapping[IntervalId, Iterable[IntervalId]]) -> None:
        actors, is_back = self._worker.actors.all, self._worker.routes.is_back
        kept = {
            sender: tuple(receiver for receiver in to if sender in actors or not is_back(sender, receiver))
            for sender, to in barriers.items()
        }
        open_(self, epoch, kept)

    return {(Epochs, "_open"): opened}


@shared_cut_in_loop
def back_edges_of_others_forgotten() -> Patches:
    """An interval waits for barriers on back edges before its cut when another worker sends them"""
    is_back = Routes.is_back

    def near(self: Routes, sender: IntervalId, receiver: IntervalId) -> bool:
        return is_back(self, sender, receiver) and sender == receiver

    return {(Routes, "is_back"): near}


@only("tests/unit/core/durability/test_durable_epochs.py")
def early_ack_recorded() -> Patches:
    """An ack from behind a barrier that the sender has not passed is in the sender's cut"""
    acked = DurableEpochs.acked

    def at_once(self: DurableEpochs, number: int, now: int, epoch: int = 0) -> None:
        acked(self, number, now, 0)

    return {(DurableEpochs, "acked"): at_once}


@only("tests/unit/core/interval/test_copies_behind_barriers.py")
def copy_acked_as_of_before() -> Patches:
    """A copy of what ran behind a barrier is acked as of before it"""
    enter = IntervalCore._enter

    def without_label(self: IntervalCore, items: list[Item], effects: list[ev.Effect]) -> None:
        entered: list[ev.Effect] = []
        enter(self, items, entered)
        effects += [ev.Ack(one.sender, one.number) if isinstance(one, ev.Ack) else one for one in entered]

    return {(IntervalCore, "_enter"): without_label}


@only("tests/unit/core/interval/test_copies_behind_barriers.py")
def copy_without_id_is_of_the_log() -> Patches:
    """Without ids, a copy from before a barrier counts as what comes round a loop"""

    def log(self: DurableEpochs, item: Item) -> None:
        if item.part is not None and not item.inherited:
            self._loop_log.add(item.part, item.size_bytes)

    return {(DurableEpochs, "log"): log}
