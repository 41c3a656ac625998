"""Apache Beam's own trigger transcripts, played on windows of this library: what comes out when, and what must not.

Each transcript says what goes in, how the watermark moves, and every pane that each such step gives.  The last five are
wrong on purpose, and must be noticed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from millwheel import SECOND
from millwheel.library import AtWatermark, EveryRecords, Fixed, Global, Once, Sessions, collect
from millwheel.testing import Stepper
from tests.unit.library.pipelines import Score, panes, scores, windowed

TRANSCRIPTS: list[dict[str, Any]] = list(
    yaml.safe_load_all((Path(__file__).parent / "beam" / "trigger_transcripts.yaml").read_text())
)
PUNCTUAL = [spec for spec in TRANSCRIPTS if "error" not in spec]
WRONG = [spec for spec in TRANSCRIPTS if "error" in spec]


def after_watermark(early: Any = None, late: Any = None) -> AtWatermark:
    """Beam's composite: without `late` the window closes with its pane at the watermark."""
    return AtWatermark(early and early.every, late and late.every)


NAMES = {
    "FixedWindows": lambda size: Fixed(seconds=size),
    "CustomTimestampingFixedWindowsWindowFn": lambda size: Fixed(seconds=size),
    "Sessions": lambda gap: Sessions(seconds=gap),
    "GlobalWindows": Global(),
    "Default": AtWatermark(),
    "AfterWatermark": after_watermark,
    "AfterCount": lambda records: Once(EveryRecords(records)),
}
TIMES: dict[str, Any] = {
    "OUTPUT_AT_EOW": "end",
    "OUTPUT_AT_EARLIEST": "earliest",
    "OUTPUT_AT_LATEST": "latest",
    "OUTPUT_AT_EARLIEST_TRANSFORMED": lambda time: time + 100 * SECOND,  # as that custom window function does
}


def parsed(text: str) -> Any:
    """Beam's notation for windows and triggers."""
    return eval(text, {"__builtins__": {}}, NAMES)


class Player:
    """One transcript under way."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.stepper = Stepper(
            windowed(
                parsed(spec.get("window_fn", "GlobalWindows")),
                aggregation=collect(int, lambda score: score.points),
                trigger=parsed(spec.get("trigger_fn", "Default")),
                lateness=spec.get("allowed_lateness", 0) * SECOND,
                panes=spec.get("accumulation_mode", "accumulating"),
                time=TIMES[spec.get("timestamp_combiner", "OUTPUT_AT_EOW")],
            )
        )
        self.newest = 0
        self.seen = 0

    def given(self) -> list[dict[str, Any]]:
        """Panes since the last call, in Beam's words; times in whole seconds."""
        found = self.stepper.outputs(panes)[self.seen :]
        self.seen += len(found)
        return [
            {
                "window": [out.value.start // SECOND, (out.value.end - 1) // SECOND],
                "values": sorted(out.value.value),
                "timestamp": out.timestamp // SECOND,
                "index": out.value.number,
                "nonspeculative_index": out.value.punctual,
                "early": out.value.timing == "early",
                "late": out.value.timing == "late",
                "final": out.value.last,
            }
            for out in found
        ]

    def play(self, transcript: list[dict[str, Any]], backwards: bool) -> None:
        """Every step; raises `AssertionError` for a pane too many or too few."""
        output: list[dict[str, Any]] = []
        for step in transcript:
            ((action, what),) = step.items()
            if action == "expect":
                for expected in what:
                    match(output, expected)
                continue
            if action == "state":
                self.check_state(what)
                continue
            assert not output, f"Unexpected output {output} before {action} {what}"
            if action == "input":
                for time in reversed(what) if backwards else what:
                    self.stepper.send(scores, Score("key", time), time * SECOND)
                    self.newest = max(self.newest, time)
            else:
                assert action == "watermark"
                self.stepper.advance_watermark(what * SECOND)
            output = self.given()
        assert not output, f"Unexpected output {output} at the end"

    def check_state(self, what: dict[str, list[list[int]]]) -> None:
        """Which windows have something, nothing, or only the mark that they are closed.

        Beam leaves this out.  What the transcript says is so when the watermark has followed the input.
        """
        self.stepper.advance_watermark(self.newest * SECOND)
        (name,) = [name for name in self.stepper.graph.computations if "tap" not in name]
        state = self.stepper.state(name, "key")
        marked = {int(start) // SECOND for start, progress in state["progress"].items() if progress.closed}
        gathered = {int(start) // SECOND for start in state["accumulators"]}
        assert gathered == {start for start, _ in what["present"]}
        assert marked == {start for start, _ in what["tombstone"]}
        assert not (marked | gathered) & {start for start, _ in what["absent"]}


def match(output: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    """Take the pane that has all that is expected out of `output`."""
    for candidate in output:
        if all(candidate[name] == expected[name] for name in expected):
            output.remove(candidate)
            return
    raise AssertionError(f"Unmatched output {expected} in {output}")


def test_the_transcripts_are_all_there() -> None:
    assert (len(PUNCTUAL), len({spec["name"] for spec in PUNCTUAL}), len(WRONG)) == (13, 12, 5)


def named(spec: dict[str, Any]) -> str:
    return f"{spec['name']}-{spec.get('timestamp_combiner', '')}"


@pytest.mark.parametrize("spec", PUNCTUAL, ids=named)
def test_beams_transcript(spec: dict[str, Any]) -> None:
    Player(spec).play(spec["transcript"], backwards=False)
    if spec.get("trigger_fn", "Default") == "Default":  # then order within a step does not matter
        Player(spec).play(spec["transcript"], backwards=True)


@pytest.mark.parametrize("spec", WRONG, ids=named)
def test_beams_wrong_transcript_is_noticed(spec: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match=spec["error"]):
        Player(spec).play(spec["transcript"], backwards=False)
