"""In which form this installation runs hooks: as Python, or compiled (`docs/adr/0058-hooks-can-be-compiled.md`)."""

from __future__ import annotations

from importlib.util import find_spec


def compiled() -> bool:
    """Whether what runs hooks is compiled here."""
    spec = find_spec("millwheel.api.frame")
    return spec is not None and spec.origin is not None and not spec.origin.endswith(".py")
