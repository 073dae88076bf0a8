"""Whether a fitted model fits, and which of several does better: rows left out, ranks, pictures."""

from __future__ import annotations

from qpruntime.criticism.comparison import compare
from qpruntime.criticism.export import to_arviz
from qpruntime.criticism.importance import Importance, permutation_importance
from qpruntime.criticism.leave_one_out import LeaveOneOut, leave_one_out
from qpruntime.criticism.partial import PartialDependence, partial_dependence
from qpruntime.criticism.pit import pit
from qpruntime.criticism.simulation import Calibration, check_calibration

__all__ = [
    "Calibration",
    "Importance",
    "LeaveOneOut",
    "PartialDependence",
    "check_calibration",
    "compare",
    "leave_one_out",
    "partial_dependence",
    "permutation_importance",
    "pit",
    "to_arviz",
]
