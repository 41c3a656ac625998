"""What keeps a watermark, upstream included: the way from a computation to whoever keeps it.

Lives here: the walk along what bounds inputs.  Never here: where the watermarks and the standstills come from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from millwheel.model import MIN_TIME


def keepers(
    name: str,
    watermarks: Mapping[str, int],
    bounds: Callable[[str], Collection[str]],
    members: Mapping[str, Collection[str]],
) -> list[str]:
    """Computations and sources, of which nothing further upstream keeps the watermark of `name` where it is.

    `bounds` gives what bounds the input of a computation, and nothing for a source; `members` the computations of each loop.

    >>> bounds = {"Count": ["Split"], "Split": ["source:a", "source:b"]}
    >>> keepers("Count", {"Count": 5, "Split": 5, "source:a": 5, "source:b": 9}, lambda name: bounds.get(name, ()), {})
    ['source:a']
    """
    found: list[str] = []
    seen: set[str] = set()
    ahead = [name]
    while ahead:
        one = ahead.pop()
        if one in seen:
            continue
        seen.add(one)
        if one in members:  # the floor of a loop is kept by what the loop holds, or by what is sent into it
            ahead += members[one]
            continue
        above = {sender: watermarks.get(sender, MIN_TIME) for sender in bounds(one)}
        lowest = min(above.values(), default=None)
        if lowest is None or lowest > watermarks.get(one, MIN_TIME):
            found.append(one)
        else:
            ahead += [sender for sender, at in above.items() if at == lowest]
    return sorted(found)
