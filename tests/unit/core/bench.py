"""A bench for one interval core: events go in, effects come out and are sorted by kind; nothing happens by itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from millwheel.bundles import (
    Bundle,
    Checkpoint,
    Delivered,
    HoldWrites,
    KeyRows,
    OutsideBucket,
    QuarantineEntry,
    RecoveredInterval,
    TimerWrites,
    decode_checkpoint,
)
from millwheel.core.ids.dedup import Channel
from millwheel.core.interval import events as ev
from millwheel.core.interval.config import Config
from millwheel.core.interval.machine import IntervalCore
from millwheel.graph import Settings
from millwheel.ids import IntervalId, ProducerId, SequenceNumber, Sequencer, SubscriptionId, sequence_numbers
from millwheel.intervals import Ranges
from millwheel.model import MIN_TIME
from millwheel.work import Columns, InvocationOutcome, Work

T = TypeVar("T")

INTERVAL, SEQUENCER, SENDER, PRODUCER, IN, OUT, TARGET = (
    IntervalId(1),
    Sequencer(100),
    IntervalId(50),
    ProducerId(55),
    SubscriptionId(7),
    SubscriptionId(8),
    IntervalId(60),
)
OWNER = ProducerId(SEQUENCER)
"""In whose name the core produces."""
CELL = "c"


def recovered(
    ids: list[Delivered] | None = None,
    productions: list[Bundle] | None = None,
    timers: list[tuple[str, str, str, int]] | None = None,
    quarantined: list[str] | None = None,
    watermark: int = MIN_TIME,
    outside: list[OutsideBucket] | None = None,
    more: list[str] | None = None,
) -> RecoveredInterval:
    page, holds = timer_writes(*timers or []), HoldWrites([], [])
    return RecoveredInterval(
        ids or [], productions or [], page, holds, quarantined or [], watermark, outside or [], more or []
    )


def timer_writes(*rows: tuple[str, str, str, int]) -> TimerWrites:
    """Timers as (key, tag, kind, timestamp)."""
    return TimerWrites([r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows], [r[3] for r in rows])


def bundle(number: int, rows: Mapping[int, tuple[str, int]], frontier: int = 0) -> Bundle:
    """A bundle of {sequence: (key, timestamp)}."""
    sequences = list(rows)
    keys, times = [rows[s][0] for s in sequences], [rows[s][1] for s in sequences]
    values = [b"v%d" % s for s in sequences]
    return Bundle(
        IN,
        SENDER,
        number,
        INTERVAL,
        PRODUCER,
        SequenceNumber(frontier),
        sequence_numbers(sequences),
        keys,
        values,
        times,
    )


def outcome(**changes: Any) -> InvocationOutcome:
    done = InvocationOutcome()
    for name, value in changes.items():
        setattr(done, name, value)
    return done


def wrote(key: str, value: bytes | None) -> InvocationOutcome:
    return outcome(values={CELL: {key: value}}, processed=1)


def produced(*rows: tuple[str, int]) -> InvocationOutcome:
    return outcome(produced={OUT: Columns([k for k, _ in rows], [b"p"] * len(rows), [t for _, t in rows])})


def failed(key: str, timestamp: int, sequence: int = 0) -> InvocationOutcome:
    return outcome(
        quarantined=[QuarantineEntry(key, IN, PRODUCER, SequenceNumber(sequence), b"v", timestamp, error="boom")]
    )


class Bench:
    """One core; effects of the last event by kind, and the clock."""

    def __init__(
        self,
        recover: RecoveredInterval | None = None,
        inherited: ev.Inherited | None = None,
        sequencer: Sequencer = SEQUENCER,
        live: Collection[Channel] | None = None,
        slacks: Mapping[SubscriptionId, int] | None = None,
        label: int | None = None,
        outputs: Collection[SubscriptionId] | None = None,
        gathers: bool = True,
        **settings: Any,
    ) -> None:
        routes = {OUT: Ranges([("", TARGET)])}
        config = Config(
            INTERVAL, sequencer, "c", "1", Settings(**settings), routes, outputs=outputs, slacks=slacks or {}, label=label,
            gathers=gathers,
        )  # fmt: skip
        self.core = IntervalCore(config, recover or recovered(), inherited)
        self.now = 0
        self.effects = self.core.start(0, live)

    def __call__(self, event: ev.Event) -> Bench:
        self.effects = self.core.handle(event, self.now)
        return self

    def of(self, kind: type[T]) -> list[T]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def arrive(self, number: int, rows: Mapping[int, tuple[str, int]], frontier: int = 0) -> Bench:
        return self(ev.BundleArrived(bundle(number, rows, frontier)))

    def load(self, rows: list[KeyRows] | None = None) -> Work:
        """Answer a load, if one is asked for, with empty state or `rows`; the work that is then invoked."""
        if self.of(ev.Load):
            self(ev.Loaded(rows or []))
        (invoke,) = self.of(ev.Invoke)
        return invoke.work

    def invoked(self, done: InvocationOutcome | None = None) -> Bench:
        return self(ev.Invoked(done or outcome()))

    def run(self, number: int, rows: Mapping[int, tuple[str, int]], done: InvocationOutcome | None = None) -> ev.Commit:
        """A bundle all the way to its commit."""
        self.arrive(number, rows)
        self.load()
        self.invoked(done)
        (commit,) = self.of(ev.Commit)
        return commit

    def acks(self) -> list[int]:
        return [ack.number for ack in self.of(ev.Ack)]

    def sent(self) -> list[Bundle]:
        return [send.bundle for send in self.of(ev.Send)]

    def reported(self) -> list[int]:
        return [report.value for report in self.of(ev.ReportWatermark)]

    def images(self) -> list[Checkpoint]:
        return [decode_checkpoint(commit.write.payload) for commit in self.of(ev.Commit)]
