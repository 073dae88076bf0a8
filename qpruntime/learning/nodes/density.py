"""The log density of hyper-parameters, up to the evidence of the model, with its slope."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.sites import Sites
from qpruntime.learning.nodes.spread import directions
from qpruntime.learning.objective import Objective

__all__ = ["Density", "Evaluated"]

# Step of differences of slopes: relative errors of the Hessian of about 1e-4.
_STEP = 1e-2


class Evaluated(NamedTuple):
    """The density at one theta (p,): its logarithm, the slope (p,), and the sites found there."""

    theta: Array
    value: float
    slope: Array
    sites: Sites | None


class Density:
    """Log evidence and log prior of log parameters, between bounds.

    Parameters
    ----------
    objective : Objective
        Negative; with the prior in it.
    bounds : ndarray, shape (p, 2)
    """

    def __init__(self, objective: Any, bounds: Array) -> None:
        self._objective: Objective = objective
        self.low, self.high = bounds.T

    @property
    def evaluations(self) -> int:
        """How many there were."""
        return self._objective.evaluations

    def at(self, theta: Array) -> Evaluated | None:
        """Return what is found at theta; None out of bounds, and where inference fails."""
        if not ((theta >= self.low) & (theta <= self.high)).all():
            return None
        try:
            value, slope = self._objective(theta)
        except NumericalError:
            return None
        sites = self._objective.sites
        # Failures are plateaus, which leave no sites.
        return None if sites is None else Evaluated(theta.copy(), -value, -slope, sites)

    def directions(self, mode: Array) -> Array:
        """V (p, p) with theta = mode + V z of unit curvature, by differences of the slopes.

        Raises
        ------
        NumericalError
            If inference fails beside the mode.
        """
        H = np.empty((mode.size, mode.size))
        for k in range(mode.size):
            ends = []
            for sign in (-1.0, 1.0):
                theta = mode.copy()
                theta[k] = np.clip(theta[k] + sign * _STEP, self.low[k], self.high[k])
                one = self.at(theta)
                if one is None:
                    raise NumericalError("inference fails beside the mode of the hyper-parameters")
                ends.append(one)
            H[:, k] = -(ends[1].slope - ends[0].slope) / (ends[1].theta[k] - ends[0].theta[k])
        return directions(H)
