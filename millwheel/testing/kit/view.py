"""What a run has left in the store: outputs, state, sink rows, quarantine.

Lives here: `Results`, which reads committed checkpoints, folded or not, and the tap that makes streams visible.  Never here:
soft state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Generic, overload

import msgspec
from typing_extensions import TypeVar

from millwheel.api.computation import Computation, cells_of
from millwheel.api.context import Context
from millwheel.api.pipeline import Pipeline
from millwheel.api.state import ListCell, decoded_state
from millwheel.api.stream import Stream
from millwheel.bundles import decode_checkpoint
from millwheel.coders import BytesCoder, Coder, JsonCoder
from millwheel.errors import WiringError
from millwheel.graph import ComputationSpec, Graph, Settings, SourceSpec, StreamSpec, SubscriptionSpec
from millwheel.model import Record
from millwheel.ports import QuarantineRow
from millwheel.source import Source
from millwheel.work import Slot
from millwheel_storage.fold import fifo_rows, fold, quarantine_row
from millwheel_storage.memory import MemoryStore
from millwheel_storage.schema.evolution import places_of

TAP: Final = "millwheel-tap-of-"


T = TypeVar("T", default=Any)


class Out(msgspec.Struct, Generic[T], frozen=True, order=True):
    """One record on a stream: `timestamp` in us, the decoded `value`."""

    timestamp: int
    value: T


class _Tap(Computation[Any]):
    """Keeps everything that goes over a stream, by exactly-once delivery as for anybody else."""

    times = ListCell(JsonCoder(int))
    values = ListCell(BytesCoder())

    def __init__(self, coder: Coder[Any]) -> None:
        self._coder = coder

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        """Append."""
        self.times.append(record.timestamp)
        self.values.append(self._coder.encode(record.value))


def tapped(pipeline: Pipeline, sources: Mapping[str, Source], streams: Mapping[str, Coder[Any]] | None = None) -> Graph:
    """The pipeline's graph with these sources, by stream, instead of its own, and a tap on every output stream.

    A stream that no computation produces is fed by a source of `sources`; raises `WiringError` for one that is missing.
    """
    declared, computations = pipeline.declared()
    specs = {name: StreamSpec(name, coder) for name, coder in (streams or {}).items()} | declared
    for name in dict.fromkeys([output for spec in computations.values() for output in spec.outputs]):
        computations[TAP + name] = _tap(name, specs[name].coder)
    injected = {source.name: SourceSpec(source.name, stream, source) for stream, source in sources.items()}
    tables = tuple(table.spec() for table in pipeline.tables.values())
    return pipeline.checked(Graph(pipeline.name, specs, computations, injected, tables))


def _tap(stream: str, coder: Coder[Any]) -> ComputationSpec:
    name = TAP + stream
    subscription = SubscriptionSpec(f"{name}<{stream}", stream, name, lambda _: "")
    cells = {cell: declared.fingerprint for cell, declared in cells_of(_Tap).items()}
    return ComputationSpec(name, lambda: _Tap(coder), (subscription,), (), Settings(), cells)


def _check_pipeline(given: object) -> None:
    if not isinstance(given, Pipeline):
        made = ": call it, with brackets" if callable(given) else ""
        raise WiringError(f"a test needs a Pipeline, got {given!r:.80}{made}")


def inputs_of(pipeline: Pipeline) -> list[str]:
    """Streams that come from outside: subscribed to, and produced by no computation."""
    _check_pipeline(pipeline)
    _, computations = pipeline.declared()
    produced = {output for spec in computations.values() for output in spec.outputs}
    subscribed = [s.stream for spec in computations.values() for s in spec.inputs]
    return [name for name in dict.fromkeys(subscribed) if name not in produced]


class Results:
    """What is committed at the moment of each call."""

    def __init__(self, graph: Graph, store: MemoryStore) -> None:
        self._graph = graph
        self._store = store

    @overload
    def outputs(self, stream: Stream[T]) -> list[Out[T]]: ...
    @overload
    def outputs(self, stream: str) -> list[Out[Any]]: ...
    def outputs(self, stream: Stream[Any] | str) -> list[Out[Any]]:
        """Everything produced on `stream` (a `Stream` or its name) so far, in the order of arrival."""
        name = stream if isinstance(stream, str) else stream.name
        if TAP + name not in self._graph.computations:
            raise WiringError(f"no computation produces stream {name!r}")
        cells = self._cells(TAP + name, "")
        decode = self._graph.streams[name].coder.decode
        times, values = ([v for (c, e), v in sorted(cells.items()) if c == cell and e] for cell in ("times", "values"))
        return [Out(int(time), decode(value)) for time, value in zip(times, values, strict=True)]

    def state(self, computation: str, key: str) -> dict[str, Any]:
        """Cell name to value of one key: the value, a list or a dict; cells that are not set are absent."""
        self._check(computation)
        cells = self._cells(computation, key)
        declared = cells_of(type(self._graph.computations[computation].factory()))
        places = places_of(self._store.shape).get(computation, {}) if self._store.shape else {}
        names = {place: cell for cell, place in places.items()}
        return decoded_state(declared, {(names.get(cell, cell), entry): it for (cell, entry), it in cells.items()})

    def states(self, computation: str) -> dict[str, dict[str, Any]]:
        """`state` of every key that has some."""
        self._check(computation)
        keys = set(self._store.key_state.get(computation, {}))
        for place in self._store.log:
            if self._store.intervals[place[0]].computation == computation:
                keys.update(decode_checkpoint(self._store.log[place].payload).state.keys())
        found = {key: self.state(computation, key) for key in sorted(keys)}
        return {key: state for key, state in found.items() if state}

    def rows(self, table: Any) -> list[dict[str, Any]]:
        """Rows of a sink table (a `Table` or its name), in key order."""
        name = table if isinstance(table, str) else table.name
        if name not in self._store.sinks:
            raise WiringError(f"no sink table {name!r}; there are {sorted(self._store.sinks)}")
        stored = self._store.sinks[name]
        return [dict(stored[key]) for key in sorted(stored)]

    def quarantined(self) -> list[QuarantineRow]:
        """Elements of every quarantine, by computation and key, in order."""
        found = []
        for name in sorted(self._graph.computations):
            for key in sorted(self._quarantined_keys(name)):
                stored = self._store.quarantine.get((name, key), [])
                rows = fifo_rows(stored, (image for _, image in self._log(name)), key)
                found += [quarantine_row(name, place, entry) for place, entry in enumerate(rows)]
        return found

    def _quarantined_keys(self, computation: str) -> set[str]:
        keys = {key for name, key in self._store.quarantine if name == computation}
        return keys.union(*({entry.key for entry in image.quarantined} for _, image in self._log(computation)))

    def _check(self, computation: str) -> None:
        if computation not in self._graph.computations:
            known = [name for name in self._graph.computations if not name.startswith(TAP)]
            raise WiringError(f"no computation {computation!r}; there are {known}")

    def _log(self, computation: str) -> list[tuple[int, Any]]:
        places = [p for p in sorted(self._store.log) if self._store.intervals[p[0]].computation == computation]
        return [(place[0], decode_checkpoint(self._store.log[place].payload)) for place in places]

    def _cells(self, computation: str, key: str) -> dict[Slot, bytes]:
        cells = dict(self._store.key_state.get(computation, {}).get(key, {}))
        folded = fold(image for _, image in self._log(computation))
        if key in folded.forgotten:
            cells = {}
        for slot, value in folded.cells_of(key).items():
            if value is None:
                cells.pop(slot, None)
            else:
                cells[slot] = value
        return cells
