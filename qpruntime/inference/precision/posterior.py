"""The result of inference on a sparse precision: a `Posterior` that knows its latent values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.interpolate import CubicSpline

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import finite, flag, whole
from qpruntime.errors import InputError, NumericalError
from qpruntime.inference.corrections.corrected import CorrectedEvidence, on_evidence
from qpruntime.inference.corrections.marginals import Marginals
from qpruntime.inference.fixed_point.convergence import Limits
from qpruntime.inference.fixed_point.iterate import log_evidence
from qpruntime.inference.posterior import Correcting, Posterior
from qpruntime.inference.precision.corrections import corrected_by_pairs, pair_sums
from qpruntime.inference.precision.iterate import settle
from qpruntime.inference.precision.pattern import Pattern
from qpruntime.inference.precision.solution import (
    PrecisionSolution,
    Slope,
    left_out_groups,
    slope_of,
)
from qpruntime.inference.precision.solver import PrecisionPrior, PrecisionSolved

__all__ = [
    "PrecisionPosterior",
    "Profile",
    "profile",
]

# --- `PrecisionPosterior`


@restorable("precision-posterior/1", root=True)
@dataclass(frozen=True, eq=False, repr=False)
class PrecisionPosterior(Posterior):
    """Gaussian approximation of x ~ N(0, Q^-1) and of eta = offset + A x, seen at N rows.

    Attributes and methods are those of `qpruntime.Posterior`; `mean` and `variance` are those of
    eta at the rows. ``latent()`` has means and variances of x, ``sample()`` without points draws x,
    and `predict` and `sample` take rows of A, with ``mean=`` for their offsets.
    ``evidence_gradient(dQ)`` takes a sparse change of Q, or a list of them.
    """

    @property
    def weights(self) -> Array:
        """Slope of the log evidence by the offset of every row, shape (N,), at EP's fixed point."""
        found: Array = self._solution.weights
        return found

    def slope(self) -> Slope:
        """What a change of Q is multiplied by: posterior covariance on Q's pattern, mean of x.

        For dQ on that pattern the log evidence changes by ``(tr(S0 dQ) - slope.against(dQ)) / 2``,
        where tr(S0 dQ), with the prior covariance S0, is the change of ``log |Q|``, or with a
        constraint that of ``log_det`` of `infer_precision`.
        """
        return slope_of(self._solution.solved)

    def corrected_evidence(self) -> CorrectedEvidence:
        """Log evidence corrected by pairs of cumulants (after Opper, Paquet & Winther, 2013).

        Over all pairs of up to 2000 rows, equal ones counted once; of more, over pairs that share a
        level, that is a column of at most 30 of them. It starts from EP's fixed point only.

        Returns
        -------
        CorrectedEvidence
            Named tuple ``value`` and ``spread``: the size of all terms of fourth order, of which
            half are in the value.

        Raises
        ------
        InputError
            Of a posterior by another method than EP.
        """
        found = corrected_by_pairs(self.log_evidence, self._solution.sums)
        return found

    def coefficient(self, column: int, *, corrected: bool = True, nodes: int = 11) -> Profile:
        """Marginal density of x at one column, by profiling the evidence.

        The column is moved into the offset, at `nodes` values over 5 of EP's standard deviations on
        either side, and the sites settle anew at each: truer than EP's normal where many rows that
        are not normal see the column. For columns whose prior knows no other column, as those of
        fixed effects.

        Parameters
        ----------
        column : int
        corrected : bool
            Whether evidences are corrected by pairs of rows.
        nodes : int
            At least 5; 9 to 13 do.

        Returns
        -------
        Profile
            With ``mean``, ``std``, ``quantile(q)`` and ``density(at)``.

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

    def loo_groups(self, labels: ArrayLike) -> tuple[Any, Array]:
        """Leave-one-group-out log densities ``log p(y_G | all other rows)``.

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
            If labels have another shape or are NaN, or equal rows have several of them.
        """
        return left_out_groups(self._solution, labels)

    def marginals(self, *at: ArrayLike, **options: Any) -> Marginals:
        """Marginal posterior densities of eta, corrected, of up to 3000 rows; see `Posterior`.

        Points are rows of A; without any the marginals are those of the rows.
        """
        solution = self._solution
        if not at and not solution.seen.collapsed.trivial:
            rows, options["mean"] = solution.all_rows()
            return super().marginals(rows, **options)
        return super().marginals(*at, **options)

    @cached_property
    def _correcting(self) -> Correcting:
        solution = self._solution
        own = self.but(n=solution.here.mean.size)
        return Correcting(solution.observed(), solution.sites_held, own)

    def check(self) -> tuple[str, ...]:
        """Say in plain words what is known to be off in this posterior, and what to do.

        By the sums over pairs of `corrected_evidence`, at their cost.
        """
        said = []
        if not self.converged:
            said.append(f"the sites are {self.status}: the evidence may be anything")
        try:
            found = self.corrected_evidence()
        except (InputError, NumericalError) as error:
            return (*said, f"corrections were not looked at: {error}")
        word = on_evidence(found.value - self.log_evidence, found.spread)
        return (*said, word) if word else tuple(said)


# --- Profiled marginal of one coefficient
#
# The coefficient is moved into the offset: at each of a few values the sites settle anew, and the
# log evidence of what is left, corrected by pairs, plus the log prior there is the log density but
# for a constant. Conditioning single rows does not see what many of them say together of a
# coefficient.

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
