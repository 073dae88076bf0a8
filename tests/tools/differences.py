"""Slopes by differences, for gradients that are written out."""

import numpy as np


def slopes(function, theta, step=1e-3):
    """Return fourth-order differences of a function by each of its arguments, h^4 off."""
    theta = np.asarray(theta, dtype=float)
    at = [[function(theta + k * e) for k in (-2, -1, 1, 2)] for e in step * np.eye(theta.size)]
    return np.array([(8.0 * (f[2] - f[1]) - (f[3] - f[0])) / (12.0 * step) for f in at])


def tight(objective):
    """Return an objective whose sites settle everywhere from now on, not only near the optimum."""
    for one in (objective, getattr(objective, "_alone", objective)):
        one.tolerance = lambda: objective.tol
    return objective
