"""Which benchmarks a command runs, and what takes turns in one."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest

from benchmarks import __main__ as command
from benchmarks import common, plots, snapshots
from benchmarks.common import Result


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what ran; nothing is measured, written or drawn."""
    names: list[str] = []

    def quick(name: str) -> Result:
        names.append(name)
        return Result(name, 1.0, "", None, None, "", True, {})

    for name in command.BENCHMARKS:
        monkeypatch.setitem(command.BENCHMARKS, name, partial(quick, name))
    monkeypatch.setattr(common, "save", lambda result: None)
    monkeypatch.setattr(plots, "plot", lambda result: None)
    monkeypatch.setattr(plots, "summary", lambda out: None)
    return names


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], list(command.GROUPS["streaming"])),
        (["iterations"], list(command.GROUPS["iterations"])),
        (["expiry", "latency", "expiry"], ["expiry", "latency"]),
        (
            ["latency", "streaming", "iterations", "library", "clusters"],
            ["latency", *(n for n in command.BENCHMARKS if n != "latency")],
        ),
    ],
)
def test_a_name_is_a_benchmark_or_a_group_and_each_runs_once(
    given: list[str], expected: list[str], ran: list[str]
) -> None:
    assert command.main(given) == 0
    assert ran == expected


def test_an_unknown_name_is_told_before_anything_runs(ran: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["latency", "lunch"]) == 2
    assert ran == []
    assert (
        "['lunch'] unknown; there are streaming, iterations, library, clusters, throughput," in capsys.readouterr().err
    )


def test_what_snapshots_cost_is_measured_in_turns_of_which_each_is_over_before_the_next_begins() -> None:
    kinds = ("none", "asynchronous", "halting")
    turns = snapshots._turns(kinds, 100.0, 10.0)
    assert [len(turns[kind]) for kind in kinds] == [snapshots.CYCLES] * 3
    ordered = sorted((begin, end, kind) for kind in kinds for begin, end in turns[kind])
    assert ordered[0][0] == 100.0 + snapshots.WARM_S
    assert all(end - begin == pytest.approx(10.0) for begin, end, _ in ordered), "a snapshot falls into each"
    for (_, end, _), (begin, _, _) in pairwise(ordered):
        assert begin - snapshots.WARM_S - end >= 10.0, "the last snapshot of a turn takes nothing from the next one"
    assert [kind for _, _, kind in ordered[:6]] == [*kinds, "asynchronous", "halting", "none"]


def test_a_source_of_turns_has_rows_in_its_turns_and_counts_from_their_begin() -> None:
    flood = snapshots.Flood("flood", 10, [(100.0, 106.0), (130.0, 136.0)])
    (partition,) = flood.discover(())
    opened = [flood.open(now) for now in (99.0, 100.0 - snapshots.WARM_S, 100.0, 105.9, 106.0, 129.0)]
    assert opened == [False, True, True, True, False, False]
    assert flood.rests_until() == 130.0 - snapshots.WARM_S
    flood.read = 50
    assert flood.open(130.5)
    flood.read = 80
    assert not partition.finished()
    assert (flood.open(136.5), partition.finished()) == (False, True)
    assert [(count["rows"], count["rate"]) for count in flood.counts()] == [(0, 0.0), (30, 5.0)]
