"""Whether code can read the state that a store holds, tried value by value.

Lives here: `unreadable`, which `millwheel check` prints.  Never here: what declarations say of each other, which the store
compares when it is opened.  A coder of one's own may read less than its name promises; only trying it tells.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from millwheel import limits
from millwheel.api.computation import cells_of
from millwheel.api.pipeline import Pipeline
from millwheel.api.state import Cell
from millwheel.escapes import escaped, harmless
from millwheel.shape import PipelineShape
from millwheel_storage.postgres.reader import Reader


class BadCell(msgspec.Struct):
    """A cell of which some values cannot be read."""

    keys: set[str] = set()
    """The first that cannot be."""
    values: int = 0
    why: str = ""
    """Of the first one."""


def unreadable(pipeline: Pipeline, reader: Reader) -> list[str]:
    """Read every stored value with the coder of its cell; a line for each cell of which some cannot be read.

    Values are streamed, in one snapshot for each computation, so any number will do.  Cells and computations are found under
    their earlier names, where these are declared.  Cells that are not in the code are not read.
    """
    graph = pipeline.graph()
    shape, stored = graph.shape(), reader.computations()
    lines: list[str] = []
    for name, spec in sorted(graph.computations.items()):
        known = name if name in stored else shape.formerly.get(f"computation:{name}", "")
        if known in stored:
            lines += _of(reader, known, name, _by_stored_name(shape, name, cells_of(type(spec.factory()))))
    return lines


def _by_stored_name(shape: PipelineShape, computation: str, cells: dict[str, Cell]) -> dict[str, Cell]:
    """Cells by the names that they may have in the store; a new name wins over an earlier one."""
    earlier = {shape.formerly.get(f"cell:{computation}.{name}", name): cell for name, cell in cells.items()}
    return {**earlier, **cells}


def _of(reader: Reader, stored: str, computation: str, cells: dict[str, Cell]) -> Iterator[str]:
    bad: dict[str, BadCell] = {}
    for row in reader.scan_state(stored):
        cell = cells.get(row.cell)
        if cell is None:
            continue
        try:
            cell.coder.decode(row.value)
        except Exception as error:  # what a coder of a user's own raises, nobody knows
            found = bad.setdefault(cell.name, BadCell())
            found.values += 1
            found.why = found.why or f"{type(error).__name__}: {error}".split("\n")[0][: limits.FAILURE_LINE_CHARS]
            if len(found.keys) < limits.CHECK_KEYS_SHOWN:
                found.keys.add(row.key)
    for name, found in sorted(bad.items()):
        many = "1 value" if found.values == 1 else f"{found.values:,} values"
        keys = ", ".join(f"'{escaped(key)}'" for key in sorted(found.keys))
        yield f"cell '{computation}.{name}': {many} cannot be read, for example of {keys}: {harmless(found.why)}"
