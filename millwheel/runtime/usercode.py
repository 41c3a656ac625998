"""Everything in a process that the user wrote: hooks and sources.

Lives here: performing what a host asks of hooks and sources.  Both shells use it, so the simulator runs what ships.  Never
here: when something happens.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, Final

import msgspec

from millwheel.api.producer import Output
from millwheel.api.table import Table
from millwheel.errors import HookExited, InvariantError, MillwheelError, PipelineFailed
from millwheel.escapes import escaped
from millwheel.graph import Graph
from millwheel.host.alphabet import Discover, Discovery, Prepare, ReadRows, Release, Resume, RowsArrived, RunHooks, Seek
from millwheel.ids import IntervalId
from millwheel.model import whole_time
from millwheel.ports import AnnouncingPartition, ServedPartition, SourcePartition
from millwheel.runtime.executor import Executor, output_of
from millwheel.runtime.failures import Failures
from millwheel.runtime.sources import read_rows
from millwheel.search import BlockingCall, Search, Step
from millwheel.source import announces
from millwheel.traces import ending, place, shortened
from millwheel.work import InvocationOutcome

PASSES: Final = (MillwheelError, InvariantError, KeyboardInterrupt)
"""What goes on as it is: it says itself what is wrong, or is no error of user code."""


@contextlib.contextmanager
def _blamed(what: str) -> Iterator[None]:
    """`PipelineFailed` for what user code raises outside of its hooks.  No key is at fault then, so it ends the run."""
    try:
        yield
    except PASSES:
        raise
    except BaseException as error:
        raise _failed(what, error) from error


def _failed(what: str, error: BaseException) -> PipelineFailed:
    return PipelineFailed(f"{what}: {ending(error)}", shortened(error))


def hook_exited(computation: str, end: BaseException) -> HookExited:
    """What a hook has done that no quarantine takes, because it is no `Exception`."""
    where = place(end)
    at = f" at {where}" if where else ""
    if isinstance(end, SystemExit):
        what = f"called sys.exit({end.code!r}){at}, which ends the process"
    else:
        what = f"raised {type(end).__name__}{at}, which is no Exception and ends the process: {end}"
    return HookExited(
        f"{computation}: a hook has {what}; start it again, and after some such ends the key at fault is quarantined; "
        "to give up a record, raise an error instead"
    )


def _of_source(name: str) -> str:
    return f"source {name!r} has failed"


def _source(name: str) -> contextlib.AbstractContextManager[None]:
    return _blamed(_of_source(name))


async def _served(name: str, partition: ServedPartition) -> None:
    """Let clients in; the error that ends this names the source."""
    try:
        await partition.serve()
    except (*PASSES, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise _failed(_of_source(name), error) from error


class UserCode:
    """The computations and sources of one graph in this process.  `clock` gives wall time, us."""

    executor_type: type[Executor] = Executor
    """What runs hooks; the simulator's looks at each."""

    def __init__(
        self,
        *,
        graph: Graph,
        tables: Mapping[str, Table],
        clock: Callable[[], int],
        failures: Failures | None = None,
        prepared: Callable[[Executor], None] | None = None,
    ) -> None:
        self._graph = graph
        self._tables = tables
        self._clock = clock
        self._failures = failures
        """Told of hooks that fail."""
        self._prepared = prepared
        """Called with each executor before it runs anything."""
        self._executors: dict[str, Executor] = {}
        self._outputs: dict[str, Output] = {}
        self._known: dict[str, set[str]] = {name: set() for name in graph.sources}
        self._searches: dict[str, Search] = {}
        self._asked_at: dict[str, int] = {}
        self._found: dict[tuple[str, str], SourcePartition] = {}
        self.partitions: dict[IntervalId, tuple[str, SourcePartition]] = {}
        """By interval: the source, and the partition that is read."""

    def prepare(self, wanted: Prepare) -> None:
        """Make every computation, and call its `setup`."""
        graph, subscriptions = self._graph, wanted.subscriptions
        for name, spec in graph.computations.items():
            places = wanted.places.get(name, {})
            with _blamed(f"computation {name!r} cannot be made"):
                executor = self._executors[name] = self.executor_type(
                    spec=spec, graph=graph, subscriptions=subscriptions, tables=self._tables, places=places
                )
            if self._failures is not None:
                executor.on_failure = self._failures.of(name)
            if self._prepared is not None:
                self._prepared(executor)
        for name, source in graph.sources.items():
            self._outputs[name] = output_of(graph, source.stream, subscriptions)

    def run(self, run: RunHooks) -> InvocationOutcome:
        """Run hooks."""
        return self._executors[run.computation].run(run.work)

    def discover(self, wanted: Discover) -> Discovery | Step:
        """Begin to search a source for new partitions.  Returns the first step of the search, or what it has found."""
        name = wanted.source
        source, self._asked_at[name] = self._graph.sources[name].source, self._clock()
        if wanted.earlier is not None:
            self._known[name] = set()  # this process may have had the source before, and lost it
            self._found = {place: partition for place, partition in self._found.items() if place[0] != name}
            with _source(name):
                source.recall(wanted.earlier)
        with _source(name):
            self._searches[name] = source.search(self._known[name])
        return self._search(name, None)

    def block(self, name: str, step: BlockingCall) -> Any:
        """What a search does that takes long, in a thread."""
        with _source(name):
            return step.call()

    def seek(self, wanted: Seek) -> Discovery | Step:
        """Go on with the search."""
        return self._search(wanted.source, wanted.answer)

    def _search(self, name: str, answer: Any) -> Discovery | Step:
        with _source(name):
            try:
                return self._searches[name].send(answer)
            except StopIteration as end:
                found: list[SourcePartition] = end.value
            source = self._graph.sources[name].source
            for partition in found:
                self._known[name].add(partition.name)
                self._found[name, partition.name] = partition
            named = tuple((partition.name, partition.fingerprint()) for partition in found)
            pending = whole_time(source.pending_watermark(), f"pending_watermark of source {name!r}")
            return Discovery(named, source.complete(), pending, self._asked_at[name])

    def server(self, interval: IntervalId) -> Coroutine[Any, Any, None] | None:
        """What lets outside clients bring rows to a partition, to be run beside everything else until it is released."""
        name, partition = self.partitions[interval]
        return _served(name, partition) if isinstance(partition, ServedPartition) else None

    def listen(self, interval: IntervalId, wake: Callable[[], None]) -> None:
        """Have a partition call `wake` when it has rows, if it is one that does."""
        name, partition = self.partitions[interval]
        if announces(self._graph.sources[name].source) and isinstance(partition, AnnouncingPartition):
            with _source(name):
                partition.announce_to(wake)

    def answer(self, interval: IntervalId, position: int) -> None:
        """The first rows of a partition are durable."""
        name, partition = self.partitions.get(interval, ("", None))
        if isinstance(partition, ServedPartition):
            with _source(name):
                partition.kept(position)

    def release(self, interval: IntervalId, finished: bool = True) -> None:
        """A partition is finished, or goes on in another process."""
        if interval not in self.partitions:
            return  # it was ended before this process could open it
        name, partition = self.partitions.pop(interval)
        with _source(name):
            partition.close()
            if finished:
                self._graph.sources[name].source.release(partition.name)

    def resume(self, wanted: Resume) -> int:
        """Go on with a partition where it stood; its watermark, us."""
        partition = self._found.pop((wanted.source, wanted.partition))
        position = wanted.position
        self.partitions[position.interval] = (wanted.source, partition)
        with _source(wanted.source):
            partition.resume(position.position, position.state)
            return whole_time(partition.watermark(), f"watermark of {partition.name!r}")

    def read(self, wanted: ReadRows) -> RowsArrived:
        """Read rows of a partition, keyed for their receivers."""
        name, partition = self.partitions[wanted.interval]
        source, asked_at = self._graph.sources[name].source, self._clock()
        try:  # a context manager would cost more than a read that finds nothing
            before = dict(source.rejections())
            rows = read_rows(partition, self._outputs[name], wanted.limit, source.reject, source.record_id, wanted.upto)
        except PASSES:
            raise
        except BaseException as error:
            raise _failed(_of_source(name), error) from error
        if rows.rejected:
            rows = msgspec.structs.replace(rows, kinds=Counter(source.rejections()) - Counter(before))
        return RowsArrived(wanted.interval, wanted.sequencer, rows, asked_at)

    def describe(self, call: object) -> str:
        """What a call that runs now is, for people."""
        match call:
            case RunHooks(computation):
                key = self._executors[computation].key
                if key is not None:
                    return f"a hook of {computation} for key '{escaped(key)}'"
                return f"{computation}.has_room"  # it is asked after the last hook, under no key
            case ReadRows(interval):
                return f"a read of source {self.partitions[interval][0]}"
            case Prepare():
                return "the setup of a computation"
            case Release():
                return "the close of a source's partition"
            case Discover(source) | Seek(source) | Resume(source):
                return f"a search of source {source}"
            case _:
                return str(call)

    def close(self) -> None:
        """Close every partition, and call every `teardown`.  The first that fails ends the run, after all were called."""
        ends: list[tuple[str, Callable[[], None]]] = []
        ends += [(_of_source(name), partition.close) for name, partition in self.partitions.values()]
        for name, executor in self._executors.items():
            ends.append((f"the teardown of computation {name!r} has failed", executor.teardown))
        errors: list[Exception] = []
        for what, end in ends:
            try:
                with _blamed(what):
                    end()
            except (MillwheelError, InvariantError) as error:
                errors.append(error)
        if errors:
            raise errors[0]
