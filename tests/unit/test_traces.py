"""A traceback shows the frames of user code, and ours only where there are no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millwheel.errors import WiringError
from millwheel.model import format_time
from millwheel.traces import place, shortened


def caught(call: Callable[[], Any]) -> BaseException:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError


def user_calls_ours() -> None:
    format_time(object())  # type: ignore[arg-type]


def user_raises_from() -> None:
    try:
        user_calls_ours()
    except Exception as error:
        raise WiringError("outer") from error


def test_our_frames_are_left_out_also_of_causes() -> None:
    text = shortened(caught(user_raises_from))
    assert text.count("in user_calls_ours") == 1
    assert text.count("in user_raises_from") == 2
    assert "in format_time" not in text
    assert text.rstrip().endswith("WiringError: outer")


def test_a_traceback_with_no_other_frames_stays_whole() -> None:
    ours: dict[str, Any] = {"__name__": "millwheel.api.anything"}
    exec("def raises():\n    raise ValueError('ours')", ours)
    raised = caught(ours["raises"]).with_traceback(None)
    assert shortened(raised) == "ValueError: ours\n"


@pytest.mark.parametrize("call", [user_calls_ours, user_raises_from])
def test_the_place_is_the_innermost_line_of_user_code(call: Callable[[], None]) -> None:
    found = place(caught(call))
    assert found.partition(":")[0] == __file__
    assert int(found.rpartition(":")[2]) >= call.__code__.co_firstlineno
