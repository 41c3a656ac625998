"""Questions to a service outside, such as one behind HTTP, while other records go on.

Lives here: `Service`, the threads that ask it, and the operator that waits for answers.  Never here: a client of any
protocol.  Invariant: each record has one `Reply`, at its own event time, and the watermark waits for it; the question may be
asked more than once.

A record waits in the state of its key, which has one question under way at a time.  Threads ask, so that no hook does.  A
wall timer of the key looks whether the answer is there.  What threads know is soft: after a crash the timer finds nothing,
and asks again.  When many questions wait, no more records are taken until fewer do.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, Generic, NamedTuple, TypeVar
from zlib import crc32

import msgspec

from millwheel.api.context import Context
from millwheel.api.state import MapCell, ValueCell
from millwheel.coders import Coder, JsonCoder, MsgpackCoder
from millwheel.errors import WiringError
from millwheel.library.durations import Duration, duration
from millwheel.library.matches import FieldsCoder
from millwheel.library.wiring import Operation, Operator, Wiring
from millwheel.limits import (
    SERVICE_FIRST_GUESS_S,
    SERVICE_FORGET_US,
    SERVICE_KEPT_ANSWERS,
    SERVICE_LONGEST_LOOK_US,
    SERVICE_LONGEST_PAUSE_US,
    SERVICE_SHORTEST_LOOK_US,
    SERVICE_SPREAD,
    SERVICE_WAITING,
)
from millwheel.model import MIN_TIME, SECOND, Record, Timer

T = TypeVar("T")
R = TypeVar("R")

LOOK = "look"
"""The tag of a key's timer."""


class Reply(msgspec.Struct, Generic[T, R], frozen=True, array_like=True):
    """A value, and what the service has answered; None, with the text of the last `error`, when no attempt has succeeded."""

    value: T
    answer: R | None
    error: str
    attempts: int


class Service(Generic[R]):
    """`client` makes a function that answers a value, one for each process; threads call it, up to `at_once` at a time.

    An attempt that raises is made again, up to `attempts` in all: `pause` after the first, twice that after the second, and
    so on up to a minute.  The function must return: give its client a time limit.  If it has a `close`, that is called when
    the run ends.  `at_once=0` asks inside the hook, which is for tests.
    """

    def __init__(
        self,
        client: Callable[[], Callable[[Any], R]],
        answer_type: type[R],
        *,
        at_once: int = 16,
        attempts: int = 5,
        pause: Duration = SECOND,
    ) -> None:
        if not callable(client):
            raise WiringError(f"Service({client!r:.80}, ...): give a function that makes a client")
        for what, number, least in (("at_once", at_once, 0), ("attempts", attempts, 1)):
            if type(number) is not int or number < least:
                raise WiringError(f"Service({what}={number!r:.80}): give a whole number, at least {least}")
        self.client = client
        self.answer_type = answer_type
        self.at_once = at_once
        self.attempts = attempts
        self.pause_us = duration(pause, "the pause after a failed attempt")


class Question(msgspec.Struct, frozen=True, array_like=True):
    """A value that waits for its answer, its event time, and how often it was asked about in vain."""

    value: Any
    time: int
    failed: int
    error: str


class Attempt(NamedTuple):
    """What an attempt came to: an answer, or the text of an error."""

    answer: Any
    error: str = ""


class Askers(Generic[R]):
    """Threads that ask, and what they have heard, by key and question.

    They do not keep a process alive: one that waits for an answer may end at any moment.
    """

    def __init__(self, service: Service[R]) -> None:
        self._ask = service.client()
        self._threads = service.at_once
        self._tasks: SimpleQueue[tuple[tuple[str, str], Any] | None] = SimpleQueue()
        self._heard: dict[tuple[str, str], Attempt | None] = {}
        self._usual_s = SERVICE_FIRST_GUESS_S
        for number in range(self._threads):
            Thread(target=self._work, name=f"millwheel-asker-{number}", daemon=True).start()

    def outcome(self, key: str, question: str) -> Attempt | None:
        """What came of it; None while it is not known."""
        return self._heard.get((key, question))

    def forget(self, key: str, question: str) -> None:
        """What came of it is used.  A hook that fails before must find it again, or it would ask for ever."""
        self._heard.pop((key, question), None)

    def ask(self, key: str, question: str, value: Any) -> None:
        """Begin, unless it is under way."""
        task = (key, question)
        if task in self._heard:
            return
        if not self._threads:
            self._heard[task] = self._attempt(value)
            return
        self._heard[task] = None
        if len(self._heard) > SERVICE_KEPT_ANSWERS:  # another process has this key now, perhaps
            for old in [each for each, heard in self._heard.copy().items() if heard is not None]:
                self._heard.pop(old, None)
        self._tasks.put((task, value))

    def wait_us(self) -> int:
        """When to look for an answer that was just asked for: what it takes, and what waits in front of it."""
        if not self._threads:
            return 0
        rounds = 1 + self._tasks.qsize() // self._threads
        return min(max(round(self._usual_s * rounds * 1_000_000), SERVICE_SHORTEST_LOOK_US), SERVICE_LONGEST_LOOK_US)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            named, value = task
            began = monotonic()
            self._heard[named] = self._attempt(value)
            self._usual_s += (monotonic() - began - self._usual_s) / 16

    def _attempt(self, value: Any) -> Attempt:
        try:
            return Attempt(self._ask(value))
        except Exception as error:
            return Attempt(None, f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """The run ends; what is under way is not waited for."""
        for _ in range(self._threads):
            self._tasks.put(None)
        close = getattr(self._ask, "close", None)
        if close is not None:
            close()


class Backlog:
    """How many questions wait, by key, as this process has seen it last.

    Of a key that goes to another process nobody tells.  It counts no more when it was not seen for a while.
    """

    def __init__(self) -> None:
        self._keys: dict[str, tuple[int, int]] = {}
        """How many, and when that was seen; the key that was seen last is the last."""
        self.size = 0

    def note(self, key: str, count: int, now_us: int) -> None:
        """So many questions of a key wait, by the clock at `now_us`."""
        self.size += count - self._keys.pop(key, (0, 0))[0]
        if count:
            self._keys[key] = (count, now_us)
        while self._keys:
            oldest, (waiting, seen_us) = next(iter(self._keys.items()))
            if now_us - seen_us < SERVICE_FORGET_US:
                break
            del self._keys[oldest]
            self.size -= waiting


class Calling(Operator[Reply[T, R]], Generic[T, R]):
    """Holds the watermark at the oldest value of a key that has no answer yet."""

    waiting: MapCell[Question]
    """In the order of their event times."""
    first = ValueCell[str](JsonCoder(str), default="")
    """The entry of the one that is asked about; empty when none waits."""
    again_us = ValueCell[int](JsonCoder(int), default=0)
    """Until when the key pauses, of wall time."""
    count = ValueCell[int](JsonCoder(int), default=0)
    """Of the values that wait."""

    def __init__(self, wiring: Wiring[Reply[T, R]], service: Service[R]) -> None:
        super().__init__(wiring)
        self._service = service
        self._backlog = Backlog()

    def setup(self) -> None:
        """Threads begin."""
        self._askers = Askers(self._service)

    def has_room(self) -> bool:
        """Whether not too many questions wait in this process."""
        return self._backlog.size < SERVICE_WAITING

    def teardown(self) -> None:
        """And end, each when its attempt has."""
        self._askers.close()

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        """Wait; the timer of the key is set while a value waits."""
        taken = self.inputs.take(context.stream, record.key, record.value)
        for place, (_, value) in enumerate(taken):
            entry = _entry(record, place)
            self.waiting.set(entry, Question(value, record.timestamp, 0, ""))
            first = self.first.get()
            if not first or entry < first:
                self._begin(context, entry, record.timestamp)
            if not first:
                self._ask(context, entry, value)
        self._wait(context, self.count.get() + len(taken))

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        """Look what came of it; then ask again, or about the next one."""
        entry, pauses_us = self.first.get(), self.again_us.get() - context.wall_time
        question = self.waiting.get(entry)
        outcome = self._askers.outcome(context.key, entry)
        if question is None:
            return
        self._backlog.note(context.key, self.count.get(), context.wall_time)
        if outcome is not None:
            self._end(context, entry, question, outcome)
        elif pauses_us > 0:
            context.set_timer(LOOK, context.wall_time + pauses_us, "wall")
        else:
            self._ask(context, entry, question.value)

    def _ask(self, context: Context, entry: str, value: T) -> None:
        self._askers.ask(context.key, entry, value)
        context.set_timer(LOOK, context.wall_time + self._askers.wait_us(), "wall")

    def _wait(self, context: Context, count: int) -> None:
        """So many values of the key wait."""
        if count:
            self.count.set(count)
        else:
            self.count.clear()
        self._backlog.note(context.key, count, context.wall_time)

    def _begin(self, context: Context, entry: str, time: int) -> None:
        self.first.set(entry)
        context.hold(time)

    def _end(self, context: Context, entry: str, question: Question, outcome: Attempt) -> None:
        failed = question.failed + bool(outcome.error)
        if outcome.error and failed < self._service.attempts:
            self.waiting.set(entry, Question(question.value, question.time, failed, outcome.error))
            self.again_us.set(context.wall_time + self._pause_us(context.key, failed))
            context.set_timer(LOOK, self.again_us.get(), "wall")
            self._askers.forget(context.key, entry)
            return
        attempts = failed + (not outcome.error)
        self.emit(context, Reply(question.value, outcome.answer, outcome.error, attempts), question.time)
        self._askers.forget(context.key, entry)
        self.waiting.delete(entry)
        self._wait(context, self.count.get() - 1)
        self.again_us.clear()
        following = next(iter(self.waiting.items()), None)
        if following is None:
            self.first.clear()
            context.release_hold()
        else:
            self._begin(context, following[0], following[1].time)
            self._ask(context, following[0], following[1].value)

    def _pause_us(self, key: str, failed: int) -> int:
        """Of keys that fail together, not all ask again together."""
        pause_us = min(self._service.pause_us << min(failed - 1, 32), SERVICE_LONGEST_PAUSE_US)
        return pause_us - round(pause_us * SERVICE_SPREAD * crc32(f"{key}/{failed}".encode()) / 2**32)


def _entry(record: Record[Any], place: int) -> str:
    """Unlike any other one, also in other processes and runs, and in the order of event times."""
    return f"{record.timestamp - MIN_TIME:020d}.{record.id.producer}.{record.id.sequence}.{place}"


def ask(service: Service[R], coder: Coder[T]) -> Operation[Reply[T, R]]:
    """The operation of `KeyedChain.call`."""
    answer: Coder[Any] = MsgpackCoder(service.answer_type)
    made: Any = type("Calling", (Calling,), {"waiting": MapCell[Any](FieldsCoder(Question, {"value": coder}))})
    output = FieldsCoder(Reply, {"value": coder, "answer": answer})
    return Operation(kind="call", make=lambda wiring: made(wiring, service), output=output)
