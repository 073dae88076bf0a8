"""Displays of models, predictions, tables and optimisers, in the manner of scikit-learn's.

The extra ``plot``: matplotlib is imported when something is drawn, and not before. Each class
computes its numbers once, in ``from_estimator`` or its like, keeps them as attributes, and draws
them with ``plot`` as often as asked.
"""

from __future__ import annotations

from qpruntime.plotting.boundary import BoundaryDisplay
from qpruntime.plotting.calibration import CalibrationDisplay
from qpruntime.plotting.caterpillar import CaterpillarDisplay
from qpruntime.plotting.effect_map import EffectMapDisplay
from qpruntime.plotting.forecast import ForecastDisplay
from qpruntime.plotting.function import FunctionDisplay
from qpruntime.plotting.partial import ImportanceDisplay, PartialDependenceDisplay
from qpruntime.plotting.progress import ProgressDisplay
from qpruntime.plotting.ranks import RanksDisplay
from qpruntime.plotting.ratio import RatioDisplay

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
