"""A run says aloud what user code does wrong: once for each kind, and it stops when nothing works."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel import SECOND, Computation, Context, Pipeline, Record, Stream, TextCoder, Timer, subscribe
from millwheel.bundles import QuarantineEntry
from millwheel.errors import HooksFail
from millwheel.host.over import Tolerance
from millwheel.host.progress import Progress
from millwheel.ids import ProducerId, SequenceNumber, SubscriptionId, sequence_numbers
from millwheel.runtime.embedded import EmbeddedRun
from millwheel.runtime.failures import Failure, Failures
from millwheel.work import BundlePart, InvocationOutcome, Work
from millwheel_injectors import IterableSource
from millwheel_storage.memory import MemoryStore

texts = Stream("texts", TextCoder())

Hook = Callable[[Any, str], None]


def fails(kind: type[Exception], *keys: str) -> Hook:
    def hook(_: Any, key: str) -> None:
        if not keys or key in keys:
            raise kind(f"of {key}")

    return hook


def passes(_: Any, key: str) -> None:
    """Nothing is wrong."""


def pipeline_of(record: Hook, timer: Hook = passes, keys: int = 40, **settings: Any) -> Pipeline:
    class Both(Computation[str]):
        def ProcessRecord(self, context: Context, given: Record[str]) -> None:
            record(self, given.key)
            context.set_timer("t", given.timestamp + 1)

        def ProcessTimer(self, context: Context, given: Timer) -> None:
            timer(self, given.key)

    pipeline = Pipeline("p")
    pipeline.inject(IterableSource("rows", [(f"k{i}", i * SECOND) for i in range(keys)]), into=texts)
    pipeline.add(Both, [subscribe(texts, key=str)], **settings)
    return pipeline


class Passing(Computation[str]):
    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        pass


class Run:
    """A run, with what it said."""

    def __init__(self, pipeline: Pipeline, store: MemoryStore | None = None, **tolerance: int) -> None:
        self.said: list[Failure] = []
        self.store = store or MemoryStore()
        self.embedded = EmbeddedRun(
            pipeline.graph(), self.store, pipeline.tables, on_failure=self.said.append, tolerance=Tolerance(**tolerance)
        )

    def __call__(self) -> Progress:
        return asyncio.run(self.embedded.run())


def test_the_first_failure_of_each_kind_is_said_with_the_users_frames() -> None:
    def mixed(_: Any, key: str) -> None:
        if key in ("k1", "k2"):
            raise ValueError(f"of {key}")
        if key in ("k3", "k4", "k5"):
            raise KeyError(key)

    run = Run(pipeline_of(mixed))
    assert run().in_quarantine == 5
    assert [(f.key, f.error, f.hook, f.quarantined) for f in run.said] == [
        ("k1", "ValueError: of k1", "ProcessRecord", True), ("k3", "KeyError: 'k3'", "ProcessRecord", True),
    ]  # fmt: skip
    for failure in run.said:
        assert failure.trace.count(__file__) == 2  # the hook, and what it calls; not an earlier attempt
        assert "executor.py" not in failure.trace
        assert "another exception" not in failure.trace


def test_a_failure_of_another_line_is_another_kind() -> None:
    def on_two_lines(_: Any, key: str) -> None:
        if key in ("k1", "k2"):
            raise ValueError(key)
        if key in ("k3", "k4"):
            raise ValueError(key)

    run = Run(pipeline_of(on_two_lines))
    assert run().in_quarantine == 4
    assert [failure.key for failure in run.said] == ["k1", "k3"]


def test_kinds_of_failures_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.limits.FAILURE_KINDS", 3)

    def each_on_its_own(_: Any, key: str) -> None:
        if key != "k0":
            raise type(f"E{key}", (Exception,), {})

    run = Run(pipeline_of(each_on_its_own))
    assert run().in_quarantine == 39
    assert [failure.key for failure in run.said] == ["k1", "k2", "k3"]


@pytest.mark.parametrize("hook", ["ProcessRecord", "ProcessTimer"])
def test_a_hook_that_fails_for_all_of_the_first_keys_stops_the_run(hook: str) -> None:
    wrong = fails(ValueError)
    pipeline = pipeline_of(wrong) if hook == "ProcessRecord" else pipeline_of(passes, wrong)
    run = Run(pipeline)
    with pytest.raises(HooksFail, match=rf"Both\.{hook} has failed for the first 20 keys") as stopped:
        run()
    assert "quarantine" not in str(stopped.value), "what was run last is not kept, so none of it waits for a redrive"
    assert [failure.quarantined for failure in run.said] == [False]
    # Nothing of it is kept: with the hook mended all is as if it had been right from the start.
    after = Run(pipeline_of(passes), run.store)()
    assert (after.in_quarantine, after.finished) == (0, True)


@pytest.mark.parametrize(
    ("right", "keys", "first_failures", "stops"),
    [("k19", 40, 20, False), ("k5", 40, 20, False), ("", 19, 20, False), ("", 40, None, False), ("", 5, 5, True)],
)
def test_one_success_or_too_few_keys_or_the_setting_keep_it_going(
    right: str, keys: int, first_failures: int | None, stops: bool
) -> None:
    wrong = fails(ValueError, *{f"k{i}" for i in range(keys)} - {right})
    run = Run(pipeline_of(wrong, keys=keys, first_failures=first_failures, work_limit_records=1))
    if stops:
        with pytest.raises(HooksFail):
            run()
    else:
        assert run().in_quarantine == keys - bool(right)


def test_a_redrive_that_fails_again_is_said_and_stops_nothing() -> None:
    first = Run(pipeline_of(fails(ValueError), keys=25, first_failures=None))
    assert first().in_quarantine == 25
    for i in range(25):
        first.store.request_redrive("Both", f"k{i}")
    again = Run(pipeline_of(fails(KeyError), keys=25), first.store)
    assert again().in_quarantine == 25
    assert [(failure.redriven, failure.error.partition(":")[0]) for failure in again.said] == [(True, "KeyError")]


def test_the_run_stops_when_more_keys_fail_than_are_allowed() -> None:
    wrong = fails(ValueError, *(f"k{i}" for i in range(30)))
    run = Run(pipeline_of(wrong, keys=40, work_limit_records=1), quarantined=3)
    stopped = run()
    assert stopped.stopped.endswith("keys went into quarantine, 3 are allowed")
    assert not stopped.finished
    assert stopped.in_quarantine < 30
    # Those of earlier runs do not count: a run must go on for them to be redriven.
    assert Run(pipeline_of(passes, keys=40), run.store, quarantined=0)().finished


def test_the_run_stops_when_more_rows_are_rejected_than_are_allowed(caplog: pytest.LogCaptureFixture) -> None:
    rows = [("x" * (2_000 + i) if i % 2 else f"k{i}", i) for i in range(1, 101)]

    def pipeline() -> Pipeline:
        made = Pipeline("p")
        made.inject(IterableSource("rows", rows), into=texts)
        made.add(Passing, [subscribe(texts, key=str)])
        return made

    assert Run(pipeline(), rejected=49)().stopped == "50 rows are rejected, 49 are allowed"
    with caplog.at_level(logging.WARNING, "millwheel.injectors"):
        caplog.clear()
        progress = Run(pipeline(), rejected=50)()
    assert (progress.finished, progress.rejected) == (True, 50)
    assert [sum(kinds.values()) for kinds in progress.rejections.values()] == [50]
    assert len(progress.rejections["rows"]) == 1
    assert len(caplog.records) == 2  # the first one, and the tenth


Invocation = tuple[bool, list[tuple[str, bool]], list[str], bool, bool]
"""Whether it is of timers, (key, whether its hook fails), keys of which the other hook fails, and whether it lacks something
or redrives."""
KEYS = st.sampled_from("abcd")
INVOCATIONS = st.tuples(
    st.booleans(),
    st.lists(
        st.tuples(KEYS, st.sampled_from([True, True, True, False])),
        min_size=1,
        max_size=3,
        unique_by=lambda one: one[0],
    ),
    st.lists(KEYS, max_size=2),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([False, False, False, True]),
)


def entry(key: str, is_timer: bool) -> QuarantineEntry:
    if is_timer:
        return QuarantineEntry.of_timer(Timer(key, "t", 1, "watermark"), "ValueError")
    return QuarantineEntry(key, SubscriptionId(1), ProducerId(1), SequenceNumber(0), b"", 1, error="ValueError")


@settings(max_examples=200)
@given(st.lists(INVOCATIONS, max_size=8), st.integers(1, 3))
def test_a_hook_stops_the_run_when_it_has_failed_for_so_many_keys_and_never_succeeded(
    given: list[Invocation], limit: int
) -> None:
    spec = next(iter(pipeline_of(passes, first_failures=limit).graph().computations.values()))
    failures, failing, sound = Failures(lambda failure: None), {False: set[str](), True: set[str]()}, set[bool]()
    for is_timer, hooks, others, lacks, redrives in given:
        keys = [key for key, _ in hooks]
        failed = [entry(key, is_timer) for key, fails in hooks if fails]
        failed += [entry(key, not is_timer) for key in others if not is_timer]
        part = BundlePart(
            SubscriptionId(1), ProducerId(1), SequenceNumber(0), sequence_numbers(range(len(keys))), keys,
            [b""] * len(keys), [1] * len(keys),
        )  # fmt: skip
        timers = [Timer(key, "t", 1, "watermark") for key in keys]
        work = Work(
            [] if is_timer else [part], timers if is_timer else [], {}, {}, {}, 2, 2,
            redrive=[entry(key, is_timer) for key in keys] if redrives else [],
        )  # fmt: skip
        outcome = InvocationOutcome(quarantined=failed, lacking=[("a", "cell", None)] if lacks else [])
        said = failures.settle(spec, work, outcome)
        stops = False
        if not lacks and not redrives and is_timer not in sound:
            if any(not fails for _, fails in hooks):
                sound.add(is_timer)
            else:
                failing[is_timer] |= {*keys}
                stops = len(failing[is_timer]) >= limit
        assert said == (("ProcessTimer" if is_timer else "ProcessRecord") if stops else "")
