"""Group commit: one interval's checkpoints in order, whatever lane they take; sinks keep nobody else waiting."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from millwheel.bundles import LogWrite, SinkRow
from millwheel.runtime.commits import GroupCommit


def write(interval: int, seq: int, sink: bool = False) -> LogWrite:
    return LogWrite(interval, 1, seq, 0, b"", (SinkRow("t", b"{}"),) if sink else ())


class Slow:
    """A store that finishes a group when it is told to."""

    def __init__(self) -> None:
        self.open: list[tuple[list[LogWrite], asyncio.Event]] = []
        self.durable: list[tuple[int, int]] = []
        self.told: list[tuple[int, int, bool]] = []
        self.fenced: set[tuple[int, int]] = set()

    async def commit(self, group: list[LogWrite]) -> set[tuple[int, int]]:
        gate = asyncio.Event()
        self.open.append((group, gate))
        await gate.wait()
        pairs = [(one.interval, one.seq) for one in group]
        self.durable += pairs
        return {*pairs} - self.fenced

    def done(self, one: LogWrite, kept: bool) -> None:
        self.told.append((one.interval, one.seq, kept))

    def groups(self) -> list[list[tuple[int, int]]]:
        return [[(one.interval, one.seq) for one in group] for group, _ in self.open]

    async def finish(self, place: int = 0) -> None:
        self.open.pop(place)[1].set()
        await settle()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def drive(scenario: Callable[[Slow, GroupCommit], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        store = Slow()
        commits = GroupCommit(store.commit, store.done)
        tasks = [asyncio.ensure_future(loop) for loop in commits.loops()]
        try:
            await scenario(store, commits)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())


def test_what_is_ready_goes_together_and_the_next_group_waits() -> None:
    async def scenario(store: Slow, commits: GroupCommit) -> None:
        for one in (write(1, 1), write(2, 1)):
            commits.submit(one)
        await settle()
        for one in (write(1, 2), write(2, 2)):
            commits.submit(one)
        await settle()
        assert store.groups() == [[(1, 1), (2, 1)]]
        store.fenced = {(2, 1)}
        await store.finish()
        assert store.told == [(1, 1, True), (2, 1, False)]
        assert store.groups() == [[(1, 2), (2, 2)]]
        assert not commits.idle()
        await store.finish()
        assert commits.idle()

    drive(scenario)


def test_a_slow_sink_keeps_nobody_else_waiting() -> None:
    async def scenario(store: Slow, commits: GroupCommit) -> None:
        commits.submit(write(1, 1, sink=True))
        await settle()
        for seq in (1, 2, 3):
            commits.submit(write(2, seq))
            await settle()
            await store.finish(1)
        assert [pair[:2] for pair in store.told] == [(2, 1), (2, 2), (2, 3)]
        assert store.groups() == [[(1, 1)]]

    drive(scenario)


def test_an_interval_that_changes_lanes_waits_for_its_open_group() -> None:
    async def scenario(store: Slow, commits: GroupCommit) -> None:
        commits.submit(write(1, 1))
        await settle()
        commits.submit(write(1, 2))
        commits.submit(write(2, 1))
        commits.submit(write(1, 3, sink=True))
        await settle()
        assert store.groups() == [[(1, 1)]]
        await store.finish()
        assert sorted(store.groups()) == [[(1, 2), (1, 3)], [(2, 1)]]
        commits.submit(write(1, 4))
        await settle()
        assert len(store.groups()) == 2, "it never changes back, or the fourth could overtake the third"

    drive(scenario)


@pytest.mark.parametrize("seed", range(20))
def test_every_interval_commits_in_order_whatever_finishes_first(seed: int) -> None:
    rng = random.Random(seed)

    async def scenario(store: Slow, commits: GroupCommit) -> None:
        seqs = dict.fromkeys(range(4), 0)
        while sum(seqs.values()) < 200 or store.open:
            if rng.random() < 0.7 and sum(seqs.values()) < 200:
                interval = rng.randrange(4)
                seqs[interval] += 1
                commits.submit(write(interval, seqs[interval], sink=rng.random() < 0.05))
            elif store.open:
                await store.finish(rng.randrange(len(store.open)))
            if rng.random() < 0.5:
                await settle()
        await settle()
        while store.open:
            await store.finish()
        for interval, count in seqs.items():
            assert [seq for one, seq in store.durable if one == interval] == list(range(1, count + 1))

    drive(scenario)
