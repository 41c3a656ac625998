"""Figures for Prometheus, scraped over HTTP."""

from __future__ import annotations

import socket
from urllib.request import urlopen

import click
import msgspec
import pytest
from prometheus_client.core import CounterMetricFamily

from millwheel.cli.metrics import COUNTS, LABELLED, Figures, check_free, ports_of, served
from millwheel.cli.up import plan
from millwheel.cluster import HotKey
from millwheel.errors import ChannelError
from millwheel.host.progress import PartProgress, Progress
from millwheel.ids import IntervalId
from millwheel.model import MAX_TIME, MIN_TIME, SECOND

PROGRESS = Progress(
    records=7, injected=5, rejected=1, late=2, duplicates=3, repeated=0, quarantined=1, backdated=0, checkpoints=4,
    watermarks={"Count": 10 * SECOND, "source:text": 12 * SECOND, "Other": MAX_TIME, "Young": MIN_TIME}, finished=False,
    in_quarantine=1, hot_keys=(HotKey(IntervalId(3), "the\n", 420),), commits=2, commit_us=3_000,
    computations={"Count": PartProgress(7, 6, 512)}, rows={"text": 5}, cache_bytes=300, cache_limit_bytes=400,
)  # fmt: skip


def scraped(address: str) -> dict[str, float]:
    with urlopen(f"http://{address}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def free_address() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


def test_a_scrape_has_the_newest_report() -> None:
    address = free_address()
    with served(address, "words") as figures:
        assert scraped(address) == {}
        figures.update(PROGRESS, 1.0)
        found = scraped(address)
    for field in COUNTS:
        assert found[f'millwheel_{field}_total{{pipeline="words"}}'] == getattr(PROGRESS, field)
    assert found[r'millwheel_hot_key_share{interval="3",key="the\\n",pipeline="words"}'] == 0.42
    assert found['millwheel_quarantined_keys{pipeline="words"}'] == 1
    assert found['millwheel_computation_records_total{computation="Count",pipeline="words"}'] == 7
    assert found['millwheel_computation_timers_total{computation="Count",pipeline="words"}'] == 6
    assert found['millwheel_source_rows_total{pipeline="words",source="text"}'] == 5
    assert found['millwheel_waiting_bytes{computation="Count",pipeline="words"}'] == 512
    assert found['millwheel_cache_bytes{pipeline="words"}'] == 300
    assert found['millwheel_cache_limit_bytes{pipeline="words"}'] == 400
    assert found['millwheel_commit_seconds_count{pipeline="words"}'] == 2
    assert found['millwheel_commit_seconds_sum{pipeline="words"}'] == 0.003
    assert {name: value for name, value in found.items() if name.startswith("millwheel_watermark")} == {
        'millwheel_watermark_seconds{name="Count",pipeline="words"}': 10.0,
        'millwheel_watermark_seconds{name="source:text",pipeline="words"}': 12.0,
    }
    with pytest.raises(OSError, match="refused"):
        scraped(address)


def test_no_counter_falls_when_rows_are_read_again_after_a_going_back() -> None:
    address = free_address()
    with served(address, "words") as figures:
        for injected in (5, 3, 4):
            again = {"rows": {"text": injected}, "computations": {"Count": PartProgress(injected)}}
            figures.update(msgspec.structs.replace(PROGRESS, injected=injected, in_quarantine=injected, **again), 1.0)
        found = scraped(address)
    assert found['millwheel_injected_total{pipeline="words"}'] == 5
    assert found['millwheel_source_rows_total{pipeline="words",source="text"}'] == 5
    assert found['millwheel_computation_records_total{computation="Count",pipeline="words"}'] == 5
    assert found['millwheel_quarantined_keys{pipeline="words"}'] == 4, "what is there now may be fewer"


def test_a_report_that_comes_during_a_scrape_does_not_disturb_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrapes are answered in threads of their own."""
    figures = Figures("words")
    figures.update(PROGRESS, 1.0)
    add, more = CounterMetricFamily.add_metric, iter(range(100))

    def interrupted(self: CounterMetricFamily, labels: list[str], value: float) -> None:
        parts = {**PROGRESS.computations, f"New{next(more)}": PartProgress(1, 1, 1)}
        figures.update(msgspec.structs.replace(PROGRESS, records=99, computations=parts), 2.0)
        add(self, labels, value)

    monkeypatch.setattr(CounterMetricFamily, "add_metric", interrupted)
    (records,) = [family for family in figures.collect() if family.name == "millwheel_records"]
    assert [sample.value for sample in records.samples] == [7]


def test_a_port_that_is_taken_and_an_address_that_is_none_are_errors() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ChannelError, match="choose another --metrics"):
            served(address, "words").__enter__()
        host, port = "127.0.0.1", taken.getsockname()[1]
        with pytest.raises(ChannelError, match="Address already in use; choose another --metrics"):
            check_free((host, port - 1), 2)
    check_free((host, port), 1)
    check_free(None, 2)
    with pytest.raises(ChannelError, match="is no address"):
        served("here", "words").__enter__()


def test_without_an_address_nothing_is_served() -> None:
    with served(None, "words") as figures:
        figures.update(PROGRESS, 1.0)
        kinds = {family.name: family.type for family in figures.collect()}
    assert {name for name, kind in kinds.items() if kind == "counter"} == {
        f"millwheel_{field}" for field in (*COUNTS, *LABELLED)
    }
    assert {name for name, kind in kinds.items() if kind == "gauge"} == {
        "millwheel_quarantined_keys", "millwheel_hot_key_share", "millwheel_watermark_seconds", "millwheel_waiting_bytes",
        "millwheel_cache_bytes", "millwheel_cache_limit_bytes",
    }  # fmt: skip


def test_each_worker_of_up_has_a_port_of_its_own() -> None:
    found = [child.command for child in plan("words:pipeline", 2, 1, ["--quiet"], [], ("127.0.0.1", 9100))]
    assert ["--metrics" in command for command in found] == [False, True, True]
    assert [command[-2:] for command in found[1:]] == [["--metrics", "127.0.0.1:9100"], ["--metrics", "127.0.0.1:9101"]]


@pytest.mark.parametrize(
    ("address", "workers", "why"),
    [
        ("127.0.0.1:0", 1, "port 0"),
        ("127.0.0.1:65535", 2, "2 workers"),
        ("here", 1, "is no address"),
    ],
)
def test_ports_of_workers_must_be_known(address: str, workers: int, why: str) -> None:
    with pytest.raises(click.UsageError, match=why):
        ports_of(address, workers)
    assert ports_of("[::1]:65534", 2) == ("[::1]", 65534)
    assert ports_of(None, 2) is None
