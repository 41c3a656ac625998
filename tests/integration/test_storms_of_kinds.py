"""Storms over all kinds of steps, a few of them a seed, and oracles that see what is missing, doubled or altered.

Lives here: which kinds a seed has.  Never here: the kinds (`storm_windows` and others), the storm (`weather`).  What threads
do is not drawn, so a seed that failed may have to run some times to fail again.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres.reader import Reader
from tests.effort import examples
from tests.integration.places import Place
from tests.integration.storm_daily import DAILY
from tests.integration.storm_joins import JOINS
from tests.integration.storm_own import OWN
from tests.integration.storm_sessions import SESSIONS
from tests.integration.storm_windows import WINDOWS
from tests.integration.weather import Came, InMemory, Kind, Out, build, came, drawn_items, drawn_limits, once, storm
from tests.unit.runtime.mortal import NEVER

ALL = [*WINDOWS, *SESSIONS, *JOINS, *DAILY, *OWN]


def names(kinds: list[Kind]) -> str:
    return "\n".join(kind.name for kind in kinds)


@pytest.mark.parametrize("seed", range(examples(20, gate=12)))
def test_every_kind_is_right_after_a_storm(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    drawn_limits(monkeypatch, dice)
    first = seed * 6 % len(ALL)  # each has its turn
    kinds = [make(f"k{place}", dice) for place, make in enumerate([*ALL, *ALL][first : first + 6])]
    print(names(kinds))
    asyncio.run(storm(dice, kinds, drawn_items(dice), InMemory()))


class OnPostgres(Place):
    """A schema of a server."""

    def redrive(self) -> bool:
        with Reader(self.url, self.name) as reader:
            waiting = reader.quarantined()
            for computation, key, _ in waiting:
                reader.request_redrive(computation, key)
        return bool(waiting)


@pytest.mark.postgres
@pytest.mark.parametrize("seed", range(examples(4, gate=2)))
def test_every_kind_is_right_after_a_storm_on_postgres(
    seed: int, monkeypatch: pytest.MonkeyPatch, postgres: EmbeddedPostgres, pipeline: str
) -> None:
    dice = random.Random(seed)
    drawn_limits(monkeypatch, dice)
    kinds = [dice.choice(ALL)(f"k{place}", dice) for place in range(5)]
    print(names(kinds))
    asyncio.run(storm(dice, kinds, drawn_items(dice), OnPostgres(postgres.url, pipeline), pipeline))


def spoilt(found: Came, name: str) -> Iterator[tuple[str, Came]]:
    """What came, but for one result."""
    for place in {0, len(found[name]) // 2, len(found[name]) - 1}:
        outs = found[name]
        yield f"without {outs[place]}", {**found, name: [*outs[:place], *outs[place + 1 :]]}
        yield f"twice {outs[place]}", {**found, name: [*outs[: place + 1], *outs[place:]]}
        yield (
            f"later {outs[place]}",
            {**found, name: [*outs[:place], outs[place]._replace(at=1 << 61), *outs[place + 1 :]]},
        )
        changed = Out(outs[place].at, outs[place].late, altered(outs[place].value))
        yield f"other {outs[place]}", {**found, name: [*outs[:place], changed, *outs[place + 1 :]]}


def altered(value: Any) -> Any:
    """Another value, of the same form."""
    if isinstance(value, list):
        return [*value[:-1], altered(value[-1])] if value else [0]
    return (
        value + 1_000
        if type(value) is int
        else not value
        if type(value) is bool
        else 1_000
        if value is None
        else f"{value}!"
    )


CANNOT_SAY = [
    ("wall [0-9]", "later"),  # its times are those of the clock
    ("weak", "twice"),  # what was sent may be sent again
    ("sessions", "(without|twice|other) .*'early'"),  # a shorter form may have had a pane, or none
    ("forget_after=[0-9]", "without"),
]


def test_no_oracle_is_blind() -> None:
    """Each sees a result that is missing, one that is there twice, one of another time, and one of another value."""
    dice = random.Random(8)
    kinds = [make(f"k{place}", dice) for place, make in enumerate(ALL)]
    rows, lair = drawn_items(dice, late_share=0), InMemory()  # with late ones, a run is not as another
    asyncio.run(once(lair, build(kinds, rows, "checkpoints", 0, True, []), NEVER, True))
    found, unseen = came(lair), []
    for place, kind in enumerate(kinds):
        kind.check(rows, found)
        for what, other in spoilt(found, f"k{place}") if found[f"k{place}"] else ():
            if any(re.search(of, kind.name) and re.match(wrong, what) for of, wrong in CANNOT_SAY):
                continue
            try:
                kind.check(rows, other)
            except (AssertionError, LookupError, TypeError):
                continue
            unseen.append((kind.name, what))
    assert not unseen, "\n".join(map(str, unseen))
