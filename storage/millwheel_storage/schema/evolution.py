"""What a new version of a pipeline changes in a store, decided before anything is written.

Lives here: `Plan`, which both stores carry out and `millwheel check` prints.  Never here: I/O.  Additions are accepted.  A
change that could not read old bytes is refused.  Renames must be declared, and nothing is deleted unless that is declared.

A renamed cell keeps its *place*, the name under which its values are stored, so nothing is rewritten.  A place is used once,
also when its cell was dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from millwheel.errors import IncompatibleStore
from millwheel.schemas import Unreadable, changes
from millwheel.shape import PUBLISH_PREFIX, PipelineShape
from millwheel_storage.fold import Folded
from millwheel_storage.schema import drops as dropping
from millwheel_storage.schema import handbacks as handing_back
from millwheel_storage.schema.drops import Drop
from millwheel_storage.schema.handbacks import Handback
from millwheel_storage.schema.handovers import Handover, handovers, why_gone
from millwheel_storage.schema.recalls import Recall, recalls
from millwheel_storage.schema.recuts import Recut, recuts, told

CELL = "cell:"
COMPUTATION = "computation:"

MEANS: Final = " as "
"""What stands in a fingerprint between a coder and the meaning of what it writes; see `meant` of the library."""

_TYPES: Final = re.compile(r"\b(json/1|msgpack/1):.*?:[0-9a-f]{12}\b")
"""A protocol with the name and the hash of a type behind it, in a fingerprint."""


class StoredCell(NamedTuple):
    """A cell that the store knows: its computation, by the new name, its name and the place of its values."""

    computation: str
    name: str
    place: str

    @property
    def path(self) -> str:
        """As shapes write it."""
        return f"{self.computation}.{self.name}"


class Plan(msgspec.Struct):
    """What opening a store will do, or why it will not."""

    shape: PipelineShape
    """To be remembered; without the cells that go."""
    refusals: list[str] = []
    changes: list[str] = []
    doubts: list[str] = []
    """What whoever starts it is warned of."""
    renamed: dict[str, str] = {}
    """Computations, by old name."""
    subscriptions: dict[str, str] = {}
    """Their subscriptions, and those that combiners take over, by old name."""
    handovers: list[Handover] = []
    """Computations that get a combiner."""
    handbacks: list[Handback] = []
    """Computations that have no combiner any more."""
    recalls: list[Recall] = []
    """Aggregations of the library that have no combiner any more."""
    recuts: list[Recut] = []
    """Computations whose intervals begin at other keys."""
    drops: list[Drop] = []
    """Computations and inputs that are declared to go, and what is left when a combiner has handed all back."""
    dropped: list[StoredCell] = []
    """Cells that are declared to go."""
    missing: list[StoredCell] = []
    """Cells that are not in the code any more; `settle` judges them."""

    def settle(self, holders: Mapping[StoredCell, int]) -> None:
        """Judge cells that are missing or dropped, by the number of keys that hold them."""
        for cell in self.dropped:
            self.changes.append(f"cell {cell.path!r} is dropped, which {_keys(holders[cell])}")
        for cell in self.missing:
            if holders[cell]:
                self.refusals.append(
                    f"cell {cell.path!r} is not in the code any more, and {_keys(holders[cell])} it: put it back, rename it "
                    f"with formerly={cell.name!r}, or drop it with `{cell.name} = DroppedCell()` in its class"
                )
            else:
                self.changes.append(f"cell {cell.path!r} goes; no key holds it")

    def keep(self, cell: StoredCell, stored: PipelineShape) -> None:
        """Keep the entry of a dropped cell: the log may still bring values of it, which the next start deletes."""
        old = {new: name for name, new in self.renamed.items()}.get(cell.computation, cell.computation)
        name = f"{CELL}{old}.{cell.name}"
        coders = {**self.shape.coders, CELL + cell.path: stored.coders[name]}
        self.shape = msgspec.structs.replace(
            self.shape, coders=coders, places={**self.shape.places, cell.path: cell.place}
        )

    def moves(self) -> bool:
        """Whether something changes between intervals: then nobody may own one, and all logs are folded."""
        return bool(self.handovers or self.recuts or self.drops)

    def check(self) -> None:
        """Raises `IncompatibleStore` with everything that stands in the way."""
        if self.refusals:
            raise IncompatibleStore("; ".join(self.refusals))


def _keys(count: int) -> str:
    return "1 key holds" if count == 1 else f"{count:,} keys hold"


def first(shape: PipelineShape) -> Plan:
    """The plan of an empty store."""
    return Plan(_placed(shape, {}, ()))


def plan(stored: PipelineShape, shape: PipelineShape) -> Plan:
    """What to do to a store that `stored` has written for a pipeline of `shape`."""
    if stored.name != shape.name:
        refusal = f"the store belongs to pipeline {stored.name!r}, not to {shape.name!r}"
        return Plan(shape, [refusal])
    renamed = _renamed_computations(stored, shape)
    combined = [*handovers(stored, shape, renamed)]
    subscriptions = {name: _moved(name, "<", renamed) for name in stored.subscriptions}
    returned = [*handing_back.handbacks(stored, shape)]
    subscriptions |= {it.stored: it.taken for it in combined} | {it.stored: it.taken for it in returned}
    recalled = [*recalls(stored, shape)]
    for back in recalled:
        subscriptions |= back.subscriptions
    subscriptions = {old: new for old, new in subscriptions.items() if old != new}
    found = Plan(
        shape, renamed=renamed, subscriptions=subscriptions, handovers=combined, handbacks=returned, recalls=recalled
    )
    found.changes = [f"computation {old!r} is now {new!r}" for old, new in renamed.items()]
    got = {it.computation: it.combiner.parts for it in combined}
    found.changes += [
        f"computation {name!r} gets a combiner, {parts!r}, which takes over what is on its way to it"
        for name, parts in got.items()
    ]
    known = _under_new_names(stored, renamed, subscriptions)
    found.drops = [*dropping.drops(known, shape)]
    found.changes += [*handing_back.told([*returned, *recalled]), *dropping.told(found.drops)]
    found.drops += [drop for it in returned for drop in it.drops()]
    found.drops += [drop for back in recalled for drop in back.drops()]
    moved = [it.taken for it in combined if it.combiner.suffix]
    moved += [taken for back in recalled for taken in back.subscriptions.values()]
    known = _rekeyed(dropping.without(known, found.drops), shape, moved)
    found.recuts = [*recuts(known, shape)]
    found.changes += told(known, shape)
    found.changes += _left(known, shape)
    found.changes += _new(known, shape, combined)
    found.doubts = [*_doubts(known, shape)]
    found.refusals = [*_gone(known, shape), *_moved_sources(known, shape)]
    _plan_cells(known, shape, found)
    return found


def _renamed_computations(stored: PipelineShape, shape: PipelineShape) -> dict[str, str]:
    asked = (
        (old, name.removeprefix(COMPUTATION)) for name, old in shape.formerly.items() if name.startswith(COMPUTATION)
    )
    return {
        old: new
        for old, new in asked
        if old in stored.computations and old not in shape.computations and new not in stored.computations
    }


def _moved(name: str, separator: str, renamed: Mapping[str, str]) -> str:
    """The name with its computation's new name; a computation's may have dots, a cell's has none."""
    computation, found, rest = name.rpartition(separator) if separator == "." else name.partition(separator)
    return renamed.get(computation, computation) + found + rest


def _under_new_names(
    stored: PipelineShape, renamed: Mapping[str, str], subscriptions: Mapping[str, str]
) -> PipelineShape:
    def cell(name: str) -> str:
        return CELL + _moved(name.removeprefix(CELL), ".", renamed) if name.startswith(CELL) else name

    return msgspec.structs.replace(
        stored,
        computations={renamed.get(name, name): splits for name, splits in stored.computations.items()},
        subscriptions={subscriptions.get(name, name): stream for name, stream in stored.subscriptions.items()},
        coders={cell(name): fingerprint for name, fingerprint in stored.coders.items()},
        schemas={cell(name): schema for name, schema in stored.schemas.items()},
        places={_moved(path, ".", renamed): place for path, place in stored.places.items()},
        retired=tuple(_moved(path, ".", renamed) for path in stored.retired),
        combiners={renamed.get(name, name): combiner for name, combiner in stored.combiners.items()},
        key_versions={subscriptions.get(name, name): version for name, version in stored.key_versions.items()},
    )


def _rekeyed(known: PipelineShape, shape: PipelineShape, moved: Iterable[str]) -> PipelineShape:
    """`known` with the versions that the keys of `moved` subscriptions have now: all intervals are told what came on them."""
    kept = {name: version for name, version in known.key_versions.items() if name not in {*moved}}
    now = {name: shape.key_versions[name] for name in moved if name in shape.key_versions}
    return msgspec.structs.replace(known, key_versions=kept | now)


def _gone(stored: PipelineShape, shape: PipelineShape) -> Iterator[str]:
    merged = {combiner.merged for combiner in stored.combiners.values()}
    for what, old, new in (
        ("computation", stored.computations, shape.computations),
        ("subscription", stored.subscriptions, shape.subscriptions),
    ):
        # A stream that is no longer published takes nobody's state with it.
        for name in sorted(set(old) - set(new)):
            # What a computation has read by its combiner goes with that, or does not.
            if (
                not name.startswith(PUBLISH_PREFIX)
                and (what == "computation" or name.partition("<")[0] in shape.computations)
                and (what == "computation" or old[name] not in merged)
            ):
                yield why_gone(what, name, stored, shape)


def _left(stored: PipelineShape, shape: PipelineShape) -> Iterator[str]:
    """What is not in the code any more, and may come back."""
    for source in stored.sources:
        if source not in shape.sources:
            yield f"source {source!r} is left out"
    for name in stored.computations:
        if name.startswith(PUBLISH_PREFIX) and name not in shape.computations:
            yield f"stream {name.removeprefix(PUBLISH_PREFIX)!r} is not published any more"


def _new(stored: PipelineShape, shape: PipelineShape, combined: Iterable[Handover]) -> Iterator[str]:
    """What the store does not know yet; tables are looked at where they are."""
    told = {it.combiner.parts for it in combined} | {it.computation for it in combined}
    for name in shape.computations:
        if name not in stored.computations and name not in told and not name.startswith(PUBLISH_PREFIX):
            yield f"computation {name!r} is new, and begins with what comes from now on"
    for name in shape.subscriptions:
        computation = name.partition("<")[0]
        if name not in stored.subscriptions and computation in stored.computations and computation not in told:
            yield f"input {name!r} is new, and begins with what comes from now on"
    for source in shape.sources:
        if source not in stored.streams and source not in stored.sources:
            left = _left_for(source, stored, shape)
            yield f"source {source!r} is new{f', and {_doubled(left)}' if left else ''}"
    for name in shape.computations:
        if name.startswith(PUBLISH_PREFIX) and name not in stored.computations:
            yield f"stream {name.removeprefix(PUBLISH_PREFIX)!r} is published from now on"


def _left_for(source: str, stored: PipelineShape, shape: PipelineShape) -> str:
    """A source that goes while this one comes and feeds the same stream: it may be that one, under another name."""
    stream = shape.streams.get(source)
    fed = (name for name in stored.sources if name not in shape.sources and stored.streams.get(name) == stream)
    return next(fed, "") if stream is not None else ""


def _doubled(left: str) -> str:
    return f"feeds what {left!r} fed, which is left out: a row that both read counts twice"


def _doubts(stored: PipelineShape, shape: PipelineShape) -> Iterator[str]:
    """What is allowed, and is a mistake as often."""
    for source in shape.sources:
        if source not in stored.streams and source not in stored.sources and (left := _left_for(source, stored, shape)):
            yield f"source {source!r} {_doubled(left)}; if it is the same one, give it its old name, and reset the store"


def _moved_sources(stored: PipelineShape, shape: PipelineShape) -> Iterator[str]:
    for name, stream in stored.streams.items():
        if shape.streams.get(name, stream) != stream:
            yield (
                f"source {name!r} has fed stream {stream!r}, the pipeline now injects it into {shape.streams[name]!r}, "
                "which would never get the rows that were read before; name the source otherwise, or reset the store"
            )
    for name, kind in stored.kinds.items():
        if shape.kinds.get(name, kind) != kind:
            yield (
                f"source {name!r} has read {kind}, and now reads {shape.kinds[name]}, which does not know what was read "
                "before: all of it would count again; name the source otherwise, or reset the store"
            )


def _plan_cells(stored: PipelineShape, shape: PipelineShape, found: Plan) -> None:
    """Renamed, dropped and missing cells; then the coders of everything by its new name."""
    new_names: dict[str, str] = {}
    gone: list[StoredCell] = []
    for name in stored.coders:
        computation, _, cell = name.removeprefix(CELL).rpartition(".")
        if not name.startswith(CELL) or name in shape.coders or computation not in shape.computations:
            continue
        new = _new_name(stored, shape, computation, cell)
        if new is not None:
            new_names[name] = new
            found.changes.append(f"cell {computation + '.' + cell!r} is now {new.removeprefix(CELL)!r}")
            continue
        path = f"{computation}.{cell}"
        gone.append(StoredCell(computation, cell, stored.places.get(path, cell)))
        (found.dropped if path in shape.dropped else found.missing).append(gone[-1])
    coders = {new_names.get(name, name): fingerprint for name, fingerprint in stored.coders.items()}
    schemas = {new_names.get(name, name): schema for name, schema in stored.schemas.items()}
    paths = {old.removeprefix(CELL): new.removeprefix(CELL) for old, new in new_names.items()}
    places = {paths.get(path, path): place for path, place in _all_places(stored).items()}
    known = msgspec.structs.replace(stored, coders=coders, schemas=schemas, places=places)
    for name in sorted(coders.keys() & shape.coders.keys()):
        _plan_coder(name, known, shape, found)
    added = [path for name in sorted(shape.coders.keys() - coders.keys()) if (path := name.removeprefix(CELL)) != name]
    found.changes += [f"cell {path!r} is new" for path in added if path.rpartition(".")[0] in stored.computations]
    kept = _without(known, gone)
    retired = dict.fromkeys((*stored.retired, *(f"{cell.computation}.{cell.place}" for cell in gone)))
    merged = _placed(shape, kept.places, tuple(retired))
    found.shape = msgspec.structs.replace(
        merged,
        coders={**kept.coders, **shape.coders},
        schemas={**kept.schemas, **shape.schemas},
        streams={**stored.streams, **shape.streams},
        kinds={**stored.kinds, **shape.kinds},
    )


def _new_name(stored: PipelineShape, shape: PipelineShape, computation: str, cell: str) -> str | None:
    """The declared cell that was `cell` before."""
    for name, old in shape.formerly.items():
        owner = name.removeprefix(CELL).rpartition(".")[0] if name.startswith(CELL) else None
        if owner == computation and old == cell and name not in stored.coders:
            return name
    return None


def _all_places(shape: PipelineShape) -> dict[str, str]:
    """Of every cell that the store knows, not only of those whose place is not their name."""
    cells = (name.removeprefix(CELL) for name in shape.coders if name.startswith(CELL))
    return {path: shape.places.get(path, path.rpartition(".")[2]) for path in cells}


def _without(stored: PipelineShape, gone: Iterable[StoredCell]) -> PipelineShape:
    paths = {cell.path for cell in gone}
    return msgspec.structs.replace(
        stored,
        coders={name: it for name, it in stored.coders.items() if name.removeprefix(CELL) not in paths},
        schemas={name: it for name, it in stored.schemas.items() if name.removeprefix(CELL) not in paths},
        places={path: place for path, place in stored.places.items() if path not in paths},
    )


def _placed(shape: PipelineShape, places: Mapping[str, str], retired: tuple[str, ...]) -> PipelineShape:
    """Every cell has a place; a new one gets its name, or one with a number where that is taken."""
    given = dict(places)
    for name in shape.coders:
        path = name.removeprefix(CELL)
        if name.startswith(CELL) and path not in given:
            computation, _, cell = path.rpartition(".")
            taken = {place for other, place in given.items() if other.rpartition(".")[0] == computation}
            taken |= {old.rpartition(".")[2] for old in retired if old.rpartition(".")[0] == computation}
            given[path] = next(p for p in (cell, *(f"{cell}#{n}" for n in range(2, len(taken) + 3))) if p not in taken)
    return msgspec.structs.replace(
        shape,
        places={path: place for path, place in given.items() if place != path.rpartition(".")[2]},
        retired=retired,
    )


def _plan_coder(name: str, stored: PipelineShape, shape: PipelineShape, found: Plan) -> None:
    old, new = stored.coders[name], shape.coders[name]
    before, after = stored.schemas.get(name), shape.schemas.get(name)
    if before and after and _family(old) == _family(new):
        try:
            found.changes += [f"{name}: {change}" for change in changes(before, after)]
        except Unreadable as reason:
            found.refusals.append(
                f"{name} is stored with coder {old!r}, the pipeline now says {new!r}: {reason}; use the old declaration, "
                "another name, or reset the store"
            )
    elif old != new and old in shape.reads.get(name, ()):
        found.changes.append(f"{name}: coder {new!r} reads what {old!r} wrote")
    elif (meant := old.partition(MEANS)[2]) and (means := new.partition(MEANS)[2]) and _family(meant) != _family(means):
        found.refusals.append(
            f"{name} is stored as {meant!r}, and now means {means!r}: give the new step another name, and keep the old one "
            "under its own, behind .filter(lambda value: False), so that it ends what it has begun; or reset the store"
        )
    elif old != new:
        found.refusals.append(
            f"{name} is stored with coder {old!r}, the pipeline now says {new!r}; "
            "use the old coder, another name, or reset the store"
        )


def _family(fingerprint: str) -> str:
    """All of a fingerprint but the types: the kind of a cell, the protocol, and what the values mean."""
    return _TYPES.sub(r"\1", fingerprint)


def places_of(shape: PipelineShape) -> dict[str, dict[str, str]]:
    """By computation, cells whose place is not their name, and their places."""
    found: dict[str, dict[str, str]] = {}
    for path, place in shape.places.items():
        computation, _, cell = path.rpartition(".")
        found.setdefault(computation, {})[cell] = place
    return found


def holders(total: int, stored: Iterable[tuple[str, str]], unfolded: Iterable[Folded], place: str) -> int:
    """How many keys hold something in a place: `total` keys of the tables, corrected by what is in the log.

    `stored` are (key, entry) of the tables, of the keys that `touched` names.
    """
    tables: dict[str, set[str]] = {}
    for key, entry in stored:
        tables.setdefault(key, set()).add(entry)
    count = total
    for folded in unfolded:
        for key in touched([folded]):
            now = set() if key in folded.forgotten else set(tables.get(key, ()))
            for (cell, entry), value in folded.cells_of(key).items():
                if cell == place:
                    now = now - {entry} if value is None else now | {entry}
            count += bool(now) - bool(tables.get(key))
    return count


def touched(unfolded: Iterable[Folded]) -> set[str]:
    """Keys whose state the log changes."""
    return {key for folded in unfolded for key in (*folded.state_keys(), *folded.forgotten)}
