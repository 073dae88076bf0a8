"""Posterior mode of the hyper-parameters, and maximum likelihood."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import OptimizeResult, minimize

from qpruntime._typing import Array
from qpruntime.dataframes.readers import DataColumns
from qpruntime.effects.fixed import FixedBlock
from qpruntime.effects.objective import GAIN, Assembly, EffectsObjective, ObjectiveValue
from qpruntime.effects.spde import Plane, PlaneBlock
from qpruntime.effects.term import EffectBlock, Term
from qpruntime.errors import ConvergenceWarning, InputError, NumericalError

__all__ = [
    "Mode",
    "Window",
    "climb",
    "curvature",
    "curvatures",
    "maximise",
    "most_likely",
    "window",
]

# --- Starting values of a large field, from a window of its rows ---------------------------------

#: Nodes above which a field has a window, and about how many are in it; rows of it.
_MANY, _NODES, _ROWS = 20_000, 10_000, (2000, 20_000)


class Window(NamedTuple):
    """Rows (M,) and the terms for these."""

    rows: NDArray[np.intp]
    terms: list[Term]


def window(
    terms: Sequence[Term], blocks: Sequence[EffectBlock], data: DataColumns
) -> Window | None:
    """Return a window around the middle of the largest field, if that is large.

    Coasts and holes are left out of it. Fields within products have none.
    """
    fields = [block for block in blocks if isinstance(block, PlaneBlock)]
    most = max((block.mesh.size for block in fields), default=0)
    known = {field.name: field for field in fields}
    # The blocks of products have meshes of their own.
    whole = all(isinstance(term, Plane) or not hasattr(term, "place") for term in terms)
    count = int(np.clip(data.rows * _NODES / max(most, 1), *_ROWS))
    if most <= _MANY or not whole or 2 * count > data.rows:
        return None
    largest = max(fields, key=lambda one: one.mesh.size)
    points = np.column_stack([data.numbers(name) for name in largest.over])
    far = np.square(points - np.median(points, axis=0)).sum(axis=1)
    rows = np.sort(np.argpartition(far, count)[:count])
    return Window(rows, [_within(term, known) for term in terms])


def _within(term: Term, known: dict[str, PlaneBlock]) -> Term:
    """Return a field on a mesh of its own, as fine as the whole one and with the same priors."""
    if not isinstance(term, Plane):
        return term
    block = known[term.name]
    # The side of equal triangles of this area.
    spacing = float(np.sqrt(4.0 / np.sqrt(3.0) * np.median(block.mesh.areas)))
    return Plane(
        term.x, term.y, spacing=spacing, prior=term.prior, prior_range=block.range_tail
    )  # fmt: skip


# --- Maximum likelihood --------------------------------------------------------------------------


def most_likely(objective: EffectsObjective, max_iterations: int = 200) -> Mode:
    """Return the evaluation at the hyper-parameters of the largest likelihood.

    The likelihood is the evidence of all effects but the fixed ones, without priors of
    hyper-parameters. If there are no fixed effects, this is the evidence itself.

    Raises
    ------
    InputError
        If there are no effects beside fixed ones.
    """
    assembly = objective.assembly
    if not isinstance(assembly.blocks[0], FixedBlock):
        return maximise(objective, prior=False, max_iterations=max_iterations)
    if len(assembly.blocks) < 2:
        raise InputError(
            'estimate="ml" is for models with effects beside fixed ones: use estimate="posterior"'
        )
    place = assembly.places[0]
    A = sparse.csr_array(objective.A)
    X, other_columns = A[:, place].toarray(), sparse.csr_array(A[:, place.stop :])
    inner = EffectsObjective(
        Assembly(assembly.blocks[1:]), other_columns, objective.y, objective.offset,
        objective.weights, objective.family, objective.tol, objective.max_sweeps,
        objective.operations,
    )  # fmt: skip
    first = objective.loosely(objective.start)
    mean, variance = first.posterior.latent()
    start = np.concatenate([objective.start, mean[place]])
    curvature = np.concatenate([curvatures(objective, first), 1.0 / variance[place]])
    p, offset = objective.size, objective.offset
    best = [(-np.inf, start)]

    def function(at: Array) -> tuple[float, Array]:
        inner.offset = offset + X @ at[p:]
        optimum = inner(at[:p], key=at)
        if optimum.evidence > best[0][0]:
            best[0] = optimum.evidence, at.copy()
        slope = np.concatenate([optimum.evidence_slope, X.T @ optimum.posterior.weights])
        return optimum.evidence, slope

    free = np.tile([-np.inf, np.inf], (len(mean[place]), 1))
    bounds = np.vstack([objective.bounds, free])
    first_value = function(start)
    result = climb(function, start, bounds, first_value, curvature, max_iterations, objective.gain)
    evaluation = objective(best[0][1][:p])
    return Mode(evaluation, int(result.nit), bool(result.success), str(result.message))


# --- Posterior mode ------------------------------------------------------------------------------


class Mode(NamedTuple):
    """End of the search.

    Attributes
    ----------
    evaluation : ObjectiveValue
        The best one.
    iterations : int
    converged : bool
    message : str
        The optimiser's own.
    """

    evaluation: ObjectiveValue
    iterations: int
    converged: bool
    message: str


def maximise(objective: EffectsObjective, prior: bool = True, max_iterations: int = 200) -> Mode:
    """Return the mode; without `prior` that of the evidence alone."""

    def of(one: ObjectiveValue) -> tuple[float, Array]:
        if prior:
            return one.value, one.slope
        return one.evidence, one.evidence_slope

    if not objective.size or (objective.bounds[:, 0] == objective.bounds[:, 1]).all():
        return Mode(objective(objective.start), 0, True, "there is nothing to learn")
    first = objective.loosely(objective.start)
    best = [first]

    def function(theta: Array) -> tuple[float, Array]:
        evaluation = objective.loosely(theta)
        if best[0].posterior.converged and not evaluation.posterior.converged:
            # Its evidence may be anything, and its slope leads anywhere.
            raise NumericalError(f"sites have not settled at {theta}")
        value_and_slope = of(evaluation)
        if value_and_slope[0] > of(best[0])[0]:
            best[0] = evaluation
        return value_and_slope

    known = objective.curvature
    if known is None:
        known = curvatures(objective, first)
    begin = of(first)
    del first  # posteriors are large
    start, bounds = objective.start, objective.bounds
    result = climb(function, start, bounds, begin, known, max_iterations, objective.gain)
    end = best[0]
    if end.tol > objective.tol:
        end = objective(end.theta)
    return Mode(end, int(result.nit), bool(result.success), str(result.message))


# --- Curvature of the evidence: the units of a search --------------------------------------------

#: Step of differences of slopes: the nodes need the curvature to a few per cent.
_STEP = 1e-2
#: Tolerance of their sites by that of the mode.
_CURVATURE_TOL = 10.0


def curvature(objective: EffectsObjective, centre: ObjectiveValue) -> Array:
    """Less the second derivatives of the log density of theta, (p, p), by differences of slopes."""
    p = objective.size
    H = np.empty((p, p))
    low, high = objective.bounds.T
    for k in range(p):
        theta = centre.theta.copy()
        step = _STEP if theta[k] + _STEP <= high[k] else -_STEP
        theta[k] = np.clip(theta[k] + step, low[k], high[k])
        end = objective(theta, _CURVATURE_TOL * objective.tol)
        H[:, k] = -(end.slope - centre.slope) / (theta[k] - centre.theta[k])
    return H


def curvatures(objective: EffectsObjective, one: ObjectiveValue) -> Array:
    """Estimates of the curvature of the log evidence by theta, shape (p,), at least 1.

    The expected one of fully seen effects is tr(S0 dQ S0 dQ)/2; of those that are seen in part,
    the sum over effects of the squares of the diagonal of (S0 - S) dQ is close for groups and too
    small for smooth fields, whose prior enters by its mean. No step of a search by them is longer
    than 1.
    """
    assembly = objective.assembly
    scales = np.maximum(np.abs(one.slope), 1.0)
    block_theta = one.theta[: len(assembly.start)]
    covariance = one.posterior.slope()[0]
    covariance.sort_indices()
    entries = covariance.data[assembly.pattern.place]
    slopes, traces = assembly.precision(block_theta)[1], assembly.log_det(block_theta)[1]
    begin = k = 0
    for block, of_block in zip(assembly.blocks, slopes, strict=True):
        pattern = block.pattern
        S = entries[begin : begin + pattern.count]
        begin += pattern.count
        for dQ in of_block:
            expected = np.bincount(pattern.columns, S * dQ, pattern.size)
            block_curvature = 0.5 * float(
                np.square(traces[k] / max(pattern.size, 1) - expected).sum()
            )
            scales[k] = max(scales[k], block_curvature)
            k += 1
    return scales


# A slope below this for each posterior standard deviation is none, for steps that gain `GAIN`.
_FLAT = 1e-4
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
    gain: float = GAIN,
) -> OptimizeResult:
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
    gain : float
        Gain of the log density by a step below which the search ends.

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
        """Return minus the objective and its slope in units of the curvature."""
        value_and_slope = known.pop() if known and not u.any() else None
        if value_and_slope is None:
            at = np.clip(start + units @ u, *bounds.T)
            try:
                if (np.abs(at - best[0][1]) > far_off).any():
                    raise NumericalError("a step too far from what is known")
                with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
                    value_and_slope = function(at)
            except NumericalError:
                # A plateau below all that was seen: the line search comes back.
                return share * (abs(least[0]) + 1e6), np.zeros(len(at))
            least[0] = max(least[0], value_and_slope[0])
            best[0] = max(best[0], (value_and_slope[0], at), key=lambda one: one[0])
        return -share * value_and_slope[0], -share * (units.T @ value_and_slope[1])

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
            "ftol": share * gain / max(abs(share * first[0]), 1.0),
            "gtol": _FLAT * np.sqrt(gain / GAIN) / far,
        },
    )
