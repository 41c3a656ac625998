"""Keys of one interval in quarantine: what goes into their FIFOs instead of to user code, and how it comes out again.

Lives here: which keys are in quarantine, what is on its way into a FIFO, which redrives were asked for, and what they run
next.  Never here: checkpoints, or why a record must not run (`refused`, `suspects`).  Invariants:

* what arrives for a key in quarantine goes to the end of its FIFO;
* a key is released in a checkpoint after which its FIFO is empty, and not while anything is on its way into the FIFO;
* the cost of a redrive grows with the elements that it runs, and not with the keys that wait beside them;
* timers of a key in quarantine sleep.  With `keeps_hold`, the key holds the watermark at the oldest of what waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import islice, takewhile

import msgspec

from millwheel import limits
from millwheel.bundles import HoldWrites, QuarantineEntry
from millwheel.core.faults.refused import RefusedRows
from millwheel.core.faults.suspects import Suspects
from millwheel.core.keys.keyed_state import KeyedState
from millwheel.ids import Seq
from millwheel.model import MAX_TIME, Timer
from millwheel.work import QUARANTINE_HOLD, BundlePart, InvocationOutcome, Work, cause_of


class Quarantine:
    """The quarantine of one interval.  It shares what the interval knows of its keys and of culprits."""

    def __init__(
        self,
        *,
        keys: Iterable[str],
        refused: RefusedRows,
        suspects: Suspects,
        keyed: KeyedState,
        keeps_hold: bool,
    ) -> None:
        self.keys = {*keys}
        self._refused = refused
        self._suspects = suspects
        self._keyed = keyed
        self._keeps_hold = keeps_hold
        self._written: dict[str, int] = {}
        """Seq of the newest checkpoint that changes a key's FIFO."""
        self._folded = 0
        self._diverted: list[QuarantineEntry] = []
        self._released: dict[str, None] = {}
        self._releasing: dict[str, int] = {}
        """Keys whose release is not folded yet, so that the request is still there, and the seq of the release."""
        self._opened = 0
        self._asked: dict[str, None] = {}
        """Keys to redrive, in turn."""
        self._redriving: dict[str, int] = {}
        """Keys whose FIFOs are being read or run, with the newest checkpoint that had changed them when they were read."""
        self._fetched: list[QuarantineEntry] = []
        """What has been read of them and runs next."""
        self._whole: set[str] = set()
        """Those of them of which that is all."""
        self._width = limits.REDRIVE_KEYS
        """Keys to read at once: fewer where their FIFOs are long."""

    def start(self) -> None:
        """Begin, once the interval is restored: keys in quarantine sleep, and redrives that a refusal broke off go on."""
        for key in self.keys:
            self._sleep(key)
        self._asked.update(dict.fromkeys(key for key in self._refused.stopped() if key in self.keys))

    def guards(self) -> bool:
        """Whether an invocation must be looked through before it runs."""
        return bool(self.keys or self._refused or self._suspects)

    def has_culprits(self) -> bool:
        """Whether any record or timer must not run, by its name."""
        return bool(self._refused or self._suspects)

    def busy(self) -> bool:
        """A redrive is under way, or is going to be."""
        return bool(self._asked or self._redriving)

    # --- in -----------------------------------------------------------------------------------------------------

    def divert(self, work: Work) -> Work:
        """`work` without the records and timers of quarantined keys, which go to their FIFOs instead.

        A record or timer that must not run for another reason goes there too: its row was refused, or it ended processes.
        Then everything else of its key in this invocation follows it.
        """
        if work.redrive:
            return work
        stopped: set[str] = set()
        timers = self._divert_timers(work, stopped) if work.timers else []
        parts = [self._divert_part(part, stopped) for part in work.parts]
        return msgspec.structs.replace(work, parts=parts, timers=timers)

    def _divert_timers(self, work: Work, stopped: set[str]) -> list[Timer]:
        kept, back = [], []
        for timer in work.timers:
            if timer.key in stopped:
                back.append(timer)
            elif not self._diverts(QuarantineEntry.of_timer(timer), stopped):
                kept.append(timer)
        for timer in back:  # it stays pending, and sleeps once its key is in quarantine
            self._keyed.put_back(timer)
            work.timers.remove(timer)
        return kept

    def _diverts(self, entry: QuarantineEntry, stopped: set[str]) -> bool:
        """Whether a record or timer is for the quarantine; `stopped` are keys that this invocation sends there."""
        if entry.key not in self.keys and entry.key not in stopped:
            answer = self._refused.answer(cause_of(entry)) or self._suspects.answer(entry)
            if answer is None:
                return False
            entry = msgspec.structs.replace(entry, error=answer)
            stopped.add(entry.key)
        self._diverted.append(entry)
        return True

    def _divert_part(self, part: BundlePart, stopped: set[str]) -> BundlePart:
        keys = part.keys
        if self.keys.isdisjoint(keys) and self._refused.untouched(keys) and self._suspects.untouched(keys):
            return part
        sub, producer = part.subscription, part.producer
        columns = zip(keys, part.sequences, part.values, part.timestamps, strict=True)
        kept = [
            i
            for i, (key, sequence, value, at) in enumerate(columns)
            if not self._diverts(QuarantineEntry(key, sub, producer, sequence, value, at), stopped)
        ]
        return BundlePart(
            sub, producer, part.frontier,
            [part.sequences[i] for i in kept], [keys[i] for i in kept],
            [part.values[i] for i in kept], [part.timestamps[i] for i in kept],
        )  # fmt: skip

    def stopping(self, failed: Sequence[QuarantineEntry]) -> set[str]:
        """Keys that the next checkpoint puts in quarantine: of what `failed` and what was diverted."""
        return {entry.key for entry in (*failed, *self._diverted)} - self.keys

    def take_diverted(self) -> list[QuarantineEntry]:
        """What was kept from running, for the next checkpoint."""
        diverted, self._diverted = self._diverted, []
        return diverted

    def put(self, entries: list[QuarantineEntry], seq: Seq, work: Work, holds: HoldWrites) -> None:
        """Checkpoint `seq` puts `entries` into their FIFOs; `holds` are what it writes of holds."""
        for entry in entries:
            if entry.key not in self.keys:
                self.keys.add(entry.key)
                self._sleep(entry.key)
                self._opened += 1
            self._written[entry.key] = seq
            # A wall timer may produce records as old as the watermark under which it was started.
            self._hold(entry.key, work.watermark if entry.kind == "wall" else entry.timestamp, holds)
        for entry in {entry.key: entry for entry in reversed(work.redrive)}.values():  # the first of each key
            self._hold(entry.key, entry.timestamp, holds)

    def _sleep(self, key: str) -> None:
        """Put the timers of a key in quarantine to sleep, and its hold as well unless the setting keeps it."""
        self._keyed.sleep(key, self._keeps_hold)

    def _hold(self, key: str, at: int, holds: HoldWrites) -> None:
        """A quarantine that holds the watermark does so at the oldest of what waits in it, sleeping timers included."""
        if not self._keeps_hold or key not in self.keys:
            return
        at = min([at, MAX_TIME - 1, *(at for (kind, _), at in self._keyed.timers.of(key) if kind == "watermark")])
        name = quarantine_hold(key)
        if at < self._keyed.holds.counting(name):
            self._keyed.hold(name, at, holds)

    def take_opened(self) -> int:
        """How many keys went into quarantine since the last call."""
        opened, self._opened = self._opened, 0
        return opened

    # --- out ----------------------------------------------------------------------------------------------------

    def ask(self, keys: Iterable[str], now: int) -> None:
        """A user asked for the redrive of `keys`, perhaps not for the first time."""
        for key in keys:
            self._refused.may_redrive(key, now)
            if key not in self.keys:
                # An earlier owner emptied the FIFO and died before the release, so its hold and the request are left.
                if key not in self._releasing:
                    self._released[key] = None
            elif key not in self._redriving:
                self._asked[key] = None

    def next(self) -> list[str]:
        """Keys whose FIFOs are to be read now, in ascending order."""
        if self._redriving:
            return []
        width = 1 if self._suspects.some else self._width  # a suspect runs alone
        keys = sorted(takewhile(self._in_tables, islice(self._asked, width)))
        for key in keys:
            del self._asked[key]
            self._redriving[key] = self._written.get(key, 0)
        return keys

    def _in_tables(self, key: str) -> bool:
        """Whether all that has gone into, or out of, the FIFO of `key` is folded."""
        return self._written.get(key, 0) <= self._folded

    def waits_for_fold(self) -> bool:
        """True when what has gone into, or out of, the next FIFO is not in the tables yet."""
        return not self._redriving and not all(map(self._in_tables, islice(self._asked, 1)))

    def fetched(self, entries: Sequence[QuarantineEntry], more: bool) -> None:
        """Take the first elements of the FIFOs that were read.  They run next; keys whose FIFO is empty are released."""
        found: dict[str, list[QuarantineEntry]] = {}
        for entry in entries:
            found.setdefault(entry.key, []).append(entry)
        last = entries[-1].key if more else None
        unread = [key for key in self._redriving if last is not None and key > last]
        for key in unread:
            del self._redriving[key]
            self._asked[key] = None
        self._width = max(1, len(self._redriving)) if unread else min(2 * self._width, limits.REDRIVE_KEYS)
        self._whole.clear()
        for key in [*self._redriving]:
            self._plan(key, found.get(key, []), whole=key != last)

    def _plan(self, key: str, entries: list[QuarantineEntry], whole: bool) -> None:
        """Decide what is done with the first elements of a FIFO, which are all of it if `whole`."""
        first = self._suspects.before_condemned(self._refused.before_culprit(key, entries))
        if first:
            self._fetched += first
            if whole and len(first) == len(entries):
                self._whole.add(key)
        elif entries:
            del self._redriving[key]  # the first one must not run
        else:
            self._emptied(key)

    def _emptied(self, key: str) -> None:
        """All that was read of a FIFO has run.  Release its key, if nothing else has gone into the FIFO."""
        fetched_at = self._redriving.pop(key)
        if self._written.get(key, 0) != fetched_at or any(entry.key == key for entry in self._diverted):
            self._asked[key] = None  # since then more has gone into it
            return
        # The release is in the checkpoint that is built now or next.  Later arrivals run normally after it.
        self.keys.discard(key)
        self._written.pop(key, None)
        self._keyed.wake(key)
        self._released[key] = None

    @property
    def wants_work(self) -> bool:
        """Whether anything waits that `next`, `take_fetched` or `released` may have."""
        return bool(self._asked or self._redriving or self._fetched or self._released)

    def take_fetched(self) -> list[QuarantineEntry]:
        """What is to be redriven now, if anything."""
        fetched, self._fetched = self._fetched, []
        return fetched

    def redriven(self, seq: Seq, work: Work, outcome: InvocationOutcome) -> list[tuple[str, int]]:
        """(key, elements) that checkpoint `seq`, which is built now, takes out of FIFOs.  This may empty some of them."""
        given = Counter(entry.key for entry in work.redrive)
        for key, count in given.items():
            done = outcome.redriven.get(key, 0)
            if done == count and key in self._whole:
                self._emptied(key)
            else:
                del self._redriving[key]
                if done == count:
                    self._asked[key] = None
            if done and key in self.keys:
                # Until this checkpoint is folded, the tables still have the elements that have just run.
                self._written[key] = seq
        return [(key, outcome.redriven[key]) for key in given if key in outcome.redriven]

    @property
    def released(self) -> Collection[str]:
        """Keys whose release the next checkpoint carries."""
        return self._released

    def take_released(self, seq: Seq, holds: HoldWrites) -> list[str]:
        """The keys that checkpoint `seq` releases.  `holds` gets the end of their quarantines' holds."""
        released, self._released = [*self._released], {}
        self._releasing.update(dict.fromkeys(released, seq))
        for name in map(quarantine_hold, released):
            self._keyed.release(name, holds)  # whatever the setting says now
        return released

    def folded(self, upto: Seq) -> None:
        """Checkpoints up to `upto` are in the tables."""
        self._folded = upto
        if self._releasing:
            self._releasing = {key: seq for key, seq in self._releasing.items() if seq > upto}


def quarantine_hold(key: str) -> str:
    """The name of the hold of a key's quarantine."""
    return key + QUARANTINE_HOLD
