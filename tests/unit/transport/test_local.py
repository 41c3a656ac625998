"""Channels within one process, and a whole run whose channels are cut again and again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from time import monotonic

import msgspec
import pytest

from millwheel.core.source import injector
from millwheel.host.messages import Message, Receipt
from millwheel.ids import IntervalId
from millwheel.ports import Transport
from millwheel.runtime.embedded import EmbeddedRun
from millwheel.testing.world.transport import FaultyTransport
from millwheel.transport.local import LocalTransport
from millwheel_storage.memory import MemoryStore
from tests.unit.runtime.drive import Cells, expected_counts, text_lines, word_count

KINDS: tuple[type[Transport[Message]], ...] = (LocalTransport, FaultyTransport)
"""mypy holds them to the protocol."""


def test_each_host_hears_what_it_was_told_in_order_and_from_whom() -> None:
    transport = LocalTransport()
    heard: list[tuple[str, str, Message]] = []

    def attach(name: str) -> None:
        transport.attach(name, lambda sender, message: heard.append((name, sender, message)), lambda peer: None)

    attach("a")
    attach("b")
    first, second, third = (Receipt(IntervalId(1), IntervalId(2), number) for number in range(3))
    transport.tell("a", "b", first)
    transport.tell("b", "a", second)
    transport.tell("a", "b", third)
    assert heard == [("b", "a", first), ("a", "b", second), ("b", "a", third)]


def test_a_host_that_nobody_has_attached_is_a_loud_error() -> None:
    with pytest.raises(KeyError, match="nobody"):
        LocalTransport().tell("a", "nobody", Receipt(IntervalId(1), IntervalId(2), 3))


class CutTransport(LocalTransport):
    """One channel after the other is cut for some milliseconds: what it is given then is lost."""

    def __init__(self, gap_s: float) -> None:
        super().__init__()
        self._gap_s = gap_s
        self._opened: dict[str, Callable[[str], None]] = {}
        self._pairs = cycle([frozenset(("worker",)), frozenset(("worker", "controller"))])
        self._down: set[frozenset[str]] = set()
        self._next_at = 0.0
        self.lost: Counter[str] = Counter()

    def attach(self, name: str, heard: Callable[[str, Message], None], opened: Callable[[str], None]) -> None:
        super().attach(name, heard, opened)
        self._opened[name] = opened

    def tell(self, sender: str, receiver: str, message: Message) -> None:
        now = monotonic()
        if now >= self._next_at and not self._down:
            pair = next(self._pairs)
            self._down.add(pair)
            self._next_at = now + self._gap_s
            asyncio.get_running_loop().call_later(0.005, self._open, pair)
        if frozenset((sender, receiver)) in self._down:
            self.lost[type(message).__name__] += 1
        else:
            super().tell(sender, receiver, message)

    def _open(self, pair: frozenset[str]) -> None:
        self._down.remove(pair)
        one, other = min(pair), max(pair)
        self._opened[one](other)
        if one != other:
            self._opened[other](one)


@pytest.mark.parametrize("gap_ms", [10, 30, 100])
def test_a_run_whose_channels_are_cut_again_and_again_counts_each_word_once(
    gap_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(injector, "READ_LIMIT_ROWS", 20)
    rows = text_lines(6_000, seed=gap_ms)
    pipeline = word_count("cut", rows, {"work_limit_records": 20}, {"split_keys": ("m",)})
    store, transport = MemoryStore(), CutTransport(gap_ms / 1_000)
    run = EmbeddedRun(pipeline.graph(), store, pipeline.tables, transport=transport)
    progress = asyncio.run(run.run())
    assert progress.finished
    by_line, by_word = expected_counts(rows)
    assert (cells(store, "Split"), cells(store, "Count")) == (by_line, by_word)
    assert transport.lost


def cells(store: MemoryStore, computation: str) -> Cells:
    """Key to {cell, or cell[entry]: value}, of what the run left."""
    return {
        key: {f"{c}[{e}]" if e else c: msgspec.json.decode(v) for (c, e), v in found.items()}
        for key, found in store.key_state[computation].items()
    }
