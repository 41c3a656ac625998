"""The authority of a simulated process: persisted before anybody hears of it, as `runtime.watermarks` does it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millwheel.core import events as ev
from millwheel.core.authority import Authority
from millwheel.testing.actor import Actor

if TYPE_CHECKING:
    from millwheel.testing.process import Process


class Watermarks:
    """One request at a time, like the loop of the embedded runtime."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._busy = False
        self.authority = Authority({}, {})
        """Another one after `load`."""

    def load(self) -> None:
        """Begin with what is persisted."""
        persisted: dict[str, int] = self._process.calls.call("watermarks", self._process.world.store.watermarks)
        self.authority = Authority(self._process.routes.senders(), persisted)

    def report(self, actor: Actor, value: int) -> None:
        """The effect of a core."""
        self._process.world.kernel.trace(f"p{self._process.number} i{actor.interval} reports {value}")
        self.authority.report(actor.owner, actor.interval, value)
        self.persist()

    def settled(self, actor: Actor) -> None:
        """The effect of a core."""
        self._tell(self.authority.settle(actor.interval))

    def persist(self) -> None:
        """Whatever has changed."""
        if self._busy:
            return
        changed = self.authority.changes()
        if not changed:
            return
        self._busy = True
        store = self._process.world.store
        self._process.calls.request(
            "persist", lambda: store.persist_watermarks(changed), lambda _: self._persisted(changed)
        )

    def _persisted(self, changed: dict[str, int]) -> None:
        self._busy = False
        self._tell(self.authority.adopt(changed))
        self.persist()

    def _tell(self, risen: dict[str, int]) -> None:
        for name, value in risen.items():
            for actor in self._process.intervals_of[name]:
                self._process.mail.post(actor, ev.WatermarkMoved(value), "watermark")
