"""A source that is taken again while its last search is in a blocking call: the searches follow each other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Sequence

import pytest

from millwheel import Computation, Context, Pipeline, Record, Stream, TextCoder, subscribe
from millwheel.host import alphabet as he
from millwheel.host.worker import WorkerHost
from millwheel.runtime.shell import Shell
from millwheel.source import Source, SourcePartition
from millwheel.transport.local import LocalTransport
from millwheel_storage.memory import MemoryStore

words = Stream("words", TextCoder())


class Keep(Computation[str]):
    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        pass


class Slow(Source[str]):
    """Every look waits until it is let go on; looks of one source must not run at once."""

    def __init__(self) -> None:
        self.name = "slow"
        self.inside = 0
        self.looks = 0
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)

    def discover(self, known: Iterable[str]) -> Sequence[SourcePartition[str]]:
        self.inside += 1
        self.looks += 1
        assert self.inside == 1, "two looks at once"
        self.begun.release()
        self.go_on.acquire(timeout=5)
        self.inside -= 1
        return []

    def recall(self, positions: Iterable[object]) -> None:
        assert self.inside == 0, "it is told what is known while it looks"

    def complete(self) -> bool:
        return True

    def pending_watermark(self) -> int:
        return self.looks


def shell_of(source: Slow) -> tuple[Shell, WorkerHost]:
    pipeline = Pipeline("searched")
    pipeline.inject(source, into=words)
    pipeline.add(Keep, [subscribe(words, str)])
    worker = WorkerHost(graph=pipeline.graph())
    return Shell(store=MemoryStore(), transport=LocalTransport(), worker=worker), worker


async def answered(shell: Shell, token: int) -> he.Discovery:
    """The answer to a search."""
    async with asyncio.timeout(60):
        while True:
            for _, event in shell._answers:
                if isinstance(event, he.Answered) and event.token == token:
                    assert isinstance(event.answer, he.Discovery)
                    return event.answer
            assert shell._failure is None, shell._failure
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("takes", [1, 3])
def test_a_search_begins_when_the_blocking_call_of_the_last_one_is_over(takes: int) -> None:
    source = Slow()

    async def main() -> None:
        shell, worker = shell_of(source)
        shell._ask(worker, 1, he.Discover("slow", ()))
        await asyncio.to_thread(source.begun.acquire)
        for token in range(2, takes + 2):  # the source was lost, and is this worker's again
            shell._ask(worker, token, he.Discover("slow", ()))
        await asyncio.sleep(0.05)
        assert source.looks == 1
        for _ in range(takes + 1):
            source.go_on.release()
        found = await answered(shell, takes + 1)
        assert found.pending == takes + 1, "the answer is of its own look"
        for task in [*shell._tasks]:
            await task

    asyncio.run(main())


def test_searches_that_follow_each_other_wait_for_nothing() -> None:
    source = Slow()

    async def main() -> None:
        shell, worker = shell_of(source)
        for number in (1, 2):
            source.go_on.release()
            shell._ask(worker, number, he.Discover("slow", None))
            assert (await answered(shell, number)).pending == number

    asyncio.run(main())
