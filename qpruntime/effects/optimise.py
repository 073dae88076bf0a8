"""The search of a maximum in units of what is known of each number: L-BFGS-B."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import minimize

from qpruntime.arrays import Array
from qpruntime.errors import ConvergenceWarning, NumericalError

__all__ = ["climb"]

# A slope below this for each posterior standard deviation is none, and a gain of the log density:
# the step before was of .005 such deviations then, and what would follow is smaller by far.
_FLAT, _GAIN = 1e-4, 1e-5
#: Logarithms and the like are not changed by more at once: what is known of the slope says nothing
#: there, and sites from here do not settle.
_FAR = 2.0


def climb(
    function: Callable[[Array], tuple[float, Array]],
    start: Array,
    bounds: Array,
    first: tuple[float, Array],
    curvature: Array,
    max_iterations: int,
) -> Any:
    """Go from `start` to where `function`, a log density with its slope, is largest.

    Parameters
    ----------
    function : callable
        May raise `NumericalError`, where the search then turns back, as it does from steps that
        are too long.
    start : ndarray, shape (n,)
    bounds : ndarray, shape (n, 2)
    first : tuple
        What `function` returns at the start.
    curvature : ndarray, shape (n,) or (n, n)
        Estimates, above 0 or positive definite: the first step is that of Newton's method with
        them. Of a matrix the bounds are kept by stopping short, not by the optimiser.
    max_iterations : int

    Returns
    -------
    OptimizeResult
        SciPy's; ``nit``, ``success`` and ``message`` are of use.
    """
    if curvature.ndim == 1:
        units = np.diag(1.0 / np.sqrt(curvature))
    else:
        units = np.linalg.inv(np.linalg.cholesky(curvature)).T
    # The first step is the slope, if that is no longer than 1.
    far = max(1.0, float(np.linalg.norm(units.T @ first[1])))
    units, share = units * far, far**-2
    # Coefficients, which have no bounds, may be of any size.
    far_off = np.where(np.isfinite(bounds).all(axis=1), _FAR, np.inf)
    least, best = [first[0]], [(first[0], start)]
    known = [first]

    def scaled(u: Array) -> tuple[float, Array]:
        found = known.pop() if known and not u.any() else None
        if found is None:
            at = np.clip(start + units @ u, *bounds.T)
            try:
                if (np.abs(at - best[0][1]) > far_off).any():
                    raise NumericalError("a step too far from what is known")
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ConvergenceWarning)
                    found = function(at)
            except NumericalError:
                # A plateau below all that was seen: the line search comes back.
                return share * (abs(least[0]) + 1e6), np.zeros(len(at))
            least[0] = max(least[0], found[0])
            best[0] = max(best[0], (found[0], at), key=lambda one: one[0])
        return -share * found[0], -share * (units.T @ found[1])

    limits = None
    if curvature.ndim == 1:
        limits = (bounds - start[:, None]) / np.diag(units)[:, None]
    return minimize(
        scaled,
        np.zeros(len(start)),
        jac=True,
        method="L-BFGS-B",
        bounds=limits,
        # Gains are compared with the larger of the value and 1.
        options={
            "maxiter": max_iterations,
            "ftol": share * _GAIN / max(abs(share * first[0]), 1.0),
            "gtol": _FLAT / far,
        },
    )
