"""Credit: what sources may send is bounded, and a sender that has used it up gets more."""

from __future__ import annotations

import random

import pytest

from millwheel import limits
from millwheel.host.credit import Account, CreditWindow
from millwheel.ids import Sequencer

LIMIT = 1_000


@pytest.fixture(autouse=True)
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "INBOX_LIMIT_BYTES", LIMIT)


def test_the_first_promise_is_the_limit_and_no_more_comes_while_there_is_enough() -> None:
    window = CreditWindow(0)
    assert window.grant(0) == LIMIT
    window.received = LIMIT // 2
    assert window.grant(0) is None
    window.received = LIMIT - 10
    assert window.grant(0) == 2 * LIMIT - 10


def test_what_waits_is_taken_off_the_promise() -> None:
    window = CreditWindow(0)
    window.grant(0)
    window.received = LIMIT
    assert window.grant(LIMIT) is None
    assert window.grant(400) == LIMIT + 600


def test_a_promise_of_another_round_or_owner_is_none() -> None:
    account = Account(Sequencer(7), 1)
    account.promise(Sequencer(7), 0, 500)
    account.promise(Sequencer(6), 1, 500)
    assert not account.left()
    account.promise(Sequencer(7), 1, 500)
    account.promise(Sequencer(7), 1, 300)
    account.sent = 499
    assert account.left()
    account.sent = 500
    assert not account.left()


@pytest.mark.parametrize("seed", range(30))
def test_a_sender_is_bounded_and_never_stuck_whatever_the_order(seed: int) -> None:
    rng = random.Random(seed)
    window, account = CreditWindow(0), Account(Sequencer(1), 0)
    flying: list[int] = []
    promises: list[int] = []
    waiting = sent = 0
    while sent < 100 * LIMIT:
        moves = ["work"] if waiting else []
        moves += ["send"] if account.left() else []
        moves += ["arrive"] if flying else []
        moves += ["hear"] if promises else []
        upto = window.grant(waiting)
        if upto is not None:
            promises.append(upto)
            moves.append("hear")
        assert moves, "nobody can do anything any more"
        match rng.choice(moves):
            case "work":
                waiting -= min(waiting, rng.randrange(1, 400))
            case "send":
                size = rng.randrange(1, 300)
                account.sent += size
                sent += size
                flying.append(size)
            case "arrive":
                size = flying.pop(0)
                window.received += size
                waiting += size
            case "hear":
                account.promise(Sequencer(1), 0, promises.pop(rng.randrange(len(promises))))
        assert waiting + sum(flying) <= LIMIT + 300, "the limit and one bundle"
