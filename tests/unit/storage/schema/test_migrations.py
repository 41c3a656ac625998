"""What a start makes of an empty store is what `ddl` says, and costs no import of SQLAlchemy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from millwheel_storage.schema import ddl, migrations


def test_the_migrations_are_those_of_ddl() -> None:
    text = Path(migrations.__file__).read_text(encoding="utf-8")
    assert text == ddl.written(), "run `python scripts/ddl.py`"


def test_every_statement_is_there_word_for_word() -> None:
    assert len(migrations.MIGRATIONS) == len(ddl.MIGRATIONS)
    for found, meant in zip(migrations.MIGRATIONS, ddl.MIGRATIONS, strict=True):
        assert [statement.split() for statement in found] == [statement.split() for statement in meant]


def test_no_literal_holds_white_space_that_writing_could_change() -> None:
    for migration in ddl.MIGRATIONS:
        for statement in migration:
            literals = statement.split("'")[1::2]
            assert all(literal.split() in ([], [literal]) for literal in literals)


def test_a_store_is_opened_without_sqlalchemy() -> None:
    code = "import sys, millwheel.launch, millwheel_storage.schema.creation; print('sqlalchemy' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
