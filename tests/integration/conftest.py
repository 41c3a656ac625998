"""One Postgres server for all integration tests; each test takes a pipeline name of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.testing import fresh_name, temporary_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    with temporary_postgres() as server:
        yield server


@pytest.fixture
def pipeline() -> str:
    return fresh_name()
