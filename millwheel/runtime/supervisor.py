"""Keeps processes of a cluster running on one machine, as `millwheel up` does.

Lives here: starting, starting again, stopping, and what the processes print.  Never here: what they do, or the store.
Invariants:

* a worker that dies is started again until one of them has seen the end of the run; a controller is, while a worker lives;
* when all controllers have seen the end, workers that have not end soon after;
* no process outlives this one: each ends in order when its standard input ends.
"""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import PIPE, SubprocessStreamProtocol
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from millwheel import limits
from millwheel.errors import InvariantError


class ChildPlan(msgspec.Struct, frozen=True):
    """One process: its name, whether it is a worker, and its command."""

    name: str
    is_worker: bool
    command: Sequence[str]


class Verdicts(msgspec.Struct, frozen=True):
    """What exit statuses mean to the supervisor."""

    finished: frozenset[int]
    """The run is over."""
    hopeless: frozenset[int]
    """The same command would end like this again."""
    doubtful: frozenset[int]
    """It may be so; after some tries it is."""


ENDS: Final = Verdicts(finished=frozenset({0, 3}), hopeless=frozenset({2, 4}), doubtful=frozenset({1}))
"""Of workers and controllers (docs/guide-command-line.md lists their exit statuses)."""


class Child(msgspec.Struct):
    """A plan and its process."""

    plan: ChildPlan
    process: asyncio.SubprocessTransport | None = None
    deaths: int = 0
    """In a row, each soon after the start."""
    failures: int = 0
    """Those among them with an error of its own."""
    finished: bool = False
    """It has seen the end of the run."""


class _Pipes(SubprocessStreamProtocol):
    """Also tells when its process has ended.  What asyncio waits for is the end of the pipes.  They may stay open for ever,
    because a process that a hook has started has them, too."""

    def __init__(self) -> None:
        super().__init__(limits.UP_LINE_LIMIT_BYTES, asyncio.get_running_loop())
        self.ended = asyncio.Event()

    def process_exited(self) -> None:
        """See `asyncio.SubprocessProtocol`."""
        self.ended.set()
        super().process_exited()


class Supervisor:
    """A family of processes; `say` takes each line that they print: whose it is, whether it is an error, and the line."""

    def __init__(
        self,
        children: Sequence[ChildPlan],
        verdicts: Verdicts,
        say: Callable[[str, bool, str], None],
        environment: Mapping[str, str],
    ) -> None:
        self._children = [Child(plan) for plan in children]
        self._verdicts = verdicts
        self._say = say
        self._environment = environment
        self._over = False
        """A worker has seen the end of the run."""
        self._stopping = asyncio.Event()
        self._stops = 0
        self._status: int | None = None
        """What ended the family before its time."""
        self._worst = 0
        self._unsaid: OSError | None = None
        """Why nothing can be said any more."""
        self._readers: asyncio.TaskGroup | None = None
        self._left: list[asyncio.SubprocessTransport] = []
        """Processes that have ended, and whose pipes others keep open."""

    async def run(self) -> int | None:
        """Run all until the run is over.  Returns the largest status of those that saw it, or None after `stop`.

        When `say` raises an `OSError`, all end in order, and then it is raised here.
        """
        async with asyncio.TaskGroup() as group:
            self._readers = group
            workers = [group.create_task(self._keep(child)) for child in self._children if child.plan.is_worker]
            others = [group.create_task(self._keep(child)) for child in self._children if not child.plan.is_worker]
            await asyncio.gather(*workers)
            if others and not self._stopping.is_set():
                await asyncio.wait(others, timeout=limits.UP_CONTROLLER_LIMIT_S)
            self._end_all(workers=False)
            await asyncio.gather(*others)
            for process in self._left:
                process.close()
        if self._unsaid is not None:
            raise self._unsaid
        if self._status is not None:
            return self._status
        return None if self._stopping.is_set() else self._worst

    def give_up(self, why: str) -> None:
        """End all in order, because no process can go on; the status is 1."""
        if not self._stopping.is_set():
            self._tell("up", True, f"{why}: the cluster is stopped")
            self._status = self._status or 1
            self.stop()

    def stop(self) -> None:
        """End all in order, workers first; again: what hooks they still run is interrupted.  The third time kills all."""
        self._stopping.set()
        self._stops += 1
        if self._stops >= limits.STOP_PRESSES:
            for child in self._children:
                if child.process is not None:
                    _kill(child.process)
            return
        self._end_all(workers=any(child.plan.is_worker and _runs(child) for child in self._children))

    def processes(self) -> dict[str, int]:
        """The process ids of those that run, by name."""
        return {
            child.plan.name: child.process.get_pid()
            for child in self._children
            if child.process is not None and child.process.get_returncode() is None
        }

    def _tell(self, name: str, is_error: bool, line: str) -> None:
        if self._unsaid is None:
            try:
                self._say(name, is_error, line)
            except OSError as error:  # an output that takes no more
                self._unsaid = error
                self.stop()

    # --- one process ------------------------------------------------------------------------------------------

    async def _keep(self, child: Child) -> None:
        loop = asyncio.get_running_loop()
        while not self._is_done(child):
            began = loop.time()
            status = await self._run_once(child)
            self._note(child, status, loop.time() - began >= limits.RESTART_YOUNG_S)
            if not self._is_done(child):
                delay_s = limits.RESTART_FIRST_DELAY_S * 2 ** min(child.deaths, 10)
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(delay_s, limits.RESTART_LONGEST_DELAY_S)):
                        await self._stopping.wait()

    def _is_done(self, child: Child) -> bool:
        if self._stopping.is_set() or child.finished:
            return True
        if child.plan.is_worker:
            return self._over
        return self._over and not any(c.plan.is_worker and _runs(c) for c in self._children)

    def _note(self, child: Child, status: int, old: bool) -> None:
        """A process has ended."""
        plan, verdicts = child.plan, self._verdicts
        if status in verdicts.finished:
            self._over = child.finished = True
            self._worst = max(self._worst, status)
            controllers = [other for other in self._children if not other.plan.is_worker]
            if not plan.is_worker and all(other.finished for other in controllers):
                # Workers that join now would wait for ever: there is nobody left who tells them.
                asyncio.get_running_loop().call_later(limits.UP_WORKER_LIMIT_S, self._end_all, True)
            return
        if self._stopping.is_set():
            return
        child.deaths = 1 if old else child.deaths + 1
        child.failures = int(status in verdicts.doubtful) + (0 if old else child.failures)
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        if status in verdicts.hopeless or child.failures >= limits.RESTART_FAILURES:
            self._tell("up", True, f"{plan.name} {how}: the cluster is stopped")
            self._status = self._status or status
            self.stop()
        elif not self._is_done(child):
            self._tell("up", True, f"{plan.name} {how}; it is started again")

    async def _run_once(self, child: Child) -> int:
        """From its start to its end; returns the exit status, or minus the signal."""
        process, pipes = await asyncio.get_running_loop().subprocess_exec(
            _Pipes, *child.plan.command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=self._environment,
            start_new_session=True,
        )  # fmt: skip
        child.process = process
        if self._readers is None or pipes.stdout is None or pipes.stderr is None:
            raise InvariantError("a process has no pipes")
        if self._stopping.is_set():
            self._end(child)
        lines = [
            self._readers.create_task(self._pass_on(child.plan.name, stream, is_error))
            for stream, is_error in ((pipes.stdout, False), (pipes.stderr, True))
        ]
        await pipes.ended.wait()
        if (await asyncio.wait(lines, timeout=limits.LAST_LINES_S))[1]:
            self._left.append(process)
        status = process.get_returncode()
        if status is None:
            raise InvariantError("a process that has ended has no status")
        return status

    async def _pass_on(self, name: str, stream: asyncio.StreamReader, is_error: bool) -> None:
        while True:
            try:
                line = await stream.readuntil(b"\n")
            except asyncio.IncompleteReadError as end:
                if end.partial:
                    self._tell(name, is_error, end.partial.decode(errors="replace"))
                return
            except asyncio.LimitOverrunError as error:
                line = await stream.readexactly(error.consumed)
            self._tell(name, is_error, line.decode(errors="replace").removesuffix("\n"))

    def _end_all(self, workers: bool) -> None:
        for child in self._children:
            if child.plan.is_worker == workers:
                self._end(child)

    def _end(self, child: Child) -> None:
        """Ask a process to end, and kill it when it does not."""
        if not _runs(child) or child.process is None:
            return
        process = child.process
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        asyncio.get_running_loop().call_later(limits.UP_STOP_LIMIT_S, _kill, process)


def _runs(child: Child) -> bool:
    return child.process is not None and child.process.get_returncode() is None


def _kill(process: asyncio.SubprocessTransport) -> None:
    if process.get_returncode() is None:
        with suppress(ProcessLookupError):
            process.kill()
