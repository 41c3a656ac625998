"""A lease that is renewed over one connection: kept, over, and in doubt while the server does not answer."""

from __future__ import annotations

import asyncio
import signal
from types import FrameType

import psycopg
import pytest

from millwheel.errors import StoreUnavailable
from millwheel.ports import PipelineShape
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.lease_session import LeaseSession
from millwheel_storage.postgres import PostgresStore

pytestmark = pytest.mark.postgres

LEASE_US = 3_600_000_000
CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'millwheel lease'"


def joined(url: str, pipeline: str, name: str) -> int:
    """A new member of the pipeline's cluster."""

    async def join() -> int:
        store = PostgresStore(url, pipeline)
        await store.open_pipeline(PipelineShape(pipeline, {"a": ()}, {}, {}, (), ()))
        try:
            return (await store.join(name, "worker", f"{name}:1", LEASE_US, name.encode())).incarnation
        finally:
            await store.close()

    return asyncio.run(join())


def test_a_lease_is_renewed_and_one_that_is_over_is_not(postgres: EmbeddedPostgres, pipeline: str) -> None:
    one, two = (joined(postgres.url, pipeline, name) for name in ("one", "two"))
    session = LeaseSession(postgres.url, pipeline)
    assert session.renew(one, LEASE_US)
    assert not session.renew(two, -LEASE_US), "this renewal ends it"
    assert not session.renew(two, LEASE_US)
    assert session.renew(one, LEASE_US), "the other member's is its own"
    assert not session.renew(two + 99, LEASE_US), "nobody has this number"
    session.close()


def test_nobody_knows_while_the_connection_is_cut_and_the_next_call_makes_a_new_one(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    member = joined(postgres.url, pipeline, "one")
    session = LeaseSession(postgres.url, pipeline)
    assert session.renew(member, LEASE_US)
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        assert (True,) in connection.execute(CUT).fetchall()
    with pytest.raises(StoreUnavailable, match="the lease was not renewed: "):
        session.renew(member, LEASE_US)
    assert session.renew(member, LEASE_US)
    session.close()


def test_a_schema_that_is_not_there_is_in_doubt_and_no_end_of_the_lease(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    session = LeaseSession(postgres.url, f"{pipeline}_unknown")
    with pytest.raises(StoreUnavailable):
        session.renew(1, LEASE_US)
    session.close()


def test_whoever_is_cut_off_in_the_middle_asks_over_another_connection(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    """The keeper of a lease bounds each attempt.  What comes of the attempt that it has cut off is no answer to the next."""

    class CutOff(BaseException):
        pass

    def cut_off(number: int, frame: FrameType | None) -> None:
        raise CutOff

    member = joined(postgres.url, pipeline, "one")
    session = LeaseSession(postgres.url, pipeline)
    assert session.renew(member, LEASE_US)
    before = signal.signal(signal.SIGALRM, cut_off)
    try:
        with psycopg.connect(postgres.url) as holder:
            holder.execute(f'SELECT FROM "{pipeline}".lease FOR UPDATE'.encode())
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(CutOff):
                session.renew(member, LEASE_US)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert session.renew(member, LEASE_US)
    session.close()
