"""Which benchmarks a command runs."""

from __future__ import annotations

from functools import partial

import pytest

from benchmarks import __main__ as command
from benchmarks import common, plots
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
