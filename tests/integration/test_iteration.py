"""Iterations on a Spark of two executor processes, which are killed with signal 9. A part of `make iteration-grid`."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark import SparkContext

from examples.graphs.cluster import ROOT, kill, spark
from examples.graphs.components import beside
from examples.graphs.graph import cliques
from examples.graphs.runs import rows_of
from millwheel.spark.iteration import (
    Changes,
    CheckpointError,
    ColumnsError,
    CompensationError,
    Converged,
    IterationError,
    Loss,
    Optimistic,
    Part,
    Partitioned,
    Recovered,
    Restart,
    Rows,
    Steps,
    Superstep,
    Tail,
    combined,
    doors,
    from_columns,
    from_rows,
    iterate,
    iterate_delta,
)
from millwheel.spark.iteration.states import State, States
from tests.chaos import endurance
from tests.chaos.iteration import Case, Kills, components, pagerank, paths, whole

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def context() -> Iterator[SparkContext]:
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:  # another module's, which has ended; Spark has one context a process
        active.stop()
    with spark(2) as made:
        yield made


@pytest.fixture(scope="module")
def labels(context: SparkContext) -> Case:
    return components(context)


def recoveries(kills: Kills) -> list[Recovered]:
    return [event for event in kills.events if isinstance(event, Recovered)]


# --- a killed executor, every policy ---


# blocking: killed while it writes, below
@pytest.mark.parametrize(
    "policy",
    [
        "optimistic",
        pytest.param("tail", marks=pytest.mark.grid),
        pytest.param("restart", marks=pytest.mark.grid),
        pytest.param("head", marks=pytest.mark.grid),
    ],
)
def test_components_are_exact_after_a_kill(context: SparkContext, labels: Case, tmp_path: Path, policy: str) -> None:
    kills = Kills(context, after=[3])
    found = labels.run(labels.policy(policy, tmp_path), deliver=rows_of, listener=kills)
    assert labels.judge(found.value) is None
    (recovery,) = recoveries(kills)
    assert recovery.lost
    assert recovery.after in (3, 4)
    resumed = {"restart": range(1), "optimistic": range(3, 5)}.get(policy, range(1, 5))
    assert recovery.resumed in resumed
    assert list(tmp_path.iterdir()) == [] if tmp_path.exists() else True  # checkpoints go when the run has ended


@pytest.mark.grid
def test_pagerank_goes_on_after_two_kills(context: SparkContext) -> None:
    case = pagerank(context, "relax", below=1e-5)
    kills = Kills(context, after=[4, 9])
    found = case.run(case.optimistic, deliver=rows_of, listener=kills)
    assert case.judge(found.value) is None
    assert len(recoveries(kills)) == 2
    assert found.executed < 26 + 9  # 26 undisturbed: fewer than a restart after the second kill alone
    totals = [event.total for event in kills.events if isinstance(event, Superstep)]
    assert max(abs(total - 1.0) for total in totals) < 1e-9


@pytest.mark.grid
def test_paths_are_exact_after_a_kill(context: SparkContext) -> None:
    case = paths(context)
    kills = Kills(context, after=[4])
    found = case.run(case.optimistic, deliver=rows_of, listener=kills)
    assert case.judge(found.value) is None
    assert recoveries(kills)


# --- kills at the worst moments ---


@pytest.mark.grid
def test_a_kill_during_compensation_is_part_of_the_recovery(context: SparkContext, labels: Case) -> None:
    kills = Kills(context, after=[2])
    seen: list[tuple[int, ...]] = []

    def compensate(loss: Loss) -> Any:
        seen.append(loss.lost)
        if len(seen) == 1:  # the other executor, while the repaired partitions are being made
            threading.Timer(0.05, kill, [kills._pids[0]]).start()
        return labels.optimistic.compensate(loss)

    policy = Optimistic(compensate, labels.optimistic.check)
    found = labels.run(policy, deliver=rows_of, listener=kills)
    assert labels.judge(found.value) is None
    assert len(seen) >= 2
    assert {number for lost in seen for number in lost} == {0, 1, 2, 3}


def test_a_kill_during_a_checkpoint_falls_back_to_the_one_before(
    context: SparkContext, labels: Case, tmp_path: Path
) -> None:
    pids = whole(context)
    done = threading.Event()

    def watch() -> None:
        """Kill when the files of the third superstep begin to appear, which is before its manifest does."""
        while not done.is_set():
            if any(tmp_path.glob("step-00000003/*")):
                kill(pids[0])
                return
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        found = labels.run(labels.policy("blocking", tmp_path), deliver=rows_of)
    finally:
        done.set()
        watcher.join()
    assert labels.judge(found.value) is None
    assert all(recovery.resumed in (2, 3) for recovery in found.recoveries)
    assert found.recoveries


# --- what must be refused ---


def test_a_total_that_changes_is_refused(context: SparkContext) -> None:
    case = pagerank(context)

    def compensate(loss: Loss) -> Partitioned[Part]:
        return loss.initial.map(lambda part: part if part.number in loss.lost else part.take(np.arange(0)))

    with pytest.raises(CompensationError, match="the total of column 'rank' is"):
        case.run(Optimistic(compensate, conserved="rank"), listener=Kills(context, after=[5]))


# --- without a kill ---


def test_user_errors_are_told_and_not_taken_for_losses(context: SparkContext) -> None:
    state = from_columns(context, 2, np.arange(10), x=np.zeros(10))

    def divide(part: Part) -> Part:
        return part.having(x=part["x"] + 1 // (len(part) - len(part)))

    with pytest.raises(IterationError, match="halves: ZeroDivisionError"):
        iterate(state, lambda now: now.map(divide), Steps(3), name="halves")
    with pytest.raises(IterationError, match=r"the step's result: partition \d: key .* is missing"):
        iterate(state, lambda now: now.map(lambda part: part.take(np.arange(1, len(part)))), Steps(3))


def test_user_code_that_fails_as_a_network_does_is_not_tried_again(context: SparkContext) -> None:
    delivered = []

    def ask(part: Part) -> Part:
        raise ConnectionRefusedError("Connection refused")

    def deliver(final: Partitioned[Part]) -> None:
        delivered.append(final)
        final.map(ask).collect()

    state = from_columns(context, 2, np.arange(10), x=np.zeros(10))
    with pytest.raises(IterationError, match=r"^iteration: ConnectionRefusedError: Connection refused$"):
        iterate(state, lambda now: now.map(lambda part: part), Steps(1), deliver=deliver, listener=print)
    assert len(delivered) == 1


def test_wrong_arguments_are_told_before_anything_runs(context: SparkContext) -> None:
    state: Any = from_columns(context, 2, np.arange(10), x=np.zeros(10))
    anything: Any = iterate
    with pytest.raises(IterationError, match=r"until must be Converged\(...\) or Steps\(...\), not 5"):
        anything(state, lambda now: now, 5)
    with pytest.raises(IterationError, match=r"recovery must be a policy, such as Tail\(path\), not 'tail'"):
        anything(state, lambda now: now, Steps(1), "tail")
    with pytest.raises(ColumnsError, match="keys must be integers"):
        from_columns(context, 2, np.array([1.5]))


def test_partitions_without_a_key_and_a_norm_that_is_no_number(context: SparkContext) -> None:
    few = from_columns(context, 4, np.arange(2), x=np.ones(2))
    found = iterate(
        few, lambda now: now.map(lambda part: part.having(x=part["x"] / 2)), Converged(0.3), deliver=rows_of
    )
    assert (found.supersteps, found.value) == (2, {0: 0.25, 1: 0.25})
    with pytest.raises(IterationError, match=r"after superstep 1 the norm is not a number \(key \d, column 'x'\)"):
        iterate(few, lambda now: now.map(lambda part: part.having(x=part["x"] * np.nan)), Converged(0.3))
    counted = iterate(few, lambda now: now.map(lambda part: part.having(x=part["x"] * np.nan)), Steps(2))
    assert counted.supersteps == 2


@pytest.mark.grid
def test_they_are_told_beside_a_session_too(context: SparkContext) -> None:
    """A SparkSession, which most programs have, turns some of the JVM's exceptions into others."""
    from pyspark.sql import SparkSession

    SparkSession(context)
    test_user_errors_are_told_and_not_taken_for_losses(context)
    case = components(context)
    run = case.run(Restart(), deliver=rows_of, listener=Kills(context, after=[2]))
    assert case.judge(run.value) is None
    assert len(run.recoveries) == 1


@pytest.mark.parametrize("until", [Converged(0.01), Steps(3)])
def test_a_step_that_writes_into_what_it_was_given_is_refused(context: SparkContext, until: Converged | Steps) -> None:
    """The next state is compared with it: it would be found not to have moved, and the run end with a wrong result."""

    def halve(part: Part, rows: Rows) -> Part:
        x = part["x"]
        x /= 2
        return part.having(x=x)

    state = from_columns(context, 3, np.arange(20), x=np.full(20, 64.0))
    with pytest.raises(IterationError, match="read-only"):
        iterate(
            state, lambda now: now.receive(now.send(lambda part: Rows(part.keys[:0])), halve), until, listener=print
        )


def test_truth_spreads_until_nothing_changes(context: SparkContext) -> None:
    """A column without numbers decides as well when an iteration has converged."""

    def tell(part: Part) -> Rows:
        return Rows((part.keys[part["seen"]] + 1) % 10)

    def hear(part: Part, rows: Rows) -> Part:
        seen = part["seen"].copy()
        seen[part.places(rows.keys)] = True
        return part.having(seen=seen)

    state = from_columns(context, 3, np.arange(10), seen=np.arange(10) == 0)
    ended = iterate(
        state,
        lambda now: now.receive(now.send(tell), hear),
        Converged(0.5),
        deliver=lambda final: final.collect(),
        listener=print,
    )
    assert all(part["seen"].all() for part in ended.value)
    assert (ended.supersteps, ended.converged) == (10, True)


def test_a_count_and_a_tolerance_both_end_an_iteration(context: SparkContext) -> None:
    state = from_columns(context, 3, np.arange(100), x=np.arange(100.0))

    def halved(now: Partitioned[Part]) -> Partitioned[Part]:
        return now.map(lambda part: part.having(x=part["x"] / 2))

    found = iterate(state, halved, Steps(3), deliver=rows_of)
    assert (found.supersteps, found.value[64]) == (3, 8.0)
    found = iterate(state, halved, Converged(below=4.0, column="x"), deliver=rows_of)
    assert (found.supersteps, found.converged) == (5, True)
    assert found.history[-1].norm == pytest.approx(99 / 32)
    stopped = iterate(state, halved, Converged(below=0.0, at_most=2))
    assert (stopped.supersteps, stopped.converged) == (2, False)


def test_a_checkpoint_behind_the_last_superstep_of_a_run_is_refused(context: SparkContext, tmp_path: Path) -> None:
    state = from_columns(context, 2, np.arange(10), x=np.arange(10.0))

    def grown(now: Partitioned[Part]) -> Partitioned[Part]:
        return now.map(lambda part: part.having(x=part["x"] + 1))

    def stop(final: Partitioned[Part]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        iterate(state, grown, Steps(3), Tail(tmp_path / "checkpoints"), deliver=stop)
    for until in (Steps(2), Converged(below=0.0, at_most=2)):
        with pytest.raises(CheckpointError, match=r"superstep 3, and this run ends after 2"):
            iterate(state, grown, until, Tail(tmp_path / "checkpoints"))
    found = iterate(state, grown, Steps(4), Tail(tmp_path / "checkpoints"), deliver=rows_of)
    assert (found.resumed_from, found.executed, found.value[0]) == (3, 1, 4.0)


@pytest.mark.grid
def test_what_the_driver_keeps_of_each_superstep_is_seen(
    context: SparkContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endurance grid's own measure, on a driver that forgets and on one that does not."""
    monkeypatch.setattr(endurance, "EVERY", 5)
    state = from_columns(context, 2, np.arange(10), x=np.zeros(10))
    kept: list[Any] = []

    def forgets(now: Partitioned[Part]) -> Partitioned[Part]:
        return now.map(lambda part: part.having(x=part["x"] + 1))

    def keeps(now: Partitioned[Part]) -> Partitioned[Part]:
        buffer = context._jvm.java.nio.ByteBuffer.allocate(2 << 20)  # type: ignore[union-attr]
        kept.append((np.ones(1 << 20), buffer, now.kept()))
        return forgets(now)

    told = []
    for step in (forgets, keeps):
        memory = endurance.Memory(context)
        found = iterate(state, step, Steps(20), listener=memory)
        grown = memory.growth(memory)
        told.append(str(endurance.not_endured(found, grown, grown)))
        assert len(memory.samples["heap_mb"]) == 4
    assert [name in told[0] for name in ("heap_mb", "python_mb", "cached_rdds")] == [False] * 3
    assert [name in told[1] for name in ("heap_mb", "python_mb", "cached_rdds")] == [True] * 3
    assert "ended after 20 supersteps" in told[0]
    for _, _, rdd in kept:
        rdd.source.unpersist()


def test_untouched_keys_are_not_computed(context: SparkContext) -> None:
    solution = from_columns(context, 2, np.arange(1000), n=np.zeros(1000, dtype=np.int64))
    first = from_columns(context, 2, np.array([3, 700]), n=np.zeros(2, dtype=np.int64))
    sent = context.accumulator(0)

    def tell(changed: Part) -> Rows:
        sent.add(len(changed))
        return Rows(changed.keys, {"n": changed["n"] + 1})

    def below_three(part: Part, rows: Rows) -> Part:
        if not len(rows):
            return part.take(np.arange(0))
        best = combined(rows, n=np.maximum)
        keep = best["n"] <= 3
        return part.take(part.places(best.keys[keep])).having(n=best["n"][keep])

    def step(now: Partitioned[Part], changed: Partitioned[Part]) -> Changes:
        return now.update(changed.send(tell), below_three)

    found = iterate_delta(solution, first, step, deliver=rows_of)
    assert [event.changed for event in found.history] == [2, 2, 2, 0]
    assert sent.value == 2 * 4
    assert (sum(found.value.values()), found.value[3], found.value[700]) == (6, 3, 3)


def test_what_workers_import_is_exempt_from_their_collections(context: SparkContext) -> None:
    """PySpark collects garbage after each task; over numpy and PySpark that takes ten times as long as a small task."""
    state = from_columns(context, 2, np.arange(10), x=np.zeros(10))
    iterate(state, lambda now: now.receive(now.send(lambda part: Rows(part.keys)), lambda part, rows: part), Steps(3))
    slots = 4 * context.defaultParallelism
    frozen = context.parallelize(range(slots), slots).map(lambda _: gc.get_freeze_count()).collect()
    assert min(frozen) > 10_000


def test_rows_from_the_cluster_find_their_partitions(context: SparkContext) -> None:
    def make(seed: int) -> Rows:
        keys = np.arange(seed * 10, seed * 10 + 10)
        return Rows(keys, {"x": keys * 2.0})

    state = from_rows(context.parallelize(range(6), 3).map(make), 4, lambda n, rows: Part(n, *_sorted(rows)))
    found = {int(key): value for part in state.collect() for key, value in zip(part.keys, part["x"], strict=True)}
    assert found == {key: key * 2.0 for key in range(60)}


def _sorted(rows: Rows) -> tuple[Any, dict[str, Any]]:
    order = np.argsort(rows.keys)
    return rows.keys[order], {"x": rows["x"][order]}


def test_the_doors_see_what_is_held_and_read_only_that(context: SparkContext) -> None:
    doors.ready(context)
    pids = whole(context)
    rdd = doors.kept(context.parallelize(range(8), 4))
    rdd.localCheckpoint()
    doors.materialise(rdd)
    assert doors.held(rdd) == {0, 1, 2, 3}
    assert sorted(doors.only(rdd, [1, 3]).collect()) == [2, 3, 6, 7]
    kill(pids[0])
    deadline = time.monotonic() + 20
    while doors.held(rdd) == {0, 1, 2, 3} and time.monotonic() < deadline:
        time.sleep(0.05)
    left = doors.held(rdd)
    assert left < {0, 1, 2, 3}
    assert sorted(doors.only(rdd, left).collect()) == sorted(number for p in left for number in (2 * p, 2 * p + 1))
    if len(left) < 4:
        with pytest.raises(doors.JobFailed) as caught:
            doors.materialise(rdd)
        assert doors.says_block_lost(caught.value)
        assert doors.is_loss(caught.value)
        assert doors.lost_after(rdd, caught.value) == {0, 1, 2, 3} - left
    rdd.unpersist()
    assert doors.held(rdd) == set()


@pytest.mark.grid
def test_a_chain_of_cliques_has_one_component(context: SparkContext, tmp_path: Path) -> None:
    case = components(context, cliques(10, 5))
    found = case.run(case.policy("head", tmp_path, every=4), deliver=rows_of)
    assert case.judge(found.value) is None
    assert found.supersteps > 12
    assert all(event.checkpoint is None or event.checkpoint % 4 == 0 for event in found.history)
    assert max(event.checkpoint or 0 for event in found.history) >= 8


def test_a_head_checkpoint_that_lacks_a_file_does_not_exist(
    context: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a task that died between caching its partition and reporting: the next one found the block in the cache."""
    real = States.materialised

    def forgetful(self: States, superstep: int, *args: Any) -> State:
        state = real(self, superstep, *args)
        if superstep != 3:
            return state
        assert state.headers[0].before is not None
        return replace(state, headers={**state.headers, 0: replace(state.headers[0], before=None)})

    monkeypatch.setattr(States, "materialised", forgetful)
    case = components(context, cliques(4, 5))
    found = case.run(case.policy("head", tmp_path, every=2), deliver=rows_of)
    assert case.judge(found.value) is None
    assert [event.checkpoint for event in found.history[3:6]] in ([None, None, 4], [None, 4, 4])


def test_compensation_wakes_the_neighbours_of_the_lost(context: SparkContext) -> None:
    case = components(context, cliques(10, 5))
    links = case.optimistic.compensate.__self__.links  # type: ignore[attr-defined]
    woken = {int(key) for part in links.map(partial(beside, frozenset({2}))).collect() for key in part.keys}
    graph = cliques(10, 5)
    home = {int(key): part.number for part in links.collect() for key in part.keys}
    expected = {key for key, number in home.items() if number == 2}
    expected |= {int(s) for s, t in zip(graph.source, graph.target, strict=True) if home[int(t)] == 2}
    assert woken == expected


def test_the_blocks_of_the_guide_run(context: SparkContext, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    guide = ROOT / "docs" / "guide-iteration.md"
    blocks = re.findall(r"^```python\n(.*?)^```$", guide.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, Any] = {"__name__": "guide", "context": context, "path": tmp_path}
    for block in blocks:
        exec(compile(block, str(guide), "exec"), names)
    assert float(capsys.readouterr().out.split()[1]) == pytest.approx(100.0)


# --- a killed driver ---


@pytest.mark.grid
def test_a_killed_driver_resumes_from_its_newest_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.graphs", "pagerank", "--recovery", "tail", "--executors", "0"]
    command += ["--below", "1e-5", "--partitions", "2"]
    command += ["--path", str(tmp_path), "--plot", str(tmp_path / "run.png")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *(p for p in sys.path if p)])}
    first = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )  # fmt: skip
    assert first.stdout is not None
    try:
        for line in first.stdout:
            if line.startswith("superstep    6"):
                break
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate()
    second = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    steps = [line for line in second.stdout.splitlines() if line.startswith("superstep")]
    assert 6 <= int(steps[0].split()[1]) <= 9, steps[0]
    assert "converged after superstep 26" in second.stdout
    assert not (tmp_path / "pagerank").exists()
