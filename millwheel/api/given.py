"""Checks of what a user gives to a pipeline, made where it is given, so that the error shows the line of the mistake.

Lives here: checks of single arguments.  All of them raise `WiringError`.  Never here: checks that need the whole graph.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from millwheel.api.computation import Computation, cells_of, dropped_of
from millwheel.api.stream import Stream
from millwheel.api.table import Table
from millwheel.api.typed import Input
from millwheel.coders import Coder, no_coder, reads_of, schema_of
from millwheel.errors import WiringError
from millwheel.graph import Evolution, check_name
from millwheel.rows import check_types
from millwheel.source import Source


def runs_later(function: object) -> bool:
    """Whether a call of it would do nothing yet: it is async, or yields."""
    return (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    )


def check_stream(stream: object, where: str) -> None:
    """A `Stream` with a name and a coder."""
    if not isinstance(stream, Stream):
        raise WiringError(f"{where} needs a Stream, got {stream!r:.80}; for example Stream('words', TextCoder())")
    check_name("stream", stream.name)
    if isinstance(stream.coder, type) or not isinstance(stream.coder, Coder):
        raise WiringError(f"stream {stream.name!r} needs a coder, got {no_coder(stream.coder)}")


def check_source(source: Any) -> None:
    """Something that can be asked for partitions."""
    if isinstance(source, type) or not callable(getattr(source, "discover", None)):
        raise WiringError(f"inject needs a source, got {source!r:.80}; for example FileSource('lines', 'input/*.txt')")
    if Source not in type(source).__mro__:
        raise WiringError(
            f"{type(source).__name__} is no subclass of millwheel.source.Source: what is optional is missing"
        )
    check_name("source", source.name)


def check_percentile(percentile: object, source: str) -> None:
    """A share of a source's partitions, or None."""
    if percentile is not None and not (isinstance(percentile, float) and 0.5 <= percentile < 1):
        raise WiringError(
            f"source {source!r}: percentile is {percentile!r:.80}; give a share of at least 0.5 and below 1, such as 0.99"
        )


def check_key_version(version: object, where: str) -> None:
    """A text that names a version of a key extractor."""
    if not isinstance(version, str) or len(version.encode(errors="replace")) > 100:
        raise WiringError(f"{where}: key_version is {version!r:.80}; give a text of up to 100 bytes, such as '2'")


def check_inputs(inputs: object, computation: str) -> tuple[Input[Any], ...]:
    """Subscriptions."""
    if not isinstance(inputs, Iterable) or isinstance(inputs, str | Input | Stream):
        raise WiringError(
            f"computation {computation!r}: inputs must be a list, got {inputs!r:.80}; write [subscribe(stream, key=...)]"
        )
    found = tuple(inputs)
    for given in found:
        if not isinstance(given, Input):
            raise WiringError(
                f"computation {computation!r}: {given!r:.80} is no input; write subscribe(stream, key=function)"
            )
    return found


def check_outputs(outputs: object, computation: str) -> tuple[Stream[Any], ...]:
    """Streams."""
    if not isinstance(outputs, Iterable) or isinstance(outputs, str | Stream):
        raise WiringError(f"computation {computation!r}: outputs must be a list of streams, got {outputs!r:.80}")
    found = tuple(outputs)
    for stream in found:
        check_stream(stream, f"each output of computation {computation!r}")
    return found


def check_computation(computation: Any) -> type[Computation[Any]]:
    """The class of what user code gives: a subclass of `Computation` that can handle records, or a factory of one."""
    if isinstance(computation, Computation) or not callable(computation):
        name = type(computation).__name__
        raise WiringError(f"add needs a class or a factory, got {computation!r:.80}; write add({name}, ...) for one")
    is_class = isinstance(computation, type)
    if is_class and not issubclass(computation, Computation):
        raise WiringError(f"{computation.__name__} is not a Computation: subclass millwheel.Computation")
    _check_no_arguments(computation)
    made: Any = None if is_class else computation()
    if isinstance(made, type):
        raise WiringError(f"the factory gives the class {made.__name__}: write add({made.__name__}, ...)")
    class_: type[Any] = computation if is_class else type(made)
    if not issubclass(class_, Computation):
        raise WiringError(f"{class_.__name__} is not a Computation: subclass millwheel.Computation")
    if class_.ProcessRecord is Computation.ProcessRecord:
        raise WiringError(f"{class_.__name__} must define ProcessRecord(self, context, record)")
    for name in ("ProcessRecord", "ProcessTimer", "setup", "teardown", "has_room"):
        hook = getattr(class_, name)
        if not callable(hook):
            raise WiringError(
                f"{class_.__name__}.{name} is {hook!r:.80}, and is called: make it a method, or rename it"
            )
        if runs_later(hook):
            raise WiringError(
                f"{class_.__name__}.{name} is async or yields: a call of it would do nothing; "
                "make it a plain function, and produce through the context"
            )
    for name, cell in cells_of(class_).items():
        if cell.name != name:
            raise WiringError(
                f"{class_.__name__}.{name} is a cell that has the name {cell.name!r} too: both would be one state; "
                "declare a cell for each"
            )
    _check_arguments(class_, "ProcessRecord", "record")
    _check_arguments(class_, "ProcessTimer", "timer")
    return class_


def _check_no_arguments(factory: Any) -> None:
    """It is called without arguments, once in each process."""
    try:
        signature = inspect.signature(factory)
    except ValueError:  # some that are not written in Python do not say
        return
    try:
        signature.bind()
    except TypeError:
        name, needed = getattr(factory, "__name__", repr(factory)), ", ".join(signature.parameters)
        if isinstance(factory, type):
            raise WiringError(
                f"{name}({needed}) is called without arguments to make a computation: write add(lambda: {name}(...), ...)"
            ) from None
        raise WiringError(
            f"{name}({needed}) is called without arguments to make a computation: give a factory that needs none, or a "
            "class; a hook is the method ProcessRecord of a class"
        ) from None


def _check_arguments(class_: type[Any], hook: str, what: str) -> None:
    """Without this every record would fail."""
    function = inspect.getattr_static(class_, hook)
    if not inspect.isfunction(function):
        return
    signature = inspect.signature(function)
    try:
        signature.bind(None, None, None)
    except TypeError:
        taken = ", ".join(signature.parameters)
        raise WiringError(
            f"{class_.__name__}.{hook}({taken}) is called with a context and a {what}: write {hook}(self, context, {what})"
        ) from None


def evolution_of(class_: type[Computation[Any]], computation: str, formerly: str | None) -> Evolution:
    """What a computation says of its earlier versions."""
    cells, dropped = cells_of(class_), dropped_of(class_)
    if formerly is not None:
        check_name("computation", formerly)
    names = {name: cell.formerly for name, cell in cells.items() if cell.formerly}
    for name, old in names.items():
        if old in cells or old in dropped or [*names.values()].count(old) > 1:
            raise WiringError(
                f"computation {computation!r}: cell {name!r} was formerly {old!r}, which is declared for something else too"
            )
    return Evolution(
        formerly,
        names,
        dropped,
        {name: schema for name, cell in cells.items() if (schema := schema_of(cell.coder))},
        {name: tuple(f"{cell.kind}:{old}" for old in reads_of(cell.coder)) for name, cell in cells.items()},
    )


def check_table(table: object) -> None:
    """A sink table with columns and a key among them."""
    if not isinstance(table, Table):
        raise WiringError(
            f"sink needs a Table, got {table!r:.80}; for example Table('out', {{'k': 'text'}}, key=('k',))"
        )
    check_name("table", table.name)
    if not isinstance(table.types, Mapping):
        raise WiringError(f"sink table {table.name!r}: types maps columns to SQL types, got {table.types!r:.80}")
    columns = table.spec().columns if isinstance(table.key, tuple | list) else {}
    if not isinstance(table.key, tuple | list):
        raise WiringError(
            f"sink table {table.name!r}: key must be a tuple of column names, got {table.key!r:.80}; write key=('k',)"
        )
    for name in (*columns, *table.key):
        if not isinstance(name, str):
            raise WiringError(f"sink table {table.name!r}: columns and key are names, got {name!r:.80}")
    missing = [column for column in table.key if column not in columns]
    if missing or not table.key:
        raise WiringError(f"sink table {table.name!r}: key columns {missing or '()'} are not among its columns")
    check_types(table.spec())


def check_split_list(split_keys: object, computation: str) -> None:
    """Refuse a text as the list of split keys, because it would be cut into its letters."""
    if isinstance(split_keys, str) or not isinstance(split_keys, Iterable):
        raise WiringError(f"computation {computation!r}: split_keys must be a list of keys, got {split_keys!r:.80}")
