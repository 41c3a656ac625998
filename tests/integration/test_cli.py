"""The `millwheel` command as a user meets it: in an empty directory, stopped, resumed, asked, misused."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

import millwheel
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres.reader import reset
from tests.patience import WAIT_S

pytestmark = pytest.mark.postgres

WORDS = """
import os, time
from millwheel import Computation, JsonCoder, Pipeline, Stream, TextCoder, ValueCell, subscribe
from millwheel.core.source import injector
from millwheel_injectors import IterableSource

if "SLOW" in os.environ:  # a slow hook and small bundles: progress and commits in small steps
    injector.READ_LIMIT_ROWS = 100

COUNT = int(os.environ.get("COUNT", "5000"))
words = Stream("words", TextCoder())

class Count(Computation[str]):
    seen = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context, record):
        if record.value == "bad" and "BROKEN" in os.environ:
            raise RuntimeError("not today")
        self.seen.set(self.seen.get() + 1)
        if "SLOW" in os.environ:
            time.sleep(0.0001)

def rows():
    return (("bad" if i % 1000 == 7 else f"word {i % 5}", i) for i in range(COUNT))

pipeline = Pipeline("words")
pipeline.inject(IterableSource("text", rows), into=words)
pipeline.add(Count, inputs=[subscribe(words, key=str)], work_limit_records=100)
if "KEEP" in os.environ:
    pipeline.publish(words, keep=int(os.environ["KEEP"]))
no_pipeline = 7
def forgets(): Pipeline('forgets')

def two(arguments, needed):
    return pipeline
"""

UNREADABLE = """
class Wrong(JsonCoder):
    def decode(self, data):
        raise ValueError("no")

"""

COUNTED = "bad\tseen\t5\n" + "".join(f"word {i}\tseen\t{1000 - (5 if i == 2 else 0)}\n" for i in range(5))


def records_of(line: str) -> int:
    """Records of a progress line, 0 for another line."""
    found = re.search(r" ([\d,]+) records", line)
    return int(found[1].replace(",", "")) if found else 0


class Shell:
    """A directory with `words.py` in it, and the command."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.command = str(Path(sys.executable).with_name("millwheel"))
        (directory / "words.py").write_text(WORDS)

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.command, *arguments], cwd=self.directory, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
        )  # fmt: skip

    def __call__(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        """Exit status, standard output and standard error; Postgres is down afterwards."""
        with self.start(*arguments, **environment) as process:
            out, err = process.communicate(timeout=WAIT_S)
        self.check_stopped()
        return process.returncode, out, err

    def check_stopped(self) -> None:
        assert EmbeddedPostgres(self.directory / ".millwheel" / "postgres").pid is None


COPIES = """
import json, os, sys
import millwheel.cli.main, millwheel.launch, millwheel.overview, millwheel.runtime.embedded, millwheel_injectors
import millwheel_storage.postgres.reader, millwheel_storage.schema.ddl, uvloop  # what each copy would have to import
from millwheel.__main__ import main

for line in sys.stdin:
    directory, environment, sys.argv[1:] = json.loads(line)
    copy = os.fork()
    if copy == 0:
        os.chdir(directory)
        os.environ.update(environment)
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        try:
            status = main()
        except SystemExit as end:
            status = end.code
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def copies() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported the command, and makes a copy of itself for each call."""
    command = [sys.executable, "-P", "-c", COPIES]
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process


class Copied(Shell):
    """The same by copies of one process, which take a third of the time of a start."""

    def __init__(self, directory: Path, copies: subprocess.Popen[str], store: str = "") -> None:
        super().__init__(directory)
        self._copies = copies
        self._store = {"MILLWHEEL_STORE": store} if store else {}

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return super().start(*arguments, **{**self._store, **environment})

    def __call__(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        assert self._copies.stdin is not None
        assert self._copies.stdout is not None
        asked = [str(self.directory), {**self._store, **environment}, arguments]
        print(json.dumps(asked), file=self._copies.stdin, flush=True)
        status = int(self._copies.stdout.readline())
        self.check_stopped()
        return status, (self.directory / "out").read_text(), (self.directory / "err").read_text()


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Each command that needs the store starts its Postgres, and stops it."""
    return Shell(tmp_path)


@pytest.fixture
def copied(tmp_path: Path, copies: subprocess.Popen[str]) -> Shell:
    """For what ends before it does anything."""
    return Copied(tmp_path, copies)


@pytest.fixture
def served(tmp_path: Path, postgres: EmbeddedPostgres, copies: subprocess.Popen[str]) -> Iterator[Shell]:
    """On a Postgres that serves all tests: for what does not depend on where the store is, nor on how the command starts."""
    yield Copied(tmp_path, copies, postgres.url)
    for pipeline in ("words", "left", "jobs", "hostile"):
        reset(postgres.url, pipeline)


def test_a_run_serves_figures(shell: Shell) -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    with shell.start("run", "words:pipeline", "--metrics", address, COUNT="40000", SLOW="1") as process:
        assert process.stdout is not None
        while records_of(process.stdout.readline()) < 100:
            assert process.poll() is None
        with urlopen(f"http://{address}/metrics") as answer:
            figures = answer.read().decode()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_S)
    records = re.search(r'^millwheel_records_total{pipeline="words"} (\S+)$', figures, re.MULTILINE)
    assert records is not None
    assert float(records[1]) > 0


def test_status_says_that_a_run_owns_all_while_it_runs(served: Shell) -> None:
    with served.start("run", "words:pipeline", COUNT="40000", SLOW="1") as process:
        assert process.stdout is not None
        while records_of(process.stdout.readline()) < 100:
            assert process.poll() is None
        status, out, err = served("status", "words:pipeline")
        owners = {line.split("\t")[4] for line in out.splitlines() if line.startswith("interval")}
        assert (status, owners, err) == (0, {"an embedded run"}, "")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_S)
    _, out, _ = served("status", "words:pipeline")
    assert "nobody" in out
    assert "an embedded run" not in out


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_stopped_by_a_signal_in_mid_run_it_resumes_exactly(shell: Shell, number: signal.Signals) -> None:
    with shell.start("run", "words:pipeline", COUNT="40000", SLOW="1") as process:
        assert process.stdout is not None
        began = time.monotonic()
        while records_of(process.stdout.readline()) < 8_000:
            assert time.monotonic() - began < 180
            assert process.poll() is None
        process.send_signal(number)
        _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130, err
    assert err == "millwheel: stopped; run it again to resume\n"
    shell.check_stopped()

    status, out, err = shell("state", "scan", "words:pipeline", "Count")
    assert (status, err) == (0, "")
    assert 0 < sum(int(line.split("\t")[2]) for line in out.splitlines()) < 40_000

    status, out, err = shell("run", "words:pipeline", COUNT="40000")
    assert (status, err) == (0, "")
    assert "watermark the end of time" in out.splitlines()[-1]
    status, out, err = shell("state", "scan", "words:pipeline", "Count")
    assert (status, err) == (0, "")
    assert [line.split("\t")[2] for line in out.splitlines()] == ["40", "8000", "8000", "7960", "8000", "8000"]


def test_an_embedded_postgres_that_dies_in_mid_run_is_started_again(shell: Shell) -> None:
    with shell.start("run", "words:pipeline", COUNT="20000", SLOW="1") as process:
        assert process.stdout is not None
        while records_of(process.stdout.readline()) < 4_000:
            assert process.poll() is None
        pid = EmbeddedPostgres(shell.directory / ".millwheel" / "postgres").pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, err
    shell.check_stopped()
    _, out, _ = shell("state", "scan", "words:pipeline", "Count")
    assert [line.split("\t")[2] for line in out.splitlines()] == ["20", "4000", "4000", "3980", "4000", "4000"]


def test_views_on_state(served: Shell) -> None:
    assert served("run", "words:pipeline")[0] == 0
    assert served("state", "get", "words:pipeline", "Count", "word 3") == (0, "word 3\tseen\t1000\n", "")
    assert served("state", "get", "words:pipeline", "Count", "nobody") == (
        1, "", "millwheel: key 'nobody' of 'Count' has no state: see millwheel state scan\n"
    )  # fmt: skip
    assert served("state", "scan", "words:pipeline", "Count", "b") == (0, "bad\tseen\t5\n", "")
    status, out, err = served("explain", "words:pipeline", "Count")
    assert (status, err) == (0, "")
    assert out == "watermark\tthe end of time\tsource:text\nwatermark\tthe end of time\tCount\n"
    status, out, err = served("source", "list", "words:pipeline")
    assert (status, bool(re.fullmatch(r"text\t[^\t\n]*\tfinished\n", out)), err) == (0, True, "")


def test_quarantine_is_listed_shown_and_redriven(served: Shell) -> None:
    status, out, err = served("run", "words:pipeline", BROKEN="1")
    assert status == 3
    assert "quarantined keys 1" in out.splitlines()[-1]
    said = err.splitlines()
    assert said[0] == (
        "millwheel: error: Count.ProcessRecord failed for key 'bad', and the key goes to quarantine: RuntimeError: not today"
    )
    more, left = said[-2:]
    show, ask = "quarantine show words:pipeline Count bad --store URL", "quarantine list words:pipeline --store URL"
    assert more == f"millwheel: error: more of the same is only counted; see millwheel {show}"
    assert left == f"millwheel: warning: 1 key is in quarantine: see millwheel {ask}"
    assert sum("words.py" in line for line in said) == 1
    assert "executor.py" not in err
    assert all(line.startswith("millwheel: ") for line in said)
    assert served("run", "words:pipeline")[0] == 3  # it is still there
    assert served("run", "words:pipeline", "--allow-quarantine", "1")[0] == 0
    assert served("run", "words:pipeline", MILLWHEEL_ALLOW_QUARANTINE="1")[0] == 0
    assert served("quarantine", "list", "words:pipeline") == (0, "Count\tbad\t5 waiting\n", "")
    status, out, _ = served("quarantine", "show", "words:pipeline", "Count", "bad")
    assert status == 0
    assert "#0 1970-01-01T00:00:00.000007+00:00 bad\n" in out
    assert "RuntimeError: not today" in out
    status, out, _ = served("quarantine", "redrive", "words:pipeline", "Count", "bad")
    assert (status, out) == (0, "millwheel: 'bad' will be redriven by the running pipeline, or by the next run\n")
    assert served("run", "words:pipeline")[0] == 0
    assert served("quarantine", "list", "words:pipeline") == (0, "", "")
    assert served("state", "scan", "words:pipeline", "Count") == (0, COUNTED, "")
    status, out, err = served("quarantine", "redrive", "words:pipeline", "Count", "bad")
    assert (status, out) == (1, "")
    assert err == "millwheel: key 'bad' of 'Count' is not in quarantine\n"


@pytest.mark.parametrize("what", [("--all",), ("Count", "--all")])
def test_all_keys_are_redriven_by_one_command(served: Shell, what: tuple[str, ...]) -> None:
    served("run", "words:pipeline", BROKEN="1")
    status, out, err = served("quarantine", "redrive", "words:pipeline", "Count")
    assert (status, out) == (2, "")
    assert "name a computation and a key, or add --all instead of the key" in err
    status, out, _ = served("quarantine", "redrive", "words:pipeline", *what)
    assert (status, out) == (0, "millwheel: 1 key will be redriven by the running pipeline, or by the next run\n")
    assert served("run", "words:pipeline")[0] == 0
    assert served("quarantine", "list", "words:pipeline") == (0, "", "")
    assert served("state", "scan", "words:pipeline", "Count") == (0, COUNTED, "")
    status, out, _ = served("quarantine", "redrive", "words:pipeline", *what)
    assert (status, out) == (0, "millwheel: no key is in quarantine\n")


QUEUES = """
import os
from millwheel import Computation, MsgpackCoder, Pipeline, Stream, subscribe
from millwheel_injectors import IterableSource

numbers = Stream("numbers", MsgpackCoder(dict[str, int]))

def breaks():
    if "BROKEN" in os.environ:
        raise RuntimeError("not today")

class Eager(Computation[dict[str, int]]):
    def ProcessRecord(self, context, record):
        breaks()

class Late(Computation[dict[str, int]]):
    def ProcessRecord(self, context, record):
        context.set_timer("wake\\tup", record.timestamp + 1_000_000)

    def ProcessTimer(self, context, timer):
        breaks()

pipeline = Pipeline("jobs")
pipeline.inject(IterableSource("numbers", [({"n": 7}, 1_000_000)]), into=numbers)
for computation in (Eager, Late):
    pipeline.add(computation, [subscribe(numbers, lambda value: "k")])
"""


def test_what_waits_is_shown_as_it_was_and_each_computation_has_its_own_queue(served: Shell) -> None:
    (served.directory / "jobs.py").write_text(QUEUES)
    assert served("run", "jobs:pipeline", BROKEN="1")[0] == 3
    assert sorted(served("quarantine", "list", "jobs:pipeline")[1].splitlines()) == [
        "Eager\tk\t1 waiting",
        "Late\tk\t1 waiting",
    ]
    for computation, first in (
        ("Eager", '#0 1970-01-01T00:00:01+00:00 {"n":7}'),
        ("Late", r"#0 1970-01-01T00:00:02+00:00 wake\tup"),
    ):
        status, out, err = served("quarantine", "show", "jobs:pipeline", computation, "k")
        assert (status, err, out.splitlines()[0]) == (0, "", first)
        assert "RuntimeError: not today" in out
    assert served("quarantine", "show", "jobs:pipeline", "Late", "l") == (
        1, "", "millwheel: key 'l' of 'Late' is not in quarantine\n"
    )  # fmt: skip
    assert served("quarantine", "redrive", "jobs:pipeline", "Late", "--all")[0] == 0
    assert served("run", "jobs:pipeline")[0] == 3
    assert served("quarantine", "list", "jobs:pipeline")[1] == "Eager\tk\t1 waiting\n"
    assert served("quarantine", "redrive", "jobs:pipeline", "--all")[0] == 0
    assert served("run", "jobs:pipeline")[0] == 0


def test_a_run_that_is_taken_over_has_a_status_of_its_own(shell: Shell) -> None:
    with shell.start("run", "words:pipeline", COUNT="100000", SLOW="1") as first:
        assert first.stdout is not None
        while records_of(first.stdout.readline()) < 1_000:
            assert first.poll() is None
        with shell.start("run", "words:pipeline", COUNT="100000", SLOW="1") as second:
            # If the second does not start, the first goes on for minutes on a busy machine: then its error is told.
            while first.poll() is None:
                if second.poll() is not None:
                    first.kill()
                    pytest.fail(f"the second has ended: {second.communicate()}")
                time.sleep(0.05)
            _, err = first.communicate(timeout=WAIT_S)
            assert (first.returncode, err.count("\n")) == (5, 1), err
            assert "another run" in err
            second.send_signal(signal.SIGINT)
            second.communicate(timeout=WAIT_S)
    assert second.returncode == 130


LEFT = """
import os
from millwheel import Computation, Pipeline, Stream, TextCoder, subscribe
from millwheel_injectors import FileSource

lines = Stream("lines", TextCoder())

class Check(Computation[str]):
    def ProcessRecord(self, context, record):
        if "TYPO" in os.environ:
            self.chek(record)

def at(line):
    return int(line.partition(" ")[0])

pipeline = Pipeline("left")
pipeline.inject(FileSource("lines", "*.log", event_time=at, rejects=os.environ.get("REJECTS")), into=lines)
pipeline.add(Check, [subscribe(lines, str)])
"""


@pytest.mark.parametrize("rejects", ["", "rejects.jsonl"])
def test_rejected_rows_are_a_line_for_each_kind_and_a_status(served: Shell, rejects: str) -> None:
    (served.directory / "left.py").write_text(LEFT)
    rows = "".join(f"{i} a\n" if i % 2 else f"x{i} b\n" for i in range(1, 301))
    (served.directory / "a.log").write_text(rows)
    environment = {"REJECTS": rejects} if rejects else {}
    status, out, err = served("run", "left:pipeline", **environment)
    assert status == 3
    assert out.splitlines()[-1].endswith("rejected 150")
    said = err.splitlines()
    assert len(said) == (1 if rejects else 4)
    kind = "event time: ValueError: invalid literal for int() with base …: …"
    assert said[-1] == f"millwheel: warning: source lines: 150 rejected: {kind}"
    served("reset", "--yes", "left:pipeline")
    assert served("run", "left:pipeline", "--allow-rejected", "150")[0] == 0
    served("reset", "--yes", "left:pipeline")
    status, _, err = served("run", "left:pipeline", "--allow-rejected", "149")
    assert (status, err.splitlines()[-1]) == (
        3, "millwheel: error: the run is stopped: 150 rows are rejected, 149 are allowed"
    )  # fmt: skip


def test_a_typo_in_a_hook_stops_the_run_and_leaves_nothing(served: Shell) -> None:
    (served.directory / "left.py").write_text(LEFT)
    (served.directory / "a.log").write_text("".join(f"{i} a\n" for i in range(1, 301)))
    status, _, err = served("run", "left:pipeline", TYPO="1")
    assert status == 4
    assert "AttributeError: 'Check' object has no attribute 'chek'" in err
    assert "Check.ProcessRecord has failed for the first 20 keys" in err.splitlines()[-1]
    assert served("quarantine", "list", "left:pipeline") == (0, "", "")
    assert served("run", "left:pipeline")[0] == 0


def test_quiet_says_nothing_when_all_is_well_and_verbose_says_every_watermark(served: Shell) -> None:
    assert served("run", "words:pipeline", "--quiet") == (0, "", "")
    assert served("reset", "words:pipeline", "--yes")[0] == 0
    status, out, err = served("run", "words:pipeline", "-v", COUNT="20000", SLOW="1")
    assert status == 0
    assert re.fullmatch(r"millwheel: state of keys may take [0-9,]+ MiB of memory\n", err), err
    assert re.search(r"^millwheel: watermark of source:text: 1970", out, re.MULTILINE)
    assert "watermark of source:text: the end of time" in "".join(out.splitlines()[-2:])
    assert "millwheel: watermark of" in served("run", "words:pipeline", "-v", COUNT="20000")[1]
    assert served("reset", "words:pipeline", "--yes")[0] == 0
    status, out, err = served("run", "words:pipeline", "--quiet", BROKEN="1", MILLWHEEL_VERBOSE="1")
    assert (status, out) == (3, "")
    assert "RuntimeError: not today" in err


def test_the_last_records_of_a_published_stream_are_shown(copied: Shell, served: Shell) -> None:
    status, out, err = copied("tail", "words:pipeline", "words")
    no_store = "there is no store in .millwheel: run the pipeline first, or name its --data or --store"
    assert (status, out, err) == (1, "", f"millwheel: {no_store}\n")
    assert served("run", "words:pipeline", COUNT="10")[0] == 0
    status, out, err = served("tail", "words:pipeline", "words")
    assert (status, out) == (1, "")
    assert "stream 'words' is not published" in err
    assert "call pipeline.publish(words)" in err
    status, out, err = served("tail", "words:pipeline", "wordz", KEEP="7")
    assert (status, out, err) == (1, "", "millwheel: no stream 'wordz'; there are ['words']\n")

    served("reset", "words:pipeline", "--yes")
    assert served("run", "words:pipeline", COUNT="10", KEEP="7")[0] == 0
    lines = [
        f'{{"position":{i + 1},"time":"1970-01-01T00:00:00.00000{i}+00:00","value":"{value}"}}\n'
        for i, value in enumerate(["", "", "", "word 3", "word 4", "word 0", "word 1", "bad", "word 3", "word 4"])
        if i >= 3
    ]
    assert served("tail", "words:pipeline", "words", KEEP="7") == (0, "".join(lines), "")
    assert served("tail", "words", "words:pipeline", "-n", "2", KEEP="7") == (0, "".join(lines[-2:]), "")


def test_a_stream_is_followed_while_it_runs(shell: Shell) -> None:
    """The follower sees every record from its first one on, survives the end of the run, and ends with Ctrl-C."""
    with shell.start("run", "words:pipeline", COUNT="20000", SLOW="1", KEEP="100000") as running:
        assert running.stdout is not None
        while records_of(running.stdout.readline()) < 1_000:
            assert running.poll() is None
        with shell.start("tail", "words:pipeline", "words", "-f", "-n", "1", KEEP="100000") as tail:
            assert tail.stdout is not None
            positions: list[int] = []
            while not positions or positions[-1] < 20_000:
                positions.append(json.loads(tail.stdout.readline())["position"])
            tail.send_signal(signal.SIGINT)
            _, err = tail.communicate(timeout=WAIT_S)
            assert (tail.returncode, err) == (130, "")
        assert running.communicate(timeout=WAIT_S)[1] == ""
        assert running.returncode == 0
    assert positions == list(range(positions[0], 20_001))
    assert positions[0] < 15_000
    shell.check_stopped()


HELD = """
import os
from millwheel import Computation, Pipeline, Stream, TextCoder, subscribe
from millwheel_injectors import IterableSource

jobs = Stream("jobs", TextCoder())

class Open(Computation[str]):
    def ProcessRecord(self, context, record):
        context.hold(record.timestamp)
        if record.value == "printer" and "BROKEN" in os.environ:
            raise RuntimeError("out of paper")
        if "RELEASE" in os.environ:
            context.release_hold()

pipeline = Pipeline("jobs")
pipeline.inject(IterableSource("jobs", [("printer", 60_000_000)]), into=jobs)
pipeline.add(Open, [subscribe(jobs, str)], quarantine_holds="BROKEN" in os.environ)
"""


@pytest.mark.parametrize("broken", [False, True])
def test_a_run_that_does_not_end_says_what_it_waits_for(served: Shell, broken: bool) -> None:
    (served.directory / "jobs.py").write_text(HELD)
    environment = {"BROKEN": "1"} if broken else {}
    what, where = ("quarantine", "quarantine list") if broken else ("hold", "explain")
    with served.start("run", "jobs:pipeline", **environment) as process:
        assert process.stderr is not None
        while "waiting" not in (line := process.stderr.readline()):
            assert process.poll() is None, line
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_S)
    assert line == (
        f"millwheel: warning: all input is read; waiting for the {what} of key 'printer' in Open at "
        f"1970-01-01T00:01:00+00:00: see millwheel {where}\n"
    )
    status, out, err = served("explain", "jobs:pipeline", "Open", **environment)
    assert (status, err) == (0, "")
    assert out.splitlines()[-1] == f"{what}\t1970-01-01T00:01:00+00:00\tkey 'printer'"
    if broken:
        served("quarantine", "redrive", "jobs:pipeline", "Open", "printer")
        status, out, _ = served("run", "jobs:pipeline", RELEASE="1")
        assert status == 0, out
        assert out.splitlines()[-1] == "millwheel: 0 rows in, 0 records, watermark the end of time, redriven 1"


def test_check_says_what_a_start_would_do(served: Shell) -> None:
    assert served("run", "words:pipeline", COUNT="10")[0] == 0
    assert served("check", "words:pipeline") == (0, "same\tnothing changes in the store\n", "")
    keys = len(served("state", "scan", "words:pipeline", "Count")[1].splitlines())
    module = served.directory / "words.py"
    text = module.read_text()
    assert "seen" in text
    module.write_text(
        text.replace("    seen = ValueCell(", "    times = ValueCell(").replace("self.seen.", "self.times.")
    )
    status, out, err = served("check", "words:pipeline")
    assert (status, err) == (1, "")
    new, refused = out.splitlines()
    assert new == "change\tcell 'Count.times' is new"
    assert refused.startswith(
        f"refused\tcell 'Count.seen' is not in the code any more, and {keys} keys hold it: put it back"
    )
    status, _, err = served("run", "words:pipeline", COUNT="10")
    assert (status, f"{keys} keys hold it" in err) == (1, True)
    module.write_text(module.read_text().replace("default=0)", "default=0, formerly='seen')"))
    assert served("check", "words:pipeline") == (0, "change\tcell 'Count.seen' is now 'Count.times'\n", "")
    assert served("run", "words:pipeline", COUNT="10")[0] == 0
    assert served("state", "get", "words:pipeline", "Count", "word 1")[1].startswith("word 1\ttimes\t")
    # A coder of one's own says nothing of what it can read: it is tried.
    text = module.read_text().replace("class Count", UNREADABLE + "class Count").replace("JsonCoder(int)", "Wrong(int)")
    module.write_text(text)
    status, out, err = served("check", "words:pipeline")
    assert (status, err) == (1, "")
    assert out.startswith(f"unreadable\tcell 'Count.times': {keys} values cannot be read")


def test_roles_are_printed_and_no_store_is_made(copied: Shell) -> None:
    status, out, err = copied("roles", "words:pipeline")
    assert (status, err) == (0, "")
    assert out.startswith("-- Roles of the pipeline in schema words.\n")
    assert out.endswith("COMMIT;\n")
    assert not (copied.directory / ".millwheel").exists()
    assert copied("roles", "words:nothing")[0] == 1


def test_a_savepoint_is_made_listed_put_back_and_dropped(served: Shell) -> None:
    assert served("run", "words:pipeline", COUNT="10")[0] == 0
    status, out, _ = served("savepoint", "create", "words:pipeline", "ten")
    assert (status, bool(re.fullmatch(r"millwheel: savepoint 'ten' has [\d,]+ bytes, as of 20\S+\n", out))) == (0, True)
    status, out, err = served("savepoint", "create", "words:pipeline", "ten")
    assert (status, out, "drop it, or choose another" in err) == (1, "", True)
    assert served("savepoint", "restore", "words:pipeline", "ten")[0] == 2
    status, out, _ = served("savepoint", "restore", "words:pipeline", "ten", "--yes")
    assert (status, out.startswith("millwheel: 'words' is as it was at 20")) == (0, True)
    assert served("state", "get", "words:pipeline", "Count", "word 1")[1] == "word 1\tseen\t2\n"
    status, out, _ = served("savepoint", "list", "words:pipeline")
    assert (status, bool(re.fullmatch(r"ten\t20\S+\t[\d,]+ bytes\n", out))) == (0, True)
    assert served("savepoint", "drop", "words:pipeline", "ten") == (0, "millwheel: savepoint 'ten' is gone\n", "")
    assert served("savepoint", "list", "words:pipeline") == (0, "", "")


def test_reset_asks_first_and_then_forgets_all(served: Shell) -> None:
    assert served("run", "words:pipeline", COUNT="10")[0] == 0
    assert served("reset", "words:pipeline")[0] == 2
    assert served("state", "get", "words:pipeline", "Count", "word 1")[1] == "word 1\tseen\t2\n"
    assert served("reset", "words:pipeline", "--yes") == (0, "millwheel: 'words' is gone\n", "")
    assert served("reset", "words:pipeline", "--yes") == (0, "millwheel: 'words' was not there\n", "")
    status, _, err = served("state", "scan", "words:pipeline", "Count")
    said = (
        r"millwheel: there is no pipeline 'words' in database 'postgres' at /.*; run it first, or name another store\n"
    )
    assert status == 1
    assert re.fullmatch(said, err)


WRONG = {
    "unknown command": (["rum"], 2, "No such command 'rum'. Did you mean 'run'? See 'millwheel --help'."),
    "unknown option": (["run", "words:pipeline", "--stor", "x"], 2, "No such option '--stor'. Did you mean '--store'?"),
    "no pipeline": (["run"], 2, "Missing argument 'PIPELINE'"),
    "no colon": (["run", "words"], 1, "'words' names no pipeline: write module:attribute"),
    "no module": (["run", "wordz:pipeline"], 1, "there is no module 'wordz' in "),
    "no part of a package": (["run", "json.wordz:pipeline"], 1, "there is no module 'json.wordz' in "),
    "a module that lacks another": (
        ["run", "lacks:pipeline"],
        1,
        "'lacks' imports 'no_such_package', which is not installed",
    ),
    "a module of another place": (["run", "json:pipeline"], 1, "json/__init__.py, has no 'pipeline'"),
    "no attribute": (["run", "words:pipelin"], 1, "'words' has no 'pipelin'; its pipelines: pipeline"),
    "no pipeline object": (["run", "words:no_pipeline"], 1, "'words:no_pipeline' is int, not a millwheel.Pipeline"),
    "a function that forgets to return it": (
        ["run", "words:forgets"],
        1,
        "'words:forgets' returns NoneType, not a millwheel",
    ),
    "a path": (["run", "./words:pipeline"], 1, "'./words' is no module: for a file of that directory write its name"),
    "arguments needed": (["run", "words:two"], 1, "'words:two' cannot be called without arguments: missing a required"),
    "no URL": (["run", "words:pipeline", "--store", "foo"], 1, "the store is not a Postgres URL: write postgresql://"),
    "no URL of a query": (["rows", "words:pipeline", "t", "--store", "foo"], 1, "the store is not a Postgres URL"),
    "an empty URL": (["run", "words:pipeline", "--store", ""], 2, "Invalid value for '--store'"),
    "an empty directory": (["run", "words:pipeline", "--data", ""], 2, "Invalid value for '--data'"),
    "no server": (["reset", "words:pipeline", "--yes", "--store", "host=/no/such"], 6, "cannot connect to Postgres"),
    "no place for data": (["run", "words:pipeline", "--data", "/proc/foo"], 1, "no Postgres can live in /proc/foo: "),
    "a file for data": (["run", "words:pipeline", "--data", "words.py"], 1, "no Postgres can live in words.py: "),
    "a file that is asked": (["rows", "words:pipeline", "t", "--data", "words.py"], 1, "there is no store in words.py"),
    "two stores": (
        ["run", "words:pipeline", "--data", "here", "--store", "postgresql://x@127.0.0.1:1/x"],
        2,
        "Invalid value for '--data': --store names another place, a Postgres of your own: give one of the two",
    ),
    "half an escape": (
        ["state", "get", "words:pipeline", "Count", "C:\\dir"],
        1,
        "key C:\\\\dir: a backslash is written",
    ),
    "unknown verb": (
        ["quarantine", "redrvie", "words:pipeline"],
        2,
        "No such command 'redrvie'. Did you mean 'redrive'?",
    ),
    "no key": (
        ["state", "get", "words:pipeline", "Count"],
        2,
        "Missing argument 'KEY'. See 'millwheel state get --help'.",
    ),
    "no number": (["tail", "words:pipeline", "words", "-n", "ten"], 2, "'ten' is not a valid integer range"),
    "unknown computation": (["explain", "words:pipeline", "Cuont"], 1, "no computation 'Cuont'; there are ['Count']"),
    "unknown computation of a key": (["state", "get", "words:pipeline", "Cuont", "k"], 1, "no computation 'Cuont'"),
    "no confirmation": (
        ["reset", "words:pipeline"],
        2,
        "reset drops all state, timers and rows of 'words': add --yes.",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_usage_is_named(copied: Shell, name: str) -> None:
    arguments, expected, words = WRONG[name]
    (copied.directory / "lacks.py").write_text("import no_such_package\n")
    status, out, err = copied(*arguments)
    assert (status, out) == (expected, "")
    assert words in err
    assert "Traceback" not in err
    assert err.startswith("millwheel: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "name", ["MILLWHEEL_STORE", "MILLWHEEL_DATA", "MILLWHEEL_ALLOW_REJECTED", "MILLWHEEL_QUIET", "MILLWHEEL_CONFIG"]
)
def test_a_variable_that_is_set_and_empty_is_no_setting(copied: Shell, name: str) -> None:
    status, out, err = copied("run", "words:pipeline", **{name: ""})
    assert (status, out) == (2, "")
    assert f"{name} is set and empty" in err
    assert not (copied.directory / ".millwheel").exists()


def test_settings_come_from_the_environment_and_the_command_line_goes_before(copied: Shell) -> None:
    assert copied("run", "words:pipeline", MILLWHEEL_DATA="here")[0] == 0
    assert (copied.directory / "here").is_dir()
    assert copied("state", "get", "words:pipeline", "Count", "bad", MILLWHEEL_DATA="here")[1] == "bad\tseen\t5\n"
    status, _, err = copied("state", "get", "words:pipeline", "Count", "bad", "--data", "there", MILLWHEEL_DATA="here")
    assert (status, "there is no store in there" in err) == (1, True)


def test_an_error_in_the_users_module_is_shown_without_our_frames(copied: Shell) -> None:
    (copied.directory / "wrong.py").write_text("def pipeline():\n    return undefined_name\n")
    status, out, err = copied("run", "wrong:pipeline")
    assert (status, out) == (1, "")
    lines = err.splitlines()
    assert lines[0] == "millwheel: 'wrong:pipeline' cannot be made: NameError: name 'undefined_name' is not defined"
    assert "wrong.py" in err
    assert "launch.py" not in err
    (copied.directory / "wrong.py").write_text("def pipeline(:\n")
    status, out, err = copied("run", "wrong:pipeline")
    assert (status, out) == (1, "")
    assert err.splitlines()[0].startswith("millwheel: 'wrong' cannot be imported: SyntaxError")
    assert "launch.py" not in err


def test_without_arguments_it_says_how_it_is_used(copied: Shell) -> None:
    status, out, err = copied()
    assert (status, out) == (2, "")
    assert "Commands:" in err
    status, out, err = copied("--version")
    assert (status, out, err) == (0, f"millwheel {millwheel.__version__}\n", "")


QUERIES = {
    "check": ["check", "words:pipeline"],
    "state": ["state", "scan", "words:pipeline", "Count"],
    "explain": ["explain", "words:pipeline", "Count"],
    "quarantine": ["quarantine", "list", "words:pipeline"],
    "tail": ["tail", "words:pipeline", "words"],
    "rows": ["rows", "words:pipeline", "table"],
    "reset": ["reset", "words:pipeline", "--yes"],
}


@pytest.mark.parametrize("name", QUERIES)
def test_a_question_makes_no_store(copied: Shell, name: str) -> None:
    status, out, err = copied(*QUERIES[name], "--data", "typo")
    assert (status, out) == (1, "")
    assert err == "millwheel: there is no store in typo: run the pipeline first, or name its --data or --store\n"
    assert not (copied.directory / "typo").exists()


HOSTILE = r"""
import os
from millwheel import Computation, Context, MapCell, Pipeline, Record, Stream, Table, TextCoder, ValueCell, subscribe
from millwheel_injectors import IterableSource

KEYS = ["", "a\0b", "tab\tkey", "new\nline", "\x1b[31mred", "\x9b31m", "C:\\dir", "\u202egnp", "poison\0\x1b]0;title\x07"]
keys = Stream("keys", TextCoder())
seen = Table("seen", {"key": "text"}, ("key",))

class Count(Computation[str]):
    last = ValueCell(TextCoder(), default="")
    entries = MapCell(TextCoder())

    def ProcessRecord(self, context, record):
        if "poison" in record.value and "BROKEN" in os.environ:
            raise RuntimeError("\x1b[31mno\x9b " + record.value.replace("\0", ""))
        self.last.set(record.value + "\\")
        self.entries.set("e\t\x1b" + record.value, record.value)
        context.upsert(seen, {"key": record.value.replace("\0", "")})

pipeline = Pipeline("hostile")
pipeline.inject(IterableSource("keys", [(key, at) for at, key in enumerate(KEYS)]), into=keys)
pipeline.add(Count, [subscribe(keys, str)])
pipeline.publish(keys)
pipeline.sink(seen)
"""


def test_no_key_value_or_error_reaches_the_terminal_as_it_is_and_every_key_can_be_named(served: Shell) -> None:
    (served.directory / "hostile.py").write_text(HOSTILE)
    status, _, err = served("run", "hostile:pipeline", BROKEN="1")
    assert status == 3
    assert all(line.isprintable() for line in err.splitlines())
    printed = {name: served(*command) for name, command in {
        "state": ["state", "scan", "hostile:pipeline", "Count"],
        "list": ["quarantine", "list", "hostile:pipeline"],
        "tail": ["tail", "hostile:pipeline", "keys"],
        "rows": ["rows", "hostile:pipeline", "seen"],
    }.items()}  # fmt: skip
    for status, out, err in printed.values():
        assert (status, err) == (0, "")
        assert all(part.isprintable() for line in out.splitlines() for part in line.split("\t")), out
    lines = printed["state"][1].removesuffix("\n").split("\n")
    assert {len(line.split("\t")) for line in lines} == {3}
    shown = {line.split("\t")[0] for line in lines}
    assert shown == {"", "a\\x00b", r"tab\tkey", r"new\nline", r"\x1b[31mred", r"\x9b31m", r"C:\\dir", r"\u202egnp"}
    for key in shown:
        status, out, _ = served("state", "get", "hostile:pipeline", "Count", key)
        assert (status, {line.split("\t")[0] for line in out.splitlines()}) == (0, {key})

    poison = r"poison\x00\x1b]0;title\x07"
    assert printed["list"][1] == f"Count\t{poison}\t1 waiting\n"
    status, out, _ = served("quarantine", "show", "hostile:pipeline", "Count", poison)
    assert status == 0
    assert all(line.isprintable() for line in out.splitlines())
    assert r"\x1b[31mno\x9b" in out
    assert served("quarantine", "redrive", "hostile:pipeline", "Count", poison)[0] == 0
    assert served("run", "hostile:pipeline")[1].endswith("redriven 1\n")
    assert len(served("state", "get", "hostile:pipeline", "Count", poison)[1].splitlines()) == 2


@pytest.mark.parametrize("after_s", [0.15, 0.3, 0.6, 1.0])
def test_ctrl_c_while_it_starts_is_no_traceback(shell: Shell, after_s: float) -> None:
    # Before its entry is reached there is only Python's own start.
    command = [sys.executable, "-c", "from millwheel.__main__ import main; print('here', flush=True); main()"]
    with subprocess.Popen(
        [*command, "run", "words:pipeline"],
        cwd=shell.directory,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(after_s)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_S)
    assert "Traceback" not in err
    assert err in ("", "millwheel: stopped\n", "millwheel: stopped; run it again to resume\n")
    shell.check_stopped()
