"""Everything is the worker's own, until another run has taken the store over: then it ends, and says so."""

from __future__ import annotations

from typing import Any

import pytest

from millwheel import limits
from millwheel.bundles import RecoveredInterval
from millwheel.errors import Fenced, InvariantError
from millwheel.host import alphabet as he
from millwheel.host.messages import Claimed, Delivery, Disowned, MapChanged, WatermarksRaised
from millwheel.host.requests import BehindOthers, Recover, RewindEpochs, StillOwned, StoreCall
from millwheel.ids import IntervalId, Sequencer
from millwheel.testing.world.calls import run
from millwheel.work import InvocationOutcome
from tests.unit.host.test_worker import Hand, bundle, started


def answer(hand: Hand, kind: type[Any]) -> list[he.HostEffect]:
    """Let the first wish of this kind go on: a pause ends, or the store answers."""
    ask = next(ask for ask in hand.waiting if isinstance(ask.wish, kind))
    hand.waiting.remove(ask)
    wish = ask.wish
    found = run(wish.call(hand.store)) if isinstance(wish, StoreCall) else None
    return hand.give(he.Answered(ask.token, found))


def superseded(hand: Hand) -> None:
    """Another run takes everything over."""
    run(hand.store.acquire([actor.interval for actor, _ in hand.worker.actors.intervals()]))


def looks(hand: Hand) -> None:
    """All pauses end once: one of them is that between two looks at who owns what."""
    for ask in [ask for ask in hand.waiting if isinstance(ask.wish, he.Pause)]:
        hand.waiting.remove(ask)
        hand.give(he.Answered(ask.token, None))


def test_an_idle_worker_asks_now_and_then_and_goes_on_while_all_is_its_own() -> None:
    hand, _ = started()
    for _ in range(3):
        looks(hand)
    assert hand.worker.serving


def test_an_idle_worker_that_was_superseded_ends() -> None:
    hand, hello = started()
    superseded(hand)
    with pytest.raises(
        Fenced, match=f"interval {hello.interval} of 'Keep': another run owns this pipeline's store now"
    ):
        looks(hand)


def test_a_refused_watermark_is_no_reason_to_end_while_the_intervals_are_its_own() -> None:
    hand, hello = started()
    hand.give(he.Received("controller", Disowned(((hello.interval, hello.sequencer),))))
    superseded(hand)
    hand.give(he.Received("controller", Disowned(((hello.interval, Sequencer(hello.sequencer - 1)),))))
    hand.give(he.Received("controller", Disowned(((IntervalId(99), hello.sequencer),))))
    with pytest.raises(Fenced):
        hand.give(he.Received("controller", Disowned(((hello.interval, hello.sequencer),))))


def test_an_interval_that_is_just_getting_another_sequencer_is_not_lost() -> None:
    hand, hello = started()
    superseded(hand)
    hand.worker.restarts.under_way.add(hello.interval)
    hand.give(he.Received("controller", Disowned(((hello.interval, hello.sequencer),))))
    looks(hand)
    assert hand.worker.serving


def test_a_restart_between_the_question_and_the_answer_is_not_a_loss() -> None:
    hand = Hand(StillOwned)
    hand.give(he.Started())
    ((actor, _),) = hand.worker.actors.intervals()
    hand.give(he.Received("controller", Disowned(((actor.interval, actor.sequencer),))))
    superseded(hand)
    hand.worker.restarts.under_way.add(actor.interval)
    answer(hand, StillOwned)
    assert hand.worker.serving


def test_a_worker_that_is_superseded_while_it_starts_claims_nothing() -> None:
    hand = Hand(Recover)
    hand.give(he.Started())
    (ask,) = [ask for ask in hand.waiting if isinstance(ask.wish, Recover)]
    assert isinstance(ask.wish, Recover)
    run(hand.store.acquire([ask.wish.interval]))
    found: RecoveredInterval | None = run(ask.wish.call(hand.store))
    assert found is None
    with pytest.raises(Fenced, match="another run owns this pipeline's store now"):
        hand.give(he.Answered(ask.token, found))
    assert hand.of(Claimed) == []


def test_a_worker_that_is_superseded_while_it_waits_for_watermarks_ends() -> None:
    """It read what its successor had stored, and waited for its own controller to tell that, which never heard of it."""
    hand = Hand()
    hand.store.watermark["source:text"] = 5  # by a successor, after the controller has read what is stored
    hand.give(he.Started())
    looks(hand)
    assert not hand.worker.serving
    run(hand.store.acquire([*hand.store.intervals]))
    hand.now += limits.OWNER_CHECK_US
    with pytest.raises(Fenced, match="another run owns this pipeline's store now"):
        looks(hand)


def test_a_worker_that_hears_of_watermarks_late_serves_as_long_as_all_is_its_own() -> None:
    hand = Hand()
    hand.store.watermark["source:text"] = 5
    hand.give(he.Started())
    hand.now += limits.OWNER_CHECK_US
    looks(hand)
    assert not hand.worker.serving
    hand.give(he.Received("controller", WatermarksRaised({"source:text": 5}, {"Keep": 5})))
    looks(hand)
    assert hand.worker.serving


def cut_off() -> Hand:
    """A start that waits until receivers have what was sent before the worker's interval was cut off."""
    hand = Hand(BehindOthers)
    hand.give(he.Started())
    (ask,) = [ask for ask in hand.waiting if isinstance(ask.wish, BehindOthers)]
    assert isinstance(ask.wish, BehindOthers)
    hand.waiting.remove(ask)
    hand.give(he.Answered(ask.token, {*ask.wish.intervals}))
    assert ([*hand.worker.actors.intervals()], hand.worker.serving) == ([], False)
    return hand


def test_sources_wait_for_intervals_that_were_cut_off() -> None:
    hand = cut_off()
    looks(hand)
    answer(hand, BehindOthers)
    assert len([*hand.worker.actors.intervals()]) == 1
    assert hand.worker.serving


def test_a_worker_that_is_superseded_while_an_interval_that_was_cut_off_waits_ends() -> None:
    hand = cut_off()
    run(hand.store.acquire([*hand.store.intervals]))
    with pytest.raises(Fenced, match="another run owns this pipeline's store now"):
        looks(hand)


def test_a_run_in_one_process_hears_nothing_of_a_cluster() -> None:
    hand, _ = started()
    with pytest.raises(InvariantError, match=r"was told MapChanged by w2"):
        hand.give(he.Received("w2", MapChanged(3)))
    with pytest.raises(InvariantError, match="has lost source text"):
        hand.worker.source_lost("text")


@pytest.mark.parametrize("snapshots", [False, True])
def test_a_run_that_another_one_has_overtaken_while_it_began_ends_before_it_reads_anything(snapshots: bool) -> None:
    """Under snapshots all intervals go back together, and the store says that they are another run's."""
    hand = Hand(RewindEpochs)
    hand.worker.epochs.enabled = snapshots
    hand.give(he.Started())
    asked = [ask for ask in hand.waiting if isinstance(ask.wish, RewindEpochs)]
    assert len(asked) == snapshots, "without snapshots there is nothing to go back to"
    assert hand.worker.serving != snapshots
    for ask in asked:
        with pytest.raises(Fenced, match="another run owns this pipeline's store now"):
            hand.give(he.Answered(ask.token, None))


def test_a_worker_whose_write_is_fenced_ends_before_it_asks_whether_it_was_superseded() -> None:
    """It would read rows and run hooks until then, and nothing of that could become durable."""
    hand, hello = started()
    superseded(hand)
    actor = hand.worker.actors.all[hello.interval]
    given = hand.give(he.Received("worker", Delivery(bundle(hello.interval), hello.sequencer, True)))
    (runs,) = [effect.event for effect in given if isinstance(effect, he.Post)]
    hand.posts = True
    (hooks,) = [effect for effect in hand.give(runs) if isinstance(effect, he.RunHooks)]
    given = hand.give(he.Returned(hooks.interval, hooks.sequencer, InvocationOutcome(processed=1), 0))
    assert not [effect for effect in given if isinstance(effect, he.Failed)]
    hand.give(he.TurnEnded())
    assert actor.core.halted
    (failed,) = hand.failed
    assert "another run owns this pipeline's store now; this run ends" in f"{failed.error}"
