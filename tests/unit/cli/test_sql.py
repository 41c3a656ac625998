"""`millwheel sql`: what psql is given, and that Ctrl-C is for it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from millwheel.cli.sql import sql

PSQL = """#!/bin/sh
printf '%s\\n' "$PGOPTIONS" "$@" > "$OUT"
kill -INT $PPID
sleep 0.2
exit 7
"""
"""Ends a query, as Ctrl-C does in a terminal, which is for both processes; and goes on."""


@pytest.mark.parametrize(("options", "before"), [(None, ""), ("-c lock_timeout=5s", "-c lock_timeout=5s")])
def test_psql_has_the_tables_in_its_path_and_ctrl_c_ends_no_more_than_a_query(
    options: str | None, before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, out = tmp_path / "psql", tmp_path / "out"
    program.write_text(PSQL)
    program.chmod(0o755)
    (tmp_path / "pipe_of_sql.py").write_text("from millwheel import Pipeline\npipeline = Pipeline('shop')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("millwheel_storage.programs.psql", lambda: str(program))
    monkeypatch.setenv("OUT", str(out))
    if options is not None:
        monkeypatch.setenv("PGOPTIONS", options)
    handler = signal.getsignal(signal.SIGINT)
    try:
        asked = ["pipe_of_sql:pipeline", "--store", "postgresql://nowhere/db", "-c", "SELECT 1"]
        done = CliRunner().invoke(sql, asked, standalone_mode=False)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert done.return_value == 7, done.output
    said = out.read_text().splitlines()
    assert said == [f'{before} -c search_path="shop",public', "-d", "postgresql://nowhere/db", "-c", "SELECT 1"]
