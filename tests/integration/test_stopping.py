"""A run is stopped while its hooks are slow, and run where an event loop is running."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from millwheel import Computation, Context, JsonCoder, Pipeline, Record, Stream, TextCoder, ValueCell, subscribe
from millwheel.committed import Committed
from millwheel.launch import arun, run
from millwheel_injectors import IterableSource
from millwheel_storage.embedded import EmbeddedPostgres

pytestmark = pytest.mark.postgres

SLOW = """
import os, sys, time
from millwheel import Computation, JsonCoder, Pipeline, Stream, TextCoder, ValueCell, subscribe
from millwheel_injectors import IterableSource

words = Stream("words", TextCoder())

class Slow(Computation[str]):
    seen = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context, record):
        self.seen.set(self.seen.get() + 1)
        if "QUICK" not in os.environ:
            time.sleep(float(os.environ["SLEEP_S"]))
            with open("done", "a") as done:
                done.write("x")

pipeline = Pipeline("slow")
pipeline.inject(IterableSource("text", [(f"w{i % 3}", i) for i in range(100)]), into=words)
pipeline.add(Slow, [subscribe(words, str)])
"""


def seen(out: str) -> int:
    return sum(int(line.split("\t")[2]) for line in out.splitlines())


@pytest.mark.parametrize(("sleep_s", "hooks", "lost"), [("0.1", 40, 1), ("60", 0, 1)])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_during_slow_hooks_ends_soon_and_keeps_what_was_done(
    tmp_path: Path, number: signal.Signals, sleep_s: str, hooks: int, lost: int
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    command = str(Path(sys.executable).with_name("millwheel"))
    environ = {**os.environ, "SLEEP_S": sleep_s}
    done = tmp_path / "done"
    # The server stays when a run leaves: what is measured is the run, not the last checkpoint of a Postgres.
    with (
        EmbeddedPostgres(tmp_path / ".millwheel" / "postgres"),
        subprocess.Popen(
            [command, "run", "slow:pipeline"], cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        began = time.monotonic()
        while (done.stat().st_size if done.exists() else 0) < hooks or time.monotonic() - began < 5:
            assert process.poll() is None
            assert time.monotonic() - began < 60
            time.sleep(0.05)
        asked = time.monotonic()
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        assert time.monotonic() - asked < 2
        assert (process.returncode, err) == (130, "millwheel: stopped; run it again to resume\n")
        ran = done.stat().st_size if done.exists() else 0

        def ask(*arguments: str) -> str:
            given = {**environ, "QUICK": "1"}
            return subprocess.run([command, *arguments], cwd=tmp_path, env=given, capture_output=True, text=True).stdout

        kept = seen(ask("state", "scan", "slow:pipeline", "Slow"))
        assert ran - lost <= kept <= ran
        ask("run", "slow:pipeline")
        assert seen(ask("state", "scan", "slow:pipeline", "Slow")) == 100


words = Stream("words", TextCoder())


class Count(Computation[str]):
    seen = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        self.seen.set(self.seen.get() + 1)


def count(name: str) -> Pipeline:
    pipeline = Pipeline(name)
    pipeline.inject(IterableSource("text", [(f"w{i % 3}", i) for i in range(100)]), into=words)
    pipeline.add(Count, [subscribe(words, str)])
    return pipeline


def test_a_run_in_a_running_loop_lets_the_loop_go_on(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        ticking = asyncio.create_task(tick())
        progress = await arun(count(pipeline), postgres.url)
        ticking.cancel()
        assert progress.records == 100
        return ticks

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    assert asyncio.run(main()) > 5
    assert {number: signal.getsignal(number) for number in handlers} == handlers


def test_a_plain_run_works_inside_a_running_loop(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def cell_of_a_notebook() -> int:
        return run(count(pipeline), postgres.url).records

    assert asyncio.run(cell_of_a_notebook()) == 100


def test_a_task_that_is_cancelled_ends_the_run_and_the_next_one_resumes(tmp_path: Path) -> None:
    class Slow(Count):
        def ProcessRecord(self, context: Context, record: Record[str]) -> None:
            super().ProcessRecord(context, record)
            time.sleep(0.01)

    def slow() -> Pipeline:
        pipeline = Pipeline("cancelled")
        pipeline.inject(IterableSource("text", [(f"w{i % 3}", i) for i in range(100)]), into=words)
        pipeline.add(Slow, [subscribe(words, str)], name="Count")
        return pipeline

    async def cancelled() -> None:
        task = asyncio.create_task(arun(slow(), data=tmp_path))
        await asyncio.sleep(2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert EmbeddedPostgres(tmp_path / "postgres").pid is None
    assert run(slow(), data=tmp_path).finished
    with Committed(slow(), data=tmp_path) as committed:
        assert sum(cells["seen"] for _, cells in committed.states("Count")) == 100
