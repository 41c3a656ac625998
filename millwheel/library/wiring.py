"""The place of an operator between streams: what it reads, the stateless steps in front, and where its results go.

Lives here: `Operation`, which a chain adds to a pipeline, and `Wiring`, which the operator's hooks use.
Never here: state, windows.  Invariant: a value that is for two inputs of one operator under one key is delivered once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from millwheel.api.computation import Computation
from millwheel.api.context import Context
from millwheel.api.pipeline import subscribe
from millwheel.api.stream import Stream
from millwheel.api.table import Table
from millwheel.api.typed import Input
from millwheel.coders import Coder
from millwheel.errors import WiringError
from millwheel.library.steps import DROPPED, Filter, Map, Steps, changes_values, many, one

R = TypeVar("R")
V = TypeVar("V")

KeyOf = Callable[[Any], str | None]


class Inlet(NamedTuple):
    """A stream, and the steps that its values go through."""

    stream: Stream[Any]
    steps: Steps


def coder_of(feeds: Sequence[Inlet]) -> Coder[Any] | None:
    """The coder of values behind their steps: the stream's, or the one given to the last `map`; None: nobody knows."""
    coders = [_coder_behind(feed) for feed in feeds]
    known = {coder.fingerprint for coder in coders if coder is not None}
    return coders[0] if None not in coders and len(known) == 1 else None


def _coder_behind(feed: Inlet) -> Coder[Any] | None:
    for step in reversed(feed.steps):
        if not isinstance(step, Filter):
            return step.coder if isinstance(step, Map) else None
    return feed.stream.coder


def known(coder: Coder[V] | None) -> Coder[V]:
    """The coder of values that a step stores, or that go on to another one; raises `WiringError` for None."""
    if coder is None:
        raise WiringError(
            "the coder of values that this step stores or passes on is not known: give it to the last map, "
            "map(..., coder=...), or end the chain in a stream by .to(...) and go on from there"
        )
    return coder


class Port(NamedTuple):
    """One feed of an operator's input `number`, and the key of each value; the inputs of a join are 0 and 1."""

    feed: Inlet
    key: KeyOf
    number: int = 0
    key_version: str = ""


class _Side:
    """A port whose steps are one function."""

    def __init__(self, port: Port) -> None:
        self.stream = port.feed.stream
        self.number = port.number
        self.run = one(port.feed.steps) if port.feed.steps else None
        self.declared = port.key
        self.key_version = port.key_version

    def key(self, value: Any) -> str | None:
        """The key of a value of the stream; None: it is not for this side."""
        if self.run is not None:
            value = self.run(value)
        return None if value is DROPPED else self.declared(value)


class Inputs:
    """Every port of one operator."""

    def __init__(self, ports: Sequence[Port]) -> None:
        self._sides: dict[str, list[_Side]] = {}
        for port in ports:
            self._sides.setdefault(port.feed.stream.name, []).append(_Side(port))
        self.plain = len({port.number for port in ports}) == 1 and not any(
            len(sides) > 1 for sides in self._sides.values()
        ) and not any(changes_values(port.feed.steps) for port in ports)  # fmt: skip
        """Every record's value is, as it is, one of input 0: hooks need not `take` it."""

    def subscriptions(self) -> list[Input[Any]]:
        """What to give to `Pipeline.add`."""
        return [
            subscribe(side.stream, _extractor(sides[: place + 1]), key_version=side.key_version)
            for sides in self._sides.values()
            for place, side in enumerate(sides)
        ]

    def take(self, stream: str, key: str, value: Any) -> list[tuple[int, Any]]:
        """(input, value) of each input that a record of `stream` is for."""
        sides = self._sides[stream]
        if len(sides) > 1:
            sides = [side for side in sides if side.key(value) == key]
        return [(side.number, value if side.run is None else side.run(value)) for side in sides]


def _extractor(sides: Sequence[_Side]) -> KeyOf:
    """The key extractor of the last of `sides`; what an earlier one of the same stream has brought is not for it."""
    *earlier, side = sides
    if not earlier:
        return side.key if side.run is not None else side.declared

    def key(value: Any) -> str | None:
        found = side.key(value)
        return None if any(other.key(value) == found for other in earlier) else found

    return key


Emit = Callable[[Context, R, int | None], None]
"""Produce a result, at the time of the current record or timer unless one is given, us."""


def emitter(stream: Stream[Any], steps: Steps) -> Emit[Any]:
    """Results go through `steps` to `stream`."""

    def produce(context: Context, value: Any, timestamp: int | None = None) -> None:
        context.produce(stream, value, timestamp)

    def stepwise(context: Context, value: Any, timestamp: int | None = None) -> None:
        for each in many(steps, value):
            context.produce(stream, each, timestamp)

    return stepwise if steps else produce


def no_results(context: Context, value: Any, timestamp: int | None = None) -> None:
    """What a sink emits."""
    raise WiringError("a sink has no results")


class Wiring(NamedTuple, Generic[R]):
    """What an operator is made with."""

    inputs: Inputs
    emit: Emit[R]


@dataclass(frozen=True, kw_only=True)
class Operation(Generic[R]):
    """One keyed step: a computation to be, and what the pipeline must know of it.

    `kind` ends its name when the user gives none.  `make` gives a new computation, which must not do work yet.  `output`
    is the coder of its results, for a stream that nobody named.  It is None when it is not known, or when there are no
    results.
    """

    kind: str
    make: Callable[[Wiring[R]], Computation[Any]]
    output: Coder[R] | None
    side_outputs: tuple[Stream[Any], ...] = ()
    tables: tuple[Table[Any], ...] = ()
    strict_timestamps: bool = True
    waits: bool = False
    """Its results wait until the watermark is beyond their time."""
    settings: dict[str, Any] = field(default_factory=dict)


class Operator(Computation[Any], Generic[R]):
    """Base of the library's computations: it knows its wiring."""

    def __init__(self, wiring: Wiring[R]) -> None:
        self.inputs = wiring.inputs
        self.emit = wiring.emit


def meant(coder: Coder[V], meaning: str) -> Coder[V]:
    """`coder` for state of this `meaning`: the store refuses the state of an operator that meant something else by it.

    >>> from millwheel import JsonCoder
    >>> meant(JsonCoder(int), "count per day").fingerprint
    'json/1:int:…'
    """
    found = copy(coder)
    found.fingerprint = f"{coder.fingerprint} as {meaning}"
    return found
