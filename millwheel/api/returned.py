"""What a hook returns: nothing is made of it, so a hook whose work is in what it returns has done nothing.

Lives here: the refusal of such a hook.  Never here: hooks that are seen to be async when they are given (`given`).  What a
filter returns is looked at as well (`millwheel.library.steps`).
"""

from __future__ import annotations

import inspect

from millwheel.errors import WiringError


def still_to_run(made: object) -> bool:
    """Whether `made` is code that has not run: of an async function, or of one that yields."""
    return inspect.isgenerator(made) or inspect.isawaitable(made) or inspect.isasyncgen(made)


def check_returned(made: object) -> None:
    """Refuse what a call of a hook returned, if that still waits to be run.

    A hook that is seen to be async, or to yield, is refused by `Pipeline.add`.  One that only calls such a function, or is
    wrapped by a decorator, is seen when it has returned.
    """
    if made is None or not still_to_run(made):
        return
    if inspect.iscoroutine(made):
        made.close()  # otherwise Python warns that nobody awaited it, far from the mistake
    raise WiringError(
        f"the hook returned a {type(made).__name__}, whose code has not run: hooks are plain functions; "
        "call what it should do, and produce through the context"
    )
