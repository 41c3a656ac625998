"""`millwheel sql` on an embedded store: before the first run, during one, and after it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from millwheel_storage.part_files import main

pytestmark = pytest.mark.postgres

SHOP = """
from typing import TypedDict
from millwheel import Computation, JsonCoder, Pipeline, Stream, Table, subscribe
from millwheel.library import Flow
from millwheel_injectors import IterableSource

class Order(TypedDict):
    shop: str
    cents: int

orders = Stream("orders", JsonCoder(Order))
totals = Table("totals", {"shop": "text", "cents": "bigint"}, ("shop",))

class Last(Computation[Order]):
    def ProcessRecord(self, context, record):
        context.upsert(totals, {"shop": record.key, "cents": record.value["cents"]})

pipeline = Pipeline("shop")
rows = [({"shop": "north", "cents": 250}, 1), ({"shop": "south", "cents": 175}, 2)]
Flow(pipeline).inject(IterableSource("till", rows), into=orders).to_files("dump", Order, rows=1)
pipeline.add(Last, inputs=[subscribe(orders, key=lambda order: order["shop"])])
pipeline.sink(totals)
"""

BEFORE = "CREATE SCHEMA shop; CREATE TABLE totals (shop text PRIMARY KEY, cents bigint, seen timestamptz DEFAULT now())"


def test_psql_sees_the_tables_of_an_embedded_store_also_before_there_are_any(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)

    def millwheel(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "millwheel", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    made = millwheel("sql", "shop:pipeline", "-v", "ON_ERROR_STOP=1", "-c", BEFORE)
    assert (made.stdout, made.returncode) == ("CREATE SCHEMA\nCREATE TABLE\n", 0), made
    assert millwheel("run", "shop:pipeline").returncode == 0
    asked = millwheel("sql", "shop:pipeline", "-At", "-c", "SELECT sum(cents), bool_and(seen IS NOT NULL) FROM totals")
    assert (asked.stdout, asked.returncode) == ("425|t\n", 0), asked
    wrong = millwheel("sql", "shop:pipeline", "-c", "SELECT 1/0")
    assert ("division by zero" in wrong.stderr, wrong.returncode) == (True, 1), wrong

    made_files = CliRunner().invoke(main, [str(tmp_path / ".millwheel"), "shop", "dump", str(tmp_path / "out")])
    assert made_files.exit_code == 0, made_files.output
    assert len([*(tmp_path / "out").glob("*.jsonl")]) == 2


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("postgresql://127.0.0.1:1/none", "Connection refused"),
        ("nowhere", "the store is not a Postgres URL"),
        (".", "there is no store in .: run the pipeline first"),
    ],
)
def test_the_writer_of_part_files_says_in_a_sentence_that_it_cannot_reach_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, [store, "shop", "dump", "out"])
    assert (done.exit_code, said in done.output) == (1, True), done.output
