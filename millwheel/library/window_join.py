"""Join of two or more streams: values of one key meet when they lie in the same window.

Lives here: that operator, and the choice of the one for sessions.  Invariants: in a window, every value of an input meets
all values of the other inputs.  So a window whose inputs all have values has given every row by its end.  In a window with
an empty input, no values have met.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, TypeVar

from millwheel.api.context import Context
from millwheel.api.stream import Stream
from millwheel.coders import Coder
from millwheel.errors import WiringError
from millwheel.library.matches import How, Joined, JoinedCoder, Kept, Match, RowOf, match_coder, required
from millwheel.library.session_join import SessionJoin
from millwheel.library.waiting import BufferingOperator, buffers
from millwheel.library.windows import Aligned, Sessions, Validity, Wall, Window
from millwheel.library.wiring import Operation, Wiring
from millwheel.model import Record, Timer

R = TypeVar("R")


class WindowJoin(BufferingOperator[R]):
    """Rows of values that meet come at once; those without a partner when the window is over.

    `needed` are the inputs without which there is no row.
    """

    def __init__(
        self, wiring: Wiring[R], lateness: int, windows: Aligned, needed: frozenset[int], row: RowOf[R],
        dropped: Sequence[Stream[Any] | None],
    ) -> None:  # fmt: skip
        super().__init__(wiring, lateness, len(dropped))
        self._windows = windows
        self._needed = needed
        self._inner = len(needed) == len(dropped)
        self._row = row
        self._dropped = dropped

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        """Meet what is there, and wait for what is to come, in each window that is not over."""
        for side, value in self.inputs.take(context.stream, record.key, record.value):
            open_windows = [w for w in self._windows.of(record.timestamp) if context.watermark < self.sure(w.last)]
            for window in open_windows:
                self._add(context, side, window, Kept(record.timestamp, False, value))
            dropped = self._dropped[side]
            if not open_windows and dropped is not None:
                context.produce(dropped, value)

    def _add(self, context: Context, side: int, window: Window, kept: Kept) -> None:
        counts = [self.count(other, window.start) for other in self.sides]
        if not any(counts):
            context.set_timer(str(window.start), self.sure(window.last) if self._inner else window.last)
        self.keep(side, window.start, kept, counts[side])
        counts[side] = 1
        if all(counts):
            groups = [[kept] if other == side else self._all(other, window) for other in self.sides]
            self._give(context, window, groups)

    def _all(self, side: int, window: Window) -> list[Kept]:
        return [*self.kept(side, window.start).values()]

    def _give(self, context: Context, window: Window, groups: Iterable[Iterable[Kept]]) -> None:
        for row in product(*groups):
            time = max(kept.time for kept in row)
            self.emit(context, self._row(context.key, [kept.value for kept in row], window), time)

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        """The window is over: rows with None for the inputs that have no value."""
        start = int(timer.tag)
        window = Window(start, self._windows.end(start))
        if not self.due(context, timer, window.last):
            return
        present = {side for side in self.sides if self.count(side, start)}
        if len(present) < len(self.sides) and present >= self._needed:
            alone = Kept(window.last, False, None)
            for row in product(*(self._all(side, window) if side in present else [alone] for side in self.sides)):
                self.emit(context, self._row(context.key, [kept.value for kept in row], window), window.last)
        for side in present:
            self.forget(side, start)


def _match(key: str, values: Sequence[Any], window: Window) -> Match[Any, Any]:
    left, right = values
    return Match(key, left, right, window.start, window.end)


def _joined(key: str, values: Sequence[Any], window: Window) -> Joined[Any]:
    return Joined(key, tuple(values), window.start, window.end)


def join_in_windows(
    windows: Aligned | Sessions,
    how: How,
    lateness: int,
    coders: list[Coder[Any]],
    dropped: Sequence[Stream[Any] | None],
) -> Operation[Match[Any, Any]]:
    """The operation that joins two inputs in windows."""
    return _operation(windows, required(how), lateness, coders, dropped, _match, match_coder(*coders))


def join_all_in_windows(
    windows: Aligned | Sessions, needed: frozenset[int], lateness: int, coders: list[Coder[Any]]
) -> Operation[Joined[Any]]:
    """The operation that joins any number of inputs in windows."""
    return _operation(windows, needed, lateness, coders, [None] * len(coders), _joined, JoinedCoder(coders))


def _operation(
    windows: Aligned | Sessions, needed: frozenset[int], lateness: int, coders: list[Coder[Any]],
    dropped: Sequence[Stream[Any] | None], row: RowOf[R], output: Coder[R],
) -> Operation[R]:  # fmt: skip
    if not isinstance(windows, Aligned | Sessions | Validity | Wall):
        raise WiringError(f"a join needs windows or an Interval, got {windows!r:.80}; for example Fixed(minutes=10)")
    if not isinstance(windows, Aligned | Sessions):
        raise WiringError(
            f"streams cannot be joined in {type(windows).__name__} windows: a record does not say its own"
        )
    base: type[BufferingOperator[R]] = SessionJoin if isinstance(windows, Sessions) else WindowJoin
    made: Any = type(base.__name__, (base,), dict(buffers(coders, f"join in {windows.meaning}")))

    def make(wiring: Wiring[R]) -> BufferingOperator[R]:
        operator: BufferingOperator[R] = made(wiring, lateness, windows, needed, row, dropped)
        return operator

    return Operation(
        kind="join",
        make=make,
        output=output,
        side_outputs=tuple(dict.fromkeys(stream for stream in dropped if stream is not None)),
        waits=isinstance(windows, Sessions) or len(needed) < len(coders),
    )
