"""A worker and a controller in one process, on one store.

Lives here: the choice of these two hosts and of their transport.  Never here: how they run, which is `shell`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from millwheel import limits
from millwheel.api.table import Table
from millwheel.core.interval.events import Inherited
from millwheel.errors import SourceError
from millwheel.graph import Graph
from millwheel.host.barriers import WentBack
from millwheel.host.controller import ControllerHost
from millwheel.host.messages import Message
from millwheel.host.over import Tolerance
from millwheel.host.progress import Progress, explain
from millwheel.host.tally import Tally
from millwheel.host.worker import WorkerHost
from millwheel.ids import IntervalId
from millwheel.ports import Store, Transport
from millwheel.runtime.failures import OnFailure, log_failure
from millwheel.runtime.shell import Shell, wall_clock_us
from millwheel.transport.local import LocalTransport

WORKER = "worker"
CONTROLLER = "controller"


class EmbeddedRun(Shell):
    """One run of a pipeline in this process."""

    def __init__(
        self,
        graph: Graph,
        store: Store,
        tables: Mapping[str, Table],
        clock: Callable[[], int] = wall_clock_us,
        on_failure: OnFailure = log_failure,
        tolerance: Tolerance | None = None,
        transport: Transport[Message] | None = None,
        cache_bytes: int = limits.CACHE_LEAST_BYTES,
    ) -> None:
        tally = Tally()

        def begin(inherited: Mapping[IntervalId, Inherited]) -> None:
            worker = WorkerHost(
                graph=graph,
                name=WORKER,
                controller=CONTROLLER,
                tolerance=tolerance,
                first_records=limits.FIRST_WORK_RECORDS,
                inherited=inherited,
                tally=tally,
                cache_bytes=cache_bytes,
            )
            super(EmbeddedRun, self).__init__(
                store=store,
                transport=transport or LocalTransport(),
                worker=worker,
                others=[ControllerHost([WORKER], CONTROLLER, graph.snapshot_every_us, durable=graph.durable)],
                tables=tables,
                clock=clock,
                on_failure=on_failure,
            )

        self._begin = begin
        self._told = False
        self._lost: BaseException | None = None
        begin({})

    def stop(self) -> None:
        """See `Shell.stop`; also while the run goes back."""
        self._told = True
        super().stop()

    def fail(self, error: BaseException) -> None:
        """See `Shell.fail`; also while the run goes back."""
        self._lost = self._lost or error
        super().fail(error)

    async def run(self) -> Progress:
        """Run until every source is finished and everything is committed and folded, or `stop` is called.

        Raises `Fenced` when another run takes the store over, `SourceError`, `StoreError`, `IncompatibleStore`.
        """
        while True:
            try:
                await self.serve()
            except WentBack as back:
                self.worker.actors.add_up()
                # Other hosts, in the same process: as after a crash, but for what they know, and what was counted.
                self._begin(back.inherited)
                if self._told:  # by now: what came before the line above, that forgot
                    self.stop()
                if self._lost is not None:
                    self.fail(self._lost)
            else:
                return self.progress()

    def explain(self, computation: str) -> list[tuple[str, str, int, str]]:
        """(who, what, timestamp us, detail) of everything that holds `computation`'s watermark, oldest first."""
        return explain(self.worker, computation)


def check_sources(graph: Graph) -> None:
    """A pipeline without a source would wait for ever."""
    if not graph.sources:
        raise SourceError(f"pipeline {graph.name!r} has no source: call pipeline.inject(source, into=stream)")
