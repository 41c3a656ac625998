"""New code on a running cluster: workers are restarted one by one, and what does not fit is refused before it writes."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from millwheel_storage.embedded import EmbeddedPostgres
from tests.integration.test_cluster_run import LINES, WORDS, Place, ended, until
from tests.patience import LEASE_S

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(900)]

SAYS = """
        if not hasattr(Split, "said"):
            Split.said = True
            logging.getLogger("millwheel.words").warning("the second version", extra={"facts": {"computation": "Split"}})
"""
SECOND = WORDS.replace("import os, time", "import logging, os, time").replace(
    "    def ProcessRecord(self, context, record):\n", f"    def ProcessRecord(self, context, record):{SAYS}", 1
)
"""Another hook, with the same declarations."""
OTHER_STATE = WORDS.replace(
    "seen = ValueCell(JsonCoder(int), default=0)", "seen = ValueCell(JsonCoder(str), default='0')"
)
WIDER_STATE = WORDS.replace("JsonCoder(int), default=0", "JsonCoder(float), default=0.0")
LATER = "2.jsonl"


@pytest.fixture
def place(postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, postgres.url, pipeline)
    for file in tmp_path.glob("*.jsonl"):  # a word that is in every line, and so is hot
        lines = [json.loads(line) + " the" for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    made.expected["the"] += LINES
    yield made
    made.close()


def worker(place: Place, name: str) -> subprocess.Popen[str]:
    logs = ("--log-format", "json", "--verbose")
    return place.command("worker", "words:pipeline", "--name", name, "--lease", f"{LEASE_S:g}", *logs, TAIL="1")


def hot_keys(place: Place) -> str:
    return str([bytes(keys) for (keys,) in place.connection.execute(f'SELECT keys FROM "{place.name}".hot_key')])


def test_workers_are_restarted_one_by_one_with_other_code_and_nothing_is_lost(place: Place) -> None:
    module, later = place.directory / "words.py", place.directory / LATER
    lines = later.read_text()
    later.unlink()  # the second version is to have something to do, however long its start takes
    controller = place.command("controller", "words:pipeline", "--name", "c", "--lease", f"{LEASE_S:g}", TAIL="1")
    running = {name: worker(place, name) for name in ("w1", "w2")}
    place.until_counted(0.05)

    for text, named in (
        (OTHER_STATE, "cell:Count.seen is stored with coder"),
        (WIDER_STATE, "cell 'Count.seen' cannot be read by the running version: int became float"),
    ):
        module.write_text(text)
        status, out = ended(worker(place, "w3"))
        assert (status, named in out) == (1, True), out
        assert place.owners() <= {"w1", "w2"}
    until(lambda: '"the"' in hot_keys(place))

    module.write_text(SECOND)
    for name in ("w1", "w2"):
        running[name].send_signal(signal.SIGTERM)
        status, out = ended(running[name])
        assert status == 130, out
        running[name] = worker(place, name)
        until(lambda name=name: name in place.owners())  # type: ignore[misc]
    later.write_text(lines)
    until(lambda: place.rows() == place.expected)
    said = []
    for process in (*running.values(), controller):
        process.send_signal(signal.SIGTERM)
        status, out = ended(process)
        assert status == 130, out
        said.append(out)
    assert place.rows() == place.expected
    assert "the second version" in said[0] + said[1]

    for out, name in zip(said, running, strict=False):
        logged = [json.loads(line) for line in out.splitlines()]
        assert {line["member"] for line in logged} == {name}
        assert [line["computation"] for line in logged if line["message"] == "the second version"] in (["Split"], [])
        served = [line for line in logged if "is served here" in line["message"] and "no more" not in line["message"]]
        assert served
        assert all({"computation", "interval", "sequencer"} <= line.keys() for line in served)
