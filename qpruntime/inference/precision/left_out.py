"""Log densities of whole groups of rows, left out together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime.arrays import Array
from qpruntime.errors import InputError, NumericalError
from qpruntime.inference.dense.solver import DensePrior
from qpruntime.inference.evidence import log_evidence
from qpruntime.inference.fixed_point.ended import Limits
from qpruntime.inference.fixed_point.settle import settle
from qpruntime.inference.precision.solution import PrecisionSolution
from qpruntime.inference.sites import Sites
from qpruntime.memory import require, squares

__all__ = ["left_out_groups"]

_LIMITS = Limits(1e-9, 200)


def left_out_groups(solution: PrecisionSolution, labels: ArrayLike) -> tuple[Any, Array]:
    """Return the groups, as `numpy.unique` has them, and log p(y_G | all other rows) of each.

    The cavity of all rows of a group is their normal posterior without their own sites; the density
    of the group's observations is the evidence of EP under it.

    Raises
    ------
    InputError
        If labels have another shape, or equal rows have several: `collapse=False` keeps them apart.
    """
    seen = solution.seen
    given = np.asarray(labels)
    if given.shape != (seen.n,):
        raise InputError(f"labels must have shape ({seen.n},), one for each row; got {given.shape}")
    if given.dtype.kind == "f" and np.isnan(given).any():
        raise InputError("labels must not be NaN: give rows without a group one of their own")
    names, codes = np.unique(given, return_inverse=True)
    kept = codes if seen.kept is None else codes[seen.kept]
    site = seen.collapsed.rows.site
    own = kept[seen.collapsed.rows.first]
    if (own[site] != kept).any():
        row = int(np.argmax(own[site] != kept))
        raise InputError(
            f"row {row} equals another one of another group, with which it is one site: infer with "
            "collapse=False to leave them out apart"
        )
    order = np.argsort(own, kind="stable")
    ends = np.searchsorted(own[order], np.arange(names.size + 1))
    found = np.zeros(names.size)
    for g in range(names.size):
        members = order[ends[g] : ends[g + 1]]
        if members.size:
            found[g] = _left_out(solution, members)
    return names, found


def _left_out(solution: PrecisionSolution, members: NDArray[np.intp]) -> float:
    """Log density of these sites' observations given all others."""
    here, sites = solution.here, solution.sites_held
    merged = solution.seen.collapsed.merged
    constant = float(merged.constant[members].sum())
    if members.size == 1 and merged.weights is None:
        return float(solution.log_z[members[0]]) + constant
    m = members.size
    require(squares(m, 5.0), f"leaving out {m} rows together", "leave out fewer rows")
    prior = solution.solved.prior
    right = prior.dense_rows(members)
    V = right.T @ solution.solved.covariances(right)
    tau, pull = sites.tau[members], here.pull[members]
    # (V^-1 - diag(tau))^-1, and the mean that goes with it.
    cavity = np.linalg.solve(np.eye(m) - V * tau, V)
    cavity = 0.5 * (cavity + cavity.T)
    if not (cavity.diagonal() > 0.0).all():
        raise NumericalError(
            f"row {solution.seen.row_of(int(members[np.argmin(cavity.diagonal())]))} and the rows "
            "left out with it have no proper cavity: they alone tell a part of the latent values"
        )
    mean = here.mean[members] - cavity @ pull
    whole = solution.problem
    weights = None if whole.weights is None else whole.weights[members]
    problem = replace(whole, prior=DensePrior(cavity, mean), y=whole.y[members], weights=weights)
    start = Sites(tau.copy(), sites.nu[members].copy())
    end = settle(problem, _LIMITS, order="parallel", sites=start)
    return log_evidence(problem, end)[0] + constant
