"""Profiled marginal of one coefficient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.interpolate import CubicSpline, PchipInterpolator

from qpruntime._typing import Array
from qpruntime._validation import finite
from qpruntime.errors import InputError, NumericalError
from qpruntime.inference.fixed_point import iterate as fixed_point
from qpruntime.inference.fixed_point.convergence import Limits
from qpruntime.inference.precision.cholesky import Pattern
from qpruntime.inference.precision.corrections import pair_sums, quantile_shifts
from qpruntime.inference.precision.iterate import settle
from qpruntime.inference.precision.solution import (
    PrecisionSolution,
)
from qpruntime.inference.precision.solver import PrecisionPrior, PrecisionSolved
from qpruntime.inference.sites import Sites

__all__ = ["VALUES", "Profile", "profile", "profiles_unless_normal"]

#: Default number of values that a profile begins with.
VALUES = 11

# The coefficient is moved into the offset, and the sites settle anew at each of a few values. The
# log density, up to a constant, is the log evidence of the remaining problem, corrected by pairs,
# plus the log prior. Conditioning on single rows would miss what many rows say together about a
# coefficient.

_LIMITS = Limits(1e-8, 200)
#: Shift of quantiles, in standard deviations, up to which EP's normal stands for a density.
_SMALL_SHIFT = 0.045
#: Values start over this many of EP's standard deviations, and continue by growing steps until the
#: log density is so far below its top. If an end is not, sites do not settle there.
_REACH, _GROWTH, _EXTENSIONS, _DEPTH, _CUT = 5.0, 1.3, 24, 16.0, 4.6
#: An interval near the top is halved if the interpolated part changes by more; so often at most.
_CHANGE, _ROUNDS, _MOST_VALUES, _LEAST = 0.25, 6, 60, 4
#: Largest distance of a log density from its shape-preserving interpolation.
_OVERSHOOT = 0.05
#: Standard deviation of a latent value that replaces an absent one.
_NEGLIGIBLE = 1e-4
#: Number of points between two values at which the density is evaluated.
_POINTS = 48


@dataclass(frozen=True, eq=False)
class Profile:
    """Density of one coefficient.

    Attributes
    ----------
    values, log_density : ndarray, shape (T,)
        Profiled values, and the log density there up to a constant.
    mean, std : float
        Mean and standard deviation of the density.

    See Also
    --------
    qpruntime.PrecisionPosterior, qpruntime.infer_precision

    Examples
    --------
    >>> import numpy as np
    >>> from scipy import sparse
    >>> from qpruntime import infer_precision
    >>> A = sparse.csr_array(np.repeat(np.eye(4), 5, axis=0))
    >>> Q = sparse.eye_array(4) / 2.0**2
    >>> y = np.where(np.arange(20) % 4 < 1 + np.arange(20) // 5 % 2, 1, -1)
    >>> A = sparse.hstack([np.ones((20, 1)), A])
    >>> Q = sparse.eye_array(5) / 2.0**2
    >>> profile = infer_precision(A, Q, y, "logistic").coefficient(0)
    >>> round(profile.mean, 2), round(profile.std, 2)
    (-0.39, 0.98)
    >>> profile.quantile([0.05, 0.95]).round(2).tolist()
    [-2.01, 1.22]
    """

    values: Array
    log_density: Array
    mean: float
    std: float
    _grid: Array
    _mass: Array

    def quantile(self, q: ArrayLike) -> Array:
        """Return quantiles, for q between 0 and 1."""
        levels = finite(q, "q")
        if not ((levels > 0.0) & (levels < 1.0)).all():
            raise InputError("quantiles are between 0 and 1")
        return np.interp(levels, self._mass, self._grid)

    def density(self, at: ArrayLike) -> Array:
        """Return the density, which is 0 outside of the profiled values."""
        slope = np.gradient(self._mass, self._grid)
        return np.interp(finite(at, "at"), self._grid, slope, left=0.0, right=0.0)


def profile(
    solution: PrecisionSolution, column: int, corrected: bool = True, nodes: int = VALUES
) -> Profile:
    """Return the marginal of x at a column whose prior is independent of other columns.

    Raises
    ------
    InputError
        If the column's prior is coupled to others, or a constraint holds it.
    NumericalError
        If the density does not vanish at the end of the values, which a prior of another scale
        cures.
    """
    log_density = _profiled(solution, column, corrected)
    return _traced(log_density, *_normal(solution, column), nodes)


def profiles_unless_normal(
    solution: PrecisionSolution, columns: NDArray[np.integer]
) -> list[Profile | None]:
    """Return the corrected profiles of columns, None for densities close to EP's normal.

    Close are those whose median and quantiles of 2.5 and 97.5 % move by at most 0.045 standard
    deviations, to second order in the moments of single rows.

    Raises
    ------
    InputError, NumericalError
        As `profile` does.
    """
    marginals, sites = solution.here, solution.sites_held
    shifts = quantile_shifts(solution.problem, solution.solved, marginals, sites, columns)
    is_normal = np.abs(shifts).max(axis=1) <= _SMALL_SHIFT
    return [
        None if normal else profile(solution, column)
        for normal, column in zip(is_normal.tolist(), columns.tolist(), strict=True)
    ]


def _normal(solution: PrecisionSolution, column: int) -> tuple[float, float]:
    """Return EP's mean and standard deviation of x at a column."""
    mean, variance = (float(part[column]) for part in solution.latent())
    return mean, variance**0.5


def _profiled(
    solution: PrecisionSolution, column: int, corrected: bool
) -> Callable[[float], float]:
    """Return the log density of x at a column, up to a constant, as a function of its value."""
    solved = solution.solved
    prior = solved.prior
    Q = prior.precision()
    entries = slice(Q.indptr[column], Q.indptr[column + 1])
    coupled = (Q.data[entries] != 0.0) & (Q.indices[entries] != column)
    constrained = prior.constraint is not None and bool(prior.constraint[:, column].any())
    if coupled.any() or constrained:
        what = "a constraint" if constrained else f"column {Q.indices[entries][coupled][0]}"
        raise InputError(
            f"column {column} is held by {what} in its prior: profiles are of coefficients of "
            "their own; marginals() and latent() have the others"
        )
    remaining = np.delete(np.arange(solution.latent_size), column)
    A = sparse.csc_array(solution.given_rows())
    column_values = A[:, [column]].toarray()[:, 0]
    others, inner = sparse.csr_array(A[:, remaining]), sparse.csr_array(Q[remaining][:, remaining])
    if not remaining.size:
        # Rows need a latent value: if no other is left, they get one that hardly varies.
        others = sparse.csr_array(np.full((A.shape[0], 1), _NEGLIGIBLE))
        inner = sparse.csr_array(np.ones((1, 1)))
    pattern = Pattern(others, inner)
    rows, q = pattern.rows(others), pattern.halves(inner)
    C = None if prior.constraint is None else np.ascontiguousarray(prior.constraint[:, remaining])
    sites: dict[float, Sites] = {}

    @cache
    def log_density(value: float) -> float:
        """Return the log density at a value, from the nearest value's sites, or -inf."""
        near = min(sites, key=lambda known_value: abs(known_value - value), default=None)
        part = PrecisionPrior(pattern, rows, q, prior.offset + value * column_values, C, 0.0)
        problem = replace(solution.problem, prior=part)
        try:
            end = settle(problem, _LIMITS, solution.sites_held if near is None else sites[near])
        except NumericalError:
            return -np.inf
        assert isinstance(end.factor, PrecisionSolved)
        log_value = fixed_point.log_evidence(problem, end)[0]
        if corrected:
            sums = pair_sums(problem, end.factor, end.marginals, end.sites)
            # Large fourth-order terms mean that the series diverges, so they are damped.
            log_value += sums.third + 0.5 * sums.fourth / (1.0 + (0.5 * sums.fourth) ** 8)
        sites[value] = end.sites
        return float(log_value) - 0.5 * float(Q[column, column]) * value**2

    return log_density


def _traced(log_density: Callable[[float], float], mean: float, std: float, nodes: int) -> Profile:
    """Return a density from its log at values that cover it densely.

    Parameters
    ----------
    log_density : callable
        Function of one value.
    mean, std : float
        Moments of a normal density near it.
    nodes : int
        Number of values to begin with.
    """
    known: dict[float, float] = {}

    def add(value: float) -> float:
        traced = log_density(value)
        if np.isfinite(traced):
            known[value] = traced
        return traced

    # Values are visited from the middle outwards, so that each starts at the sites of a neighbour.
    start = mean + std * np.linspace(-_REACH, _REACH, nodes)
    for value in sorted(start.tolist(), key=lambda node: abs(node - mean)):
        add(value)
    if len(known) < _LEAST:
        raise NumericalError(
            "the sites settle at hardly any value of the coefficient: give its prior a smaller "
            "scale"
        )
    for sign in (-1.0, 1.0):
        step = start[1] - start[0]
        for _ in range(_EXTENSIONS):
            end = max(known, key=lambda node: sign * node)
            if known[end] < max(known.values()) - _DEPTH:
                break
            step *= _GROWTH
            if not np.isfinite(add(end + sign * step)):
                break
    for _ in range(_ROUNDS):
        values = np.array(sorted(known))
        logs = np.array([known[node] for node in values])
        rough = _density_of(values, logs, None)
        traced = _density_of(values, logs, (rough.mean, rough.std))
        # The interpolated part is the log density minus that of a normal with these moments.
        residual = logs + 0.5 * ((values - rough.mean) / rough.std) ** 2
        near = np.maximum(logs[1:], logs[:-1]) > logs.max() - 0.5 * _DEPTH
        wide = near & (np.abs(np.diff(residual)) > _CHANGE)
        if not wide.any() or len(values) > _MOST_VALUES:
            break
        for value in (0.5 * (values[1:] + values[:-1]))[wide].tolist():
            add(value)
    top = logs.max()
    if not max(logs[0], logs[-1]) < top - _CUT:
        raise NumericalError(
            f"the density of the coefficient is still {np.exp(max(logs[0], logs[-1]) - top):.2g} "
            f"of its top at {values[0]:.4g} and {values[-1]:.4g}, beyond which no sites settle: "
            "give its prior a smaller scale"
        )
    return traced


def _density_of(values: Array, logs: Array, normal: tuple[float, float] | None) -> Profile:
    """Interpolate a log density without overshoot, or its difference from a normal one."""
    mean, std = (0.0, np.inf) if normal is None else normal
    residual = logs + 0.5 * ((values - mean) / std) ** 2
    share = np.arange(_POINTS) / _POINTS
    grid = np.append((values[:-1, None] + np.diff(values)[:, None] * share).ravel(), values[-1])
    # A cubic spline is more accurate where the density is smooth, and overshoots at a cliff.
    shape = PchipInterpolator(values, residual)(grid)
    smooth = np.clip(CubicSpline(values, residual)(grid), shape - _OVERSHOOT, shape + _OVERSHOOT)
    raised = smooth - 0.5 * ((grid - mean) / std) ** 2
    density = np.exp(raised - raised.max())
    cells = 0.5 * np.diff(grid) * (density[1:] + density[:-1])
    mass = np.concatenate([[0.0], np.cumsum(cells)])
    total = mass[-1]
    weights = 0.5 * (np.append(cells, 0.0) + np.append(0.0, cells)) / total
    centre = float(weights @ grid)
    variance = float(weights @ (grid - centre) ** 2)
    return Profile(values, logs - logs.max(), centre, variance**0.5, grid, mass / total)
