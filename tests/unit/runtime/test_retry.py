"""What is said while the store does not answer."""

from __future__ import annotations

import asyncio
import logging

import pytest

from millwheel.errors import CommitUnknown, Fenced, StoreUnavailable
from millwheel.runtime import retry
from millwheel.runtime.retry import Retries


@pytest.mark.parametrize(("delay_s", "said"), [(60.0, 2), (0.0, 40)])
def test_a_failure_that_goes_on_is_told_once_in_a_while(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, delay_s: float, said: int
) -> None:
    monkeypatch.setattr(retry, "STORE_RETRY_DELAY_S", 0.0)
    monkeypatch.setattr(retry, "WARNING_DELAY_S", delay_s)
    tries = dict.fromkeys(range(2), 0)

    async def call(which: int) -> str:
        tries[which] += 1
        if tries[which] <= 20:
            raise StoreUnavailable(
                f"could not extend file {tries[which]} of disk {'ab'[which]}\nHINT:  Check free space."
            )
        return "done"

    async def both() -> list[str]:
        retries = Retries()
        return await asyncio.gather(*(retries.until_answered("commit", lambda n=n: call(n)) for n in range(2)))  # type: ignore[misc]

    with caplog.at_level(logging.WARNING, "millwheel"):
        assert asyncio.run(both()) == ["done", "done"]
    assert len(caplog.messages) == said
    assert caplog.messages[0] == "commit: could not extend file 1 of disk a HINT: Check free space.; trying again"


def test_what_was_not_told_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    retries = Retries()
    for at_s in (0.0, 1.0, 9.0, 11.0, 12.0, 30.0):
        retries._failed("commit: no space", at_s)
    assert caplog.messages == [
        "commit: no space; trying again",
        "commit: no space; trying again (and 2 times before)",
        "commit: no space; trying again (and 1 times before)",
    ]


def test_a_call_is_made_again_until_its_answer_is_known_and_an_error_is_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry, "STORE_RETRY_DELAY_S", 0.0)
    answers: list[Exception | str] = []

    async def call() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def asked() -> str:
        async with asyncio.timeout(20):
            return await Retries().until_answered("commit", call)

    answers[:] = [StoreUnavailable("away"), CommitUnknown("cut"), StoreUnavailable("away"), "done", "more"]
    assert asyncio.run(asked()) == "done"
    assert answers == ["more"]
    for error in (Fenced("taken over"), ValueError("a mistake")):
        answers[:] = [CommitUnknown("cut"), error, "more"]
        with pytest.raises(type(error)):
            asyncio.run(asked())
        assert answers == ["more"]
