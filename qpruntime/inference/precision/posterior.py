"""Result of inference on a sparse precision: a `Posterior` that also has the latent values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.interpolate import CubicSpline, PchipInterpolator

from qpruntime._memory import require, squares
from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import finite, flag, whole
from qpruntime.errors import InputError, NumericalError
from qpruntime.inference.corrections.corrected import CorrectedEvidence, on_evidence
from qpruntime.inference.corrections.marginals import CorrectedMarginals
from qpruntime.inference.dense.solver import DensePrior
from qpruntime.inference.fixed_point import iterate as fixed_point
from qpruntime.inference.fixed_point.convergence import Limits
from qpruntime.inference.posterior import Correcting, Posterior
from qpruntime.inference.precision.cholesky import Pattern
from qpruntime.inference.precision.corrections import corrected_by_pairs, pair_sums, quantile_shifts
from qpruntime.inference.precision.iterate import settle
from qpruntime.inference.precision.restored import check_indices
from qpruntime.inference.precision.solution import (
    PrecisionSolution,
    Slope,
    slope_of,
)
from qpruntime.inference.precision.solver import PrecisionPrior, PrecisionSolved
from qpruntime.inference.sites import Sites

__all__ = ["PrecisionPosterior", "Profile", "profile", "profiles_unless_normal"]

#: Default number of values that a profile begins with.
_VALUES = 11

# --- `PrecisionPosterior`


@restorable("precision-posterior/1", root=True)
@dataclass(frozen=True, eq=False, repr=False)
class PrecisionPosterior(Posterior):
    """Gaussian approximation of x ~ N(0, Q^-1) and of eta = offset + A x, seen at N rows.

    Attributes and methods are those of `qpruntime.Posterior`; `mean` and `variance` are those of
    eta at the rows. ``latent()`` has means and variances of x, ``sample()`` without points draws x,
    and `predict` and `sample` take rows of A, with ``mean=`` for their offsets.
    ``evidence_gradient(dQ)`` takes a sparse change of Q, or a list of them.

    See Also
    --------
    qpruntime.infer_precision, qpruntime.Posterior,
    qpruntime.inference.precision.posterior.Profile,
    qpruntime.inference.precision.solution.Slope

    Examples
    --------
    >>> import numpy as np
    >>> from scipy import sparse
    >>> from qpruntime import infer_precision
    >>> A = sparse.csr_array(np.repeat(np.eye(4), 5, axis=0))
    >>> Q = sparse.eye_array(4) / 2.0**2
    >>> y = np.where(np.arange(20) % 4 < 1 + np.arange(20) // 5 % 2, 1, -1)
    >>> post = infer_precision(A, Q, y, "logistic")
    >>> mean, variance = post.latent()
    >>> mean.round(2).tolist()
    [-0.38, 0.38, -1.24, -0.38]
    >>> post.predict(A[:1])[0].round(2).tolist()
    [-0.38]
    """

    _solution: PrecisionSolution = field(kw_only=True)

    def _predict_once(self) -> tuple[Array, ...]:
        check_indices(self._solution)
        return super()._predict_once()

    @property
    def weights(self) -> Array:
        """Slope of the log evidence by the offset of every row, shape (N,), at EP's fixed point."""
        return self._solution.weights

    def slope(self) -> Slope:
        """Return the slope by Q: the posterior covariance on its pattern, and the mean of x.

        A change dQ on that pattern changes the log evidence by ``(tr(S0 dQ) - slope.against(dQ)) /
        2``. The term tr(S0 dQ), with the prior covariance S0, is the change of ``log |Q|``, or with
        a constraint that of ``log_det`` of `infer_precision`.
        """
        return slope_of(self._solution.solved)

    def corrected_evidence(self) -> CorrectedEvidence:
        """Return the log evidence corrected by pairs of cumulants.

        The correction is after Opper, Paquet & Winther (2013).

        Up to 2000 rows the sum is over all pairs, with equal rows counted once. It is over
        pairs that share a level, that is a column of at most 30 rows, if there are more rows.
        It starts from EP's fixed point only.

        Returns
        -------
        CorrectedEvidence
            Named tuple of ``value`` and ``spread``. The spread is the size of all fourth-order
            terms, of which half are in the value.

        Raises
        ------
        InputError
            If the posterior is of another method than EP.
        """
        return corrected_by_pairs(self.log_evidence, self._solution.sums)

    def coefficient(self, column: int, *, corrected: bool = True, nodes: int = _VALUES) -> Profile:
        """Return the marginal density of x at one column, by profiling the evidence.

        The column is moved into the offset, at values over 5 of EP's standard deviations on either
        side and as far as the density reaches, and the sites settle anew at each value. This is
        more accurate than EP's normal if many rows with non-normal likelihoods see the column. It
        works for columns whose prior is independent of other columns, as for fixed effects.

        Parameters
        ----------
        column : int
        corrected : bool
            Whether evidences are corrected by pairs of rows.
        nodes : int
            Number of values to begin with, at least 5; 9 to 13 suffice. More follow where the
            density changes.

        Returns
        -------
        Profile
            Density with ``mean``, ``std``, ``quantile(q)`` and ``density(at)``.

        Raises
        ------
        InputError
            If the column is coupled to others in Q or by a constraint, or EP was not the method.
        """
        known = whole(column, "column", 0)
        if known >= self._solution.latent_size:
            raise InputError(f"column must be below {self._solution.latent_size}, got {known}")
        flag(corrected, "corrected")
        return profile(self._solution, known, corrected, whole(nodes, "nodes", 5))

    def loo_groups(self, labels: ArrayLike) -> tuple[NDArray[np.generic], Array]:
        """Return leave-one-group-out log densities ``log p(y_G | all other rows)``.

        The cavity of a group is the normal posterior of its rows without their own sites. The
        density of the group's observations is their evidence by EP with that cavity as prior.

        Parameters
        ----------
        labels : array-like, shape (N,)
            Groups of the rows.

        Returns
        -------
        groups, densities : ndarray, shape (G,)
            Groups in ascending order, and the log density of the observations of each.

        Raises
        ------
        InputError
            If labels have another shape or are NaN, or equal rows have several of them:
            `collapse=False` keeps them apart.
        """
        solution = self._solution
        observed = solution.seen
        group_labels = np.asarray(labels)
        if group_labels.shape != (observed.n,):
            raise InputError(
                f"labels must have shape ({observed.n},), one for each row; got "
                f"{group_labels.shape}"
            )
        if group_labels.dtype.kind == "f" and np.isnan(group_labels).any():
            raise InputError("labels must not be NaN: give rows without a group one of their own")
        names, codes = np.unique(group_labels, return_inverse=True)
        kept = codes if observed.kept is None else codes[observed.kept]
        site = observed.collapsed.rows.site
        site_groups = kept[observed.collapsed.rows.first]
        if (site_groups[site] != kept).any():
            row = int(np.argmax(site_groups[site] != kept))
            raise InputError(
                f"row {row} equals another one of another group, with which it is one site: infer "
                "with collapse=False to leave them out apart"
            )
        order = np.argsort(site_groups, kind="stable")
        ends = np.searchsorted(site_groups[order], np.arange(names.size + 1))
        log_densities = np.zeros(names.size)
        for g in range(names.size):
            members = order[ends[g] : ends[g + 1]]
            if members.size:
                log_densities[g] = _left_out(solution, members)
        return names, log_densities

    def marginals(self, *at: ArrayLike, **options: Any) -> CorrectedMarginals:
        """Return corrected marginal densities of eta for up to 3000 rows; see `Posterior`.

        Points are rows of A; without points the marginals are those of the data's rows.
        """
        solution = self._solution
        if not at and not solution.seen.collapsed.trivial:
            rows, options["mean"] = solution.all_rows()
            return super().marginals(rows, **options)
        return super().marginals(*at, **options)

    @cached_property
    def _correcting(self) -> Correcting:
        solution = self._solution
        report = self.but(n=solution.here.mean.size)
        return Correcting(solution.observed(), solution.sites_held, report)

    def check(self) -> tuple[str, ...]:
        """Return messages about known inaccuracies of this posterior, and what to do about them.

        They use the sums over pairs of `corrected_evidence`, at the same cost.
        """
        warnings = []
        if not self.converged:
            warnings.append(f"the sites are {self.status}: the evidence may be anything")
        try:
            corrected = self.corrected_evidence()
        except (InputError, NumericalError) as error:
            return (*warnings, f"corrections were not looked at: {error}")
        word = on_evidence(corrected.value - self.log_evidence, corrected.spread)
        return (*warnings, word) if word else tuple(warnings)


# --- Leave-group-out densities

_GROUP_LIMITS = Limits(1e-9, 200)


def _left_out(solution: PrecisionSolution, members: NDArray[np.intp]) -> float:
    """Return the log density of these sites' observations given all others."""
    marginals, sites = solution.here, solution.sites_held
    merged = solution.seen.collapsed.merged
    constant = float(merged.constant[members].sum())
    if members.size == 1 and merged.weights is None:
        return float(solution.log_z[members[0]]) + constant
    m = members.size
    require(squares(m, 5.0), f"leaving out {m} rows together", "leave out fewer rows")
    prior = solution.solved.prior
    right = prior.dense_rows(members)
    V = right.T @ solution.solved.covariances(right)
    tau, pull = sites.tau[members], marginals.pull[members]
    # The cavity covariance is (V^-1 - diag(tau))^-1, with the mean that goes with it.
    cavity = np.linalg.solve(np.eye(m) - V * tau, V)
    cavity = 0.5 * (cavity + cavity.T)
    if not (cavity.diagonal() > 0.0).all():
        raise NumericalError(
            f"row {solution.seen.row_of(int(members[np.argmin(cavity.diagonal())]))} and the rows "
            "left out with it have no proper cavity: they alone tell a part of the latent values"
        )
    mean = marginals.mean[members] - cavity @ pull
    whole = solution.problem
    weights = None if whole.weights is None else whole.weights[members]
    problem = replace(whole, prior=DensePrior(cavity, mean), y=whole.y[members], weights=weights)
    start = Sites(tau.copy(), sites.nu[members].copy())
    end = fixed_point.settle(problem, _GROUP_LIMITS, order="parallel", sites=start)
    return fixed_point.log_evidence(problem, end)[0] + constant


# --- Profiled marginal of one coefficient
#
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
    solution: PrecisionSolution, column: int, corrected: bool = True, nodes: int = _VALUES
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
