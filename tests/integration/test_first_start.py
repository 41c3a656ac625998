"""The first start of an embedded Postgres after one that was killed, while what it has left behind still writes."""

from __future__ import annotations

import threading
from pathlib import Path

import psycopg
import pytest

from millwheel_storage.embedded import EmbeddedPostgres

pytestmark = pytest.mark.postgres


def test_a_start_is_not_disturbed_by_the_orphan_of_one_that_was_killed(tmp_path: Path) -> None:
    # "File exists: postgres.new": it was being written to while it was removed.
    directory, done = tmp_path / "postgres", threading.Event()

    def orphan() -> None:
        number = 0
        while not done.is_set():
            for place in (directory / "postgres.new", directory / "postgres.new-dead"):
                place.mkdir(parents=True, exist_ok=True)
                (place / str(number)).write_text("") if place.exists() else None
            number += 1

    def persistent() -> None:
        while not done.is_set():
            try:
                orphan()
            except OSError:
                continue  # what it wrote to was removed at that moment

    writer = threading.Thread(target=persistent)
    writer.start()
    try:
        with EmbeddedPostgres(directory) as postgres, psycopg.connect(postgres.url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        done.set()
        writer.join()
