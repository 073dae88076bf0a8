"""How sharply the evidence knows each hyper-parameter: the units of a search.

Two groups of 20 000 and 1000 levels know their deviations by curvatures that differ twentyfold. A
search in units of their roots needs no steps to find that out.
"""

from __future__ import annotations

import numpy as np

from qpruntime.arrays import Array
from qpruntime.effects.objective import Evaluation, Objective

__all__ = ["curvature", "curvatures"]

#: Step of differences of slopes: relative errors of the curvature of about 1e-4.
_STEP = 1e-2


def curvature(objective: Objective, centre: Evaluation) -> Array:
    """Less the second derivatives of the log density of theta, (p, p), by differences of slopes."""
    p = objective.size
    H = np.empty((p, p))
    low, high = objective.bounds.T
    for k in range(p):
        ends = []
        for sign in (-1.0, 1.0):
            theta = centre.theta.copy()
            theta[k] = np.clip(theta[k] + sign * _STEP, low[k], high[k])
            ends.append(objective(theta))
        gap = ends[1].theta[k] - ends[0].theta[k]
        H[:, k] = -(ends[1].slope - ends[0].slope) / gap
    return H


def curvatures(objective: Objective, one: Evaluation) -> Array:
    """Estimates of the curvature of the log evidence by theta, shape (p,), at least 1.

    The expected one of fully seen effects is tr(S0 dQ S0 dQ)/2; of those that are seen in part,
    the sum over effects of the squares of the diagonal of (S0 - S) dQ is close for groups and too
    small for smooth fields, whose prior enters by its mean. No step of a search by them is longer
    than 1.
    """
    assembly = objective.assembly
    found = np.maximum(np.abs(one.slope), 1.0)
    own = one.theta[: len(assembly.start)]
    covariance = one.posterior.slope()[0]
    covariance.sort_indices()
    entries = covariance.data[assembly.pattern.place]
    slopes, traces = assembly.precision(own)[1], assembly.log_det(own)[1]
    begin = k = 0
    for block, of_block in zip(assembly.blocks, slopes, strict=True):
        pattern = block.pattern
        S = entries[begin : begin + pattern.count]
        begin += pattern.count
        for dQ in of_block:
            seen = np.bincount(pattern.columns, S * dQ, pattern.size)
            told = 0.5 * float(np.square(traces[k] / max(pattern.size, 1) - seen).sum())
            found[k] = max(found[k], told)
            k += 1
    return found
