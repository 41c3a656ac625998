"""What a run says of itself."""

from __future__ import annotations

import pytest

from millwheel.host.progress import Progress
from millwheel.model import MAX_TIME, MIN_TIME


@pytest.mark.parametrize(
    ("source", "computation", "lag"),
    [(100, 40, 60), (100, MIN_TIME, None), (MAX_TIME, 40, None), (MIN_TIME, MIN_TIME, None)],
)
def test_the_lag_is_what_the_slowest_computation_is_behind_its_slowest_source(
    source: int, computation: int, lag: int | None
) -> None:
    watermarks = {"source:a": source, "source:b": MAX_TIME, "first": MAX_TIME, "last": computation}
    assert Progress(0, 0, 0, 0, 0, 0, 0, 0, 0, watermarks, False).lag_us == lag
