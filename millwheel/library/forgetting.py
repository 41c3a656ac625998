"""Operators that forget a key some time after its last record.

Lives here: the base of them.  Never here: what they remember.  Invariant: a key is kept until the watermark is `forget_after`
beyond its newest record.  A key expires some time after the last *write* of its state (`expire_after`), and a record need not
write any.  So the newest record is written down now and then, and a key expires so much later.
"""

from __future__ import annotations

from typing import Any, TypeVar

from millwheel.api.state import ValueCell
from millwheel.coders import JsonCoder
from millwheel.library.wiring import Operator, Wiring
from millwheel.limits import FORGET_SHARES
from millwheel.model import MIN_TIME

R = TypeVar("R")


class ForgettingOperator(Operator[R]):
    """`forget_after`, us; None: nothing is forgotten."""

    newest = ValueCell[int](JsonCoder(int), default=MIN_TIME)
    """The time of a record that all later ones are at most a share of `forget_after` newer than."""

    def __init__(self, wiring: Wiring[R], forget_after: int | None) -> None:
        super().__init__(wiring)
        self._renews_us = None if forget_after is None else forget_after // FORGET_SHARES

    def renew(self, time: int) -> None:
        """The key has a record of this time."""
        if self._renews_us is not None and time > self.newest.get() + self._renews_us:
            self.newest.set(time)


def forgetting(forget_after: int | None) -> dict[str, Any]:
    """The settings of such an operator's computation."""
    return {"expire_after": None if forget_after is None else forget_after + forget_after // FORGET_SHARES}
