"""What the fit of all rows is handed by the choice of their kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qpruntime.learning.policy.judged import Stage
from qpruntime.learning.policy.operations import Budget
from qpruntime.learning.policy.subsets import Subsets
from qpruntime.learning.settings import Settings

__all__ = ["Rest"]


@dataclass(frozen=True, eq=False)
class Rest:
    """Rows of stages, what the user asked for, what is left, and of how many processes."""

    subsets: Subsets
    settings: Settings
    budget: Budget
    stages: list[Stage]
    rng: np.random.Generator
    processes: int
