"""What the core of an interval is told."""

from __future__ import annotations

from typing import Any

import pytest

from millwheel.core.interval.config import Config
from millwheel.core.interval.machine import IntervalCore
from millwheel.graph import Settings
from millwheel.ids import IntervalId, Sequencer
from tests.unit.core.bench import recovered


def config(**more: Any) -> Config:
    return Config(IntervalId(1), Sequencer(1), "counts", "shape", Settings(), {}, **more)


def test_an_interval_is_durable_by_its_log_unless_it_has_a_label() -> None:
    assert IntervalCore(config(), recovered()).label == 0
    assert not IntervalCore(config(), recovered()).pressed
    assert config().label is None


def test_what_an_interval_was_told_does_not_change() -> None:
    with pytest.raises(AttributeError):
        config().label = 3  # type: ignore[misc]
