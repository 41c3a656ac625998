"""What a store refuses of a shape alone: names, split keys, formats."""

from __future__ import annotations

import pytest

from millwheel.bundles import CHECKPOINT_FORMAT
from millwheel.errors import IncompatibleStore, WiringError
from millwheel.ids import IntervalId
from millwheel.ports import IntervalRow, PipelineShape
from millwheel_storage.schema.reserved import RESERVED_NAMES
from millwheel_storage.schema.shape_checks import (
    STORE_FORMAT,
    check_formats,
    check_shape,
    holds_key,
    ranges,
    schema_name,
)


@pytest.mark.parametrize("name", ["", "Zeitgeist", "9lives", "public", "pg_catalog", "a" * 41, 'a"b', "a b"])
def test_a_bad_pipeline_name_is_refused(name: str) -> None:
    with pytest.raises(WiringError):
        schema_name(name)


@pytest.mark.parametrize("splits", [("b", "a"), ("a", "a"), ("",)])
def test_split_keys_ascend(splits: tuple[str, ...]) -> None:
    with pytest.raises(WiringError, match="ascending"):
        check_shape(PipelineShape("p", {"a": splits}, {}, {}, (), ()), RESERVED_NAMES)


def test_a_computation_is_not_called_as_the_partitions_of_a_source_are() -> None:
    with pytest.raises(WiringError, match="'source:a': names starting with 'source:' are for injectors"):
        check_shape(PipelineShape("p", {"source:a": ()}, {}, {}, (), ()), RESERVED_NAMES)


def test_ranges_cover_everything() -> None:
    assert ranges(("g", "q")) == [("", "g"), ("g", "q"), ("q", None)]


def test_a_later_format_is_refused() -> None:
    with pytest.raises(IncompatibleStore, match="upgrade"):
        check_formats(STORE_FORMAT + 1, 1)
    with pytest.raises(IncompatibleStore, match="checkpoints of format 9"):
        check_formats(STORE_FORMAT, 9)
    with pytest.raises(IncompatibleStore, match=f"checkpoints of format {CHECKPOINT_FORMAT - 1}, this version writes"):
        check_formats(STORE_FORMAT, CHECKPOINT_FORMAT - 1)
    check_formats(STORE_FORMAT - 1, CHECKPOINT_FORMAT)


@pytest.mark.parametrize("key", ["", "f", "g", "p", "q", "z", "\U0001f600"])
def test_each_key_is_in_one_range(key: str) -> None:
    rows = [IntervalRow(IntervalId(n), "c", low, high) for n, (low, high) in enumerate(ranges(("g", "q")))]
    assert [row.id for row in rows if holds_key(row, key)] == [0 if key < "g" else 1 if key < "q" else 2]
