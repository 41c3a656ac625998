"""Files that a test leaves open are closed after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millwheel_injectors.partition import TextPartition
from millwheel_injectors.streams import LineBuffer


@pytest.fixture(autouse=True)
def close_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    opened: list[TextPartition] = []
    really_open = TextPartition._open

    def recording(partition: TextPartition, offset: int) -> LineBuffer:
        opened.append(partition)
        return really_open(partition, offset)

    monkeypatch.setattr(TextPartition, "_open", recording)
    yield
    for partition in opened:
        partition.close()
