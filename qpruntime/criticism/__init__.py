"""Checks of a fitted model and comparisons of several: rows left out, ranks, pictures."""

from __future__ import annotations

from qpruntime.criticism.arviz import to_arviz
from qpruntime.criticism.inspection import (
    Importance,
    PartialDependence,
    partial_dependence,
    permutation_importance,
)
from qpruntime.criticism.loo import LeaveOneOut, compare, leave_one_out, pit
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
