"""Checks of the end of a run: nothing is left to do, and the folded tables say what the checkpoints said (I2, I4, I15).

Lives here: checks of a store after an orderly end.  Never here: checks while anything runs (`watched`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millwheel.host.worker import WorkerHost
from millwheel.ids import IntervalId, ProducerId
from millwheel.testing.checks.truth import Truth
from millwheel.testing.checks.watched import WatchedStore
from millwheel.work import QUARANTINE_HOLD
from millwheel_storage.memory import MemoryStore


def check_end(watched: WatchedStore) -> None:
    """After an orderly end: nothing is pending, the folded tables say what the checkpoints said (I2, I4, I15)."""
    truth, store = watched.truth, watched.inner
    check_accounts(watched)
    for (subscription, producer), rows in truth.pending.items():
        if rows:
            name = truth.subscriptions[subscription].name
            truth.fail(f"I2: {name!r} never consumed {sorted(rows)[:5]} of producer {producer}")
    if store.log:
        truth.fail(f"I15: {len(store.log)} checkpoints are not folded at the end")
    leftover = {i: rows for i, channels in store.folded.productions.items() for rows in channels.values() if rows}
    if leftover:
        truth.fail(f"I15: productions are left in the store: {leftover}")
    asked = sorted(place for place in store.folded.redrives if place not in store.quarantine)
    if asked:
        truth.fail(f"I15: requests to redrive {asked} are left, and nothing is in quarantine there")
    for name, durable in truth.durable.items():
        held = {key for key in durable.holds if key.endswith(QUARANTINE_HOLD)}
        empty = held - {key + QUARANTINE_HOLD for key, entries in durable.fifo.items() if entries}
        if empty:
            truth.fail(f"I10: {name} is held by quarantines with nothing in them: {sorted(empty)}")
    current = {ProducerId(sequencer) for sequencer in (*truth.owner.values(), *truth.left)}
    for interval, frontiers in store.folded.frontiers.items():
        retired = sorted(producer for _, producer in frontiers if producer not in current)
        if retired and truth.graph.computations[truth.computation[interval]].settings.exactly_once:
            truth.fail(f"I15: interval {interval} keeps frontiers of producers {retired}, which are retired")


def check_accounts(watched: WatchedStore) -> None:
    """Whatever hooks did is durable, and the folded tables say it (I4, I8)."""
    truth = watched.truth
    for owner in truth.owner.items():
        if owner in watched.owned:
            watched.owned[owner].end(truth.fail)
    _check_tables(truth, watched.inner)


def check_forgotten(truth: Truth, worker: WorkerHost, open_: Mapping[IntervalId, object]) -> None:
    """When all input is consumed a process keeps nothing of any partition: its memory is that of what is not finished."""
    kept = {actor.interval for actor, _ in worker.actors.partitions()} | open_.keys()
    if kept:
        truth.fail(f"I15: the partitions of intervals {sorted(kept)} are finished, and a process keeps them in memory")


def delivered(store: MemoryStore) -> int:
    """Ids that the store still keeps."""
    return sum(len(ids) for channels in store.folded.delivered.values() for ids in channels.values())


def _check_tables(truth: Truth, store: MemoryStore) -> None:
    for name, durable in truth.durable.items():
        if _full(durable.state) != _full(store.key_state.get(name, {})):
            truth.fail(f"I4: folded state of {name} is not what its checkpoints say")
        if _full(durable.timers) != _full(store.folded.timers.get(name, {})):
            truth.fail(f"I4: folded timers of {name} are not what its checkpoints say")
        if durable.holds != store.folded.holds.get(name, {}):
            truth.fail(f"I4: folded holds of {name} are not what its checkpoints say")
        stored = {k: len(rows) for (c, k), rows in store.quarantine.items() if c == name}
        if {k: len(rows) for k, rows in durable.fifo.items() if rows} != stored:
            truth.fail(f"I4: folded quarantine of {name} is not what its checkpoints say")


def _full(table: Mapping[str, Mapping[Any, Any]]) -> dict[str, dict[Any, Any]]:
    return {key: dict(entries) for key, entries in table.items() if entries}
