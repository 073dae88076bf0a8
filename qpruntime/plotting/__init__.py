"""Displays of models, predictions, tables and optimisers, in the manner of scikit-learn's.

The extra ``plot``: matplotlib is imported when something is drawn, and not before. Each class
computes its numbers once, in ``from_estimator`` or its like, keeps them as attributes, and draws
them with ``plot`` as often as asked.
"""

from __future__ import annotations

from qpruntime.plotting.boundary import BoundaryDisplay
from qpruntime.plotting.calibration import CalibrationDisplay, RanksDisplay
from qpruntime.plotting.effects import CaterpillarDisplay, EffectMapDisplay
from qpruntime.plotting.forecast import ForecastDisplay
from qpruntime.plotting.function import FunctionDisplay
from qpruntime.plotting.optimizer import ProgressDisplay
from qpruntime.plotting.partial import ImportanceDisplay, PartialDependenceDisplay
from qpruntime.plotting.table import RatioDisplay

__all__ = [
    "BoundaryDisplay",
    "CalibrationDisplay",
    "CaterpillarDisplay",
    "EffectMapDisplay",
    "ForecastDisplay",
    "FunctionDisplay",
    "ImportanceDisplay",
    "PartialDependenceDisplay",
    "ProgressDisplay",
    "RanksDisplay",
    "RatioDisplay",
]
