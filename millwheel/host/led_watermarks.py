"""The watermarks of a cluster: what their leader knows in one term, and under snapshots of one set of owners.

Lives here: how a leader becomes the authority on watermarks, what it tells workers of them, and what it forgets.  Never here:
the values (`core.authority`), who may speak for what (`standing`), or changes of the map (`leading`).  Invariants:

* nobody hears of a watermark before it is durable, except under snapshots (`controller`);
* what a leader knows it has read since it leads, or workers have said it since;
* the authority, its rounds and its epochs are of the same owners: they begin together and are forgotten together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from millwheel import limits
from millwheel.cluster import ClusterMap
from millwheel.core.authority import Authority
from millwheel.host import alphabet as he
from millwheel.host.controller import heed
from millwheel.host.generations import Generation, generation_of
from millwheel.host.led_epochs import LedEpochs
from millwheel.host.messages import (
    Claimed,
    Disowned,
    EpochDeclared,
    EpochOpened,
    EpochWanted,
    ImageWritten,
    IntervalSettled,
    Led,
    Message,
    RoundAnswered,
    RoundAsked,
    WatermarkReport,
    WatermarksRaised,
    WorkerJoined,
)
from millwheel.host.procedures import Steps
from millwheel.host.requests import PersistLedWatermarks, ReadMap, ReadWatermarks
from millwheel.host.rounds import Rounds
from millwheel.host.standing import Standing
from millwheel.ids import IntervalId
from millwheel.ports import WatermarkWrite


class LedWatermarks:
    """The watermarks of a controller: it is their authority while it leads.

    Under snapshots there is one every `every_us`, and the store hears of it if it is `durable`.
    """

    def __init__(
        self,
        *,
        every_us: int,
        durable: bool,
        begin: Callable[[Steps], None],
        tell: Callable[[Iterable[str], Message], None],
        workers: Callable[[], list[str]],
        disowned: Callable[[], None],
        declared: Callable[[], None],
        deposed: Callable[[], None],
    ) -> None:
        """`workers` are those that live, by their names on channels.  The others are called when an owner's word was refused,
        when an epoch is declared, and when another controller leads."""
        self._every_us, self._durable = every_us, durable
        self._begin, self._tell, self._workers = begin, tell, workers
        self._on_disowned, self._on_declared, self._on_deposed = disowned, declared, deposed
        self._now = 0
        self._map: ClusterMap | None = None
        self._persisting: Authority | None = None
        # Of the term.
        self.term: int | None = None
        """The epoch of this leader.  None: another one leads."""
        self._authority: Authority | None = None
        self._rounds: Rounds | None = None
        """Of loops, once there is an authority."""
        self._loading = False
        self._early: list[tuple[str, Message]] = []
        """What workers have said before the stored watermarks were read."""
        self._standing = Standing()
        self._generation: Generation | None = None
        """Under snapshots: the owners of which the authority and the epochs are."""
        self._epochs: LedEpochs | None = None
        self._joined: tuple[str, WorkerJoined] | None = None
        """The last worker that has said who sends to whom."""

    # --- terms ------------------------------------------------------------------------------------------------

    def lead(self, term: int) -> None:
        """A term begins, and nothing is known yet."""
        self.term = term

    def forget(self) -> None:
        """The term is over: whatever was known in it is void."""
        self.term, self._authority, self._loading = None, None, False
        self._generation, self._joined = None, None
        self._end_rounds()
        self.end_epochs()
        self._early, self._standing = [], Standing()

    def _renew(self, found: ClusterMap) -> None:
        """Under snapshots, what was known of watermarks is void when all goes back."""
        shown = generation_of(found)
        if shown == self._generation:
            return
        self._generation, self._authority, self._loading = shown, None, False
        self._end_rounds()
        self.end_epochs()
        self._standing = Standing()
        if self._joined is not None and self._joined not in self._early:
            self._early.insert(0, self._joined)

    def end_epochs(self) -> None:
        """No epoch begins any more, and none is declared."""
        if self._epochs is not None:
            self._epochs.end()
        self._epochs = None

    def _end_rounds(self) -> None:
        """Their intervals have other owners, and the next ones may have lower numbers."""
        if self._rounds is not None:
            self._rounds.end()
        self._rounds = None

    # --- what is heard ----------------------------------------------------------------------------------------

    def clock(self, now: int) -> None:
        """The wall time is `now`, us."""
        self._now = now
        if self._epochs is not None:
            self._epochs.now = now

    def hear(self, peer: str, message: Message) -> None:
        """A worker says something about watermarks, or who sends to whom."""
        if self._authority is not None:
            self._heed(self._authority, peer, message)
            return
        if isinstance(message, WorkerJoined):
            self._joined = (peer, message)
        self._early.append((peer, message))
        self.load_if_due()

    def _heed(self, authority: Authority, peer: str, message: Message) -> None:
        if isinstance(message, WorkerJoined):
            self._joined = (peer, message)
            if peer in self._serving():
                self._tell([peer], self._raised(authority.values(), authority.inputs()))
        admitted = self._standing.admit(peer, message)
        if admitted is None or self._rounds is None:
            return
        if isinstance(admitted, WatermarkReport | RoundAnswered):
            self._passed(authority, admitted.label)
        if isinstance(admitted, RoundAnswered):
            self._rounds.answered(admitted)
            return
        risen = heed(authority, admitted)
        if risen:
            self._tell(self._serving(), self._raised({}, risen))
        if isinstance(admitted, Claimed | IntervalSettled):
            self._rounds.hurry()

    def _passed(self, authority: Authority, label: int) -> None:
        """What is heard comes from behind the barrier `label`: what was reached before is told, and stored with its epoch."""
        if self._epochs is not None and label > self._epochs.label:
            self._tell_changes(authority)
            self._epochs.reported(label)

    def hear_of_epochs(self, peer: str, message: EpochOpened | ImageWritten | EpochWanted) -> None:
        """What comes before there are epochs is said again when one begins."""
        if self._epochs is None or peer not in self._serving():
            return
        match message:
            case EpochOpened():
                self._epochs.begun(peer, message)
            case ImageWritten():
                self._epochs.written(message)
            case EpochWanted():
                self._epochs.wanted(message)

    # --- the map ----------------------------------------------------------------------------------------------

    def follow(self, found: ClusterMap) -> None:
        """The map is `found`."""
        self._map = found
        if self.term is None:
            return
        if self._every_us:
            self._renew(found)
        if self._authority is not None:
            self._adjust(self._authority, found)
        self._standing.resume()

    def _adjust(self, authority: Authority, found: ClusterMap) -> None:
        """Every interval of the map is expected, whoever owns it.  One with another owner holds until that has reported."""
        anew, gone = self._standing.follow(found)
        for name, interval, sequencer in anew:
            authority.expect(name, interval, sequencer)
            authority.hold(name, interval)
        for name, interval in gone:
            authority.retire(name, interval)
        if (anew or gone) and self._rounds is not None:
            self._rounds.hurry()

    def suspend(self, intervals: Iterable[IntervalId], sources: Iterable[str]) -> None:
        """Nobody's word on them counts until the map is read again: they are being placed."""
        self._standing.suspend(intervals, sources)

    # --- the authority ----------------------------------------------------------------------------------------

    def load_if_due(self) -> None:
        """Become the authority when the map is known, and a worker has said who sends to whom."""
        joined = [message for _, message in self._early if isinstance(message, WorkerJoined)]
        placed = not self._every_us or self._generation is not None
        if joined and placed and self._map is not None and not self._loading:
            self._loading = True
            self._begin(self._load(joined[0], self.term))

    def _load(self, joined: WorkerJoined, term: int | None) -> Steps:
        generation = self._generation
        found: ClusterMap = yield ReadMap()  # read since this one leads: nobody else declares an epoch any more
        stored: dict[str, int] = yield ReadWatermarks()
        if self.term is None or term != self.term or self._map is None or generation != self._generation:
            return
        authority = self._authority = Authority(joined.senders, stored, joined.loops, joined.shares)
        # Workers know the numbers of earlier leaders' rounds: those of this one are larger.
        self._rounds = Rounds(authority, self._begin, self._ask_round, self.term << 32)
        self._adjust(authority, self._map)
        if generation is not None:
            self._begin_epochs(generation, authority, found.declared, self.term)
        early, self._early = self._early, []
        for peer, message in early:
            self._heed(authority, peer, message)
        self._tell(self._serving(), self._raised(authority.values(), authority.inputs()))
        self._rounds.hurry()

    def _ask_round(self, question: RoundAsked) -> None:
        self._tell(self._serving(), question)

    # --- what workers are told --------------------------------------------------------------------------------

    def _serving(self) -> list[str]:
        """Workers that hear of watermarks.  Under snapshots one that owns nothing hears of none: when it gets something, all
        has gone back."""
        if not self._every_us:
            return self._workers()
        return [] if self._generation is None else [f"w{owner}" for owner in sorted(self._generation.members)]

    def welcome(self, peer: str) -> None:
        """A worker may not know what was told, and what it has said may be lost."""
        if self.term is not None:
            self._tell([peer], Led(self.term))
        if self._authority is not None and peer in self._serving():
            self._tell([peer], self._raised(self._authority.values(), self._authority.inputs()))
        for message in self._epochs.restate() if self._epochs is not None and peer in self._serving() else ():
            self._tell([peer], message)

    def _raised(self, values: Mapping[str, int], inputs: Mapping[str, int]) -> WatermarksRaised:
        return WatermarksRaised(dict(values), dict(inputs), 0 if self._epochs is None else self._epochs.label)

    def _tell_changes(self, authority: Authority) -> None:
        """Under snapshots a watermark is told when it is reached, and stored with an epoch."""
        changed = authority.changes()
        if changed:
            self._tell(self._serving(), self._raised(changed, authority.adopt(changed)))
            if self._rounds is not None:
                self._rounds.hurry()

    def persist(self) -> None:
        """Store watermarks that have risen, and tell them; under snapshots tell them at once."""
        authority = self._authority
        if self._every_us:
            if authority is not None and self.term is not None and self._epochs is not None:
                self._tell_changes(authority)
        elif authority is not None and self.term is not None and authority.changed() and self._persisting is None:
            self._persisting = authority
            self._begin(self._persist_all(authority, self.term))

    def _persist_all(self, authority: Authority, term: int) -> Steps:
        while self._authority is authority and authority.changed():
            changed = authority.changes()
            if not changed:
                continue
            writes = [WatermarkWrite(name, value, authority.owners(name)) for name, value in changed.items()]
            kept: set[str] | None = yield PersistLedWatermarks(term, writes)
            if kept is None and self.term == term:
                self._on_deposed()
            if kept is None or self._authority is not authority:
                break
            self._persisted(authority, writes, kept)
            yield he.Pause(limits.PERSIST_DELAY_US)
        self._persisting = None

    def _persisted(self, authority: Authority, writes: list[WatermarkWrite], kept: set[str]) -> None:
        for write in writes:
            if write.name not in kept:
                authority.refused(write.name)
                self._tell(self._workers(), Disowned(tuple(sorted(write.owners.items()))))
                self._on_disowned()
        durable = {write.name: write.value for write in writes if write.name in kept}
        self._tell(self._workers(), WatermarksRaised(durable, authority.adopt(durable)))
        if self._rounds is not None:
            self._rounds.hurry()

    # --- epochs -----------------------------------------------------------------------------------------------

    def _begin_epochs(self, generation: Generation, authority: Authority, declared: int, term: int) -> None:
        self._epochs = LedEpochs(
            workers=self._serving(), owners={interval: sequencer for interval, _, sequencer in generation.owners},
            term=term, every_us=self._every_us, begin=self._begin,
            tell=self._tell_of_epochs, values=authority.values, durable=self._durable,
        )  # fmt: skip
        self._epochs.now = self._now
        self._epochs.based(declared)

    def _tell_of_epochs(self, message: Message) -> None:
        self._tell(self._serving(), message)
        if isinstance(message, EpochDeclared):
            self._on_declared()

    def hasten(self) -> None:
        """An epoch is to begin at once, if there are any."""
        if self._epochs is not None:
            self._epochs.wanted(EpochWanted(self._epochs.declared))

    @property
    def resting(self) -> bool:
        """Whether there are epochs, and none runs."""
        return self._epochs is not None and self._epochs.resting

    def declared(self, found: ClusterMap) -> int:
        """The last declared epoch, by the map `found` while there are none here."""
        return found.declared if self._epochs is None else self._epochs.declared
