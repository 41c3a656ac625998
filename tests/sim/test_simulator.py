"""The simulator's seeds: exactly-once, order, honest watermarks and convergence under everything that can go wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks import common, others
from millwheel.testing.checks.watched import WatchedStore
from tests import mutants
from tests.effort import share, some
from tests.planted import MUTANTS
from tests.sim import aside, ci, harness, report
from tests.sim.cuts import simulate_cuts
from tests.sim.fleets import simulate_cluster
from tests.sim.harness import simulate_seed
from tests.sim.hop_fleets import simulate_hops_on_a_cluster
from tests.sim.hops import simulate_hops
from tests.sim.workload.drawing import AWAKE_US, SILENT_US, START_US, Workload


@pytest.mark.every_core
@pytest.mark.slow
@pytest.mark.timeout(aside.LIMIT_S)
def test_every_seed_keeps_every_invariant_and_together_they_reach_every_probe() -> None:
    found = ci.run_seeds(range(ci.SEEDS))
    ci.publish("simulator", found)
    assert not found["failures"]
    assert found["events_least"] >= ci.EVENTS_LIMIT
    assert found["faults_least"] >= ci.FAULTS_LIMIT
    assert not [name for name in ci.PROBES if not found["probes"][name]]


def test_the_benchmark_reads_the_figures_of_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ci, "ROOT", tmp_path)
    monkeypatch.setattr(common, "ROOT", tmp_path)
    ci.publish("simulator", ci.figures([simulate_seed(3)], [], 100.0, 2.0))
    assert others.simulator().value == 150 * (os.cpu_count() or 1)
    assert not others.simulator().met


def test_figures_that_tests_publish_side_by_side_are_all_there(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.sim import ci; ci.ROOT = Path(sys.argv[1])\n"
        "for i in range(200): ci.publish('part', {f'{sys.argv[2]} {i}': i}, more=True)"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name], cwd=ci.ROOT) for name in ("one", "two")
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    part = msgspec.json.decode((tmp_path / "build" / "reliability.json").read_bytes())["part"]
    assert len(part) == 400


def test_planted_bugs_that_were_counted_are_not_counted_again_when_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ci, "ROOT", tmp_path)
    first, second = [*MUTANTS][:2]
    ci.publish("mutants", {name: {"tried": 1, "kind": "seeds", "by": "I5"} for name in MUTANTS if name != second})
    ci.publish("mutants", {first: {}}, more=True)
    tried: list[str] = []

    def detect(budget: int, name: str) -> tuple[str, str, tuple[int, str] | None, float]:
        tried.append(name)
        return name, "seeds", (7, "I8: early"), 0.0

    monkeypatch.setattr(mutants, "_detect", detect)
    monkeypatch.setattr("multiprocessing.Pool", InOneProcess)
    monkeypatch.setattr(sys, "argv", ["mutants", "--resume"])
    assert mutants.main() == 0
    assert tried == [first, second], "one was not noticed the last time"
    assert ci.published("mutants")[second] == {"tried": 7, "kind": "seeds", "by": "I8"}
    assert len(ci.published("mutants")) == len(MUTANTS)
    assert len(capsys.readouterr().out.splitlines()) == 2


class InOneProcess:
    """A pool without processes: what is patched here counts in it."""

    def __enter__(self) -> InOneProcess:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    imap = staticmethod(map)


def test_the_report_shows_what_the_runs_found_and_nothing_else_of_the_page_changes(tmp_path: Path) -> None:
    first, second = [*MUTANTS][:2]
    figures = {
        "simulator": ci.figures([simulate_seed(3)], ["seed 4: I1: lost"], 2.0, 2.0),
        "crash_points": {"one": 700, "two": 900},
        "planted": {
            first: {"at": "seed 3", "by": "I5"},
            "a bug that is not planted any more": {"at": "seed 4", "by": "I1"},
        },
    }
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}old\n{report.END}after\n")
    report.write(page, figures)
    text = page.read_text()
    assert text.startswith(f"before\n{report.BEGIN}## Figures\n")
    assert text.endswith(f"{report.END}after\n")
    for line in ("| seeds | 2, of which 1 failed |", "| all | 1,600 |", f"| {first} | seed 3 | I5 |"):
        assert line in text.splitlines()
    assert f"| {second} | not tried yet |  |" in text, "a run that was stopped hides nothing"
    assert "not planted any more" not in text


def test_the_published_figures_hide_nothing() -> None:
    """What was written: a row for each planted bug, also for one that nobody has tried since; no seed that failed."""
    text = report.PAGE.read_text(encoding="utf-8").partition(report.BEGIN)[2]
    assert not [name for name in MUTANTS if f"| {name} | " not in text]
    assert " of which 0 failed |" in text or "| seeds |" not in text


def traces() -> list[str]:
    """What one seed of each kind of simulation leaves; for a search, two of the first."""
    embedded = [simulate_seed(seed).trace_hash for seed in some([17], [3])]
    return [
        *embedded, simulate_cuts(0).trace_hash(), simulate_cluster(3).trace_hash, simulate_hops(3).trace_hash,
        simulate_hops_on_a_cluster(1).trace_hash,
    ]  # fmt: skip


@pytest.mark.parametrize("seed", [203, 275])
def test_sources_that_fall_silent_are_silent(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that slow processes had not read once came in the silence, so there was none in most seeds."""
    look, read = harness.end_sources, list[list[int]]()

    def watched(store: WatchedStore, workload: Workload) -> None:
        if SILENT_US < store.truth.kernel.now - START_US < AWAKE_US:
            read.append([script.read_to for scripts in workload.scripts.values() for script in scripts])
        look(store, workload)

    monkeypatch.setattr(harness, "end_sources", watched)
    simulate_seed(seed)
    assert len(read) > 30
    assert [rows for rows in read if rows != read[0]] == []
    assert sum(read[0]) > 0


def test_the_same_seed_gives_the_same_trace_whatever_the_hash_seed() -> None:
    here = traces()
    assert len({*here}) == len(here)
    code = "from tests.sim.test_simulator import traces; print(*traces())"
    for hash_seed in share(("4711", "0", "1"), 3):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        answer = subprocess.run(
            [sys.executable, "-c", code], env=environment, cwd=ci.ROOT, capture_output=True, text=True, check=True
        )
        assert answer.stdout.split() == here
