"""What the controller has told a worker: how far watermarks have come, and what loops are asked.

Lives here: the newest of each, for cores that begin later.  Never here: which cores are told.  Invariant: no watermark goes
back while a worker lives.
"""

from __future__ import annotations

from collections.abc import Mapping

from millwheel.host.messages import RoundAsked
from millwheel.model import MIN_TIME


class Heard:
    """The words of all controllers that this worker has listened to."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        """Published watermarks, us."""
        self._label = 0
        self._before: dict[str, int] = {}
        """Those that were published under labels before that one."""
        self._inputs: dict[str, int] = {}
        self._asked: dict[str, RoundAsked] = {}
        """By loop: the newest round."""
        self.anything = False
        """A controller has told what is stored."""

    def published(self, values: Mapping[str, int], label: int = 0) -> bool:
        """Published watermarks rose, us, by reports of that label at most.  Returns whether these are the first ones that are
        heard."""
        first, self.anything = not self.anything, True
        if label > self._label:
            self._label, self._before = label, dict(self.values)
        elif label < self._label:  # by another controller
            _raise(self._before, values)
        _raise(self.values, values)
        return first

    def before(self, epoch: int) -> dict[str, int]:
        """What hooks may have seen in front of the barrier `epoch`, us."""
        return dict(self.values if self._label < epoch else self._before)

    def covers(self, stored: Mapping[str, int]) -> bool:
        """Whether these watermarks, us, or later ones have been published."""
        return all(value <= self.values.get(name, MIN_TIME) for name, value in stored.items())

    def rose(self, inputs: Mapping[str, int]) -> dict[str, int]:
        """Input watermarks by computation, us.  Returns those that are higher than before."""
        higher = {name: value for name, value in inputs.items() if value > self._inputs.get(name, MIN_TIME)}
        self._inputs |= higher
        return higher

    def input_of(self, computation: str) -> int:
        """Input low watermark of a computation, us."""
        return self._inputs.get(computation, MIN_TIME)

    def round(self, asked: RoundAsked) -> None:
        """The intervals of a loop are asked."""
        known = self._asked.get(asked.loop)
        if known is None or known.round < asked.round:
            self._asked[asked.loop] = asked

    def asked(self, loop: str) -> RoundAsked | None:
        """The newest round of a loop, which an interval that was not there yet answers when it starts."""
        return self._asked.get(loop)


def _raise(known: dict[str, int], values: Mapping[str, int]) -> None:
    for name, value in values.items():
        known[name] = max(value, known.get(name, MIN_TIME))
