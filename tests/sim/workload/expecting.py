"""What must be true of a workload: at every commit, and at the end."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from millwheel.bundles import Checkpoint
from millwheel.testing.world.kernel import Violation
from tests.sim import ticks
from tests.sim.workload.drawing import Workload
from tests.sim.workload.ledger import (
    WINDOW_US,
    StageSpec,
    Token,
    absent,
    route,
)


class Seen(msgspec.Struct):
    """What one key of one stage must have seen: token id to times, and the sum of n."""

    ids: Counter[str]
    members: Counter[str]
    total: int = 0
    ends: set[int] = set()
    """Of its windows."""


def expected(workload: Workload) -> dict[str, dict[str, Seen]]:
    """Stage to key to what it must have seen.  Windows with late rows may fire in several parts: ids then differ, and
    only members and totals are exact."""
    streams: dict[str, list[tuple[Token, int]]] = {
        name: [*{row[0].id: row for script in parts for row in script.rows}.values()]
        for name, parts in workload.scripts.items()
    }
    found: dict[str, dict[str, Seen]] = {}
    for stage in workload.stages:
        keys = found[stage.name] = {}
        windows: dict[tuple[str, int], list[str]] = {}
        out: list[tuple[Token, int]] = []
        for name, side in stage.inputs:
            for token, time in streams[name]:
                key = token.left if side == "left" else token.right
                seen = keys.setdefault(key, Seen(Counter(), Counter()))
                seen.ids[token.id] += 1
                seen.members.update(token.members)
                seen.total += token.n
                if stage.windows:
                    end = (time // WINDOW_US + 1) * WINDOW_US
                    windows.setdefault((key, end), []).append(token.id)
                    seen.ends.add(end)
                else:
                    out.append((_onward(token.id, token.n, [], stage.name), time))
        for (key, end), ids in windows.items():
            out.append((_onward(f"{stage.name}/{key}/{end}/1", len(ids), ids, stage.name), end))
        if stage.output is not None:
            streams[stage.output] = out
    return found


def _onward(id_: str, n: int, members: list[str], stage: str) -> Token:
    left, right = route(id_, stage)
    return Token(id_, n, left, right, "", members=members)


def split_windows(workload: Workload) -> bool:
    """Windows may fire in several parts, so that ids below them are not known beforehand."""
    return any(stage.windows and not stage.honest for stage in workload.stages)


def check_commit(workload: Workload) -> Any:
    """A hook for `WatchedStore`: sink rows equal the state that commits with them, after a refused commit too (I4)."""
    sinks = {stage.name: stage for stage in workload.stages if stage.sink}

    def check(store: Any, computation: str, image: Checkpoint) -> None:
        if workload.world.breaches:
            store.truth.fail(workload.world.breaches[0])
        for entry in image.quarantined:
            if "a loop" in entry.error and entry.tag != "loop":
                store.truth.fail(f"I16: timer {entry.tag!r} of {entry.key!r} gets further, and is taken for a loop")
        if computation not in sinks:
            return
        state = store.truth.durable[computation].state
        for key in sorted(image.state.keys()):
            row = store.inner.sinks["ledger"].get((computation, key), {})
            cells = state.get(key, {})
            count, total = (int(cells.get((cell, ""), b"0")) for cell in ("count", "total"))
            gone = count < sinks[computation].rows_from or (absent(count) and not row.get("note"))
            if gone:
                store.truth.kernel.probes["sink row deleted"] += 1
            if bool(row) if gone else (row.get("count", 0), row.get("total", 0)) != (count, total):
                store.truth.fail(f"I4: sink row of {key!r} is {row}, its state counts {count}, {total}")

    return check


def check_state(
    workload: Workload, key_state: dict[str, dict[str, dict[tuple[str, str], bytes]]], quarantined: bool
) -> None:
    """The end: every key has seen each token once, in order, and nothing else (I1, I2, I3, I8, I17).

    Where something was `quarantined` though nothing is poisoned, kills from outside have hit the same record, alone, three
    times: it waits, and the watermark for it only if the stage says so.
    """
    model = expected(workload)
    inexact_ids = split_windows(workload)
    for stage in workload.stages:
        if "expire_after" in stage.settings:
            continue
        stored = key_state.get(stage.name, {})
        for key in sorted({*model[stage.name], *stored}):
            seen = model[stage.name].get(key, Seen(Counter(), Counter()))
            where = f"{stage.name}[{key!r}]"
            cells = stored.get(key, {})
            if quarantined and not workload.poisoned:
                cells = {place: value for place, value in cells.items() if not _late(place)}
            _check_key(where, stage, key, seen, cells, inexact_ids, quarantined)


def _late(place: tuple[str, str]) -> bool:
    return place[0] == "breaks" and place[1].startswith("late ")


def _check_key(
    where: str,
    stage: StageSpec,
    key: str,
    seen: Seen,
    cells: dict[tuple[str, str], bytes],
    inexact_ids: bool,
    quarantined: bool,
) -> None:
    def entries(cell: str) -> Counter[str]:
        return Counter({entry: int(value) for (name, entry), value in cells.items() if name == cell and entry})

    breaks = [(entry, value) for (name, entry), value in cells.items() if name == "breaks"]
    if breaks:
        law = {"timer": "I8", "late": "I11"}.get(breaks[0][0].split(" ")[0], "I17")
        raise Violation(f"{law}: {where} {breaks[0]!r}")
    if inexact_ids:
        # Tokens of partial windows have other ids and so other keys: `check_members` looks at them all together.
        return
    _compare(f"I1: {where} ids", entries("ids"), seen.ids, stage.exact)
    _compare(f"I1: {where} members", entries("members"), seen.members, stage.exact)
    if any(name == "open" for name, _ in cells):
        raise Violation(f"I8: {where} has windows that never fired")
    if not quarantined and stage.ticks and stage.exact and stage.honest and not stage.redrives:
        order = msgspec.json.decode(cells.get(("order", ""), b"[0,0]"))
        if order != ticks.digest_of(key, seen.ends):
            raise Violation(f"I8: timers of {where} did not fire in the order that their times say")
    if stage.exact and stage.windows and any(times != 1 for times in entries("fired").values()):
        raise Violation(f"I8: {where} fired {entries('fired')}")
    if stage.exact:
        numbers = {cell: int(cells.get((cell, ""), b"0")) for cell in ("count", "total")}
        if numbers != {"count": seen.ids.total(), "total": seen.total}:
            raise Violation(f"I1: {where} counts {numbers}, expected {seen.ids.total()}, {seen.total}")


def _compare(where: str, found: Counter[str], wanted: Counter[str], exact: bool) -> None:
    missing = wanted - found
    extra = found - wanted if exact else Counter({key: n for key, n in found.items() if key not in wanted})
    if missing:
        raise Violation(f"{where}: missing {dict(missing)}")
    if extra:
        raise Violation(f"{where}: too much {dict(extra)}")
