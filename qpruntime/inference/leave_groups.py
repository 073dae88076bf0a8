"""Predictive densities of rows without the sites of all rows of their groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qpruntime._typing import Array
from qpruntime.errors import InputError, NumericalError
from qpruntime.inference.local.posterior import LocalPosterior
from qpruntime.inference.markov.streaming import joined_pieces
from qpruntime.inference.posterior import solution_of
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.features import divide
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.projector import project_arrays

__all__ = ["leave_groups_out"]

# Rows of groups that are handled together.
_BLOCK = 1024

Numbers = NDArray[np.intp]


class _Rows(NamedTuple):
    """Some rows: moments of what their sites multiply, the sites, and what comes on top.

    `covariance(some)` has those of a slice of the rows; `rest` is the variance that the likelihood
    sees beyond them.
    """

    mean: Array
    tau: Array
    nu: Array
    rest: Array
    covariance: Callable[[slice], Array]


class _Group(NamedTuple):
    """How an engine describes rows, and the log densities of rows of these moments."""

    describe: Callable[[Numbers], _Rows]
    log_densities: Callable[[Numbers, Array, Array], Array]


def leave_groups_out(posterior: Any, codes: Numbers, rows: Numbers, coincide: bool) -> Array:
    """Return log p(y_i | rows of other groups) of some rows, shape (n,).

    As `Posterior.loo`, at the sites of the fit: no fit is repeated. With nearest rows, groups whose
    rows do not coincide are left out of the posterior of the inducing points alone.

    Parameters
    ----------
    posterior : Posterior
    codes : ndarray of int, shape (N,)
        Group of each row; rows of the posterior beyond these are observations of another kind.
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
            return solution_of(posterior).loo_places(rows)
        posterior = posterior.sparse
    solution = solution_of(posterior)
    if solution.name == "inducing":
        return _by_group(codes, rows, _of_features(solution.with_rows))
    if solution.name == "markov":
        if not coincide:
            raise InputError(
                'solver="markov" leaves out rows of equal times only, and those of a group differ: '
                'use solver="dense"'
            )
        return _by_group(codes, rows, _of_series(posterior, solution))
    return _by_group(codes, rows, _of_matrix(posterior, solution))


def _by_group(codes: Numbers, rows: Numbers, engine: _Group) -> Array:
    """Log densities of some rows, each without its group."""
    wanted = np.unique(codes[rows])
    order = np.argsort(codes, kind="stable")
    first = np.searchsorted(codes[order], wanted)
    last = np.searchsorted(codes[order], wanted, side="right")
    mean, variance = np.full((2, codes.size), np.nan)
    begin = 0
    while begin < wanted.size:
        end = begin + max(1, int(np.searchsorted(np.cumsum(last[begin:] - first[begin:]), _BLOCK)))
        members = np.concatenate([order[first[g] : last[g]] for g in range(begin, end)])
        told, at = engine.describe(members), 0
        for g in range(begin, end):
            some = slice(at, at + last[g] - first[g])
            own = members[some]
            mean[own], variance[own] = _without(told, some)
            at = some.stop
        begin = end
    if not (variance[rows] > 0.0).all():
        raise NumericalError(
            "there is no proper posterior without a group of rows: leave repeated rows out, or "
            "give them as one row with a weight"
        )
    return engine.log_densities(rows, mean[rows], variance[rows])


def _without(told: _Rows, some: slice) -> tuple[Array, Array]:
    """Mean and variance of rows of one group without their sites; no number where improper.

    Of N(m, S) the sites t = (tau, nu) leave the precision S^-1 - tau, so the covariance is
    (1 - S tau)^-1 S and the mean (1 - S tau)^-1 (m - S nu): S may be singular.
    """
    S, tau = told.covariance(some), told.tau[some]
    left = np.eye(len(S)) - S * tau
    try:
        right = np.column_stack([told.mean[some] - S @ told.nu[some], S])
        found = np.asarray(np.linalg.solve(left, right), dtype=float)
    except np.linalg.LinAlgError:
        return np.full(len(S), np.nan), np.full(len(S), np.nan)
    variance: Array = found[:, 1:].diagonal()
    # The determinant tells whether the precision that is left is one.
    proper = np.linalg.slogdet(left)[0] > 0.0 and (variance >= 0.0).all()
    mean: Array = found[:, 0]
    return mean, np.where(proper, variance + told.rest[some], np.nan)


def _of_matrix(posterior: Any, solution: Any) -> _Group:
    """Rows of the dense engine."""
    data, K = solution.observed(), solution.observed().K
    if K is None:
        raise InputError("groups of rows are left out with post.with_covariance(K) of a pickle")
    (tau, nu), mean, kept = posterior.sites, posterior.mean, solution.kept

    def describe(members: Numbers) -> _Rows:
        def covariance(some: slice) -> Array:
            own = members[some]
            across = np.ascontiguousarray(K[own])
            found: Array = across[:, own] - kept.reduced(across)
            return found

        nothing = np.zeros(members.size)
        return _Rows(mean[members], tau[members], nu[members], nothing, covariance)

    return _Group(describe, _by_likelihood(data.likelihood, data.y))


def _of_series(posterior: Any, solution: Any) -> _Group:
    """Rows of equal times, which have one value between them."""
    (tau, nu), mean, variance = posterior.sites, posterior.mean, posterior.variance
    y = solution.series.y[np.argsort(joined_pieces(solution.pieces, "index"))]

    def describe(members: Numbers) -> _Rows:
        def covariance(some: slice) -> Array:
            own = members[some]
            return np.full((own.size, own.size), variance[own].mean())

        nothing = np.zeros(members.size)
        return _Rows(mean[members], tau[members], nu[members], nothing, covariance)

    return _Group(describe, _by_likelihood(solution.series.projector.likelihood, y))


def _of_features(engine: Engine) -> _Group:
    """Rows of inducing points: sites of what these say, and what they leave open on top."""
    state, rule = engine.state, engine.rule
    all_tau, all_nu = engine.sites

    def describe(members: Numbers) -> _Rows:
        phi, r = state.inducing.features(engine.rows.some(members).X)
        mean = (phi @ state.mean.astype(phi.dtype)).astype(float)
        solved = np.asarray(divide(phi, state.rounded), dtype=float)
        tau, nu, r = all_tau[members], all_nu[members], np.asarray(r, dtype=float)
        share = 1.0 + rule.power * r * tau

        def covariance(some: slice) -> Array:
            return solved[some] @ solved[some].T

        return _Rows(mean, tau / share, nu / share, r, covariance)

    def log_densities(rows: Numbers, mean: Array, variance: Array) -> Array:
        some = engine.rows.some(rows)
        mean = mean if some.prior is None else mean + some.prior
        scale = 1.0 if some.scale is None else some.scale
        deviation = scale * np.sqrt(variance)
        return rule.project(scale * mean, deviation, some.y, None, "log_z", whole=True)[0]

    return _Group(describe, log_densities)


def _by_likelihood(likelihood: Likelihood, y: Array) -> Callable[[Numbers, Array, Array], Array]:
    def log_densities(rows: Numbers, mean: Array, variance: Array) -> Array:
        return project_arrays(likelihood, mean, np.sqrt(variance), y[rows], "ep").log_z

    return log_densities
