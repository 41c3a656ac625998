"""Test kit: step a pipeline by hand (`Stepper`), or run it under crashes and reordering (`simulate`)."""

from millwheel.testing.faults import NO_FAULTS, ROUGH, Faults
from millwheel.testing.kit import HookFailed, NeverEnds, Outcome, RowRejected, Stepper, simulate
from millwheel.testing.story import Violation
from millwheel.testing.view import Out, Results

__all__ = [
    "NO_FAULTS",
    "ROUGH",
    "Faults",
    "HookFailed",
    "NeverEnds",
    "Out",
    "Outcome",
    "Results",
    "RowRejected",
    "Stepper",
    "Violation",
    "simulate",
]
