"""The mode of the hyper-parameters: L-BFGS-B on log evidence and log prior."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from qpruntime.arrays import Array
from qpruntime.effects.objective import Evaluation, Objective
from qpruntime.errors import ConvergenceWarning, NumericalError

__all__ = ["Mode", "maximise"]

# The first step is the gradient: in log parameters this is far enough.
_FIRST_STEP = 1.0
# A slope below this is none, and a relative change of the value.
_FLAT, _FTOL = 1e-4, 1e-10


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

    first = objective(objective.start)
    best = [first]
    if (objective.bounds[:, 0] == objective.bounds[:, 1]).all():
        return Mode(first, 0, True, "there is nothing to learn")
    value, slope = of(first)
    unit = min(1.0, _FIRST_STEP / max(float(np.abs(slope).max()), 1e-300))
    known = {objective.start.tobytes(): (value, slope)}

    def scaled(theta: Array) -> tuple[float, Array]:
        found = known.pop(theta.tobytes(), None)
        if found is None:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ConvergenceWarning)
                    one = objective(theta)
            except NumericalError:
                # A plateau below all that was seen: the line search comes back.
                return unit * (abs(of(best[0])[0]) + 1e6), np.zeros(len(theta))
            found = of(one)
            if found[0] < of(best[0])[0]:
                best[0] = one
        return unit * found[0], unit * found[1]

    result = minimize(
        scaled,
        objective.start,
        jac=True,
        method="L-BFGS-B",
        bounds=objective.bounds,
        options={"maxiter": max_iterations, "ftol": unit * _FTOL, "gtol": unit * _FLAT},
    )
    return Mode(best[0], int(result.nit), bool(result.success), str(result.message))
