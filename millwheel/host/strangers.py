"""Words of workers that this one does not know yet.

Lives here: what they have said, until the map names them.  Never here: the map.  Invariant: no word is forgotten before the
map has been read after it came, because a worker speaks before others have read that it has joined.
"""

from __future__ import annotations

from millwheel.host.messages import Message


class Strangers:
    """Words by the address of who has said them."""

    def __init__(self) -> None:
        self._words: dict[str, list[Message]] = {}
        self._long: set[str] = set()
        """Those that were strangers at the last call of `forget` already."""

    def keep(self, peer: str, message: Message) -> None:
        """A stranger has said something."""
        self._words.setdefault(peer, []).append(message)

    def known(self, peer: str) -> list[Message]:
        """It is a stranger no longer.  Returns what it has said, in order."""
        return self._words.pop(peer, [])

    def forget(self) -> None:
        """Forget those that were strangers at the last call already: nobody will ever introduce them."""
        self._words = {peer: words for peer, words in self._words.items() if peer not in self._long}
        self._long = {*self._words}
