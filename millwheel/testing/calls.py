"""Calls of a simulated process to its store: how long each takes, and what becomes of it.

Lives here: faults of the way to the store, retries, and what arrives after its process has died.  Never here: what is
asked, or why.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millwheel.errors import CommitUnknown, RowRefused, StoreUnavailable
from millwheel.testing.faults import Action

if TYPE_CHECKING:
    from millwheel.testing.process import Process

RETRY_US: Final = 50_000


class Crash(BaseException):
    """This process dies here.  No `Exception`: a hook that raises it is a hook that kills its process."""


class Request(msgspec.Struct, eq=False):
    """A call to the store that is on its way or being retried."""

    step: str
    call: Callable[[], Coroutine[Any, Any, Any]]
    done: Callable[[Any], None]
    refused: Callable[[RowRefused], None] | None = None
    """Told when the database refuses a sink row."""


class Calls:
    """One process's way to the store."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.open: list[Request] = []
        """Requests without an answer."""

    def strike(self, step: str) -> Action:
        """The fault at this step, which is a call to the store or an effect of a core."""
        process = self._process
        action = process.world.nemesis.strike(step)
        if action:
            process.world.kernel.trace(f"p{process.number} fault {action} at {step}")
        return action

    def call(self, step: str, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """One attempt, as the nemesis lets it go."""
        action = self.strike(step)
        if action == "crash before":
            raise Crash
        if action == "refused":
            raise StoreUnavailable(f"{step}: refused")
        if action == "absent":
            raise CommitUnknown(f"{step}: reply lost, not applied")
        answer = run(call())
        if action == "duplicate":
            answer = run(call())
        if action == "crash after":
            raise Crash
        if action == "lost":
            self._process.world.kernel.probes[f"applied, reply lost: {step}"] += 1
            raise CommitUnknown(f"{step}: reply lost, applied")
        return answer

    def request(
        self,
        step: str,
        call: Callable[[], Coroutine[Any, Any, Any]],
        done: Callable[[Any], None],
        refused: Callable[[RowRefused], None] | None = None,
    ) -> None:
        """Call the store until it answers; each attempt takes its time."""
        request = Request(step, call, done, refused)
        self.open.append(request)
        self._process.later(self._process.world.nemesis.delay_us(step), self._attempt, request)

    def _attempt(self, request: Request) -> None:
        process, world = self._process, self._process.world
        try:
            answer = self.call(request.step, request.call)
        except (StoreUnavailable, CommitUnknown) as error:
            world.kernel.probes[f"retried: {type(error).__name__}"] += 1
            process.later(RETRY_US, self._attempt, request)
            return
        except RowRefused as refusal:
            assert request.refused is not None
            self.open.remove(request)
            process.later(world.nemesis.delay_us("reply"), request.refused, refusal)
            return
        self.open.remove(request)
        process.later(world.nemesis.delay_us(f"{request.step} reply"), request.done, answer)

    def abandon(self) -> None:
        """The process is dead; what was on the wire may still arrive at the store."""
        kernel, nemesis = self._process.world.kernel, self._process.world.nemesis
        for request in self.open:
            if request.step not in ("load", "lookup", "page") and nemesis.orphan():
                kernel.at(kernel.now + nemesis.delay_us("orphan"), self._orphan, request)

    def _orphan(self, request: Request) -> None:
        kernel = self._process.world.kernel
        kernel.trace(f"p{self._process.number} orphan {request.step}")
        kernel.probes["request of a dead process applied"] += 1
        with suppress(RowRefused):  # nobody is left to hear of it
            run(request.call())


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The answer of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the memory store waited")
