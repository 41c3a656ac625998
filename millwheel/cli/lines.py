"""What a run prints: progress, warnings, errors.

Lives here: one line per event.  Each begins with `millwheel:` and a word that says what it is, so that a log can be searched.
On demand the lines are JSON objects (`log_format`).  On a terminal, a display takes the place of the progress lines
(`display`).
"""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TextIO

from millwheel.cli.log_format import FACTS, log_object
from millwheel.cli.shown_progress import figures, summary
from millwheel.escapes import harmless
from millwheel.limits import RATE_REPORTS
from millwheel.model import format_time

if TYPE_CHECKING:
    from millwheel.cli.display import Display
    from millwheel.host.progress import Progress


WORDS: Final = {logging.ERROR: "error: ", logging.WARNING: "warning: "}


class Lines(logging.Handler):
    """Prints a run; takes the records of the logger `millwheel` as well.  Use as a context manager.

    Progress goes to standard output, everything else to standard error.  With `facts` each line is a JSON object that has
    them; without, it is for people.
    """

    def __init__(self, quiet: bool, verbose: bool, facts: Mapping[str, str] | None = None) -> None:
        super().__init__(logging.INFO if verbose else logging.WARNING)
        self._facts = facts
        self._quiet = quiet
        self._verbose = verbose
        self._rates: deque[tuple[float, int]] = deque([(0.0, 0)], maxlen=RATE_REPORTS)
        self._waited_for = ""
        self._display: Display | None = None

    def __enter__(self) -> Self:
        logger = logging.getLogger("millwheel")
        logger.addHandler(self)
        self._before = (logger.propagate, logger.level)
        logger.propagate = False
        logger.setLevel(self.level)
        if not self._quiet and self._facts is None and sys.stdout.isatty():
            from millwheel.cli.display import Display

            self._display = Display(self._verbose)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._display is not None:
            self._display.close()
        logger = logging.getLogger("millwheel")
        logger.removeHandler(self)
        logger.propagate, level = self._before
        logger.setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        """A record of the log."""
        facts: Mapping[str, Any] = getattr(record, FACTS, {})
        if self._facts is not None:
            if record.exc_info:
                facts = {**facts, "trace": logging.Formatter().formatException(record.exc_info)}
            self._print(sys.stderr, record.levelno, record.getMessage(), facts)
            return
        level = max(level for level in (logging.INFO, *WORDS) if level <= max(record.levelno, logging.INFO))
        self.say(level, record.getMessage() if record.exc_info is None else self.format(record), always=True)

    def say(self, level: int, text: str, always: bool = False, facts: Mapping[str, Any] | None = None) -> None:
        """A message to standard error, each of its lines with what it is in front; information only if not quiet.

        `facts` say the same for programs, and are seen in JSON only.
        """
        if level < logging.WARNING and self._quiet and not always:
            return
        if self._facts is not None:
            self._print(sys.stderr, level, text, facts or {})
            return
        lines = [f"millwheel: {WORDS.get(level, '')}{harmless(line)}" for line in text.split("\n")]
        print("\n".join(lines), file=sys.stderr, flush=True)

    def _print(self, to: TextIO, level: int, text: str, facts: Mapping[str, Any]) -> None:
        """One object; a message that comes from the logger may overwrite none of what is said of the process."""
        print(log_object(time.time(), level, text, {**facts, **(self._facts or {})}), file=to, flush=True)

    def progress(self, progress: Progress, seconds: float) -> None:
        """A report, about once a second."""
        rate = self._rate(progress, seconds)
        if self._display is not None:
            self._display.show(progress, rate)
        elif not self._quiet:
            self._report(progress, rate)
        if progress.waits_for != self._waited_for:
            self._waited_for = progress.waits_for
            self._waits(progress.waits_for)

    def _report(self, progress: Progress, rate: float | None = None) -> None:
        if self._facts is not None:
            self._print(sys.stdout, logging.INFO, summary(progress, rate), figures(progress, rate))
            return
        print(f"millwheel: {summary(progress, rate)}", flush=True)
        for name, watermark in progress.watermarks.items() if self._verbose else ():
            print(f"millwheel: watermark of {name}: {format_time(watermark)}", flush=True)

    def _waits(self, what: str) -> None:
        if what:
            where = "quarantine list" if what.startswith("the quarantine") else "explain"
            self.say(logging.WARNING, f"all input is read; waiting for {what}: see millwheel {where}")

    def _rate(self, progress: Progress, seconds: float) -> float:
        began, before = self._rates[0]
        self._rates.append((seconds, progress.injected))
        return (progress.injected - before) / (seconds - began) if seconds > began else 0.0

    def end(self, progress: Progress) -> None:
        """The last report."""
        if self._display is not None:
            self._display.close()
            self._display = None
        if not self._quiet:
            self._report(progress)
