"""A deterministic simulation of a pipeline under faults (FoundationDB's way, on the shipping code).

Lives here: processes that die and are replaced on one store, phase 1 (faults) and phase 2 (heal and converge).  One
thread, one seed, virtual time: the same seed gives the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from millwheel.api.table import Table
from millwheel.graph import Graph
from millwheel.model import SECOND, TIMER_KINDS, format_time
from millwheel.testing.checks.watched import WatchedStore
from millwheel.testing.faults.nemesis import Nemesis
from millwheel.testing.kit.scripted import ScriptedSource
from millwheel.testing.world.echoes import Echoes
from millwheel.testing.world.kernel import Kernel, Violation
from millwheel.testing.world.process import Process

CONVERGE_LIMIT_US: Final = 120 * SECOND
"""Virtual time from the end of the faults within which a run must be done; every delay is below two seconds."""

REDRIVEN_LIMIT_US: Final = SECOND
"""What is added to that for each element that is redriven meanwhile.  Where they are redriven one by one, the next is read
when the last one has run, was acked (a weak one waits up to a second for that), is committed and folded."""
FIRED_LIMIT_US: Final = 50_000
"""And for each timer that fires meanwhile.  A chain of timers may need an invocation and a commit for each of them."""
FIRED_LIMIT: Final = 12_000
"""But not for more than so many: a timer that sets itself anew for ever makes a run that does not end."""

SUPERSEDED_LIMIT_US: Final = 8 * SECOND
"""Virtual time in which a process that is awake notices that another one has taken over; every call takes up to two
seconds, and may be refused a few times."""


class Unending(Violation):
    """Faults are over, and the run does not end."""


class Simulation:
    """One run: at most one process that is meant to serve, and any number of zombies."""

    def __init__(
        self,
        *,
        graph: Graph,
        tables: Mapping[str, Table],
        kernel: Kernel,
        nemesis: Nemesis,
        store: WatchedStore,
        faults_until_us: int = 10 * SECOND,
        mend_us: int | None = None,
    ) -> None:
        self.graph = graph
        self.tables = tables
        self.watches_values = False
        self.kernel = kernel
        self.nemesis = nemesis
        self.store = store
        self.processes: list[Process] = []
        self.crashes = 0
        self.on_mend: Callable[[], None] = lambda: None
        """Called `mend_us` after the start, by default when the faults end, and every second from then on: a workload
        mends its poison and asks for redrives, also of what work under way at that moment still poisons."""
        self.on_orderly_end: Callable[[], None] = lambda: None
        """Called when a process has been stopped in order: what has killed others may be tried again."""
        self.hold_open: Callable[[], bool] = lambda: False
        """While true a process that is done is started again (redrives are waiting)."""
        self.version: Callable[[], tuple[Graph, int | None]] = lambda: (self.graph, None)
        """The pipeline as the next process has it, and after how long, us, that is stopped for another version."""
        self.echoes: Echoes | None = None
        """Copies of bundles that come when they are long done; None: there are none."""
        self.superseded_limit_us = SUPERSEDED_LIMIT_US
        self._until = kernel.now + faults_until_us
        self._mend_at = self._until if mend_us is None else kernel.now + mend_us
        self._finished = False
        self._redriven_before = 0
        """Elements that were redriven before the faults ended."""
        self._fired_before = 0
        """Timers that had fired by then."""
        for spec in graph.sources.values():
            if isinstance(spec.source, ScriptedSource):
                spec.source.clock = lambda: self.kernel.now
                spec.source.chunk = lambda: self.kernel.rng.choice((1, 2, 4))

    def run(self) -> None:
        """To the end; raises `Violation` when an invariant breaks or the run does not converge."""
        self.kernel.at(self._until, self._heal)
        self.kernel.at(self._mend_at, self._mend)
        self.launch()
        kernel, limit = self.kernel, self._until + CONVERGE_LIMIT_US
        while not self._finished:
            if kernel.now > limit and kernel.now > self._limit():  # the latter takes longer to say
                raise Unending("liveness: the run does not end after its faults did", kernel.story())
            if not kernel.step():
                raise Unending("liveness: nothing is scheduled any more", kernel.story())

    def _limit(self) -> int:
        """When the run must have ended.  Elements are finite in number, and each is redriven for good once; so are the
        timers of a workload, and one that fires again and again at one time is found (I16)."""
        redriven = self.store.truth.redriven - self._redriven_before
        fired = min(FIRED_LIMIT, self._fired() - self._fired_before)
        return self._until + CONVERGE_LIMIT_US + redriven * REDRIVEN_LIMIT_US + fired * FIRED_LIMIT_US

    def _fired(self) -> int:
        return sum(self.kernel.probes[f"{kind} timer fired"] for kind in TIMER_KINDS)

    def held(self) -> str:
        """A hold of user code that the run waits for, in words."""
        for actor, core in self.processes[-1].worker.actors.intervals():
            for what, at, detail in core.blame():
                if what == "hold":
                    return f"{actor.owner} holds its watermark at {format_time(at)} for {detail}"
        return ""

    def launch(self) -> None:
        """A new process takes over."""
        for older in self.processes:
            self.kernel.at(self.kernel.now + self.superseded_limit_us, self._check_ended, older)
        graph, span_us = self.version()
        left = self.processes[-1].left if self.processes else {}
        process = Process(self, len(self.processes) + 1, graph, left)
        self.processes.append(process)
        if graph is not self.graph:
            self.kernel.probes["process with another version"] += 1
        if span_us is not None:
            self.kernel.at(self.kernel.now + span_us, self._stop, process)
        process.start()

    def roll(self) -> None:
        """A rolling restart: a new process starts while the old one goes on, until it finds out."""
        if self.processes[-1].worker.serving and not self.processes[-1].dead:
            self.kernel.probes["process rolled"] += 1
            self.launch()

    def _check_ended(self, process: Process) -> None:
        """Check that a superseded process finds out and ends, also when it has nothing to do (I5)."""
        awake_since = self.kernel.now - process.frozen_until
        if not process.dead and awake_since < self.superseded_limit_us:
            self.kernel.at(self.kernel.now + self.superseded_limit_us - awake_since, self._check_ended, process)
        elif not process.dead and self.processes[-1].worker.serving:
            raise Violation(f"I5: p{process.number} was superseded, and still runs", self.kernel.story())

    def _stop(self, process: Process) -> None:
        """Somebody stops the process in order, to start another version."""
        if process is self.processes[-1] and process.worker.serving and not process.dead:
            self._end_in_order(process)
        elif process is self.processes[-1]:  # it does not serve yet, or is dead and will be replaced
            self.kernel.at(self.kernel.now + SECOND // 10, self._stop, process)

    def _end_in_order(self, process: Process) -> None:
        process.end_in_order()
        self.on_orderly_end()
        self.launch()

    def _heal(self) -> None:
        self.kernel.trace("heal")
        self._redriven_before, self._fired_before = self.store.truth.redriven, self._fired()
        self.nemesis.heal()

    def _mend(self) -> None:
        self.on_mend()
        newest = self.processes[-1]
        if newest.worker.serving and not newest.dead and newest.condemned():
            # Mended code comes with a new process; only an orderly end lets what has killed others be tried again.
            self.kernel.probes["ended in order"] += 1
            self._end_in_order(newest)
        self.kernel.at(self.kernel.now + SECOND, self._mend)

    # --- what processes tell ----------------------------------------------------------------------------------

    def crashed(self, process: Process) -> None:
        """Replace the newest process; a zombie that dies is not missed."""
        self.crashes += 1
        if process is self.processes[-1]:
            self.kernel.at(self.kernel.now + self.nemesis.delay_us("restart"), self.launch)
        else:
            self.kernel.probes["zombie ended"] += 1

    def overtaken(self, process: Process) -> None:
        """A new process starts while the old one is frozen."""
        if process is self.processes[-1]:
            self.kernel.trace(f"p{process.number} is overtaken")
            self.kernel.probes["zombie overtaken"] += 1
            self.launch()

    def ended(self, process: Process) -> None:
        """The newest process is done: so is the run, unless work is held open."""
        self.kernel.trace(f"p{process.number} is done")
        process.dead = True
        if process is not self.processes[-1]:
            return
        if self.hold_open():
            self.kernel.at(self._mend_at, self.launch)
        else:
            self._finished = True
