"""Weak checkpoints under every order of acks (§6.1.3, figure 11): none is acked too early, none waits for a straggler."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel import limits
from millwheel.core.interval import events as ev
from millwheel.ids import Seq
from millwheel.work import Columns
from tests.effort import examples
from tests.unit.core.bench import OUT, Bench, outcome

DELAY_US = 1_000_000
TICK_US = 1_000
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("record"), st.integers(0, 2)),
        st.tuples(st.just("ack"), st.integers(0, 100)),
        st.tuples(st.just("wait"), st.sampled_from([1_000, 9_000, 11_000, 40_000])),
        st.tuples(st.just("commit"), st.just(0)),
    ),
    max_size=60,
)


class Model:
    """A weak interval whose receivers ack when they are told to, and what must be true of it."""

    def __init__(self) -> None:
        self.bench = Bench(productions="weak", straggler_delay_us=DELAY_US)
        self.alarm: int | None = None
        self.records = 0
        self.unacked: dict[int, int] = {}
        """Number of a bundle on its way to the record that caused it."""
        self.sequences: dict[int, int] = {}
        self.free_at: dict[int, int] = {}
        """Record to when its last production was acked."""
        self.submitted: dict[int, tuple[int, list[int]]] = {}
        """Record to when its checkpoint was handed over, and the productions that it holds."""
        self.uncommitted: list[int] = []
        self.acked: list[int] = []
        self.look()

    def look(self) -> None:
        """Take the effects of the last event."""
        bench = self.bench
        for alarm in bench.of(ev.SetAlarm):
            self.alarm = alarm.at if self.alarm is None else min(self.alarm, alarm.at)
        for image, commit in zip(bench.images(), bench.of(ev.Commit), strict=True):
            held = [p.first + i for p in image.produced for i in range(len(p.keys))]
            for ids in image.ids:
                for record in ids.sequences:
                    self.submitted[record] = (bench.now, held)
            self.uncommitted.append(commit.write.seq)
        for number in bench.acks():
            self.acked.append(number - 1)

    def event(self, event: ev.Event) -> None:
        self.bench(event)
        self.look()

    def record(self, productions: int) -> None:
        record, self.records = self.records, self.records + 1
        self.bench.arrive(record + 1, {record: (f"k{record}", 50)})
        if not self.bench.of(ev.Load) and not self.bench.of(ev.Invoke):
            self.records -= 1  # no room: the others must go first
            return
        self.bench.load()
        self.bench.invoked(outcome(values={"c": {f"k{record}": b"v"}}, processed=1, **_produced(productions)))
        for bundle in self.bench.sent():
            self.unacked[bundle.number] = record
            self.sequences[bundle.number] = bundle.sequences[0]
        if not productions:
            self.free_at[record] = self.bench.now
        self.look()

    def ack(self, which: int) -> None:
        if self.unacked:
            number = sorted(self.unacked)[which % len(self.unacked)]
            record = self.unacked.pop(number)
            if record not in self.unacked.values():
                self.free_at[record] = self.bench.now
            self.event(ev.AckArrived(number))

    def wait(self, us: int) -> None:
        until = self.bench.now + us
        while self.alarm is not None and self.alarm <= until:
            self.bench.now, self.alarm = max(self.bench.now, self.alarm), None
            self.event(ev.AlarmRang())
        self.bench.now = until

    def commit(self, _: int) -> None:
        if self.uncommitted:
            self.event(ev.CommitDone(Seq(self.uncommitted.pop(0))))

    def check(self) -> None:
        handed = sorted(self.submitted)
        assert handed == list(range(len(handed))), "in seq order, without gaps"
        assert self.acked == list(range(len(self.acked))), "acks wait for the whole prefix"
        for record, at in self.free_at.items():
            if record not in self.submitted:
                assert self.bench.now - at <= limits.STRAGGLER_PATIENCE_US, f"record {record} waits for a straggler"
        for number, record in self.unacked.items():
            if record in self.submitted:
                assert self.sequences[number] in self.submitted[record][1], "what is unacked is in the checkpoint"


def _produced(count: int) -> dict[str, Any]:
    return {"produced": {OUT: Columns(["x"] * count, [b"p"] * count, [60] * count)}} if count else {}


@settings(max_examples=examples(200), deadline=None)
@given(STEPS)
def test_no_checkpoint_waits_long_for_the_acks_of_another(steps: list[tuple[str, int]]) -> None:
    model = Model()
    for name, value in steps:
        getattr(model, name)(value)
        model.check()
    model.wait(DELAY_US + TICK_US)
    model.check()
    assert sorted(model.submitted) == list(range(model.records)), "the straggler delay bounds every wait"
    for _ in range(model.records):
        model.commit(0)
    model.check()
    assert len(model.acked) == model.records
