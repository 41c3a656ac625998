"""Credit of several intervals to several workers."""

from __future__ import annotations

import pytest

from millwheel import limits
from millwheel.host.messages import Credit
from millwheel.host.promises import Grants
from millwheel.ids import IntervalId, Sequencer

ONE, TWO, OWNER = IntervalId(1), IntervalId(2), Sequencer(7)


@pytest.fixture
def grants(monkeypatch: pytest.MonkeyPatch) -> Grants:
    monkeypatch.setattr(limits, "INBOX_LIMIT_BYTES", 1_000)
    made = Grants()
    assert [made.open(ONE, "a"), made.open(ONE, "b"), made.open(TWO, "a")] == [0, 0, 0]
    return made


def due(grants: Grants, interval: IntervalId, waiting: int = 0) -> dict[str, Credit]:
    return dict(grants.due(interval, OWNER, waiting))


def test_each_worker_has_a_promise_of_its_own(grants: Grants) -> None:
    assert due(grants, ONE) == {peer: Credit(ONE, OWNER, 0, 1_000) for peer in "ab"}
    assert due(grants, ONE) == {}
    grants.received(ONE, "a", 900)
    assert due(grants, ONE, waiting=200) == {"a": Credit(ONE, OWNER, 0, 1_700)}
    assert due(grants, TWO) == {"a": Credit(TWO, OWNER, 0, 1_000)}, "what one interval has received is not another's"


def test_a_new_hello_begins_a_new_round_and_counts_from_nothing(grants: Grants) -> None:
    due(grants, ONE)
    grants.received(ONE, "a", 900)
    assert grants.open(ONE, "a") == 1
    assert due(grants, ONE) == {"a": Credit(ONE, OWNER, 1, 1_000)}


def test_a_worker_that_is_gone_is_promised_nothing(grants: Grants) -> None:
    grants.part("a")
    assert due(grants, ONE).keys() == {"b"}
    assert due(grants, TWO) == {}


def test_an_interval_that_is_dropped_promises_nothing(grants: Grants) -> None:
    grants.drop(ONE)
    assert (grants.low(ONE), grants.low(TWO)) == (False, True)


def test_an_interval_is_looked_at_until_nobody_who_sends_to_it_needs_a_promise(grants: Grants) -> None:
    assert grants.low(ONE)
    due(grants, ONE)
    assert not grants.low(ONE)
    grants.received(ONE, "b", 750)
    assert not grants.low(ONE), "a quarter is left"
    grants.received(ONE, "b", 1)
    assert grants.low(ONE)
    assert due(grants, ONE, waiting=1_000) == {}
    assert grants.low(ONE), "what waits will have run"
    assert due(grants, ONE).keys() == {"b"}
    assert not grants.low(ONE)
