"""Predictive densities of rows without the sites of all rows of their groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qpruntime._typing import Array
from qpruntime.errors import InputError, NumericalError
from qpruntime.inference.dense.solution import DenseSolution
from qpruntime.inference.local.posterior import LocalPosterior
from qpruntime.inference.markov.solution import SeriesSolution
from qpruntime.inference.posterior import solution_of
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.rows import divide
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.projector import project_arrays

if TYPE_CHECKING:
    from qpruntime.inference.posterior import Posterior

__all__ = ["leave_groups_out"]

# Number of rows in a block of groups of one size.
_ROWS_PER_BLOCK = 1024

Numbers = NDArray[np.intp]


class _Rows(NamedTuple):
    """Rows of b groups of s rows: moments of what their sites multiply, and sites.

    Arrays have shape (b, s), `covariance` (b, s, s); `extra` is the variance that the likelihood
    sees in addition.
    """

    mean: Array
    tau: Array
    nu: Array
    extra: Array
    covariance: Array


class _RowAccess(NamedTuple):
    """Access to an engine: its description of rows, and log densities of rows given moments."""

    describe: Callable[[Numbers], _Rows]
    log_densities: Callable[[Numbers, Array, Array], Array]


def leave_groups_out(posterior: Posterior, codes: Numbers, rows: Numbers, coincide: bool) -> Array:
    """Return log p(y_i | rows of other groups) of some rows, shape (n,).

    The sites of the fit are kept, as in `Posterior.loo`: no fit is repeated. A fit with nearest
    rows leaves groups whose rows do not coincide out of the posterior of the inducing points only.

    Parameters
    ----------
    posterior : Posterior
    codes : ndarray of int, shape (N,)
        Group of each row; rows of the posterior beyond these are observations of another kind,
        which stay in.
    rows : ndarray of int, shape (n,)
    coincide : bool
        Whether the rows of a group have equal features.

    Raises
    ------
    InputError
        If the engine leaves out equal rows only, and those of a group differ.
    NumericalError
        If there is no proper posterior without a group.
    """
    if isinstance(posterior, LocalPosterior):
        if coincide:
            return posterior._solution.loo_places(rows)
        posterior = posterior.sparse
    solution = solution_of(posterior)
    if solution.name == "inducing":
        return _leave_out(codes, rows, _sparse_rows(solution.with_rows))
    if solution.name == "markov":
        if not coincide:
            raise InputError(
                'solver="markov" leaves out rows of equal times only, and those of a group differ: '
                'use solver="dense"'
            )
        return _leave_out(codes, rows, _series_rows(posterior, solution))
    return _leave_out(codes, rows, _dense_rows(posterior, solution))


def _leave_out(codes: Numbers, rows: Numbers, engine: _RowAccess) -> Array:
    """Return log densities of selected rows, each without its group."""
    groups = np.unique(codes[rows])
    order = np.argsort(codes, kind="stable")
    first = np.searchsorted(codes[order], groups)
    sizes = np.searchsorted(codes[order], groups, side="right") - first
    mean, variance = np.full((2, codes.size), np.nan)
    # Groups of one size are solved together: one call for each group took twenty times as long.
    for size in np.unique(sizes):
        begins, step = first[sizes == size], max(1, _ROWS_PER_BLOCK // int(size))
        for start in range(0, begins.size, step):
            members = order[begins[start : start + step, None] + np.arange(size)]
            mean[members], variance[members] = _without_groups(engine.describe(members))
    if not (variance[rows] > 0.0).all():
        raise NumericalError(
            "there is no proper posterior without a group of rows: leave repeated rows out, or "
            "give them as one row with a weight"
        )
    return engine.log_densities(rows, mean[rows], variance[rows])


def _without_groups(rows: _Rows) -> tuple[Array, Array]:
    """Return means and variances (b, s) of rows without the sites of their group; NaN if improper.

    Removing the sites (tau, nu) from N(m, S) leaves the precision S^-1 - tau, so the covariance is
    (1 - S tau)^-1 S and the mean (1 - S tau)^-1 (m - S nu): S may be singular.
    """
    S, identity = rows.covariance, np.eye(rows.tau.shape[1])
    lhs = identity - S * rows.tau[:, None]
    # The remaining precision is positive definite only if the determinant is positive.
    proper = np.linalg.slogdet(lhs)[0] > 0.0
    rhs = np.concatenate([rows.mean[:, :, None] - S @ rows.nu[:, :, None], S], axis=2)
    solved = np.linalg.solve(np.where(proper[:, None, None], lhs, identity), rhs)
    variance = np.diagonal(solved[:, :, 1:], axis1=1, axis2=2)
    proper &= (variance >= 0.0).all(axis=1)
    return solved[:, :, 0], np.where(proper[:, None], variance + rows.extra, np.nan)


def _dense_rows(posterior: Posterior, solution: DenseSolution) -> _RowAccess:
    """Return access to the rows of the dense engine."""
    data, K = solution.observed(), solution.observed().K
    if K is None:
        raise InputError("groups of rows are left out with post.with_covariance(K) of a pickle")
    assert data.likelihood is not None
    (tau, nu), mean = posterior.sites, posterior.mean

    def of_group(group: Numbers) -> Array:
        across = np.ascontiguousarray(K[group])
        return np.asarray(across[:, group] - solution.reduced(across))

    def describe(members: Numbers) -> _Rows:
        if members.shape[1] == 1:
            covariance = posterior.variance[members][:, :, None]
        else:
            covariance = np.stack([of_group(group) for group in members])
        return _Rows(mean[members], tau[members], nu[members], np.zeros(members.shape), covariance)

    return _RowAccess(describe, _by_likelihood(data.likelihood, data.y))


def _series_rows(posterior: Posterior, solution: SeriesSolution) -> _RowAccess:
    """Return access to rows of a series; rows of equal times share one latent value."""
    (tau, nu), mean, variance = posterior.sites, posterior.mean, posterior.variance
    y = solution.series.y[solution.back]

    def describe(members: Numbers) -> _Rows:
        shared = variance[members].mean(axis=1)[:, None, None]
        covariance = np.broadcast_to(shared, (*members.shape, members.shape[1]))
        return _Rows(mean[members], tau[members], nu[members], np.zeros(members.shape), covariance)

    return _RowAccess(describe, _by_likelihood(solution.series.projector.likelihood, y))


def _sparse_rows(engine: Engine) -> _RowAccess:
    """Return rows of inducing points: moments of their features, sites, and the rest."""
    state, rule = engine.state, engine.rule
    all_tau, all_nu = engine.sites

    def describe(members: Numbers) -> _Rows:
        """Return moments and sites of rows, by their features."""
        phi, r = state.inducing.features(engine.rows.some(members.ravel()).X)
        mean = state.means(phi).reshape(members.shape)
        whitened = np.asarray(divide(phi, state.rounded), dtype=float).reshape(*members.shape, -1)
        tau, nu = all_tau[members], all_nu[members]
        r = np.asarray(r, dtype=float).reshape(members.shape)
        share = 1.0 + rule.power * r * tau
        covariance = whitened @ whitened.transpose(0, 2, 1)
        return _Rows(mean, tau / share, nu / share, r, covariance)

    def log_densities(rows: Numbers, mean: Array, variance: Array) -> Array:
        selected = engine.rows.some(rows)
        mean = mean if selected.prior is None else mean + selected.prior
        scale = 1.0 if selected.scale is None else selected.scale
        deviation = scale * np.sqrt(variance)
        return rule.project(scale * mean, deviation, selected.y, None, "log_z", whole=True)[0]

    return _RowAccess(describe, log_densities)


def _by_likelihood(likelihood: Likelihood, y: Array) -> Callable[[Numbers, Array, Array], Array]:
    def log_densities(rows: Numbers, mean: Array, variance: Array) -> Array:
        return project_arrays(likelihood, mean, np.sqrt(variance), y[rows], "ep").log_z

    return log_densities
