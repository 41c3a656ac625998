"""`millwheel up` starts several processes with settings that may have been made for one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click
import pytest

from millwheel.cli.root import root
from millwheel.cli.up import check_ports


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
