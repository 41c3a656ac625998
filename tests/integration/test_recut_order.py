"""Records from one key to another keep their order (I17) when a new version cuts the interval of the sending key.

What the whole interval has sent stays with its first part.  The receiver asks the store about ids of a part of that, which
takes long here, and meanwhile the other part has something to send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from millwheel import (
    SECOND,
    Computation,
    Context,
    JsonCoder,
    ListCell,
    MsgpackCoder,
    Pipeline,
    Record,
    Stream,
    ValueCell,
    subscribe,
)
from millwheel.core.source import injector
from millwheel_injectors import IterableSource
from millwheel_storage.embedded import EmbeddedPostgres
from tests.integration.places import Place
from tests.integration.weather import InMemory, Lair, came, once
from tests.unit.runtime.mortal import NEVER, Slow

ROWS = 60
rows = Stream("rows", JsonCoder(str))
sent = Stream("sent", JsonCoder(list[str | int]))


class Numbering(Computation[str]):
    """The records of each key, numbered."""

    count = ValueCell(MsgpackCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        number = self.count.get() + 1
        self.count.set(number)
        numbered: list[str | int] = [record.key, number]
        context.produce(sent, numbered)


class Seen_all(Computation[list[str | int]]):
    """All that came, in order."""

    came = ListCell(JsonCoder(list[object]))

    def ProcessRecord(self, context: Context, record: Record[list[str | int]]) -> None:
        self.came.append([record.timestamp, False, record.value])


class SlowAtFirst(Slow):
    """The first answers of a kind take long."""

    left = 4

    async def pass_(self, name: str) -> None:
        """See `Delays`."""
        if name == self._kind and self.left:
            self.left -= 1
            await super().pass_(name)


def numbered(name: str, splits: Sequence[str]) -> Pipeline:
    pipeline = Pipeline(name)
    given = [("ax"[n % 2], n * SECOND) for n in range(ROWS)]
    pipeline.inject(IterableSource("given", given), into=rows)
    pipeline.add(Numbering, [subscribe(rows, lambda key: key)], [sent], split_keys=splits)
    pipeline.add(Seen_all, [subscribe(sent, lambda _: "out")])
    return pipeline


async def recut(lair: Lair, name: str, at: int, before: Sequence[str], after: Sequence[str]) -> None:
    """Killed at the write number `at`, and gone on with other split keys."""
    await once(lair, numbered(name, before), at, True, Slow("commit", 0.003))
    await once(lair, numbered(name, after), NEVER, True, SlowAtFirst("find_ids", 0.1))
    found = [out.value for out in came(lair)["all"]]
    for key in "ax":
        assert [number for of, number in found if of == key] == [*range(1, ROWS // 2 + 1)], (key, found)


@pytest.fixture(autouse=True)
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle has two records."""
    monkeypatch.setattr(injector, "READ_LIMIT_ROWS", 2)
    monkeypatch.setattr(injector, "FIRST_READ_ROWS", 2)


CUTS: list[tuple[list[str], list[str]]] = [([], ["m"]), (["b"], ["m"]), (["m"], []), ([], [])]


@pytest.mark.parametrize(("before", "after"), CUTS)
@pytest.mark.parametrize("at", [6, 7, 8, 9, 12, 16])
def test_what_was_sent_before_the_cut_comes_first(at: int, before: list[str], after: list[str]) -> None:
    asyncio.run(recut(InMemory(), "recut", at, before, after))


class OnPostgres(Place):
    """A schema of a server; nothing is redriven."""

    def redrive(self) -> bool:
        return False


@pytest.mark.postgres
@pytest.mark.parametrize("at", [6, 8, 14])
def test_what_was_sent_before_the_cut_comes_first_on_postgres(
    at: int, postgres: EmbeddedPostgres, pipeline: str
) -> None:
    asyncio.run(recut(OnPostgres(postgres.url, pipeline), pipeline, at, [], ["m"]))
