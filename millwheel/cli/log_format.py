"""Logs for programs: one JSON object a line, on request.

Lives here: the option, and the form of a line.  Never here: what is said, which `lines` and the loggers decide.
Invariant: every line is one whole object with the fields of `HEAD`, whatever a message or a key contains.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import click

from millwheel.cli.options import option
from millwheel.escapes import harmless_json

R = TypeVar("R")

HEAD: Final = ("time", "level", "message", "pipeline", "role")
"""What every object has, in this order."""

FACTS: Final = "facts"
"""The attribute of a record of `logging` with more fields: `logger.warning(…, extra={"facts": {"interval": 3}})`."""

LEVELS: Final = {logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warning", logging.ERROR: "error"}


def log_format(function: Callable[..., R]) -> Callable[..., R]:
    """Give a command the option --log-format; its function gets `log_format`, "plain" or "json"."""
    return option(
        "--log-format", type=click.Choice(["plain", "json"]), default="plain", show_default=True,
        help="Lines for people, or one JSON object a line.",
    )(function)  # fmt: skip


def log_object(at_s: float, level: int, message: str, facts: Mapping[str, Any]) -> str:
    r"""A line of the log: its time, seconds since 1970, its level as of `logging`, its message, and facts by name.

    >>> log_object(0.5, logging.WARNING, "it is\ncut", {"pipeline": "p", "role": "worker"})
    '{"time":"1970-01-01T00:00:00.500Z","level":"warning","message":"it is\\ncut","pipeline":"p","role":"worker"}'
    """
    time = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    known = max(one for one in LEVELS if one <= max(level, logging.DEBUG))
    whole = {"time": time, "level": LEVELS[known], "message": message, **facts}
    return harmless_json(json.dumps(whole, ensure_ascii=False, separators=(",", ":"), default=str))


def is_log_object(line: str) -> bool:
    """Whether a line that a process printed is in this form already."""
    if not line.startswith("{"):
        return False
    try:
        found = json.loads(line)
    except ValueError:
        return False
    return isinstance(found, dict) and all(name in found for name in HEAD)
