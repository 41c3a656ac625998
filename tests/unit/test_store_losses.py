"""An embedded Postgres that is gone for good ends whatever runs on it, whichever of the two is there first."""

from __future__ import annotations

import asyncio
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millwheel import launch
from millwheel.cli.on_spark import OnSpark, up_on_spark
from millwheel.cli.options import Place
from millwheel.cli.up import _run
from millwheel.errors import StoreError
from millwheel.host.over import Tolerance
from millwheel.launch import Asked, StoreLoss
from millwheel.runtime.supervisor import ChildPlan
from millwheel.spark import hosting, masters

GONE = StoreError("its directory was removed")


@pytest.mark.parametrize("is_late", [False, True])
def test_whoever_says_how_it_ends_is_told_once(is_late: bool, caplog: pytest.LogCaptureFixture) -> None:
    loss, told = StoreLoss(), list[StoreError]()
    if is_late:
        loss.happened(GONE)
        assert caplog.messages == [str(GONE)], "nobody else says so"
    loss.ends(told.append)
    if not is_late:
        assert told == []
        loss.happened(GONE)
    assert told == [GONE]
    assert len(caplog.messages) == is_late


def test_a_run_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[StoreError] = []
    monkeypatch.setattr(launch, "EmbeddedRun", lambda *given, **named: SimpleNamespace(fail=failed.append))
    pipeline: Any = SimpleNamespace(graph=lambda: None, name="p", tables={})
    asked = Asked(pipeline, None, lambda failure: None, Tolerance(), None, StoreLoss())
    asked.embedded("postgresql://nowhere")
    assert failed == []
    asked.loss.happened(GONE)
    assert failed == [GONE]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_cluster_of_processes_is_stopped_and_has_failed(is_late: bool) -> None:
    loss, said = StoreLoss(), list[str]()
    code = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(130))\n"
    code += "print('here', flush=True)\nsignal.pause()"

    def say(name: str, is_error: bool, line: str) -> None:
        said.append(line)
        if line == "here":
            loss.happened(GONE)

    if is_late:
        loss.happened(GONE)
    children = [ChildPlan("worker-1", True, [sys.executable, "-c", code])]

    async def main() -> int | None:
        async with asyncio.timeout(60):
            return await _run(children, say, {}, loss)

    assert asyncio.run(main()) == 1
    assert f"{GONE}: the cluster is stopped" in said


def test_a_cluster_on_spark_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    losses: list[StoreLoss] = []
    ended: list[str] = []

    class Cluster:
        """It runs until it is given up."""

        done = False

        def __init__(self, *given: Any) -> None:
            self.why = ""

        def __enter__(self) -> Cluster:
            return self

        def __exit__(self, *_: object) -> None:
            ended.append(self.why)

        def scale(self, workers: int) -> None:
            losses[0].happened(GONE)

        def give_up(self, why: str) -> None:
            self.why, self.done = why, True

        def wait(self, timeout_s: float | None = None) -> int | None:
            assert self.done, "it would run for ever"
            return 1

    def opened(loss: StoreLoss) -> Any:
        losses.append(loss)
        return nullcontext("postgresql://nowhere")

    context = SimpleNamespace(setLogLevel=lambda level: None, uiWebUrl=None)
    session = SimpleNamespace(sparkContext=context, stop=lambda: ended.append("Spark"))
    monkeypatch.setattr(masters, "made_session", lambda *given: session)
    monkeypatch.setattr(hosting, "SparkCluster", Cluster)
    place = cast(Place, SimpleNamespace(store=None, path="a:b", opened=opened))
    on = OnSpark(
        master="local[2]", workers=1, controllers=1, options=(), allowed=Tolerance(), settings=(), py_files=(), certs=None,
        quiet=True,
    )  # fmt: skip
    assert up_on_spark(place, on, lambda *line: None) == 1
    assert ended == [str(GONE), "Spark"]
