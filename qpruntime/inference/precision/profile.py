"""The marginal density of one coefficient by profiling the evidence.

The coefficient is moved into the offset: at each of a few values the sites settle anew, and the log
evidence of what is left, corrected by pairs, plus the log prior there is the log density but for a
constant. Conditioning single rows does not see what many of them say together of a coefficient.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.interpolate import CubicSpline

from qpruntime.arrays import Array
from qpruntime.errors import InputError, NumericalError
from qpruntime.inference.evidence import log_evidence
from qpruntime.inference.fixed_point.ended import Limits
from qpruntime.inference.precision.evidence import pair_sums
from qpruntime.inference.precision.pattern import Pattern
from qpruntime.inference.precision.settle import settle
from qpruntime.inference.precision.solution import PrecisionSolution
from qpruntime.inference.precision.solved import PrecisionSolved
from qpruntime.inference.precision.solver import PrecisionPrior
from qpruntime.validation import finite

__all__ = ["Profile", "profile"]

_LIMITS = Limits(1e-8, 200)
#: Values reach so many of EP's standard deviations; the density is drawn at so many points.
_REACH, _POINTS = 5.0, 2001


@dataclass(frozen=True, eq=False)
class Profile:
    """The density of one coefficient.

    Attributes
    ----------
    values, log_density : ndarray, shape (T,)
        Values that were profiled, and the log density there but for a constant.
    mean, std : float
        Of the density; `std` is a standard deviation.
    """

    values: Array
    log_density: Array
    mean: float
    std: float
    _grid: Array
    _mass: Array

    def quantile(self, q: ArrayLike) -> Array:
        """Return quantiles, for q between 0 and 1."""
        asked = finite(q, "q")
        if not ((asked > 0.0) & (asked < 1.0)).all():
            raise InputError("quantiles are between 0 and 1")
        found: Array = np.interp(asked, self._mass, self._grid)
        return found

    def density(self, at: ArrayLike) -> Array:
        """Return the density, 0 outside of the values that were profiled."""
        slope = np.gradient(self._mass, self._grid)
        found: Array = np.interp(finite(at, "at"), self._grid, slope, left=0.0, right=0.0)
        return found


def profile(
    solution: PrecisionSolution, column: int, corrected: bool = True, nodes: int = 11
) -> Profile:
    """Return the marginal of x at one column, whose prior knows no other column.

    Raises
    ------
    InputError
        If the column's prior is coupled to others, or a constraint holds it.
    NumericalError
        If the density falls off the values, which a prior of another scale cures.
    """
    solved = solution.solved
    prior = solved.prior
    Q = prior.precision()
    own = slice(Q.indptr[column], Q.indptr[column + 1])
    coupled = (Q.data[own] != 0.0) & (Q.indices[own] != column)
    constrained = prior.constraint is not None and bool(prior.constraint[:, column].any())
    if coupled.any() or constrained:
        what = "a constraint" if constrained else f"column {Q.indices[own][coupled][0]}"
        raise InputError(
            f"column {column} is held by {what} in its prior: profiles are of coefficients of "
            "their own; marginals() and latent() have the others"
        )
    rest = np.delete(np.arange(solution.latent_size), column)
    A = sparse.csc_array(solution.given_rows())
    seen = A[:, [column]].toarray()[:, 0]
    others, inner = sparse.csr_array(A[:, rest]), sparse.csr_array(Q[rest][:, rest])
    pattern = Pattern(others, inner)
    rows, q = pattern.rows(others), pattern.halves(inner)
    C = None if prior.constraint is None else np.ascontiguousarray(prior.constraint[:, rest])
    mean, std = (float(part[column]) for part in solution.latent())
    std = std**0.5
    values = mean + std * np.linspace(-_REACH, _REACH, nodes)
    logs = np.empty(nodes)
    # From the middle outwards, each from the sites of the one before.
    middle = nodes // 2
    for path in (range(middle, nodes), range(middle - 1, -1, -1)):
        sites = solution.sites_held
        for k in path:
            offset = prior.offset + values[k] * seen
            part = PrecisionPrior(pattern, rows, q, offset, C, 0.0)
            problem = replace(solution.problem, prior=part)
            end = settle(problem, _LIMITS, sites)
            assert isinstance(end.factor, PrecisionSolved)
            logs[k] = log_evidence(problem, end)[0]
            if corrected:
                sums = pair_sums(problem, end.factor, end.marginals, end.sites)
                logs[k] += sums.third + 0.5 * sums.fourth
            sites = end.sites
    logs -= 0.5 * float(Q[column, column]) * values**2
    return _normalised(values, logs - logs.max())


def _normalised(values: Array, logs: Array) -> Profile:
    grid = np.linspace(values[0], values[-1], _POINTS)
    density = np.exp(CubicSpline(values, logs)(grid))
    if not max(density[0], density[-1]) < 1e-2:
        raise NumericalError(
            f"the density of the coefficient is still {max(density[0], density[-1]):.2g} of its "
            f"top {_REACH:g} standard deviations away: give its prior a smaller scale"
        )
    step = grid[1] - grid[0]
    cells = 0.5 * step * (density[1:] + density[:-1])
    mass = np.concatenate([[0.0], np.cumsum(cells)])
    total = mass[-1]
    mean = float((grid * density).sum() * step / total)
    square = float(((grid - mean) ** 2 * density).sum() * step / total)
    return Profile(values, logs, mean, square**0.5, grid, mass / total)
