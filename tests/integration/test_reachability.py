"""The loop of examples/reachability on a real Postgres: after each prefix the pages are those of networkx, kills or not."""

from __future__ import annotations

import msgspec
import pytest

from examples.reachability.__main__ import main
from examples.reachability.links import arriving
from examples.reachability.oracle import difference, prefixes
from examples.reachability.pages import build
from examples.reachability.runs import Reachability, cut_off, killed
from millwheel.committed import Committed
from millwheel.launch import run
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.testing import fresh_name

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(900)]

LINKS = 2_000
MANY_LINKS = 5_000  # more than any machine runs in the moments between six kills


def job(postgres: EmbeddedPostgres, links: int = LINKS, **more: object) -> Reachability:
    return Reachability(url=postgres.url, pipeline=fresh_name("reach"), links=links, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("split_keys", [(), ("p3", "p6")])
def test_after_every_prefix_the_pages_are_those_of_networkx(
    split_keys: tuple[str, ...], postgres: EmbeddedPostgres
) -> None:
    asked = job(postgres, split_keys=split_keys, seed=len(split_keys) + 1)
    asked.work()
    since = asked.since()
    assert difference(arriving(LINKS, asked.seed), since, 200) is None
    upto, pages = asked.growth()[-1]
    assert pages == len(since) > LINKS // 5
    assert upto > max(since.values())


def test_killed_while_records_are_in_the_loop(postgres: EmbeddedPostgres) -> None:
    asked = job(postgres, split_keys=("p5",), seed=3, links=MANY_LINKS)
    kills = killed(asked, 6, seed=3, wait_s=(0.0, 0.1))
    assert difference(arriving(MANY_LINKS, asked.seed), asked.since(), 200) is None
    assert kills == 6


@pytest.mark.long  # `tests/chaos/test_loop_kills.py` has kills under snapshots for a landing
def test_killed_under_snapshots_while_records_are_in_the_loop(postgres: EmbeddedPostgres) -> None:
    asked = job(postgres, split_keys=("p5",), seed=3, links=MANY_LINKS, snapshot_every_ms=20)
    kills = killed(asked, 4, seed=3, wait_s=(0.0, 0.1))
    assert difference(arriving(MANY_LINKS, asked.seed), asked.since(), 200) is None
    assert kills == 4


def test_a_process_of_a_cluster_is_killed_while_records_are_in_the_loop(postgres: EmbeddedPostgres) -> None:
    asked = job(postgres, split_keys=("p5",), seed=3, links=MANY_LINKS, snapshot_every_ms=50, workers=2)
    kills = killed(asked, 1, seed=3, wait_s=(0.0, 0.1))
    assert difference(arriving(MANY_LINKS, asked.seed), asked.since(), 200) is None
    assert kills == 1


def test_the_durability_of_a_loop_changes_on_one_store(postgres: EmbeddedPostgres) -> None:
    asked = job(postgres, split_keys=("p5",), seed=4, links=MANY_LINKS)
    for turn, every_ms in enumerate((20, 0, 20)):
        half = msgspec.structs.replace(asked, snapshot_every_ms=every_ms)
        assert cut_off(half, seed=turn), "the run must be under way when it is cut off"
    asked.work()
    assert difference(arriving(MANY_LINKS, asked.seed), asked.since(), 200) is None


def test_a_wrong_time_is_noticed() -> None:
    links = arriving(300)
    assert prefixes(300, 7)[-1] == 300
    since: dict[str, int] = {}
    wrong = difference(links, since, 300)
    assert wrong is not None
    assert wrong.startswith("after 1 links: missing")


def test_explain_shows_the_floor_of_the_loop_and_the_edges_that_close_it(postgres: EmbeddedPostgres) -> None:
    asked = job(postgres, seed=5)
    wired = build(arriving(50), asked.pipeline)
    run(wired, postgres.url)
    with Committed(wired, postgres.url) as committed:
        held = {(one.kind, one.what) for one in committed.explain("LinkedPage")}
    assert ("watermark", "loop:LinkedPage") in held
    assert ("back edge", "stream visits from LinkedPage, for which the floor of the loop stands") in held


def test_the_command_says_what_it_has_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--links", "200", "--kills", "0", "--prefixes", "10"]) == 0
    assert "10 prefixes: as networkx finds them" in capsys.readouterr().out
