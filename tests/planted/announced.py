"""Bugs of partitions that say when they have rows: rows wait, or each is a bundle of its own."""

from __future__ import annotations

from typing import Any

from millwheel.core.interval import events as ev
from millwheel.core.source.injector import InjectorCore
from millwheel.host.partitions import Partitions
from millwheel.runtime.shell import Shell
from millwheel.transport.push_queue import PushQueue
from tests.planted import Patches, only


@only(
    "tests/unit/core/source/test_injector_model.py"
    "::test_whatever_comes_first_the_store_and_the_watermark_know_what_is_acked_and_no_more"
)
def announced_during_a_read() -> Patches:
    """What a partition says while it is read is forgotten."""
    original = InjectorCore.handle

    def handle(self: InjectorCore, event: ev.Event, now: int) -> list[ev.Effect]:
        return [] if isinstance(event, ev.RowsAnnounced) and self._reading else original(self, event, now)

    return {(InjectorCore, "handle"): handle}


@only(
    "tests/unit/runtime/test_usercode.py::test_a_partition_that_says_when_it_has_rows_is_read_then_and_not_looked_at_before"
)
def heard_once() -> Patches:
    """What a partition says is heard once in a run."""

    def announce(self: Shell, host: Any, interval: Any) -> None:
        heard = self.__dict__.setdefault("_heard_once", set())
        if interval not in heard:
            heard.add(interval)
            original(self, host, interval)

    original = Shell._announce
    return {(Shell, "_announce"): announce}


@only("tests/unit/host/test_partitions.py::test_one_that_says_when_it_has_rows_is_read_then_but_not_for_each_row")
def no_rest() -> Patches:
    """A partition that says when it has rows is read for each of them."""
    return {(Partitions, "_still_rests"): lambda self, interval: 0}


@only("tests/unit/transport/test_push.py::test_what_clients_bring_is_read_when_it_comes")
def what_is_left_is_not_announced() -> Patches:
    """What a read of pushed records has left is not announced."""
    original = PushQueue.read

    def read(self: PushQueue, limit: int, limit_bytes: int) -> Any:
        wake, self.wake = self.wake, lambda: None
        try:
            return original(self, limit, limit_bytes)
        finally:
            self.wake = wake

    return {(PushQueue, "read"): read}
