"""Hooks that end the process: after a few restarts they are in quarantine, and everything else is exact."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from millwheel_storage.embedded import EmbeddedPostgres
from tests.patience import WAIT_S

pytestmark = [pytest.mark.postgres, pytest.mark.chaos]

ROWS = 1_000
STARTS_LIMIT = 9
"""One death unmarked, one marked, three alone; as many restarts, and some to spare."""

PIPELINE = """
import os, signal, sys
from millwheel import Computation, JsonCoder, Pipeline, Stream, ValueCell, subscribe
from millwheel_injectors import IterableSource

HOW = os.environ.get("HOW")
numbers = Stream("numbers", JsonCoder(int))
passed = Stream("passed", JsonCoder(int))


def end():
    if HOW == "exit":
        sys.exit(3)
    os.kill(os.getpid(), signal.SIGKILL)


class Pass(Computation[int]):
    count = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context, record):
        self.count.set(self.count.get() + 1)
        context.produce(passed, record.value)


class Count(Computation[int]):
    count = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context, record):
        if HOW == "exit" and record.value == 444:
            end()
        self.count.set(self.count.get() + 1)
        if record.value == 555:
            context.set_timer("lethal", record.timestamp)

    def ProcessTimer(self, context, timer):
        if HOW == "kill":
            end()
        self.count.set(self.count.get() + 1_000)


pipeline = Pipeline("lethal")
pipeline.inject(IterableSource("numbers", [(i, i) for i in range(ROWS)]), into=numbers)
pipeline.add(Pass, [subscribe(numbers, lambda number: f"p{number % 50}")], [passed], split_keys=("p3",))
pipeline.add(Count, [subscribe(passed, lambda number: f"c{number % 10}")], split_keys=("c2", "c4", "c5", "c8"))
""".replace("ROWS", str(ROWS))


def command(directory: Path, *arguments: str, how: str = "", store: str = "") -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    millwheel = str(Path(sys.executable).with_name("millwheel"))
    done = subprocess.run(
        [millwheel, *arguments], cwd=directory, text=True, capture_output=True, timeout=WAIT_S,
        env={**os.environ, "HOW": how, **({"MILLWHEEL_STORE": store} if store else {})},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def counts(told: tuple[int, str, str]) -> dict[str, int]:
    return {line.split("\t")[0]: int(line.split("\t")[-1]) for line in told[1].splitlines()}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("how", "key"), [("exit", "c4"), pytest.param("kill", "c5", marks=pytest.mark.long)])
def test_what_ends_the_process_is_quarantined_and_only_that(
    tmp_path: Path, postgres: EmbeddedPostgres, how: str, key: str
) -> None:
    (tmp_path / "lethal.py").write_text(PIPELINE)
    # Once with a Postgres of its own, which each death leaves behind for the next start.
    ask = partial(command, tmp_path, store="" if how == "kill" else postgres.url)
    said = ""
    for _ in range(STARTS_LIMIT):
        status, _, err = ask("run", "lethal:pipeline", how=how)
        said += err
        if "1 key is in quarantine: see" in err:
            break
    assert status == 3, said
    hint = "see millwheel quarantine list lethal:pipeline" + ("" if how == "kill" else " --store URL")
    assert said.splitlines()[-1].endswith(hint)
    assert "the last process did not end in order" in said
    assert f"key '{key}': the process ended 3 times" in said
    expected = {f"c{i}": ROWS // 10 for i in range(10)} | {"c5": ROWS // 10 + 1_000}
    found = counts(ask("state", "scan", "lethal:pipeline", "Count"))
    assert {k: v for k, v in found.items() if k != key} == {k: v for k, v in expected.items() if k != key}
    assert ask("quarantine", "list", "lethal:pipeline")[1].startswith(f"Count\t{key}\t")
    shown = ask("quarantine", "show", "lethal:pipeline", "Count", key)[1]
    assert f"the process ended 3 times while this {'timer' if how == 'kill' else 'record'}" in shown

    ask("quarantine", "redrive", "lethal:pipeline", "Count", key)
    status, _, err = ask("run", "lethal:pipeline")
    assert (status, err) == (0, "")
    assert counts(ask("state", "scan", "lethal:pipeline", "Count")) == expected
    assert EmbeddedPostgres(tmp_path / ".millwheel" / "postgres").pid is None
