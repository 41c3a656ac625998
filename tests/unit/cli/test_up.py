"""`millwheel up` starts several processes with settings that may have been made for one."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import click
import pytest

from millwheel import interrupts
from millwheel.cli.main import main
from millwheel.cli.options import Size
from millwheel.cli.root import root
from millwheel.cli.up import _print, _run, cache_of_each, check_ports
from millwheel.errors import StoreError
from millwheel.launch import StoreLoss
from millwheel.runtime import memory
from millwheel.runtime.signals import SIGNALS
from millwheel.runtime.supervisor import ChildPlan


@pytest.mark.parametrize(
    ("environment", "file", "processes", "sharing"),
    [
        ("127.0.0.1:7400", "", {"worker": 1, "controller": 1}, 2),
        ("127.0.0.1:7400", "", {"worker": 1, "controller": 0}, 0),
        ("127.0.0.1:0", "[worker]\nlisten = '127.0.0.1:7400'", {"worker": 2, "controller": 1}, 0),
        (None, "[worker]\nlisten = '127.0.0.1:7400'", {"worker": 2, "controller": 1}, 2),
        (None, "[worker]\nlisten = '127.0.0.1:7400'", {"worker": 1, "controller": 9}, 0),
        (None, "[controller]\nlisten = '127.0.0.1:7400'", {"worker": 9, "controller": 3}, 3),
        (None, "listen = '127.0.0.1:7400'", {"worker": 2, "controller": 1}, 3),
        (None, "listen = '127.0.0.1:7400'\n[worker]\nlisten = '[::1]:0'", {"worker": 2, "controller": 1}, 0),
        (None, "", {"worker": 2, "controller": 1}, 0),
    ],
)
def test_a_port_is_for_one_process(
    environment: str | None, file: str, processes: Mapping[str, int], sharing: int, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "millwheel.toml").write_text(file)
    monkeypatch.delenv("MILLWHEEL_LISTEN", raising=False)
    if environment is not None:
        monkeypatch.setenv("MILLWHEEL_LISTEN", environment)
    with root.make_context("millwheel", ["up"]) as context:
        if not sharing:
            check_ports(processes)
            return
        with pytest.raises(click.UsageError, match=f"^{sharing} processes would listen on 127.0.0.1:7400, as"):
            check_ports(processes)
    assert context.command is root


@pytest.mark.parametrize(
    ("given", "file", "told"),
    [
        (None, "", ["--cache", "1024"]),
        (300, "", ["--cache", "300"]),
        (None, "[worker]\ncache = '1GiB'", []),
        (300, "[worker]\ncache = '1GiB'", ["--cache", "300"]),
    ],
)
def test_workers_of_one_machine_share_what_it_has(
    given: int | None, file: str, told: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "millwheel.toml").write_text(file)
    monkeypatch.setattr(memory, "cache_bytes", lambda processes: 4096 // processes)
    with root.make_context("millwheel", ["up"]):
        assert cache_of_each(given, 4) == told


@pytest.mark.parametrize(
    ("said", "size"),
    [("512", 512), ("2k", 2048), ("1.5 MiB", 1_572_864), ("2GB", 1 << 31), ("1T", 1 << 40), (7, 7)],
)
def test_a_size_has_a_unit(said: str | int, size: int) -> None:
    assert Size().convert(said, None, None) == size


@pytest.mark.parametrize("said", ["0", "0.1", "-1", "much", "1PiB", "1 2M", "GiB", "25%", "9" * 400])
def test_what_is_no_size_is_refused(said: str) -> None:
    with pytest.raises(click.BadParameter, match="is no size: write 512MiB or 2GiB, for example"):
        Size().convert(said, None, None)


@pytest.mark.parametrize("command", [["run"], ["worker"], ["up", "--workers", "2"]])
def test_a_cache_whose_unit_is_forgotten_is_refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "nowhere:pipeline", "--cache", "512"]) == 2
    said = "'512' is 512 bytes, and less than 1 MiB is of no use: write 512MiB or 2GiB, for example."
    assert said in capsys.readouterr().err
    assert main([*command, "nowhere:pipeline", "--cache", "1m"]) == 1
    assert "there is no module 'nowhere'" in capsys.readouterr().err


@pytest.mark.parametrize(("came", "status"), [([], 0), ([signal.SIGTERM], None)])
def test_a_signal_that_came_before_the_cluster_began_stops_it(
    monkeypatch: pytest.MonkeyPatch, came: list[int], status: int | None
) -> None:
    monkeypatch.setattr(interrupts, "_came", came)
    done = ChildPlan("worker-1", True, [sys.executable, "-c", ""])
    assert asyncio.run(_run([done], lambda *line: None, {}, StoreLoss())) == status


@pytest.mark.parametrize("number", SIGNALS)
def test_each_signal_stops_the_cluster(number: signal.Signals) -> None:
    told = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))"
    waits = [sys.executable, "-u", "-c", f"import signal, sys, time\n{told}\nprint('here')\ntime.sleep(60)"]

    def said(name: str, is_error: bool, line: str) -> None:
        if line == "here":
            os.kill(os.getpid(), number)

    before = signal.signal(number, signal.SIG_DFL)  # under nohup, a hang-up is ignored here too
    try:
        assert asyncio.run(_run([ChildPlan("worker-1", True, waits)], said, {**os.environ}, StoreLoss())) is None
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("say", ["up._print", "functools.partial(up._print_object, 'words')"])
@pytest.mark.parametrize("is_error", [False, True])
def test_a_cluster_goes_on_when_whoever_read_its_lines_has_seen_enough(say: str, is_error: bool) -> None:
    code = (
        "import functools, pathlib, sys\nfrom millwheel.cli import up\nsys.stdin.read()\n"
        f"for _ in range(3): {say}('worker-1', {is_error}, 'a line')\n{say}('worker-1', {not is_error}, 'the end')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        gone, other = (process.stderr, process.stdout) if is_error else (process.stdout, process.stderr)
        assert process.stdin is not None
        assert gone is not None
        assert other is not None
        gone.close()
        process.stdin.close()
        (line,) = other.read().decode().splitlines()
        assert "the end" in line
    assert process.returncode == 0


def test_a_cluster_whose_embedded_postgres_is_gone_for_good_ends() -> None:
    loss, said = StoreLoss(), list[str]()
    loss.happened(StoreError("d was removed"))
    waits = ChildPlan("worker-1", True, [sys.executable, "-c", "import time; time.sleep(60)"])
    status = asyncio.run(_run([waits], lambda name, is_error, line: said.append(line), {**os.environ}, loss))
    assert status == 1
    assert any("d was removed" in line for line in said)


def test_what_a_process_prints_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    _print("worker-1", False, "\x1b[31mred")
    assert capsys.readouterr().out == "worker-1 | \\x1b[31mred\n"
