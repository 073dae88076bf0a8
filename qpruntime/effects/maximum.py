"""The mode of the hyper-parameters: L-BFGS-B on log evidence and log prior."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from qpruntime.arrays import Array
from qpruntime.effects.objective import Evaluation, Objective
from qpruntime.effects.scales import curvatures
from qpruntime.errors import ConvergenceWarning, NumericalError

__all__ = ["Mode", "maximise"]

# A slope below this for each posterior standard deviation is none, and a gain of the log density:
# the step before was of .005 such deviations then, and what would follow is smaller by far.
_FLAT, _GAIN = 1e-4, 1e-5


class Mode(NamedTuple):
    """Where the search ended.

    Attributes
    ----------
    evaluation : Evaluation
        The best one.
    iterations : int
    converged : bool
    message : str
        The optimiser's own.
    """

    evaluation: Evaluation
    iterations: int
    converged: bool
    message: str


def maximise(objective: Objective, prior: bool = True, max_iterations: int = 200) -> Mode:
    """Return the mode; without `prior` that of the evidence alone."""

    def of(one: Evaluation) -> tuple[float, Array]:
        if prior:
            return -one.value, -one.slope
        return -one.evidence, -one.evidence_slope

    if not objective.size or (objective.bounds[:, 0] == objective.bounds[:, 1]).all():
        return Mode(objective(objective.start), 0, True, "there is nothing to learn")
    first = objective.loosely(objective.start)
    best = [first]
    value, slope = of(first)
    # In these units the search's first step, which is the slope, is that of Newton's method.
    units = 1.0 / np.sqrt(curvatures(objective, first))
    far = max(1.0, float(np.linalg.norm(slope * units)))
    units, share = units * far, far**-2
    known = [(value, slope)]

    def scaled(u: Array) -> tuple[float, Array]:
        theta = np.clip(objective.start + u * units, *objective.bounds.T)
        found = known.pop() if known and not u.any() else None
        if found is None:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ConvergenceWarning)
                    one = objective.loosely(theta)
            except NumericalError:
                # A plateau below all that was seen: the line search comes back.
                return share * (abs(of(best[0])[0]) + 1e6), np.zeros(len(theta))
            found = of(one)
            if found[0] < of(best[0])[0]:
                best[0] = one
        return share * found[0], share * units * found[1]

    result = minimize(
        scaled,
        np.zeros(objective.size),
        jac=True,
        method="L-BFGS-B",
        bounds=(objective.bounds - objective.start[:, None]) / units[:, None],
        # Gains are compared with the larger of the value and 1.
        options={
            "maxiter": max_iterations,
            "ftol": share * _GAIN / max(abs(share * value), 1.0),
            "gtol": _FLAT / far,
        },
    )
    end = best[0]
    if end.tol > objective.tol:
        end = objective(end.theta)
    return Mode(end, int(result.nit), bool(result.success), str(result.message))
