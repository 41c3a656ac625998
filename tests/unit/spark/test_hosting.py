"""What is decided before a job is given to Spark, and what follows when one has ended."""

from __future__ import annotations

import asyncio
import io
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import click
import pytest
from msgspec.structs import replace

from millwheel import interrupts, limits
from millwheel.cli.on_spark import OnSpark, Wishes, _followed, _progress, heeded_signals, settings_of, up_on_spark
from millwheel.cli.options import Place
from millwheel.cli.status import Status
from millwheel.errors import ChannelError, StoreError, WiringError
from millwheel.host.over import Tolerance
from millwheel.launch import StoreLoss
from millwheel.overview import ClusterPicture, SeenInterval
from millwheel.runtime import memory
from millwheel.runtime.supervisor import ENDS, ChildPlan, Supervisor
from millwheel.spark import controllers, hosted, hosting, masters
from millwheel.spark.controllers import ControllerFamily
from millwheel.spark.hosted import HostedWorker, WorkerEnd, command_of, task_of
from millwheel.spark.hosting import SparkCluster
from millwheel.spark.hosting_plan import HostingPlan, log_line
from millwheel.spark.masters import check_master, check_reachable, is_local
from millwheel.spark.packing import packed

LOCAL = ["local", "local[2]", "local[*]", "local[2,4]", "local-cluster[2,1,1024]"]
ELSEWHERE = ["spark://host:7077", "spark://a:7077,b:7077", "spark://127.0.0.1:7077", "yarn", "k8s://https://host:443"]


def worker(**given: object) -> HostedWorker:
    fields = {
        "name": "worker-1", "path": "words:pipeline", "url": "postgresql://secret@db/x", "options": ("--lease", "5"),
        "directory": None, "beyond": False,
    }  # fmt: skip
    return HostedWorker(**{**fields, **given})  # type: ignore[arg-type]


@pytest.mark.parametrize("master", [*LOCAL, *ELSEWHERE])
def test_workers_listen_beyond_their_machine_with_certificates_only(master: str) -> None:
    check_master(master)
    check_reachable(master, has_certificates=True)
    assert is_local(master) == (master in LOCAL)
    if master in LOCAL:
        check_reachable(master, has_certificates=False)
    else:
        with pytest.raises(ChannelError, match="name it with --certs"):
            check_reachable(master, has_certificates=False)


@pytest.mark.parametrize("master", ["", "spark", "localhost:7077", "local-cluster[2]", "mesos://x"])
def test_what_is_no_master_is_refused(master: str) -> None:
    with pytest.raises(WiringError, match="is no master of Spark: write spark://HOST:7077"):
        check_master(master)


def test_a_worker_listens_on_the_loopback_interface_or_says_how_others_reach_its_executor() -> None:
    near, far = worker(), worker(beyond=True)
    assert "--listen" not in command_of(near, {}, "m1")
    assert command_of(far, {}, "m1")[-6:] == ["--listen", "0.0.0.0:0", "--advertise", "m1", "--lease", "5"]
    assert "m1.cluster" in command_of(far, {"SPARK_LOCAL_HOSTNAME": "m1.cluster"}, "m1")
    assert "--advertise" not in command_of(far, {"MILLWHEEL_ADVERTISE": "10.0.0.7"}, "m1")  # it reads that itself
    assert not [word for word in command_of(far, {}, "m1") if "secret" in word]


def test_an_executor_without_millwheel_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(worker())
    monkeypatch.delattr("millwheel.spark.hosted")
    monkeypatch.setitem(sys.modules, "millwheel.spark.hosted", None)
    rows = iter([0])
    ((status, _, lines),) = task(rows)
    assert [*rows] == [], "a Python worker that leaves some is thrown away"
    assert status in ENDS.hopeless
    assert "cannot import millwheel" in lines[0]


def test_a_task_returns_how_its_worker_ended_and_what_it_said_last(tmp_path: Path) -> None:
    fields = {"directory": str(tmp_path), "path": "nowhere:pipeline"}
    status, _, lines = hosted.serve({name: getattr(worker(**fields), name) for name in HostedWorker.__struct_fields__})
    assert status == Status.FAILED
    assert "there is no module 'nowhere'" in lines[-1]


def test_a_worker_finds_its_store_and_what_travelled_with_the_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    environment = hosted._environment(worker())
    assert environment["MILLWHEEL_STORE"] == "postgresql://secret@db/x"
    assert str(tmp_path) in environment["PYTHONPATH"].split(os.pathsep)


def test_lines_are_passed_on_with_the_name_of_their_worker(capsys: pytest.CaptureFixture[str]) -> None:
    tail: deque[str] = deque(maxlen=2)
    hosted._pass_on("worker-1", io.StringIO('one\ntwo\n{"message": "three"}\n'), tail)
    assert capsys.readouterr().err == 'worker-1 | one\nworker-1 | two\n{"message": "three"}\n'
    assert [*tail] == ["two", '{"message": "three"}']


def run_as_worker(monkeypatch: pytest.MonkeyPatch, code: str) -> tuple[int, float, tuple[str, ...]]:
    """What a task returns whose worker is this program."""
    monkeypatch.setattr(hosted, "command_of", lambda *given: [sys.executable, "-c", code])
    return hosted.serve({name: getattr(worker(), name) for name in HostedWorker.__struct_fields__})


def test_a_task_ends_with_its_worker_though_a_process_that_it_left_keeps_its_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hook may start a process that outlives its worker."""
    leaves = "import subprocess\nleft = subprocess.Popen(['sleep', '60'])\nprint(left.pid)\nraise SystemExit(3)"
    began = time.monotonic()
    status, _, lines = run_as_worker(monkeypatch, leaves)
    took_s = time.monotonic() - began
    os.kill(int(lines[0]), signal.SIGKILL)
    assert status == 3
    assert took_s < 30


class SlowLog(io.StringIO):
    """The worker has ended before all is written."""

    def write(self, text: str) -> int:
        time.sleep(0.003)
        return super().write(text)


def test_a_worker_may_print_bytes_that_are_no_text_and_all_its_last_lines_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hosted, "LAST_LINES_S", 60.0)  # on a busy machine all of it may take longer
    monkeypatch.setattr(sys, "stderr", log := SlowLog())
    code = "import os\nfor n in range(50): os.write(1 + n % 2, b'%d \\xff\\xfe\\n' % n)\nos.write(1, b'end')\n"
    code += "os.kill(os.getpid(), 9)"
    status, _, lines = run_as_worker(monkeypatch, code)
    assert status == -signal.SIGKILL
    assert lines == (*(f"{n} \N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}" for n in range(31, 50)), "end")
    assert len(log.getvalue().splitlines()) == 51


def test_a_worker_whose_log_is_gone_is_still_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would wait for ever to print, and never leave."""

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError("the executor is dead")

    monkeypatch.setattr(sys, "stderr", Gone())
    status, _, lines = run_as_worker(monkeypatch, "for n in range(100_000): print(n)\nraise SystemExit(5)")
    assert (status, lines[-1]) == (5, "99999")


DAEMON = """
import os, pathlib, sys
from millwheel.spark import hosted
from tests.unit.spark.test_hosting import worker
waits = "import os, pathlib, sys; sys.stdin.read(); pathlib.Path(sys.argv[1], 'left').touch()"
hosted.command_of = lambda *given: [sys.executable, "-c", waits, sys.argv[1]]
if os.fork():
    sys.stdin.read()
    os._exit(0)  # Spark's daemon ends, and this test's end of its pipe stays open
pathlib.Path(sys.argv[1], "task").write_text(str(os.getpid()))
hosted.serve({name: getattr(worker(), name) for name in hosted.HostedWorker.__struct_fields__})
pathlib.Path(sys.argv[1], "next").touch()  # Spark would give it the next task
"""


def test_a_task_whose_daemon_has_ended_has_its_worker_leave_and_ends(tmp_path: Path) -> None:
    daemon = subprocess.Popen([sys.executable, "-c", DAEMON, str(tmp_path)], stdin=subprocess.PIPE)
    task = tmp_path / "task"
    deadline = time.monotonic() + SOON_S
    while not task.exists() or not task.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(1.0)
    assert not (tmp_path / "left").exists()
    daemon.communicate()
    stat = Path(f"/proc/{task.read_text()}/stat")
    while not (tmp_path / "left").exists() or (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not (tmp_path / "next").exists()


def test_statuses_mean_to_a_driver_what_they_say() -> None:
    assert ENDS.finished == {Status.DONE, Status.LEFT_OVER}
    assert ENDS.hopeless == {Status.USAGE, Status.BROKEN_HOOKS}
    assert ENDS.doubtful == {Status.FAILED}


def test_settings_of_spark() -> None:
    assert settings_of(["spark.a=1", "spark.b=x=y"]) == {"spark.a": "1", "spark.b": "x=y"}
    for wrong in ("spark.a", "a=1", "=1"):
        with pytest.raises(click.UsageError, match="is no setting of Spark"):
            settings_of([wrong])


def test_the_pipelines_module_is_sent_and_changed_code_is_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "sent_single.py").write_text("A = 1\n")
    package = tmp_path / "sent_package"
    (package / "inner" / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "inner" / "__init__.py").write_text("B = 2\n")
    (package / "inner" / "__pycache__" / "x.pyc").write_text("")
    (one,) = packed("sent_single", tmp_path)
    (same,) = packed("sent_single", tmp_path)
    (whole,) = packed("sent_package.inner", tmp_path)
    assert one == same
    assert zipfile.ZipFile(whole).namelist() == ["sent_package/__init__.py", "sent_package/inner/__init__.py"]
    found = subprocess.run(
        [sys.executable, "-c", "import sent_single, sent_package.inner as i; print(sent_single.A + i.B)"],
        env={"PYTHONPATH": f"{one}:{whole}"}, cwd="/", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout == "3\n"
    (tmp_path / "sent_single.py").write_text("A = 2\n")
    (changed,) = packed("sent_single", tmp_path)
    assert changed != one
    assert packed("json", tmp_path) == []


def test_signals_add_and_take_away_workers_and_end_the_cluster() -> None:
    before = {number: signal.getsignal(number) for number in heeded_signals()}
    wishes = Wishes(1)
    try:
        wishes.heed()
        for number, wanted in ((signal.SIGTTIN, 2), (signal.SIGTTOU, 1), (signal.SIGTTOU, 0), (signal.SIGTTOU, 0)):
            signal.raise_signal(number)
            assert (wishes.workers, wishes.stop) == (wanted, False)
        signal.raise_signal(signal.SIGTERM)
        assert wishes.stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_signal_that_came_before_they_were_heeded_ends_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_came", [signal.SIGTERM])
    before = {number: signal.getsignal(number) for number in heeded_signals()}
    wishes = Wishes(1)
    try:
        wishes.heed()
        assert wishes.stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


SOON_S = 60.0
"""Nothing here waits for more than the next look of the driver."""


class Jobs:
    """A Spark without executors: what ends a job, this test says."""

    master = "local[2]"

    def __init__(self) -> None:
        self._jsc = self
        self.groups: dict[str, queue.Queue[tuple[int, float, tuple[str, ...]] | Exception]] = {}
        self.given: queue.Queue[str] = queue.Queue()
        """Groups of jobs, in the order in which they were given."""
        self._mine = threading.local()

    sparkContext = property(lambda self: self)
    statusTracker = sc = lambda self: self

    is_down = False
    """Spark has ended."""
    runs = False
    """Executors have cores for all jobs."""

    def isStopped(self) -> bool:
        return self.is_down

    def addPyFile(self, path: str) -> None:
        pass

    looks = 0
    """How often the driver has asked whether a job runs."""

    def getJobIdsForGroup(self, group: str) -> list[int]:
        self.looks += 1
        return [1, 2]

    def getJobInfo(self, job: int) -> SimpleNamespace | None:
        return None if job == 1 else SimpleNamespace(stageIds=[3, 4])  # of what has ended long ago, nothing is known

    def getStageInfo(self, stage: int) -> SimpleNamespace | None:
        return None if stage == 3 else SimpleNamespace(numActiveTasks=int(self.runs))

    def setJobGroup(self, group: str, text: str, interruptOnCancel: bool) -> None:
        self._mine.group = group
        self.groups[group] = queue.Queue()

    def cancelJobGroup(self, group: str) -> None:
        self.groups[group].put(RuntimeError("Job cancelled"))

    def parallelize(self, rows: list[int], count: int) -> Jobs:
        return self

    def mapPartitions(self, task: object) -> Jobs:
        return self

    def collect(self) -> list[tuple[int, float, tuple[str, ...]]]:
        self.given.put(self._mine.group)
        end = self.groups[self._mine.group].get()
        if isinstance(end, Exception):
            raise end
        return [end]


class Family:
    """Controllers, as far as the driver sees them."""

    seen: int | None = None
    failed: int | None = None
    stopped: bool | None = None
    """As the driver has told them: whether the run is over."""

    def __init__(self, *given: object) -> None:
        pass

    def stop(self, over: bool) -> None:
        self.stopped = over


@pytest.fixture
def hosted_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[tuple[Jobs, SparkCluster, Family]]:
    """A Spark and a cluster of two workers whose jobs are given to it."""
    (tmp_path / "hosted_pipeline.py").write_text(PIPELINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hosting, "ControllerFamily", Family)
    monkeypatch.setattr(hosting, "_alive", no_worker)
    jobs, plan = Jobs(), HostingPlan(path="hosted_pipeline:pipeline", url="postgresql://nowhere")
    say = request.param if hasattr(request, "param") else log_line
    cluster = SparkCluster(jobs, plan, say)  # type: ignore[arg-type]
    family: Any = cluster._controllers
    yield jobs, cluster, family
    cluster.stop()


def closed(name: str, is_wrong: bool, line: str) -> None:
    """Whoever read what is said has gone, as `head` does."""
    raise BrokenPipeError


async def no_worker(*given: object) -> set[str]:
    return set()


PIPELINE = """
from millwheel import Computation, Pipeline, Stream, TextCoder, subscribe
from millwheel_injectors import IterableSource

words = Stream("words", TextCoder())

class Keep(Computation[str]):
    def ProcessRecord(self, context, record):
        pass

pipeline = Pipeline("hosted")
pipeline.inject(IterableSource("text", []), into=words)
pipeline.add(Keep, [subscribe(words, str)])
"""


@pytest.mark.parametrize("status", [Status.DONE, Status.LEFT_OVER])
def test_workers_that_come_after_the_end_are_not_waited_for(
    hosted_by: tuple[Jobs, SparkCluster, Family], status: Status
) -> None:
    # Controllers that saw the end of a run before any executor had a free core left workers that nobody told of it: with
    # status 0 the driver waited for them for ever.
    jobs, cluster, family = hosted_by
    cluster.scale(2)
    for _ in range(2):
        jobs.given.get()
    family.seen = status
    assert cluster.wait(SOON_S) == status
    assert cluster.workers() == {}


def test_a_worker_that_is_to_be_started_again_is_not_when_the_run_has_ended(
    hosted_by: tuple[Jobs, SparkCluster, Family], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RESTART_FIRST_DELAY_S", 10 * SOON_S)
    monkeypatch.setattr(limits, "RESTART_LONGEST_DELAY_S", 10 * SOON_S)
    jobs, cluster, _ = hosted_by
    cluster.scale(2)
    one, other = jobs.given.get(), jobs.given.get()
    jobs.groups[one].put(RuntimeError("ExecutorLostFailure"))
    while not any(place.deaths for place in cluster._places.values()):
        time.sleep(0.01)
    jobs.groups[other].put((Status.DONE, 1.0, ()))
    assert cluster.wait(SOON_S) == Status.DONE
    assert jobs.given.empty()


@pytest.mark.parametrize("hosted_by", [closed], indirect=True)
def test_a_worker_is_started_again_though_nobody_hears_of_it(
    hosted_by: tuple[Jobs, SparkCluster, Family], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RESTART_FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(limits, "RESTART_LONGEST_DELAY_S", 10 * SOON_S)
    jobs, cluster, _ = hosted_by
    cluster.scale(1)
    for _ in range(2):
        jobs.groups[jobs.given.get(timeout=SOON_S)].put(RuntimeError("ExecutorLostFailure"))
    jobs.groups[jobs.given.get(timeout=SOON_S)].put((Status.DONE, 1.0, ()))
    assert cluster.wait(SOON_S) == Status.DONE


def of_two(
    hosted_by: tuple[Jobs, SparkCluster, Family], monkeypatch: pytest.MonkeyPatch
) -> tuple[list[tuple[str, bool, str]], str, str]:
    """A cluster of two workers, what it says, and their jobs, the first one's first."""
    monkeypatch.setattr(limits, "RESTART_FIRST_DELAY_S", 0.001)
    monkeypatch.setattr(limits, "RESTART_LONGEST_DELAY_S", 0.002)
    monkeypatch.setattr(limits, "HOSTING_LOOK_S", 0.002)
    jobs, cluster, _ = hosted_by
    said: list[tuple[str, bool, str]] = []
    cluster._say = lambda *line: said.append(line)
    cluster.scale(1)
    one = jobs.given.get(timeout=SOON_S)
    cluster.scale(2)
    return said, one, jobs.given.get(timeout=SOON_S)


def test_workers_that_are_too_many_leave_and_come_back_when_they_are_wanted(
    hosted_by: tuple[Jobs, SparkCluster, Family], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, cluster, family = hosted_by
    of_two(hosted_by, monkeypatch)
    with pytest.raises(WiringError, match="-1 workers cannot be"):
        cluster.scale(-1)
    cluster.scale(1)
    while len(cluster.workers()) == 2:  # its job is cancelled
        assert cluster.workers()["worker-2"] == "leaves"
        time.sleep(0.001)
    assert (cluster.wanted, [*cluster.workers()]) == (1, ["worker-1"])
    cluster.scale(2)
    jobs.given.get(timeout=SOON_S)
    assert (cluster.wanted, len(cluster.workers())) == (2, 2)
    cluster.scale(0)
    while cluster.workers():
        time.sleep(0.001)
    assert cluster.wait(0.01) is None, "it is not over: workers may come"
    cluster.stop()
    assert (len(jobs.groups), family.stopped) == (3, False)
    cluster.scale(2)
    assert jobs.given.empty()


@pytest.mark.parametrize("first", [0, 3])
def test_the_status_is_the_largest_of_those_that_saw_the_end(
    hosted_by: tuple[Jobs, SparkCluster, Family], monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    jobs, cluster, family = hosted_by
    _, one, other = of_two(hosted_by, monkeypatch)
    jobs.runs = True
    jobs.groups[one].put((first, 1.0, ()))
    assert cluster.wait(0.02) is None, "the other one still runs"
    jobs.groups[other].put((3 - first, 1.0, ()))
    assert cluster.wait(SOON_S) == 3
    assert cluster.done
    cluster.scale(3)
    assert jobs.given.empty()
    cluster.stop()
    assert family.stopped is True


@pytest.mark.parametrize(
    ("end", "lived_s", "times", "status"),
    [
        ((4, ("a", "b")), 1.0, 1, 4),
        ((1, ("a", "b")), 1.0, limits.RESTART_FAILURES, 1),
        (
            RuntimeError("Job aborted: KeyError: 7\nDriver stacktrace:\n\tat org.apache"),
            1.0,
            limits.RESTART_FAILURES,
            1,
        ),
        ((1, ()), 2 * limits.RESTART_YOUNG_S, 3 * limits.RESTART_FAILURES, None),
        ((-9, ()), 1.0, 3 * limits.RESTART_FAILURES, None),
        ((5, ()), 1.0, 3 * limits.RESTART_FAILURES, None),
        (RuntimeError("ExecutorLostFailure (executor 1 exited)"), 1.0, 3 * limits.RESTART_FAILURES, None),
    ],
)
def test_a_worker_that_always_fails_ends_the_cluster_and_one_that_is_killed_does_not(
    hosted_by: tuple[Jobs, SparkCluster, Family],
    monkeypatch: pytest.MonkeyPatch,
    end: tuple[int, tuple[str, ...]] | Exception,
    lived_s: float,
    times: int,
    status: int | None,
) -> None:
    jobs, cluster, family = hosted_by
    said, group, _ = of_two(hosted_by, monkeypatch)
    for left in range(times, 0, -1):
        jobs.groups[group].put(end if isinstance(end, Exception) else (end[0], lived_s, end[1]))
        if left > 1 or status is None:
            group = jobs.given.get(timeout=SOON_S)
    if status is None:
        assert cluster.wait(0.01) is None
        assert {line.rpartition(";")[2] for _, _, line in said} == {" it is started again"}
        how = {-9: "was killed by signal 9", 5: "ended with status 5"}.get(end[0] if isinstance(end, tuple) else 0, "")
        assert how in said[0][2]
        return
    assert cluster.wait(SOON_S) == status
    cluster.stop()
    assert (cluster.wait(0), family.stopped) == (status, False)
    last = [line for _, _, line in said]
    assert last[-1] == f"worker-1 ended with status {status}: the cluster is stopped"
    if isinstance(end, Exception):
        assert last[-2] == "Job aborted: KeyError: 7"
    else:
        assert last[-3:-1] == ["a", "b"], "all that it printed last"


def test_a_worker_that_was_to_leave_has_seen_the_end_none_the_less(
    hosted_by: tuple[Jobs, SparkCluster, Family], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else may be left who could."""
    _, cluster, _ = hosted_by
    of_two(hosted_by, monkeypatch)
    place = cluster._places[2]
    with cluster._changed:
        place.wanted = False
        cluster._note(place, WorkerEnd(Status.LEFT_OVER, 1.0, ()), True)
    assert cluster.wait(SOON_S) == Status.LEFT_OVER


def test_only_deaths_soon_after_the_start_make_the_next_start_wait(
    hosted_by: tuple[Jobs, SparkCluster, Family], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, cluster, _ = hosted_by
    of_two(hosted_by, monkeypatch)
    place, counted = cluster._places[1], []
    for status, old in ((-9, False), (-9, False), (-9, True), (1, False), (1, True), (1, False)):
        cluster._note(place, WorkerEnd(status, 1.0, ()), old)
        counted.append((place.deaths, place.failures))
    assert counted == [(1, 0), (2, 0), (1, 0), (2, 1), (1, 1), (2, 2)]


def test_a_worker_is_told_where_it_runs_and_what_it_may_take(
    hosted_by: tuple[Jobs, SparkCluster, Family], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, cluster, _ = hosted_by
    of_two(hosted_by, monkeypatch)
    place = cluster._places[1]
    here = cluster._hosted(place)
    assert (here.directory, here.beyond, here.options[0]) == (str(tmp_path), False, "--cache")
    assert 0 < int(here.options[1]) <= memory.cache_bytes(2)
    cluster._plan = replace(cluster._plan, cache_bytes=7, certs="certs", options=("--lease", "5"))
    assert cluster._hosted(place).options == ("--lease", "5", "--certs", str(tmp_path / "certs"), "--cache", "7")
    cluster._plan, cluster._master = replace(cluster._plan, cache_bytes=None), "spark://host:7077"
    there = cluster._hosted(place)
    assert (there.directory, there.beyond, there.options[2:]) == (None, True, ("--certs", str(tmp_path / "certs")))


def test_a_session_without_jobs_is_refused() -> None:
    session: Any = SimpleNamespace()
    with pytest.raises(WiringError, match="is a Spark Connect client"):
        SparkCluster(session, HostingPlan(path="words:pipeline", url="postgresql://nowhere"), log_line)


def test_only_workers_that_live_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [
        SimpleNamespace(name=name, role=role, alive=alive)
        for name, role, alive in (("one", "worker", True), ("two", "worker", False), ("three", "controller", True))
    ]
    closed: list[bool] = []

    class Store:
        def __init__(self, url: str, pipeline: str) -> None:
            pass

        async def cluster_map(self) -> SimpleNamespace:
            return SimpleNamespace(members=members)

        async def close(self) -> None:
            closed.append(True)

    monkeypatch.setattr(hosting, "PostgresStore", Store)
    assert asyncio.run(hosting._alive("postgresql://nowhere", "p")) == {"one"}
    assert closed == [True]


def test_the_end_of_spark_and_of_the_controllers_is_the_end_of_the_cluster(
    hosted_by: tuple[Jobs, SparkCluster, Family], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, cluster, family = hosted_by
    said, group, _ = of_two(hosted_by, monkeypatch)
    jobs.is_down = True
    jobs.groups[group].put(RuntimeError("Job cancelled because SparkContext was shut down"))
    jobs.given.get(timeout=SOON_S)
    assert ("worker-1", True, "Spark has ended") in said
    jobs.is_down = False
    family.failed = 4
    assert cluster.wait(SOON_S) == 4
    assert cluster.workers() == {}


def test_a_store_that_is_gone_ends_the_cluster_and_nobody_is_asked_who_has_left(
    hosted_by: tuple[Jobs, SparkCluster, Family], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers wait for a store that is away; one that is gone for good never comes."""
    _, cluster, family = hosted_by
    said, *_ = of_two(hosted_by, monkeypatch)

    async def asked(*given: object) -> set[str]:
        raise AssertionError("nobody is there to ask")

    monkeypatch.setattr(hosting, "_alive", asked)
    cluster.give_up("d was removed")
    cluster.give_up("again")
    assert cluster.wait(SOON_S) == Status.FAILED
    cluster.stop()
    assert (cluster.wait(0), family.stopped, cluster.workers()) == (Status.FAILED, False, {})
    assert [line for _, _, line in said] == ["d was removed: the cluster is stopped"]


def test_after_the_end_of_the_run_its_store_may_go(
    hosted_by: tuple[Jobs, SparkCluster, Family], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, cluster, _ = hosted_by
    said, group, other = of_two(hosted_by, monkeypatch)
    for each in (group, other):
        jobs.groups[each].put((Status.DONE, 1.0, ()))
    assert cluster.wait(SOON_S) == Status.DONE
    cluster.give_up("d was removed")
    assert (cluster.wait(0), said) == (Status.DONE, [])


def test_whoever_waits_for_a_core_says_so_once(
    hosted_by: tuple[Jobs, SparkCluster, Family], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HOSTING_PATIENCE_S", 0.01)
    jobs, cluster, _ = hosted_by
    said, *_ = of_two(hosted_by, monkeypatch)
    while {*cluster.workers().values()} != {"waits for a core"}:
        time.sleep(0.001)
    looks = jobs.looks
    while jobs.looks < looks + 6:
        time.sleep(0.001)
    jobs.runs = True
    while {*cluster.workers().values()} != {"runs"}:
        time.sleep(0.001)
    told = sorted(line.partition(":")[0] for _, _, line in said)
    waits = [f"worker-{number} waits for a free core of Spark" for number in (1, 2)]
    assert told == waits
    jobs.runs = False  # its executor is gone, and Spark has no other one
    while len(said) < 4:
        time.sleep(0.001)
    assert sorted(line.partition(":")[0] for _, _, line in said[2:]) == waits


def test_whoever_stops_a_cluster_waits_until_its_workers_have_left_and_not_for_others(
    hosted_by: tuple[Jobs, SparkCluster, Family], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is cancelled is over before its worker is."""
    _, cluster, _ = hosted_by
    of_two(hosted_by, monkeypatch)
    left = [{"worker-1", "worker-2", "other"}, {"worker-2", "other"}, {"other"}, set()]

    async def alive(*given: object) -> set[str]:
        return left.pop(0)

    monkeypatch.setattr(hosting, "_alive", alive)
    cluster.stop()
    assert left == [set()]
    assert cluster.wait(0) is None, "it was stopped"


def test_controllers_that_cannot_be_kept_have_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(supervisor: Supervisor) -> int | None:
        raise OSError("no more processes can be made")

    monkeypatch.setattr(Supervisor, "run", run)
    said: list[str] = []
    plan = HostingPlan(path="words:pipeline", url="postgresql://nowhere")
    family = ControllerFamily(plan, None, lambda name, is_wrong, line: said.append(line))
    family.stop(over=True)
    assert (family.seen, family.failed) == (None, Status.FAILED)
    assert said == ["no controller can be kept: no more processes can be made"]


def test_a_controller_beside_the_driver_is_told_what_is_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    plan = HostingPlan(
        path="words:pipeline", url="postgresql://secret@db/x", options=("--lease", "5"), certs="certs",
        allowed=Tolerance(2, 3),
    )  # fmt: skip
    child = controllers._plan(plan, 2, "driver")
    assert child.command[1:] == [
        "-m", "millwheel", "controller", "words:pipeline", "--name", "controller-2", "--with-parent", "--lease", "5",
        "--allow-quarantine", "2", "--allow-rejected", "3", "--certs", str(tmp_path / "certs"),
        "--listen", "0.0.0.0:0", "--advertise", "driver",
    ]  # fmt: skip
    assert (child.name, child.is_worker) == ("controller-2", True)
    assert "--listen" not in controllers._plan(plan, 1, None).command, "nobody calls it from another machine"


@pytest.mark.parametrize(
    ("code", "over", "ends"),
    [
        ("time.sleep(0.5)\nraise SystemExit(3)", True, (3, None)),
        ("raise SystemExit(2)", True, (None, 2)),
        ("time.sleep(60)", False, (None, None)),
    ],
)
def test_controllers_find_the_store_of_the_cluster_and_how_they_end_is_known(
    code: str, over: bool, ends: tuple[int | None, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"import os, time\nprint(os.environ['MILLWHEEL_STORE'], flush=True)\n{code}"
    child = ChildPlan("controller-1", True, [sys.executable, "-c", code])
    monkeypatch.setattr(controllers, "_plan", lambda *_: child)
    monkeypatch.setenv("MILLWHEEL_STORE", "postgresql://another")
    said: list[str] = []
    plan = HostingPlan(path="words:pipeline", url="postgresql://nowhere")
    family = ControllerFamily(plan, None, lambda name, is_wrong, line: said.append(line))
    while not said:
        time.sleep(0.01)
    family.stop(over)
    assert (said[0], family.seen, family.failed) == ("postgresql://nowhere", *ends)


class Followed:
    """A cluster to which one thing happens at each look."""

    def __init__(self, *happens: Callable[[], object]) -> None:
        self.happens = [*happens]
        self.scaled: list[int] = []
        self.done = False

    def scale(self, workers: int) -> None:
        self.scaled.append(workers)

    def wait(self, timeout_s: float | None = None) -> int | None:
        if timeout_s:
            self.happens.pop(0)()
        return 3 if self.done else None

    def end(self) -> None:
        self.done = True


@pytest.mark.parametrize(("is_stopped", "status"), [(True, None), (False, 3)])
def test_what_an_operator_wants_is_heeded_until_the_run_is_over_or_is_to_end(
    is_stopped: bool, status: int | None
) -> None:
    wishes, said = Wishes(2), list[str]()
    cluster = Followed(
        lambda: None, lambda: setattr(wishes, "workers", 5), lambda: None, lambda: setattr(wishes, "workers", 0),
        lambda: setattr(wishes, "stop", True) if is_stopped else cluster.end(), lambda: pytest.fail("it goes on"),
    )  # fmt: skip
    found = _followed(None, "", cluster, wishes, lambda name, is_wrong, line: said.append(line))  # type: ignore[arg-type]
    assert (found, cluster.scaled) == (status, [2, 5, 0])
    assert said == ["5 workers are wanted now", "0 workers are wanted now"]


class Opened(Place):
    """A place whose embedded Postgres is only said to be there."""

    losses: ClassVar[list[StoreLoss]] = []

    def opened(self, loss: StoreLoss | None = None) -> AbstractContextManager[str]:
        assert loss is not None
        self.losses.append(loss)
        return nullcontext("postgresql://nowhere")


class Session(Jobs):
    """The whole session, as `up --on` makes it."""

    uiWebUrl = "http://pages"
    stopped = False

    def setLogLevel(self, level: str) -> None:
        pass

    def stop(self) -> None:
        self.stopped = True


def asked(**given: Any) -> OnSpark:
    fields = {
        "master": "local[2]", "workers": 2, "controllers": 1, "options": (), "allowed": Tolerance(), "settings": (),
        "py_files": (), "certs": None, "quiet": False,
    }  # fmt: skip
    return OnSpark(**{**fields, **given})


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    (tmp_path / "hosted_pipeline.py").write_text(PIPELINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hosting, "ControllerFamily", Family)
    monkeypatch.setattr(hosting, "_alive", no_worker)
    monkeypatch.setattr(Opened, "losses", [])
    made = Session()
    monkeypatch.setattr(masters, "made_session", lambda *_: made)
    return made


def told_by(say: list[tuple[str, bool, str]]) -> list[str]:
    return [line for _, _, line in say]


def test_a_cluster_on_spark_ends_when_its_embedded_postgres_is_gone_for_good(session: Session) -> None:
    said: list[tuple[str, bool, str]] = []
    before = [signal.getsignal(number) for number in heeded_signals()]

    def lose() -> None:
        session.given.get(timeout=SOON_S)
        Opened.losses[0].happened(StoreError("d was removed"))

    thread = threading.Thread(target=lose)
    thread.start()
    place = Opened("hosted_pipeline:pipeline", None, "d")
    # Where nothing tells it, it would go on for ever: the test would, too.
    rescue = threading.Timer(SOON_S, signal.raise_signal, (signal.SIGTERM,))
    rescue.start()
    try:
        assert up_on_spark(place, asked(), lambda *line: said.append(line)) == Status.FAILED
    finally:
        rescue.cancel()
        thread.join()
    assert told_by(said) == [
        "what workers print is in the logs of executors: http://pages/executors/",
        "d was removed: the cluster is stopped",
    ]
    assert session.stopped
    assert [signal.getsignal(number) for number in heeded_signals()] == before, "as they were"


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("status", [Status.DONE, Status.LEFT_OVER])
def test_the_end_of_a_run_on_spark_is_said_when_all_is_well_and_anything_is_said(
    session: Session, quiet: bool, status: Status
) -> None:
    said: list[tuple[str, bool, str]] = []

    def end() -> None:
        session.groups[session.given.get(timeout=SOON_S)].put((status, 1.0, ()))

    thread = threading.Thread(target=end)
    thread.start()
    place = Opened("hosted_pipeline:pipeline", None, "d")
    assert up_on_spark(place, asked(quiet=quiet, workers=1), lambda *line: said.append(line)) == status
    thread.join()
    pages = "what workers print is in the logs of executors: http://pages/executors/"
    assert told_by(said) == ([] if quiet else [pages, *(["the run is over"] if status == Status.DONE else [])])
    assert session.stopped


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"master": "spark://h:7077", "certs": "c"},
            "executors of spark://h:7077 cannot reach a Postgres that is embedded",
        ),
        ({"controllers": 0}, "--controllers 0 joins a cluster that runs elsewhere: name its Postgres with --store"),
        (
            {"settings": ["spark.executor.memory"]},
            "'spark.executor.memory' is no setting of Spark: write --conf spark.NAME",
        ),
    ],
)
def test_what_cannot_be_hosted_is_refused_before_anything_starts(
    session: Session, given: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(*_: object) -> Any:
        raise AssertionError("a session is made")

    monkeypatch.setattr(masters, "made_session", made)
    with pytest.raises(click.UsageError, match=says):
        up_on_spark(Opened("hosted_pipeline:pipeline", None, "d"), asked(**given), log_line)
    assert not Opened.losses
    assert session.given.empty()


@pytest.mark.parametrize(("watermarks", "said"), [(True, ", watermark 1970-01-01T00:00:10+00:00"), (False, "")])
def test_what_is_said_of_a_cluster_on_spark_is_its_slowest_watermark_and_all_that_waits(
    watermarks: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    intervals = tuple(SeenInterval(number, "Count", "", None, None, 700 * number) for number in (1, 2))
    marks = {"source:text": 25_000_000, "Count": 10_000_000} if watermarks else {}
    found = ClusterPicture(1, (), intervals, (), marks, 0.0)
    monkeypatch.setattr("millwheel.overview.ClusterOffice", lambda *_: nullcontext(SimpleNamespace(look=lambda: found)))
    monkeypatch.setattr(Place, "pipeline", lambda place: None)
    cluster: Any = SimpleNamespace(wanted=3, workers=lambda: {"w-1": "runs", "w-2": "waits for a core", "w-3": "runs"})
    assert _progress(Place("a:b", None, "d"), "", cluster) == f"2 of 3 workers run, backlog 2,100{said}"


def test_what_spark_says_of_a_failed_job_is_its_end_without_the_stack_of_its_scheduler() -> None:
    text = "Job aborted\n  Traceback\n    File x\n  ValueError: no\n\nDriver stacktrace:\n\tat org.apache.spark.X"
    assert hosting._reason(text) == "Traceback File x ValueError: no"
