"""Calls of a simulated process to its store: how long each takes, and whether it succeeds.

Lives here: faults on the way to the store, retries, and calls that arrive after their process has died.  Never here: what is
asked, or why.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millwheel.errors import CommitUnknown, RowRefused, StoreUnavailable
from millwheel.host.requests import StoreCall
from millwheel.testing.faults.nemesis import Action

if TYPE_CHECKING:
    from millwheel.testing.world.body import Body

RETRY_US: Final = 50_000
READS: Final = frozenset(
    {"load", "lookup", "page", "source", "quarantine", "redrives", "watermarks", "owned", "open", "acquire", "recover"}
)
"""Steps that a dead process does not leave behind: they only read, or nobody else would see their sequencer."""


class Crash(BaseException):
    """This process dies here.  No `Exception`: a hook that raises it is a hook that kills its process."""


class OpenCall(msgspec.Struct, eq=False):
    """A call to the store that is on its way or being retried."""

    request: StoreCall
    done: Callable[[Any], None]
    refused: Callable[[RowRefused], None]
    """Told when the database refuses a sink row."""


class Calls:
    """One process's way to the store."""

    def __init__(self, process: Body) -> None:
        self._process = process
        self.open: list[OpenCall] = []
        """Requests without an answer."""

    def strike(self, step: str) -> Action:
        """The fault at this step, which is a call to the store or an effect of a core."""
        process = self._process
        action = process.world.nemesis.strike(step)
        if action:
            process.world.kernel.trace(f"p{process.number} fault {action} at {step}")
        return action

    def _call(self, request: StoreCall) -> Any:
        """One attempt, as the nemesis lets it go."""
        step, store = request.step, self._process.world.store
        action = self.strike(step)
        if action == "crash before":
            raise Crash
        if action == "refused":
            raise StoreUnavailable(f"{step}: refused")
        if action == "absent":
            raise CommitUnknown(f"{step}: reply lost, not applied")
        answer = run(request.call(store))
        if action == "duplicate":
            answer = run(request.call(store))
        if action == "crash after":
            raise Crash
        if action == "lost":
            self._process.world.kernel.probes[f"applied, reply lost: {step}"] += 1
            raise CommitUnknown(f"{step}: reply lost, applied")
        return answer

    def request(self, request: StoreCall, done: Callable[[Any], None], refused: Callable[[RowRefused], None]) -> None:
        """Call the store until it answers; each attempt takes its time."""
        open_call = OpenCall(request, done, refused)
        self.open.append(open_call)
        self._process.later(self._process.world.nemesis.delay_us(request.step), self._attempt, open_call)

    def _attempt(self, call: OpenCall) -> None:
        process, world, request = self._process, self._process.world, call.request
        try:
            answer = self._call(request)
        except (StoreUnavailable, CommitUnknown) as error:
            if not request.patient:
                raise Crash from error  # a start that fails is a process that ends
            world.kernel.probes[f"retried: {type(error).__name__}"] += 1
            process.later(RETRY_US, self._attempt, call)
            return
        except RowRefused as refusal:
            self.open.remove(call)
            process.later(world.nemesis.delay_us("reply"), call.refused, refusal)
            return
        self.open.remove(call)
        process.later(world.nemesis.delay_us(f"{request.step} reply"), call.done, answer)

    def abandon(self) -> None:
        """The process is dead; what was on the wire may still arrive at the store."""
        kernel, nemesis = self._process.world.kernel, self._process.world.nemesis
        for call in self.open:
            if call.request.step not in READS and nemesis.orphan():
                kernel.at(kernel.now + nemesis.delay_us("orphan"), self._orphan, call.request)

    def _orphan(self, request: StoreCall) -> None:
        kernel = self._process.world.kernel
        kernel.trace(f"p{self._process.number} orphan {request.step}")
        kernel.probes["request of a dead process applied"] += 1
        with suppress(RowRefused):  # nobody is left to hear of it
            run(request.call(self._process.world.store))


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The answer of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the memory store waited")
