"""Join of each value with the one value that another stream has of its key, whichever comes first.

Lives here: that operator.  Invariant: a value that comes before its partner waits for it, and no value that has met its
partner is kept.
"""

from __future__ import annotations

from typing import Any

from millwheel.api.context import Context
from millwheel.api.state import ListCell, ValueCell
from millwheel.coders import Coder
from millwheel.library.forgetting import ForgettingOperator, forgetting
from millwheel.library.matches import Kept, KeptCoder, Match, match_coder
from millwheel.library.wiring import Operation, meant
from millwheel.model import Record


class OneJoin(ForgettingOperator[Match[Any, Any]]):
    """Input 0 has any number of values of a key, input 1 the one."""

    one: ValueCell[Kept | None]
    early: ListCell[Kept]

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        """Meet, or wait."""
        time = record.timestamp
        self.renew(time)
        for side, value in self.inputs.take(context.stream, record.key, record.value):
            if side:
                self.one.set(Kept(time, True, value))
                for kept in self.early:
                    self.emit(context, Match(context.key, kept.value, value), max(time, kept.time))
                self.early.clear()
            elif (one := self.one.get()) is not None:
                self.emit(context, Match(context.key, value, one.value), max(time, one.time))
            else:
                self.early.append(Kept(time, False, value))


def join_one(coders: list[Coder[Any]], forget_after: int | None) -> Operation[Match[Any, Any]]:
    """The operation of `KeyedChain.join_one`."""
    early, one = (meant(KeptCoder(coder), "join of one") for coder in coders)
    cells: dict[str, Any] = {"one": ValueCell[Any](one, default=None), "early": ListCell(early)}
    made: Any = type("OneJoin", (OneJoin,), cells)
    return Operation(
        kind="join",
        make=lambda wiring: made(wiring, forget_after),
        output=match_coder(*coders),
        settings=forgetting(forget_after),
    )
