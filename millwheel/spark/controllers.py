"""Controllers beside the driver: children of its process, which are started again when they die.

Lives here: their commands and the thread that keeps them.  Never here: a decision of theirs.  Invariant: they end with the
driver, because their standard input does.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

from millwheel import limits
from millwheel.runtime.supervisor import ENDS, ChildPlan, Supervisor
from millwheel.spark.hosting_plan import HostingPlan, Say


class ControllerFamily:
    """The controllers of one cluster; perhaps none."""

    def __init__(self, plan: HostingPlan, host: str | None, say: Say) -> None:
        """`host` is where executors reach the driver from other machines; None: all are on this one."""
        self.failed: int | None = None
        """The status with which they ended before the run was over."""
        self.seen: int | None = None
        """The status of those that have seen the end of the run, once there is none any more."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None
        self._say = say
        if not plan.controllers:
            return
        plans = [_plan(plan, number, host) for number in range(1, plan.controllers + 1)]
        environment = {**os.environ, "MILLWHEEL_STORE": plan.url, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._supervisor = Supervisor(plans, ENDS, say, environment)
        self._thread = threading.Thread(target=self._run, name="millwheel-controllers", daemon=True)
        self._thread.start()
        self._ready.wait()

    def stop(self, over: bool) -> None:
        """End them in order, and wait for that; when the run is `over` they end by themselves."""
        if self._thread is None:
            return
        if over:
            self._thread.join(limits.UP_CONTROLLER_LIMIT_S)
        if self._thread.is_alive() and self._loop is not None:
            with suppress(RuntimeError):  # it has ended just now
                self._loop.call_soon_threadsafe(self._supervisor.stop)
        self._thread.join()

    def _run(self) -> None:
        async def main() -> int | None:
            self._loop = asyncio.get_running_loop()
            self._ready.set()
            return await self._supervisor.run()

        try:
            status = asyncio.run(main())
        except Exception as error:  # of a machine that has no more processes, for example
            self._say("controllers", True, f"no controller can be kept: {error}")
            self.failed = 1
            return
        if status in ENDS.finished:
            self.seen = status
        elif status is not None:
            self.failed = status


def _plan(plan: HostingPlan, number: int, host: str | None) -> ChildPlan:
    command: Sequence[str] = [
        sys.executable, "-m", "millwheel", "controller", plan.path, "--name", f"controller-{number}", "--with-parent",
        *plan.options, *plan.allowed.options(),
        *(["--certs", os.path.abspath(plan.certs)] if plan.certs is not None else []),
        *(["--listen", "0.0.0.0:0", "--advertise", host] if host is not None else []),
    ]  # fmt: skip
    # To the supervisor it is what a worker is elsewhere: the family lives until one of them has seen the end of the run.
    return ChildPlan(f"controller-{number}", True, command)
