"""What a worker says: to its cores, to other hosts, to its shell and to the operator.

Lives here: the effects of one event, in order, and who is there to be told.  Never here: why something is said.  Invariant:
what the controller must know is said again to whoever decides next, and after a cut.
"""

from __future__ import annotations

from millwheel.core.interval import events as ev
from millwheel.host import alphabet as he
from millwheel.host.actors import Actor
from millwheel.host.messages import Message, WatermarkReport
from millwheel.host.reports import Reports
from millwheel.host.restated import Restated
from millwheel.ids import IntervalId


class Voice:
    """The part of a worker that speaks.  `name` is its own address, `controller` that of the controller."""

    def __init__(self, name: str, controller: str | None) -> None:
        self.name = name
        self.now = 0
        self._controller = controller
        """None: there is none at the moment."""
        self._peers: tuple[str, ...] = (name,)
        """Workers, this one included."""
        self._restated = Restated()
        """What the controller must hear again after a cut."""
        self._reports: Reports | None = None
        """Of watermarks, when the controller is another process; else each is told at once."""
        self._out: list[he.HostEffect] = []

    def tell(self, actor: Actor, event: ev.Event) -> None:
        """Give a core an event, after what is queued."""
        self._out.append(he.Post(he.Told(actor.interval, actor.sequencer, event)))

    def inform(self, message: Message) -> None:
        """Send a message to the controller."""
        self._restated.note(message)
        self.answer(message)

    def answer(self, message: Message) -> None:
        """Tell the controller something that nobody needs to hear again."""
        if self._controller is not None:
            if self._reports is not None:
                self._tell_reports(self._controller, self._reports.all())
            self._out.append(he.Tell(self._controller, message))

    def report(self, report: WatermarkReport) -> None:
        """Tell the controller how far an interval has come, now or soon."""
        self._restated.note(report)
        if self._controller is None:
            return
        before = [report] if self._reports is None else self._reports.add(report)
        self._tell_reports(self._controller, before)

    def gather_reports(self, rest_us: int) -> None:
        """From now on reports wait up to `rest_us` for others."""
        self._reports = Reports(rest_us)

    def _report_when_due(self) -> None:
        if self._reports is None or self._controller is None:
            return
        self._tell_reports(self._controller, self._reports.due(self.now))
        at = self._reports.next()
        if at is not None:
            self._out.append(he.WakeAt(at))

    def _tell_reports(self, controller: str, reports: list[WatermarkReport]) -> None:
        self._out += [he.Tell(controller, report) for report in reports]

    def _restate(self, controller: str) -> None:
        """Say everything again, which has the newest report of each interval."""
        if self._reports is not None:
            self._reports.all()
        self._out += [he.Tell(controller, message) for message in self._restated.all()]

    def say(self, peer: str, message: Message) -> None:
        """Send a message to one host."""
        self._out.append(he.Tell(peer, message))

    def announce(self, message: Message) -> None:
        """Send a message to every worker."""
        self._out += [he.Tell(peer, message) for peer in self._peers]

    def note(self, text: str, about: Actor | None = None, info: bool = False) -> None:
        """Tell the operator, or with `info` one that looks closely."""
        facts: dict[str, str | int] = {}
        if about is not None:
            facts = {"computation": about.owner, "interval": about.interval, "sequencer": about.sequencer}
        self._out.append(he.Notice(text, info, facts))

    def fail(self, error: Exception) -> None:
        """End the run by an error."""
        self._out.append(he.Failed(error))

    def end(self) -> None:
        """The run is over."""
        self._out.append(he.Ended())

    def wake(self, delay_us: int) -> None:
        """Have a look again after so long."""
        self._out.append(he.WakeAt(self.now + delay_us))

    def reach(self, addresses: dict[str, str]) -> None:
        """Where the hosts of other processes are."""
        self._out.append(he.Reach(addresses))

    @property
    def peers(self) -> tuple[str, ...]:
        """All live workers that this one knows, itself included."""
        return self._peers

    @property
    def controller(self) -> str | None:
        """Who decides, as far as this worker knows."""
        return self._controller

    def obey(self, controller: str | None) -> None:
        """A controller begins to decide, and has to hear everything; None: nobody decides."""
        self._controller = controller
        if controller is not None:
            self._restate(controller)

    def hush(self, owner: str, interval: IntervalId) -> None:
        """Nothing more is said of an interval."""
        self._restated.forget(owner, interval)
        if self._reports is not None:
            self._reports.forget(owner, interval)

    def forget_source(self, name: str) -> None:
        """Another worker speaks for a source."""
        self._restated.forget_source(f"source:{name}")
        if self._reports is not None:
            self._reports.forget_owner(f"source:{name}")

    def _asked(self, ask: he.Ask) -> None:
        self._out.append(ask)
