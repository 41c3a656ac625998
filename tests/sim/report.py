"""The figures of `docs/reliability.md`, from what test runs have left in `build/reliability.json`: `make reliability`."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

import tests.mutants  # noqa: F401  (registers the planted bugs)
from tests.planted import MUTANTS
from tests.sim import ci

NOT_YET = "not tried yet"
PAGE = ci.ROOT / "docs" / "reliability.md"
BEGIN = "<!-- Written by `make reliability`, not by hand. -->\n"
END = "<!-- End of the figures. -->\n"


def table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> list[str]:
    """A Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return [
        "| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row) + " |" for row in lines
    ]


def simulator(found: dict[str, Any]) -> list[str]:
    """Volume, faults and probes of the seeds."""
    kinds: Counter[str] = Counter()
    for kind, count in found["faults_by_kind"].items():
        kinds[kind if kind.startswith(("crash", "zombie", "clock")) else kind.split()[0]] += count
    told = ", ".join(f"{name} {count:,}" for name, count in kinds.most_common())
    rows = [
        ("seeds", f"{found['seeds']:,}, of which {len(found['failures'])} failed"),
        ("events handled by cores", f"{found['events']:,}; at least {found['events_least']:,} per seed"),
        ("faults that took effect", f"{found['faults']:,}; at least {found['faults_least']:,} per seed"),
        ("by kind", told),
        ("virtual time", f"{found['virtual_hours']:,.1f} hours"),
        ("time", f"{found['seconds']:,.0f} s; {found['cpu_seconds']:,.0f} s of CPU"),
    ]
    return [
        *table(("simulator", ""), rows),
        "",
        'Each of these "sometimes" happened, how often:',
        "",
        *table(("probe", "times"), sorted(found["probes"].items())),
    ]


def crash_points(found: dict[str, int]) -> list[str]:
    """Faults tried per scenario."""
    return table(("crash points", "faults tried, one run each"), [*found.items(), ("all", sum(found.values()))])


def planted_bugs(found: dict[str, dict[str, str]]) -> list[str]:
    """What noticed each planted bug: `tests/sim/test_mutants.py` publishes it, of those that exist by now."""
    rows = [(name, one["at"], one["by"]) if (one := found.get(name)) else (name, NOT_YET, "") for name in MUTANTS]
    return table(("planted bug", "noticed by", "what broke"), rows)


def render(figures: dict[str, Any]) -> str:
    """The section between the markers."""
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}"
    parts = [["## Figures", "", f"{machine}."], simulator(figures["simulator"])]
    parts += [crash_points(figures["crash_points"]), planted_bugs(figures["planted"])]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def write(page: Path, figures: dict[str, Any]) -> None:
    """Replace the section in the page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}{render(figures)}{END}{after}", encoding="utf-8")


def main() -> int:
    """Write the page; what is missing in the figures is an error."""
    path = ci.ROOT / "build" / "reliability.json"
    figures = msgspec.json.decode(path.read_bytes()) if path.exists() else {}
    missing = {"simulator", "crash_points", "planted"} - figures.keys()
    if missing:
        print(f"{path} lacks {sorted(missing)}: run `make reliability`", file=sys.stderr)
        return 1
    write(PAGE, figures)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
