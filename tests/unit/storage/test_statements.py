"""Laws of the SQL text: whoever locks owners of several intervals locks them in the order of their ids, or two could wait for
each other for ever."""

from __future__ import annotations

import re
from importlib import import_module
from pkgutil import iter_modules

import pytest

from millwheel_storage import statements

TEXTS = {
    f"{module.name}.{name}": text
    for module in iter_modules(statements.__path__)
    for name, text in vars(import_module(f"{statements.__name__}.{module.name}")).items()
    if name.isupper() and isinstance(text, str)
}
ONE = re.compile(r"interval_id = (%\w|c\.)")
"""Of a single interval: there is no order."""
LOCKS = re.compile(r"FROM ownership\b(?:(?!FROM ownership\b)[^;])*? FOR (?:SHARE|UPDATE)")
EXCLUSIVE = {"keeping.FENCE_ALL"}
"""Under a lock of the whole table."""


def unordered(text: str) -> list[str]:
    """Locks of several rows of `ownership` without an order, and updates of several that were not locked before."""
    wrong = [lock for lock in LOCKS.findall(text) if "ORDER BY" not in lock and not ONE.search(lock)]
    if "UPDATE ownership" in text and not ONE.search(text) and not LOCKS.search(text):
        wrong.append(text)
    return wrong


@pytest.mark.parametrize("name", sorted(TEXTS.keys() - EXCLUSIVE))
def test_owners_are_locked_in_the_order_of_their_intervals(name: str) -> None:
    assert not unordered(TEXTS[name])


def test_the_statements_are_found() -> None:
    assert {name.partition(".")[0] for name, text in TEXTS.items() if LOCKS.search(text)} >= {
        "advancing", "committing", "declaring", "handing_over", "placing", "quarantining", "reshaping",
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "SELECT FROM ownership o WHERE o.interval_id = ANY(%b::bigint[]) FOR SHARE",
        "UPDATE ownership SET sequencer = 1 WHERE interval_id = ANY(%s::bigint[])",
        "UPDATE ownership o SET sequencer = 1 FROM (SELECT o.interval_id FROM ownership o JOIN source s ORDER BY 1) AS w",
    ],
)
def test_a_lock_without_an_order_is_noticed(text: str) -> None:
    assert unordered(text)


LEASES = re.compile(r"\b(?:lease|cluster_leader|expires)\b")
STANDS_STILL = re.compile(
    r"\b(?:now\(\)|current_timestamp|transaction_timestamp|statement_timestamp|localtimestamp)", re.I
)
"""The time at which the transaction or the statement began, however long it has waited for a lock since."""


@pytest.mark.parametrize("name", sorted(name for name, text in TEXTS.items() if LEASES.search(text)))
def test_leases_are_judged_by_a_clock_that_goes_on(name: str) -> None:
    assert not STANDS_STILL.search(TEXTS[name])
