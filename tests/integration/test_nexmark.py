"""Nexmark against SQL: the rows that the pipelines write are those that Postgres finds in the same events.

All queries run in one pipeline, so that each order of arrival, number of intervals and series of kills costs one run.
`make nexmark` runs them one by one, on more events.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from examples.nexmark import oracle
from examples.nexmark.generator import events
from examples.nexmark.harness import killed, left_over
from examples.nexmark.job import NexmarkJob
from examples.nexmark.queries import QUERIES
from millwheel.launch import run
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.testing import fresh_name

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(900)]

EVENTS = 2_000
KILLS = 3
KEEP = {"q3.join", "q20.join"}
"""Computations whose state stays by what they are asked."""


def job(postgres: EmbeddedPostgres, **more: Any) -> NexmarkJob:
    return NexmarkJob(
        url=postgres.url, pipeline=fresh_name("nexmark"), queries=list(QUERIES), events=EVENTS, batch=100, **more
    )


@pytest.fixture(scope="module")
def judge(postgres: EmbeddedPostgres) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        oracle.load(connection, events(EVENTS))
        yield connection


def check(judge: psycopg.Connection[Any], done: NexmarkJob) -> None:
    found = {name: str(oracle.difference(judge, QUERIES[name], done.pipeline)) for name in done.queries}
    assert found == dict.fromkeys(done.queries, "None")


@pytest.mark.parametrize(
    ("order", "intervals", "seed"),
    [
        pytest.param("ordered", 1, 1, marks=pytest.mark.long),
        pytest.param("shuffled", 4, 2, marks=pytest.mark.long),
        ("late", 7, 3),
        pytest.param("doubled", 2, 4, marks=pytest.mark.long),  # they are in the test below, too
    ],
)
def test_rows_are_those_of_sql(
    order: str, intervals: int, seed: int, postgres: EmbeddedPostgres, judge: psycopg.Connection[Any]
) -> None:
    asked = job(postgres, order=order, intervals=intervals, arrival_seed=seed)
    progress = run(asked.build(), postgres.url)
    check(judge, asked)
    assert (progress.injected, progress.quarantined) == (EVENTS * (2 if order == "doubled" else 1), 0)
    assert (progress.repeated >= EVENTS) == (order == "doubled")
    assert left_over(judge, asked.pipeline).keys() <= KEEP


def test_killed_in_the_middle(postgres: EmbeddedPostgres, judge: psycopg.Connection[Any]) -> None:
    asked = job(postgres, order="doubled", intervals=3, rate=600, arrival_seed=5)
    done, kills = killed(asked, judge, KILLS)
    check(judge, asked)
    assert (done.finished, done.quarantined, kills) == (True, 0, KILLS)
