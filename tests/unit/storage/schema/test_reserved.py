"""Every table that the store makes has a reserved name, so that no sink table shadows one."""

from __future__ import annotations

import pytest

from millwheel.errors import WiringError
from millwheel.ports import SinkTable
from millwheel_storage.schema.ddl import MIGRATIONS, metadata
from millwheel_storage.schema.reserved import RESERVED_NAMES
from millwheel_storage.schema.shape_checks import STORE_FORMAT
from millwheel_storage.sink_rows import check_table


def test_tables_and_sequences_of_the_store_are_reserved() -> None:
    assert metadata.tables.keys() <= RESERVED_NAMES
    assert {name.lower() for name in RESERVED_NAMES} == RESERVED_NAMES, "Postgres folds plain names to lower case"


@pytest.mark.parametrize("name", sorted(RESERVED_NAMES))
def test_a_sink_table_cannot_have_a_reserved_name(name: str) -> None:
    for spelled in (name, name.upper()):
        with pytest.raises(WiringError, match="reserved"):
            check_table(SinkTable(spelled, {"k": "text"}, ("k",)), RESERVED_NAMES)


def test_the_format_counts_the_migrations() -> None:
    assert len(MIGRATIONS) == STORE_FORMAT
    assert all(isinstance(statement, str) for migration in MIGRATIONS for statement in migration)
