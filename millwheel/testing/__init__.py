"""Test kit: step a pipeline by hand (`Stepper`), or run it under crashes and reordering (`simulate`)."""

from millwheel.testing.faults.nemesis import NO_FAULTS, ROUGH, Faults
from millwheel.testing.kit.stepper import HookFailed, NeverEnds, Outcome, RowRejected, Stepper, simulate
from millwheel.testing.kit.view import Out, Results
from millwheel.testing.world.kernel import Violation

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
