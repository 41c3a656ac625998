"""How much memory there is: what control groups allow, or what the machine has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from millwheel.limits import CACHE_LEAST_BYTES, CACHE_SHARE
from millwheel.runtime import memory

PHYSICAL = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20
NO_LIMIT = str((1 << 63) - 4096)


@pytest.mark.parametrize(
    ("groups", "files", "allowed"),
    [
        ("0::/", {}, None),
        ("0::/", {"memory.max": "max"}, None),
        ("0::/", {"memory.max": f"{512 * MIB}\n"}, 512 * MIB),
        ("0::/a/b", {"a/b/memory.max": str(64 * MIB)}, 64 * MIB),
        ("0::/a/b", {"a/memory.max": str(32 * MIB), "a/b/memory.max": str(64 * MIB)}, 32 * MIB),
        ("0::/a/b", {"a/memory.max": str(32 * MIB), "a/b/memory.max": "max"}, 32 * MIB),
        ("0::/of/the/machine", {"memory.max": str(64 * MIB)}, 64 * MIB),
        ("0::/../of/others", {"memory.max": str(64 * MIB)}, 64 * MIB),
        ("3:cpu,memory:/a\n0::/", {"memory/a/memory.limit_in_bytes": str(64 * MIB)}, 64 * MIB),
        ("3:memory:/a", {"memory/memory.limit_in_bytes": str(64 * MIB)}, 64 * MIB),
        ("3:memory:/a", {"memory/a/memory.limit_in_bytes": NO_LIMIT}, None),
        ("3:cpu:/a", {"memory/a/memory.limit_in_bytes": str(64 * MIB)}, None),
    ],
)
def test_the_least_of_what_control_groups_and_the_machine_say_counts(
    groups: str, files: Mapping[str, str], allowed: int | None, tmp_path: Path
) -> None:
    for name, text in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{k}": v for k, v in files.items()}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory.memory_bytes(tmp_path) == (allowed or PHYSICAL)


def test_a_system_that_says_nothing_has_the_least(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(os, "sysconf", fails)
    assert memory.memory_bytes(tmp_path) == 0
    monkeypatch.setattr(memory, "ROOT", tmp_path)
    monkeypatch.setattr(memory, "memory_bytes", lambda: 0)
    assert memory.cache_bytes() == CACHE_LEAST_BYTES


def test_processes_of_one_machine_have_a_part_each(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory, "memory_bytes", lambda: 16_000 * MIB)
    assert memory.cache_bytes() == 16_000 * MIB // CACHE_SHARE
    assert memory.cache_bytes(4) == 16_000 * MIB // CACHE_SHARE // 4
    assert memory.cache_bytes(10_000) == CACHE_LEAST_BYTES
    with caplog.at_level("INFO", "millwheel"):
        assert (memory.granted(None), memory.granted(3 * MIB)) == (4_000 * MIB, 3 * MIB)
    assert [record.getMessage() for record in caplog.records] == [
        "state of keys may take 4,000 MiB of memory", "state of keys may take 3 MiB of memory",
    ]  # fmt: skip
