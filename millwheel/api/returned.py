"""What a hook returns: nothing is made of it, so a hook whose work is in what it returns has done nothing.

Lives here: the refusal of such a hook.  Never here: hooks that are seen to be async when they are given (`given`).
"""

from __future__ import annotations

import inspect

from millwheel.errors import WiringError


def check_returned(made: object) -> None:
    """Refuse what a call of a hook returned, if that still waits to be run.

    A hook that is seen to be async, or to yield, is refused by `Pipeline.add`.  One that only calls such a function, or is
    wrapped by a decorator, is seen when it has returned.
    """
    if made is None or not (inspect.isgenerator(made) or inspect.isawaitable(made) or inspect.isasyncgen(made)):
        return
    if inspect.iscoroutine(made):
        made.close()  # otherwise Python warns that nobody awaited it, far from the mistake
    raise WiringError(
        f"the hook returned a {type(made).__name__}, whose code has not run: hooks are plain functions; "
        "call what it should do, and produce through the context"
    )
